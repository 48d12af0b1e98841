"""Range: each member gets a run of adjacent partitions of each topic, so that topics with the same
number of partitions line up (co-partitioning).

First, members that know their rack get partitions with a replica there, as far as the lengths of
the runs allow; the runs then have gaps, and topics still line up. Sources: KIP-881, and the
behaviour of Java's assignor of the same name: in a group of this library's and Java's members, any
of them may be the leader.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import islice, repeat

from kafkagroup.assign.spec import GroupSpec, named
from kafkagroup.types import Assignment, TopicPartition

__all__ = ["range_assignor"]


@named("range")
def range_assignor(spec: GroupSpec) -> Assignment:
    """Give each subscriber of a topic a run of its partitions; if they do not divide evenly, the
    first subscribers get one more each.

    The counts of one topic differ by at most one; over many topics the first members may get more.
    Topics with the same subscribers and number of partitions line up: a member gets the same
    numbers of each. Racks matter for a topic only if members and replicas share a rack, and not all
    its partitions have their replicas in the same racks.
    O(members log members + subscriptions + replicas). Sources: Kafka's RangeAssignor, KIP-881.
    """
    lined_up: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    for topic, members in spec.subscribers().items():
        lined_up.setdefault((spec.partitions[topic], tuple(members)), []).append(topic)
    rows = [_Row(spec, topics, members) for (_, members), topics in lined_up.items()]
    # If racks matter for any topic, they guide all topics that line up with another one. A topic
    # that lines up with no other is guided by racks only if they matter for that topic.
    racks_matter = any(row.racks_matter for row in rows)
    row_of = {}
    for row in rows:
        if racks_matter and len(row.topics) > 1:
            row.match_partition_by_partition()
        elif row.racks_matter:
            row.match_member_by_member()
        row.fill()
        row_of.update(dict.fromkeys(row.topics, row))
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in spec.members}
    for topic, row in sorted(row_of.items()):
        for member, numbers in zip(row.members, row.held, strict=True):
            assigned[member].extend(TopicPartition(topic, p) for p in numbers)
    return {member: tuple(partitions) for member, partitions in assigned.items()}


class _Row:
    """Topics that line up, and each member's partition numbers while they are being assigned."""

    def __init__(self, spec: GroupSpec, topics: Sequence[str], members: Sequence[str]) -> None:
        count = spec.partitions[topics[0]]
        self.topics = topics
        self.members = members
        self.held: list[list[int]] = [[] for _ in members]
        self._left = dict.fromkeys(range(count))
        """The partition numbers that are not assigned yet, as keys, to keep their order."""
        # Each member gets `_length` partitions; `_longer` members may still get one more.
        self._length, self._longer = divmod(count, len(members))
        # An empty rack name means no rack.
        self._member_racks = [spec.members[member].rack or None for member in members]
        known = {rack for rack in self._member_racks if rack is not None}
        self._replica_racks = [_racks(spec, topic, count) for topic in topics] if known else []
        self.racks_matter = any(_can_match(racks, known) for racks in self._replica_racks)

    def match_member_by_member(self) -> None:
        """Give each member the first partitions with a replica in its rack; a member without a rack
        may get any."""
        (replica_racks,) = self._replica_racks  # only for a topic that lines up with no other
        numbers: dict[str | None, list[int]] = defaultdict(list)
        for number, racks in enumerate(replica_racks):
            for rack in (None, *racks):
                numbers[rack].append(number)
        # Lazy, so each rack skips the numbers that are assigned by the time of its next member.
        free = {rack: filter(self._left.__contains__, all_) for rack, all_ in numbers.items()}
        for index, rack in enumerate(self._member_racks):
            self._assign(index, list(islice(free.get(rack, ()), self._capacity_left(index))))

    def match_partition_by_partition(self) -> None:
        """Give each partition number to the first member with room that has no rack, or whose rack
        has a replica of that partition in every topic."""
        waiting: dict[str | None, deque[int]] = defaultdict(deque)
        for index, rack in enumerate(self._member_racks):
            waiting[rack].append(index)
        for number, racks in enumerate(zip(*self._replica_racks, strict=True)):
            candidates = []
            for rack in (None, *frozenset.intersection(*racks)):
                queue = waiting[rack]
                # A full member stays full.
                while queue and not self._capacity_left(queue[0]):
                    queue.popleft()
                if queue:
                    candidates.append(queue[0])
            if candidates:
                self._assign(min(candidates), [number])

    def fill(self) -> None:
        """Give the other partitions to the members in runs."""
        rest = iter(list(self._left))
        for index in range(len(self.members)):
            self._assign(index, list(islice(rest, self._capacity_left(index))))
            self.held[index].sort()

    def _capacity_left(self, index: int) -> int:
        """Return how many more partitions a member may get."""
        return max(0, self._length + (self._longer > 0) - len(self.held[index]))

    def _assign(self, index: int, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        self.held[index].extend(numbers)
        # Happens at most once for each member: it has no capacity left then.
        self._longer -= len(self.held[index]) > self._length
        for number in numbers:
            del self._left[number]


def _racks(spec: GroupSpec, topic: str, count: int) -> list[frozenset[str]]:
    """Return the racks of each partition's replicas; an empty set where they are unknown."""
    known = list(spec.racks.get(topic, ()))[:count]
    return known + list(repeat(frozenset[str](), count - len(known)))


def _can_match(replica_racks: Sequence[frozenset[str]], member_racks: set[str]) -> bool:
    """Return whether members and replicas share a rack, and partitions differ in their racks."""
    everywhere = frozenset[str]().union(*replica_racks)
    return not everywhere.isdisjoint(member_racks) and any(
        racks != everywhere for racks in replica_racks
    )

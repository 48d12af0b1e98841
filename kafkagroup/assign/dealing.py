"""Deal partitions to members. `balance` has computed how many partitions each member gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from kafkagroup.types import TopicPartition

__all__ = ["deal", "deal_near"]


def deal(
    partitions: Sequence[TopicPartition], due: Mapping[int, int]
) -> dict[int, list[TopicPartition]]:
    """Deal the partitions in the given order, one by one: in each round every member that must get
    more gets one, in the order of the members' numbers.

    `due`: member -> how many partitions it gets, at least one. The sum is the number of partitions.
    O(partitions), by slicing lists.
    """
    dealt: dict[int, list[TopicPartition]] = {member: [] for member in due}
    waiting = sorted(due)
    start = done = 0  # how many partitions, and how many rounds, are dealt
    while waiting:
        # `until`: the round after which the first member has all that it is due. Up to it the same
        # members take part in each round, so one slice has a member's part.
        until = min(due[member] for member in waiting)
        width = len(waiting)
        end = start + (until - done) * width
        for offset, member in enumerate(waiting, start):
            dealt[member] += partitions[offset:end:width]
        waiting = [member for member in waiting if due[member] > until]
        start, done = end, until
    return dealt


def deal_near(
    partitions: Sequence[TopicPartition],
    due: Mapping[int, int],
    rack: Mapping[int, str],
    replicas: Mapping[TopicPartition, frozenset[str]],
) -> dict[int, list[TopicPartition]]:
    """Deal partitions to members in a rack that has a replica of them, then the others as `deal`.

    Partitions with replicas in the fewest members' racks come first. A partition goes to that of
    these racks whose members must still get the most, and there to the next member in turn. This is
    greedy, so not always optimal. The partitions of each member are sorted. `due`: as for `deal`;
    `rack`: member -> its rack, where known; `replicas`: partition -> the racks of its replicas,
    empty if unknown.
    O(partitions log partitions). Source: KIP-881.
    """
    left = dict(due)  # member -> how many partitions it must still get
    rows: dict[str, deque[int]] = {}  # rack -> its members that must get more, in turn
    for member in sorted(due):
        if member in rack:
            rows.setdefault(rack[member], deque()).append(member)
    # Rack -> how many partitions its members must still get.
    wanted = {name: sum(left[m] for m in row) for name, row in rows.items()}
    # Racks of a partition's replicas -> those of them that have members, sorted.
    near = {racks: sorted(racks & rows.keys()) for racks in set(replicas.values())}
    dealt: dict[int, list[TopicPartition]] = {member: [] for member in due}
    others: list[TopicPartition] = []
    for partition in sorted(partitions, key=lambda p: len(near[replicas[p]])):
        best = max(near[replicas[partition]], key=wanted.__getitem__, default=None)
        if best is None or not wanted[best]:
            others.append(partition)
            continue
        row = rows[best]
        member = row.popleft()
        dealt[member].append(partition)
        wanted[best] -= 1
        left[member] -= 1
        if left[member]:
            row.append(member)
    rest = deal(others, {member: units for member, units in left.items() if units})
    return {member: sorted(dealt[member] + rest.get(member, [])) for member in due}

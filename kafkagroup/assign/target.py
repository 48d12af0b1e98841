"""What a sticky assignment aims at, whether or not it can be handed over in this round.

Balance comes first, then that partitions stay. A partition that has to leave its owner goes back to
the member that owned it before, if that member is due any. Racks come last: of the partitions that
remain, those with a replica in a member's rack go to it where that costs nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from kafkagroup._values import define
from kafkagroup.assign.balance import Pool, even_out
from kafkagroup.assign.claims import UNCLAIMED, WITHHELD, Claims, read_claims
from kafkagroup.assign.dealing import deal, deal_near
from kafkagroup.assign.spec import GroupSpec
from kafkagroup.types import TopicPartition

__all__ = ["Held", "find_target"]

Run = Sequence[TopicPartition]
"""Partitions in their order."""


@define(eq=False)
class Held:
    """What one member shall hold."""

    kept: Run
    """What it owns and keeps."""
    given: tuple[Run, ...] = ()
    """What it gets that nobody claims."""
    moving: tuple[Run, ...] = ()
    """What it is to get that others claim."""

    def now(self) -> tuple[TopicPartition, ...]:
        """What it can have without anybody letting go of anything, sorted."""
        return _merged((self.kept, *self.given))

    def all(self) -> tuple[TopicPartition, ...]:
        """Everything, sorted."""
        return _merged((self.kept, *self.given, *self.moving))


def _merged(runs: Iterable[Run]) -> tuple[TopicPartition, ...]:
    runs = [run for run in runs if run]
    # One run is most often all: sorting what is sorted takes as long as all that came before.
    return tuple(runs[0] if len(runs) == 1 else sorted(chain.from_iterable(runs)))


def find_target(spec: GroupSpec) -> dict[str, Held]:
    """Find the most even assignment, and of those one that moves the fewest partitions; by member.

    Of a member's partitions in one pool the highest numbers go first, so that each topic gives its
    share. O(partitions + claims + pairs of topic and subscriber) beside `even_out`.
    """
    order = spec.order()
    claims = read_claims(spec, order)
    held = [Held(kept) for kept in claims.standing]
    pools, topics = _pools(claims)
    even_out(pools, len(order))
    near = _Near(spec, order)
    loose = _released(pools, topics, held, claims.former, near)
    for pool, names, released in zip(pools, topics, loose, strict=True):
        if not pool.gained:
            continue
        free, withheld = _free(claims, names)
        claimed = {*released, *withheld}
        due = sorted([*released, *free]) if released else free
        for member, dealt in _dealt(due, pool.gained, claims.former, near).items():
            if claimed:
                held[member].moving += ([tp for tp in dealt if tp in claimed],)
                dealt = [tp for tp in dealt if tp not in claimed]
            held[member].given += (dealt,)
    return dict(zip(order, held, strict=True))


def _dealt(
    partitions: list[TopicPartition],
    due: dict[int, int],
    former: Mapping[TopicPartition, int],
    near: _Near,
) -> dict[int, list[TopicPartition]]:
    """Give each member as many partitions as it is due: first those that it owned before."""
    if not former:
        return near.deal(partitions, due)
    dealt: dict[int, list[TopicPartition]] = {member: [] for member in due}
    others: list[TopicPartition] = []
    for tp in partitions:
        member = former.get(tp)
        if member in due and len(dealt[member]) < due[member]:
            dealt[member].append(tp)
        else:
            others.append(tp)
    left = {m: units - len(dealt[m]) for m, units in due.items() if units > len(dealt[m])}
    for member, more in near.deal(others, left).items():
        dealt[member] = sorted(dealt[member] + more)
    return dealt


def _pools(claims: Claims) -> tuple[list[Pool], list[list[str]]]:
    """The pools as they are now, and the topics of each."""
    groups = list(claims.alike.values())
    subscribing: dict[str, list[int]] = {topic: [] for topic in claims.numbers}
    for group, subscription in enumerate(claims.alike):
        for topic in subscription:
            if topic in subscribing:
                subscribing[topic].append(group)
    alike: dict[tuple[int, ...], list[str]] = {}  # those who subscribe -> topics
    for topic, by in subscribing.items():
        alike.setdefault(tuple(by), []).append(topic)
    pools = []
    for key, topics in alike.items():
        owned: Counter[int] = Counter()
        free = 0
        for topic in topics:
            numbers = claims.numbers[topic]
            if topic in claims.unclaimed:
                free += len(numbers)
            else:
                owned.update(claims.owner[numbers.start : numbers.stop])
        free += owned.pop(UNCLAIMED, 0) + owned.pop(WITHHELD, 0)
        members = sorted(member for group in key for member in groups[group])
        pools.append(Pool(members, free, dict(owned)))
    return pools, list(alike.values())


def _free(claims: Claims, topics: list[str]) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """The partitions that no member owns, in order; and those of them that are withheld."""
    free: list[TopicPartition] = []
    withheld: list[TopicPartition] = []
    for topic in topics:
        numbers = claims.numbers[topic]
        partitions = claims.partitions[numbers.start : numbers.stop]
        if topic in claims.unclaimed:
            free += partitions
            continue
        owners = claims.owner[numbers.start : numbers.stop]
        free += [tp for tp, owner in zip(partitions, owners, strict=True) if owner < 0]
        if WITHHELD in owners:
            pairs = zip(partitions, owners, strict=True)
            withheld += [tp for tp, owner in pairs if owner == WITHHELD]
    return free, withheld


def _released(
    pools: list[Pool],
    topics: list[list[str]],
    held: list[Held],
    former: Mapping[TopicPartition, int],
    near: _Near,
) -> list[list[TopicPartition]]:
    """Take from what is kept what has to go; by pool. What can go back to the member that owned it
    before goes first."""
    released: list[list[TopicPartition]] = [[] for _ in pools]
    home = {topic: number for number, names in enumerate(topics) for topic in names}
    losing: dict[int, list[int]] = {}  # member -> the pools in which it loses
    for number, pool in enumerate(pools):
        for member in pool.lost:
            losing.setdefault(member, []).append(number)
    for member, numbers in losing.items():
        # Split once for all pools: once for each would square the work of a member in many.
        own: dict[int, list[TopicPartition]] = {number: [] for number in numbers}
        for tp in held[member].kept:
            number = home[tp.topic]
            if number in own:
                own[number].append(tp)
        gone: set[TopicPartition] = set()
        for number in numbers:
            pool = pools[number]
            order = near.worth(own[number], member)
            if former:
                order.sort(key=lambda tp: former.get(tp) in pool.gained)
            revoked = order[len(order) - pool.lost[member] :]
            released[number] += revoked
            gone.update(revoked)
        held[member].kept = [tp for tp in held[member].kept if tp not in gone]
    return released


class _Near:
    """What racks have a say in: which partitions leave a member, and who gets those that left."""

    def __init__(self, spec: GroupSpec, order: list[str]) -> None:
        self._replicas = spec.racks
        self._rack: dict[int, str] = {}
        if spec.racks:
            racks = (spec.members[member].rack for member in order)
            self._rack = {number: rack for number, rack in enumerate(racks) if rack}

    def worth(self, own: list[TopicPartition], member: int) -> list[TopicPartition]:
        """A member's own partitions, those first that it should keep: near ones, low numbers."""
        own = sorted(own, key=lambda tp: tp.partition)
        rack = self._rack.get(member)
        if rack is not None:
            own.sort(key=lambda tp: rack not in self._racks(tp))
        return own

    def deal(
        self, partitions: list[TopicPartition], due: dict[int, int]
    ) -> dict[int, list[TopicPartition]]:
        if self._rack.keys().isdisjoint(due):
            return deal(partitions, due)
        replicas = {tp: self._racks(tp) for tp in partitions}
        return deal_near(partitions, due, self._rack, replicas)

    def _racks(self, partition: TopicPartition) -> frozenset[str]:
        topic, number = partition
        racks = self._replicas.get(topic, ())
        return racks[number] if number < len(racks) else frozenset()

"""The target assignment of the sticky assignors.

A cooperative round cannot assign the whole target if members must revoke partitions first. Balance
comes first, then few moves. A partition that must leave its owner goes back to the member that
owned it before, if that member must get more partitions. Racks come last: of the other partitions,
those with a replica in a member's rack go to that member if this costs neither balance nor moves.
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

__all__ = ["MemberTarget", "find_target"]

Run = Sequence[TopicPartition]
"""Sorted partitions."""


@define(eq=False)
class MemberTarget:
    """The target of one member."""

    kept: Run
    """The partitions that it owns and keeps."""
    given: tuple[Run, ...] = ()
    """The partitions that it gets, and that no other member claims."""
    moving: tuple[Run, ...] = ()
    """The partitions that it gets once the other members that claim them have revoked them."""

    def without_revocations(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that it may own before other members revoke any, sorted."""
        return _merged((self.kept, *self.given))

    def all_partitions(self) -> tuple[TopicPartition, ...]:
        """Return all partitions of the target, sorted."""
        return _merged((self.kept, *self.given, *self.moving))


def _merged(runs: Iterable[Run]) -> tuple[TopicPartition, ...]:
    runs = [run for run in runs if run]
    # Mostly there is one run: sorting it again would take as long as all the work before.
    return tuple(runs[0] if len(runs) == 1 else sorted(chain.from_iterable(runs)))


def find_target(spec: GroupSpec) -> dict[str, MemberTarget]:
    """Return member id -> target: an assignment that is as even as possible, with the fewest moves.

    Of a pool, which is all topics with the same subscribers, a member loses the highest partition
    numbers first, so that it loses partitions of all topics evenly.
    O(partitions + claims + pairs of topic and subscriber), and `even_out`.
    """
    order = spec.order()
    claims = read_claims(spec, order)
    targets = [MemberTarget(kept) for kept in claims.owned_by]
    pools, topics_by_pool = _pools(claims)
    even_out(pools, len(order))
    racks = _RackPreference(spec, order)
    released_by_pool = _release(pools, topics_by_pool, targets, claims.former, racks)
    for pool, topics, released in zip(pools, topics_by_pool, released_by_pool, strict=True):
        if not pool.gained:
            continue
        free, withheld = _free(claims, topics)
        claimed = {*released, *withheld}  # members have to revoke these first
        to_deal = sorted([*released, *free]) if released else free
        for member, dealt in _dealt(to_deal, pool.gained, claims.former, racks).items():
            if claimed:
                targets[member].moving += ([tp for tp in dealt if tp in claimed],)
                dealt = [tp for tp in dealt if tp not in claimed]
            targets[member].given += (dealt,)
    return dict(zip(order, targets, strict=True))


def _dealt(
    partitions: list[TopicPartition],
    due: dict[int, int],
    former: Mapping[TopicPartition, int],
    racks: _RackPreference,
) -> dict[int, list[TopicPartition]]:
    """Deal each member `due[member]` partitions: those that it owned before come first."""
    if not former:
        return racks.deal(partitions, due)
    dealt: dict[int, list[TopicPartition]] = {member: [] for member in due}
    others: list[TopicPartition] = []
    for tp in partitions:
        member = former.get(tp)
        if member in due and len(dealt[member]) < due[member]:
            dealt[member].append(tp)
        else:
            others.append(tp)
    left = {m: units - len(dealt[m]) for m, units in due.items() if units > len(dealt[m])}
    for member, more in racks.deal(others, left).items():
        dealt[member] = sorted(dealt[member] + more)
    return dealt


def _pools(claims: Claims) -> tuple[list[Pool], list[list[str]]]:
    """Return the pools, with the present owners' partitions as kept, and the topics of each."""
    # An index stands for a subscription here, in the order of `by_subscription`.
    members_of = list(claims.by_subscription.values())
    including: dict[str, list[int]] = {topic: [] for topic in claims.numbers}
    for index, subscription in enumerate(claims.by_subscription):
        for topic in subscription:
            if topic in including:
                including[topic].append(index)
    # Subscriptions -> the topics that are in exactly these.
    alike: dict[tuple[int, ...], list[str]] = {}
    for topic, indices in including.items():
        alike.setdefault(tuple(indices), []).append(topic)
    pools = []
    for subscriptions, topics in alike.items():
        owned: Counter[int] = Counter()
        free = 0
        for topic in topics:
            numbers = claims.numbers[topic]
            if topic in claims.unclaimed:
                free += len(numbers)
            else:
                owned.update(claims.owner[numbers.start : numbers.stop])
        free += owned.pop(UNCLAIMED, 0) + owned.pop(WITHHELD, 0)
        members = sorted(member for index in subscriptions for member in members_of[index])
        pools.append(Pool(members, free, dict(owned)))
    return pools, list(alike.values())


def _free(claims: Claims, topics: list[str]) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Return the partitions without an owner, sorted; and those of them that are withheld."""
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


def _release(
    pools: list[Pool],
    topics_by_pool: list[list[str]],
    targets: list[MemberTarget],
    former: Mapping[TopicPartition, int],
    racks: _RackPreference,
) -> list[list[TopicPartition]]:
    """Remove the partitions that members lose from what they keep; return them by pool. Partitions
    that can go back to the member that owned them before are removed first."""
    released: list[list[TopicPartition]] = [[] for _ in pools]
    pool_of = {topic: number for number, topics in enumerate(topics_by_pool) for topic in topics}
    losing: dict[int, list[int]] = {}  # member -> the pools in which it loses
    for number, pool in enumerate(pools):
        for member in pool.lost:
            losing.setdefault(member, []).append(number)
    for member, numbers in losing.items():
        # One pass for all pools: a pass for each would be quadratic for a member in many pools.
        own: dict[int, list[TopicPartition]] = {number: [] for number in numbers}
        for tp in targets[member].kept:
            number = pool_of[tp.topic]
            if number in own:
                own[number].append(tp)
        gone: set[TopicPartition] = set()
        for number in numbers:
            pool = pools[number]
            order = racks.order_to_keep(own[number], member)
            if former:
                # Those that can go back come last, where the revoked ones are taken from.
                order.sort(key=lambda tp: former.get(tp) in pool.gained)
            revoked = order[len(order) - pool.lost[member] :]
            released[number] += revoked
            gone.update(revoked)
        targets[member].kept = [tp for tp in targets[member].kept if tp not in gone]
    return released


class _RackPreference:
    """Chooses by racks which partitions a member keeps, and which member gets the others."""

    def __init__(self, spec: GroupSpec, order: list[str]) -> None:
        self._replicas = spec.racks
        self._rack: dict[int, str] = {}
        """Member -> its rack, if it has one; no entries if no replica's rack is known."""
        if spec.racks:
            racks = (spec.members[member].rack for member in order)
            self._rack = {number: rack for number, rack in enumerate(racks) if rack}

    def order_to_keep(self, own: list[TopicPartition], member: int) -> list[TopicPartition]:
        """Sort a member's own partitions: those with a replica in its rack come first, then those
        with low numbers."""
        own = sorted(own, key=lambda tp: tp.partition)
        rack = self._rack.get(member)
        if rack is not None:
            own.sort(key=lambda tp: rack not in self._racks(tp))
        return own

    def deal(
        self, partitions: list[TopicPartition], due: dict[int, int]
    ) -> dict[int, list[TopicPartition]]:
        """Deal each member `due[member]` partitions, if possible with a replica in its rack."""
        if self._rack.keys().isdisjoint(due):
            return deal(partitions, due)
        replicas = {tp: self._racks(tp) for tp in partitions}
        return deal_near(partitions, due, self._rack, replicas)

    def _racks(self, partition: TopicPartition) -> frozenset[str]:
        topic, number = partition
        racks = self._replicas.get(topic, ())
        return racks[number] if number < len(racks) else frozenset()

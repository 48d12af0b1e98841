"""What a sticky assignment aims at, before anybody asks what can be handed over now.

Balance comes first, then that partitions stay, then racks: among the partitions that have to find
a new member, those with a replica in its rack go to it where that costs nothing else.
"""

from __future__ import annotations

from collections import Counter

import attrs

from kafkagroup.assign.balance import Pool, even_out
from kafkagroup.assign.claims import DISPUTED, UNCLAIMED, Claims, read_claims
from kafkagroup.assign.dealing import deal, deal_near
from kafkagroup.assign.spec import GroupSpec

__all__ = ["Target", "find_target"]


@attrs.frozen
class Target:
    """Who shall hold what. Members and partitions are numbers, as in `Claims`."""

    members: list[str]
    """Ids, by number."""
    claims: Claims
    kept: list[list[int]]
    """Member -> the partitions that it owns and keeps, ascending."""
    given: list[list[int]]
    """Member -> the partitions that nobody claims and that it gets."""
    moving: list[list[int]]
    """Member -> the partitions that others claim and that it is to get."""


def find_target(spec: GroupSpec) -> Target:
    """Find the most even assignment, and of those one that moves the fewest partitions.

    Of a member's partitions in one pool the highest numbers go first, so that each topic gives its
    share. O(partitions + claims + pairs of topic and subscriber) beside `even_out`.
    """
    order = spec.order()
    claims = read_claims(spec, order)
    owner = claims.owner
    ranges = {
        topic: range(start, start + spec.partitions[topic]) for topic, start in claims.start.items()
    }
    kept: list[list[int]] = [[] for _ in order]
    for topic in claims.topics:
        if topic in claims.unclaimed:
            continue
        for partition in ranges[topic]:
            if owner[partition] >= 0:
                kept[owner[partition]].append(partition)
    pools, topics = _pools(spec, order, claims)
    even_out(pools, len(order))
    near = _Near(spec, order, claims)
    loose = _released(pools, topics, claims, kept, near)
    given: list[list[int]] = [[] for _ in order]
    moving: list[list[int]] = [[] for _ in order]
    for pool, names, partitions in zip(pools, topics, loose, strict=True):
        if not pool.gained:
            continue
        claimed = set(partitions)
        free: list[int] = []
        for topic in names:
            if topic in claims.unclaimed:
                free += ranges[topic]
            else:
                free += [p for p in ranges[topic] if owner[p] < 0]
                claimed.update(p for p in ranges[topic] if owner[p] == DISPUTED)
        due = sorted(partitions + free) if partitions else free
        for member, dealt in near.deal(due, pool.gained).items():
            if claimed:
                moving[member] += [p for p in dealt if p in claimed]
                dealt = [p for p in dealt if p not in claimed]
            given[member] += dealt
    return Target(order, claims, kept, given, moving)


def _pools(spec: GroupSpec, order: list[str], claims: Claims) -> tuple[list[Pool], list[list[str]]]:
    """The pools as they are now, and the topics of each."""
    same: dict[frozenset[str], list[int]] = {}  # subscription -> members
    for number, member in enumerate(order):
        same.setdefault(spec.members[member].topics, []).append(number)
    groups = list(same.values())
    subscribing: dict[str, list[int]] = {topic: [] for topic in claims.topics}
    for group, subscription in enumerate(same):
        for topic in subscription:
            if topic in subscribing:
                subscribing[topic].append(group)
    alike: dict[tuple[int, ...], list[str]] = {}  # those who subscribe -> topics
    for topic in claims.topics:
        alike.setdefault(tuple(subscribing[topic]), []).append(topic)
    pools = []
    for key, topics in alike.items():
        owned: Counter[int] = Counter()
        free = 0
        for topic in topics:
            start, size = claims.start[topic], spec.partitions[topic]
            if topic in claims.unclaimed:
                free += size
            else:
                owned.update(claims.owner[start : start + size])
        free += owned.pop(UNCLAIMED, 0) + owned.pop(DISPUTED, 0)
        members = sorted(member for group in key for member in groups[group])
        pools.append(Pool(members, free, dict(owned)))
    return pools, list(alike.values())


def _released(
    pools: list[Pool],
    topics: list[list[str]],
    claims: Claims,
    kept: list[list[int]],
    near: _Near,
) -> list[list[int]]:
    """Take from `kept` what has to go; by pool."""
    released: list[list[int]] = [[] for _ in pools]
    home = {topic: number for number, names in enumerate(topics) for topic in names}
    losing: dict[int, list[int]] = {}  # member -> the pools in which it loses
    for number, pool in enumerate(pools):
        for member in pool.lost:
            losing.setdefault(member, []).append(number)
    for member, numbers in losing.items():
        # Split once for all pools: once for each would square the work of a member in many.
        own: dict[int, list[int]] = {number: [] for number in numbers}
        for partition in kept[member]:
            number = home[claims.partitions[partition].topic]
            if number in own:
                own[number].append(partition)
        gone: set[int] = set()
        for number in numbers:
            going = near.least_worth(own[number], member, pools[number].lost[member])
            released[number] += going
            gone.update(going)
        kept[member] = [p for p in kept[member] if p not in gone]
    return released


class _Near:
    """What racks have a say in: which partitions leave a member, and who gets those that left."""

    def __init__(self, spec: GroupSpec, order: list[str], claims: Claims) -> None:
        self._partitions = claims.partitions
        self._replicas = spec.racks
        self._rack: dict[int, str] = {}
        if spec.racks:
            racks = (spec.members[member].rack for member in order)
            self._rack = {number: rack for number, rack in enumerate(racks) if rack}

    def least_worth(self, own: list[int], member: int, units: int) -> list[int]:
        """Those of a member's own that it can best do without: far ones, then high numbers."""
        partitions = self._partitions
        own = sorted(own, key=lambda p: partitions[p].partition)
        rack = self._rack.get(member)
        if rack is not None:
            own.sort(key=lambda p: rack not in self._racks(p))
        return own[len(own) - units :]

    def deal(self, partitions: list[int], due: dict[int, int]) -> dict[int, list[int]]:
        if self._rack.keys().isdisjoint(due):
            return deal(partitions, due)
        return deal_near(partitions, due, self._rack, {p: self._racks(p) for p in partitions})

    def _racks(self, partition: int) -> frozenset[str]:
        topic, number = self._partitions[partition]
        racks = self._replicas.get(topic, ())
        return racks[number] if number < len(racks) else frozenset()

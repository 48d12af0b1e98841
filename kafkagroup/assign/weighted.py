"""Weighted sticky: partitions have loads, members have capacities, and load is what is balanced.

A level is a member's load divided by its capacity; the fullest member is that of the highest.
Moves are rare on purpose: each costs its partition a pause, and loads are measured, so they are
never quite the same twice. Cooperative: what changes hands is left out for one round (KIP-429).
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import repeat

from kafkagroup._values import define, frozen
from kafkagroup.assign.claims import WITHHELD, Claims, read_claims
from kafkagroup.assign.spec import Assignor, GroupSpec, Told, named
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import Assignment, TopicPartition

__all__ = ["capacity_in", "weighted_sticky"]

_CAPACITY = struct.Struct(">Bd")
"""What a member adds to its subscription: a version, and its capacity."""

_VERSION = 1

_NOBODY = -1

_MOST = 1e9
"""Largest capacity, and one divided by the smallest. Levels are compared as floats."""

_TOTAL = 2**50
"""What all loads of a group are scaled to add up to. As integers their sums do not depend on the
order of adding, so that the next round finds the levels that this one foresaw; and they are small
enough for a float to hold exactly. Loads below a 10^15th of the total count as 0."""


def weighted_sticky(
    *, capacity: float = 1.0, max_moves: int | None = None, hysteresis: float = 0.1
) -> Assignor:
    """An assignor that balances `GroupSpec.loads` over `MemberSpec.capacity`.

    `capacity` is that of the member that offers it, and travels in its subscription. The leader's
    `max_moves` and `hysteresis` are in force: give all members the same.

    What nobody owns is given out heaviest first, each to the member whose level is lowest with it
    (the LPT rule); partitions without load go by count. Hence, of a fresh assignment with the same
    subscription everywhere: the level of the fullest member is at most 4/3 - 1/(3m) times the best
    possible, if all m capacities are the same (Graham 1969), and 1 + 1/sqrt(3) < 1.578 times, if
    they are not (Kovacs 2010). If loads are the same too, counts differ by at most one.

    What is owned stays, but for moves that bring levels closer:
    - At most `max_moves` partitions per round are taken from their owners; by default a quarter of
      all, and at least 10. The rounds after take more, if need be.
    - Nothing moves while every level is above (1 - hysteresis) times the highest one.
    - A member gives only to one whose level was not above that share of its own, and only while
      that level stays below its own by half the hysteresis of it. So with the same subscription
      everywhere, what the group settles on has at most this highest level (unless `max_moves` is
      0): the mean (all load by
      all capacity), plus the smallest load above 0 of the fullest member by the capacity of the
      emptiest, divided by (1 - hysteresis).
    - Each round that takes something makes the levels, sorted from the highest, smaller: so rounds
      come to an end.

    With different subscriptions the rules of moving and the end of rounds hold; of the levels only
    that no single move by those rules is left. A partition missing from `loads` counts as 1.0, and
    so does a load that is no number of 0 or more; if all are 0, each counts as 1.0. A load below a
    10^15th of the total counts as 0.

    O(partitions log partitions + partitions x different capacities + pairs of topic and
    subscriber); each partition taken adds about the cost of one.
    Raises: ConfigurationError for a capacity, a bound or a hysteresis that cannot work.
    """
    if not 1 / _MOST <= capacity <= _MOST:
        raise ConfigurationError(f"capacity={capacity}; expected {1 / _MOST:g} to {_MOST:g}")
    if max_moves is not None and max_moves < 0:
        raise ConfigurationError(f"max_moves={max_moves}; expected 0 or more, or None")
    if not 0 <= hysteresis < 1:
        raise ConfigurationError(f"hysteresis={hysteresis}; expected 0 or more, and less than 1")

    def user_data(_had: Sequence[TopicPartition], _generation: int) -> bytes:
        return _CAPACITY.pack(_VERSION, capacity)

    @named("weighted-sticky", cooperative=True, user_data=user_data, told=_told)
    def weighted_sticky_assignor(spec: GroupSpec) -> Assignment:
        return _assign(spec, max_moves, hysteresis)

    return weighted_sticky_assignor


def capacity_in(user_data: bytes | None) -> float:
    """The capacity that a member put into its user data; 1.0 if there is none that can be read:
    one member's bad data costs its share, not the group's assignment.

    Later versions may add something behind it.
    """
    if user_data is None or len(user_data) < _CAPACITY.size:
        return 1.0
    version, capacity = _CAPACITY.unpack_from(user_data)
    return _usable(capacity) if version >= _VERSION else 1.0


def _told(data: bytes | None) -> Told:
    return Told(capacity=capacity_in(data))


def _usable(capacity: float) -> float:
    return capacity if 1 / _MOST <= capacity <= _MOST else 1.0


def _assign(spec: GroupSpec, max_moves: int | None, hysteresis: float) -> Assignment:
    order = spec.order()
    claims = read_claims(spec, order)
    group = _read_group(spec, order, claims)
    bound = max(10, len(claims.partitions) // 4) if max_moves is None else max_moves
    owned = [p for p, owner in enumerate(claims.owner) if owner >= 0]
    state = _State(group, [_NOBODY] * len(claims.owner), [0] * len(order), [0] * len(order))
    for p in owned:
        state.give(p, claims.owner[p])
    state.place([p for p, owner in enumerate(claims.owner) if owner < 0])
    waiting = [p for p, owner in enumerate(claims.owner) if owner == WITHHELD]
    for p in (*waiting, *_taken(state, owned, waiting, bound, hysteresis)):
        state.take(p)
    held: list[list[TopicPartition]] = [[] for _ in order]
    for p, member in enumerate(state.owner):
        if member != _NOBODY:
            held[member].append(claims.partitions[p])
    return {member: tuple(partitions) for member, partitions in zip(order, held, strict=True)}


def _taken(
    state: _State, owned: Sequence[int], waiting: Sequence[int], bound: int, hysteresis: float
) -> list[int]:
    """What to take from its owners now, so that it can be given away next time.

    The next round does not know of this one's plans: it finds some partitions free, and places
    them as it would any. So that is tried out, and the levels that it leads to must be lower than
    they are; if they are not, less is taken. The first move alone always passes: where it is
    placed, the level is no higher than where it was meant to go.
    """
    taken = [p for p, _ in _moves(state, owned, bound, hysteresis)]
    before = state.levels()
    while taken:
        after = state.copy()
        for p in (*taken, *waiting):
            after.take(p)
        after.place([*taken, *waiting])
        leaving = [p for p in taken if after.owner[p] != state.owner[p]]
        if len(leaving) == len(taken) and after.levels() < before:
            break
        # What would come back to where it was need not go.
        taken = leaving if len(leaving) < len(taken) else taken[: len(taken) // 2]
    return taken


def _moves(
    state: _State, movable: Iterable[int], bound: int, hysteresis: float
) -> list[tuple[int, int]]:
    """Partitions and new owners that bring levels closer; `state` stays as it is.

    The fullest member gives first: what leaves the higher of the two levels lowest. Each partition
    moves once. A member that can give nothing is passed over, so that one great load in one place
    does not keep all others where they are.
    """
    group, started, state = state.group, state.by_member(), state.copy()
    givable: dict[int, dict[int, list[tuple[int, int]]]] = {}  # giver -> pool -> loads, ascending
    for p in movable:
        if group.load[p]:
            pools = givable.setdefault(state.owner[p], {})
            pools.setdefault(group.pool[p], []).append((group.load[p], p))
    for pools in givable.values():
        for row in pools.values():
            row.sort()
    lightest = _Lightest(group, state.load, state.count)
    givers = [(-started[giver], giver) for giver in givable]
    heapify(givers)
    moves: list[tuple[int, int]] = []
    while givers and len(moves) < bound:
        giver = givers[0][1]
        level = state.load[giver] / group.capacity[giver]
        best: tuple[float, int, int, int] | None = None
        for pool, row in givable[giver].items():
            for taker in lightest.of(pool):
                if taker == giver or started[taker] > (1 - hysteresis) * started[giver]:
                    continue
                for load, p in _fitting(state, row, giver, taker, (1 - hysteresis / 2) * level):
                    after = max(
                        (state.load[giver] - load) / group.capacity[giver],
                        (state.load[taker] + load) / group.capacity[taker],
                    )
                    if after < level and (best is None or (after, load, p) < best[:3]):
                        best = after, load, p, taker
        if best is None:
            heappop(givers)
            continue
        _, load, p, taker = best
        row = givable[giver][group.pool[p]]
        del row[bisect_left(row, (load, p))]
        state.take(p)
        state.give(p, taker)
        moves.append((p, taker))
        heapreplace(givers, (-state.load[giver] / group.capacity[giver], giver))
    return moves


def _fitting(
    state: _State, row: Sequence[tuple[int, int]], giver: int, taker: int, limit: float
) -> Iterator[tuple[int, int]]:
    """Of the giver's loads those around what would level the two, if the taker stays in `limit`."""
    capacity = state.group.capacity
    even = (state.load[giver] * capacity[taker] - state.load[taker] * capacity[giver]) / (
        capacity[giver] + capacity[taker]
    )
    most = limit * capacity[taker] - state.load[taker]
    below = bisect_right(row, (min(even, most), math.inf)) - 1
    if below >= 0:
        yield row[below]
    above = bisect_left(row, (even,))
    if above < len(row) and row[above][0] <= most:
        yield row[above]


@frozen
class _Group:
    """What does not change while partitions do. Members and partitions are numbers, as in
    `Claims`; a pool is the partitions of all topics with the same subscribers."""

    load: list[int]
    """Partition -> its load, in parts of `_TOTAL`."""
    pool: list[int]
    """Partition -> its pool."""
    takers: list[tuple[int, ...]]
    """Pool -> its subscribers."""
    capacity: list[float]
    """By member."""


def _read_group(spec: GroupSpec, order: Sequence[str], claims: Claims) -> _Group:
    subscribers: dict[str, list[int]] = {topic: [] for topic in claims.numbers}
    for subscription, group in claims.alike.items():
        for topic in subscription & subscribers.keys():
            subscribers[topic] += group
    pools: dict[tuple[int, ...], int] = {}
    pool: list[int] = []
    for topic, numbers in claims.numbers.items():
        number = pools.setdefault(tuple(sorted(subscribers[topic])), len(pools))
        pool += repeat(number, len(numbers))
    return _Group(
        load=_scaled(spec, claims.partitions),
        pool=pool,
        takers=list(pools),
        capacity=[_usable(spec.members[member].capacity) for member in order],
    )


def _scaled(spec: GroupSpec, partitions: Sequence[TopicPartition]) -> list[int]:
    """The load of each partition, in parts of `_TOTAL`."""
    # Below 1e300: a million of them can be added.
    given = spec.loads.get
    loads = [load if 0 <= (load := given(tp, 1.0)) < 1e300 else 1.0 for tp in partitions]
    if not (total := math.fsum(loads)):
        return [1] * len(loads)
    return [round(load / total * _TOTAL) for load in loads]


@define(eq=False)
class _State:
    """Who has what, in the making."""

    group: _Group
    owner: list[int]
    """By partition; _NOBODY where it is nobody's."""
    load: list[int]
    """By member."""
    count: list[int]
    """By member."""

    def copy(self) -> _State:
        return _State(self.group, self.owner.copy(), self.load.copy(), self.count.copy())

    def give(self, p: int, member: int) -> None:
        """To a member what nobody has."""
        self.owner[p] = member
        self.load[member] += self.group.load[p]
        self.count[member] += 1

    def take(self, p: int) -> None:
        """From whoever has it."""
        member = self.owner[p]
        self.owner[p] = _NOBODY
        self.load[member] -= self.group.load[p]
        self.count[member] -= 1

    def by_member(self) -> list[float]:
        return [load / c for load, c in zip(self.load, self.group.capacity, strict=True)]

    def levels(self) -> list[float]:
        """From the highest."""
        return sorted(self.by_member(), reverse=True)

    def place(self, free: Iterable[int]) -> None:
        """Give out what nobody has: heaviest first, among equals what the fewest can take first,
        and so on until no move of them brings levels closer. One pool leaves no such move."""
        load, pool, takers = self.group.load, self.group.pool, self.group.takers
        row = sorted(free, key=lambda p: (-load[p], len(takers[pool[p]]), p))
        heavy = bisect_right(row, -1, key=lambda p: -load[p])
        self._place(row[:heavy], by_count=False)
        if len(takers) > 1:
            for p, taker in _moves(self, row[:heavy], heavy, 0.0):
                self.take(p)
                self.give(p, taker)
        self._place(row[heavy:], by_count=True)

    def _place(self, row: Iterable[int], *, by_count: bool) -> None:
        """Each to the member that has the lowest level with it, and of equals the fewest."""
        group = self.group
        first, second = (self.count, self.load) if by_count else (self.load, self.count)
        lightest = _Lightest(group, first, second)
        for p in row:
            members = lightest.of(group.pool[p])
            if len(members) > 1:
                weight = 1 if by_count else group.load[p]
                taker = min(
                    ((first[m] + weight) / c, second[m] / c, m)
                    for m in members
                    for c in (group.capacity[m],)
                )[2]
            else:
                taker = members[0]
            self.give(p, taker)


class _Lightest:
    """Pool -> of its members of each capacity the one that has the least, as of now.

    Between those of one capacity the least stays the least whatever is added. Lists that grow may
    be watched; where one shrinks its member is noticed late, so it may be passed over.
    """

    def __init__(self, group: _Group, first: Sequence[int], second: Sequence[int]) -> None:
        self._group = group
        self._first = first
        self._second = second
        self._heaps: dict[int, list[list[tuple[int, int, int]]]] = {}

    def of(self, pool: int) -> list[int]:
        heaps = self._heaps.get(pool)
        if heaps is None:
            heaps = self._heaps[pool] = self._made(pool)
        found = []
        for heap in heaps:
            member = heap[0][2]
            while heap[0] != (now := (self._first[member], self._second[member], member)):
                heapreplace(heap, now)
                member = heap[0][2]
            found.append(member)
        return found

    def _made(self, pool: int) -> list[list[tuple[int, int, int]]]:
        heaps: dict[float, list[tuple[int, int, int]]] = {}
        for member in self._group.takers[pool]:
            entry = self._first[member], self._second[member], member
            heaps.setdefault(self._group.capacity[member], []).append(entry)
        for heap in heaps.values():
            heapify(heap)
        return list(heaps.values())

"""Weighted sticky: balance the loads of partitions over the capacities of members.

A member's level is its load divided by its capacity; the fullest member has the highest level.
Moves are rare on purpose: each one pauses its partition, and measured loads never repeat exactly.
Cooperative: a partition that moves is withheld for one round (KIP-429).
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
from kafkagroup.assign.spec import Assignor, DecodedUserData, GroupSpec, named
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import Assignment, TopicPartition

__all__ = ["capacity_in", "weighted_sticky"]

_CAPACITY = struct.Struct(">Bd")
"""The user data of a subscription: a version, and the member's capacity."""

_VERSION = 1

_NO_OWNER = -1

_MAX_CAPACITY = 1e9
"""The largest capacity; 1 / _MAX_CAPACITY is the smallest."""

_TOTAL = 2**50
"""The sum that all loads of a group are scaled to. Sums of integers do not depend on the order of
adding, so the next round computes the same levels as this one; and a float holds integers of this
size exactly. Loads below about half a 10^15th of the total count as 0."""


def weighted_sticky(
    *, capacity: float = 1.0, max_moves: int | None = None, hysteresis: float = 0.1
) -> Assignor:
    """Return an assignor that balances `GroupSpec.loads` over `MemberSpec.capacity`.

    `capacity` is the capacity of this member, which sends it in its subscription. Only the leader
    uses its `max_moves` and `hysteresis`: give all members the same values.

    Partitions without an owner are assigned heaviest first, each to the member whose level with it
    is lowest (the LPT rule); partitions without load by count. Hence, in a fresh assignment of a
    group whose members all subscribe to the same topics, the level of the fullest member is at most
    4/3 - 1/(3m) times the best possible if all m capacities are equal (Graham 1969), and
    1 + 1/sqrt(3) < 1.578 times if they are not (Kovacs 2010). If the loads are equal, too, counts
    differ by at most one.

    Partitions stay with their owners, except for moves that bring levels closer:
    - Each round takes at most `max_moves` partitions from their owners; by default a quarter of
      all, and at least 10. Later rounds take more, if needed.
    - Nothing moves while every level is above (1 - hysteresis) times the highest one.
    - A member gives only to a member whose level was at most (1 - hysteresis) times its own when
      the round began, and a move may raise the taker's level to at most (1 - hysteresis / 2) times
      the giver's before the move. So if all members subscribe to the same topics, and `max_moves`
      is not 0, the highest level of a stable group is at most
      (mean + smallest / capacity) / (1 - hysteresis): the mean is the sum of the loads divided by
      that of the capacities, the smallest is the fullest member's smallest load above 0, and the
      capacity is that of the emptiest member.
    - Each round that takes a partition makes the list of levels, sorted from the highest, smaller
      in lexicographic order: so the rounds come to an end.

    If subscriptions differ, these rules still hold and the rounds still come to an end; but the
    only guarantee for the levels is that no single move that the rules allow is left.

    A partition missing from `loads` counts as 1.0, and so does a load that is not a number of 0 or
    more; if all loads are 0, each counts as 1.0. A load below half a 10^15th of the total counts as
    0.

    O(partitions log partitions + partitions x different capacities + pairs of topic and
    subscriber); each partition that is taken costs about as much as one more partition.
    Raises: ConfigurationError for a `capacity`, `max_moves` or `hysteresis` out of range.
    """
    if not 1 / _MAX_CAPACITY <= capacity <= _MAX_CAPACITY:
        bounds = f"{1 / _MAX_CAPACITY:g} to {_MAX_CAPACITY:g}"
        raise ConfigurationError(f"capacity={capacity}; expected {bounds}")
    if max_moves is not None and max_moves < 0:
        raise ConfigurationError(f"max_moves={max_moves}; expected 0 or more, or None")
    if not 0 <= hysteresis < 1:
        raise ConfigurationError(f"hysteresis={hysteresis}; expected 0 or more, and less than 1")

    def user_data(_owned: Sequence[TopicPartition], _generation: int) -> bytes:
        return _CAPACITY.pack(_VERSION, capacity)

    @named("weighted-sticky", cooperative=True, user_data=user_data, read_user_data=_read_user_data)
    def weighted_sticky_assignor(spec: GroupSpec) -> Assignment:
        return _assign(spec, max_moves, hysteresis)

    return weighted_sticky_assignor


def capacity_in(user_data: bytes | None) -> float:
    """Return the capacity in a member's user data; 1.0 if there is none, or the data is malformed:
    malformed data of one member must not fail the assignment of the group.

    Later versions may append more fields, which are ignored.
    """
    if user_data is None or len(user_data) < _CAPACITY.size:
        return 1.0
    version, capacity = _CAPACITY.unpack_from(user_data)
    return _usable(capacity) if version >= _VERSION else 1.0


def _read_user_data(data: bytes | None) -> DecodedUserData:
    return DecodedUserData(capacity=capacity_in(data))


def _usable(capacity: float) -> float:
    """Return a member's capacity; 1.0 if it is out of range, or not a number."""
    return capacity if 1 / _MAX_CAPACITY <= capacity <= _MAX_CAPACITY else 1.0


def _assign(spec: GroupSpec, max_moves: int | None, hysteresis: float) -> Assignment:
    order = spec.order()
    claims = read_claims(spec, order)
    group = _read_group(spec, order, claims)
    bound = max(10, len(claims.partitions) // 4) if max_moves is None else max_moves
    owned = [p for p, owner in enumerate(claims.owner) if owner >= 0]
    state = _State(group, [_NO_OWNER] * len(claims.owner), [0] * len(order), [0] * len(order))
    for p in owned:
        state.give(p, claims.owner[p])
    # Partitions that a member may still be processing (`WITHHELD`) are placed, too, so that the
    # levels are those of the next round, which assigns them. Below they are taken again.
    state.place([p for p, owner in enumerate(claims.owner) if owner < 0])
    withheld = [p for p, owner in enumerate(claims.owner) if owner == WITHHELD]
    for p in (*withheld, *_taken(state, owned, withheld, bound, hysteresis)):
        state.take(p)
    held: list[list[TopicPartition]] = [[] for _ in order]
    for p, member in enumerate(state.owner):
        if member != _NO_OWNER:
            held[member].append(claims.partitions[p])
    return {member: tuple(partitions) for member, partitions in zip(order, held, strict=True)}


def _taken(
    state: _State, owned: Sequence[int], withheld: Sequence[int], bound: int, hysteresis: float
) -> list[int]:
    """Return the partitions to take from their owners now, so that the next round can assign them.

    The next round does not know this round's plan: it finds these partitions free, and places them
    like any others, together with the `withheld` ones. So this function tries that placement, and
    takes fewer partitions unless the levels become lower. Without withheld partitions the first
    move alone always passes, as the member that the placement chooses has no higher level than the
    planned one; with them, it may have to wait for the next round.
    """
    taken = [p for p, _ in _moves(state, owned, bound, hysteresis)]
    before = state.levels()
    while taken:
        after = state.copy()
        for p in (*taken, *withheld):
            after.take(p)
        after.place([*taken, *withheld])
        leaving = [p for p in taken if after.owner[p] != state.owner[p]]
        if len(leaving) == len(taken) and after.levels() < before:
            break
        # A partition that the next round would return to its owner need not be taken.
        taken = leaving if len(leaving) < len(taken) else taken[: len(taken) // 2]
    return taken


def _moves(
    state: _State, movable: Iterable[int], bound: int, hysteresis: float
) -> list[tuple[int, int]]:
    """Return at most `bound` moves (partition and new owner) that bring levels closer; `state` does
    not change.

    The fullest member gives first, by the move after which the higher level of giver and taker is
    lowest. Each partition moves once. A member that can give nothing is skipped, so that one heavy
    partition that cannot move does not block all others.
    """
    group, started, state = state.group, state.levels_by_member(), state.copy()
    givable: dict[int, dict[int, list[tuple[int, int]]]] = {}  # giver -> pool -> loads, ascending
    for p in movable:
        if group.load[p]:
            pools = givable.setdefault(state.owner[p], {})
            pools.setdefault(group.pool[p], []).append((group.load[p], p))
    for pools in givable.values():
        for row in pools.values():
            row.sort()
    # Loads of givers shrink, so `lightest` may miss a giver as a taker. That costs little: few
    # givers may take, as their levels were high when the round began.
    lightest = _Lightest(group, state.load, state.count)
    givers = [(-started[giver], giver) for giver in givable]
    heapify(givers)
    moves: list[tuple[int, int]] = []
    while givers and len(moves) < bound:
        giver = givers[0][1]
        level = state.load[giver] / group.capacity[giver]
        # The higher level after the move, the load, the partition, the taker.
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
    """Yield the giver's loads, with their partitions, just below and just above the one that would
    make both levels equal, as far as the taker's level stays within `limit`. `row`: load and
    partition, ascending."""
    capacity = state.group.capacity
    even = (state.load[giver] * capacity[taker] - state.load[taker] * capacity[giver]) / (
        capacity[giver] + capacity[taker]
    )
    most = limit * capacity[taker] - state.load[taker]
    # A load with `math.inf` sorts after all entries of that load, a load alone before them.
    below = bisect_right(row, (min(even, most), math.inf)) - 1
    if below >= 0:
        yield row[below]
    above = bisect_left(row, (even,))
    if above < len(row) and row[above][0] <= most:
        yield row[above]


@frozen
class _Group:
    """The inputs that no move changes. Members and partitions are numbers, as in `Claims`; a pool
    has the partitions of all topics with the same subscribers."""

    load: list[int]
    """Partition -> its load, in parts of `_TOTAL`."""
    pool: list[int]
    """Partition -> its pool."""
    takers: list[tuple[int, ...]]
    """Pool -> its subscribers."""
    capacity: list[float]
    """Member -> its capacity."""


def _read_group(spec: GroupSpec, order: Sequence[str], claims: Claims) -> _Group:
    subscribers: dict[str, list[int]] = {topic: [] for topic in claims.numbers}
    for subscription, members in claims.by_subscription.items():
        for topic in subscription & subscribers.keys():
            subscribers[topic] += members
    pools: dict[tuple[int, ...], int] = {}
    pool_of: list[int] = []
    for topic, partitions in claims.numbers.items():  # in the order of the partitions' numbers
        pool = pools.setdefault(tuple(sorted(subscribers[topic])), len(pools))
        pool_of += repeat(pool, len(partitions))
    return _Group(
        load=_scaled(spec, claims.partitions),
        pool=pool_of,
        takers=list(pools),
        capacity=[_usable(spec.members[member].capacity) for member in order],
    )


def _scaled(spec: GroupSpec, partitions: Sequence[TopicPartition]) -> list[int]:
    """Return the load of each partition, in parts of `_TOTAL`."""
    # Below 1e300, so that the sum of a million of them is finite.
    given = spec.loads.get
    loads = [load if 0 <= (load := given(tp, 1.0)) < 1e300 else 1.0 for tp in partitions]
    if not (total := math.fsum(loads)):
        return [1] * len(loads)
    return [round(load / total * _TOTAL) for load in loads]


@define(eq=False)
class _State:
    """An assignment that is being computed."""

    group: _Group
    owner: list[int]
    """Partition -> its owner; _NO_OWNER if it is free."""
    load: list[int]
    """Member -> the sum of its loads."""
    count: list[int]
    """Member -> how many partitions it has."""

    def copy(self) -> _State:
        return _State(self.group, self.owner.copy(), self.load.copy(), self.count.copy())

    def give(self, p: int, member: int) -> None:
        """Assign a free partition to a member."""
        self.owner[p] = member
        self.load[member] += self.group.load[p]
        self.count[member] += 1

    def take(self, p: int) -> None:
        """Take a partition from its owner."""
        member = self.owner[p]
        self.owner[p] = _NO_OWNER
        self.load[member] -= self.group.load[p]
        self.count[member] -= 1

    def levels_by_member(self) -> list[float]:
        """Return the level of each member, by number."""
        return [load / c for load, c in zip(self.load, self.group.capacity, strict=True)]

    def levels(self) -> list[float]:
        """Return the levels of all members, from the highest."""
        return sorted(self.levels_by_member(), reverse=True)

    def place(self, free: Iterable[int]) -> None:
        """Assign free partitions: the heaviest first, among equals those with the fewest
        subscribers; then move each at most once, where that brings levels closer. With one pool no
        move does."""
        load, pool, takers = self.group.load, self.group.pool, self.group.takers
        row = sorted(free, key=lambda p: (-load[p], len(takers[pool[p]]), p))
        # Those before this index have a load above 0.
        heavy = bisect_right(row, -1, key=lambda p: -load[p])
        self._place(row[:heavy], by_count=False)
        if len(takers) > 1:
            for p, taker in _moves(self, row[:heavy], heavy, 0.0):
                self.take(p)
                self.give(p, taker)
        self._place(row[heavy:], by_count=True)

    def _place(self, row: Iterable[int], *, by_count: bool) -> None:
        """Assign each partition to the member whose level with it is lowest; among equals, to the
        one with the fewest partitions for its capacity. `by_count`: the other way round."""
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
    """Finds, in a pool, the least loaded member of each capacity.

    Of members with the same capacity, the least loaded one also has the lowest level after any
    addition. `first` and `second` are the caller's lists of loads and counts, by member, and are
    read again in each call. The values may grow; if one shrinks, its member may be found too late.
    """

    def __init__(self, group: _Group, first: Sequence[int], second: Sequence[int]) -> None:
        self._group = group
        self._first = first
        self._second = second
        self._heaps: dict[int, list[list[tuple[int, int, int]]]] = {}
        """Pool -> a heap for each capacity, with an entry for each subscriber: its value in `first`
        and in `second` when the entry was made, and the member."""

    def of(self, pool: int) -> list[int]:
        """Return the least loaded member of each capacity among a pool's subscribers."""
        heaps = self._heaps.get(pool)
        if heaps is None:
            heaps = self._heaps[pool] = self._build_heaps(pool)
        found = []
        for heap in heaps:
            member = heap[0][2]
            # Bring outdated entries up to date until the first one is not outdated.
            while heap[0] != (now := (self._first[member], self._second[member], member)):
                heapreplace(heap, now)
                member = heap[0][2]
            found.append(member)
        return found

    def _build_heaps(self, pool: int) -> list[list[tuple[int, int, int]]]:
        heaps: dict[float, list[tuple[int, int, int]]] = {}
        for member in self._group.takers[pool]:
            entry = self._first[member], self._second[member], member
            heaps.setdefault(self._group.capacity[member], []).append(entry)
        for heap in heaps.values():
            heapify(heap)
        return list(heaps.values())

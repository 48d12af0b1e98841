"""How many partitions each member gets: as even as possible, with the fewest moves for that.

This module computes counts only; `target` chooses the partitions. Topics with the same subscribers
form one pool, because their partitions are interchangeable here. If all members subscribe to the
same topics, there is one pool.

The counts are a flow of minimum cost in a network whose nodes are the pools and the members; a unit
of the flow is a partition. The cost is the sum of the squares of the members' counts, and then the
number of moves. A unit from a pool to a member saves a move if the member has lost one of its own
partitions there; a unit from a member to a pool costs a move if it is the member's own. Both parts
of the cost are M-convex in the counts, so an assignment is optimal once no chain of members, each
passing one partition to the next, improves it (Murota, Discrete Convex Analysis, 2003); and a flow
stays cheapest for its counts as long as it changes along shortest chains. Each phase labels the
nodes with their distance to the members that lack partitions, and pushes along all shortest chains,
as in Dinic's algorithm.
"""

from __future__ import annotations

from heapq import heappop, heappush

from kafkagroup._values import define, field

__all__ = ["Pool", "even_out"]

_MOVE = 1 << 40
"""What a move adds to the length of a chain; each step adds 1. So chains compare by moves, then by
steps: without the steps, shortest chains could have cycles."""

_FAR = 1 << 60
"""Label of a node that no chain has reached, and the length of an arc that nothing can pass."""

_BARRED = -_FAR
"""Label of a member outside of the subset that is evened out: no chain is shorter, so none reaches
it."""


@define(eq=False)
class Pool:
    """The partitions of all topics with the same subscribers, as counts. Changed in place."""

    subscribers: list[int]
    """The members, by number, ascending."""
    free: int
    """How many of its partitions have no owner."""
    kept: dict[int, int]
    """Member -> how many of its own partitions it keeps, if any; at first all of them."""
    lost: dict[int, int] = field(factory=dict)
    """Member -> how many of its own partitions it loses, if any."""
    gained: dict[int, int] = field(factory=dict)
    """Member -> how many partitions it gets that it does not own, if any. No member both gains and
    loses in one pool."""


def even_out(pools: list[Pool], member_count: int) -> None:
    """Compute `kept`, `lost` and `gained` of all pools. Members are numbered from 0.

    The result has the least sum of the squares of the members' counts (equivalently: no chain of
    members could bring a partition to a member with two fewer), and of all such results the fewest
    lost partitions. O(pairs of pool and subscriber) if nothing has to change. Each phase costs that
    again; there are a handful, and more only if chains get long, as when every member shares one
    topic with the next.
    """
    _Network(pools, member_count).even_out()


class _Network:
    """Pools and members as one list of nodes: members first, then pools."""

    def __init__(self, pools: list[Pool], member_count: int) -> None:
        self._pools = pools
        self._size = member_count
        """The number of members, and so the index of the first pool's node."""
        self._count = [0] * member_count
        """Member -> how many partitions it has now."""
        self._arcs: list[list[int]] = [[] for _ in range(member_count)]
        """Node -> the nodes to which it may pass a partition: from a member to the pools of its
        topics, from a pool to its subscribers."""
        for node, pool in enumerate(pools, member_count):
            for member in pool.subscribers:
                self._arcs[member].append(node)
            for member, kept in pool.kept.items():
                self._count[member] += kept
        self._arcs += [pool.subscribers for pool in pools]
        self._label = [_BARRED] * member_count + [_FAR] * len(pools)
        """Node -> the length of the shortest chain from it to a target, by the last `_measure`."""
        self._next = [0] * (member_count + len(pools))
        """Node -> the index of the first of its arcs that was not found useless in this phase."""
        self._used: list[int] = []
        """The nodes whose labels `_measure` must reset."""

    def even_out(self) -> None:
        # Pools with the fewest subscribers first: the others can even out what these cause.
        for pool in sorted(self._pools, key=lambda pool: len(pool.subscribers)):
            self._fill(pool)
        subsets = [[m for m in range(self._size) if self._arcs[m]]]
        while subsets:
            subsets += self._even_out(subsets.pop())

    def _fill(self, pool: Pool) -> None:
        """Give the free partitions to the members with the lowest counts. This costs no moves."""
        count, free = self._count, pool.free
        if not free:
            return
        lowest = sorted(pool.subscribers, key=count.__getitem__)
        # Find the fewest of the lowest members that can take all of the free partitions without
        # exceeding the count of the next one.
        filled, total = 0, 0
        for filled, member in enumerate(lowest, 1):
            total += count[member]
            if filled == len(lowest) or count[lowest[filled]] * filled - total >= free:
                break
        level, more = divmod(total + free, filled)
        for member in lowest[:filled]:
            units = level - count[member] + (more > 0)
            more -= 1
            if units:
                pool.gained[member] = units
                count[member] += units

    def _even_out(self, subset: list[int]) -> list[list[int]]:
        """Even out a subset of the members around its mean, as far as chains reach; return the
        subsets that are left: the members not above the mean to which the others cannot give, and
        those above it that cannot give to the others."""
        if not subset:
            return []
        count = self._count
        level = sum(count[m] for m in subset) // len(subset)  # the mean, rounded down
        poor = self._raise_to(subset, level)
        if len(poor) == len(subset):
            return []  # All have exactly `level`.
        rest = [m for m in subset if m not in poor]
        near = self._raise_to(rest, level + 1)  # each of these has `level` or one more
        self._save_moves([m for m in rest if m in near], level)
        return [sorted(poor), [m for m in rest if m not in near]]

    def _raise_to(self, subset: list[int], level: int) -> set[int]:
        """Bring members below `level` up to it from those above it, until no chain is left; return
        the members that none above can give to: all, if there is none above."""
        count = self._count
        while above := [m for m in subset if count[m] > level]:
            self._measure(subset, [m for m in subset if count[m] < level])
            above = [m for m in above if self._label[m] < _FAR]
            if not above:
                return {m for m in subset if self._label[m] < _FAR}
            for member in above:
                while count[member] > level and self._push(member, level, count[member] - level):
                    pass
        return set(subset)

    def _save_moves(self, subset: list[int], level: int) -> None:
        """Exchange the counts of members with `level` and `level` + 1 where that saves moves."""
        count = self._count
        while any(pool.lost for pool in self._pools):  # without a loss, there is no move to save
            self._measure(subset, [m for m in subset if count[m] == level])
            # A chain of negative length saves a move.
            savers = [m for m in subset if count[m] > level and self._label[m] < 0]
            if not savers:
                return
            for member in savers:
                self._push(member, level + 1, 1)

    def _measure(self, subset: list[int], targets: list[int]) -> None:
        """Label all nodes with the length of the shortest chain that leads to a target."""
        pools, size, arcs = self._pools, self._size, self._arcs
        label, following = self._label, self._next
        for node in self._used:
            label[node] = _BARRED if node < size else _FAR
            following[node] = 0
        for member in subset:
            label[member] = _FAR
        self._used = used = list(subset)
        for member in targets:
            label[member] = 0
        queue = [(0, member) for member in targets]  # Ascending, so it is a heap.
        while queue:
            distance, member = heappop(queue)
            if distance > label[member]:
                continue  # A shorter chain was found after this entry was queued.
            for node in arcs[member]:
                pool = pools[node - size]
                length = distance + 1 - (_MOVE if member in pool.lost else 0)
                if length >= label[node]:
                    continue
                if label[node] == _FAR:
                    used.append(node)
                label[node] = length
                length += 1
                for giver in pool.gained:
                    if length < label[giver]:
                        label[giver] = length
                        heappush(queue, (length, giver))
                length += _MOVE
                for giver in pool.kept:
                    if length < label[giver]:
                        label[giver] = length
                        heappush(queue, (length, giver))

    def _push(self, source: int, level: int, most: int) -> bool:
        """Pass up to `most` partitions along one shortest chain from `source` to a target below
        `level`; return whether there was a chain."""
        chain = self._chain(source, level)
        if not chain:
            return False
        target = chain[-1]
        hops = [
            (chain[i], self._pools[chain[i + 1] - self._size], chain[i + 2])
            for i in range(0, len(chain) - 1, 2)
        ]
        units = min(most, level - self._count[target])
        # As in `_length`: a member gives first what it gained, and gets back first what it lost.
        for giver, pool, taker in hops:
            units = min(units, pool.gained.get(giver) or pool.kept[giver])
            units = min(units, pool.lost.get(taker, units))
        for giver, pool, taker in hops:
            if giver in pool.gained:
                _add(pool.gained, giver, -units)
            else:
                _add(pool.kept, giver, -units)
                _add(pool.lost, giver, units)
            if taker in pool.lost:
                _add(pool.lost, taker, -units)
                _add(pool.kept, taker, units)
            else:
                _add(pool.gained, taker, units)
        self._count[source] -= units
        self._count[target] += units
        return True

    def _chain(self, source: int, level: int) -> list[int]:
        """Return a shortest chain of nodes from `source` to a target below `level`; empty if there
        is none left. Arcs that reach no target are skipped for the rest of the phase."""
        arcs, following, label, size = self._arcs, self._next, self._label, self._size
        chain = [source]
        while chain:
            node = chain[-1]
            # A target has the label 0.
            if node < size and not label[node] and self._count[node] < level:
                return chain
            for at in range(following[node], len(arcs[node])):
                after = arcs[node][at]
                if label[node] == label[after] + self._length(node, after):
                    following[node] = at
                    chain.append(after)
                    break
            else:
                following[node] = len(arcs[node])
                chain.pop()
                if chain:
                    following[chain[-1]] += 1
        return chain

    def _length(self, node: int, after: int) -> int:
        """Return the length of the arc from a member to a pool, or from a pool to a member."""
        if node < self._size:
            pool = self._pools[after - self._size]
            if node in pool.gained:
                return 1
            return 1 + _MOVE if node in pool.kept else _FAR
        return 1 - _MOVE if after in self._pools[node - self._size].lost else 1


def _add(units: dict[int, int], member: int, more: int) -> None:
    """Add to a member's units; remove an entry that becomes 0."""
    units[member] = units.get(member, 0) + more
    if not units[member]:
        del units[member]

"""How many partitions each member gets: as even as can be, and with the fewest moves for that.

Counts only; which partitions they are is decided elsewhere. Topics with the same subscribers are
one pool, as their partitions are worth the same, so that the network is small: its nodes are pools
and members, and with the same subscription everywhere there is one pool.

This is a flow of least cost: first the sum of the squares of the members' counts, then the moves.
A unit that goes from a pool to a member costs a move given back where the member lost one of its
own, and taking one of its own costs a move. Both parts are M-convex in the counts, so an
assignment is best once no chain of members, each passing one partition on to the next, improves it
(Murota, Discrete Convex Analysis, 2003); and a flow stays cheapest for its counts as long as it
changes along shortest chains. Each phase labels the nodes with their distance to those who lack,
and pushes along all shortest chains at once, as in Dinic's algorithm.
"""

from __future__ import annotations

from heapq import heappop, heappush

from kafkagroup._values import define, field

__all__ = ["Pool", "even_out"]

_MOVE = 1 << 40
"""Length of a chain: its moves, and beside them its steps, as shortest chains must not circle."""

_FAR = 1 << 60
"""Label of a node that no chain has reached."""

_BARRED = -_FAR
"""Label of a member that takes no part: nothing is shorter, so nothing reaches it."""


@define(eq=False)
class Pool:
    """Partitions that the same members may have. Changed in place."""

    subscribers: list[int]
    """The members, by number, ascending."""
    free: int
    """How many of its partitions nobody owns."""
    kept: dict[int, int]
    """Member -> how many that it owns it keeps, if any; at first all of them."""
    lost: dict[int, int] = field(factory=dict)
    """Member -> how many of its own it has to give away, if any."""
    gained: dict[int, int] = field(factory=dict)
    """Member -> how many it gets that it does not own, if any. Nobody both gains and loses."""


def even_out(pools: list[Pool], members: int) -> None:
    """Settle `kept`, `lost` and `gained` of all pools, for `members` members.

    Then the sum of the squares of the members' counts is least (equivalently: nowhere could a
    chain of members bring a partition to one with two fewer), and the partitions lost are the
    fewest with which this can be had. O(pairs of pool and subscriber) where nothing has to
    change. Each phase costs that again; there are a handful, more only where chains get long, as
    when every member shares one topic with the next.
    """
    _Network(pools, members).even_out()


class _Network:
    """Pools and members as one list of nodes: members first, then pools."""

    def __init__(self, pools: list[Pool], members: int) -> None:
        self._pools = pools
        self._size = members
        self._count = [0] * members
        self._arcs: list[list[int]] = [[] for _ in range(members)]
        for node, pool in enumerate(pools, members):
            for member in pool.subscribers:
                self._arcs[member].append(node)
            for member, kept in pool.kept.items():
                self._count[member] += kept
        self._arcs += [pool.subscribers for pool in pools]
        self._label = [_BARRED] * members + [_FAR] * len(pools)
        self._next = [0] * (members + len(pools))
        self._used: list[int] = []

    def even_out(self) -> None:
        # Those with the least choice first: the others can make up for what they cause.
        for pool in sorted(self._pools, key=lambda pool: len(pool.subscribers)):
            self._fill(pool)
        groups = [[m for m in range(self._size) if self._arcs[m]]]
        while groups:
            groups += self._even_out(groups.pop())

    def _fill(self, pool: Pool) -> None:
        """Give what is free to the members with the fewest. No move, so never too dear."""
        count, free = self._count, pool.free
        if not free:
            return
        lowest = sorted(pool.subscribers, key=count.__getitem__)
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

    def _even_out(self, group: list[int]) -> list[list[int]]:
        """Even out a group of members around its mean, as far as chains reach; answers with the
        groups left over: poor ones that nobody richer can give to, and rich ones likewise."""
        if not group:
            return []
        count = self._count
        level = sum(count[m] for m in group) // len(group)
        poor = self._level(group, level)
        if len(poor) == len(group):
            return []  # All have exactly `level`.
        rest = [m for m in group if m not in poor]
        near = self._level(rest, level + 1)
        self._win_back([m for m in rest if m in near], level)
        return [sorted(poor), [m for m in rest if m not in near]]

    def _level(self, group: list[int], level: int) -> set[int]:
        """Bring members below `level` up to it from those above it, until no chain is left;
        answers with those to whom nobody above can give: all, if there is nobody above."""
        count = self._count
        while above := [m for m in group if count[m] > level]:
            self._measure(group, [m for m in group if count[m] < level])
            above = [m for m in above if self._label[m] < _FAR]
            if not above:
                return {m for m in group if self._label[m] < _FAR}
            for member in above:
                while count[member] > level and self._push(member, level, count[member] - level):
                    pass
        return set(group)

    def _win_back(self, group: list[int], level: int) -> None:
        """Where members with `level` and one more could change roles, save moves by it."""
        count = self._count
        while any(pool.lost for pool in self._pools):
            self._measure(group, [m for m in group if count[m] == level])
            savers = [m for m in group if count[m] > level and self._label[m] < 0]
            if not savers:
                return
            for member in savers:
                self._push(member, level + 1, 1)

    def _measure(self, group: list[int], targets: list[int]) -> None:
        """Label all nodes with the length of the shortest chain that leads to a target."""
        pools, size, arcs = self._pools, self._size, self._arcs
        label, following = self._label, self._next
        for node in self._used:
            label[node] = _BARRED if node < size else _FAR
            following[node] = 0
        for member in group:
            label[member] = _FAR
        self._used = used = list(group)
        for member in targets:
            label[member] = 0
        queue = [(0, member) for member in targets]  # Ascending, so it is a heap.
        while queue:
            distance, member = heappop(queue)
            if distance > label[member]:
                continue
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
        `level`; whether there was one."""
        chain = self._chain(source, level)
        if not chain:
            return False
        target = chain[-1]
        hops = [
            (chain[i], self._pools[chain[i + 1] - self._size], chain[i + 2])
            for i in range(0, len(chain) - 1, 2)
        ]
        units = min(most, level - self._count[target])
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
        """A shortest chain of nodes from `source` to a target below `level`; empty if there is
        none left. Arcs that lead nowhere are passed over for the rest of the phase."""
        arcs, following, label, size = self._arcs, self._next, self._label, self._size
        chain = [source]
        while chain:
            node = chain[-1]
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
        """Of the arc from a member to a pool, or from a pool to a member."""
        if node < self._size:
            pool = self._pools[after - self._size]
            if node in pool.gained:
                return 1
            return 1 + _MOVE if node in pool.kept else _FAR
        return 1 - _MOVE if after in self._pools[node - self._size].lost else 1


def _add(units: dict[int, int], member: int, more: int) -> None:
    """Count, without entries of 0."""
    units[member] = units.get(member, 0) + more
    if not units[member]:
        del units[member]

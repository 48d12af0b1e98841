"""Cooperative sticky: balanced, moving little, and never handing over what is still owned.

A partition that changes hands is left out for one round: its owner lets it go and rejoins, and the
next round gives it away. Compatible on the wire with the assignors of the same name in Java and
librdkafka. Sources: KIP-429, KIP-792.
"""

from __future__ import annotations

import struct
from collections import deque

from kafkagroup.assign.spec import GroupSpec, named
from kafkagroup.types import Assignment, TopicPartition

__all__ = ["cooperative_sticky_assignor", "generation_in"]

_GENERATION = struct.Struct(">i")


def _user_data(generation: int) -> bytes:
    """For members that do not know the generation field of subscriptions (before v2)."""
    return _GENERATION.pack(generation)


def generation_in(user_data: bytes | None) -> int:
    """The generation that an old member put into its user data; -1 when there is none.

    librdkafka's user data holds other things before it, and its subscriptions have the field.
    """
    if user_data is None or len(user_data) != _GENERATION.size:
        return -1
    generation: int = _GENERATION.unpack_from(user_data)[0]
    return max(generation, -1)


@named("cooperative-sticky", cooperative=True, user_data=_user_data)
def cooperative_sticky_assignor(spec: GroupSpec) -> Assignment:
    """Keep what members own as far as balance allows; withhold what changes hands.

    Once settled, no member could take a partition of another and leave the two closer: the counts
    are as even as the subscriptions allow. A claim of a higher generation beats one of a lower;
    equal claims beat each other. O(partitions x members) for few moves.
    """
    claims = _claims(spec)
    target = _Target(spec)
    for partition in _partitions(spec):
        if (owner := _owner(claims.get(partition, {}))) is not None:
            target.give(partition, owner)
    for partition in _partitions(spec):
        if partition not in target.owner:
            target.give_to_lightest(partition)
    target.balance()
    return {
        member: tuple(
            sorted(tp for tp in held if not _is_claimed_by_another(claims.get(tp, {}), member))
        )
        for member, held in target.held.items()
    }


def _partitions(spec: GroupSpec) -> list[TopicPartition]:
    return [TopicPartition(t, p) for t in spec.topics() for p in range(spec.partitions[t])]


def _claims(spec: GroupSpec) -> dict[TopicPartition, dict[str, int]]:
    """Partition -> member -> the generation in which it owned it; of what it still subscribes to
    and what still exists."""
    claims: dict[TopicPartition, dict[str, int]] = {}
    for member in spec.order():
        of = spec.members[member]
        for tp in of.owned:
            if tp.topic in of.topics and tp.partition < spec.partitions.get(tp.topic, 0):
                claims.setdefault(tp, {})[member] = of.generation
    return claims


def _owner(claims: dict[str, int]) -> str | None:
    """Whose claim stands: that of the highest generation, if there is one such."""
    if not claims:
        return None
    newest = max(claims.values())
    standing = [member for member, generation in claims.items() if generation == newest]
    return standing[0] if len(standing) == 1 else None


def _is_claimed_by_another(claims: dict[str, int], member: str) -> bool:
    """Whether another member may still hold it. A stale claim beside the member's own newer one
    does not count: it would strand the partition. The member's own stale claim does not count
    either: it would hide the transfer."""
    own = claims.get(member)
    return any(
        other != member and (own is None or generation >= own)
        for other, generation in claims.items()
    )


class _Target:
    """Who shall hold what, in the making."""

    def __init__(self, spec: GroupSpec) -> None:
        self.order = spec.order()
        self.held: dict[str, set[TopicPartition]] = {member: set() for member in self.order}
        self.owner: dict[TopicPartition, str] = {}
        self._subscribers = {topic: spec.subscribers(topic) for topic in spec.topics()}
        self._topics = {member: spec.members[member].topics for member in self.order}

    def give(self, partition: TopicPartition, member: str) -> None:
        if (before := self.owner.get(partition)) is not None:
            self.held[before].remove(partition)
        self.owner[partition] = member
        self.held[member].add(partition)

    def give_to_lightest(self, partition: TopicPartition) -> None:
        takers = self._subscribers[partition.topic]
        self.give(partition, min(takers, key=lambda member: len(self.held[member])))

    def balance(self) -> None:
        """Move partitions, perhaps through members in between, until no move helps."""
        while any(self._relieve(member) for member in self._lightest_first()):
            pass

    def _lightest_first(self) -> list[str]:
        return sorted(self.order, key=lambda member: len(self.held[member]))

    def _relieve(self, light: str) -> bool:
        """Bring one partition more to `light` from a member with at least two more, along the
        shortest chain of members that can pass one on; whether there was such a chain."""
        least = len(self.held[light]) + 2
        passes: dict[str, tuple[TopicPartition, str]] = {}
        queue = deque((light,))
        while queue:
            taker = queue.popleft()
            for giver in reversed(self._lightest_first()):
                if giver == light or giver in passes:
                    continue
                movable = [tp for tp in self.held[giver] if tp.topic in self._topics[taker]]
                if not movable:
                    continue
                passes[giver] = max(movable), taker
                if len(self.held[giver]) >= least:
                    while giver != light:
                        partition, giver = passes[giver]
                        self.give(partition, giver)
                    return True
                queue.append(giver)
        return False

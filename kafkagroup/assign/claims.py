"""Whose claim stands: what members say they own, sorted out.

A claim counts if the topic exists, its member still subscribes to it, and it has that partition.
Of several claims to one partition that of the highest generation stands; equal ones fell each
other. Numbers stand for names here: members in `GroupSpec.order`, partitions in the order of
`TopicPartition`, both from 0.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat
from operator import itemgetter

import attrs

from kafkagroup.assign.spec import GroupSpec
from kafkagroup.types import TopicPartition

__all__ = ["DISPUTED", "UNCLAIMED", "Claims", "read_claims"]

UNCLAIMED = -1
"""Owner of a partition that nobody claims."""

DISPUTED = -2
"""Owner of a partition whose newest claims are equal: somebody may be at work on it."""


@attrs.frozen
class Claims:
    """The partitions of a group, and who owns them."""

    topics: list[str]
    """Those that exist and have subscribers, sorted."""
    start: dict[str, int]
    """Topic -> the number of its partition 0; its others follow."""
    partitions: list[TopicPartition]
    """By number, so sorted."""
    owner: list[int]
    """Partition -> the member whose claim stands, or UNCLAIMED, or DISPUTED."""
    unclaimed: set[str]
    """The topics that nobody claims any partition of: most of the work there can be spared."""

    def named(self, numbers: list[int]) -> tuple[TopicPartition, ...]:
        """The partitions of these numbers, sorted."""
        numbers.sort()
        if len(numbers) < 2:
            return tuple(self.partitions[number] for number in numbers)
        # One call for all of them takes half as long; but of one number it makes no tuple.
        found: tuple[TopicPartition, ...] = itemgetter(*numbers)(self.partitions)
        return found


def read_claims(spec: GroupSpec, order: list[str]) -> Claims:
    """Number the partitions, and find their owners. O(partitions + claims).

    Sources: KIP-341 and KIP-792 (generations), KIP-429 (claims on what is no longer subscribed).
    """
    topics = spec.topics()
    start: dict[str, int] = {}
    size = 0
    for topic in topics:
        start[topic] = size
        size += spec.partitions[topic]
    owner = [UNCLAIMED] * size
    _sort_out(spec, order, start, owner)
    partitions: list[TopicPartition] = []
    unclaimed: set[str] = set()
    for topic in topics:
        owners = owner[len(partitions) : len(partitions) + spec.partitions[topic]]
        if owners.count(UNCLAIMED) == len(owners):
            unclaimed.add(topic)
        partitions += _partitions_of(topic, len(owners))
    return Claims(topics, start, partitions, owner, unclaimed)


@lru_cache(maxsize=1024)
def _partitions_of(topic: str, count: int) -> tuple[TopicPartition, ...]:
    """All partitions of a topic, in order: kept, as making them would be half of the work.

    A leader assigns the same topics again and again. At most the last 1,024 topics are kept.
    """
    # As `TopicPartition(topic, n)`, which costs a call into Python for each.
    values = zip(repeat(topic), range(count), strict=False)
    return tuple(map(tuple.__new__, repeat(TopicPartition), values))


def _sort_out(spec: GroupSpec, order: list[str], start: dict[str, int], owner: list[int]) -> None:
    """Fill `owner`."""
    members = [spec.members[member] for member in order]
    sizes = {topic: spec.partitions[topic] for topic in start}
    disputed: dict[int, int] = {}  # partition -> the generation of its equal claims
    for number, member in enumerate(members):
        known = member.topics & sizes.keys() if member.owned else ()
        claimed = [
            start[topic] + partition
            for topic, partition in member.owned
            if topic in known and 0 <= partition < sizes[topic]
        ]
        for at in claimed:
            other = owner[at]
            if other == UNCLAIMED:
                owner[at] = number
            elif other != number:
                newest = disputed[at] if other == DISPUTED else members[other].generation
                if member.generation > newest:
                    owner[at] = number
                elif member.generation == newest:
                    owner[at] = DISPUTED
                    disputed[at] = newest

"""Whose claim stands: what members say they own, sorted out.

A claim counts if the topic exists, its member still subscribes to it, and it has that partition.
Of several claims to one partition that of the highest generation stands; equal ones fell each
other. Numbers stand for names here: members in `GroupSpec.order`, partitions in the order of
`TopicPartition`, both from 0.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat

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
    said: list[TopicPartition | None] = [None] * size
    _sort_out(spec, order, start, owner, said)
    partitions: list[TopicPartition] = []
    unclaimed: set[str] = set()
    with _collector_paused():
        for topic in topics:
            numbers = range(spec.partitions[topic])
            known = said[len(partitions) : len(partitions) + len(numbers)]
            if any(known):
                # What members named is used again: to make it anew would be most of the work.
                partitions += [
                    tp or TopicPartition(topic, n) for n, tp in zip(numbers, known, strict=True)
                ]
            else:
                unclaimed.add(topic)
                # As `TopicPartition(topic, n)`, which costs a call into Python for each.
                values = zip(repeat(topic), numbers, strict=False)
                partitions += map(tuple.__new__, repeat(TopicPartition), values)
    return Claims(topics, start, partitions, owner, unclaimed)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Make many objects that are there to stay without looking for garbage among them.

    The cyclic collector would walk all of them, and all that the program has, again and again:
    that doubles the time of a fresh assignment in a large group.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _sort_out(
    spec: GroupSpec,
    order: list[str],
    start: dict[str, int],
    owner: list[int],
    said: list[TopicPartition | None],
) -> None:
    """Fill `owner`, and `said` with the partitions that claims name."""
    members = [spec.members[member] for member in order]
    sizes = {topic: spec.partitions[topic] for topic in start}
    disputed: dict[int, int] = {}  # partition -> the generation of its equal claims
    for number, member in enumerate(members):
        topics = member.topics
        for tp in member.owned:
            topic, partition = tp
            if topic not in topics or not 0 <= partition < sizes.get(topic, 0):
                continue
            at = start[topic] + partition
            other = owner[at]
            if other == UNCLAIMED:
                owner[at] = number
                said[at] = tp
            elif other != number:
                newest = disputed[at] if other == DISPUTED else members[other].generation
                if member.generation > newest:
                    owner[at] = number
                elif member.generation == newest:
                    owner[at] = DISPUTED
                    disputed[at] = newest

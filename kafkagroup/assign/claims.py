"""Whose claim stands: what members say they own, sorted out.

A claim counts if the topic exists, its member still subscribes to it, and it has that partition.
Of several claims to one partition that of the highest generation stands; equal ones fell each
other. Numbers stand for names here: members in `GroupSpec.order`, partitions in the order of
`TopicPartition`, both from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import repeat

from kafkagroup._values import frozen
from kafkagroup.assign.spec import GroupSpec
from kafkagroup.types import TopicPartition

__all__ = ["DISPUTED", "UNCLAIMED", "Claims", "read_claims"]

UNCLAIMED = -1
"""Owner of a partition that nobody claims."""

DISPUTED = -2
"""Owner of a partition whose newest claims are equal: somebody may be at work on it."""


@frozen
class Claims:
    """The partitions of a group, and who owns them."""

    alike: dict[frozenset[str], list[int]]
    """Subscription -> the members that have it, ascending."""
    numbers: dict[str, range]
    """Topic -> the numbers of its partitions; for those that exist and have subscribers, sorted."""
    partitions: list[TopicPartition]
    """By number, so sorted."""
    owner: list[int]
    """Partition -> the member whose claim stands, or UNCLAIMED, or DISPUTED."""
    standing: list[Sequence[TopicPartition]]
    """Member -> the partitions that it owns, sorted."""
    unclaimed: set[str]
    """The topics that nobody claims any partition of: most of the work there can be spared."""


def read_claims(spec: GroupSpec, order: list[str]) -> Claims:
    """Number the partitions, and find their owners. O(partitions + claims).

    Sources: KIP-341 and KIP-792 (generations), KIP-429 (claims on what is no longer subscribed).
    """
    members = [spec.members[member] for member in order]
    alike: dict[frozenset[str], list[int]] = {}
    for number, member in enumerate(members):
        alike.setdefault(member.topics, []).append(number)
    numbers: dict[str, range] = {}
    partitions: list[TopicPartition] = []
    for topic in spec.existing(alike):
        start, size = len(partitions), spec.partitions[topic]
        numbers[topic] = range(start, start + size)
        partitions += _partitions_of(topic, size)
    claimed: list[Sequence[int]] = [()] * len(members)
    for subscription, group in alike.items():
        known = {topic: numbers[topic] for topic in subscription if topic in numbers}
        for number in group:
            if owned := members[number].owned:
                claimed[number] = _known(owned, known)
    owner, agreed = _sort_out(claimed, [m.generation for m in members], len(partitions))
    standing: list[Sequence[TopicPartition]] = [()] * len(members)
    for number, own in enumerate(claimed):
        if not own:
            continue
        if not agreed:
            own = [p for p in dict.fromkeys(own) if owner[p] == number]
        ascending = sorted(own)
        # Most often that is what the member said, to a letter: naming it anew would cost more
        # than all the rest.
        said = members[number].owned
        as_said = ascending == own and len(own) == len(said)
        standing[number] = said if as_said else [partitions[p] for p in ascending]
    unclaimed = {
        topic
        for topic, these in numbers.items()
        if owner[these.start : these.stop].count(UNCLAIMED) == len(these)
    }
    return Claims(alike, numbers, partitions, owner, standing, unclaimed)


@lru_cache(maxsize=1024)
def _partitions_of(topic: str, count: int) -> tuple[TopicPartition, ...]:
    """All partitions of a topic, in order: kept, as making them would be half of the work.

    A leader assigns the same topics again and again. At most the last 1,024 topics are kept.
    """
    # As `TopicPartition(topic, n)`, which costs a call into Python for each.
    values = zip(repeat(topic), range(count), strict=False)
    return tuple(map(tuple.__new__, repeat(TopicPartition), values))


def _known(owned: Sequence[TopicPartition], known: Mapping[str, range]) -> list[int]:
    """The numbers of those of the partitions that there are."""
    try:
        # There is nothing wrong with most claims, and looking first takes twice as long.
        return [known[topic][partition] for topic, partition in owned if partition >= 0]
    except (KeyError, IndexError):
        return [
            known[topic][partition]
            for topic, partition in owned
            if topic in known and 0 <= partition < len(known[topic])
        ]


def _sort_out(
    claimed: Sequence[Sequence[int]], generations: list[int], partitions: int
) -> tuple[list[int], bool]:
    """Each partition's owner; and whether no two claims were to the same one."""
    owner = [UNCLAIMED] * partitions
    disputed: dict[int, int] = {}  # partition -> the generation of its equal claims
    agreed = True
    for number, claims in enumerate(claimed):
        for at in claims:
            other = owner[at]
            if other == UNCLAIMED:
                owner[at] = number
                continue
            agreed = False
            if other != number:
                newest = disputed[at] if other == DISPUTED else generations[other]
                if generations[number] > newest:
                    owner[at] = number
                elif generations[number] == newest:
                    owner[at] = DISPUTED
                    disputed[at] = newest
    return owner, agreed

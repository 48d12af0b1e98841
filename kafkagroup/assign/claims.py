"""Which member owns each partition, by what the members report.

A claim is a partition that a member reports as owned. It counts if the partition exists, and some
member subscribes to its topic. Of the claims to one partition, those of the highest generation are
the newest. A newest claim is valid if it is the only one. The claim of a member that no longer
subscribes to the topic is valid like any other: the member cannot keep the partition, but may be
processing its records until it has revoked it.

Members and partitions are numbers here: members in `GroupSpec.order`, partitions in the order of
`TopicPartition`, both from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import repeat

from kafkagroup._values import frozen
from kafkagroup.assign.spec import GroupSpec
from kafkagroup.types import TopicPartition

__all__ = ["UNCLAIMED", "WITHHELD", "Claims", "read_claims"]

UNCLAIMED = -1
"""Owner of a partition that no member claims."""

WITHHELD = -2
"""Owner of a partition that no member can keep, but that some member may still be processing: it
has several newest claims, or the newest one is of a member that no longer subscribes to its
topic."""


@frozen
class Claims:
    """The partitions of a group, and their owners."""

    by_subscription: dict[frozenset[str], list[int]]
    """Subscription -> the members that have it, ascending."""
    numbers: dict[str, range]
    """Topic -> the numbers of its partitions, by topic; only topics that exist and have
    subscribers."""
    partitions: list[TopicPartition]
    """The partitions by their numbers, so they are sorted."""
    owner: list[int]
    """Partition -> the member with the valid claim, or UNCLAIMED, or WITHHELD."""
    owned_by: list[Sequence[TopicPartition]]
    """Member -> the partitions of its valid claims, without WITHHELD ones, sorted."""
    unclaimed: set[str]
    """The topics of which no member claims a partition: most of the work is skipped for them."""
    former: dict[TopicPartition, int]
    """Partition -> the member that owned it before: of the claims with a lower generation than the
    newest, that with the highest. If two of these claims have the same generation, the entry may
    name another member, or be missing."""


def read_claims(spec: GroupSpec, order: list[str]) -> Claims:
    """Number the partitions, and find their owners. O(partitions + claims).

    Sources: KIP-341 and KIP-792 (generations), KIP-429 (claims on topics no longer subscribed).
    """
    specs = [spec.members[member_id] for member_id in order]
    by_subscription: dict[frozenset[str], list[int]] = {}
    for member, member_spec in enumerate(specs):
        by_subscription.setdefault(member_spec.topics, []).append(member)
    numbers: dict[str, range] = {}
    partitions: list[TopicPartition] = []
    for topic in spec.existing(by_subscription):
        start, size = len(partitions), spec.partitions[topic]
        numbers[topic] = range(start, start + size)
        partitions += _partitions_of(topic, size)
    claimed: list[Sequence[int]] = [()] * len(specs)
    unsubscribed: list[tuple[int, int]] = []
    for subscription, members in by_subscription.items():
        known = {topic: numbers[topic] for topic in subscription if topic in numbers}
        for member in members:
            if owned := specs[member].owned:
                claimed[member], without_topic = _numbers_of(owned, known, numbers)
                unsubscribed += [(member, p) for p in without_topic]
    owner, older, agreed = _resolve_claims(claimed, [m.generation for m in specs], len(partitions))
    for member, p in unsubscribed:
        if owner[p] == member:
            owner[p] = WITHHELD
    agreed &= not unsubscribed
    owned_by: list[Sequence[TopicPartition]] = [()] * len(specs)
    for member, own in enumerate(claimed):
        if not own:
            continue
        if not agreed:
            own = [p for p in dict.fromkeys(own) if owner[p] == member]
        ascending = sorted(own)
        # These mostly are the partitions that the member reported, in the same order. To build
        # their tuple again would cost more than all the rest.
        reported = specs[member].owned
        as_reported = ascending == own and len(own) == len(reported)
        owned_by[member] = reported if as_reported else [partitions[p] for p in ascending]
    unclaimed = {
        topic
        for topic, these in numbers.items()
        if owner[these.start : these.stop].count(UNCLAIMED) == len(these)
    }
    former = {partitions[p]: member for p, member in older.items()}
    return Claims(by_subscription, numbers, partitions, owner, owned_by, unclaimed, former)


@lru_cache(maxsize=1024)
def _partitions_of(topic: str, count: int) -> tuple[TopicPartition, ...]:
    """Return all partitions of a topic, in order; cached, as creating them is half of the work.

    A leader assigns the same topics again and again. The last 1,024 topics are cached.
    """
    # Equal to `TopicPartition(topic, n)`, which costs a call into Python for each.
    values = zip(repeat(topic), range(count), strict=False)
    return tuple(map(tuple.__new__, repeat(TopicPartition), values))


def _numbers_of(
    owned: Sequence[TopicPartition],
    subscribed: Mapping[str, range],
    topics: Mapping[str, range],
) -> tuple[list[int], list[int]]:
    """Return the numbers of the partitions that exist; and of these, those of topics that the
    member does not subscribe to."""
    try:
        # Most claims are of subscribed topics that exist, and checking first takes twice as long.
        return [subscribed[topic][partition] for topic, partition in owned if partition >= 0], []
    except (KeyError, IndexError):
        known = [tp for tp in owned if 0 <= tp[1] < len(topics.get(tp[0], ()))]
        return (
            [topics[topic][partition] for topic, partition in known],
            [topics[topic][partition] for topic, partition in known if topic not in subscribed],
        )


def _resolve_claims(
    claimed: Sequence[Sequence[int]], generations: list[int], partition_count: int
) -> tuple[list[int], dict[int, int], bool]:
    """Return each partition's owner; `Claims.former`, by the partitions' numbers; and whether no
    partition is claimed twice."""
    owner = [UNCLAIMED] * partition_count
    equal: dict[int, int] = {}  # partition -> the generation of its equal claims
    former: dict[int, int] = {}
    agreed = True
    for member, claims in enumerate(claimed):
        for p in claims:
            other = owner[p]
            if other == UNCLAIMED:
                owner[p] = member
                continue
            agreed = False
            if other != member:
                newest = equal[p] if other == WITHHELD else generations[other]
                if generations[member] > newest:
                    owner[p] = member
                    if other != WITHHELD:
                        former[p] = other
                elif generations[member] == newest:
                    owner[p] = WITHHELD
                    equal[p] = newest
                elif p not in former or generations[member] > generations[former[p]]:
                    former[p] = member
    return owner, former, agreed

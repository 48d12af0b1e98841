"""Groups to assign, made by hypothesis: small, and full of what assignors get wrong.

Racks, mixed subscriptions, topics that do not exist, static members between dynamic ones, claims
that are stale, doubled or void, members with subscriptions of every version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from kafkagroup.assign import GroupSpec, MemberSpec
from kafkagroup.types import TopicPartition

TOPICS = "stuvw"
MEMBERS = "abcdefghijkl"
RACKS = ("r1", "r2", "r3")
GENERATION = 7
"""Of the newest claims."""

T = TypeVar("T")


class MixedGroup(NamedTuple):
    """A group whose members are clients of several ages."""

    spec: GroupSpec
    """What their subscriptions tell: nothing that a version cannot carry."""
    versions: Mapping[str, int]
    """Member id -> version of its subscription."""


@st.composite
def groups(draw: st.DrawFn, *, same: bool | None = None) -> GroupSpec:
    """A group of up to twelve; all with the `same` subscription, or not, or either."""
    if same is None:
        same = draw(st.booleans())
    partitions = draw(_partitions())
    ids = draw(st.permutations(MEMBERS))[: draw(st.integers(1, len(MEMBERS)))]
    # Most members subscribe to most topics, so that they share partitions.
    subscriptions = st.frozensets(st.sampled_from(TOPICS), max_size=2).map(
        frozenset(TOPICS).difference
    ) | st.frozensets(st.sampled_from(TOPICS + "x"))
    shared = draw(subscriptions)
    owned = draw(_claims(partitions, len(ids)))
    racks = draw(st.booleans())
    members = {}
    for index, member in enumerate(ids):
        members[member] = MemberSpec(
            topics=shared if same else draw(subscriptions),
            # Sorted the other way round than member ids are.
            instance_id=f"i{ord('z') - ord(member)}" if draw(st.booleans()) else None,
            rack=draw(st.sampled_from((*RACKS, "", None))) if racks else None,
            owned=owned[index],
            generation=draw(st.sampled_from((*[GENERATION] * 3, GENERATION - 1, 5, -1))),
        )
    return GroupSpec(
        members=members,
        partitions=partitions,
        racks={
            topic: draw(_replica_racks(count))
            for topic, count in partitions.items()
            if racks and draw(st.integers(0, 4))
        },
    )


@st.composite
def mixed_groups(draw: st.DrawFn, *, same: bool | None = None) -> MixedGroup:
    spec = draw(groups(same=same))
    versions = {member: draw(st.sampled_from((3, 3, 3, 2, 1, 0))) for member in spec.members}
    members = {
        member: MemberSpec(
            topics=of.topics,
            instance_id=of.instance_id,
            rack=of.rack if versions[member] >= 3 else None,
            owned=of.owned if versions[member] >= 1 else (),
            generation=of.generation,
        )
        for member, of in spec.members.items()
    }
    return MixedGroup(
        GroupSpec(members=members, partitions=spec.partitions, racks=spec.racks), versions
    )


def many(strategy: st.SearchStrategy[T], count: int, seed: int) -> list[T]:
    """`count` examples, always the same ones for one seed and one hypothesis."""
    found: list[T] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategy)
    def collect(example: T) -> None:
        found.append(example)

    collect()
    return found


@st.composite
def _partitions(draw: st.DrawFn) -> dict[str, int]:
    """Topic -> count; often the same count, so that topics line up."""
    counts = st.integers(0, 14)
    common = draw(counts)
    return draw(st.dictionaries(st.sampled_from(TOPICS), st.just(common) | counts, max_size=5))


@st.composite
def _claims(
    draw: st.DrawFn, partitions: Mapping[str, int], members: int
) -> list[tuple[TopicPartition, ...]]:
    """What each member says it owns: what it was once dealt, or anything; and some claims more, of
    what others own too, of what is gone, and of topics that never were."""
    there = [TopicPartition(t, p) for t, n in sorted(partitions.items()) for p in range(n)]
    owned: list[set[TopicPartition]] = [set() for _ in range(members)]
    # No member, or the first few, as if the others had just joined.
    before = draw(st.integers(0, members))
    if draw(st.booleans()):
        owners = [index % before if before else -1 for index in range(len(there))]
    else:
        size = len(there)
        owners = draw(st.lists(st.integers(-1, before - 1), min_size=size, max_size=size))
    for partition, owner in zip(there, owners, strict=True):
        if owner >= 0:
            owned[owner].add(partition)
    void = [TopicPartition(topic, n) for topic, n in sorted(partitions.items())]
    anything = st.sampled_from([*there, *void, TopicPartition("x", 0)])
    for index, partition in draw(
        st.lists(st.tuples(st.integers(0, members - 1), anything), max_size=5)
    ):
        owned[index].add(partition)
    return [tuple(sorted(partitions)) for partitions in owned]


def _replica_racks(count: int) -> st.SearchStrategy[list[frozenset[str]]]:
    sets = st.frozensets(st.sampled_from((*RACKS, "")), max_size=2)
    alike = sets.map(lambda racks: [racks] * count)
    return st.lists(sets, min_size=count, max_size=count) | alike

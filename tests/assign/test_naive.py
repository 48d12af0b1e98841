"""The naive assignor: the results of kiel's allocator, and cases that kiel does not have."""

from __future__ import annotations

from itertools import cycle

from assign.groups import groups
from hypothesis import given, settings

from kafkagroup.assign import GroupSpec, MemberSpec, protocol_name
from kafkagroup.assign.naive import naive_assignor
from kafkagroup.types import Assignment, TopicPartition


def spec(partitions: dict[str, int], **topics: str) -> GroupSpec:
    return GroupSpec(
        members={m: MemberSpec(topics=frozenset(text.split())) for m, text in topics.items()},
        partitions=partitions,
    )


def held(text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions from "t0 t1"."""
    return tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())


def test_members_are_cycled_over_the_sorted_partitions() -> None:
    assert naive_assignor(spec({"u": 2, "t": 3}, b="t u", a="t u")) == {
        "a": held("t0 t2 u1"),
        "b": held("t1 u0"),
    }


def test_partitions_sort_as_text_as_in_kiel() -> None:
    """A group that migrates from kiel one member at a time must agree with it: 10 before 2."""
    assert naive_assignor(spec({"t": 12}, a="t", b="t", c="t")) == {
        "a": held("t0 t4 t7 t11"),
        "b": held("t1 t2 t5 t8"),
        "c": held("t3 t6 t9 t10"),
    }


def test_topics_sort_with_a_trailing_colon_as_in_kiel() -> None:
    assert naive_assignor(spec({"t": 1, "t.a": 1, "t_a": 1}, a="t t.a t_a", b="t t.a t_a")) == {
        "a": (TopicPartition("t.a", 0), TopicPartition("t_a", 0)),
        "b": (TopicPartition("t", 0),),
    }


def test_members_without_a_subscription_are_skipped() -> None:
    assert naive_assignor(spec({"t": 3, "u": 2}, a="u", b="t", c="t u nowhere")) == {
        "a": held("u1"),
        "b": held("t0 t2"),
        "c": held("t1 u0"),
    }


def test_no_members_and_no_partitions() -> None:
    assert naive_assignor(spec({"t": 1})) == {}
    assert naive_assignor(spec({}, a="t", b="")) == {"a": (), "b": ()}


def test_the_name_of_the_assignor() -> None:
    assert protocol_name(naive_assignor) == "naive"


def cycled(group: GroupSpec) -> Assignment:
    """Assign by definition: each partition to the next member that subscribes."""
    response: dict[str, list[TopicPartition]] = {member: [] for member in group.members}
    members = cycle(group.order())
    for text in sorted(f"{t}:{p}" for t in group.topics() for p in range(group.partitions[t])):
        topic, number = text.split(":")
        member = next(m for m in members if topic in group.members[m].topics)
        response[member].append(TopicPartition(topic, int(number)))
    return {member: tuple(sorted(partitions)) for member, partitions in response.items()}


@settings(max_examples=150)
@given(groups())
def test_partitions_are_assigned_in_turn(group: GroupSpec) -> None:
    assert naive_assignor(group) == cycled(group)

"""Assignors made of functions: the arguments of the functions, and the errors for wrong results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kafkagroup import TopicPartition
from kafkagroup.assign import (
    GroupSpec,
    MemberSpec,
    allocating,
    decide_partitions_range,
    decide_partitions_roundrobin,
    deciding,
    naive_allocator,
    naive_assignor,
    protocol_name,
    range_assignor,
    roundrobin_assignor,
)
from kafkagroup.errors import ConfigurationError

ALL = frozenset(("a", "b"))
SPEC = GroupSpec(
    members={m: MemberSpec(topics=ALL) for m in ("m2", "m1")}, partitions={"a": 3, "b": 2}
)


def tps(*names: str) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(n[0], int(n[1:])) for n in names)


def test_an_allocator_function_becomes_an_assignor() -> None:
    asked = []

    def allocate(
        members: list[str], partitions: list[TopicPartition]
    ) -> Mapping[str, Mapping[str, list[int]]]:
        asked.append((members, partitions))
        return {"m1": {"b": [1, 0], "a": [2]}, "m2": {"a": [1, 0]}}

    assignor = allocating("mine", allocate)
    assert protocol_name(assignor) == "mine"
    assert assignor(SPEC) == {"m1": tps("a2", "b0", "b1"), "m2": tps("a0", "a1")}
    assert asked == [(["m1", "m2"], [*tps("a0", "a1", "a2", "b0", "b1")])]


def test_an_allocator_is_called_for_each_set_of_subscribers() -> None:
    """Patterns match new topics for one member before another."""
    spec = GroupSpec(
        members={"m1": MemberSpec(topics=frozenset("a")), "m2": MemberSpec(topics=ALL)},
        partitions={"a": 4, "b": 2},
    )
    assignor = allocating(
        "mine", lambda members, tps: naive_allocator(members, [f"{t}:{p}" for t, p in tps])
    )
    assert assignor(spec) == {"m1": tps("a0", "a2"), "m2": tps("a1", "a3", "b0", "b1")}


def test_omitted_members_get_nothing() -> None:
    assignor = allocating("one", lambda members, tps: {"m1": {"a": range(3), "b": range(2)}})
    assert assignor(SPEC)["m2"] == ()


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ({"m1": {"a": [0, 1, 2], "b": [0]}}, "incomplete"),
        ({"m1": {"a": [0, 1, 2], "b": [0, 1]}, "m2": {"a": [0]}}, "doubled"),
        ({"m1": {"a": [0, 1, 2], "b": [0, 1, 2]}}, "no-such-partition"),
        ({"m3": {"a": [0, 1, 2], "b": [0, 1]}}, "not-a-member"),
    ],
)
def test_a_wrong_result_is_an_error_with_the_reason(response: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^assignor 'mine': {words}: "):
        allocating("mine", lambda members, partitions: response)(SPEC)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (None, "the function's result is None; expected member id -> topic -> numbers"),
        ({"m1": ["a"]}, "what 'm1' gets is ['a']; expected topic -> numbers"),
        ({"m1": None}, "what 'm1' gets is None; expected topic -> numbers"),
        ({"m1": {"a": None}}, "what 'm1' gets of 'a' is None; expected partition numbers"),
        ({"m1": {"a": 0}}, "what 'm1' gets of 'a' is 0; expected partition numbers"),
        ({"m1": {"a": ["0", "1"]}}, "a partition number of 'a' is '0'; expected an int"),
        ({"m1": {"a": [0, 1.0]}}, "a partition number of 'a' is 1.0; expected an int"),
        ({"m1": {"a": [0, True]}}, "a partition number of 'a' is True; expected an int"),
        ({"m1": {b"a": [0]}}, "a topic of 'm1' is b'a'; expected a str"),
        ({None: {"a": [0]}}, "a member id is None; expected a str"),
    ],
)
def test_a_result_of_another_type_is_an_error_with_the_reason(response: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        allocating("mine", lambda members, partitions: response)(SPEC)
    assert str(raised.value) == f"assignor 'mine': {words}"


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (None, "what 'm1' gets of 'a' is None; expected TopicPartitions"),
        ([0], "a partition of 'm1' is 0; expected a TopicPartition"),
        (["a0"], "a partition of 'm1' is 'a0'; expected a TopicPartition"),
        ([("a", 0)], "a partition of 'm1' is ('a', 0); expected a TopicPartition"),
        ([TopicPartition("a", "0")], "a partition number of 'a' is '0'; expected an int"),  # type: ignore[arg-type]
        ([TopicPartition(b"a", 0)], "a topic of 'm1' is b'a'; expected a str"),
    ],
)
def test_a_decision_of_another_type_is_an_error_with_the_reason(response: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        deciding("mine", lambda members, partitions, member: response)(SPEC)
    assert str(raised.value) == f"assignor 'mine': {words}"


def test_whole_numbers_of_other_types_are_partition_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    numbers = {"a": numpy.arange(3), "b": numpy.arange(2)}
    assigned = allocating("np", lambda members, tps: {"m1": numbers})(SPEC)["m1"]
    assert [type(tp.partition) for tp in assigned] == [int] * 5


def test_a_function_may_change_its_arguments() -> None:
    def decide(
        members: list[str], partitions: list[TopicPartition], member: str
    ) -> list[TopicPartition]:
        found = decide_partitions_range(members, partitions, member)
        members.clear()
        partitions.clear()
        return list(found)

    assert deciding("mine", decide)(SPEC) == range_assignor(SPEC)


@pytest.mark.parametrize(
    ("decide", "same"),
    [
        (decide_partitions_range, range_assignor),
        (decide_partitions_roundrobin, None),
    ],
)
def test_a_decide_function_becomes_an_assignor(decide: Any, same: Any) -> None:
    """Two topics: pykafka supports one per group, and its leader assigns it to every member."""
    spec = GroupSpec(
        members={
            "m1": MemberSpec(topics=frozenset("a")),
            "m2": MemberSpec(topics=ALL),
            "m3": MemberSpec(topics=frozenset("b")),
        },
        partitions={"a": 3, "b": 12},
    )
    assignment = deciding("mine", decide)(spec)
    assert {m: len(got) for m, got in assignment.items()} == {"m1": 2, "m2": 7, "m3": 6}
    if same is not None:
        assert assignment == same(spec)
    one = GroupSpec(members={"m1": MemberSpec(topics=frozenset("a"))}, partitions={"a": 3})
    assert deciding("mine", decide)(one) == roundrobin_assignor(one)


def test_the_allocator_of_kiel() -> None:
    partitions = ["a:0", "a:1", "a:10", "a:2", "b:0"]
    assert naive_allocator(["m1", "m2"], partitions) == {
        "m1": {"a": [0, 10], "b": [0]},
        "m2": {"a": [1, 2]},
    }
    assert naive_allocator([], partitions) == {}


def test_the_allocator_of_kiel_equals_the_naive_assignor() -> None:
    assignor = allocating(
        "naive",
        lambda members, tps: naive_allocator(members, sorted(f"{t}:{p}" for t, p in tps)),
    )
    spec = GroupSpec(members=SPEC.members, partitions={"a": 12, "b": 3})
    assert assignor(spec) == naive_assignor(spec)

"""How calls accept partitions, offsets and times, and their errors for anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafkagroup.consume.partitions import (
    check_record_limit,
    offsets_of,
    partition_of,
    partitions_of,
    seconds_of,
    times_of,
)
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import OffsetAndMetadata, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("u", 1)


class Index:
    """An integer that is no `int`, like numpy's."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


@pytest.mark.parametrize("value", [A, ("t", 0), ["t", 0], ("t", Index(0))])
def test_one_partition(value: Any) -> None:
    assert partition_of(value) == A
    assert type(partition_of(value)) is TopicPartition


@pytest.mark.parametrize(
    "values",
    [
        (A, B),
        ([A, B],),
        ((A, B),),
        (("t", 0), ("u", 1)),
        ([["t", 0], ["u", 1]],),
        (iter([A, B]),),
        ({A: 5, B: 6},),
        ([A], B),
    ],
)
def test_several_partitions(values: Any) -> None:
    assert partitions_of(*values) == [A, B]


def test_no_partitions() -> None:
    assert partitions_of() == partitions_of([]) == partitions_of(()) == []


@pytest.mark.parametrize("topic", ["orders", ""])
def test_a_topic_is_no_iterable_of_partitions(topic: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{topic!r} is no partition"):
        partitions_of(topic)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["t", 5, None, ("t",), ("t", "0"), ("t", True), (b"t", 0), ["t"]])
@pytest.mark.parametrize("convert", [partition_of, partitions_of])
def test_invalid_partitions_raise(convert: Callable[[Any], object], value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        convert(value)
    assert str(caught.value).endswith(
        "is no partition; expected TopicPartition('topic', 0) or ('topic', 0)"
    )


def test_offsets_to_commit() -> None:
    kept = OffsetAndMetadata(5, "note", 3)
    assert offsets_of({A: 7, ("u", 1): kept}) == {A: OffsetAndMetadata(7), B: kept}


@pytest.mark.parametrize("number", [-1, 2**31, Index(2**31)])
@pytest.mark.parametrize("convert", [partition_of, partitions_of])
def test_partition_numbers_have_31_bits(convert: Callable[[Any], object], number: Any) -> None:
    assert partition_of(("t", 2**31 - 1)) == ("t", 2**31 - 1)
    with pytest.raises(ConfigurationError, match="expected a number from 0 to 2147483647"):
        convert(("t", number))


@pytest.mark.parametrize("value", [-1, 2**63, "5", True, None, 5.0, OffsetAndMetadata(-1)])
def test_invalid_offsets_raise(value: Any) -> None:
    said = value.offset if isinstance(value, OffsetAndMetadata) else value
    with pytest.raises(ConfigurationError) as caught:
        offsets_of({A: value})
    assert str(caught.value) == (
        f"the offset for t/0 is {said!r}; expected a whole number from 0 to 9223372036854775807"
    )


def test_the_greatest_offset_is_valid() -> None:
    assert offsets_of({A: 2**63 - 1}) == {A: OffsetAndMetadata(2**63 - 1)}
    committed = offsets_of({A: OffsetAndMetadata(Index(5), "", Index(2))})  # type: ignore[arg-type]
    assert committed == {A: OffsetAndMetadata(5, "", 2)}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (OffsetAndMetadata(5, "", -2), "the leader epoch for t/0 is -2; expected a whole number"),
        (OffsetAndMetadata(5, "", 2**31), "from 0 to 2147483647, or -1 if it is not known"),
        (OffsetAndMetadata(2**63), "the offset for t/0 is 9223372036854775808"),
        (OffsetAndMetadata(5, None), "the metadata for t/0 is None; expected a string"),  # type: ignore[arg-type]
    ],
)
def test_what_a_commit_cannot_carry_is_refused(value: OffsetAndMetadata, shown: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        offsets_of({A: value})
    assert shown in str(caught.value)


def test_times() -> None:
    assert times_of({("t", 0): 5}) == {A: 5}
    for value in (-1, 2**63, "5", 5.0):
        with pytest.raises(ConfigurationError) as caught:
            times_of({A: value})  # type: ignore[dict-item]
        assert str(caught.value) == (
            f"the time for t/0 is {value!r}; expected milliseconds since 1970, a whole number from"
            " 0 to 9223372036854775807"
        )


@pytest.mark.parametrize(("convert", "shown"), [(offsets_of, "5"), (times_of, "1700000000000")])
def test_a_list_in_place_of_a_mapping_raises(convert: Callable[[Any], object], shown: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        convert([A])
    assert str(caught.value) == (
        f"{[A]!r} is no mapping; expected {{TopicPartition('topic', 0): {shown}}}"
    )


@pytest.mark.parametrize("value", [0, -1, 1.5, "1", None, True, 2**63])
def test_an_invalid_limit_of_records_raises(value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_record_limit(value)
    assert str(caught.value) == (
        f"max_records={value!r}; expected a whole number from 1 to 9223372036854775807"
    )


@pytest.mark.parametrize("value", [1, Index(500), 2**63 - 1])
def test_limits_of_records(value: Any) -> None:
    check_record_limit(value)


@pytest.mark.parametrize("value", ["1", None, True, float("nan"), b"1"])
def test_an_invalid_timeout_raises(value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        seconds_of(value)
    assert str(caught.value) == f"timeout={value!r}; expected a number of seconds, such as 1.0"


@pytest.mark.parametrize("value", [-1, -0.5, float("-inf")])
def test_a_negative_timeout_raises(value: Any) -> None:
    """`getmany(timeout=-1)` returned at once, where a caller meant to wait."""
    with pytest.raises(ConfigurationError) as caught:
        seconds_of(value)
    assert str(caught.value) == (
        f"timeout={value!r}; expected seconds, at least 0; math.inf waits without a limit"
    )


@pytest.mark.parametrize("value", [0, 2, 1.5, float("inf")])
def test_timeouts(value: Any) -> None:
    assert (seconds_of(value), type(seconds_of(value))) == (value, float)

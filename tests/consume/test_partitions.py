"""How calls accept partitions, offsets and times, and their errors for anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafkagroup.consume.partitions import offsets_of, partition_of, partitions_of, times_of
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import OffsetAndMetadata, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("u", 1)


class Index:
    """An integer that is no `int`, like numpy's."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value

    def __lt__(self, other: int) -> bool:
        return self._value < other


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


@pytest.mark.parametrize("value", [-1, "5", True, None, 5.0, OffsetAndMetadata(-1)])
def test_invalid_offsets_raise(value: Any) -> None:
    said = value.offset if isinstance(value, OffsetAndMetadata) else value
    with pytest.raises(ConfigurationError) as caught:
        offsets_of({A: value})
    assert str(caught.value) == f"the offset for t/0 is {said!r}; expected a number from 0"


def test_times() -> None:
    assert times_of({("t", 0): 5}) == {A: 5}
    for value in (-1, "5", 5.0):
        with pytest.raises(ConfigurationError) as caught:
            times_of({A: value})  # type: ignore[dict-item]
        assert str(caught.value) == (
            f"the time for t/0 is {value!r}; expected milliseconds since the epoch"
        )


@pytest.mark.parametrize(("convert", "shown"), [(offsets_of, "5"), (times_of, "1700000000000")])
def test_a_list_in_place_of_a_mapping_raises(convert: Callable[[Any], object], shown: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        convert([A])
    assert str(caught.value) == (
        f"{[A]!r} is no mapping; expected {{TopicPartition('topic', 0): {shown}}}"
    )

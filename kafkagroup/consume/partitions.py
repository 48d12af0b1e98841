"""Conversion of arguments: partitions, offsets, times and limits, in the same way for all calls.

A partition is a `TopicPartition` or a tuple of topic and number. A call that takes several
partitions accepts one, or an iterable of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeGuard, TypeVar

from kafkagroup.errors import ConfigurationError
from kafkagroup.types import MAX_INT32, MAX_INT64, OffsetAndMetadata, TopicPartition

__all__ = [
    "ByPartition",
    "Partition",
    "Partitions",
    "check_interval",
    "check_record_limit",
    "check_text",
    "offset_of",
    "offsets_of",
    "partition_of",
    "partitions_of",
    "seconds_of",
    "times_of",
]

T = TypeVar("T")

Partition: TypeAlias = tuple[str, int]
"""A `TopicPartition`, or a plain tuple of topic and number."""

Partitions: TypeAlias = Partition | Iterable[Partition]

ByPartition: TypeAlias = Mapping[TopicPartition, T] | Mapping[Partition, T]
"""A union, because a Mapping is invariant in its key type."""


def partition_of(value: object) -> TopicPartition:
    """Convert an argument to a partition. Raises: ConfigurationError."""
    if not _is_partition(value):
        raise ConfigurationError(
            f"{value!r} is no partition; expected TopicPartition('topic', 0) or ('topic', 0)"
        )
    topic, given = value
    if (number := _in_range(given, 0, MAX_INT32)) is None:
        raise ConfigurationError(
            f"{topic!r} has no partition {given}; expected a number from 0 to {MAX_INT32}"
        )
    return TopicPartition(topic, number)


def partitions_of(*values: Partitions) -> list[TopicPartition]:
    """Return the partitions in several arguments, each a partition or an iterable of partitions.

    Raises: ConfigurationError.
    """
    found: list[TopicPartition] = []
    for value in values:
        if _is_partition(value) or isinstance(value, str) or not isinstance(value, Iterable):
            found.append(partition_of(value))
        else:
            found.extend(map(partition_of, value))
    return found


def offset_of(tp: TopicPartition, value: object) -> int:
    """Convert an argument to an offset of a partition. Raises: ConfigurationError."""
    if (offset := _in_range(value, 0, MAX_INT64)) is None:
        raise ConfigurationError(
            f"the offset for {tp} is {value!r}; expected a whole number from 0 to {MAX_INT64}"
        )
    return offset


def offsets_of(
    given: ByPartition[int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Convert an argument to the offsets to commit. Raises: ConfigurationError."""
    _check_mapping(given, "5")
    found = {}
    for partition, value in given.items():
        tp = partition_of(partition)
        if isinstance(value, OffsetAndMetadata):
            found[tp] = _checked_fields(tp, value)
        else:
            found[tp] = OffsetAndMetadata(offset_of(tp, value))
    return found


def times_of(given: ByPartition[int]) -> dict[TopicPartition, int]:
    """Convert an argument to the times to look up, in milliseconds since the epoch.

    Raises: ConfigurationError.
    """
    _check_mapping(given, "1700000000000")
    found = {}
    for partition, at in given.items():
        tp = partition_of(partition)
        if (time := _in_range(at, 0, MAX_INT64)) is None:
            raise ConfigurationError(
                f"the time for {tp} is {at!r}; expected milliseconds since 1970, a whole number"
                f" from 0 to {MAX_INT64}"
            )
        found[tp] = time
    return found


def check_record_limit(max_records: object) -> None:
    """Check a limit of records. Raises: ConfigurationError if it is no whole number from 1."""
    if _in_range(max_records, 1, MAX_INT64) is None:
        raise ConfigurationError(
            f"max_records={max_records!r}; expected a whole number from 1 to {MAX_INT64}"
        )


def check_interval(name: str, value: object) -> None:
    """Check a number of seconds. Raises: ConfigurationError if the value is no number, or is
    negative or infinite."""
    if not _is_number(value) or not 0 <= value < math.inf:
        raise ConfigurationError(
            f"{name}={value!r}; expected a number of seconds, at least 0 and not infinite"
        )


def check_text(name: str, value: object) -> None:
    """Check an argument that requests carry as text. Raises: ConfigurationError."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} is of type {type(value).__name__}; expected a string")


def seconds_of(timeout: object) -> float:
    """Convert a timeout to float seconds. Raises: ConfigurationError, also for a negative one: some
    clients wait without limit then, and others not at all."""
    # A deadline of NaN is never reached.
    if not _is_number(timeout) or math.isnan(timeout):
        raise ConfigurationError(f"timeout={timeout!r}; expected a number of seconds, such as 1.0")
    if timeout < 0:
        raise ConfigurationError(
            f"timeout={timeout!r}; expected seconds, at least 0; math.inf waits without a limit"
        )
    return float(timeout)


def _checked_fields(tp: TopicPartition, value: OffsetAndMetadata) -> OffsetAndMetadata:
    if (epoch := _in_range(value.leader_epoch, -1, MAX_INT32)) is None:
        raise ConfigurationError(
            f"the leader epoch for {tp} is {value.leader_epoch!r}; expected a whole number from 0"
            f" to {MAX_INT32}, or -1 if it is not known"
        )
    if not isinstance(value.metadata, str):
        raise ConfigurationError(f"the metadata for {tp} is {value.metadata!r}; expected a string")
    return OffsetAndMetadata(offset_of(tp, value.offset), value.metadata, epoch)


def _check_mapping(given: object, example: str) -> None:
    """Check that an argument is a mapping. `example`: the value of a partition, which the message
    shows. Raises: ConfigurationError."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{given!r} is no mapping; expected {{TopicPartition('topic', 0): {example}}}"
        )


def _is_number(value: object) -> TypeGuard[float]:
    # No check of the class: numpy's numbers are accepted, too.
    return hasattr(value, "__float__") and not isinstance(value, bool)


def _in_range(value: object, least: int, most: int) -> int | None:
    """Return a whole number as an int; None for another value, or one out of range."""
    number = int(value) if _is_whole(value) else None
    return number if number is not None and least <= number <= most else None


def _is_whole(value: object) -> TypeGuard[int]:
    # No check of the class: numpy's integers are accepted, too.
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_partition(value: object) -> TypeGuard[Partition]:
    match value:
        # This matches lists, too: JSON has no tuples.
        case (str(), number):
            return _is_whole(number)
        case _:
            return False

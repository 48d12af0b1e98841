"""How calls take partitions, offsets and limits: one converter for all of them.

A partition is a `TopicPartition` or a tuple of topic and number. A call that takes several accepts
one, or an iterable of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeGuard, TypeVar

from kafkagroup.errors import ConfigurationError
from kafkagroup.types import OffsetAndMetadata, TopicPartition

__all__ = [
    "ByPartition",
    "Partition",
    "Partitions",
    "check_record_limit",
    "offset_of",
    "offsets_of",
    "partition_of",
    "partitions_of",
    "seconds_of",
    "times_of",
]

T = TypeVar("T")

Partition: TypeAlias = tuple[str, int]
"""A `TopicPartition`, or a plain tuple like it."""

Partitions: TypeAlias = Partition | Iterable[Partition]

ByPartition: TypeAlias = Mapping[TopicPartition, T] | Mapping[Partition, T]
"""Two types, as the keys of a Mapping are invariant to type checkers."""


def partition_of(value: object) -> TopicPartition:
    """The partition that a caller means. Raises: ConfigurationError."""
    if not _is_partition(value):
        raise ConfigurationError(
            f"{value!r} is no partition; expected TopicPartition('topic', 0) or ('topic', 0)"
        )
    topic, number = value
    return TopicPartition(topic, int(number))


def partitions_of(*values: Partitions) -> list[TopicPartition]:
    """The partitions of several arguments, each one of them or an iterable of them.

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
    """The offset that a caller means for a partition. Raises: ConfigurationError."""
    if not _is_whole(value) or value < 0:
        raise ConfigurationError(f"the offset for {tp} is {value!r}; expected a number from 0")
    return int(value)


def offsets_of(
    given: ByPartition[int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets to commit. Raises: ConfigurationError."""
    _check_mapping(given, "5")
    found = {}
    for partition, value in given.items():
        tp = partition_of(partition)
        if isinstance(value, OffsetAndMetadata):
            offset_of(tp, value.offset)
            found[tp] = value
        else:
            found[tp] = OffsetAndMetadata(offset_of(tp, value))
    return found


def times_of(given: ByPartition[int]) -> dict[TopicPartition, int]:
    """The times to look for, in milliseconds since the epoch. Raises: ConfigurationError."""
    _check_mapping(given, "1700000000000")
    found = {}
    for partition, at in given.items():
        tp = partition_of(partition)
        if not _is_whole(at) or at < 0:
            raise ConfigurationError(
                f"the time for {tp} is {at!r}; expected milliseconds since the epoch"
            )
        found[tp] = int(at)
    return found


def check_record_limit(max_records: object) -> None:
    """Raises: ConfigurationError for what is no number of records to ask for."""
    if not _is_whole(max_records) or max_records < 1:
        raise ConfigurationError(f"max_records={max_records!r}; expected a number from 1")


def seconds_of(timeout: object) -> float:
    """For how many seconds a caller means to wait. Raises: ConfigurationError."""
    # NaN is no moment to wake at.
    if not _is_number(timeout) or math.isnan(timeout):
        raise ConfigurationError(f"timeout={timeout!r}; expected a number of seconds, such as 1.0")
    return float(timeout)


def _check_mapping(given: object, value: str) -> None:
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{given!r} is no mapping; expected {{TopicPartition('topic', 0): {value}}}"
        )


def _is_number(value: object) -> TypeGuard[float]:
    # Not of one class: a number may be of numpy.
    return hasattr(value, "__float__") and not isinstance(value, bool)


def _is_whole(value: object) -> TypeGuard[int]:
    # A number may be of numpy.
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_partition(value: object) -> TypeGuard[Partition]:
    match value:
        # Lists as well, as JSON has no tuples.
        case (str(), number):
            return _is_whole(number)
        case _:
            return False

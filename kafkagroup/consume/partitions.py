"""How calls take partitions: one converter for all of them.

A partition is a `TopicPartition` or a tuple of topic and number. A call that takes several accepts
one, or an iterable of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeGuard, TypeVar

from kafkagroup.errors import ConfigurationError
from kafkagroup.types import OffsetAndMetadata, TopicPartition

__all__ = [
    "ByPartition",
    "Partition",
    "Partitions",
    "offset_of",
    "offsets_of",
    "partition_of",
    "partitions_of",
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


def _check_mapping(given: object, value: str) -> None:
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{given!r} is no mapping; expected {{TopicPartition('topic', 0): {value}}}"
        )


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

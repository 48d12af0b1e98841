"""The types of the functions that an application passes to a client.

`options` declares the options that take such functions. `consume` calls the deserializers, and
`runtime` the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from kafkagroup.errors import DeserializationError
from kafkagroup.types import Record, TopicPartition

__all__ = [
    "AssignedCallback",
    "DeserializationErrorPolicy",
    "Deserializer",
    "PartitionLoads",
    "Partitioner",
    "PartitionsCallback",
    "Serializer",
]

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

# Recursive, because mypy infers the result of a coroutine function only from this form. It is also
# correct: if the result of an await is awaitable, it is awaited too.
Converted: TypeAlias = "T | Awaitable[Converted[T]]"

Deserializer: TypeAlias = "Callable[[bytes], Converted[T]]"
"""A function or coroutine function, called with the bytes of each key or value that is not null;
with `views`, with a memoryview."""

Replacement: TypeAlias = Record[Any, Any] | None

DeserializationErrorPolicy: TypeAlias = (
    Literal["raise", "skip"]
    | Callable[[Record, DeserializationError], Replacement | Awaitable[Replacement]]
)
"""How to handle a record whose deserializer failed. A function or coroutine function is called with
the record, as the broker sent it, and the error. It returns the record to deliver instead, or None
to skip it; an exception that it raises is raised to the application."""

Loads = Mapping[TopicPartition, float]
PartitionLoads = Callable[[], Loads | Awaitable[Loads]]
"""A function or coroutine function that returns partition -> load. Called on the group's leader at
each assignment; the load of a missing partition is 1.0."""

PartitionsCallback = Callable[[list[TopicPartition]], Awaitable[object] | object]
"""A plain function or a coroutine function. It gets a sorted list, which it may change."""

AssignedCallback = PartitionsCallback
"""As `PartitionsCallback`, but the function may return partition -> the offset where to start. A
partition with None, or without an entry, starts where it would start anyway, as do all if the
function returns None. Any other result is an error, which the application's next call raises."""

Serialized = bytes | bytearray | memoryview | None

Serializer: TypeAlias = "Callable[[T_contra], Serialized | Awaitable[Serialized]]"
"""A function or coroutine function, called with each key or value that is not None; returns its
bytes, or None."""

Partitioner = Callable[[str, bytes | None, int], int | None]
"""Called with the topic, the key of a record as bytes and the number of partitions. Returns the
number of a partition, or None for one that the producer chooses. Must not wait."""

"""The values that cross every border of the library: frozen, comparable, without behaviour.

Nothing here knows of bytes, sockets or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

import attrs

__all__ = [
    "Assignment",
    "GroupMetadata",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Record",
    "TimestampType",
    "TopicPartition",
]


class TopicPartition(NamedTuple):
    """One partition of a topic. Sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class TimestampType(IntEnum):
    """Who stamped a record."""

    CREATE_TIME = 0
    """The producer, when it made the record."""
    LOG_APPEND_TIME = 1
    """The broker, when it appended the batch."""


@attrs.frozen
class OffsetAndMetadata:
    """A committed position: the offset of the next record to process, and a note beside it."""

    offset: int
    """The next offset to read, so one more than the last record processed."""
    metadata: str = ""
    """Free text, kept by the broker (4,096 bytes by its default)."""
    leader_epoch: int = -1
    """Epoch of the leader that the last record was read from; -1 when unknown (KIP-320)."""


@attrs.frozen
class OffsetAndTimestamp:
    """What a log has at or after a time."""

    offset: int
    """Of the first record that is not older; -1 when there is none."""
    timestamp: int
    """That record's, in milliseconds; -1 where only an offset was asked for."""
    leader_epoch: int = -1


@attrs.frozen
class GroupMetadata:
    """Who a consumer is to its group: what a transactional producer sends along (KIP-447)."""

    group_id: str
    generation_id: int
    """-1 without membership."""
    member_id: str
    """"" without membership."""
    group_instance_id: str | None


class Record(NamedTuple):
    """One record as the application sees it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch; -1 when the record has none."""
    timestamp_type: TimestampType
    key: object
    """Bytes or None, or what `key_deserializer` made of them."""
    value: object
    """Bytes or None (a tombstone), or what `value_deserializer` made of them."""
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int
    """Epoch of the leader that wrote the batch; -1 when unknown."""


Assignment = Mapping[str, tuple[TopicPartition, ...]]
"""Member id -> the partitions it gets, sorted. Every member has an entry, if an empty one."""

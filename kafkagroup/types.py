"""The values that all parts of the library share: frozen, comparable, without behaviour.

Nothing here knows bytes, sockets or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from kafkagroup import _record
from kafkagroup._generic import K_co, V_co
from kafkagroup._public import public
from kafkagroup._record import Headers, TimestampType
from kafkagroup._values import frozen

__all__ = [
    "MAX_INT16",
    "MAX_INT32",
    "MAX_INT64",
    "NO_TIMESTAMP",
    "Assignment",
    "GroupMetadata",
    "Headers",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Record",
    "RecordMetadata",
    "TimestampType",
    "TopicPartition",
    "by_topic",
]

MAX_INT16, MAX_INT32, MAX_INT64 = 2**15 - 1, 2**31 - 1, 2**63 - 1
"""The greatest values of the protocol's integers. Replication factors have 16 bits, partition
numbers and leader epochs 32, offsets and timestamps 64."""

NO_TIMESTAMP = -1
"""The timestamp of a record that has none, such as one of the oldest message format."""


@public
class TopicPartition(NamedTuple):
    """One partition of a topic. Sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return topic -> partition numbers, both sorted."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found


@public
@frozen
class OffsetAndMetadata:
    """A committed offset, and the metadata that was committed with it."""

    offset: int
    """The offset of the next record to process: that of the last processed one, plus one."""
    metadata: str = ""
    """Free text that the broker stores with the offset, by default up to 4,096 bytes."""
    leader_epoch: int = -1
    """Leader epoch of the last processed record; -1 when unknown (KIP-320)."""


@frozen
class OffsetAndTimestamp:
    """The first record of a partition at or after a time; or where the partition's log starts or
    ends."""

    offset: int
    """The record's offset, -1 when there is none; or the requested start or end of the log."""
    timestamp: int
    """The record's timestamp in milliseconds; -1 without a record."""
    leader_epoch: int = -1
    """The leader epoch at that offset; -1 when unknown."""


@public
class RecordMetadata(NamedTuple):
    """Where a record was written."""

    topic: str
    partition: int
    offset: int
    """-1 where the broker does not say: with `acks=0`, and for a record that an earlier attempt had
    written long before."""
    timestamp: int
    """In milliseconds: the record's own, or that of its arrival, if the topic has
    `message.timestamp.type=LogAppendTime`."""


@frozen
class GroupMetadata:
    """A consumer's identity in its group, which a transactional producer sends (KIP-447)."""

    group_id: str
    generation_id: int
    """-1 without membership."""
    member_id: str
    """"" without membership."""
    group_instance_id: str | None
    """None for a dynamic member."""


if TYPE_CHECKING:

    class Record(_record.Record, Generic[K_co, V_co]):
        """One record as the application sees it: frozen, and compared by its values."""

        def __init__(
            self,
            topic: str,
            partition: int,
            offset: int,
            timestamp: int,
            timestamp_type: TimestampType,
            key: K_co,
            value: V_co,
            headers: Headers,
            leader_epoch: int,
        ) -> None: ...

        # `__getattr__` only explains errors: type checkers must not infer that any name exists.
        __getattr__: None  # type: ignore[assignment, misc]

        @property
        def key(self) -> K_co: ...

        @property
        def value(self) -> V_co: ...

        def _replace(self, **changes: object) -> Record[Any, Any]: ...

        __replace__ = _replace

else:
    # A compiled class cannot be generic: its type parameters are for type checkers only.
    Record = _record.Record


Assignment = Mapping[str, tuple[TopicPartition, ...]]
"""Member id -> its partitions, sorted. Each member has an entry, which may be empty."""

"""The values that cross every border of the library: frozen, comparable, without behaviour.

Nothing here knows of bytes, sockets or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from kafkagroup import _record
from kafkagroup._generic import K_co, V_co
from kafkagroup._public import public
from kafkagroup._record import Headers, TimestampType
from kafkagroup._values import frozen

__all__ = [
    "Assignment",
    "GroupMetadata",
    "Headers",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Record",
    "TimestampType",
    "TopicPartition",
]


@public
class TopicPartition(NamedTuple):
    """One partition of a topic. Sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@public
@frozen
class OffsetAndMetadata:
    """A committed position: the offset of the next record to process, and a note beside it."""

    offset: int
    """The next offset to read, so one more than the last record processed."""
    metadata: str = ""
    """Free text, kept by the broker (4,096 bytes by its default)."""
    leader_epoch: int = -1
    """Epoch of the leader that the last record was read from; -1 when unknown (KIP-320)."""


@public
@frozen
class OffsetAndTimestamp:
    """What a log has at or after a time."""

    offset: int
    """Of the first record that is not older; -1 when there is none."""
    timestamp: int
    """That record's, in milliseconds; -1 where only an offset was asked for."""
    leader_epoch: int = -1


@public
@frozen
class GroupMetadata:
    """Who a consumer is to its group: what a transactional producer sends along (KIP-447)."""

    group_id: str
    generation_id: int
    """-1 without membership."""
    member_id: str
    """"" without membership."""
    group_instance_id: str | None


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

        @property
        def key(self) -> K_co: ...

        @property
        def value(self) -> V_co: ...

        def _replace(self, **changes: object) -> Record[Any, Any]: ...

        __replace__ = _replace

else:
    # A class of C cannot be generic: its types are for type checkers alone.
    Record = _record.Record


Assignment = Mapping[str, tuple[TopicPartition, ...]]
"""Member id -> the partitions it gets, sorted. Every member has an entry, if an empty one."""

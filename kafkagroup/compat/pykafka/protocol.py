"""Argument and result types of pykafka's calls. Strings may be given as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import attrs

from kafkagroup import Codec, Record, Security, TopicPartition
from kafkagroup._timestamps import check_timestamp
from kafkagroup.wire import encode_batch
from kafkagroup.wire.batch_writing import NewRecord

__all__ = [
    "BrokerMetadata",
    "Cluster",
    "MemberAssignment",
    "Message",
    "OffsetType",
    "PartitionFetchRequest",
    "PartitionOffsetCommitRequest",
    "PartitionOffsetFetchRequest",
    "PartitionOffsetRequest",
    "ProduceRequest",
    "text",
]


def text(name: str | bytes) -> str:
    """Return a name as a string: pykafka uses bytes where the main API uses strings."""
    return name.decode() if isinstance(name, bytes) else name


class OffsetType(IntEnum):
    """Special offsets: the start and the end of the log."""

    EARLIEST = -2
    LATEST = -1


@attrs.frozen
class Cluster:
    """The brokers' addresses and how to connect to them. It holds no connection."""

    hosts: str | Sequence[str] = "localhost:9092"
    security: Security | None = None
    """TLS and SASL settings, used on every connection."""


class Message(NamedTuple):
    """A message as the application receives it."""

    value: object
    partition_key: object = None
    partition_id: int = -1
    offset: int = -1
    timestamp: int = -1
    """Milliseconds since the epoch, or -1 for none."""

    @classmethod
    def of(cls, record: Record) -> Message:
        """Return a record of the main API as a message."""
        return cls(record.value, record.key, record.partition, record.offset, record.timestamp)


class BrokerMetadata(NamedTuple):
    """A broker as described by cluster metadata."""

    id: int
    host: str | bytes
    port: int


class PartitionFetchRequest(NamedTuple):
    """A partition to fetch messages from."""

    topic: str | bytes
    partition: int
    offset: int
    max_bytes: int = 1_048_576


class PartitionOffsetRequest(NamedTuple):
    """A partition whose offset at a time is requested."""

    topic_name: str | bytes
    partition_id: int
    offsets_before: int
    """A timestamp in milliseconds, or an `OffsetType`."""
    max_offsets: int = 1
    """Ignored: a response holds one offset."""


class PartitionOffsetCommitRequest(NamedTuple):
    """An offset to commit: the next one to read."""

    topic_name: str | bytes
    partition_id: int
    offset: int
    timestamp: int = -1
    """Ignored: brokers set the commit timestamp themselves."""
    metadata: str | bytes = ""


class PartitionOffsetFetchRequest(NamedTuple):
    """A partition whose committed offset is requested."""

    topic_name: str | bytes
    partition_id: int


class MemberAssignment(NamedTuple):
    """The partitions assigned to one member."""

    partition_assignment: Sequence[tuple[str | bytes, Sequence[int]]]
    """Pairs of topic and partition ids."""
    member_id: str | bytes = ""
    version: int = 1
    """The version of the encoded assignment."""

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions as values of the main API."""
        return [TopicPartition(text(t), p) for t, ids in self.partition_assignment for p in ids]


@attrs.define
class ProduceRequest:
    """Messages to produce."""

    compression_type: int = 0
    """The value of a `Codec`."""
    required_acks: int = 1
    """How many replicas must have the messages before the broker responds: 1 the leader, -1 all
    that are in sync, 0 without a response."""
    timeout: int = 10_000
    """Milliseconds."""
    messages: dict[TopicPartition, list[NewRecord]] = attrs.field(factory=dict)

    def add_message(self, message: Message, topic_name: str | bytes, partition_id: int) -> None:
        """Add a message for a partition. A key or value that is not bytes is encoded as `str` shows
        it. Raises: ConfigurationError for an invalid timestamp."""
        check_timestamp(message.timestamp)
        key, value = _bytes(message.partition_key), _bytes(message.value)
        record = NewRecord(key, value, message.timestamp)
        self.messages.setdefault(TopicPartition(text(topic_name), partition_id), []).append(record)

    @property
    def batches(self) -> Mapping[TopicPartition, bytes]:
        """One encoded record batch per partition."""
        codec = Codec(self.compression_type)
        return {tp: encode_batch(records, codec=codec) for tp, records in self.messages.items()}


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) or value is None else str(value).encode()

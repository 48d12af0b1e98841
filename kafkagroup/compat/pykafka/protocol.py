"""The values that pykafka's calls take and give: tuples with names. Strings may come as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import attrs

from kafkagroup import Codec, NewRecord, Record, Security, TopicPartition, encode_batch

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
    """A name of Kafka's: pykafka has bytes where the main API has strings."""
    return name.decode() if isinstance(name, bytes) else name


class OffsetType(IntEnum):
    """Offsets that stand for a place in the log."""

    EARLIEST = -2
    LATEST = -1


@attrs.frozen
class Cluster:
    """Where the brokers are, and how to talk to them. It holds no connection."""

    hosts: str | Sequence[str] = "localhost:9092"
    security: Security | None = None
    """TLS and SASL, the same on every connection."""


class Message(NamedTuple):
    """One message as the application sees it."""

    value: object
    partition_key: object = None
    partition_id: int = -1
    offset: int = -1
    timestamp: int = -1
    """Milliseconds since the epoch."""

    @classmethod
    def of(cls, record: Record) -> Message:
        """The message that a record of the main API is."""
        return cls(record.value, record.key, record.partition, record.offset, record.timestamp)


class BrokerMetadata(NamedTuple):
    """A broker as metadata describes it."""

    id: int
    host: str | bytes
    port: int


class PartitionFetchRequest(NamedTuple):
    """Messages to fetch."""

    topic: str | bytes
    partition: int
    offset: int
    max_bytes: int = 1_048_576


class PartitionOffsetRequest(NamedTuple):
    """An offset to ask a log for."""

    topic_name: str | bytes
    partition_id: int
    offsets_before: int
    """Milliseconds, or an `OffsetType`."""
    max_offsets: int = 1
    """Answers hold one, whatever this says."""


class PartitionOffsetCommitRequest(NamedTuple):
    """An offset to commit: the next one to read."""

    topic_name: str | bytes
    partition_id: int
    offset: int
    timestamp: int = -1
    """Of no use any more: brokers stamp commits themselves."""
    metadata: str | bytes = ""


class PartitionOffsetFetchRequest(NamedTuple):
    """A committed offset to ask for."""

    topic_name: str | bytes
    partition_id: int


class MemberAssignment(NamedTuple):
    """What one member is to consume."""

    partition_assignment: Sequence[tuple[str | bytes, Sequence[int]]]
    """Topic and partition ids."""
    member_id: str | bytes = ""
    version: int = 1

    @property
    def partitions(self) -> list[TopicPartition]:
        """The same as the main API has it."""
        return [TopicPartition(text(t), p) for t, ids in self.partition_assignment for p in ids]


@attrs.define
class ProduceRequest:
    """Messages to append."""

    compression_type: int = 0
    required_acks: int = 1
    timeout: int = 10_000
    """Milliseconds."""
    messages: dict[TopicPartition, list[NewRecord]] = attrs.field(factory=dict)

    def add_message(self, message: Message, topic_name: str | bytes, partition_id: int) -> None:
        """Append one more message to a partition."""
        key, value = _bytes(message.partition_key), _bytes(message.value)
        record = NewRecord(key, value, message.timestamp)
        self.messages.setdefault(TopicPartition(text(topic_name), partition_id), []).append(record)

    @property
    def batches(self) -> Mapping[TopicPartition, bytes]:
        """One record batch for each partition."""
        codec = Codec(self.compression_type)
        return {tp: encode_batch(records, codec=codec) for tp, records in self.messages.items()}


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) or value is None else str(value).encode()

"""Consumer groups (KIP-848): members, their target assignments and their current ones.

The names and fields are those of Apache Kafka 4.3's schemas; a test compares them. The number of
each message is the record type. Timeouts are in milliseconds, timestamps in milliseconds since the
epoch.
"""

from uuid import UUID

from kafkagroup.wire.schema import (
    BYTES,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID_,
    array,
    field,
    message,
    struct,
)


@message(3, "0")
class ConsumerGroupMetadataKey:
    group_id: str = field(STRING)


@message(3, "0", flexible="0+")
class ConsumerGroupMetadataValue:
    epoch: int = field(INT32)
    metadata_hash: int = field(INT64, default=0, tag=0, tagged="0+")


@message(4, "0")
class ConsumerGroupPartitionMetadataKey:
    group_id: str = field(STRING)


@struct
class PartitionMetadata:
    partition: int = field(INT32)
    racks: tuple[str, ...] = field(array(STRING))


@struct
class TopicMetadata:
    topic_id: UUID = field(UUID_)
    topic_name: str = field(STRING)
    num_partitions: int = field(INT32)
    partition_metadata: tuple[PartitionMetadata, ...] = field(array(PartitionMetadata))


@message(4, "0", flexible="0+")
class ConsumerGroupPartitionMetadataValue:
    """Only brokers before 4.1 write it."""

    topics: tuple[TopicMetadata, ...] = field(array(TopicMetadata))


@message(5, "0")
class ConsumerGroupMemberMetadataKey:
    group_id: str = field(STRING)
    member_id: str = field(STRING)


@struct
class ClassicProtocol:
    name: str = field(STRING)
    metadata: bytes = field(BYTES)


@struct
class ClassicMemberMetadata:
    session_timeout_ms: int = field(INT32)
    supported_protocols: tuple[ClassicProtocol, ...] = field(array(ClassicProtocol))


@message(5, "0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    instance_id: str | None = field(STRING, nullable="0+")
    rack_id: str | None = field(STRING, nullable="0+")
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: tuple[str, ...] = field(array(STRING))
    subscribed_topic_regex: str | None = field(STRING, nullable="0+")
    rebalance_timeout_ms: int = field(INT32, default=-1)
    server_assignor: str | None = field(STRING, nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = field(
        ClassicMemberMetadata, default=None, nullable="0+", tag=0, tagged="0+"
    )


@message(6, "0")
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: str = field(STRING)


@message(6, "0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = field(INT32)
    assignment_timestamp: int = field(INT64, default=0, tag=0, tagged="0+", ignorable=True)


@message(7, "0")
class ConsumerGroupTargetAssignmentMemberKey:
    group_id: str = field(STRING)
    member_id: str = field(STRING)


@struct
class TopicPartition:
    topic_id: UUID = field(UUID_)
    partitions: tuple[int, ...] = field(array(INT32))


@message(7, "0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: tuple[TopicPartition, ...] = field(array(TopicPartition))


@message(8, "0")
class ConsumerGroupCurrentMemberAssignmentKey:
    group_id: str = field(STRING)
    member_id: str = field(STRING)


@struct
class TopicPartitions:
    topic_id: UUID = field(UUID_)
    partitions: tuple[int, ...] = field(array(INT32))
    assignment_epochs: tuple[int, ...] | None = field(
        array(INT32), default=None, nullable="0+", tag=0, tagged="0+"
    )


@message(8, "0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: int = field(INT32)
    previous_member_epoch: int = field(INT32)
    state: int = field(INT8)
    """0 stable, 1 unrevoked partitions, 2 unreleased partitions, 127 unknown."""
    assigned_partitions: tuple[TopicPartitions, ...] = field(array(TopicPartitions))
    partitions_pending_revocation: tuple[TopicPartitions, ...] = field(array(TopicPartitions))


@message(16, "0")
class ConsumerGroupRegularExpressionKey:
    group_id: str = field(STRING)
    regular_expression: str = field(STRING)


@message(16, "0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    topics: tuple[str, ...] = field(array(STRING))
    version: int = field(INT64)
    timestamp: int = field(INT64)

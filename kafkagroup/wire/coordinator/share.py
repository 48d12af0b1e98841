"""Share groups (KIP-932): members and assignments. Their offsets are in `__share_group_state`.

The names and fields are those of Apache Kafka 4.3's schemas; a test compares them. The number of
each message is the record type. Timestamps are in milliseconds since the epoch.
"""

from uuid import UUID

from kafkagroup.wire.schema import (
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


@message(10, "0")
class ShareGroupMemberMetadataKey:
    group_id: str = field(STRING)
    member_id: str = field(STRING)


@message(10, "0", flexible="0+")
class ShareGroupMemberMetadataValue:
    rack_id: str | None = field(STRING, nullable="0+")
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: tuple[str, ...] = field(array(STRING))


@message(11, "0")
class ShareGroupMetadataKey:
    group_id: str = field(STRING)


@message(11, "0", flexible="0+")
class ShareGroupMetadataValue:
    epoch: int = field(INT32)
    metadata_hash: int = field(INT64)


@message(12, "0")
class ShareGroupTargetAssignmentMetadataKey:
    group_id: str = field(STRING)


@message(12, "0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = field(INT32)
    assignment_timestamp: int = field(INT64, default=0, tag=0, tagged="0+", ignorable=True)


@message(13, "0")
class ShareGroupTargetAssignmentMemberKey:
    group_id: str = field(STRING)
    member_id: str = field(STRING)


@struct
class TopicPartition:
    topic_id: UUID = field(UUID_)
    partitions: tuple[int, ...] = field(array(INT32))


@message(13, "0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue:
    topic_partitions: tuple[TopicPartition, ...] = field(array(TopicPartition))


@message(14, "0")
class ShareGroupCurrentMemberAssignmentKey:
    group_id: str = field(STRING)
    member_id: str = field(STRING)


@struct
class TopicPartitions:
    topic_id: UUID = field(UUID_)
    partitions: tuple[int, ...] = field(array(INT32))


@message(14, "0", flexible="0+")
class ShareGroupCurrentMemberAssignmentValue:
    member_epoch: int = field(INT32)
    previous_member_epoch: int = field(INT32)
    state: int = field(INT8)
    """0 stable, 1 unrevoked partitions, 2 unreleased partitions, 127 unknown."""
    assigned_partitions: tuple[TopicPartitions, ...] = field(array(TopicPartitions))


@message(15, "0")
class ShareGroupStatePartitionMetadataKey:
    group_id: str = field(STRING)


@struct
class TopicPartitionsInfo:
    topic_id: UUID = field(UUID_)
    topic_name: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@struct
class TopicInfo:
    topic_id: UUID = field(UUID_)
    topic_name: str = field(STRING)


@message(15, "0", flexible="0+")
class ShareGroupStatePartitionMetadataValue:
    initializing_topics: tuple[TopicPartitionsInfo, ...] = field(array(TopicPartitionsInfo))
    initialized_topics: tuple[TopicPartitionsInfo, ...] = field(array(TopicPartitionsInfo))
    deleting_topics: tuple[TopicInfo, ...] = field(array(TopicInfo))

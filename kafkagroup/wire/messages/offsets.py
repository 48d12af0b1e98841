"""Committed offsets, the ends of logs, and the ends of leader epochs.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from uuid import UUID

from kafkagroup.wire.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    NO_ID,
    STRING,
    UUID_,
    LookUp,
    Request,
    array,
    field,
    message,
    struct,
)


@struct
class OffsetCommitResponsePartition:
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


@struct
class OffsetCommitResponseTopic:
    name: str = field(STRING, "0-9", default="", ignorable=True)
    topic_id: UUID = field(UUID_, "10+", default=NO_ID, ignorable=True)
    partitions: tuple[OffsetCommitResponsePartition, ...] = field(
        array(OffsetCommitResponsePartition)
    )


@message(8, "2-10", flexible="8+")
class OffsetCommitResponse:
    throttle_time_ms: int = field(INT32, "3+", default=0, ignorable=True)
    topics: tuple[OffsetCommitResponseTopic, ...] = field(array(OffsetCommitResponseTopic))


@struct
class OffsetCommitRequestPartition:
    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, "6+", default=-1, ignorable=True)
    committed_metadata: str | None = field(STRING, nullable="0+")


@struct
class OffsetCommitRequestTopic:
    name: str = field(STRING, "0-9", default="", ignorable=True)
    topic_id: UUID = field(UUID_, "10+", default=NO_ID, ignorable=True)
    partitions: tuple[OffsetCommitRequestPartition, ...] = field(
        array(OffsetCommitRequestPartition)
    )


@message(8, "2-10", flexible="8+")
class OffsetCommitRequest(Request[OffsetCommitResponse]):
    response = OffsetCommitResponse

    group_id: str = field(STRING)
    generation_id_or_member_epoch: int = field(INT32, default=-1, ignorable=True)
    member_id: str = field(STRING, default="", ignorable=True)
    group_instance_id: str | None = field(STRING, "7+", default=None, nullable="7+")
    retention_time_ms: int = field(INT64, "2-4", default=-1, ignorable=True)
    topics: tuple[OffsetCommitRequestTopic, ...] = field(array(OffsetCommitRequestTopic))


@struct
class OffsetFetchResponsePartition:
    partition_index: int = field(INT32, "0-7", default=0)
    committed_offset: int = field(INT64, "0-7", default=0)
    committed_leader_epoch: int = field(INT32, "5-7", default=-1, ignorable=True)
    metadata: str | None = field(STRING, "0-7", default="", nullable="0-7")
    error_code: int = field(INT16, "0-7", default=0)


@struct
class OffsetFetchResponseTopic:
    name: str = field(STRING, "0-7", default="")
    partitions: tuple[OffsetFetchResponsePartition, ...] = field(
        array(OffsetFetchResponsePartition), "0-7", default=()
    )


@struct
class OffsetFetchResponsePartitions:
    partition_index: int = field(INT32, "8+", default=0)
    committed_offset: int = field(INT64, "8+", default=0)
    committed_leader_epoch: int = field(INT32, "8+", default=-1, ignorable=True)
    metadata: str | None = field(STRING, "8+", default="", nullable="8+")
    error_code: int = field(INT16, "8+", default=0)


@struct
class OffsetFetchResponseTopics:
    name: str = field(STRING, "8-9", default="", ignorable=True)
    topic_id: UUID = field(UUID_, "10+", default=NO_ID, ignorable=True)
    partitions: tuple[OffsetFetchResponsePartitions, ...] = field(
        array(OffsetFetchResponsePartitions), "8+", default=()
    )


@struct
class OffsetFetchResponseGroup:
    group_id: str = field(STRING, "8+", default="")
    topics: tuple[OffsetFetchResponseTopics, ...] = field(
        array(OffsetFetchResponseTopics), "8+", default=()
    )
    error_code: int = field(INT16, "8+", default=0)


@message(9, "1-10", flexible="6+")
class OffsetFetchResponse:
    throttle_time_ms: int = field(INT32, "3+", default=0, ignorable=True)
    topics: tuple[OffsetFetchResponseTopic, ...] = field(
        array(OffsetFetchResponseTopic), "0-7", default=()
    )
    error_code: int = field(INT16, "2-7", default=0, ignorable=True)
    groups: tuple[OffsetFetchResponseGroup, ...] = field(
        array(OffsetFetchResponseGroup), "8+", default=()
    )


@struct
class OffsetFetchRequestTopic:
    name: str = field(STRING, "0-7", default="")
    partition_indexes: tuple[int, ...] = field(array(INT32), "0-7", default=())


@struct
class OffsetFetchRequestTopics:
    name: str = field(STRING, "8-9", default="", ignorable=True)
    topic_id: UUID = field(UUID_, "10+", default=NO_ID, ignorable=True)
    partition_indexes: tuple[int, ...] = field(array(INT32), "8+", default=())


@struct
class OffsetFetchRequestGroup:
    group_id: str = field(STRING, "8+", default="")
    member_id: str | None = field(STRING, "9+", default=None, nullable="9+", ignorable=True)
    member_epoch: int = field(INT32, "9+", default=-1, ignorable=True)
    topics: tuple[OffsetFetchRequestTopics, ...] | None = field(
        array(OffsetFetchRequestTopics), "8+", default=(), nullable="8+"
    )


@message(9, "1-10", flexible="6+")
class OffsetFetchRequest(LookUp[OffsetFetchResponse]):
    response = OffsetFetchResponse

    group_id: str = field(STRING, "0-7", default="")
    topics: tuple[OffsetFetchRequestTopic, ...] | None = field(
        array(OffsetFetchRequestTopic), "0-7", default=(), nullable="2-7"
    )
    groups: tuple[OffsetFetchRequestGroup, ...] = field(
        array(OffsetFetchRequestGroup), "8+", default=()
    )
    require_stable: bool = field(BOOL, "7+", default=False)


@struct
class ListOffsetsPartitionResponse:
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    timestamp: int = field(INT64, default=-1)
    offset: int = field(INT64, default=-1)
    leader_epoch: int = field(INT32, "4+", default=-1)


@struct
class ListOffsetsTopicResponse:
    name: str = field(STRING)
    partitions: tuple[ListOffsetsPartitionResponse, ...] = field(
        array(ListOffsetsPartitionResponse)
    )


@message(2, "1-11", flexible="6+")
class ListOffsetsResponse:
    throttle_time_ms: int = field(INT32, "2+", default=0, ignorable=True)
    topics: tuple[ListOffsetsTopicResponse, ...] = field(array(ListOffsetsTopicResponse))


@struct
class ListOffsetsPartition:
    partition_index: int = field(INT32)
    current_leader_epoch: int = field(INT32, "4+", default=-1, ignorable=True)
    timestamp: int = field(INT64)


@struct
class ListOffsetsTopic:
    name: str = field(STRING)
    partitions: tuple[ListOffsetsPartition, ...] = field(array(ListOffsetsPartition))


@message(2, "1-11", flexible="6+")
class ListOffsetsRequest(LookUp[ListOffsetsResponse]):
    response = ListOffsetsResponse

    replica_id: int = field(INT32)
    isolation_level: int = field(INT8, "2+", default=0)
    topics: tuple[ListOffsetsTopic, ...] = field(array(ListOffsetsTopic))
    timeout_ms: int = field(INT32, "10+", default=0, ignorable=True)


@struct
class EpochEndOffset:
    error_code: int = field(INT16)
    partition: int = field(INT32)
    leader_epoch: int = field(INT32, default=-1, ignorable=True)
    end_offset: int = field(INT64, default=-1)


@struct
class OffsetForLeaderTopicResult:
    topic: str = field(STRING)
    partitions: tuple[EpochEndOffset, ...] = field(array(EpochEndOffset))


@message(23, "2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = field(INT32, default=0, ignorable=True)
    topics: tuple[OffsetForLeaderTopicResult, ...] = field(array(OffsetForLeaderTopicResult))


@struct
class OffsetForLeaderPartition:
    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, default=-1, ignorable=True)
    leader_epoch: int = field(INT32)


@struct
class OffsetForLeaderTopic:
    topic: str = field(STRING)
    partitions: tuple[OffsetForLeaderPartition, ...] = field(array(OffsetForLeaderPartition))


@message(23, "2-4", flexible="4+")
class OffsetForLeaderEpochRequest(LookUp[OffsetForLeaderEpochResponse]):
    response = OffsetForLeaderEpochResponse

    replica_id: int = field(INT32, "3+", default=-2, ignorable=True)
    topics: tuple[OffsetForLeaderTopic, ...] = field(array(OffsetForLeaderTopic))

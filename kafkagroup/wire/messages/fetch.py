"""Fetch records.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from uuid import UUID

from kafkagroup.wire.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    NO_ID,
    RECORDS,
    STRING,
    UUID_,
    Request,
    array,
    field,
    message,
    struct,
)


@struct
class EpochEndOffset:
    epoch: int = field(INT32, "12+", default=-1)
    end_offset: int = field(INT64, "12+", default=-1)


@struct
class LeaderIdAndEpoch:
    leader_id: int = field(INT32, "12+", default=-1)
    leader_epoch: int = field(INT32, "12+", default=-1)


@struct
class SnapshotId:
    end_offset: int = field(INT64, default=-1)
    epoch: int = field(INT32, default=-1)


@struct
class AbortedTransaction:
    producer_id: int = field(INT64)
    first_offset: int = field(INT64)


@struct
class PartitionData:
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    high_watermark: int = field(INT64)
    last_stable_offset: int = field(INT64, default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset = field(
        EpochEndOffset, "12+", default=EpochEndOffset(), tag=0, tagged="12+"
    )
    current_leader: LeaderIdAndEpoch = field(
        LeaderIdAndEpoch, "12+", default=LeaderIdAndEpoch(), tag=1, tagged="12+"
    )
    snapshot_id: SnapshotId = field(SnapshotId, "12+", default=SnapshotId(), tag=2, tagged="12+")
    aborted_transactions: tuple[AbortedTransaction, ...] | None = field(
        array(AbortedTransaction), default=(), nullable="4+", ignorable=True
    )
    preferred_read_replica: int = field(INT32, "11+", default=-1)
    records: bytes | memoryview | None = field(RECORDS, nullable="0+")


@struct
class FetchableTopicResponse:
    topic: str = field(STRING, "0-12", default="", ignorable=True)
    topic_id: UUID = field(UUID_, "13+", default=NO_ID, ignorable=True)
    partitions: tuple[PartitionData, ...] = field(array(PartitionData))


@struct
class NodeEndpoint:
    node_id: int = field(INT32, "16+", default=0)
    host: str = field(STRING, "16+", default="")
    port: int = field(INT32, "16+", default=0)
    rack: str | None = field(STRING, "16+", default=None, nullable="16+")


@message(1, "4-18", flexible="12+")
class FetchResponse:
    throttle_time_ms: int = field(INT32, default=0, ignorable=True)
    error_code: int = field(INT16, "7+", default=0, ignorable=True)
    session_id: int = field(INT32, "7+", default=0)
    responses: tuple[FetchableTopicResponse, ...] = field(array(FetchableTopicResponse))
    node_endpoints: tuple[NodeEndpoint, ...] = field(
        array(NodeEndpoint), "16+", default=(), tag=0, tagged="16+"
    )


@struct
class ReplicaState:
    replica_id: int = field(INT32, "15+", default=-1)
    replica_epoch: int = field(INT64, "15+", default=-1)


@struct
class FetchPartition:
    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, "9+", default=-1, ignorable=True)
    fetch_offset: int = field(INT64)
    last_fetched_epoch: int = field(INT32, "12+", default=-1)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    partition_max_bytes: int = field(INT32)
    replica_directory_id: UUID = field(
        UUID_, "17+", default=NO_ID, tag=0, tagged="17+", ignorable=True
    )
    high_watermark: int = field(
        INT64, "18+", default=2**63 - 1, tag=1, tagged="18+", ignorable=True
    )


@struct
class FetchTopic:
    topic: str = field(STRING, "0-12", default="", ignorable=True)
    topic_id: UUID = field(UUID_, "13+", default=NO_ID, ignorable=True)
    partitions: tuple[FetchPartition, ...] = field(array(FetchPartition))


@struct
class ForgottenTopic:
    topic: str = field(STRING, "7-12", default="", ignorable=True)
    topic_id: UUID = field(UUID_, "13+", default=NO_ID, ignorable=True)
    partitions: tuple[int, ...] = field(array(INT32), "7+", default=())


@message(1, "4-18", flexible="12+")
class FetchRequest(Request[FetchResponse]):
    """Not a `LookUp`: a Fetch changes its fetch session (KIP-227)."""

    response = FetchResponse

    cluster_id: str | None = field(
        STRING, "12+", default=None, nullable="12+", tag=0, tagged="12+", ignorable=True
    )
    replica_id: int = field(INT32, "0-14", default=-1)
    replica_state: ReplicaState = field(
        ReplicaState, "15+", default=ReplicaState(), tag=1, tagged="15+"
    )
    max_wait_ms: int = field(INT32)
    min_bytes: int = field(INT32)
    max_bytes: int = field(INT32, default=2**31 - 1, ignorable=True)
    isolation_level: int = field(INT8, default=0, ignorable=True)
    session_id: int = field(INT32, "7+", default=0, ignorable=True)
    session_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    topics: tuple[FetchTopic, ...] = field(array(FetchTopic))
    forgotten_topics_data: tuple[ForgottenTopic, ...] = field(
        array(ForgottenTopic), "7+", default=()
    )
    rack_id: str = field(STRING, "11+", default="", ignorable=True)

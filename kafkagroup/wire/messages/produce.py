"""Produce records.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from uuid import UUID

from kafkagroup.wire.schema import (
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
class BatchIndexAndErrorMessage:
    batch_index: int = field(INT32, "8+", default=0)
    batch_index_error_message: str | None = field(STRING, "8+", default=None, nullable="8+")


@struct
class LeaderIdAndEpoch:
    leader_id: int = field(INT32, "10+", default=-1)
    leader_epoch: int = field(INT32, "10+", default=-1)


@struct
class PartitionProduceResponse:
    index: int = field(INT32)
    error_code: int = field(INT16)
    base_offset: int = field(INT64)
    log_append_time_ms: int = field(INT64, default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = field(
        array(BatchIndexAndErrorMessage), "8+", default=(), ignorable=True
    )
    error_message: str | None = field(STRING, "8+", default=None, nullable="8+", ignorable=True)
    current_leader: LeaderIdAndEpoch = field(
        LeaderIdAndEpoch, "10+", default=LeaderIdAndEpoch(), tag=0, tagged="10+"
    )


@struct
class TopicProduceResponse:
    name: str = field(STRING, "0-12", default="", ignorable=True)
    topic_id: UUID = field(UUID_, "13+", default=NO_ID, ignorable=True)
    partition_responses: tuple[PartitionProduceResponse, ...] = field(
        array(PartitionProduceResponse)
    )


@struct
class NodeEndpoint:
    node_id: int = field(INT32, "10+", default=0)
    host: str = field(STRING, "10+", default="")
    port: int = field(INT32, "10+", default=0)
    rack: str | None = field(STRING, "10+", default=None, nullable="10+")


@message(0, "3-13", flexible="9+")
class ProduceResponse:
    responses: tuple[TopicProduceResponse, ...] = field(array(TopicProduceResponse))
    throttle_time_ms: int = field(INT32, default=0, ignorable=True)
    node_endpoints: tuple[NodeEndpoint, ...] = field(
        array(NodeEndpoint), "10+", default=(), tag=0, tagged="10+"
    )


@struct
class PartitionProduceData:
    index: int = field(INT32)
    records: bytes | memoryview | None = field(RECORDS, nullable="0+")


@struct
class TopicProduceData:
    name: str = field(STRING, "0-12", default="", ignorable=True)
    topic_id: UUID = field(UUID_, "13+", default=NO_ID, ignorable=True)
    partition_data: tuple[PartitionProduceData, ...] = field(array(PartitionProduceData))


@message(0, "3-13", flexible="9+")
class ProduceRequest(Request[ProduceResponse]):
    response = ProduceResponse

    transactional_id: str | None = field(STRING, default=None, nullable="3+")
    acks: int = field(INT16)
    timeout_ms: int = field(INT32)
    topic_data: tuple[TopicProduceData, ...] = field(array(TopicProduceData))

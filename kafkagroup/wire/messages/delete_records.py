"""Delete the records of a partition below an offset (KIP-107).

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from kafkagroup.wire.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    Request,
    array,
    field,
    message,
    struct,
)

__all__ = [
    "DeleteRecordsPartition",
    "DeleteRecordsPartitionResult",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteRecordsTopic",
    "DeleteRecordsTopicResult",
]


@struct
class DeleteRecordsPartitionResult:
    partition_index: int = field(INT32)
    low_watermark: int = field(INT64)
    error_code: int = field(INT16)


@struct
class DeleteRecordsTopicResult:
    name: str = field(STRING)
    partitions: tuple[DeleteRecordsPartitionResult, ...] = field(
        array(DeleteRecordsPartitionResult)
    )


@message(21, "0-2", flexible="2+")
class DeleteRecordsResponse:
    throttle_time_ms: int = field(INT32)
    topics: tuple[DeleteRecordsTopicResult, ...] = field(array(DeleteRecordsTopicResult))


@struct
class DeleteRecordsPartition:
    partition_index: int = field(INT32)
    offset: int = field(INT64)


@struct
class DeleteRecordsTopic:
    name: str = field(STRING)
    partitions: tuple[DeleteRecordsPartition, ...] = field(array(DeleteRecordsPartition))


@message(21, "0-2", flexible="2+")
class DeleteRecordsRequest(Request[DeleteRecordsResponse]):
    response = DeleteRecordsResponse

    topics: tuple[DeleteRecordsTopic, ...] = field(array(DeleteRecordsTopic))
    timeout_ms: int = field(INT32)

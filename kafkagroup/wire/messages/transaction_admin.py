"""Describe transactions and producers, and write the markers that end transactions.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from kafkagroup.wire.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    LookUp,
    Request,
    array,
    field,
    message,
    struct,
)


@struct
class TopicData:
    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@struct
class TransactionState:
    error_code: int = field(INT16)
    transactional_id: str = field(STRING)
    transaction_state: str = field(STRING)
    transaction_timeout_ms: int = field(INT32)
    transaction_start_time_ms: int = field(INT64)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    topics: tuple[TopicData, ...] = field(array(TopicData))


@message(65, "0", flexible="0+")
class DescribeTransactionsResponse:
    throttle_time_ms: int = field(INT32)
    transaction_states: tuple[TransactionState, ...] = field(array(TransactionState))


@message(65, "0", flexible="0+")
class DescribeTransactionsRequest(LookUp[DescribeTransactionsResponse]):
    response = DescribeTransactionsResponse

    transactional_ids: tuple[str, ...] = field(array(STRING))


@struct
class ProducerState:
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT32)
    last_sequence: int = field(INT32, default=-1)
    last_timestamp: int = field(INT64, default=-1)
    coordinator_epoch: int = field(INT32)
    current_txn_start_offset: int = field(INT64, default=-1)


@struct
class PartitionResponse:
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, default=None, nullable="0+")
    active_producers: tuple[ProducerState, ...] = field(array(ProducerState))


@struct
class TopicResponse:
    name: str = field(STRING)
    partitions: tuple[PartitionResponse, ...] = field(array(PartitionResponse))


@message(61, "0", flexible="0+")
class DescribeProducersResponse:
    throttle_time_ms: int = field(INT32)
    topics: tuple[TopicResponse, ...] = field(array(TopicResponse))


@struct
class TopicRequest:
    name: str = field(STRING)
    partition_indexes: tuple[int, ...] = field(array(INT32))


@message(61, "0", flexible="0+")
class DescribeProducersRequest(LookUp[DescribeProducersResponse]):
    response = DescribeProducersResponse

    topics: tuple[TopicRequest, ...] = field(array(TopicRequest))


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


@struct
class WritableTxnMarkerTopicResult:
    name: str = field(STRING)
    partitions: tuple[WritableTxnMarkerPartitionResult, ...] = field(
        array(WritableTxnMarkerPartitionResult)
    )


@struct
class WritableTxnMarkerResult:
    producer_id: int = field(INT64)
    topics: tuple[WritableTxnMarkerTopicResult, ...] = field(array(WritableTxnMarkerTopicResult))


@message(27, "1-2", flexible="1+")
class WriteTxnMarkersResponse:
    markers: tuple[WritableTxnMarkerResult, ...] = field(array(WritableTxnMarkerResult))


@struct
class WritableTxnMarkerTopic:
    name: str = field(STRING)
    partition_indexes: tuple[int, ...] = field(array(INT32))


@struct
class WritableTxnMarker:
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    transaction_result: bool = field(BOOL)
    topics: tuple[WritableTxnMarkerTopic, ...] = field(array(WritableTxnMarkerTopic))
    coordinator_epoch: int = field(INT32)
    transaction_version: int = field(INT8, "2+", default=0, ignorable=True)


@message(27, "1-2", flexible="1+")
class WriteTxnMarkersRequest(Request[WriteTxnMarkersResponse]):
    response = WriteTxnMarkersResponse

    markers: tuple[WritableTxnMarker, ...] = field(array(WritableTxnMarker))

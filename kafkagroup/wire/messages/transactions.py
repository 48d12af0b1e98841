"""Producer ids, and transactions at their coordinator.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from kafkagroup.wire.schema import (
    BOOL,
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


@message(22, "0-6", flexible="2+")
class InitProducerIdResponse:
    throttle_time_ms: int = field(INT32, ignorable=True)
    error_code: int = field(INT16)
    producer_id: int = field(INT64, default=-1)
    producer_epoch: int = field(INT16)
    ongoing_txn_producer_id: int = field(INT64, "6+", default=-1)
    ongoing_txn_producer_epoch: int = field(INT16, "6+", default=-1)


@message(22, "0-6", flexible="2+")
class InitProducerIdRequest(Request[InitProducerIdResponse]):
    response = InitProducerIdResponse

    transactional_id: str | None = field(STRING, nullable="0+")
    transaction_timeout_ms: int = field(INT32)
    producer_id: int = field(INT64, "3+", default=-1)
    producer_epoch: int = field(INT16, "3+", default=-1)
    enable2_pc: bool = field(BOOL, "6+", default=False)
    keep_prepared_txn: bool = field(BOOL, "6+", default=False)


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: int = field(INT32)
    partition_error_code: int = field(INT16)


@struct
class AddPartitionsToTxnTopicResult:
    name: str = field(STRING)
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = field(
        array(AddPartitionsToTxnPartitionResult)
    )


@struct
class AddPartitionsToTxnResult:
    transactional_id: str = field(STRING, "4+", default="")
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...] = field(
        array(AddPartitionsToTxnTopicResult), "4+", default=()
    )


@message(24, "0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "4+", default=0, ignorable=True)
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = field(
        array(AddPartitionsToTxnResult), "4+", default=()
    )
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = field(
        array(AddPartitionsToTxnTopicResult), "0-3", default=()
    )


@struct
class AddPartitionsToTxnTopic:
    name: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: str = field(STRING, "4+", default="")
    producer_id: int = field(INT64, "4+", default=0)
    producer_epoch: int = field(INT16, "4+", default=0)
    verify_only: bool = field(BOOL, "4+", default=False)
    topics: tuple[AddPartitionsToTxnTopic, ...] = field(
        array(AddPartitionsToTxnTopic), "4+", default=()
    )


@message(24, "0-5", flexible="3+")
class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnResponse]):
    response = AddPartitionsToTxnResponse

    transactions: tuple[AddPartitionsToTxnTransaction, ...] = field(
        array(AddPartitionsToTxnTransaction), "4+", default=()
    )
    v3_and_below_transactional_id: str = field(STRING, "0-3", default="")
    v3_and_below_producer_id: int = field(INT64, "0-3", default=0)
    v3_and_below_producer_epoch: int = field(INT16, "0-3", default=0)
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = field(
        array(AddPartitionsToTxnTopic), "0-3", default=()
    )


@message(25, "0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)


@message(25, "0-4", flexible="3+")
class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse]):
    response = AddOffsetsToTxnResponse

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    group_id: str = field(STRING)


@message(26, "0-5", flexible="3+")
class EndTxnResponse:
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    producer_id: int = field(INT64, "5+", default=-1, ignorable=True)
    producer_epoch: int = field(INT16, "5+", default=-1, ignorable=True)


@message(26, "0-5", flexible="3+")
class EndTxnRequest(Request[EndTxnResponse]):
    response = EndTxnResponse

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    committed: bool = field(BOOL)


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


@struct
class TxnOffsetCommitResponseTopic:
    name: str = field(STRING)
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = field(
        array(TxnOffsetCommitResponsePartition)
    )


@message(28, "0-5", flexible="3+")
class TxnOffsetCommitResponse:
    throttle_time_ms: int = field(INT32)
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = field(array(TxnOffsetCommitResponseTopic))


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, "2+", default=-1, ignorable=True)
    committed_metadata: str | None = field(STRING, nullable="0+")


@struct
class TxnOffsetCommitRequestTopic:
    name: str = field(STRING)
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = field(
        array(TxnOffsetCommitRequestPartition)
    )


@message(28, "0-5", flexible="3+")
class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse]):
    response = TxnOffsetCommitResponse

    transactional_id: str = field(STRING)
    group_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    generation_id: int = field(INT32, "3+", default=-1)
    member_id: str = field(STRING, "3+", default="")
    group_instance_id: str | None = field(STRING, "3+", default=None, nullable="3+")
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = field(array(TxnOffsetCommitRequestTopic))

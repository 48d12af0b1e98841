"""The list of a coordinator's transactional ids.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from kafkagroup.wire.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    LookUp,
    array,
    field,
    message,
    struct,
)


@struct
class TransactionState:
    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    transaction_state: str = field(STRING)


@message(66, "0-2", flexible="0+")
class ListTransactionsResponse:
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    unknown_state_filters: tuple[str, ...] = field(array(STRING))
    transaction_states: tuple[TransactionState, ...] = field(array(TransactionState))


@message(66, "0-2", flexible="0+")
class ListTransactionsRequest(LookUp[ListTransactionsResponse]):
    response = ListTransactionsResponse

    state_filters: tuple[str, ...] = field(array(STRING))
    producer_id_filters: tuple[int, ...] = field(array(INT64))
    duration_filter: int = field(INT64, "1+", default=-1)
    transactional_id_pattern: str | None = field(STRING, "2+", default=None, nullable="2+")

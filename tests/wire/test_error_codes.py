"""What a client does about each error code."""

from __future__ import annotations

from collections.abc import Mapping

from kafkagroup.errors import ErrorCode
from kafkagroup.wire.error_codes import (
    ADD_OFFSETS_ACTIONS,
    ADD_PARTITIONS_ACTIONS,
    END_TXN_ACTIONS,
    FAILED_RECORD_ACTIONS,
    INIT_PRODUCER_ID_ACTIONS,
    TXN_OFFSET_COMMIT_ACTIONS,
    FetchAction,
    TransactionAction,
    fetch_action,
)

E = ErrorCode


def test_every_fetch_error_has_a_reaction_and_unknown_errors_are_raised() -> None:
    rows: Mapping[FetchAction, set[ErrorCode]] = {
        FetchAction.REFRESH: {
            E.NOT_LEADER_OR_FOLLOWER,
            E.REPLICA_NOT_AVAILABLE,
            E.KAFKA_STORAGE_ERROR,
            E.FENCED_LEADER_EPOCH,
            E.UNKNOWN_LEADER_EPOCH,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.UNKNOWN_TOPIC_ID,
            E.INCONSISTENT_TOPIC_ID,
            E.LEADER_NOT_AVAILABLE,
        },
        FetchAction.RETRY: {
            E.OFFSET_NOT_AVAILABLE,
            E.REQUEST_TIMED_OUT,
            E.UNKNOWN_SERVER_ERROR,
            E.FETCH_SESSION_ID_NOT_FOUND,
            E.INVALID_FETCH_SESSION_EPOCH,
            E.FETCH_SESSION_TOPIC_ID_ERROR,
        },
        FetchAction.RESET: {E.OFFSET_OUT_OF_RANGE},
    }
    expected = {code: row for row, codes in rows.items() for code in codes}
    assert {code: fetch_action(code) for code in ErrorCode} == {
        code: expected.get(code, FetchAction.RAISE) for code in ErrorCode
    }
    assert fetch_action(999) is FetchAction.RAISE


def test_every_request_of_a_transaction_has_its_reactions() -> None:
    action = TransactionAction
    common = {
        E.CONCURRENT_TRANSACTIONS: action.RETRY,
        E.COORDINATOR_LOAD_IN_PROGRESS: action.RETRY,
        E.COORDINATOR_NOT_AVAILABLE: action.LOOK_UP,
        E.NOT_COORDINATOR: action.LOOK_UP,
        E.REQUEST_TIMED_OUT: action.LOOK_UP,
        E.TRANSACTION_ABORTABLE: action.ABORT,
        E.INVALID_PRODUCER_EPOCH: action.FENCED,
        E.PRODUCER_FENCED: action.FENCED,
        E.INVALID_PRODUCER_ID_MAPPING: action.FATAL,
        E.INVALID_TXN_STATE: action.FATAL,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: action.FATAL,
        E.UNKNOWN_PRODUCER_ID: action.FATAL,
    }
    unknown = {E.UNKNOWN_TOPIC_OR_PARTITION: action.RETRY}
    assert common | {E.TRANSACTION_ABORTABLE: action.RETRY} == INIT_PRODUCER_ID_ACTIONS
    change = common | {E.UNKNOWN_SERVER_ERROR: action.LOOK_UP}
    assert change | unknown | {E.OPERATION_NOT_ATTEMPTED: action.RETRY} == ADD_PARTITIONS_ACTIONS
    assert change == ADD_OFFSETS_ACTIONS == END_TXN_ACTIONS
    assert common | unknown | {E.INVALID_TXN_STATE: action.ABORT} == TXN_OFFSET_COMMIT_ACTIONS
    assert {
        E.PRODUCER_FENCED: action.FENCED,
        E.CLUSTER_AUTHORIZATION_FAILED: action.FATAL,
        E.INVALID_PRODUCER_ID_MAPPING: action.FATAL,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: action.FATAL,
    } == FAILED_RECORD_ACTIONS

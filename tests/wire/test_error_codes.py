"""What a client does about each error code."""

from __future__ import annotations

from collections.abc import Mapping

from kafkagroup.errors import ErrorCode
from kafkagroup.wire.error_codes import FetchAction, fetch_action

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

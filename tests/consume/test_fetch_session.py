"""Fetch sessions as brokers see them: each request is compared as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest

from kafkagroup.consume.fetch_session import FetchSession, SessionRequest
from kafkagroup.errors import ErrorCode
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import FetchPartition
from kafkagroup.wire.schema import NO_ID

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
T_ID, U_ID, NEW_ID = UUID(int=1), UUID(int=2), UUID(int=3)
IDS = {"t": T_ID, "u": U_ID, "other": UUID(int=9)}


def at(partition: int, offset: int) -> FetchPartition:
    return FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=100)


BOTH = {T0: at(0, 5), U0: at(0, 7)}
BOTH_IDS = {"t": T_ID, "u": U_ID}
FULL = SessionRequest(0, 0, BOTH, (), BOTH_IDS, uses_topic_ids=True)


def begun(
    wanted: Mapping[TopicPartition, FetchPartition] = BOTH, ids: Mapping[str, UUID] = IDS
) -> FetchSession:
    """Return session 77 after its first response."""
    session = FetchSession()
    session.request(wanted, ids)
    session.on_response(77, 0)
    return session


def full_after(session_id: int) -> SessionRequest:
    return SessionRequest(session_id, 0, BOTH, (), BOTH_IDS, uses_topic_ids=True)


def test_the_first_request_lists_every_partition() -> None:
    assert FetchSession().request(BOTH, IDS) == FULL
    assert FULL.is_full


def test_without_changes_no_partition_is_listed() -> None:
    session = begun()
    assert session.request(BOTH, IDS) == SessionRequest(77, 1, {}, (), {}, uses_topic_ids=True)
    session.on_response(77, 0)
    idle = session.request(BOTH, IDS)
    assert idle == SessionRequest(77, 2, {}, (), {}, uses_topic_ids=True)
    assert not idle.is_full


def test_only_changed_partitions_are_listed() -> None:
    session = begun()
    moved = {**BOTH, T0: at(0, 6)}
    assert session.request(moved, IDS) == SessionRequest(
        77, 1, {T0: at(0, 6)}, (), {"t": T_ID}, uses_topic_ids=True
    )
    session.on_response(77, 0)
    added = {**moved, T1: at(1, 0)}
    assert session.request(added, IDS) == SessionRequest(
        77, 2, {T1: at(1, 0)}, (), {"t": T_ID}, uses_topic_ids=True
    )


def test_unwanted_partitions_leave_the_session_and_can_return() -> None:
    session = begun()
    # By the id that it had: metadata no longer knows the topic.
    assert session.request({T0: at(0, 5)}, {"t": T_ID}) == SessionRequest(
        77, 1, {}, (U0,), {"u": U_ID}, uses_topic_ids=True
    )
    session.on_response(77, 0)
    assert session.request(BOTH, IDS) == SessionRequest(
        77, 2, {U0: at(0, 7)}, (), {"u": U_ID}, uses_topic_ids=True
    )


def test_without_sessions_every_request_lists_all_partitions() -> None:
    session = FetchSession()
    for _ in range(3):
        assert session.request(BOTH, IDS) == FULL
        session.on_response(0, 0)


@pytest.mark.parametrize(
    ("code", "session_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        # The broker has that session still: named once more, it is closed.
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 77),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 77),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 77),
    ],
)
def test_after_an_error_all_partitions_are_listed_again(code: ErrorCode, session_id: int) -> None:
    session = begun()
    session.request(BOTH, IDS)
    session.on_response(0, code)
    assert session.request(BOTH, IDS) == full_after(session_id)


def test_a_session_closed_by_the_broker_is_replaced() -> None:
    session = begun()
    session.request(BOTH, IDS)
    session.on_response(0, 0)
    assert session.request(BOTH, IDS) == FULL


def test_a_response_of_another_session_ends_this_one() -> None:
    session = begun()
    session.request(BOTH, IDS)
    session.on_response(78, 0)
    assert session.request(BOTH, IDS) == FULL


def test_after_a_lost_response_all_partitions_are_listed_again() -> None:
    """The broker may have applied the change or not: without a full request, a partition might be
    missing from the session."""
    session = begun()
    session.request({**BOTH, T0: at(0, 6)}, IDS)
    session.reset()
    assert session.request(BOTH, IDS) == full_after(77)
    session.on_response(80, 0)
    assert session.request(BOTH, IDS) == SessionRequest(80, 1, {}, (), {}, uses_topic_ids=True)


def test_the_epoch_wraps_to_1() -> None:
    """0 would start a new session."""
    session = begun()
    session._epoch = 2**31 - 1
    assert session.request(BOTH, IDS).epoch == 2**31 - 1
    session.on_response(77, 0)
    assert session.request(BOTH, IDS) == SessionRequest(77, 1, {}, (), {}, uses_topic_ids=True)


def test_a_session_by_name_stays_by_name_in_empty_requests() -> None:
    """An empty request has no topic with a missing id."""
    ids = {"t": T_ID}
    session = begun(ids=ids)
    assert session.request(BOTH, ids) == SessionRequest(77, 1, {}, (), {}, uses_topic_ids=False)


def test_a_topic_without_an_id_starts_a_session_by_name() -> None:
    session = begun({T0: at(0, 5)})
    assert session.request(BOTH, {"t": T_ID}) == SessionRequest(
        77, 0, BOTH, (), {"t": T_ID, "u": NO_ID}, uses_topic_ids=False
    )
    session.on_response(80, 0)
    assert session.request({T0: at(0, 5)}, IDS) == SessionRequest(
        80, 0, {T0: at(0, 5)}, (), {"t": T_ID}, uses_topic_ids=True
    )


def test_a_recreated_topic_starts_a_new_session() -> None:
    session = begun()
    assert session.request(BOTH, {**IDS, "u": NEW_ID}) == SessionRequest(
        77, 0, BOTH, (), {"t": T_ID, "u": NEW_ID}, uses_topic_ids=True
    )


def test_session_errors() -> None:
    assert [code for code in ErrorCode if FetchSession.is_session_error(code)] == [70, 71, 106]

"""The classic group protocol as a function: `step(member, event) == (member, effects)`.

Times are seconds on a clock that only events advance. Backoff is 1/8 s at jitter 0.5, so every sum
of times is exact.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from members import checked, evolve

from kafkagroup._backoff import backoff, backoff_within
from kafkagroup.errors import (
    BrokerError,
    ConnectionLostError,
    DecodeError,
    ErrorCode,
    FencedError,
    JoinFailedError,
    LocalProtocolError,
    RequestTimeoutError,
    UnsupportedVersionError,
    broker_error,
)
from kafkagroup.member import classic
from kafkagroup.member.classic_state import HEARTBEATING, MOVES, PURGATORY, Member, Phase
from kafkagroup.member.config import MemberConfig
from kafkagroup.member.vocabulary import (
    Assign,
    AssignFailed,
    ClassicEffect,
    ClassicEvent,
    Compute,
    Computed,
    ComputeFailed,
    Coordinator,
    CoordinatorInvalidated,
    Fail,
    FindCoordinator,
    GenerationInfo,
    Leave,
    Leaving,
    Lose,
    RejoinRequested,
    Replied,
    ReportError,
    Revoke,
    Revoked,
    Route,
    Send,
    SendFailed,
    Started,
    WakeAt,
    Woke,
)
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

E = ErrorCode
NODE = Coordinator(1, "one", 9092)
OTHER = Coordinator(2, "two", 9092)
LOST = ConnectionLostError("reset by peer")
LATE = RequestTimeoutError("late")
CONFIG = MemberConfig(
    group_id="g",
    protocol_type="consumer",
    session_timeout=10.0,
    rebalance_timeout=60.0,
    heartbeat_interval=3.0,
    settling_interval=3.0,
    request_timeout=30.0,
    retry_backoff=0.125,
    retry_backoff_max=1.0,
)
JOIN_TIMEOUT = 65.0

step = checked("classic", classic.step)


class Like(Exception):
    """Equals any exception of this type with this message."""

    def __init__(self, kind: type[Exception], words: str) -> None:
        super().__init__(kind, words)

    def __eq__(self, other: object) -> bool:
        return (type(other), str(other)) == self.args

    __hash__ = None  # type: ignore[assignment]


# ---------------------------------------------------------------- a member in each phase, at 10.0

IDLE = Member(config=CONFIG, protocols=(("range", b"r"), ("roundrobin", b"rr")))
FINDING = evolve(IDLE, phase=Phase.UNJOINED, lookup_in_flight=1, last_token=1)
JOINING = evolve(
    IDLE, phase=Phase.JOINING, coordinator=NODE, pending=2, last_token=2, join_sent_at=10.0
)
REJOINING = evolve(JOINING, member_id="m1", pending=3, last_token=3, acknowledged_at=10.0)
"""Has a lease of heartbeats in an earlier generation."""
MEMBERS = {"m1": b"r", "m2": b"s"}
COMPUTING = evolve(
    REJOINING,
    phase=Phase.COMPUTING,
    generation_id=5,
    generation_token=3,
    protocol_name="range",
    leader_id="m1",
    members=MEMBERS,
    joined_at=10.0,
    next_heartbeat_at=13.0,
    stable_at=10.0,
    joined_after=10.0,
    is_unsynced=True,
    session_ends_at=20.0,
    pending=4,
    last_token=4,
)
FOLLOWING = evolve(COMPUTING, phase=Phase.SYNCING, leader_id="m2", members={})
SYNCING = evolve(COMPUTING, phase=Phase.SYNCING, pending=5, last_token=5)
SYNCED = evolve(
    SYNCING,
    phase=Phase.SYNCED,
    acknowledged_at=float("-inf"),
    assignment=b"mine",
    is_unsynced=False,
    pending=None,
    heartbeat_in_flight=6,
    heartbeat_sent_at=10.0,
    last_token=6,
)
"""Has no lease: the heartbeat in flight is its first."""
STABLE = evolve(
    SYNCING,
    phase=Phase.STABLE,
    is_unsynced=False,
    pending=None,
    is_assigned=True,
    assigned_generation=5,
    first_heartbeat_delay=3.0,
)
HEARTBEAT_SENT = evolve(
    STABLE, heartbeat_in_flight=6, heartbeat_sent_at=13.0, next_heartbeat_at=16.0, last_token=6
)
REVOKING = evolve(STABLE, phase=Phase.REVOKING, pending=6, last_token=6, reason="changed")
DRAINING = evolve(
    REVOKING, heartbeat_in_flight=7, heartbeat_sent_at=13.0, next_heartbeat_at=16.0, last_token=7
)
LOSING = evolve(
    STABLE,
    phase=Phase.LOSING,
    pending=6,
    last_token=6,
    is_assigned=False,
    reason="gone",
)
GOING = evolve(
    STABLE,
    phase=Phase.LEAVING,
    pending=6,
    last_token=6,
    is_assigned=False,
    leaving=Leaving(now=10.0, reason="closed"),
    leave_by=20.0,
)


def find(token: int) -> FindCoordinator:
    return FindCoordinator(token=token, timeout=30.0)


def send(token: int, request: Any, timeout: float, route: Route = Route.COORDINATOR) -> Send:
    return Send(token=token, request=request, route=route, coordinator=NODE, timeout=timeout)


def join(token: int, member_id: str = "", reason: str | None = None) -> Send:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=(
            JoinGroupRequestProtocol(name="range", metadata=b"r"),
            JoinGroupRequestProtocol(name="roundrobin", metadata=b"rr"),
        ),
        reason=reason,
    )
    return send(token, request, JOIN_TIMEOUT if member_id else CONFIG.request_timeout)


def sync(token: int, **assignments: bytes) -> Send:
    request = SyncGroupRequest(
        group_id="g",
        generation_id=5,
        member_id="m1",
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in assignments.items()
        ),
    )
    return send(token, request, JOIN_TIMEOUT)


def send_heartbeat(token: int, left: float, *, timed_out: bool = False) -> Send:
    """The heartbeat with `left` seconds until the session ends. An attempt has a third of them, and
    one after a timeout has all."""
    timeout = max(left * (1 if timed_out else 1 / 3), CONFIG.heartbeat_interval)
    request = HeartbeatRequest(
        group_id="g", generation_id=5, member_id="m1", group_instance_id=None
    )
    return send(token, request, timeout)


def leave(token: int, reason: str, route: Route = Route.COORDINATOR, timeout: float = 5.0) -> Send:
    """Return the effect of a member that has 10 s left for leaving."""
    identity = MemberIdentity(member_id="m1", reason=reason)
    return send(token, LeaveGroupRequest(group_id="g", members=(identity,)), timeout, route)


def leaving_for(error: Exception, now: float = 10.0, *, leave_group: bool = True) -> Leaving:
    """Return why a member leaves that an error has ended."""
    return Leaving(now=now, reason=str(error), leave_group=leave_group)


def failing(member: Member, error: Exception) -> Member:
    """Return a member that an error has ended at 10.0 and that leaves."""
    token = member.last_token + 1
    return evolve(
        member,
        phase=Phase.LEAVING,
        pending=token,
        last_token=token,
        leaving=leaving_for(error),
        leave_by=20.0,
    )


def found(code: int = 0, node: Coordinator = NODE) -> Coordinator | BrokerError:
    return broker_error(code, operation="DESCRIBE", group="g") if code else node


def joined(code: int = 0, **changes: Any) -> JoinGroupResponse:
    """Return a join response for a follower, by default of generation 5."""
    fields: dict[str, Any] = {
        "error_code": code,
        "generation_id": 5,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": "m2",
        "member_id": "m1",
        "members": (),
    }
    return JoinGroupResponse(**{**fields, **changes})


AS_LEADER: dict[str, Any] = {
    "leader": "m1",
    "members": tuple(JoinGroupResponseMember(member_id=m, metadata=d) for m, d in MEMBERS.items()),
}


def synced(code: int = 0, **changes: Any) -> SyncGroupResponse:
    fields: dict[str, Any] = {
        "error_code": code,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignment": b"mine",
    }
    return SyncGroupResponse(**{**fields, **changes})


def heartbeat_response(code: int = 0) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)


def left(code: int = 0) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)


def left_member(code: int) -> LeaveGroupResponse:
    """Return the response with the code of the one member that the request names."""
    return LeaveGroupResponse(
        error_code=0, members=(MemberResponse(member_id="m1", error_code=code),)
    )


def reply(token: int, message: Any, now: float = 10.0) -> Replied | SendFailed:
    if isinstance(message, Exception):
        return SendFailed(now=now, token=token, error=message)
    return Replied(now=now, token=token, message=message)


def generation(**changes: Any) -> GenerationInfo:
    fields: dict[str, Any] = {
        "generation_id": 5,
        "member_id": "m1",
        "leader_id": "m1",
        "protocol_name": "range",
        "members": MEMBERS,
        "assignment": b"mine",
    }
    return GenerationInfo(**{**fields, **changes})


# ---------------------------------------------------------------- joining


def test_a_started_member_looks_up_its_coordinator() -> None:
    assert step(IDLE, Started(now=10.0)) == (FINDING, (find(1),))


def test_a_member_joins_as_soon_as_the_coordinator_is_known() -> None:
    assert step(FINDING, reply(1, found())) == (
        evolve(JOINING, next_heartbeat_at=10.0),
        (join(2),),
    )


def test_the_join_timeout_is_the_longer_of_request_and_rebalance_timeout() -> None:
    for rebalance, request, expected in ((60.0, 30.0, 65.0), (10.0, 30.0, 30.0)):
        config = evolve(CONFIG, rebalance_timeout=rebalance, request_timeout=request)
        _, effects = step(evolve(FINDING, config=config, member_id="m1"), reply(1, found()))
        assert [effect.timeout for effect in effects if isinstance(effect, Send)] == [expected]


@pytest.mark.parametrize(("instance", "expected"), [(None, 30.0), ("i", 65.0)])
def test_a_join_without_an_id_does_not_wait_for_the_rebalance(
    instance: str | None, expected: float
) -> None:
    """The coordinator answers it with an id at once (KIP-394). A connection that was dead cost a
    new member five minutes."""
    config = evolve(CONFIG, group_instance_id=instance)
    _, effects = step(evolve(FINDING, config=config), reply(1, found()))
    assert [effect.timeout for effect in effects if isinstance(effect, Send)] == [expected]


@pytest.mark.parametrize(
    "code", [E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR]
)
def test_an_unavailable_coordinator_is_looked_up_again(code: int) -> None:
    assert step(FINDING, reply(1, found(code))) == (
        evolve(
            FINDING, lookup_in_flight=None, attempts=1, retry_at=10.125, next_heartbeat_at=10.125
        ),
        (WakeAt(time=10.125),),
    )


def test_a_group_without_permission_is_fatal() -> None:
    assert step(FINDING, reply(1, found(E.GROUP_AUTHORIZATION_FAILED))) == (
        evolve(FINDING, phase=Phase.FAILED, lookup_in_flight=None),
        (Fail(error=broker_error(E.GROUP_AUTHORIZATION_FAILED, operation="DESCRIBE", group="g")),),
    )


def test_nothing_is_sent_during_backoff() -> None:
    waiting = evolve(FINDING, lookup_in_flight=None, attempts=1, retry_at=10.125)
    assert step(waiting, Woke(now=10.0)) == (waiting, (WakeAt(time=10.125),))
    assert step(waiting, Woke(now=10.125)) == (
        evolve(waiting, lookup_in_flight=2, last_token=2),
        (find(2),),
    )


def test_member_id_required_rejoins_at_once_with_the_id() -> None:
    assert step(JOINING, reply(2, joined(E.MEMBER_ID_REQUIRED))) == (
        evolve(REJOINING, member_id_token=2, ownership=JOINING.ownership),
        (join(3, "m1"),),
    )


def test_a_repeated_member_id_required_is_backed_off() -> None:
    assert step(REJOINING, reply(3, joined(E.MEMBER_ID_REQUIRED, member_id="m9"))) == (
        evolve(
            REJOINING,
            phase=Phase.UNJOINED,
            member_id="m9",
            member_id_token=3,
            pending=None,
            attempts=1,
            retry_at=10.125,
            next_heartbeat_at=10.125,
        ),
        (WakeAt(time=10.125),),
    )


def test_member_id_required_without_an_id_is_backed_off() -> None:
    """Otherwise the member would ask for an id again at once, without end, as it once did."""
    assert step(JOINING, reply(2, joined(E.MEMBER_ID_REQUIRED, member_id=""))) == (
        evolve(
            JOINING,
            phase=Phase.UNJOINED,
            pending=None,
            attempts=1,
            retry_at=10.125,
            next_heartbeat_at=10.125,
        ),
        (WakeAt(time=10.125),),
    )


def test_a_follower_syncs_with_an_empty_list() -> None:
    assert step(REJOINING, reply(3, joined())) == (FOLLOWING, (sync(4),))


def test_the_leader_computes_the_assignment() -> None:
    assert step(REJOINING, reply(3, joined(**AS_LEADER))) == (
        COMPUTING,
        (
            Compute(token=4, protocol_name="range", members=MEMBERS, instance_ids={}),
            WakeAt(time=13.0),
        ),
    )


def test_skip_assignment_syncs_with_an_empty_list() -> None:
    assert step(REJOINING, reply(3, joined(skip_assignment=True, **AS_LEADER))) == (
        evolve(COMPUTING, phase=Phase.SYNCING),
        (sync(4),),
    )


def test_the_leader_sends_every_member_its_assignment() -> None:
    event = Computed(now=11.0, token=4, assignments={"m2": b"yours", "m1": b"mine"})
    syncing = evolve(SYNCING, join_sent_at=11.0)
    assert step(COMPUTING, event) == (syncing, (sync(5, m1=b"mine", m2=b"yours"),))


def test_an_assignor_that_raises_is_fatal_and_leaves() -> None:
    error = ZeroDivisionError("no members")
    assert step(COMPUTING, ComputeFailed(now=11.0, token=4, error=error)) == (
        evolve(
            COMPUTING,
            phase=Phase.LEAVING,
            pending=5,
            last_token=5,
            leaving=leaving_for(error, now=11.0),
            leave_by=21.0,
        ),
        (Fail(error=error), leave(5, "no members"), WakeAt(time=21.0)),
    )


def test_an_assignment_begins_a_generation() -> None:
    assert step(SYNCING, reply(5, synced(), now=12.0)) == (
        evolve(STABLE, session_ends_at=22.0),
        (Assign(generation=generation()), WakeAt(time=13.0)),
    )


def test_the_coordinator_that_answers_a_sync_is_not_looked_up() -> None:
    """A heartbeat on another connection had no response, and neither had the look-up after it: the
    member had its assignment, and sent no heartbeat for the rest of its request timeout."""
    searching = evolve(SYNCING, coordinator=None, lookup_in_flight=6, last_token=6)
    assigned = Replied(now=12.0, token=5, message=synced(), sender=NODE)
    stable = evolve(STABLE, session_ends_at=22.0, last_token=6)
    assert step(searching, assigned) == (
        stable,
        (Assign(generation=generation()), WakeAt(time=13.0)),
    )
    assert step(stable, reply(6, found(node=OTHER), now=12.5)) == (stable, (WakeAt(time=13.0),))


def test_a_coordinator_that_was_found_during_the_sync_is_kept() -> None:
    moved = evolve(SYNCING, coordinator=OTHER)
    assigned = Replied(now=12.0, token=5, message=synced(), sender=NODE)
    assert step(moved, assigned)[0] == evolve(STABLE, coordinator=OTHER, session_ends_at=22.0)


def test_responses_without_a_protocol_name_are_accepted() -> None:
    """JoinGroup before v7 and SyncGroup before v5 have no protocol type."""
    assert step(REJOINING, reply(3, joined(protocol_type=None))) == (FOLLOWING, (sync(4),))
    response = synced(protocol_type=None, protocol_name=None)
    assert step(SYNCING, reply(5, response, now=12.0))[0] == evolve(STABLE, session_ends_at=22.0)


def test_a_group_of_another_type_is_refused() -> None:
    error = BrokerError(
        E.INCONSISTENT_GROUP_PROTOCOL, "group 'g' is of type 'connect', not 'consumer'"
    )
    assert step(REJOINING, reply(3, joined(protocol_type="connect"))) == (
        failing(REJOINING, error),
        (Fail(error=error), leave(4, str(error)), WakeAt(time=20.0)),
    )


@pytest.mark.parametrize(
    ("response", "what"),
    [
        (synced(protocol_type="connect"), "'connect'/'range'"),
        (synced(protocol_name="sticky"), "'consumer'/'sticky'"),
    ],
)
def test_an_assignment_of_another_protocol_is_refused(
    response: SyncGroupResponse, what: str
) -> None:
    error = BrokerError(
        E.INCONSISTENT_GROUP_PROTOCOL, f"synced as {what}, joined as 'consumer'/'range'"
    )
    assert step(SYNCING, reply(5, response)) == (
        failing(SYNCING, error),
        (Fail(error=error), leave(6, str(error)), WakeAt(time=20.0)),
    )


def test_an_assignment_without_a_lease_is_applied_once_a_heartbeat_is_acknowledged() -> None:
    """The coordinator answers SyncGroup in a stable group, and JoinGroup when it is repeated,
    without beginning a session: a member whose JoinGroup was answered late delivered records of
    partitions that the coordinator had given to another member."""
    syncing = evolve(SYNCING, acknowledged_at=float("-inf"))
    assert step(syncing, reply(5, synced())) == (
        SYNCED,
        (send_heartbeat(6, 10.0), WakeAt(time=20.0)),
    )
    stable = evolve(
        STABLE,
        heartbeat_sent_at=10.0,
        acknowledged_at=10.0,
        last_token=6,
    )
    assert step(SYNCED, reply(6, heartbeat_response(), now=10.5)) == (
        stable,
        (Assign(generation=generation()), WakeAt(time=13.0)),
    )


def test_a_sync_response_read_late_does_not_extend_the_lease() -> None:
    """The process stalled for an hour while SyncGroup was answered: its session has expired."""
    assert step(SYNCING, reply(5, synced(), now=3610.0)) == (
        evolve(
            SYNCED,
            acknowledged_at=10.0,
            session_ends_at=3620.0,
            heartbeat_sent_at=3610.0,
            next_heartbeat_at=3613.0,
        ),
        (send_heartbeat(6, 10.0), WakeAt(time=3620.0)),
    )


def test_a_heartbeat_response_that_is_read_late_begins_no_lease() -> None:
    late, effects = step(SYNCED, reply(6, heartbeat_response(), now=20.0))
    assert (late.phase, effects) == (Phase.SYNCED, (find(7), WakeAt(time=30.0)))
    again, effects = step(late, reply(7, found(), now=20.5))
    assert (again.heartbeat_in_flight, effects[0]) == (8, send_heartbeat(8, 9.5))
    assert step(again, reply(8, heartbeat_response(), now=21.0))[0].phase is Phase.STABLE


def test_a_rebalance_before_the_assignment_has_a_lease_rejoins() -> None:
    after, effects = step(SYNCED, reply(6, heartbeat_response(E.REBALANCE_IN_PROGRESS), now=10.5))
    reason = "the group rebalanced before the assignment had a lease"
    assert effects == (join(7, "m1", reason),)
    assert (after.phase, after.ownership.assign().lease_expires_at) == (Phase.JOINING, 20.0)


def test_an_unknown_member_whose_assignment_has_no_lease_joins_again_after_a_backoff() -> None:
    after, effects = step(SYNCED, reply(6, heartbeat_response(E.UNKNOWN_MEMBER_ID), now=10.5))
    assert (after.phase, after.member_id, effects) == (
        Phase.UNJOINED,
        "",
        (WakeAt(time=10.625),),
    )


@pytest.mark.parametrize(
    ("event", "timed_out"),
    [
        (SendFailed(now=10.0, token=6, error=LOST), False),
        (SendFailed(now=10.0, token=6, error=LATE), True),
        (reply(6, heartbeat_response(E.NOT_COORDINATOR)), False),
        (reply(6, heartbeat_response(E.COORDINATOR_LOAD_IN_PROGRESS)), False),
    ],
)
def test_a_heartbeat_without_a_lease_is_retried_after_a_backoff(
    event: ClassicEvent, timed_out: bool
) -> None:
    """After any failure the heartbeat had all that was left of the session: one that hung while it
    connected to the next coordinator left no time for another connection."""
    waiting, _ = step(SYNCED, event)
    assert (waiting.phase, waiting.heartbeat_in_flight) == (Phase.SYNCED, None)
    again, effects = step(evolve(waiting, coordinator=NODE), Woke(now=10.125))
    assert again.heartbeat_in_flight == 7
    assert effects[0] == send_heartbeat(7, 9.875, timed_out=timed_out)


def test_a_rejoin_is_requested_before_the_assignment_has_a_lease() -> None:
    """The application takes the assignment, and releases it at once."""
    waiting, effects = step(SYNCED, RejoinRequested(now=10.0, reason="changed"))
    assert (waiting, effects) == (
        evolve(SYNCED, must_rejoin=True, reason="changed"),
        (WakeAt(time=20.0),),
    )
    after, effects = step(waiting, reply(6, heartbeat_response()))
    assert after.phase is Phase.REVOKING
    assert effects[:2] == (Assign(generation=generation()), Revoke(token=7, deadline=55.0))


def test_a_member_that_closes_before_its_assignment_has_a_lease_leaves() -> None:
    assert step(SYNCED, CLOSED)[1] == (leave(7, "closed"), WakeAt(time=20.0))


# ---------------------------------------------------------------- heartbeats


def test_heartbeats_start_after_a_successful_join_before_sync() -> None:
    member, effects = step(COMPUTING, Woke(now=13.0))
    assert (member, effects) == (
        evolve(
            COMPUTING,
            heartbeat_in_flight=5,
            heartbeat_sent_at=13.0,
            next_heartbeat_at=16.0,
            last_token=5,
        ),
        (send_heartbeat(5, 7.0), WakeAt(time=20.0)),
    )
    # A rebalance is ignored unless stable: the SyncGroup response will report it. The lease is not
    # extended: a broker before 2.7 answers so without beginning a session.
    answered = evolve(member, heartbeat_in_flight=None, session_ends_at=23.0)
    assert step(member, reply(5, heartbeat_response(E.REBALANCE_IN_PROGRESS), now=13.5)) == (
        evolve(answered, rebalancing_at=13.0),
        (WakeAt(time=16.0),),
    )
    extended = evolve(answered, acknowledged_at=13.0, stable_at=13.0, first_heartbeat_delay=0.0)
    assert step(member, reply(5, heartbeat_response(), now=13.5)) == (
        extended,
        (WakeAt(time=16.0),),
    )


def test_a_heartbeat_without_a_response_leaves_time_for_another_attempt() -> None:
    """A middlebox drops the connection: the heartbeat waited until the session had ended."""
    sent, effects = step(STABLE, Woke(now=STABLE.next_heartbeat_at))
    heartbeat = effects[0]
    assert isinstance(heartbeat, Send)
    failed_at = STABLE.next_heartbeat_at + heartbeat.timeout
    assert heartbeat.request == send_heartbeat(0, 0).request
    assert failed_at <= STABLE.session_ends_at - STABLE.config.session_timeout / 3
    failed, _ = step(sent, SendFailed(now=failed_at, token=heartbeat.token, error=LOST))
    assert (failed.phase, failed.coordinator, failed.ownership) == (
        Phase.STABLE,
        None,
        STABLE.ownership,
    )


def test_a_heartbeat_is_sent_when_due_unless_one_is_in_flight() -> None:
    assert step(STABLE, Woke(now=12.0)) == (STABLE, (WakeAt(time=13.0),))
    assert step(STABLE, Woke(now=13.0)) == (
        HEARTBEAT_SENT,
        (send_heartbeat(6, 7.0), WakeAt(time=20.0)),
    )
    assert step(HEARTBEAT_SENT, Woke(now=16.0)) == (HEARTBEAT_SENT, (WakeAt(time=20.0),))


def test_the_session_counts_from_when_the_heartbeat_was_sent() -> None:
    assert step(HEARTBEAT_SENT, reply(6, heartbeat_response(), now=15.0)) == (
        evolve(
            HEARTBEAT_SENT,
            heartbeat_in_flight=None,
            first_heartbeat_delay=0.0,
            acknowledged_at=13.0,
            stable_at=13.0,
            session_ends_at=23.0,
        ),
        (WakeAt(time=16.0),),
    )


def test_rebalance_in_progress_extends_the_session_and_revokes() -> None:
    assert step(
        HEARTBEAT_SENT, reply(6, heartbeat_response(E.REBALANCE_IN_PROGRESS), now=13.5)
    ) == (
        evolve(
            HEARTBEAT_SENT,
            phase=Phase.REVOKING,
            heartbeat_in_flight=None,
            acknowledged_at=13.0,
            rebalancing_at=13.0,
            session_ends_at=23.0,
            pending=7,
            last_token=7,
            reason="the group is rebalancing",
        ),
        (Revoke(token=7, deadline=58.5), WakeAt(time=16.0)),
    )


def test_heartbeats_continue_while_the_application_drains() -> None:
    assert step(REVOKING, Woke(now=13.0)) == (DRAINING, (send_heartbeat(7, 7.0), WakeAt(time=20.0)))
    assert step(DRAINING, reply(7, heartbeat_response(E.REBALANCE_IN_PROGRESS), now=13.5)) == (
        evolve(
            DRAINING,
            heartbeat_in_flight=None,
            acknowledged_at=13.0,
            rebalancing_at=13.0,
            session_ends_at=23.0,
        ),
        (WakeAt(time=16.0),),
    )


@pytest.mark.parametrize("member", [COMPUTING, STABLE, REVOKING], ids=lambda m: m.phase.value)
def test_a_session_without_responses_rediscovers_the_coordinator(member: Member) -> None:
    token = member.last_token + 1
    member = evolve(member, heartbeat_in_flight=99, heartbeat_sent_at=13.0, next_heartbeat_at=16.0)
    assert step(member, Woke(now=20.0)) == (
        evolve(
            member,
            coordinator=None,
            heartbeat_in_flight=None,
            session_ends_at=30.0,
            lookup_in_flight=token,
            last_token=token,
        ),
        (find(token), WakeAt(time=30.0)),
    )


def test_a_new_coordinator_gets_a_heartbeat_at_once() -> None:
    searching = evolve(
        HEARTBEAT_SENT, coordinator=None, heartbeat_in_flight=None, lookup_in_flight=7, last_token=7
    )
    assert step(searching, reply(7, found(node=OTHER), now=14.0)) == (
        evolve(
            searching,
            coordinator=OTHER,
            lookup_in_flight=None,
            heartbeat_in_flight=8,
            heartbeat_sent_at=14.0,
            next_heartbeat_at=17.0,
            last_token=8,
        ),
        (evolve(send_heartbeat(8, 6.0), coordinator=OTHER), WakeAt(time=20.0)),
    )


# ---------------------------------------------------------------- errors of the coordinator


@pytest.mark.parametrize(
    ("code", "member_id", "reason"),
    [
        (E.UNKNOWN_MEMBER_ID, "", "the coordinator does not know this member"),
        (E.ILLEGAL_GENERATION, "m1", "the generation has ended"),
    ],
)
class TestLine10TheGenerationIsReset:
    """UNKNOWN_MEMBER_ID resets the id; ILLEGAL_GENERATION keeps it."""

    def test_a_join_or_sync_error_resets_the_generation(
        self, code: int, member_id: str, reason: str
    ) -> None:
        for member, token, message in (
            (REJOINING, 3, joined(code)),
            (SYNCING, 5, synced(code)),
        ):
            assert step(member, reply(token, message)) == (
                evolve(
                    member,
                    phase=Phase.UNJOINED,
                    member_id=member_id,
                    generation_id=-1,
                    pending=None,
                    reason=reason,
                    attempts=1,
                    retry_at=10.125,
                    next_heartbeat_at=10.125,
                ),
                (WakeAt(time=10.125),),
            )

    def test_a_heartbeat_error_loses_the_assignment(
        self, code: int, member_id: str, reason: str
    ) -> None:
        for member, token in ((HEARTBEAT_SENT, 6), (DRAINING, 7)):
            lose = member.last_token + 1
            assert step(member, reply(token, heartbeat_response(code), now=13.5)) == (
                evolve(
                    member,
                    phase=Phase.LOSING,
                    member_id=member_id,
                    is_assigned=False,
                    heartbeat_in_flight=None,
                    pending=lose,
                    last_token=lose,
                    reason=reason,
                ),
                (Lose(token=lose, reason=reason),),
            )

    def test_while_sync_is_in_flight_its_result_is_discarded(
        self, code: int, member_id: str, reason: str
    ) -> None:
        """The response to a heartbeat sent while the leader computed arrives during SyncGroup."""
        syncing = evolve(SYNCING, heartbeat_in_flight=9, heartbeat_sent_at=10.0, last_token=9)
        reset, effects = step(syncing, reply(9, heartbeat_response(code), now=11.0))
        assert (reset, effects) == (
            evolve(
                syncing,
                phase=Phase.UNJOINED,
                member_id=member_id,
                generation_id=-1,
                pending=None,
                heartbeat_in_flight=None,
                reason=reason,
                attempts=1,
                retry_at=11.125,
                next_heartbeat_at=11.125,
            ),
            (WakeAt(time=11.125),),
        )
        assert step(reset, reply(5, synced(), now=11.0)) == (reset, (WakeAt(time=11.125),))


def test_the_member_rejoins_after_the_application_processed_the_loss() -> None:
    assert step(LOSING, Woke(now=14.0)) == (LOSING, ())
    joining = evolve(LOSING, phase=Phase.JOINING, generation_id=-1, pending=7, last_token=7)
    assert step(LOSING, Revoked(now=14.0, token=6)) == (
        evolve(joining, join_sent_at=14.0),
        (join(7, "m1", "gone"),),
    )


def test_fenced_instance_id_is_fatal_everywhere() -> None:
    """The member sends no leave: the instance id belongs to the other member."""
    config = evolve(CONFIG, group_instance_id="i")
    error = Like(FencedError, "another member now has group_instance_id 'i'")
    for member, token, message in (
        (REJOINING, 3, joined(E.FENCED_INSTANCE_ID)),
        (SYNCING, 5, synced(E.FENCED_INSTANCE_ID)),
    ):
        static = evolve(member, config=config)
        assert step(static, reply(token, message)) == (
            evolve(static, phase=Phase.FAILED, pending=None),
            (Fail(error=error),),
        )
    static = evolve(HEARTBEAT_SENT, config=config)
    losing, effects = step(static, reply(6, heartbeat_response(E.FENCED_INSTANCE_ID)))
    assert (losing.phase, losing.ownership.is_assigned) == (Phase.LOSING, False)
    assert effects == (Fail(error=error), Lose(token=7, reason=error.args[1]))
    left, effects = step(losing, Revoked(now=11.0, token=7))
    assert (left.phase, effects) == (Phase.LEFT, (Leave(),))


def test_fenced_by_a_heartbeat_sent_before_a_join_is_fatal() -> None:
    """A coordinator that had moved delayed its joins. A fenced member once continued to join."""
    config = evolve(CONFIG, group_instance_id="i")
    fenced = reply(7, heartbeat_response(E.FENCED_INSTANCE_ID), now=14.0)
    joining = step(evolve(DRAINING, config=config), Revoked(now=14.0, token=6))[0]
    assert (joining.phase, joining.heartbeat_in_flight) == (Phase.JOINING, None)
    error = Like(FencedError, "another member now has group_instance_id 'i'")
    out = evolve(joining, phase=Phase.FAILED, pending=None)
    assert step(joining, fenced) == (out, (Fail(error=error),))
    # A member that the coordinator has forgotten joins as a new one, and so fences its own old id.
    unknown = step(joining, reply(8, joined(E.UNKNOWN_MEMBER_ID), now=14.0))[0]
    again = step(unknown, Woke(now=15.0))[0]
    assert step(again, fenced) == (again, ())
    new = step(again, reply(again.pending, joined(member_id="m3"), now=15.0))[0]
    assert (new.member_id, step(new, fenced)) == ("m3", (new, ()))


def test_a_loading_coordinator_is_kept_and_retried() -> None:
    code = E.COORDINATOR_LOAD_IN_PROGRESS
    waiting = {"attempts": 1, "retry_at": 10.125, "next_heartbeat_at": 10.125}
    for member, token, message in ((REJOINING, 3, joined(code)), (SYNCING, 5, synced(code))):
        assert step(member, reply(token, message)) == (
            evolve(
                member,
                phase=Phase.UNJOINED,
                pending=None,
                reason="the coordinator was loading",
                **waiting,
            ),
            (WakeAt(time=10.125),),
        )
    assert step(HEARTBEAT_SENT, reply(6, heartbeat_response(code))) == (
        evolve(HEARTBEAT_SENT, heartbeat_in_flight=None, **waiting),
        (WakeAt(time=10.125),),
    )


@pytest.mark.parametrize(
    "code", [E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.REQUEST_TIMED_OUT]
)
def test_not_coordinator_looks_up_the_coordinator(code: int) -> None:
    waiting: dict[str, Any] = {
        "coordinator": None,
        "attempts": 1,
        "retry_at": 10.125,
        "next_heartbeat_at": 10.125,
    }
    for member, token, message in ((REJOINING, 3, joined(code)), (SYNCING, 5, synced(code))):
        assert step(member, reply(token, message)) == (
            evolve(
                member,
                phase=Phase.UNJOINED,
                pending=None,
                reason="the coordinator moved",
                **waiting,
            ),
            (WakeAt(time=10.125),),
        )
    assert step(HEARTBEAT_SENT, reply(6, heartbeat_response(code))) == (
        evolve(HEARTBEAT_SENT, heartbeat_in_flight=None, **waiting),
        (WakeAt(time=10.125),),
    )
    # What the application holds stays held: only the coordinator is another.
    assert step(DRAINING, reply(7, heartbeat_response(code))) == (
        evolve(DRAINING, heartbeat_in_flight=None, **waiting),
        (WakeAt(time=10.125),),
    )


def test_a_sync_in_the_next_rebalance_rejoins_at_once_then_backs_off() -> None:
    response = synced(E.REBALANCE_IN_PROGRESS)
    reason = "the group rebalanced before the assignment came"
    rejoining = evolve(
        SYNCING,
        phase=Phase.JOINING,
        pending=6,
        last_token=6,
        reason=reason,
        attempts=1,
        is_unsynced=False,
    )
    assert step(SYNCING, reply(5, response)) == (rejoining, (join(6, "m1", reason),))
    again = evolve(SYNCING, attempts=5)
    assert step(again, reply(5, response)) == (
        evolve(
            again,
            phase=Phase.UNJOINED,
            pending=None,
            reason=reason,
            attempts=6,
            is_unsynced=False,
            retry_at=11.0,
            next_heartbeat_at=11.0,
        ),
        (WakeAt(time=11.0),),
    )


FINAL = [E.GROUP_MAX_SIZE_REACHED, E.INVALID_REQUEST]
PASSING = [
    E.GROUP_AUTHORIZATION_FAILED,
    E.INCONSISTENT_GROUP_PROTOCOL,
    E.INVALID_SESSION_TIMEOUT,
    E.UNKNOWN_SERVER_ERROR,
    999,
]


@pytest.mark.parametrize("code", [*FINAL, *PASSING])
def test_a_refusal_of_the_first_join_is_fatal(code: int) -> None:
    error = broker_error(code, "JoinGroup of group 'g'", operation="READ", group="g")
    # Without a member id there is no member to remove.
    assert step(JOINING, reply(2, joined(code))) == (
        evolve(JOINING, phase=Phase.FAILED, pending=None),
        (Fail(error=error),),
    )
    known = evolve(JOINING, member_id="m1")
    assert step(known, reply(2, joined(code))) == (
        failing(known, error),
        (Fail(error=error), leave(3, str(error)), WakeAt(time=20.0)),
    )


@pytest.mark.parametrize("code", FINAL)
def test_permanent_errors_are_fatal_and_leave(code: int) -> None:
    error = broker_error(code, "JoinGroup of group 'g'", operation="READ", group="g")
    assert step(REJOINING, reply(3, joined(code))) == (
        failing(REJOINING, error),
        (Fail(error=error), leave(4, str(error)), WakeAt(time=20.0)),
    )


@pytest.mark.parametrize("code", PASSING)
def test_a_refusal_of_a_member_is_reported_once_a_minute_and_repeated(code: int) -> None:
    """One missing ACL, or one UNKNOWN_SERVER_ERROR of the coordinator, ended consumers that had
    worked for weeks; restarting them was the only way on."""
    error = broker_error(code, "Heartbeat of group 'g'", operation="READ", group="g")
    refused, effects = step(HEARTBEAT_SENT, reply(6, heartbeat_response(code)))
    assert (refused, effects) == (
        evolve(
            HEARTBEAT_SENT,
            heartbeat_in_flight=None,
            reported_refusal=(code, 10.0),
            attempts=1,
            retry_at=10.125,
            next_heartbeat_at=10.125,
        ),
        (ReportError(error=error), WakeAt(time=10.125)),
    )
    again, effects = step(refused, Woke(now=10.125))
    assert [type(effect) for effect in effects] == [Send, WakeAt]
    again, effects = step(again, reply(7, heartbeat_response(code), 10.125))
    assert effects == (WakeAt(time=10.375),)
    # The application hears of a lasting refusal again, and of another one at once.
    lasting = evolve(HEARTBEAT_SENT, reported_refusal=(code, -50.0))
    assert step(lasting, reply(6, heartbeat_response(code)))[1][0] == ReportError(error=error)
    other = evolve(HEARTBEAT_SENT, reported_refusal=(E.INVALID_GROUP_ID, 10.0))
    assert step(other, reply(6, heartbeat_response(code)))[1][0] == ReportError(error=error)
    accepted, effects = step(again, Woke(now=10.375))
    accepted, effects = step(accepted, reply(8, heartbeat_response(), 10.375))
    assert (accepted.phase, accepted.attempts) == (Phase.STABLE, 0)


@pytest.mark.parametrize("code", PASSING)
def test_a_refused_rejoin_is_repeated(code: int) -> None:
    error = broker_error(code, "JoinGroup of group 'g'", operation="READ", group="g")
    waiting, effects = step(REJOINING, reply(3, joined(code)))
    assert (waiting.phase, effects) == (
        Phase.UNJOINED,
        (ReportError(error=error), WakeAt(time=10.125)),
    )
    assert step(waiting, Woke(now=10.125))[1] == (join(4, "m1", error.name),)


def test_a_member_that_joins_anew_has_been_accepted_before() -> None:
    """An application that polls too late makes a new member of the same consumer."""
    anew = evolve(FINDING, config=evolve(CONFIG, was_member=True))
    error = broker_error(E.GROUP_AUTHORIZATION_FAILED, operation="DESCRIBE", group="g")
    waiting, effects = step(anew, reply(1, found(E.GROUP_AUTHORIZATION_FAILED)))
    assert (waiting.phase, effects) == (
        Phase.UNJOINED,
        (ReportError(error=error), WakeAt(time=10.125)),
    )


def test_a_fatal_error_is_reported_at_once_and_the_group_left_after_revocation() -> None:
    """If it left at once, other members would get records that are still being processed."""
    error = BrokerError(E.INVALID_REQUEST, "Heartbeat of group 'g'")
    losing, effects = step(HEARTBEAT_SENT, reply(6, heartbeat_response(E.INVALID_REQUEST)))
    assert (losing.phase, losing.ownership.is_assigned) == (Phase.LOSING, False)
    assert effects == (Fail(error=error), Lose(token=7, reason=str(error)))
    leaving, effects = step(losing, Revoked(now=11.0, token=7))
    assert leaving.phase is Phase.LEAVING
    assert effects == (leave(8, str(error), Route.SEPARATE_CONNECTION), WakeAt(time=21.0))


def test_a_fatal_response_while_losing_does_not_lose_twice() -> None:
    searching = evolve(LOSING, coordinator=None, lookup_in_flight=7, last_token=7)
    assert step(searching, reply(7, found(E.INVALID_REQUEST))) == (
        evolve(searching, phase=Phase.FAILED, pending=None, lookup_in_flight=None),
        (Fail(error=BrokerError(E.INVALID_REQUEST)),),
    )


# ---------------------------------------------------------------- failures of the network


@pytest.mark.parametrize(
    "error",
    [LOST, LATE, DecodeError("garbage")],
    ids=lambda e: type(e).__name__,
)
def test_s11_the_member_id_survives_disconnects(error: Exception) -> None:
    waiting: dict[str, Any] = {
        "coordinator": None,
        "attempts": 1,
        "timed_out": error is LATE,
        "retry_at": 10.125,
        "next_heartbeat_at": 10.125,
    }
    for member, token in ((REJOINING, 3), (SYNCING, 5)):
        assert step(member, SendFailed(now=10.0, token=token, error=error)) == (
            evolve(
                member,
                phase=Phase.UNJOINED,
                pending=None,
                reason="the coordinator did not answer",
                **waiting,
            ),
            (WakeAt(time=10.125),),
        )
    assert step(HEARTBEAT_SENT, SendFailed(now=10.0, token=6, error=error)) == (
        evolve(HEARTBEAT_SENT, heartbeat_in_flight=None, **waiting),
        (WakeAt(time=10.125),),
    )
    assert step(FINDING, SendFailed(now=10.0, token=1, error=error)) == (
        evolve(FINDING, lookup_in_flight=None, **waiting),
        (WakeAt(time=10.125),),
    )


def test_a_broker_that_is_too_old_is_fatal() -> None:
    error = UnsupportedVersionError("JoinGroup")
    assert step(JOINING, SendFailed(now=10.0, token=2, error=error)) == (
        evolve(JOINING, phase=Phase.FAILED, pending=None),
        (Fail(error=error),),
    )


def test_losing_the_coordinator_during_the_assignment_restarts_the_join() -> None:
    orphan = evolve(COMPUTING, coordinator=None, retry_at=10.0)
    assert step(orphan, Computed(now=11.0, token=4, assignments={})) == (
        evolve(
            orphan,
            phase=Phase.UNJOINED,
            pending=None,
            lookup_in_flight=5,
            last_token=5,
            reason="the coordinator moved",
        ),
        (find(5),),
    )


# ---------------------------------------------------------------- stale answers


@pytest.mark.parametrize(
    "member",
    [FINDING, REJOINING, COMPUTING, SYNCING, STABLE, HEARTBEAT_SENT, DRAINING, LOSING, GOING],
    ids=lambda m: m.phase.value,
)
@pytest.mark.parametrize(
    "event",
    [
        reply(0, joined(E.UNKNOWN_MEMBER_ID)),
        reply(0, synced(E.ILLEGAL_GENERATION)),
        reply(0, heartbeat_response(E.FENCED_INSTANCE_ID)),
        reply(0, found(E.GROUP_AUTHORIZATION_FAILED)),
        SendFailed(now=10.0, token=0, error=LOST),
        SendFailed(now=10.0, token=0, error=UnsupportedVersionError("x")),
        Revoked(now=10.0, token=0),
        Computed(now=10.0, token=0, assignments={}),
        ComputeFailed(now=10.0, token=0, error=ValueError("x")),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_stale_response_changes_nothing(member: Member, event: ClassicEvent) -> None:
    after, effects = step(member, event)
    assert after is member
    assert all(isinstance(effect, WakeAt) for effect in effects)


@pytest.mark.parametrize("phase", [Phase.LEFT, Phase.FAILED])
def test_a_closed_member_ignores_every_event(phase: Phase) -> None:
    out = evolve(STABLE, phase=phase)
    for event in (
        Started(now=99.0),
        Woke(now=99.0),
        reply(1, found()),
        Leaving(now=99.0, reason="again"),
        RejoinRequested(now=99.0, reason="again"),
    ):
        after, effects = step(out, event)
        assert after is out
        assert effects == ()


# ---------------------------------------------------------------- rejoining


def test_owned_partitions_are_revoked_before_joining() -> None:
    event = RejoinRequested(now=10.0, reason="changed", protocols=(("range", b"new"),))
    offered = (("range", b"new"),)
    assert step(STABLE, event) == (
        evolve(REVOKING, protocols=offered),
        (Revoke(token=6, deadline=55.0), WakeAt(time=13.0)),
    )
    joining = evolve(REVOKING, phase=Phase.JOINING, pending=7, last_token=7, is_assigned=False)
    assert step(REVOKING, Revoked(now=12.0, token=6)) == (
        evolve(joining, join_sent_at=12.0),
        (join(7, "m1", "changed"),),
    )


@pytest.mark.parametrize("member", [REJOINING, COMPUTING, SYNCING], ids=lambda m: m.phase.value)
def test_a_rejoin_requested_during_a_rebalance_waits_for_its_end(member: Member) -> None:
    after, _ = step(member, RejoinRequested(now=10.0, reason="changed"))
    assert after == evolve(member, must_rejoin=True, reason="changed")


def test_an_outdated_generation_is_left_at_once() -> None:
    late = evolve(SYNCING, must_rejoin=True, reason="changed")
    assert step(late, reply(5, synced())) == (
        evolve(REVOKING, session_ends_at=20.0),
        (
            Assign(generation=generation()),
            Revoke(token=6, deadline=55.0),
            WakeAt(time=13.0),
        ),
    )


@pytest.mark.parametrize("member", [IDLE, FINDING, REVOKING, LOSING], ids=lambda m: m.phase.value)
def test_before_a_pending_join_only_the_supported_protocols_change(member: Member) -> None:
    event = RejoinRequested(now=10.0, reason="changed", protocols=(("range", b"new"),))
    after, _ = step(member, event)
    assert after == evolve(member, protocols=(("range", b"new"),))


def test_each_attempt_sends_all_protocols_in_one_join() -> None:
    """Counted over a whole rebalance in which each request fails once."""
    broker = RespondingBroker(
        {JoinGroupRequest: [E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR]}
    )
    broker.run(until=5.0)
    joins = [r for _, r in broker.sent if isinstance(r, JoinGroupRequest)]
    offered = tuple(JoinGroupRequestProtocol(name=n, metadata=m) for n, m in IDLE.protocols)
    # Without an id, rejected; again at the next coordinator; assigned an id; with the id.
    assert [(j.member_id, j.protocols) for j in joins] == [
        ("", offered),
        ("", offered),
        ("", offered),
        ("m1", offered),
    ]
    assert broker.member.phase is Phase.STABLE


# ---------------------------------------------------------------- leaving

CLOSED = Leaving(now=10.0, reason="closed")
COOPERATIVE = evolve(CONFIG, cooperative=True, settling_interval=0.25)


def test_leaving_while_revoking_some_revokes_the_rest() -> None:
    """A cooperative member was closed while its last commit waited for a dead coordinator; it left
    with its kept partitions, and the application was not called for them."""
    revoking = evolve(REVOKING, config=COOPERATIVE)
    leaving = step(revoking, evolve(CLOSED, now=11.0))[0]
    again, effects = step(leaving, Revoked(now=12.0, token=6))
    assert (again.phase, again.ownership.is_assigned, again.revokes_all) == (
        Phase.REVOKING,
        True,
        True,
    )
    assert effects[0] == Revoke(token=7, deadline=57.0)
    gone, effects = step(again, Revoked(now=13.0, token=7))
    assert (gone.phase, gone.ownership.is_assigned, effects) == (
        Phase.LEAVING,
        False,
        (leave(8, "closed"), WakeAt(time=23.0)),
    )


@pytest.mark.parametrize("config", [CONFIG, COOPERATIVE], ids=["eager", "cooperative"])
def test_a_poll_timeout_while_revoking_loses_everything_at_once(config: Any) -> None:
    """An application stuck with a record kept its partitions for the rest of the revocation, up to
    most of the rebalance timeout."""
    revoking = evolve(REVOKING, config=config)
    losing, effects = step(revoking, evolve(CLOSED, now=11.0, lost=True))
    assert (losing.phase, losing.ownership.is_assigned) == (Phase.LOSING, False)
    assert effects == (Lose(token=7, reason="closed"),)
    assert step(losing, Revoked(now=12.0, token=6)) == (losing, ())
    assert step(losing, Revoked(now=13.0, token=7))[1] == (
        leave(8, "closed", Route.SEPARATE_CONNECTION),
        WakeAt(time=23.0),
    )


def test_a_stable_member_revokes_then_leaves() -> None:
    revoking = evolve(REVOKING, reason="closed", leaving=CLOSED, revokes_all=True)
    assert step(STABLE, CLOSED) == (
        revoking,
        (Revoke(token=6, deadline=55.0), WakeAt(time=13.0)),
    )
    leaving = evolve(
        revoking,
        phase=Phase.LEAVING,
        pending=7,
        last_token=7,
        is_assigned=False,
        leave_by=21.0,
    )
    assert step(revoking, Revoked(now=11.0, token=6)) == (
        leaving,
        (leave(7, "closed"), WakeAt(time=21.0)),
    )
    assert step(leaving, reply(7, left(), now=11.0)) == (
        evolve(leaving, phase=Phase.LEFT, pending=None),
        (Leave(),),
    )


@pytest.mark.parametrize("member", [REJOINING, COMPUTING, SYNCING], ids=lambda m: m.phase.value)
def test_leave_is_sent_on_another_connection_than_a_pending_join(
    member: Member,
) -> None:
    token = member.last_token + 1
    assert step(member, CLOSED) == (
        evolve(
            member,
            phase=Phase.LEAVING,
            pending=token,
            last_token=token,
            leaving=CLOSED,
            leave_by=20.0,
            is_connection_held=True,
        ),
        (leave(token, "closed", Route.SEPARATE_CONNECTION), WakeAt(time=20.0)),
    )


def test_a_leaving_static_member_sends_its_instance_id() -> None:
    """KIP-1092: otherwise its partitions would stay unread until its session times out."""
    config = evolve(CONFIG, group_instance_id="i")
    for_good = evolve(CLOSED, leave_group=True)
    member = evolve(REVOKING, config=config, leaving=for_good)
    identity = MemberIdentity(member_id="m1", group_instance_id="i", reason="closed")
    request = LeaveGroupRequest(group_id="g", members=(identity,))
    assert step(member, Revoked(now=11.0, token=6)) == (
        evolve(
            member,
            phase=Phase.LEAVING,
            pending=7,
            last_token=7,
            heartbeat_in_flight=None,
            is_assigned=False,
            leave_by=21.0,
        ),
        (send(7, request, 5.0, Route.COORDINATOR), WakeAt(time=21.0)),
    )
    syncing = evolve(SYNCING, config=config)
    token = syncing.last_token + 1
    assert step(syncing, for_good) == (
        evolve(
            syncing,
            phase=Phase.LEAVING,
            pending=token,
            last_token=token,
            leaving=for_good,
            leave_by=20.0,
            is_connection_held=True,
        ),
        (send(token, request, 5.0, Route.SEPARATE_CONNECTION), WakeAt(time=20.0)),
    )


@pytest.mark.parametrize("member", [IDLE, FINDING], ids=lambda m: m.phase.value)
def test_a_member_without_an_id_sends_no_leave(member: Member) -> None:
    assert step(member, CLOSED) == (
        evolve(member, phase=Phase.LEFT, pending=None, lookup_in_flight=None, leaving=CLOSED),
        (Leave(),),
    )


def test_a_static_member_sends_no_leave() -> None:
    config = evolve(CONFIG, group_instance_id="i")
    member = evolve(REVOKING, config=config, leaving=CLOSED)
    assert step(member, Revoked(now=11.0, token=6)) == (
        evolve(member, phase=Phase.LEFT, pending=None, is_assigned=False),
        (Leave(),),
    )
    joining = evolve(JOINING, config=config)
    assert step(joining, CLOSED) == (
        evolve(joining, phase=Phase.LEFT, pending=None, leaving=CLOSED),
        (Leave(),),
    )


def test_without_leave_on_close_no_leave_is_sent() -> None:
    quiet = evolve(CLOSED, leave_group=False)
    assert step(COMPUTING, quiet) == (
        evolve(COMPUTING, phase=Phase.LEFT, pending=None, leaving=quiet),
        (Leave(),),
    )


def test_closing_in_a_rebalance_waits_for_the_application() -> None:
    for member in (REVOKING, LOSING):
        after, effects = step(member, CLOSED)
        assert after == evolve(member, leaving=CLOSED)
        assert not any(isinstance(effect, Send | Revoke | Lose) for effect in effects)


def test_reset_while_leaving_is_lost_not_revoked() -> None:
    leaving = evolve(DRAINING, leaving=CLOSED)
    reason = "the coordinator does not know this member"
    lost = evolve(
        leaving,
        phase=Phase.LOSING,
        member_id="",
        is_assigned=False,
        pending=8,
        last_token=8,
        heartbeat_in_flight=None,
        reason=reason,
    )
    assert step(leaving, reply(7, heartbeat_response(E.UNKNOWN_MEMBER_ID))) == (
        lost,
        (Lose(token=8, reason=reason),),
    )
    # Nothing is left to leave.
    assert step(lost, Revoked(now=11.0, token=8)) == (
        evolve(lost, phase=Phase.LEFT, pending=None, generation_id=-1),
        (Leave(),),
    )


def test_an_application_that_did_not_poll_loses_and_leaves() -> None:
    event = Leaving(now=10.0, reason="asleep", lost=True)
    lost = evolve(LOSING, reason="asleep", leaving=event)
    assert step(STABLE, event) == (lost, (Lose(token=6, reason="asleep"),))
    assert step(lost, Revoked(now=11.0, token=6)) == (
        evolve(
            lost,
            phase=Phase.LEAVING,
            generation_id=-1,
            pending=7,
            last_token=7,
            leave_by=21.0,
            is_connection_held=True,
        ),
        (leave(7, "asleep", Route.SEPARATE_CONNECTION), WakeAt(time=21.0)),
    )


@pytest.mark.parametrize(
    ("event", "doubt"),
    [
        (reply(6, left()), ""),
        (reply(6, left(E.UNKNOWN_MEMBER_ID)), ""),
        (reply(6, left_member(E.UNKNOWN_MEMBER_ID)), ""),
        (reply(6, left_member(E.FENCED_INSTANCE_ID)), ""),
        (SendFailed(now=10.0, token=6, error=UnsupportedVersionError("too old")), "too old"),
        (
            reply(6, left(E.UNKNOWN_SERVER_ERROR)),
            "UNKNOWN_SERVER_ERROR (-1): LeaveGroup of group 'g'",
        ),
    ],
    ids=["gone", "unknown", "member unknown", "fenced", "too old", "failed"],
)
def test_a_member_has_left_by_the_response_to_leave(event: ClassicEvent, doubt: str) -> None:
    assert step(GOING, event) == (
        evolve(GOING, phase=Phase.LEFT, pending=None),
        (Leave(doubt=doubt),),
    )


@pytest.mark.parametrize(
    ("event", "is_moved"),
    [
        (reply(6, left(E.NOT_COORDINATOR)), True),
        (reply(6, left(E.COORDINATOR_NOT_AVAILABLE)), True),
        (reply(6, left(E.REQUEST_TIMED_OUT)), True),
        (reply(6, left(E.COORDINATOR_LOAD_IN_PROGRESS)), False),
        (reply(6, left_member(E.COORDINATOR_LOAD_IN_PROGRESS)), False),
        (SendFailed(now=10.0, token=6, error=LOST), True),
        (SendFailed(now=10.0, token=6, error=LATE), True),
        (SendFailed(now=10.0, token=6, error=DecodeError("garbage")), True),
    ],
)
def test_leave_is_repeated_until_the_coordinator_answers(
    event: ClassicEvent, is_moved: bool
) -> None:
    """LeaveGroup was sent once. Refused because the coordinator had moved, it left a member that
    the whole group waited for until its session ended."""
    waiting, effects = step(GOING, event)
    assert waiting == evolve(
        GOING,
        phase=Phase.DEPARTING,
        pending=None,
        coordinator=None if is_moved else NODE,
        attempts=1,
        timed_out=isinstance(event, SendFailed) and event.error is LATE,
        retry_at=10.125,
        next_heartbeat_at=10.125,
        trouble=waiting.trouble,
    )
    assert effects == (WakeAt(time=10.125),)
    now, found_it = 10.125, waiting
    if is_moved:
        looking, effects = step(waiting, Woke(now=now))
        assert effects == (evolve(find(7), timeout=4.9375), WakeAt(time=20.0))
        now = 10.25
        found_it = looking
    again, effects = step(found_it, reply(7, found(), now=now) if is_moved else Woke(now=now))
    token = 8 if is_moved else 7
    assert (again.phase, again.pending) == (Phase.LEAVING, token)
    assert effects == (
        leave(token, "closed", timeout=(20.0 - now) / 2),
        WakeAt(time=20.0),
    )


def test_a_member_leaves_once_its_coordinator_is_known() -> None:
    """Closed while the coordinator was unknown, it left without LeaveGroup."""
    revoking = evolve(REVOKING, coordinator=None, lookup_in_flight=7, last_token=7, leaving=CLOSED)
    departing = evolve(
        revoking,
        phase=Phase.DEPARTING,
        pending=None,
        is_assigned=False,
        leave_by=21.0,
    )
    assert step(revoking, Revoked(now=11.0, token=6)) == (departing, (WakeAt(time=21.0),))
    assert step(departing, reply(7, found(), now=12.0)) == (
        evolve(
            departing,
            phase=Phase.LEAVING,
            coordinator=NODE,
            lookup_in_flight=None,
            next_heartbeat_at=12.0,
            pending=8,
            last_token=8,
        ),
        (leave(8, "closed", timeout=4.5), WakeAt(time=21.0)),
    )


def test_a_member_that_leaves_gives_up_in_time() -> None:
    """By the deadline of the close; else after a session, when the coordinator has removed it."""
    for deadline, leave_by in ((13.0, 13.0), (60.0, 20.0)):
        closed = evolve(CLOSED, deadline=deadline)
        leaving, _ = step(SYNCING, closed)
        assert leaving.leave_by == leave_by
        departing, _ = step(leaving, SendFailed(now=11.0, token=6, error=LOST))
        for member, doubt in (
            (leaving, "the coordinator did not answer in time"),
            (departing, "reset by peer"),
        ):
            assert step(member, Woke(now=leave_by)) == (
                evolve(member, phase=Phase.LEFT, pending=None),
                (Leave(doubt=doubt),),
            )


def test_a_member_without_an_id_gives_up_without_an_old_error() -> None:
    awaiting = evolve(AWAITING_ID, trouble="an earlier join failed")
    left, effects = step(awaiting, Woke(now=12.0))
    assert (left.phase, effects) == (
        Phase.LEFT,
        (Leave(doubt="the coordinator did not answer in time"),),
    )


@pytest.mark.parametrize(("instance", "leaves"), [(None, True), ("i", False)])
def test_a_member_that_fails_leaves_unless_it_is_static(instance: str | None, leaves: bool) -> None:
    """The group would wait for a dynamic member until its session ends; a static one keeps its
    place until it is started again."""
    error = ValueError("x")
    computing = evolve(COMPUTING, config=evolve(CONFIG, group_instance_id=instance))
    member, effects = step(computing, ComputeFailed(now=10.0, token=4, error=error))
    assert member.phase is (Phase.LEAVING if leaves else Phase.FAILED)
    sent = [effect for effect in effects if isinstance(effect, Send)]
    assert (effects[0], len(sent)) == (Fail(error=error), leaves)


def test_a_member_that_leaves_after_an_error_is_closed_in_time() -> None:
    """The deadline of the close counts from then on. At the deadline there is one attempt yet."""
    going = evolve(GOING, leaving=leaving_for(ValueError("x")))
    closed = evolve(CLOSED, deadline=12.0)
    assert step(going, closed) == (
        evolve(going, leaving=evolve(going.leaving, deadline=12.0), leave_by=12.0),
        (WakeAt(time=12.0),),
    )
    late, effects = step(SYNCING, evolve(CLOSED, deadline=9.0))
    assert (late.phase, late.leave_by) == (Phase.LEAVING, 11.0)
    assert effects == (
        leave(6, "closed", Route.SEPARATE_CONNECTION, timeout=1.0),
        WakeAt(time=11.0),
    )


def test_a_member_tries_to_leave_once_more_shortly_before_its_time_is_over() -> None:
    """Its backoff ended after that: up to a second of the close timeout was not used."""
    refused = reply(6, left(E.COORDINATOR_LOAD_IN_PROGRESS), now=19.0)
    waiting, effects = step(evolve(GOING, attempts=5), refused)
    assert (waiting.retry_at, effects) == (19.5, (WakeAt(time=19.5),))


def test_a_member_that_cannot_look_up_its_coordinator_gives_up() -> None:
    departing = evolve(
        GOING, phase=Phase.DEPARTING, pending=None, coordinator=None, lookup_in_flight=6
    )
    denied = broker_error(E.GROUP_AUTHORIZATION_FAILED, operation="DESCRIBE", group="g")
    assert step(departing, reply(6, found(E.GROUP_AUTHORIZATION_FAILED))) == (
        evolve(departing, phase=Phase.LEFT, lookup_in_flight=None),
        (Leave(doubt=str(denied)),),
    )


def test_a_member_that_fails_without_a_coordinator_leaves() -> None:
    """It failed without LeaveGroup, though only its coordinator had to be looked up."""
    error = ValueError("x")
    computing = evolve(COMPUTING, coordinator=None, lookup_in_flight=5, last_token=5)
    failing, effects = step(computing, ComputeFailed(now=10.0, token=4, error=error))
    assert (failing.phase, effects) == (Phase.DEPARTING, (Fail(error=error), WakeAt(time=20.0)))
    leaving, effects = step(failing, reply(5, found()))
    assert (leaving.phase, effects[0]) == (Phase.LEAVING, leave(6, "x"))


AWAITING_ID = evolve(JOINING, leaving=CLOSED, leave_by=12.0)


@pytest.mark.parametrize(
    "response",
    [joined(E.MEMBER_ID_REQUIRED), joined(), joined(**AS_LEADER)],
    ids=["id", "joined", "leads"],
)
def test_a_member_that_closes_in_its_first_join_waits_for_its_id(
    response: JoinGroupResponse,
) -> None:
    """A group waited for the id of a consumer that was cancelled in its first JoinGroup, until that
    id's session ended (KIP-394)."""
    assert step(JOINING, CLOSED) == (AWAITING_ID, (WakeAt(time=12.0),))
    assert step(AWAITING_ID, reply(2, response, now=11.0)) == (
        evolve(
            AWAITING_ID,
            phase=Phase.LEAVING,
            member_id="m1",
            member_id_token=2,
            pending=3,
            last_token=3,
            leave_by=21.0,
            is_connection_held=True,
        ),
        (leave(3, "closed", Route.SEPARATE_CONNECTION), WakeAt(time=21.0)),
    )


@pytest.mark.parametrize(
    ("event", "doubt"),
    [
        (reply(2, joined(E.NOT_COORDINATOR)), ""),
        (reply(2, joined(E.UNKNOWN_MEMBER_ID)), ""),
        (SendFailed(now=11.0, token=2, error=LOST), ""),
        (Woke(now=12.0), "the coordinator did not answer in time"),
    ],
    ids=["moved", "refused", "disconnected", "late"],
)
def test_a_member_whose_id_does_not_arrive_ends(event: ClassicEvent, doubt: str) -> None:
    after, effects = step(AWAITING_ID, event)
    assert (after.phase, effects) == (Phase.LEFT, (Leave(doubt=doubt),))


def test_the_wait_for_an_id_ends_with_the_close() -> None:
    assert step(JOINING, evolve(CLOSED, deadline=10.5))[0].leave_by == 10.5


def test_a_second_close_changes_nothing() -> None:
    for member in (GOING, evolve(REVOKING, leaving=CLOSED)):
        assert step(member, Leaving(now=10.0, reason="again"))[0] is member


def test_closing_waits_for_a_leave_in_flight_after_an_error() -> None:
    """The application closes on the error that it got; a second `Leaving` once broke the step."""
    failing, _ = step(COMPUTING, ComputeFailed(now=10.0, token=4, error=ValueError("x")))
    assert step(failing, CLOSED) == (failing, (WakeAt(time=20.0),))
    assert step(failing, reply(5, left())) == (
        evolve(failing, phase=Phase.LEFT, pending=None),
        (Leave(),),
    )


def test_a_transition_outside_the_table_raises() -> None:
    with pytest.raises(LocalProtocolError, match=r"^no move from Phase\.STABLE to Phase\.UNJOINED"):
        step(STABLE, Started(now=10.0))


# ---------------------------------------------------------------- cooperative


KEEPING = evolve(
    REJOINING, config=COOPERATIVE, is_assigned=True, acknowledged_at=10.0, session_ends_at=20.0
)


def test_retained_partitions_stay_owned_while_the_group_rebalances() -> None:
    revoking = evolve(REVOKING, config=COOPERATIVE)
    event = Revoked(now=12.0, token=6, protocols=(("range", b"owns"),))
    after, effects = step(revoking, event)
    assert after == evolve(
        revoking,
        phase=Phase.JOINING,
        pending=7,
        last_token=7,
        protocols=(("range", b"owns"),),
        join_sent_at=12.0,
        next_heartbeat_at=15.0,
    )
    assert [type(effect) for effect in effects] == [Send, WakeAt]
    assert after.ownership.lease_expires_at == 20.0


PARKED = evolve(REVOKING, config=COOPERATIVE, phase=Phase.JOINING, pending=7, last_token=7)
"""Keeps what it has while its join is parked, or has never come to the coordinator."""
JOIN_AND_HEARTBEAT_SENT = evolve(
    PARKED, heartbeat_in_flight=8, last_token=8, heartbeat_sent_at=15.0, next_heartbeat_at=18.0
)


def test_a_heartbeat_beside_the_pending_join_extends_the_lease_of_retained_partitions() -> None:
    """A join that never reached the coordinator counted as a sign of life: partitions were read for
    a rebalance timeout after the group had assigned them to another member."""
    assert step(PARKED, Woke(now=15.0)) == (
        JOIN_AND_HEARTBEAT_SENT,
        (evolve(send_heartbeat(8, 5.0), route=Route.SEPARATE_CONNECTION),),
    )


@pytest.mark.parametrize(
    ("code", "stable_at", "rebalancing_at"),
    [(0, 15.0, 0.0), (E.REBALANCE_IN_PROGRESS, 10.0, 15.0)],
)
def test_a_heartbeat_accepted_beside_the_pending_join_keeps_ownership(
    code: int, stable_at: float, rebalancing_at: float
) -> None:
    known = evolve(
        JOIN_AND_HEARTBEAT_SENT,
        heartbeat_in_flight=None,
        acknowledged_at=15.0,
        stable_at=stable_at,
        rebalancing_at=rebalancing_at,
    )
    assert step(JOIN_AND_HEARTBEAT_SENT, reply(8, heartbeat_response(code), now=15.5)) == (
        known,
        (WakeAt(time=18.0),),
    )
    assert known.ownership.lease_expires_at == 25.0


def test_a_heartbeat_accepted_after_a_broken_join_keeps_ownership() -> None:
    """The response arrived just after the other connection was lost, and was ignored: nothing was
    delivered until the next one."""
    broken = step(JOIN_AND_HEARTBEAT_SENT, SendFailed(now=15.5, token=7, error=LOST))[0]
    assert (broken.phase, broken.coordinator, broken.ownership.lease_expires_at) == (
        Phase.UNJOINED,
        None,
        20.0,
    )
    known = step(broken, reply(8, heartbeat_response(), now=15.5))[0]
    assert (known.phase, known.heartbeat_in_flight, known.ownership.lease_expires_at) == (
        Phase.UNJOINED,
        None,
        25.0,
    )


@pytest.mark.parametrize(("member", "token"), [(JOIN_AND_HEARTBEAT_SENT, 8), (DRAINING, 7)])
def test_the_lease_ends_with_the_rebalance_timeout_of_the_group(member: Member, token: int) -> None:
    """A member whose join was lost receives REBALANCE_IN_PROGRESS until the rebalance ends and its
    partitions have other owners; it once kept them for one more session timeout."""
    late = evolve(member, heartbeat_sent_at=65.0)
    rebalancing = step(late, reply(token, heartbeat_response(E.REBALANCE_IN_PROGRESS), now=65.0))[0]
    assert rebalancing.ownership.lease_expires_at == 10.0 + CONFIG.rebalance_timeout
    assert (
        step(late, reply(token, heartbeat_response(), now=65.0))[0].ownership.lease_expires_at
        == 75.0
    )


def test_a_member_that_joins_again_without_a_response_to_its_sync_group_is_still_unsynced() -> None:
    """A broker before 2.7 that has not received the new JoinGroup responses the heartbeat without
    beginning a session (KAFKA-10134). The member once delivered on after its lease."""
    syncing = evolve(SYNCING, is_assigned=True, heartbeat_in_flight=9, last_token=9)
    waiting, _ = step(syncing, SendFailed(now=12.0, token=5, error=LOST))
    joining, _ = step(evolve(waiting, coordinator=NODE, lookup_in_flight=None), Woke(now=13.0))
    assert joining.phase is Phase.JOINING
    token = joining.last_token + 1
    beating = evolve(joining, heartbeat_in_flight=token, heartbeat_sent_at=14.0, last_token=token)
    response = reply(token, heartbeat_response(E.REBALANCE_IN_PROGRESS), now=14.1)
    assert step(beating, response)[0].ownership == syncing.ownership
    synced_before = evolve(beating, is_unsynced=False)
    assert step(synced_before, response)[0].ownership.lease_expires_at == 24.0


@pytest.mark.parametrize("member", [COMPUTING, FOLLOWING], ids=lambda m: m.phase.value)
def test_the_lease_ends_with_the_rebalance_timeout_while_sync_group_is_pending(
    member: Member,
) -> None:
    """The coordinator removes a member whose SyncGroup is lost a rebalance timeout after the last
    join, and until then answers its heartbeats. It once kept its partitions for a session more."""
    token = member.last_token + 1
    late = evolve(member, is_assigned=True, heartbeat_in_flight=token, last_token=token)
    for sent, expires_at in ((13.0, 23.0), (59.0, 69.0), (65.0, 70.0), (71.0, 70.0)):
        late = evolve(late, heartbeat_in_flight=token, heartbeat_sent_at=sent)
        late, _ = step(late, reply(token, heartbeat_response(), now=sent))
        assert late.ownership.lease_expires_at == expires_at


def test_a_heartbeat_that_found_members_joining_begins_the_timeout_of_sync_group() -> None:
    heard = evolve(JOIN_AND_HEARTBEAT_SENT, heartbeat_in_flight=8)
    heard, _ = step(heard, reply(8, heartbeat_response(E.REBALANCE_IN_PROGRESS), now=15.5))
    synced, _ = step(heard, reply(7, joined(), now=20.0))
    assert (synced.phase, synced.joined_after) == (Phase.SYNCING, 15.0)


def test_unknown_member_id_beside_the_pending_join_loses_retained_partitions() -> None:
    """The join was lost, and the group rebalanced without this member; it once read on until the
    join timed out."""
    reason = "the coordinator does not know this member"
    assert step(
        JOIN_AND_HEARTBEAT_SENT, reply(8, heartbeat_response(E.UNKNOWN_MEMBER_ID), now=15.5)
    ) == (
        evolve(
            JOIN_AND_HEARTBEAT_SENT,
            phase=Phase.LOSING,
            member_id="",
            is_assigned=False,
            heartbeat_in_flight=None,
            pending=9,
            last_token=9,
            reason=reason,
        ),
        (Lose(token=9, reason=reason),),
    )


def test_fenced_beside_the_pending_join_is_fatal() -> None:
    static = evolve(JOIN_AND_HEARTBEAT_SENT, config=evolve(COOPERATIVE, group_instance_id="i"))
    error = Like(FencedError, "another member now has group_instance_id 'i'")
    after, effects = step(static, reply(8, heartbeat_response(E.FENCED_INSTANCE_ID), now=15.5))
    assert (after.phase, after.ownership.is_assigned) == (Phase.LOSING, False)
    assert effects == (Fail(error=error), Lose(token=9, reason=error.args[1]))


@pytest.mark.parametrize(
    "event",
    [
        *(reply(8, heartbeat_response(c)) for c in (E.ILLEGAL_GENERATION, 16, 14, 30)),
        SendFailed(now=10.0, token=8, error=ConnectionLostError("gone")),
    ],
)
def test_other_errors_beside_the_pending_join_await_its_response(event: ClassicEvent) -> None:
    """The generation may just have ended because the join is about to be answered."""
    unknown = evolve(JOIN_AND_HEARTBEAT_SENT, heartbeat_in_flight=None)
    assert step(JOIN_AND_HEARTBEAT_SENT, event) == (unknown, (WakeAt(time=18.0),))


def test_a_heartbeat_sent_before_the_join_still_extends_the_lease() -> None:
    """The response was ignored: a member that had just found its coordinator again delivered
    nothing until the group had joined."""
    draining = evolve(DRAINING, config=COOPERATIVE)
    joining = step(draining, Revoked(now=13.5, token=6))[0]
    assert (joining.phase, joining.ownership.lease_expires_at) == (Phase.JOINING, 20.0)
    assert (
        step(joining, reply(7, heartbeat_response(), now=14.0))[0].ownership.lease_expires_at
        == 23.0
    )
    waiting = step(evolve(draining, retry_at=15.0), Revoked(now=13.5, token=6))[0]
    assert waiting.phase is Phase.UNJOINED
    assert (
        step(waiting, reply(7, heartbeat_response(), now=14.0))[0].ownership.lease_expires_at
        == 23.0
    )
    assert step(DRAINING, Revoked(now=13.5, token=6))[0].heartbeat_in_flight is None


def test_a_heartbeat_beside_the_join_does_not_count_for_its_generation() -> None:
    after, _ = step(JOIN_AND_HEARTBEAT_SENT, reply(7, joined(), now=16.0))
    assert after.heartbeat_in_flight is None
    assert step(after, reply(8, heartbeat_response(E.ILLEGAL_GENERATION), now=16.0))[0] == after


def test_a_heartbeat_beside_the_sync_does_not_delay_the_next() -> None:
    """Its connection was dead, and no other heartbeat was sent until that was known."""
    syncing = evolve(
        SYNCING, config=COOPERATIVE, is_assigned=True, heartbeat_in_flight=6, last_token=6
    )
    stable = step(syncing, reply(5, synced(), now=10.0))[0]
    assert stable.heartbeat_in_flight is None
    heartbeat_in_flight, effects = step(stable, Woke(now=10.25))
    assert effects[0] == send_heartbeat(7, 9.75)
    assert (
        step(heartbeat_in_flight, reply(6, heartbeat_response(E.REBALANCE_IN_PROGRESS), now=10.25))[
            0
        ]
        == heartbeat_in_flight
    )


def test_a_late_heartbeat_response_may_end_the_membership() -> None:
    """The coordinator was invalidated while a join was in flight; commits continued."""
    doubting = step(HEARTBEAT_SENT, CoordinatorInvalidated(now=13.0, reason="no answer"))[0]
    assert (doubting.phase, doubting.heartbeat_in_flight) == (Phase.STABLE, None)
    for code in (E.NONE, E.REBALANCE_IN_PROGRESS):
        assert step(doubting, reply(6, heartbeat_response(code), now=13.0))[0] == doubting
    over, effects = step(doubting, reply(6, heartbeat_response(E.ILLEGAL_GENERATION), now=13.0))
    assert (over.phase, over.member_id, over.ownership.is_assigned) == (Phase.LOSING, "m1", False)
    assert effects[0] == Lose(token=8, reason="the generation has ended")
    earlier = evolve(doubting, generation_token=6)
    assert step(earlier, reply(6, heartbeat_response(E.ILLEGAL_GENERATION), now=13.0))[0] == earlier
    over, effects = step(doubting, reply(6, heartbeat_response(E.UNKNOWN_MEMBER_ID), now=13.0))
    assert (over.phase, over.member_id, over.ownership.is_assigned) == (Phase.LOSING, "", False)
    assert effects[0] == Lose(token=8, reason="the coordinator does not know this member")


def test_heartbeats_are_frequent_after_a_rebalance_and_slow_down() -> None:
    syncing = evolve(SYNCING, config=COOPERATIVE, is_assigned=True)
    stable = evolve(
        syncing,
        phase=Phase.STABLE,
        is_unsynced=False,
        pending=None,
        assigned_generation=5,
        session_ends_at=20.0,
        first_heartbeat_delay=0.25,
        next_heartbeat_at=10.25,
    )
    assert step(syncing, reply(5, synced(), now=10.0)) == (
        stable,
        (Assign(generation=generation()), WakeAt(time=10.25)),
    )
    assert step(stable, Woke(now=10.25))[0].next_heartbeat_at == 10.5
    assert step(stable, Woke(now=14.0))[0].next_heartbeat_at == 15.0
    assert step(stable, Woke(now=19.0))[0].next_heartbeat_at == 21.25
    late = evolve(stable, session_ends_at=40.0)
    assert step(late, Woke(now=30.0))[0].next_heartbeat_at == 33.0


def test_first_heartbeats_slow_down_while_generations_end_at_once() -> None:
    """A coordinator that ends every generation at once must not be flooded."""
    member, pauses = evolve(SYNCING, config=COOPERATIVE), []
    for _ in range(4):
        stable = step(member, reply(5, synced(), now=10.0))[0]
        pauses.append(stable.next_heartbeat_at - 10.0)
        member = evolve(member, first_heartbeat_delay=stable.first_heartbeat_delay)
    assert pauses == [0.25, 1.0, 3.0, 3.0]
    heartbeat_in_flight = evolve(stable, heartbeat_in_flight=6, heartbeat_sent_at=15.0)
    assert (
        step(heartbeat_in_flight, reply(6, heartbeat_response(), now=15.0))[0].first_heartbeat_delay
        == 0.0
    )
    again = step(
        heartbeat_in_flight, reply(6, heartbeat_response(E.REBALANCE_IN_PROGRESS), now=15.0)
    )[0]
    assert again.first_heartbeat_delay == 3.0


@pytest.mark.parametrize(
    ("member", "token", "message"),
    [
        (KEEPING, 3, joined(E.UNKNOWN_MEMBER_ID)),
        (evolve(SYNCING, config=COOPERATIVE, is_assigned=True), 5, synced(E.UNKNOWN_MEMBER_ID)),
    ],
    ids=["join", "sync"],
)
def test_retained_partitions_are_lost_when_the_generation_is_reset(
    member: Member, token: int, message: Any
) -> None:
    reason = "the coordinator does not know this member"
    lose = token + 1
    assert step(member, reply(token, message)) == (
        evolve(
            member,
            phase=Phase.LOSING,
            member_id="",
            is_assigned=False,
            pending=lose,
            last_token=lose,
            reason=reason,
        ),
        (Lose(token=lose, reason=reason),),
    )


def test_retained_partitions_are_lost_when_a_static_member_missed_a_generation() -> None:
    """A rebalance that did not wait for the member reassigns its partitions, and it stays a member:
    it read and committed partitions that another member had owned for a generation."""
    static = evolve(COOPERATIVE, group_instance_id="i1")
    keeping = evolve(KEEPING, config=static, generation_id=5)
    reason = "the group had a generation without this member"
    assert step(keeping, reply(3, joined(generation_id=7), now=12.0)) == (
        evolve(
            keeping, phase=Phase.LOSING, is_assigned=False, pending=4, last_token=4, reason=reason
        ),
        (Lose(token=4, reason=reason),),
    )
    for member, generation_id in ((keeping, 6), (evolve(keeping, config=COOPERATIVE), 7)):
        after, _ = step(member, reply(3, joined(generation_id=generation_id), now=12.0))
        assert (after.phase, after.ownership.is_assigned) == (Phase.SYNCING, True)


OLD_GENERATION = evolve(KEEPING, generation_id=5, assigned_generation=4)
"""It has joined generation 5, and still has the assignment of generation 4."""


@pytest.mark.parametrize(
    "member",
    [
        OLD_GENERATION,
        evolve(OLD_GENERATION, phase=Phase.SYNCING, assigned_generation=5),
        evolve(OLD_GENERATION, assigned_generation=5, acknowledged_at=0.0),
    ],
    ids=["earlier generation", "syncing", "without a lease"],
)
def test_closing_in_a_cooperative_rebalance_loses_partitions(member: Member) -> None:
    lost = evolve(
        member,
        phase=Phase.LOSING,
        is_assigned=False,
        pending=4,
        last_token=4,
        reason="closed",
        leaving=CLOSED,
    )
    assert step(member, CLOSED) == (lost, (Lose(token=4, reason="closed"),))
    assert step(lost, Revoked(now=10.0, token=4)) == (
        evolve(
            lost,
            phase=Phase.LEAVING,
            generation_id=-1,
            pending=5,
            last_token=5,
            leave_by=20.0,
            is_connection_held=True,
        ),
        (leave(5, "closed", Route.SEPARATE_CONNECTION), WakeAt(time=20.0)),
    )


@pytest.mark.parametrize("phase", [Phase.UNJOINED, Phase.JOINING], ids=lambda p: p.value)
def test_closing_before_a_cooperative_generation_ends_revokes(phase: Phase) -> None:
    """The coordinator takes commits of a generation until all members have joined the next one. A
    member that was closed then lost its partitions, and others processed their records again."""
    keeping = evolve(KEEPING, generation_id=5, assigned_generation=5, next_heartbeat_at=13.0)
    if phase is Phase.UNJOINED:
        keeping = evolve(keeping, phase=phase, pending=None, retry_at=11.0)
    revoking, effects = step(keeping, CLOSED)
    assert (revoking.phase, revoking.ownership.is_revoking, revoking.may_commit) == (
        Phase.REVOKING,
        True,
        True,
    )
    assert effects == (Revoke(token=4, deadline=55.0), WakeAt(time=13.0))
    # JoinGroup may be in purgatory: everything else goes over another connection.
    later, effects = step(revoking, Woke(now=13.0))
    heartbeat = evolve(send_heartbeat(5, 7.0), route=Route.SEPARATE_CONNECTION)
    assert effects[0] == heartbeat
    # The group has a new generation: nothing can be committed any more.
    lost, effects = step(later, reply(5, heartbeat_response(E.ILLEGAL_GENERATION), now=13.5))
    assert (lost.phase, effects[0]) == (
        Phase.LOSING,
        Lose(token=6, reason="the generation has ended"),
    )
    leaving, effects = step(revoking, Revoked(now=11.0, token=4))
    assert (leaving.phase, leaving.ownership.is_assigned) == (Phase.LEAVING, False)
    assert effects[0] == leave(5, "closed", Route.SEPARATE_CONNECTION)
    # A late response to the join changes nothing.
    assert step(leaving, reply(3, joined(generation_id=6), now=11.0))[0] == leaving


def test_an_application_that_did_not_poll_in_a_cooperative_rebalance_loses() -> None:
    keeping = evolve(KEEPING, generation_id=5, assigned_generation=5)
    assert step(keeping, evolve(CLOSED, lost=True))[0].phase is Phase.LOSING


def test_when_the_lease_expires() -> None:
    """Never after a loss: other members may own the partitions, whatever the session says."""
    assert {
        name: member.ownership.lease_expires_at
        for name, member in (
            ("stable", STABLE),
            ("revoking", REVOKING),
            ("losing", LOSING),
            ("joining", REJOINING),
            (
                "failing",
                step(HEARTBEAT_SENT, reply(6, heartbeat_response(E.INVALID_REQUEST)))[0],
            ),
            ("fenced", step(HEARTBEAT_SENT, reply(6, heartbeat_response(E.FENCED_INSTANCE_ID)))[0]),
        )
    } == {
        "stable": 20.0,
        "revoking": 20.0,
        "losing": 0.0,
        "joining": 0.0,
        "failing": 0.0,
        "fenced": 0.0,
    }


# ---------------------------------------------------------------- back-off


def test_backoff_doubles_up_to_its_limit_with_jitter_of_a_fifth() -> None:
    assert [backoff(n, 0.125, 1.0, 0.5) for n in range(1, 6)] == [0.125, 0.25, 0.5, 1.0, 1.0]
    assert backoff(10_000, 0.1, 1.0, 0.0) == 0.8
    assert backoff(10_000, 0.1, 1.0, 1.0) == pytest.approx(1.2)


def test_near_a_deadline_a_pause_leaves_time_for_an_attempt() -> None:
    lefts = (math.inf, 4.0, 1.5, 0.5, 0.2, 0.0, -5.0)
    pauses = [backoff_within(1.0, 0.125, left) for left in lefts]
    assert pauses == [1.0, 1.0, 0.75, 0.25, 0.125, 0.125, 0.125]
    assert backoff_within(0.1, 0.125, 0.0) == 0.1


# ---------------------------------------------------------------- a script for a broker


Script = Mapping[type, Any]
"""Request class -> its error codes: one for each of the first requests, or one for all."""


class RespondingBroker:
    """One member and a broker that responds at once, in virtual time.

    The worst case for a retry that does not wait: no response takes any time.
    """

    def __init__(self, script: Script, config: MemberConfig = CONFIG, jitter: float = 0.5) -> None:
        self.script = dict(script)
        self.jitter = jitter
        self.now = 0.0
        self.member = evolve(IDLE, config=config)
        self.sent: list[tuple[float, Any]] = []
        self.queue: list[Callable[[], ClassicEvent]] = [
            lambda: Started(now=self.now, jitter=jitter)
        ]
        self.wake: float | None = None

    def run(self, until: float, most: int = 10_000) -> None:
        while len(self.sent) < most:
            if self.queue:
                event = self.queue.pop(0)()
            elif self.wake is not None and self.wake <= until:
                self.now, self.wake = self.wake, None
                event = Woke(now=self.now, jitter=self.jitter)
            else:
                return
            self.member, effects = step(self.member, event)
            for effect in effects:
                self.carry_out(effect)

    def carry_out(self, effect: ClassicEffect) -> None:
        stamp = {"now": self.now, "jitter": self.jitter}
        match effect:
            case Send(token=token) | FindCoordinator(token=token):
                request = effect.request if isinstance(effect, Send) else effect
                self.sent.append((self.now, request))
                response = self.respond(request)
                if isinstance(response, Exception):
                    failed = SendFailed(token=token, error=response, **stamp)
                    self.queue.append(lambda: failed)
                else:
                    replied = Replied(token=token, message=response, **stamp)
                    self.queue.append(lambda: replied)
            case Revoke(token=token) | Lose(token=token):
                revoked = Revoked(token=token, **stamp)
                self.queue.append(lambda: revoked)
            case Compute(token=token, members=members):
                computed = Computed(token=token, assignments=dict.fromkeys(members, b""), **stamp)
                self.queue.append(lambda: computed)
            case WakeAt(time=time):
                assert time > self.now
                self.wake = time

    def respond(self, request: Any) -> Any:
        code = self.script.get(type(request), E.NONE)
        if isinstance(code, list):
            code = code.pop(0) if code else E.NONE
        if isinstance(code, Exception):
            return code
        match request:
            case FindCoordinator():
                return found(code)
            case JoinGroupRequest(member_id=member_id):
                if not code and not member_id:
                    code = E.MEMBER_ID_REQUIRED
                leads = {} if code else AS_LEADER
                return joined(code, **leads)
            case SyncGroupRequest():
                return synced(code)
            case HeartbeatRequest():
                return heartbeat_response(code)
            case _:
                return left(code)

    def most_in_a_second(self) -> int:
        times = [time for time, _ in self.sent]
        return max(sum(t <= other < t + 1.0 for other in times) for t in times)


APIS = [
    FindCoordinator,
    JoinGroupRequest,
    SyncGroupRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
]
DEFAULTS = MemberConfig(group_id="g", protocol_type="consumer")


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__)
def test_l6_no_hot_loop_under_any_permanent_error(api: type) -> None:
    for code in (*ErrorCode, 999, LOST, LATE, DecodeError("garbage")):
        broker = RespondingBroker({api: code}, DEFAULTS, jitter=0.0)
        broker.run(until=15.0, most=600)
        assert broker.most_in_a_second() <= 20, repr(code)
        assert not broker.queue, repr(code)


def test_l6_no_hot_loop_when_two_apis_fail() -> None:
    retried = (
        E.UNKNOWN_MEMBER_ID,
        E.ILLEGAL_GENERATION,
        E.REBALANCE_IN_PROGRESS,
        E.NOT_COORDINATOR,
        E.COORDINATOR_LOAD_IN_PROGRESS,
        LOST,
    )
    for first in retried:
        for second in retried:
            broker = RespondingBroker(
                {SyncGroupRequest: first, HeartbeatRequest: second}, DEFAULTS, 0.0
            )
            broker.run(until=15.0, most=600)
            assert broker.most_in_a_second() <= 20, (first, second)


def test_l2_a_healthy_member_sends_heartbeats_and_nothing_else() -> None:
    broker = RespondingBroker({})
    broker.run(until=60.0)
    assert [type(r) for _, r in broker.sent[:4]] == [
        FindCoordinator,
        JoinGroupRequest,
        JoinGroupRequest,
        SyncGroupRequest,
    ]
    assert [(t, type(r)) for t, r in broker.sent[4:]] == [
        (3.0 * n, HeartbeatRequest) for n in range(21)
    ]


# ---------------------------------------------------------------- random runs


class RandomRun:
    """A member whose every response is drawn at random, run as the driver does.

    Requests are answered in any order, late ones included; the application works one at a time.
    """

    CODES = (
        E.NONE,
        E.NONE,
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
        E.ILLEGAL_GENERATION,
        E.REBALANCE_IN_PROGRESS,
        E.NOT_COORDINATOR,
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.MEMBER_ID_REQUIRED,
    )
    FATAL = (E.FENCED_INSTANCE_ID, E.GROUP_AUTHORIZATION_FAILED, E.INVALID_REQUEST)

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 10.0
        # Every other run is cooperative: its member keeps its partitions during a rebalance.
        self.member = evolve(IDLE, config=evolve(CONFIG, cooperative=bool(seed % 2)))
        self.sends: dict[int, Any] = {}
        """The requests in flight, by token."""
        self.answered: list[Replied | SendFailed] = []
        self.work: list[Revoke | Lose | Compute] = []
        self.wake: float | None = None
        self.seen: set[tuple[Phase, Phase]] = set()
        self.over = False

    def live(self, steps: int) -> None:
        self.take(Started(now=self.now))
        for _ in range(steps):
            self.now += self.random.choice((0.0, 0.0, 0.25, 1.0, 4.0, 12.0))
            self.take(self.happening())
            self.check_not_stuck()

    def happening(self) -> ClassicEvent:
        choice = self.random.random()
        if choice < 0.45 and self.sends:
            token = self.random.choice(list(self.sends))
            return self.respond(token, self.sends.pop(token))
        if choice < 0.5 and self.answered:
            return evolve(self.random.choice(self.answered), now=self.now)
        if choice < 0.75 and self.work:
            work = self.work.pop(0)
            if not isinstance(work, Compute):
                return Revoked(now=self.now, token=work.token)
            if self.random.random() < 0.05:
                return ComputeFailed(now=self.now, token=work.token, error=ValueError("x"))
            assignments = dict.fromkeys(work.members, b"a")
            return Computed(now=self.now, token=work.token, assignments=assignments)
        if choice < 0.8:
            return RejoinRequested(now=self.now, reason="again")
        if choice < 0.81:
            return CoordinatorInvalidated(now=self.now, reason="r")
        if choice < 0.83:
            flags = (self.random.random() < 0.5, self.random.random() < 0.5)
            return Leaving(now=self.now, reason="bye", leave_group=flags[0], lost=flags[1])
        if self.wake is not None:
            self.now = max(self.now, self.wake)
            self.wake = None
        return Woke(now=self.now, jitter=self.random.random())

    def respond(self, token: int, request: Any) -> ClassicEvent:
        if self.random.random() < 0.1:
            error = self.random.choice((LOST, LATE, DecodeError("x")))
            return SendFailed(now=self.now, token=token, error=error)
        code = self.random.choice(self.FATAL if self.random.random() < 0.03 else self.CODES)
        message: Any
        match request:
            case FindCoordinator():
                possible = code in (E.NOT_COORDINATOR, *self.FATAL[1:])
                message = found(code if possible else E.NONE)
            case JoinGroupRequest():
                leads = AS_LEADER if self.random.random() < 0.5 else {}
                message = joined(code, **leads)
            case SyncGroupRequest():
                message = synced(E.NONE if code == E.MEMBER_ID_REQUIRED else code)
            case HeartbeatRequest():
                # Half of them succeed: a new member is stable only after one.
                fails = self.random.random() < 0.5 and code != E.MEMBER_ID_REQUIRED
                message = heartbeat_response(code if fails else E.NONE)
            case _:
                message = left(code)
        event = reply(token, message, self.now)
        self.answered.append(event)
        return event

    def take(self, event: ClassicEvent) -> None:
        before = self.member
        self.member, effects = step(before, event)
        self.seen.add((before.phase, self.member.phase))
        assert not (self.over and effects), "something follows the end"
        for effect in effects:
            self.check(before, effect)
            match effect:
                case Send(token=token) | FindCoordinator(token=token):
                    assert token not in self.sends
                    self.sends[token] = effect.request if isinstance(effect, Send) else effect
                case Revoke() | Lose() | Compute():
                    self.work.append(effect)
                case WakeAt(time=time):
                    assert time > self.now, "a wake-up in the past would spin"
                    self.wake = time
                case Leave():
                    self.over = True

    def check(self, before: Member, effect: ClassicEffect) -> None:
        match effect:
            case Send(request=JoinGroupRequest() as request):
                assert self.member.phase is Phase.JOINING
                # S2: owned partitions are revoked before the next request to the group.
                assert not any(isinstance(work, Revoke | Lose) for work in self.work)
                assert request.member_id == self.member.member_id
            case Send(request=HeartbeatRequest() as request):
                parked = self.member.phase in PURGATORY and self.member.ownership.is_assigned
                assert self.member.phase in HEARTBEATING or parked
                assert request.generation_id == self.member.generation_id
            case Lose():
                assert not any(isinstance(work, Lose) for work in self.work), "lost twice"
            case Assign(generation=info):
                assert before.phase in (Phase.SYNCING, Phase.SYNCED)
                assert self.now < self.member.ownership.lease_expires_at
                assert info.generation_id == before.generation_id

    def check_not_stuck(self) -> None:
        """Check that an event will follow: a response, the end of the application's work, or a
        wake-up."""
        member = self.member
        working = any(work.token == member.pending for work in self.work)
        match member.phase:
            case Phase.UNJOINED:
                alive = member.lookup_in_flight in self.sends or self.wake is not None
            case Phase.JOINING | Phase.SYNCING | Phase.LEAVING:
                alive = member.pending in self.sends
            case Phase.COMPUTING | Phase.REVOKING:
                alive = working and self.wake is not None
            case Phase.SYNCED | Phase.STABLE:
                alive = self.wake is not None
            case Phase.LOSING:
                alive = working
            case _:
                alive = True
        assert alive, member


@settings(max_examples=600)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_runs_never_get_stuck_or_leave_the_transition_table(seed: int) -> None:
    RandomRun(seed).live(80)


def test_random_runs_make_every_transition_of_the_table() -> None:
    """So the test above covers the whole table, and the table has no superfluous row."""
    seen: set[tuple[Phase, Phase]] = set()
    for seed in range(2_000):
        random_run = RandomRun(seed)
        random_run.live(80)
        seen |= random_run.seen
    missing = {(a, b) for a, targets in MOVES.items() for b in targets} - seen
    assert {f"{a.value} -> {b.value}" for a, b in missing} == {
        "idle -> left",  # closed before it was started
    }


# ---------------------------------------------------------------- giving up, and doubts


LIMITED = evolve(CONFIG, max_retries=1)


def test_joining_ends_after_the_maximum_of_attempts() -> None:
    loading = reply(2, joined(E.COORDINATOR_LOAD_IN_PROGRESS))
    once, _ = step(evolve(JOINING, config=LIMITED), loading)
    assert (once.phase, once.join_failures) == (Phase.UNJOINED, 1)
    again, _ = step(once, Woke(now=11.0))
    assert again.phase is Phase.JOINING
    twice = Replied(now=11.0, token=again.pending or 0, message=joined(E.NOT_COORDINATOR))
    failed, effects = step(again, twice)
    assert failed.phase is Phase.FAILED
    words = (
        "joining group 'g' failed 2 times in a row: NOT_COORDINATOR (16): JoinGroup of group 'g'"
    )
    assert effects == (Fail(error=Like(JoinFailedError, words)),)


def test_a_generation_resets_the_count_of_failures_and_heartbeats_do_not_count() -> None:
    member, _ = step(evolve(SYNCING, config=LIMITED, join_failures=1), reply(5, synced()))
    assert (member.phase, member.join_failures) == (Phase.STABLE, 0)
    heartbeat_in_flight = evolve(HEARTBEAT_SENT, config=LIMITED)
    for _ in range(3):
        heartbeat_in_flight, _ = step(
            evolve(heartbeat_in_flight, heartbeat_in_flight=6),
            reply(6, heartbeat_response(E.NOT_COORDINATOR)),
        )
    assert (heartbeat_in_flight.phase, heartbeat_in_flight.join_failures) == (Phase.STABLE, 0)


def test_without_a_maximum_joining_is_retried_forever() -> None:
    member, _ = step(JOINING, reply(2, joined(E.COORDINATOR_LOAD_IN_PROGRESS)))
    assert (member.join_failures, member.trouble) == (0, "")


def test_invalidating_the_coordinator_keeps_the_generation() -> None:
    assert step(STABLE, CoordinatorInvalidated(now=11.0, reason="drained")) == (
        evolve(STABLE, coordinator=None, lookup_in_flight=6, last_token=6),
        (find(6), WakeAt(time=20.0)),
    )


def test_a_failed_assignment_is_ignored_while_leaving() -> None:
    """A member fenced while the application decoded an invalid assignment left twice."""
    late = AssignFailed(now=10.0, error=DecodeError("x"))
    assert step(GOING, late) == (GOING, (WakeAt(time=20.0),))

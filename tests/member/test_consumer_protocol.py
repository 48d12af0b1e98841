"""The protocol of KIP-848 as a function: `step(member, event) == (member, effects)`.

Times are seconds on a clock that only events advance. Backoff is 1/8 s at jitter 0.5, so every sum
of times is exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from members import checked, evolve

from kafkagroup.errors import (
    AuthenticationError,
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
from kafkagroup.member import consumer_protocol
from kafkagroup.member.config import MemberConfig
from kafkagroup.member.consumer_state import (
    HEARTBEATING,
    MOVES,
    Member,
    Phase,
    ReportedState,
)
from kafkagroup.member.consumer_target import PartitionsByTopicId, Target
from kafkagroup.member.consumer_vocabulary import (
    ConsumerEffect,
    ConsumerEvent,
    FallBack,
    LookUpNames,
    Reconcile,
    Subscribed,
    TopicsNamed,
)
from kafkagroup.member.vocabulary import (
    AssignFailed,
    AssignmentApplied,
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
from kafkagroup.types import TopicPartition, by_topic
from kafkagroup.wire.embedded_protocol import assigned_partitions
from kafkagroup.wire.messages.consumer_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

E = ErrorCode
NODE = Coordinator(1, "one", 9092)
LOST = ConnectionLostError("reset by peer")
LATE = RequestTimeoutError("late")
T, U, V = UUID(int=1), UUID(int=2), UUID(int=3)
NAMES = {T: "t", U: "u"}
IDS = {"t": T, "u": U, "v": V}
CONFIG = MemberConfig(
    group_id="g",
    session_timeout=10.0,
    rebalance_timeout=60.0,
    heartbeat_interval=3.0,
    settling_interval=0.25,
    request_timeout=30.0,
    retry_backoff=0.125,
    retry_backoff_max=1.0,
)


step = checked("consumer", consumer_protocol.step)


class Like(Exception):
    """Equals any exception of this type with this message."""

    def __init__(self, kind: type[Exception], words: str) -> None:
        super().__init__(kind, words)

    def __eq__(self, other: object) -> bool:
        return (type(other), str(other)) == self.args

    __hash__ = None  # type: ignore[assignment]


# ---------------------------------------------------------------- a member in each phase, at 10.0


def state_with(owned: PartitionsByTopicId | None = None, **changes: Any) -> ReportedState:
    fields: dict[str, Any] = {"topics": ("t", "u"), "pattern": None, "owned": owned or {}}
    return ReportedState(**{**fields, **changes})


IDLE = Member(config=CONFIG, member_id="m1", topics=("t", "u"), names=NAMES)
FINDING = evolve(IDLE, phase=Phase.UNJOINED, lookup_in_flight=1, last_token=1)
JOINING = evolve(
    IDLE,
    phase=Phase.JOINING,
    coordinator=NODE,
    pending=2,
    last_token=2,
    may_be_known=True,
    state_in_flight=state_with(),
    heartbeat_sent_at=10.0,
    next_heartbeat_at=13.0,
)
JOINED = evolve(
    JOINING,
    phase=Phase.MEMBER,
    pending=None,
    epoch=5,
    acknowledged_state=state_with(),
    state_in_flight=None,
    broker_interval=5.0,
    acknowledged_at=10.0,
    last_acknowledged_at=10.0,
    session_ends_at=20.0,
    next_heartbeat_at=10.25,
    frequent_until=16.0,
)
MINE = Target({T: (0, 1)})
TAKING = evolve(JOINED, target=MINE, next_owned=MINE, reconciling=3, is_assigned=True, last_token=3)
OWNING = evolve(
    TAKING,
    reconciling=None,
    next_owned={},
    owned=MINE,
    acknowledged_state=state_with(MINE),
    immediate_heartbeats=0,
    frequent_until=0.0,
)
"""At rest: the coordinator knows what it owns."""
BEATING_ = evolve(
    OWNING,
    heartbeat_in_flight=4,
    state_in_flight=state_with(MINE),
    last_token=4,
    next_heartbeat_at=13.0,
)
REVOKING = evolve(OWNING, phase=Phase.REVOKING, pending=4, last_token=4, reason="closed")
OUTSIDE = evolve(
    OWNING,
    epoch=0,
    target=None,
    owned={},
    acknowledged_state=None,
    is_assigned=False,
)
LOSING = evolve(OUTSIDE, phase=Phase.LOSING, pending=5, last_token=5, may_be_known=False)
CLOSED = Leaving(now=10.0, reason="closed")
LEAVING = evolve(
    OUTSIDE, phase=Phase.LEAVING, pending=5, last_token=5, leaving=CLOSED, leave_by=20.0
)
STATIC = evolve(CONFIG, group_instance_id="i")
RELEASING = evolve(
    JOINING,
    config=STATIC,
    phase=Phase.RELEASING,
    pending=3,
    last_token=3,
    state_in_flight=None,
    heartbeat_sent_at=0.0,
    next_heartbeat_at=0.0,
)


def find(token: int) -> FindCoordinator:
    return FindCoordinator(token=token, timeout=30.0)


def send(token: int, epoch: int, timeout: float, **fields: Any) -> Send:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m1", member_epoch=epoch, **fields
    )
    return Send(
        token=token, request=request, route=Route.COORDINATOR, coordinator=NODE, timeout=timeout
    )


def leave(token: int, epoch: int, timeout: float = 5.0, **fields: Any) -> Send:
    """Return the effect of a member that has 10 s left for leaving."""
    return send(token, epoch, timeout, **fields)


def release(token: int) -> Send:
    """Return the effect of a static member that releases its instance id before it joins."""
    return evolve(send(token, -2, 30.0, instance_id="i"), lowest=1)


def send_heartbeat(
    token: int, epoch: int, left: float, *, timed_out: bool = False, **fields: Any
) -> Send:
    """The heartbeat with `left` seconds until the session ends. An attempt has a third of them, and
    one after a timeout has all."""
    timeout = max(left * (1 if timed_out else 1 / 3), CONFIG.heartbeat_interval)
    return send(token, epoch, timeout, **fields)


def listed(share: PartitionsByTopicId) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic_id=t, partitions=p) for t, p in share.items())


def everything(owned: PartitionsByTopicId, **fields: Any) -> dict[str, Any]:
    return {
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ("t", "u"),
        "topic_partitions": listed(owned),
        **fields,
    }


def full(token: int, epoch: int, left: float, owned: PartitionsByTopicId, **fields: Any) -> Send:
    return send_heartbeat(token, epoch, left, **everything(owned, **fields))


def join(token: int, *, timed_out: bool = False, **fields: Any) -> Send:
    timeout = 30.0 * (1 if timed_out else 1 / 3)
    return send(token, 0, timeout, **everything({}, **fields))


def found(code: int = 0) -> Coordinator | BrokerError:
    return broker_error(code, operation="DESCRIBE", group="g") if code else NODE


def heartbeat_response(
    code: int = 0, epoch: int = 5, share: PartitionsByTopicId | None = None, interval: int = 5_000
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=code,
        member_id="m1",
        member_epoch=epoch,
        heartbeat_interval_ms=interval,
        assignment=None if share is None else Assignment(topic_partitions=listed(share)),
    )


def reply(token: int, message: Any, now: float = 10.0) -> Replied | SendFailed:
    if isinstance(message, Exception):
        return SendFailed(now=now, token=token, error=message)
    return Replied(now=now, token=token, message=message)


def reconcile(token: int, *partitions: TopicPartition, epoch: int = 5) -> Reconcile:
    return Reconcile(
        token=token,
        generation=GenerationInfo(
            generation_id=epoch,
            member_id="m1",
            leader_id="",
            protocol_name="",
            members={},
            assignment=b"",
            topics={topic: tuple(numbers) for topic, numbers in by_topic(partitions).items()},
            topic_ids={tp.topic: IDS[tp.topic] for tp in partitions},
        ),
    )


T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)

# ---------------------------------------------------------------- joining


def test_a_started_member_looks_up_its_coordinator() -> None:
    assert step(IDLE, Started(now=10.0)) == (FINDING, (find(1),))


def test_the_first_heartbeat_has_a_generated_id_and_all_fields() -> None:
    assert step(FINDING, reply(1, found())) == (JOINING, (join(2),))


def test_rack_instance_and_assignor_are_sent_if_set() -> None:
    config = evolve(CONFIG, group_instance_id="i", rack="r", assignor="range")
    _member, effects = step(evolve(FINDING, config=config), reply(1, found()))
    assert effects == (join(2, instance_id="i", rack_id="r", server_assignor="range"),)


def test_a_pattern_is_sent_to_the_coordinator() -> None:
    asking = evolve(FINDING, topics=(), pattern="t.*")
    member, effects = step(asking, reply(1, found()))
    assert effects == (join(2, subscribed_topic_names=(), subscribed_topic_regex="t.*"),)
    assert (member.has_sent_pattern, member.state_in_flight) == (
        True,
        state_with(topics=(), pattern="t.*"),
    )


def test_a_response_makes_it_a_member_with_frequent_heartbeats() -> None:
    assert step(JOINING, reply(2, heartbeat_response())) == (JOINED, (WakeAt(time=10.25),))


def test_an_assignment_in_a_response_is_applied() -> None:
    assert step(JOINING, reply(2, heartbeat_response(share=MINE))) == (
        TAKING,
        (reconcile(3, T0, T1), WakeAt(time=10.25)),
    )


def test_a_first_empty_assignment_is_reported() -> None:
    member, effects = step(JOINING, reply(2, heartbeat_response(share={})))
    assert effects == (reconcile(3), WakeAt(time=10.25))
    member, effects = step(member, AssignmentApplied(now=10.0, token=3))
    assert effects == (send_heartbeat(4, 5, 10.0, topic_partitions=()), WakeAt(time=20.0))
    assert step(member, reply(4, heartbeat_response(share={})))[1] == (WakeAt(time=10.25),)


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_join_response_without_an_epoch_is_retried(epoch: int) -> None:
    member, effects = step(JOINING, reply(2, heartbeat_response(epoch=epoch)))
    assert (member.phase, member.epoch, effects) == (Phase.UNJOINED, 0, (WakeAt(time=10.125),))
    assert step(member, Woke(now=10.125))[1] == (join(3),)


@pytest.mark.parametrize("code", [E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE])
def test_a_join_at_another_broker_looks_up_the_coordinator(code: int) -> None:
    member, effects = step(JOINING, reply(2, heartbeat_response(code)))
    assert (member.coordinator, effects) == (None, (WakeAt(time=10.125),))
    assert step(member, Woke(now=10.125))[1] == (find(3),)


@pytest.mark.parametrize("error", [LOST, LATE])
def test_an_unanswered_join_is_retried_with_the_same_id(error: Exception) -> None:
    member, effects = step(JOINING, SendFailed(now=10.0, token=2, error=error))
    assert (member.coordinator, effects) == (None, (WakeAt(time=10.125),))
    member, effects = step(member, Woke(now=10.125))
    repeated = join(4, timed_out=error is LATE)
    assert step(member, reply(3, found(), 11.0))[1] == (repeated,)


def test_joining_ends_after_the_maximum_of_attempts() -> None:
    limited = evolve(JOINING, config=evolve(CONFIG, max_retries=0), may_be_known=False)
    member, effects = step(limited, reply(2, heartbeat_response(E.COORDINATOR_LOAD_IN_PROGRESS)))
    words = "joining group 'g' failed 1 times in a row: COORDINATOR_LOAD_IN_PROGRESS (14)"
    assert (member.phase, effects) == (Phase.FAILED, (Fail(error=Like(JoinFailedError, words)),))


def test_joining_ends_with_the_last_error_of_a_coordinator() -> None:
    """A response without an epoch is no error, and does not hide the one before."""
    limited = evolve(JOINING, config=evolve(CONFIG, max_retries=0), may_be_known=False)
    for trouble, cause in (("it loads", "it loads"), ("", "the coordinator gave no epoch")):
        member, effects = step(
            evolve(limited, trouble=trouble), reply(2, heartbeat_response(epoch=0))
        )
        words = f"joining group 'g' failed 1 times in a row: {cause}"
        assert (member.phase, effects[0]) == (
            Phase.FAILED,
            Fail(error=Like(JoinFailedError, words)),
        )


def test_a_refused_login_counts_as_no_attempt_to_join() -> None:
    """Until the application goes on, each request fails without being tried."""
    limited = evolve(FINDING, config=evolve(CONFIG, max_retries=0))
    for error, phase in ((AuthenticationError("x"), Phase.UNJOINED), (LOST, Phase.FAILED)):
        assert step(limited, SendFailed(now=10.0, token=1, error=error))[0].phase is phase


def test_the_maximum_of_attempts_does_not_end_a_member_that_is_losing_its_partitions() -> None:
    """The application still processes a record: nothing else of the member may end meanwhile."""
    losing = evolve(
        LOSING,
        config=evolve(CONFIG, max_retries=0),
        coordinator=None,
        lookup_in_flight=6,
        last_token=6,
    )
    member, _ = step(losing, SendFailed(now=10.0, token=6, error=LOST))
    assert member.phase is Phase.LOSING


def test_a_failed_look_up_of_the_coordinator_is_repeated_after_a_backoff() -> None:
    waiting, effects = step(FINDING, SendFailed(now=10.0, token=1, error=LOST))
    assert (waiting.lookup_in_flight, effects) == (None, (WakeAt(time=10.125),))
    assert step(waiting, Woke(now=10.125))[1] == (find(2),)


FATAL = [
    E.UNSUPPORTED_ASSIGNOR,
    E.GROUP_MAX_SIZE_REACHED,
    E.INVALID_REQUEST,
    E.GROUP_AUTHORIZATION_FAILED,
    E.INCONSISTENT_GROUP_PROTOCOL,
    999,
]


@pytest.mark.parametrize("code", FATAL)
def test_permanent_errors_are_fatal(code: int) -> None:
    member, effects = step(JOINING, reply(2, heartbeat_response(code)))
    error = broker_error(code, operation="READ", group="g")
    assert (member.phase, effects) == (Phase.FAILED, (Fail(error=error),))


PASSING = [
    E.GROUP_AUTHORIZATION_FAILED,
    E.INCONSISTENT_GROUP_PROTOCOL,
    E.UNKNOWN_SERVER_ERROR,
    999,
]


@pytest.mark.parametrize("code", PASSING)
def test_a_refusal_of_a_member_is_reported_and_repeated(code: int) -> None:
    """One missing ACL ended consumers that had worked for weeks."""
    error = broker_error(code, operation="READ", group="g")
    member, effects = step(BEATING_, reply(4, heartbeat_response(code)))
    assert (member.phase, effects) == (
        Phase.MEMBER,
        (ReportError(error=error), WakeAt(time=10.125)),
    )
    member, _ = step(member, Woke(now=10.125))
    member, effects = step(member, reply(5, heartbeat_response(code), 10.125))
    assert (member.phase, effects) == (Phase.MEMBER, (WakeAt(time=10.375),))


@pytest.mark.parametrize("code", PASSING)
def test_a_refused_rejoin_is_reported_and_repeated(code: int) -> None:
    anew = evolve(JOINING, config=evolve(CONFIG, was_member=True))
    error = broker_error(code, operation="READ", group="g")
    member, effects = step(anew, reply(2, heartbeat_response(code)))
    assert (member.phase, effects) == (
        Phase.UNJOINED,
        (ReportError(error=error), WakeAt(time=10.125)),
    )


@pytest.mark.parametrize("code", [E.UNSUPPORTED_ASSIGNOR, E.GROUP_MAX_SIZE_REACHED])
def test_permanent_errors_end_a_member_of_long_standing(code: int) -> None:
    anew = evolve(JOINING, config=evolve(CONFIG, was_member=True))
    assert step(anew, reply(2, heartbeat_response(code)))[1] == (Fail(error=BrokerError(code)),)


AUTO = evolve(JOINING, config=evolve(CONFIG, may_fall_back=True))


def test_auto_falls_back_to_classic_where_no_broker_has_the_protocol() -> None:
    event = SendFailed(now=10.0, token=2, error=UnsupportedVersionError("too old"))
    member, effects = step(AUTO, event)
    assert member.phase is Phase.LEFT
    assert [type(effect) for effect in effects] == [FallBack]
    _explicit, effects = step(JOINING, event)
    assert next(type(effect) for effect in effects) is Fail


UNAVAILABLE = (E.UNSUPPORTED_VERSION, E.GROUP_ID_NOT_FOUND, E.INVALID_REGULAR_EXPRESSION)


def rejoined(
    member: Member, code: int, at: float = 11.0
) -> tuple[Member, tuple[ConsumerEffect, ...]]:
    """Return the member after its next join, which the coordinator refuses."""
    member, _ = step(member, Woke(now=at))
    assert member.phase is Phase.JOINING
    return step(member, reply(member.pending or 0, heartbeat_response(code), at))


@pytest.mark.parametrize("code", UNAVAILABLE)
def test_a_missing_protocol_counts_once_the_coordinator_repeats_it(code: int) -> None:
    """One false refusal once had a member fall back while the others were away: the group became a
    classic one, which was fatal to them."""
    member, effects = step(AUTO, reply(2, heartbeat_response(code)))
    assert (member.phase, [type(e) for e in effects]) == (Phase.UNJOINED, [WakeAt])
    again, effects = rejoined(member, code)
    assert (again.phase, [type(e) for e in effects]) == (Phase.LEFT, [FallBack])
    other, _ = rejoined(member, E.UNKNOWN_MEMBER_ID)
    other, effects = rejoined(other, code, at=12.0)
    assert (other.phase, [type(e) for e in effects]) == (Phase.UNJOINED, [WakeAt])
    explicit, _ = step(JOINING, reply(2, heartbeat_response(code)))
    explicit, effects = rejoined(explicit, code)
    error = broker_error(code, operation="READ", group="g")
    assert (explicit.phase, effects) == (Phase.FAILED, (Fail(error=error),))


@pytest.mark.parametrize("code", [E.UNSUPPORTED_VERSION, E.GROUP_ID_NOT_FOUND])
def test_a_member_of_long_standing_reports_a_missing_protocol_and_repeats_its_join(
    code: int,
) -> None:
    anew = evolve(JOINING, config=evolve(CONFIG, was_member=True))
    member, _ = step(anew, reply(2, heartbeat_response(code)))
    member, effects = rejoined(member, code)
    error = broker_error(code, operation="READ", group="g")
    assert (member.phase, effects[0]) == (Phase.UNJOINED, ReportError(error=error))


def test_an_unreleased_instance_id_is_retried_and_then_fatal() -> None:
    held = heartbeat_response(E.UNRELEASED_INSTANCE_ID)
    static = evolve(JOINING, config=evolve(CONFIG, group_instance_id="i"))
    member, effects = step(static, reply(2, held))
    assert (member.unreleased_since, effects) == (10.0, (WakeAt(time=10.125),))
    again, effects = step(member, Woke(now=69.0))
    assert effects == (release(3),), "an earlier join of this member may hold it"
    again, _ = step(again, reply(3, heartbeat_response(E.FENCED_INSTANCE_ID), 69.0))
    again, effects = step(again, reply(4, held, 69.5))
    assert effects == (WakeAt(time=69.75),)
    late, _ = step(again, Woke(now=69.75))
    late, _ = step(late, reply(5, heartbeat_response(E.FENCED_INSTANCE_ID), 69.75))
    late, effects = step(late, reply(6, held, 70.0))
    assert (late.phase, effects) == (
        Phase.FAILED,
        (Fail(error=BrokerError(E.UNRELEASED_INSTANCE_ID)),),
    )


# ---------------------------------------------------------------- heartbeats


def test_a_heartbeat_omits_unchanged_fields() -> None:
    assert step(OWNING, Woke(now=13.0)) == (
        evolve(
            OWNING,
            heartbeat_in_flight=4,
            last_token=4,
            heartbeat_sent_at=13.0,
            next_heartbeat_at=16.0,
            state_in_flight=state_with(MINE),
        ),
        (send_heartbeat(4, 5, 7.0), WakeAt(time=20.0)),
    )


def test_a_new_subscription_is_sent_at_once_and_alone() -> None:
    event = Subscribed(now=11.0, topics=("t",), pattern=None)
    member, effects = step(evolve(OWNING, next_heartbeat_at=13.0), event)
    assert effects[0] == send_heartbeat(4, 5, 9.0, subscribed_topic_names=("t",))
    event = Subscribed(now=11.0, topics=(), pattern="t|u")
    member, effects = step(evolve(OWNING, next_heartbeat_at=13.0), event)
    assert effects[0] == send_heartbeat(
        4, 5, 9.0, subscribed_topic_names=(), subscribed_topic_regex="t|u"
    )
    back = Subscribed(now=11.0, topics=("t", "u"), pattern=None)
    acknowledged = evolve(
        member,
        acknowledged_state=member.state_in_flight,
        state_in_flight=None,
        heartbeat_in_flight=None,
    )
    assert step(acknowledged, back)[1][0] == send_heartbeat(
        5, 5, 9.0, subscribed_topic_names=("t", "u"), subscribed_topic_regex=""
    )


def test_a_new_subscription_is_followed_in_the_epoch_after_it() -> None:
    """An assignment counted for the new subscription while the coordinator had yet to hear of it,
    and was the earlier one's."""
    member, _ = step(BEATING_, Subscribed(now=10.0, topics=("t",), pattern=None))
    assert (member.follows_subscription, member.outdated_epoch) == (False, 5)
    # The heartbeat in flight reports the earlier one, and another member has changed the group.
    member, _ = step(member, reply(4, heartbeat_response(epoch=6), 10.0))
    assert (member.follows_subscription, member.outdated_epoch) == (False, 6)
    # The coordinator revokes at once, and has yet to compute the rest.
    member, _ = step(member, reply(5, heartbeat_response(epoch=6, share={T: (0,)}), 10.1))
    assert (member.follows_subscription, member.reconciling) == (False, 6)
    member, _ = step(member, AssignmentApplied(now=10.2, token=6))
    assert member.follows_subscription is False
    member, _ = step(member, reply(7, heartbeat_response(epoch=7), 10.3))
    assert member.follows_subscription is True


def test_a_subscription_that_changes_nothing_is_followed_after_a_while() -> None:
    """The coordinator begins no epoch for a pattern that matches the same topics as before."""
    member = evolve(
        BEATING_,
        pattern="t|u",
        outdated_epoch=5,
        state_in_flight=state_with(MINE, pattern="t|u"),
        frequent_until=16.0,
    )
    assert step(member, reply(4, heartbeat_response(), 18.9))[0].follows_subscription is False
    assert step(member, reply(4, heartbeat_response(), 19.0))[0].follows_subscription is True


def test_an_equal_subscription_is_followed_already() -> None:
    member, effects = step(OWNING, Subscribed(now=10.0, topics=("t", "u"), pattern=None))
    assert (member.follows_subscription, effects[0]) == (True, send_heartbeat(4, 5, 10.0))


def test_a_member_that_rejoins_follows_its_subscription_from_the_start() -> None:
    member = evolve(BEATING_, topics=("t",), outdated_epoch=5)
    member, _ = step(member, reply(4, heartbeat_response(ErrorCode.UNKNOWN_MEMBER_ID)))
    assert (member.phase, member.outdated_epoch) == (Phase.LOSING, None)


def test_after_an_error_all_fields_are_sent_again() -> None:
    loading = reply(4, heartbeat_response(E.COORDINATOR_LOAD_IN_PROGRESS))
    member, effects = step(BEATING_, loading)
    assert (member.phase, member.acknowledged_state, effects) == (
        Phase.MEMBER,
        None,
        (WakeAt(time=10.125),),
    )
    repeated = send_heartbeat(5, 5, 9.875, **everything(MINE))
    assert step(member, Woke(now=10.125))[1][0] == repeated
    for error in (LOST, LATE):
        member, effects = step(BEATING_, SendFailed(now=10.0, token=4, error=error))
        assert (member.acknowledged_state, member.coordinator, effects) == (
            None,
            None,
            (WakeAt(time=10.125),),
        )
        member, effects = step(member, Woke(now=10.125))
        assert effects[0] == find(5)
        repeated = send_heartbeat(6, 5, 9.0, timed_out=error is LATE, **everything(MINE))
        assert step(member, reply(5, found(), 11.0))[1][0] == repeated


def test_a_full_heartbeat_follows_one_in_flight() -> None:
    """Its response counted as the one to the new subscription, which was never sent."""
    member, effects = step(BEATING_, RejoinRequested(now=10.0, reason="x"))
    assert effects == (WakeAt(time=20.0),)
    member, effects = step(member, reply(4, heartbeat_response()))
    assert effects[0] == full(5, 5, 10.0, MINE)


def test_an_empty_pattern_replaces_one_that_was_sent() -> None:
    member = evolve(OWNING, acknowledged_state=None, has_sent_pattern=True)
    assert step(member, Woke(now=13.0))[1][0] == full(4, 5, 7.0, MINE, subscribed_topic_regex="")


def test_changes_during_a_heartbeat_in_flight_count_as_unsent() -> None:
    """A subscription that changed while a heartbeat was in flight must go with the next one."""
    member, effects = step(BEATING_, Subscribed(now=11.0, topics=("t",), pattern=None))
    assert effects == (WakeAt(time=20.0),)
    member, effects = step(member, reply(4, heartbeat_response(), 11.0))
    assert effects[0] == send_heartbeat(5, 5, 9.0, subscribed_topic_names=("t",))


def test_invalid_epochs_and_intervals_are_ignored() -> None:
    member, _ = step(BEATING_, reply(4, heartbeat_response(epoch=-1, interval=0)))
    assert (member.epoch, member.broker_interval) == (5, 5.0)


@pytest.mark.parametrize(
    ("requested", "pace"),
    [(0.0, 3.0), (1.0, 1.0), (4.0, 3.0), (5.0, 3.0), (5.5, 5.5), (60.0, 60.0)],
)
def test_an_idle_group_uses_our_interval_unless_the_broker_overrides_it(
    requested: float, pace: float
) -> None:
    member, _ = step(evolve(OWNING, broker_interval=requested), Woke(now=13.0))
    assert member.next_heartbeat_at == 13.0 + pace


def test_after_a_new_epoch_or_assignment_heartbeats_are_frequent() -> None:
    for response in (heartbeat_response(epoch=6), heartbeat_response(share={T: (0, 1, 2)})):
        member, _ = step(
            evolve(BEATING_, heartbeat_sent_at=20.0, next_heartbeat_at=23.0),
            reply(4, response, 20.0),
        )
        assert (member.next_heartbeat_at, member.frequent_until) == (20.25, 26.0)
    settled = evolve(OWNING, frequent_until=26.0, session_ends_at=99.0)
    assert step(settled, Woke(now=25.5))[0].next_heartbeat_at == 25.75
    assert step(settled, Woke(now=26.0))[0].next_heartbeat_at == 29.0


@pytest.mark.parametrize(("frequent_until", "count"), [(10.0, 0), (10.5, 3)])
def test_heartbeats_are_immediate_again_once_the_member_is_stable(
    frequent_until: float, count: int
) -> None:
    """So many are sent at once until then, and no more."""
    hurried = evolve(BEATING_, immediate_heartbeats=3, frequent_until=frequent_until)
    assert step(hurried, reply(4, heartbeat_response()))[0].immediate_heartbeats == count


def test_a_session_without_responses_rediscovers_the_coordinator() -> None:
    member, effects = step(BEATING_, Woke(now=20.0))
    assert (member.coordinator, member.heartbeat_in_flight, member.acknowledged_state) == (
        None,
        None,
        None,
    )
    assert effects == (find(5), WakeAt(time=30.0))


def test_invalidating_the_coordinator_keeps_the_membership() -> None:
    member, effects = step(OWNING, CoordinatorInvalidated(now=10.0, reason="drained"))
    assert (member.phase, member.coordinator, effects[0]) == (Phase.MEMBER, None, find(4))


def test_denied_topics_are_reported_once_and_the_member_stays() -> None:
    denied = heartbeat_response(E.TOPIC_AUTHORIZATION_FAILED)
    error = broker_error(E.TOPIC_AUTHORIZATION_FAILED, operation="READ", group="g")
    member, effects = step(BEATING_, reply(4, denied))
    assert effects == (ReportError(error=error), WakeAt(time=10.125))
    member, _ = step(member, Woke(now=10.125))
    member, effects = step(member, reply(5, denied, 10.125))
    assert (member.phase, effects) == (Phase.MEMBER, (WakeAt(time=10.375),))
    member, _ = step(member, Woke(now=10.375))
    member, _ = step(member, reply(6, heartbeat_response(), 10.375))
    assert not member.has_reported_denial


def test_a_requested_rejoin_sends_all_fields_at_once() -> None:
    _member, effects = step(
        evolve(OWNING, next_heartbeat_at=13.0), RejoinRequested(now=11.0, reason="x")
    )
    assert effects[0] == full(4, 5, 9.0, MINE)


# ---------------------------------------------------------------- reconciling


def test_an_applied_assignment_is_acknowledged_at_once() -> None:
    assert step(TAKING, AssignmentApplied(now=10.0, token=3)) == (
        evolve(
            TAKING,
            reconciling=None,
            next_owned={},
            owned=MINE,
            reconciliation_count=1,
            heartbeat_in_flight=4,
            last_token=4,
            state_in_flight=state_with(MINE, reconciliation_count=1),
            immediate_heartbeats=1,
        ),
        (send_heartbeat(4, 5, 10.0, topic_partitions=listed(MINE)), WakeAt(time=20.0)),
    )


def test_partitions_assigned_and_withdrawn_at_once_are_reported_as_released() -> None:
    """The coordinator took partitions back while the member was applying them. In the end the
    member owned what it had reported before, so it reported nothing, and the coordinator expired
    it."""
    member, _ = step(
        evolve(TAKING, heartbeat_in_flight=4, state_in_flight=state_with()),
        reply(4, heartbeat_response(share={})),
    )
    member, effects = step(
        evolve(member, heartbeat_in_flight=None), AssignmentApplied(now=10.0, token=3)
    )
    assert effects[:2] == (reconcile(4), send_heartbeat(5, 5, 10.0, topic_partitions=listed(MINE)))
    member, _ = step(member, reply(5, heartbeat_response()))
    _, effects = step(member, AssignmentApplied(now=10.0, token=4))
    assert effects[0] == send_heartbeat(6, 5, 10.0, topic_partitions=())


def test_revoking_partitions_are_owned_until_the_application_releases_them() -> None:
    member, effects = step(BEATING_, reply(4, heartbeat_response(share={T: (0,)})))
    assert effects == (reconcile(5, T0), WakeAt(time=10.25))
    assert (member.owned, member.next_owned) == (MINE, {T: (0,)})
    draining, effects = step(member, Woke(now=10.25))
    assert effects[0] == send_heartbeat(6, 5, 9.75)
    _, effects = step(
        evolve(draining, heartbeat_in_flight=None), AssignmentApplied(now=10.25, token=5)
    )
    assert effects[0] == send_heartbeat(7, 5, 9.75, topic_partitions=listed({T: (0,)}))


def test_targets_are_reconciled_one_at_a_time_and_the_latest_wins() -> None:
    member, _ = step(BEATING_, reply(4, heartbeat_response(share={T: (0,)})))
    for share in ({}, {U: (0,)}):
        member = evolve(member, heartbeat_in_flight=9, state_in_flight=state_with(MINE))
        member, effects = step(member, reply(9, heartbeat_response(share=share)))
        assert not [e for e in effects if isinstance(e, Reconcile)]
    member, effects = step(member, AssignmentApplied(now=10.0, token=5))
    assert effects[0] == reconcile(6, U0)
    # Revoked partitions are reported at once; those being assigned count as owned already.
    assert effects[1] == send_heartbeat(7, 5, 10.0, topic_partitions=listed({T: (0,), U: (0,)}))


def test_an_unchanged_target_is_not_reported_to_the_application() -> None:
    _, effects = step(BEATING_, reply(4, heartbeat_response(epoch=6, share=MINE)))
    assert effects == (WakeAt(time=10.25),)


def test_unresolved_topic_ids_wait_and_the_rest_is_applied() -> None:
    member, effects = step(JOINING, reply(2, heartbeat_response(share={T: (0,), V: (0, 1)})))
    assert effects == (LookUpNames(topic_ids=frozenset({V})), reconcile(3, T0), WakeAt(time=10.25))
    member, effects = step(member, AssignmentApplied(now=10.0, token=3))
    assert effects[0] == send_heartbeat(4, 5, 10.0, topic_partitions=listed({T: (0,)}))
    member, _ = step(member, reply(4, heartbeat_response()))
    member, effects = step(member, TopicsNamed(now=10.0, names={V: "v"}))
    v0, v1 = TopicPartition("v", 0), TopicPartition("v", 1)
    assert effects[0] == reconcile(5, T0, v0, v1)


def test_partitions_reported_as_released_in_flight_are_assigned_after_the_response() -> None:
    """The coordinator may already assign them to another member, and both would own them."""
    member, _ = step(JOINING, reply(2, heartbeat_response(share={T: (0,), V: (0, 1)})))
    member, _ = step(member, AssignmentApplied(now=10.0, token=3))
    member, effects = step(member, TopicsNamed(now=10.0, names={V: "v"}))
    assert [effect for effect in effects if isinstance(effect, Reconcile)] == []
    _, effects = step(member, reply(4, heartbeat_response(epoch=6, share={T: (0,), V: (1,)})))
    assert effects[0] == reconcile(5, T0, TopicPartition("v", 1), epoch=6)


def test_unresolved_topic_ids_that_are_withdrawn_are_reported_as_released() -> None:
    member, _ = step(JOINING, reply(2, heartbeat_response(share={T: (0,), V: (0,)})))
    member, _ = step(member, AssignmentApplied(now=10.0, token=3))
    member, _ = step(member, reply(4, heartbeat_response()))
    in_flight = evolve(
        member, heartbeat_in_flight=5, last_token=5, state_in_flight=member.reported_state
    )
    member, effects = step(in_flight, reply(5, heartbeat_response(share={T: (0,)})))
    assert send_heartbeat(6, 5, 10.0, topic_partitions=listed({T: (0,)})) in effects
    _, effects = step(member, reply(6, heartbeat_response(epoch=6)))
    assert effects == (WakeAt(time=10.25),)


def test_names_of_topics_that_are_not_assigned_any_more_are_forgotten() -> None:
    """The topics that a pattern matches may come and go for months."""
    member, _ = step(JOINING, reply(2, heartbeat_response(share={T: (0,), V: (0,)})))
    w, other = UUID(int=77), UUID(int=78)
    member = evolve(member, names={**member.names, w: "w"})
    member, _ = step(member, TopicsNamed(now=10.0, names={V: "v", other: "other"}))
    assert member.names.keys() == {T, V}


def test_an_assignment_of_unresolved_topics_alone_is_not_empty() -> None:
    member, effects = step(JOINING, reply(2, heartbeat_response(share={V: (0,)})))
    assert effects == (LookUpNames(topic_ids=frozenset({V})), WakeAt(time=10.25))
    assert not member.ownership.is_assigned
    _, effects = step(member, TopicsNamed(now=10.0, names={V: "v"}))
    assert effects[0] == reconcile(3, TopicPartition("v", 0))


def test_what_is_owned_is_released_for_topics_whose_names_are_unknown() -> None:
    """Another member waits for it; the names may take long."""
    _, effects = step(BEATING_, reply(4, heartbeat_response(epoch=6, share={V: (0,)})))
    assert effects[:2] == (LookUpNames(topic_ids=frozenset({V})), reconcile(5, epoch=6))


def test_a_heartbeat_in_flight_that_reports_nothing_new_delays_no_assignment() -> None:
    unnamed = evolve(BEATING_, target=Target({**MINE, V: (0,)}), unnamed=frozenset({V}))
    _, effects = step(unnamed, TopicsNamed(now=10.0, names={V: "v"}))
    assert effects[0] == reconcile(5, T0, T1, TopicPartition("v", 0))


def test_withdrawn_topic_ids_are_not_resolved() -> None:
    member, _ = step(JOINING, reply(2, heartbeat_response(share={T: (0,), V: (0,)})))
    member, _ = step(member, AssignmentApplied(now=10.0, token=3))
    _, effects = step(
        evolve(member, heartbeat_in_flight=9), reply(9, heartbeat_response(share={T: (0,)}))
    )
    assert LookUpNames(topic_ids=frozenset()) in effects


def test_an_assignment_that_cannot_be_applied_is_fatal_and_leaves() -> None:
    error = DecodeError("x")
    member, effects = step(TAKING, AssignFailed(now=10.0, error=error))
    assert member.phase is Phase.LOSING
    assert effects == (Fail(error=error), Lose(token=4, reason="x"))
    member, effects = step(member, Revoked(now=10.0, token=4))
    assert (member.phase, effects) == (Phase.LEAVING, (leave(5, -1), WakeAt(time=20.0)))


def test_a_fatal_error_is_reported_at_once_and_the_group_left_after_revocation() -> None:
    """The heartbeat was sent at once: other members got partitions whose revocation callback still
    ran."""
    member, _ = step(BEATING_, reply(4, heartbeat_response(share={T: (0,)})))
    member = evolve(member, heartbeat_in_flight=6, state_in_flight=state_with(MINE))
    member, effects = step(member, reply(6, heartbeat_response(E.INVALID_REQUEST)))
    assert (member.phase, [type(effect) for effect in effects]) == (Phase.LOSING, [Fail, Lose])
    assert step(member, CLOSED)[1] == ()
    assert step(member, Revoked(now=10.0, token=member.last_token))[1] == (
        leave(7, -1),
        WakeAt(time=20.0),
    )


# ---------------------------------------------------------------- losing


GONE = [E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("code", [*GONE, E.GROUP_ID_NOT_FOUND, E.STALE_MEMBER_EPOCH])
def test_a_fenced_member_loses_its_partitions_and_rejoins_at_once(code: int) -> None:
    member, effects = step(BEATING_, reply(4, heartbeat_response(code)))
    reason = str(BrokerError(code))
    # The epoch alone may be wrong: the coordinator then still counts the member.
    is_known = code in (E.FENCED_MEMBER_EPOCH, E.STALE_MEMBER_EPOCH)
    lost = evolve(
        LOSING, reason=reason, loss_count=1, next_heartbeat_at=13.0, may_be_known=is_known
    )
    assert (member, effects) == (lost, (Lose(token=5, reason=reason),))
    member, effects = step(member, Revoked(now=10.0, token=5))
    assert (member.phase, effects) == (Phase.JOINING, (join(6),))


@pytest.mark.parametrize("code", [*GONE, E.GROUP_ID_NOT_FOUND])
def test_a_late_heartbeat_response_may_end_the_membership(code: int) -> None:
    """The coordinator was invalidated while a request was in flight. During the look-up the member
    did not know that it was fenced, and commits continued."""
    doubting, _ = step(BEATING_, CoordinatorInvalidated(now=10.0, reason="no answer"))
    assert (doubting.phase, doubting.heartbeat_in_flight) == (Phase.MEMBER, None)
    for response in (heartbeat_response(epoch=6), heartbeat_response(E.NOT_COORDINATOR)):
        assert step(doubting, reply(4, response))[0] == doubting
    over, effects = step(doubting, reply(4, heartbeat_response(code)))
    assert (over.phase, over.ownership.is_assigned, over.lookup_in_flight) == (
        Phase.LOSING,
        False,
        doubting.lookup_in_flight,
    )
    assert isinstance(effects[0], Lose)
    # The next response will report it.
    heartbeat_in_flight, _ = step(
        evolve(doubting, coordinator=NODE, lookup_in_flight=None), Woke(now=13.0)
    )
    assert step(heartbeat_in_flight, reply(4, heartbeat_response(code)))[0] == heartbeat_in_flight


def test_an_assignment_applied_after_fencing_is_ignored() -> None:
    fenced = reply(4, heartbeat_response(E.FENCED_MEMBER_EPOCH))
    member, effects = step(evolve(TAKING, heartbeat_in_flight=4, last_token=4), fenced)
    assert [type(effect) for effect in effects] == [Lose]
    assert step(member, AssignmentApplied(now=10.0, token=3)) == (member, ())


@pytest.mark.parametrize("code", GONE)
def test_a_member_fenced_before_any_assignment_loses_nothing(code: int) -> None:
    member, effects = step(
        evolve(JOINED, heartbeat_in_flight=3, state_in_flight=state_with(), last_token=3),
        reply(3, heartbeat_response(code)),
    )
    assert (member.phase, effects) == (Phase.JOINING, (join(4),))


@pytest.mark.parametrize("code", GONE)
def test_a_fenced_join_is_retried_after_a_backoff(code: int) -> None:
    member, effects = step(JOINING, reply(2, heartbeat_response(code)))
    assert (member.phase, effects) == (Phase.UNJOINED, (WakeAt(time=10.125),))


def test_another_member_with_our_instance_id_is_fatal() -> None:
    static = evolve(BEATING_, config=evolve(CONFIG, group_instance_id="i"))
    member, effects = step(static, reply(4, heartbeat_response(E.FENCED_INSTANCE_ID)))
    words = "another member now has group_instance_id 'i'"
    assert (member.phase, effects) == (
        Phase.LOSING,
        (Fail(error=Like(FencedError, words)), Lose(token=5, reason=words)),
    )
    assert step(member, Revoked(now=10.0, token=5))[1] == (Leave(),)


def test_when_the_lease_expires() -> None:
    assert [
        m.ownership.lease_expires_at for m in (JOINED, TAKING, OWNING, REVOKING, LOSING, LEAVING)
    ] == [
        0.0,
        20.0,
        20.0,
        20.0,
        0.0,
        0.0,
    ]


def test_the_lease_ends_with_the_rebalance_timeout_of_a_revocation() -> None:
    """A member whose acknowledgement of a revocation never arrives is fenced, and others get its
    partitions. It once continued for a whole session after its last heartbeat."""
    asked, _ = step(BEATING_, reply(4, heartbeat_response(share={T: (0,)})))
    assert asked.ownership.lease_expires_at == 20.0
    late = evolve(
        asked,
        heartbeat_in_flight=9,
        heartbeat_sent_at=65.0,
        state_in_flight=asked.reported_state,
        session_ends_at=75.0,
    )
    assert (
        step(late, reply(9, heartbeat_response(), now=65.0))[0].ownership.lease_expires_at
        == 10.0 + 60.0
    )
    once_more = step(late, reply(9, heartbeat_response(share={}), now=65.0))[0]
    assert once_more.ownership.lease_expires_at == 10.0 + 60.0
    done, _ = step(late, AssignmentApplied(now=65.0, token=5))
    assert (
        step(done, reply(9, heartbeat_response(), now=65.0))[0].ownership.lease_expires_at
        == 10.0 + 60.0
    )
    reporting = evolve(done, state_in_flight=done.reported_state)
    assert (
        step(reporting, reply(9, heartbeat_response(), now=65.0))[0].ownership.lease_expires_at
        == 75.0
    )
    # In the same response it may be asked for more: since the last heartbeat that was acknowledged,
    # which may be later than the lease counts from.
    again = step(
        evolve(reporting, last_acknowledged_at=60.0),
        reply(9, heartbeat_response(share={}), now=65.0),
    )[0]
    later = evolve(
        again, heartbeat_in_flight=9, heartbeat_sent_at=120.0, state_in_flight=again.reported_state
    )
    assert (
        step(later, reply(9, heartbeat_response(), now=120.0))[0].ownership.lease_expires_at
        == 60.0 + 60.0
    )


def test_a_lost_response_may_have_started_the_rebalance_timeout() -> None:
    heard_late = evolve(BEATING_, heartbeat_sent_at=15.0, session_ends_at=99.0)
    asked, _ = step(heard_late, reply(4, heartbeat_response(share={T: (0,)}), now=15.0))
    late = evolve(
        asked, heartbeat_in_flight=9, heartbeat_sent_at=70.0, state_in_flight=asked.reported_state
    )
    assert (
        step(late, reply(9, heartbeat_response(), now=70.0))[0].ownership.lease_expires_at
        == 10.0 + 60.0
    )


# ---------------------------------------------------------------- leaving


def test_a_member_revokes_then_leaves() -> None:
    member, effects = step(evolve(OWNING, next_heartbeat_at=13.0), CLOSED)
    assert (member, effects) == (
        evolve(REVOKING, leaving=CLOSED, next_heartbeat_at=13.0),
        (Revoke(token=4, deadline=55.0), WakeAt(time=13.0)),
    )
    member, effects = step(member, Revoked(now=11.0, token=4))
    assert (member, effects) == (
        evolve(LEAVING, reason="closed", next_heartbeat_at=13.0, leave_by=21.0),
        (leave(5, -1), WakeAt(time=21.0)),
    )
    assert step(member, reply(5, heartbeat_response()))[1] == (Leave(),)


def test_heartbeats_continue_while_the_application_releases_partitions() -> None:
    assert step(REVOKING, Woke(now=13.0))[1] == (send_heartbeat(5, 5, 7.0), WakeAt(time=20.0))


def test_leaving_while_reconciling_revokes_everything() -> None:
    member, effects = step(TAKING, CLOSED)
    assert (member.phase, effects[0]) == (Phase.REVOKING, Revoke(token=4, deadline=55.0))
    member, effects = step(member, AssignmentApplied(now=10.0, token=3))
    assert effects[0] == send_heartbeat(5, 5, 10.0, topic_partitions=listed(MINE))
    assert step(member, Revoked(now=10.0, token=4))[1] == (leave(6, -1), WakeAt(time=20.0))


def test_partitions_of_the_application_are_never_reported_as_released() -> None:
    """A full request during a reconciliation lacked the partitions that were being assigned: the
    coordinator might have given them to another member."""
    member, _ = step(BEATING_, reply(4, heartbeat_response(share={T: (0, 2), U: (0,)})))
    member = evolve(member, acknowledged_state=None)
    _, effects = step(member, Woke(now=10.25))
    assert effects[0] == full(6, 5, 9.75, {T: (0, 1, 2), U: (0,)})


LEAVES = {
    # static, leave_group: the epoch of the last heartbeat
    (False, None): -1,
    (False, True): -1,
    (False, False): None,
    (True, None): -2,
    (True, True): -1,
    (True, False): -2,
}


@pytest.mark.parametrize(("static", "leave_group"), LEAVES)
def test_the_leave_epoch_of_dynamic_and_static_members(
    static: bool, leave_group: bool | None
) -> None:
    """KIP-1092: by default static members stay in the group, and dynamic members leave."""
    instance = "i" if static else None
    member = evolve(
        REVOKING,
        config=evolve(CONFIG, group_instance_id=instance),
        leaving=evolve(CLOSED, leave_group=leave_group),
    )
    epoch = LEAVES[static, leave_group]
    left = (
        (Leave(),) if epoch is None else (leave(5, epoch, instance_id=instance), WakeAt(time=20.0))
    )
    assert step(member, Revoked(now=10.0, token=4))[1] == left


@pytest.mark.parametrize("instance", [None, "i"])
def test_a_poll_timeout_loses_everything_and_leaves(instance: str | None) -> None:
    late = Leaving(now=10.0, reason="late", lost=True)
    static = evolve(OWNING, config=evolve(CONFIG, group_instance_id=instance))
    member, effects = step(static, late)
    assert effects == (Lose(token=4, reason="late"),)
    epoch = -1 if instance is None else -2
    assert step(member, Revoked(now=10.0, token=4))[1] == (
        leave(5, epoch, instance_id=instance),
        WakeAt(time=20.0),
    )


def test_leaving_while_joining_undoes_the_join() -> None:
    member, effects = step(JOINING, CLOSED)
    assert (member.phase, effects) == (Phase.LEAVING, (leave(3, -1), WakeAt(time=20.0)))


@pytest.mark.parametrize("member", [IDLE, FINDING])
def test_a_member_that_never_joined_leaves_without_a_request(member: Member) -> None:
    member, effects = step(member, CLOSED)
    assert (member.phase, effects) == (Phase.LEFT, (Leave(),))


@pytest.mark.parametrize("code", [0, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND])
def test_leaving_succeeds_if_the_coordinator_does_not_know_the_member(code: int) -> None:
    member, effects = step(LEAVING, reply(5, heartbeat_response(code)))
    assert member == evolve(LEAVING, phase=Phase.LEFT, pending=None, may_be_known=False)
    assert effects == (Leave(),)


@pytest.mark.parametrize(
    ("event", "is_moved"),
    [
        (reply(5, heartbeat_response(E.NOT_COORDINATOR)), True),
        (reply(5, heartbeat_response(E.COORDINATOR_NOT_AVAILABLE)), True),
        (reply(5, heartbeat_response(E.COORDINATOR_LOAD_IN_PROGRESS)), False),
        (SendFailed(now=10.0, token=5, error=LOST), True),
        (SendFailed(now=10.0, token=5, error=LATE), True),
    ],
)
def test_leaving_is_repeated_until_the_coordinator_answers(
    event: ConsumerEvent, is_moved: bool
) -> None:
    """The heartbeat of epoch -1 was sent once. Refused because the coordinator had moved, it left a
    member whose partitions nobody read until its session ended."""
    waiting, effects = step(LEAVING, event)
    assert waiting == evolve(
        LEAVING,
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
    if not is_moved:
        again, effects = step(waiting, Woke(now=10.5))
        assert (again.phase, effects[0]) == (Phase.LEAVING, leave(6, -1, 4.75))
        return
    looking, effects = step(waiting, Woke(now=10.5))
    assert effects[0] == evolve(find(6), timeout=4.75)
    again, effects = step(looking, reply(6, found(), now=11.0))
    assert (again.phase, effects[0]) == (Phase.LEAVING, leave(7, -1, 4.5))


def test_a_member_that_leaves_gives_up_in_time() -> None:
    leaving, _ = step(JOINING, evolve(CLOSED, deadline=13.0))
    assert step(leaving, Woke(now=13.0)) == (
        evolve(leaving, phase=Phase.LEFT, pending=None),
        (Leave(doubt="the coordinator did not answer in time"),),
    )
    assert leaving.may_be_known


@pytest.mark.parametrize("member", [JOINING, REVOKING], ids=lambda m: m.phase.value)
def test_a_member_leaves_once_its_coordinator_is_known(member: Member) -> None:
    """It left without a request; its join may have succeeded."""
    searching = evolve(member, coordinator=None, lookup_in_flight=7, last_token=7, leaving=None)
    departing, _ = step(searching, CLOSED)
    if member is REVOKING:
        departing, _ = step(evolve(searching, leaving=CLOSED), Revoked(now=10.0, token=4))
    assert (departing.phase, departing.pending, departing.leave_by) == (
        Phase.DEPARTING,
        None,
        20.0,
    )
    leaving, effects = step(departing, reply(7, found(), now=11.0))
    assert (leaving.phase, effects) == (Phase.LEAVING, (leave(8, -1, 4.5), WakeAt(time=20.0)))


@pytest.mark.parametrize(
    "event",
    [
        reply(2, heartbeat_response(E.COORDINATOR_NOT_AVAILABLE)),
        reply(2, heartbeat_response(E.COORDINATOR_LOAD_IN_PROGRESS)),
        SendFailed(now=10.0, token=2, error=LOST),
    ],
)
def test_a_member_leaves_whose_join_may_have_succeeded(event: ConsumerEvent) -> None:
    """COORDINATOR_NOT_AVAILABLE may mean that the join is not replicated yet."""
    rejoining, _ = step(JOINING, event)
    assert rejoining.phase is Phase.UNJOINED
    assert step(rejoining, CLOSED)[0].phase is not Phase.LEFT


def test_a_fenced_member_leaves_when_it_is_closed() -> None:
    """The coordinator refuses an epoch, but still counts the member."""
    losing, _ = step(BEATING_, reply(4, heartbeat_response(E.FENCED_MEMBER_EPOCH)))
    closing, _ = step(losing, CLOSED)
    assert step(closing, Revoked(now=10.0, token=5))[1][0] == leave(6, -1)


def test_a_static_member_that_fails_releases_its_instance_id() -> None:
    """Its next process was refused until its session ended."""
    joined = evolve(JOINED, config=STATIC, heartbeat_in_flight=3, last_token=3)
    failing, effects = step(joined, reply(3, heartbeat_response(E.UNSUPPORTED_ASSIGNOR)))
    assert failing.phase is Phase.LEAVING
    assert effects[1] == leave(4, -2, instance_id="i")


# ---------------------------------------------------------------- releasing the instance id


def test_a_static_member_without_a_response_to_its_join_releases_its_instance_id() -> None:
    """It kept its own join from succeeding, with UNRELEASED_INSTANCE_ID, until the session of the
    join without a response ended."""
    joining = evolve(JOINING, config=STATIC)
    waiting, _ = step(joining, SendFailed(now=10.0, token=2, error=LOST))
    looking, _ = step(waiting, Woke(now=10.125))
    releasing, effects = step(looking, reply(3, found(), now=10.25))
    assert (releasing.phase, effects) == (Phase.RELEASING, (release(4),))
    for code in (0, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND, E.FENCED_INSTANCE_ID):
        again, effects = step(releasing, reply(4, heartbeat_response(code, epoch=-2), now=10.5))
        assert (again.phase, effects) == (
            Phase.JOINING,
            (join(5, instance_id="i"),),
        )
        # That may have been wrong; or another process has the id.
        refused, _ = step(again, reply(5, heartbeat_response(E.UNRELEASED_INSTANCE_ID), now=10.5))
        assert step(refused, Woke(now=11.0))[1] == (release(6),)


def test_a_member_that_was_removed_by_mistake_releases_its_own_instance_id() -> None:
    """Its coordinator answered UNKNOWN_MEMBER_ID, and counted it on: the join was refused until
    the session had ended."""
    losing, _ = step(
        evolve(BEATING_, config=STATIC), reply(4, heartbeat_response(E.UNKNOWN_MEMBER_ID))
    )
    joining, effects = step(losing, Revoked(now=10.0, token=5))
    assert effects == (join(6, instance_id="i"),)
    refused, _ = step(joining, reply(6, heartbeat_response(E.UNRELEASED_INSTANCE_ID), now=10.0))
    releasing, effects = step(refused, Woke(now=10.125))
    assert effects == (release(7),)
    answered = step(releasing, reply(7, heartbeat_response(0, epoch=-2), now=10.25))
    assert answered[1] == (join(8, instance_id="i"),)
    # Another process has taken its place.
    fenced, effects = step(releasing, reply(7, heartbeat_response(E.FENCED_INSTANCE_ID), now=10.25))
    assert fenced.phase is Phase.FAILED
    assert effects == (
        Fail(error=Like(FencedError, "another member now has group_instance_id 'i'")),
    )


@pytest.mark.parametrize(
    ("code", "releases"),
    [
        (E.NOT_COORDINATOR, False),
        (E.COORDINATOR_LOAD_IN_PROGRESS, False),
        (E.UNRELEASED_INSTANCE_ID, True),
        (E.COORDINATOR_NOT_AVAILABLE, True),
        (E.REQUEST_TIMED_OUT, True),
    ],
)
def test_a_refused_join_holds_no_instance_id(code: int, releases: bool) -> None:
    waiting, _ = step(evolve(JOINING, config=STATIC), reply(2, heartbeat_response(code)))
    again = evolve(waiting, coordinator=NODE, lookup_in_flight=None)
    expected = release(3) if releases else join(3, instance_id="i")
    assert step(again, Woke(now=11.0))[1] == (expected,)


@pytest.mark.parametrize(
    ("event", "coordinator"),
    [
        (reply(3, heartbeat_response(E.NOT_COORDINATOR)), None),
        (reply(3, heartbeat_response(E.COORDINATOR_LOAD_IN_PROGRESS)), NODE),
        (SendFailed(now=10.0, token=3, error=LOST), None),
    ],
)
def test_a_release_without_a_result_is_repeated(
    event: ConsumerEvent, coordinator: Coordinator | None
) -> None:
    waiting, _ = step(RELEASING, event)
    assert (waiting.phase, waiting.may_be_known) == (Phase.UNJOINED, True)
    assert waiting.coordinator == coordinator
    found_it = evolve(waiting, coordinator=NODE, retry_at=10.5)
    assert step(found_it, Woke(now=10.5))[1] == (release(4),)


def test_a_broker_that_chooses_member_ids_is_joined_without_a_release() -> None:
    """ConsumerGroupHeartbeat 0: the member does not know the id that its join without a response
    has."""
    error = UnsupportedVersionError("too old")
    joining, effects = step(RELEASING, SendFailed(now=10.0, token=3, error=error))
    assert (joining.phase, effects) == (Phase.JOINING, (join(4, instance_id="i"),))
    waiting, _ = step(joining, reply(4, heartbeat_response(E.UNRELEASED_INSTANCE_ID)))
    assert step(waiting, Woke(now=11.0))[1] == (join(5, instance_id="i"),)


def test_a_fenced_static_member_releases_its_instance_id() -> None:
    """The coordinator refuses an epoch, but still counts the member: it would refuse a join."""
    owning = evolve(BEATING_, config=STATIC)
    losing, _ = step(owning, reply(4, heartbeat_response(E.FENCED_MEMBER_EPOCH)))
    assert step(losing, Revoked(now=10.0, token=5))[1] == (release(6),)
    losing, _ = step(owning, reply(4, heartbeat_response(E.UNKNOWN_MEMBER_ID)))
    assert step(losing, Revoked(now=10.0, token=5))[1] == (join(6, instance_id="i"),)


def test_a_join_without_an_epoch_in_the_response_holds_the_instance_id() -> None:
    waiting, _ = step(evolve(JOINING, config=STATIC), reply(2, heartbeat_response(epoch=0)))
    assert step(waiting, Woke(now=11.0))[1] == (release(3),)


def test_a_member_that_is_closed_while_it_releases_its_instance_id_leaves() -> None:
    assert step(RELEASING, CLOSED)[1][0] == leave(4, -2, instance_id="i")
    for_good = evolve(CLOSED, leave_group=True)
    assert step(RELEASING, for_good)[1][0] == leave(4, -1, instance_id="i")


@pytest.mark.parametrize("lost", [True, False])
def test_a_member_that_leaves_by_its_poll_timeout_may_be_fenced(lost: bool) -> None:
    """It joined again at the next poll, and was refused for as long as the other process lived."""
    config = evolve(CONFIG, group_instance_id="i")
    static = evolve(LEAVING, config=config, leaving=evolve(CLOSED, lost=lost))
    fenced = Fail(error=Like(FencedError, "another member now has group_instance_id 'i'"))
    member, effects = step(static, reply(5, heartbeat_response(E.FENCED_INSTANCE_ID)))
    assert (member.phase, effects) == (
        (Phase.FAILED, (fenced,)) if lost else (Phase.LEFT, (Leave(),))
    )


def test_a_member_fenced_while_leaving_loses_its_partitions_and_closes() -> None:
    member = evolve(
        REVOKING,
        heartbeat_in_flight=5,
        state_in_flight=state_with(MINE),
        last_token=5,
        leaving=CLOSED,
    )
    member, effects = step(member, reply(5, heartbeat_response(E.UNKNOWN_MEMBER_ID)))
    assert [type(effect) for effect in effects] == [Lose]
    assert step(member, Revoked(now=10.0, token=4)) == (member, ())
    assert step(member, Revoked(now=10.0, token=6))[1] == (Leave(),)


def test_a_second_close_changes_nothing() -> None:
    member, _ = step(OWNING, CLOSED)
    assert step(member, evolve(CLOSED, reason="again"))[0] == member


# ---------------------------------------------------------------- stale, and out of order


@pytest.mark.parametrize(
    "event",
    [
        reply(1, heartbeat_response(E.UNKNOWN_MEMBER_ID)),
        SendFailed(now=10.0, token=1, error=LOST),
        AssignmentApplied(now=10.0, token=1),
        Revoked(now=10.0, token=1),
    ],
)
@pytest.mark.parametrize("member", [JOINING, JOINED, TAKING, BEATING_, REVOKING, LOSING, LEAVING])
def test_s10_a_stale_response_changes_nothing(member: Member, event: ConsumerEvent) -> None:
    assert step(member, event)[0] == member


@pytest.mark.parametrize("phase", [Phase.LEFT, Phase.FAILED])
def test_a_closed_member_ignores_every_event(phase: Phase) -> None:
    member = evolve(OUTSIDE, phase=phase)
    assert step(member, Woke(now=99.0)) == (member, ())


def test_a_transition_outside_the_table_raises() -> None:
    with pytest.raises(LocalProtocolError, match="no move from"):
        step(REVOKING, Started(now=10.0))


def test_s11_the_member_id_is_kept_whatever_happens() -> None:
    """Line 31: the id is the same after every rejoin."""
    for event in (
        SendFailed(now=10.0, token=4, error=LOST),
        reply(4, heartbeat_response(E.UNKNOWN_MEMBER_ID)),
    ):
        assert step(BEATING_, event)[0].member_id == "m1"


# ---------------------------------------------------------------- a broker that responds at once


class RespondingBroker:
    """One member and a broker that responds at once, in virtual time.

    The worst case for a retry that does not wait: no response takes any time.
    """

    def __init__(self, codes: Callable[[int], Any], config: MemberConfig) -> None:
        self.codes = codes
        self.now = 0.0
        self.epoch = 0
        self.member = evolve(IDLE, config=config)
        self.sent: list[tuple[float, Any]] = []
        self.queue: list[ConsumerEvent] = [Started(now=0.0, jitter=0.0)]
        self.wake: float | None = None

    def run(self, until: float, most: int) -> None:
        while len(self.sent) < most:
            if self.queue:
                event = self.queue.pop(0)
            elif self.wake is not None and self.wake <= until:
                self.now, self.wake = self.wake, None
                event = Woke(now=self.now, jitter=0.0)
            else:
                return
            self.member, effects = step(self.member, event)
            for effect in effects:
                self.carry_out(effect)

    def carry_out(self, effect: ConsumerEffect) -> None:
        match effect:
            case Send(token=token) | FindCoordinator(token=token):
                request = effect.request if isinstance(effect, Send) else effect
                self.sent.append((self.now, request))
                message = self.respond(request)
                if isinstance(message, Exception):
                    self.put(SendFailed(now=self.now, jitter=0.0, token=token, error=message))
                else:
                    self.put(Replied(now=self.now, jitter=0.0, token=token, message=message))
            case Revoke(token=token) | Lose(token=token):
                self.put(Revoked(now=self.now, jitter=0.0, token=token))
            case Reconcile(token=token):
                self.put(AssignmentApplied(now=self.now, jitter=0.0, token=token))
            case WakeAt(time=time):
                assert time > self.now
                self.wake = time

    def put(self, event: ConsumerEvent) -> None:
        self.queue.append(event)

    def respond(self, request: Any) -> Any:
        if isinstance(request, FindCoordinator):
            return found()
        code = self.codes(request.member_epoch)
        return (
            code
            if isinstance(code, Exception | ConsumerGroupHeartbeatResponse)
            else heartbeat_response(code)
        )

    def most_in_a_second(self) -> int:
        times = [time for time, _ in self.sent]
        return max(sum(t <= other < t + 1.0 for other in times) for t in times)


DEFAULTS = MemberConfig(group_id="g")


@pytest.mark.parametrize("joins", [True, False], ids=["joining", "heartbeat_in_flight"])
def test_l6_no_hot_loop_under_any_permanent_error(joins: bool) -> None:
    for code in (*ErrorCode, 999, LOST, LATE, DecodeError("garbage")):
        broker = RespondingBroker(
            lambda epoch, code=code: code if (epoch == 0) == joins else 0, DEFAULTS
        )
        broker.run(until=15.0, most=600)
        assert broker.most_in_a_second() <= 20, repr(code)
        assert not broker.queue, repr(code)


def test_l6_no_hot_loop_when_the_target_keeps_changing() -> None:
    epochs = iter(range(1, 10_000))

    def other_each_time(_: int) -> Any:
        epoch = next(epochs)
        return heartbeat_response(epoch=epoch, share={T: (epoch % 2,)})

    broker = RespondingBroker(other_each_time, DEFAULTS)
    broker.run(until=15.0, most=600)
    assert broker.most_in_a_second() <= 20


def test_l6_no_hot_loop_when_each_second_heartbeat_is_fenced() -> None:
    codes = iter([0, 0, E.FENCED_MEMBER_EPOCH] * 1_000)
    broker = RespondingBroker(lambda _: next(codes), DEFAULTS)
    broker.run(until=15.0, most=600)
    assert broker.most_in_a_second() <= 20


def test_l2_a_healthy_member_sends_frequent_heartbeats_first_then_at_its_interval() -> None:
    """The cost: 20 requests around each change, otherwise one a second, 3,600 an hour."""
    broker = RespondingBroker(
        lambda _: heartbeat_response(share=MINE) if len(broker.sent) == 2 else 0, DEFAULTS
    )
    broker.run(until=12.0, most=600)
    assert [round(t, 3) for t, _ in broker.sent[:4]] == [0.0, 0.0, 0.0, 0.1]
    assert len([t for t, _ in broker.sent if t < 2.0]) == 22
    assert [round(t, 3) for t, _ in broker.sent if t > 2.5] == [float(s) for s in range(3, 13)]


# ---------------------------------------------------------------- random runs


class RandomRun:
    """A member whose every response is drawn at random, run as the driver does.

    Requests are answered in any order, late ones included; the application works one at a time.
    """

    CODES = (
        *(E.NONE,) * 8,
        E.UNKNOWN_MEMBER_ID,
        E.FENCED_MEMBER_EPOCH,
        E.NOT_COORDINATOR,
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.UNRELEASED_INSTANCE_ID,
        E.TOPIC_AUTHORIZATION_FAILED,
    )
    FATAL = (
        E.FENCED_INSTANCE_ID,
        E.GROUP_AUTHORIZATION_FAILED,
        E.INVALID_REQUEST,
        E.UNSUPPORTED_ASSIGNOR,
    )
    SHARES: tuple[PartitionsByTopicId, ...] = (
        {},
        {T: (0,)},
        MINE,
        {U: (0,)},
        {T: (1,), V: (0,)},
        {V: (0,)},
    )

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 10.0
        instance = "i" if seed % 2 else None
        config = evolve(CONFIG, group_instance_id=instance, may_fall_back=seed % 3 == 0)
        self.member = evolve(IDLE, config=config)
        self.sends: dict[int, Any] = {}
        """The requests in flight, by token."""
        self.answered: list[Replied | SendFailed] = []
        self.work: list[Revoke | Lose | Reconcile] = []
        self.holds: frozenset[TopicPartition] = frozenset()
        self.wake: float | None = None
        self.seen: set[tuple[Phase, Phase]] = set()
        self.over = False

    def live(self, steps: int) -> None:
        self.take(Started(now=self.now))
        for _ in range(steps):
            self.now += self.random.choice((0.0, 0.0, 0.25, 1.0, 4.0, 12.0))
            self.take(self.happening())
            self.check_not_stuck()

    def happening(self) -> ConsumerEvent:
        choice = self.random.random()
        if choice < 0.45 and self.sends:
            token = self.random.choice(list(self.sends))
            return self.respond(token, self.sends.pop(token))
        if choice < 0.5 and self.answered:
            return evolve(self.random.choice(self.answered), now=self.now)
        if choice < 0.75 and self.work:
            return self.done(self.work.pop(0))
        if choice < 0.8:
            return self.random.choice(
                (
                    RejoinRequested(now=self.now, reason="again"),
                    Subscribed(now=self.now, topics=("t",), pattern=None),
                    Subscribed(now=self.now, topics=(), pattern="t|u"),
                    TopicsNamed(now=self.now, names={V: "v"}),
                    AssignFailed(now=self.now, error=DecodeError("x")),
                )
                if self.member.reconciling is not None
                else (Subscribed(now=self.now, topics=("u",), pattern=None),)
            )
        # Short phases would hardly ever meet one of the next two.
        is_releasing = self.member.phase is Phase.RELEASING
        if choice < (0.88 if is_releasing else 0.81):
            return CoordinatorInvalidated(now=self.now, reason="doubt")
        if choice < (0.95 if is_releasing else 0.83):
            flag = self.random.choice((None, True, False))
            lost = self.random.random() < 0.5
            return Leaving(now=self.now, reason="bye", leave_group=flag, lost=lost)
        if self.wake is not None:
            self.now = max(self.now, self.wake)
            self.wake = None
        return Woke(now=self.now, jitter=self.random.random())

    def done(self, work: Revoke | Lose | Reconcile) -> ConsumerEvent:
        if isinstance(work, Reconcile):
            topics = work.generation.topics or {}
            self.holds = frozenset(assigned_partitions(topics.items()))
            return AssignmentApplied(now=self.now, token=work.token)
        self.holds = frozenset()
        return Revoked(now=self.now, token=work.token)

    def respond(self, token: int, request: Any) -> ConsumerEvent:
        if self.random.random() < 0.1:
            error = self.random.choice((LOST, LATE, DecodeError("x")))
            return SendFailed(now=self.now, token=token, error=error)
        is_short = self.member.phase in (Phase.RELEASING, Phase.LEAVING)
        fails = self.random.random() < (0.2 if is_short else 0.03)
        code = self.random.choice(self.FATAL if fails else self.CODES)
        message: Any
        if isinstance(request, FindCoordinator):
            possible = code in (E.NOT_COORDINATOR, *self.FATAL[1:3])
            message = found(code if possible else E.NONE)
        elif request.member_epoch == 0 and self.random.random() < 0.02:
            message = heartbeat_response(E.UNSUPPORTED_VERSION)
        else:
            share = self.random.choice((None, *self.SHARES))
            message = heartbeat_response(code, epoch=self.random.randrange(-1, 9), share=share)
        event = reply(token, message, self.now)
        self.answered.append(event)
        return event

    def take(self, event: ConsumerEvent) -> None:
        before = self.member
        self.member, effects = step(before, event)
        self.seen.add((before.phase, self.member.phase))
        assert not (self.over and effects), "something follows the end"
        for effect in effects:
            self.check(effect)
            match effect:
                case Send(token=token) | FindCoordinator(token=token):
                    assert token not in self.sends
                    self.sends[token] = effect.request if isinstance(effect, Send) else effect
                case Revoke() | Lose() | Reconcile():
                    self.work.append(effect)
                case WakeAt(time=time):
                    assert time > self.now, "a wake-up in the past would spin"
                    self.wake = time
                case Leave() | FallBack():
                    self.over = True

    def check(self, effect: ConsumerEffect) -> None:
        match effect:
            case Send(request=ConsumerGroupHeartbeatRequest() as request):
                assert request.member_id == "m1"
                if request.member_epoch == 0:
                    # S2: owned partitions are revoked before the next request to the group.
                    assert not self.holds
                    assert not self.work
                    assert request.topic_partitions == ()
                elif request.member_epoch > 0:
                    assert self.member.phase in HEARTBEATING
                    self.check_reported(request.topic_partitions)
                else:
                    assert self.member.phase in (Phase.LEAVING, Phase.RELEASING)
            case Reconcile():
                assert not [w for w in self.work if isinstance(w, Reconcile)], "two at once"
            case Lose():
                assert not any(isinstance(work, Lose) for work in self.work), "lost twice"

    def check_reported(self, listing: tuple[TopicPartitions, ...] | None) -> None:
        """The member never reports partitions as revoked that the application may still own; and
        when stable, none as owned that it does not own."""
        if listing is None:
            return
        names = self.member.names
        reported = {TopicPartition(names[t.topic_id], p) for t in listing for p in t.partitions}
        assert (
            reported >= self.holds
            if self.member.reconciling is not None
            else reported == self.holds
        )

    def check_not_stuck(self) -> None:
        """Check that an event will follow: a response, the end of the application's work, or a
        wake-up."""
        member = self.member
        working = any(work.token == member.pending for work in self.work)
        match member.phase:
            case Phase.UNJOINED:
                alive = member.lookup_in_flight in self.sends or self.wake is not None
            case Phase.JOINING | Phase.RELEASING | Phase.LEAVING:
                alive = member.pending in self.sends
            case Phase.DEPARTING:
                alive = self.wake is not None
            case Phase.MEMBER:
                alive = self.wake is not None
                reconciling = any(work.token == member.reconciling for work in self.work)
                assert reconciling == (member.reconciling is not None)
            case Phase.REVOKING:
                alive = working and self.wake is not None
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
    for seed in range(1_500):
        random_run = RandomRun(seed)
        random_run.live(80)
        seen |= random_run.seen
    missing = {(a, b) for a, targets in MOVES.items() for b in targets} - seen
    assert {f"{a.value} -> {b.value}" for a, b in missing} == {
        "idle -> left",  # closed before it was started
    }


EVERY_EVENT: Mapping[str, ConsumerEvent] = {
    "woke": Woke(now=10.0),
    "subscribed": Subscribed(now=10.0, topics=("x",), pattern=None),
    "named": TopicsNamed(now=10.0, names={V: "v"}),
    "rejoin": RejoinRequested(now=10.0, reason="r"),
    "doubted": CoordinatorInvalidated(now=10.0, reason="r"),
    "leaving": CLOSED,
    "lost": Leaving(now=10.0, reason="late", lost=True),
    "assign failed": AssignFailed(now=10.0, error=DecodeError("x")),
}


@pytest.mark.parametrize("name", EVERY_EVENT)
@pytest.mark.parametrize(
    "member", [FINDING, JOINING, JOINED, TAKING, OWNING, BEATING_, REVOKING, LOSING, LEAVING]
)
def test_every_event_is_handled_in_every_phase(member: Member, name: str) -> None:
    after, _ = step(member, EVERY_EVENT[name])
    if after.phase is Phase.LEAVING:  # by way of another phase, in the same step
        assert member is LEAVING or Phase.DEPARTING in MOVES[member.phase]
    else:
        assert after.phase is member.phase or after.phase in MOVES[member.phase]

"""Membership in ZooKeeper as a function: `step(member, event) == (member, effects)`.

Times are seconds on a clock that only events advance. The session timeout is 12 s: a member
confirms the session each 2 s, and its lease lasts 6 s. Backoff is 1/8 s at jitter 0.5.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from members import checked

from kafkagroup.errors import (
    BrokerError,
    ConfigurationError,
    ConnectionLostError,
    ErrorCode,
    JoinFailedError,
    LocalProtocolError,
    RemoteProtocolError,
)
from kafkagroup.member import zookeeper
from kafkagroup.member.config import MemberConfig
from kafkagroup.member.ownership import Ownership
from kafkagroup.member.vocabulary import (
    AssignFailed,
    AssignmentApplied,
    Compute,
    Computed,
    ComputeFailed,
    Fail,
    GenerationInfo,
    Leave,
    Leaving,
    Lose,
    RejoinRequested,
    Revoke,
    Revoked,
    Started,
    WakeAt,
    Woke,
)
from kafkagroup.member.zookeeper_nodes import (
    MemberNode,
    Metadata,
    Paths,
    admitted,
    decode_metadata,
    encode_metadata,
    generation_claim,
    generation_of,
    partition_of,
    unit_of,
)
from kafkagroup.member.zookeeper_state import MOVES, Member, Phase, View
from kafkagroup.member.zookeeper_vocabulary import (
    AssignUnits,
    Claim,
    Claimed,
    Confirm,
    Confirmed,
    Connect,
    Disconnect,
    MembersChanged,
    MembersRead,
    ReadMembers,
    Register,
    Registered,
    Release,
    Released,
    RequestFailed,
    SessionClosed,
    SessionEstablished,
    SessionExpired,
    SessionFailed,
    ZooKeeperEffect,
    ZooKeeperEvent,
)
from kafkagroup.types import TopicPartition
from kafkagroup.wire.embedded_protocol import encode_assignment

CONFIG = MemberConfig(
    group_id="g",
    protocol_type="consumer",
    session_timeout=12.0,
    rebalance_timeout=40.0,
    retry_backoff=0.125,
    retry_backoff_max=1.0,
)
PROTOCOLS = (("range", b"mine"),)
GONE = ConnectionLostError("the connection broke")
DATA = encode_metadata(Metadata("consumer", PROTOCOLS))
ME, OTHER = MemberNode("me-1", 10, DATA), MemberNode("other-1", 20, DATA)
T0, T1, T2 = "t:0", "t:1", "t:2"


step = checked("zookeeper", zookeeper.step)


def units(*names: str) -> frozenset[str]:
    return frozenset(names)


def assigned(*names: str) -> bytes:
    return encode_assignment(partition_of(name) for name in names)


def run(member: Member, *events: ZooKeeperEvent) -> tuple[Member, list[ZooKeeperEffect]]:
    """Return the member after the events, and the effects of the last one except `WakeAt`."""
    effects: tuple[ZooKeeperEffect, ...] = ()
    for event in events:
        member, effects = step(member, event)
    return member, [e for e in effects if not isinstance(e, WakeAt)]


FRESH = Member(config=CONFIG, name="me", protocols=PROTOCOLS)

OWNING = attrs.evolve(
    FRESH,
    phase=Phase.MEMBER,
    session=1,
    timeout=12.0,
    registration=1,
    view=View(7, (ME,)),
    members={"me-1": b"mine"},
    protocol_name="range",
    assignment=assigned(T0, T1),
    target=units(T0, T1),
    held=units(T0, T1),
    assigned_units=units(T0, T1),
    computed_registration=1,
    notified_registration=1,
    ownership=Ownership(is_assigned=True, acknowledged_at=100.0, lease_timeout=6.0),
    next_confirm_at=102.0,
    session_ends_at=112.0,
    last_token=9,
)
"""It owns what is assigned to it, and was confirmed at 100.0."""


def generation(*names: str, version: int = 7, leads: bool = True, **members: bytes) -> Any:
    return GenerationInfo(
        generation_id=version,
        member_id="me-1",
        leader_id="me-1",
        protocol_name="range",
        members=members or {"me-1": b"mine"},
        assignment=assigned(*names),
    )


# ---------------------------------------------------------------- from nothing to owning


def test_a_member_registers_reads_computes_and_claims_before_it_assigns():
    member, effects = run(FRESH, Started(now=0.0))
    assert effects == [Connect(session=1)]
    member, effects = run(member, SessionEstablished(now=1.0, session=1, timeout=12.0))
    assert effects == [Register(token=1, member_id="me-1", data=DATA, replaces=None)]
    member, effects = run(member, Registered(now=1.25, token=1))
    assert effects == [Confirm(token=2), ReadMembers(token=3)]
    member, effects = run(member, MembersRead(now=1.5, token=3, version=4, nodes=(ME, OTHER)))
    both = {"me-1": b"mine", "other-1": b"mine"}
    assert effects == [Compute(token=4, protocol_name="range", members=both, instance_ids={})]
    member, effects = run(
        member, Computed(now=1.75, token=4, assignments={"me-1": assigned(T0), "other-1": b""})
    )
    assert effects == [Claim(token=5, units=units(T0))]
    member, effects = run(member, Claimed(now=2.0, token=5, granted=units(T0)))
    assert effects == [
        AssignUnits(
            token=6,
            generation=GenerationInfo(
                generation_id=4,
                member_id="me-1",
                leader_id="me-1",
                protocol_name="range",
                members=both,
                assignment=assigned(T0),
            ),
            units=units(T0),
            deadline=2.0 + 30.0,
        )
    ]
    member, effects = run(member, AssignmentApplied(now=2.25, token=6))
    assert effects == []
    assert member == attrs.evolve(
        FRESH,
        phase=Phase.MEMBER,
        session=1,
        timeout=12.0,
        registration=1,
        view=View(4, (ME, OTHER)),
        members=both,
        protocol_name="range",
        assignment=assigned(T0),
        target=units(T0),
        held=units(T0),
        assigned_units=units(T0),
        computed_registration=1,
        notified_registration=1,
        ownership=Ownership(is_assigned=True),
        written_units=units(T0),
        confirming=2,
        confirm_sent_at=1.25,
        next_confirm_at=3.25,
        session_ends_at=13.0,
        retry_at=1.75,
        last_token=6,
    )


def test_an_empty_assignment_is_reported_once():
    member = attrs.evolve(
        OWNING,
        target=None,
        held=units(),
        assigned_units=units(),
        notified_registration=-1,
        computing=9,
    )
    member, effects = run(member, Computed(now=100.0, token=9, assignments={}))
    assert effects == [
        AssignUnits(token=10, generation=generation(), units=units(), deadline=130.0)
    ]
    assert run(member, AssignmentApplied(now=100.0, token=10), Woke(now=101.0))[1] == []


# ---------------------------------------------------------------- who computes what


def test_a_changed_member_list_is_read_and_computed_again_without_revoking():
    member, effects = run(OWNING, MembersChanged(now=101.0, session=1))
    assert effects == [ReadMembers(token=10)]
    member, effects = run(member, MembersRead(now=101.0, token=10, version=8, nodes=(ME, OTHER)))
    both = {"me-1": b"mine", "other-1": b"mine"}
    assert effects == [Compute(token=11, protocol_name="range", members=both, instance_ids={})]
    assert (member.held, member.assigned_units) == (units(T0, T1), units(T0, T1))


def test_a_change_during_a_read_of_the_list_reads_it_again():
    member, effects = run(
        OWNING, MembersChanged(now=101.0, session=1), MembersChanged(now=101.0, session=1)
    )
    assert effects == []
    _, effects = run(member, MembersRead(now=101.0, token=10, version=7, nodes=(ME,)))
    assert effects == [ReadMembers(token=11)]


def test_a_computation_of_an_older_list_changes_nothing():
    member = attrs.evolve(OWNING, computing=9)
    member, _ = run(
        member,
        MembersChanged(now=101.0, session=1),
        MembersRead(now=101.0, token=10, version=8, nodes=(ME, OTHER)),
    )
    assert step(member, Computed(now=101.0, token=9, assignments={}))[0] == member


def test_the_next_confirmation_replaces_a_lost_watch():
    member, effects = run(OWNING, Woke(now=102.0))
    assert effects == [Confirm(token=10)]
    assert run(member, Confirmed(now=102.5, token=10, version=7))[1] == []
    assert run(member, Confirmed(now=102.5, token=10, version=8))[1] == [ReadMembers(token=11)]


def test_a_deleted_member_registers_again_under_another_name():
    member = attrs.evolve(OWNING, reading=9)
    member, effects = run(member, MembersRead(now=101.0, token=9, version=8, nodes=(OTHER,)))
    assert effects == []
    _, effects = run(member, Woke(now=101.125))
    assert effects == [Register(token=10, member_id="me-2", data=DATA, replaces="me-1")]


def test_new_metadata_is_registered_in_a_new_node():
    """A node never changes: members that read the same list have read the same metadata."""
    request = RejoinRequested(now=101.0, reason="why", protocols=(("range", b"new"),))
    member, effects = run(OWNING, request)
    data = encode_metadata(Metadata("consumer", (("range", b"new"),)))
    assert effects == [Register(token=10, member_id="me-2", data=data, replaces="me-1")]
    _, effects = run(member, Registered(now=101.0, token=10))
    assert effects == [ReadMembers(token=11)]


def test_a_list_that_was_requested_before_a_registration_does_not_count():
    """It lacked the new node. The member took that for deleted, and registered again."""
    member, effects = run(
        attrs.evolve(OWNING, reading=9), RejoinRequested(now=101.0, reason="a topic has grown")
    )
    assert effects == [Register(token=10, member_id="me-2", data=DATA, replaces="me-1")]
    member, effects = run(member, MembersRead(now=101.0, token=9, version=8, nodes=(ME,)))
    assert (effects, member.must_register) == ([], False)
    member, effects = run(member, Registered(now=101.0, token=10))
    assert (effects, member.must_register) == ([ReadMembers(token=11)], False)


def test_a_rejoin_registers_again_so_that_all_members_compute():
    _, effects = run(OWNING, RejoinRequested(now=101.0, reason="a topic has grown"))
    assert effects == [Register(token=10, member_id="me-2", data=DATA, replaces="me-1")]


def test_a_member_that_registers_again_keeps_its_partitions_meanwhile():
    """The result of a computation that was under way had nothing for the new member id: the member
    released all its partitions, and claimed them again."""
    member, registered = attrs.evolve(OWNING, computing=9), Registered(now=101.0, token=10)
    member, _ = run(member, RejoinRequested(now=101.0, reason="why"), registered)
    late = Computed(now=101.0, token=9, assignments={"me-1": assigned(T0, T1)})
    assert step(member, late)[0] == member


def test_an_equal_assignment_for_the_new_member_id_is_reported_once_it_is_computed():
    """It was reported when the list was read, before it was known whether it is equal."""
    registered = Registered(now=101.0, token=10)
    member, _ = run(OWNING, RejoinRequested(now=101.0, reason="why"), registered)
    assert not member.follows_subscription
    again = MemberNode("me-2", 8, ME.data)
    member, effects = run(member, MembersRead(now=101.0, token=11, version=8, nodes=(again,)))
    assert [type(effect) for effect in effects] == [Compute]
    result = Computed(now=101.0, token=12, assignments={"me-2": assigned(T0, T1)})
    member, effects = run(member, result)
    assert [type(effect) for effect in effects] == [AssignUnits]
    assert member.follows_subscription


def test_a_member_without_a_common_protocol_fails_with_the_reason():
    stranger = MemberNode("other-1", 5, encode_metadata(Metadata("workers", PROTOCOLS)))
    member = attrs.evolve(
        OWNING, held=units(), assigned_units=units(), target=None, view=None, reading=9
    )
    member, effects = run(member, MembersRead(now=101.0, token=9, version=8, nodes=(ME, stranger)))
    assert [type(effect) for effect in effects] == [Fail, Disconnect]
    assert isinstance(effects[0], Fail)
    assert isinstance(effects[0].error, BrokerError)
    assert effects[0].error.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert member.phase is Phase.FAILED


# ---------------------------------------------------------------- revoking and assigning


def computed(member: Member, *names: str, now: float = 101.0) -> tuple[Member, Any]:
    member = attrs.evolve(member, computing=9)
    return run(member, Computed(now=now, token=9, assignments={"me-1": assigned(*names)}))


def test_a_claim_is_released_after_the_application_released_the_partition():
    member, effects = computed(OWNING, T0, T2)
    assert effects == [
        AssignUnits(token=10, generation=generation(T0), units=units(T0), deadline=131.0)
    ]
    assert member.held == units(T0, T1)
    member, effects = run(member, AssignmentApplied(now=105.0, token=10))
    assert effects == [Confirm(token=11), Release(token=12, units=units(T1))]
    member, effects = run(member, Released(now=105.0, token=12))
    assert effects == [Claim(token=13, units=units(T2))]
    member, effects = run(member, Claimed(now=105.0, token=13, granted=units(T2)))
    assert effects == [
        AssignUnits(token=14, generation=generation(T0, T2), units=units(T0, T2), deadline=135.0)
    ]
    assert member.held == units(T0, T2)


def test_a_claim_held_by_another_is_retried_and_the_rest_assigned_at_once():
    member = attrs.evolve(OWNING, held=units(), assigned_units=units())
    member, _ = computed(member, T0, T1)
    member, effects = run(member, Claimed(now=101.0, token=10, granted=units(T1)))
    assert effects == [
        AssignUnits(token=11, generation=generation(T1), units=units(T1), deadline=131.0)
    ]
    member, effects = step(member, AssignmentApplied(now=101.0, token=11))
    assert effects == (WakeAt(time=101.125),)
    member, effects = run(member, Woke(now=101.125))
    assert effects == [Claim(token=12, units=units(T0))]
    member, effects = step(member, Claimed(now=101.25, token=12, granted=units()))
    assert effects == (WakeAt(time=101.5),)  # twice as long as before


def test_the_number_of_refused_claims_in_a_row_is_limited():
    config = attrs.evolve(OWNING.config, max_retries=1)
    member, _ = computed(attrs.evolve(OWNING, config=config), T0, T1, T2)
    member, _ = step(member, Claimed(now=101.0, token=10, granted=units()))
    member, effects = run(member, Woke(now=101.125))
    assert effects == [Claim(token=11, units=units(T2))]
    member, effects = step(member, Claimed(now=101.25, token=11, granted=units()))
    (lose, fail, disconnect) = effects
    assert (lose.reason, type(fail), type(disconnect)) == (str(fail.error), Fail, Disconnect)
    assert isinstance(fail.error, JoinFailedError)
    assert "refused 2 times in a row, as others hold them: t:2" in str(fail.error)
    assert member.phase is Phase.FAILED


def test_a_claim_with_a_lost_response_is_released_before_it_is_retried():
    member, _ = computed(OWNING, T0, T1, T2)
    member, effects = run(member, RequestFailed(now=101.0, token=10, error=GONE))
    assert (effects, member.held, member.uncertain) == ([], units(T0, T1), units(T2))
    member, effects = run(member, Woke(now=101.125))
    assert effects == [Release(token=11, units=units(T2))]
    member, effects = run(member, Released(now=101.125, token=11))
    assert effects == [Claim(token=12, units=units(T2))]


def test_a_release_with_a_lost_response_counts_as_released():
    member, _ = computed(attrs.evolve(OWNING, held=units(T0, T1, T2)), T0, T1)
    member, _ = run(member, RequestFailed(now=101.0, token=10, error=GONE))
    _, effects = computed(member, T0, T1, T2, now=101.5)
    assert effects == [Release(token=11, units=units(T2))]


def test_withdrawn_claims_are_released_without_a_callback():
    member = attrs.evolve(OWNING, held=units(T0, T1, T2))
    _, effects = computed(member, T0, T1)
    assert effects == [Release(token=10, units=units(T2))]


def test_nothing_is_claimed_during_a_revocation():
    member, _ = computed(OWNING, T0)
    _, effects = computed(member, T0, T1)
    assert effects == []


# ---------------------------------------------------------------- whole generations

WHOLE = attrs.evolve(
    OWNING,
    config=attrs.evolve(CONFIG, exclusive_generations=True),
    assignment=b"work",
    target=units("7"),
    held=units("7"),
    assigned_units=units("7"),
)


def test_a_whole_generation_is_released_before_the_next_is_claimed():
    member = attrs.evolve(WHOLE, computing=9, view=View(8, (ME,)))
    member, effects = run(member, Computed(now=101.0, token=9, assignments={"me-1": b"new"}))
    new = attrs.evolve(generation(version=8), assignment=b"new")
    assert effects == [AssignUnits(token=10, generation=new, units=units(), deadline=131.0)]
    assert (member.held, member.ownership.lease_expires_at) == (units("7"), 0.0)
    member, effects = run(member, AssignmentApplied(now=101.0, token=10))
    assert effects == [Release(token=11, units=units("7"))]
    member, effects = run(member, Released(now=101.0, token=11))
    assert effects == [Claim(token=12, units=units("8"))]
    member, effects = run(member, Claimed(now=101.0, token=12, granted=units("8")))
    assert effects == [AssignUnits(token=13, generation=new, units=units("8"), deadline=131.0)]


# ---------------------------------------------------------------- the session and the clock


def test_the_lease_is_half_a_session_from_when_the_confirmation_was_sent():
    member, _ = run(OWNING, Woke(now=102.0))
    assert member.ownership.lease_expires_at == 106.0
    member, _ = run(member, Confirmed(now=105.0, token=10, version=7))
    assert member.ownership.lease_expires_at == 108.0  # not from when the response came
    assert step(member, SessionExpired(now=107.0, session=1))[0].ownership == Ownership()


def test_a_failed_confirmation_is_retried_soon():
    member, _ = run(OWNING, Woke(now=102.0))
    member, effects = step(member, RequestFailed(now=103.0, token=10, error=GONE))
    assert effects == (WakeAt(time=103.125),)
    assert run(member, Woke(now=103.125))[1] == [Confirm(token=11)]


LOST = attrs.evolve(
    FRESH,
    phase=Phase.LOSING,
    session=1,
    registration=1,
    protocol_name="range",
    assignment=assigned(T0, T1),
    computed_registration=1,
    notified_registration=1,
    reconciling=10,
    next_confirm_at=102.0,
    session_ends_at=112.0,
    last_token=10,
)


def test_an_expired_session_loses_the_partitions():
    reason = "ZooKeeper has ended the session"
    assert step(OWNING, SessionExpired(now=101.0, session=1)) == (
        LOST,
        (Disconnect(session=1), Lose(token=10, reason=reason)),
    )


def test_a_session_unconfirmed_for_its_timeout_counts_as_expired():
    """kazoo reports the end of a session only once it is connected again."""
    reason = "ZooKeeper has not confirmed the session within its timeout"
    member, _ = run(OWNING, Woke(now=102.0))
    assert step(member, Woke(now=111.9))[1] == (WakeAt(time=112.0),)
    member, effects = step(member, Woke(now=112.0))
    assert effects == (Disconnect(session=1), Lose(token=11, reason=reason))
    assert (member.phase, member.held, member.ownership.lease_expires_at) == (
        Phase.LOSING,
        units(),
        0.0,
    )


def test_after_a_loss_a_new_session_begins_when_the_application_has_released():
    member, effects = run(LOST, Revoked(now=120.0, token=10))
    assert effects == [Connect(session=2)]
    _, effects = run(member, SessionEstablished(now=121.0, session=2, timeout=12.0))
    assert effects == [Register(token=11, member_id="me-2", data=DATA, replaces=None)]


STALE = pytest.mark.parametrize(
    "event",
    [
        SessionExpired(now=101.0, session=0),
        SessionEstablished(now=101.0, session=0, timeout=1.0),
        SessionClosed(now=101.0, session=1),
        Registered(now=101.0, token=5),
        MembersRead(now=101.0, token=5, version=9, nodes=()),
        Claimed(now=101.0, token=5, granted=units(T2)),
        Released(now=101.0, token=5),
        Confirmed(now=101.0, token=5, version=9),
        AssignmentApplied(now=101.0, token=5),
        Revoked(now=101.0, token=5),
        Computed(now=101.0, token=5, assignments={"me-1": assigned(T2)}),
        ComputeFailed(now=101.0, token=5, error=ConfigurationError("no")),
        RequestFailed(now=101.0, token=5, error=ConfigurationError("no")),
    ],
    ids=lambda event: type(event).__name__,
)


@STALE
def test_unexpected_responses_change_nothing(event):
    assert step(OWNING, event) == (OWNING, (WakeAt(time=102.0),))


@STALE
def test_responses_to_earlier_requests_do_not_count_for_later_ones(event):
    member = attrs.evolve(
        OWNING,
        reading=9,
        computing=9,
        reconciling=9,
        write_in_flight=9,
        confirming=9,
    )
    assert step(member, event) == (member, (WakeAt(time=112.0),))


@STALE
@pytest.mark.parametrize("phase", [Phase.LEFT, Phase.FAILED])
def test_what_arrives_after_the_end_changes_nothing(event, phase):
    member = attrs.evolve(FRESH, phase=phase, session=1)
    assert step(member, event) == (member, ())


def test_a_restored_connection_reads_the_list_and_confirms_the_session():
    _, effects = run(OWNING, SessionEstablished(now=101.0, session=1, timeout=12.0))
    assert effects == [Confirm(token=10), ReadMembers(token=11)]


def test_a_restored_connection_may_shorten_the_session():
    """Each server grants by its own limits."""
    member, _ = run(OWNING, SessionEstablished(now=101.0, session=1, timeout=4.0))
    assert member.ownership.lease_expires_at == 102.0
    assert member.session_ends_at == 105.0
    member, _ = run(member, Confirmed(now=101.5, token=10, version=7))
    assert member.ownership.lease_expires_at == 103.0


def test_a_restored_connection_never_extends_the_lease_itself():
    """Only the leader's confirmation does."""
    member, _ = run(OWNING, SessionEstablished(now=101.0, session=1, timeout=60.0))
    assert member.ownership.lease_expires_at == 106.0
    assert member.session_ends_at == 112.0
    member, _ = run(member, Confirmed(now=101.5, token=10, version=7))
    assert member.ownership.lease_expires_at == 131.0


def test_a_new_session_begins_with_the_shortest_pause():
    """The failures of the last session do not count for it."""
    member = attrs.evolve(LOST, phase=Phase.CONNECTING, session=2, attempts=5)
    member, _ = run(member, SessionEstablished(now=121.0, session=2, timeout=12.0))
    member, _ = run(member, RequestFailed(now=122.0, token=11, error=GONE))
    assert member.retry_at == 122.125


def test_a_member_that_owns_nothing_restarts_without_a_callback():
    member = attrs.evolve(OWNING, held=units(), assigned_units=units(), target=units())
    member, effects = run(member, SessionExpired(now=101.0, session=1))
    assert effects == [Disconnect(session=1), Connect(session=2)]


# ---------------------------------------------------------------- leaving and failing


def test_leaving_revokes_first_and_then_ends_the_session():
    member, effects = run(OWNING, Leaving(now=101.0, reason="closed"))
    assert effects == [Revoke(token=10, deadline=131.0)]
    assert member.held == units(T0, T1)
    member, effects = run(member, Revoked(now=102.0, token=10))
    assert effects == [Disconnect(session=1)]
    member, effects = run(member, SessionClosed(now=103.0, session=1))
    assert (effects, member.phase) == ([Leave()], Phase.LEFT)


def test_the_session_is_confirmed_while_leaving_for_the_last_commit():
    member, _ = run(OWNING, Leaving(now=101.0, reason="closed"))
    assert run(member, Woke(now=102.0))[1] == [Confirm(token=11)]


def test_leaving_does_not_wait_for_a_stalled_application():
    member, effects = run(OWNING, Leaving(now=101.0, reason="stuck", lost=True))
    assert effects == [Disconnect(session=1), Lose(token=10, reason="stuck")]
    assert run(member, Revoked(now=102.0, token=10))[0].phase is Phase.LEFT


@pytest.mark.parametrize(
    "member",
    [
        attrs.evolve(FRESH, phase=Phase.CONNECTING, session=1),
        attrs.evolve(FRESH, phase=Phase.REGISTERING, session=1, session_ends_at=112.0),
        attrs.evolve(OWNING, held=units(), assigned_units=units()),
    ],
    ids=["connecting", "registering", "without partitions"],
)
def test_a_member_without_records_in_flight_leaves_at_once(member):
    member, effects = run(member, Leaving(now=101.0, reason="closed"))
    assert (effects, member.phase) == ([Disconnect(session=1)], Phase.LEAVING)


@pytest.mark.parametrize(
    "make",
    [
        lambda error: ComputeFailed(now=101.0, token=9, error=error),
        lambda error: AssignFailed(now=101.0, error=error),
        lambda error: SessionFailed(now=101.0, session=1, error=error),
        lambda error: RequestFailed(now=101.0, token=8, error=error),
    ],
    ids=["assignor", "assignment", "session", "refused"],
)
def test_permanent_errors_end_the_member(make: Callable[[Exception], ZooKeeperEvent]):
    error = ConfigurationError("no")
    member, effects = run(attrs.evolve(OWNING, computing=9, write_in_flight=8), make(error))
    assert effects == [Lose(token=10, reason="no"), Fail(error=error), Disconnect(session=1)]
    assert (member.phase, member.ownership.lease_expires_at) == (Phase.FAILED, 0.0)


def test_phases_change_only_as_the_transition_table_allows():
    with pytest.raises(LocalProtocolError):
        step(attrs.evolve(FRESH, phase=Phase.CONNECTING), Started(now=0.0))


# ---------------------------------------------------------------- stored data

METADATA = Metadata("consumer", (("range", b"\x00\xff"), ("sticky", b"")))


def test_metadata_survives_a_round_trip():
    assert decode_metadata(encode_metadata(METADATA)) == METADATA
    assert encode_metadata(METADATA) == (
        b'{"type": "consumer", "protocols": [["range", "AP8="], ["sticky", ""]]}'
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"type": "consumer", "protocols": []}',
        b'{"type": "consumer", "protocols": [["range"]]}',
        b'{"type": "consumer", "protocols": [["range", "!"]]}',
        b'{"type": "consumer", "protocols": [[1, ""]]}',
        b'{"type": "consumer", "protocols": [["range", 1]]}',
        b'{"type": 1, "protocols": [["range", ""]]}',
        b"[" * 100_000,
        b'"' + b"x" * (1 << 20) + b'"',
    ],
)
def test_malformed_metadata_excludes_its_member(data):
    with pytest.raises(RemoteProtocolError):
        decode_metadata(data)


def node(name: str, order: int, kind: str, *offered: str) -> MemberNode:
    data = encode_metadata(Metadata(kind, tuple((o, f"{name}/{o}".encode()) for o in offered)))
    return MemberNode(name, order, data)


def test_members_need_a_protocol_that_all_earlier_members_support():
    nodes = [
        node("late", 9, "consumer", "range"),
        node("first", 1, "consumer", "sticky", "range"),
        node("other kind", 2, "workers", "range"),
        node("second", 3, "consumer", "range", "naive"),
        node("sticky only", 4, "consumer", "sticky"),
        MemberNode("garbage", 0, b"?"),
    ]
    expected = (
        "range",
        {"first": b"first/range", "second": b"second/range", "late": b"late/range"},
    )
    for seed in range(20):
        random.Random(seed).shuffle(nodes)
        found = admitted(nodes)
        assert (found, list(found[1])) == (expected, ["first", "second", "late"])
    assert admitted([]) == ("", {})


def test_paths_are_valid_in_zookeeper():
    assert Paths("/kafkagroup", "billing").claim(T0) == "/kafkagroup/billing/claims/t:0"
    assert Paths("/", "a/b.c").member("me-1") == "/a%2Fb%2Ec/members/me-1"
    assert Paths("/r", "..").group == "/r/%2E%2E"


@given(
    st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", min_size=1),
    st.integers(0, 2**31 - 1),
)
def test_units_round_trip_to_partitions(topic, number):
    assert partition_of(unit_of(TopicPartition(topic, number))) == TopicPartition(topic, number)


def test_a_claim_of_a_generation_names_its_member():
    assert generation_claim("17", "a@b") == "17@a@b"
    assert generation_of("17@a@b") == "17"


# ---------------------------------------------------------------- random runs


class RandomRun:
    """ZooKeeper and an application as one member sees them; they answer in any order."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.member = FRESH
        self.now = 0.0
        self.pending: list[Any] = []
        self.app: frozenset[str] = frozenset()
        """What the application owns."""
        self.held: frozenset[str] = frozenset()
        """Which claims stand, of the session."""
        self.others: frozenset[str] = frozenset()
        """What others have claimed."""
        self.version = 0
        self.session = 0
        self.deliveries: list[Any] = []
        """What the application is to do, in order."""

    def step(self, event: ZooKeeperEvent) -> None:
        before = self.member
        self.member, effects = step(before, event)
        assert (
            self.member.phase is before.phase
            or self.member.phase in MOVES[before.phase]
            or (
                # Two moves in one step, where nothing has to be waited for.
                any(self.member.phase in MOVES[middle] for middle in MOVES[before.phase])
            )
        )
        assert self.member.assigned_units <= self.member.held
        for effect in effects:
            match effect:
                case Connect(session=session):
                    self.session = session
                    self.pending.append(effect)
                case Disconnect():
                    self.held = frozenset()
                    self.pending = [p for p in self.pending if isinstance(p, Compute)]
                    self.pending.append(effect)
                case AssignUnits() | Revoke() | Lose():
                    self.deliveries.append(effect)
                case WakeAt() | Leave() | Fail():
                    pass
                case _:
                    self.pending.append(effect)

    def act(self) -> None:
        chance = self.chance
        self.now += chance.choice((0.0, 0.0, 0.1, 1.0))
        kind = chance.randrange(12)
        if kind == 0:
            self.step(Woke(now=self.now))
        elif kind == 1:
            self.others = frozenset(u for u in (T0, T1, T2) if chance.random() < 0.3) - self.held
        elif kind == 2 and chance.random() < 0.2:
            self.now += 13.0  # the member stalled
            self.held = frozenset()
            self.step(Woke(now=self.now))
        elif kind == 3 and chance.random() < 0.3:
            self.held = frozenset()
            self.step(SessionExpired(now=self.now, session=self.session))
        elif kind == 4:
            self.version += 1
            self.step(MembersChanged(now=self.now, session=self.session))
        elif kind == 5 and chance.random() < 0.2:
            self.step(RejoinRequested(now=self.now, reason="why"))
        elif kind in (6, 7) and self.deliveries:
            self.apply(self.deliveries.pop(0))
        elif self.pending:
            self.respond(self.pending.pop(chance.randrange(len(self.pending))))

    def apply(self, effect: Any) -> None:
        """The application executes the effects. All units that it owns are claimed while its lease
        lasts."""
        match effect:
            case AssignUnits(token=token, units=wanted):
                self.app = wanted
                self.step(AssignmentApplied(now=self.now, token=token))
            case Revoke(token=token) | Lose(token=token):
                self.app = frozenset()
                self.step(Revoked(now=self.now, token=token))

    def respond(self, effect: Any) -> None:
        now, chance = self.now, self.chance
        asked = not isinstance(effect, Connect | Disconnect | Compute)
        if asked and chance.random() < 0.1:
            done = chance.random() < 0.5  # the response was lost, or the question
            if done and isinstance(effect, Claim):
                self.held |= effect.units - self.others
            elif done and isinstance(effect, Release):
                self.held -= effect.units
            self.step(RequestFailed(now=now, token=effect.token, error=GONE))
            return
        match effect:
            case Connect(session=session):
                if session == self.session:
                    self.step(SessionEstablished(now=now, session=session, timeout=12.0))
            case Disconnect(session=session):
                self.step(SessionClosed(now=now, session=session))
            case Register(token=token):
                self.version += 1
                self.step(Registered(now=now, token=token))
            case ReadMembers(token=token):
                nodes = (attrs.evolve(ME, member_id=self.member.member_id), OTHER)
                self.step(MembersRead(now=now, token=token, version=self.version, nodes=nodes))
            case Confirm(token=token):
                self.step(Confirmed(now=now, token=token, version=self.version))
            case Compute(token=token):
                mine = assigned(*(u for u in (T0, T1, T2) if chance.random() < 0.6))
                assignments = {self.member.member_id: mine}
                self.step(Computed(now=now, token=token, assignments=assignments))
            case Claim(token=token, units=wanted):
                granted = wanted - self.others
                self.held |= granted
                self.step(Claimed(now=now, token=token, granted=granted))
            case Release(token=token, units=released):
                # The invariant: it is revoked already.
                assert not released & self.app
                assert not any(
                    released & d.units for d in self.deliveries if isinstance(d, AssignUnits)
                )
                self.held -= released
                self.step(Released(now=now, token=token))


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_random_runs_own_nothing_without_a_claim(seed):
    random_run = RandomRun(seed)
    random_run.step(Started(now=0.0))
    for _ in range(300):
        random_run.act()
        # While ownership is sure, all that the application was given is claimed.
        if (
            random_run.member.ownership.lease_expires_at > random_run.now
            and not random_run.deliveries
        ):
            assert random_run.app <= random_run.held
    # Without further changes, assigned partitions that no other member claims are owned.
    random_run.others = frozenset()
    for _ in range(400):
        random_run.now += 0.5
        while random_run.deliveries:
            random_run.apply(random_run.deliveries.pop(0))
        while random_run.pending:
            random_run.respond(random_run.pending.pop(0))
        random_run.step(Woke(now=random_run.now))
    assert random_run.member.phase is Phase.MEMBER
    assert (
        random_run.app
        == random_run.member.assigned_units
        == random_run.member.target
        == random_run.held
    )

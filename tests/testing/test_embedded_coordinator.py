"""The classic group coordinator, request by request, with time as an argument.

The expected responses were compared with those of Apache Kafka 4.3.1.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.coordinator import Caller, ClassicCoordinator
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.testing.embedded.timers import Timers
from kafkagroup.wire.messages.group import (
    DeletableGroupResult,
    HeartbeatRequest,
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
RANGE = (("range", b"m"),)


class Story:
    """A coordinator, a manual clock, and short forms of the requests."""

    def __init__(self, **settings: Any) -> None:
        self.timers = Timers()
        ids = count(1)
        self.coordinator = ClassicCoordinator(
            self.timers, lambda: str(next(ids)), BrokerSettings(**settings)
        )
        self.now = 0.0

    def caller(self, version: int) -> Caller:
        return Caller(version=version, now=self.now, client_id="c", host="/h")

    def at(self, now: float) -> None:
        self.now = now
        self.timers.run(now)

    def join(
        self,
        member: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        kind: str = "consumer",
        session: float = 10.0,
        rebalance: float = 60.0,
        version: int = 9,
    ) -> list[JoinGroupResponse]:
        replies: list[JoinGroupResponse] = []
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=int(session * 1000),
            rebalance_timeout_ms=int(rebalance * 1000),
            member_id=member,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=tuple(JoinGroupRequestProtocol(name=n, metadata=m) for n, m in protocols),
        )
        self.coordinator.join(request, self.caller(version), replies.append)
        self.timers.run(self.now)
        return replies

    def joins(self, **options: Any) -> tuple[str, list[JoinGroupResponse]]:
        """Join a new dynamic member; return its id, and the responses to its second JoinGroup."""
        (response,) = self.join(**options)
        assert response.error_code == E.MEMBER_ID_REQUIRED
        return response.member_id, self.join(response.member_id, **options)

    def sync(
        self, member: str, generation: int, *, instance: str | None = None, **assignments: str
    ) -> list[SyncGroupResponse]:
        replies: list[SyncGroupResponse] = []
        request = SyncGroupRequest(
            group_id="g",
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            protocol_type="consumer",
            protocol_name=self.coordinator.groups["g"].protocol or "",
            assignments=tuple(
                SyncGroupRequestAssignment(member_id=m.replace("_", "-"), assignment=a.encode())
                for m, a in assignments.items()
            ),
        )
        self.coordinator.sync(request, self.caller(5), replies.append)
        return replies

    def heartbeat(self, member: str, generation: int, instance: str | None = None) -> int:
        request = HeartbeatRequest(
            group_id="g", generation_id=generation, member_id=member, group_instance_id=instance
        )
        return self.coordinator.heartbeat(request, self.caller(4)).error_code

    def leave(self, *members: str, version: int = 5) -> LeaveGroupResponse:
        request = LeaveGroupRequest(
            group_id="g", members=tuple(MemberIdentity(member_id=m) for m in members)
        )
        return self.coordinator.leave(request, self.caller(version))

    def commit(self, member: str, generation: int, *, version: int = 8) -> ErrorCode:
        return self.coordinator.check_commit("g", generation, member, None, self.caller(version))

    @property
    def state(self) -> str:
        return self.coordinator.describe("g", 5).group_state

    def pair(self) -> None:
        """Return c-1 (leader) and c-2, stable in generation 2, each with its assignment."""
        first, _ = self.joins()
        self.sync(first, 1, c_1="all")
        second, _ = self.joins()
        self.join(first)
        self.sync(second, 2)
        self.sync(first, 2, c_1="a", c_2="b")
        assert (first, second, self.state) == ("c-1", "c-2", "Stable")


def joined(member: str, generation: int, *, leader: str = "c-1", **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "error_code": E.NONE,
        "generation_id": generation,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": leader,
        "member_id": member,
        "members": (),
    }
    return JoinGroupResponse(**fields | changes)


def joined_members(*members: str, instances: tuple[str | None, ...] = (None, None)) -> Any:
    return tuple(
        JoinGroupResponseMember(member_id=m, group_instance_id=i, metadata=b"m")
        for m, i in zip(members, instances, strict=False)
    )


def refused(error: ErrorCode, member: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=error, protocol_name=None, leader="", member_id=member, members=()
    )


def synced(assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=E.NONE, protocol_type="consumer", protocol_name="range", assignment=assignment
    )


def not_synced(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error, assignment=b"")


def test_the_first_join_gets_an_id_and_the_second_one_joins() -> None:
    story = Story()
    assert story.join() == [refused(E.MEMBER_ID_REQUIRED, "c-1")]
    assert story.join("c-1") == [joined("c-1", 1, members=joined_members("c-1"))]
    assert story.state == "CompletingRebalance"
    assert story.sync("c-1", 1, c_1="all") == [synced(b"all")]
    assert story.state == "Stable"


def test_before_version_4_the_first_join_succeeds() -> None:
    assert Story().join(version=3) == [joined("c-1", 1, members=joined_members("c-1"))]


@pytest.mark.parametrize(
    ("options", "response"),
    [
        ({"session": 5.999}, refused(E.INVALID_SESSION_TIMEOUT)),
        ({"session": 1800.001}, refused(E.INVALID_SESSION_TIMEOUT)),
        ({"protocols": ()}, refused(E.INCONSISTENT_GROUP_PROTOCOL)),
        ({"kind": ""}, refused(E.INCONSISTENT_GROUP_PROTOCOL)),
        ({"member": "who"}, refused(E.UNKNOWN_MEMBER_ID, "who")),
    ],
)
def test_invalid_joins_are_rejected(options: dict[str, Any], response: JoinGroupResponse) -> None:
    assert Story().join(**options) == [response]


def test_a_member_must_share_type_and_a_protocol_with_the_group() -> None:
    story = Story()
    story.pair()
    inconsistent = [refused(E.INCONSISTENT_GROUP_PROTOCOL)]
    assert story.join(kind="connect") == inconsistent
    assert story.join(protocols=(("sticky", b""),)) == inconsistent


def test_the_initial_rebalance_delay_is_extended_while_members_join() -> None:
    story = Story(group_initial_rebalance_delay=3.0)
    first, a = story.joins()
    story.at(2.0)
    _, b = story.joins()
    story.at(3.0)
    story.at(5.9)
    assert (a, b) == ([], [])
    story.at(6.0)
    assert a == [joined(first, 1, members=joined_members("c-1", "c-2"))]
    assert b == [joined("c-2", 1)]


def test_followers_wait_for_the_leaders_sync() -> None:
    story = Story()
    first, _ = story.joins()
    story.sync(first, 1)
    second, b = story.joins()
    assert (b, story.state, story.heartbeat(first, 1)) == ([], "PreparingRebalance", 27)
    a = story.join(first)
    assert a == [joined(first, 2, members=joined_members("c-1", "c-2"))]
    assert b == [joined(second, 2)]
    follower = story.sync(second, 2)
    assert follower == []
    assert story.sync(first, 2, c_2="b") == [synced(b"")]
    assert follower == [synced(b"b")]
    assert story.sync(second, 2) == [synced(b"b")]


def test_a_join_during_the_sync_makes_all_members_rejoin() -> None:
    story = Story()
    story.pair()
    story.join("c-1")
    story.join("c-2")
    pending = story.sync("c-2", 3)
    story.joins()
    assert pending == [not_synced(E.REBALANCE_IN_PROGRESS)]
    assert story.sync("c-1", 3) == [not_synced(E.REBALANCE_IN_PROGRESS)]


def test_sync_errors() -> None:
    story = Story()
    story.pair()
    assert story.sync("c-1", 1) == [not_synced(E.ILLEGAL_GENERATION)]
    assert story.sync("who", 2) == [not_synced(E.UNKNOWN_MEMBER_ID)]
    replies: list[SyncGroupResponse] = []
    for kind, name, version in (("consumer", None, 5), ("connect", "range", 5), (None, None, 4)):
        request = SyncGroupRequest(
            group_id="g",
            generation_id=2,
            member_id="c-1",
            protocol_type=kind,
            protocol_name=name,
            assignments=(),
        )
        story.coordinator.sync(request, story.caller(version), replies.append)
    inconsistent = not_synced(E.INCONSISTENT_GROUP_PROTOCOL)
    assert replies == [inconsistent, inconsistent, synced(b"a")]


def test_a_follower_that_repeats_its_join_gets_its_generation() -> None:
    story = Story()
    story.pair()
    assert story.join("c-2") == [joined("c-2", 2)]
    assert story.state == "Stable"
    assert story.join("c-2", protocols=(("range", b"new"),)) == []
    assert story.state == "PreparingRebalance"


def test_a_member_that_does_not_rejoin_in_time_is_removed_and_another_leads() -> None:
    story = Story()
    first, _ = story.joins(rebalance=20.0, session=30.0)
    story.sync(first, 1)
    second, b = story.joins(rebalance=20.0, session=30.0)
    story.at(19.9)
    assert b == []
    story.at(20.0)
    assert b == [joined(second, 2, leader=second, members=joined_members(second))]
    assert story.heartbeat(first, 2) == E.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_sync_in_time_is_removed() -> None:
    story = Story()
    member, _ = story.joins(rebalance=7.0)
    story.at(7.0)
    assert (story.state, story.heartbeat(member, 1)) == ("Empty", E.UNKNOWN_MEMBER_ID)


def test_a_session_expires_without_heartbeats_unless_a_request_is_pending() -> None:
    story = Story()
    story.pair()
    for now in (9.0, 18.0):
        story.at(now)
        assert story.heartbeat("c-1", 2) == (E.NONE if now == 9.0 else E.REBALANCE_IN_PROGRESS)
    a = story.join("c-1")
    assert a == [joined("c-1", 3, members=joined_members("c-1"))]
    story.sync("c-1", 3)
    late, _ = story.joins()
    story.at(27.9)
    assert story.heartbeat("c-1", 3) == E.REBALANCE_IN_PROGRESS
    story.at(37.9)
    assert [m.member_id for m in story.coordinator.describe("g", 5).members] == [late]


def test_a_session_restarts_when_a_pending_sync_is_answered() -> None:
    """Its deadline passed while the sync was pending, so it must be set again."""
    story = Story()
    story.pair()
    story.join("c-1")
    story.join("c-2")
    pending = story.sync("c-2", 3)
    for now in (9.0, 12.0):
        story.at(now)
        story.heartbeat("c-1", 3)
    story.sync("c-1", 3)
    assert pending == [synced(b"")]
    for now in (20.0, 21.9):
        story.at(now)
        assert story.heartbeat("c-1", 3) == E.NONE
    story.at(22.0)
    assert story.heartbeat("c-1", 3) == E.REBALANCE_IN_PROGRESS


def test_a_member_that_has_synced_stays_after_the_sync_timeout() -> None:
    story = Story()
    member, _ = story.joins(rebalance=7.0)
    story.sync(member, 1)
    story.at(7.0)
    assert story.state == "Stable"


def test_a_pending_first_join_expires_after_its_own_timeout() -> None:
    story = Story(group_new_member_join_timeout=20.0)
    first, _ = story.joins()
    story.sync(first, 1)
    _, pending = story.joins()
    for now in (9.0, 18.0, 19.9):
        story.at(now)
        story.heartbeat(first, 1)
    assert pending == []
    story.at(20.0)
    assert pending == [refused(E.UNKNOWN_MEMBER_ID)]


def test_a_pending_member_holds_up_the_rebalance_until_its_session_ends() -> None:
    story = Story()
    story.pair()
    story.join()
    a, b = story.join("c-1"), story.join("c-2")
    assert (a, b) == ([], [])
    story.at(10.0)
    assert a == [joined("c-1", 3, members=joined_members("c-1", "c-2"))]
    assert b == [joined("c-2", 3)]


def test_leaving_answers_the_members_own_pending_join() -> None:
    story = Story()
    first, _ = story.joins()
    story.sync(first, 1)
    second, pending = story.joins()
    left = LeaveGroupResponse(
        error_code=E.NONE,
        members=(
            MemberResponse(member_id=second, group_instance_id=None, error_code=E.NONE),
            MemberResponse(member_id="who", group_instance_id=None, error_code=25),
        ),
    )
    assert story.leave(second, "who") == left
    assert pending == [refused(E.UNKNOWN_MEMBER_ID)]
    assert story.state == "PreparingRebalance"
    assert story.join(first) == [joined(first, 2, members=joined_members(first))]


def test_before_version_3_leave_group_has_one_member_and_one_error() -> None:
    story = Story()
    story.pair()
    caller = story.caller(2)
    request = LeaveGroupRequest(group_id="g", member_id="c-1")
    assert story.coordinator.leave(request, caller) == LeaveGroupResponse(error_code=E.NONE)
    assert story.coordinator.leave(request, caller) == LeaveGroupResponse(error_code=25)


def test_the_group_is_empty_after_the_last_member_left() -> None:
    story = Story()
    story.pair()
    story.leave("c-1", "c-2")
    assert (story.state, story.timers.next()) == ("Empty", None)
    assert story.join("c-1") == [refused(E.UNKNOWN_MEMBER_ID, "c-1")]
    assert story.coordinator.delete("g") == DeletableGroupResult(group_id="g", error_code=E.NONE)
    assert story.state == "Dead"


def test_a_group_with_members_is_not_deleted() -> None:
    story = Story()
    story.pair()
    assert story.coordinator.delete("g").error_code == E.NON_EMPTY_GROUP
    assert story.coordinator.delete("nope").error_code == E.GROUP_ID_NOT_FOUND


def test_the_group_has_a_maximum_size() -> None:
    story = Story(group_max_size=2)
    story.pair()
    assert story.join() == [refused(E.GROUP_MAX_SIZE_REACHED)]
    assert story.join("c-2") == [joined("c-2", 2)]


def test_a_rebalance_admits_members_in_order_of_arrival() -> None:
    story = Story(group_max_size=2)
    story.pair()
    story.join("c-1")
    third, _ = story.joins()
    assert story.join("c-2") == [refused(E.GROUP_MAX_SIZE_REACHED)]
    assert story.heartbeat("c-2", 2) == E.UNKNOWN_MEMBER_ID
    assert story.join(third)[0].members == ()


def test_each_member_votes_for_its_first_choice_among_those_that_all_have() -> None:
    story = Story()
    protocols = (("a", b""), ("b", b""), ("mine", b""))
    first, _ = story.joins(protocols=protocols)
    story.sync(first, 1)
    others = [story.joins(protocols=(("yours", b""), ("b", b""), ("a", b""))) for _ in range(2)]
    (response,) = story.join(first, protocols=protocols)
    assert response.protocol_name == "b"
    assert [replies[0].protocol_name for _, replies in others] == ["b", "b"]


def test_ties_of_protocols_go_by_the_order_of_kafkas_hash_map() -> None:
    story = Story(group_initial_rebalance_delay=3.0)
    one, other = ("roundrobin", b""), ("sticky", b"")
    _, first = story.joins(protocols=(one, other))
    story.joins(protocols=(other, one))
    story.at(3.0)
    story.at(6.0)
    assert first[0].protocol_name == "sticky"


def test_a_sync_before_the_first_generation_has_to_wait() -> None:
    """Not INCONSISTENT_GROUP_PROTOCOL: the group has no protocol yet."""
    story = Story(group_initial_rebalance_delay=3.0)
    member, _ = story.joins()
    assert story.sync(member, 0) == [not_synced(E.REBALANCE_IN_PROGRESS)]


def test_only_version_0_takes_the_session_timeout_for_the_rebalance() -> None:
    story = Story()
    story.join(rebalance=-0.001, version=3)
    assert story.coordinator.groups["g"].rebalance_timeout == 0.0
    story = Story()
    story.join(rebalance=-0.001, version=0)
    assert story.coordinator.groups["g"].rebalance_timeout == 10.0


def test_offsets_are_kept_if_a_member_has_no_readable_subscription() -> None:
    story = Story()
    story.pair()
    assert story.coordinator.check_offset_delete("g") == E.NONE
    assert story.coordinator.subscribes("g", "t")
    assert story.coordinator.check_offset_delete("") == E.INVALID_GROUP_ID


class TestCommits:
    def test_commits_of_members_need_the_current_generation(self) -> None:
        story = Story()
        story.pair()
        assert story.commit("c-1", 2) == E.NONE
        assert story.commit("c-1", 1) == E.ILLEGAL_GENERATION
        assert story.commit("who", 2) == E.UNKNOWN_MEMBER_ID
        assert story.commit("c-1", -1) == E.ILLEGAL_GENERATION
        story.joins()
        assert story.commit("c-1", 2) == E.NONE, "also while the next rebalance is prepared"
        story.join("c-1")
        story.join("c-2")
        assert story.commit("c-1", 3) == E.REBALANCE_IN_PROGRESS

    def test_a_commit_extends_the_session(self) -> None:
        story = Story()
        story.pair()
        story.at(9.0)
        story.commit("c-1", 2)
        story.commit("c-2", 2)
        story.at(18.0)
        assert story.state == "Stable"

    def test_commits_without_membership_need_an_empty_group(self) -> None:
        story = Story()
        assert story.commit("", -1) == E.NONE
        assert story.state == "Empty"
        story.pair()
        assert story.commit("", -1) == E.UNKNOWN_MEMBER_ID

    def test_a_commit_to_an_unknown_group(self) -> None:
        assert Story().commit("m", 3, version=8) == E.ILLEGAL_GENERATION
        assert Story().commit("m", 3, version=9) == E.GROUP_ID_NOT_FOUND


class TestStaticMembers:
    @pytest.fixture
    def story(self) -> Story:
        """Provide x-1, the leader, stable in generation 1."""
        story = Story()
        assert story.join(instance="x") == [
            joined("x-1", 1, leader="x-1", members=joined_members("x-1", instances=("x",)))
        ]
        story.sync("x-1", 1, x_1="all")
        return story

    def test_a_static_member_restarts_under_a_new_id_without_a_rebalance(
        self, story: Story
    ) -> None:
        back = joined(
            "x-2",
            1,
            leader="x-2",
            members=joined_members("x-2", instances=("x",)),
            skip_assignment=True,
        )
        assert story.join(instance="x") == [back]
        assert story.sync("x-2", 1, instance="x") == [synced(b"all")]
        assert story.heartbeat("x-1", 1, "x") == E.FENCED_INSTANCE_ID
        assert story.heartbeat("x-1", 1) == E.UNKNOWN_MEMBER_ID
        assert story.heartbeat("x-2", 1, "y") == E.UNKNOWN_MEMBER_ID

    def test_before_version_9_a_restarted_static_leader_becomes_a_follower(
        self, story: Story
    ) -> None:
        assert story.join(instance="x", version=8) == [joined("x-2", 1, leader="x-1")]

    def test_a_restarted_static_member_has_its_old_session_timeout_until_a_heartbeat(
        self, story: Story
    ) -> None:
        story.join(instance="x", session=6.0)
        story.at(9.9)
        assert story.heartbeat("x-2", 1, "x") == E.NONE
        story.at(15.9)
        assert story.heartbeat("x-2", 1, "x") == E.UNKNOWN_MEMBER_ID

    def test_a_static_member_that_joins_twice_needs_no_heartbeat(self, story: Story) -> None:
        """Its second JoinGroup is pending: the session timeout of a new member does not apply."""
        story.join(instance="y")
        again = story.join(instance="y")
        story.at(9.0)
        story.heartbeat("x-1", 1, "x")
        story.at(11.0)
        assert again == []

    def test_a_change_of_the_groups_protocol_rebalances(self, story: Story) -> None:
        (response,) = story.join(instance="x", protocols=(("sticky", b""), ("range", b"m")))
        assert response.error_code == E.NONE
        assert (response.generation_id, response.protocol_name) == (2, "sticky")

    def test_of_two_static_members_with_one_instance_id_the_older_is_fenced(
        self, story: Story
    ) -> None:
        pending = story.join(instance="y")
        again = story.join(instance="y")
        assert pending == [refused(E.FENCED_INSTANCE_ID, "y-2")]
        story.join("x-1", instance="x")
        assert again == [joined("y-3", 2, leader="x-1")]
        waiting = story.sync("y-3", 2, instance="y")
        story.join(instance="y")
        assert waiting == [not_synced(E.FENCED_INSTANCE_ID)]

    def test_a_static_member_stays_in_the_group_when_it_misses_a_rebalance(
        self, story: Story
    ) -> None:
        _, pending = story.joins()
        story.at(5.0)
        story.heartbeat("x-1", 1, "x")
        story.at(14.0)
        story.heartbeat("x-1", 1, "x")
        for now in range(20, 61, 5):
            story.at(float(now))
            story.heartbeat("x-1", 1, "x")
        (response,) = pending
        assert sorted(m.member_id for m in response.members) == ["c-2", "x-1"]
        assert response.leader == "c-2"

    def test_without_a_rebalance_timeout_the_group_waits_for_a_static_member(self) -> None:
        """The rebalance was tried again for ever at the same moment."""
        story = Story(group_initial_rebalance_delay=3.0)
        story.join(instance="x", rebalance=0.0, session=30.0)
        story.join(instance="y", rebalance=20.0, session=6.0)
        story.at(3.0)
        story.at(9.0)  # the session of y ends
        assert story.state == "PreparingRebalance"
        (response,) = story.join("x-1", instance="x", rebalance=0.0)
        assert (response.generation_id, response.leader) == (2, "x-1")


def test_another_coordinator_loads_the_written_group() -> None:
    story = Story()
    story.pair()
    _, pending = story.joins()
    story.now = 5.0
    story.coordinator.move("g", 5.0)
    assert pending == [refused(E.NOT_COORDINATOR, "c-3")]
    assert (story.state, story.heartbeat("c-1", 2), story.heartbeat("c-3", 2)) == ("Stable", 0, 25)
    story.at(14.9)
    assert story.state == "Stable"
    story.at(15.0)
    assert story.heartbeat("c-2", 2) == E.UNKNOWN_MEMBER_ID


def test_a_group_can_move_repeatedly() -> None:
    story = Story()
    story.pair()
    for _ in range(3):
        story.coordinator.move("g", 0.0)
        assert (story.state, story.heartbeat("c-1", 2), story.heartbeat("c-2", 2)) == (
            "Stable",
            0,
            0,
        )
        story.join("c-1")
        assert story.state == "PreparingRebalance"


def test_an_unwritten_generation_is_lost_when_the_coordinator_moves() -> None:
    story = Story()
    story.pair()
    story.join("c-1")
    story.join("c-2")
    waiting = story.sync("c-2", 3)
    story.coordinator.move("g", 1.0)
    assert waiting == [not_synced(E.NOT_COORDINATOR)]
    assert (story.state, story.coordinator.groups["g"].generation) == ("Stable", 2)
    assert story.sync("c-2", 2) == [synced(b"b")]


def test_due_timers_run_in_order() -> None:
    timers = Timers()
    ran: list[tuple[str, float]] = []

    def recording(name: str) -> Callable[[float], None]:
        return lambda now: ran.append((name, now))

    woken: list[float | None] = []
    timers.on_earlier = lambda: woken.append(timers.next())
    timers.schedule("late", 5.0, recording("late"))
    timers.schedule("a", 2.0, recording("a"))
    timers.schedule("b", 2.0, lambda now: timers.schedule("c", now, recording("c")))
    timers.schedule("moved", 1.0, recording("never"))
    timers.schedule("moved", 3.0, recording("moved"))
    timers.schedule("gone", 2.0, recording("gone"))
    timers.cancel("gone")
    timers.run(3.0)
    assert ran == [("a", 3.0), ("moved", 3.0), ("c", 3.0)]
    assert (timers.next(), woken) == (5.0, [5.0, 2.0, 1.0])


def test_timers_due_in_the_same_millisecond_run_in_the_order_of_their_scheduling() -> None:
    timers = Timers()
    ran: list[str] = []
    inexact = 30.048 + 30.034
    assert inexact < 60.082, "the sum has no rounding error"
    timers.schedule("first", 60.082, lambda _: ran.append("first"))
    timers.schedule("second", inexact, lambda _: ran.append("second"))
    timers.run(inexact)
    assert ran == ["first", "second"]

"""The embedded coordinator of consumer groups, with requests and time as input.

The expected responses were compared with Apache Kafka 4.3.1, or are in KIP-848.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.consumer_coordinator import ConsumerCoordinator
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.group_requests import describe_consumer_groups, join
from kafkagroup.testing.embedded.offsets import commit
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.testing.embedded.timers import Timers
from kafkagroup.wire.messages.consumer_describe import ConsumerGroupDescribeRequest
from kafkagroup.wire.messages.consumer_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kafkagroup.wire.messages.group import JoinGroupRequest, LeaveGroupRequest, MemberIdentity
from kafkagroup.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

E = ErrorCode
T, U, NEW = UUID(int=1), UUID(int=2), UUID(int=3)
PartitionsByTopicId = dict[UUID, tuple[int, ...]]


def listed(share: PartitionsByTopicId) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic_id=t, partitions=p) for t, p in share.items())


JOIN_WITHOUT_ID = ConsumerGroupHeartbeatRequest(
    group_id="g",
    member_id="",
    member_epoch=0,
    rebalance_timeout_ms=30_000,
    subscribed_topic_names=("t",),
    topic_partitions=(),
)


class OneGroup:
    """One group at one coordinator, with a clock that only tests advance."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.counts = {"t": 4}
        self.timers = Timers()
        self.ids = {"t": T, "u": U}
        self.topic_creations = 1
        self.coordinator = ConsumerCoordinator(
            self.timers,
            BrokerSettings(**settings),
            counts=lambda: self.counts,
            ids=lambda: {name: self.ids[name] for name in self.counts},
            topic_creations=lambda: self.topic_creations,
            new_id=lambda: "made",
        )

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.timers.run(self.now)

    def ask(self, member: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member, member_epoch=epoch, **fields
        )
        return self.coordinator.heartbeat(request, Caller(version=1, now=self.now))

    def join(self, member: str, **fields: Any) -> tuple[Any, ...]:
        everything: dict[str, Any] = {
            "rebalance_timeout_ms": 30_000,
            "subscribed_topic_names": ("t",),
            "topic_partitions": (),
        }
        return self.result_of(self.ask(member, 0, **{**everything, **fields}))

    def heartbeat(
        self, member: str, epoch: int, owned: PartitionsByTopicId | None = None
    ) -> tuple[Any, ...]:
        listing = None if owned is None else listed(owned)
        return self.result_of(self.ask(member, epoch, topic_partitions=listing))

    @staticmethod
    def result_of(response: ConsumerGroupHeartbeatResponse) -> tuple[Any, ...]:
        """Return (epoch, assignment), or the error's code."""
        if response.error_code:
            return (ErrorCode(response.error_code),)
        if response.assignment is None:
            return (response.member_epoch, None)
        parts = response.assignment.topic_partitions
        return (response.member_epoch, {t.topic_id: t.partitions for t in parts})

    def commit(self, member: str, epoch: int, partition: int) -> ErrorCode:
        """Return the error for committing an offset of this partition of "t"."""
        error, may_commit = self.coordinator.check_commit("g", member, epoch, 9)
        return error or (E.NONE if may_commit(T, partition) else E.STALE_MEMBER_EPOCH)

    def state(self) -> str:
        return self.coordinator.describe("g").group_state


def test_the_first_member_gets_everything_and_acknowledges() -> None:
    one_group = OneGroup()
    assert one_group.join("a") == (2, {T: (0, 1, 2, 3)})
    assert one_group.heartbeat("a", 2) == (2, None)
    assert one_group.heartbeat("a", 2, {T: (0, 1, 2, 3)}) == (2, None)
    assert one_group.state() == "Stable"


def test_moving_partitions_are_assigned_after_they_are_released() -> None:
    one_group = OneGroup()
    one_group.join("a")
    assert one_group.join("b") == (3, {})
    assert one_group.heartbeat("a", 2) == (2, {T: (0, 1)})
    assert one_group.heartbeat("a", 2) == (2, None)
    assert one_group.state() == "Reconciling"
    assert one_group.heartbeat("b", 3) == (3, None)
    assert one_group.heartbeat("a", 2, {T: (0, 1)}) == (3, None)
    assert one_group.heartbeat("b", 3) == (3, {T: (2, 3)})
    assert one_group.state() == "Stable"


def test_revoking_partitions_are_described_as_the_members() -> None:
    one_group = OneGroup()
    one_group.join("a")
    one_group.join("b")
    one_group.heartbeat("a", 2)
    members = one_group.coordinator.describe("g").members
    assert [
        [t.partitions for t in share.topic_partitions]
        for m in members
        for share in (m.assignment, m.target_assignment)
    ] == [[(0, 1, 2, 3)], [(0, 1)], [], [(2, 3)]]


def test_a_member_that_revokes_too_slowly_is_removed() -> None:
    one_group = OneGroup()
    one_group.join("a")
    one_group.join("b")
    one_group.heartbeat("a", 2)
    one_group.wait(20)
    assert one_group.heartbeat("a", 2) == (2, None)
    one_group.wait(10)
    assert one_group.heartbeat("a", 2) == (E.UNKNOWN_MEMBER_ID,)
    assert one_group.heartbeat("b", 3) == (4, {T: (0, 1, 2, 3)})


def test_a_member_without_heartbeats_for_a_session_is_removed() -> None:
    one_group = OneGroup(group_consumer_session_timeout=6.0)
    one_group.join("a")
    one_group.join("b")
    one_group.wait(3)
    one_group.heartbeat("b", 3)
    one_group.wait(3)
    assert one_group.heartbeat("b", 3) == (4, {T: (0, 1, 2, 3)})
    assert one_group.heartbeat("a", 2) == (E.UNKNOWN_MEMBER_ID,)


def test_a_leaving_member_releases_its_partitions() -> None:
    one_group = OneGroup()
    one_group.join("a")
    one_group.join("b")
    assert one_group.result_of(one_group.ask("a", -1)) == (-1, None)
    assert one_group.state() == "Assigning"
    assert one_group.heartbeat("b", 3) == (4, {T: (0, 1, 2, 3)})
    assert one_group.result_of(one_group.ask("a", -1)) == (E.UNKNOWN_MEMBER_ID,)
    one_group.ask("b", -1)
    assert one_group.state() == "Empty"


def test_a_restarted_static_member_with_another_id_keeps_its_partitions() -> None:
    one_group = OneGroup(group_consumer_session_timeout=6.0)
    one_group.join("a", instance_id="i")
    assert one_group.join("b", instance_id="i") == (E.UNRELEASED_INSTANCE_ID,)
    assert one_group.result_of(one_group.ask("a", -2, instance_id="i")) == (-2, None)
    assert one_group.state() == "Reconciling"
    assert one_group.join("b", instance_id="i") == (2, {T: (0, 1, 2, 3)})
    assert one_group.state() == "Stable"
    assert one_group.result_of(one_group.ask("a", 2, instance_id="i")) == (E.FENCED_INSTANCE_ID,)
    one_group.ask("b", -2, instance_id="i")
    one_group.wait(6)
    assert one_group.state() == "Empty"


def test_a_member_that_changes_its_instance_id_holds_the_old_one_too() -> None:
    one_group = OneGroup()
    one_group.join("a", instance_id="i")
    one_group.join("a", instance_id="j")
    for instance_id in "i", "j":
        assert one_group.join("b", instance_id=instance_id) == (E.UNRELEASED_INSTANCE_ID,)
    assert one_group.result_of(one_group.ask("a", -1, instance_id="i")) == (-1, None)
    assert one_group.join("b", instance_id="i") == (E.UNKNOWN_MEMBER_ID,)
    one_group.wait(1)
    assert one_group.join("b", instance_id="j") == (4, {T: (0, 1, 2, 3)})


def test_a_dynamic_member_that_becomes_static_gets_nothing_until_the_next_target() -> None:
    one_group = OneGroup(group_consumer_assignment_interval=1.0)
    one_group.join("a")
    one_group.wait(1)
    one_group.join("b")
    both = ("t", "u")
    assert one_group.join("a", instance_id="i", subscribed_topic_names=both) == (3, {})
    assert one_group.heartbeat("a", 3) == (3, None)
    one_group.wait(1)
    assert one_group.heartbeat("a", 3) == (4, {T: (0, 1)})


def test_wrong_epochs_are_fenced() -> None:
    one_group = OneGroup()
    one_group.join("a")
    one_group.join("b")
    assert one_group.heartbeat("a", 9) == (E.FENCED_MEMBER_EPOCH,)
    one_group.heartbeat("a", 2)
    one_group.heartbeat("a", 2, {T: (0, 1)})
    # The response may have been lost: with all that it owns the member may say it again.
    assert one_group.heartbeat("a", 2) == (E.FENCED_MEMBER_EPOCH,)
    assert one_group.heartbeat("a", 2, {T: (0, 1)}) == (3, None)
    assert one_group.heartbeat("a", 2, {T: (0, 1, 2)}) == (E.FENCED_MEMBER_EPOCH,)


def test_a_full_heartbeat_is_answered_with_the_full_assignment() -> None:
    one_group = OneGroup()
    one_group.join("a")
    again = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": ("t",)}
    response = one_group.ask("a", 2, topic_partitions=listed({T: (0, 1, 2, 3)}), **again)
    assert one_group.result_of(response) == (2, {T: (0, 1, 2, 3)})


def test_new_topics_and_partitions_start_a_new_epoch() -> None:
    one_group = OneGroup()
    one_group.join("a", subscribed_topic_names=("u",), subscribed_topic_regex="t.*")
    one_group.counts = {"t": 5, "u": 1}
    assert one_group.heartbeat("a", 2) == (4, {T: (0, 1, 2, 3, 4), U: (0,)})


def test_a_topic_that_was_there_only_while_a_member_left_starts_a_new_epoch() -> None:
    """The leave stores the topic, and the next heartbeat has to notice that it is gone."""
    one_group = OneGroup()
    one_group.counts = {}
    one_group.join("a", subscribed_topic_names=("u",))
    one_group.join("b")
    one_group.counts = {"u": 1}
    one_group.ask("b", -1)
    one_group.counts = {}
    assert one_group.heartbeat("a", 2) == (5, None)


def test_a_recreated_topic_is_another_topic() -> None:
    one_group = OneGroup()
    one_group.join("a")
    one_group.heartbeat("a", 2, {T: (0, 1, 2, 3)})
    one_group.wait(5)
    one_group.ids["t"] = NEW
    assert one_group.heartbeat("a", 2) == (2, {})
    assert one_group.heartbeat("a", 2, {}) == (3, {NEW: (0, 1, 2, 3)})
    assert one_group.heartbeat("a", 3, {NEW: (0, 1, 2, 3)}) == (3, None)
    assert one_group.state() == "Stable"


def test_the_group_uses_the_assignor_that_most_members_prefer() -> None:
    one_group = OneGroup()
    one_group.counts = {"t": 2, "u": 2}
    for member in ("a", "b"):
        one_group.join(member, subscribed_topic_names=("t", "u"), server_assignor="range")
    described = one_group.coordinator.describe("g")
    assert described.assignor_name == "range"
    assert [
        [(t.topic_name, t.partitions) for t in m.target_assignment.topic_partitions]
        for m in described.members
    ] == [[("t", (0,)), ("u", (0,))], [("t", (1,)), ("u", (1,))]]


def test_assignments_are_computed_at_most_once_per_interval() -> None:
    one_group = OneGroup(group_consumer_assignment_interval=1.0)
    one_group.join("a")
    assert one_group.join("b") == (2, {})
    assert one_group.state() == "Assigning"
    one_group.wait(1)
    assert one_group.heartbeat("a", 2) == (2, {T: (0, 1)})


def test_an_assignment_is_due_in_the_millisecond_in_which_its_interval_ends() -> None:
    """As floats, 0.128 + 1 is more than 1.128: the assignment came with a later heartbeat."""
    one_group = OneGroup(group_consumer_assignment_interval=1.0)
    one_group.now = 0.128
    one_group.join("a")
    one_group.join("b")
    one_group.now = 1.128
    assert one_group.heartbeat("a", 2) == (2, {T: (0, 1)})


@pytest.mark.parametrize(
    "changes",
    [
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": listed({T: (0,)})},
        {"subscribed_topic_names": None},
        {"instance_id": ""},
        {"rack_id": ""},
    ],
    ids=str,
)
def test_a_join_must_have_all_fields_and_report_no_owned_partitions(
    changes: dict[str, Any],
) -> None:
    assert OneGroup().join("a", **changes) == (E.INVALID_REQUEST,)


def test_invalid_requests_are_rejected() -> None:
    one_group = OneGroup(group_max_size=1)
    assert one_group.heartbeat("a", 1) == (E.GROUP_ID_NOT_FOUND,)
    assert one_group.result_of(one_group.ask("a", -1)) == (E.GROUP_ID_NOT_FOUND,)
    one_group.join("a")
    assert one_group.join("b") == (E.GROUP_MAX_SIZE_REACHED,)
    assert one_group.heartbeat("b", 1) == (E.GROUP_MAX_SIZE_REACHED,)
    assert one_group.result_of(one_group.ask("b", -1)) == (E.UNKNOWN_MEMBER_ID,)
    assert one_group.join("a", server_assignor="sticky") == (E.UNSUPPORTED_ASSIGNOR,)
    assert one_group.join("a", subscribed_topic_regex="(") == (E.INVALID_REGULAR_EXPRESSION,)
    assert one_group.result_of(one_group.ask("a", -2)) == (E.INVALID_REQUEST,)
    assert one_group.result_of(one_group.ask("", 0)) == (E.INVALID_REQUEST,)


def test_only_members_with_the_current_epoch_may_commit() -> None:
    """KIP-1251: an older epoch is accepted for partitions that the member owned in it already."""
    one_group = OneGroup()
    one_group.join("a")
    assert one_group.commit("a", 2, 1) == E.NONE
    assert one_group.commit("a", 3, 1) == E.STALE_MEMBER_EPOCH
    assert one_group.commit("b", 2, 1) == E.UNKNOWN_MEMBER_ID
    assert one_group.commit("", -1, 1) == E.UNKNOWN_MEMBER_ID
    one_group.join("b")
    one_group.heartbeat("a", 2)
    assert one_group.commit("a", 2, 3) == E.NONE  # being revoked
    one_group.heartbeat("a", 2, {T: (0, 1)})
    assert one_group.commit("a", 2, 1) == E.NONE
    assert one_group.commit("a", 2, 3) == E.STALE_MEMBER_EPOCH
    assert one_group.commit("a", 1, 1) == E.STALE_MEMBER_EPOCH
    one_group.ask("a", -1)
    one_group.ask("b", -1)
    assert one_group.commit("", -1, 1) == E.NONE


def test_a_commit_fails_as_a_whole_for_one_partition_of_another_member() -> None:
    cluster = Cluster(range(1, 2), BrokerSettings(), 0)
    cluster.create_topic("t", 2)
    caller = Caller(version=9, now=0.0)
    for member in ("a", "b"):
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=("t",),
            topic_partitions=(),
        )
        cluster.consumer_coordinator.heartbeat(request, caller)
    for owned in (None, (0,)):
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="a",
            member_epoch=2,
            topic_partitions=None
            if owned is None
            else listed({cluster.topics["t"].topic_id: owned}),
        )
        cluster.consumer_coordinator.heartbeat(request, caller)
    response = commit(
        cluster,
        1,
        OffsetCommitRequest(
            group_id="g",
            member_id="a",
            generation_id_or_member_epoch=2,
            topics=(
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=tuple(
                        OffsetCommitRequestPartition(
                            partition_index=index, committed_offset=7, committed_metadata=""
                        )
                        for index in (0, 1)
                    ),
                ),
            ),
        ),
        caller,
    )
    errors = [p.error_code for topic in response.topics for p in topic.partitions]
    assert errors == [E.STALE_MEMBER_EPOCH, E.STALE_MEMBER_EPOCH]
    assert not cluster.offsets.get("g")


def test_old_versions_cannot_report_a_stale_epoch() -> None:
    one_group = OneGroup()
    one_group.join("a")
    assert one_group.coordinator.check_commit("g", "a", 2, 8)[0] == E.UNSUPPORTED_VERSION
    assert one_group.coordinator.check_commit("g", "b", 2, 8)[0] == E.UNKNOWN_MEMBER_ID


def test_only_members_with_the_current_epoch_read_offsets_as_members() -> None:
    one_group = OneGroup()
    one_group.join("a")
    check = one_group.coordinator.check_fetch
    assert check("g", "a", 2) == E.NONE
    assert check("g", "a", 1) == E.STALE_MEMBER_EPOCH
    assert check("g", "b", 2) == E.UNKNOWN_MEMBER_ID
    assert check("g", None, 2) == E.UNKNOWN_MEMBER_ID
    assert check("g", None, -1) == E.NONE


def test_a_pattern_is_resolved_after_the_heartbeat_that_brings_it() -> None:
    one_group = OneGroup()
    assert one_group.join("a", subscribed_topic_names=None, subscribed_topic_regex="t.*") == (1, {})
    assert one_group.heartbeat("a", 1) == (2, {T: (0, 1, 2, 3)})
    assert one_group.join("b", subscribed_topic_names=None, subscribed_topic_regex="t.*") == (3, {})


def test_new_topics_are_matched_10_seconds_after_the_last_time() -> None:
    one_group = OneGroup()
    one_group.join("a", subscribed_topic_names=None, subscribed_topic_regex="[tu]")
    assert one_group.heartbeat("a", 1) == (2, {T: (0, 1, 2, 3)})
    one_group.counts, one_group.topic_creations = {"t": 4, "u": 1}, 2
    one_group.wait(10)
    assert one_group.heartbeat("a", 2) == (2, None)
    one_group.wait(0.001)
    assert one_group.heartbeat("a", 2) == (2, None)
    assert one_group.heartbeat("a", 2) == (3, {T: (0, 1, 2, 3), U: (0,)})


def test_patterns_are_resolved_again_after_a_topic_was_created_and_deleted() -> None:
    """Kafka compares the version of the metadata, not the topics that there are."""
    one_group = OneGroup()
    one_group.join("a", subscribed_topic_names=None, subscribed_topic_regex="[tu]")
    assert one_group.heartbeat("a", 1) == (2, {T: (0, 1, 2, 3)})
    # "u" is created, then "t" and "u" are deleted.
    one_group.counts, one_group.topic_creations = {}, 2
    one_group.wait(10.001)
    one_group.heartbeat("a", 2)
    assert one_group.coordinator.groups["g"].resolved == {"[tu]": frozenset()}


def test_patterns_are_not_resolved_again_because_a_topic_was_deleted() -> None:
    one_group = OneGroup()
    one_group.join("a", subscribed_topic_names=None, subscribed_topic_regex="[tu]")
    one_group.counts = {}
    one_group.wait(10.001)
    one_group.heartbeat("a", 1)
    assert one_group.coordinator.groups["g"].resolved == {"[tu]": {"t"}}


def test_a_heartbeat_with_another_pattern_notices_topics_of_the_old_one() -> None:
    """The old pattern is dropped at once, before the new one is resolved."""
    one_group = OneGroup()
    one_group.counts = {"t": 2, "u": 2}
    joined = one_group.join("a", subscribed_topic_names=("u",), subscribed_topic_regex="t")
    assert joined == (2, {U: (0, 1)})
    one_group.counts = {"t": 3, "u": 2}
    response = one_group.ask("a", 2, subscribed_topic_regex="u")
    assert one_group.result_of(response) == (4, None)


def test_a_topic_is_revoked_as_soon_as_the_member_unsubscribes() -> None:
    """The target for the new subscription has to wait; the revocation does not."""
    one_group = OneGroup(group_consumer_assignment_interval=1.0)
    one_group.counts = {"t": 1, "u": 1}
    assert one_group.join("a", subscribed_topic_names=("t", "u")) == (2, {T: (0,), U: (0,)})
    response = one_group.result_of(one_group.ask("a", 2, subscribed_topic_names=("u",)))
    assert response == (2, {U: (0,)})
    assert one_group.state() == "Assigning"


def test_no_member_id_is_drawn_for_a_full_group() -> None:
    """The ids that were drawn later differed from those of Kafka with the same seed."""
    one_group = OneGroup(group_max_size=1)
    one_group.coordinator._new_id = iter(("first", "second")).__next__
    caller = Caller(version=0, now=0.0)
    assert one_group.coordinator.heartbeat(JOIN_WITHOUT_ID, caller).member_id == "first"
    response = one_group.coordinator.heartbeat(JOIN_WITHOUT_ID, caller)
    assert response.error_code == E.GROUP_MAX_SIZE_REACHED
    one_group.ask("first", -1)
    assert one_group.coordinator.heartbeat(JOIN_WITHOUT_ID, caller).member_id == "second"


def test_members_that_an_administrator_removes_leave_in_one_epoch() -> None:
    """Removed one after the other, a member that was named twice was unknown the second time."""
    one_group = OneGroup()
    one_group.join("a", instance_id="i")
    one_group.join("b")
    one_group.join("c")
    identities = (("", "i"), ("a", "i"), ("b", None), ("b", "i"), ("c", "j"), ("", None))
    response = one_group.coordinator.remove_members(
        LeaveGroupRequest(
            group_id="g",
            members=tuple(
                MemberIdentity(member_id=member_id, group_instance_id=instance_id)
                for member_id, instance_id in identities
            ),
        )
    )
    assert [member.error_code for member in response.members] == [
        *(E.NONE, E.NONE, E.NONE),
        *(E.FENCED_INSTANCE_ID, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID),
    ]
    assert one_group.coordinator.describe("g").group_epoch == 5
    assert list(one_group.coordinator.groups["g"].members) == ["c"]


@pytest.mark.parametrize(
    ("names", "repeated"), [((), (E.FENCED_MEMBER_EPOCH,)), (("u",), (3, None))]
)
def test_a_subscription_to_nothing_ends_the_previous_epoch(
    names: tuple[str, ...], repeated: tuple[Any, ...]
) -> None:
    """Kafka rewrites the assignment of a member without partitions if it names no topic, not if
    the topics that it names do not exist."""
    one_group = OneGroup(group_consumer_assignment_interval=1.0)
    one_group.counts = {}
    assert one_group.join("a") == (2, {})
    one_group.wait(1)
    one_group.join("b")
    assert one_group.heartbeat("a", 2) == (3, None)
    # The response was lost: the member may repeat its old epoch, until its subscription changes.
    assert one_group.heartbeat("a", 2, {}) == (3, None)
    response = one_group.ask("a", 2, subscribed_topic_names=names, topic_partitions=())
    assert one_group.result_of(response) == (3, None)
    assert one_group.heartbeat("a", 2, {}) == repeated
    assert one_group.heartbeat("a", 3, {}) == (3, None)


def test_the_coordinator_chooses_the_id_of_an_old_client() -> None:
    one_group = OneGroup()
    old, new = (Caller(version=version, now=0.0) for version in (0, 1))
    assert one_group.coordinator.heartbeat(JOIN_WITHOUT_ID, old).member_id == "made"
    assert one_group.coordinator.heartbeat(JOIN_WITHOUT_ID, new).error_code == E.INVALID_REQUEST


def test_a_rejected_join_leaves_no_group() -> None:
    one_group = OneGroup()
    assert one_group.join("a", subscribed_topic_regex="(") == (E.INVALID_REGULAR_EXPRESSION,)
    assert one_group.coordinator.groups == {}


@pytest.mark.parametrize("has_members", [False, True])
def test_an_invalid_join_of_a_classic_member_is_refused_as_invalid(has_members: bool) -> None:
    """It keeps an empty group. That a group has members was found before the session timeout."""
    cluster, caller = Cluster(range(1, 2), BrokerSettings(), 0), Caller(version=0, now=0.0)
    cluster.consumer_coordinator.heartbeat(JOIN_WITHOUT_ID, caller)
    (group,) = cluster.consumer_coordinator.groups.values()
    if not has_members:
        group.members.clear()
    errors: list[int] = []
    invalid = JoinGroupRequest(
        group_id="g", session_timeout_ms=1, member_id="", protocol_type="consumer", protocols=()
    )
    join(cluster, 1, invalid, caller, lambda response: errors.append(response.error_code))
    assert errors == [E.INVALID_SESSION_TIMEOUT]
    assert cluster.consumer_coordinator.groups == {"g": group}


def test_only_the_coordinator_describes_a_group() -> None:
    cluster, caller = Cluster(range(1, 3), BrokerSettings(), 0), Caller(version=0, now=0.0)
    cluster.consumer_coordinator.heartbeat(JOIN_WITHOUT_ID, caller)
    other = 3 - cluster.coordinator_of("g")
    request = ConsumerGroupDescribeRequest(
        group_ids=("g", "unknown"), include_authorized_operations=False
    )
    cluster.move_coordinator("unknown", 3 - other, 0.0)
    for found in describe_consumer_groups(cluster, other, request, caller).groups:
        assert (found.error_code, found.error_message) == (E.NOT_COORDINATOR, None)
        assert (found.group_state, found.group_epoch, found.members) == ("", 0, ())


def test_a_subscription_without_topics_changes_no_epoch() -> None:
    one_group = OneGroup()
    assert one_group.join("a", subscribed_topic_names=()) == (1, {})
    assert one_group.state() == "Stable"


def test_a_new_coordinator_restarts_every_members_session() -> None:
    one_group = OneGroup(group_consumer_session_timeout=6.0)
    one_group.join("a")
    one_group.wait(5)
    one_group.coordinator.move("g", one_group.now)
    one_group.wait(5)
    assert one_group.heartbeat("a", 2) == (2, None)


def test_a_full_response_lists_the_whole_assignment() -> None:
    response = OneGroup().ask(
        "a",
        0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )
    assert response == ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=0,
        member_id="a",
        member_epoch=2,
        heartbeat_interval_ms=5_000,
        assignment=Assignment(topic_partitions=listed({T: (0, 1, 2, 3)})),
    )

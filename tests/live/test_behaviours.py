"""The behaviours of a correct group client: the test of each, or where it is.

`ELSEWHERE` names the tests in other files, and two tests below check it; the others are here. Most
safety tests check one recorded run of a group with many events, eager and cooperative: members join
and leave, one is expired, the coordinator moves. Time is virtual, the network is in memory.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
import trio.testing
from brokers import Worker, numbered, until
from conftest import VirtualLoop
from memory_network import Leader, Network

from kafkagroup import ConfigurationError, Consumer, TopicPartition
from kafkagroup.assign import (
    Assignor,
    GroupSpec,
    cooperative_sticky_assignor,
    range_assignor,
    roundrobin_assignor,
)
from kafkagroup.assign.spec import named
from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.faults import Delay
from kafkagroup.types import Assignment
from kafkagroup.wire.embedded_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

pytestmark = pytest.mark.anyio

CLASSIC = "member/test_classic.py::"
NEW = "member/test_consumer_protocol.py::"
SUBSCRIBER = "runtime/test_subscriber.py::"
NEW_CONSUMERS = "runtime/test_consumer_driver.py::"
NEW_LIVE = "live/test_consumer_protocol.py::"
OFFSETS = "runtime/test_offsets.py::"
POSITIONS = "runtime/test_positions.py::"
CONSUMING = "live/test_consuming.py::"
EMBEDDING = "live/test_embedding.py::"
DELIVERY = "consume/test_delivery.py::"
ASSIGNORS = "assign/test_assignors.py::"
STICKY = "assign/test_cooperative_sticky.py::"

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "line_1": (
        "transport/test_broker.py::test_a_pending_join_does_not_block_other_connections",
        CLASSIC + "test_leave_is_sent_on_another_connection_than_a_pending_join",
    ),
    "line_2": (CLASSIC + "test_the_join_timeout_is_the_longer_of_request_and_rebalance_timeout",),
    "line_3": (CLASSIC + "test_heartbeats_start_after_a_successful_join_before_sync",),
    "line_4": (
        CLASSIC + "test_rebalance_in_progress_extends_the_session_and_revokes",
        CLASSIC + "test_heartbeats_continue_while_the_application_drains",
    ),
    "line_5": (CLASSIC + "test_a_session_without_responses_rediscovers_the_coordinator",),
    "line_6": (
        CLASSIC + "test_an_application_that_did_not_poll_loses_and_leaves",
        "live/test_rebalancing.py::test_an_application_that_stops_polling_loses_its_partitions",
        "runtime/test_threaded.py::test_a_loop_blocked_beyond_max_poll_interval_leaves_and_rejoins",
    ),
    "line_7": (
        CLASSIC + "test_a_sync_response_read_late_does_not_extend_the_lease",
        CLASSIC + "test_when_the_lease_expires",
        "live/test_blocking.py::test_a_loop_blocked_for_twice_the_session_stays_a_member_only_with_a_thread",
    ),
    "line_8": (CLASSIC + "test_member_id_required_rejoins_at_once_with_the_id",),
    "line_9": (
        CLASSIC + "test_a_stable_member_revokes_then_leaves",
        "live/test_cancellation.py::test_a_consumer_cancelled_before_the_first_assignment_continues",
    ),
    "line_10": (
        CLASSIC + "test_a_join_or_sync_error_resets_the_generation",
        CLASSIC + "test_a_heartbeat_error_loses_the_assignment",
    ),
    "line_11": (CLASSIC + "test_a_stale_response_changes_nothing",),
    "line_12": (
        CLASSIC + "test_fenced_instance_id_is_fatal_everywhere",
        CLASSIC + "test_fenced_by_a_heartbeat_sent_before_a_join_is_fatal",
        OFFSETS + "test_a_commit_by_a_fenced_static_member_is_fatal",
    ),
    "line_13": (CLASSIC + "test_while_sync_is_in_flight_its_result_is_discarded",),
    "line_14": (
        CLASSIC + "test_a_group_of_another_type_is_refused",
        CLASSIC + "test_an_assignment_of_another_protocol_is_refused",
    ),
    "line_15": (
        "live/test_positions.py::test_a_pattern_matches_present_and_later_topics",
        SUBSCRIBER + "test_a_restarted_static_member_with_another_subscription_gets_its_topics",
        "live/test_cooperative.py::test_a_restarted_static_member_with_another_subscription_gets_its_topics",
    ),
    "line_17": (CLASSIC + "test_skip_assignment_syncs_with_an_empty_list",),
    "line_18": (
        CLASSIC + "test_owned_partitions_are_revoked_before_joining",
        "live/test_rebalancing.py::test_callbacks_may_commit_and_seek",
    ),
    "line_21": ("live/test_cooperative.py::test_only_moving_partitions_are_revoked",),
    "line_22": (
        CLASSIC + "test_reset_while_leaving_is_lost_not_revoked",
        CLASSIC + "test_closing_in_a_cooperative_rebalance_loses_partitions",
    ),
    "line_23": (CLASSIC + "test_each_attempt_sends_all_protocols_in_one_join",),
    "line_24": (
        "wire/test_embedded_protocol.py::test_newer_versions_parse_as_the_newest_known",
        "wire/test_embedded_protocol.py::test_topics_and_partitions_are_sorted",
        "wire/test_embedded_protocol.py::test_an_empty_rack_is_none",
    ),
    "line_25": (
        STICKY + "test_the_claim_of_the_higher_generation_wins",
        STICKY + "test_equal_claims_are_both_void_and_the_partition_is_assigned_later",
        STICKY + "test_generation_in_user_data",
    ),
    "line_26": (
        STICKY + "test_a_partition_is_not_assigned_in_the_rebalance_that_revokes_it",
        STICKY + "test_a_stale_claim_does_not_hide_a_move",
    ),
    "line_30": (
        "live/test_cooperative.py::test_an_eager_and_a_cooperative_member_share_the_partitions",
    ),
    "line_31": (
        NEW + "test_the_first_heartbeat_has_a_generated_id_and_all_fields",
        NEW + "test_s11_the_member_id_is_kept_whatever_happens",
    ),
    "line_32": (
        NEW + "test_the_first_heartbeat_has_a_generated_id_and_all_fields",
        NEW + "test_rack_instance_and_assignor_are_sent_if_set",
    ),
    "line_33": (
        NEW + "test_a_heartbeat_omits_unchanged_fields",
        NEW + "test_after_an_error_all_fields_are_sent_again",
    ),
    "line_34": (
        NEW + "test_revoking_partitions_are_owned_until_the_application_releases_them",
        NEW_CONSUMERS + "test_a_member_fenced_while_it_revokes_commits_and_assigns_nothing",
    ),
    "line_35": (
        NEW + "test_unresolved_topic_ids_wait_and_the_rest_is_applied",
        NEW_CONSUMERS + "test_partitions_of_a_topic_unknown_to_metadata_are_assigned_later",
    ),
    "line_36": (NEW_CONSUMERS + "test_buffered_records_of_revoking_partitions_are_not_delivered",),
    "line_37": (
        NEW + "test_a_fenced_member_loses_its_partitions_and_rejoins_at_once",
        NEW_CONSUMERS + "test_a_fenced_member_loses_its_partitions_and_rejoins_with_the_same_id",
    ),
    "line_38": (
        NEW + "test_an_unreleased_instance_id_is_retried_and_then_fatal",
        NEW + "test_permanent_errors_are_fatal",
        NEW_CONSUMERS + "test_unauthorized_topics_are_reported_and_the_member_stays",
    ),
    "line_39": (
        NEW + "test_invalid_epochs_and_intervals_are_ignored",
        NEW + "test_leaving_succeeds_if_the_coordinator_does_not_know_the_member",
    ),
    "line_40": (
        NEW + "test_a_missing_protocol_counts_once_the_coordinator_repeats_it",
        NEW_CONSUMERS + "test_auto_falls_back_when_the_broker_refuses_the_join",
        NEW_LIVE + "test_auto_chooses_classic_in_a_group_that_cannot_be_upgraded",
    ),
    "line_41": (
        NEW + "test_an_assignment_of_unresolved_topics_alone_is_not_empty",
        NEW_LIVE + "test_the_broker_matches_the_pattern_also_with_later_topics",
    ),
    "line_42": (NEW_CONSUMERS + "test_a_poll_timeout_leaves_and_the_next_poll_rejoins",),
    "line_43": (
        NEW + "test_after_a_new_epoch_or_assignment_heartbeats_are_frequent",
        NEW + "test_an_idle_group_uses_our_interval_unless_the_broker_overrides_it",
    ),
    "line_44": (
        "runtime/test_driver.py::test_auto_commit_waits_without_warnings_during_a_rebalance",
        "live/test_rebalancing.py::test_callbacks_may_commit_and_seek",
        CONSUMING + "test_commits_of_partitions_owned_by_others_are_refused",
    ),
    "line_45": (
        NEW_CONSUMERS + "test_a_commit_with_a_stale_epoch_is_retried",
        NEW_CONSUMERS + "test_a_retried_commit_carries_the_current_epoch",
        NEW_CONSUMERS + "test_committed_offsets_are_fetched_with_the_current_epoch",
        NEW_CONSUMERS + "test_an_offset_fetch_with_a_stale_epoch_is_retried",
        "testing/test_embedded_consumer_groups.py::test_only_members_with_the_current_epoch_may_commit",
    ),
    "line_46": (
        "runtime/test_reading.py::test_a_failed_offset_fetch_never_applies_the_reset_policy",
        OFFSETS + "test_a_failed_offset_fetch_is_retried_and_never_counts_as_no_offset",
        OFFSETS + "test_any_negative_offset_is_none",
    ),
    "line_47": (
        POSITIONS + "test_only_unstable_offsets_are_awaited_and_fetched_again",
        POSITIONS + "test_an_offset_fetch_requires_stable_offsets",
        POSITIONS + "test_offsets_of_an_unknown_topic_are_retried_a_few_times",
        POSITIONS + "test_offsets_are_fetched_once_an_unknown_topic_is_known",
        POSITIONS + "test_an_offset_error_is_raised_and_the_others_continue",
        POSITIONS + "test_committed_waits_for_unstable_offsets",
        POSITIONS + "test_an_error_names_the_partition_whose_offset_cannot_be_read",
    ),
    "line_48": (
        CLASSIC + "test_a_loading_coordinator_is_kept_and_retried",
        CLASSIC + "test_not_coordinator_looks_up_the_coordinator",
        OFFSETS + "test_a_commit_is_retried_after_a_retriable_error",
    ),
    "line_49": (
        OFFSETS + "test_commits_are_sent_in_order",
        OFFSETS + "test_a_commit_with_a_lost_response_is_retried_in_order",
        OFFSETS + "test_a_cancelled_commit_does_not_overtake_the_next",
    ),
    "line_50": (
        OFFSETS + "test_metadata_and_leader_epoch_of_a_commit_round_trip",
        "runtime/test_validation.py::test_a_committed_position_is_validated_at_the_start",
        "runtime/test_fetching.py::test_after_an_error_of_a_follower_the_leader_is_fetched_from",
    ),
    "delivery_processed": (
        DELIVERY + "test_a_record_counts_as_processed_when_the_next_is_requested",
        CONSUMING + "test_an_explicit_commit_includes_the_record_in_flight",
        CONSUMING + "test_two_tasks_cannot_wait_for_one_consumer",
    ),
    "delivery_cancelled": (
        CONSUMING + "test_a_cancelled_await_loses_nothing",
        "live/test_cancellation.py::test_a_consumer_cancelled_in_any_call_continues",
    ),
    "delivery_callbacks": (
        "live/test_rebalancing.py::test_callbacks_may_commit_and_seek",
        "runtime/test_reading.py::test_a_seek_overrides_an_offset_fetch_in_flight",
        CONSUMING + "test_stop_inside_the_loop_ends_it",
        CONSUMING + "test_stop_in_a_callback_takes_effect_after_it",
        EMBEDDING + "test_the_users_exception_is_raised_unwrapped",
        EMBEDDING + "test_after_a_fatal_error_every_call_raises_it",
    ),
    "delivery_deserializer": (
        CONSUMING + "test_a_deserializer_that_fails_keeps_the_position",
        DELIVERY + "test_a_failing_deserializer_is_raised_until_the_application_seeks",
    ),
    "delivery_fetch_errors": (
        "wire/test_error_codes.py::test_every_fetch_error_has_a_reaction_and_unknown_errors_are_raised",
        "runtime/test_reading.py::test_a_position_out_of_range_is_reset_with_a_warning",
        "runtime/test_reading.py::test_a_position_out_of_range_without_a_reset_policy_is_an_error",
        "runtime/test_fetching.py::test_a_new_leader_named_in_a_fetch_response_needs_no_metadata",
        "runtime/test_validation.py::test_a_recreated_topic_is_read_from_its_start",
    ),
    "s4": (
        DELIVERY
        + "test_s4_s6_s8_records_are_delivered_once_in_order_and_commits_cover_processed_ones",
    ),
    "s8": (
        DELIVERY + "test_s8_control_records_and_compaction_advance_position_and_commit",
        "runtime/test_fetching.py::test_read_committed_delivers_no_aborted_records",
        "live/test_transactions.py::test_committed_aborted_and_open_transactions",
    ),
    "s9": (DELIVERY + "test_s9_nothing_is_delivered_from_a_revoked_partition",),
    "s10": (
        CLASSIC + "test_a_stale_response_changes_nothing",
        DELIVERY + "test_a_late_fetch_of_a_previous_assignment_is_dropped",
        "runtime/test_reading.py::test_a_fetch_response_from_before_a_seek_is_dropped",
    ),
    "s11": (CLASSIC + "test_s11_the_member_id_survives_disconnects",),
    "s12": ("runtime/test_reading.py::test_a_failed_offset_fetch_never_applies_the_reset_policy",),
    "s14": (
        ASSIGNORS + "test_s14_an_assignment_is_complete_disjoint_and_of_subscribed_topics",
        ASSIGNORS + "test_s14_range_counts_of_a_topic_differ_by_at_most_one",
        ASSIGNORS + "test_s14_every_process_computes_the_same_assignment",
        STICKY + "test_any_group_is_stable_after_two_rounds_and_as_balanced_as_sticky",
        "assign/test_sticky.py::test_no_assignment_is_more_balanced_or_moves_less",
        STICKY + "test_owned_partitions_are_kept",
    ),
    "l2": (CLASSIC + "test_l2_a_healthy_member_sends_heartbeats_and_nothing_else",),
    "l3": ("live/test_rebalancing.py::test_heartbeats_continue_while_the_application_awaits",),
    "l4": (
        EMBEDDING + "test_closing_ends_within_its_timeout_without_a_broker_response",
        "runtime/test_service.py::test_stop_may_be_called_twice_and_concurrently",
    ),
}

RULES = frozenset(
    {f"line_{n}" for n in range(1, 51)}
    | {f"s{n}" for n in range(1, 15)}
    | {f"l{n}" for n in range(1, 5)}
    | {f"delivery_{what}" for what in ("processed", "cancelled", "callbacks", "deserializer")}
    | {"delivery_fetch_errors"}
)


def names_in(path: Path) -> set[str]:
    """Return the names of the test functions of a file, including those in classes."""
    nodes = ast.walk(ast.parse(path.read_text()))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {n.name for n in nodes if isinstance(n, functions) and n.name.startswith("test_")}


def test_every_rule_has_a_test() -> None:
    here = names_in(Path(__file__))
    tested = {rule for rule in RULES if any(name.startswith(f"test_{rule}_") for name in here)}
    assert tested | ELSEWHERE.keys() == RULES


def test_the_tests_elsewhere_exist() -> None:
    root = Path(__file__).parent.parent
    places = [place.split("::") for found in ELSEWHERE.values() for place in found]
    names = {file: names_in(root / file) for file in {file for file, _ in places}}
    assert [(file, name) for file, name in places if name not in names[file]] == []


# ---------------------------------------------------------------- the group under test

SERVER = "kafka-1:9092"
COOPERATIVE = {"assignors": [cooperative_sticky_assignor]}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    if request.param == "trio":
        return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(anyio, "connect_tcp", made.connect_tcp)
    return made


@asynccontextmanager
async def broker(
    network: Network, partitions: int, records: int = 0, nodes: int = 1
) -> AsyncIterator[EmbeddedKafka]:
    """Provide a topic t with `records` records in each partition, for at most ten virtual
    minutes."""
    kafka = EmbeddedKafka({"t": partitions}, nodes=nodes, listen=False)
    for p in range(partitions if records else 0):
        kafka.produce("t", numbered(p, records), partition=p)
    async with network, kafka:
        network.serve_embedded(kafka, nodes)
        with anyio.fail_after(600):
            yield kafka


def watch(kafka: EmbeddedKafka, api: type[Any], see: Callable[[Any], object]) -> None:
    """Call `see` with each arriving request of a kind; it is executed as usual."""

    def look(request: Any) -> bool:
        see(request)
        return False

    kafka.fail(api, Delay(0), times=None, when=look)


def member_id(worker: Worker) -> str:
    return worker.consumer.group_metadata().member_id


# ---------------------------------------------------------------- joining and callbacks


async def test_line_15_an_assignment_outside_the_subscription_is_refused(
    network: Network,
) -> None:
    """The leader assigned by the old subscription. The assignment is not applied."""
    told: list[list[TopicPartition]] = []
    async with broker(network, 1) as kafka:
        kafka.create_topic("u")
        kafka.fail(SyncGroupRequest, Delay(2))
        options = {"bootstrap_servers": SERVER, "on_partitions_assigned": told.append}
        async with Consumer("t", group_id="g", **options) as c:
            await anyio.sleep(1)
            await c.subscribe("u")
            await anyio.sleep(5)
            assert c.assignment() == {TopicPartition("u", 0)}
            assert len(kafka.requests(SyncGroupRequest)) == 2
    assert told == [[TopicPartition("u", 0)]]


async def test_line_16_the_leader_watches_topics_that_only_others_subscribe_to(
    network: Network,
) -> None:
    async with broker(network, 1) as kafka:
        kafka.create_topic("u", 1)
        options = {"bootstrap_servers": SERVER, "group_id": "g", "metadata_max_age_ms": 1_000}
        async with Consumer("t", **options) as leader:
            await until(leader.assignment)
            # Too seldom for the other to notice by itself.
            async with Consumer("u", **{**options, "metadata_max_age_ms": 500_000}) as other:
                await until(other.assignment)
                kafka.add_partitions("u", 3)
                await until(lambda: len(other.assignment()) == 3)
                assert leader.assignment() == {TopicPartition("t", 0)}


async def test_line_16_an_offline_replica_causes_no_rejoin(
    network: Network,
) -> None:
    async with broker(network, 4, nodes=2) as kafka:
        kafka.move_coordinator("t", 1)
        worker = Worker(SERVER, "t", metadata_max_age_ms=1_000)
        async with worker.consumer:
            await until(lambda: len(worker.owns) == 4)
            assert {kafka.leader("t", p) for p in range(4)} == {1, 2}
            before = len(kafka.requests(JoinGroupRequest))
            kafka.kill(2)
            await anyio.sleep(10)
            kafka.restart(2)
            await anyio.sleep(10)
            assert len(kafka.requests(JoinGroupRequest)) == before
            assert worker.story == [("assigned", [0, 1, 2, 3])]


async def test_line_16_the_leader_rejoins_when_racks_change(network: Network) -> None:
    racks = ["a"]

    class Racked(Leader):
        def metadata(self, _: object) -> object:
            answer: Any = super().metadata(_)
            brokers = [attrs.evolve(b, rack=racks[0]) for b in answer.brokers]
            return attrs.evolve(answer, brokers=tuple(brokers))

    leader = Racked(lambda _: b"")
    leader.assignment = encode_assignment([])  # this broker keeps no offsets
    leader.members = leader.member("me", encode_subscription(Subscription(topics=("t",), rack="a")))
    async with network:
        network.handlers["b", 9092] = leader
        options = {"group_id": "g", "client_rack": "a", "metadata_max_age_ms": 1_000}
        async with Consumer("t", bootstrap_servers="b", **options):
            await anyio.sleep(10)
            assert leader.count("join") == 1
            racks[0] = "b"
            await anyio.sleep(10)
            assert leader.count("join") == 2


@pytest.mark.parametrize(
    ("wrong", "times", "committed", "tries", "within"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 3, 1, 3, 5.0),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None, None, 5, 10.0),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, None, 1, 1.0),
    ],
)
async def test_line_19_the_last_commit_before_a_rebalance_ends_at_its_deadline(
    wrong: ErrorCode,
    times: int | None,
    committed: int | None,
    tries: int,
    within: float,
    network: Network,
) -> None:
    options = {"auto_commit_interval_ms": 500_000, "rebalance_timeout_ms": 10_000}
    async with broker(network, 1, records=2) as kafka:
        first, second = Worker(SERVER, "t", **options), Worker(SERVER, "t", **options)
        async with first.consumer, anyio.create_task_group() as tasks:
            await first.consumer.getone()
            await first.consumer.getone()
            first.consumer.seek(TopicPartition("t", 0), 1)  # what is read is processed: offset 1
            fault = kafka.fail(OffsetCommitRequest, wrong, times=times)
            async with second.consumer:
                start = anyio.current_time()
                await until(lambda: len(first.story) == 3)
                assert anyio.current_time() - start < within
                assert kafka.committed("t", "t").get(0) == committed
                assert fault.hits >= tries
                fault.stop()
            tasks.cancel_scope.cancel()


async def test_line_20_a_callback_that_raises_does_not_veto(network: Network) -> None:
    """Its error is raised once, after the join is complete."""

    def revoked(partitions: object) -> None:
        raise ZeroDivisionError

    async with broker(network, 2, records=1):
        first = Worker(SERVER, "t")
        second = Worker(SERVER, "t")
        first.consumer = Consumer(
            "t", bootstrap_servers=SERVER, group_id="t", on_partitions_revoked=revoked
        )
        async with first.consumer:
            await until(lambda: len(first.owns) == 2)
            async with second.consumer:
                await until(lambda: len(first.owns) == len(second.owns) == 1)
                with pytest.raises(ZeroDivisionError):
                    await first.consumer.getone()
                assert (await first.consumer.getone()).partition == first.owns[0]
                await first.consumer.stop()


@pytest.mark.parametrize(
    ("options", "ends"),
    [({}, [("revoked", [])]), (COOPERATIVE, [])],
)
async def test_line_21_a_member_without_partitions_gets_an_empty_assignment(
    options: dict[str, Any], ends: list[tuple[str, list[int]]], network: Network
) -> None:
    """`assigned` is called once per rebalance, even without partitions; an empty `revoked` only for
    an eager one."""
    async with broker(network, 1):
        first = Worker(SERVER, "t", group_instance_id="a", **options)
        second = Worker(SERVER, "t", group_instance_id="b", **options)
        async with first.consumer:
            await until(lambda: first.owns)
            async with second.consumer:
                await until(lambda: second.story)
                await anyio.sleep(5)
                assert (first.owns, second.story) == ([0], [("assigned", [])])
                generations = second.consumer.group_metadata().generation_id
                assert sum(what == "assigned" for what, _ in first.story) == generations
            assert second.story == [("assigned", []), *ends]


# ---------------------------------------------------------------- cooperative


async def test_line_27_a_cooperative_assignor_that_moves_owned_partitions_is_refused(
    network: Network,
) -> None:
    @named("faulty", cooperative=True)
    def faulty(group: GroupSpec) -> Assignment:
        return roundrobin_assignor(group)

    async with broker(network, 2):
        first = Worker(SERVER, "t", assignors=[faulty])
        second = Worker(SERVER, "t", assignors=[faulty])
        async with first.consumer:
            await until(lambda: len(first.owns) == 2)
            async with second.consumer:
                with pytest.raises(ConfigurationError, match=r"'faulty' hands t/[01] over to"):
                    await first.consumer.getone()
                # The group is not stuck with it.
                await until(lambda: len(second.owns) == 2)


async def test_line_28_after_revoking_a_member_rejoins_at_once(network: Network) -> None:
    joined: list[tuple[str, float]] = []
    async with broker(network, 2) as kafka:
        watch(
            kafka,
            JoinGroupRequest,
            lambda request: joined.append((request.member_id, anyio.current_time())),
        )
        first = Worker(SERVER, "t", heartbeat_interval_ms=2_000, **COOPERATIVE)
        second = Worker(SERVER, "t", **COOPERATIVE)
        async with first.consumer:
            await until(lambda: len(first.owns) == 2)
            me = member_id(first)
            async with second.consumer:
                await until(lambda: len(first.story) >= 2)
                assert first.story[1][0] == "revoked"
                now = anyio.current_time()
                await anyio.sleep(0.05)
                mine = [at for member, at in joined if member == me]
                assert len(mine) == 3  # at first, for the other, and after the revocation
                assert mine[-1] == pytest.approx(now, abs=0.02)
                await until(lambda: len(second.owns) == 1)


async def test_line_29_partitions_assigned_back_while_the_application_drains_are_kept(
    network: Network,
) -> None:
    """The late release of the revoked partitions must not drop the new assignment."""
    async with broker(network, 2, records=2) as kafka:
        first = Worker(SERVER, "t", auto_commit_interval_ms=100, **COOPERATIVE)
        second = Worker(SERVER, "t", **COOPERATIVE)
        async with first.consumer:
            await until(lambda: len(first.owns) == 2)
            in_hand = await first.consumer.getmany(max_records=4, timeout=5)
            assert len(in_hand) == 2
            async with second.consumer:
                await until(lambda: len(first.owns) == 1)
            await anyio.sleep(5)
            assert len(first.owns) == 1  # it still drains: the application is not back
            kafka.produce("t", numbered(0, 1), partition=0)
            kafka.produce("t", numbered(1, 1), partition=1)
            seen: Counter[tuple[int, int]] = Counter()
            for _ in range(2):
                record = await first.consumer.getone()
                seen[record.partition, record.offset] += 1
            await until(lambda: len(first.owns) == 2)
        assert seen == {(0, 2): 1, (1, 2): 1}
        assert [w for w, tps in first.story if tps] == [
            "assigned",
            "revoked",
            "assigned",
            "revoked",
        ]


@pytest.mark.parametrize(
    ("assignors", "revoked"),
    [
        ([cooperative_sticky_assignor], 1),
        ([cooperative_sticky_assignor, range_assignor], 2),
        ([range_assignor, cooperative_sticky_assignor], 2),
    ],
)
async def test_line_30_a_member_is_eager_unless_every_assignor_is_cooperative(
    assignors: list[Assignor], revoked: int, network: Network
) -> None:
    async with broker(network, 2):
        first = Worker(SERVER, "t", assignors=assignors)
        second = Worker(SERVER, "t", assignors=assignors)
        async with first.consumer:
            await until(lambda: len(first.owns) == 2)
            async with second.consumer:
                await until(lambda: len(second.owns) == 1)
                assert first.story[1][0] == "revoked"
                assert len(first.story[1][1]) == revoked


# ---------------------------------------------------------------- offsets


async def test_line_47_an_unstable_offset_is_awaited_without_limit(
    network: Network,
) -> None:
    """The wait has no limit and can be cancelled; the reset policy is never applied."""
    tp = TopicPartition("t", 0)
    async with broker(network, 1, records=6) as kafka:
        async with Worker(SERVER, "t").consumer as c:
            assert (await c.getone()).offset == 0
            await c.commit({tp: 4})
            c.seek(tp, 4)
        fault = kafka.fail(OffsetFetchRequest, ErrorCode.UNSTABLE_OFFSET_COMMIT, times=None)
        async with Worker(SERVER, "t").consumer as c:
            with anyio.move_on_after(200) as scope:
                await c.getone()
            assert scope.cancelled_caught
            assert 150 < fault.hits < 400
            with anyio.move_on_after(1) as scope:
                await c.committed([tp])
            assert scope.cancelled_caught
            fault.stop()
            assert (await c.getone()).offset == 4


# ---------------------------------------------------------------- one recorded run


@attrs.frozen
class Event:
    """A callback or an action of a member, or a request of it that arrived at the broker."""

    at: float
    who: str
    what: str
    """assigned, revoking, revoked, losing, lost: callbacks, the -ing at their begin; deliver,
    processed: the application; join, leave, commit: requests; fenced: a heartbeat is refused;
    granted: what the leader assigns."""
    partition: int = -1
    offset: int = -1
    """Of a record; what is committed; at assigned, granted and join the generation, at revoking
    what is committed."""
    claims: frozenset[int] = frozenset()
    """At join: the partitions that the member says it owns."""


class RecordedRun:
    """The members of one group, and their recorded events."""

    def __init__(self, kafka: EmbeddedKafka, options: dict[str, Any]) -> None:
        self.kafka = kafka
        self.options = options
        self.events: list[Event] = []
        self.consumers: dict[str, Consumer] = {}
        self._ids: dict[str, str] = {}
        """Member id -> who."""
        watch(kafka, JoinGroupRequest, self._joins)
        watch(kafka, SyncGroupRequest, self._grants)
        watch(kafka, LeaveGroupRequest, lambda r: self.record_event(self._sender(r), "leave"))
        watch(kafka, OffsetCommitRequest, self._commits)

    def record_event(
        self,
        who: str,
        what: str,
        partition: int = -1,
        offset: int = -1,
        claims: frozenset[int] = frozenset(),
    ) -> None:
        self.events.append(Event(anyio.current_time(), who, what, partition, offset, claims))

    def of(self, *what: str) -> list[Event]:
        return [event for event in self.events if event.what in what]

    def _sender(self, request: object) -> str:
        """Return the member whose request has just arrived."""
        return self.kafka.requests(type(request))[-1].client_id

    def _joins(self, request: JoinGroupRequest) -> None:
        who = self._ids[request.member_id] = self._sender(request)
        claim = decode_subscription(request.protocols[0].metadata)
        owned = frozenset(tp.partition for tp in claim.owned)
        self.record_event(who, "join", offset=claim.generation, claims=owned)

    def _grants(self, request: SyncGroupRequest) -> None:
        for given in request.assignments:
            for tp in decode_assignment(given.assignment):
                who = self._ids[given.member_id]
                self.record_event(who, "granted", tp.partition, request.generation_id)

    def _commits(self, request: OffsetCommitRequest) -> None:
        for topic in request.topics:
            for p in topic.partitions:
                who = self._sender(request)
                self.record_event(who, "commit", p.partition_index, p.committed_offset)

    def member(self, who: str) -> Consumer:
        def callback(begin: str, end: str) -> Any:
            async def call(partitions: list[TopicPartition]) -> None:
                committed = self.kafka.committed("g", "t")
                for tp in partitions:
                    self.record_event(who, begin, tp.partition, committed.get(tp.partition, 0))
                await anyio.sleep(0.1)
                for tp in partitions:
                    self.record_event(who, end, tp.partition)

            return call

        def assigned(partitions: list[TopicPartition]) -> None:
            consumer = self.consumers[who]
            for tp in consumer.assignment():
                self.record_event(
                    who, "assigned", tp.partition, consumer.group_metadata().generation_id
                )

        self.consumers[who] = Consumer(
            "t",
            bootstrap_servers=SERVER,
            group_id="g",
            client_id=who,
            on_partitions_assigned=assigned,
            on_partitions_revoked=callback("revoking", "revoked"),
            on_partitions_lost=callback("losing", "lost"),
            auto_commit_interval_ms=300,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            **self.options,
        )
        return self.consumers[who]

    async def work(self, who: str) -> None:
        async with self.member(who) as consumer:
            async for record in consumer:
                self.record_event(who, "deliver", record.partition, record.offset)
                await anyio.sleep(0.02)
                self.record_event(who, "processed", record.partition, record.offset)


PARTITIONS, RECORDS = 4, 150
WAYS = pytest.mark.parametrize("options", [{}, COOPERATIVE], ids=["eager", "cooperative"])


async def live(network: Network, options: dict[str, Any]) -> RecordedRun:
    """Members join and leave; b is expired at 4 s; the coordinator moves at 6 s."""
    async with broker(network, PARTITIONS, RECORDS, nodes=2) as kafka:
        run = RecordedRun(kafka, options)
        async with anyio.create_task_group() as tasks:
            for who in "abc":
                tasks.start_soon(run.work, who)
                await anyio.sleep(1.3)
            b = run.consumers["b"].group_metadata().member_id

            def fence(request: HeartbeatRequest) -> bool:
                if request.member_id != b:
                    return False
                run.record_event("b", "fenced")
                return True

            kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID, when=fence)
            await anyio.sleep(2)
            kafka.move_coordinator("g", 3 - kafka.coordinator("g"))
            await anyio.sleep(1)
            await run.consumers["a"].stop()
            await until(lambda: sum(kafka.committed("g", "t").values()) >= PARTITIONS * RECORDS, 90)
            for who in "bc":
                await run.consumers[who].stop()
    return run


@WAYS
async def test_the_recorded_run_has_every_kind_of_event(
    options: dict[str, Any], network: Network
) -> None:
    """Otherwise the assertions below would check nothing."""
    told = Counter((e.who, e.what) for e in (await live(network, options)).events)
    assert told["b", "lost"] > 0
    assert all(told[who, "revoked"] and told[who, "deliver"] for who in "abc")


@WAYS
async def test_s1_a_partition_has_one_owner_per_generation(
    options: dict[str, Any], network: Network
) -> None:
    run = await live(network, options)
    owners: dict[tuple[int, int], set[str]] = {}
    for event in run.of("assigned"):
        owners.setdefault((event.offset, event.partition), set()).add(event.who)
    assert {key: who for key, who in owners.items() if len(who) > 1} == {}
    assert len({generation for generation, _ in owners}) >= 4
    # Nor from one generation to the next: a partition is assigned after it was revoked.
    owner: dict[int, str] = {}
    for event in run.of("assigned", "revoked", "losing"):
        if event.what == "assigned":
            assert owner.setdefault(event.partition, event.who) == event.who, event
        elif owner.get(event.partition) == event.who:
            del owner[event.partition]


@WAYS
async def test_s2_revocation_ends_before_the_rejoin_is_sent(
    options: dict[str, Any], network: Network
) -> None:
    """A rejoin reports exactly the partitions assigned in its generation that the member still
    owns; none if eager."""
    run = await live(network, options)
    held: dict[str, set[int]] = {who: set() for who in "abc"}
    granted: set[tuple[str, int, int]] = set()
    for event in run.events:
        match event.what:
            case "granted":
                granted.add((event.who, event.offset, event.partition))
            case "assigned":
                held[event.who].add(event.partition)
            case "revoked" | "lost":
                held[event.who].discard(event.partition)
            case "join":
                assert held[event.who] == event.claims, event
                assert {(event.who, event.offset, p) for p in event.claims} <= granted, event
                assert not event.claims or options, event
            case "leave":
                assert held[event.who] == set(), event


@WAYS
async def test_s3_the_last_commit_is_answered_before_a_partition_is_released(
    options: dict[str, Any], network: Network
) -> None:
    run = await live(network, options)
    done = dict.fromkeys(range(PARTITIONS), 0)
    released = 0
    for event in run.events:
        if event.what == "processed":
            done[event.partition] = event.offset + 1
        elif event.what == "revoking":
            assert event.offset == done[event.partition], event
            released += 1
    assert released >= 4


@WAYS
async def test_s4_a_commit_never_exceeds_the_processed_records(
    options: dict[str, Any], network: Network
) -> None:
    run = await live(network, options)
    done = dict.fromkeys(range(PARTITIONS), 0)
    for event in run.of("processed", "commit"):
        if event.what == "processed":
            done[event.partition] = max(done[event.partition], event.offset + 1)
        else:
            assert event.offset <= done[event.partition], event


@WAYS
async def test_s5_a_commit_never_moves_back(options: dict[str, Any], network: Network) -> None:
    run = await live(network, options)
    for partition in range(PARTITIONS):
        offsets = [e.offset for e in run.of("commit") if e.partition == partition]
        assert offsets == sorted(offsets)
        assert offsets[-1] == RECORDS


@WAYS
async def test_s6_every_record_below_the_last_commit_was_processed(
    options: dict[str, Any], network: Network
) -> None:
    """Any commit may be the last: a crash can follow it."""
    run = await live(network, options)
    processed: dict[int, set[int]] = {p: set() for p in range(PARTITIONS)}
    last = dict.fromkeys(range(PARTITIONS), 0)
    for event in run.of("processed", "commit"):
        if event.what == "processed":
            processed[event.partition].add(event.offset)
        else:
            assert set(range(event.offset)) - processed[event.partition] == set(), event
            last[event.partition] = event.offset
    assert last == dict.fromkeys(range(PARTITIONS), RECORDS)


@WAYS
async def test_s7_only_lost_uncommitted_records_are_delivered_twice(
    options: dict[str, Any], network: Network
) -> None:
    """From the last commit to the position at the loss; none after a clean handover."""
    run = await live(network, options)
    may_repeat: set[tuple[int, int]] = set()
    at = dict.fromkeys(range(PARTITIONS), 0)
    for event in run.events:
        if event.what == "deliver":
            at[event.partition] = event.offset + 1
        elif event.what == "losing":
            may_repeat |= {(event.partition, o) for o in range(event.offset, at[event.partition])}
    times = Counter((e.partition, e.offset) for e in run.of("deliver"))
    assert {record for record, count in times.items() if count > 1} <= may_repeat
    assert 0 < len(may_repeat) < 100


@WAYS
async def test_s8_offsets_rise_one_by_one_while_a_partition_is_owned(
    options: dict[str, Any], network: Network
) -> None:
    run = await live(network, options)
    last: dict[tuple[str, int], int] = {}
    for event in run.events:
        key = (event.who, event.partition)
        if event.what in ("revoking", "losing"):
            last.pop(key, None)
        elif event.what == "deliver":
            assert event.offset == last.get(key, event.offset - 1) + 1, event
            last[key] = event.offset


@WAYS
async def test_s9_nothing_is_delivered_after_the_callback_for_revoked_or_lost(
    options: dict[str, Any], network: Network
) -> None:
    run = await live(network, options)
    owned: set[tuple[str, int]] = set()
    for event in run.events:
        key = (event.who, event.partition)
        if event.what == "assigned":
            owned.add(key)
        elif event.what in ("revoking", "losing"):
            owned.discard(key)
        elif event.what == "deliver":
            assert key in owned, event


@WAYS
async def test_s13_lost_never_commits(options: dict[str, Any], network: Network) -> None:
    run = await live(network, options)
    out: set[tuple[str, int]] = set()
    for event in run.events:
        key = (event.who, event.partition)
        if event.what == "fenced":
            out |= {(event.who, p) for p in range(PARTITIONS)}
        elif event.what == "assigned":
            out.discard(key)
        elif event.what == "commit":
            assert key not in out, event


# ---------------------------------------------------------------- liveness


async def test_l1_retained_partitions_are_delivered_without_a_gap(network: Network) -> None:
    """A member joins. The other continues with the partitions that it keeps: at most 100 ms between
    records."""
    gap = 0.1
    async with broker(network, 3, records=1_000):
        first = Worker(SERVER, "t", **COOPERATIVE)
        second = Worker(SERVER, "t", **COOPERATIVE)
        times: list[float] = []

        async def read() -> None:
            async for _ in first.consumer:
                times.append(anyio.current_time())
                await anyio.sleep(0.005)

        async with first.consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.sleep(0.5)
            async with second.consumer:
                await until(lambda: second.owns)
                await anyio.sleep(1)
                assert len(first.owns) == 2
                assert max(b - a for a, b in pairwise(times)) <= gap
                await second.consumer.stop()
            await first.consumer.stop()


@pytest.mark.parametrize("down", [3.0, 20.0])
async def test_l2_a_member_rejoins_within_2_s_of_its_coordinators_return(
    down: float, network: Network
) -> None:
    """Whether it was away for less than a session timeout or for more."""
    async with broker(network, 1, records=6) as kafka:
        async with Worker(SERVER, "t").consumer as c:
            assert (await c.getone()).offset == 0
            await c.commit()
            kafka.kill(1)
            await anyio.sleep(down)
            kafka.restart(1)
            with anyio.fail_after(2):
                assert (await c.getone()).offset == 1
                await c.commit()
        assert kafka.committed("t", "t") == {0: 2}


async def test_l2_a_dead_members_partitions_move_within_its_session(network: Network) -> None:
    session = 6.0
    async with broker(network, 2):
        dead, alive = Worker(SERVER, "t", leave_group_on_close=False), Worker(SERVER, "t")
        async with dead.consumer:
            await until(lambda: len(dead.owns) == 2)
            async with alive.consumer:
                await until(lambda: len(dead.owns) == len(alive.owns) == 1)
                await dead.consumer.stop()
                start = anyio.current_time()
                await until(lambda: len(alive.owns) == 2)
                assert session - 1 < anyio.current_time() - start <= session + 2

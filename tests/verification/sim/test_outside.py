"""Faults of the world outside the group: which there are, and what each does in a run."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from kafkagroup.errors import ErrorCode

from .codes import HEARTBEATS, LEGAL, LEGAL_OF_CONSUMERS, legal_codes
from .events import Event, Forgotten, Misdirected, Responded, Sent
from .outside import ENABLED, OUTSIDE, OUTSIDE_FAULTS
from .plan import PROTOCOLS, make_plan
from .run import run
from .schedule import PlannedAction, from_json, to_json

RUNS = {"classic": 160, "consumer": 60}
"""Runs by protocol. Some requests are so rare that an error needs more than one chance."""

_GROUP = "GROUP_AUTHORIZATION_FAILED NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE"
_GROUP += " COORDINATOR_LOAD_IN_PROGRESS"
_LEADER = "NOT_LEADER_OR_FOLLOWER FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH KAFKA_STORAGE_ERROR"
_LEADER += " UNKNOWN_TOPIC_OR_PARTITION TOPIC_AUTHORIZATION_FAILED REPLICA_NOT_AVAILABLE"

KAFKAS = {
    "Fetch": f"{_LEADER} OFFSET_OUT_OF_RANGE UNSUPPORTED_COMPRESSION_TYPE CORRUPT_MESSAGE"
    " UNKNOWN_TOPIC_ID FETCH_SESSION_TOPIC_ID_ERROR INCONSISTENT_TOPIC_ID UNKNOWN_SERVER_ERROR"
    " FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH OFFSET_NOT_AVAILABLE"
    " OFFSET_MOVED_TO_TIERED_STORAGE",
    "ListOffsets": f"{_LEADER} UNSUPPORTED_FOR_MESSAGE_FORMAT UNKNOWN_SERVER_ERROR"
    " LEADER_NOT_AVAILABLE OFFSET_NOT_AVAILABLE",
    "OffsetForLeaderEpoch": f"{_LEADER} UNKNOWN_SERVER_ERROR",
    "Metadata": "UNKNOWN_TOPIC_OR_PARTITION LEADER_NOT_AVAILABLE INVALID_TOPIC_EXCEPTION"
    " TOPIC_AUTHORIZATION_FAILED REPLICA_NOT_AVAILABLE UNKNOWN_TOPIC_ID LISTENER_NOT_FOUND"
    " REBOOTSTRAP_REQUIRED",
    "FindCoordinator": "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE"
    " GROUP_AUTHORIZATION_FAILED INVALID_REQUEST",
    "OffsetFetch": f"{_GROUP} UNKNOWN_TOPIC_OR_PARTITION TOPIC_AUTHORIZATION_FAILED"
    " UNSTABLE_OFFSET_COMMIT",
    "OffsetCommit": f"{_GROUP} UNKNOWN_TOPIC_OR_PARTITION OFFSET_METADATA_TOO_LARGE"
    " ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS INVALID_COMMIT_OFFSET_SIZE"
    " TOPIC_AUTHORIZATION_FAILED",
    "JoinGroup": f"{_GROUP} INCONSISTENT_GROUP_PROTOCOL UNKNOWN_MEMBER_ID INVALID_GROUP_ID"
    " INVALID_SESSION_TIMEOUT GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID",
    "SyncGroup": f"{_GROUP} ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS"
    " INCONSISTENT_GROUP_PROTOCOL FENCED_INSTANCE_ID",
    "Heartbeat": f"{_GROUP} ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS"
    " FENCED_INSTANCE_ID",
    "LeaveGroup": f"{_GROUP} UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID",
}
"""The errors that the responses' classes in Apache Kafka list ("Possible error codes"), and that
its group coordinator returns."""

KAFKAS_TO_CONSUMERS = {
    HEARTBEATS: f"{_GROUP} INVALID_REQUEST UNKNOWN_MEMBER_ID FENCED_MEMBER_EPOCH"
    " UNSUPPORTED_ASSIGNOR UNRELEASED_INSTANCE_ID GROUP_MAX_SIZE_REACHED"
    " INVALID_REGULAR_EXPRESSION FENCED_INSTANCE_ID",
    "OffsetCommit": "STALE_MEMBER_EPOCH GROUP_ID_NOT_FOUND UNKNOWN_TOPIC_ID",
    "OffsetFetch": "STALE_MEMBER_EPOCH GROUP_ID_NOT_FOUND UNKNOWN_TOPIC_ID",
}
"""What the schemas of KIP-848's responses list ("Supported errors")."""


def test_the_table_of_refusals_has_every_error_that_kafka_documents():
    for table, documented in ((LEGAL, KAFKAS), (LEGAL_OF_CONSUMERS, KAFKAS_TO_CONSUMERS)):
        for api, codes in documented.items():
            assert set(codes.split()) <= set(table[api]), api
    assert {code for _, code in (*legal_codes("classic"), *legal_codes("consumer"))} <= {
        code.name for code in ErrorCode
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_runs_of_the_suite_contain_every_legal_refusal(protocol: str) -> None:
    plans = [make_plan(seed, protocol=protocol, kinds=OUTSIDE) for seed in range(RUNS[protocol])]
    planned = {(a.api, a.code) for plan in plans for a in plan.actions if a.what == "refusal"}
    assert planned == set(legal_codes(protocol))


@pytest.mark.long
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_runs_of_the_suite_send_every_legal_refusal(protocol: str) -> None:
    sent = set()
    for seed in range(RUNS[protocol]):
        sent |= run(make_plan(seed, protocol=protocol, kinds=["refusals"])).refusals
    assert sent >= set(legal_codes(protocol))


def test_a_hundred_runs_meet_every_kind_of_fault_from_outside() -> None:
    plans = [
        make_plan(seed, protocol=protocol, kinds=OUTSIDE)
        for protocol in PROTOCOLS
        for seed in range(120)
    ]
    actions = [action for plan in plans for action in plan.actions]
    assert {action.what for action in actions} >= OUTSIDE_FAULTS
    assert {action.code for action in actions if action.what == "lagging"} == {
        "no_topic",
        "leaderless_topic",
        "fewer_partitions",
        "old_id",
        "old_epoch",
        "high_epoch",
        "no_node",
        "no_brokers",
    }
    assert any(plan.forgets_late for plan in plans)
    assert any(member.rack for plan in plans for member in plan.members)
    assert any(member.pattern for plan in plans for member in plan.members)


@pytest.mark.parametrize("kind", OUTSIDE)
def test_a_kind_is_switched_alone(kind: str) -> None:
    """The others' parts of a plan do not depend on it."""
    for seed in range(40):
        rest = make_plan(seed, kinds=OUTSIDE.keys() - {kind})
        every = make_plan(seed, kinds=OUTSIDE)
        assert set(rest.actions) <= set(every.actions)
    assert make_plan(3, kinds=()) == make_plan(3, kinds=frozenset())
    assert OUTSIDE.keys() >= ENABLED


def test_a_plan_with_every_kind_survives_a_round_trip_through_json() -> None:
    plan = make_plan(5, kinds=OUTSIDE)
    assert from_json(to_json(plan)) == plan


# ------------------------------------------------------------------ what they do


def _events(kind: str, what: str) -> Iterator[tuple[PlannedAction, list[Event]]]:
    """Run the first plans that have this action and nothing else."""
    for seed in range(300):
        plan = make_plan(seed, kinds=[kind])
        actions = [action for action in plan.actions if action.what == what]
        if actions and not plan.shards:
            only = attrs.evolve(plan, actions=tuple(actions), backend="asyncio", dies_late="")
            yield actions[0], list(run(only).events)


def test_a_run_without_other_faults_shows_each_lag_to_the_members() -> None:
    _, events = next(_events("lagging_counts", "lagging"))
    counts: dict[str, int] = {}
    less = 0
    for event in events:
        if isinstance(event, Responded) and event.api == "Metadata":
            for topic, count in event.counts.items():
                less += count < counts.get(topic, 0)
                counts[topic] = max(count, counts.get(topic, 0))
    assert less > 0


def test_the_broker_forgets_offsets() -> None:
    _, events = next(_events("forgotten_offsets", "forget_offsets"))
    assert any(isinstance(event, Forgotten) for event in events)


def test_another_cluster_answers_at_the_address_of_a_broker() -> None:
    action, events = next(_events("foreign_cluster", "foreign_cluster"))
    sent = [e for e in events if isinstance(e, Sent) and e.node == action.node]
    assert any(action.at < event.time < action.at + action.seconds for event in sent)
    assert {e.node for e in events if isinstance(e, Misdirected)} <= {action.node}


def test_a_replica_refuses_the_clients_near_it() -> None:
    found = (
        event.refused
        for _, events in _events("refusing_replica", "replica_refuses")
        for event in events
        if isinstance(event, Responded) and event.api == "Fetch" and event.refused
    )
    assert next(found)


def test_tasks_commit_offsets_of_earlier_records() -> None:
    explicit = (
        event
        for _, events in _events("late_commits", "commit_late")
        for event in events
        if isinstance(event, Sent) and event.explicit
    )
    assert next(explicit).offsets

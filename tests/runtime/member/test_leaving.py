"""Members that end leave their group at once, whatever happens meanwhile: no ghost of theirs holds
it up until a session ends. On an embedded broker in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from kafkagroup import ClosedError, Consumer, GroupMember, GroupProtocol, TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.errors import CommitFailedError, ConfigurationError, ErrorCode
from kafkagroup.testing.embedded import (
    Change,
    Close,
    Delay,
    EmbeddedKafka,
    Swallow,
)
from kafkagroup.testing.embedded.faults import Action
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    FindCoordinatorRequest,
)
from kafkagroup.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from kafkagroup.wire.schema import Request

pytestmark = pytest.mark.anyio

WORK = GroupProtocol("work", "all", b"", lambda members: dict.fromkeys(members, b""))
KINDS = ("classic", "consumer", "member")
"""Consumers of both protocols, and a generic member."""

SOON = 4.0
"""Seconds in which a member gets the partitions of one that has left: a rebalance in which the
others hear of it by their heartbeats."""

Ending = Consumer | GroupMember


@asynccontextmanager
async def cluster(network: Any, nodes: int = 1) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": 2}, nodes=nodes, listen=False) as kafka:
        network.serve_embedded(kafka, nodes)
        _sent.clear()
        for request in SENT:
            kafka.fail(request, ErrorCode.NONE, times=None, when=note)
        for partition in range(2):
            kafka.produce("t", [str(n) for n in range(9)], partition=partition)
        with anyio.fail_after(300):
            yield kafka


def member(kind: str, **options: Any) -> Ending:
    if kind == "member":
        return GroupMember("g", WORK, bootstrap_servers="kafka-1", **options)
    options = {"group_protocol": kind, **options}
    return Consumer("t", bootstrap_servers="kafka-1", group_id="g", **options)


async def joined(one: Ending) -> None:
    """Wait until a member has work, and takes part in rebalances."""
    if isinstance(one, GroupMember):
        await anext(one)
        return
    while not one.assignment():
        await one.getmany(timeout=0.1)


async def works(one: Ending) -> None:
    """Take part in the group until cancelled."""
    with suppress(ClosedError):
        while True:
            if isinstance(one, GroupMember):
                await anext(one)
            else:
                await one.getmany(timeout=0.1)


SENT = (ConsumerGroupHeartbeatRequest, LeaveGroupRequest)
_sent: list[Any] = []


def epochs() -> list[int]:
    """Return the epochs of all heartbeats that the cluster of this test has received."""
    return [r.member_epoch for r in _sent if isinstance(r, ConsumerGroupHeartbeatRequest)]


def leaves() -> list[Any]:
    """Return the requests to leave that it has received."""
    return [r for r in _sent if isinstance(r, LeaveGroupRequest) or r.member_epoch < 0]


def note(request: Any) -> bool:
    _sent.append(request)
    return False


def fail_leave(kafka: EmbeddedKafka, kind: str, action: Action, times: int | None = 1) -> Any:
    if kind == "consumer":
        return kafka.fail(
            ConsumerGroupHeartbeatRequest,
            action,
            times=times,
            when=lambda request: request.member_epoch < 0,
        )
    return kafka.fail(LeaveGroupRequest, action, times=times)


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await anyio.sleep(0.01)


# ---------------------------------------------------------------- cancelled in the first join

FIRST_JOINS: dict[str, tuple[str, type[Request[Any]], Callable[[Any], bool]]] = {
    "before the id": ("classic", JoinGroupRequest, lambda r: not r.member_id),
    "after the id": ("classic", JoinGroupRequest, lambda r: bool(r.member_id)),
    "in SyncGroup": ("classic", SyncGroupRequest, lambda r: True),
    "in the join of KIP-848": (
        "consumer",
        ConsumerGroupHeartbeatRequest,
        lambda r: not r.member_epoch,
    ),
    "before the id of a member": ("member", JoinGroupRequest, lambda r: not r.member_id),
    "after the id of a member": ("member", JoinGroupRequest, lambda r: bool(r.member_id)),
}


@pytest.mark.parametrize("when", FIRST_JOINS)
async def test_a_member_that_is_cancelled_in_its_first_join_holds_up_no_other(
    network: Any, when: str
) -> None:
    """A consumer was cancelled while its first JoinGroup was answered. It left without a request,
    as it had no id yet, and the whole group waited for that id until its session of 45 s ended."""
    kind, request, condition = FIRST_JOINS[when]
    async with cluster(network) as kafka, member(kind) as first, anyio.create_task_group() as tasks:
        await joined(first)
        tasks.start_soon(works, first)
        slow = kafka.fail(request, Delay(0.5), when=condition)
        with anyio.CancelScope() as scope:
            async with member(kind) as cancelled:
                tasks.start_soon(cancel_when, scope, lambda: slow.hits)
                await joined(cancelled)
        began = anyio.current_time()
        async with member(kind) as third:
            await joined(third)
            took = anyio.current_time() - began
            tasks.cancel_scope.cancel()
    assert scope.cancelled_caught
    assert took < SOON


async def cancel_when(scope: anyio.CancelScope, condition: Callable[[], Any]) -> None:
    await until(condition)
    scope.cancel()


async def test_closing_waits_for_a_member_id_for_two_seconds(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(network) as kafka:
        kafka.fail(JoinGroupRequest, Swallow())
        async with member("classic"):
            await until(lambda: kafka.requests(JoinGroupRequest))
            began = anyio.current_time()
        took = anyio.current_time() - began
    assert took == pytest.approx(2.0, abs=0.05)
    assert leaves() == []
    (warning,) = [m for m in caplog.messages if "leaving the group failed" in m]
    assert warning == (
        "consumer kafkagroup of group g: the coordinator may still count this member, for up to one"
        " session, because leaving the group failed: the coordinator did not answer in time"
    )


async def test_a_static_classic_member_ends_its_first_join_at_once(network: Any) -> None:
    async with cluster(network) as kafka:
        kafka.fail(JoinGroupRequest, Delay(1))
        async with member("classic", group_instance_id="i"):
            await until(lambda: kafka.requests(JoinGroupRequest))
            began = anyio.current_time()
        took = anyio.current_time() - began
    assert took < 0.1
    assert leaves() == []


# ---------------------------------------------------------------- leaving is refused, or lost

REFUSALS: dict[str, Action] = {
    "moved": ErrorCode.NOT_COORDINATOR,
    "not available": ErrorCode.COORDINATOR_NOT_AVAILABLE,
    "loading": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    "the request is lost": Close(before=True),
    "the response is lost": Close(),
    "silent": Swallow(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_member_leaves_until_the_coordinator_has_answered(
    network: Any, kind: str, refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The request to leave was sent once: each of these left a ghost."""
    async with cluster(network) as kafka, member(kind) as stays, anyio.create_task_group() as tasks:
        tasks.start_soon(works, stays)
        async with member(kind) as ends:
            await joined(ends)
            fail_leave(kafka, kind, REFUSALS[refusal])
            began = anyio.current_time()
        took = anyio.current_time() - began
        requests = leaves()
        await until(lambda: len(member_ids(kafka, kind)) == 1)
        gone = anyio.current_time() - began
        tasks.cancel_scope.cancel()
    assert len(requests) == 2
    assert took < (6.0 if refusal == "silent" else 1.0)
    assert gone < 6.0
    assert "leaving the group failed" not in caplog.text


def member_ids(kafka: EmbeddedKafka, kind: str) -> list[str]:
    if kind == "consumer":
        described = kafka._call(kafka._cluster.consumer_coordinator.describe, "g")
        return [m.member_id for m in described.members]
    return [m.member_id for m in kafka.describe_group("g").members]


@pytest.mark.parametrize("kind", KINDS)
async def test_leaving_ends_within_the_close_timeout(
    network: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(network) as kafka:
        fail_leave(kafka, kind, ErrorCode.NOT_COORDINATOR, times=None)
        async with member(kind, close_timeout=5.0) as ends:
            await joined(ends)
            began = anyio.current_time()
        took = anyio.current_time() - began
    assert took == pytest.approx(4.75, abs=0.1)
    assert len(leaves()) < 15
    assert "leaving the group failed: NOT_COORDINATOR (16)" in caplog.text
    assert "closed by force" not in caplog.text


@pytest.mark.parametrize("kind", KINDS)
async def test_a_member_looks_up_an_unknown_coordinator_to_leave(network: Any, kind: str) -> None:
    """Closed while the coordinator was unknown, it left without a request."""
    async with cluster(network) as kafka:
        async with member(kind) as ends:
            await joined(ends)
            kafka.fail(FindCoordinatorRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=4)
            ends.forget_coordinator()
            began = anyio.current_time()
        took = anyio.current_time() - began
        assert member_ids(kafka, kind) == []
    assert len(leaves()) == 1
    assert took < 3.0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_member_leaves_at_a_coordinator_that_has_moved(network: Any, kind: str) -> None:
    async with cluster(network, nodes=2) as kafka:
        async with member(kind) as ends:
            await joined(ends)
            kafka.move_coordinator("g", 3 - kafka.coordinator("g"))
        assert member_ids(kafka, kind) == []


async def test_unsubscribing_leaves_until_the_coordinator_has_answered(network: Any) -> None:
    async with cluster(network) as kafka, member("classic") as consumer:
        assert isinstance(consumer, Consumer)
        await joined(consumer)
        fail_leave(kafka, "classic", ErrorCode.NOT_COORDINATOR)
        await consumer.unsubscribe()
        assert member_ids(kafka, "classic") == []
        await consumer.subscribe("t")
        await joined(consumer)


async def test_a_member_that_stopped_polling_leaves_until_the_coordinator_has_answered(
    network: Any,
) -> None:
    async with cluster(network) as kafka:
        fail_leave(kafka, "classic", ErrorCode.NOT_COORDINATOR)
        async with member("classic", max_poll_interval_ms=2_000) as consumer:
            assert isinstance(consumer, Consumer)
            await consumer.getone()
            await anyio.sleep(3)
            assert member_ids(kafka, "classic") == []
            await consumer.getone()


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
async def test_a_member_that_is_closed_after_a_loss_leaves(network: Any, code: ErrorCode) -> None:
    """FENCED_MEMBER_EPOCH may mean a wrong epoch of a member that the coordinator still counts."""
    async with cluster(network) as kafka:
        lost: list[Any] = []
        async with member("consumer", on_partitions_lost=lost.append) as consumer:
            await joined(consumer)
            kafka.fail(ConsumerGroupHeartbeatRequest, code)
            await until(lambda: lost)
        assert member_ids(kafka, "consumer") == []


# ---------------------------------------------------------------- closed in a rebalance


async def test_closing_in_a_cooperative_rebalance_commits(network: Any) -> None:
    """While its JoinGroup was pending, a cooperative consumer read on. Closed then, it lost its
    partitions without a commit, although the coordinator still accepted one; the next owner
    processed these records again."""
    async with cluster(network) as kafka:
        options: dict[str, Any] = {
            "assignors": [cooperative_sticky_assignor],
            "auto_commit_interval_ms": 60_000,
        }
        story: list[str] = []
        async with member("classic", **options) as silent, anyio.create_task_group() as tasks:
            await joined(silent)
            tasks.start_soon(works, silent)
            consumer = member(
                "classic",
                on_partitions_revoked=lambda tps: story.append("revoked"),
                on_partitions_lost=lambda tps: story.append("lost"),
                **options,
            )
            assert isinstance(silent, Consumer)
            assert isinstance(consumer, Consumer)
            async with consumer:
                await joined(consumer)
                await until(lambda: kafka.group_state("g") == "Stable")
                await anyio.sleep(5)
                (tp,) = consumer.assignment()
                story.clear()
                me = silent._session.member.identity.member_id
                kafka.fail(
                    HeartbeatRequest, Swallow(), times=None, when=lambda r: r.member_id == me
                )
                consumer.rejoin()
                await until(lambda: kafka.group_state("g") == "PreparingRebalance")
                consumer.seek(tp, 5)
                assert (await consumer.getone()).offset == 5
                assert (await consumer.getone()).offset == 6
                with pytest.raises(CommitFailedError, match="rebalancing"):
                    await consumer.commit({tp: 6})
                began = anyio.current_time()
            took = anyio.current_time() - began
            committed = kafka.committed("g", "t")[tp.partition]
            tasks.cancel_scope.cancel()
    assert story == ["revoked"]
    assert committed == 6
    assert took < 1.0


async def test_closing_after_a_cooperative_generation_has_ended_commits_nothing(
    network: Any,
) -> None:
    """All members have joined the next generation: the coordinator refuses the commit, and another
    member may have the partitions."""
    async with cluster(network) as kafka:
        story: list[str] = []
        consumer = member(
            "classic",
            assignors=[cooperative_sticky_assignor],
            auto_commit_interval_ms=60_000,
            on_partitions_revoked=lambda tps: story.append("revoked"),
            on_partitions_lost=lambda tps: story.append("lost"),
        )
        assert isinstance(consumer, Consumer)
        async with consumer:
            await consumer.getone()
            kafka.fail(SyncGroupRequest, Delay(5))
            consumer.rejoin()
            await until(lambda: len(kafka.requests(SyncGroupRequest)) == 2)
            await consumer.getone()
        assert member_ids(kafka, "classic") == []
        committed = kafka.committed("g", "t")
    assert story == ["lost"]
    assert set(committed.values()) == {0}, "where the assignment began"


# ---------------------------------------------------------------- a static member's own join


@pytest.mark.parametrize("action", [Close(), Swallow(), ErrorCode.COORDINATOR_NOT_AVAILABLE])
async def test_a_static_member_whose_join_was_not_answered_does_not_wait_for_itself(
    network: Any, action: Action
) -> None:
    """The join had succeeded, and the coordinator refused the next one with
    UNRELEASED_INSTANCE_ID, until the session of the first one ended after 45 s."""
    async with cluster(network) as kafka:
        kafka.fail(ConsumerGroupHeartbeatRequest, action)
        began = anyio.current_time()
        async with member("consumer", group_instance_id="i", request_timeout_ms=2_000) as consumer:
            await joined(consumer)
            took = anyio.current_time() - began
        seen = epochs()
    assert seen[:3] == [0, -2, 0]
    assert took < (5.0 if action == Swallow() else 2.0)


async def test_a_static_member_whose_release_was_not_answered_repeats_it(network: Any) -> None:
    async with cluster(network) as kafka:
        for _ in range(3):
            kafka.fail(ConsumerGroupHeartbeatRequest, Close())
        began = anyio.current_time()
        async with member("consumer", group_instance_id="i") as consumer:
            await joined(consumer)
            took = anyio.current_time() - began
        seen = epochs()
    assert seen[:5] == [0, -2, -2, -2, 0]
    assert took < 3.0


async def test_a_static_member_that_is_fenced_by_its_epoch_rejoins_at_once(network: Any) -> None:
    """The coordinator still counted it, and refused its join with UNRELEASED_INSTANCE_ID."""
    assigned: list[float] = []
    async with cluster(network) as kafka:
        async with member(
            "consumer",
            group_instance_id="i",
            on_partitions_assigned=lambda tps: assigned.append(anyio.current_time()),
        ) as consumer:
            await joined(consumer)
            kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.FENCED_MEMBER_EPOCH)
            await until(lambda: len(assigned) == 2)
    assert assigned[1] - assigned[0] < 3.0


async def test_a_static_member_that_unsubscribed_without_a_response_joins_again(
    network: Any,
) -> None:
    """The coordinator has not heard that it left, and would refuse its join."""
    async with cluster(network) as kafka:
        async with member("consumer", group_instance_id="i", close_timeout=15.0) as consumer:
            assert isinstance(consumer, Consumer)
            await joined(consumer)
            refusing = fail_leave(kafka, "consumer", ErrorCode.NOT_COORDINATOR, times=None)
            await consumer.unsubscribe()
            refusing.stop()
            await anyio.sleep(10)
            assert consumer.health(), "the failure to leave has no consequences any more"
            began = anyio.current_time()
            await consumer.subscribe("t")
            await joined(consumer)
            took = anyio.current_time() - began
    assert took < 1.0


async def test_another_process_keeps_the_instance_id(network: Any) -> None:
    """The member releases only what it holds itself; it joins when the other one has left."""
    async with cluster(network) as kafka:
        async with member("consumer", group_instance_id="i") as holder:
            assert isinstance(holder, Consumer)
            await joined(holder)
            kafka.fail(ConsumerGroupHeartbeatRequest, Close(before=True))
            async with member("consumer", group_instance_id="i") as other:
                await anyio.sleep(5)
                assert len(holder.assignment()) == 2
                await holder.stop()
                began = anyio.current_time()
                await joined(other)
                assert anyio.current_time() - began < 2.0


def only_version_0(response: Any) -> Any:
    """Return the versions of a broker before Kafka 4.0."""
    key = ConsumerGroupHeartbeatRequest.api_key
    keys = [k for k in response.api_keys if k.api_key != key]
    old = ApiVersion(api_key=key, min_version=0, max_version=0)
    return type(response)(error_code=0, api_keys=(*keys, old))


async def test_a_broker_that_chooses_member_ids_is_waited_for(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With ConsumerGroupHeartbeat 0 the member cannot know the id of a join without a response."""
    async with cluster(network) as kafka:
        kafka.fail(ApiVersionsRequest, Change(only_version_0), times=None)
        kafka.fail(ConsumerGroupHeartbeatRequest, Close())
        began = anyio.current_time()
        async with member("consumer", group_instance_id="i") as consumer:
            await joined(consumer)
            took = anyio.current_time() - began
            seen = epochs()
    assert not [epoch for epoch in seen if epoch < 0]
    assert took == pytest.approx(45.0, abs=3.0)
    assert "another member has this group_instance_id" in caplog.text


# ---------------------------------------------------------------- a leave that failed before


@pytest.mark.parametrize("kind", ["classic", "consumer"])
@pytest.mark.parametrize("after", ["max.poll.interval", "unsubscribe"])
async def test_the_close_leaves_again_if_leaving_has_failed(
    network: Any, kind: str, after: str
) -> None:
    """A member that was expelled could not leave. The close did not try again, so the group counted
    the member until its session ended."""
    options: dict[str, Any] = {"max_poll_interval_ms": 2_000, "session_timeout_ms": 60_000}
    if kind == "consumer":
        del options["session_timeout_ms"]
    async with cluster(network) as kafka, member(kind, **options) as consumer:
        assert isinstance(consumer, Consumer)
        await joined(consumer)
        failure = fail_leave(kafka, kind, ErrorCode.UNKNOWN_SERVER_ERROR, times=None)
        if after == "unsubscribe":
            await consumer.unsubscribe()
        else:
            await until(leaves)
        await anyio.sleep(1)
        assert len(member_ids(kafka, kind)) == 1
        failure.stop()
        await consumer.stop()
        assert member_ids(kafka, kind) == []


async def test_the_close_of_a_failed_member_leaves_again_if_leaving_has_failed(
    network: Any,
) -> None:
    """Its strategy raised, and the coordinator refused that it left. The close did not try again,
    so the group counted the member until its session ended."""
    broken = GroupProtocol("work", "all", b"", lambda members: {"stranger": b""})
    one = GroupMember("g", broken, bootstrap_servers="kafka-1", session_timeout_ms=60_000)
    async with cluster(network) as kafka, one:
        failure = fail_leave(kafka, "member", ErrorCode.UNKNOWN_SERVER_ERROR, times=None)
        with pytest.raises(ConfigurationError, match="stranger"):
            await anext(one)
        await until(leaves)
        await anyio.sleep(1)
        joins = len(kafka.requests(JoinGroupRequest))
        assert len(member_ids(kafka, "member")) == 1
        failure.stop()
        await one.stop()
        assert member_ids(kafka, "member") == []
        assert len(kafka.requests(JoinGroupRequest)) == joins
        with pytest.raises(ConfigurationError, match="stranger"):
            await one.wait_generation()


# ---------------------------------------------------------------- calls that the close overtakes


async def test_a_commit_that_the_close_overtakes_ends_with_it(network: Any) -> None:
    """It was repeated on closed connections until `request_timeout_ms`."""
    async with cluster(network) as kafka, anyio.create_task_group() as tasks:
        ended: list[float] = []

        async def commit(consumer: Consumer) -> None:
            with pytest.raises(ClosedError, match="was closed during this call"):
                await consumer.commit({TopicPartition("t", 0): 1})
            ended.append(anyio.current_time())

        async with member("classic", close_timeout=3.0) as consumer:
            assert isinstance(consumer, Consumer)
            await joined(consumer)
            kafka.fail(OffsetCommitRequest, ErrorCode.NOT_COORDINATOR, times=None)
            tasks.start_soon(commit, consumer)
            await anyio.sleep(0.5)
            await consumer.stop()
            stopped = anyio.current_time()
            await until(lambda: ended)
    assert ended == [pytest.approx(stopped, abs=0.05)]


CALLS: dict[str, Callable[[Consumer], Any]] = {
    "committed": lambda c: c.committed([("t", 0)]),
    "end_offsets": lambda c: c.end_offsets([("t", 0)]),
    "wait_assignment": lambda c: c.wait_assignment(),
    "subscribe": lambda c: c.subscribe("u"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_no_call_outlasts_the_close(network: Any, call: str) -> None:
    """`committed` was repeated on closed connections for ever."""
    async with cluster(network) as kafka, anyio.create_task_group() as tasks:
        ended: list[float] = []

        async def wait(consumer: Consumer) -> None:
            with suppress(ClosedError):
                await CALLS[call](consumer)
            ended.append(anyio.current_time())

        async with member("classic", close_timeout=3.0) as consumer:
            assert isinstance(consumer, Consumer)
            if call != "wait_assignment":
                await joined(consumer)
            kafka.kill(1)
            for request in (OffsetFetchRequest, JoinGroupRequest):
                kafka.fail(request, ErrorCode.NOT_COORDINATOR, times=None)
            tasks.start_soon(wait, consumer)
            await anyio.sleep(0.5)
            await consumer.stop()
            stopped = anyio.current_time()
            with anyio.fail_after(1):
                await until(lambda: ended)
    assert ended[0] <= stopped + 0.05

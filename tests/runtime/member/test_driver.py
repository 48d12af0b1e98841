"""What a consumer does while its group rebalances, on an embedded broker in virtual time."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from kafkagroup import Admin, BrokerError, CommitFailedError, Consumer, GroupMember, GroupProtocol
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.errors import ErrorCode, FencedError, IllegalStateError
from kafkagroup.runtime.member.driver import Driver
from kafkagroup.runtime.member.metrics import Meter
from kafkagroup.testing.embedded import Delay, EmbeddedKafka, Swallow
from kafkagroup.transport.metadata import Node
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest

pytestmark = pytest.mark.anyio


async def test_auto_commit_waits_without_warnings_during_a_rebalance(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A cooperative member keeps reading meanwhile. At each interval it once warned that it no
    longer owned its partitions."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0", "1", "2"], partition=0)
        consumer = Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            assignors=[cooperative_sticky_assignor],
            auto_commit_interval_ms=100,
        )
        with anyio.fail_after(60), caplog.at_level(logging.WARNING):
            async with consumer:
                assert (await consumer.getone()).offset == 0
                kafka.fail(SyncGroupRequest, Delay(5))
                await consumer.subscribe("t")
                await anyio.sleep(1)
                assert [(await consumer.getone()).offset for _ in range(2)] == [1, 2]
                with pytest.raises(CommitFailedError, match="is rebalancing"):
                    await consumer.commit()
                before = kafka.committed("g", "t")
                await anyio.sleep(6)
                after = kafka.committed("g", "t")
    assert before[0] < 3
    assert after == {0: 3}
    assert caplog.messages == []


async def test_an_auto_commit_rejected_until_its_timeout_raises_nothing(
    network: Any,
) -> None:
    """Commits failed with NOT_COORDINATOR until the request timeout. That error, which the next
    commit resolves, was raised by the application's next call."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0", "1"], partition=0)
        consumer = Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            auto_commit_interval_ms=1_000,
            request_timeout_ms=3_000,
        )
        with anyio.fail_after(60):
            async with consumer:
                refused = kafka.fail(OffsetCommitRequest, ErrorCode.NOT_COORDINATOR, times=None)
                assert [(await consumer.getone()).offset for _ in range(2)] == [0, 1]
                assert await consumer.getmany(timeout=9) == {}
                while_refused = kafka.committed("g", "t")
                refused.stop()
                assert await consumer.getmany(timeout=9) == {}
                after = kafka.committed("g", "t")
    assert refused.hits > 3
    assert while_refused == {}
    assert after == {0: 2}


async def test_a_revocation_waits_for_the_applications_commit_in_flight(
    network: Any,
) -> None:
    """JoinGroup uses another connection and overtook the commit: in the next generation the commit
    would be rejected, and its records processed twice."""
    events: list[str] = []

    async def revoked(partitions: Sequence[TopicPartition]) -> None:
        events.append("revoked")

    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0"], partition=0)
        consumer = Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            enable_auto_commit=False,
            on_partitions_revoked=revoked,
        )

        async def commit() -> None:
            await consumer.commit()
            events.append("committed")

        with anyio.fail_after(60):
            async with consumer, anyio.create_task_group() as tasks:
                await consumer.getone()
                kafka.fail(OffsetCommitRequest, Delay(3))
                tasks.start_soon(commit)
                await anyio.sleep(1)
                await consumer.subscribe("t")
                await anyio.sleep(5)
                assert events == ["committed", "revoked"]


def polled_every_20_seconds(lost: list[float]) -> Consumer:
    """Return a consumer that is removed without a poll. `lost`: when it loses its partitions."""

    async def on_lost(partitions: Sequence[TopicPartition]) -> None:
        lost.append(anyio.current_time())

    return Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        rebalance_timeout_ms=2_000,
        max_poll_interval_ms=20_000,
        on_partitions_lost=on_lost,
    )


async def test_a_rebalance_does_not_count_as_a_poll(network: Any) -> None:
    """A stuck application once kept its partitions while members joined and left: each assignment
    restarted the timer of max_poll_interval_ms."""
    lost: list[float] = []
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0", "1"], partition=0)
        with anyio.fail_after(90):
            async with polled_every_20_seconds(lost) as consumer:
                await anyio.sleep(1)
                await consumer.getone()
                left = anyio.current_time()
                for _ in range(3):
                    await anyio.sleep(8)
                    await consumer.subscribe("t")
                assert [at - left for at in lost] == [pytest.approx(20.0, abs=0.1)]
                assert (await consumer.getone()).offset == 0


async def test_a_missed_poll_is_noticed_when_a_rebalance_returns_the_partitions(
    network: Any,
) -> None:
    """The interval ends while the group rebalances, and the member owns nothing."""
    lost: list[float] = []
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0", "1"], partition=0)
        with anyio.fail_after(90):
            async with polled_every_20_seconds(lost) as consumer:
                await anyio.sleep(1)
                await consumer.getone()
                left = anyio.current_time()
                await anyio.sleep(17)
                kafka.fail(SyncGroupRequest, Delay(6))
                await consumer.subscribe("t")
                await anyio.sleep(30)
    assert [at - left for at in lost] == [pytest.approx(24.0, abs=2.0)]


async def test_the_poll_interval_starts_with_the_first_partitions(network: Any) -> None:
    """A member without partitions need not poll; when it got some from a leaving member, it was
    removed at once."""
    lost: list[float] = []

    async def on_lost(partitions: Sequence[TopicPartition]) -> None:
        lost.append(anyio.current_time())

    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0"], partition=0)
        owner = Consumer("t", bootstrap_servers="kafka-1", group_id="g", client_id="a")
        reserve = Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            client_id="b",
            max_poll_interval_ms=20_000,
            rebalance_timeout_ms=2_000,
            on_partitions_lost=on_lost,
        )
        with anyio.fail_after(200):
            async with reserve:
                async with owner:
                    assert (await owner.getone()).offset == 0
                    await owner.commit()
                    assert await reserve.getmany(timeout=0.1) == {}
                    assert reserve.assignment() == frozenset()
                    await anyio.sleep(55)
                assigned = anyio.current_time()
                await anyio.sleep(60)
                assert [at - assigned for at in lost] == [pytest.approx(20.0, abs=2.0)]


@pytest.mark.parametrize(
    ("protocol", "request_type"),
    [("classic", SyncGroupRequest), ("consumer", ConsumerGroupHeartbeatRequest)],
)
async def test_the_poll_interval_starts_anew_after_a_missed_poll(
    network: Any, protocol: Any, request_type: Any
) -> None:
    """A member that had left for a missed poll, and rejoined, was removed again as soon as it got
    partitions, if the join took long: the timer ran before it owned any."""
    assigned: list[float] = []
    lost: list[float] = []

    async def on_assigned(partitions: Sequence[TopicPartition]) -> None:
        assigned.append(anyio.current_time())

    async def on_lost(partitions: Sequence[TopicPartition]) -> None:
        lost.append(anyio.current_time())

    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0"], partition=0)
        consumer = Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            group_protocol=protocol,
            max_poll_interval_ms=20_000,
            on_partitions_assigned=on_assigned,
            on_partitions_lost=on_lost,
        )
        with anyio.fail_after(200):
            async with consumer:
                assert (await consumer.getone()).offset == 0
                await anyio.sleep(25)
                assert len(lost) == 1
                kafka.fail(request_type, Delay(22))
                assert await consumer.getmany(timeout=1) == {}
                await anyio.sleep(60)
    assert [at - assigned[-1] for at in lost[1:]] == [pytest.approx(20.0, abs=0.5)]


async def test_the_coordinator_is_none_until_it_is_known(network: Any) -> None:
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.fail(FindCoordinatorRequest, Delay(5))
        consumer = Consumer("t", bootstrap_servers="kafka-1", group_id="g")
        with anyio.fail_after(60):
            async with consumer:
                before = consumer.coordinator
                await anyio.sleep(10)
                assert (before, consumer.coordinator) == (None, Node(1, "kafka-1", 9092))


async def test_a_member_continues_with_the_coordinator_that_answers_its_sync(network: Any) -> None:
    """A heartbeat on another connection had no response, and neither had the look-up that followed:
    the member had its assignment and sent no heartbeat, until its session expired."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        consumer = Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            assignors=[cooperative_sticky_assignor],
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            request_timeout_ms=60_000,
        )
        with anyio.fail_after(300):
            async with consumer:
                await consumer.wait_assignment()
                kafka.fail(SyncGroupRequest, Delay(5))
                await consumer.subscribe("t")
                kafka.fail(HeartbeatRequest, Swallow())
                look_ups = kafka.fail(FindCoordinatorRequest, Swallow(), times=None)
                await anyio.sleep(10)
                while_unanswered = consumer.coordinator
                kafka.produce("t", ["0"], partition=0)
                with anyio.fail_after(1):
                    assert (await consumer.getone()).offset == 0
                look_ups.stop()
    assert (look_ups.hits, while_unanswered) == (1, Node(1, "kafka-1", 9092))


@pytest.mark.parametrize("request_type", [JoinGroupRequest, SyncGroupRequest])
async def test_a_join_does_not_wait_for_the_response_to_an_earlier_one(
    network: Any, request_type: Any
) -> None:
    """Its response was lost, and an operator removed the member. A heartbeat reported that, but
    the next join waited for the lost response, for as long as a rebalance may take."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0"], partition=0)
        consumer = Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            assignors=[cooperative_sticky_assignor],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        with anyio.fail_after(300):
            async with consumer, Admin(bootstrap_servers="kafka-1") as admin:
                assert (await consumer.getone()).offset == 0
                member_id = consumer.group_metadata().member_id
                lost = kafka.fail(request_type, Swallow())
                began_at = anyio.current_time()
                await consumer.subscribe("t")
                await anyio.sleep(1)
                await admin.remove_member("g", member_id=member_id)
                assert (await consumer.getone()).offset == 0  # of the next membership
                took = anyio.current_time() - began_at
    assert lost.hits == 1
    assert took < 3.1  # the interval of heartbeats


@pytest.mark.parametrize(
    ("protocol", "request_type", "meter"),
    [
        ("classic", JoinGroupRequest, "join"),
        ("classic", SyncGroupRequest, "sync"),
        ("consumer", ConsumerGroupHeartbeatRequest, "join"),
    ],
)
async def test_the_metrics_have_the_time_of_a_join(
    network: Any, protocol: Any, request_type: Any, meter: str
) -> None:
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.fail(request_type, Delay(3), when=lambda request: request.member_id != "")
        consumer = Consumer("t", bootstrap_servers="kafka-1", group_id="g", group_protocol=protocol)
        with anyio.fail_after(60):
            async with consumer:
                await consumer.wait_assignment()
                found = getattr(consumer.metrics(), meter)
    assert (found.average, found.maximum) == (pytest.approx(3.0), pytest.approx(3.0))


async def test_a_refused_member_raises_the_same_error_at_each_call(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It has failed, and not left: so it does not join again, as a member that polls late does."""
    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    protocol = GroupProtocol("work", "all", b"", lambda members: dict.fromkeys(members, b""))
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.fail(JoinGroupRequest, code, times=None)
        with anyio.fail_after(60):
            async with (
                Consumer("t", bootstrap_servers="kafka-1", group_id="g") as consumer,
                GroupMember("m", protocol, bootstrap_servers="kafka-1") as member,
            ):
                for call in (consumer.getone, member.__anext__) * 2:
                    with pytest.raises(BrokerError) as raised:
                        await call()
                    assert raised.value.code == code
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


async def test_a_generation_is_taken_again_after_an_error_that_did_not_end_it(network: Any) -> None:
    """The call that raises the error has released the generation, which continues."""
    protocol = GroupProtocol("work", "all", b"", lambda members: dict.fromkeys(members, b""))
    async with network, EmbeddedKafka({}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(60):
            async with GroupMember("g", protocol, bootstrap_servers="kafka-1") as member:
                generation = await anext(member)
                member._queue.report(BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED))
                with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                    await anext(member)
                assert await anext(member) is generation


async def test_protocols_that_are_replaced_during_a_join_are_used_by_the_next_one(
    network: Any,
) -> None:
    """The coordinator picks a protocol of the join that is in flight: its leader still has to
    compute by that one."""

    def protocol(name: str) -> GroupProtocol:
        return GroupProtocol("workers", name, b"", lambda members: dict.fromkeys(members, b"one"))

    async with network, EmbeddedKafka({}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.fail(JoinGroupRequest, Delay(1.0), times=2)
        with anyio.fail_after(60):
            both = [protocol("a"), protocol("b")]
            async with GroupMember("g", both, bootstrap_servers="kafka-1") as member:
                await anyio.sleep(1.5)
                member.update(protocol("b"))
                generation = await anext(member)
                assert (generation.protocol_name, generation.assignment) == ("b", b"one")


async def test_a_generation_tells_who_leads_it(network: Any) -> None:
    protocol = GroupProtocol("work", "all", b"", lambda members: dict.fromkeys(members, b""))
    found: list[str] = []

    async def take(member: GroupMember) -> None:
        async for generation in member:
            is_leader = generation.leader_id == generation.member_id
            assert generation.is_leader == is_leader
            name = f"<Generation {generation.generation_id} of {generation.member_id}"
            found.append(repr(generation).removeprefix(name))
            with generation.scope():
                await generation.over.wait()

    async with network, EmbeddedKafka({}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(60):
            async with (
                GroupMember("g", protocol, bootstrap_servers="kafka-1") as first,
                GroupMember("g", protocol, bootstrap_servers="kafka-1") as second,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(take, first)
                tasks.start_soon(take, second)
                await anyio.sleep(20)
                tasks.cancel_scope.cancel()
    assert sorted(found[-2:]) == [", leads>", ">"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_the_metrics_have_the_requests_that_a_coordinator_has_answered(
    network: Any, protocol: Any
) -> None:
    """A refused join and the request to leave are neither joins nor heartbeats. With KIP-848 all of
    them are heartbeats, of another epoch."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0"], partition=0)
        consumer = Consumer("t", bootstrap_servers="kafka-1", group_id="g", group_protocol=protocol)
        joins = JoinGroupRequest if protocol == "classic" else ConsumerGroupHeartbeatRequest
        heartbeats = 0

        def count(request: HeartbeatRequest | ConsumerGroupHeartbeatRequest) -> bool:
            nonlocal heartbeats
            heartbeats += getattr(request, "member_epoch", 1) > 0
            return False

        kafka.fail(HeartbeatRequest, ErrorCode.NONE, times=None, when=count)
        kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.NONE, times=None, when=count)
        kafka.fail(joins, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        # The first one of a classic member gets an id and an error.
        kafka.fail(joins, Delay(2.0), times=1 + (protocol == "classic"))
        with anyio.fail_after(60):
            async with consumer:
                before = consumer.metrics()
                assert before.last_heartbeat_seconds_ago == math.inf
                assert before.session_seconds_left == 0.0
                await consumer.getone()
                for kind in (HeartbeatRequest, ConsumerGroupHeartbeatRequest):
                    kafka.fail(kind, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                await anyio.sleep(10.0)
                found = consumer.metrics()
                assert 0.0 <= found.last_heartbeat_seconds_ago <= 3.0
                assert found.join.maximum == pytest.approx(2.0)
                assert found.heartbeat.maximum == 0.0
                await consumer.unsubscribe()
                meters = consumer._session.history.meters
    assert (_count(meters.join), _count(meters.heartbeat)) == (1, heartbeats)


def _count(meter: Meter) -> int:
    return sum(one.count for one in meter._sums)


@pytest.mark.parametrize("ended_by", ["missed poll", "fatal error"])
async def test_the_end_of_a_membership_does_not_cancel_a_callback_that_runs(
    network: Any, ended_by: str
) -> None:
    """The member has left or failed, and the listener still stores what it has."""
    story: list[str] = []

    async def lost(partitions: Sequence[TopicPartition]) -> None:
        story.append("lost")
        await anyio.sleep(2.0)
        story.append("stored")

    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0"], partition=0)
        consumer = Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            rebalance_timeout_ms=2_000,
            max_poll_interval_ms=20_000,
            on_partitions_lost=lost,
        )
        with anyio.fail_after(60):
            async with consumer:
                await consumer.getone()
                if ended_by == "fatal error":
                    kafka.fail(HeartbeatRequest, ErrorCode.FENCED_INSTANCE_ID)
                    with pytest.raises(FencedError):
                        await consumer.getone()
                await anyio.sleep(25.0)
    assert story == ["lost", "stored"]


async def test_a_membership_that_ends_without_a_request_to_is_a_failure(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer waited for records for ever, and its health was good."""
    monkeypatch.setattr(Driver, "_start_tasks", lambda _, tasks: tasks.cancel_scope.cancel())
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(60):
            async with Consumer("t", bootstrap_servers="kafka-1", group_id="g") as consumer:
                with pytest.raises(IllegalStateError, match="group g: the membership"):
                    await consumer.getone()

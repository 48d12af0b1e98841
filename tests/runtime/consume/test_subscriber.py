"""The calls that a group member's application gets at the end of a generation, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from kafkagroup import ClosedError, Consumer
from kafkagroup._values import evolve
from kafkagroup.assign import (
    GroupSpec,
    cooperative_sticky_assignor,
    range_assignor,
    sticky_assignor,
)
from kafkagroup.errors import ErrorCode, KafkaGroupError
from kafkagroup.runtime.consume import large_jobs, leader, subscriber
from kafkagroup.testing.embedded import EmbeddedKafka, Swallow
from kafkagroup.transport.threads import WorkerThreads
from kafkagroup.types import TopicPartition
from kafkagroup.wire.embedded_protocol import Subscription, encode_subscription
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest

pytestmark = pytest.mark.anyio

End = Callable[[EmbeddedKafka, Consumer], Awaitable[None]]


def end_by_heartbeat(code: ErrorCode) -> End:
    async def end(kafka: EmbeddedKafka, _: Consumer) -> None:
        kafka.fail(HeartbeatRequest, code)

    return end


async def end_by_new_subscription(_: EmbeddedKafka, consumer: Consumer) -> None:
    await consumer.subscribe("u")


@pytest.mark.parametrize(
    ("assignors", "end", "callback"),
    [
        (None, end_by_heartbeat(ErrorCode.REBALANCE_IN_PROGRESS), "revoked"),
        (None, end_by_heartbeat(ErrorCode.UNKNOWN_MEMBER_ID), "lost"),
        ([cooperative_sticky_assignor], end_by_new_subscription, "revoked"),
        ([cooperative_sticky_assignor], end_by_heartbeat(ErrorCode.UNKNOWN_MEMBER_ID), "lost"),
    ],
    ids=["eager", "eager-lost", "cooperative", "cooperative-lost"],
)
async def test_revoking_partitions_are_not_delivered_during_the_callback(
    network: Any, assignors: Any, end: End, callback: str
) -> None:
    """Callbacks run one after another: before `revoked` runs, the next owner may process the same
    records."""
    tp = TopicPartition("t", 0)
    story: list[str] = []
    taken: list[int] = []

    async def assigned(partitions: object) -> None:
        if not story:
            consumer.seek(tp, 0)
            story.append("assigning")
            await anyio.sleep(10)
            story.append("assigned")

    consumer = Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        assignors=assignors,
        heartbeat_interval_ms=50,
        on_partitions_assigned=assigned,
        on_partitions_revoked=lambda _: story.append("revoked"),
        on_partitions_lost=lambda _: story.append("lost"),
    )

    async def read() -> None:
        async for record in consumer:
            taken.append(record.offset)
            await anyio.sleep(0.01)

    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", [f"{n}" for n in range(2_000)], partition=0)
        with anyio.fail_after(60):
            async with consumer, anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await anyio.sleep(2)
                assert (story, consumer.assignment()) == (["assigning"], {tp})
                assert len(taken) > 100
                await end(kafka, consumer)
                await anyio.sleep(0.1)
                before, assigned_then = len(taken), consumer.assignment()
                await anyio.sleep(5)
                assert (story, len(taken) - before, assigned_then) == (["assigning"], 0, set())
                await anyio.sleep(5)
                assert story[:3] == ["assigning", "assigned", callback]
                await consumer.stop()


async def test_partitions_subscribed_to_again_before_their_revocation_are_consumed_again(
    network: Any,
) -> None:
    """Once their delivery has stopped, they are released, and the next generation assigns them."""
    tp = TopicPartition("t", 0)
    calls: list[tuple[str, list[TopicPartition]]] = []

    async def assigned(partitions: list[TopicPartition]) -> None:
        calls.append(("assigned", partitions))
        if len(calls) == 1:
            await anyio.sleep(5)  # a revocation waits for this call

    consumer = Consumer(
        "t",
        "u",
        bootstrap_servers="kafka-1",
        group_id="g",
        assignors=[cooperative_sticky_assignor],
        heartbeat_interval_ms=50,
        on_partitions_assigned=assigned,
        on_partitions_revoked=lambda partitions: calls.append(("revoked", partitions)),
    )
    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(60):
            async with consumer:
                while not calls:
                    await anyio.sleep(0.1)
                await consumer.subscribe("u")
                await anyio.sleep(0.1)
                assert consumer.assignment() == {TopicPartition("u", 0)}
                await consumer.subscribe("t", "u")
                kafka.produce("t", ["a record"], partition=0)
                assert (await consumer.getone()).topic == "t"
                assert calls[1:] == [("revoked", [tp]), ("assigned", [tp])]


@pytest.mark.parametrize(
    ("assignors", "end"),
    [
        (None, end_by_heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)),
        ([cooperative_sticky_assignor], end_by_new_subscription),
    ],
    ids=["eager", "cooperative"],
)
@pytest.mark.parametrize("auto_commit", [True, False], ids=["auto-commit", "own-commit"])
async def test_a_removed_member_does_not_wait_for_the_last_commit(
    network: Any, assignors: Any, end: End, auto_commit: bool
) -> None:
    """No broker refuses a commit over a dead connection: the member once rejoined only after the
    commit's timeout."""
    story: list[str] = []
    consumer = Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        assignors=assignors,
        heartbeat_interval_ms=50,
        auto_offset_reset="earliest",
        enable_auto_commit=auto_commit,
        on_partitions_assigned=lambda _: story.append("assigned"),
        on_partitions_revoked=lambda _: story.append("revoked"),
        on_partitions_lost=lambda _: story.append("lost"),
    )
    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["x", "y"], partition=0)
        with anyio.fail_after(60):
            async with consumer, anyio.create_task_group() as tasks:
                await anext(consumer)
                await anyio.sleep(2)
                dead = kafka.fail(OffsetCommitRequest, Swallow(), times=None)
                await anext(consumer)
                if not auto_commit:
                    tasks.start_soon(consumer.commit)
                tasks.start_soon(anext, consumer)
                await end(kafka, consumer)
                await anyio.sleep(1)
                assert story == ["assigned"]
                kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
                await anyio.sleep(1)
                assert story == ["assigned", "lost"]
                dead.stop()
                tasks.cancel_scope.cancel()
            assert consumer.assignment() == frozenset()


async def test_a_member_removed_during_on_revoked_does_not_wait_for_the_commits_of_the_callback(
    network: Any,
) -> None:
    """Nothing answered them, and the member rejoined only when the commit's deadline had passed."""
    story: list[str] = []

    async def on_revoked(_: object) -> None:
        story.append("revoked")
        tasks.start_soon(commit)
        kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
        await anyio.sleep(1)

    async def commit() -> None:
        with suppress(KafkaGroupError):
            await consumer.commit()

    consumer = Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        heartbeat_interval_ms=50,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        on_partitions_assigned=lambda _: story.append("assigned"),
        on_partitions_revoked=on_revoked,
        on_partitions_lost=lambda _: story.append("lost"),
    )
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["x", "y"], partition=0)
        with anyio.fail_after(60):
            async with consumer, anyio.create_task_group() as tasks:
                await anext(consumer)
                await anyio.sleep(2)
                dead = kafka.fail(OffsetCommitRequest, Swallow(), times=None)
                tasks.start_soon(anext, consumer)
                kafka.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
                await anyio.sleep(2)
                assert story == ["assigned", "revoked", "lost"]
                dead.stop()
                tasks.cancel_scope.cancel()


async def test_partitions_unsubscribed_during_a_join_retry_are_revoked_first(
    network: Any,
) -> None:
    """The assignor ignored its owned partitions, as its subscription lacked their topic: another
    member was assigned them before they were revoked."""
    story: list[tuple[str, str]] = []

    def member(name: str) -> Consumer:
        def recording(what: str) -> Callable[[Any], None]:
            return lambda tps: story.extend(
                (name, f"{what} {tp.topic}/{tp.partition}") for tp in tps
            )

        return Consumer(
            "t",
            "u",
            bootstrap_servers="kafka-1",
            group_id="g",
            client_id=name,
            assignors=[cooperative_sticky_assignor],
            heartbeat_interval_ms=50,
            on_partitions_assigned=recording("gains"),
            on_partitions_revoked=recording("revokes"),
        )

    first, second = member("first"), member("second")
    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(60):
            async with first, anyio.create_task_group() as tasks:
                tasks.start_soon(anext, first)
                while len(first.assignment()) < 2:
                    await anyio.sleep(0.1)
                mine = kafka.fail(
                    JoinGroupRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None
                )
                kafka.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
                await anyio.sleep(0.5)
                await first.subscribe("t")
                await anyio.sleep(0.5)
                mine.stop()
                async with second:
                    tasks.start_soon(anext, second)
                    while second.assignment() != {TopicPartition("u", 0)}:
                        await anyio.sleep(0.1)
                    tasks.cancel_scope.cancel()
    assert story.index(("first", "revokes u/0")) < story.index(("second", "gains u/0"))


async def test_closing_calls_on_revoked_even_without_a_commit_response(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The last commit had half of the rebalance timeout, and the close ended before it."""
    story: list[str] = []
    consumer = Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        rebalance_timeout_ms=60_000,
        auto_offset_reset="earliest",
        on_partitions_revoked=lambda _: story.append("revoked"),
    )
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["x"], partition=0)
        with anyio.fail_after(600):
            await anyio.sleep(100)  # so that a moment is no duration
            async with consumer:
                await anext(consumer)
                kafka.fail(OffsetCommitRequest, Swallow(), times=None)
                before = anyio.current_time()
                await consumer.stop()
                assert anyio.current_time() - before < 10
    assert story == ["revoked"]
    assert "closed by force" not in caplog.text


async def test_partitions_that_an_absent_static_member_lost_are_assigned_again(
    network: Any,
) -> None:
    """Its application was stuck when it should have rejoined; when it returned, it got its old
    assignment without a rebalance, and the revoked partitions were never assigned again."""

    def member(**options: Any) -> Consumer:
        return Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            assignors=[cooperative_sticky_assignor],
            session_timeout_ms=6_000,
            rebalance_timeout_ms=4_000,
            max_poll_interval_ms=3_000,
            **options,
        )

    stuck, other = member(group_instance_id="a", auto_offset_reset="earliest"), member()
    async with network, EmbeddedKafka({"t": 2}, listen=False) as kafka:
        network.serve_embedded(kafka)
        for partition in (0, 1):
            kafka.produce("t", ["x"], partition=partition)
        with anyio.fail_after(60):
            async with stuck:
                while len(stuck.assignment()) < 2:
                    await anyio.sleep(0.1)
                taken = {tp for _ in (0, 1) for tp in await stuck.getmany(1, timeout=5)}
                assert len(taken) > 0
                async with other, anyio.create_task_group() as tasks:
                    tasks.start_soon(anext, other)
                    await anyio.sleep(5)
                    tasks.start_soon(anext, stuck)
                    await anyio.sleep(3)
                    owned = sorted(stuck.assignment() | other.assignment())
                    tasks.cancel_scope.cancel()
    assert owned == [TopicPartition("t", 0), TopicPartition("t", 1)]


async def test_a_restarted_static_member_with_another_subscription_gets_its_topics(
    network: Any,
) -> None:
    """The coordinator returned its old assignment without a rebalance, again at each rejoin with
    the same metadata: it never read anything."""

    def member(topic: str, instance: str) -> Consumer:
        return Consumer(
            topic,
            bootstrap_servers="kafka-1",
            group_id="g",
            group_instance_id=instance,
            session_timeout_ms=6_000,
        )

    async with network, EmbeddedKafka({"t": 2, "u": 2}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(60):
            async with member("t", "leader"):
                async with member("t", "a") as before:
                    await before.wait_assignment()
                async with member("u", "a") as after:
                    while not after.assignment():
                        await anyio.sleep(0.1)
                    assert {tp.topic for tp in after.assignment()} == {"u"}


def own_assignor(spec: GroupSpec) -> Any:
    """A custom assignor."""
    return range_assignor(spec)


@pytest.mark.parametrize(
    ("assignor", "in_thread"),
    [
        (range_assignor, ["_subscriptions", "_spec", "range_assignor", "_encoded"]),
        (own_assignor, ["_subscriptions"]),
    ],
    ids=["range", "own"],
)
@pytest.mark.parametrize("size", ["large", "small"])
async def test_the_leader_of_a_large_group_assigns_in_a_thread(
    network: Any, monkeypatch: pytest.MonkeyPatch, assignor: Any, in_thread: list[str], size: str
) -> None:
    """900 members blocked the leader's loop for two seconds. A custom assignor is not called in a
    thread; a large assignment is decoded in one."""
    done: list[str] = []

    async def run(self: WorkerThreads, work: Any) -> object:
        done.append(work.func.__name__)
        return work()

    monkeypatch.setattr(WorkerThreads, "__call__", run)
    if size == "large":
        monkeypatch.setattr(large_jobs, "_LARGE_JOB", 0)
    async with network, EmbeddedKafka({"t": 2}, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with Consumer(
            "t", bootstrap_servers="kafka-1", group_id="g", assignors=[assignor]
        ) as consumer:
            assert len(await consumer.wait_assignment()) == 2
    assert done == ([*in_thread, "decode_assignment"] if size == "large" else [])


async def test_a_subscription_is_encoded_once_for_all_assignors(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists the owned partitions: with 90,000 each assignor took 20 ms of the loop."""
    encoded: list[bytes | None] = []

    def encode(subscription: Subscription) -> bytes:
        encoded.append(subscription.user_data)
        return encode_subscription(subscription)

    monkeypatch.setattr(subscriber, "encode_subscription", encode)
    async with network, EmbeddedKafka({"t": 2}, listen=False) as kafka:
        network.serve_embedded(kafka)
        assignors = [range_assignor, own_assignor, sticky_assignor]
        async with Consumer(
            "t", bootstrap_servers="kafka-1", group_id="g", assignors=assignors
        ) as consumer:
            await consumer.wait_assignment()
            encoded.clear()
            protocols = dict(consumer._engine.subscriber.protocols())
            assert (len(protocols), len({*protocols.values()}), len(encoded)) == (3, 2, 2)


async def test_members_with_equal_subscriptions_share_one_set_of_topics(
    network: Any,
) -> None:
    """900 members of 900 topics were 800,000 names: a garbage collection stopped the loop for 80
    ms."""
    specs: list[GroupSpec] = []

    def seeing(spec: GroupSpec) -> Any:
        specs.append(spec)
        return range_assignor(spec)

    async with network, EmbeddedKafka({"t": 2, "u": 2}, listen=False) as kafka:
        network.serve_embedded(kafka)
        options = {"bootstrap_servers": "kafka-1", "group_id": "g", "assignors": [seeing]}
        with anyio.fail_after(60):
            async with (
                Consumer("t", "u", **options),
                Consumer("t", "u", **options),
                Consumer("t", **options),
            ):
                while not specs or len(specs[-1].members) < 3:
                    await anyio.sleep(0.1)
    topics = [member.topics for member in specs[-1].members.values()]
    assert sorted(map(sorted, topics)) == [["t"], ["t", "u"], ["t", "u"]]
    assert len(set(map(id, topics))) == 2


async def test_racks_that_change_back_during_the_comparison_cause_no_rejoin(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    joins: list[JoinGroupRequest] = []
    during: list[Callable[[], Awaitable[None]]] = []

    async def run(self: WorkerThreads, work: Any) -> object:
        result = work()
        if work.func is leader._racks_now and during:
            await during.pop()()
        return result

    def on_request(request: JoinGroupRequest) -> bool:
        joins.append(request)
        return False

    monkeypatch.setattr(WorkerThreads, "__call__", run)
    monkeypatch.setattr(large_jobs, "_LARGE_JOB", 0)
    async with network, EmbeddedKafka({"t": 2}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.fail(JoinGroupRequest, Swallow(), times=None, when=on_request)
        async with Consumer(
            "t", bootstrap_servers="kafka-1", group_id="g", client_rack="a"
        ) as consumer:
            assert len(await consumer.wait_assignment()) == 2
            await anyio.sleep(1)
            cluster, before = consumer._engine._cluster, len(joins)

            async def move(rack: str) -> None:
                await cluster.replace_metadata(evolve(cluster.metadata, racks={1: rack}))

            await move("a")
            await anyio.sleep(5)
            assert len(joins) == before + 1
            during.append(lambda: move("a"))
            await move("b")
            await anyio.sleep(5)
            assert (during, len(joins)) == ([], before + 1)


@pytest.mark.parametrize("which", ["assigned", "revoked"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_stop_in_a_child_task_of_a_callback_does_not_wait_for_the_callback(
    network: Any, which: str, protocol: str
) -> None:
    """It waited for the end of the callback, which waited for it, up to the close timeout."""
    took: list[float] = []

    async def stop(_: object) -> None:
        began_at = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.stop)
        took.append(anyio.current_time() - began_at)

    given: Any = {f"on_partitions_{which}": stop, "group_protocol": protocol}
    consumer = Consumer("t", bootstrap_servers="kafka-1", group_id="g", **given)
    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(60):
            async with consumer:
                with suppress(ClosedError):
                    await consumer.wait_assignment()
                    await consumer.subscribe("u")
                await consumer._stopped.wait()
        assert took
        assert took == pytest.approx([0.0] * len(took), abs=0.1)
        assert kafka.group_state("g") == "Empty"


async def test_a_task_that_outlives_its_callback_waits_for_the_stop(network: Any) -> None:
    async def assigned(_: object) -> None:
        tasks.start_soon(stop_later)

    async def stop_later() -> None:
        await anyio.sleep(5)
        await consumer.stop()
        assert consumer._stopped.is_set()

    consumer = Consumer(
        "t", bootstrap_servers="kafka-1", group_id="g", on_partitions_assigned=assigned
    )
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks, consumer:
                await consumer._stopped.wait()

"""Consumers whose coordinator assigns (KIP-848), on an embedded broker in virtual time."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup import (
    AuthorizationError,
    BrokerError,
    CommitFailedError,
    Consumer,
    GroupMember,
    GroupProtocol,
    TopicPartition,
)
from kafkagroup.errors import ErrorCode, TransportError, UnsupportedVersionError
from kafkagroup.member import consumer_target
from kafkagroup.runtime.consume import large_jobs
from kafkagroup.testing.embedded import BrokerSettings, Delay, EmbeddedKafka, Swallow, Throttle
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.threads import WorkerThreads
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.metadata import MetadataRequest
from kafkagroup.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

pytestmark = pytest.mark.anyio

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
WORK = GroupProtocol("work", "all", b"", lambda members: dict.fromkeys(members, b""))


@asynccontextmanager
async def cluster(network: Any, **options: Any) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": 2}, listen=False, **options) as kafka:
        network.serve_embedded(kafka)
        for partition in range(2):
            kafka.produce("t", [str(n) for n in range(9)], partition=partition)
        with anyio.fail_after(300):
            yield kafka


def member(story: list[Any] | None = None, **options: Any) -> Consumer:
    callbacks: list[Any] = [] if story is None else story
    return Consumer(
        *options.pop("topics", ("t",)),
        **{
            "bootstrap_servers": "kafka-1",
            "group_id": "g",
            "group_protocol": "consumer",
            "on_partitions_assigned": lambda tps: callbacks.append(("assigned", tuple(tps))),
            "on_partitions_revoked": lambda tps: callbacks.append(("revoked", tuple(tps))),
            "on_partitions_lost": lambda tps: callbacks.append(("lost", tuple(tps))),
            **options,
        },
    )


def epochs(kafka: EmbeddedKafka) -> list[int]:
    """Return the epochs of the members in the group."""
    described = kafka._call(kafka._cluster.consumer_coordinator.describe, "g")
    return [m.member_epoch for m in described.members]


async def until(condition: Any) -> None:
    while not condition():
        await anyio.sleep(0.01)


@pytest.mark.parametrize("reachable", [True, False])
async def test_a_topic_counts_as_unknown_only_if_a_broker_has_answered(
    network: Any, monkeypatch: pytest.MonkeyPatch, reachable: bool
) -> None:
    async def no_names(self: Cluster, topic_ids: Any) -> dict[Any, str]:
        if reachable:
            return {}
        raise TransportError("no broker can be reached")

    monkeypatch.setattr(Cluster, "topic_names", no_names)
    async with cluster(network), member() as consumer:
        await anyio.sleep(20)
        causes = [t.problem.cause for t in consumer._session.troubles.ongoing.values()]
        assert ["which no broker knows" in cause for cause in causes] == [True] * reachable


async def test_a_fenced_member_loses_its_partitions_and_rejoins_with_the_same_id(
    network: Any,
) -> None:
    story: list[Any] = []
    async with cluster(network) as kafka, member(story) as consumer:
        await consumer.wait_assignment()
        before = consumer._session.member.driver.member.member_id
        kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.FENCED_MEMBER_EPOCH, times=1)
        at = anyio.current_time()
        await until(lambda: len(story) == 3)
        took = anyio.current_time() - at
        assert consumer._session.member.driver.member.member_id == before
    assert story[:3] == [("assigned", (T0, T1)), ("lost", (T0, T1)), ("assigned", (T0, T1))]
    assert took < 0.3


async def test_a_member_fenced_while_it_revokes_commits_and_assigns_nothing(
    network: Any,
) -> None:
    """The other member has joined; records in flight delay the first one's revocation."""
    story: list[Any] = []
    async with cluster(network) as kafka, member(story, auto_commit_interval_ms=10**6) as first:
        while len(await first.getmany(timeout=1)) < 2:
            pass
        mine = first._session.member.driver.member.member_id
        async with member() as second:
            await until(lambda: len(first.assignment()) == 1)
            kafka.fail(
                ConsumerGroupHeartbeatRequest,
                ErrorCode.FENCED_MEMBER_EPOCH,
                when=lambda request: request.member_id == mine,
            )
            await until(lambda: ("lost", (T0, T1)) in story)
            with anyio.move_on_after(1):
                await first.getone()
            committed = kafka.committed("g", "t")
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
    assert committed == {}
    assert story[:2] == [("assigned", (T0, T1)), ("lost", (T0, T1))]


async def test_buffered_records_of_revoking_partitions_are_not_delivered(
    network: Any,
) -> None:
    """All records have arrived when another member joins, and the callback is slow."""

    async def slowly(_: Any) -> None:
        await anyio.sleep(2)

    async with cluster(network), member(on_partitions_revoked=slowly) as first:
        await first.getone()
        await anyio.sleep(1)
        async with member() as second:
            await until(lambda: len(first.assignment()) == 1)
            came = set()
            with anyio.move_on_after(1):
                async for record in first:
                    came.add((record.topic, record.partition))
            assert came == first.assignment()
            assert second.assignment() == set()
            await until(lambda: len(second.assignment()) == 1)


async def test_a_commit_with_a_stale_epoch_is_retried(network: Any) -> None:
    async with cluster(network) as kafka, member(enable_auto_commit=False) as consumer:
        await consumer.getone()
        kafka.fail(OffsetCommitRequest, ErrorCode.STALE_MEMBER_EPOCH, times=2)
        await consumer.commit()
        assert sum(kafka.committed("g", "t").values()) == 1


async def test_a_retried_commit_carries_the_current_epoch(
    network: Any,
) -> None:
    """The commit is retried; meanwhile a topic gets partitions, and the epoch changes."""
    seen: list[int] = []

    def on_request(request: OffsetCommitRequest) -> bool:
        seen.append(request.generation_id_or_member_epoch)
        return True

    async with cluster(network) as kafka, member(enable_auto_commit=False) as consumer:
        await consumer.getone()
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        fault = kafka.fail(OffsetCommitRequest, loading, times=None, when=on_request)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.commit)
            await anyio.sleep(0.1)
            kafka.add_partitions("t", 3)
            await until(lambda: len(consumer.assignment()) == 3)
            await anyio.sleep(2)
            fault.stop()
        assert sum(kafka.committed("g", "t").values()) == 1
    assert sorted(set(seen)) == [2, 3]


async def test_committed_offsets_are_fetched_with_the_current_epoch(
    network: Any,
) -> None:
    asked: list[Any] = []
    async with cluster(network) as kafka:
        kafka.fail(
            OffsetFetchRequest, Swallow(), times=None, when=lambda r: bool(asked.extend(r.groups))
        )
        async with member() as consumer:
            await consumer.getone()
            me = consumer._session.member.driver.member.member_id
        t = kafka._cluster.topics["t"].topic_id
    topics = (OffsetFetchRequestTopics(topic_id=t, partition_indexes=(0, 1)),)
    assert asked == [
        OffsetFetchRequestGroup(group_id="g", member_id=me, member_epoch=2, topics=topics)
    ]


async def test_an_offset_fetch_with_a_stale_epoch_is_retried(
    network: Any,
) -> None:
    """Two members join at once: the epoch changes while the first one fetches its offsets."""
    async with cluster(network) as kafka:
        kafka.fail(OffsetFetchRequest, ErrorCode.STALE_MEMBER_EPOCH, times=2)
        async with member() as consumer:
            await consumer.getone()
        assert len(kafka.requests(OffsetFetchRequest)) == 3


async def test_an_offset_fetch_by_an_expired_member_raises_nothing_and_it_rejoins(
    network: Any,
) -> None:
    """The response to its next heartbeat ends the membership, and it joins again."""
    story: list[Any] = []
    async with cluster(network) as kafka:
        kafka.fail(OffsetFetchRequest, ErrorCode.UNKNOWN_MEMBER_ID, times=2)
        async with member(story) as consumer:
            await consumer.getone()
    assert story[0] == ("assigned", (T0, T1))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_manually_assigned_partitions_are_committed_without_a_member_id_after_leaving(
    network: Any, protocol: str
) -> None:
    """Commits were rejected: they still had the id of the member that had left."""
    options = {"enable_auto_commit": False, "group_protocol": protocol}
    async with cluster(network) as kafka, member(**options) as consumer:
        await consumer.getone()
        await consumer.unsubscribe()
        await consumer.assign([T0])
        assert (await consumer.getone()).offset == 0
        await consumer.commit()
        assert kafka.committed("g", "t") == {0: 1}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_an_offset_is_committed_again_after_a_cancelled_commit_of_an_earlier_one(
    network: Any, protocol: str
) -> None:
    options = {"enable_auto_commit": False, "group_protocol": protocol}
    async with cluster(network) as kafka, member(**options) as consumer:
        await until(lambda: consumer.assignment() == {T0, T1})
        consumer.pause(T1)
        for _ in range(2):
            await consumer.getone()
        await consumer.commit()
        consumer.seek(T0, 0)
        await consumer.getone()
        kafka.fail(OffsetCommitRequest, Delay(1.0))
        with anyio.move_on_after(0.5):
            await consumer.commit()
        assert kafka.committed("g", "t")[0] == 1
        await consumer.getone()
        await consumer.commit()
        assert kafka.committed("g", "t")[0] == 2


async def test_a_commit_of_partitions_lost_in_the_meantime_fails(network: Any) -> None:
    async with cluster(network) as kafka, member(enable_auto_commit=False) as consumer:
        await consumer.getone()
        kafka.fail(OffsetCommitRequest, ErrorCode.STALE_MEMBER_EPOCH, times=None)
        kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID, times=1)
        with pytest.raises(CommitFailedError):
            await consumer.commit()


async def test_partitions_of_a_topic_unknown_to_metadata_are_assigned_later(
    network: Any,
) -> None:
    """A topic that matches the broker's pattern, and that this client's metadata does not have."""
    async with cluster(network) as kafka, member(topics=(), pattern="t.*") as consumer:
        # The first assignment is empty: the broker applies a pattern after it has responded.
        await until(lambda: consumer.assignment() == {T0, T1})
        hidden = kafka.fail(MetadataRequest, ErrorCode.UNKNOWN_TOPIC_ID, times=None)
        kafka.create_topic("tt", 1)
        await anyio.sleep(30)
        assert consumer.assignment() == {T0, T1}
        hidden.stop()
        await until(lambda: consumer.assignment() == {T0, T1, TopicPartition("tt", 0)})
        kafka.produce("tt", ["x"])
        async for record in consumer:
            if record.topic == "tt":
                break


@pytest.mark.parametrize("is_large", [True, False], ids=["large", "small"])
async def test_a_thread_prepares_a_large_assignment(
    network: Any, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """One of 90,000 partitions blocked the loop for 0.1 s, and one of 200,000 topics for 0.4 s."""
    done: list[str] = []

    async def run(self: WorkerThreads, work: Any) -> object:
        done.append(work.func.__name__)
        return work()

    monkeypatch.setattr(WorkerThreads, "__call__", run)
    if is_large:
        monkeypatch.setattr(consumer_target, "_LARGE", 0)
        monkeypatch.setattr(large_jobs, "_LARGE_JOB", 0)
    async with cluster(network), member() as consumer:
        await until(lambda: consumer.assignment() == {T0, T1})
    assert done[:2] == (["prepare", "assigned_partitions"] if is_large else [])


async def test_a_topic_may_be_withdrawn_while_its_name_is_looked_up(network: Any) -> None:
    """The consumer failed with a ValueError: the set of topics without a name was empty by then."""
    looked_up: list[Any] = []

    def is_by_id(request: MetadataRequest) -> bool:
        ids = [topic.topic_id for topic in request.topics or () if topic.name is None]
        looked_up.extend(ids)
        return bool(ids)

    async with (
        cluster(network) as kafka,
        member(topics=(), pattern="t.*", request_timeout_ms=5_000) as consumer,
    ):
        await until(lambda: consumer.assignment() == {T0, T1})
        hidden = kafka.fail(MetadataRequest, Swallow(), times=None, when=is_by_id)
        kafka.create_topic("tt", 1)
        await until(lambda: looked_up)
        kafka.delete_topic("tt")
        await anyio.sleep(20)
        hidden.stop()
        assert consumer.assignment() == {T0, T1}
        await consumer.getone()


async def test_a_revocation_does_not_wait_for_the_metadata_of_a_new_topic(network: Any) -> None:
    """The member applied one assignment after the other, and each waited for the metadata first:
    the coordinator removed it after the rebalance timeout."""
    # Without a last commit, which would wait behind the request on the same connection.
    quiet = member(topics=(), pattern="t.*", enable_auto_commit=False)
    async with cluster(network) as kafka, quiet as first:
        await until(lambda: first.assignment() == {T0, T1})
        kafka.fail(
            MetadataRequest,
            Swallow(),
            times=None,
            when=lambda request: any(topic.name == "tt" for topic in request.topics or ()),
        )
        kafka.create_topic("tt", 1)
        await until(lambda: len(first.assignment()) == 3)
        async with member() as second:
            at = anyio.current_time()
            await until(lambda: len(first.assignment()) == 2 and len(second.assignment()) == 1)
            assert anyio.current_time() - at < 10.0


async def test_unauthorized_topics_are_reported_and_the_member_stays(network: Any) -> None:
    async with cluster(network) as kafka, member() as consumer:
        await consumer.wait_assignment()
        kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED, times=5)
        with pytest.raises(AuthorizationError):
            while True:
                await consumer.getmany(timeout=0.1)
        await anyio.sleep(10)
        await consumer.getone()
        assert consumer.assignment() == {T0, T1}


@pytest.mark.parametrize("instance", [None, "i"])
async def test_a_poll_timeout_leaves_and_the_next_poll_rejoins(
    network: Any, instance: str | None
) -> None:
    story: list[Any] = []
    options = {"group_instance_id": instance, "max_poll_interval_ms": 2_000}
    async with cluster(network) as kafka, member(story, **options) as consumer:
        await consumer.getone()
        await anyio.sleep(10)
        assert epochs(kafka) == ([] if instance is None else [-2])
        assert (await consumer.getone()).offset == 0
    assert story[:3] == [("assigned", (T0, T1)), ("lost", (T0, T1)), ("assigned", (T0, T1))]


async def test_losing_and_regaining_partitions_does_not_count_as_a_poll(network: Any) -> None:
    """The member was assigned nothing, and fenced before its revocation: a stuck application then
    had another whole `max_poll_interval_ms`."""
    story: list[Any] = []
    options = {"max_poll_interval_ms": 20_000, "rebalance_timeout_ms": 60_000}
    async with cluster(network) as kafka, member(story, **options) as consumer:
        await anyio.sleep(1)
        await consumer.getone()
        await anyio.sleep(15)
        group = kafka._cluster.consumer_coordinator.groups["g"]
        group.epoch += 1
        group.target_epoch, group.target = group.epoch, dict.fromkeys(group.members, frozenset())
        await anyio.sleep(2)
        group.epoch += 1
        kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.FENCED_MEMBER_EPOCH)
        await anyio.sleep(2)
        assert story == [("assigned", (T0, T1)), ("lost", (T0, T1)), ("assigned", (T0, T1))]
        await anyio.sleep(2)
        assert story[3:] == [("lost", (T0, T1))]


async def test_a_heartbeat_that_timed_out_before_it_was_sent_is_never_sent(network: Any) -> None:
    """It waited for a throttled broker, and its owned partitions may be outdated: the coordinator
    would assign to another member partitions that this one has been assigned since."""
    reported: list[Any] = []

    def listen(request: ConsumerGroupHeartbeatRequest) -> bool:
        reported.append(request.topic_partitions)
        return False

    async with cluster(network) as kafka, member() as consumer:
        await consumer.wait_assignment()
        await anyio.sleep(5)
        silence = kafka.fail(ConsumerGroupHeartbeatRequest, Throttle(3))
        await until(lambda: silence.hits)
        kafka.fail(
            ConsumerGroupHeartbeatRequest, ErrorCode.UNKNOWN_SERVER_ERROR, times=None, when=listen
        )
        await anyio.sleep(2)
        consumer.forget_coordinator()
        await until(lambda: reported)
        assert reported[0] is not None, "the first to leave says all"


LEAVES = {(None, None): 0, ("i", None): 1, ("i", True): 0, (None, False): 1}


@pytest.mark.parametrize(("instance", "leave"), LEAVES)
async def test_leaving_follows_leave_group_on_close(
    network: Any, instance: str | None, leave: bool | None
) -> None:
    """KIP-1092: checked by the number of members left in the group."""
    async with cluster(network) as kafka:
        async with member(group_instance_id=instance, leave_group_on_close=leave) as consumer:
            await consumer.wait_assignment()
        assert len(epochs(kafka)) == LEAVES[instance, leave]


@pytest.mark.parametrize(("instance", "leave"), LEAVES)
async def test_leaving_a_classic_group_follows_leave_group_on_close(
    network: Any, instance: str | None, leave: bool | None
) -> None:
    options = {"group_instance_id": instance, "leave_group_on_close": leave}
    async with cluster(network) as kafka:
        async with member(group_protocol="classic", **options) as consumer:
            await consumer.wait_assignment()
        async with GroupMember("h", WORK, bootstrap_servers="kafka-1", **options) as other:
            await anext(other)
        left = [len(kafka.describe_group(group).members) for group in ("g", "h")]
        assert left == [LEAVES[instance, leave]] * 2


async def test_a_leaving_static_member_does_not_remove_its_successor(network: Any) -> None:
    """Another process already uses the instance id."""
    options = {"group_protocol": "classic", "group_instance_id": "i", "enable_auto_commit": False}
    async with cluster(network) as kafka, member(**options) as old:
        await old.wait_assignment()
        kafka.fail(HeartbeatRequest, Swallow(), times=None, when=lambda r: r.member_id == me)
        me = old._session.member.identity.member_id
        async with member(**options) as new:
            await new.wait_assignment()
            await old.stop(leave_group=True)
            (holder,) = kafka.describe_group("g").members
            assert holder.member_id == new._session.member.identity.member_id != me


async def test_a_coordinator_change_loses_no_record(network: Any) -> None:
    story: list[Any] = []
    async with cluster(network, nodes=2) as kafka, member(story) as consumer:
        await consumer.wait_assignment()
        for node in (1, 2, 1):
            kafka.move_coordinator("g", node)
            await anyio.sleep(5)
        assert consumer.assignment() == {T0, T1}
        await consumer.getone()
        await consumer.commit()
    assert [what for what, _ in story] == ["assigned", "revoked"]


async def test_heartbeats_slow_down_to_the_idle_interval(network: Any) -> None:
    async with cluster(network) as kafka, member() as consumer:
        await consumer.wait_assignment()
        await anyio.sleep(10)
        before = kafka.requests(ConsumerGroupHeartbeatRequest)
        await anyio.sleep(60)
        after = kafka.requests(ConsumerGroupHeartbeatRequest)
        assert math.isclose(len(after) - len(before), 60, abs_tol=1)


@pytest.mark.parametrize(
    ("code", "pattern", "options"),
    [
        (ErrorCode.UNSUPPORTED_VERSION, "t", {}),
        # A look-ahead, which RE2J does not know.
        (ErrorCode.INVALID_REGULAR_EXPRESSION, "(?!u)t", {"topics": (), "pattern": "(?!u)t"}),
    ],
    ids=["the protocol is disabled", "the broker refuses the pattern"],
)
async def test_auto_falls_back_when_the_broker_refuses_the_join(
    network: Any,
    code: ErrorCode,
    pattern: str,
    options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log tells why the group is a classic one."""
    caplog.set_level(logging.INFO, "kafkagroup.runtime.member.driver")
    async with cluster(network) as kafka:
        kafka.fail(ConsumerGroupHeartbeatRequest, code, times=None)
        async with member(group_protocol="auto", topics=(), pattern=pattern) as consumer:
            assert len(await consumer.wait_assignment()) == 2
            assert epochs(kafka) == []
            await consumer.getone()
            await consumer.commit()
        (line,) = [line for line in caplog.messages if "by the classic protocol" in line]
        assert code.name in line
        with pytest.raises(BrokerError, match=code.name):
            async with member(**options) as consumer:
                await consumer.getone()


async def test_a_broker_without_the_consumer_protocol(network: Any) -> None:
    async with cluster(network, settings=BrokerSettings(consumer_groups=False)) as kafka:
        async with member(group_protocol="auto", topics=(), pattern="t") as consumer:
            assert len(await consumer.wait_assignment()) == 2
            assert (kafka.group_state("g"), epochs(kafka)) == ("Stable", [])
        with pytest.raises(UnsupportedVersionError, match="ConsumerGroupHeartbeat"):
            async with member() as consumer:
                await consumer.getone()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_an_idle_member_leaves_nothing_to_the_garbage_collector(
    network: Any, protocol: str
) -> None:
    """With 1,000 members in a process each full collection delays the heartbeats of all."""
    async with cluster(network), member(group_protocol=protocol) as consumer:
        while len(await consumer.getmany(timeout=1)):
            pass
        await anyio.sleep(60)
        gc.collect()
        gc.disable()
        try:
            await anyio.sleep(60)
            assert gc.collect() == 0
        finally:
            gc.enable()

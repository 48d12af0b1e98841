"""kafka-python's `ConsumerCoordinator`: a group of consumers and its offsets."""

import re

import anyio
import pytest
from brokers import TRIO_IS_LONG, until

from kafkagroup import Admin, Consumer, OffsetAndMetadata, TopicPartition
from kafkagroup.assign import range_assignor, roundrobin_assignor
from kafkagroup.compat.kafka_python import (
    ConsumerCoordinator,
    Future,
    KafkaClient,
    Metrics,
    SubscriptionState,
)
from kafkagroup.errors import BrokerError, CommitFailedError, ErrorCode, IllegalStateError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.faults import Delay
from kafkagroup.wire import decode_subscription
from kafkagroup.wire.messages.group import JoinGroupRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

pytestmark = pytest.mark.anyio

FAST = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6_000}
NEVER = {"enable_auto_commit": False}


class Listener:
    def __init__(self):
        self.story = []

    def on_partitions_revoked(self, revoked):
        self.story.append(("revoked", revoked))

    async def on_partitions_assigned(self, assigned):
        self.story.append(("assigned", assigned))


def coordinator_of(bootstrap, name, *topics, listener=None, metrics=None, **configs):
    subscription = SubscriptionState()
    subscription.subscribe(topics or [name], listener=listener)
    client = KafkaClient(bootstrap_servers=bootstrap)
    options = {"group_id": name, **FAST, **configs}
    return ConsumerCoordinator(client, subscription, metrics or Metrics(), **options)


async def take(coordinator, count):
    with anyio.fail_after(20):
        await coordinator.ensure_active_group()
        return [await coordinator.consumer.getone() for _ in range(count)]


async def committed(bootstrap, name):
    async with Consumer(bootstrap_servers=bootstrap, group_id=name) as consumer:
        found = await consumer.committed([TopicPartition(name, p) for p in range(2)])
    return {tp.partition: at.offset for tp, at in found.items() if at is not None}


# ---------------------------------------------------------------- membership


@TRIO_IS_LONG
async def test_members_share_partitions_and_take_over(bootstrap, name, fill):
    await fill(2, 3)
    listener = Listener()
    both = {TopicPartition(name, p) for p in range(2)}
    one = coordinator_of(bootstrap, name, listener=listener)
    async with one:
        assert one.need_rejoin()
        await take(one, 6)
        assert not one.need_rejoin()
        assert one._subscription.assigned_partitions() == both
        assert (one.generation > 0, bool(one.member_id)) == (True, True)
        assert one.coordinator_id is not None
        before = one.generation
        async with coordinator_of(bootstrap, name) as other:
            with anyio.fail_after(20):
                await other.ensure_active_group()
                await one.ensure_active_group()
            await until(lambda: len(one._subscription.assigned_partitions()) == 1)
            assert (
                one._subscription.assigned_partitions()
                | (other._subscription.assigned_partitions())
                == both
            )
            assert one.generation > before
        await until(lambda: one._subscription.assigned_partitions() == both)
    # As in kafka-python, the first join also calls the revocation, with no partitions.
    assert listener.story[:2] == [("revoked", set()), ("assigned", both)]
    assert ("revoked", both) in listener.story
    assert [what for what, _ in listener.story] == ["revoked", *["assigned", "revoked"] * 3]


async def test_latest_holds_for_a_topic_created_later(bootstrap, name, fill):
    """As in kafka-python. The main API would read the topic from its beginning."""
    tp = TopicPartition(name, 0)
    subscription = SubscriptionState("latest")
    subscription.subscribe([name])
    client = KafkaClient(bootstrap_servers=bootstrap)
    async with ConsumerCoordinator(
        client, subscription, Metrics(), group_id=name, **FAST
    ) as coordinator:
        with anyio.fail_after(20):
            await coordinator.ensure_active_group()
        await anyio.sleep(1)
        await fill(1, 3)
        await until(lambda: subscription.assigned_partitions() == {tp})
        assert await coordinator.consumer.position(tp) == 3


async def test_an_error_of_the_listener_is_logged_and_consuming_continues(
    bootstrap, name, fill, caplog
):
    await fill(1, 3)

    class Broken(Listener):
        def on_partitions_revoked(self, revoked):
            raise ZeroDivisionError("revoked")

        async def on_partitions_assigned(self, assigned):
            raise ZeroDivisionError("assigned")

    async with coordinator_of(bootstrap, name, listener=Broken()) as one:
        assert [r.offset for r in await take(one, 3)] == [0, 1, 2]
    logged = [str(r.exc_info[1]) for r in caplog.records if r.exc_info]
    assert logged == ["revoked", "assigned", "revoked"]


async def test_a_pattern(bootstrap, name, fill):
    await fill(1, 2)
    one = coordinator_of(bootstrap, name)
    one._subscription.subscribe(pattern=name[:-1])
    async with one:
        assert [r.topic for r in await take(one, 2)] == [name, name]


async def test_a_pattern_without_matching_topics_joins(bootstrap, name):
    """The member joins with nothing to consume, and the application continues."""
    one = coordinator_of(bootstrap, name)
    one._subscription.subscribe(pattern=f"{name}-none")
    async with one:
        with anyio.fail_after(20):
            await one.ensure_active_group()
        assert not one.need_rejoin()
        assert one.generation > 0
        assert one._subscription.assigned_partitions() == set()


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("order", True),
        ("orders", True),
        ("rders", False),
        ("x|ord", True),
        ("^orders$", True),
        ("^order$", False),
        ("(?i)ORDER", True),
        ("(?x)ord  # those", True),
        ("(?i)(?x)ORD  # those", True),
        (re.compile("ORDER", re.IGNORECASE), True),
    ],
)
def test_a_pattern_matches_from_the_start_of_the_name(pattern, matches):
    """`re.match`, as in kafka-python: otherwise a group with the pattern "order" would consume
    nothing."""
    subscription = SubscriptionState()
    subscription.subscribe(pattern=pattern)
    assert bool(subscription.subscribed_pattern.match("orders")) is matches
    assert bool(subscription.whole_pattern().fullmatch("orders")) is matches


async def test_manually_assigned_partitions_need_no_join(bootstrap, name, fill):
    await fill(2, 2)
    one = coordinator_of(bootstrap, name)
    tp = TopicPartition(name, 1)
    one._subscription.assign_from_user([tp])
    async with one:
        assert not one.need_rejoin()
        await one.ensure_active_group()
        assert await one.fetch_committed_offsets([tp]) == {}
        await one.commit_offsets_sync({tp: OffsetAndMetadata(1)})
        assert one._subscription.assigned_partitions() == {tp}
        with anyio.fail_after(20):
            assert (await one.consumer.getone()).partition == 1


def test_metadata_lists_the_supported_assignors():
    one = coordinator_of("localhost", "g", "b", "a")
    assert one.protocol_type() == "consumer"
    offered = [(name, decode_subscription(data).topics) for name, data in one.group_protocols()]
    assert offered == [("range", ("a", "b")), ("roundrobin", ("a", "b"))]
    # Version 3, not 0: it only appends to what 1.3.5 reads of it.
    v0 = bytes.fromhex("00000002 0001 61 0001 62")
    assert [data[:2] + data[2:12] for _, data in one.group_protocols()] == [b"\0\3" + v0] * 2
    one._subscription.subscription = None
    with pytest.raises(IllegalStateError, match="nothing is subscribed to"):
        one.group_protocols()


async def test_the_broker_receives_the_metadata():
    with EmbeddedKafka({"t": 1}) as near:
        async with coordinator_of(near.bootstrap_servers, "t") as one:
            with anyio.fail_after(20):
                await one.ensure_active_group()
            (member,) = near.describe_group("t").members
            assert decode_subscription(member.member_metadata).topics == ("t",)
            assert dict(one.group_protocols()).keys() == {"range", "roundrobin"}


async def test_the_error_that_ends_the_membership_is_raised():
    with EmbeddedKafka({"t": 1}) as near:
        near.fail(JoinGroupRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None)
        async with coordinator_of(near.bootstrap_servers, "t") as one:
            with anyio.fail_after(20), pytest.raises(BrokerError, match="GROUP_AUTHORIZATION"):
                await one.ensure_active_group()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_outside_a_with_block_it_starts_when_it_is_used(bootstrap, name, fill):
    await fill(1, 2)
    one = coordinator_of(bootstrap, name)
    await take(one, 1)
    future = one.commit_offsets_async({TopicPartition(name, 0): OffsetAndMetadata(1)})
    assert await future is True
    await one.close(autocommit=False)
    assert await committed(bootstrap, name) == {0: 1}


# ---------------------------------------------------------------- closing and auto-commit


@pytest.mark.parametrize("autocommit", [True, False])
async def test_closing_with_or_without_a_commit(bootstrap, name, fill, autocommit):
    await fill(1, 5)
    async with coordinator_of(bootstrap, name) as one:
        await take(one, 3)
        await one.close(autocommit=autocommit)
        assert (one.generation, one.member_id, one.need_rejoin()) == (-1, "", True)
        assert await committed(bootstrap, name) == ({0: 2} if autocommit else {})
        # And the group may be joined again.
        first = 2 if autocommit else 0
        assert [r.offset for r in await take(one, 1)] == [first]


async def test_without_auto_commit_closing_commits_nothing(bootstrap, name, fill):
    await fill(1, 3)
    async with coordinator_of(bootstrap, name, **NEVER) as one:
        await take(one, 3)
        assert one._auto_commit_task is None
    assert await committed(bootstrap, name) == {}


async def test_auto_commit_at_its_interval(bootstrap, name, fill):
    """Only processed records are committed, never the one in flight."""
    await fill(1, 5)
    async with coordinator_of(bootstrap, name, auto_commit_interval_ms=100) as one:
        await take(one, 3)
        with anyio.fail_after(20):
            while await committed(bootstrap, name) != {0: 2}:
                await anyio.sleep(0.02)
        await take(one, 1)
        with anyio.fail_after(20):
            while await committed(bootstrap, name) != {0: 3}:
                await anyio.sleep(0.02)


async def test_maybe_auto_commit_follows_the_interval(bootstrap, name, fill):
    await fill(1, 5)
    async with coordinator_of(bootstrap, name, auto_commit_interval_ms=100_000) as one:
        await take(one, 3)
        await anyio.sleep(0.3)
        assert await committed(bootstrap, name) == {}
        one._auto_commit_task.reschedule(anyio.current_time() + 0.1)
        with anyio.fail_after(20):
            while await committed(bootstrap, name) != {0: 2}:
                await anyio.sleep(0.02)
        await take(one, 1)
        one._auto_commit_task.reschedule()
        await anyio.sleep(0.3)
        assert await committed(bootstrap, name) == {0: 2}


async def test_an_auto_commit_that_fails_is_followed_by_the_next():
    with EmbeddedKafka({"t": 1}) as near:
        near.produce("t", ["a", "b", "c"])
        async with coordinator_of(near.bootstrap_servers, "t", auto_commit_interval_ms=100) as one:
            await take(one, 2)
            near.fail(OffsetCommitRequest, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            await until(lambda: near.committed("t", "t") == {0: 1})


# ---------------------------------------------------------------- offsets


async def test_synchronous_commits(bootstrap, name, fill):
    await fill(2, 3)
    zero, one = (TopicPartition(name, p) for p in range(2))
    async with coordinator_of(bootstrap, name, **NEVER) as coordinator:
        await take(coordinator, 6)
        given = {zero: OffsetAndMetadata(2, "note")}
        assert await coordinator.commit_offsets_sync(given) is True
        assert await coordinator.commit_offsets_sync({}) is None
        assert await coordinator.fetch_committed_offsets([zero, one]) == given
        assert await coordinator.fetch_committed_offsets([]) == {}
        with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
            await coordinator.commit_offsets_sync({zero: OffsetAndMetadata(3, "x" * 5_000)})
        with pytest.raises(CommitFailedError, match="not assigned"):
            await coordinator.commit_offsets_sync(
                {TopicPartition("other", 0): OffsetAndMetadata(3)}
            )


async def test_commits_are_retried_until_they_succeed():
    with EmbeddedKafka({"t": 1}) as near:
        near.produce("t", ["a"])
        async with coordinator_of(near.bootstrap_servers, "t", **NEVER) as one:
            await take(one, 1)
            near.fail(OffsetCommitRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=3)
            await one.commit_offsets_sync({TopicPartition("t", 0): OffsetAndMetadata(1)})
            assert len(near.requests(OffsetCommitRequest)) == 4


async def test_asynchronous_commits(bootstrap, name, fill):
    await fill(1, 3)
    tp = TopicPartition(name, 0)
    calls = []
    default = {"default_offset_commit_callback": lambda *call: calls.append(("default", *call))}
    async with coordinator_of(bootstrap, name, **NEVER, **default) as one:
        await take(one, 1)
        good, bad = {tp: OffsetAndMetadata(1)}, {TopicPartition("other", 0): OffsetAndMetadata(1)}
        future = one.commit_offsets_async(good, lambda *call: calls.append(("mine", *call)))
        failed = one.commit_offsets_async(bad)
        assert not future.is_done
        with anyio.fail_after(20):
            assert await future is True
            with pytest.raises(CommitFailedError):
                await failed
        await until(lambda: len(calls) == 2)
        assert calls == [("mine", good, True), ("default", bad, failed.exception)]


async def test_asynchronous_commits_keep_their_order():
    with EmbeddedKafka({"t": 1}) as near:
        near.produce("t", ["a"])
        async with coordinator_of(near.bootstrap_servers, "t", **NEVER) as one:
            await take(one, 1)
            near.fail(OffsetCommitRequest, Delay(0.2))
            futures = [
                one.commit_offsets_async({TopicPartition("t", 0): OffsetAndMetadata(n)})
                for n in range(1, 6)
            ]
            with anyio.fail_after(20):
                await futures[-1]
            assert all(future.succeeded() for future in futures)
            assert near.committed("t", "t") == {0: 5}


async def test_an_asynchronous_commit_belongs_to_the_assignment_of_its_call():
    """It took the partition by its name once the earlier commits were answered: after a rebalance
    that was the next assignment."""
    tp = TopicPartition("t", 0)
    with EmbeddedKafka({"t": 1}) as near:
        near.produce("t", [str(n) for n in range(300)])
        async with (
            coordinator_of(near.bootstrap_servers, "t", **NEVER) as one,
            Admin(bootstrap_servers=near.bootstrap_servers) as admin,
        ):
            await take(one, 300)
            near.fail(OffsetCommitRequest, Delay(2.0))
            first = one.commit_offsets_async({tp: OffsetAndMetadata(50)})
            waiting = one.commit_offsets_async({tp: OffsetAndMetadata(300)})
            await until(lambda: near.requests(OffsetCommitRequest))
            await admin.remove_member("t", member_id=one.member_id)
            with anyio.fail_after(20), pytest.raises(CommitFailedError, match="since it was requ"):
                await waiting
            assert first.is_done
            with pytest.raises(CommitFailedError, match="not assigned to this consumer: other/0"):
                await one.commit_offsets_async({TopicPartition("other", 0): OffsetAndMetadata(1)})
            assert near.committed("t", "t") == {0: 50}


async def test_an_error_in_a_commit_callback_is_logged(bootstrap, name, fill):
    await fill(1, 3)

    def callback(offsets, response):
        raise ZeroDivisionError

    async with coordinator_of(bootstrap, name, **NEVER) as one:
        await take(one, 1)
        offsets = {TopicPartition(name, 0): OffsetAndMetadata(1)}
        for _ in range(2):
            assert await one.commit_offsets_async(offsets, callback) is True


async def test_an_error_in_a_callback_of_the_future_does_not_end_the_commit(
    bootstrap, name, fill, monkeypatch
):
    """With `error_on_callbacks` it was raised in the task of the commit: the future was completed a
    second time, and the callback of the commit was not called."""
    await fill(1, 3)
    monkeypatch.setattr(Future, "error_on_callbacks", True)
    calls = []
    async with coordinator_of(bootstrap, name, **NEVER) as one:
        await take(one, 1)
        offsets = {TopicPartition(name, 0): OffsetAndMetadata(1)}
        future = one.commit_offsets_async(offsets, lambda *call: calls.append(call))
        future.add_callback(lambda value: 1 / 0)
        with anyio.fail_after(20):
            assert await future is True
        await until(lambda: calls)
    assert calls == [(offsets, True)]


@TRIO_IS_LONG
async def test_a_commit_cut_off_by_close_fails_its_future():
    with EmbeddedKafka({"t": 1}) as near:
        near.produce("t", ["a"])
        async with coordinator_of(near.bootstrap_servers, "t", **NEVER) as one:
            await take(one, 1)
            near.fail(OffsetCommitRequest, Delay(60.0))
            future = one.commit_offsets_async({TopicPartition("t", 0): OffsetAndMetadata(1)})
            await until(lambda: near.requests(OffsetCommitRequest))
        assert future.failed()
        assert not isinstance(future.exception, CommitFailedError)


@TRIO_IS_LONG
async def test_committed_offsets_are_refreshed_once_after_each_rebalance():
    with EmbeddedKafka({"t": 1}) as near:
        near.produce("t", ["a", "b"])
        async with coordinator_of(near.bootstrap_servers, "t", **NEVER) as one:
            await take(one, 2)
            await one.refresh_committed_offsets_if_needed()
            assert one._subscription.committed == {}
            await one.commit_offsets_sync({TopicPartition("t", 0): OffsetAndMetadata(1)})
            asked = len(near.requests(OffsetFetchRequest))
            await one.refresh_committed_offsets_if_needed()
            assert len(near.requests(OffsetFetchRequest)) == asked
            async with coordinator_of(near.bootstrap_servers, "t", **NEVER) as other:
                await other.ensure_active_group()
            await until(lambda: one._subscription.assigned_partitions() and not one.need_rejoin())
            await one.refresh_committed_offsets_if_needed()
            assert one._subscription.committed == {TopicPartition("t", 0): OffsetAndMetadata(1)}


@TRIO_IS_LONG
async def test_a_failed_refresh_of_the_committed_offsets_is_repeated():
    tp = TopicPartition("t", 0)
    with EmbeddedKafka({"t": 1}) as near:
        near.produce("t", ["a"])
        async with coordinator_of(near.bootstrap_servers, "t", **NEVER) as one:
            await take(one, 1)
            await one.commit_offsets_sync({tp: OffsetAndMetadata(1)})
            near.fail(OffsetFetchRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED)
            with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION"):
                await one.refresh_committed_offsets_if_needed()
            await one.refresh_committed_offsets_if_needed()
            assert one._subscription.committed == {tp: OffsetAndMetadata(1)}


# ---------------------------------------------------------------- metrics and configuration


async def test_metrics(bootstrap, name, fill):
    await fill(2, 3)
    metrics = Metrics()
    async with coordinator_of(bootstrap, name, metrics=metrics, **NEVER) as one:
        quiet = {n.name: m.value() for n, m in metrics.metrics.items()}
        assert (quiet["assigned-partitions"], quiet["join-rate"]) == (0.0, 0.0)
        await take(one, 3)
        await one.commit_offsets_sync({TopicPartition(name, 0): OffsetAndMetadata(1)})
        await until(lambda: one.heartbeat.metrics().heartbeat.rate > 0)
        found = {n.name: m.value() for n, m in metrics.metrics.items()}
    assert {n.group for n in metrics.metrics} == {"consumer-coordinator-metrics"}
    assert found["assigned-partitions"] == 2.0
    for rate in ("heartbeat-rate", "join-rate", "sync-rate", "commit-rate"):
        assert found[rate] > 0
    for average, maximum in (
        ("join-time-avg", "join-time-max"),
        ("sync-time-avg", "sync-time-max"),
        ("commit-latency-avg", "commit-latency-max"),
    ):
        assert 0 <= found[average] <= found[maximum] < 20_000  # uvloop's clock has milliseconds
    assert 0 <= found["heartbeat-response-time-max"] < 20_000
    assert 0 <= found["last-heartbeat-seconds-ago"] < 20


def test_the_defaults_are_those_of_the_original():
    defaults = dict(ConsumerCoordinator.DEFAULT_CONFIG)
    assert defaults.pop("default_offset_commit_callback")({}, None) is True
    assert defaults == {
        "assignors": (range_assignor, roundrobin_assignor),
        "metric_group_prefix": "consumer",
        "exclude_internal_topics": True,
        "session_timeout_ms": 30000,
        "auto_commit_interval_ms": 5000,
        "retry_backoff_ms": 100,
        "enable_auto_commit": True,
        "heartbeat_interval_ms": 3000,
        "group_id": "kafka-python-default-group",
        "api_version": (0, 9),
    }
    one = ConsumerCoordinator(KafkaClient(), SubscriptionState(), Metrics())
    options = one.consumer._options
    assert (options.session_timeout, options.rebalance_timeout) == (30.0, 30.0)
    assert (options.heartbeat_interval, options.retry_backoff) == (3.0, 0.1)
    assert (options.enable_auto_commit, one._auto_commit_task._interval) == (True, 5.0)


def test_without_a_group_auto_commit_is_off():
    one = ConsumerCoordinator(KafkaClient(), SubscriptionState(), Metrics(), group_id=None)
    assert one._auto_commit_task is None

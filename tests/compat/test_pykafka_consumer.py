"""pykafka's managed balanced consumer: its options, its offsets, its callback."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import anyio
import anyio.lowlevel
import pytest
from brokers import TRIO_IS_LONG, numbered, until

from kafkagroup import (
    Admin,
    BrokerError,
    Consumer,
    GroupMember,
    GroupProtocol,
    TopicPartition,
)
from kafkagroup.compat.pykafka import (
    BalancedConsumer,
    Cluster,
    GroupMembershipProtocol,
    ManagedBalancedConsumer,
    Message,
    OffsetType,
    RangeProtocol,
    RoundRobinProtocol,
    decide_partitions_range,
)
from kafkagroup.compat.pykafka.membership import metadata_of
from kafkagroup.errors import (
    ClosedError,
    ConfigurationError,
    ErrorCode,
    JoinFailedError,
    NotStartedError,
)
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.wire import encode_assignment
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest

pytestmark = pytest.mark.anyio

FAST = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6_000}


class Topic:
    """The used part of pykafka's topic."""

    def __init__(self, name):
        self.name = name.encode()


def consumer_of(bootstrap, name, **options):
    return ManagedBalancedConsumer(Topic(name), bootstrap, name.encode(), **FAST, **options)


async def take(consumer, count):
    with anyio.fail_after(20):
        return [await consumer.consume() for _ in range(count)]


async def committed(bootstrap, name):
    async with Consumer(bootstrap_servers=bootstrap, group_id=name) as consumer:
        found = await consumer.committed([TopicPartition(name, p) for p in range(2)])
    return {tp.partition: at.offset for tp, at in found.items() if at is not None}


# ---------------------------------------------------------------- messages


async def test_messages_have_pykafkas_attributes(bootstrap, name, fill):
    await fill(1, {0: [NewRecord(b"k", b"v", 1234)]})
    async with consumer_of(bootstrap, name) as consumer:
        assert await take(consumer, 1) == [Message(b"v", b"k", 0, 0, 1234)]
        assert consumer.topic == name
        assert consumer.partitions == {0: TopicPartition(name, 0)}


async def test_the_members_of_a_group_share_the_partitions(bootstrap, name, fill):
    await fill(2, 5)
    one, other = consumer_of(bootstrap, name), consumer_of(bootstrap, name)
    seen = []

    async def read(consumer):
        async for message in consumer:
            seen.append((message.partition_id, message.offset))
            await anyio.lowlevel.checkpoint()

    async with one, other, anyio.create_task_group() as tasks:
        for consumer in (one, other):
            tasks.start_soon(read, consumer)
        await until(lambda: len(one.partitions) == len(other.partitions) == 1)
        await until(lambda: {*seen} == {(p, n) for p in range(2) for n in range(5)})
        await one.stop()
        await until(lambda: len(other.partitions) == 2)
        await other.stop()


@pytest.mark.parametrize("block", [True, False])
async def test_consume_returns_none_after_the_timeout(bootstrap, name, fill, block):
    await fill(1)
    timeout = 100 if block else -1
    async with consumer_of(bootstrap, name, consumer_timeout_ms=timeout) as consumer:
        with anyio.fail_after(10):
            assert await consumer.consume(block=block) is None


@TRIO_IS_LONG
async def test_iteration_ends_after_the_timeout_without_a_message(bootstrap, name, fill):
    await fill(1, 3)
    async with consumer_of(bootstrap, name, consumer_timeout_ms=3_000) as consumer:
        with anyio.fail_after(20):
            assert [message.offset async for message in consumer] == [0, 1, 2]


async def test_fetched_messages_are_returned_without_blocking(bootstrap, name, fill):
    await fill(1, 3)
    async with consumer_of(bootstrap, name) as consumer:
        (first,) = await take(consumer, 1)
        await anyio.sleep(0.05)
        second = await consumer.consume(block=False)
        assert (first.offset, second.offset) == (0, 1)


# ---------------------------------------------------------------- starting


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_outside_a_with_block_it_starts_on_first_use_and_can_be_stopped(
    bootstrap, name, fill
):
    await fill(1, 3)
    consumer = consumer_of(bootstrap, name)
    assert len(await take(consumer, 2)) == 2
    await consumer.stop()
    with pytest.raises(ClosedError):
        await consumer.consume()
    async with Admin(bootstrap_servers=bootstrap) as admin:
        assert (await admin.describe_group(name)).members == ()


async def test_without_auto_start_it_must_be_started(bootstrap, name, fill):
    await fill(1, 3)
    async with consumer_of(bootstrap, name, auto_start=False) as consumer:
        with pytest.raises(NotStartedError, match="auto_start"):
            await consumer.consume()
        await consumer.start()
        await consumer.start()
        assert [m.offset for m in await take(consumer, 2)] == [0, 1]


async def test_a_failed_start_raises_the_cause_and_leaves_nothing_open():
    with pytest.raises(Exception, match="no broker answered"):
        async with ManagedBalancedConsumer("t", "127.0.0.1:1", b"g"):
            pass


async def test_it_starts_with_its_first_assignment(bootstrap, name, fill):
    """The start once returned before it: no partitions, no offsets, and a reset did nothing, or
    was an error of a partition that is not assigned."""
    await fill(2, 8)
    async with consumer_of(bootstrap, name) as consumer:
        assert [*consumer.partitions] == [0, 1]
        assert consumer.held_offsets == {0: -2, 1: -2}
        await consumer.reset_offsets([(0, 4)])
        assert consumer.held_offsets == {0: 4, 1: -2}
        await consumer.reset_offsets([(consumer.partitions[1], OffsetType.LATEST)])
        assert await committed(bootstrap, name) == {0: 5, 1: 8}
        assert [m.offset for m in await take(consumer, 3)] == [5, 6, 7]
    assert (consumer.partitions, consumer.held_offsets) == ({}, {0: 7, 1: 7})
    async with consumer_of(bootstrap, name, auto_start=False) as consumer:
        assert (consumer.partitions, consumer.held_offsets) == ({}, {})
        await consumer.start()
        assert consumer.held_offsets == {0: 4, 1: 7}
        await consumer.reset_offsets()
        assert await committed(bootstrap, name) == {0: 0, 1: 0}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_first_use_waits_for_the_assignment_too(near):
    """A cancelled wait leaves the consumer joining: the next call continues it."""
    near.fail(JoinGroupRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=2)
    consumer = consumer_of(near.bootstrap_servers, "t", rebalance_backoff_ms=200)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.reset_offsets, [(0, OffsetType.LATEST)])
        await until(lambda: near.requests(JoinGroupRequest))
        tasks.cancel_scope.cancel()
    assert consumer.partitions == {}
    await consumer.reset_offsets([(0, OffsetType.LATEST)])
    assert near.committed("t", "t") == {0: 0}
    await consumer.stop()


async def test_a_start_without_an_assignment_fails_in_time(near):
    """Its consumer is stopped, as in pykafka, which only logs why."""
    near.fail(JoinGroupRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)
    options = {"rebalance_max_retries": 1_000, "start_timeout_ms": 300, "auto_start": False}
    async with consumer_of(near.bootstrap_servers, "t", **options) as consumer:
        with pytest.raises(JoinFailedError, match=r"'t'.* nothing within start_timeout_ms=300"):
            await consumer.start()
        for call in (consumer.start, consumer.consume):
            with pytest.raises(ClosedError):
                await call()


async def test_the_callback_of_the_first_assignment_may_use_the_consumer(bootstrap, name, fill):
    await fill(1, 3)
    seen = []

    async def callback(consumer, before, after):
        await consumer.start()
        await consumer.commit_offsets([(0, 1)])
        seen.append(consumer.partitions)

    async with consumer_of(bootstrap, name, post_rebalance_callback=callback):
        assert seen == [{0: TopicPartition(name, 0)}]
        assert await committed(bootstrap, name) == {0: 1}


async def test_the_users_exception_is_raised_unwrapped(bootstrap, name, fill):
    await fill(1)
    with pytest.raises(ZeroDivisionError):
        async with consumer_of(bootstrap, name):
            _ = 1 / 0


# ---------------------------------------------------------------- offsets


async def test_nothing_is_committed_by_default(bootstrap, name, fill):
    await fill(1, 3)
    async with consumer_of(bootstrap, name) as consumer:
        await take(consumer, 3)
    assert await committed(bootstrap, name) == {}


async def test_a_rebalance_commits_consumed_messages(bootstrap, name, fill):
    """By default, as in pykafka: without it, a second member made the first deliver everything
    again, 400 deliveries of 200 messages."""
    await fill(2, 100)
    seen = []

    async def read(consumer):
        async for message in consumer:
            seen.append((message.partition_id, message.offset))
            await anyio.lowlevel.checkpoint()

    one, other = consumer_of(bootstrap, name), consumer_of(bootstrap, name)
    async with one, anyio.create_task_group() as tasks:
        tasks.start_soon(read, one)
        await until(lambda: len(seen) == 200)
        async with other:
            tasks.start_soon(read, other)
            await until(lambda: len(one.partitions) == len(other.partitions) == 1)
            assert await committed(bootstrap, name) == {0: 100, 1: 100}
            await anyio.sleep(0.3)
            assert sorted(seen) == [(p, n) for p in range(2) for n in range(100)]
            await other.stop()
        await one.stop()


async def test_auto_commit(bootstrap, name, fill):
    """Every interval commits the messages after which the application requested more, and so does
    the stop."""
    await fill(1, 5)
    options = {"auto_commit_enable": True, "auto_commit_interval_ms": 50}
    async with consumer_of(bootstrap, name, **options) as consumer:
        await take(consumer, 3)
        with anyio.fail_after(10):
            while await committed(bootstrap, name) != {0: 2}:
                await anyio.sleep(0.05)
        await take(consumer, 1)
    assert await committed(bootstrap, name) == {0: 3}


async def test_commits_consumed_or_given_offsets(bootstrap, name, fill):
    await fill(2, 3)
    async with consumer_of(bootstrap, name) as consumer:
        await take(consumer, 6)
        await consumer.commit_offsets()
        assert await committed(bootstrap, name) == {0: 3, 1: 3}
        await consumer.commit_offsets([(0, 1), (consumer.partitions[1], 2)])
        assert await committed(bootstrap, name) == {0: 1, 1: 2}


async def test_held_offsets_are_those_of_the_last_messages(bootstrap, name, fill):
    await fill(2, {0: numbered(0, 3)})
    async with consumer_of(bootstrap, name) as consumer:
        await take(consumer, 2)
        assert consumer.held_offsets == {0: 1, 1: -2}
        await consumer.commit_offsets([(0, 2), (1, 0)])
    async with consumer_of(bootstrap, name) as consumer:
        assert consumer.held_offsets == {0: 1, 1: -2}


async def test_latest_holds_for_a_topic_created_later(bootstrap, name, fill, produce):
    """As in pykafka. The main API would read the topic from its beginning."""
    async with consumer_of(bootstrap, name, auto_offset_reset=OffsetType.LATEST) as consumer:
        await consumer.start()
        await anyio.sleep(1)
        await fill(1, 3)
        await until(lambda: consumer.partitions)
        await until(lambda: consumer.held_offsets == {0: 2})
        await produce(0, numbered(0, 4, 3))
        assert [m.offset for m in await take(consumer, 1)] == [3]


async def test_held_offsets_follow_a_reset(bootstrap, name, fill):
    await fill(2, {0: numbered(0, 5)})
    async with consumer_of(bootstrap, name) as consumer:
        await take(consumer, 2)
        for places, held in (
            ([(0, 3)], {0: 3, 1: -2}),
            ([(0, OffsetType.LATEST), (1, OffsetType.LATEST)], {0: 4, 1: -2}),
            (None, {0: -2, 1: -2}),
        ):
            await consumer.reset_offsets(places)
            assert consumer.held_offsets == held


@pytest.mark.parametrize(
    ("reset", "first"), [(OffsetType.EARLIEST, 0), (OffsetType.LATEST, 3), (-2, 0), (-1, 3)]
)
async def test_the_starting_position_without_a_commit(bootstrap, name, fill, produce, reset, first):
    await fill(1, 3)
    async with consumer_of(bootstrap, name, auto_offset_reset=reset) as consumer:
        await consumer.reset_offsets()
        await produce(0, numbered(0, 4, 3))
        assert [m.offset for m in await take(consumer, 1)] == [first]


@pytest.mark.parametrize(("reset", "first"), [(-2, 0), (-1, 3)])
async def test_offsets_are_reset_on_start(bootstrap, name, fill, produce, reset, first):
    """Once, in place of the commit, and committed at once."""
    await fill(1, 3)
    async with consumer_of(bootstrap, name) as consumer:
        await take(consumer, 2)
        await consumer.commit_offsets()
    rebalances = []
    options = {
        "reset_offset_on_start": True,
        "auto_offset_reset": reset,
        "post_rebalance_callback": lambda *call: rebalances.append(call),
    }
    async with consumer_of(bootstrap, name, **options) as consumer:
        await until(lambda: consumer.held_offsets)
        assert await committed(bootstrap, name) == {0: first}
        await produce(0, numbered(0, 6, 3))
        assert [m.offset for m in await take(consumer, 2)] == [first, first + 1]
        await consumer.commit_offsets()
        async with consumer_of(bootstrap, name):
            await until(lambda: len(rebalances) > 1)
        await until(lambda: len(rebalances) > 2 and consumer.partitions)
        # After a rebalance it continues at the group's committed offsets.
        assert [m.offset for m in await take(consumer, 1)] == [first + 2]


async def test_offsets_are_reset_to_positions_in_the_log(bootstrap, name, fill):
    stamps = [1_700_000_000_000 + 1_000 * n for n in range(5)]
    await fill(2, {p: [NewRecord(None, b"v", at) for at in stamps] for p in (0, 1)})
    second = datetime.fromtimestamp(1_700_000_000, UTC) + timedelta(seconds=3)
    async with consumer_of(bootstrap, name) as consumer:
        await take(consumer, 10)
        for places, starts in (
            ([(0, 1), (1, OffsetType.EARLIEST)], {0: 2, 1: 0}),
            ([(0, second), (1, second.replace(tzinfo=None))], {0: 3, 1: 3}),
            ([(0, second + timedelta(days=1)), (1, OffsetType.LATEST)], {0: 5, 1: 5}),
        ):
            await consumer.reset_offsets(places)
            assert await committed(bootstrap, name) == starts
        await consumer.reset_offsets([(0, 2)])
        assert [(m.partition_id, m.offset) for m in await take(consumer, 2)] == [(0, 3), (0, 4)]


# ---------------------------------------------------------------- the callback


@pytest.mark.parametrize("awaits", [False, True])
async def test_the_rebalance_callback_gets_old_and_new_offsets_and_may_change_them(
    bootstrap, name, fill, awaits
):
    await fill(2, 5)
    calls = []

    def callback(consumer, before, after):
        calls.append((consumer, before, after))
        return {0: 2} if len(calls) == 1 else None

    async def callback_later(*arguments):
        await anyio.lowlevel.checkpoint()
        return callback(*arguments)

    used = callback_later if awaits else callback
    async with consumer_of(bootstrap, name, post_rebalance_callback=used) as consumer:
        await until(lambda: calls)
        assert consumer.held_offsets == {0: 2, 1: -2}
        first = await take(consumer, 7)
        assert {(m.partition_id, m.offset) for m in first} == {
            *((0, n) for n in (3, 4)),
            *((1, n) for n in range(5)),
        }
        await consumer.commit_offsets()
        async with consumer_of(bootstrap, name):
            await until(lambda: len(consumer.partitions) == 1)
        await until(lambda: len(consumer.partitions) == 2)
        await until(lambda: len(calls) == 3)
    assert calls[0] == (consumer, {}, {0: -2, 1: -2})
    (mine,) = calls[1][2]
    assert calls[1] == (consumer, {0: 4, 1: 4}, {mine: 4})
    assert calls[2] == (consumer, {mine: 4}, {0: 4, 1: 4})


async def test_the_callback_receives_the_actual_starting_offsets(bootstrap, name, fill, produce):
    """It was given -2 for the end of the log; returning that replayed the topic."""
    await fill(1, 100)
    calls = []

    def callback(consumer, before, after):
        calls.append((before, after))
        return after

    options = {"auto_offset_reset": OffsetType.LATEST, "post_rebalance_callback": callback}
    async with consumer_of(bootstrap, name, **options) as consumer:
        await until(lambda: calls)
        assert calls == [({}, {0: 99})]
        assert consumer.held_offsets == {0: 99}
        await produce(0, numbered(0, 101, 100))
        assert [m.offset for m in await take(consumer, 1)] == [100]


async def test_the_rebalance_callback_may_return_its_argument(bootstrap, name, fill):
    await fill(1, 3)
    options = {"post_rebalance_callback": lambda consumer, before, after: after}
    for first in (0, 2):
        async with consumer_of(bootstrap, name, **options) as consumer:
            assert [m.offset for m in await take(consumer, 1)] == [first]
            await consumer.commit_offsets([(0, 2)])


async def test_an_error_of_the_callback_is_raised_by_each_call(bootstrap, name, fill):
    """As in pykafka. It was raised once, and then messages came from where the callback, which
    restores offsets, had not said."""
    await fill(1, 3)

    def callback(*_):
        raise ZeroDivisionError

    async with consumer_of(bootstrap, name, post_rebalance_callback=callback) as consumer:
        for call in (consumer.consume, consumer.commit_offsets, consumer.reset_offsets) * 2:
            with pytest.raises(ZeroDivisionError):
                await call()


# ---------------------------------------------------------------- who gets what


async def test_round_robin_and_a_custom_protocol(bootstrap, name, fill):
    """Called for each member, on the leader only; not for all topics of the group at once."""
    await fill(4)
    asked = []

    def decide(participants, partitions, consumer_id):
        asked.append((participants, consumer_id))
        assert isinstance(partitions, Mapping)
        return decide_partitions_range(participants, partitions, consumer_id)

    mine = GroupMembershipProtocol(b"consumer", b"mine", b"", decide)
    for group, protocol in ((name, RoundRobinProtocol), (f"{name}-2", mine)):
        made = [
            ManagedBalancedConsumer(name, bootstrap, group, **FAST, membership_protocol=protocol)
            for _ in range(2)
        ]
        async with made[0], made[1]:
            await until(lambda m=made: len(m[0].partitions) == len(m[1].partitions) == 2)
            shares = sorted(sorted(one.partitions) for one in made)
            assert shares == ([[0, 2], [1, 3]] if group == name else [[0, 1], [2, 3]])
    assert all(isinstance(p, bytes) for participants, me in asked for p in (*participants, me))
    assert (RangeProtocol.metadata, RoundRobinProtocol.metadata) == (b"", b"")


async def test_two_topics_in_one_group(bootstrap, name, fill):
    """pykafka keeps the topic in a global, and its leader assigns its own topic to every member."""
    await fill(2, 2)
    topic = f"{name}-2"
    await fill(2, {0: [NewRecord(None, b"other")]}, topic)
    one = ManagedBalancedConsumer(name, bootstrap, name, **FAST)
    other = ManagedBalancedConsumer(topic, bootstrap, name, **FAST)
    async with one, other:
        await until(lambda: len(one.partitions) == len(other.partitions) == 2)
        assert {m.value for m in await take(one, 4)} == {b"0/0", b"0/1", b"1/0", b"1/1"}
        assert [m.value for m in await take(other, 1)] == [b"other"]
        assert {tp.topic for tp in other.partitions.values()} == {topic}


FROM_PYKAFKA = bytes.fromhex("0001 00000001 0001 74 00000002 00000000 00000001")
"""What a leader of pykafka 2.8.0 sends: `MemberAssignment([(b"t", [0, 1])]).get_bytes()`."""


def written_by_pykafka(*partitions):
    """The same for other topics: without the field of user data, which is four bytes of null."""
    return encode_assignment(partitions, version=1)[:-4]


async def test_a_member_accepts_assignments_of_a_pykafka_leader(bootstrap, name, fill):
    """pykafka's assignments end without user data; a group that migrated from pykafka once
    stalled."""
    assert written_by_pykafka(("t", 0), ("t", 1)) == FROM_PYKAFKA
    await fill(2, 1)
    protocol, metadata = RangeProtocol.protocol_name.decode(), metadata_of(RangeProtocol, name)
    both = written_by_pykafka((name, 0), (name, 1))

    def all_to_the_newcomer(members):
        return {member: both for member in members if member != leader.member_id}

    leader = GroupMember(
        name,
        GroupProtocol("consumer", protocol, metadata, all_to_the_newcomer),
        bootstrap_servers=bootstrap,
        heartbeat_interval_ms=50,
    )
    async with leader, anyio.create_task_group() as tasks:

        async def lead():
            async for _ in leader:
                pass

        tasks.start_soon(lead)
        await until(lambda: leader.generation)
        async with consumer_of(bootstrap, name) as consumer:
            assert {m.value for m in await take(consumer, 2)} == {b"0/0", b"1/0"}
            assert [*consumer.partitions] == [0, 1]
            assert leader.generation.is_leader
        tasks.cancel_scope.cancel()


def test_a_managed_consumer_is_an_instance_of_balanced_consumer():
    """Applications ask `isinstance(consumer, BalancedConsumer)`, which holds in pykafka."""
    consumer = ManagedBalancedConsumer("t", "localhost", b"g")
    assert isinstance(consumer, BalancedConsumer)


def test_a_protocol_of_another_type_is_an_error():
    workers = GroupMembershipProtocol(b"workers", b"x", b"", decide_partitions_range)
    with pytest.raises(ConfigurationError, match="GroupMember"):
        ManagedBalancedConsumer("t", "x", b"g", membership_protocol=workers)


# ---------------------------------------------------------------- options that need faults


@pytest.fixture
def near():
    with EmbeddedKafka({"t": 1}) as running:
        yield running


async def test_the_number_and_backoff_of_rebalance_retries_are_configurable(near):
    """pykafka waits 0, 1, 2 times the backoff; here it doubles, up to a second or itself."""
    near.fail(JoinGroupRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)
    options = {"rebalance_max_retries": 2, "rebalance_backoff_ms": 300}
    start = anyio.current_time()
    with pytest.raises(JoinFailedError, match=r"failed 3 times in a row: COORDINATOR_LOAD"):
        async with consumer_of(near.bootstrap_servers, "t", **options):
            pass
    assert anyio.current_time() - start > 0.8 * (0.3 + 0.6) - 0.1
    assert len(near.requests(JoinGroupRequest)) == 3


async def test_the_number_and_backoff_of_commit_retries_are_as_configured(near):
    near.produce("t", ["a"])
    options = {"offsets_commit_max_retries": 2, "offsets_channel_backoff_ms": 300}
    async with consumer_of(near.bootstrap_servers, "t", **options) as consumer:
        await take(consumer, 1)
        near.fail(OffsetCommitRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        start = anyio.current_time()
        with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await consumer.commit_offsets()
        assert anyio.current_time() - start > 0.8 * (0.3 + 0.6)
    assert len(near.requests(OffsetCommitRequest)) == 3


@TRIO_IS_LONG
async def test_a_member_unknown_to_the_coordinator_rejoins(near):
    """pykafka's heartbeat thread ends, and the consumer hangs."""
    near.produce("t", ["a", "b"])
    async with consumer_of(near.bootstrap_servers, "t") as consumer:
        await take(consumer, 1)
        joins = len(near.requests(JoinGroupRequest))
        near.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
        await until(lambda: len(near.requests(JoinGroupRequest)) > joins)
        assert [m.offset for m in await take(consumer, 2)] == [0, 1]


async def test_heartbeats_are_sent_while_the_application_is_busy(near):
    async with consumer_of(near.bootstrap_servers, "t") as consumer:
        await until(lambda: consumer.partitions)
        before = len(near.requests(HeartbeatRequest))
        await until(lambda: len(near.requests(HeartbeatRequest)) > before + 5)


async def test_heartbeats_are_sent_while_the_application_blocks_its_loop():
    settings = BrokerSettings(group_min_session_timeout=0.1)
    with EmbeddedKafka({"t": 1}, settings=settings) as near:
        options = {"heartbeat_interval_ms": 50, "session_timeout_ms": 1_000}
        consumer = ManagedBalancedConsumer("t", near.bootstrap_servers, "g", **options)
        async with consumer:
            await until(lambda: consumer.partitions)
            joins = len(near.requests(JoinGroupRequest))
            time.sleep(2.0)  # noqa: ASYNC251 - it is the blocking that is tested
            assert near.group_state("g") == "Stable"
            await anyio.sleep(0.2)
            assert len(near.requests(JoinGroupRequest)) == joins


async def test_a_full_queue_stops_fetching(near):
    for n in range(10):
        near.produce("t", [str(n)])
    one = len(encode_batch([NewRecord(None, b"0", 0)]))
    options = {"queued_max_messages": 1, "fetch_message_max_bytes": one + one // 2}
    async with consumer_of(near.bootstrap_servers, "t", **options) as consumer:
        await until(lambda: near.requests(FetchRequest))
        await anyio.sleep(0.3)
        assert len(near.requests(FetchRequest)) == 1
        assert [m.offset for m in await take(consumer, 10)] == [*range(10)]


@pytest.mark.parametrize("fetchers", [1, 3])
async def test_the_number_of_fetchers_bounds_concurrent_requests(fetchers, monkeypatch):
    opened = []
    connect = BrokerClient._connection

    async def connection(self, connection_id):
        opened.append(connection_id)
        return await connect(self, connection_id)

    monkeypatch.setattr(BrokerClient, "_connection", connection)
    with EmbeddedKafka({"t": 6}) as near:
        near.produce("t", map(str, range(12)))
        options = {"num_consumer_fetchers": fetchers}
        async with consumer_of(near.bootstrap_servers, "t", **options) as consumer:
            await take(consumer, 12)
    fetching = {one for one in opened if one.startswith("fetch")}
    assert fetching == {"fetch", "fetch-1", "fetch-2"} if fetchers == 3 else {"fetch"}


async def test_fetch_options_reach_the_request(near):
    options = {"fetch_min_bytes": 100, "fetch_wait_max_ms": 700}
    async with consumer_of(near.bootstrap_servers, "t", **options) as consumer:
        await until(lambda: consumer.partitions)
        await anyio.sleep(0.2)
        near.produce("t", ["a"])
        start = anyio.current_time()
        await take(consumer, 1)
        assert anyio.current_time() - start > 0.3


@pytest.mark.parametrize("compacted", [True, False])
async def test_gaps_between_offsets_are_skipped(near, compacted):
    """pykafka's consumer stalls at the first gap unless `compacted_topic` is set."""
    for offset in (0, 5, 17):
        near.append("t", 0, encode_batch([NewRecord(None, b"v")], base_offset=offset))
    async with consumer_of(near.bootstrap_servers, "t", compacted_topic=compacted) as consumer:
        offsets = [m.offset for m in await take(consumer, 3)]
        assert offsets == sorted(set(offsets))


async def test_the_addresses_are_taken_from_a_cluster_object(near):
    near.produce("t", ["a"])
    cluster = Cluster(near.bootstrap_servers)
    async with ManagedBalancedConsumer("t", cluster, "g") as consumer:
        assert [m.value for m in await take(consumer, 1)] == [b"a"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"use_rdkafka": True}, "use_rdkafka=True is not available"),
        ({"auto_offset_reset": 5}, "auto_offset_reset=5; expected OffsetType"),
        ({"fetch_wait_max_ms": -1}, "fetch_wait_max_ms=-1"),
        ({"queued_max_messages": 0}, "queued_max_messages=0"),
        ({"fetch_message_max_bytes": 0}, "fetch_message_max_bytes=0"),
    ],
)
def test_invalid_options_are_an_error(option, words):
    with pytest.raises(ConfigurationError, match=words):
        ManagedBalancedConsumer("t", "localhost", b"g", **option)

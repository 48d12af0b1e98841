"""kiel's grouped consumer: any topic on request, and commits when returned values are processed."""

import json
import logging

import anyio
import anyio.to_thread
import pytest
from brokers import TRIO_IS_LONG, until
from gate import Gate

from kafkagroup import Consumer, TopicPartition
from kafkagroup.assign import naive_allocator as the_main_apis
from kafkagroup.compat.kiel import GroupedConsumer, NoOffsetsError, naive_allocator
from kafkagroup.errors import (
    BrokerError,
    CommitFailedError,
    ConfigurationError,
    ErrorCode,
    JoinFailedError,
)
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.types import OffsetAndMetadata
from kafkagroup.wire.batch_writing import NewRecord
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import JoinGroupRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

pytestmark = pytest.mark.anyio


def values(*given):
    return [NewRecord(None, json.dumps(value).encode()) for value in given]


def grouped(bootstrap, name, zk_hosts=(), **options):
    # Of one topic: on a broker that all tests share, there are too many.
    options = {"max_wait_time": 200, "topics": [name], **options}
    return GroupedConsumer(bootstrap.split(","), name, zk_hosts, **options)


async def consumed(consumer, topic, count):
    found = []
    with anyio.fail_after(20):
        while len(found) < count:
            found += await consumer.consume(topic)
    return found


async def committed(bootstrap, name):
    async with Consumer(bootstrap_servers=bootstrap, group_id=name) as consumer:
        found = await consumer.committed([TopicPartition(name, p) for p in range(2)])
    return {tp.partition: at.offset for tp, at in found.items() if at is not None}


# ---------------------------------------------------------------- consuming


async def test_values_are_json_by_default(bootstrap, name, fill):
    await fill(1, {0: values({"a": 1}, [2])})
    async with grouped(bootstrap, name) as consumer:
        assert await consumed(consumer, name, 2) == [{"a": 1}, [2]]
    async with grouped(bootstrap, f"{name}-2", topics=[name], deserializer=len) as consumer:
        assert await consumed(consumer, name, 2) == [8, 3]


@pytest.mark.parametrize("option", ["max_wait_time", "min_bytes", "max_bytes", "autocommit"])
def test_errors_about_options_use_the_option_names_of_kiel(option):
    with pytest.raises(ConfigurationError, match=f"{option}=-1"):
        grouped("localhost:9092", "t", **{option: -1})


async def test_returned_values_are_committed_by_the_next_call(bootstrap, name, fill):
    """kiel commits before the caller has seen anything."""
    await fill(1, {0: values(1, 2, 3)})
    async with grouped(bootstrap, name) as consumer:
        await consumed(consumer, name, 3)
        # A call that nothing had come for yet may have been followed by a commit of the start.
        assert await committed(bootstrap, name) in ({}, {0: 0})
        assert await consumer.consume(name) == []
        assert await committed(bootstrap, name) == {0: 3}


async def test_values_without_a_following_call_are_delivered_again(bootstrap, name, fill):
    await fill(1, {0: values(1, 2, 3)})
    for _ in range(2):
        async with grouped(bootstrap, name) as consumer:
            assert await consumed(consumer, name, 3) == [1, 2, 3]


async def test_without_autocommit_the_application_commits(bootstrap, name, fill):
    await fill(1, {0: values(1, 2, 3)})
    async with grouped(bootstrap, name, autocommit=False) as consumer:
        await consumed(consumer, name, 3)
        await consumer.consume(name)
        assert await committed(bootstrap, name) == {}
        await consumer.commit_offsets()
        assert await committed(bootstrap, name) == {0: 3}


async def test_a_value_that_cannot_be_deserialized_is_skipped(bootstrap, name, fill, caplog):
    await fill(1, {0: [*values(1), NewRecord(None, b"{"), NewRecord(None, None), *values(2)]})
    async with grouped(bootstrap, name) as consumer:
        with caplog.at_level(logging.ERROR, "kafkagroup.compat.kiel"):
            assert await consumed(consumer, name, 2) == [1, 2]
        assert [record.getMessage() for record in caplog.records] == [
            f"skipped {name}/0 at offset {n}: its deserializer failed" for n in (1, 2)
        ]
        await consumer.consume(name)
        assert await committed(bootstrap, name) == {0: 4}


async def test_a_missing_topic_is_an_error_of_kiel(bootstrap, name, fill):
    await fill(1)
    async with grouped(bootstrap, name) as consumer:
        with anyio.fail_after(20):
            assert await consumer.consume(f"{name}-other") == []


async def test_each_call_is_for_one_topic():
    """A call may be for any existing topic, as in kiel, if none are named."""
    with EmbeddedKafka({"a": 1, "b": 2}) as near:
        for topic in ("a", "b"):
            near.append(topic, 0, encode(*[f"{topic}{n}" for n in range(3)]))
        async with grouped(near.bootstrap_servers, "g", topics=()) as consumer:
            await until(lambda: consumer.allocation == {"a": [0], "b": [0, 1]})
            assert await consumed(consumer, "a", 3) == ["a0", "a1", "a2"]
            assert await consumer.consume("a") == []
            assert await consumed(consumer, "b", 3) == ["b0", "b1", "b2"]
            near.append("a", 0, encode("a3"))
            near.append("b", 1, encode("b3"))
            assert await consumed(consumer, "b", 1) == ["b3"]
            assert await consumed(consumer, "a", 1) == ["a3"]
            await consumer.commit_offsets()
            assert near.committed("g", "a") == {0: 4}
            assert near.committed("g", "b")[0] == 3


def encode(*given):
    from kafkagroup.wire import encode_batch

    return encode_batch(values(*given))


async def test_the_start_argument_is_ignored(bootstrap, name, fill):
    await fill(1, {0: values(1, 2)})
    async with grouped(bootstrap, name, autocommit=False) as consumer:
        with anyio.fail_after(20):
            assert await consumer.consume(name, start=-1) in ([], [1, 2])
            await consumer.determine_offsets(name, start=-1)
    assert consumer.offsets == {name: {0: 0}}


async def test_max_wait_time_and_min_bytes_bound_a_call():
    with EmbeddedKafka({"t": 1}) as near:
        options = {"max_wait_time": 600, "min_bytes": 10_000}
        async with grouped(near.bootstrap_servers, "t", **options) as consumer:
            await until(lambda: consumer.allocation)
            start = anyio.current_time()
            assert await consumer.consume("t") == []
            assert 0.5 < anyio.current_time() - start < 5
            await until(lambda: near.requests(FetchRequest))
            assert consumer._consumer._options.fetch_min_bytes == 10_000


async def test_max_bytes_bounds_a_call(bootstrap, name, fill):
    await fill(2, {p: values(*["x" * 1_000] * 3) for p in (0, 1)})
    async with grouped(bootstrap, name, max_bytes=2_000) as consumer:
        with anyio.fail_after(20):
            assert len(await consumed(consumer, name, 6)) == 6
        assert consumer._consumer._options.fetch_max_bytes == 2_000


# ---------------------------------------------------------------- sharing


async def test_members_share_partitions_and_take_over(bootstrap, name, fill):
    await fill(3)
    async with grouped(bootstrap, name) as one:
        await until(lambda: one.allocation == {name: [0, 1, 2]})
        async with grouped(bootstrap, name) as other:
            await until(lambda: {len(m.allocation.get(name, [])) for m in (one, other)} == {1, 2})
            assert sorted(one.allocation[name] + other.allocation[name]) == [0, 1, 2]
        await until(lambda: one.allocation == {name: [0, 1, 2]})


async def test_members_share_partitions_and_take_over_through_zookeeper(
    bootstrap, name, fill, zookeeper, members_in
):
    await fill(3)
    hosts = zookeeper.hosts.split(",")
    async with grouped(bootstrap, name, hosts) as one:
        await until(lambda: one.allocation == {name: [0, 1, 2]})
        async with grouped(bootstrap, name, hosts) as other:
            await until(lambda: {len(m.allocation.get(name, [])) for m in (one, other)} == {1, 2})
            assert sorted(one.allocation[name] + other.allocation[name]) == [0, 1, 2]
            assert len(await members_in(f"/kiel/{name}")) == 2
        await until(lambda: one.allocation == {name: [0, 1, 2]})


async def test_waiting_for_zookeeper_does_not_block_the_loop(bootstrap, name, fill, zookeeper):
    """kiel blocks its event loop until ZooKeeper has responded."""
    await fill(1)
    with Gate(zookeeper.address(1)) as gate:
        gate.bar()
        consumer = grouped(bootstrap, name, [gate.address])

        async def open_later():
            with anyio.fail_after(5):
                for _ in range(50):
                    await anyio.sleep(0.01)
            assert consumer.allocation == {}
            gate.unbar()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(open_later)
            async with consumer:
                assert consumer.allocation == {name: [0]}


@pytest.mark.parametrize("bootstrap", ["embedded"], indirect=True)
async def test_connecting_without_zookeeper_fails_in_time(bootstrap, name, fill):
    """kiel waits forever; this once connected, and consumed nothing forever."""
    await fill(1)
    with pytest.raises(JoinFailedError, match="nothing within connect_timeout_ms=300"):
        async with grouped(bootstrap, name, ["127.0.0.1:1"], connect_timeout_ms=300):
            pass


async def test_it_refuses_to_start_beside_members_of_kiel(bootstrap, name, fill, zookeeper, keeper):
    """They keep offsets in ZooKeeper, claim nothing, and cannot know the owners."""
    await fill(1)
    theirs = f"/kiel/groups/{name}/members/host:1"
    keeper.create(theirs, b"", ephemeral=True, makepath=True)
    with pytest.raises(JoinFailedError, match=f"another library in ZooKeeper: {theirs}; .*Stop"):
        async with grouped(bootstrap, name, [zookeeper.hosts]):
            pass
    keeper.delete(theirs)
    async with grouped(bootstrap, name, [zookeeper.hosts]) as consumer:
        assert consumer.allocation == {name: [0]}


@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
async def test_internal_topics_are_excluded_unless_they_are_named(bootstrap, name, fill):
    """kiel also assigns the partitions of __consumer_offsets, which no application consumes."""
    await fill(1)
    asked = []

    def noting(members, partitions):
        asked.append(partitions)
        return naive_allocator(members, partitions)

    async with grouped(bootstrap, name, topics=(), partition_allocator=noting) as consumer:
        await until(lambda: consumer.allocation)
    assert f"{name}:0" in asked[0]
    assert not any(partition.startswith("__") for partition in asked[0])
    both = [name, "__consumer_offsets"]
    async with grouped(bootstrap, f"{name}-2", topics=both) as consumer:
        await until(lambda: consumer.allocation)
        assert consumer.allocation.keys() == {*both}


async def test_a_custom_allocator(bootstrap, name, fill):
    await fill(12)
    asked = []

    def to_the_last(members, partitions):
        asked.append((members, partitions))
        return {members[-1]: {name: [int(p.split(":")[1]) for p in partitions]}}

    options = {"partition_allocator": to_the_last}
    async with grouped(bootstrap, name, **options) as one:
        await until(lambda: one.allocation)
        async with grouped(bootstrap, name, **options) as other:
            await until(lambda: any(len(members) == 2 for members, _ in asked))
            await until(lambda: one.allocation or other.allocation)
            assert {name: [*range(12)]} in (one.allocation, other.allocation)
    # By the names that consumers know of themselves: allocators look hosts up in them.
    assert asked[0][0] == [one.name]
    assert sorted((one.name, other.name)) in [members for members, _ in asked]
    # As strings: "10" comes before "2".
    assert asked[0][1][:4] == [f"{name}:{n}" for n in (0, 1, 10, 11)]
    assert all(members == sorted(members) for members, _ in asked)


async def test_after_a_rebalance_consuming_continues_at_the_committed_offsets(
    bootstrap, name, fill
):
    await fill(1, {0: values(1, 2, 3)})
    sizes = []

    def noting(members, partitions):
        sizes.append(len(members))
        return naive_allocator(members, partitions)

    async with grouped(bootstrap, name, partition_allocator=noting) as one:
        await consumed(one, name, 3)
        await one.consume(name)
        async with grouped(bootstrap, name, partition_allocator=noting):
            await until(lambda: 2 in sizes)
        await until(lambda: sizes[-1] == 1 and one.allocation)
        with anyio.fail_after(20):
            assert await one.consume(name) == []
        await one.determine_offsets(name)
        assert one.offsets[name] == {0: 3}


async def test_what_was_processed_before_a_partition_is_released_is_committed(
    bootstrap, name, fill
):
    """The call that ends the processing commits partitions that are being revoked, too."""
    await fill(1, {0: values(1, 2, 3)})
    one, other = grouped(bootstrap, name), grouped(bootstrap, name)
    async with one, anyio.create_task_group() as tasks:
        await consumed(one, name, 3)
        joined = anyio.Event()

        async def join():
            async with other:
                joined.set()
                await anyio.sleep_forever()

        tasks.start_soon(join)
        await until(lambda: not one.allocation)  # while the three are processed
        with anyio.fail_after(20):
            while not joined.is_set():
                assert await one.consume(name) == []
            assert await committed(bootstrap, name) == {0: 3}
            assert await other.consume(name) == []
        tasks.cancel_scope.cancel()


def test_one_topic_may_be_a_string():
    """Its letters counted as topics."""
    consumer = GroupedConsumer(["localhost:9092"], "g", "", topics="orders")
    assert consumer._consumer._subscription == {"orders"}


def test_naive_allocator():
    assert naive_allocator is the_main_apis
    partitions = ["a:0", "a:1", "b:0", "b:1", "b:10"]
    assert naive_allocator(["m", "n"], partitions) == {
        "m": {"a": [0], "b": [0, 10]},
        "n": {"a": [1], "b": [1]},
    }


# ---------------------------------------------------------------- offsets


async def test_offsets_of_a_topic(bootstrap, name, fill):
    await fill(2, {0: values(1, 2)})
    async with grouped(bootstrap, name) as consumer:
        await consumed(consumer, name, 2)
        await consumer.commit_offsets("a note")
        await consumer.determine_offsets(name)
        assert consumer.offsets == {name: {0: 2, 1: 0}}
        found = await consumer._consumer.committed([TopicPartition(name, 0)])
        assert found[TopicPartition(name, 0)] == OffsetAndMetadata(2, "a note", 0)


async def test_offsets_move_with_the_messages_and_reading_begins_at_them(bootstrap, name, fill):
    """kiel's users rewind and skip by setting them; they were once neither updated nor used."""
    await fill(2, {p: values(*[10 * p + n for n in range(5)]) for p in (0, 1)})
    async with grouped(bootstrap, name, autocommit=False) as consumer:
        assert sorted(await consumed(consumer, name, 10)) == [*range(5), *range(10, 15)]
        assert consumer.offsets == {name: {0: 5, 1: 5}}
        consumer.offsets[name][0] = 3
        assert await consumed(consumer, name, 2) == [3, 4]
        assert consumer.offsets == {name: {0: 5, 1: 5}}
        consumer.offsets[name][1] = 4
        await consumer.commit_offsets()
        assert await committed(bootstrap, name) == {0: 5, 1: 4}
        consumer.offsets[name][1] = 1
        await consumer.determine_offsets(name)
        assert consumer.offsets == {name: {0: 5, 1: 4}}
        assert await consumed(consumer, name, 1) == [14]


async def test_determining_offsets_moves_the_position_back_to_the_commit(bootstrap, name, fill):
    """What was not committed is delivered again."""
    await fill(1, {0: values(*range(5))})
    async with grouped(bootstrap, name, autocommit=False) as consumer:
        await consumed(consumer, name, 5)
        await consumer.determine_offsets(name)
        assert consumer.offsets == {name: {0: 0}}
        assert await consumed(consumer, name, 5) == [*range(5)]
        await consumer.commit_offsets()
        await consumer.determine_offsets(name)
        assert await consumer.consume(name) == []


async def test_an_offset_out_of_range_continues_at_the_start_of_the_log(bootstrap, name, fill):
    await fill(1, {0: values(1, 2)})
    async with grouped(bootstrap, name, autocommit=False) as consumer:
        await consumed(consumer, name, 2)
        consumer.offsets[name][0] = 100
        assert await consumed(consumer, name, 2) == [1, 2]
        assert consumer.offsets == {name: {0: 2}}


@pytest.mark.parametrize("autocommit", [True, False])
async def test_only_consumed_topics_are_committed(autocommit):
    """After one topic of many was read, each commit once named all allocated partitions."""
    with EmbeddedKafka({"a": 1, "b": 2, "c": 3}) as near:
        near.append("a", 0, encode(1))
        near.append("b", 0, encode(2))
        options = {"topics": (), "autocommit": autocommit}
        async with grouped(near.bootstrap_servers, "g", **options) as consumer:
            assert consumer.allocation == {"a": [0], "b": [0, 1], "c": [0, 1, 2]}
            assert await consumed(consumer, "a", 1) == [1]
            await consumer.commit_offsets()
            assert near.committed("g", "a") == {0: 1}
            assert consumer.topics_to_commit == set()
            assert await consumed(consumer, "b", 1) == [2]
            await consumer.commit_offsets()
        assert near.committed("g", "b") == {0: 1, 1: 0}
        assert near.committed("g", "c") == {}


async def test_a_failed_offset_fetch_is_an_error():
    with EmbeddedKafka({"t": 1}) as near:
        async with grouped(near.bootstrap_servers, "t") as consumer:
            await until(lambda: consumer.allocation)
            # Its own look-up is over: the faults are for what follows.
            await consumer._consumer.position(TopicPartition("t", 0))
            near.fail(OffsetFetchRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=2)
            await consumer.determine_offsets("t")
            near.fail(OffsetFetchRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED)
            with pytest.raises(NoOffsetsError, match="GROUP_AUTHORIZATION_FAILED"):
                await consumer.determine_offsets("t")


async def test_consuming_waits_until_offsets_can_be_read(caplog):
    """As in kiel: each call logs it, returns nothing, and fetches again; a later success continues
    at the group's commit."""
    with EmbeddedKafka({"t": 2}) as near:
        near.append("t", 0, encode(1, 2))
        near.append("t", 1, encode(3))
        async with grouped(near.bootstrap_servers, "t", autocommit=False) as consumer:
            await consumed(consumer, "t", 3)
            await consumer._consumer.commit({TopicPartition("t", 0): 1})
        near.fail(OffsetFetchRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=3)
        async with grouped(near.bootstrap_servers, "t") as consumer:
            await until(lambda: consumer.allocation)
            assert await consumer.consume("t") == []
            assert await consumer.consume("t") == []
            assert "reading topic t failed: GROUP_AUTHORIZATION_FAILED" in caplog.text
            assert sorted(await consumed(consumer, "t", 2)) == [2, 3]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_error_that_ended_the_membership_is_raised_again():
    """With the group in Kafka: nothing would be read any more."""
    with EmbeddedKafka({"t": 1}) as near:
        near.fail(JoinGroupRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None)
        consumer = grouped(near.bootstrap_servers, "t")
        for call in (consumer.connect, *[lambda: consumer.consume("t")] * 3):
            with pytest.raises(BrokerError, match="JoinGroup"), anyio.fail_after(10):
                await call()
        await consumer.close()


async def test_commits_carry_metadata_unless_it_is_too_long():
    with EmbeddedKafka({"t": 1}) as near:
        near.append("t", 0, encode(1, 2))
        async with grouped(near.bootstrap_servers, "t", autocommit=False) as consumer:
            await consumed(consumer, "t", 2)
            await consumer.commit_offsets()
            noted = near.committed_offsets("t")[TopicPartition("t", 0)]
            assert (noted.offset, noted.metadata) == (2, f"committed by {consumer.name}")
            near.append("t", 0, encode(3))
            await consumed(consumer, "t", 1)
            await consumer.commit_offsets("x" * 5_000)
            blank = near.committed_offsets("t")[TopicPartition("t", 0)]
            assert (blank.offset, blank.metadata) == (3, "")


async def test_a_failed_commit_is_retried_with_backoff_up_to_a_limit():
    """kiel calls itself again at once, until the stack overflows."""
    with EmbeddedKafka({"t": 1}) as near:
        near.append("t", 0, encode(1))
        async with grouped(near.bootstrap_servers, "t", autocommit=False) as consumer:
            await consumed(consumer, "t", 1)
            near.fail(OffsetCommitRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=2)
            start = anyio.current_time()
            await consumer.commit_offsets()
            assert anyio.current_time() - start > 0.2
            assert near.committed("t", "t") == {0: 1}
            near.append("t", 0, encode(2))
            await consumed(consumer, "t", 1)


async def test_a_commit_with_a_permanent_error_is_logged(caplog):
    """As in kiel; the next commit covers it."""
    with EmbeddedKafka({"t": 1}) as near:
        near.append("t", 0, encode(1))
        async with grouped(near.bootstrap_servers, "t") as consumer:
            await consumed(consumer, "t", 1)
            near.fail(OffsetCommitRequest, ErrorCode.INVALID_COMMIT_OFFSET_SIZE, times=2)
            await consumer.commit_offsets()
            assert await consumer.consume("t") == []
            assert caplog.text.count("INVALID_COMMIT_OFFSET_SIZE") == 2
            assert near.committed("t", "t").get(0, 0) == 0
            await consumer.commit_offsets()
            assert near.committed("t", "t") == {0: 1}


@TRIO_IS_LONG
async def test_a_commit_after_a_rebalance_does_not_stop_consuming():
    with EmbeddedKafka({"t": 1}) as near:
        near.append("t", 0, encode(1))
        async with grouped(near.bootstrap_servers, "t") as consumer:
            await consumed(consumer, "t", 1)
            near.fail(OffsetCommitRequest, ErrorCode.ILLEGAL_GENERATION)
            assert await consumer.consume("t") == []
            near.fail(OffsetCommitRequest, ErrorCode.ILLEGAL_GENERATION)
            with pytest.raises(CommitFailedError):
                await consumer.commit_offsets()


# ---------------------------------------------------------------- the coordinator, and the end


async def test_every_broker_is_tried_until_a_coordinator_is_found():
    with EmbeddedKafka({"t": 1}) as near:
        near.fail(FindCoordinatorRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=2)
        consumer = grouped(f"127.0.0.1:1,{near.bootstrap_servers}", "t")
        assert consumer.coordinator_id is None
        async with consumer:
            assert consumer.coordinator_id == near.coordinator("t")
        near.fail(FindCoordinatorRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None)
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            async with grouped(near.bootstrap_servers, "t"):
                pass


async def test_handlers_receive_the_result():
    """By their old names, for subclasses; their results say that no retry is left."""
    called = []

    class Mine(GroupedConsumer):
        def handle_group_coordinator_response(self, response):
            called.append(("coordinator", response.node_id))
            return super().handle_group_coordinator_response(response)

        def handle_offset_fetch_response(self, response):
            called.append(("fetched", response))
            return super().handle_offset_fetch_response(response)

        def handle_offset_commit_response(self, response):
            called.append(("committed", response))
            return super().handle_offset_commit_response(response)

    with EmbeddedKafka({"t": 1}) as near:
        near.append("t", 0, encode(1))
        consumer = Mine([near.bootstrap_servers], "t", [], max_wait_time=200, autocommit=False)
        async with consumer:
            await consumed(consumer, "t", 1)
            await consumer.commit_offsets()
            await consumer.determine_offsets("t")
            near.fail(OffsetCommitRequest, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            near.append("t", 0, encode(2))
            await consumed(consumer, "t", 1)
            await consumer.commit_offsets()
        note = f"committed by {consumer.name}"
        assert called == [
            ("coordinator", 1),
            ("fetched", {TopicPartition("t", 0): None}),
            ("committed", None),
            ("fetched", {TopicPartition("t", 0): OffsetAndMetadata(1, note, 0)}),
            ("committed", called[-1][1]),
        ]
        assert called[-1][1].code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert consumer.handle_group_coordinator_response(consumer_node(near)) is True
        assert consumer.handle_offset_fetch_response({}) is False
        assert consumer.handle_offset_commit_response(None) == (False, False)


async def test_handlers_of_a_subclass_decide_whether_to_retry():
    """Their results were ignored."""
    called = []

    class Mine(GroupedConsumer):
        def handle_group_coordinator_response(self, response):
            called.append("coordinator")
            return super().handle_group_coordinator_response(response) and len(called) == 2

        def handle_offset_fetch_response(self, response):
            called.append("fetched")
            super().handle_offset_fetch_response(response)
            return called[-2:] != ["fetched", "fetched"]

        def handle_offset_commit_response(self, response):
            called.append(response and response.name)
            super().handle_offset_commit_response(response)
            return response is not None, response is not None

    with EmbeddedKafka({"t": 1}) as near:
        near.append("t", 0, encode(1))
        consumer = Mine([near.bootstrap_servers], "t", [], max_wait_time=200, autocommit=False)
        async with consumer:
            await consumed(consumer, "t", 1)
            near.fail(OffsetCommitRequest, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            await consumer.commit_offsets("a note")
            noted = near.committed_offsets("t")[TopicPartition("t", 0)]
            assert (noted.offset, noted.metadata) == (1, "")
    assert called == [*["coordinator"] * 2, *["fetched"] * 2, "INVALID_COMMIT_OFFSET_SIZE", None]


def consumer_node(near):
    from kafkagroup import Node

    host, port = near.bootstrap_servers.split(":")
    return Node(1, host, int(port))


async def test_closing_leaves_the_group(bootstrap, name, fill):
    await fill(1)
    async with grouped(bootstrap, name) as consumer:
        await until(lambda: consumer.allocation)
        await consumer.close()
        assert (consumer.closing, consumer.allocation) == (True, {})
        assert await consumer.consume(name) == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_start_and_stop_outside_a_with_block(bootstrap, name, fill):
    await fill(1, {0: values(1)})
    consumer = grouped(bootstrap, name)
    await consumer.connect()
    assert await consumed(consumer, name, 1) == [1]
    await consumer.wind_down()

"""One consumer: the records that it delivers, those that count as processed, and its errors."""

import re
from datetime import timedelta

import anyio
import anyio.lowlevel
import pytest
from brokers import FAST, numbered, until

from kafkagroup import (
    BrokerError,
    ClosedError,
    CommitFailedError,
    ConfigurationError,
    Consumer,
    OffsetAndMetadata,
    Record,
    TopicPartition,
)
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.errors import (
    DeserializationError,
    IllegalStateError,
    NoBrokersAvailableError,
    NoOffsetError,
    NotAssignedError,
    OffsetOutOfRangeError,
)
from kafkagroup.types import TimestampType
from kafkagroup.wire.batch_writing import NewRecord

pytestmark = pytest.mark.anyio


async def take(consumer, count):
    with anyio.fail_after(20):
        return [await consumer.getone() for _ in range(count)]


async def assigned(consumer):
    with anyio.fail_after(20):
        while not consumer.assignment():
            await anyio.sleep(0.005)


async def test_a_record_arrives_with_all_its_fields(bootstrap, name, fill):
    headers = (("trace", b"1"), ("empty", None))
    await fill(1, {0: [NewRecord(b"k", b"v", 1234, headers), NewRecord(None, None, 1235)]})
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        first, second = await take(consumer, 2)
    assert first == Record(name, 0, 0, 1234, TimestampType.CREATE_TIME, b"k", b"v", headers, 0)
    assert second == Record(name, 0, 1, 1235, TimestampType.CREATE_TIME, None, None, (), 0)


async def test_async_for_delivers_every_partition_in_order(bootstrap, name, fill):
    await fill(3, 200)
    seen = {0: [], 1: [], 2: []}
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        with anyio.fail_after(20):
            async for record in consumer:
                seen[record.partition].append(record.offset)
                if sum(map(len, seen.values())) == 600:
                    break
    assert seen == {p: list(range(200)) for p in range(3)}


async def test_an_explicit_commit_includes_the_record_in_flight(bootstrap, name, fill):
    await fill(1, 10)
    tp = TopicPartition(name, 0)
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        await take(consumer, 3)
        await consumer.commit()
        assert await consumer.committed() == {tp: OffsetAndMetadata(3, "", 0)}


async def test_closing_commits_processed_records_and_not_the_one_in_flight(bootstrap, name, fill):
    """A record counts as processed when the next one is requested: after a break in the loop body
    it is delivered again."""
    await fill(1, 10)
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        async for record in consumer:
            if record.offset == 4:
                break
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        assert [r.offset for r in await take(consumer, 2)] == [4, 5]


async def test_auto_commit_never_exceeds_processed_records(bootstrap, name, fill):
    await fill(1, 10)
    tp = TopicPartition(name, 0)
    options = {**FAST, "auto_commit_interval_ms": 20}
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **options) as consumer:
        await take(consumer, 6)
        with anyio.fail_after(10):
            while (await consumer.committed())[tp] != OffsetAndMetadata(5, "", 0):
                await anyio.sleep(0.01)


async def test_without_auto_commit_nothing_is_committed(bootstrap, name, fill):
    await fill(1, 10)
    options = {**FAST, "enable_auto_commit": False}
    for _ in range(2):
        async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **options) as c:
            assert [r.offset for r in await take(c, 5)] == [0, 1, 2, 3, 4]


async def test_given_offsets_are_committed_with_their_metadata(bootstrap, name, fill):
    await fill(2, 10)
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        await take(consumer, 1)
        await consumer.commit({(name, 0): OffsetAndMetadata(7, "half way"), (name, 1): 3})
        assert await consumer.committed() == {
            TopicPartition(name, 0): OffsetAndMetadata(7, "half way", -1),
            TopicPartition(name, 1): OffsetAndMetadata(3, "", -1),
        }


async def test_commits_of_partitions_owned_by_others_are_refused(bootstrap, name, fill):
    await fill(1, 1)
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        await take(consumer, 1)
        with pytest.raises(CommitFailedError, match="not assigned to this consumer: other/3"):
            await consumer.commit({("other", 3): 1})


async def test_a_cancelled_await_loses_nothing(bootstrap, name, fill):
    await fill(2, 300)
    seen = {0: [], 1: []}
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        with anyio.fail_after(30):
            while sum(map(len, seen.values())) < 600:
                with anyio.move_on_after(0.0005):
                    while True:
                        record = await consumer.getone()
                        seen[record.partition].append(record.offset)
                        await anyio.lowlevel.checkpoint()
    assert seen == {0: list(range(300)), 1: list(range(300))}


async def test_batches_have_one_partition_and_are_processed_as_a_whole(bootstrap, name, fill):
    await fill(2, 50)
    seen = {0: [], 1: []}
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        with anyio.fail_after(20):
            async for batch in consumer.batches(max_records=20):
                assert len(batch) <= 20
                assert {r.partition for r in batch} == {batch.partition}
                seen[batch.partition] += [r.offset for r in batch]
                if sum(map(len, seen.values())) == 100:
                    await consumer.commit()
                    break
        assert {tp.partition: o.offset for tp, o in (await consumer.committed()).items()} == {
            0: 50,
            1: 50,
        }
    assert seen == {0: list(range(50)), 1: list(range(50))}


async def test_getmany_returns_the_fetched_records(bootstrap, name, fill):
    await fill(2, 50)
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        seen = {}
        with anyio.fail_after(20):
            while sum(map(len, seen.values())) < 100:
                found = await consumer.getmany(max_records=30, timeout=1.0)
                assert sum(map(len, found.values())) <= 30
                for tp, records in found.items():
                    seen.setdefault(tp.partition, []).extend(r.offset for r in records)
        assert await consumer.getmany(timeout=0.01) == {}
    assert seen == {0: list(range(50)), 1: list(range(50))}


async def test_position_and_seek(bootstrap, name, fill):
    await fill(1, 10)
    tp = TopicPartition(name, 0)
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        await take(consumer, 4)
        assert await consumer.position(tp) == 4
        consumer.seek(tp, 8)
        assert await consumer.position(tp) == 8
        assert [r.offset for r in await take(consumer, 2)] == [8, 9]
        with pytest.raises(NotAssignedError, match="other/0 is not assigned"):
            consumer.seek(TopicPartition("other", 0), 1)
        with pytest.raises(NotAssignedError, match="other/0 is not assigned"):
            await consumer.position(TopicPartition("other", 0))


async def test_latest_commits_the_end_as_the_start(bootstrap, name, fill, produce):
    """Without a committed start, a crash before the first record would skip records produced
    since."""
    await fill(1, 10)
    tp = TopicPartition(name, 0)
    options = {**FAST, "auto_offset_reset": "latest"}
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **options) as consumer:
        await assigned(consumer)
        assert await consumer.position(tp) == 10
    await produce(0, numbered(0, 12, 10))
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **options) as consumer:
        assert [r.offset for r in await take(consumer, 2)] == [10, 11]


async def test_a_duration_starts_at_the_first_younger_record(bootstrap, name, fill):
    """Kafka looks up timestamps: all records are from 1970, so only the end is young enough."""
    await fill(1, 10)
    for back, position in ((timedelta(days=1), 10), (timedelta(days=365 * 100), 0)):
        options = {**FAST, "auto_offset_reset": back, "group_id": f"{name}-{back.days}"}
        async with Consumer(name, bootstrap_servers=bootstrap, **options) as consumer:
            await assigned(consumer)
            assert await consumer.position(TopicPartition(name, 0)) == position


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_none_without_a_committed_offset_is_an_error_of_each_call(
    bootstrap, name, fill, protocol
):
    """It was raised once, and afterwards both partitions were awaited without an error."""
    await fill(2, 10)
    tps = TopicPartition(name, 0), TopicPartition(name, 1)
    options = {**FAST, "group_protocol": protocol, "auto_offset_reset": "none"}
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **options) as consumer:
        await until(lambda: len(consumer.health().findings) == 2)
        for call in (consumer.getone, consumer.getmany, lambda: anext(consumer.batches())):
            with anyio.fail_after(20), pytest.raises(NoOffsetError) as caught:
                await call()
            assert caught.value.partitions == tps
        for tp in tps:
            with anyio.fail_after(20), pytest.raises(NoOffsetError) as caught:
                await consumer.position(tp)
            assert caught.value.partitions == (tp,)
        consumer.seek(tps[0], 6)
        with anyio.fail_after(20), pytest.raises(NoOffsetError) as caught:
            await consumer.getone()
        assert caught.value.partitions == tps[1:]
        consumer.seek(tps[1], 8)
        taken = sorted((r.partition, r.offset) for r in await take(consumer, 6))
        assert taken == [(0, 6), (0, 7), (0, 8), (0, 9), (1, 8), (1, 9)]
        assert consumer.health()


async def test_a_position_outside_the_log_is_an_error_without_a_policy(bootstrap, name, fill):
    await fill(1, 10)
    tp = TopicPartition(name, 0)
    options = {**FAST, "auto_offset_reset": "none"}
    async with Consumer(bootstrap_servers=bootstrap, group_id=name, **options) as consumer:
        await consumer.assign([tp])
        consumer.seek(tp, 99)
        for _ in range(2):
            with anyio.fail_after(20), pytest.raises(OffsetOutOfRangeError) as caught:
                await consumer.getone()
            assert caught.value.offsets == {tp: 99}
        with pytest.raises(OffsetOutOfRangeError):
            await consumer.position(tp)
        assert [finding.partition for finding in consumer.health().findings] == [tp]
        consumer.seek(tp, 9)
        assert [r.offset for r in await take(consumer, 1)] == [9]
        assert consumer.health()


async def test_a_position_outside_the_log_is_reset_with_a_warning(bootstrap, name, fill, caplog):
    await fill(1, 10)
    tp = TopicPartition(name, 0)
    async with Consumer(bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        await consumer.assign([tp])
        consumer.seek(tp, 99)
        assert [r.offset for r in await take(consumer, 1)] == [0]
    assert "auto_offset_reset applies" in caplog.text


async def test_a_deserializer_that_fails_keeps_the_position(bootstrap, name, fill):
    await fill(
        1, {0: [NewRecord(b"1", b"10", 1), NewRecord(b"2", b"x", 2), NewRecord(None, b"3", 3)]}
    )
    options = {**FAST, "key_deserializer": int, "value_deserializer": int}
    tp = TopicPartition(name, 0)
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **options) as consumer:
        (first,) = await take(consumer, 1)
        assert (first.key, first.value) == (1, 10)
        for _ in range(2):
            with anyio.fail_after(20), pytest.raises(DeserializationError) as caught:
                await consumer.getone()
            assert (caught.value.part, caught.value.record.value) == ("value", b"x")
            assert await consumer.position(tp) == 1
        consumer.seek(tp, 2)
        (third,) = await take(consumer, 1)
        assert (third.key, third.value) == (None, 3)


async def test_manually_assigned_partitions_use_the_groups_offsets(bootstrap, name, fill):
    await fill(2, 10)
    tp = TopicPartition(name, 1)
    for start in (0, 4):
        async with Consumer(bootstrap_servers=bootstrap, group_id=name) as consumer:
            await consumer.assign([tp])
            assert consumer.assignment() == {tp}
            records = await take(consumer, 5)
            assert [(r.partition, r.offset) for r in records] == [
                (1, o) for o in range(start, start + 5)
            ]


async def test_without_a_group_every_partition_is_consumed(bootstrap, name, fill):
    await fill(3, 5)
    async with Consumer(name, bootstrap_servers=bootstrap) as consumer:
        assert {(r.partition, r.offset) for r in await take(consumer, 15)} == {
            (p, o) for p in range(3) for o in range(5)
        }
        with pytest.raises(ConfigurationError, match="without group_id"):
            await consumer.committed()


async def test_a_topic_created_later_is_consumed(bootstrap, name, fill):
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fill, 2, 5)
            assert len(await take(consumer, 10)) == 10


async def test_the_subscription_can_change(bootstrap, name, fill):
    await fill(1, 5)
    async with Consumer(bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        assert await consumer.getmany(timeout=0.01) == {}
        await consumer.subscribe(name)
        assert len(await take(consumer, 5)) == 5
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            await consumer.assign([(name, 0)])
        await consumer.unsubscribe()
        assert consumer.assignment() == frozenset()
        await consumer.assign([(name, 0)])
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            await consumer.subscribe(name)
        await consumer.unsubscribe()
        await consumer.subscribe("elsewhere")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"assignors": [cooperative_sticky_assignor]},
        {"group_protocol": "consumer"},
        {"group_protocol": "consumer", "heartbeat_thread": True},
        {"heartbeat_thread": True},
    ],
    ids=["eager", "cooperative", "consumer", "consumer-threaded", "threaded"],
)
async def test_a_task_with_a_record_in_flight_can_change_the_subscription(
    bootstrap, name, fill, options
):
    """The group waited for the record, and its task for the group."""
    other = f"{name}-other"
    await fill(1, 3)
    await fill(2, 3, other)
    options = {**FAST, **options}
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **options) as consumer:
        assert len(await take(consumer, 2)) == 2
        with anyio.fail_after(20):
            await consumer.subscribe(other)
            assert await consumer.wait_assignment() == {(other, 0), (other, 1)}
        committed = (await consumer.committed([(name, 0)]))[name, 0]
        assert committed is not None
        assert committed.offset == 1
        with anyio.fail_after(20):
            await consumer.subscribe(pattern=re.escape(name))
            assert await consumer.wait_assignment() <= {(name, 0)}
            assert [r.offset for r in await take(consumer, 1)] == [1]


@pytest.mark.parametrize("thread", [False, True], ids=["", "thread"])
async def test_a_refused_session_timeout_names_the_brokers_limits(bootstrap, name, fill, thread):
    await fill(1)
    options = {"session_timeout_ms": 2_000_000, "heartbeat_thread": thread}
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **options) as consumer:
        with pytest.raises(
            BrokerError,
            match=r"_ms=2000000 is outside of the limits of broker 1, \d+ to 1800000:",
        ):
            await consumer.getone()


async def test_two_tasks_cannot_wait_for_one_consumer(bootstrap, name, fill):
    await fill(1)
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.getmany, 1, 30.0)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(anyio.BusyResourceError):
                await consumer.getone()
            tasks.cancel_scope.cancel()


async def test_stop_inside_the_loop_ends_it(bootstrap, name, fill):
    await fill(1, 10)
    seen = []
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        with anyio.fail_after(5):
            async for record in consumer:
                seen.append(record.offset)
                if record.offset == 3:
                    await consumer.stop()
        with pytest.raises(ClosedError):
            await consumer.getone()
    assert seen == [0, 1, 2, 3]


async def test_stop_in_a_callback_takes_effect_after_it(bootstrap, name, fill):
    await fill(1, 10)

    async def stop(partitions):
        await consumer.stop()

    options = {**FAST, "on_partitions_assigned": stop}
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **options) as consumer:
        with anyio.fail_after(5):
            assert [r async for r in consumer] == []


async def test_the_users_exception_is_raised_unwrapped(bootstrap, name, fill):
    await fill(1, 1)
    with pytest.raises(ZeroDivisionError):
        async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
            async for _ in consumer:
                raise ZeroDivisionError


async def test_no_broker_is_an_error_that_names_the_addresses():
    with pytest.raises(NoBrokersAvailableError, match=r"127\.0\.0\.1:1: "):
        async with Consumer("t", bootstrap_servers="127.0.0.1:1"):
            pass


async def test_a_consumer_that_was_not_started_raises():
    consumer = Consumer("t")
    with pytest.raises(ClosedError, match="not started"):
        await consumer.getone()
    with pytest.raises(ClosedError, match="not started"):
        await consumer.commit()

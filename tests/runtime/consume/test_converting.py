"""Coroutine deserializers of a running consumer: only converted records count as delivered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kafkagroup import Consumer, ConsumerBusyError
from kafkagroup.errors import CommitFailedError, DeserializationError
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.types import TopicPartition

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)
Opened = tuple[EmbeddedKafka, Callable[..., Consumer]]


@pytest.fixture
def cluster(network: Any) -> Any:
    """A broker with topics of one and of two partitions, ten records in t/0, and consumers."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Opened]:
        async with network, EmbeddedKafka({"t": 1, "two": 2}, listen=False) as kafka:
            network.serve_embedded(kafka)
            kafka.produce("t", [str(n) for n in range(10)], partition=0)

            def consumer(*topics: str, **options: Any) -> Consumer:
                given = {"bootstrap_servers": "kafka-1", "group_id": "g", **options}
                return Consumer(*topics or ("t",), **given)

            with anyio.fail_after(500):
                yield kafka, consumer

    return opened


class Slow:
    """A deserializer that looks up a schema for each record, and can be blocked."""

    def __init__(self, seconds: float = 0.01, *, hangs_at: int = -1) -> None:
        self.seconds = seconds
        self.hangs_at = hangs_at
        self.asked: list[int] = []

    async def __call__(self, data: bytes) -> int:
        self.asked.append(int(data))
        await anyio.sleep(60 if int(data) == self.hangs_at else self.seconds)
        return int(data)


async def cached(data: bytes) -> int:
    """Return every schema at once."""
    return int(data)


deserializers = pytest.mark.parametrize("make", [Slow, lambda: cached], ids=["slow", "cached"])


@deserializers
async def test_records_are_delivered_in_order(cluster: Any, make: Callable[[], Any]) -> None:
    async with cluster() as (kafka, consumer), consumer(value_deserializer=make()) as c:
        values = []
        async for record in c:
            values.append(record.value)
            if len(values) == 10:
                break
    assert values == list(range(10))
    assert kafka.committed("g", "t") == {0: 9}


@deserializers
async def test_batches_are_delivered_in_order(cluster: Any, make: Callable[[], Any]) -> None:
    async with cluster() as (kafka, consumer), consumer(value_deserializer=make()) as c:
        values: list[object] = []
        async for batch in c.batches(4):
            values += [record.value for record in batch]
            if len(values) == 10:
                break
        await c.commit()
    assert values == list(range(10))
    assert kafka.committed("g", "t") == {0: 10}


@deserializers
@pytest.mark.parametrize("timeout", [0.0, 0.015])
async def test_a_short_timeout_returns_records_that_have_arrived(
    cluster: Any, make: Callable[[], Any], timeout: float
) -> None:
    """If a call could end a conversion, each call would start it again, and it would never
    complete."""
    async with cluster() as (_, consumer), consumer(value_deserializer=make()) as c:
        values: list[object] = []
        while len(values) < 10:
            found = await c.getmany(4, timeout)
            values += [record.value for records in found.values() for record in records]
    assert values == list(range(10))


async def test_getmany_returns_nothing_after_its_timeout(cluster: Any) -> None:
    async with cluster() as (_, consumer), consumer("two") as c:
        await c.wait_assignment()
        before = anyio.current_time()
        assert await c.getmany(timeout=3) == {}
        assert anyio.current_time() == pytest.approx(before + 3, abs=0.1)


async def test_a_cancelled_conversion_is_repeated(cluster: Any) -> None:
    slow = Slow(5)
    async with cluster() as (kafka, consumer), consumer(value_deserializer=slow) as c:
        for _ in range(2):
            with anyio.move_on_after(4):
                await c.getone()
        assert slow.asked == [0, 0]
        assert await c.position(TP) == 0
        assert (await c.getone()).value == 0
        with anyio.move_on_after(4):
            await c.getone()
        await c.commit()
        assert kafka.committed("g", "t") == {0: 1}
        slow.seconds = 0
        assert [(await c.getone()).value for _ in range(9)] == list(range(1, 10))


async def test_a_cancelled_batch_is_delivered_whole(cluster: Any) -> None:
    slow = Slow(1)
    async with cluster() as (_, consumer), consumer(value_deserializer=slow) as c:
        batches = aiter(c.batches(4))
        with anyio.move_on_after(2.5):
            await anext(batches)
        assert await c.position(TP) == 0
        batch = await anext(batches)
        assert [record.value for record in batch] == [0, 1, 2, 3]
        # Finished conversions are kept; the cancelled one is repeated.
        assert slow.asked == [0, 1, 2, 2, 3]


async def take_all(consumer: Consumer, taken: list[object]) -> None:
    """Take records, as a consuming task does."""
    async for record in consumer:
        taken += [record.value]


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await anyio.sleep(0.01)


async def test_a_record_being_converted_is_not_committed(cluster: Any) -> None:
    slow, taken = Slow(hangs_at=4), []
    async with cluster() as (kafka, consumer), consumer(value_deserializer=slow) as c:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_all, c, taken)
            await until(lambda: 4 in slow.asked)
            await anyio.sleep(10)  # auto-commits have had their turn
            assert kafka.committed("g", "t") == {0: 4}
            await c.commit()
            assert kafka.committed("g", "t") == {0: 4}
            assert (await c.position(TP), taken) == (4, [0, 1, 2, 3])
            with pytest.raises(ConsumerBusyError):
                await c.getone()
            await c.stop()
            assert kafka.committed("g", "t") == {0: 4}
    assert taken == [0, 1, 2, 3]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_revocation_drops_a_record_being_converted_without_waiting(
    cluster: Any, protocol: str
) -> None:
    """The next owner delivers it once, without delay."""
    slow, taken, others = Slow(), [], []
    options = {"group_protocol": protocol, "heartbeat_interval_ms": 100}
    async with cluster() as (kafka, consumer):
        for partition in range(2):
            kafka.produce("two", [str(10 * partition + n) for n in range(5)], partition=partition)
        first = consumer("two", value_deserializer=slow, **options)
        second = consumer("two", value_deserializer=cached, **options)
        async with first, anyio.create_task_group() as tasks:
            slow.seconds = 60
            tasks.start_soon(take_all, first, taken)
            await until(lambda: slow.asked)
            async with second:
                tasks.start_soon(take_all, second, others)
                await until(lambda: len(others) == 5)
                assert anyio.current_time() < 50
                assert taken == []
                slow.seconds = 0.01
                await until(lambda: len(taken) >= 5)
                await anyio.sleep(10)
                await second.stop()
            await first.stop()
        assert kafka.committed("g", "two") == {0: 5, 1: 5}
    assert sorted(map(str, [*taken, *others])) == sorted(map(str, [*range(5), *range(10, 15)]))


async def test_a_seek_drops_a_record_being_converted(cluster: Any) -> None:
    slow = Slow(5)
    async with cluster() as (_, consumer), consumer(value_deserializer=slow) as c:
        async with anyio.create_task_group() as tasks:
            taken: list[object] = []
            tasks.start_soon(take_all, c, taken)
            await until(lambda: slow.asked)
            c.seek(TP, 7)
            await until(lambda: len(taken) == 3)
            await c.stop()
    assert taken == [7, 8, 9]


async def test_a_pause_drops_a_record_being_converted_and_resuming_repeats_it(cluster: Any) -> None:
    """S15: nothing is delivered from a paused partition."""
    slow = Slow(5)
    async with cluster() as (_, consumer), consumer(value_deserializer=slow) as c:
        async with anyio.create_task_group() as tasks:
            taken: list[object] = []
            tasks.start_soon(take_all, c, taken)
            await until(lambda: slow.asked)
            c.pause(TP)
            await anyio.sleep(30)
            assert taken == []
            c.resume(TP)
            await until(lambda: taken)
            await c.stop()
    assert (taken, slow.asked[:2]) == ([0], [0, 0])


async def test_a_member_with_a_hanging_deserializer_loses_its_partitions(cluster: Any) -> None:
    """A deserializer is application code, to which `max_poll_interval_ms` applies."""
    slow, lost = Slow(600), []
    options = {"max_poll_interval_ms": 20_000, "on_partitions_lost": lost.append}
    async with cluster() as (_, consumer), consumer(value_deserializer=slow, **options) as c:
        with anyio.move_on_after(30):
            await c.getone()
        assert slow.asked == [0]
        assert len(lost) == 1
        # The next poll joins again.
        slow.seconds = 0.01
        assert (await c.getone()).value == 0


async def test_converting_a_long_batch_counts_as_polling(cluster: Any) -> None:
    """Each record that is started is progress; only a hanging one exceeds the interval."""
    lost: list[object] = []
    options = {"max_poll_interval_ms": 20_000, "on_partitions_lost": lost.append}
    async with cluster() as (_, consumer), consumer(value_deserializer=Slow(8), **options) as c:
        batch = await anext(aiter(c.batches()))
        assert [record.value for record in batch] == list(range(10))
    assert lost == []


async def test_other_tasks_run_between_records_that_are_converted_at_once(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats among them. A coroutine that never suspends, as with a cache, never yields to the
    loop."""
    async with cluster() as (kafka, consumer):
        kafka.produce("two", [str(n) for n in range(3_000)], partition=0)
        async with consumer("two", value_deserializer=cached) as c:
            first = await c.getone()
            assert first.value == 0
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await anyio.lowlevel.checkpoint()

            # Of the loop's own time nothing passes here; of the reader's budget it does.
            clock = c._session.clock
            passed = 0.0

            def ticking() -> float:
                nonlocal passed
                passed += 0.0001
                return clock() + passed

            c._session.clock = ticking
            monkeypatch.setattr("kafkagroup.runtime.consume.reader.anyio.current_time", ticking)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(count)
                batch = await anext(aiter(c.batches(3_000)))
                assert len(batch) > 900
                tasks.cancel_scope.cancel()
    assert turns > 50


# ---------------------------------------------------------------- records that do not deserialize


async def picky(data: bytes) -> int:
    if int(data) in (3, 9):
        raise ValueError(data.decode())
    return int(data)


def plain(data: bytes) -> int:
    if int(data) in (3, 9):
        raise ValueError(data.decode())
    return int(data)


kinds = pytest.mark.parametrize("deserializer", [plain, picky], ids=["plain", "coroutine"])


@kinds
async def test_the_position_stays_at_a_record_that_fails_until_the_application_seeks(
    cluster: Any, deserializer: Any
) -> None:
    async with cluster() as (kafka, consumer), consumer(value_deserializer=deserializer) as c:
        assert [(await c.getone()).value for _ in range(3)] == [0, 1, 2]
        for _ in range(3):
            with pytest.raises(DeserializationError) as caught:
                await c.getone()
            assert (caught.value.record.offset, caught.value.record.value) == (3, b"3")
            assert await c.position(TP) == 3
        await c.commit()
        assert kafka.committed("g", "t") == {0: 3}
        c.seek(TP, 4)
        assert (await c.getone()).value == 4


@kinds
async def test_other_tasks_run_while_records_are_skipped(cluster: Any, deserializer: Any) -> None:
    """The last record is bad, too: lag and commit include it."""
    options = {"value_deserializer": deserializer, "on_deserialization_error": "skip"}
    async with cluster() as (kafka, consumer), consumer(**options) as c:
        values: list[object] = []
        with anyio.move_on_after(10):
            await take_all(c, values)
        assert values == [0, 1, 2, 4, 5, 6, 7, 8]
        assert c.metrics().skipped_records == 2
        assert await c.lag() == {TP: 0}
    assert kafka.committed("g", "t") == {0: 10}


@kinds
@pytest.mark.parametrize("take", ["records", "batches", "getmany"])
async def test_an_error_handler_may_write_to_a_dead_letter_topic(
    cluster: Any, deserializer: Any, take: str
) -> None:
    """A coroutine writes to the dead letter topic; nothing else is delayed or lost."""
    aside: list[object] = []

    async def dead_letter(record: Any, error: DeserializationError) -> Any:
        await anyio.sleep(0.5)
        if record.offset == 9:
            return record._replace(value=-9)
        aside.append((record.value, str(error.__cause__)))
        return None

    options = {"value_deserializer": deserializer, "on_deserialization_error": dead_letter}
    async with cluster() as (_, consumer), consumer(**options) as c:
        values: list[object] = []
        with anyio.move_on_after(10):
            if take == "records":
                await take_all(c, values)
            elif take == "batches":
                async for batch in c.batches():
                    values += [record.value for record in batch]
            else:
                while True:
                    for records in (await c.getmany(timeout=1)).values():
                        values += [record.value for record in records]
        assert c.metrics().skipped_records == 1
    assert values == [0, 1, 2, 4, 5, 6, 7, 8, -9]
    assert aside == [(b"3", "3")]


@kinds
async def test_getmany_returns_the_records_before_a_bad_record(
    cluster: Any, deserializer: Any
) -> None:
    """They were in flight, but the call raised. The next call once counted them as processed."""
    async with cluster() as (_, consumer), consumer(value_deserializer=deserializer) as c:
        (records,) = (await c.getmany(timeout=5)).values()
        assert [record.value for record in records] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(DeserializationError):
                await c.getmany(timeout=5)
        c.seek(TP, 4)
        (records,) = (await c.getmany(timeout=5)).values()
        assert [record.value for record in records] == [4, 5, 6, 7, 8]


async def test_a_timeout_error_of_the_handler_is_raised(cluster: Any) -> None:
    """`getmany` must not mistake it for its own timeout."""

    def handle(record: Any, error: DeserializationError) -> Any:
        raise TimeoutError("the dead letter topic")

    options = {"value_deserializer": plain, "on_deserialization_error": handle}
    async with cluster() as (_, consumer), consumer(**options) as c:
        await c.getmany(timeout=5)
        with pytest.raises(TimeoutError, match="the dead letter topic"):
            await c.getmany(timeout=5)


async def test_a_record_of_a_partition_lost_during_its_conversion_is_not_delivered(
    cluster: Any,
) -> None:
    slow = Slow(5)
    async with cluster() as (_, consumer), consumer(value_deserializer=slow) as c:
        with anyio.move_on_after(1):
            await c.getone()
        await c.unsubscribe()
        await c.assign([TopicPartition("two", 0)])
        with pytest.raises(CommitFailedError):
            await c.commit({TP: 1})
        assert await c.getmany(timeout=1) == {}

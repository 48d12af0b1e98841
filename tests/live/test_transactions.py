"""Transactions of real Kafka, written by another client's producer, read with read_committed."""

import anyio
import pytest
from anyio.to_thread import run_sync
from brokers import FAST, is_embedded, wait_for_end
from confluent_kafka import Producer

from kafkagroup import Consumer, TopicPartition

pytestmark = pytest.mark.anyio

COMMITTED = {**FAST, "isolation_level": "read_committed", "enable_auto_commit": False}


@pytest.fixture
def anyio_backend():
    """Return one backend; tests/runtime has the same responses on both."""
    return "asyncio"


@pytest.fixture
def bootstrap(kafka):
    """Only of real brokers: the embedded one has no transactions."""
    return kafka


@pytest.fixture
async def producer_of(bootstrap, name, fill):
    """Return a factory of producers for t/0; the topic exists."""
    if await is_embedded(bootstrap):
        pytest.skip("no real Kafka here")
    await fill(1)

    async def made(transactional_id=None):
        options = {"bootstrap.servers": bootstrap, "linger.ms": 0}
        if transactional_id is not None:
            options["transactional.id"] = f"{name}-{transactional_id}"
        producer = Producer(options)
        if transactional_id is not None:
            await run_sync(producer.init_transactions, 20)
        return producer

    return made


async def write(producer, name, *values):
    for value in values:
        producer.produce(name, value, partition=0)
    assert await run_sync(producer.flush, 20) == 0


async def transact(producer, name, *values, commit):
    producer.begin_transaction()
    await write(producer, name, *values)
    await run_sync(producer.commit_transaction if commit else producer.abort_transaction, 20)


async def values_of(consumer, count):
    with anyio.fail_after(20):
        return [(await consumer.getone()).value.decode() for _ in range(count)]


async def nothing_more(consumer, seconds=0.4):
    with anyio.move_on_after(seconds):
        pytest.fail(f"{await consumer.getone()} came")


async def test_committed_aborted_and_open_transactions(bootstrap, name, producer_of):
    tp = TopicPartition(name, 0)
    red, blue, plain = await producer_of("red"), await producer_of("blue"), await producer_of()
    await transact(red, name, "0", "1", "2", commit=True)  # the marker is at 3
    await transact(red, name, "4", "5", commit=False)  # 6
    await run_sync(wait_for_end, bootstrap, tp, 7)
    blue.begin_transaction()
    await write(blue, name, "7", "8")
    await write(plain, name, "9")
    async with Consumer(bootstrap_servers=bootstrap) as everything:
        await everything.assign([tp])
        assert await values_of(everything, 8) == ["0", "1", "2", "4", "5", "7", "8", "9"]
        assert await everything.end_offsets([tp]) == {tp: 10}
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **COMMITTED) as c:
        assert await values_of(c, 3) == ["0", "1", "2"]
        await nothing_more(c)
        # What is decided ends before 7; past the aborted records and their marker.
        assert await c.end_offsets([tp]) == {tp: 7}
        assert (await c.position(tp), await c.lag()) == (7, {tp: 0})
        await run_sync(blue.commit_transaction, 20)
        assert await values_of(c, 3) == ["7", "8", "9"]
        await nothing_more(c)
        assert (await c.position(tp), await c.lag()) == (11, {tp: 0})
        await c.commit()
        found = (await c.committed())[tp]
        assert found is not None
        assert found.offset == 11


async def test_interleaved_transactions(bootstrap, name, producer_of):
    red, blue = await producer_of("red"), await producer_of("blue")
    red.begin_transaction()
    blue.begin_transaction()
    for number in range(3):
        await write(red, name, f"red {number}")
        await write(blue, name, f"blue {number}")
    await run_sync(red.abort_transaction, 20)
    await run_sync(blue.commit_transaction, 20)
    await transact(red, name, "red 3", commit=True)
    async with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as c:
        await c.assign([TopicPartition(name, 0)])
        assert await values_of(c, 4) == ["blue 0", "blue 1", "blue 2", "red 3"]
        c.seek(TopicPartition(name, 0), 4)  # within the aborted transaction
        assert await values_of(c, 2) == ["blue 2", "red 3"]


async def test_the_latest_is_the_last_stable_offset(bootstrap, name, producer_of):
    """Records of an open transaction are delivered later."""
    red = await producer_of("red")
    await transact(red, name, "0", commit=True)
    red.begin_transaction()
    await write(red, name, "2", "3")
    tp = TopicPartition(name, 0)
    options = {**COMMITTED, "auto_offset_reset": "latest"}
    async with Consumer(bootstrap_servers=bootstrap, **options) as c:
        await c.assign([tp])
        assert await c.position(tp) == 2
        await run_sync(red.commit_transaction, 20)
        assert await values_of(c, 2) == ["2", "3"]

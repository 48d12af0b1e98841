"""A batch that takes long to decompress is prepared once, in a thread, whoever waits for it.

The loop runs the threads of these tests, when the test says so.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from loop_threads import LoopThreads

from kafkagroup import (
    ClosedError,
    Codec,
    Consumer,
    TopicPartition,
)
from kafkagroup.errors import KafkaGroupError
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.wire import NewRecord, encode_batch

pytestmark = pytest.mark.anyio

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def heavy(count: int = 4) -> bytes:
    """Return a batch that a thread prepares."""
    values = random.Random(1)
    records = [NewRecord(None, values.randbytes(140_000 // count), 1_000) for _ in range(count)]
    return encode_batch(records, codec=Codec.GZIP)


@asynccontextmanager
async def reading(network: Any, *partitions: TopicPartition) -> AsyncIterator[tuple[Any, Consumer]]:
    """Provide a broker with a heavy batch in t/0 and a record in t/1, and a consumer of these
    partitions."""
    async with network, EmbeddedKafka({"t": 2}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.append("t", 0, heavy())
        kafka.produce("t", ["light"], partition=1)
        async with Consumer(bootstrap_servers="kafka-1", auto_offset_reset="none") as c:
            await c.assign(partitions)
            for tp in partitions:
                c.seek(tp, 0)
            yield kafka, c


async def by_scope(c: Consumer) -> None:
    with anyio.move_on_after(0.2) as scope:
        await c.getone()
    assert scope.cancelled_caught


async def by_limit(c: Consumer) -> None:
    assert await c.getmany(timeout=0.2) == {}


async def by_asyncio(c: Consumer) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await c.getone()


@pytest.mark.parametrize("wait", [by_scope, by_limit, by_asyncio])
async def test_a_wait_ends_in_time_and_the_next_one_shares_the_job(
    network: Any, threads: LoopThreads, wait: Any, anyio_backend_name: str
) -> None:
    """A limit of 0.2 s took 4 s, as the wait for the thread was shielded; and `asyncio.timeout`
    broke the shield, so that each retry decompressed the batch again, gigabytes of it."""
    if wait is by_asyncio and anyio_backend_name == "trio":
        pytest.skip("asyncio only")
    threads.held = []
    async with reading(network, T0) as (_, c):
        await anyio.sleep(1)
        for _ in range(5):
            began_at = anyio.current_time()
            await wait(c)
            assert anyio.current_time() - began_at == pytest.approx(0.2, abs=0.01)
        assert len(threads.jobs) == 1
        threads.held.pop()()
        assert [(await c.getone()).offset for _ in range(4)] == [0, 1, 2, 3]
        assert len(threads.jobs) == 1


async def test_a_poll_without_a_limit_of_time_does_not_wait_for_the_thread(
    network: Any, threads: LoopThreads
) -> None:
    threads.held = []
    async with reading(network, T0) as (_, c):
        await anyio.sleep(1)
        began_at = anyio.current_time()
        assert [await c.getmany() for _ in range(3)] == [{}, {}, {}]
        assert anyio.current_time() == began_at
        threads.held.pop()()
        assert [r.offset for r in (await c.getmany(timeout=1))[T0]] == [0, 1, 2, 3]


async def test_a_poll_tries_again_while_the_process_may_start_no_thread(
    network: Any, threads: LoopThreads
) -> None:
    """Nothing else tells the poll that there may be a thread now."""
    threads.refused_count = 2
    async with reading(network, T0) as (_, c):
        with anyio.fail_after(10):
            assert [(await c.getone()).offset for _ in range(4)] == [0, 1, 2, 3]
    assert len(threads.jobs) == 1


async def end_by_close(c: Consumer) -> None:
    await c.stop()


async def end_by_pause(c: Consumer) -> None:
    c.pause(T0)


async def end_by_seek(c: Consumer) -> None:
    c.seek(T0, 4)


async def end_by_assignment(c: Consumer) -> None:
    await c.assign([T1])


@pytest.mark.parametrize("end", [end_by_pause, end_by_seek, end_by_assignment])
async def test_other_partitions_do_not_wait_for_a_batch_that_is_not_wanted_any_more(
    network: Any, threads: LoopThreads, end: Callable[[Consumer], Any]
) -> None:
    threads.held = []
    async with reading(network, T0, T1) as (_, c):
        c.pause(T1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end_when_held, c, threads, end)
            with anyio.fail_after(5):
                assert (await c.getone()).value == b"light"
        assert len(threads.held) == 1


async def end_when_held(c: Consumer, threads: LoopThreads, end: Callable[[Consumer], Any]) -> None:
    while not threads.held:
        await anyio.sleep(0.01)
    if T1 in c.paused():
        c.resume(T1)
    await end(c)


async def test_closing_does_not_wait_for_the_thread(network: Any, threads: LoopThreads) -> None:
    threads.held = []
    async with reading(network, T0) as (_, c), anyio.create_task_group() as tasks:
        tasks.start_soon(end_when_held, c, threads, end_by_close)
        with anyio.fail_after(5), pytest.raises(ClosedError):
            await c.getone()


async def test_no_more_than_two_batches_are_prepared_at_once(
    network: Any, threads: LoopThreads
) -> None:
    """Each of them may take `max_batch_bytes` of memory."""
    threads.held = []
    async with reading(network, T0) as (_, c):
        await anyio.sleep(1)
        for _ in range(10):
            c.seek(T0, 0)
            await by_limit(c)
            await anyio.sleep(1)
        assert len(threads.jobs) == 2
        while threads.held:
            threads.held.pop(0)()
        threads.held = None
        assert (await c.getone()).offset == 0


async def test_an_error_behind_a_batch_is_raised_behind_it_also_after_a_cancelled_wait(
    network: Any, threads: LoopThreads
) -> None:
    """A caller that seeks because of the error would skip the records before it."""
    threads.held = []
    async with reading(network, T0) as (_, c):
        await anyio.sleep(1)
        await by_limit(c)
        c._session.errors.report(KafkaGroupError("behind the batch"))
        await by_limit(c)
        threads.held.pop()()
        assert [(await c.getone()).offset for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(KafkaGroupError, match="behind the batch"):
            await c.getone()


async def test_a_batch_that_is_not_wanted_any_more_is_not_kept_in_memory(
    network: Any, threads: LoopThreads
) -> None:
    threads.held = []
    async with reading(network, T0, T1) as (_, c):
        c.pause(T1)
        await anyio.sleep(1)
        await by_limit(c)
        reader = c._delivery.unprepared
        threads.held.pop()()
        await anyio.sleep(1)
        c.seek(T0, 4)
        c.resume(T1)
        assert (await c.getone()).value == b"light"
        threads.jobs.clear()
        assert sys.getrefcount(reader) == 2

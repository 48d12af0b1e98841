"""A seek, a resume and a new partition are fetched at once while brokers hold long polls of a
minute."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from brokers import FAST, numbered

from kafkagroup import Consumer, TopicPartition

pytestmark = pytest.mark.anyio

LONG_POLL = 60
"""`fetch_max_wait`, in seconds."""
PROMPT = 15.0
"""Seconds: far above what a busy machine takes, far below a long poll."""

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/net/tcp").exists(), reason="connections are not listed"
)


def connections_to(servers: str) -> set[str]:
    """Return our ends of the open connections to these addresses, as Linux lists them."""
    ports = {f"{int(server.rpartition(':')[2]):04X}" for server in servers.split(",")}
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return {row[1] for row in rows if row[2].rpartition(":")[2] in ports and row[3] == "01"}


@pytest.fixture(params=["classic", "consumer"])
def consumer(request: pytest.FixtureRequest, bootstrap: str, name: str) -> Consumer:
    return Consumer(
        name,
        bootstrap_servers=bootstrap,
        group_id=name,
        group_protocol=request.param,
        fetch_max_wait_ms=1_000 * LONG_POLL,
        **({"session_timeout_ms": 6_000} if request.param == "consumer" else FAST),
    )


async def take(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    with anyio.fail_after(20):
        records = [await consumer.getone() for _ in range(count)]
    return [(r.partition, r.offset) for r in records]


@contextmanager
def promptly() -> Iterator[None]:
    with anyio.fail_after(PROMPT):
        yield


@needs_proc
async def test_seeks_are_fetched_at_once_over_one_more_connection(bootstrap, name, fill, consumer):
    await fill(2, {0: numbered(0, 10)})
    t0, t1 = (TopicPartition(name, n) for n in range(2))
    before = connections_to(bootstrap)
    async with consumer:
        assert await take(consumer, 10) == [(0, n) for n in range(10)]
        await anyio.sleep(0.2)  # the long poll is at the broker
        at_rest = connections_to(bootstrap) - before
        with promptly():
            consumer.seek(t0, 9)
            assert await take(consumer, 1) == [(0, 9)]
        with_immediate = connections_to(bootstrap) - before
        assert (len(with_immediate - at_rest), at_rest - with_immediate) == (1, set())
        began = anyio.current_time()
        for n in range(1_000):
            if n % 10 == 0:
                consumer.seek(t1, 0)  # where there is nothing
            consumer.seek(t0, n % 10)
            with promptly():
                assert await take(consumer, 1) == [(0, n % 10)]
        # A tenth of a second of waiting in each would be more.
        assert anyio.current_time() - began < LONG_POLL
        assert connections_to(bootstrap) - before == with_immediate


async def test_a_resumed_partition_is_fetched_at_once(name, fill, produce, consumer):
    await fill(2, {0: numbered(0, 1)})
    t1 = TopicPartition(name, 1)
    async with consumer:
        assert await take(consumer, 1) == [(0, 0)]
        consumer.pause(t1)
        # The response to the long poll that has it, and the next one leaves it out.
        await produce(0, numbered(0, 2, 1))
        assert await take(consumer, 1) == [(0, 1)]
        await anyio.sleep(0.2)
        await produce(1, numbered(1, 1))
        with promptly():
            consumer.resume(t1)
            assert await take(consumer, 1) == [(1, 0)]


async def test_an_assigned_partition_is_fetched_at_once(bootstrap, name, fill):
    await fill(2, {0: numbered(0, 1), 1: numbered(1, 1)})
    t0, t1 = (TopicPartition(name, n) for n in range(2))
    async with Consumer(
        bootstrap_servers=bootstrap, fetch_max_wait_ms=1_000 * LONG_POLL
    ) as consumer:
        await consumer.assign([t0])
        assert await take(consumer, 1) == [(0, 0)]
        await anyio.sleep(0.2)
        with promptly():
            await consumer.assign([t0, t1])
            assert await take(consumer, 1) == [(1, 0)]


async def test_a_response_from_before_a_seek_is_dropped(name, fill, produce, consumer):
    """The long poll does not contain the partition at its new position, the end of the log."""
    await fill(2, {0: numbered(0, 3), 1: numbered(1, 3)})
    t1 = TopicPartition(name, 1)
    async with consumer:
        await take(consumer, 6)
        await anyio.sleep(0.2)
        consumer.seek(t1, 2)
        assert await take(consumer, 1) == [(1, 2)]
        await anyio.sleep(0.2)
        with promptly():
            await produce(1, numbered(1, 4, 3))
            assert await take(consumer, 1) == [(1, 3)]

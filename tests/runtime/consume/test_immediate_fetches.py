"""Partitions that become fetchable during a long poll are fetched at once, over a second
connection.

The network has no latency and time is virtual: an operation that takes no time needs only round
trips.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup._extended_consumer import TunedConsumer
from kafkagroup.concurrency import slices
from kafkagroup.testing.embedded import Close, Delay, EmbeddedKafka
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import FetchRequest

pytestmark = pytest.mark.anyio

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))
LONG = 4_000
"""`fetch_max_wait_ms` of the consumers: far longer than an immediate fetch takes."""
Cluster = tuple[EmbeddedKafka, Callable[..., Consumer]]


@pytest.fixture(params=[slices.SLICE_SIZE, 1], ids=["few", "many"])
def reading(request: Any, network: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Provide a broker with t/0, t/1 and t/2, ten records in t/0, and consumers with long polls;
    one variant handles one partition per slice of work."""
    monkeypatch.setattr(slices, "SLICE_SIZE", request.param)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Cluster]:
        async with network, EmbeddedKafka({"t": 3}, listen=False) as kafka:
            network.serve_embedded(kafka)
            kafka.produce("t", [str(n) for n in range(10)], partition=0)

            def consumer(*topics: str, private: Any = (), **options: Any) -> Consumer:
                return TunedConsumer(
                    dict(private),
                    *topics,
                    **{
                        "bootstrap_servers": "kafka-1",
                        "enable_auto_commit": False,
                        "fetch_max_wait_ms": LONG,
                        **options,
                    },
                )

            with anyio.fail_after(1_000):
                yield kafka, consumer

    return opened


async def offsets_of(consumer: Consumer, count: int) -> list[int]:
    return [(await consumer.getone()).offset for _ in range(count)]


@asynccontextmanager
async def at_once() -> AsyncIterator[None]:
    """Check that the block takes only round trips: this network has no latency."""
    began = anyio.current_time()
    yield
    assert anyio.current_time() - began < 0.001


def immediate_fetches(kafka: EmbeddedKafka) -> list[FetchRequest]:
    """Return the immediate fetches received from now on."""
    seen: list[FetchRequest] = []

    def on_request(request: FetchRequest) -> bool:
        if request.max_wait_ms == 0:
            seen.append(request)
        return False

    kafka.fail(FetchRequest, Close(), times=None, when=on_request)
    return seen


# ---------------------------------------------------------------- fetched at once


@pytest.mark.parametrize("idle", [0.1, 30.3])
@pytest.mark.parametrize("how", ["seek", "resume", "assign", "instead", "group"])
async def test_a_partition_that_becomes_fetchable_does_not_wait_for_the_long_poll(
    reading: Any, how: str, idle: float
) -> None:
    topics = ["t"] if how == "group" else []
    async with reading() as (kafka, consumer), consumer(*topics, group_id="g") as c:
        kafka.produce("t", ["x"], partition=1)
        if how != "group":
            await c.assign([T0, T1] if how == "resume" else [T0])
        await offsets_of(c, 11 if how in ("resume", "group") else 10)
        if how == "resume":
            c.pause(T1)
            await anyio.sleep(10)  # the next long poll leaves it out
            kafka.produce("t", ["y"], partition=1)
        await anyio.sleep(idle)
        async with at_once():
            match how:
                case "seek" | "group":
                    c.seek(T0, 9)
                case "resume":
                    c.resume(T1)
                case "assign":
                    await c.assign([T0, T1])
                case _:
                    await c.assign([T1])
            await c.getone()
        assert await c.getmany(timeout=10) == {}


async def test_a_seek_is_fetched_at_once_while_other_fetches_are_in_flight(reading: Any) -> None:
    """The same while an earlier seek waits at the end of another log."""
    async with reading() as (_, consumer), consumer() as c:
        await c.assign([T0, T1, T2])
        await offsets_of(c, 10)
        for _ in range(50):
            await anyio.sleep(0.013)
            c.seek(T1, 0)
            c.seek(T2, 0)
            await anyio.sleep(0.013)
            async with at_once():
                c.seek(T0, 5)
                assert await offsets_of(c, 5) == [5, 6, 7, 8, 9]


async def test_a_thousand_seeks_open_one_additional_connection(reading: Any, network: Any) -> None:
    async with reading() as (_, consumer), consumer() as c:
        await c.assign([T0, T1])
        await offsets_of(c, 10)
        await anyio.sleep(1)
        before = len(network.dialled)
        for n in range(1_000):
            async with at_once():
                c.seek(T0, n % 10)
                assert await offsets_of(c, 1) == [n % 10]
            await anyio.sleep(0.001)
        assert len(network.dialled) - before <= 1
        # One connection each for metadata and offsets, long polls, and immediate fetches.
        assert network.open == 3


async def test_several_fetchers_share_the_second_connection(reading: Any, network: Any) -> None:
    async with reading() as (kafka, consumer), consumer(private={"num_consumer_fetchers": 3}) as c:
        kafka.produce("t", ["x"], partition=1)
        kafka.produce("t", ["x"], partition=2)
        await c.assign([T0, T1, T2])
        await offsets_of(c, 12)
        await anyio.sleep(1)
        async with at_once():
            for tp in (T0, T1, T2):
                c.seek(tp, 0)
            assert sorted(await offsets_of(c, 12)) == [0, 0, *range(10)]
        assert network.open == 1 + 3 + 1


async def test_a_seek_does_not_wait_for_fetch_min_bytes(reading: Any) -> None:
    async with reading() as (_, consumer), consumer(fetch_min_bytes=100_000) as c:
        await c.assign([T0])
        await offsets_of(c, 10)
        await anyio.sleep(0.1)  # the long poll is at the broker
        async with at_once():
            c.seek(T0, 3)
            assert await offsets_of(c, 7) == [*range(3, 10)]


@pytest.mark.parametrize(("least", "seconds"), [(1, 0.0), (100_000, 0.5)])
async def test_a_seek_without_a_long_poll_in_flight_starts_the_next_long_poll(
    reading: Any, least: int, seconds: float
) -> None:
    """Like the very first fetch, it waits for `fetch_min_bytes`, up to `fetch_max_wait_ms`."""
    async with (
        reading() as (_, consumer),
        consumer(fetch_min_bytes=least, fetch_max_wait_ms=500) as c,
    ):
        await c.assign([T0])
        await offsets_of(c, 10)
        c.pause(T0)
        await anyio.sleep(10)  # the long poll is over
        c.seek(T0, 3)
        c.resume(T0)
        began = anyio.current_time()
        assert await offsets_of(c, 7) == [*range(3, 10)]
        assert anyio.current_time() - began == pytest.approx(seconds, abs=0.001)


async def test_a_partition_with_a_full_queue_does_not_wait_for_the_long_poll_once_read(
    reading: Any,
) -> None:
    """A partition with `queued_max_records` buffered records is not part of the long poll."""
    async with reading() as (kafka, consumer), consumer(private={"queued_max_records": 5}) as c:
        await c.assign([T0, T1])
        await c.getone()
        kafka.produce("t", ["more"], partition=0)
        await anyio.sleep(30.3)
        async with at_once():
            assert await offsets_of(c, 10) == [*range(1, 11)]


# ---------------------------------------------------------------- until the next long poll


async def test_a_partition_outside_the_long_poll_is_polled_until_the_next_one(reading: Any) -> None:
    """After an empty response to an immediate fetch, a record may still arrive."""
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([T0, T1])
        await offsets_of(c, 10)
        await anyio.sleep(0.5)
        sent = immediate_fetches(kafka)
        c.seek(T1, 0)
        for n in range(3):
            await anyio.sleep(0.73)
            kafka.produce("t", ["x"], partition=1)
            with anyio.fail_after(0.11):
                assert await offsets_of(c, 1) == [n]
        await anyio.sleep(LONG / 1000)
        polls = len(sent)
        assert 0 < polls < 60
        await anyio.sleep(30)
        kafka.produce("t", ["x"], partition=1)
        async with at_once():
            assert await offsets_of(c, 1) == [3]
        assert len(sent) == polls


async def test_only_the_first_of_two_responses_with_the_same_records_is_used(reading: Any) -> None:
    """The next long poll asks for the same records while the immediate fetch is in flight."""

    def is_immediate(request: FetchRequest) -> bool:
        return request.max_wait_ms == 0

    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([T0, T1])
        await offsets_of(c, 10)
        await anyio.sleep(0.5)
        kafka.fail(FetchRequest, Delay(1.0), when=is_immediate)
        began = anyio.current_time()
        c.seek(T0, 5)
        await anyio.sleep(0.1)
        kafka.fail(FetchRequest, Delay(2.0), when=lambda r: not is_immediate(r))
        kafka.produce("t", ["x"], partition=1)  # ends the long poll
        assert (await c.getone()).partition == 1
        assert await offsets_of(c, 5) == [5, 6, 7, 8, 9]
        assert anyio.current_time() - began == pytest.approx(1.0, abs=0.01)
        assert await c.getmany(timeout=10) == {}


async def test_each_record_is_delivered_once_over_both_connections(reading: Any) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([T0, T1])
        await offsets_of(c, 10)
        seen = {T0: 10, T1: 0}
        for n in range(300):
            await anyio.sleep(0.007 * (n % 5))
            if n % 4 == 0:
                c.seek(T1, seen[T1])
            kafka.produce("t", ["x"], partition=n % 2)
            if n % 3 == 0:
                c.seek(T0, seen[T0])
            for tp, records in (await c.getmany(timeout=0.01 * (n % 2))).items():
                assert [r.offset for r in records] == [seen[tp] + i for i in range(len(records))]
                seen[tp] += len(records)
        await anyio.sleep(1)
        for tp, records in (await c.getmany(timeout=1)).items():
            seen[tp] += len(records)
        assert seen == {T0: 160, T1: 150}


# ---------------------------------------------------------------- the second connection


async def test_no_second_connection_is_opened_unless_needed(reading: Any, network: Any) -> None:
    async with reading() as (kafka, consumer), consumer("t", group_id="g") as c:
        sent = immediate_fetches(kafka)
        await offsets_of(c, 10)
        for n in range(100):
            kafka.produce("t", ["x"] * (n % 4 + 1), partition=n % 3)
            await c.getone()
            await anyio.sleep(0.3 * (n % 7))
        await anyio.sleep(30)
        # One connection each for metadata and offsets, the coordinator, and long polls.
        assert (network.open, sent) == (3, [])


@pytest.mark.parametrize("reading", [slices.SLICE_SIZE], ids=["few"], indirect=True)
async def test_a_partition_reassigned_at_the_same_position_adopts_the_long_poll(
    reading: Any, network: Any
) -> None:
    """Members that were fenced repeatedly fetched each assignment a dozen times."""
    async with reading() as (kafka, consumer):
        async with consumer("t", group_id="g", enable_auto_commit=True) as c:
            assert await offsets_of(c, 10) == list(range(10))
            with anyio.move_on_after(0.1):  # the last one is processed
                await c.getone()
            opened, seen = len(network.dialled), immediate_fetches(kafka)
            for n in range(10, 13):
                assigned = c.assignment()
                c.rejoin()
                await anyio.sleep(0.1)
                assert c.assignment() == assigned
                kafka.produce("t", ["new"], partition=0)
                async with at_once():
                    assert await offsets_of(c, 1) == [n]
                with anyio.move_on_after(0.1):
                    await c.getone()
            assert (seen, len(network.dialled) - opened) == ([], 0)


async def test_an_idle_second_connection_is_closed(reading: Any, network: Any) -> None:
    async with reading() as (_, consumer), consumer() as c:
        await c.assign([T0])
        await offsets_of(c, 10)
        for _ in range(3):
            for _ in range(5):
                await anyio.sleep(50)
                async with at_once():
                    c.seek(T0, 9)
                    assert await offsets_of(c, 1) == [9]
                assert network.open == 3
            await anyio.sleep(70)
            assert network.open == 2
        assert len(network.dialled) == 3 + 3  # the bootstrap address among them


async def test_without_a_second_connection_a_partition_waits_for_the_long_poll(
    reading: Any, network: Any
) -> None:
    """A broker may limit its connections. The partition is then part of the next long poll."""
    async with reading() as (_, consumer), consumer() as c:
        await c.assign([T0])
        await offsets_of(c, 10)
        await anyio.sleep(0.1)
        dialled = len(network.dialled)
        handler = network.handlers.pop(("kafka-1", 9092))
        c.seek(T0, 5)
        with anyio.fail_after(LONG / 1000):
            assert await offsets_of(c, 5) == [5, 6, 7, 8, 9]
        assert 1 <= len(network.dialled) - dialled < 20
        network.handlers["kafka-1", 9092] = handler


async def test_a_lost_immediate_fetch_is_retried(reading: Any) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([T0])
        await offsets_of(c, 10)
        await anyio.sleep(0.1)
        kafka.fail(FetchRequest, Close())
        c.seek(T0, 5)
        with anyio.fail_after(0.5):
            assert await offsets_of(c, 5) == [5, 6, 7, 8, 9]


async def test_immediate_fetches_have_no_session(reading: Any) -> None:
    """Each session would take a slot of the broker's cache from another consumer."""
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([T0])
        sent = immediate_fetches(kafka)
        await offsets_of(c, 10)
        await anyio.sleep(0.1)
        c.seek(T0, 5)
        await offsets_of(c, 5)
        sessions = {(r.session_id, r.session_epoch, r.forgotten_topics_data) for r in sent}
        assert sessions == {(0, -1, ())}


async def test_fetches_on_both_connections_together_stay_within_fetch_max_bytes(
    reading: Any,
) -> None:
    most = 400
    async with reading() as (kafka, consumer), consumer(fetch_max_bytes=most) as c:
        await c.assign([T0, T1])
        await offsets_of(c, 10)
        kafka.produce("t", ["x" * 40] * 3, partition=1)
        for n in range(200):
            await anyio.sleep(0.003 * (n % 9))
            c.seek((T0, T1)[n % 2], 0)
            found = c.metrics()
            assert found.fetching_bytes <= most
            await c.getmany(2, timeout=0.002 * (n % 4))

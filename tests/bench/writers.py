"""Write to a topic with each client, in the process of a trial.

The clock runs from a record that was acknowledged to the last acknowledgement: it excludes imports,
connections and metadata. CPU is that of the whole process, including background threads. All are
idempotent, with `acks=all`; the other settings are each client's defaults. Whether all records are
in the log is looked up afterwards.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice
from typing import Any

import anyio
import attrs
from anyio.lowlevel import checkpoint

from . import decoding

__all__ = ["PER_TRANSACTION", "SENDERS", "trial"]

SENDERS = 100
"""Concurrent senders, each of which awaits one record after the other."""

PER_TRANSACTION = 1_000
"""Records."""

_BETWEEN_POLLS = 1_000
"""Records after which a client lets its event loop, or its callbacks, run."""

Write = Callable[[str, str, str, Sequence[bytes], int], Awaitable[dict[str, Any]]]
"""(bootstrap, topic, codec, values, number of records) -> the results."""


def trial(
    *, writer: str, bootstrap: str, topic: str, records: int, size: int, codec: str = "none"
) -> dict[str, Any]:
    """Write records with values of `size` bytes; return speed and cost by unit, or the milliseconds
    of each record."""
    values = list(decoding.values(size, _BETWEEN_POLLS))
    return anyio.run(_run, writer, bootstrap, topic, codec, values, records)


async def _run(
    writer: str, bootstrap: str, topic: str, codec: str, values: Sequence[bytes], records: int
) -> dict[str, Any]:
    found = await _WRITERS[writer](bootstrap, topic, codec, values, records)
    if (there := await _end(bootstrap, topic)) < records:
        raise SystemExit(f"{there} of {records} records are in the log")
    return found


async def _end(bootstrap: str, topic: str) -> int:
    """Return the sum of the end offsets of all partitions."""
    from kafkagroup import Consumer, Producer, TopicPartition

    async with Producer(bootstrap_servers=bootstrap) as producer:
        count = await producer.partition_count(topic)
    async with Consumer(bootstrap_servers=bootstrap) as consumer:
        ends = await consumer.end_offsets([TopicPartition(topic, n) for n in range(count)])
        return sum(ends.values())


@attrs.define(eq=False)
class _Clock:
    """Time and CPU since it was made."""

    started: float = attrs.field(init=False, factory=time.perf_counter)
    cpu: float = attrs.field(init=False, factory=time.process_time)

    def stop(self, records: int) -> dict[str, float]:
        """Return speed and cost of `records`."""
        seconds = time.perf_counter() - self.started
        cpu = time.process_time() - self.cpu
        return {"records/s": records / seconds, "CPU us/record": cpu / records * 1e6}


def _endless(values: Sequence[bytes], records: int) -> Iterator[bytes]:
    return islice(cycle(values), records)


# ---------------------------------------------------------------- ours


@asynccontextmanager
async def _kafkagroup(bootstrap: str, codec: Any, **options: Any) -> AsyncIterator[Any]:
    from kafkagroup import Producer

    async with Producer(bootstrap_servers=bootstrap, compression_type=codec, **options) as producer:
        yield producer


async def _kafkagroup_nowait(
    bootstrap: str, topic: str, codec: str, values: Sequence[bytes], records: int
) -> dict[str, Any]:
    from kafkagroup import BufferFullError

    async with _kafkagroup(bootstrap, codec) as producer:
        await producer.send(topic, values[0])
        clock = _Clock()
        for _ in range(records // len(values)):
            for value in values:
                try:
                    producer.send_nowait(topic, value)
                except BufferFullError:
                    await producer.ready()
                    producer.send_nowait(topic, value)
            await checkpoint()
        await producer.flush()
        return clock.stop(records)


async def _kafkagroup_concurrent(
    bootstrap: str, topic: str, codec: str, values: Sequence[bytes], records: int
) -> dict[str, Any]:
    async with _kafkagroup(bootstrap, codec) as producer:
        await producer.send(topic, values[0])

        async def write() -> None:
            for value in _endless(values, records // SENDERS):
                await producer.send(topic, value)

        return await _concurrently(write, records)


async def _kafkagroup_awaited(
    bootstrap: str, topic: str, codec: str, values: Sequence[bytes], records: int
) -> dict[str, Any]:
    async with _kafkagroup(bootstrap, codec) as producer:
        return await _timed(lambda value: producer.send(topic, value), values, records)


@asynccontextmanager
async def _our_consumer(bootstrap: str, topic: str) -> AsyncIterator[Any]:
    from kafkagroup import Consumer

    async with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=_group(),
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
    ) as consumer:
        yield consumer


async def _kafkagroup_transactions(
    bootstrap: str, topic: str, codec: str, values: Sequence[bytes], records: int
) -> dict[str, Any]:
    out = _out(topic)
    async with (
        _our_consumer(bootstrap, topic) as consumer,
        _kafkagroup(bootstrap, codec, transactional_id=_group()) as producer,
    ):
        clock: _Clock | None = None
        done = first = 0
        async for tx in producer.transactions(consumer, max_records=PER_TRANSACTION):
            async with tx as taken:
                for record in taken:
                    tx.send_nowait(out, record.value, key=record.key)
            done += len(taken)
            if clock is None:
                clock, first = _Clock(), done
            if done >= records:
                break
        assert clock is not None
        return clock.stop(done - first)


async def _kafkagroup_plain(
    bootstrap: str, topic: str, codec: str, values: Sequence[bytes], records: int
) -> dict[str, Any]:
    out = _out(topic)
    async with (
        _our_consumer(bootstrap, topic) as consumer,
        _kafkagroup(bootstrap, codec) as producer,
    ):
        clock: _Clock | None = None
        done = first = 0
        while done < records:
            for chunk in (await consumer.getmany(PER_TRANSACTION, 10.0)).values():
                for record in chunk:
                    producer.send_nowait(out, record.value, key=record.key)
                done += len(chunk)
            await producer.flush()
            await consumer.commit()
            if clock is None:
                clock, first = _Clock(), done
        assert clock is not None
        return clock.stop(done - first)


# ---------------------------------------------------------------- aiokafka


@asynccontextmanager
async def _aiokafka(bootstrap: str, codec: str, **options: Any) -> AsyncIterator[Any]:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
        **options,
    ) as producer:
        yield producer


async def _aiokafka_nowait(
    bootstrap: str, topic: str, codec: str, values: Sequence[bytes], records: int
) -> dict[str, Any]:
    async with _aiokafka(bootstrap, codec) as producer:
        await producer.send_and_wait(topic, values[0])
        clock = _Clock()
        for value in _endless(values, records):
            await producer.send(topic, value)
        await producer.flush()
        return clock.stop(records)


async def _aiokafka_concurrent(
    bootstrap: str, topic: str, codec: str, values: Sequence[bytes], records: int
) -> dict[str, Any]:
    async with _aiokafka(bootstrap, codec) as producer:
        await producer.send_and_wait(topic, values[0])

        async def write() -> None:
            for value in _endless(values, records // SENDERS):
                await producer.send_and_wait(topic, value)

        return await _concurrently(write, records)


async def _aiokafka_awaited(
    bootstrap: str, topic: str, codec: str, values: Sequence[bytes], records: int
) -> dict[str, Any]:
    async with _aiokafka(bootstrap, codec) as producer:
        return await _timed(lambda value: producer.send_and_wait(topic, value), values, records)


async def _aiokafka_transactions(
    bootstrap: str, topic: str, codec: str, values: Sequence[bytes], records: int
) -> dict[str, Any]:
    from aiokafka import AIOKafkaConsumer

    out, group = _out(topic), _group()
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    async with consumer, _aiokafka(bootstrap, codec, transactional_id=group) as producer:
        clock: _Clock | None = None
        done = first = 0
        while done < records:
            found = await consumer.getmany(timeout_ms=10_000, max_records=PER_TRANSACTION)
            async with producer.transaction():
                for chunk in found.values():
                    for record in chunk:
                        await producer.send(out, record.value, key=record.key)
                    done += len(chunk)
                offsets = {tp: chunk[-1].offset + 1 for tp, chunk in found.items()}
                await producer.send_offsets_to_transaction(offsets, group)
            if clock is None:
                clock, first = _Clock(), done
        assert clock is not None
        return clock.stop(done - first)


# ---------------------------------------------------------------- librdkafka


async def _confluent(
    bootstrap: str, topic: str, codec: str, values: Sequence[bytes], records: int
) -> dict[str, Any]:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": True,
        }
    )
    producer.produce(topic, values[0])
    producer.flush()
    clock = _Clock()
    for _ in range(records // len(values)):
        for value in values:
            try:
                producer.produce(topic, value)
            except BufferError:
                producer.poll(0.1)
                producer.produce(topic, value)
        producer.poll(0)
    producer.flush()
    return clock.stop(records)


# ---------------------------------------------------------------- for all


def _group() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"


def _out(topic: str) -> str:
    """Return the topic to which the records of a topic are forwarded."""
    return f"{topic}-out"


async def _concurrently(write: Callable[[], Awaitable[None]], records: int) -> dict[str, Any]:
    clock = _Clock()
    async with anyio.create_task_group() as tasks:
        for _ in range(SENDERS):
            tasks.start_soon(write)
    return clock.stop(records)


async def _timed(
    send: Callable[[bytes], Awaitable[object]], values: Sequence[bytes], records: int
) -> dict[str, Any]:
    """Return the milliseconds of each record; those of the first tenth are not counted."""
    found = []
    for value in _endless(values, records):
        started = time.perf_counter()
        await send(value)
        found.append((time.perf_counter() - started) * 1e3)
    return {"ms": found[records // 10 :]}


_WRITERS: dict[str, Write] = {
    "kafkagroup_nowait": _kafkagroup_nowait,
    "kafkagroup_concurrent": _kafkagroup_concurrent,
    "kafkagroup_awaited": _kafkagroup_awaited,
    "kafkagroup_transactions": _kafkagroup_transactions,
    "kafkagroup_plain": _kafkagroup_plain,
    "aiokafka_nowait": _aiokafka_nowait,
    "aiokafka_concurrent": _aiokafka_concurrent,
    "aiokafka_awaited": _aiokafka_awaited,
    "aiokafka_transactions": _aiokafka_transactions,
    "confluent": _confluent,
}

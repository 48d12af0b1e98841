"""Read a topic with each client, in the process of a trial.

The clock runs from the first record, or chunk of records, to the last: it excludes imports, joining
and the first response, except for the bare socket. CPU is that of the whole process, including
background threads. Every value is read, so that no client wins by not decoding. Settings are each
client's defaults, except that all start at the beginning: librdkafka does not check CRCs by
default, the others do.
"""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any, ClassVar

import anyio
import attrs

from kafkagroup.wire.codec import decode, encode
from kafkagroup.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kafkagroup.wire.records import read_batches

from .figures import percentile

__all__ = ["CHUNK", "VALUE_BYTES", "trial"]

CHUNK = 5_000
"""Records that peers are asked for at once, where they give many."""

VALUE_BYTES = 100
_TICK = 0.01
"""Seconds between the ticks of a ticker."""
_TICKING = 3.0
"""Seconds that it ticks, at least: p99 takes hundreds of ticks."""
_TIMEOUT = 10.0
"""Seconds that a peer may wait for records."""


def trial(
    *, reader: str, bootstrap: str, topic: str, records: int, size: int = VALUE_BYTES
) -> dict[str, float]:
    """Read all records of the topic, with values of `size` bytes; return speed and cost by unit."""
    _Clock.size = size
    return _READERS[reader](bootstrap, topic, records)


@attrs.define(eq=False)
class _Clock:
    """Time and CPU since the first records."""

    size: ClassVar[int] = VALUE_BYTES
    """Of every value: each trial is a process of its own."""
    first: int
    """How many they were: what came before the clock ran is not counted."""
    started: float = attrs.field(init=False, factory=time.perf_counter)
    cpu: float = attrs.field(init=False, factory=time.process_time)

    def stop(self, records: int, size: int) -> dict[str, float]:
        """Return speed and cost of `records` with values of `size` bytes."""
        seconds = time.perf_counter() - self.started
        cpu = time.process_time() - self.cpu
        if size != records * self.size:
            raise SystemExit(f"{size} bytes came in {records} records of {self.size}")
        counted = records - self.first
        return {"records/s": counted / seconds, "CPU us/record": cpu / counted * 1e6}


def _group() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"


# ---------------------------------------------------------------- asyncio clients


@asynccontextmanager
async def _kafkagroup(bootstrap: str, topic: str) -> AsyncIterator[Any]:
    from kafkagroup import Consumer

    async with Consumer(topic, bootstrap_servers=bootstrap, group_id=_group()) as consumer:
        yield consumer


@asynccontextmanager
async def _aiokafka(bootstrap: str, topic: str) -> AsyncIterator[Any]:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=_group(), auto_offset_reset="earliest"
    )
    async with consumer:
        yield consumer


def _one_by_one(opened: Callable[[str, str], Any]) -> Callable[[str, str, int], dict[str, float]]:
    async def read(bootstrap: str, topic: str, records: int) -> dict[str, float]:
        async with opened(bootstrap, topic) as consumer:
            size = len((await anext(consumer)).value)
            left = records - 1
            clock = _Clock(1)
            async for record in consumer:
                size += len(record.value)
                left -= 1
                if not left:
                    break
            return clock.stop(records, size)

    return lambda *arguments: anyio.run(read, *arguments)


def _kafkagroup_many(bootstrap: str, topic: str, records: int) -> dict[str, float]:
    async def read() -> dict[str, float]:
        async with _kafkagroup(bootstrap, topic) as consumer:
            batches = consumer.batches()
            first = await anext(batches)
            seen, size = len(first), _size(first)
            clock = _Clock(seen)
            while seen < records:
                batch = await anext(batches)
                seen += len(batch)
                size += _size(batch)
            return clock.stop(seen, size)

    return anyio.run(read)


def _kafkagroup_arrow(bootstrap: str, topic: str, records: int) -> dict[str, float]:
    async def read() -> dict[str, float]:
        async with _kafkagroup(bootstrap, topic) as consumer:
            batches = consumer.batches(arrow=True)
            first = await anext(batches)
            seen, size = first.num_rows, first.column("value").buffers()[2].size
            clock = _Clock(seen)
            while seen < records:
                batch = await anext(batches)
                seen += batch.num_rows
                size += batch.column("value").buffers()[2].size
            return clock.stop(seen, size)

    return anyio.run(read)


def _ticking(read: Callable[[Any, int], Any]) -> Callable[[str, str, int], dict[str, float]]:
    """Return the p99 delay of a ticker beside a client that reads at full speed, in
    milliseconds."""

    async def run(bootstrap: str, topic: str, records: int) -> dict[str, float]:
        late: list[float] = []

        async def tick() -> None:
            due = anyio.current_time()
            while True:
                due += _TICK
                await anyio.sleep_until(due)
                now = anyio.current_time()
                late.append(now - due)
                due = now

        async with _kafkagroup(bootstrap, topic) as consumer:
            await anext(consumer)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tick)
                until = anyio.current_time() + _TICKING
                while anyio.current_time() < until:
                    await consumer.seek_to_beginning()
                    await read(consumer, records)
                tasks.cancel_scope.cancel()
        return {"ms late": percentile(late, 99) * 1000}

    return lambda *arguments: anyio.run(run, *arguments)


async def _iterate(consumer: Any, records: int) -> None:
    async for _ in consumer:
        records -= 1
        if not records:
            return


async def _iterate_batches(consumer: Any, records: int) -> None:
    async for batch in consumer.batches():
        records -= _size(batch) // _Clock.size
        if not records:
            return


async def _rest(consumer: Any, records: int) -> None:
    """Return the delay caused by the machine alone."""
    await anyio.sleep(_TICKING)


def _bare(bootstrap: str, topic: str, records: int) -> dict[str, float]:
    """Read the same responses with a socket that requests the next at once and only counts batches:
    the limit of broker and loopback."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    at = dict.fromkeys(range(anyio.run(_partitions, bootstrap, topic)), 0)
    clock = _Clock(0)
    with socket.create_connection((host, int(port))) as peer:
        seen = 0
        while seen < records:
            wanted = tuple(
                FetchPartition(partition=n, fetch_offset=offset, partition_max_bytes=1_048_576)
                for n, offset in at.items()
            )
            request = FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=52_428_800,
                topics=(FetchTopic(topic=topic, partitions=wanted),),
            )
            head = struct.pack(">hhih", 1, 12, 0, -1) + b"\0"
            body = head + encode(request, 12)
            peer.sendall(struct.pack(">i", len(body)) + body)
            response = _receive(peer, int.from_bytes(_receive(peer, 4), "big"))
            for part in decode(FetchResponse, 12, response, 5).responses[0].partitions:
                data = part.records or b""
                for batch in read_batches(data, topic=topic, partition=0, check_crcs=False):
                    seen += batch.count
                    at[part.partition_index] = batch.next_offset
    return clock.stop(seen, seen * clock.size)


async def _partitions(bootstrap: str, topic: str) -> int:
    from kafkagroup.broker import Broker
    from kafkagroup.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

    host, _, port = bootstrap.split(",")[0].rpartition(":")
    async with Broker.open(host, int(port)) as broker:
        response = await broker.request(MetadataRequest(topics=(MetadataRequestTopic(name=topic),)))
    return len(response.topics[0].partitions)


def _receive(peer: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        view = view[peer.recv_into(view) :]
    return data


def _aiokafka_many(bootstrap: str, topic: str, records: int) -> dict[str, float]:
    async def read() -> dict[str, float]:
        async with _aiokafka(bootstrap, topic) as consumer:
            clock: _Clock | None = None
            seen = size = 0
            while seen < records:
                found = await consumer.getmany(timeout_ms=_TIMEOUT * 1000, max_records=CHUNK)
                for chunk in found.values():
                    seen += len(chunk)
                    size += _size(chunk)
                if clock is None:
                    clock = _Clock(seen)
            assert clock is not None
            return clock.stop(seen, size)

    return anyio.run(read)


def _size(records: Any) -> int:
    return sum([len(record.value) for record in records])


# ---------------------------------------------------------------- librdkafka


def _confluent(bootstrap: str, topic: str) -> Any:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": _group(), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    return consumer


def _confluent_one(bootstrap: str, topic: str, records: int) -> dict[str, float]:
    with closing(_confluent(bootstrap, topic)) as consumer:
        size = len(consumer.poll(_TIMEOUT).value())
        clock = _Clock(1)
        for _ in range(records - 1):
            size += len(consumer.poll(_TIMEOUT).value())
        return clock.stop(records, size)


def _confluent_many(bootstrap: str, topic: str, records: int) -> dict[str, float]:
    with closing(_confluent(bootstrap, topic)) as consumer:
        clock: _Clock | None = None
        seen = size = 0
        while seen < records:
            # Asked for more than there is, it would wait for the rest in vain.
            chunk = consumer.consume(min(CHUNK, records - seen), _TIMEOUT)
            seen += len(chunk)
            size += sum([len(record.value()) for record in chunk])
            if clock is None:
                clock = _Clock(seen)
        assert clock is not None
        return clock.stop(seen, size)


# ---------------------------------------------------------------- kafka-python


def _kafka_python(bootstrap: str, topic: str, records: int) -> dict[str, float]:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=_group(), auto_offset_reset="earliest"
    )
    clock: _Clock | None = None
    seen = size = 0
    with closing(consumer):
        while seen < records:
            for chunk in consumer.poll(_TIMEOUT * 1000, max_records=CHUNK).values():
                seen += len(chunk)
                size += _size(chunk)
            if clock is None and seen:
                clock = _Clock(seen)
        assert clock is not None
        return clock.stop(seen, size)


_READERS: dict[str, Callable[[str, str, int], dict[str, float]]] = {
    "kafkagroup_one": _one_by_one(_kafkagroup),
    "kafkagroup_many": _kafkagroup_many,
    "kafkagroup_arrow": _kafkagroup_arrow,
    "kafkagroup_one_ticking": _ticking(_iterate),
    "kafkagroup_many_ticking": _ticking(_iterate_batches),
    "kafkagroup_resting": _ticking(_rest),
    "kafka_python": _kafka_python,
    "bare": _bare,
    "aiokafka_one": _one_by_one(_aiokafka),
    "aiokafka_many": _aiokafka_many,
    "confluent_one": _confluent_one,
    "confluent_many": _confluent_many,
}

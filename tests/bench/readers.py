"""Reading a topic with each client, in the process of a trial.

The clock runs from the first record, or chunk of records, to the last: imports, joining and the
first answer are outside of it. CPU is that of the whole process, background threads included. Every
value is looked at, so that nobody wins by not decoding. Settings are each client's defaults, but
that all start at the beginning: librdkafka does not check CRCs then, the others do.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import anyio
import attrs

__all__ = ["CHUNK", "VALUE_BYTES", "trial"]

CHUNK = 5_000
"""Records that peers are asked for at once, where they give many."""

VALUE_BYTES = 100
_PATIENCE = 10.0
"""Seconds that a peer may wait for records."""


def trial(*, reader: str, bootstrap: str, topic: str, records: int) -> dict[str, float]:
    """Read all records of the topic; answer speed and cost by their unit."""
    return _READERS[reader](bootstrap, topic, records)


@attrs.define(eq=False)
class _Clock:
    """Time and CPU since the first records."""

    first: int
    """How many they were: what came before the clock ran is not counted."""
    started: float = attrs.field(init=False, factory=time.perf_counter)
    cpu: float = attrs.field(init=False, factory=time.process_time)

    def stop(self, records: int, size: int) -> dict[str, float]:
        """Speed and cost, after `records` in all with values of `size` bytes in all."""
        seconds = time.perf_counter() - self.started
        cpu = time.process_time() - self.cpu
        if size != records * VALUE_BYTES:
            raise SystemExit(f"{size} bytes came in {records} records of {VALUE_BYTES}")
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


def _aiokafka_many(bootstrap: str, topic: str, records: int) -> dict[str, float]:
    async def read() -> dict[str, float]:
        async with _aiokafka(bootstrap, topic) as consumer:
            clock: _Clock | None = None
            seen = size = 0
            while seen < records:
                found = await consumer.getmany(timeout_ms=_PATIENCE * 1000, max_records=CHUNK)
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
        size = len(consumer.poll(_PATIENCE).value())
        clock = _Clock(1)
        for _ in range(records - 1):
            size += len(consumer.poll(_PATIENCE).value())
        return clock.stop(records, size)


def _confluent_many(bootstrap: str, topic: str, records: int) -> dict[str, float]:
    with closing(_confluent(bootstrap, topic)) as consumer:
        clock: _Clock | None = None
        seen = size = 0
        while seen < records:
            # Asked for more than there is, it would wait for the rest in vain.
            chunk = consumer.consume(min(CHUNK, records - seen), _PATIENCE)
            seen += len(chunk)
            size += sum([len(record.value()) for record in chunk])
            if clock is None:
                clock = _Clock(seen)
        assert clock is not None
        return clock.stop(seen, size)


_READERS: dict[str, Callable[[str, str, int], dict[str, float]]] = {
    "kafkagroup_one": _one_by_one(_kafkagroup),
    "kafkagroup_many": _kafkagroup_many,
    "aiokafka_one": _one_by_one(_aiokafka),
    "aiokafka_many": _aiokafka_many,
    "confluent_one": _confluent_one,
    "confluent_many": _confluent_many,
}

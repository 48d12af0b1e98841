"""Messages of formats 0 and 1 through the whole consumer, on the embedded broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from old_messages import compressed, message, stored

from kafkagroup import Consumer
from kafkagroup.errors import CorruptRecordError
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)
codecs = pytest.mark.parametrize(
    "codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4], ids=lambda c: c.name
)
Cluster = tuple[EmbeddedKafka, Callable[..., Consumer]]


@pytest.fixture
def reading(network: Any) -> Any:
    """Provide a broker with t/0, and consumers that are assigned it."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Cluster]:
        async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
            network.serve_embedded(kafka, 1)

            def consumer(**options: Any) -> Consumer:
                return Consumer(bootstrap_servers="kafka-1", **options)

            with anyio.fail_after(500):
                yield kafka, consumer

    return opened


def fill(kafka: EmbeddedKafka, codec: Codec, count: int = 6) -> list[bytes]:
    """Store `count` records in each format, the newest last; return their values."""
    values = [b"%d" % n for n in range(3 * count)]
    for magic in (0, 1):
        start = magic * count
        kafka.append("t", 0, stored(magic, codec, start, values[start : start + count]))
    kafka.append(
        "t", 0, encode_batch([NewRecord(None, v, 5) for v in values[-count:]], codec=codec)
    )
    return values


@codecs
async def test_all_formats_of_a_log_are_read(reading: Any, codec: Codec) -> None:
    """Every cluster may have topics from before Kafka 0.11; their partitions once stopped."""
    async with reading() as (kafka, consumer):
        values = fill(kafka, codec)
        async with consumer(group_id="g", isolation_level="read_committed") as c:
            await c.assign([TP])
            found = [await c.getone() for _ in values]
            assert [(r.offset, r.value) for r in found] == list(enumerate(values))
            assert [r.timestamp for r in found[5:8]] == [-1, 1006, 1007]
            assert [r.leader_epoch for r in found[10:14]] == [-1, -1, 0, 0]
            await c.commit()
            assert await c.position(TP) == 18
        assert kafka.committed("g", "t") == {0: 18}


@codecs
@pytest.mark.parametrize("start", [2, 5, 6, 9, 11, 12])
async def test_reading_starts_inside_a_compressed_message(
    reading: Any, codec: Codec, start: int
) -> None:
    async with reading() as (kafka, consumer):
        values = fill(kafka, codec)
        async with consumer() as c:
            await c.assign([TP])
            c.seek(TP, start)
            assert [(await c.getone()).value for _ in values[start:]] == values[start:]


@codecs
@pytest.mark.parametrize("arrow", [False, True])
async def test_batches(reading: Any, codec: Codec, arrow: bool) -> None:
    """Messages without compression come together: a batch of one row each would be useless."""
    pytest.importorskip("pyarrow")
    async with reading() as (kafka, consumer):
        values = fill(kafka, codec)
        found: list[list[bytes]] = []
        async with consumer() as c:
            await c.assign([TP])
            async for batch in c.batches(arrow=arrow):
                one = batch.column("value").to_pylist() if arrow else [r.value for r in batch]
                found.append(one)
                if sum(map(len, found)) == len(values):
                    break
        assert found == [values[:6], values[6:12], values[12:]]


async def test_a_large_compressed_message_is_prepared_in_a_thread(
    reading: Any, threads: Any
) -> None:
    async with reading() as (kafka, consumer):
        values = fill(kafka, Codec.LZ4, count=2_500)
        async with consumer() as c:
            await c.assign([TP])
            c.seek(TP, 2_490)
            found = [(await c.getone()).value for _ in range(2_520)]
            assert found == values[2_490:5_010]
            c.pause(TP)
            c.resume(TP)
            assert (await c.getone()).value == values[5_010]
    assert threads.jobs


async def test_a_message_larger_than_a_fetch_comes_whole(reading: Any) -> None:
    async with reading() as (kafka, consumer):
        for n in range(3):
            kafka.append("t", 0, message(1, n, bytes(5_000) + b"%d" % n))
        async with consumer(max_partition_fetch_bytes=1_000) as c:
            await c.assign([TP])
            assert [(await c.getone()).value[-1:] for _ in range(3)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (
            compressed(1, Codec.GZIP, 7, compressed(1, Codec.GZIP, 0, message(1, 0))),
            "a compressed message is inside a compressed message",
        ),
        (compressed(0, Codec.GZIP, 7, message(0, 7)[:-1] + b"w"), "CRC-32 mismatch"),
    ],
)
async def test_damage_is_raised_once_after_the_records_before_it(
    reading: Any, damaged: bytes, reason: str
) -> None:
    async with reading() as (kafka, consumer):
        kafka.append("t", 0, stored(1, Codec.GZIP, 0, [b"a", b"b"]))
        kafka.append("t", 0, damaged)
        kafka.append("t", 0, stored(1, Codec.GZIP, 8, [b"c"]))
        async with consumer() as c:
            await c.assign([TP])
            assert [(await c.getone()).value for _ in range(2)] == [b"a", b"b"]
            with pytest.raises(CorruptRecordError) as caught:
                await c.getone()
            assert str(caught.value) == f"t/0 at offset 7: {reason}"
            assert await c.position(TP) == 2
            c.seek(TP, caught.value.offset + 1)
            assert (await c.getone()).value == b"c"


async def test_a_header_name_that_is_not_utf8_stops_nothing(reading: Any) -> None:
    async with reading() as (kafka, consumer):
        for name in ("a", "\udcc3(id", "b"):
            kafka.produce("t", [NewRecord(None, b"v", 1000, ((name, b"7"),))])
        async with consumer() as c:
            await c.assign([TP])
            found = [(await c.getone()).headers for _ in range(3)]
        assert found == [((name, b"7"),) for name in ("a", "\udcc3(id", "b")]

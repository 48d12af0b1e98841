"""Producers and consumers of other clients and of this library, with records in one form:
`Written`.

Writers with a transactional id write the records in two transactions, and others between them in
one that they abort. Readers of other clients read to the end of each partition, and at least a
given number of records.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as TheirPartition
from anyio.to_thread import run_sync
from assign.java_side import compiled, find_java

from kafkagroup import Consumer, Producer, TopicPartition
from kafkagroup.testing.local import LocalKafkaUnavailable
from kafkagroup.types import Headers

__all__ = [
    "CODECS",
    "OTHERS",
    "Found",
    "Written",
    "by_partition",
    "java_partitions",
    "read",
    "read_by",
    "samples",
    "samples_of",
    "topics_of",
    "write",
    "write_by",
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OTHERS = ("librdkafka", "aiokafka", "java")
"""The other clients."""
PARTITIONS = 3

_PROGRAM = Path(__file__).parent / "java" / "Records.java"
_TIMEOUT = 60.0


class Written(NamedTuple):
    """A record, as producers are asked to write it and consumers return it."""

    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


Found = dict[str, dict[int, list[Written]]]
"""Topic -> partition -> its records, in the order of the log."""


def by_partition(records: Iterable[Written]) -> dict[int, list[Written]]:
    found: dict[int, list[Written]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return found


def samples() -> list[Written]:
    """Return records with all combinations of absent, empty and longer keys and values."""
    keys = (None, b"", b"key", bytes(range(256)) * 5)
    values = (None, b"", b"value", b"\xff\x00" * 3_000)
    headers: tuple[Any, ...] = (
        (),
        (("name", b"value"),),
        (("", b""), ("twice", b"1"), ("twice", None), ("straße", bytes(range(256)))),
    )
    return [
        # Timestamps are not in order.
        Written(number % PARTITIONS, 1_700_000_000_000 + 7919 * number % 1000, *fields)
        for number, fields in enumerate(product(keys, values, headers))
    ]


def samples_of(writer: str) -> list[Written]:
    """Return those samples that a client can write: aiokafka refuses a record with neither key nor
    value."""
    return [
        one
        for one in samples()
        if writer != "aiokafka" or not (one.key is None and one.value is None)
    ]


def topics_of(name: str) -> dict[str, str]:
    """Return a topic for each codec."""
    return {f"{name}-{codec}": codec for codec in CODECS}


def _transactions(records: Sequence[Written]) -> list[tuple[Sequence[Written], bool]]:
    """Return the records of each transaction, and whether it is committed."""
    half = len(records) // 2
    aborted = [one._replace(value=b"aborted") for one in records[: 2 * PARTITIONS]]
    return [(records[:half], True), (aborted, False), (records[half:], True)]


async def write_by(
    client: str,
    bootstrap: str,
    codecs: Mapping[str, str],
    records: Sequence[Written],
    transactional_id: str | None = None,
) -> None:
    """Write the records to each topic. `codecs`: by topic."""
    if client == "java":
        await run_sync(_write_by_java, bootstrap, codecs, records, transactional_id)
        return
    for topic, codec in codecs.items():
        key = None if transactional_id is None else f"{transactional_id}-{codec}"
        if client == "librdkafka":
            await run_sync(_write_by_librdkafka, bootstrap, topic, codec, records, key)
        elif client == "aiokafka":
            await _write_by_aiokafka(bootstrap, topic, codec, records, key)
        else:
            await write(bootstrap, topic, codec, records, key)


async def read_by(
    client: str, bootstrap: str, counts: Mapping[str, int], isolation: str = "read_uncommitted"
) -> Found:
    """Return the records of each topic. `counts`: by topic, how many there are at least."""
    if client == "aiokafka":
        return await _read_by_aiokafka(bootstrap, counts, isolation)
    by = {"java": _read_by_java, "librdkafka": _read_by_librdkafka}[client]
    return await run_sync(by, bootstrap, counts, isolation)


# ---------------------------------------------------------------- this library


async def write(
    bootstrap: str,
    topic: str,
    codec: Any,
    records: Sequence[Written],
    transactional_id: str | None = None,
) -> None:
    """Write the records; check what the producer returns for each."""
    async with Producer(
        bootstrap_servers=bootstrap,
        compression_type=codec,
        linger_ms=20,
        transactional_id=transactional_id,
    ) as producer:
        if transactional_id is None:
            offsets = await _write_all(producer, topic, records)
            for partition, found in offsets.items():
                assert found == list(range(len(found))), partition
            return
        for some, is_committed in _transactions(records):
            with suppress(InterruptedError):
                async with producer.transaction() as tx:
                    await _write_all(tx, topic, some)
                    if not is_committed:
                        raise InterruptedError


async def _write_all(producer: Any, topic: str, records: Sequence[Written]) -> dict[int, list[int]]:
    """Return the offsets in each partition."""
    sent = [
        producer.send_nowait(
            topic,
            record.value,
            key=record.key,
            partition=record.partition,
            timestamp=record.timestamp,
            headers=record.headers,
        )
        for record in records
    ]
    offsets: dict[int, list[int]] = {}
    for record, one in zip(records, sent, strict=True):
        written = await one
        assert written == (topic, record.partition, written.offset, record.timestamp)
        offsets.setdefault(record.partition, []).append(written.offset)
    return offsets


async def read(
    bootstrap: str, counts: Mapping[str, int], isolation: Any = "read_uncommitted"
) -> Found:
    """Return that many records of each topic."""
    found: Found = {topic: {} for topic in counts}
    async with Consumer(bootstrap_servers=bootstrap, isolation_level=isolation) as consumer:
        await consumer.assign(
            [TopicPartition(topic, n) for topic in counts for n in range(PARTITIONS)]
        )
        with anyio.fail_after(_TIMEOUT):
            for _ in range(sum(counts.values())):
                one = await consumer.getone()
                found[one.topic].setdefault(one.partition, []).append(
                    Written(one.partition, one.timestamp, one.key, one.value, one.headers)
                )
    return found


# ---------------------------------------------------------------- librdkafka


def _write_by_librdkafka(
    bootstrap: str,
    topic: str,
    codec: str,
    records: Sequence[Written],
    transactional_id: str | None,
) -> None:
    options = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
    if transactional_id is None:
        _produce(confluent_kafka.Producer(options), topic, records)
        return
    producer = confluent_kafka.Producer(options | {"transactional.id": transactional_id})
    producer.init_transactions(_TIMEOUT)
    for some, is_committed in _transactions(records):
        producer.begin_transaction()
        _produce(producer, topic, some)
        if is_committed:
            producer.commit_transaction(_TIMEOUT)
        else:
            producer.abort_transaction(_TIMEOUT)


def _produce(producer: Any, topic: str, records: Sequence[Written]) -> None:
    failures: list[Any] = []
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            partition=record.partition,
            timestamp=record.timestamp,
            headers=list(record.headers),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert (producer.flush(_TIMEOUT), failures) == (0, [])


def _read_by_librdkafka(bootstrap: str, counts: Mapping[str, int], isolation: str) -> Found:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    found: Found = {topic: {} for topic in counts}
    ends: dict[TopicPartition, int] = {}
    places = [
        confluent_kafka.TopicPartition(topic, partition, 0)
        for topic in counts
        for partition in consumer.list_topics(topic, _TIMEOUT).topics[topic].partitions
    ]
    consumer.assign(places)
    deadline = time.monotonic() + _TIMEOUT
    while len(ends) < len(places) or any(
        sum(map(len, found[topic].values())) < count for topic, count in counts.items()
    ):
        assert time.monotonic() < deadline, "records are missing"
        message = consumer.poll(0.1)
        if message is None:
            continue
        tp = TopicPartition(message.topic(), message.partition())
        if (error := message.error()) is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            ends[tp] = message.offset()
            continue
        ends.pop(tp, None)
        found[tp.topic].setdefault(tp.partition, []).append(
            Written(
                tp.partition,
                message.timestamp()[1],
                message.key(),
                message.value(),
                tuple(message.headers() or ()),
            )
        )
    consumer.close()
    return found


# ---------------------------------------------------------------- aiokafka


async def _write_by_aiokafka(
    bootstrap: str,
    topic: str,
    codec: str,
    records: Sequence[Written],
    transactional_id: str | None,
) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        linger_ms=20,
        transactional_id=transactional_id,
    )
    async with producer:
        if transactional_id is None:
            await _send(producer, topic, records)
            return
        for some, is_committed in _transactions(records):
            await producer.begin_transaction()
            await _send(producer, topic, some)
            if is_committed:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()


async def _send(producer: AIOKafkaProducer, topic: str, records: Sequence[Written]) -> None:
    sent = [
        await producer.send(
            topic,
            record.value,
            record.key,
            partition=record.partition,
            timestamp_ms=record.timestamp,
            headers=list(record.headers),
        )
        for record in records
    ]
    for one in sent:
        await one


async def _read_by_aiokafka(bootstrap: str, counts: Mapping[str, int], isolation: str) -> Found:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation)
    found: Found = {topic: {} for topic in counts}
    async with consumer:
        for topic in counts:
            await consumer._client._wait_on_metadata(topic)
        places = [
            TheirPartition(topic, partition)
            for topic in counts
            for partition in consumer.partitions_for_topic(topic)
        ]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        deadline = time.monotonic() + _TIMEOUT
        while True:
            for tp, chunk in (await consumer.getmany(timeout_ms=50)).items():
                found[tp.topic].setdefault(tp.partition, []).extend(
                    Written(tp.partition, one.timestamp, one.key, one.value, tuple(one.headers))
                    for one in chunk
                )
            ends = await consumer.end_offsets(places)
            if all(
                sum(map(len, found[topic].values())) >= count for topic, count in counts.items()
            ) and all([await consumer.position(tp) >= ends[tp] for tp in places]):
                return found
            assert time.monotonic() < deadline, "records are missing"


# ---------------------------------------------------------------- Java


def _write_by_java(
    bootstrap: str,
    codecs: Mapping[str, str],
    records: Sequence[Written],
    transactional_id: str | None,
) -> None:
    topics = [f"{topic}={codec}" for topic, codec in codecs.items()]
    lines = [_line(record) for record in records]
    if transactional_id is not None:
        lines = [
            line
            for some, is_committed in _transactions(records)
            for line in (*map(_line, some), "commit" if is_committed else "abort")
        ]
    _java("write", bootstrap, transactional_id or "-", *topics, lines=lines)


def _read_by_java(bootstrap: str, counts: Mapping[str, int], isolation: str) -> Found:
    found: Found = {topic: {} for topic in counts}
    topics = [f"{topic}={count}" for topic, count in counts.items()]
    for line in _java("read", bootstrap, isolation, *topics):
        topic, record = _record(line)
        found[topic].setdefault(record.partition, []).append(record)
    return found


def java_partitions(keys: Iterable[bytes]) -> list[list[int]]:
    """Return for each key its partition among 1, 2, ... 50."""
    lines = _java("partition", lines=map(_hex, keys))
    return [list(map(int, line.split())) for line in lines]


def _java(*arguments: str, lines: Iterable[str] = ()) -> list[str]:
    try:
        java = find_java()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"Java's producer and consumer are NOT TRIED: {error}")
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    path = f"{compiled(_PROGRAM)}:{java.jars}/*"
    done = subprocess.run(
        [java.command, "-XX:TieredStopAtLevel=1", quiet, "-cp", path, _PROGRAM.stem, *arguments],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        encoding="ascii",
        timeout=2 * _TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def _line(record: Written) -> str:
    headers = ",".join(f"{_hex(name.encode())}:{_hex(value)}" for name, value in record.headers)
    fields = ("-", record.partition, record.timestamp, _hex(record.key), _hex(record.value))
    return " ".join(map(str, (*fields, headers)))


def _record(line: str) -> tuple[str, Written]:
    topic, partition, timestamp, key, value, headers = line.split(" ")
    pairs = (header.split(":") for header in headers.split(",") if header)
    found = tuple(((_bytes(name) or b"").decode(), _bytes(of)) for name, of in pairs)
    return topic, Written(int(partition), int(timestamp), _bytes(key), _bytes(value), found)


def _hex(data: bytes | None) -> str:
    return "-" if data is None else f"={data.hex()}"


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text[1:])

"""Producers and consumers of other clients, with records in one form: `Written`.

All of them block, except aiokafka's. Readers read to the end of each partition, and at least a
given number of records.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as TheirPartition
from assign.java_side import compiled, find_java

from kafkagroup import TopicPartition
from kafkagroup.testing.local import LocalKafkaUnavailable
from kafkagroup.types import Headers

__all__ = [
    "Written",
    "java_partitions",
    "read_by_aiokafka",
    "read_by_java",
    "read_by_librdkafka",
    "write_by_aiokafka",
    "write_by_java",
    "write_by_librdkafka",
]

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


# ---------------------------------------------------------------- librdkafka


def write_by_librdkafka(bootstrap: str, topic: str, codec: str, records: Sequence[Written]) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
    )
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


def read_by_librdkafka(
    bootstrap: str, counts: Mapping[str, int], isolation: str = "read_uncommitted"
) -> Found:
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


async def write_by_aiokafka(
    bootstrap: str, topic: str, codec: str, records: Sequence[Written]
) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        linger_ms=20,
    )
    async with producer:
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


async def read_by_aiokafka(
    bootstrap: str, counts: Mapping[str, int], isolation: str = "read_uncommitted"
) -> Found:
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


def write_by_java(bootstrap: str, codecs: Mapping[str, str], records: Sequence[Written]) -> None:
    """Write the records to each topic. `codecs`: by topic."""
    topics = [f"{topic}={codec}" for topic, codec in codecs.items()]
    _java("write", bootstrap, *topics, lines=map(_line, records))


def read_by_java(
    bootstrap: str, counts: Mapping[str, int], isolation: str = "read_uncommitted"
) -> Found:
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

"""Milliseconds from `produce()` to the application, at 10, 200 and 2,000 records a second.

python -m tests.bench.latency [--bootstrap HOST:PORT] [--rounds N] [--seconds N] [--json FILE]

Each client has its own process, its own topic of 4 partitions, and default settings. One producer,
librdkafka's in a separate process, writes at one rate to one topic after another, a few seconds
each, round by round: all clients share the broker and the noise of the machine. Each record
contains the time of `produce()` on the clock shared by all processes. A value is the median, or the
99th percentile, of one turn.
"""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from . import broker
from . import trial as trials
from .command import Settings, main
from .figures import Figure, Target, percentile

__all__ = ["CLIENTS", "END", "PARTITIONS", "READERS", "VALUE", "measure", "produce", "trial"]

PARTITIONS = 4
RATES = (10, 200, 2_000)
"""Records a second."""

LEAST = 50
"""Records of a turn."""

CLIENTS: Mapping[str, str] = {
    "kafkagroup async for": "kafkagroup",
    "aiokafka async for": "aiokafka",
    "kafka-python poll": "kafka_python",
    "confluent AIOConsumer": "confluent_aio",
    "confluent poll": "confluent",
}
"""Client -> its reader."""

COMPARED = ("aiokafka async for", "kafka-python poll", "confluent AIOConsumer")
"""The clients that ours must not be later than. `confluent poll` has no target: librdkafka wakes a
thread that blocks, which takes 0.1 ms less than waking an event loop."""

PERCENTS = (50, 99)

OURS = "kafkagroup async for"

NO_LATER = Target(50, 1.0)
"""For the median: than each of `COMPARED` in the same round. The 99th percentile of one turn varies
by a factor of three from turn to turn, so it is compared over the records of all rounds."""

_MOST_TURN = 10.0
"""Seconds of a turn, at most."""
_GAP = 0.2
"""Seconds between two turns: what is late in one must not be in the way of the next."""
_TIMEOUT = 60.0
"""Seconds until all clients have read a first record."""
_SILENCE = 2 * len(CLIENTS) * (_MOST_TURN + _GAP)
"""Seconds that a client waits for a record: the first of one round is the last of the next."""
VALUE = struct.Struct(">qi")
"""When it was produced, in nanoseconds, and in which round."""
_WARM, END = -1, -2
"""Instead of a round: what comes before the first, and behind the last."""


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """Return the figures of all clients, in milliseconds."""
    figures = []
    for rate in RATES:
        found = _run(bootstrap, rate, settings)
        for percent in PERCENTS:
            of_client = {
                client: tuple(percentile(turn, percent) for turn in turns)
                for client, turns in found.items()
            }
            name = "median" if percent == 50 else f"p{percent}"
            what = f"{rate:,} records/s: ms from produce() to the application, {name}"
            figures += [
                Figure(what=what, client=client, values=values)
                for client, values in of_client.items()
            ]
            figures += [
                Figure(
                    what=f"{rate:,} records/s: times {peer}'s {name}",
                    client=OURS,
                    values=tuple(
                        one / other for one, other in zip(of_client[OURS], values, strict=True)
                    ),
                    target=NO_LATER if peer in COMPARED and percent == 50 else None,
                )
                for peer, values in of_client.items()
                if peer != OURS
            ]
        figures += _tails(rate, found)
    return figures


def _tails(rate: int, found: Mapping[str, list[list[float]]]) -> list[Figure]:
    """Return the ratios of the 99th percentiles of all rounds' records."""
    tails = {client: percentile([*chain(*turns)], 99) for client, turns in found.items()}
    return [
        Figure(
            what=f"{rate:,} records/s: times {peer}'s p99, all rounds together",
            client=OURS,
            values=(tails[OURS] / tail,),
            target=NO_LATER if peer in COMPARED else None,
        )
        for peer, tail in tails.items()
        if peer != OURS
    ]


def _run(bootstrap: str, rate: int, settings: Settings) -> dict[str, list[list[float]]]:
    """Return client -> the milliseconds of each turn."""
    seconds = min(max(LEAST / rate, settings.seconds / 8), _MOST_TURN)
    rounds = 4 * settings.rounds
    lasts = rounds * len(CLIENTS) * (seconds + _GAP)
    with ExitStack() as stack:
        ready = stack.enter_context(TemporaryDirectory())
        topics = {
            reader: stack.enter_context(broker.topic(bootstrap, PARTITIONS))
            for reader in CLIENTS.values()
        }
        pool = stack.enter_context(ThreadPoolExecutor(len(topics) + 1))
        reading = {
            client: pool.submit(
                trials.run,
                "latency",
                lasts=lasts,
                role=reader,
                bootstrap=bootstrap,
                topics=[topics[reader]],
                ready=ready,
            )
            for client, reader in CLIENTS.items()
        }
        trials.run(
            "latency",
            lasts=lasts,
            role="producer",
            bootstrap=bootstrap,
            topics=list(topics.values()),
            ready=ready,
            rate=rate,
            seconds=seconds,
            rounds=rounds,
        )
        turns = {client: future.result() for client, future in reading.items()}
    return {
        client: [[ns / 1e6 for ns in found[str(n)]] for n in range(rounds)]
        for client, found in turns.items()
    }


# ---------------------------------------------------------------- in the process of a trial


def trial(
    *,
    role: str,
    bootstrap: str,
    topics: list[str],
    ready: str,
    rate: int = 0,
    seconds: float = 0.0,
    rounds: int = 0,
) -> dict[int, list[int]]:
    """Return round -> the nanoseconds of each record, for one reader. It creates a file in `ready`
    after its first record; the producer waits for one of each topic."""
    if role == "producer":
        produce(bootstrap, topics, Path(ready), rate, seconds, rounds)
        return {}
    turns: dict[int, list[int]] = {}
    began = False

    def take(value: bytes) -> bool:
        """Take a record's value; return whether another will follow."""
        nonlocal began
        now = time.monotonic_ns()
        produced, number = VALUE.unpack(value)
        if number >= 0:
            turns.setdefault(number, []).append(now - produced)
        elif not began:
            began = True
            Path(ready, topics[0]).touch()
        return bool(number != END)

    READERS[role](bootstrap, topics[0], f"bench-{uuid.uuid4().hex[:8]}", take)
    return turns


def produce(
    bootstrap: str, topics: list[str], ready: Path, rate: int, seconds: float, rounds: int
) -> None:
    """Write to each topic in turn, `seconds` at a time, after each has its file in `ready`."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "socket.nagle.disable": True}
    )

    def send(topic: str, number: int, round_: int) -> None:
        value = VALUE.pack(time.monotonic_ns(), round_)
        producer.produce(topic, value, partition=number % PARTITIONS)
        producer.poll(0)

    deadline = time.monotonic() + _TIMEOUT
    while not all((ready / topic).exists() for topic in topics):
        if time.monotonic() > deadline:
            raise SystemExit(f"not every client has read a record within {_TIMEOUT:g} s")
        for topic in topics:
            send(topic, 0, _WARM)
        time.sleep(0.1)
    for topic in topics:
        for number in _paced(2 * rate, rate):
            send(topic, number, _WARM)
    for round_ in range(rounds):
        # Who comes first in one round comes last in the next but one.
        start = round_ % len(topics)
        for topic in topics[start:] + topics[:start]:
            time.sleep(_GAP)
            for number in _paced(round(rate * seconds), rate):
                send(topic, number, round_)
    time.sleep(_GAP)
    for topic in topics:
        send(topic, 0, END)
    producer.flush()


def _paced(count: int, rate: int) -> Iterator[int]:
    """Generate numbers at a rate, catching up after delays."""
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        yield number


Take = Callable[[bytes], bool]


def _kafkagroup(bootstrap: str, topic: str, group: str, take: Take) -> None:
    from kafkagroup import Consumer

    asyncio.run(_iterate(Consumer(topic, bootstrap_servers=bootstrap, group_id=group), take))


def _aiokafka(bootstrap: str, topic: str, group: str, take: Take) -> None:
    from aiokafka import AIOKafkaConsumer

    async def read() -> None:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
        )
        await _iterate(consumer, take)

    asyncio.run(read())


async def _iterate(consumer: Any, take: Take) -> None:
    async with consumer:
        async for record in consumer:
            if not take(record.value):
                break


def _confluent(bootstrap: str, topic: str, group: str, take: Take) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    with closing(consumer):
        while (record := consumer.poll(_SILENCE)) is not None and take(record.value()):
            pass


def _confluent_aio(bootstrap: str, topic: str, group: str, take: Take) -> None:
    from confluent_kafka.aio import AIOConsumer

    async def read() -> None:
        consumer = AIOConsumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        )
        await consumer.subscribe([topic])
        while (record := await consumer.poll(_SILENCE)) is not None and take(record.value()):
            pass
        await consumer.close()

    asyncio.run(read())


def _kafka_python(bootstrap: str, topic: str, group: str, take: Take) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    )
    with closing(consumer):
        for record in consumer:
            if not take(record.value):
                break


READERS: Mapping[str, Callable[[str, str, str, Take], None]] = {
    "kafkagroup": _kafkagroup,
    "aiokafka": _aiokafka,
    "kafka_python": _kafka_python,
    "confluent": _confluent,
    "confluent_aio": _confluent_aio,
}


if __name__ == "__main__":
    main(__doc__, {"latency": measure})

"""Whether heartbeats are on time when a thousand members share a process, and its one loop.

python -m tests.bench.punctual [--bootstrap HOST:PORT] [--seconds N] [--json FILE]

The consumers are each in a group of its own, on the real broker and on an embedded one in another
process; once without and once with `gc.freeze()`, which keeps the garbage collector from traversing
their objects. A heartbeat is late by the time since the one before, minus the interval.
`Consumer.metrics` has when the last one was sent. The metrics of each consumer are read more often
than it sends heartbeats, a few consumers at a time, so that reading them delays no heartbeat.
"""

from __future__ import annotations

import asyncio
import gc
import time
import uuid
from itertools import pairwise
from typing import Any

from kafkagroup import Consumer
from kafkagroup.testing import EmbeddedKafka

from . import broker
from . import trial as trials
from .command import Settings, main
from .figures import OURS, Figure, Target

__all__ = ["measure", "sent_at", "trial"]

MEMBERS = 1_000
AT_ONCE = 20
"""How many start at a time."""

INTERVAL = 3_000
"""Milliseconds; aiokafka's and librdkafka's default."""

CALM = 3 * INTERVAL / 1000
"""Seconds after the last join until all beat at their pace."""

TIMEOUT = 120.0
"""Seconds without all having partitions, after which the trial has failed."""

LATE = Target(99, INTERVAL / 10)

_TICK = 0.02
_TICKS = 40
"""How many of these it takes to look at each member once."""


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """Return the milliseconds of lateness."""
    figures = []
    seconds = max(settings.seconds, 4 * INTERVAL // 1000)
    for frozen in (False, True):
        with EmbeddedKafka({"t": 1}) as node:
            found = _run(node.bootstrap_servers, "t", seconds, frozen)
        figures.append(_figure("an embedded broker", found, frozen))
        with broker.topic(bootstrap, 1) as topic:
            found = _run(bootstrap, topic, seconds, frozen)
        figures.append(_figure("Apache Kafka", found, frozen))
    return figures


def _run(bootstrap: str, topic: str, seconds: int, frozen: bool) -> dict[str, Any]:
    return trials.run(
        "punctual",
        lasts=seconds,
        bootstrap=bootstrap,
        topic=topic,
        members=MEMBERS,
        seconds=seconds,
        frozen=frozen,
    )


def _figure(where: str, found: dict[str, Any], frozen: bool) -> Figure:
    collector = "after gc.freeze()" if frozen else "without gc.freeze()"
    return Figure(
        what=f"{MEMBERS} members, {where}, {collector}: ms that a heartbeat is late",
        client=OURS,
        values=tuple(found["late"]),
        target=LATE if frozen else None,
        note=f"interval {INTERVAL}; {found['cpu']:.0%} of a CPU",
    )


def sent_at(looks: list[float]) -> list[float]:
    """Return when heartbeats were sent, from repeated readings of the last one: two within a few
    milliseconds are the same."""
    found = sorted(looks)
    return found[:1] + [after for before, after in pairwise(found) if after - before > 0.01]


# ---------------------------------------------------------------- in the process of a trial


def trial(
    *, bootstrap: str, topic: str, members: int, seconds: int, frozen: bool
) -> dict[str, object]:
    """Return "late": milliseconds of each heartbeat; "cpu": the share of one CPU that the process
    used."""
    return asyncio.run(_beat(bootstrap, topic, members, seconds, frozen))


async def _beat(
    bootstrap: str, topic: str, members: int, seconds: int, frozen: bool
) -> dict[str, object]:
    name = uuid.uuid4().hex[:8]
    consumers = [
        Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=f"bench-{name}-{n}",
            heartbeat_interval_ms=INTERVAL,
        )
        for n in range(members)
    ]
    for first in range(0, members, AT_ONCE):
        await asyncio.gather(*(c.start() for c in consumers[first : first + AT_ONCE]))
    reading = [asyncio.create_task(_read(consumer)) for consumer in consumers]
    async with asyncio.timeout(TIMEOUT):
        while not all(consumer.assignment() for consumer in consumers):
            await asyncio.sleep(0.1)
    if frozen:
        # Recommended for so many consumers in one process: a full collection takes long.
        gc.collect()
        gc.freeze()
    await asyncio.sleep(CALM)
    looks: list[list[float]] = [[] for _ in consumers]
    loop = asyncio.get_running_loop()
    used, began, tick = time.process_time(), loop.time(), 0
    while loop.time() < began + seconds:
        for n in range(tick % _TICKS, members, _TICKS):
            ago = consumers[n].metrics().last_heartbeat_seconds_ago
            looks[n].append(loop.time() - ago)
        tick += 1
        await asyncio.sleep(_TICK)
    cpu = (time.process_time() - used) / (loop.time() - began)
    # What was sent before the first look may have been on its way to settling still.
    times = [[at for at in sent_at(of) if at >= began] for of in looks]
    late = [(after - before) * 1000 - INTERVAL for of in times for before, after in pairwise(of)]
    await asyncio.gather(*(consumer.stop() for consumer in consumers))
    await asyncio.gather(*reading)
    return {"late": late, "cpu": cpu}


async def _read(consumer: Consumer) -> None:
    async for _ in consumer:
        pass


if __name__ == "__main__":
    main(__doc__, {"punctual": measure})

"""The cost of an idle consumer: memory, and CPU time a second.

python -m tests.bench.resting [--bootstrap HOST:PORT] [--seconds N] [--json FILE]

All consumers in one process, each in its own group with the one partition of a topic without
records. Measured are the private memory above that with one warm consumer (Linux only), and the CPU
time of each second. Settings are the clients' defaults: ours sends a heartbeat every second,
aiokafka every three.
"""

from __future__ import annotations

import asyncio
import gc
import time
import uuid
from pathlib import Path
from typing import Any

from . import broker
from . import trial as trials
from .command import Settings, main
from .figures import Figure, Target
from .members import FLEETS, Fleet, Member

__all__ = ["measure", "trial"]

CONSUMERS = 200
AT_ONCE = 20
"""How many start at a time."""

WARM_UP = 10.0
"""Seconds until all consumers are idle: after joining, they send requests more often for a
while."""

MEMORY = Target(50, 100.0)
"""KiB each."""

CPU = Target(50, 0.5)
"""Milliseconds a second each."""

_MEMORY_FILE = Path("/proc/self/smaps_rollup")


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """Return the figures of asyncio clients."""
    figures = []
    for name in ("ours", "aiokafka"):
        with broker.topic(bootstrap, 1) as topic:
            found = trials.run(
                "resting",
                lasts=settings.seconds,
                fleet=name,
                bootstrap=bootstrap,
                topic=topic,
                seconds=settings.seconds,
            )
        ours, client = name == "ours", FLEETS[name].client
        figures.append(
            Figure(
                what="idle consumer: ms of CPU a second",
                client=client,
                values=tuple(found["cpu"]),
                target=CPU if ours else None,
                note=f"one of {CONSUMERS} in a process",
            )
        )
        if found["memory"] is not None:
            figures.append(
                Figure(
                    what="idle consumer: KiB",
                    client=client,
                    values=(found["memory"],),
                    target=MEMORY if ours else None,
                    note=f"one of {CONSUMERS} in a process",
                )
            )
    return figures


# ---------------------------------------------------------------- in the process of a trial


def trial(*, fleet: str, bootstrap: str, topic: str, seconds: int) -> dict[str, Any]:
    """Return "memory": KiB of one consumer, or None; "cpu": ms of one in each second."""
    return asyncio.run(_rest(FLEETS[fleet], bootstrap, topic, seconds))


async def _rest(fleet: Fleet, bootstrap: str, topic: str, seconds: int) -> dict[str, Any]:
    name = uuid.uuid4().hex[:8]
    members = [
        fleet.member(bootstrap, f"bench-{name}-{n}", topic, reset="earliest")
        for n in range(CONSUMERS + 1)
    ]
    await _start(members[:1])
    before = _own_memory()
    for first in range(1, CONSUMERS + 1, AT_ONCE):
        await asyncio.gather(*(m.start() for m in members[first : first + AT_ONCE]))
    await _start([])
    after = _own_memory()
    cpu = []
    for _ in range(seconds):
        used, began = time.process_time(), time.monotonic()
        await asyncio.sleep(1)
        taken = (time.process_time() - used) / (time.monotonic() - began)
        cpu.append(taken / len(members) * 1000)
    memory = None if before is None or after is None else (after - before) / CONSUMERS
    await asyncio.gather(*(m.stop() for m in members))
    return {"memory": memory, "cpu": cpu}


async def _start(members: list[Member]) -> None:
    for member in members:
        await member.start()
    await asyncio.sleep(WARM_UP)
    gc.collect()


def _own_memory() -> int | None:
    """Return the KiB of private memory that was written to."""
    if not _MEMORY_FILE.exists():
        return None
    sizes = dict(line.split(":") for line in _MEMORY_FILE.read_text("ascii").splitlines()[1:])
    return int(sizes["Private_Dirty"].split()[0])


if __name__ == "__main__":
    main(__doc__, {"resting": measure})

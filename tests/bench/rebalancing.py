"""Rebalancing: the time until all partitions have owners again after members join or one leaves.

python -m tests.bench.rebalancing [--bootstrap HOST:PORT] [--repeats N] [--heartbeat-ms N]
    [--json FILE]

20 members of one client in one process, 64 partitions, no initial rebalance delay at the broker. A
repeat uses a new group: all join at once, one more joins, one of them leaves; each change happens
at a random phase of the heartbeats. A change ends at the last callback before every partition has
one owner; at least a heartbeat interval without callbacks confirms it, and lets members with faster
heartbeats during a change return to their interval.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
import uuid
from collections.abc import Mapping

from kafkagroup.testing._jars import LocalKafkaUnavailable
from tests.assign.java_side import find_java

from . import broker
from . import trial as trials
from .command import Settings, main
from .figures import Figure, Target
from .members import FLEETS, settled

__all__ = ["measure", "trial"]

MEMBERS = 20
PARTITIONS = 64

KINDS: Mapping[str, tuple[str, ...]] = {
    "eager": ("ours", "aiokafka", "librdkafka", "java"),
    "cooperative": ("ours_cooperative", "aiokafka", "librdkafka_cooperative", "java_cooperative"),
    "KIP-848": ("ours_assigned", "librdkafka_assigned", "java_assigned"),
}
"""What rebalances alike; aiokafka has no cooperative rebalancing, and is what to beat."""

TARGETS: Mapping[str, Target] = {
    "all join": Target(50, 0.5),
    "one joins": Target(95, 1.2),
    "one leaves": Target(95, 1.2),
}
"""Change -> seconds that ours may take."""

ASSIGNED_JOIN = Target(50, 1.5)
"""The same of all joining where the coordinator assigns: it does so once a second."""


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """Return the figures of all clients, in seconds."""
    kinds = {kind: _there(names) for kind, names in KINDS.items()}
    fleets = dict.fromkeys(name for names in kinds.values() for name in names)
    times: dict[str, list[dict[str, float]]] = {name: [] for name in fleets}
    with broker.topic(bootstrap, PARTITIONS) as topic:
        for seed in range(settings.repeats):
            for name in fleets:
                found = trials.run(
                    "rebalancing",
                    fleet=name,
                    bootstrap=bootstrap,
                    topic=topic,
                    heartbeat_ms=settings.heartbeat_ms,
                    seed=seed,
                )
                times[name].append(found)
    return [
        Figure(
            what=f"{kind}, {change}: s",
            client=FLEETS[name].client,
            values=tuple(one[change] for one in times[name]),
            target=_target(kind, change) if name.startswith("ours") else None,
            note=_pace(settings.heartbeat_ms or FLEETS[name].heartbeat_ms),
        )
        for kind, names in kinds.items()
        for change in TARGETS
        for name in names
    ]


def _pace(heartbeat_ms: int) -> str:
    """Return the requests of an idle member to its coordinator."""
    return f"heartbeat {heartbeat_ms / 1000:g} s: {3_600_000 / heartbeat_ms:g} an hour"


def _there(names: tuple[str, ...]) -> tuple[str, ...]:
    """Without Java, the report says that its consumer is left out."""
    try:
        find_java()
    except LocalKafkaUnavailable as missing:
        print(f"not measured: Java's consumer: {missing}", file=sys.stderr)
        return tuple(name for name in names if not name.startswith("java"))
    return names


def _target(kind: str, change: str) -> Target:
    return ASSIGNED_JOIN if (kind, change) == ("KIP-848", "all join") else TARGETS[change]


def trial(
    *, fleet: str, bootstrap: str, topic: str, heartbeat_ms: int | None, seed: int
) -> dict[str, float]:
    """Return the seconds of each change in one repeat."""
    return asyncio.run(_repeat(fleet, bootstrap, topic, heartbeat_ms, random.Random(seed)))


async def _repeat(
    fleet: str, bootstrap: str, topic: str, heartbeat_ms: int | None, chance: random.Random
) -> dict[str, float]:
    made = FLEETS[fleet]
    group = f"bench-{uuid.uuid4().hex[:8]}"
    heartbeat = (heartbeat_ms or made.heartbeat_ms) / 1000
    quiet = made.quiet(heartbeat_ms)
    members = [
        made.member(bootstrap, group, topic, heartbeat_ms=heartbeat_ms) for _ in range(MEMBERS + 1)
    ]
    times = {}
    present = members[:MEMBERS]
    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for member in present:
            tasks.create_task(member.start())
        times["all join"] = await settled(present, PARTITIONS, quiet) - started

        await asyncio.sleep(chance.uniform(0, heartbeat))
        started = time.perf_counter()
        present = members
        tasks.create_task(members[-1].start())
        times["one joins"] = await settled(present, PARTITIONS, quiet) - started

        await asyncio.sleep(chance.uniform(0, heartbeat))
        started = time.perf_counter()
        leaver = chance.choice(members)
        present = [member for member in members if member is not leaver]
        tasks.create_task(leaver.stop())
        times["one leaves"] = await settled(present, PARTITIONS, quiet) - started
    await asyncio.gather(*(member.stop() for member in present))
    return times


if __name__ == "__main__":
    main(__doc__, {"rebalancing": measure})

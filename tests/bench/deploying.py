"""Rolling deploys: how many rebalances it costs to restart ten members one by one, in each mode.

python -m tests.bench.deploying [--bootstrap HOST:PORT] [--repeats N] [--json FILE]

Ten members, 20 partitions. Each member is stopped and started again at once, the next one when all
partitions have owners again and stand for a while. Counted are generations, or epochs where the
coordinator assigns, and for how long partitions had no owner, all of them added up. Ours alone:
what a deploy costs is for the protocol and the options to say; how long one change takes beside
other clients is told by `rebalancing`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from kafkagroup import Consumer, KafkaGroupError, TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor

from . import broker
from . import trial as trials
from .command import Settings, main
from .figures import Figure

__all__ = ["measure", "trial"]

MEMBERS = 10
PARTITIONS = 20

_QUIET = 1.5
"""Seconds after which nothing more comes of a change: heartbeats are sent once a second."""

_PATIENCE = 90.0

MODES: Mapping[str, Mapping[str, Any]] = {
    "eager": {},
    "cooperative": {"assignors": [cooperative_sticky_assignor]},
    "eager, static": {"static": True},
    "eager, staying (leave_group_on_close=False)": {
        "leave_group_on_close": False,
        "session_timeout_ms": 6_000,
    },
    "KIP-848": {"group_protocol": "consumer"},
    "KIP-848, static": {"group_protocol": "consumer", "static": True},
}


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """The figures of all modes."""
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    with broker.topic(bootstrap, PARTITIONS) as topic:
        for _ in range(settings.repeats):
            for mode, of in found.items():
                of.append(trials.run("deploying", bootstrap=bootstrap, topic=topic, mode=mode))
    return [
        Figure(
            what=f"ten members restarted one by one: {what}",
            client=f"kafkagroup {mode}",
            values=tuple(one[what] for one in of),
        )
        for what in ("rebalances", "s without an owner, of all partitions")
        for mode, of in found.items()
    ]


def trial(*, bootstrap: str, topic: str, mode: str) -> dict[str, float]:
    """One rolling deploy."""
    return asyncio.run(_deploy(bootstrap, topic, dict(MODES[mode])))


class _Owners:
    """Who has what, and for how long nobody had it."""

    def __init__(self) -> None:
        self.of: dict[TopicPartition, object] = {}
        self.changed_at = time.perf_counter()
        self.gap = 0.0
        self._free_since: dict[TopicPartition, float] = {}

    def gained(self, member: object, partitions: Sequence[TopicPartition]) -> None:
        now = time.perf_counter()
        for tp in partitions:
            self.of[tp] = member
            self.gap += now - self._free_since.pop(tp, now)
            self.changed_at = now

    def gone(self, member: object, partitions: Sequence[TopicPartition]) -> None:
        now = time.perf_counter()
        for tp in partitions:
            if self.of.get(tp) is member:
                del self.of[tp]
                self._free_since[tp] = now
                self.changed_at = now

    async def settled(self) -> None:
        """Raises: TimeoutError."""
        async with asyncio.timeout(_PATIENCE):
            while len(self.of) < PARTITIONS or time.perf_counter() - self.changed_at < _QUIET:
                await asyncio.sleep(0.01)


class _Member:
    def __init__(self, owners: _Owners, topic: str, options: Mapping[str, Any]) -> None:
        self.consumer = Consumer(
            topic,
            on_partitions_assigned=lambda tps: owners.gained(self, tps),
            on_partitions_revoked=lambda tps: owners.gone(self, tps),
            on_partitions_lost=lambda tps: owners.gone(self, tps),
            **options,
        )

    async def start(self) -> None:
        await self.consumer.start()
        self._task = asyncio.create_task(self._iterate())

    async def _iterate(self) -> None:
        while True:
            try:
                async for _ in self.consumer:
                    pass
                return
            except KafkaGroupError:
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        await self.consumer.stop()
        await self._task


async def _deploy(bootstrap: str, topic: str, options: dict[str, Any]) -> dict[str, float]:
    options |= {"bootstrap_servers": bootstrap, "group_id": f"bench-{uuid.uuid4().hex[:8]}"}
    static = options.pop("static", False)
    owners = _Owners()

    def member(place: int) -> _Member:
        own = {"group_instance_id": f"place-{place}"} if static else {}
        return _Member(owners, topic, options | own)

    members = [member(place) for place in range(MEMBERS)]
    await asyncio.gather(*(one.start() for one in members))
    await owners.settled()
    before, owners.gap = _generation(members), 0.0
    for place, old in enumerate(members):
        await old.stop()
        members[place] = member(place)
        await members[place].start()
        await owners.settled()
    await asyncio.sleep(
        options.get("session_timeout_ms", 0) / 1000
    )  # those who only seemed to be there
    await owners.settled()
    after, gap = _generation(members), owners.gap
    await asyncio.gather(*(one.stop() for one in members))
    return {"rebalances": after - before, "s without an owner, of all partitions": gap}


def _generation(members: Sequence[_Member]) -> int:
    return max(one.consumer.group_metadata().generation_id for one in members)


if __name__ == "__main__":
    main(__doc__, {"deploying": measure})

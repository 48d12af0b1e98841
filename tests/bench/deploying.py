"""Rolling deploys: the number of rebalances when ten members restart one by one, in each mode.

python -m tests.bench.deploying [--bootstrap HOST:PORT] [--repeats N] [--json FILE]

Ten members, 20 partitions. Each member is stopped and restarted at once, the next one when all
partitions have had stable owners for a while. It counts generations or epochs, and sums the time in
which partitions had no owner. Ours only: the cost of a deploy depends on protocol and options;
`rebalancing` compares the duration of one change with other clients.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from kafkagroup.assign import cooperative_sticky_assignor

from . import broker
from . import trial as trials
from .command import Settings, main
from .figures import Figure
from .members import Ours, settled
from .ownership import Ownership

__all__ = ["measure", "trial"]

MEMBERS = 10
PARTITIONS = 20

_QUIET = 1.5
"""Seconds after which nothing more comes of a change: heartbeats are sent once a second."""

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
    """Return the figures of all modes."""
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
    """Run one rolling deploy."""
    return asyncio.run(_deploy(bootstrap, topic, dict(MODES[mode])))


class _Gaps:
    """The total time in which partitions had no owner."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._free_since: dict[int, float] = {}

    def changed(self, gained: Iterable[int], gone: Iterable[int]) -> None:
        now = time.perf_counter()
        self.seconds += sum(now - self._free_since.pop(n, now) for n in gained)
        self._free_since |= dict.fromkeys(gone, now)


@attrs.define(eq=False, kw_only=True)
class _OwnershipWithGaps(Ownership):
    gaps: _Gaps

    def _change(self, owned: frozenset[int]) -> None:
        self.gaps.changed(owned - self.owned, self.owned - owned)
        super()._change(owned)


async def _deploy(bootstrap: str, topic: str, options: dict[str, Any]) -> dict[str, float]:
    group = f"bench-{uuid.uuid4().hex[:8]}"
    static = options.pop("static", False)
    gaps = _Gaps()

    def member(place: int) -> Ours:
        own = {"group_instance_id": f"place-{place}"} if static else {}
        return Ours(
            bootstrap, group, topic, lambda _: None, options | own, _OwnershipWithGaps(gaps=gaps)
        )

    members = [member(place) for place in range(MEMBERS)]
    await asyncio.gather(*(one.start() for one in members))
    await settled(members, PARTITIONS, _QUIET)
    before, gaps.seconds = _generation(members), 0.0
    for place, old in enumerate(members):
        await old.stop()
        members[place] = member(place)
        await members[place].start()
        await settled(members, PARTITIONS, _QUIET)
    # Until those are gone that only seemed to be there.
    await asyncio.sleep(options.get("session_timeout_ms", 0) / 1000)
    await settled(members, PARTITIONS, _QUIET)
    after, seconds = _generation(members), gaps.seconds
    await asyncio.gather(*(one.stop() for one in members))
    return {"rebalances": after - before, "s without an owner, of all partitions": seconds}


def _generation(members: Sequence[Ours]) -> int:
    return max(one.consumer.group_metadata().generation_id for one in members)


if __name__ == "__main__":
    main(__doc__, {"deploying": measure})

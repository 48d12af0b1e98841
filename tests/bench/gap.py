"""Delivery gaps: how long a kept partition delivers no record during a rebalance.

python -m tests.bench.gap [--bootstrap HOST:PORT] [--changes N] [--heartbeat-ms N] [--json FILE]

A feed appends to each of 16 partitions every 10 ms, so records always wait. A fifth member joins
and leaves a group of 4 of one client. For each change, and each partition read by the same member
throughout, the longest time between two records counts, from the change until half a second after
all partitions have owners. The same is measured without a change, for comparison. aiokafka has no
cooperative rebalancing; its sticky assignor keeps the most.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise

import anyio
from anyio.from_thread import start_blocking_portal

from kafkagroup import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch

from . import broker
from . import trial as trials
from .command import Settings, main
from .figures import Figure, Target
from .members import FLEETS, Fleet, Member, settled

__all__ = ["kept_gaps", "measure", "trial"]

MEMBERS = 4
PARTITIONS = 16
FEED_EVERY = 0.01
"""Seconds between two records of a partition."""

AFTER = 0.5
"""Seconds behind a change that still count as its time."""

CALM = 1.0
"""Seconds of a time without a change: about what one takes. In longer ones more goes wrong."""

CLIENTS = ("ours_cooperative", "aiokafka_sticky", "librdkafka_cooperative")
TARGET = Target(99, 100.0)
"""Milliseconds; invariant L1."""

Read = tuple[float, int]
"""When a record was read, on the clock of `time.perf_counter`, and by which member."""


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """Return the figures of all clients, in milliseconds."""
    figures = []
    for name in CLIENTS:
        with broker.topic(bootstrap, PARTITIONS) as topic, _fed(bootstrap, topic):
            found = trials.run(
                "gap",
                fleet=name,
                bootstrap=bootstrap,
                topic=topic,
                changes=settings.changes,
                heartbeat_ms=settings.heartbeat_ms,
            )
        for when, target in (("while members come and go", TARGET), ("without changes", None)):
            figures.append(
                Figure(
                    what=f"longest gap {when}: ms",
                    client=FLEETS[name].client,
                    values=tuple(found[when]),
                    paired=False,
                    target=target if name.startswith("ours") else None,
                )
            )
    return figures


@contextmanager
def _fed(bootstrap: str, topic: str) -> Iterator[None]:
    """Append records to every partition repeatedly, from a thread."""
    with start_blocking_portal() as portal:
        feed = portal.start_task_soon(_feed, bootstrap, topic)
        yield
        if feed.done():
            feed.result()
        feed.cancel()


async def _feed(bootstrap: str, topic: str) -> None:
    batch = encode_batch([NewRecord(None, bytes(100), 0)])
    batches = {TopicPartition(topic, n): batch for n in range(PARTITIONS)}
    async with broker.connected(bootstrap) as node:
        due = anyio.current_time()
        while True:
            await broker.produce(node, batches)
            due += FEED_EVERY
            await anyio.sleep_until(due)


# ---------------------------------------------------------------- in the process of a trial


def trial(
    *, fleet: str, bootstrap: str, topic: str, changes: int, heartbeat_ms: int | None
) -> dict[str, list[float]]:
    """Return the longest gaps of kept partitions in ms, with changes and without."""
    return asyncio.run(_come_and_go(FLEETS[fleet], bootstrap, topic, changes, heartbeat_ms))


async def _come_and_go(
    fleet: Fleet, bootstrap: str, topic: str, changes: int, heartbeat_ms: int | None
) -> dict[str, list[float]]:
    group = f"bench-{uuid.uuid4().hex[:8]}"
    quiet = fleet.quiet(heartbeat_ms)
    reads: dict[int, list[Read]] = defaultdict(list)
    numbers = iter(range(MEMBERS + changes))

    def make() -> Member:
        number = next(numbers)

        def read(partition: int) -> None:
            reads[partition].append((time.perf_counter(), number))

        return fleet.member(bootstrap, group, topic, read, heartbeat_ms=heartbeat_ms)

    stay = [make() for _ in range(MEMBERS)]
    spans: dict[str, list[tuple[float, float]]] = {
        "without changes": [],
        "while members come and go": [],
    }
    async with _started(stay):
        await settled(stay, PARTITIONS, quiet)
        guest: Member | None = None
        for _ in range(changes):
            began = time.perf_counter()
            await asyncio.sleep(quiet)
            spans["without changes"].append((began, began + CALM))
            began = time.perf_counter()
            if guest is None:
                guest = make()
                await guest.start()
                present = [*stay, guest]
            else:
                await guest.stop()
                guest, present = None, stay
            over = await settled(present, PARTITIONS, quiet)
            spans["while members come and go"].append((began, max(began, over) + AFTER))
        if guest is not None:
            await guest.stop()
    return {
        when: [gap * 1000 for span in those for gap in kept_gaps(reads, span)]
        for when, those in spans.items()
    }


@asynccontextmanager
async def _started(members: Sequence[Member]) -> AsyncIterator[None]:
    await asyncio.gather(*(member.start() for member in members))
    yield
    await asyncio.gather(*(member.stop() for member in members))


def kept_gaps(reads: Mapping[int, Sequence[Read]], span: tuple[float, float]) -> list[float]:
    """Return the longest time between two records of each partition read by only one member, among
    the pairs that overlap the span. A partition without records there has none."""
    began, ended = span
    gaps = []
    for records in reads.values():
        pairs = [
            (before, after)
            for before, after in pairwise(records)
            if after[0] > began and before[0] < ended
        ]
        if pairs and len({member for pair in pairs for _, member in pair}) == 1:
            gaps.append(max(after[0] - before[0] for before, after in pairs))
    return gaps


if __name__ == "__main__":
    main(__doc__, {"gap": measure})

"""Milliseconds to the application beside a busy thread: librdkafka's producer in the same process.

python -m tests.bench.beside [--bootstrap HOST:PORT] [--rounds N] [--json FILE]

As services have it that read and write. Each turn is a new process with one client, ours and
aiokafka's in turns; its thread produces at a fixed rate, and each record contains the time of
`produce()`. Most of that time is the broker's and the producer's, and varies from turn to turn; so
the client's own part is shown as well, from the event loop's wake-up to the application.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from . import broker, latency
from . import trial as trials
from .command import Settings, main
from .figures import Figure, Target, percentile

__all__ = ["measure", "trial"]

RATES = (200, 2_000)
"""Records a second."""

PERCENTS = (50, 99)

OURS, THEIRS = "kafkagroup async for", "aiokafka async for"

NO_LATER = Target(50, 1.0)
"""For the client's own part. The total has no target: what the broker takes differs more from turn
to turn than the clients do."""

_TURN = 10.0
"""Seconds of a turn."""

PARTS = {"total": "from produce()", "own": "from the loop's wake-up"}


def measure(bootstrap: str, settings: Settings) -> list[Figure]:
    """Return the figures of both clients, in milliseconds, and their ratios in each round."""
    figures = []
    for rate in RATES:
        turns: dict[str, list[dict[str, list[float]]]] = {OURS: [], THEIRS: []}
        for round_ in range(3 * settings.rounds):
            for client in (OURS, THEIRS) if round_ % 2 else (THEIRS, OURS):
                turns[client].append(_turn(bootstrap, client, rate))
        for part, words in PARTS.items():
            for percent in PERCENTS:
                what = f"{rate:,} records/s: ms {words}, p{percent}"
                ours, theirs = (
                    tuple(percentile(turn[part], percent) for turn in turns[client])
                    for client in (OURS, THEIRS)
                )
                ratios = tuple(a / b for a, b in zip(ours, theirs, strict=True))
                figures += [
                    Figure(what=what, client=OURS, values=ours),
                    Figure(what=what, client=THEIRS, values=theirs),
                    Figure(
                        what=f"{what}: times aiokafka's",
                        client=OURS,
                        values=ratios,
                        target=NO_LATER if part == "own" else None,
                    ),
                ]
    return figures


def _turn(bootstrap: str, client: str, rate: int) -> dict[str, list[float]]:
    with broker.topic(bootstrap, latency.PARTITIONS) as topic:
        return trials.run(
            "beside",
            lasts=_TURN,
            bootstrap=bootstrap,
            topic=topic,
            reader=latency.CLIENTS[client],
            rate=rate,
        )


# ---------------------------------------------------------------- in the process of a trial


def trial(*, bootstrap: str, topic: str, reader: str, rate: int) -> dict[str, list[float]]:
    """Return the milliseconds of each record: in total, and the client's own part."""
    total: list[float] = []
    own: list[float] = []
    ready = threading.Event()
    with TemporaryDirectory() as directory, _wake_ups() as woken:

        def take(value: bytes) -> bool:
            now = time.monotonic_ns()
            produced, number = latency.VALUE.unpack(value)
            if number >= 0:
                total.append((now - produced) / 1e6)
                own.append((now - woken[0]) / 1e6)
            elif not ready.is_set():
                ready.set()
                Path(directory, topic).touch()
            return bool(number != latency.END)

        producing = threading.Thread(
            target=latency.produce, args=(bootstrap, [topic], Path(directory), rate, _TURN, 1)
        )
        producing.start()
        latency.READERS[reader](bootstrap, topic, f"beside-{time.time_ns()}", take)
        producing.join()
    return {"total": total, "own": own}


@contextmanager
def _wake_ups() -> Iterator[list[int]]:
    """Provide when the event loop's selector last returned with an event: one number."""
    last = [0]
    select = selectors.DefaultSelector.select

    def timed(self: selectors.DefaultSelector, timeout: float | None = None) -> object:
        events = select(self, timeout)
        if events:
            last[0] = time.monotonic_ns()
        return events

    with patch.object(selectors.DefaultSelector, "select", timed):
        yield last


if __name__ == "__main__":
    main(__doc__, {"beside": measure})

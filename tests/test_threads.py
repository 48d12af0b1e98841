"""Each consumer belongs to one loop, loops in several threads share no state, and a free-threaded
Python stays without a GIL.

Threads and sockets are real, so time is real.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import anyio
import pytest

import kafkagroup
from kafkagroup import Consumer
from kafkagroup.testing import EmbeddedKafka

THREADS = 4
RECORDS = 500
"""The number of records in each partition."""


class Member:
    """A consumer with its own thread and loop."""

    def __init__(self, number: int, **options: object) -> None:
        self.consumer: Consumer | None = None
        self.seen: list[tuple[int, int]] = []
        """Partition and offset of each record."""
        self._number = number
        self._options = options

    def run(self, bootstrap: str, barrier: threading.Barrier) -> None:
        # Threads that import, compile codecs and fill caches at the same moment.
        barrier.wait(20)
        backend = ("asyncio", "trio")[self._number % 2]
        try:
            anyio.run(partial(self._consume, bootstrap, barrier), backend=backend)
        except BaseException:
            barrier.abort()  # the others would wait in vain
            raise

    async def _consume(self, bootstrap: str, barrier: threading.Barrier) -> None:
        wait = partial(anyio.to_thread.run_sync, partial(barrier.wait, 20))
        async with Consumer(
            "threads",
            bootstrap_servers=bootstrap,
            group_id="threads",
            heartbeat_interval_ms=50,
            session_timeout_ms=6_000,
            heartbeat_thread=self._number < THREADS // 2,
            **self._options,
        ) as consumer:
            with anyio.fail_after(20):
                # One partition each: with all four members in the group.
                while len(consumer.assignment()) != 1:
                    await anyio.sleep(0.01)
            self.consumer = consumer
            await wait()
            with anyio.fail_after(20):
                async for record in consumer:
                    self.seen.append((record.partition, record.offset))
                    if len(self.seen) == RECORDS:
                        break
                await consumer.commit()
            await wait()  # no member leaves, and moves a partition, while others read


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_four_loops_in_four_threads_share_a_group(protocol: str) -> None:
    """Each record is read once, and `metrics` may be called from any thread meanwhile."""
    barrier = threading.Barrier(THREADS)
    members = [Member(number, group_protocol=protocol) for number in range(THREADS)]
    with EmbeddedKafka({"threads": THREADS}) as kafka, ThreadPoolExecutor(THREADS) as threads:
        for partition in range(THREADS):
            kafka.produce("threads", ["value"] * RECORDS, partition=partition)
        running = [threads.submit(one.run, kafka.bootstrap_servers, barrier) for one in members]
        assigned = 0
        while not all(one.done() for one in running):
            consumers = [one.consumer for one in members if one.consumer is not None]
            assigned = max(assigned, sum(c.metrics().assigned_partitions for c in consumers))
            time.sleep(0.001)
        for one in running:
            one.result()
        committed = kafka.committed("threads", "threads")
    assert assigned == THREADS
    assert committed == dict.fromkeys(range(THREADS), RECORDS)
    seen = sorted(record for one in members for record in one.seen)
    assert seen == [(p, offset) for p in range(THREADS) for offset in range(RECORDS)]
    assert [len({partition for partition, _ in one.seen}) for one in members] == [1] * THREADS


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has its GIL"
)
@pytest.mark.parametrize("pure", ["", "1"], ids=["as installed", "as source"])
def test_importing_keeps_the_gil_disabled(pure: str) -> None:
    """A compiled module without `freethreading_compatible` enables the GIL for the whole process,
    with a warning. So would cramjam or crc32c."""
    package, ending = Path(kafkagroup.__file__).parent, EXTENSION_SUFFIXES[0]
    compiled = sorted(package.rglob(f"*{ending}"))
    names = [str(path.relative_to(package.parent)).removesuffix(ending) for path in compiled]
    modules = ["kafkagroup.consumer", *(name.replace(os.sep, ".") for name in names)]
    program = f"import {', '.join(modules)}, cramjam, crc32c, sys; print(sys._is_gil_enabled())"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHON_GIL"}
    environment["KAFKAGROUP_PURE"] = pure
    printed = subprocess.check_output(
        [sys.executable, "-W", "error", "-c", program], env=environment, text=True
    )
    assert printed == "False\n"

"""Run groups that rebalance, lag behind and stop; write a report of their history.

python examples/pipeline.py [--out DIR] [--bootstrap HOST:PORT]

Without an address it starts Apache Kafka. Three groups read a topic: "billing", whose members join
and leave; "audit", to which the coordinator assigns (KIP-848); "archive", whose only member stops
early. `kafkagroup.spark.pipeline` reads their history from the broker, while the first two live.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
import uuid
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from demo_topic import Topic, temporary_topic

from kafkagroup import Consumer
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.testing import LocalKafka

PARTITIONS = 8
SECONDS = 24.0
"""How long records are produced."""

MAX_JOIN_SECONDS = 60.0
"""How long a member waits for its first records."""

MEMBERS = (
    # Group, name, second of its start, second of its end, seconds of processing per batch. Those
    # without an end live until the report is written.
    ("billing", "a", 0, math.inf, 0.02),
    ("billing", "b", 0, 13, 0.02),
    ("billing", "c", 6, math.inf, 0.02),
    ("audit", "x", 0, math.inf, 0.1),
    ("audit", "y", 0, 10, 0.1),
    ("archive", "z", 1, 5, 0.02),
)

OPTIONS: dict[str, dict[str, Any]] = {
    "billing": {"assignors": [cooperative_sticky_assignor]},
    "audit": {"group_protocol": "consumer"},
    "archive": {},
}

STARTED = time.monotonic()


def log(text: str) -> None:
    print(f"{time.monotonic() - STARTED:6.1f} s  {text}", flush=True)


async def member(
    bootstrap: str, topic: str, group: str, name: str, start: float, end: float, work: float
) -> None:
    await anyio.sleep(start)
    log(f"{group}: {name} joins")
    consumer = Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        client_id=f"{group}-{name}",
        auto_offset_reset="earliest",
        auto_commit_interval_ms=500,
        **OPTIONS[group],
    )
    with anyio.move_on_after(end - start + MAX_JOIN_SECONDS) as scope:
        async with consumer:
            async for _ in consumer.batches(40):
                # From the first records on: on a busy machine a member would leave before it joins.
                scope.deadline = min(scope.deadline, anyio.current_time() + end - start)
                await anyio.sleep(work)
    log(f"{group}: {name} has left")


async def produce(topic: Topic) -> None:
    """Produce records, more of them to the first partitions than to the last."""
    with anyio.move_on_after(SECONDS):
        while True:
            await topic.produce({p: [b"x" * 100] * (16 - 2 * p) for p in range(PARTITIONS)})
            await anyio.sleep(0.25)
    log("no more records")


async def groups_and_job(bootstrap: str, job: Callable[[], object]) -> None:
    name = f"orders-{uuid.uuid4().hex[:6]}"
    async with (
        temporary_topic(bootstrap, name, PARTITIONS) as topic,
        anyio.create_task_group() as lasting,
    ):
        async with anyio.create_task_group() as ending:
            ending.start_soon(produce, topic)
            for group, who, start, end, work in MEMBERS:
                tasks = lasting if end == math.inf else ending
                tasks.start_soon(member, bootstrap, name, group, who, start, end, work)
        await to_thread.run_sync(job)
        lasting.cancel_scope.cancel()


@contextmanager
def broker(bootstrap: str | None) -> Iterator[str]:
    if bootstrap is not None:
        log(f"Kafka is at {bootstrap}")
        yield bootstrap
        return
    log("Kafka starts")
    with LocalKafka() as kafka:
        yield kafka.bootstrap_servers


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", help="directory of the tables and the report; else a new one")
    parser.add_argument("--bootstrap", help="host:port of a broker; else Apache Kafka on loopback")
    given = parser.parse_args()
    out = Path(given.out or tempfile.mkdtemp(prefix="kafkagroup-pipeline-")).resolve()
    # Spark's workers must run the same Python; by default they run the first one on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with broker(given.bootstrap) as bootstrap:

        def job() -> None:
            from kafkagroup.cli.pipeline import session
            from kafkagroup.spark.pipeline import run
            from kafkagroup.spark.report import write_report

            log("Spark starts")
            spark = session()
            try:
                tables = run(
                    spark,
                    {"bootstrap.servers": bootstrap},
                    str(out),
                    on_step=lambda step: log(f"table {step}"),
                )
                report = write_report(tables)
                tables.read("group_health").selectExpr(
                    "group_id", "status", "lag", "rebalances", "unstable_seconds"
                ).show(truncate=False)
                log(f"the report is {report}")
            finally:
                spark.stop()

        anyio.run(groups_and_job, bootstrap, job)


if __name__ == "__main__":
    main()

"""The closed loop: measured lag, loads made from it, and a weighted group compared with a sticky
one.

python -m tests.bench.closed_loop [--bootstrap HOST:PORT] [--seconds N]

A skewed topic, and three members of which one processes at half the speed of the others. A group
with cooperative-sticky reads it; the pipeline on Spark computes loads from that group's history;
then a group with weighted-sticky reads the same traffic with these loads. It prints the largest lag
of each, the largest number of late partitions, and the time to process the rest at the end.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import attrs

from kafkagroup import Consumer, TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor, weighted_sticky
from kafkagroup.broker import Broker
from kafkagroup.runtime.consume.loads_file import LoadsFile
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

from . import broker

RATES = (60, 5, 5, 60, 5, 5, 60, 5, 5, 60, 5, 5)
"""Records per second of each partition: 280 in all, in a pattern that deals out badly."""

PACES = {"quick-1": 160.0, "quick-2": 160.0, "slow": 80.0}
"""Member -> records per second that it gets through: 400 in all."""

LATE = 50
"""Records behind from which a partition counts as late."""

_TICK = 0.25
_SETTLING = 8.0
"""Seconds."""


@attrs.define
class Outcome:
    largest: int = 0
    """Lag of one partition, in records, by what is committed."""
    late: int = 0
    """Partitions that were late at the same time."""
    drained: float = 0.0
    """Seconds from the last record to a lag of nothing."""


async def member(bootstrap: str, topic: str, group: str, name: str, options: Any) -> None:
    consumer = Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        client_id=name,
        auto_offset_reset="latest",
        auto_commit_interval_ms=250,
        # What waits should wait in the log, not in a buffer.
        max_partition_fetch_bytes=4096,
        **options,
    )
    async with consumer:
        async for batch in consumer.batches(20):
            # As long as its records take one by one.
            await anyio.sleep(len(batch) / PACES[name])


async def trial(
    bootstrap: str, topic: str, group: str, options: Mapping[str, Any], seconds: float
) -> Outcome:
    """Let one group read the traffic from start to end."""
    outcome = Outcome()
    async with broker.connected(bootstrap) as node, anyio.create_task_group() as tasks:
        before = await ends(node, topic)
        for name in PACES:
            tasks.start_soon(member, bootstrap, topic, group, name, options[name])
        # The group settles before there is anything to be late with.
        await anyio.sleep(_SETTLING)
        started, made = time.monotonic(), dict.fromkeys(before, 0)
        while True:
            elapsed = min(time.monotonic() - started, seconds)
            due = {tp: int(RATES[tp.partition] * elapsed) - made[tp] for tp in made}
            now = round(time.time() * 1000)
            wanted = {
                tp: encode_batch([NewRecord(None, b"x" * 100, now)] * n)
                for tp, n in due.items()
                if n > 0
            }
            if wanted:
                await broker.produce(node, wanted)
                made = {tp: made[tp] + due[tp] for tp in made}
            done = await committed(node, group, before)
            lags = [made[tp] - done[tp] for tp in made]
            outcome.largest = max(outcome.largest, *lags)
            outcome.late = max(outcome.late, sum(lag > LATE for lag in lags))
            if elapsed == seconds and not any(lags):
                break
            await anyio.sleep(_TICK)
        outcome.drained = time.monotonic() - started - seconds
        tasks.cancel_scope.cancel()
    return outcome


async def ends(node: Broker, topic: str) -> dict[TopicPartition, int]:
    """Return the end of each log."""
    wanted = ListOffsetsRequest(
        replica_id=-1,
        topics=(
            ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    ListOffsetsPartition(partition_index=p, timestamp=-1) for p in range(len(RATES))
                ),
            ),
        ),
    )
    response = await node.request(wanted)
    return {
        TopicPartition(t.name, p.partition_index): p.offset
        for t in response.topics
        for p in t.partitions
    }


async def committed(
    node: Broker, group: str, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the number of records that the group has committed."""
    response = await node.fetch_consumer_group_offsets(group, list(before))
    done = dict.fromkeys(before, 0)
    for of in response.groups:
        for topic in of.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                done[tp] = max(0, p.committed_offset - before[tp])
    return done


def measured(bootstrap: str, group: str, folder: Path) -> int:
    """Run the pipeline, and write the loads of a group; return their number."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from kafkagroup.cli.pipeline import session
    from kafkagroup.spark.pipeline import run
    from kafkagroup.spark.weights import write_loads

    spark = session()
    try:
        tables = run(spark, {"bootstrap.servers": bootstrap}, str(folder / "tables"))
        return write_loads(tables.read("weights"), group, folder / "loads.json")
    finally:
        spark.stop()


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bootstrap", help="host:port of a broker; else Apache Kafka on loopback")
    parser.add_argument("--seconds", type=float, default=20.0, help="of traffic, for each group")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kafkagroup-loop-"))
    run = uuid.uuid4().hex[:6]
    loads = LoadsFile(folder / "loads.json", 3600.0)
    sticky = {name: {"assignors": [cooperative_sticky_assignor]} for name in PACES}
    weighted = {
        name: {"assignors": [weighted_sticky(capacity=pace)], "partition_loads": loads}
        for name, pace in PACES.items()
    }
    print(f"{'':20} {'largest lag':>12} {'late at once':>13} {'drained in':>11}")
    with broker.kafka(given.bootstrap) as bootstrap, broker.topic(bootstrap, len(RATES)) as topic:
        for assignor, options in (("cooperative-sticky", sticky), ("weighted-sticky", weighted)):
            group = f"{assignor}-{run}"
            got = anyio.run(trial, bootstrap, topic, group, options, given.seconds)
            lag, late = f"{got.largest:,}", f"{got.late} of {len(RATES)}"
            print(f"{assignor:20} {lag:>12} {late:>13} {got.drained:9.1f} s", flush=True)
            if options is sticky:
                count = measured(bootstrap, group, folder)
                print(f"the pipeline has measured {count} loads", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

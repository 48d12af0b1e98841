"""The pipeline on generated records of groups: the first run, and one with 1% new records.

python -m tests.bench.pipeline [--bootstrap HOST:PORT] [--records N] [--groups N]

One of 20 records is a generation of a group with two members, the others are commits; the groups
are in 50 partitions, as in `__consumer_offsets`, in whose place the pipeline reads another topic.
The topics of the groups do not exist, so no time goes to looking up log ends. On local[2]; the
memory is the peak of the JVM and the Python workers together, the shuffled bytes are those that
tasks wrote for others. The time and the peak at each step go to stderr.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from struct import pack
from typing import Any

import anyio
import attrs

from kafkagroup import TopicPartition
from kafkagroup.cli.pipeline import session
from kafkagroup.spark import history
from kafkagroup.spark.pipeline import run
from kafkagroup.wire import encode_assignment, encode_subscription
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.codec import encode
from kafkagroup.wire.coordinator.classic import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from kafkagroup.wire.coordinator.offsets import OffsetCommitKey, OffsetCommitValue
from kafkagroup.wire.embedded_protocol import Subscription

from . import broker
from .processes import memory

PARTITIONS = 50
BATCH = 1000
GENERATION_EVERY = 20
TOPICS = 1000
MEMBERS = ("a", "b")


def record(group: int, n: int) -> NewRecord:
    """Return the `n`-th record of a group."""
    name, topic, now = f"group-{group}", f"topic-{group % TOPICS}", round(time.time() * 1000)
    if n % GENERATION_EVERY:
        key = pack(">h", 1) + encode(OffsetCommitKey(group=name, topic=topic, partition=n % 4), 0)
        commit = OffsetCommitValue(offset=n, metadata="", commit_timestamp=now)
        return NewRecord(key, pack(">h", 3) + encode(commit, 3), now)
    # The two partitions of the members change places with each generation.
    owned = [n // GENERATION_EVERY % 2, 1 - n // GENERATION_EVERY % 2]
    members = tuple(
        MemberMetadata(
            member_id=f"{name}-{member}",
            client_id=member,
            client_host="/127.0.0.1",
            session_timeout=45_000,
            subscription=encode_subscription(Subscription(topics=(topic,))),
            assignment=encode_assignment([TopicPartition(topic, partition)]),
        )
        for member, partition in zip(MEMBERS, owned, strict=True)
    )
    generation = GroupMetadataValue(
        protocol_type="consumer",
        generation=n // GENERATION_EVERY + 1,
        protocol="range",
        leader=members[0].member_id,
        current_state_timestamp=now,
        members=members,
    )
    key = pack(">h", 2) + encode(GroupMetadataKey(group=name), 0)
    return NewRecord(key, pack(">h", 3) + encode(generation, 3), now)


async def fill(bootstrap: str, topic: str, groups: int, numbers: range) -> None:
    """Append records, one of each group in turn."""
    ready: dict[int, list[NewRecord]] = {partition: [] for partition in range(PARTITIONS)}
    async with broker.connected(bootstrap) as node:

        async def append(partition: int) -> None:
            batch = encode_batch(ready[partition])
            await broker.produce(node, {TopicPartition(topic, partition): batch})
            ready[partition].clear()

        for number in numbers:
            n, group = divmod(number, groups)
            records = ready[group % PARTITIONS]
            records.append(record(group, n))
            if len(records) == BATCH:
                await append(group % PARTITIONS)
        for partition in [p for p in ready if ready[p]]:
            await append(partition)


@contextmanager
def peak_memory(pid: int) -> Iterator[list[int]]:
    """Yield a list that has the peak of `memory` in the end."""
    peak, is_done = [0], threading.Event()

    def sample() -> None:
        while not is_done.wait(1.0):
            peak[0] = max(peak[0], memory(pid))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield peak
    finally:
        is_done.set()
        sampler.join()


def shuffled(spark: Any) -> int:
    """Return the bytes that all tasks of the session have written for others."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    return sum(executors.apply(n).totalShuffleWrite() for n in range(executors.size()))


@attrs.frozen
class Measured:
    """The cost of one run."""

    seconds: float
    shuffled: int


def measure(bootstrap: str, records: int, groups: int) -> tuple[list[Measured], int]:
    """Return the cost of the first run and of the next, and the peak of the memory in bytes."""
    options, spark, runs = {"bootstrap.servers": bootstrap}, session(), []
    with (
        broker.topic(bootstrap, PARTITIONS) as topic,
        tempfile.TemporaryDirectory() as out,
        peak_memory(spark.sparkContext._gateway.proc.pid) as peak,
    ):
        history.TOPIC = topic
        for numbers in (range(records), range(records, records + records // 100)):
            anyio.run(fill, bootstrap, topic, groups, numbers)
            started, before = time.perf_counter(), shuffled(spark)

            def on_step(step: str, started: float = started) -> None:
                passed = f"{time.perf_counter() - started:7.1f} s"
                print(f"{passed}  {peak[0] / 1e9:4.1f} GB  {step}", file=sys.stderr, flush=True)

            run(spark, options, out, on_step=on_step)
            runs.append(Measured(time.perf_counter() - started, shuffled(spark) - before))
            on_step("done")
    spark.stop()
    return runs, peak[0]


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bootstrap", help="host:port of a broker; else Apache Kafka on loopback")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=100_000)
    given = parser.parse_args()
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--master local[2] --driver-memory 4g pyspark-shell"
    with broker.kafka(given.bootstrap) as bootstrap:
        runs, peak = measure(bootstrap, given.records, given.groups)
    print("| records | groups | first run | next run, 1% new | peak memory |")
    print("|---|---|---|---|---|")
    cells = [f"{run.seconds:.0f} s, {run.shuffled / 1e6:.0f} MB" for run in runs]
    print(f"| {given.records:,} | {given.groups:,} | {' | '.join(cells)} | {peak / 1e9:.1f} GB |")


if __name__ == "__main__":
    main()

"""One member of a stage of the pipeline: reads a topic in a group, appends what it reads to the
next topic, commits, and writes down each step before it takes the next.

python stage.py LOGFILE BOOTSTRAP SOURCE SINK GROUP --rate N    until SIGTERM; SINK may be ""

See member_log.py for what is written.
"""

import argparse
import os
import signal
import time
from collections.abc import AsyncIterable, Iterable
from pathlib import Path

import anyio
from member_log import Kind, pack
from producer import Producer
from worker import Held

from kafkagroup import Batch, Consumer, KafkaGroupError, TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.net.cluster import Cluster
from kafkagroup.net.options import ClientOptions, parse_servers

SESSION = 6.0
"""Seconds; the least that a broker accepts by itself."""

_MOST = 500
"""Records of a batch: what a member that is killed may have appended and not committed."""


class Stage:
    """A consumer, a producer, and their log."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._path = arguments.log
        self._log = -1
        self._rate = arguments.rate
        self._sink = arguments.sink
        self._held: dict[int, Held] = {}
        self._producer: Producer | None = None
        name = Path(arguments.log).name
        self._options = ClientOptions(client_id=f"{name}-producer", request_timeout=10.0)
        self._servers = parse_servers(arguments.bootstrap)
        self._consumer = Consumer(
            arguments.source,
            bootstrap_servers=arguments.bootstrap,
            group_id=arguments.group,
            client_id=name,
            assignors=[cooperative_sticky_assignor],
            session_timeout_ms=round(SESSION * 1000),
            heartbeat_interval_ms=1_000,
            auto_commit_interval_ms=500,
            request_timeout_ms=10_000,
            on_partitions_assigned=self._assigned,
            on_partitions_revoked=lambda gone: self._gone(Kind.REVOKED, gone),
            on_partitions_lost=lambda gone: self._gone(Kind.LOST, gone),
        )

    def _write(self, *entries: bytes) -> None:
        os.write(self._log, b"".join(entries))

    def _assigned(self, partitions: Iterable[TopicPartition]) -> None:
        generation = self._consumer.group_metadata().generation_id
        now = time.monotonic_ns()
        for tp in partitions:
            self._held[tp.partition] = Held()
            self._write(pack(Kind.ASSIGNED, tp.partition, generation, 0, now))

    def _gone(self, kind: Kind, partitions: Iterable[TopicPartition]) -> None:
        now = time.monotonic_ns()
        for tp in partitions:
            del self._held[tp.partition]
            self._write(pack(kind, tp.partition, 0, 0, now))

    async def run(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            self._log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            async with anyio.create_task_group() as tasks:
                if self._sink:
                    cluster = Cluster(self._servers, self._options, tasks)
                    self._producer = Producer(cluster, self._sink)
                    await self._producer.start()
                await tasks.start(self._consumer.run)
                tasks.start_soon(self._stop_on, signals)
                await self._work()
                tasks.cancel_scope.cancel()

    async def _work(self) -> None:
        async for batch in self._consumer.batches(_MOST):
            due = anyio.current_time() + len(batch) / self._rate
            self._write(*_delivered(batch))
            if self._producer is not None:
                await self._producer.append(batch.partition, [r.value for r in batch])
            # A partition that is not held is for the judge to see.
            if (held := self._held.get(batch.partition)) is not None:
                held.end = batch.records[-1].offset + 1
            await self._commit()
            await anyio.sleep_until(due)

    async def _commit(self) -> None:
        """Commit, and write down what was acknowledged: none of that may ever come again."""
        asked = [(p, held, held.end) for p, held in self._held.items() if held.end >= 0]
        try:
            await self._consumer.commit()
        except KafkaGroupError:
            return  # not acknowledged, so there is nothing to hold anybody to
        now = time.monotonic_ns()
        for partition, held, end in asked:
            # Whoever let go of it meanwhile may have taken it out of the commit.
            if self._held.get(partition) is held:
                self._write(pack(Kind.COMMITTED, partition, end, 0, now))

    async def _stop_on(self, signals: AsyncIterable[signal.Signals]) -> None:
        async for _ in signals:
            await self._consumer.stop()


def _delivered(batch: Batch) -> Iterable[bytes]:
    now = time.monotonic_ns()
    for record in batch:
        sequence = int.from_bytes(record.value[:8], "big")
        yield pack(Kind.DELIVERED, record.partition, record.offset, sequence, now)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("log", "bootstrap", "source", "sink", "group"):
        parser.add_argument(name)
    parser.add_argument("--rate", type=int, required=True, help="records a second")
    anyio.run(Stage(parser.parse_args()).run)


if __name__ == "__main__":
    main()

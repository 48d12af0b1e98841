"""One member of a stage of the pipeline: reads a topic in a group, appends what it reads to the
next topic, commits, and writes down each step before it takes the next.

python stage.py LOGFILE BOOTSTRAP SOURCE SINK GROUP --rate N [--eager]    until SIGTERM

SINK may be "". The name of the log is the member's. See stage_log.py for what is written.
"""

import argparse
import signal
import sys
from collections.abc import AsyncIterable, Iterable
from pathlib import Path

# As a program this finds its neighbours; the vocabulary of runs is one level up.
sys.path.insert(1, str(Path(__file__).parents[2]))

import anyio
from producer import Producer
from stage_log import StageLog
from verification.sim.events import (
    Assigned,
    Closing,
    Committed,
    Committing,
    Ended,
    Joined,
    Lost,
    Opening,
    Revoked,
    Revoking,
)
from verification.sim.observe import WireTap
from wire import record_connections

from kafkagroup import Consumer, KafkaGroupError, TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor, range_assignor
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import ClientOptions, parse_servers

SESSION = 6.0
"""Seconds; the least that a broker accepts by itself."""
_REBALANCE = 30.0
_HEARTBEAT = 1.0
_REQUEST = 10.0
"""Seconds until a request without a response fails: connections do not live for long."""

_MOST = 1_000
"""Records of a batch: what a member that is killed may have appended and not committed."""


class Stage:
    """A consumer, a producer, and their log."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._name = Path(arguments.log).name
        self._path = arguments.log
        self._log: StageLog
        self._rate = arguments.rate
        self._source = arguments.source
        self._sink = arguments.sink
        self._eager = arguments.eager
        self._commits = 0
        self._membership = ("", -1)
        self._producer: Producer | None = None
        self._servers = parse_servers(arguments.bootstrap)
        self._consumer = Consumer(
            arguments.source,
            bootstrap_servers=arguments.bootstrap,
            group_id=arguments.group,
            client_id=self._name,
            assignors=[range_assignor if self._eager else cooperative_sticky_assignor],
            session_timeout_ms=round(SESSION * 1000),
            rebalance_timeout_ms=round(_REBALANCE * 1000),
            heartbeat_interval_ms=round(_HEARTBEAT * 1000),
            auto_commit_interval_ms=500,
            request_timeout_ms=round(_REQUEST * 1000),
            on_partitions_assigned=self._assigned,
            on_partitions_revoked=self._revoked,
            on_partitions_lost=lambda gone: self._log.record_event(Lost, partitions=tuple(gone)),
        )

    def _assigned(self, partitions: Iterable[TopicPartition]) -> None:
        now = self._consumer.group_metadata()
        membership = (now.member_id, now.generation_id)
        if membership != self._membership:
            self._membership = membership
            self._log.record_event(Joined, member_id=now.member_id, generation=now.generation_id)
        self._log.record_event(Assigned, partitions=tuple(partitions), generation=now.generation_id)

    def _revoked(self, partitions: Iterable[TopicPartition]) -> None:
        gone = tuple(partitions)
        self._log.record_event(Revoking, partitions=gone)
        self._log.record_event(Revoked, partitions=gone)

    async def run(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            # Once the log exists, SIGTERM may arrive: without the receiver, it would kill the
            # process instead of ending the member.
            self._log = StageLog(self._path, self._name)
            tap = WireTap(self._log, lambda _: self._source)
            with record_connections(tap, self._name):
                async with anyio.create_task_group() as tasks:
                    if self._sink:
                        options = ClientOptions(
                            client_id=f"{self._name}-producer", request_timeout=_REQUEST
                        )
                        cluster = Cluster(self._servers, options, tasks)
                        self._producer = Producer(cluster, self._sink)
                        await self._producer.start()
                    self._log.record_event(
                        Opening,
                        cooperative=not self._eager,
                        session_timeout=SESSION,
                        rebalance_timeout=_REBALANCE,
                        heartbeat_interval=_HEARTBEAT,
                    )
                    await tasks.start(self._consumer.run)
                    tasks.start_soon(self._stop_on, signals)
                    await self._work()
                    await self._consumer.stop()
                    self._log.record_event(Ended)
                    tasks.cancel_scope.cancel()

    async def _work(self) -> None:
        async for batch in self._consumer.batches(_MOST):
            due = anyio.current_time() + len(batch) / self._rate
            self._log.record_delivered(batch)
            if self._producer is not None:
                await self._producer.append(batch.partition, [r.value for r in batch])
            self._log.record_processed(batch)
            await self._commit()
            await anyio.sleep_until(due)

    async def _commit(self) -> None:
        self._commits += 1
        self._log.record_event(Committing, token=self._commits, offsets=None)
        outcome = "ok"
        try:
            await self._consumer.commit()
        except KafkaGroupError as error:
            outcome = type(error).__name__
        self._log.record_event(Committed, token=self._commits, outcome=outcome)

    async def _stop_on(self, signals: AsyncIterable[signal.Signals]) -> None:
        async for _ in signals:
            self._log.record_event(Closing)
            await self._consumer.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("log", "bootstrap", "source", "sink", "group"):
        parser.add_argument(name)
    parser.add_argument("--rate", type=int, required=True, help="records a second")
    parser.add_argument("--eager", action="store_true", help="let go of all in each rebalance")
    anyio.run(Stage(parser.parse_args()).run)


if __name__ == "__main__":
    main()

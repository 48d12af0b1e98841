"""One member of the soak: writes down each record before it asks for the next.

python worker.py LOGFILE BOOTSTRAP TOPIC GROUP --rate N [--cooperative] [--zookeeper HOSTS]
    until SIGTERM

See member_log.py for what is written.
"""

import argparse
import os
import signal
import time
from collections.abc import AsyncIterable, Iterable

import anyio
import attrs
from member_log import Kind, pack

from kafkagroup import Consumer, KafkaGroupError, Record, TopicPartition, ZooKeeperMembership
from kafkagroup.assign import cooperative_sticky_assignor, range_assignor

_COMMIT_INTERVAL = 0.7
"""Seconds between commits whose acknowledgement is written down. Auto-commit runs beside them."""

ZOOKEEPER_SESSION_MS = 4_000

_BREATHS = 50
"""How many pauses in a second keep a member to its rate."""


@attrs.define(eq=False)
class Held:
    """A partition from its assignment to its revocation."""

    end: int = -1
    """Offset behind the last record that came; -1 before the first."""


class Worker:
    """A consumer, and its log."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._path = arguments.log
        self._log = -1
        self._rate = arguments.rate
        self._held: dict[int, Held] = {}
        self._hand: Record | None = None
        assignor = cooperative_sticky_assignor if arguments.cooperative else range_assignor
        self._consumer = Consumer(
            arguments.topic,
            bootstrap_servers=arguments.bootstrap,
            group_id=arguments.group,
            assignors=[assignor],
            session_timeout_ms=6_000,
            membership=arguments.zookeeper
            and ZooKeeperMembership(arguments.zookeeper, session_timeout_ms=ZOOKEEPER_SESSION_MS),
            auto_commit_interval_ms=500,
            on_partitions_assigned=self._assigned,
            on_partitions_revoked=lambda gone: self._gone(Kind.REVOKED, gone),
            on_partitions_lost=lambda gone: self._gone(Kind.LOST, gone),
        )

    def _write(self, kind: Kind, partition: int, offset: int = 0, sequence: int = 0) -> None:
        os.write(self._log, pack(kind, partition, offset, sequence, time.monotonic_ns()))

    def _assigned(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._held[tp.partition] = Held()
            self._write(Kind.ASSIGNED, tp.partition)

    def _gone(self, kind: Kind, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            del self._held[tp.partition]
            self._write(kind, tp.partition)

    async def run(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            # Once the log exists, SIGTERM may arrive: without the receiver, it would kill the
            # process instead of ending the member.
            self._log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._consumer.run)
                tasks.start_soon(self._stop_on, signals)
                tasks.start_soon(self._commit)
                await self._consume()
                tasks.cancel_scope.cancel()

    async def _consume(self) -> None:
        breath = max(1, self._rate // _BREATHS)
        count = 0
        async for record in self._consumer:
            sequence = int.from_bytes(record.value[:8], "big")
            self._write(Kind.DELIVERED, record.partition, record.offset, sequence)
            self._hand = record
            # A partition that is not held is for the checker to see.
            if (held := self._held.get(record.partition)) is not None:
                held.end = record.offset + 1
            count += 1
            if count % breath == 0:
                await anyio.sleep(breath / self._rate)
            self._done()

    def _done(self) -> None:
        """Log the record in flight as processed, before the consumer counts it."""
        if self._hand is not None:
            self._write(Kind.PROCESSED, self._hand.partition, self._hand.offset)
            self._hand = None

    async def _commit(self) -> None:
        """Commit, and log the acknowledged offsets: records below must not be delivered again."""
        while True:
            await anyio.sleep(_COMMIT_INTERVAL)
            self._done()
            asked = [(p, held, held.end) for p, held in self._held.items() if held.end >= 0]
            try:
                await self._consumer.commit()
            except KafkaGroupError:
                continue  # not acknowledged: the records may be delivered again
            for partition, held, end in asked:
                # A partition that was revoked meanwhile may have been dropped from the commit.
                if self._held.get(partition) is held:
                    self._write(Kind.COMMITTED, partition, end)

    async def _stop_on(self, signals: AsyncIterable[signal.Signals]) -> None:
        async for _ in signals:
            await self._consumer.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("log", "bootstrap", "topic", "group"):
        parser.add_argument(name)
    parser.add_argument("--cooperative", action="store_true")
    parser.add_argument("--zookeeper", help="where the group is kept, if not in Kafka")
    parser.add_argument("--rate", type=int, required=True, help="records a second")
    anyio.run(Worker(parser.parse_args()).run)


if __name__ == "__main__":
    main()

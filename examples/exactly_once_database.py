"""Kafka to a database, exactly once: `exactly_once_database.py BROKER TOPIC GROUP DATABASE`.

A record such as `alice 5` adds to the balance of an account. One transaction of the database
has the effects of a batch and the position after it, so both are stored or neither. The position
is moved by compare-and-set: an owner that was frozen while its partition was assigned to another
finds that the position has moved, and its transaction is rolled back. Positions are read from the
database when partitions are assigned; nothing is committed to Kafka. Stop the workers before you
delete a topic: those of one that was still empty would store the records of the next topic of that
name under the old id.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import anyio

from kafkagroup import Batch, Consumer, KafkaGroupError, TopicPartition, open_signal_receiver
from kafkagroup.admin import Admin

TABLES = (
    "CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, amount BIGINT NOT NULL)",
    # By topic id: a topic that is recreated under the same name begins anew.
    """CREATE TABLE IF NOT EXISTS positions (
        topic_id TEXT, partition INTEGER, next BIGINT NOT NULL, PRIMARY KEY (topic_id, partition)
    )""",
)
BEGIN = "INSERT INTO positions VALUES (:t, :p, :start) ON CONFLICT DO NOTHING"
READ = "SELECT next FROM positions WHERE topic_id = :t AND partition = :p"
MOVE = (
    "UPDATE positions SET next = :new WHERE topic_id = :t AND partition = :p AND next = :old"
    # Without the last condition a late owner would write its batch a second time.
)
PAY = (
    "INSERT INTO balances VALUES (:account, :amount)"
    " ON CONFLICT (account) DO UPDATE SET amount = balances.amount + excluded.amount"
)


def payment(value: bytes) -> tuple[str, int]:
    account, amount = value.decode().split()
    return account, int(amount)


class PositionMovedError(Exception):
    """Another owner of the partition has moved its position. Nothing of the batch is stored."""


class Database:
    """Balances and positions. The statements are those of SQLite and PostgreSQL alike."""

    def __init__(self, connection: Any) -> None:
        """`connection`: of a driver with the DB-API 2.0 and named parameters."""
        self._connection = connection
        with self._transaction() as cursor:
            for table in TABLES:
                cursor.execute(table)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        try:
            yield (cursor := self._connection.cursor())
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        cursor.close()

    def begin(self, topic_id: str, starts: Mapping[int, int]) -> dict[int, int]:
        """Return the position of each partition. One that has none begins at its start."""
        found = {}
        with self._transaction() as cursor:
            for partition, start in starts.items():
                at = {"t": topic_id, "p": partition}
                cursor.execute(BEGIN, at | {"start": start})
                cursor.execute(READ, at)
                ((found[partition],),) = cursor.fetchall()
        return found

    def store(
        self, topic_id: str, partition: int, old: int, new: int, payments: Sequence[tuple[str, int]]
    ) -> None:
        """Store the effects of a batch, and move the position. Raises: PositionMovedError."""
        with self._transaction() as cursor:
            # First: until the end of the transaction no other can move the position.
            cursor.execute(MOVE, {"t": topic_id, "p": partition, "old": old, "new": new})
            if cursor.rowcount != 1:
                raise PositionMovedError(
                    f"the position of partition {partition} is not {old} any more; another member"
                    " owns the partition"
                )
            for account, amount in payments:
                cursor.execute(PAY, {"account": account, "amount": amount})


class Worker:
    def __init__(
        self, bootstrap: str, topic: str, group: str, database: Database, max_records: int = 500
    ) -> None:
        self.consumer = Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            # Records that retention deleted before they were stored are an error, not a gap.
            auto_offset_reset="none",
            isolation_level="read_committed",
            on_partitions_assigned=self._positions,
        )
        self._admin = Admin(bootstrap_servers=bootstrap)
        self._database = database
        self._max_records = max_records
        self._topic = topic
        self._topic_id = ""
        self._next: dict[int, int] = {}
        """The positions in the database, as far as this worker knows."""

    async def run(self) -> None:
        """Work until the consumer is stopped.

        Raises: PositionMovedError; let the program end, and start it again: it then reads the
        positions. The supervisor that restarts it after a crash does the same here.
        """
        async with self._admin, self.consumer:
            async for batch in self.consumer.batches(self._max_records):
                await self.process(batch)

    async def process(self, batch: Batch) -> None:
        """Store a batch. SQLite blocks the event loop for a moment; await your own driver here."""
        partition, first = batch.partition, batch.records[0].offset
        old, new = self._next[partition], batch.records[-1].offset + 1
        if first < old:
            raise RuntimeError(f"{self._topic}-{partition} was recreated: restart the workers")
        payments = [payment(record.value or b"") for record in batch]
        self._database.store(self._topic_id, partition, old, new, payments)
        self._next[partition] = new
        print(f"stored {partition}/{first}-{new - 1}", flush=True)

    async def _positions(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the positions in the database. Committed offsets are not asked for."""
        described = (await self._admin.describe_topics([self._topic]))[self._topic]
        if isinstance(described, KafkaGroupError):
            raise described
        self._topic_id = str(described.topic_id)
        starts = await self.consumer.beginning_offsets(partitions)
        found = self._database.begin(
            self._topic_id, {tp.partition: start for tp, start in starts.items()}
        )
        self._next.update(found)
        return {tp: found[tp.partition] for tp in partitions}


async def stop_on_signal(consumer: Consumer[Any, Any]) -> None:
    with open_signal_receiver() as signals:
        async for _ in signals:
            await consumer.stop()


async def main(bootstrap: str, topic: str, group: str, path: str) -> None:
    connection = sqlite3.connect(path)
    try:
        worker = Worker(bootstrap, topic, group, Database(connection))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_on_signal, worker.consumer)
            await worker.run()
            tasks.cancel_scope.cancel()
    finally:
        connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", help="host:port")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("database", help="the path of an SQLite database")
    options = parser.parse_args()
    anyio.run(main, options.bootstrap, options.topic, options.group, options.database)

"""Retry records that fail, then write them to a dead letter topic:
`retry_dead_letter.py BROKER TOPIC GROUP`.

A record that fails is tried again after a pause that doubles. Meanwhile its partition is paused, so
nothing overtakes it, and the other partitions continue. After the last attempt, or at once if no
retry can help, the record goes to the topic TOPIC.dead, with its origin and the error as headers.
Only then does its offset count as processed. Ctrl-C or SIGTERM finishes the records in flight,
commits, and leaves the group.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from kafkagroup import (
    ClosedError,
    Consumer,
    DeserializationError,
    NotAssignedError,
    Producer,
    Record,
    TopicPartition,
    open_signal_receiver,
)

ATTEMPTS = 5
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before the second attempt, then twice as many each time, up to the longest pause."""

BATCH, ATTEMPT_TIMEOUT, WRITE_TIMEOUT = 5, 10.0, 30.0
"""Records between two polls, and the seconds for an attempt and for a dead letter. Together at most
5 * (10 + 30) = 200 s between polls, below `max_poll_interval_ms` (300 s). Pauses do not count: the
program polls during them."""


@dataclass(frozen=True)
class Order:
    raw: bytes
    """As it was received, for the dead letter."""
    amount: int


def parse(value: bytes) -> Order:
    return Order(value, json.loads(value)["amount"])


class HopelessError(Exception):
    """The record cannot be processed, however often it is tried."""


async def process(record: Record[bytes | None, Order | None]) -> None:
    """What your program does with a record. Here some fail, to show what happens then."""
    order = record.value
    if order is None:
        return
    if order.amount < 0:
        raise HopelessError(f"an order of {order.amount}")
    if order.amount == 0:
        raise ConnectionError("the shop is closed")
    print(f"processed {record.partition}/{record.offset}: {order.amount}", flush=True)


@dataclass
class Retry:
    """A partition that is paused before the record at `offset` is tried again."""

    offset: int
    attempts: int
    due: float


class Worker:
    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.consumer = Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            value_deserializer=parse,
            on_partitions_revoked=self._forget,
            on_partitions_lost=self._forget,
        )
        self._producer = Producer(
            bootstrap_servers=bootstrap, delivery_timeout_ms=int(WRITE_TIMEOUT * 1000)
        )
        self._group = group
        self._dead_letters = f"{topic}.dead"
        self._retries: dict[TopicPartition, Retry] = {}

    async def run(self) -> None:
        """Work until the consumer is stopped. Raises NotWrittenError if a dead letter is not
        accepted: the record is not committed, so it is tried again after a restart."""
        async with self._producer, self.consumer:
            await self._producer.partition_count(self._dead_letters)  # raises if there is no topic
            while True:
                wait = self._resume_due()
                try:
                    # This is the poll, also while all partitions are paused. Records of the last
                    # call that were not sought back now count as processed: auto-commit sees them.
                    batches = await self.consumer.getmany(BATCH, timeout=wait)
                except ClosedError:
                    return
                except DeserializationError as error:
                    await self._bury(error.record, error.record.value, error, attempts=1)
                    self._seek(error.record, error.record.offset + 1)
                    continue
                for tp, records in batches.items():
                    await self._work(tp, records)

    async def _work(
        self, tp: TopicPartition, records: Sequence[Record[bytes | None, Order | None]]
    ) -> None:
        """Process the records in order, up to the first that has to be tried again."""
        for record in records:
            retry = self._retries.pop(tp, None)
            attempts = 1 + (retry.attempts if retry and retry.offset == record.offset else 0)
            try:
                with anyio.fail_after(ATTEMPT_TIMEOUT):
                    await process(record)
            except Exception as error:
                if attempts < ATTEMPTS and not isinstance(error, HopelessError):
                    pause = min(FIRST_PAUSE * 2 ** (attempts - 1), LONGEST_PAUSE)
                    self._try_again(tp, record, attempts, pause)
                    return  # the records behind it are delivered again, too
                raw = None if record.value is None else record.value.raw
                await self._bury(record, raw, error, attempts)

    def _try_again(
        self, tp: TopicPartition, record: Record[object, object], attempts: int, pause: float
    ) -> None:
        if self._seek(record, record.offset):
            self.consumer.pause(tp)
            self._retries[tp] = Retry(record.offset, attempts, anyio.current_time() + pause)
            print(f"again in {pause:g} s: {record.partition}/{record.offset}", flush=True)

    def _resume_due(self) -> float:
        """Resume the partitions whose pause is over. Return the seconds until the next one's is."""
        now, paused = anyio.current_time(), self.consumer.paused()
        left = {tp: retry.due - now for tp, retry in self._retries.items() if tp in paused}
        self.consumer.resume(*(tp for tp, seconds in left.items() if seconds <= 0))
        return min((seconds for seconds in left.values() if seconds > 0), default=LONGEST_PAUSE)

    async def _bury(
        self,
        record: Record[bytes | None, object],
        value: bytes | None,
        error: Exception,
        attempts: int,
    ) -> None:
        """Return when all in-sync replicas have the dead letter."""
        about = {
            "dlq.topic": record.topic,
            "dlq.partition": str(record.partition),
            "dlq.offset": str(record.offset),
            "dlq.timestamp": str(record.timestamp),
            "dlq.group": self._group,
            "dlq.attempts": str(attempts),
            "dlq.error": f"{type(error).__name__}: {error}",
        }
        headers = [(name, text.encode()) for name, text in about.items()]
        # Without the record's timestamp: retention would delete an old record at once.
        await self._producer.send(
            self._dead_letters, value, key=record.key, headers=(*record.headers, *headers)
        )
        print(f"dead: {record.partition}/{record.offset}: {about['dlq.error']}", flush=True)

    def _seek(self, record: Record[object, object], offset: int) -> bool:
        """Continue at an offset; False if the partition has another owner now, which tries it."""
        try:
            self.consumer.seek((record.topic, record.partition), offset)
        except NotAssignedError:
            return False
        return True

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            self._retries.pop(tp, None)


async def stop_on_signal(consumer: Consumer[object, object]) -> None:
    with open_signal_receiver() as signals:
        async for _ in signals:
            await consumer.stop()


async def main(bootstrap: str, topic: str, group: str) -> None:
    worker = Worker(bootstrap, topic, group)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_signal, worker.consumer)
        await worker.run()
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", help="host:port")
    parser.add_argument("topic")
    parser.add_argument("group")
    options = parser.parse_args()
    anyio.run(main, options.bootstrap, options.topic, options.group)

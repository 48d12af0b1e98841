"""Limit the number of slow jobs in flight: `back_pressure.py BROKER TOPIC GROUP`.

Records go to a pool of workers. At the limit of jobs in flight, the partitions are paused: they
stay assigned and nothing more is fetched. When half of the jobs are done, they are resumed. Records
of one partition are handled in order, and only handled records are committed. Ctrl-C or SIGTERM
finishes the jobs in flight, commits, and leaves the group.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from kafkagroup import (
    ClosedError,
    CommitFailedError,
    Consumer,
    Record,
    TopicPartition,
    open_signal_receiver,
)


async def handle(record: Record) -> None:
    """The slow job, such as a call to another service."""
    await anyio.sleep(0.002)
    print(f"handled {record.partition}/{record.offset}", flush=True)


class Pool:
    """Workers, what is under way, and what is done and not yet committed."""

    def __init__(self, bootstrap: str, topic: str, group: str, *, workers: int, most: int) -> None:
        self.consumer = Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            on_partitions_revoked=self._finish,
            on_partitions_lost=self._forget,
        )
        self._most = most
        self._under_way: Counter[TopicPartition] = Counter()
        self._done: dict[TopicPartition, int] = {}
        self._handled = anyio.Event()
        streams = [anyio.create_memory_object_stream[Record](most) for _ in range(workers)]
        self._desks = [desk for desk, _ in streams]
        self._inboxes = [inbox for _, inbox in streams]

    async def run(self) -> None:
        """Consume until the consumer is stopped."""
        async with anyio.create_task_group() as tasks:
            for inbox in self._inboxes:
                tasks.start_soon(self._work, inbox)
            async with self.consumer:
                try:
                    while True:
                        await self._take()
                        await self._commit()
                except ClosedError:
                    pass
            for desk in self._desks:
                desk.close()

    async def _take(self) -> None:
        """Hand out what has arrived, and pause or resume. Coming here regularly, even while all is
        paused, tells the group that this process is alive."""
        consumer, paused = self.consumer, self.consumer.paused()
        free = self._most - self._under_way.total()
        if free <= 0 and not paused:
            print("paused", flush=True)
            consumer.pause(*consumer.assignment())
        elif paused and free >= self._most / 2:
            print("resumed", flush=True)
            consumer.resume(*paused)
        for tp, records in (await consumer.getmany(max(free, 1), timeout=0.05)).items():
            for record in records:
                self._under_way[tp] += 1
                # One partition always goes to the same worker, which keeps its order.
                await self._desks[tp.partition % len(self._desks)].send(record)

    async def _work(self, inbox: MemoryObjectReceiveStream[Record]) -> None:
        async with inbox:
            async for record in inbox:
                await handle(record)
                tp = TopicPartition(record.topic, record.partition)
                if self._under_way[tp]:
                    self._under_way[tp] -= 1
                    self._done[tp] = record.offset + 1
                self._handled.set()
                self._handled = anyio.Event()

    async def _commit(self) -> None:
        done, self._done = self._done, {}
        if done:
            try:
                await self.consumer.commit(done)
            except CommitFailedError as error:
                # The group has rebalanced: who owns the partitions now gets these records again.
                print(f"not committed: {error}", flush=True)

    async def _finish(self, partitions: Sequence[TopicPartition]) -> None:
        """Finish before partitions are revoked, or the consumer closes."""
        while any(self._under_way[tp] for tp in partitions):
            await self._handled.wait()
        await self._commit()

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget partitions that were lost: another member owns them, so do not commit them."""
        for tp in partitions:
            self._under_way.pop(tp, None)
            self._done.pop(tp, None)


async def stop_on_signal(consumer: Consumer) -> None:
    with open_signal_receiver() as signals:
        async for _ in signals:
            await consumer.stop()


async def main(bootstrap: str, topic: str, group: str, workers: int, most: int) -> None:
    pool = Pool(bootstrap, topic, group, workers=workers, most=most)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_signal, pool.consumer)
        await pool.run()
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", help="host:port")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--most", type=int, default=100, help="records under way at a time")
    options = parser.parse_args()
    anyio.run(main, options.bootstrap, options.topic, options.group, options.workers, options.most)

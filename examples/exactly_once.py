"""Consume, transform and produce, each record exactly once:
`exactly_once.py BROKER FROM TO GROUP REPLICA`.

Reads the topic FROM as a member of GROUP, and writes each record, in capitals, to the topic TO. The
records written and the offsets read are committed together. REPLICA is the number of this copy of
the program, from 0: each has a transactional id of its own, the same after a restart. Ctrl-C or
SIGTERM ends it after the transaction in progress.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import anyio

from kafkagroup import BufferFullError, Consumer, Producer, open_signal_receiver


async def work(consumer: Consumer, producer: Producer, to: str) -> None:
    async for tx in producer.transactions(consumer):
        async with tx as records:
            for record in records:
                value = (record.value or b"").upper()
                try:
                    tx.send_nowait(to, value, key=record.key)
                except BufferFullError:  # the records of a transaction may exceed buffer_memory
                    await producer.ready()
                    tx.send_nowait(to, value, key=record.key)
        print(f"{len(records)} records", flush=True)


async def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    for name in ("broker", "source", "target", "group", "replica"):
        parser.add_argument(name)
    asked = parser.parse_args(words)
    async with (
        Producer(
            bootstrap_servers=asked.broker,
            transactional_id=f"{asked.group}-{asked.replica}",
        ) as producer,
        Consumer(
            asked.source,
            bootstrap_servers=asked.broker,
            group_id=asked.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        ) as consumer,
        anyio.create_task_group() as tasks,
    ):

        async def stop() -> None:
            with open_signal_receiver() as signals:
                await anext(signals)
            await consumer.stop()

        tasks.start_soon(stop)
        await work(consumer, producer, asked.target)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)

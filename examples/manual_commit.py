"""Process batches, and commit each one when it is done: `manual_commit.py BROKER TOPIC GROUP`.

A batch is committed after all its records are stored. If the process is killed in between, or if
storing takes so long that the partition is lost, the next owner gets the batch again: storing must
be idempotent. Ctrl-C or SIGTERM finishes the batch in flight, commits it, and leaves the group.
"""

from __future__ import annotations

import argparse

import anyio

from kafkagroup import Batch, CommitFailedError, Consumer, open_signal_receiver


async def store(batch: Batch) -> None:
    """What your program does with records. If it raises, nothing of the batch is committed."""
    where, first, last = batch.partition, batch.records[0].offset, batch.records[-1].offset
    print(f"stored {where}/{first}-{last}", flush=True)


async def stop_on_signal(consumer: Consumer) -> None:
    with open_signal_receiver() as signals:
        async for _ in signals:
            await consumer.stop()


async def main(bootstrap: str, topic: str, group: str, batch_size: int) -> None:
    consumer = Consumer(
        topic, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_signal, consumer)
        async with consumer:
            async for batch in consumer.batches(max_records=batch_size):
                await store(batch)
                try:
                    await consumer.commit()
                except CommitFailedError as error:
                    # The partition was lost meanwhile: its new owner gets the batch again. Each
                    # loss is raised once; if it is often, batches take too long to store.
                    print(f"not committed: {error}", flush=True)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", help="host:port")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("--batch-size", type=int, default=500, help="records, at most")
    options = parser.parse_args()
    anyio.run(main, options.bootstrap, options.topic, options.group, options.batch_size)

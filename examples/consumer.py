"""Print the records of a topic as a member of a group: `consumer.py BROKER TOPIC GROUP`.

Ctrl-C waits for the record in flight, commits, and leaves the group.
"""

from __future__ import annotations

import argparse

import anyio

from kafkagroup import Consumer, open_signal_receiver


async def main(bootstrap: str, topic: str, group: str) -> None:
    consumer = Consumer(topic, bootstrap_servers=bootstrap, group_id=group)

    async def stop_on_signal() -> None:
        with open_signal_receiver() as signals:
            async for _ in signals:
                await consumer.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_signal)
        async with consumer:
            async for record in consumer:
                value = record.value.decode() if isinstance(record.value, bytes) else None
                print(f"{record.partition}/{record.offset}: {value}", flush=True)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", help="host:port")
    parser.add_argument("topic")
    parser.add_argument("group")
    options = parser.parse_args()
    anyio.run(main, options.bootstrap, options.topic, options.group)

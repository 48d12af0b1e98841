"""A grouped consumer by kiel's names, moved to asyncio: `coming_from_kiel.py BROKER TOPIC GROUP`.

`yield` becomes `await`, and Tornado's loop becomes asyncio's. Values are JSON without another
deserializer. The records of one call are committed by the next call, after they were processed;
kiel commits them before. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse

import anyio

from kafkagroup import open_signal_receiver
from kafkagroup.compat.kiel import GroupedConsumer


async def main(bootstrap: str, topic: str, group: str) -> None:
    stopping = anyio.Event()

    async def stop_on_signal() -> None:
        with open_signal_receiver() as signals:
            async for _ in signals:
                stopping.set()

    consumer = GroupedConsumer([bootstrap], group, zk_hosts=[], max_wait_time=200)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_signal)
        async with consumer:
            while not stopping.is_set():
                for value in await consumer.consume(topic):
                    print(value, flush=True)
            await consumer.commit_offsets()
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", help="host:port")
    parser.add_argument("topic")
    parser.add_argument("group")
    options = parser.parse_args()
    anyio.run(main, options.bootstrap, options.topic, options.group)

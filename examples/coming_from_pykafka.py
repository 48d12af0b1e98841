"""A consumer by pykafka's names, moved to asyncio: `coming_from_pykafka.py BROKER TOPIC GROUP`.

What was

    client = KafkaClient(hosts="localhost:9092")
    consumer = client.topics[b"orders"].get_balanced_consumer(b"billing", managed=True)
    for message in consumer: ...

is `async with` and `async for`. Names, options and defaults stay; offsets are still those of the
last message. The callback below starts two messages earlier than the group has committed. Ends when
no message has come for a while, as pykafka's does with `consumer_timeout_ms`.
"""

from __future__ import annotations

import argparse

import anyio

from kafkagroup.compat.pykafka import ManagedBalancedConsumer


def start_two_earlier(
    consumer: ManagedBalancedConsumer, before: dict[int, int], after: dict[int, int]
) -> dict[int, int]:
    """Return partition id -> offset of the last message, after which reading starts."""
    print(f"had {sorted(before)}, has {sorted(after)}", flush=True)
    return {partition: last - 2 for partition, last in after.items() if last >= 2}


async def main(bootstrap: str, topic: str, group: str) -> None:
    consumer = ManagedBalancedConsumer(
        topic,
        bootstrap,
        group.encode(),
        consumer_timeout_ms=5_000,
        post_rebalance_callback=start_two_earlier,
    )
    async with consumer:
        async for message in consumer:
            print(f"{message.partition_id}/{message.offset}: {message.value!r}", flush=True)
        await consumer.commit_offsets()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", help="host:port")
    parser.add_argument("topic")
    parser.add_argument("group")
    options = parser.parse_args()
    anyio.run(main, options.bootstrap, options.topic, options.group)

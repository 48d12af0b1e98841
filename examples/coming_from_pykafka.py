"""A consumer by pykafka's names, moved to asyncio: `coming_from_pykafka.py BROKER TOPIC GROUP`.

What was

    client = KafkaClient(hosts="localhost:9092")
    consumer = client.topics[b"orders"].get_balanced_consumer(b"billing", managed=True)
    for message in consumer: ...

is `async with` and `async for`. Names, options and defaults stay; offsets are still those of the
last message. The callback below starts two messages earlier than the group has committed. Ends when
no message has come for a while, as pykafka's does with `consumer_timeout_ms`. Before that a request
to one broker reads the start of a partition; a fetch returns bytes, which `decode_records` reads.
"""

from __future__ import annotations

import argparse

import anyio

from kafkagroup.compat.pykafka import Broker, ManagedBalancedConsumer, PartitionFetchRequest
from kafkagroup.wire import decode_records


def start_two_earlier(
    consumer: ManagedBalancedConsumer, before: dict[int, int], after: dict[int, int]
) -> dict[int, int]:
    """Return partition id -> offset of the last message, after which reading starts."""
    print(f"had {sorted(before)}, has {sorted(after)}", flush=True)
    return {partition: last - 2 for partition, last in after.items() if last >= 2}


async def print_first(bootstrap: str, topic: str) -> None:
    """Print the first message of partition 0, if this broker leads it."""
    host, _, port = bootstrap.rpartition(":")
    async with Broker(-1, host, int(port), None, 30_000, 10_000) as broker:
        response = await broker.fetch_messages([PartitionFetchRequest(topic, 0, 0)], timeout=500)
    for data in response.responses[0].partitions:
        for record in decode_records(data.records, topic, data.partition_index):
            print(f"the first is {record.value!r}", flush=True)
            break


async def main(bootstrap: str, topic: str, group: str) -> None:
    await print_first(bootstrap, topic)
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

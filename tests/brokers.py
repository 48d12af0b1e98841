"""Helpers of the tests with a broker."""

import time

import anyio
import pytest

from kafkagroup import Consumer, TopicPartition
from kafkagroup.broker import Broker
from kafkagroup.testing.embedded.topics import CLUSTER_ID
from kafkagroup.wire.batch_writing import NewRecord, encode_batch

TRIO_IS_LONG = pytest.mark.parametrize(
    "anyio_backend", ["asyncio", pytest.param("trio", marks=pytest.mark.long)]
)
"""For a test that waits for seconds of real time: on trio it runs in `make test-all` only."""

FAST = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6_000}
"""Options of a member that notices changes soon; 6 s is the least that brokers accept."""


async def append(broker: Broker, tp: TopicPartition, records: list[NewRecord]) -> None:
    while True:
        response = await broker.produce_messages({tp: encode_batch(records)})
        assert response is not None
        code = response.responses[0].partition_responses[0].error_code
        if code == 0:
            return
        assert code in (3, 5, 6), f"produce to {tp}: error {code}"
        await anyio.sleep(0.02)  # the leader of a topic just made is not up yet


async def is_embedded(bootstrap: str) -> bool:
    """Whether this is the embedded broker, because real Kafka is unavailable."""
    host, port = bootstrap.split(",")[0].split(":")
    async with Broker.open(host, int(port)) as broker:
        return (await broker.request_metadata([])).cluster_id == CLUSTER_ID


def numbered(partition: int, count: int, start: int = 0) -> list[NewRecord]:
    """Return records whose values are their positions: b"0/17"."""
    return [NewRecord(None, b"%d/%d" % (partition, n), 1000 + n) for n in range(start, count)]


def set_heartbeat_interval(bootstrap: str, group: str, milliseconds: int) -> None:
    """Set the heartbeat interval that a real broker gives the members of a KIP-848 group. With its
    default, members learn of a rebalance after up to 5 s."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry(
        "consumer.heartbeat.interval.ms",
        str(milliseconds),
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(20)


def wait_for_end(bootstrap: str, tp: TopicPartition, offset: int) -> None:
    """Wait until the log ends at this offset. A producer that ends a transaction has its response
    before the marker in the log, so records of others may come before it."""
    from confluent_kafka import Consumer as OtherConsumer
    from confluent_kafka import TopicPartition as Place

    reader = OtherConsumer({"bootstrap.servers": bootstrap, "group.id": tp.topic})
    deadline = time.monotonic() + 20
    while (end := reader.get_watermark_offsets(Place(*tp), 20)[1]) < offset:
        assert time.monotonic() < deadline, f"{tp} ends at {end}, not at {offset}"
        time.sleep(0.01)
    reader.close()


class Worker:
    """A consumer in a task: reads records until it is stopped, and records its callbacks."""

    def __init__(self, bootstrap, name, **options):
        self.story = []
        self.seen = []
        self.pause = 0.0
        self.consumer = Consumer(
            name,
            bootstrap_servers=bootstrap,
            on_partitions_assigned=lambda tps: self.story.append(("assigned", numbers(tps))),
            on_partitions_revoked=lambda tps: self.story.append(("revoked", numbers(tps))),
            on_partitions_lost=lambda tps: self.story.append(("lost", numbers(tps))),
            **{"group_id": name, **FAST, **options},
        )

    async def run(self):
        async for record in self.consumer:
            self.seen.append((record.partition, record.offset))
            await anyio.sleep(self.pause)

    @property
    def owns(self):
        return numbers(self.consumer.assignment())


def numbers(partitions):
    return sorted(tp.partition for tp in partitions)


async def until(condition, seconds=20.0):
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.005)

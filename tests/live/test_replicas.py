"""Three real brokers in three racks: fetches from the nearest replica, and from new leaders."""

import anyio
import pytest
from anyio.to_thread import run_sync
from brokers import append, numbered, until

from kafkagroup import Consumer, TopicPartition
from kafkagroup.broker import Broker
from kafkagroup.testing.local import LocalKafka, LocalKafkaUnavailable
from kafkagroup.wire.messages.admin import CreatableTopic, CreateTopicsRequest

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)

# Each broker's rack is its own number, which it reads from its own file.
RACKS = {
    "config.providers": "file",
    "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    "broker.rack": "${file:server.properties:node.id}",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def brokers():
    try:
        with LocalKafka(nodes=3, config=RACKS) as running:
            yield running
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real Kafka here: {error}")


async def ask(brokers, node, call):
    host, port = brokers.address(node).split(":")
    async with Broker.open(host, int(port)) as broker:
        return await call(broker)


async def leader_and_epoch(brokers, node):
    """Return the leader of t/0 and its epoch by this node's metadata; None without a leader."""
    (topic,) = (await ask(brokers, node, lambda broker: broker.request_metadata(["t"]))).topics
    found = [(p.leader_id, p.leader_epoch) for p in topic.partitions if p.leader_id > 0]
    return found[0] if found else None


async def led(brokers, node, but=0):
    """Return the leader of t/0 and its epoch, once it is not `but`."""
    with anyio.fail_after(20):
        while (found := await leader_and_epoch(brokers, node)) is None or found[0] == but:
            await anyio.sleep(0.02)
    return found


async def test_a_consumer_fetches_from_the_nearest_replica_and_then_from_a_new_leader(brokers):
    new = CreatableTopic(
        name="t", num_partitions=1, replication_factor=3, assignments=(), configs=()
    )
    await ask(brokers, 1, lambda broker: broker.request(CreateTopicsRequest(topics=(new,))))
    leader, epoch = await led(brokers, 1)
    await ask(brokers, leader, lambda broker: append(broker, TP, numbered(0, 5)))
    follower, other = (node for node in (1, 2, 3) if node != leader)
    options = {"bootstrap_servers": brokers.bootstrap_servers, "client_rack": str(follower)}
    async with Consumer(**options) as consumer:
        await consumer.assign([TP])
        with anyio.fail_after(20):
            assert [(await consumer.getone()).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        owned = consumer._delivery.owned[TP]
        assert (owned.replica.node_id, owned.checked_epoch) == (follower, epoch)

        await run_sync(brokers.stop_node, leader)
        leader, epoch = await led(brokers, other, but=leader)
        await ask(brokers, leader, lambda broker: append(broker, TP, numbered(0, 7, 5)))
        with anyio.fail_after(20):
            assert [(await consumer.getone()).offset for _ in range(2)] == [5, 6]
        # The position was validated at the new leader first.
        await until(lambda: owned.checked_epoch == epoch)

"""The compat classes on old brokers, which users of old clients may still have."""

import anyio
import pytest
from brokers import append, numbered, until

from kafkagroup import Admin, OffsetAndMetadata, TopicPartition
from kafkagroup.broker import Broker
from kafkagroup.compat import kafka_python, kiel, pykafka
from kafkagroup.testing import LocalZooKeeper
from kafkagroup.wire import decode_assignment
from kafkagroup.wire.messages import admin

pytestmark = [pytest.mark.anyio, pytest.mark.brokers]

QUICK = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6_000}


@pytest.fixture
async def topic(old, name):
    """Create two partitions with three records each; the group of the same name has a
    coordinator."""
    host, port = old.address(1).split(":")
    async with Broker.open(host, int(port)) as broker:
        new = admin.CreatableTopic(
            name=name, num_partitions=2, replication_factor=1, assignments=(), configs=()
        )
        response = await broker.request(admin.CreateTopicsRequest(topics=(new,)))
        assert [made.error_code for made in response.topics] == [0]
        for partition in range(2):
            await append(broker, TopicPartition(name, partition), numbered(partition, 3))
    async with Admin(bootstrap_servers=old.bootstrap_servers) as client:
        await client.find_coordinator(name)
    return name


async def test_pykafkas_consumer(old, topic):
    def consumer():
        return pykafka.ManagedBalancedConsumer(topic, old.bootstrap_servers, topic, **QUICK)

    async with consumer() as one:
        with anyio.fail_after(20):
            seen = [await one.consume() for _ in range(6)]
        assert {(m.partition_id, m.offset) for m in seen} == {
            (p, n) for p in range(2) for n in range(3)
        }
        await one.commit_offsets()
        async with consumer() as other:
            await until(lambda: len(one.partitions) == len(other.partitions) == 1)
        await until(lambda: one.held_offsets == {0: 2, 1: 2})


async def test_pykafkas_consumer_with_its_group_in_zookeeper(old, topic):
    with LocalZooKeeper() as zookeeper:

        def consumer():
            return pykafka.BalancedConsumer(
                topic, old.bootstrap_servers, topic, zookeeper_connect=zookeeper.hosts
            )

        async with consumer() as one:
            with anyio.fail_after(20):
                seen = [await one.consume() for _ in range(6)]
            assert {(m.partition_id, m.offset) for m in seen} == {
                (p, n) for p in range(2) for n in range(3)
            }
            await one.commit_offsets()
            async with consumer() as other:
                await until(lambda: len(one.partitions) == len(other.partitions) == 1)
                (partition,) = other.partitions
                await until(lambda: other.held_offsets == {partition: 2})


async def test_pykafkas_broker(old, topic):
    host, port = old.address(1).split(":")
    group = topic.encode()
    async with pykafka.Broker(1, host, int(port), None, 30_000, 10_000) as broker:
        member_id = b""
        with anyio.fail_after(20):
            while (
                joined := await broker.join_group("c", group, member_id, topic_name=topic)
            ).error_code:
                assert joined.error_code in (14, 15, 16, 79)
                member_id = joined.member_id.encode() or member_id
        member_id = joined.member_id.encode()
        share = pykafka.MemberAssignment([(group, [1])], member_id=member_id)
        synced = await broker.sync_group("c", group, joined.generation_id, member_id, [share])
        assert decode_assignment(synced.assignment) == (TopicPartition(topic, 1),)
        beat = await broker.heartbeat("c", group, joined.generation_id, member_id)
        assert beat.error_code == 0
        commit = pykafka.PartitionOffsetCommitRequest(topic, 1, 2, metadata=b"note")
        await broker.commit_consumer_group_offsets(group, joined.generation_id, member_id, [commit])
        wanted = pykafka.PartitionOffsetFetchRequest(topic, 1)
        found = await broker.fetch_consumer_group_offsets(group, [wanted])
        topics = found.groups[0].topics if found.groups else found.topics
        assert [(p.committed_offset, p.metadata) for p in topics[0].partitions] == [(2, "note")]
        assert (await broker.leave_group("c", group, member_id)).error_code == 0


class Workers(kafka_python.BaseCoordinator):
    def protocol_type(self):
        return "workers"

    def group_protocols(self):
        return [("all", "metadata")]

    def _perform_assignment(self, leader_id, protocol, members):
        return {leader_id: f"all of {len(members)}"}

    def _on_join_complete(self, generation, member_id, protocol, member_assignment_bytes):
        self.share = member_assignment_bytes


async def test_kafka_pythons_base_coordinator(old, name):
    client = kafka_python.KafkaClient(bootstrap_servers=old.bootstrap_servers)
    async with Workers(client, kafka_python.Metrics(), group_id=name, **QUICK) as one:
        with anyio.fail_after(20):
            await one.ensure_active_group()
        assert (one.share, one.coordinator_id) == (b"all of 1", 1)


async def test_kafka_pythons_consumer_coordinator(old, topic):
    client = kafka_python.KafkaClient(bootstrap_servers=old.bootstrap_servers)
    subscription = kafka_python.SubscriptionState()
    subscription.subscribe([topic])
    offsets = {TopicPartition(topic, 0): OffsetAndMetadata(2, "note")}
    async with kafka_python.ConsumerCoordinator(
        client, subscription, kafka_python.Metrics(), group_id=topic, **QUICK
    ) as one:
        with anyio.fail_after(20):
            await one.ensure_active_group()
            for _ in range(6):
                await one.consumer.getone()
            assert await one.commit_offsets_async(offsets) is True
            assert await one.fetch_committed_offsets(offsets) == offsets


async def test_kiels_consumer(old, topic):
    def consumer():
        return kiel.GroupedConsumer(
            [old.address(1)], topic, [], deserializer=bytes, max_wait_time=200, topics=[topic]
        )

    async with consumer() as one:
        seen = []
        with anyio.fail_after(20):
            while len(seen) < 6:
                seen += await one.consume(topic)
        assert sorted(seen) == [record.value for p in range(2) for record in numbered(p, 3)]
        assert await one.consume(topic) == []
        assert one.allocation == {topic: [0, 1]}
    async with consumer() as again:
        await until(lambda: again.allocation)
        assert await again.consume(topic) == []
        await again.determine_offsets(topic)
        assert again.offsets == {topic: {0: 3, 1: 3}}

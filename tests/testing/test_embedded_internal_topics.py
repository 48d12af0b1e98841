"""Kafka's own topics at the embedded broker: they appear with the first coordinator."""

import anyio
import pytest
from testing.peers import LOOPS, Peer, connected

from kafkagroup import Admin, Consumer
from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest
from kafkagroup.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

pytestmark = pytest.mark.anyio


async def topics(peer: Peer) -> dict[str, tuple[bool, int]]:
    """Return name -> whether the topic is internal, and how many partitions it has."""
    found = (await peer.ask(MetadataRequest(topics=None), 12)).topics
    return {topic.name: (topic.is_internal, len(topic.partitions)) for topic in found}


@LOOPS
async def test_a_topic_of_a_coordinator_is_created_by_the_first_look_for_it() -> None:
    async with EmbeddedKafka({"t": 1}, nodes=2) as kafka, connected(kafka) as peer:
        assert await topics(peer) == {"t": (False, 1)}
        await peer.ask(FindCoordinatorRequest(coordinator_keys=("g",), key_type=0), 4)
        assert await topics(peer) == {"t": (False, 1), "__consumer_offsets": (True, 50)}
        await peer.ask(FindCoordinatorRequest(key="tx", key_type=1), 1)
        await peer.ask(FindCoordinatorRequest(coordinator_keys=("h",), key_type=0), 4)
        assert await topics(peer) == {
            "t": (False, 1),
            "__consumer_offsets": (True, 50),
            "__transaction_state": (True, 50),
        }


@LOOPS
async def test_clients_do_not_write_to_internal_topics() -> None:
    async with EmbeddedKafka({"__consumer_offsets": 1}) as kafka, connected(kafka) as peer:
        assert await topics(peer) == {"__consumer_offsets": (True, 1)}
        batch = encode_batch([NewRecord(b"key", b"value")])
        entry = PartitionProduceData(index=0, records=batch)
        topic = TopicProduceData(name="__consumer_offsets", partition_data=(entry,))
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=(topic,))
        (response,) = (await peer.ask(request, 9)).responses[0].partition_responses
        assert response.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        # Tests of tools that read the topic write its records themselves.
        kafka.append("__consumer_offsets", 0, batch)
        assert kafka.log_end("__consumer_offsets", 0) == 1


@LOOPS
async def test_a_pattern_ignores_internal_topics_and_admin_lists_them() -> None:
    async with EmbeddedKafka({"t": 1}) as kafka:
        servers = kafka.bootstrap_servers
        async with Consumer(pattern=".*", bootstrap_servers=servers, group_id="g") as consumer:
            with anyio.fail_after(10):
                assert {tp.topic for tp in await consumer.wait_assignment()} == {"t"}
            async with Admin(bootstrap_servers=servers) as admin:
                assert {t.name: t.internal for t in await admin.list_topics()} == {
                    "t": False,
                    "__consumer_offsets": True,
                }


@LOOPS
async def test_a_setting_leaves_internal_topics_out() -> None:
    settings = BrokerSettings(internal_topics=False)
    async with EmbeddedKafka({"t": 1}, settings=settings) as kafka, connected(kafka) as peer:
        await peer.ask(FindCoordinatorRequest(coordinator_keys=("g",), key_type=0), 4)
        assert await topics(peer) == {"t": (False, 1)}

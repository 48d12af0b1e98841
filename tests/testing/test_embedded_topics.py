"""The options of topics at the embedded broker, and what they do."""

import pytest
from testing.peers import LOOPS, Peer, connected

from kafkagroup import Consumer
from kafkagroup.admin import Admin, NewTopic
from kafkagroup.errors import BrokerError, ChangesRefusedError, ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings
from kafkagroup.types import TimestampType, TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkagroup.wire.messages.configs import (
    BROKER,
    TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kafkagroup.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)

pytestmark = pytest.mark.anyio


async def produce(peer: Peer, records: bytes, *, acks: int = -1) -> PartitionProduceResponse:
    """Produce to t/0; return its entry of the response."""
    entry = PartitionProduceData(index=0, records=records)
    topic = TopicProduceData(name="t", partition_data=(entry,))
    request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=(topic,))
    (response,) = (await peer.ask(request, 9)).responses[0].partition_responses
    return response


@LOOPS
async def test_a_topic_limits_the_size_of_a_batch_as_it_is_sent() -> None:
    settings = BrokerSettings(max_message_bytes=300)
    async with EmbeddedKafka(settings=settings) as kafka, connected(kafka) as peer:
        kafka.create_topic("t", configs={"max.message.bytes": "2048"})
        records = [NewRecord(None, b"x" * 1000)] * 3
        large, compressed = encode_batch(records), encode_batch(records, codec=Codec.GZIP)
        assert len(compressed) < 2048 < len(large)
        assert (await produce(peer, large)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await produce(peer, compressed)).error_code == ErrorCode.NONE
        kafka.set_topic_configs("t", {"max.message.bytes": str(len(large))})
        assert (await produce(peer, large)).error_code == ErrorCode.NONE
        kafka.set_topic_configs("t", {"max.message.bytes": None})
        medium = encode_batch([NewRecord(None, b"x" * 300)])
        assert (await produce(peer, medium)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert kafka.log_end("t", 0) == 6


def test_options_of_topics_are_checked() -> None:
    kafka = EmbeddedKafka({"t": 1})
    with pytest.raises(BrokerError, match=r"UNKNOWN_TOPIC_OR_PARTITION.*u"):
        kafka.set_topic_configs("u", {"max.message.bytes": "1"})
    for configs in ({"max.bytes": "1"}, {"max.message.bytes": "many"}, {"retention.ms": "-2"}):
        with pytest.raises(BrokerError, match=f"INVALID_CONFIG.*{next(iter(configs))}"):
            kafka.create_topic("u", configs=configs)
        with pytest.raises(BrokerError, match="INVALID_CONFIG"):
            kafka.set_topic_configs("t", {"cleanup.policy": "compact,delete", **configs})


@LOOPS
async def test_too_few_nodes_for_acks_of_all_replicas() -> None:
    async with EmbeddedKafka(nodes=3) as kafka, connected(kafka) as peer:
        batch = encode_batch([NewRecord(None, b"a")])
        kafka.create_topic("t", configs={"min.insync.replicas": "2"})
        kafka.kill(2)
        assert (await produce(peer, batch)).error_code == ErrorCode.NONE
        kafka.kill(3)
        assert (await produce(peer, batch)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await produce(peer, batch, acks=1)).error_code == ErrorCode.NONE
        kafka.restart(2)
        assert (await produce(peer, batch)).base_offset == 2


@LOOPS
async def test_the_errors_of_records_name_them() -> None:
    async with EmbeddedKafka() as kafka, connected(kafka) as peer:
        kafka.create_topic("t", configs={"cleanup.policy": "compact"})
        records = [NewRecord(b"key", b"a"), NewRecord(None, b"b")]
        response = await produce(peer, encode_batch(records, codec=Codec.GZIP))
        assert response.error_code == ErrorCode.INVALID_RECORD
        (error,) = response.record_errors
        assert error.batch_index == 1
        assert error.batch_index_error_message == (
            "Compacted topic cannot accept message without key in topic partition t-0."
        )
        assert response.error_message is not None
        assert str(error.batch_index_error_message) in response.error_message


@LOOPS
async def test_records_get_the_time_of_the_append() -> None:
    async with EmbeddedKafka(wall=lambda: 1234.5) as kafka, connected(kafka) as peer:
        kafka.create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
        records = [NewRecord(None, value, 7) for value in (b"a", b"b")]
        assert (await produce(peer, encode_batch(records))).log_append_time_ms == 1_234_500
        async with Consumer(
            bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            await consumer.assign([TopicPartition("t", 0)])
            for _ in records:
                record = await consumer.getone()
                assert record.timestamp == 1_234_500
                assert record.timestamp_type is TimestampType.LOG_APPEND_TIME


@LOOPS
async def test_the_response_to_a_creation_has_the_options_of_the_topic() -> None:
    async with EmbeddedKafka() as kafka, connected(kafka) as peer:
        chosen = (CreatableTopicConfig(name="retention.ms", value="5"),)
        topic = CreatableTopic(
            name="t", num_partitions=1, replication_factor=1, assignments=(), configs=chosen
        )
        (created,) = (await peer.ask(CreateTopicsRequest(topics=(topic,)), 7)).topics
        resource = DescribeConfigsResource(
            resource_type=TOPIC, resource_name="t", configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=(resource,))
        (described,) = (await peer.ask(request, 4)).results
        assert [(c.name, c.value, c.config_source) for c in created.configs] == [
            (c.name, c.value, c.config_source) for c in described.configs
        ]
        assert ("retention.ms", "5", 1) in [
            (c.name, c.value, c.config_source) for c in created.configs
        ]


@LOOPS
async def test_a_broker_describes_its_settings() -> None:
    settings = BrokerSettings(max_message_bytes=77, group_min_session_timeout=0.5)
    async with EmbeddedKafka({"t": 1}, settings=settings) as kafka, connected(kafka) as peer:

        async def describe(kind: int, name: str, *keys: str) -> list[tuple[str, str | None, int]]:
            resource = DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys
            )
            request = DescribeConfigsRequest(resources=(resource,), include_synonyms=True)
            (result,) = (await peer.ask(request, 4)).results
            assert result.error_code == ErrorCode.NONE
            return [(s.name, s.value, s.source) for c in result.configs for s in c.synonyms]

        assert await describe(BROKER, "1", "message.max.bytes", "group.min.session.timeout.ms") == [
            ("message.max.bytes", "77", 4),
            ("message.max.bytes", "1048588", 5),
            ("group.min.session.timeout.ms", "500", 4),
            ("group.min.session.timeout.ms", "6000", 5),
        ]
        assert await describe(TOPIC, "t", "max.message.bytes") == [
            ("message.max.bytes", "77", 4),
            ("message.max.bytes", "1048588", 5),
        ]


@LOOPS
async def test_the_partitions_of_one_request_are_limited() -> None:
    """As at 4.3.1. The broker tried to create as many, which took all of its memory."""
    async with (
        EmbeddedKafka({"t": 1}) as kafka,
        Admin(bootstrap_servers=kafka.bootstrap_servers) as admin,
    ):
        with pytest.raises(ChangesRefusedError) as refused:
            await admin.create_topics([NewTopic(name="new", partitions=1_000_000_000)])
        (error,) = refused.value.exceptions
        assert isinstance(error, BrokerError)
        assert error.code == ErrorCode.POLICY_VIOLATION
        with pytest.raises(ChangesRefusedError) as refused:
            await admin.add_partitions({"t": 10_002})
        (error,) = refused.value.exceptions
        assert isinstance(error, BrokerError)
        assert error.code == ErrorCode.UNKNOWN_SERVER_ERROR
        await admin.add_partitions({"t": 10_001})
        assert kafka.partitions("t") == 10_001

"""The options of topics at the embedded broker, and what they do."""

import pytest
from testing.peers import LOOPS, Peer, connected

from kafkagroup.errors import BrokerError, ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec
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
    (answer,) = (await peer.ask(request, 9)).responses[0].partition_responses
    return answer


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
    for configs in ({"max.bytes": "1"}, {"max.message.bytes": "many"}, {"retention.ms": "-2"}):
        with pytest.raises(BrokerError, match=f"INVALID_CONFIG.*{next(iter(configs))}"):
            kafka.create_topic("u", configs=configs)
        with pytest.raises(BrokerError, match="INVALID_CONFIG"):
            kafka.set_topic_configs("t", {"cleanup.policy": "compact,delete", **configs})
    with pytest.raises(BrokerError, match=r"INVALID_CONFIG.*max\.bytes"):
        kafka.set_topic_configs("t", {"max.bytes": None})

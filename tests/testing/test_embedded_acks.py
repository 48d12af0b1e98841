"""Produce with acks=0 at the embedded broker: no response, whatever happens."""

import anyio
import pytest
from testing.peers import LOOPS, Peer, connected

from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Change
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.metadata import MetadataRequest
from kafkagroup.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

pytestmark = pytest.mark.anyio

BATCH = encode_batch([NewRecord(None, b"a")])


def unanswered(batch: bytes = BATCH, index: int = 0) -> ProduceRequest:
    data = PartitionProduceData(index=index, records=batch)
    topic = TopicProduceData(name="t", partition_data=(data,))
    return ProduceRequest(acks=0, timeout_ms=1000, topic_data=(topic,))


async def send(peer: Peer, request: ProduceRequest) -> None:
    """Send a request that has no response. The next response is checked to be of the next one."""
    await peer.send(request, 9)
    peer.answered += 1


@LOOPS
async def test_the_next_response_is_of_the_next_request() -> None:
    async with EmbeddedKafka({"t": 1}) as kafka, connected(kafka) as peer:
        # Also if a test looks at the response.
        kafka.fail(ProduceRequest, Change(lambda response: response))
        for count in (1, 2):
            await send(peer, unanswered())
            await peer.ask(MetadataRequest(topics=None), 12)
            assert kafka.log_end("t", 0) == count


@LOOPS
@pytest.mark.parametrize("trouble", ["partition", "batch", "fault", "fault of the partition"])
async def test_an_error_closes_the_connection(trouble: str) -> None:
    async with EmbeddedKafka({"t": 1}) as kafka, connected(kafka) as peer:
        request = unanswered()
        match trouble:
            case "partition":
                request = unanswered(index=1)
            case "batch":
                request = unanswered(BATCH[:-1] + b"\xff")
            case "fault":
                kafka.fail(ProduceRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            case _:
                tp = TopicPartition("t", 0)
                kafka.fail(ProduceRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER, partition=tp)
        await send(peer, request)
        with anyio.fail_after(10), pytest.raises(anyio.EndOfStream):
            await peer.stream.receive()
        assert kafka.log_end("t", 0) == 0

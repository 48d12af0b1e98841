"""Records that are encoded already, as those of Spark's sink: one batch each."""

from __future__ import annotations

import anyio
import pytest
from runtime.produce.logs import SERVERS, cluster, values

from kafkagroup import Producer
from kafkagroup.errors import (
    AuthorizationError,
    BrokerError,
    BufferFullError,
    ConfigurationError,
    ErrorCode,
    NotWrittenError,
)
from kafkagroup.testing.embedded import BrokerSettings, Close, Delay, Swallow
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_format import HEADER_SIZE
from kafkagroup.wire.batch_writing import EncodedRecords, put_record
from kafkagroup.wire.messages.metadata import MetadataRequest
from kafkagroup.wire.messages.produce import ProduceRequest

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)


def encoded(*data: bytes) -> EncodedRecords:
    out = bytearray(HEADER_SIZE)
    for n, one in enumerate(data):
        put_record(out, n, 0, None, one, ())
    return EncodedRecords(out, len(data), 1000, 1000)


async def test_batches_are_written_once_and_in_order_between_lost_responses() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        assert await producer._count_partitions("t", 0, 10) == 1
        kafka.fail(ProduceRequest, Close(), times=4)
        for n in range(20):
            producer._accept_encoded("t", 0 if n % 2 else -1, encoded(b"%d" % n, b"and"))
        producer.send_nowait("t", b"last")
        await producer.flush()
        expected = [one for n in range(20) for one in (b"%d" % n, b"and")]
        assert await values(kafka, "t") == [*expected, b"last"]


async def test_a_batch_waits_for_room() -> None:
    async with cluster() as kafka, Producer(**SERVERS, buffer_memory=1000) as producer:
        await producer._count_partitions("t", 0, 10)
        kafka.fail(ProduceRequest, Delay(5.0), times=None)
        started = anyio.current_time()
        await producer._accept_encoded_with_room("t", 0, encoded(bytes(3000)))  # it is alone
        with pytest.raises(BufferFullError):
            producer._accept_encoded("t", 0, encoded(b"small"))
        await producer._accept_encoded_with_room("t", 0, encoded(b"small"))
        assert 5 <= anyio.current_time() - started < 6
        assert producer.metrics().buffered_bytes < 1000
        await producer.flush()
        assert await values(kafka, "t") == [bytes(3000), b"small"]
        assert producer.metrics().buffered_bytes == 0


async def test_a_batch_that_waits_for_room_learns_of_a_failure() -> None:
    options = {"buffer_memory": 100, "delivery_timeout_ms": 20_000}
    async with cluster() as kafka, Producer(**SERVERS, **options) as producer:
        await producer._count_partitions("t", 0, 10)
        kafka.fail(ProduceRequest, Swallow(), times=None)
        producer._accept_encoded("t", 0, encoded(bytes(200)))
        await anyio.sleep(1)
        with pytest.raises(NotWrittenError) as raised:
            await producer._accept_encoded_with_room("t", 0, encoded(b""))
        assert raised.value.is_maybe_written


async def test_a_batch_that_is_too_large_is_split() -> None:
    async with cluster(topics={}) as kafka, Producer(**SERVERS) as producer:
        kafka.create_topic("t", configs={"max.message.bytes": "1000"})
        await producer._count_partitions("t", 0, 10)
        data = [bytes([n]) * 200 for n in range(20)]
        producer._accept_encoded("t", 0, encoded(*data))
        await producer.flush()
        assert await values(kafka, "t") == data


async def test_batches_without_a_partition_are_spread() -> None:
    async with cluster(topics={"t": 3}) as kafka, Producer(**SERVERS) as producer:
        await producer._count_partitions("t", 0, 10)
        for n in range(60):
            producer._accept_encoded("t", -1, encoded(b"%d" % n))
        await producer.flush()
        found = [await values(kafka, "t", n) for n in range(3)]
        assert all(found)
        assert sum(map(len, found)) == 60
        with pytest.raises(ConfigurationError, match="topic 't' has partitions 0 to 2"):
            producer._accept_encoded("t", 3, encoded(b""))


async def test_partitions_that_were_added_are_found() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        assert await producer._count_partitions("t", 0, 10) == 1
        kafka.add_partitions("t", 3)
        assert await producer._count_partitions("t", 0, 10) == 1
        assert await producer._count_partitions("t", 1, 10) == 3


async def test_a_missing_topic_is_created_where_the_broker_does_so() -> None:
    settings = BrokerSettings(auto_create_topics=True, default_partitions=2)
    async with cluster(settings=settings) as kafka, Producer(**SERVERS) as producer:
        assert await producer._count_partitions("new", 0, 10) == 2
        assert kafka.partitions("new") == 2


async def test_the_creation_of_a_topic_that_has_failed_is_requested_again() -> None:
    """Brokers with KRaft respond before the controller creates the topic, or fails to: records for
    the topic failed as long as the producer lived."""
    settings = BrokerSettings(auto_create_topics=True)
    async with cluster(settings=settings) as kafka, Producer(**SERVERS) as producer:
        fault = kafka.fail(
            MetadataRequest,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            when=lambda request: request.allow_auto_topic_creation,
            times=None,
        )
        future = producer.send_nowait("new", b"")
        await anyio.sleep(60)
        assert 10 <= fault.hits <= 13
        fault.stop()
        assert (await future).offset == 0


async def test_a_missing_topic_is_awaited_for_a_while() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        started = anyio.current_time()
        with pytest.raises(BrokerError) as raised:
            await producer._count_partitions("late", 0, 10)
        assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert anyio.current_time() - started == pytest.approx(10)
        async with anyio.create_task_group() as tasks:

            async def create() -> None:
                await anyio.sleep(3)
                kafka.create_topic("late", 4)

            tasks.start_soon(create)
            assert await producer._count_partitions("late", 0, 10) == 4


async def test_records_for_a_topic_that_may_not_be_created_fail_at_once() -> None:
    """They waited for delivery_timeout_ms, and the error did not name the operation."""
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        refused = kafka.fail(
            MetadataRequest,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            when=lambda request: bool(request.topics) and request.allow_auto_topic_creation,
            times=None,
        )
        started = anyio.current_time()
        with pytest.raises(NotWrittenError, match="does not exist, and cannot be") as raised:
            await producer.send("new", b"")
        assert isinstance(raised.value.why, AuthorizationError)
        assert raised.value.why.operation == "CREATE"
        with pytest.raises(AuthorizationError):
            await producer._count_partitions("new", 0, 10)
        assert anyio.current_time() - started < 5
        refused.stop()
        kafka.create_topic("new", 1)
        await producer.send("new", b"allowed now")


async def test_the_reason_why_a_topic_is_not_created_is_in_the_error() -> None:
    """As long as too few brokers run, a topic cannot have its replicas."""
    settings = BrokerSettings(auto_create_topics=True)
    async with cluster(settings=settings) as kafka, Producer(**SERVERS) as producer:
        refused = kafka.fail(
            MetadataRequest,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            when=lambda request: bool(request.topics) and request.allow_auto_topic_creation,
            times=None,
        )
        with pytest.raises(
            BrokerError, match="'new' does not exist, and cannot be created"
        ) as raised:
            await producer._count_partitions("new", 0, 10)
        assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
        refused.stop()
        await producer.send("new", b"created now")

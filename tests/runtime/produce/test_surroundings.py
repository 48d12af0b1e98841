"""What programs around a producer do: with its loops, its log, its partitioner, its arguments; and
producers without acknowledgements."""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import anyio
import attrs
import pytest
from runtime.produce.logs import SERVERS, cluster, values

from kafkagroup import Producer
from kafkagroup.errors import (
    BufferFullError,
    ClosedError,
    ConfigurationError,
    ErrorCode,
    IllegalStateError,
    NotWrittenError,
)
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Change, Close, Swallow
from kafkagroup.wire.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
)
from kafkagroup.wire.messages.produce import ProduceRequest
from kafkagroup.wire.messages.transactions import InitProducerIdRequest

pytestmark = pytest.mark.anyio


async def test_without_acknowledgements_a_moved_leader_is_followed() -> None:
    """A broker has no response to refuse such records in: it closes the connection. They went to
    the earlier leader until the metadata was `metadata_max_age_ms` old."""
    async with cluster(2) as kafka:
        kafka.move_leader("t", 0, 1)
        async with Producer(**SERVERS, acks=0, enable_idempotence=False) as producer:
            await producer.send("t", b"first")
            kafka.move_leader("t", 0, 2)
            for n in range(100):
                await producer.send("t", b"%d" % n)
                await anyio.sleep(0.2)
        # The closed connection is noticed with the next record.
        assert await values(kafka, "t") == [b"first", *(b"%d" % n for n in range(1, 100))]


async def test_without_acknowledgements_no_leader_is_trusted_before_a_refresh() -> None:
    """If the first refresh failed, the next records went to the earlier leader, too; as long as it
    failed, there were ten a second."""
    async with cluster(2) as kafka:
        kafka.move_leader("t", 0, 1)
        async with Producer(**SERVERS, acks=0, enable_idempotence=False) as producer:
            await producer.send("t", b"first")
            kafka.move_leader("t", 0, 2)
            fault = kafka.fail(MetadataRequest, Close(before=True), times=None)
            for n in range(150):
                producer.send_nowait("t", b"%d" % n)
                await anyio.sleep(0.2)
            assert fault.hits < 150
            fault.stop()
        assert await values(kafka, "t") == [b"first", *(b"%d" % n for n in range(1, 150))]


class _ToKafka(logging.Handler):
    """Writes what is logged with a producer."""

    def __init__(self, producer: Producer[Any, Any]) -> None:
        super().__init__(logging.WARNING)
        self.producer = producer

    def emit(self, record: logging.LogRecord) -> None:
        self.producer.send_nowait("logs", record.getMessage().encode())


async def test_its_own_warnings_may_be_written_with_the_producer() -> None:
    """The new topic changed the topics while they were iterated, which ended the producer."""
    async with (
        cluster(topics={"t": 1, "logs": 1}) as kafka,
        Producer(**SERVERS, delivery_timeout_ms=30_000) as producer,
    ):
        handler = _ToKafka(producer)
        logging.getLogger("kafkagroup").addHandler(handler)
        try:
            missing = [producer.send_nowait(f"missing-{n}", b"") for n in range(2)]
            await anyio.sleep(40)
        finally:
            logging.getLogger("kafkagroup").removeHandler(handler)
        for future in missing:
            with pytest.raises(NotWrittenError):
                await future
        await producer.send("t", b"")
        assert kafka.log_end("logs", 0) > 0


@contextmanager
def failing_log(error: Exception) -> Iterator[None]:
    """A context in which a handler of the log raises `error` for each warning."""

    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.WARNING:
                raise error

    handler = Failing(logging.WARNING)
    logging.getLogger("kafkagroup").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("kafkagroup").removeHandler(handler)


async def test_the_error_of_a_log_handler_is_what_the_producer_fails_with() -> None:
    """That of a handler without room for its record, in the handling of a response: it was taken
    for one of the request, which had a response."""

    async with cluster() as kafka, Producer(**SERVERS) as producer:
        kafka.fail(ProduceRequest, ErrorCode.NOT_ENOUGH_REPLICAS, times=None)
        with failing_log(BufferFullError("no room for a line")):
            with pytest.raises(NotWrittenError, match="no room for a line"):
                await producer.send("t", b"")


async def test_a_failure_that_says_nothing_is_named() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        kafka.fail(ProduceRequest, ErrorCode.NOT_ENOUGH_REPLICAS, times=None)
        with failing_log(MemoryError()):
            with pytest.raises(NotWrittenError, match="MemoryError"):
                await producer.send("t", b"")
        with pytest.raises(ClosedError, match=r"the producer has failed: MemoryError\(\)"):
            await producer.send("t", b"")
        assert "MemoryError" in str(producer.health())


@pytest.mark.parametrize("action", [ErrorCode.COORDINATOR_NOT_AVAILABLE, Close()])
async def test_the_error_at_the_deadline_says_why_there_is_no_producer_id(action: Any) -> None:
    async with cluster() as kafka:
        fault = kafka.fail(InitProducerIdRequest, action, times=None)
        async with Producer(**SERVERS, delivery_timeout_ms=5_000) as producer:
            with pytest.raises(NotWrittenError, match=r"5000: .*(no id|closed by the broker)"):
                await producer.send("t", b"")
            fault.stop()
            await producer.send("t", b"")


def without_producer_ids(response: ApiVersionsResponse) -> ApiVersionsResponse:
    known = [key for key in response.api_keys if key.api_key != InitProducerIdRequest.api_key]
    return attrs.evolve(response, api_keys=tuple(known))


async def test_the_error_names_the_option_for_brokers_that_give_no_ids() -> None:
    """helidon-io/helidon#6718: a service with Kafka's protocol, but without this request."""
    async with cluster() as kafka:
        kafka.fail(ApiVersionsRequest, Change(without_producer_ids), times=None)
        async with Producer(**SERVERS) as producer:
            with pytest.raises(NotWrittenError, match="enable_idempotence=False") as raised:
                await producer.send("t", b"")
            assert not raised.value.is_maybe_written
        async with Producer(**SERVERS, enable_idempotence=False) as producer:
            assert (await producer.send("t", b"")).offset == 0


@pytest.mark.parametrize("error", [CancelledError, GeneratorExit, BaseException])
async def test_each_record_ends_whatever_the_partitioner_raises(error: Any) -> None:
    def partitioner(topic: str, key: bytes | None, count: int) -> int:
        if key == b"bad":
            raise error
        return 0

    async with cluster() as kafka, Producer(**SERVERS, partitioner=partitioner) as producer:
        first, bad, last = [producer.send_nowait("t", b"", key=k) for k in (b"a", b"bad", b"c")]
        with pytest.raises(NotWrittenError, match=f"the partitioner failed: {error.__name__}"):
            await bad
        assert ((await first).offset, (await last).offset) == (0, 1)
        assert await values(kafka, "t") == [b"", b""]


async def test_the_look_up_of_a_partition_counts_against_the_delivery_timeout() -> None:
    async with cluster() as kafka, Producer(**SERVERS, delivery_timeout_ms=2_000) as producer:
        await producer.send("t", b"")
        kafka.fail(MetadataRequest, Swallow(), times=None)
        for send in (partial(producer.send, "t", b""), partial(producer.send_many, "t", [b""])):
            began_at = anyio.current_time()
            with pytest.raises(
                NotWrittenError, match="no response to the look-up of the partition"
            ):
                await send(partition=1)
            assert anyio.current_time() - began_at == pytest.approx(2.0, abs=0.1)
            await anyio.sleep(1)


@pytest.mark.parametrize("topic", [5, b"t", [], None, ""])
async def test_partitions_of_what_is_no_topic_are_not_counted(topic: Any) -> None:
    async with cluster(), Producer(**SERVERS) as producer:
        with pytest.raises(ConfigurationError, match="expected the name of a topic"):
            await producer.partition_count(topic)


@pytest.mark.parametrize("topic", ["t", "new"])
@pytest.mark.parametrize("is_in_another", [True, False], ids=["another loop", "no loop"])
def test_a_record_is_not_accepted_outside_of_the_running_loop(
    topic: str, is_in_another: bool
) -> None:
    """It was kept, and neither sent nor failed; later records waited behind it."""
    own, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    with EmbeddedKafka({"t": 1, "new": 1}) as kafka, closing(own), closing(other):
        producer = Producer(bootstrap_servers=kafka.bootstrap_servers, delivery_timeout_ms=5_000)
        own.run_until_complete(producer.start())
        own.run_until_complete(producer.send("t", b"first"))

        async def send_in_another_loop() -> None:
            producer.send_nowait(topic, b"refused")

        with pytest.raises(IllegalStateError, match="works only in the event loop"):
            if is_in_another:
                other.run_until_complete(send_in_another_loop())
            else:
                producer.send_nowait(topic, b"refused")
        own.run_until_complete(producer.send(topic, b"last"))
        assert producer.metrics().buffered_bytes == 0
        own.run_until_complete(producer.stop())
        assert kafka.log_end("t", 0) + kafka.log_end("new", 0) == 2

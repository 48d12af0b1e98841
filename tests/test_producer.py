"""`Producer`: the partitions of records, what is refused, and the errors about unwritten ones. How
batches are sent is tested in `runtime/produce/`."""

from __future__ import annotations

import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from live.cancelling import broker
from writing import write

from kafkagroup import (
    BufferFullError,
    Consumer,
    Producer,
    ProducerMetrics,
    RecordMetadata,
    TopicPartition,
)
from kafkagroup.errors import (
    BrokerError,
    ConfigurationError,
    ErrorCode,
    NotStartedError,
    NotWrittenError,
    RecordRefusedError,
    RequestTimeoutError,
)
from kafkagroup.runtime.produce.produce_response import refusal
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Change, Close, Swallow
from kafkagroup.wire import NewRecord
from kafkagroup.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kafkagroup.wire.murmur2 import partition_of

pytestmark = pytest.mark.anyio

SERVERS = {"bootstrap_servers": "kafka-1:9092"}


@asynccontextmanager
async def cluster(nodes: int = 1) -> AsyncIterator[EmbeddedKafka]:
    async with broker(nodes) as (kafka, _):
        kafka.create_topic("new", 5)
        yield kafka


def ends(kafka: EmbeddedKafka) -> list[int]:
    return [kafka.log_end("new", partition) for partition in range(5)]


def records(*keys: bytes | None) -> list[NewRecord]:
    return [NewRecord(key, b"") for key in keys]


# ---------------------------------------------------------------- partitions


async def test_equal_keys_go_to_the_same_partition() -> None:
    keys = [b"%d" % n for n in range(50)]
    wanted = [0] * 5
    for key in keys:
        wanted[partition_of(key, 5)] += 1
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await write(producer, "new", records(*keys))
        assert ends(kafka) == wanted


async def test_records_without_keys_go_to_one_partition_for_some_kilobytes() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.send_many("new", [b""] * 20)
        assert sorted(ends(kafka)) == [0, 0, 0, 0, 20]
        await producer.send_many("new", [bytes(20_000)] * 40)
        assert all(ends(kafka))
        assert sum(ends(kafka)) == 60


async def test_a_partition_may_be_given() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        assert await producer.send_many("new", []) == []
        await write(producer, "new", records(b"a", None), partition=3)
        assert ends(kafka) == [0, 0, 0, 2, 0]
        made = await producer.send("new", b"", key=b"a", partition=3, timestamp=1_000)
        assert made == RecordMetadata("new", 3, 2, 1_000)


async def test_a_partitioner_may_be_given() -> None:
    asked: list[object] = []

    def choose(topic: str, key: bytes | None, count: int) -> int | None:
        asked.append((topic, key, count))
        return None if key is None else int(key)

    async with cluster() as kafka, Producer(**SERVERS, partitioner=choose) as producer:
        await write(producer, "new", records(b"4", b"1", None))
        assert asked == [("new", b"4", 5), ("new", b"1", 5), ("new", None, 5)]
        assert (ends(kafka)[4], ends(kafka)[1]) >= (1, 1)
        with pytest.raises(ConfigurationError, match="the partitioner returned 5; topic 'new' has"):
            await producer.send("new", b"", key=b"5")


# ---------------------------------------------------------------- requests


async def test_large_records_have_batches_of_their_own() -> None:
    headers = (("h", bytes(100_000)),)
    options: Any = SERVERS | {"compression_type": "lz4", "batch_size": 500_000}
    async with cluster() as kafka, Producer(**options) as producer:
        await write(producer, "new", [NewRecord(None, bytes(200_000), -1, headers)] * 4, 0)
        assert len(kafka.requests(ProduceRequest)) == 4
        assert ends(kafka)[0] == 4


async def test_a_moved_or_dead_leader_is_followed() -> None:
    async with cluster(nodes=2) as kafka, Producer(**SERVERS) as producer:
        await producer.send("new", b"", partition=0)
        kafka.move_leader("new", 0, 3 - kafka.leader("new", 0))
        await producer.send("new", b"", partition=0)
        kafka.kill(kafka.leader("new", 0))
        await producer.send("new", b"", partition=0)
        assert ends(kafka)[0] == 3


@pytest.mark.parametrize(("is_idempotent", "count"), [(True, 1), (False, 2)])
async def test_without_idempotence_a_lost_response_may_duplicate_a_batch(
    is_idempotent: bool, count: int
) -> None:
    options: Any = SERVERS | {"enable_idempotence": is_idempotent}
    async with cluster() as kafka, Producer(**options) as producer:
        kafka.fail(ProduceRequest, Close())
        await producer.send("new", b"", partition=0)
        assert ends(kafka)[0] == count


# ---------------------------------------------------------------- failures


async def test_an_error_is_that_of_its_own_record() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        refused = TopicPartition("new", partition_of(b"b", 5))
        kafka.fail(ProduceRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED, partition=refused)
        good = producer.send_nowait("new", b"", key=b"a")
        bad = producer.send_nowait("new", b"", key=b"b")
        assert (await good).partition == partition_of(b"a", 5)
        with pytest.raises(NotWrittenError) as raised:
            await bad
        error = raised.value
        assert (error.tp, error.count, error.is_maybe_written) == (refused, 1, False)
        assert isinstance(error.why, BrokerError)
        assert error.why.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (good.done(), bad.done()) == (True, True)
        metrics = producer.metrics()
        assert isinstance(metrics, ProducerMetrics)
        assert (metrics.written_records, metrics.failed_records) == (1, 1)
        assert metrics.buffered_bytes == 0


REFUSAL = PartitionProduceResponse(
    index=0,
    error_code=ErrorCode.INVALID_RECORD,
    base_offset=-1,
    record_errors=(BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message="no key"),),
)


def test_the_error_of_an_appended_batch_names_the_record() -> None:
    """KIP-467: a compacted topic rejects a record without a key, and identifies it."""
    error = refusal(TopicPartition("new", 0), REFUSAL)
    assert isinstance(error, RecordRefusedError)
    assert (error.index, str(error)) == (2, "INVALID_RECORD (87): no key")


async def test_a_rejected_record_is_named() -> None:
    """KIP-467, as above. The others of its batch fail, too."""

    def refused(_: ProduceResponse) -> ProduceResponse:
        topic = TopicProduceResponse(name="new", partition_responses=(REFUSAL,))
        return ProduceResponse(responses=(topic,))

    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.send("new", b"", partition=0)
        kafka.fail(ProduceRequest, Change(refused))
        futures = [producer.send_nowait("new", b"", partition=0) for _ in range(4)]
        errors = []
        for future in futures:
            with pytest.raises(NotWrittenError) as raised:
                await future
            errors.append(raised.value)
        assert [error.is_of_another_record for error in errors] == [True, True, False, True]
        own, other = str(errors[2]), str(errors[3])
        assert own == "the record was not written to new/0: INVALID_RECORD (87): no key"
        assert "another record of its batch was refused: INVALID_RECORD" in other


async def test_a_missing_response_times_out() -> None:
    async with cluster() as kafka:
        options: Any = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 5_000}
        async with Producer(**SERVERS, **options) as producer:
            kafka.fail(ProduceRequest, Swallow(), times=None)
            with pytest.raises(NotWrittenError, match="may have been written") as raised:
                await producer.send("new", b"")
            assert isinstance(raised.value.why, RequestTimeoutError)
            assert raised.value.is_maybe_written


async def test_missing_topics_and_partitions_are_errors() -> None:
    options: Any = {"delivery_timeout_ms": 5_000}
    async with cluster(), Producer(**SERVERS, **options) as producer:
        assert await producer.partition_count("new") == 5
        with pytest.raises(BrokerError, match="there is no topic none"):
            await producer.partition_count("none")
        with pytest.raises(NotWrittenError, match="to topic none: no acknowledgement"):
            await producer.send("none", b"")
        await producer.send("new", b"")
        with pytest.raises(ConfigurationError, match="has partitions 0 to 4"):
            await producer.send("new", b"", partition=5)


@pytest.mark.parametrize("partition", ["1", 1.5, 1.0])
async def test_a_partition_that_is_no_integer_is_refused(partition: Any) -> None:
    async with cluster(), Producer(**SERVERS) as producer:
        await producer.send("new", b"")
        message = f"partition={partition!r}; topic 'new' has partitions 0 to 4"
        with pytest.raises(ConfigurationError, match=message):
            await producer.send("new", b"", partition=partition)
        with pytest.raises(ConfigurationError, match=message):
            producer.send_nowait("new", b"", partition=partition)


async def test_a_topic_that_was_missing_is_looked_up_again() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        with pytest.raises(BrokerError, match="there is no topic late"):
            await producer.partition_count("late")
        kafka.create_topic("late", 3)
        assert await producer.partition_count("late") == 3


# ---------------------------------------------------------------- room


async def test_ready_waits_for_room_for_the_record_that_was_refused() -> None:
    """It returned while there was room for a smaller record, and the loop around it never waited
    for anything."""
    async with cluster() as kafka, Producer(**SERVERS, buffer_memory=4_000) as producer:
        written = 0
        with anyio.fail_after(60):
            while written < 5:
                try:
                    producer.send_nowait("new", bytes(3_000), partition=0)
                except BufferFullError:
                    await producer.ready()
                else:
                    written += 1
        await producer.flush()
        assert ends(kafka)[0] == 5
        await producer.ready()


async def test_the_wait_for_room_counts_against_the_delivery_timeout() -> None:
    options = {"buffer_memory": 2_000, "delivery_timeout_ms": 50_000, "close_timeout": 1.0}
    async with cluster() as kafka, AsyncExitStack() as stack:
        stack.enter_context(suppress(NotWrittenError))  # of the first record, at the close
        producer = await stack.enter_async_context(Producer(**SERVERS, **options))
        kafka.fail(ProduceRequest, ErrorCode.NOT_ENOUGH_REPLICAS, times=None)
        producer.send_nowait("new", bytes(1_500))
        await anyio.sleep(1)
        began = anyio.current_time()
        with pytest.raises(NotWrittenError, match="there was no room") as raised:
            await producer.send("new", bytes(1_400))
        assert raised.value.is_maybe_written
        assert anyio.current_time() - began == pytest.approx(50)


async def test_a_record_larger_than_the_buffer_is_refused() -> None:
    """It waited for room that there would never be."""
    async with cluster(), Producer(**SERVERS, buffer_memory=4_000) as producer:
        with pytest.raises(ConfigurationError, match="larger than buffer_memory=4000"):
            await producer.send("new", bytes(4_000))
        with pytest.raises(ConfigurationError, match="larger than buffer_memory=4000"):
            producer.send_nowait("new", bytes(4_000))


# ---------------------------------------------------------------- wrong input


@pytest.mark.parametrize("timestamp", [-2, -(2**63), 2**63, 1.5, True])
async def test_a_timestamp_that_stops_compaction_is_refused(timestamp: Any) -> None:
    """Brokers take one below -1, and their log cleaner fails at it."""
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        with pytest.raises(ConfigurationError, match="can then not compact the partition"):
            await producer.send("new", b"", timestamp=timestamp)
        with pytest.raises(ConfigurationError, match="can then not compact the partition"):
            producer.send_nowait("new", b"", timestamp=timestamp)
        await producer.flush()
        assert ends(kafka) == [0] * 5


HEADERS = 'the headers are not valid; expected [("name", b"value"), ...]'


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"key": "k"}, "the key is of type str; expected bytes or None: encode it, or give the"),
        ({"value": 5}, "the value is of type int; expected bytes or None: encode it, or give the"),
        *(
            ({"headers": headers}, HEADERS)
            for headers in ({"a": b"b"}, [("a", "b")], [(b"a", b"b")], [("a", b"b", b"c")])
        ),
    ],
)
async def test_what_is_not_a_record_is_named_and_nothing_is_written(
    given: Any, message: str
) -> None:
    """It failed while the batch was encoded, with an AttributeError or TypeError of internals."""
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        with pytest.raises(ConfigurationError) as caught:
            await producer.send("new", **{"value": b"v"} | given)
        assert str(caught.value).startswith(message)
        await producer.flush()
        assert ends(kafka) == [0] * 5


async def test_keys_values_and_headers_may_be_any_bytes() -> None:
    key, value, headers = bytearray(b"k"), memoryview(b"v"), [["a", None]]
    given: Any = {"value": value, "key": key, "headers": headers, "partition": 0}
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.send("new", **given)
        assert ends(kafka)[0] == 1


@pytest.mark.parametrize("topic", ["new", "late"])
async def test_headers_that_can_be_read_once_are_written(topic: str) -> None:
    """They were used up by the check, and what was sent to the partition later was not sent."""
    given: list[Any] = [
        (header for header in [("a", b"b")]),
        iter([iter(("a", bytearray(b"b")))]),
        [("a", memoryview(b"b"))],
        [("a", array.array("i", [1]))],
    ]
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        futures = [producer.send_nowait(topic, b"v", headers=one, partition=0) for one in given]
        kafka.create_topic("late")
        for future in futures:
            await future
        await producer.send(topic, b"v", partition=0)
        async with Consumer(**SERVERS, auto_offset_reset="earliest") as consumer:
            await consumer.assign([(topic, 0)])
            found: list[Any] = []
            while len(found) < 5:
                for records in (await consumer.getmany(timeout=0.1)).values():
                    found += [record.headers for record in records]
    wide = array.array("i", [1]).tobytes()
    assert [tuple(one) for one in found] == [(("a", b"b"),)] * 3 + [(("a", wide),), ()]


async def test_wrong_options_and_calls_are_refused() -> None:
    for wrong in (
        {"delivery_timeout_ms": 0},
        {"retry_backoff_max_ms": 1},
        {"bootstrap_servers": ""},
        {"acks": 1},
        {"acks": 2, "enable_idempotence": False},
        {"compression_level": 3},
        {"compression_level": 10, "compression_type": "gzip"},
        {"batch_size": 0},
        {"buffer_memory": "1"},
        {"transactional_id": "tx", "on_cluster_change": "adopt"},
    ):
        with pytest.raises(ConfigurationError):
            Producer(**wrong)
    # Not with the advice to set enable_idempotence=False, which transactions exclude.
    with pytest.raises(ConfigurationError, match=r"^acks=1: transactions need acks='all'$"):
        Producer(transactional_id="tx", acks=1)
    producer = Producer(**SERVERS)
    with pytest.raises(NotStartedError):
        await producer.send("new", b"")
    with pytest.raises(NotStartedError):
        producer.send_nowait("new", b"")

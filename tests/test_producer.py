"""`Producer`: the partitions of records, their order, and the errors about unwritten ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from live.cancelling import broker

from kafkagroup import Codec, NewRecord, Producer, TopicPartition
from kafkagroup.errors import (
    BrokerError,
    ConfigurationError,
    ErrorCode,
    NotStartedError,
    NotWrittenError,
    RecordRefusedError,
    RequestTimeoutError,
)
from kafkagroup.runtime.produce.appending import _refusal
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Close, Swallow
from kafkagroup.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
)
from kafkagroup.wire.murmur2 import partition_of

pytestmark = pytest.mark.anyio

SERVERS = {"bootstrap_servers": "kafka-1:9092"}
TEXT: Any = "k"
NUMBER: Any = 5
GOOD = NewRecord(b"k", b"v")


@asynccontextmanager
async def cluster(nodes: int = 1) -> AsyncIterator[EmbeddedKafka]:
    async with broker(nodes) as (kafka, _):
        kafka.create_topic("new", 5)
        yield kafka


def ends(kafka: EmbeddedKafka) -> list[int]:
    return [kafka.log_end("new", partition) for partition in range(5)]


def records(*keys: bytes | None) -> list[NewRecord]:
    return [NewRecord(key, b"") for key in keys]


async def test_equal_keys_go_to_the_same_partition() -> None:
    keys = [b"%d" % n for n in range(50)]
    wanted = [0] * 5
    for key in keys:
        wanted[partition_of(key, 5)] += 1
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.write("new", records(*keys))
        assert ends(kafka) == wanted


async def test_without_keys_calls_rotate_over_partitions() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        for _ in range(6):
            await producer.write("new", records(None, None))
        assert sorted(ends(kafka)) == [2, 2, 2, 2, 4]
        await producer.write("new", [])
        await producer.write("new", records(b"a", None), partition=3)
        assert sum(ends(kafka)) == 14


async def test_large_records_are_split_into_several_batches() -> None:
    async with cluster() as kafka, Producer(**SERVERS, compression=Codec.GZIP) as producer:
        values = [NewRecord(None, bytes(200_000), headers=(("h", bytes(100_000)),))] * 4
        await producer.write("new", values, partition=0)
        assert len(kafka.requests(ProduceRequest)) == 4
        assert ends(kafka)[0] == 4


async def test_a_moved_leader_is_followed() -> None:
    async with cluster(nodes=2) as kafka, Producer(**SERVERS) as producer:
        await producer.write("new", records(None), partition=0)
        kafka.move_leader("new", 0, 3 - kafka.leader("new", 0))
        await producer.write("new", records(None), partition=0)
        kafka.kill(kafka.leader("new", 0))
        await producer.write("new", records(None), partition=0)
        assert ends(kafka)[0] == 3


async def test_a_lost_response_may_duplicate_a_batch() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        kafka.fail(ProduceRequest, Close())
        await producer.write("new", records(None), partition=0)
        assert ends(kafka)[0] == 2


async def test_a_failure_reports_the_unwritten_records() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        place = partition_of(b"b", 5)
        kafka.fail(
            ProduceRequest,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            when=lambda asked: asked.topic_data[0].partition_data[0].index == place,
        )
        with pytest.raises(NotWrittenError) as raised:
            await producer.write("new", records(*(b"%c" % c for c in b"aabbb")))
        assert raised.value.index == 2
        assert isinstance(raised.value.why, BrokerError)


async def test_a_rejected_record_is_named() -> None:
    """KIP-467: a compacted topic rejects a record without a key, and identifies it."""
    refusal = PartitionProduceResponse(
        index=0,
        error_code=ErrorCode.INVALID_RECORD,
        base_offset=-1,
        record_errors=(
            BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message="no key"),
        ),
    )
    error = _refusal(TopicPartition("new", 0), refusal)
    assert isinstance(error, RecordRefusedError)
    assert (error.index, str(error)) == (2, "INVALID_RECORD (87): no key")


async def test_a_missing_response_times_out() -> None:
    async with cluster() as kafka:
        options = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 5_000}
        async with Producer(**SERVERS, **options) as producer:
            kafka.fail(ProduceRequest, Swallow(), times=None)
            with pytest.raises(NotWrittenError) as raised:
                await producer.write("new", records(None))
            assert isinstance(raised.value.why, RequestTimeoutError)


async def test_missing_topics_and_partitions_are_errors() -> None:
    async with cluster(), Producer(**SERVERS) as producer:
        assert await producer.partition_count("new") == 5
        with pytest.raises(BrokerError, match="there is no topic none"):
            await producer.write("none", records(None))
        with pytest.raises(ConfigurationError, match="has partitions 0 to 4"):
            await producer.write("new", records(None), partition=5)


@pytest.mark.parametrize("timestamp", [-2, -(2**63), 2**63, 1.5, True])
async def test_a_timestamp_that_stops_compaction_is_refused(timestamp: int) -> None:
    """Brokers take one below -1, and their log cleaner fails at it. Nothing is written then."""
    good, bad = NewRecord(None, b""), NewRecord(None, b"", timestamp)
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        with pytest.raises(ConfigurationError, match="can then not compact the partition"):
            await producer.write("new", [good, bad])
        assert ends(kafka) == [0] * 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("x", "record 0 is of type str; expected a list of kafkagroup.NewRecord(key, value)"),
        (
            NewRecord(b"k", b"v"),
            "record 0 is of type bytes; expected a list of kafkagroup.NewRecord(key, value)",
        ),
        ([GOOD, b"v"], "record 1 is of type bytes; expected a list of kafkagroup.NewRecord(key"),
        ([NewRecord(TEXT, b"v")], "the key of record 0 is of type str; expected bytes or None"),
        (
            [GOOD, NewRecord(None, NUMBER)],
            "the value of record 1 is of type int; expected bytes or N",
        ),
        *(
            (
                [NewRecord(None, b"v", headers=headers)],
                'the headers of record 0 are not valid; expected [("name", b"value"), ...]',
            )
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
            await producer.write("new", given)
        assert str(caught.value).startswith(message)
        assert ends(kafka) == [0] * 5


async def test_keys_values_and_headers_may_be_any_bytes() -> None:
    value: Any = memoryview(b"v")
    headers: Any = [["a", None]]
    record = NewRecord(bytearray(b"k"), value, headers=headers)
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.write("new", [record], partition=0)
        assert ends(kafka)[0] == 1


async def test_wrong_options_and_calls_are_refused() -> None:
    for wrong in (
        {"delivery_timeout_ms": 0},
        {"retry_backoff_max_ms": 1},
        {"bootstrap_servers": ""},
    ):
        with pytest.raises(ConfigurationError):
            Producer(**wrong)
    with pytest.raises(NotStartedError):
        await Producer(**SERVERS).write("new", records(None))

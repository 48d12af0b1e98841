"""Rows that the sink writes to brokers which fail; no Spark runs here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

import pyarrow as pa
from pyspark import TaskContext

from kafkagroup import ConfigurationError, ErrorCode, NotWrittenError, TopicPartition
from kafkagroup.errors import AuthorizationError
from kafkagroup.spark import worker_sessions
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import SourceOptions, parse_sink_options
from kafkagroup.spark.sink import TableWriter
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings, Close
from kafkagroup.wire.messages.metadata import MetadataRequest
from kafkagroup.wire.messages.produce import ProduceRequest
from kafkagroup.wire.messages.transactions import InitProducerIdRequest
from kafkagroup.wire.records import read_batches

TP = TopicPartition("t", 0)
ROWS = [b"%d" % n for n in range(200)]


def write(broker: EmbeddedKafka, values: list[bytes], **options: str) -> None:
    """Write rows of one task, in one batch of Arrow for each ten."""
    given = {name.replace("_", "."): value for name, value in options.items()}
    given = {"bootstrap.servers": broker.bootstrap_servers, "topic": "t", **given}
    TableWriter(parse_sink_options(given)).write(arrow(values))


def arrow(values: list[bytes]) -> Iterator[Any]:
    for start in range(0, len(values), 10):
        yield pa.record_batch({"value": pa.array(values[start : start + 10], pa.binary())})


def batches(broker: EmbeddedKafka) -> list[Any]:
    """Return the batches in the log."""
    options = SourceOptions(bootstrap_servers=broker.bootstrap_servers, subscribe=("t",))
    with Logs(options) as logs:
        _, ids = logs.partitions()
        data = logs.start_fetch(TP, ids["t"], 0, 1 << 20).result(20).records
    return list(read_batches(data or b"", topic="t", partition=0))


def values(broker: EmbeddedKafka) -> list[bytes]:
    return [bytes(r.value or b"") for batch in batches(broker) for r in batch.records()]


def test_a_lost_response_does_not_double_rows() -> None:
    """The batch was appended once more."""
    with EmbeddedKafka({"t": 1}) as broker:
        lost = broker.fail(ProduceRequest, Close(), times=3)
        write(broker, ROWS, batch_size="300")
        assert lost.hits == 3
        assert values(broker) == ROWS


def test_a_batch_that_is_too_large_for_the_topic_is_split() -> None:
    """A topic whose max.message.bytes is lower than our batches refused each of them; with Spark's
    own connector they are split."""
    with EmbeddedKafka({"t": 1}, settings=BrokerSettings(max_message_bytes=400)) as broker:
        write(broker, ROWS, compression_type="lz4")
        assert values(broker) == ROWS
        assert {batch.codec.name for batch in batches(broker)} == {"LZ4"}
        with pytest.raises(NotWrittenError, match="the record was not written to t/0: MESSAGE_TOO"):
            write(broker, [b"x" * 500])


def test_a_refused_batch_fails_the_task_before_it_has_read_all_rows() -> None:
    with EmbeddedKafka({"t": 1}) as broker:
        broker.fail(ProduceRequest, ErrorCode.INVALID_RECORD, partition=TP)
        given = {"bootstrap.servers": broker.bootstrap_servers, "topic": "t"}
        options = parse_sink_options({**given, "batch.size": "1000", "buffer.memory": "5000"})
        left = arrow([b"x" * 100] * 10_000)
        with pytest.raises(NotWrittenError, match="INVALID_RECORD"):
            TableWriter(options).write(left)
        assert next(left, None) is not None


def test_without_idempotence_no_producer_id_is_needed() -> None:
    """Before Kafka 2.8 it needs IDEMPOTENT_WRITE on the cluster."""
    with EmbeddedKafka({"t": 1}) as broker:
        refused = broker.fail(
            InitProducerIdRequest, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, times=None
        )
        with pytest.raises(NotWrittenError, match=r"IDEMPOTENT_WRITE.*enable_idempotence=False"):
            write(broker, ROWS)
        refused_count = refused.hits
        write(broker, ROWS, enable_idempotence="False")
        assert refused.hits == refused_count > 0
        assert values(broker) == ROWS


def test_acks_and_the_level_of_compression_act() -> None:
    with EmbeddedKafka({"t": 1}) as broker:
        seen: list[int] = []
        broker.fail(
            ProduceRequest, Close(), when=lambda request: seen.append(request.acks) is not None
        )
        sizes = []
        rows = [b"%d" % (n * n) for n in range(3_000)]
        for level in ("1", "9"):
            write(broker, rows, compression_type="gzip", compression_gzip_level=level, acks="1")
            sizes.append(sum(batch.size for batch in batches(broker)) - sum(sizes))
        assert seen == [1, 1]
        assert sizes[0] > sizes[1] > 0


def test_a_row_above_max_request_size_is_an_error() -> None:
    with EmbeddedKafka({"t": 1}) as broker:
        with pytest.raises(ConfigurationError, match=r"a row of .* is larger than max\.request"):
            write(broker, [b"x" * 2000], max_request_size="2000")
        write(broker, [b"x" * 900_000])
        assert [len(value) for value in values(broker)] == [900_000]


def test_the_tasks_of_a_worker_share_a_producer_until_one_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers remember the id of each producer for a day."""
    monkeypatch.setattr(worker_sessions, "_idle", {})
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    with EmbeddedKafka({"t": 1}) as broker:
        write(broker, ROWS)
        write(broker, ROWS)
        assert len({batch.producer_id for batch in batches(broker)}) == 1
        broker.fail(ProduceRequest, ErrorCode.INVALID_RECORD, partition=TP)
        with pytest.raises(NotWrittenError):
            write(broker, ROWS)
        assert worker_sessions._idle == {}
        write(broker, ROWS)
        assert len({batch.producer_id for batch in batches(broker)}) == 2
        assert values(broker) == ROWS * 3
        (idle,) = worker_sessions._idle.values()
        idle.__exit__(None, None, None)


def test_a_topic_that_may_not_be_created_is_an_error_at_once() -> None:
    with EmbeddedKafka() as broker:
        broker.fail(
            MetadataRequest,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            when=lambda request: bool(request.topics) and request.allow_auto_topic_creation,
        )
        with pytest.raises(AuthorizationError, match="'t' does not exist, and cannot be created"):
            write(broker, ROWS)

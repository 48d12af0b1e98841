"""How much a task fetches, and when a log lacks an offset; no Spark runs here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs
import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark.sql.types import LongType, StructType

from kafkagroup.errors import ConfigurationError, ErrorCode
from kafkagroup.spark import cluster
from kafkagroup.spark.option_values import Bound
from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.ranges import DataLossError, Range
from kafkagroup.spark.reading import FetchSize, positions_at, read
from kafkagroup.spark.worker_sessions import session_of_task
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.transport.options import ClientOptions
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import FetchRequest

KIB, MIB = 1 << 10, 1 << 20


def test_a_task_fetches_about_what_is_left_of_it() -> None:
    """A batch of 250 small records once cost a fetch of 8 MiB of the log behind them."""
    size = FetchSize(8 * MIB)
    assert [size.of(n) for n in (1, 250, 10_000, 10_000_000)] == [
        64 * KIB,
        70_400,
        2_816_000,
        8 * MIB,
    ]
    size.learn(1000, 1000 * KIB)
    assert size.of(1000) == int(1000 * KIB * 1.1)
    size.learn(0, 0)
    assert size.of(1000) == int(1000 * KIB * 1.1)


def test_a_limit_below_the_least_fetch_holds() -> None:
    assert FetchSize(KIB).of(1) == KIB


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_one_false_refusal_of_an_offset_loses_nothing(isolation: str) -> None:
    """With failOnDataLoss=false the rest of the task was skipped, otherwise the batch failed."""
    with EmbeddedKafka({"a": 1}) as broker:
        broker.produce("a", [str(n) for n in range(10)], partition=0)
        options = SourceOptions(
            bootstrap_servers=broker.bootstrap_servers, subscribe=("a",), isolation=isolation
        )
        with session_of_task(options) as session:
            (tp,), ids = session.partitions()

            def fetch(offset: int) -> int:
                fetched = session.start_fetch(tp, ids["a"], offset, MIB)
                return fetched.result(30).error_code

            refused = broker.fail(FetchRequest, ErrorCode.OFFSET_OUT_OF_RANGE)
            assert (fetch(5), refused.hits) == (ErrorCode.NONE, 1)
            assert fetch(11) == ErrorCode.OFFSET_OUT_OF_RANGE
            broker.delete_records("a", 0, 6)
            assert fetch(5) == ErrorCode.OFFSET_OUT_OF_RANGE


class Late:
    """A session, whose records are appended after the ends of the logs were looked up."""

    def first_offsets(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        return {tp: 7 if tp.partition else None for tp in times}


def test_a_record_that_is_appended_meanwhile_is_no_missing_one() -> None:
    """A start at the present time failed in a partition that was written to."""
    one, other = TopicPartition("a", 1), TopicPartition("a", 0)
    options = SourceOptions(
        bootstrap_servers="k",
        starting_offsets=Bound("timestamp", 1000),
        timestamp_strategy="error",
    )

    def start(*partitions: TopicPartition) -> dict[TopicPartition, int]:
        starts, ends = dict.fromkeys(partitions, 0), dict.fromkeys(partitions, 5)
        bound = options.starting_offsets
        return positions_at(Late(), bound, options, starts, ends, {})  # type: ignore[arg-type]

    assert start(one) == {one: 5}
    with pytest.raises(ConfigurationError, match="no record at or after the start in a/0 at 1000"):
        start(one, other)


def test_a_task_whose_end_retention_has_passed_says_so() -> None:
    with EmbeddedKafka({"a": 1}) as broker:
        broker.produce("a", [str(n) for n in range(10)], partition=0)
        broker.delete_records("a", 0, 8)
        options = SourceOptions(bootstrap_servers=broker.bootstrap_servers, subscribe=("a",))
        task = Range(TopicPartition("a", 0), "", 2, 5)
        with pytest.raises(DataLossError) as raised:
            list(read(options, StructType().add("offset", LongType()), task))
    assert str(raised.value) == (
        "a/0 is to be read at 2, but has 8 to 10: retention has moved past 5, where this task ends;"
        " failOnDataLoss=false would read the remaining records"
    )


def test_a_topic_that_is_deleted_under_a_task_is_data_loss(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With failOnDataLoss=false the task failed, and so did each further run of its batch."""
    short = partial(ClientOptions, retry_backoff=0.001, retry_backoff_max=0.02)
    monkeypatch.setattr(cluster, "ClientOptions", short)
    with EmbeddedKafka({"a": 1}) as broker:
        broker.produce("a", ["0", "1"], partition=0)
        options = SourceOptions(bootstrap_servers=broker.bootstrap_servers, subscribe=("a",))
        task, schema = Range(TopicPartition("a", 0), "", 0, 2), StructType().add("value", "binary")
        broker.delete_topic("a")
        with pytest.raises(DataLossError) as raised:
            list(read(options, schema, task))
        lost = "a/0: the topic was deleted or recreated since the query was planned"
        assert str(raised.value) == f"{lost}; failOnDataLoss=false would read the remaining records"
        assert list(read(attrs.evolve(options, fail_on_data_loss=False), schema, task)) == []
    assert [r.getMessage() for r in caplog.records if r.name == "kafkagroup.spark.reading"] == [
        lost
    ]


def test_a_partition_without_a_time_starts_at_its_logs_start() -> None:
    """Without a time for any partition, all started at the ends of their logs."""
    one, other = TopicPartition("a", 0), TopicPartition("a", 1)
    starts, ends = dict.fromkeys((one, other), 2), dict.fromkeys((one, other), 5)
    found = []
    for times in ({}, {other: 1000}):
        bound = Bound("timestamps", timestamps=times)
        options = SourceOptions(bootstrap_servers="k", starting_offsets=bound)
        found.append(positions_at(Late(), bound, options, starts, ends, {}))  # type: ignore[arg-type]
    assert found == [{one: 2, other: 2}, {one: 2, other: 5}]

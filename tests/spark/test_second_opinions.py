"""A topic or partition that is missing in one metadata response: a stream keeps its position, and a
table is read completely. On the embedded broker, without Spark; one is in test_streams."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

import attrs
import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from kafkagroup.errors import BrokerError, ErrorCode
from kafkagroup.spark import cluster
from kafkagroup.spark.options import parse_options
from kafkagroup.spark.ranges import DataLossError, Positions
from kafkagroup.spark.stream import StreamReader
from kafkagroup.spark.table import TableReader
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Change, Close
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.transport.options import ClientOptions
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from kafkagroup.wire.schema import NO_ID

E = ErrorCode
Offsets = dict[str, Any]
Edit = Callable[[MetadataResponseTopic], MetadataResponseTopic | None]

NAMED = {"subscribe": "a"}
PATTERN = {"subscribePattern": "^a$"}
ASSIGNED = {"assign": json.dumps({"a": [*range(8)]})}
SELECTIONS = pytest.mark.parametrize(
    "selection", [NAMED, PATTERN, ASSIGNED], ids=["subscribe", "pattern", "assign"]
)
STRICTNESS = pytest.mark.parametrize("strict", ["true", "false"], ids=["fails", "goes-on"])


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    options = partial(ClientOptions, retry_backoff=0.001, retry_backoff_max=0.02)
    monkeypatch.setattr(cluster, "ClientOptions", options)


@pytest.fixture
def kafka8() -> Iterator[EmbeddedKafka]:
    """A broker with 8 partitions of ten records."""
    with EmbeddedKafka({"a": 8, "b": 1}) as broker:
        for partition in range(8):
            fill(broker, partition, 10)
        yield broker


def fill(broker: EmbeddedKafka, partition: int, count: int) -> None:
    broker.produce("a", [f"{partition}/{n}" for n in range(count)], partition=partition)


def edit_responses(
    broker: EmbeddedKafka, change: Edit, times: int | None = None, node: int = 0
) -> Any:
    """Change how topic "a" is described in so many metadata responses; None in all."""

    def lagging(response: MetadataResponse) -> MetadataResponse:
        topics = ((change(t) if t.name == "a" else t) for t in response.topics)
        return evolve(response, topics=tuple(t for t in topics if t is not None))

    return broker.fail(MetadataRequest, Change(lagging), times=times, node_id=node or None)


def half(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    return evolve(topic, partitions=topic.partitions[:4])


def without_ids(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    """As a broker before 2.8."""
    return evolve(topic, topic_id=NO_ID)


def refused(code: int) -> Edit:
    return lambda topic: MetadataResponseTopic(error_code=code, name=topic.name, partitions=())


def unlisted(topic: MetadataResponseTopic) -> None:
    return None


def leaderless(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    """Report no leader of partition 7."""
    *others, last = topic.partitions
    return evolve(topic, partitions=(*others, evolve(last, leader_id=-1, leader_epoch=-1)))


class Runs:
    """The runs of a query with one checkpoint, each with a planner of its own."""

    def __init__(self, broker: EmbeddedKafka, **options: str) -> None:
        least = {"bootstrap.servers": broker.bootstrap_servers}
        self.options = parse_options({**least, **options})
        self.last: Offsets | None = None
        self.read: list[tuple[int, int]] = []
        """Partition and offset of each row."""

    def run(self, available_now: bool = True) -> int:
        """Read all available records; return the number of rows."""
        reader = StreamReader(self.options, None)  # type: ignore[arg-type]
        try:
            if available_now:
                reader.prepareForTriggerAvailableNow()
            return self.batches(reader)
        finally:
            reader.stop()

    def batches(self, reader: StreamReader) -> int:
        before = len(self.read)
        start = reader.initialOffset() if self.last is None else self.last
        while (end := reader.latestOffset(start, ReadAllAvailable())) != start:
            for task in reader.partitions(start, end):
                planned = task.value
                self.read += [(planned.tp.partition, n) for n in range(planned.start, planned.end)]
            start = end
        self.last = start
        return len(self.read) - before


ALL_ONCE = [(p, n) for p in range(8) for n in range(10)]


@SELECTIONS
@STRICTNESS
def test_partitions_that_are_missing_in_all_responses_of_a_run_keep_their_position(
    kafka8: EmbeddedKafka, selection: dict[str, str], strict: str
) -> None:
    """Answers of 8, 4 and 8 partitions read four partitions twice, also with failOnDataLoss."""
    runs = Runs(kafka8, failOnDataLoss=strict, **selection)
    assert runs.run() == 80
    seen = runs.last
    lag = edit_responses(kafka8, half)
    assert (runs.run(), runs.last) == (0, seen)
    lag.stop()
    assert (runs.run(), runs.last) == (0, seen)
    for partition in range(8):
        fill(kafka8, partition, 1)
    assert runs.run() == 8
    assert sorted(runs.read) == sorted([*ALL_ONCE, *((p, 10) for p in range(8))])


@SELECTIONS
@pytest.mark.parametrize("available_now", [True, False])
def test_one_response_of_fewer_partitions_delays_nothing(
    kafka8: EmbeddedKafka, selection: dict[str, str], available_now: bool
) -> None:
    runs = Runs(kafka8, **selection)
    runs.run(available_now)
    for partition in range(8):
        fill(kafka8, partition, 1)
    edit_responses(kafka8, half, times=1)
    assert runs.run(available_now) == 8


@STRICTNESS
@pytest.mark.parametrize(
    "passing",
    [
        refused(E.LEADER_NOT_AVAILABLE),
        refused(E.UNKNOWN_TOPIC_OR_PARTITION),
        refused(E.UNKNOWN_TOPIC_ID),
        refused(E.TOPIC_AUTHORIZATION_FAILED),
        unlisted,
        half,
        leaderless,
    ],
    ids=["no-leader", "unknown", "unknown-id", "denied", "unlisted", "half", "leaderless"],
)
def test_a_passing_error_of_a_patterns_topic_neither_ends_the_query_nor_repeats_rows(
    kafka8: EmbeddedKafka, passing: Edit, strict: str
) -> None:
    """It was an error of the query, or the topic counted as deleted, and was read again."""
    runs = Runs(kafka8, failOnDataLoss=strict, subscribePattern="[ab]")
    assert runs.run() == 80
    reader = StreamReader(runs.options, None)  # type: ignore[arg-type]
    try:
        for times in (1, 2, 3):
            edit_responses(kafka8, passing, times=times)
            assert runs.batches(reader) == 0
        edit_responses(kafka8, passing, times=3)
        assert runs.run() == 0
        fill(kafka8, 0, 1)
        kafka8.produce("b", ["0/0"], partition=0)
        assert runs.batches(reader) == 2
    finally:
        reader.stop()
    assert sorted(runs.read) == sorted([*ALL_ONCE, (0, 0), (0, 10)])


@pytest.mark.parametrize("selection", [NAMED, PATTERN], ids=["subscribe", "pattern"])
def test_a_lasting_error_delays_only_its_topic_and_is_reported_once(
    kafka8: EmbeddedKafka, selection: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    both = {"subscribe": "a,b"} if "subscribe" in selection else {"subscribePattern": "."}
    runs = Runs(kafka8, **both)
    runs.run()
    reader = StreamReader(runs.options, None)  # type: ignore[arg-type]
    lag = edit_responses(kafka8, refused(E.LEADER_NOT_AVAILABLE))
    try:
        kafka8.produce("b", ["0/0"], partition=0)
        assert runs.batches(reader) == 1
        assert runs.batches(reader) == 0
        assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
            "not read for now: LEADER_NOT_AVAILABLE (5): topic 'a'"
        ]
        lag.stop()
        fill(kafka8, 3, 1)
        assert runs.batches(reader) == 1
    finally:
        reader.stop()


def test_a_partition_without_a_leader_delays_no_other(
    kafka8: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The query ended after `default.api.timeout.ms`, and nothing was read until then."""
    runs = Runs(kafka8, **NAMED)
    runs.run()
    for partition in range(8):
        fill(kafka8, partition, 1)
    lag = edit_responses(kafka8, leaderless)
    assert runs.run(available_now=False) == 7
    assert "a/7 has no leader" in caplog.text
    lag.stop()
    assert runs.run(available_now=False) == 1


def test_available_now_waits_for_a_leader(kafka8: EmbeddedKafka) -> None:
    """Else a daily run would leave a partition out for a day, because of an election."""
    runs = Runs(kafka8, **NAMED)
    runs.run()
    fill(kafka8, 7, 1)
    edit_responses(kafka8, leaderless, times=9)
    assert runs.run() == 1
    lag = edit_responses(kafka8, leaderless)
    fill(kafka8, 7, 1)
    runs.options = attrs.evolve(runs.options, api_timeout=2.0)
    assert runs.run() == 0
    lag.stop()
    assert runs.run() == 1


def test_a_denied_topic_that_was_subscribed_by_name_is_an_error(kafka8: EmbeddedKafka) -> None:
    runs = Runs(kafka8, **NAMED)
    runs.run()
    edit_responses(kafka8, refused(E.TOPIC_AUTHORIZATION_FAILED), times=3)
    assert runs.run() == 0
    edit_responses(kafka8, refused(E.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        runs.run()


@pytest.mark.parametrize("selection", [NAMED, PATTERN], ids=["subscribe", "pattern"])
def test_a_deleted_topic_is_a_loss_and_then_only_a_warning(
    kafka8: EmbeddedKafka, selection: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """With `failOnDataLoss=false` the other topics of a subscription were not read any more."""
    both = {"subscribe": "a,b"} if "subscribe" in selection else {"subscribePattern": "."}
    runs = Runs(kafka8, **both)
    runs.run()
    kafka8.delete_topic("a")
    with pytest.raises(DataLossError, match="topic 'a' was deleted"):
        runs.run()
    runs.options = parse_options(
        {
            "bootstrap.servers": kafka8.bootstrap_servers,
            "failOnDataLoss": "false",
            **both,
        }
    )
    kafka8.produce("b", ["0/0"], partition=0)
    assert (runs.run(), runs.run(available_now=False)) == (1, 0)
    warned = [r.message for r in caplog.records if "was deleted" in r.message]
    assert len(warned) == (2 if "subscribe" in selection else 1), "once in a run"
    kafka8.create_topic("a", 1)
    fill(kafka8, 0, 3)
    assert runs.run() in (0, 3)
    assert runs.run() in (0, 3)
    assert runs.read[81:] == [(0, n) for n in range(3)]


@SELECTIONS
@STRICTNESS
@pytest.mark.parametrize("times", [1, 3])
def test_brokers_that_do_not_answer_confirm_no_deletion(
    kafka8: EmbeddedKafka, selection: dict[str, str], strict: str, times: int
) -> None:
    """Refreshes that failed counted as responses by which the topic was deleted. If the first one
    failed, so did the query."""
    runs = Runs(kafka8, failOnDataLoss=strict, **selection)
    runs.run()
    fill(kafka8, 0, 1)
    edit_responses(kafka8, refused(E.UNKNOWN_TOPIC_OR_PARTITION), times=times)
    kafka8.fail(MetadataRequest, Close(before=True), times=30)
    assert runs.run(available_now=False) == 1


@STRICTNESS
def test_a_topic_without_an_id_that_lost_partitions_is_a_loss_once_it_is_confirmed(
    kafka8: EmbeddedKafka, strict: str
) -> None:
    """Brokers before 2.8 have no ids: such a topic was recreated with fewer partitions."""
    runs = Runs(kafka8, failOnDataLoss=strict, **NAMED)
    edit_responses(kafka8, lambda topic: half(without_ids(topic)))
    runs.last = {
        "kafkagroup": 1,
        "group": None,
        "topics": {"a": {"id": "", "offsets": {str(p): 10 for p in range(8)}}},
    }
    if strict == "true":
        with pytest.raises(DataLossError, match="a/4, a/5, a/6, a/7 were deleted"):
            runs.run(available_now=False)
    else:
        assert runs.run(available_now=False) == 0
        assert [tp.partition for tp in Positions.from_json(runs.last).offsets] == [0, 1, 2, 3]


def test_a_response_without_ids_is_no_recreated_topic(kafka8: EmbeddedKafka) -> None:
    """While brokers are upgraded to 2.8, some report ids and some do not."""
    runs = Runs(kafka8, **NAMED)
    runs.run()
    seen = runs.last
    lag = edit_responses(kafka8, without_ids)
    assert (runs.run(), runs.last) == (0, seen)
    lag.stop()
    assert (runs.run(), runs.last) == (0, seen)


@STRICTNESS
@pytest.mark.parametrize("available_now", [True, False])
def test_the_id_of_a_deleted_topic_is_no_recreated_topic(
    kafka8: EmbeddedKafka, strict: str, available_now: bool
) -> None:
    """A broker that lags behind reports the topic that was deleted before."""
    runs = Runs(kafka8, failOnDataLoss=strict, **NAMED)
    runs.run()
    fill(kafka8, 0, 1)
    edit_responses(kafka8, lambda topic: evolve(topic, topic_id=UUID(int=7)), times=3)
    assert runs.run(available_now) == 1


def test_a_new_query_starts_in_all_partitions(kafka8: EmbeddedKafka) -> None:
    """With `latest`, a partition that the first response lacked was read from its start."""
    runs = Runs(kafka8, startingOffsets="latest", **NAMED)
    edit_responses(kafka8, half, times=1)
    assert runs.run(available_now=False) == 0


@SELECTIONS
@pytest.mark.parametrize(
    "lag", [half, refused(E.LEADER_NOT_AVAILABLE), refused(E.UNKNOWN_TOPIC_OR_PARTITION)]
)
def test_a_table_has_all_partitions(
    kafka8: EmbeddedKafka, selection: dict[str, str], lag: Edit
) -> None:
    """It had those of one response: half of the rows, without a word."""
    reader = TableReader(Runs(kafka8, **selection).options, None)  # type: ignore[arg-type]
    edit_responses(kafka8, lag, times=1)
    assert sorted(task.value.tp.partition for task in reader.partitions()) == [*range(8)]


def test_another_broker_is_asked_for_what_one_does_not_know() -> None:
    """The connected broker would be asked again and again, while it lags behind."""
    with EmbeddedKafka({"a": 8}, nodes=2) as broker:
        for node in range(3):
            lag = edit_responses(broker, half, node=node) if node else None
            reader = TableReader(Runs(broker, **NAMED).options, None)  # type: ignore[arg-type]
            fill(broker, 7, 1)
            assert sum(task.value.end for task in reader.partitions()) == node + 1, node
            if lag is not None:
                lag.stop()


def test_a_pattern_without_topics_warns_once(
    kafka8: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a query read nothing, and never said why."""
    runs = Runs(kafka8, subscribePattern="^orders")
    reader = StreamReader(runs.options, None)  # type: ignore[arg-type]

    def warnings() -> list[str]:
        return [r.message for r in caplog.records if r.levelno == logging.WARNING]

    try:
        for _ in range(3):
            assert runs.batches(reader) == 0
        assert warnings() == ["no topic matches subscribePattern=^orders"]
        kafka8.create_topic("orders-1", 1)
        kafka8.produce("orders-1", ["x"], partition=0)
        assert runs.batches(reader) == 1
        assert len(warnings()) == 1
    finally:
        reader.stop()


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [("orders", ["orders", "sp-orders"]), ("^orders", ["orders"]), ("s$", ["orders", "sp-orders"])],
)
def test_a_pattern_matches_anywhere_in_the_name(pattern: str, topics: list[str]) -> None:
    """As Spark's own: the whole name had to match here, so the same query read nothing."""
    with EmbeddedKafka({"orders": 1, "sp-orders": 1, "other": 1}) as broker:
        for topic in ("orders", "sp-orders", "other"):
            broker.produce(topic, ["x"], partition=0)
        reader = TableReader(Runs(broker, subscribePattern=pattern).options, None)  # type: ignore[arg-type]
        assert [task.value.tp.topic for task in reader.partitions()] == topics

"""How far streams are behind: in the progress of a query, and in a listener."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")
pytest.importorskip(
    "pyspark.sql.streaming.datasource", reason="NOT TESTED: no streams in PySpark 4.1"
)

from test_streams import Stream, wait_until

from kafkagroup import BrokerError, TopicPartition
from kafkagroup.spark import MetricsListener, Spread, StreamMetrics, measured_stream
from kafkagroup.spark.measured_stream import MeasuredStreamReader
from kafkagroup.spark.options import parse_options
from kafkagroup.spark.ranges import Positions
from kafkagroup.spark.stream_metrics import stream_metrics, to_metrics
from kafkagroup.wire.batch_writing import NewRecord, encode_batch


class Keeping(MetricsListener):
    """Keeps all that it had, too."""

    def __init__(self) -> None:
        super().__init__()
        self.progress: list[Any] = []
        self.seen: list[StreamMetrics] = []
        self.ended = False

    def onQueryProgress(self, event: Any) -> None:
        super().onQueryProgress(event)
        self.progress.append(event.progress)
        self.seen += self.latest

    def onQueryTerminated(self, event: Any) -> None:
        super().onQueryTerminated(event)
        self.ended = True


def test_the_progress_says_how_far_a_stream_is_behind(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    """With Spark's own connector dashboards show maxOffsetsBehindLatest of the progress; with this
    source it had no metrics."""
    broker.create(name, 3)
    now = time.time()
    for partition, count, age in ((0, 30, 3600), (1, 10, 600)):
        written = round((now - age) * 1000)
        records = [NewRecord(None, b"x", timestamp=written) for _ in range(count)]
        broker.fill(name, partition, records)
    listener = Keeping()
    spark.streams.addListener(listener)
    try:
        stream = Stream(spark, broker.address, tmp_path, subscribe=name, maxRowsPerBatch="16")
        stream.run()
        wait_until(lambda: listener.ended)
    finally:
        spark.streams.removeListener(listener)
    assert listener.latest == []
    in_progress = [json.loads(p.sources[0].latestOffset)["metrics"] for p in listener.progress]
    assert [
        [metrics[f"{of}OffsetsBehindLatest"] for of in ("min", "avg", "max")]
        for metrics in in_progress
    ] == [[0, 25 / 3, 19], [0, 10 / 3, 8], [0, 0, 0]]
    assert [(m.batch, m.rows, m.source, m.offsets_behind) for m in listener.seen] == [
        (0, 15, 0, Spread(0, 25 / 3, 19)),
        (1, 15, 0, Spread(0, 10 / 3, 8)),
        (2, 10, 0, Spread(0, 0, 0)),
    ]
    first, _, last = (metrics.seconds_behind for metrics in listener.seen)
    assert first == Spread(0, pytest.approx(1400, abs=300), pytest.approx(3600, abs=300))
    assert last == Spread(0, 0, 0)
    assert {m.query for m in listener.seen} == {str(listener.progress[0].id)}
    assert 0 <= listener.seen[0].reported_at - now < 300


def positions(*offsets: int) -> Positions:
    return Positions(
        {TopicPartition("t", partition): at for partition, at in enumerate(offsets)}, {"t": "id"}
    )


class Fetches:
    """In place of a session: its fetches have results or errors, or never end."""

    def __init__(self, *results: object) -> None:
        self.results = results
        self.futures: dict[int, Future[Any]] = {}
        self.count = 0

    def start_fetch(self, tp: TopicPartition, *where: object) -> Future[Any]:
        self.count += 1
        future = self.futures[tp.partition] = Future()
        match self.results[tp.partition]:
            case None:
                pass
            case Exception() as error:
                future.set_exception(error)
            case records:
                future.set_result(SimpleNamespace(records=records))
        return future


def batch(timestamp: int) -> bytes:
    return encode_batch([NewRecord(None, b"x", timestamp=timestamp)])


def test_an_age_that_is_not_found_in_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch does not wait for a partition without a leader, and does not fail for it."""
    monkeypatch.setattr(measured_stream, "_TIMEOUT", 0.0)
    monkeypatch.setattr(measured_stream.time, "time", lambda: 1000.0)
    clock = [0.0]
    monkeypatch.setattr(measured_stream.time, "monotonic", lambda: clock[0])
    session = Fetches(batch(400_000), BrokerError(6), None, batch(-1), b"", batch(900_000), None)
    options = parse_options({"bootstrap.servers": "nowhere.invalid:1", "subscribe": "t"})
    reader = MeasuredStreamReader(options, None)  # type: ignore[arg-type]
    monkeypatch.setattr(reader, "_connect", lambda: session)
    reader._latest = positions(8, 8, 8, 8, 8, 8, 8)
    assert reader.reportLatestOffset() == reader._latest.to_json()  # nothing is planned yet
    planned = positions(0, 0, 0, 0, 0, 0, 8)
    reader._planned = planned.to_json()
    ages = {0: 600.0, 5: 100.0, 6: 0.0}
    expected = {
        **reader._latest.to_json(),
        "metrics": to_metrics([8] * 6 + [0], [*ages.values()]),
    }
    assert reader.reportLatestOffset() == expected
    assert session.futures[2].cancelled()
    assert session.count == 6
    clock[0] = 9.9
    assert reader.reportLatestOffset() == expected
    assert session.count == 6
    clock[0] = 10.0
    assert reader.reportLatestOffset() == expected
    assert session.count == 12


def test_a_recreated_topic_and_a_new_partition_are_not_behind() -> None:
    options = parse_options({"bootstrap.servers": "nowhere.invalid:1", "subscribe": "t"})
    reader = MeasuredStreamReader(options, None)  # type: ignore[arg-type]
    reader._latest = Positions(
        {TopicPartition("t", 0): 5, TopicPartition("t", 1): 9, TopicPartition("u", 0): 7},
        {"t": "id", "u": "new"},
    )
    planned = Positions(
        {TopicPartition("t", 0): 5, TopicPartition("u", 0): 900}, {"t": "id", "u": "old"}
    )
    reader._planned = planned.to_json()
    found = reader.reportLatestOffset()
    assert found is not None
    assert found["metrics"] == to_metrics([0], [0.0])


@pytest.mark.parametrize("latest", [None, "", "12", '{"t": {"0": 5}}', "[", '{"kafkagroup": 1}'])
def test_other_sources_have_no_metrics_here(latest: str | None) -> None:
    other = SimpleNamespace(latestOffset=latest, numInputRows=1)
    ours = {"kafkagroup": 1, "metrics": to_metrics([3, 5], [])}
    own = SimpleNamespace(latestOffset=json.dumps(ours), numInputRows=2)
    progress = SimpleNamespace(
        name="orders",
        id="7",
        batchId=4,
        timestamp="2026-01-01T00:00:01.500Z",
        batchDuration=2000,
        sources=[other, own],
    )
    metrics = StreamMetrics(
        query="orders",
        source=1,
        batch=4,
        rows=2,
        reported_at=1767225603.5,
        offsets_behind=Spread(3, 4, 5),
        seconds_behind=None,
    )
    assert stream_metrics(progress) == [metrics]
    listener = MetricsListener()
    listener.onQueryProgress(SimpleNamespace(progress=progress))
    assert listener.latest == [metrics]
    idle = SimpleNamespace(id="7", timestamp="2026-01-01T00:01:00.000Z")
    listener.onQueryIdle(idle)
    assert listener.latest == [attrs.evolve(metrics, reported_at=1767225660.0)]
    listener.onQueryTerminated(idle)
    listener.onQueryIdle(idle)
    assert listener.latest == []

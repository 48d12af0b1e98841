"""How far a stream is behind the ends of its logs: in the progress of its query, and for a monitor.

Spark's API for Python sources has no metrics, so `metrics` in a source's progress stays empty. The
source puts its metrics into `latestOffset` of the progress, which Spark only shows. They are named
as those of Spark's own connector.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import attrs
from pyspark.sql.streaming import StreamingQueryListener

__all__ = ["METRICS", "MetricsListener", "Spread", "StreamMetrics", "stream_metrics", "to_metrics"]

METRICS = "metrics"
"""The key of the metrics in a source's `latestOffset`."""


@attrs.frozen
class Spread:
    """The smallest, the mean and the largest value of the partitions."""

    min: float
    avg: float
    max: float

    @classmethod
    def of(cls, values: Collection[float]) -> Spread | None:
        """Return the spread of these values; None if there are none."""
        return cls(min(values), sum(values) / len(values), max(values)) if values else None


@attrs.frozen(kw_only=True)
class StreamMetrics:
    """How far one source of a query was behind when its last batch was planned."""

    query: str
    """The query's name, or its id if it has none."""
    source: int
    """Which source of the query it is; the first is 0."""
    batch: int
    """The number of the batch in the query."""
    rows: int
    """The rows that the batch has read from this source."""
    reported_at: float
    """When Spark last reported on the query, at the end of the batch or later while it is idle, in
    seconds since the epoch. An old time means that a batch hangs."""
    offsets_behind: Spread | None
    """Offsets from the end of the batch to the end of each log; None if there is no partition."""
    seconds_behind: Spread | None
    """The age of the first record after the batch in each partition, 0 if there is none: measured
    at most every ten seconds. None if no age is known."""


def to_metrics(offsets: Collection[int], seconds: Collection[float]) -> dict[str, float]:
    """Return the metrics in the form of the progress, from the offsets and the seconds by which
    each partition is behind the end of its log. An empty collection adds no metrics to them."""
    spreads = {"Offsets": Spread.of(offsets), "Seconds": Spread.of(seconds)}
    return {
        f"{statistic}{kind}BehindLatest": value
        for kind, spread in spreads.items()
        if spread is not None
        for statistic, value in attrs.asdict(spread).items()
    }


def _spread(metrics: Mapping[str, float], kind: str) -> Spread | None:
    """Return the spread of the metrics of a `kind`, "Offsets" or "Seconds"; None if one lacks."""
    found = [metrics.get(f"{f.name}{kind}BehindLatest") for f in attrs.fields(Spread)]
    known = [value for value in found if value is not None]
    return Spread(*known) if len(known) == len(found) else None


def stream_metrics(progress: Any) -> list[StreamMetrics]:
    """Return the metrics in a `StreamingQueryProgress` of each source of this library."""
    return [
        StreamMetrics(
            query=progress.name or str(progress.id),
            source=number,
            batch=progress.batchId,
            rows=source.numInputRows,
            reported_at=_seconds(progress.timestamp) + progress.batchDuration / 1000,
            offsets_behind=_spread(metrics, "Offsets"),
            seconds_behind=_spread(metrics, "Seconds"),
        )
        for number, source in enumerate(progress.sources)
        if (metrics := _metrics(source.latestOffset)) is not None
    ]


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def _metrics(latest: str | None) -> Mapping[str, float] | None:
    """Return the metrics in a source's `latestOffset`; None if there are none."""
    try:
        found = json.loads(latest or "null")
    except ValueError:
        return None  # the offsets of another source need not be JSON
    if not isinstance(found, dict) or "kafkagroup" not in found:
        return None
    metrics = found.get(METRICS)
    return metrics if isinstance(metrics, dict) else None


class MetricsListener(StreamingQueryListener):
    """Keeps the metrics of the running queries: `spark.streams.addListener(MetricsListener())`."""

    def __init__(self) -> None:
        self._latest: Mapping[str, tuple[StreamMetrics, ...]] = {}
        """Id of a query -> the metrics of its sources."""

    @property
    def latest(self) -> list[StreamMetrics]:
        """The metrics of the last batch of each running query, one for each source of this library.
        May be read in any thread."""
        return [metrics for of_query in self._latest.values() for metrics in of_query]

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self._set(str(event.progress.id), tuple(stream_metrics(event.progress)))

    def onQueryIdle(self, event: Any) -> None:
        known, now = self._latest.get(str(event.id), ()), _seconds(event.timestamp)
        self._set(str(event.id), tuple(attrs.evolve(one, reported_at=now) for one in known))

    def onQueryTerminated(self, event: Any) -> None:
        self._set(str(event.id), ())

    def _set(self, query: str, metrics: tuple[StreamMetrics, ...]) -> None:
        # Replaced, not changed: another thread may iterate over the old one.
        others = {other: kept for other, kept in self._latest.items() if other != query}
        self._latest = {**others, query: metrics} if metrics else others

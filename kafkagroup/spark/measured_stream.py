"""A stream that reports with each batch how far it is behind. If that cannot be measured, the query
continues without such a report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

from kafkagroup.consume.lag import age_of, first_timestamp, lag_of
from kafkagroup.errors import KafkaGroupError
from kafkagroup.spark.planning import may_be_same_topic
from kafkagroup.spark.ranges import Positions
from kafkagroup.spark.stream import StreamReader
from kafkagroup.spark.stream_metrics import METRICS, to_metrics
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from kafkagroup.spark.options import SourceOptions

__all__ = ["MeasuredStreamReader"]

_INTERVAL = 10.0
"""Fewest seconds between two measurements of ages. One measurement fetches a batch from every
partition that has unread records."""

_TIMEOUT = 1.0
"""Seconds for which a batch may wait for the fetches of one measurement."""

_FETCH_BYTES = 16 << 10
"""The limit of a fetch of one record. A broker returns the first batch whole, even if it is
larger."""


class MeasuredStreamReader(StreamReader):
    """A topic as a stream, with its metrics in the progress."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._planned: dict[str, Any] | None = None
        """The end of the batch that was planned last."""
        self._ages: Mapping[TopicPartition, float] = {}
        """The age in seconds of the first unread record of a partition, at the last measurement."""
        self._measured_at = -_INTERVAL
        """When the ages were last measured, on the clock of `time.monotonic`; at first so long ago
        that the first measurement need not wait."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._planned = super().latestOffset(start, limit)
        return self._planned

    def reportLatestOffset(self) -> dict[str, Any] | None:
        latest = super().reportLatestOffset()
        if latest is None or self._latest is None or self._planned is None:
            return latest
        # Spark shows this offset in the progress of the query, and reads it no other way.
        return {**latest, METRICS: self._metrics(Positions.from_json(self._planned), self._latest)}

    def _metrics(self, done: Positions, ends: Positions) -> dict[str, float]:
        """Return how far `done`, the end of a batch, is behind the `ends` of the logs."""
        lags = {
            tp: lag_of(done.offsets[tp], end)
            for tp, end in ends.offsets.items()
            # Not for a topic that was recreated since.
            if tp in done.offsets and may_be_same_topic(tp.topic, done.topic_ids, ends.topic_ids)
        }
        unread = {tp: done.offsets[tp] for tp, count in lags.items() if count}
        if unread and time.monotonic() >= self._measured_at + _INTERVAL:
            self._ages = self._measure(unread, ends.topic_ids)
            self._measured_at = time.monotonic()
        ages = {tp: self._ages.get(tp) if count else 0.0 for tp, count in lags.items()}
        return to_metrics(lags.values(), [s for s in ages.values() if s is not None])

    def _measure(
        self, unread: Mapping[TopicPartition, int], ids: Mapping[str, str]
    ) -> dict[TopicPartition, float]:
        """Return the age in seconds of the first record at or after each offset, of the partitions
        whose fetch succeeds within `_TIMEOUT`."""
        try:
            logs = self._connect()
            fetches = {
                logs.start_fetch(tp, ids[tp.topic], offset, _FETCH_BYTES): tp
                for tp, offset in unread.items()
            }
        except KafkaGroupError:
            return {}
        done, late = wait(fetches, _TIMEOUT)
        for fetch in late:
            fetch.cancel()
        now, found = time.time(), {}
        for fetch in done:
            tp = fetches[fetch]
            try:
                timestamp = first_timestamp(fetch.result().records or b"", tp, unread[tp])
            except KafkaGroupError:
                continue
            seconds = age_of(timestamp, now)
            if not isinstance(seconds, str):
                found[tp] = seconds
        return found

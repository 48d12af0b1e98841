"""The lag of groups in records and in seconds.

The seconds are the age of the record at the committed offset, the oldest record that the group has
not processed; they do not depend on the rate of records. Log ends are read after the commits, so no
lag is negative. An unknown value is null, and `reason` has the cause.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs

from kafkagroup.consume.lag import age_of, first_timestamp, lag_of
from kafkagroup.errors import BrokerError, DecodeError
from kafkagroup.spark.frames import frame
from kafkagroup.spark.latest_commits import KEY
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import parse_options
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LAG", "Committed", "Lag", "lag", "measure"]

LAG = (
    "group_id string, topic string, partition int, committed bigint, log_start bigint,"
    " log_end bigint, lag bigint, seconds double, reason string, sampled_at timestamp"
)
"""The schema, as Spark's DDL."""

_MAX_FETCHES = 50
"""The most fetches in flight."""

_FETCH_BYTES = 16 << 10
"""The limit of a fetch of one record. A broker returns the first batch whole, even if it is
larger."""


@attrs.frozen
class Committed:
    """The last committed offset of a group and partition."""

    group: str
    tp: TopicPartition
    offset: int
    topic_id: str | None = None
    """None if the commit has none."""


@attrs.frozen
class Lag:
    """One row of the result of `lag`, without the time of the sample. `start` and `end` are the
    log's start and end. Unknown values are None."""

    committed: Committed
    start: int | None = None
    end: int | None = None
    lag: int | None = None
    """The number of offsets from the committed one, or the log's start if that is higher, to the
    log's end. Compaction and transaction markers leave gaps, so there may be fewer records."""
    seconds: float | None = None
    """The age of the first record that `lag` counts; 0 if `lag` is 0."""
    reason: str | None = None
    """Why a value is None."""


def lag(spark: SparkSession, options: Mapping[str, str], latest: DataFrame) -> DataFrame:
    """Return the current lag of every group and partition, in the schema `LAG`.

    `latest` is the table of `latest_commits`; `options` are the connection options.
    """
    last = latest.select(*KEY, "offset", "topic_id").toArrow()
    wanted = [
        Committed(group, TopicPartition(topic, partition), offset, topic_id)
        for group, topic, partition, offset, topic_id in zip(
            *last.to_pydict().values(), strict=True
        )
    ]
    found = measure(options, wanted)
    now = datetime.now(UTC)
    rows = [
        (
            each.committed.group,
            *each.committed.tp,
            each.committed.offset,
            each.start,
            each.end,
            each.lag,
            each.seconds,
            each.reason,
            now,
        )
        for each in found
    ]
    return frame(spark, rows, LAG)


def measure(options: Mapping[str, str], wanted: Iterable[Committed]) -> list[Lag]:
    """Return the lag at each committed offset of `wanted`, in its order. Raises: BrokerError;
    TransportError."""
    commits = list(wanted)
    if not commits:
        return []
    topics = ",".join(sorted({committed.tp.topic for committed in commits}))
    with Logs(parse_options({**options, "subscribe": topics})) as logs:
        existing, ids = logs.existing(committed.tp for committed in commits)
        starts, ends = logs.log_bounds(existing)
        now = time.time()
        unread = {
            (committed.tp, max(committed.offset, starts[committed.tp]))
            for committed in commits
            if committed.tp in ends
            and committed.offset < ends[committed.tp]
            and _is_same_topic(committed, ids)
        }
        ages = _ages(logs, unread, ids, now)
    return [_lag(committed, ids, starts, ends, ages) for committed in commits]


def _lag(
    committed: Committed,
    ids: Mapping[str, str],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    ages: Mapping[tuple[TopicPartition, int], float | str],
) -> Lag:
    if committed.tp not in ends:
        return Lag(committed, reason="there is no such partition")
    start, end = starts[committed.tp], ends[committed.tp]
    if not _is_same_topic(committed, ids):
        return Lag(committed, start, end, reason="the topic was recreated since the commit")
    if committed.offset > end:
        return Lag(committed, start, end, reason="the log ends before the committed offset")
    if committed.offset == end:
        return Lag(committed, start, end, 0, 0.0)
    first = max(committed.offset, start)
    seconds = ages[committed.tp, first]
    if isinstance(seconds, str):
        return Lag(committed, start, end, lag_of(first, end), reason=seconds)
    return Lag(committed, start, end, lag_of(first, end), seconds)


def _is_same_topic(committed: Committed, ids: Mapping[str, str]) -> bool:
    """Whether the topic was not recreated since the commit, as far as the ids are known."""
    return (
        not (committed.topic_id and ids[committed.tp.topic])
        or committed.topic_id == ids[committed.tp.topic]
    )


def _ages(
    logs: Logs, wanted: Iterable[tuple[TopicPartition, int]], ids: Mapping[str, str], now: float
) -> dict[tuple[TopicPartition, int], float | str]:
    """Return the age in seconds of the first record at or after each offset, or why it is unknown.
    `now`: seconds since the epoch."""
    ages: dict[tuple[TopicPartition, int], float | str] = {}
    offsets = sorted(wanted)
    for n in range(0, len(offsets), _MAX_FETCHES):
        chunk = offsets[n : n + _MAX_FETCHES]
        fetches = [
            logs.start_fetch(tp, ids[tp.topic], offset, _FETCH_BYTES) for tp, offset in chunk
        ]
        for (tp, offset), fetch in zip(chunk, fetches, strict=True):
            try:
                records = fetch.result().records or b""
                ages[tp, offset] = age_of(first_timestamp(records, tp, offset), now)
            except (BrokerError, DecodeError) as error:
                ages[tp, offset] = str(error)
    return ages

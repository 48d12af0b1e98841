"""The log ends now and at past times, and the lag of groups over time.

A log's end at a past time is the offset of the first record with that timestamp or a later one. So
a job that runs once an hour shows the lag at many commits of the hour, not at one time. The lag is
as accurate as the producers' clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs
from pyspark.sql import functions as F

from kafkagroup.spark.evaluation import WINDOW
from kafkagroup.spark.frames import frame
from kafkagroup.spark.latest_commits import KEY
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import parse_options
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LOG_ENDS", "LogEnd", "lag_history", "log_ends", "look_up"]

LOG_ENDS = (
    "topic string, topic_id string, partition int, log_start bigint, log_end bigint,"
    " time timestamp, looked_up boolean"
)
"""The schema, as Spark's DDL. `looked_up`: true if `time` is that of a commit, false if it is that
of the run."""

_SAMPLES = 60
"""The most commits of a partition, evenly spread, for which one run looks up the log's end: as many
as a plot can show. The last commits of each group, which `evaluation` uses, are added."""


def log_ends(
    spark: SparkSession,
    options: Mapping[str, str],
    commits: DataFrame,
    before: DataFrame | None = None,
) -> DataFrame:
    """Return the ends of the logs that groups read, now and at the times of these commits.

    `options` are the connection options. `before`: the table of `latest_commits` before these
    commits; for its partitions, too, the ends now are returned. Raises: BrokerError;
    TransportError.
    """
    found = look_up(options, _times(commits, before))
    now = datetime.now(UTC)
    rows = [
        (
            end.tp.topic,
            end.topic_id,
            end.tp.partition,
            end.start,
            end.end,
            now if end.at is None else datetime.fromtimestamp(end.at / 1000, UTC),
            end.at is not None,
        )
        for end in found
    ]
    return frame(spark, rows, LOG_ENDS)


def _times(commits: DataFrame, before: DataFrame | None) -> dict[TopicPartition, list[int]]:
    """Return partition -> the past times for which its log's end is looked up, sorted, in
    milliseconds since the epoch. Without any, only the end now is looked up."""
    times = commits.where("NOT removed").selectExpr(
        "topic",
        "partition",
        "group_id",
        "unix_millis(coalesce(commit_time, log_time)) AS time",
    )
    ranked = times.selectExpr(
        "topic",
        "partition",
        "time",
        "row_number() OVER (PARTITION BY topic, partition, group_id ORDER BY time DESC) AS latest",
        "row_number() OVER (PARTITION BY topic, partition ORDER BY time) AS n",
        "count(*) OVER (PARTITION BY topic, partition) AS total",
    )
    wanted = ranked.where(f"latest <= {WINDOW} OR n % ceil(total / {_SAMPLES}) = 0").selectExpr(
        "topic", "partition", "time"
    )
    if before is not None:
        # A partition without new commits gets no time: `collect_set` drops null.
        idle = before.selectExpr("topic", "partition", "CAST(NULL AS bigint) AS time")
        wanted = wanted.union(idle.distinct())
    found = (
        wanted.groupBy("topic", "partition")
        .agg(F.collect_set("time").alias("times"))
        .toArrow()
        .to_pydict()
    )
    return {
        TopicPartition(topic, partition): sorted(times)
        for topic, partition, times in zip(*found.values(), strict=True)
    }


@attrs.frozen
class LogEnd:
    """The end of a log at one time."""

    tp: TopicPartition
    topic_id: str
    at: int | None
    """The time in milliseconds since the epoch; None for now."""
    start: int
    """The log's start now, also for an end in the past."""
    end: int


def look_up(
    options: Mapping[str, str], times: Mapping[TopicPartition, Sequence[int]]
) -> list[LogEnd]:
    """Return the log's end at each time in milliseconds since the epoch, and now; leave out
    partitions that do not exist.

    One request asks a broker for one time of each partition, so the partition with the most times
    determines the number of requests.
    Raises: BrokerError; TransportError.
    """
    if not times:
        return []
    topics = ",".join(sorted({tp.topic for tp in times}))
    found: list[tuple[TopicPartition, int | None, int]] = []
    with Logs(parse_options({**options, "subscribe": topics})) as logs:
        existing, ids = logs.existing(times)
        for n in range(max((len(times[tp]) for tp in existing), default=0)):
            wanted = {tp: times[tp][n] for tp in existing if n < len(times[tp])}
            found += [(tp, wanted[tp], end) for tp, end in logs.offsets_at(wanted).items()]
        starts, ends = logs.log_bounds(existing)
    found += [(tp, None, end) for tp, end in ends.items()]
    return [LogEnd(tp, ids[tp.topic], at, starts[tp], end) for tp, at, end in found]


def lag_history(measured: DataFrame, lag: DataFrame) -> DataFrame:
    """Return the lag of each group in records over time.

    `measured`: the table of `measured_commits`; `lag`: samples of the lag. The lag is known at the
    time of each sample, and of each commit for which the log's end was looked up.
    """
    columns = (*KEY, "time", "committed", "log_end", "lag")
    sampled = lag.where("lag IS NOT NULL").withColumnRenamed("sampled_at", "time")
    return measured.select(*columns).union(sampled.select(*columns))

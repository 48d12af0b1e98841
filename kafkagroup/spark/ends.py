"""The log ends now and at past times, and the lag of groups at those times.

A log's end at a past time is the offset of the first record with that timestamp or a later one. So
a job that runs once an hour shows the whole hour, not one sample. It is as accurate as the
producers' clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs
from pyspark.sql import functions as F

from kafkagroup.spark.frames import frame
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import parse_options
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LOG_ENDS", "LogEnd", "kept_ends", "lag_history", "log_ends", "look_up"]

LOG_ENDS = (
    "topic string, topic_id string, partition int, log_start bigint, log_end bigint,"
    " time timestamp, looked_up boolean"
)
"""The schema, as Spark's DDL."""

_LAST = 10
"""For how many of the last commits of each group and partition the log end is looked up: those that
`evaluation` uses."""

_SAMPLES = 60
"""For how many other commits of a partition one run looks the log end up, evenly spread: as many
as a plot can show."""


def log_ends(
    spark: SparkSession,
    options: Mapping[str, str],
    commits: DataFrame,
    after: DataFrame | None = None,
) -> DataFrame:
    """Return the ends of the logs that groups read, now and at the times of their commits.

    `options` are the connection options. `after` is the table of earlier runs: only later commits
    are looked up. Raises: BrokerError; TransportError.
    """
    found = look_up(options, _times(commits, after))
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


def kept_ends(log_ends: DataFrame, commits: DataFrame, before: datetime) -> DataFrame:
    """Return the ends of `before` and later, and those at the times of `commits`, whose lag is
    computed from them."""
    times = commits.selectExpr("topic", "partition", "coalesce(commit_time, log_time) AS time")
    old = log_ends.where(F.col("time") < F.lit(before))
    needed = old.join(times, ["topic", "partition", "time"], "leftsemi").select(log_ends.columns)
    return log_ends.where(F.col("time") >= F.lit(before)).union(needed)


def _times(commits: DataFrame, after: DataFrame | None) -> dict[TopicPartition, list[int]]:
    """Return partition -> the times to look up besides now, in milliseconds, sorted."""
    times = commits.where("NOT removed").selectExpr(
        "topic",
        "partition",
        "group_id",
        "unix_millis(coalesce(commit_time, log_time)) AS time",
    )
    partitions = times.select("topic", "partition").distinct()
    if after is not None:
        known = after.groupBy("topic", "partition").agg(F.max("time").alias("known"))
        times = times.join(known, ["topic", "partition"], "left").where(
            "known IS NULL OR time > unix_millis(known)"
        )
    ranked = times.selectExpr(
        "topic",
        "partition",
        "time",
        "row_number() OVER (PARTITION BY topic, partition, group_id ORDER BY time DESC) AS latest",
        "row_number() OVER (PARTITION BY topic, partition ORDER BY time) AS n",
        "count(*) OVER (PARTITION BY topic, partition) AS total",
    )
    wanted = (
        ranked.where(f"latest <= {_LAST} OR n % ceil(total / {_SAMPLES}) = 0")
        .groupBy("topic", "partition")
        .agg(F.collect_set("time").alias("times"))
    )
    # Of a partition without new commits, only the end now is looked up.
    found = partitions.join(wanted, ["topic", "partition"], "left").toArrow().to_pydict()
    return {
        TopicPartition(topic, partition): sorted(times or ())
        for topic, partition, times in zip(*found.values(), strict=True)
    }


@attrs.frozen
class LogEnd:
    """The end of a log at one time."""

    tp: TopicPartition
    topic_id: str
    at: int | None
    """Milliseconds since the epoch; None for now."""
    start: int
    """The log's start now, also for an end in the past."""
    end: int


def look_up(
    options: Mapping[str, str], times: Mapping[TopicPartition, Sequence[int]]
) -> list[LogEnd]:
    """Return the log's end at each time in milliseconds, and now; leave out partitions that do not
    exist.

    Sends each broker one request per time of the partition with the most times.
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


def lag_history(commits: DataFrame, log_ends: DataFrame) -> DataFrame:
    """Return the lag of each group in records, at all times with a known log end.

    There is no row for times before a group's first commit, or before a topic was recreated.
    """
    committed = commits.selectExpr(
        "group_id",
        "topic",
        "partition",
        "topic_id AS commit_topic_id",
        "coalesce(commit_time, log_time) AS time",
        "log_offset AS log_position",
        "IF(removed, -1, offset) AS committed",
        "CAST(NULL AS bigint) AS log_end",
        "CAST(NULL AS bigint) AS log_start",
        "CAST(NULL AS string) AS end_topic_id",
    )
    readers = commits.select("group_id", "topic", "partition").distinct()
    ends = readers.join(log_ends, ["topic", "partition"]).selectExpr(
        "group_id",
        "topic",
        "partition",
        "CAST(NULL AS string) AS commit_topic_id",
        "time",
        # Sorts a log end after the commits of the same time, which are part of its lag.
        f"CAST({2**63 - 1} AS bigint) AS log_position",
        "CAST(NULL AS bigint) AS committed",
        "log_end",
        "log_start",
        "topic_id AS end_topic_id",
    )
    window = "OVER (PARTITION BY group_id, topic, partition ORDER BY time, log_position)"
    joined = committed.union(ends).selectExpr(
        "*",
        # One struct, so that a missing id is not filled from an older commit.
        f"last(IF(committed IS NULL, NULL, struct(committed, commit_topic_id)), true) {window}"
        " AS latest",
    )
    is_same_topic = (
        "(latest.commit_topic_id IS NULL OR end_topic_id IS NULL OR end_topic_id = ''"
        " OR latest.commit_topic_id = end_topic_id)"
    )
    return (
        joined.where(f"log_end IS NOT NULL AND latest.committed >= 0 AND {is_same_topic}")
        .selectExpr(
            "group_id",
            "topic",
            "partition",
            "time",
            "latest.committed AS committed",
            "log_end",
            "greatest(0, log_end - greatest(latest.committed, log_start)) AS lag",
        )
        .dropDuplicates(["group_id", "topic", "partition", "time"])
    )

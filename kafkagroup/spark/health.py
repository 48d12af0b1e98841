"""The health of partitions, by Burrow's rules, and of groups, by their partitions and rebalances.

`__consumer_offsets` is compacted, so its older part is incomplete. Rebalances are counted only
since `coverage`: the time after the last wide gap in the offsets of the group's partition of that
topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kafkagroup.spark.evaluation import WINDOW, Commit, Status, evaluate

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["coverage", "evaluation", "group_health"]

_KEY = ("group_id", "topic", "partition")

_EVALUATION = (
    "group_id string, topic string, partition int, status string, stuck boolean, lag bigint,"
    " seconds double, reason string, last_commit timestamp, evaluated_at timestamp"
)

_LATELY = 100
"""Seconds for which a log end counts as recent: the span of Burrow's ten samples."""

_GAP = 2
"""The largest distance of two adjacent records that is no sign of compaction: a transaction marker
may lie between them."""


def evaluation(
    lag: DataFrame, history: DataFrame, commits: DataFrame, *, allowed: int = 0
) -> DataFrame:
    """Return the status of every group and partition with a committed offset, at the last sample of
    its lag.

    `lag`: the samples; `history`: the table of `lag_history`; `allowed`: a lag up to this counts as
    none. `stuck`: the status is STALL or STOP. If the lag is unknown, `status` is null, and
    `reason` has the cause.
    """
    newest = lag.groupBy(*_KEY).agg(
        F.max("sampled_at").alias("evaluated_at"),
        *(F.expr(f"max_by({name}, sampled_at) AS {name}") for name in ("lag", "seconds", "reason")),
    )
    last = commits.groupBy(*_KEY).agg(F.expr("max_by(removed, log_offset) AS removed"))
    newest = newest.join(last.where("NOT removed"), [*_KEY], "leftsemi")
    times = commits.where("NOT removed").selectExpr(
        *_KEY, "coalesce(commit_time, log_time) AS time"
    )
    windows = (
        history.join(times.distinct(), [*_KEY, "time"])
        .selectExpr(
            "*", f"row_number() OVER (PARTITION BY {', '.join(_KEY)} ORDER BY time DESC) AS n"
        )
        .where(f"n <= {WINDOW}")
        .groupBy(*_KEY)
        .agg(
            F.expr("collect_list(struct(unix_micros(time) AS time, committed, lag)) AS window"),
        )
    )
    lately = (
        history.join(newest.select(*_KEY, "evaluated_at"), [*_KEY])
        .where(f"time >= evaluated_at - INTERVAL {_LATELY} SECONDS")
        .groupBy(*_KEY)
        .agg(F.collect_list("log_end").alias("ends"))
    )
    joined = newest.join(windows, [*_KEY], "left").join(lately, [*_KEY], "left")
    arrow_schema = to_arrow_schema(StructType.fromDDL(_EVALUATION), timezone="UTC")
    now = joined.columns.index("evaluated_at")

    def evaluated(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            # As numbers: Python's datetimes would depend on a time zone.
            micros = batch.column(now).cast(pa.int64())
            rows = batch.set_column(now, "evaluated_at", micros).to_pylist()
            found = [_evaluated(row, allowed) for row in rows]
            yield pa.RecordBatch.from_pylist(found, schema=arrow_schema)

    return joined.mapInArrow(evaluated, _EVALUATION)


def _evaluated(row: dict[str, object], allowed: int) -> dict[str, object]:
    """Return a row of the table; times are microseconds."""
    window = sorted(row["window"] or (), key=lambda c: c["time"])  # type: ignore[call-overload]
    commits = [Commit(c["time"] / 1e6, c["committed"], c["lag"]) for c in window]
    status = None
    if row["lag"] is not None:
        status = evaluate(
            commits,
            row["ends"] or (),  # type: ignore[arg-type]
            row["evaluated_at"] / 1e6,  # type: ignore[operator]
            lag=row["lag"],  # type: ignore[arg-type]
            allowed=allowed,
        )
    return {
        **row,
        "status": None if status is None else status.name,
        "stuck": status in (Status.STALL, Status.STOP),
        "last_commit": window[-1]["time"] if window else None,
    }


def coverage(events: DataFrame) -> DataFrame:
    """Return for each partition of `__consumer_offsets` the time since which all records are known.

    `events` must be those of all groups: a record that is left out is a gap.
    """
    apart = events.selectExpr(
        "log_partition",
        "log_offset",
        "log_time",
        "lag(log_offset) OVER (PARTITION BY log_partition ORDER BY log_offset) AS before",
    )
    return (
        apart.where(f"before IS NULL OR log_offset - before > {_GAP}")
        .groupBy("log_partition")
        .agg(F.expr("max_by(log_time, log_offset) AS coverage"))
    )


def group_health(
    events: DataFrame,
    covered: DataFrame,
    evaluation: DataFrame,
    rebalances: DataFrame,
    members: DataFrame,
    now: datetime,
) -> DataFrame:
    """Return one row for each group, as of `now`: the time at which the events had been read.

    `covered`: the table of `coverage`. `status` is the status of the group's worst partition.
    Rebalances are counted since its `coverage`; `unstable_seconds` is their total duration, and
    `unstable_share` its share of the time since.
    `skew` is the highest partition count of a member divided by the mean, `lag_skew` the highest
    lag of a partition divided by the mean; null if the mean is 0. `gone_at` is when the group was
    deleted or expired, with all its offsets; null if it exists.
    """
    worst = " ".join(f"WHEN '{status.name}' THEN {status.value}" for status in Status)
    names = " ".join(f"WHEN {status.value} THEN '{status.name}'" for status in Status)
    places = (
        events.where("group_id IS NOT NULL")
        .groupBy("group_id")
        .agg(
            F.first("log_partition").alias("log_partition"),
            F.expr("max_by(kind, log_offset) FILTER (WHERE kind <> 'offsets') AS kind"),
            F.expr("max(log_time) FILTER (WHERE removed) AS removed_at"),
        )
    )
    # What says that a group exists: its own record, of whatever kind, and each of its offsets.
    kept = (
        events.where("commit IS NOT NULL OR record LIKE '%GroupMetadata'")
        .groupBy("group_id", "commit.topic", "commit.partition")
        .agg(F.expr("max_by(removed, log_offset) AS removed"))
        .where("NOT removed")
        .select("group_id")
        .distinct()
        .withColumn("exists", F.lit(True))
    )
    by_partition = evaluation.groupBy("group_id").agg(
        F.expr(f"max(CASE status {worst} END) AS worst"),
        F.count("*").alias("partitions"),
        F.expr("count_if(stuck) AS stuck_partitions"),
        F.sum("lag").alias("lag"),
        F.max("seconds").alias("seconds"),
        F.expr("max(lag) / nullif(avg(lag), 0) AS lag_skew"),
    )
    by_member = members.groupBy("group_id").agg(
        F.count("*").alias("members"),
        F.expr("max(partitions) / nullif(avg(partitions), 0) AS skew"),
    )
    groups = places.join(covered, "log_partition")
    counted = (
        rebalances.where("members > 0")
        .join(groups.select("group_id", "coverage"), "group_id")
        .where("started >= coverage")
        .groupBy("group_id")
        .agg(F.count("*").alias("rebalances"), F.sum("seconds").alias("unstable_seconds"))
    )
    joined = (
        groups.join(by_partition, "group_id", "left")
        .join(by_member, "group_id", "left")
        .join(counted, "group_id", "left")
        .join(kept, "group_id", "left")
        .withColumn("evaluated_at", F.timestamp_micros(F.lit(_micros(now))))
    )
    span = "(unix_micros(evaluated_at) - unix_micros(coverage)) / 1e6"
    return joined.selectExpr(
        "group_id",
        "kind",
        f"CASE worst {names} END AS status",
        "coalesce(members, 0) AS members",
        "coalesce(partitions, 0) AS partitions",
        "lag",
        "seconds",
        "coalesce(stuck_partitions, 0) AS stuck_partitions",
        "skew",
        "lag_skew",
        "coverage",
        "coalesce(rebalances, 0) AS rebalances",
        f"coalesce(rebalances, 0) * 3600 / nullif(greatest({span}, 0), 0) AS rebalances_per_hour",
        "coalesce(unstable_seconds, 0) AS unstable_seconds",
        f"coalesce(unstable_seconds, 0) / nullif(greatest({span}, 0), 0) AS unstable_share",
        "CASE WHEN exists IS NULL THEN removed_at END AS gone_at",
        "evaluated_at",
    )


def _micros(time: datetime) -> int:
    return round(time.timestamp() * 1e6)

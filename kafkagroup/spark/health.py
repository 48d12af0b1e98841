"""The health of partitions, by Burrow's rules, and of groups, by their partitions and rebalances.

`__consumer_offsets` is compacted, so its older part is incomplete. Rebalances are counted only
since `coverage`: the time after the last wide gap in the offsets of the group's partition of that
topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kafkagroup.spark.evaluation import Commit, Status, evaluate
from kafkagroup.spark.frames import arrow_schema
from kafkagroup.spark.latest_commits import KEY

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["coverage", "evaluation", "group_facts", "group_health", "without_removed_groups"]

_EVALUATION = (
    "group_id string, topic string, partition int, status string, stuck boolean, lag bigint,"
    " seconds double, reason string, last_commit timestamp, evaluated_at timestamp"
)

_RECENT_SECONDS = 100
"""A log end counts as recent for this long: the span of Burrow's ten samples."""

_MAX_DISTANCE = 2
"""The largest difference of the offsets of two adjacent records that is no sign of compaction: a
transaction marker may lie between them."""


def evaluation(
    lag: DataFrame, latest: DataFrame, log_ends: DataFrame, *, allowed: int = 0
) -> DataFrame:
    """Return the status of every group and partition with a committed offset, at the time of a
    sample of its lag.

    `lag`: a result of `lag.lag`; `latest`: the table of `latest_commits`; `log_ends`: that of
    `ends.log_ends`, at least its rows of the last 100 seconds; `allowed`: a lag of up to this many
    records counts as none. The column `stuck` is true if the status is STALL or STOP. If the lag is
    unknown, `status` is null, and `reason` has the cause.
    """
    samples = lag.selectExpr(*KEY, "sampled_at AS evaluated_at", "lag", "seconds", "reason")
    sampled = samples.agg(F.max("evaluated_at").alias("sampled_at"))
    # The least end is enough: the rules only check whether all recent ends are above an offset.
    ends = (
        log_ends.crossJoin(F.broadcast(sampled))
        .where(f"time >= sampled_at - INTERVAL {_RECENT_SECONDS} SECONDS")
        .groupBy("topic", "partition")
        .agg(F.min("log_end").alias("least_end"))
    )
    window = "transform(recent, c -> struct(unix_micros(c.time) AS time, c.committed, c.lag))"
    joined = (
        samples.join(latest.selectExpr(*KEY, f"{window} AS window"), [*KEY], "left")
        .join(ends, ["topic", "partition"], "left")
        .select(*KEY, "evaluated_at", "lag", "seconds", "reason", "window", "least_end")
    )
    schema = arrow_schema(StructType.fromDDL(_EVALUATION))
    time_index = joined.columns.index("evaluated_at")

    def evaluated(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            # As numbers: Python's datetimes would depend on a time zone.
            micros = batch.column(time_index).cast(pa.int64())
            rows = batch.set_column(time_index, "evaluated_at", micros).to_pylist()
            found = [_evaluated(row, allowed) for row in rows]
            yield pa.RecordBatch.from_pylist(found, schema=schema)

    return joined.mapInArrow(evaluated, _EVALUATION)


def _evaluated(row: dict[str, Any], allowed: int) -> dict[str, object]:
    """Return a row of the table from a row of the joined inputs; times are microseconds."""
    window = row["window"] or ()
    commits = [Commit(c["time"] / 1e6, c["committed"], c["lag"]) for c in window]
    status = None
    if row["lag"] is not None:
        status = evaluate(
            commits,
            () if row["least_end"] is None else (row["least_end"],),
            row["evaluated_at"] / 1e6,
            lag=row["lag"],
            allowed=allowed,
        )
    return {
        **row,
        "status": None if status is None else status.name,
        "stuck": status in (Status.STALL, Status.STOP),
        "last_commit": window[-1]["time"] if window else None,
    }


def coverage(events: DataFrame, before: DataFrame | None = None) -> DataFrame:
    """Return for each partition of `__consumer_offsets` the time since which all records are known,
    and the offset of the last record.

    `events` must be those of all groups: a record that is left out is a gap. `before`: the result
    for all earlier events; None if there are none.
    """
    if before is None:
        known = events.selectExpr(
            "log_partition", "CAST(NULL AS timestamp) AS known", "CAST(NULL AS bigint) AS last"
        ).limit(0)
    else:
        known = before.selectExpr("log_partition", "coverage AS known", "last_offset AS last")
    consecutive = events.join(known, "log_partition", "left").selectExpr(
        "log_partition",
        "log_offset",
        "log_time",
        "coalesce(lag(log_offset) OVER (PARTITION BY log_partition ORDER BY log_offset), last)"
        " AS before",
    )
    # A negative difference is a gap, too: the topic was recreated.
    is_gap = f"before IS NULL OR log_offset - before NOT BETWEEN 0 AND {_MAX_DISTANCE}"
    new = consecutive.groupBy("log_partition").agg(
        F.expr(f"max_by(log_time, log_offset) FILTER (WHERE {is_gap}) AS since"),
        F.max("log_offset").alias("new_last"),
    )
    return new.join(known, "log_partition", "full").selectExpr(
        "log_partition",
        "coalesce(since, known) AS coverage",
        "coalesce(new_last, last) AS last_offset",
    )


def group_facts(events: DataFrame, before: DataFrame | None = None) -> DataFrame:
    """Return for each group its partition of `__consumer_offsets`, its kind, when a record of it
    was last removed, and whether it has a record of its metadata, which a group that only commits
    has not. `before`: the result for all earlier events; None if there are none."""
    facts = (
        events.where("group_id IS NOT NULL")
        .groupBy("group_id")
        .agg(
            F.first("log_partition").alias("log_partition"),
            F.expr("max_by(kind, log_offset) FILTER (WHERE kind <> 'offsets') AS kind"),
            F.expr("max(log_time) FILTER (WHERE removed) AS removed_at"),
            F.expr(
                "max_by(NOT removed, log_offset) FILTER (WHERE record LIKE '%GroupMetadata')"
                " AS has_record"
            ),
        )
    )
    if before is None:
        return facts
    known = before.select(
        "group_id", *(before[name].alias(f"known_{name}") for name in facts.columns[1:])
    )
    return facts.join(known, "group_id", "full").selectExpr(
        "group_id", *(f"coalesce({name}, known_{name}) AS {name}" for name in facts.columns[1:])
    )


def without_removed_groups(facts: DataFrame, latest: DataFrame, before: datetime) -> DataFrame:
    """Return the table of `group_facts` without the groups that were deleted or expired before a
    time. `latest`: the table of `latest_commits`."""
    is_old = F.coalesce(F.col("removed_at") < F.lit(before), F.lit(False))
    old = facts.where(is_old & ~F.coalesce("has_record", F.lit(False)))
    removed = old.join(latest, "group_id", "leftanti").select("group_id")
    return facts.join(removed, "group_id", "leftanti")


def group_health(
    facts: DataFrame,
    covered: DataFrame,
    latest: DataFrame,
    evaluation: DataFrame,
    rebalances: DataFrame,
    members: DataFrame,
    now: datetime,
) -> DataFrame:
    """Return one row for each group, as of `now`: the time at which the events had been read.

    `facts`: the table of `group_facts`; `covered`: that of `coverage`; `latest`: that of
    `latest_commits`. `status` is the status of the group's worst partition.
    Rebalances are counted since the group's `coverage`, except those that left no member;
    `unstable_seconds` is their total duration, and `unstable_share` that duration divided by the
    time from `coverage` to `now`.
    `skew` is the highest partition count of a member divided by the mean, `lag_skew` the highest
    lag of a partition divided by the mean; null if the mean is 0. `gone_at` is when the group was
    deleted or expired, with all its offsets; null if it exists.
    """
    # The worst status is the highest number.
    ranks = " ".join(f"WHEN '{status.name}' THEN {status.value}" for status in Status)
    names = " ".join(f"WHEN {status.value} THEN '{status.name}'" for status in Status)
    with_offsets = latest.select("group_id").distinct().withColumn("has_offsets", F.lit(True))
    by_partition = evaluation.groupBy("group_id").agg(
        F.expr(f"max(CASE status {ranks} END) AS worst"),
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
    groups = facts.join(covered, "log_partition")
    rebalance_counts = (
        rebalances.where("members > 0")
        .join(groups.select("group_id", "coverage"), "group_id")
        .where("started >= coverage")
        .groupBy("group_id")
        .agg(F.count("*").alias("rebalances"), F.sum("seconds").alias("unstable_seconds"))
    )
    joined = (
        groups.join(by_partition, "group_id", "left")
        .join(by_member, "group_id", "left")
        .join(rebalance_counts, "group_id", "left")
        .join(with_offsets, "group_id", "left")
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
        "IF(has_record OR has_offsets, NULL, removed_at) AS gone_at",
        "evaluated_at",
    )


def _micros(time: datetime) -> int:
    """Return a time in microseconds since the epoch."""
    return round(time.timestamp() * 1e6)

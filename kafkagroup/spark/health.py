"""How groups do: each partition by Burrow's rules, each group by what it lived through.

The log of groups is compacted, so a table may begin with what is left of older times. Nothing is
said of how often something happened before `coverage`: the time behind the last wide gap in the
offsets of the group's partition of that log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kafkagroup.spark.evaluation import WINDOW, Commit, Status, evaluate

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["evaluation", "group_health"]

_KEY = ("group_id", "topic", "partition")

_EVALUATION = (
    "group_id string, topic string, partition int, status string, stuck boolean, lag bigint,"
    " seconds double, reason string, last_commit timestamp, evaluated_at timestamp"
)

_LATELY = 100
"""Seconds in which a log end counts as sampled lately: those that Burrow's ten samples span."""

_GAP = 2
"""How far neighbours in the log may be apart without a sign of compaction: the marker of a
transaction lies between two."""


def evaluation(
    lag: DataFrame, history: DataFrame, commits: DataFrame, *, allowed: int = 0
) -> DataFrame:
    """The status of every group and partition, at the last sample of its lag.

    `lag`: the samples; `history`: the table of `lag_history`; `allowed`: records of lag that are
    none. `stuck` is STALL or STOP. Where nobody knows the lag `status` is null; `reason` says why.
    """
    newest = lag.groupBy(*_KEY).agg(
        F.max("sampled_at").alias("evaluated_at"),
        *(F.expr(f"max_by({name}, sampled_at) AS {name}") for name in ("lag", "seconds", "reason")),
    )
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
    told = newest.join(windows, [*_KEY], "left").join(lately, [*_KEY], "left")
    made = to_arrow_schema(StructType.fromDDL(_EVALUATION), timezone="UTC")

    def judge(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        now = told_names.index("evaluated_at")
        for batch in batches:
            # As numbers: Python's datetimes would have a zone to get wrong.
            micros = batch.column(now).cast(pa.int64())
            rows = batch.set_column(now, "evaluated_at", micros).to_pylist()
            judged = [_judged(row, allowed) for row in rows]
            columns = [pa.array([row[field.name] for row in judged], field.type) for field in made]
            yield pa.RecordBatch.from_arrays(columns, schema=made)

    told_names = told.columns
    return told.mapInArrow(judge, _EVALUATION)


def _judged(row: dict[str, object], allowed: int) -> dict[str, object]:
    """A row of the table; times are microseconds."""
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


def group_health(
    events: DataFrame, evaluation: DataFrame, rebalances: DataFrame, members: DataFrame
) -> DataFrame:
    """A row a group.

    `status`: that of its worst partition. `coverage`: since when rebalances are counted;
    `unstable_seconds`: how long they took, all together, and `unstable_share` of that time.
    `skew`: partitions of the member that has the most, by the mean; `lag_skew`: the same of the
    lags of partitions. Null where there is nothing to divide.
    """
    worst = " ".join(f"WHEN '{status.name}' THEN {status.value}" for status in Status)
    names = " ".join(f"WHEN {status.value} THEN '{status.name}'" for status in Status)
    places = (
        events.where("group_id IS NOT NULL")
        .groupBy("group_id")
        .agg(
            F.first("log_partition").alias("log_partition"),
            F.expr("max_by(kind, log_offset) FILTER (WHERE kind <> 'offsets') AS kind"),
            F.max("log_time").alias("last_record"),
        )
    )
    apart = events.selectExpr(
        "log_partition",
        "log_offset",
        "log_time",
        "lag(log_offset) OVER (PARTITION BY log_partition ORDER BY log_offset) AS before",
    )
    covered = (
        apart.where(f"before IS NULL OR log_offset - before > {_GAP}")
        .groupBy("log_partition")
        .agg(F.expr("max_by(log_time, log_offset) AS coverage"))
    )
    by_partition = evaluation.groupBy("group_id").agg(
        F.expr(f"max(CASE status {worst} END) AS worst"),
        F.count("*").alias("partitions"),
        F.expr("count_if(stuck) AS stuck_partitions"),
        F.sum("lag").alias("lag"),
        F.max("seconds").alias("seconds"),
        F.expr("max(lag) / nullif(avg(lag), 0) AS lag_skew"),
        F.max("evaluated_at").alias("evaluated_at"),
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
    )
    span = "(unix_micros(coalesce(evaluated_at, last_record)) - unix_micros(coverage)) / 1e6"
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
        "coalesce(evaluated_at, last_record) AS evaluated_at",
    )

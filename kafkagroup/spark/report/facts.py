"""The data of the report, as plain values, limited to what fits a page. Living groups are before
ended ones, and in each part the worst groups are first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import reduce
from itertools import groupby
from operator import or_
from typing import TYPE_CHECKING, Any

import attrs

from kafkagroup.spark.evaluation import Status

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from kafkagroup.spark.pipeline import Tables

__all__ = [
    "Bar",
    "Facts",
    "Group",
    "Rebalance",
    "Stuck",
    "gather",
    "lag_over_time",
    "selected",
    "total_lag",
]

MAX_GROUPS = 500
"""Most groups in the page: rows of its tables."""
MAX_SECTIONS = 12
"""Most groups that have a section of their own, with plots."""
MAX_STUCK = 100
"""Most stuck partitions of living groups, and most of ended ones."""
MAX_REBALANCES = 200
"""Most rebalances of each group: the last ones."""
MAX_POINTS = 20_000
"""Most samples of the lag of each group: the last ones."""
MAX_BARS = 3_000
"""Most ownership spans of each group: the last ones."""


_WITH_MEMBERS = ("classic", "consumer", "share")
"""Kinds of groups whose members are known. As text, the tuple is a list in SQL."""

_IS_ENDED = (
    "coalesce(gone_at IS NOT NULL OR members = 0 AND ("
    f"kind IN {_WITH_MEMBERS} OR status = 'STOP' OR last_commit < evaluated_at - INTERVAL 1 DAY"
    "), false)"
)
"""Whether a group has ended, in SQL: it was deleted or expired, or it has no members any more. A
group that never had members, such as that of a query of Spark, has ended if it no longer commits:
its status is STOP, or its last commit is older than a day."""

_WORST_FIRST = ("worst", "stuck_partitions", "lag", "rebalances")
"""The columns by which groups are ordered, all descending. `worst` is the number of the status."""


@attrs.frozen
class Stuck:
    """A partition whose status is STALL or STOP."""

    group: str
    topic: str
    partition: int
    status: str
    lag: int | None
    seconds: float | None
    """The age of the record at the committed offset; None if unknown."""
    last_commit: datetime | None
    is_ended: bool = False
    """Whether its group has ended."""


@attrs.frozen
class Rebalance:
    """One rebalance of a group."""

    generation: int
    cause: str
    started: datetime
    ended: datetime | None
    """None if it has not ended, or if the next rebalance began before."""
    members: int
    """The number of members in the generation."""
    moved: int
    """The number of partitions that have moved from one member to another."""


@attrs.frozen
class Bar:
    """The time for which a member owns a partition in one generation: a bar in the plot."""

    topic: str
    partition: int
    member: str
    """Its instance id, which a restart keeps, or without one its member id."""
    generation: int
    started: datetime
    ended: datetime | None
    """None if the member still owns the partition."""
    client: str | None = None
    """The member's client id, which the legend shows if no other member has it."""


@attrs.frozen(kw_only=True)
class Group:
    """One group. Lists are in order of time."""

    name: str
    health: dict[str, Any]
    """Its row in `group_health`."""
    is_ended: bool = False
    lag: Sequence[tuple[datetime, int]] = ()
    """Time and lag of all partitions together."""
    rebalances: Sequence[Rebalance] = ()
    bars: Sequence[Bar] = ()


@attrs.frozen
class Facts:
    """All data of the report."""

    made_at: datetime | None
    """The time of the run, None without groups; all times are UTC."""
    stuck: Sequence[Stuck]
    groups: Sequence[Group]
    """Living groups first, and in each part the worst first. Only the first `MAX_SECTIONS` of them
    have lists."""
    others: int = 0
    """The number of selected groups that are not in `groups`."""


def gather(tables: Tables, groups: Sequence[str] = (), exclude: Sequence[str] = ()) -> Facts:
    """Read the data from the tables that `run` writes. The times are in the session's time zone,
    which should be UTC.

    `groups`: ids of the groups to show, all if empty; `exclude`: ids of groups to leave out. In
    both `*` stands for any text and `?` for any character.
    """
    from pyspark.sql import functions as F

    evaluation = tables.read("evaluation")
    ranks = " ".join(f"WHEN '{status.name}' THEN {status.value}" for status in Status)
    chosen = (
        selected(tables.read("group_health"), groups, exclude)
        .join(
            evaluation.groupBy("group_id").agg(F.max("last_commit").alias("last_commit")),
            "group_id",
            "left",
        )
        .selectExpr(
            "*", f"{_IS_ENDED} AS is_ended", f"coalesce(CASE status {ranks} END, -1) AS worst"
        )
    )
    health = [
        row.asDict()
        for row in chosen.orderBy("is_ended", *map(F.desc, _WORST_FIRST), "group_id")
        .limit(MAX_GROUPS)
        .collect()
    ]
    names = [row["group_id"] for row in health[:MAX_SECTIONS]]
    samples = _by_group(lag_over_time(tables, names), "time", MAX_POINTS)
    rebalances = _by_group(_rows_of(tables, "rebalances", names), "started", MAX_REBALANCES)
    bars = _by_group(_rows_of(tables, "ownership", names), "started", MAX_BARS)
    shown = [
        Group(
            name=name,
            health=row,
            is_ended=row["is_ended"],
            lag=total_lag((r.time, (r.topic, r.partition), r.lag) for r in samples.get(name, ())),
            rebalances=[
                Rebalance(r.generation, r.cause, r.started, r.ended, r.members, r.moved)
                for r in rebalances.get(name, ())
            ],
            bars=[
                Bar(
                    r.topic or r.topic_id,
                    r.partition,
                    r.instance_id or r.member_id,
                    r.generation,
                    r.started,
                    r.ended,
                    r.client_id,
                )
                for r in bars.get(name, ())
            ],
        )
        for row in health
        for name in (row["group_id"],)
    ]
    stuck = _stuck(evaluation.join(chosen.select("group_id", "is_ended"), "group_id"))
    made_at = max((row["evaluated_at"] for row in health), default=None)
    return Facts(made_at, stuck, shown, chosen.count() - len(shown))


def selected(rows: DataFrame, groups: Sequence[str], exclude: Sequence[str]) -> DataFrame:
    """Return the rows of the groups whose ids match one of `groups`, and none of `exclude`."""

    def matches(patterns: Sequence[str]) -> Column:
        return reduce(or_, (rows.group_id.like(_like(pattern)) for pattern in patterns))

    if groups:
        rows = rows.where(matches(groups))
    return rows.where(~matches(exclude)) if exclude else rows


def _like(pattern: str) -> str:
    """Return the pattern of SQL's LIKE for one with `*` and `?`."""
    return re.sub(r"[\\%_]", r"\\\g<0>", pattern).replace("*", "%").replace("?", "_")


def _stuck(evaluation: DataFrame) -> list[Stuck]:
    """Return the stuck partitions with the most lag, those of living groups first."""
    rows = evaluation.where("stuck").selectExpr(
        "*", "row_number() OVER (PARTITION BY is_ended ORDER BY lag DESC) AS nth"
    )
    return [
        Stuck(
            r.group_id, r.topic, r.partition, r.status, r.lag, r.seconds, r.last_commit, r.is_ended
        )
        for r in rows.where(f"nth <= {MAX_STUCK}").orderBy("is_ended", "nth").collect()
    ]


def lag_over_time(tables: Tables, names: Sequence[str]) -> DataFrame:
    """Return the lag of each partition of these groups over time: the rows of `lag_history`, and,
    between the first and the last of them, a row for each other time at which the log's end is
    known.

    Without these further rows, the lag of a group that stopped would seem to grow only when it was
    sampled. The table does not have them, because there are many: for each group all times of each
    partition that it reads.
    """
    from pyspark.sql import functions as F

    from kafkagroup.spark.latest_commits import KEY, LAG_OF_COMMIT

    known = _rows_of(tables, "lag_history", names)
    partitions = known.groupBy(*KEY).agg(F.min("time").alias("first"), F.max("time").alias("last"))
    others = (
        tables.read("log_ends")
        .dropDuplicates(["topic", "partition", "time"])
        .join(F.broadcast(partitions), ["topic", "partition"])
        .where("time BETWEEN first AND last")
        .join(known, [*KEY, "time"], "leftanti")
    )
    null = F.lit(None).cast("bigint")
    more = others.withColumns({"committed": null, "lag": null})
    rows = (
        known.withColumn("log_start", null)
        .unionByName(more, allowMissingColumns=True)
        .selectExpr(
            *(*KEY, "time", "lag", "log_start", "log_end"),
            f"last_value(committed, true) OVER (PARTITION BY {', '.join(KEY)} ORDER BY time)"
            " AS committed",
        )
    )
    return rows.selectExpr(
        *KEY, "time", "committed", "log_end", f"coalesce(lag, {LAG_OF_COMMIT}) AS lag"
    )


def _rows_of(tables: Tables, name: str, groups: Sequence[str]) -> DataFrame:
    """Return the rows of a table that are of these groups."""
    rows = tables.read(name)
    return rows.where(rows.group_id.isin(list(groups)))


def _by_group(rows: DataFrame, time: str, most: int) -> dict[str, list[Any]]:
    """Return the last `most` rows of each group, in order of the column `time`."""
    found = (
        rows.selectExpr(
            "*", f"row_number() OVER (PARTITION BY group_id ORDER BY {time} DESC) AS nth"
        )
        .where(f"nth <= {most}")
        .orderBy("group_id", time)
        .collect()
    )
    by_group = groupby(found, key=lambda row: row.group_id)
    return {group_id: list(group) for group_id, group in by_group}


def total_lag(samples: Iterable[tuple[datetime, object, int]]) -> list[tuple[datetime, int]]:
    """Return each time with the sum of the last known lags of all partitions. `samples` are in
    order of time: time, partition and lag."""
    known: dict[object, int] = {}
    total, found = 0, []
    for time, rows in groupby(samples, key=lambda sample: sample[0]):
        for _, partition, lag in rows:
            total += lag - known.get(partition, 0)
            known[partition] = lag
        found.append((time, total))
    return found

"""The last commits of each group and partition, kept from run to run.

A run merges the new commits into this table. So neither the lag nor the status of a partition needs
older commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from kafkagroup.spark.evaluation import WINDOW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KEY", "LAG_OF_COMMIT", "latest_commits", "measured_commits"]

KEY = ("group_id", "topic", "partition")
"""The columns that identify a partition with a committed offset."""

LAG_OF_COMMIT = "greatest(0, log_end - greatest(committed, log_start))"
"""The lag of a committed offset, in SQL, computed from the log's start and end."""


def measured_commits(commits: DataFrame, log_ends: DataFrame) -> DataFrame:
    """Return the commits at whose time the log's end was looked up, with the lag at that time.

    `commits`: the table of `history.commits`; `log_ends`: that of `ends.log_ends`. A commit is left
    out if its topic was recreated before the log's end was looked up.
    """
    made = commits.where("NOT removed").selectExpr(
        *KEY,
        "coalesce(commit_time, log_time) AS time",
        "log_offset",
        "offset AS committed",
        "topic_id AS commit_topic_id",
    )
    ends = log_ends.where("looked_up").dropDuplicates(["topic", "partition", "time"])
    is_same_topic = "commit_topic_id IS NULL OR topic_id = '' OR commit_topic_id = topic_id"
    return (
        made.join(ends, ["topic", "partition", "time"])
        .where(is_same_topic)
        .groupBy(*KEY, "time")
        .agg(F.expr("max_by(struct(committed, log_end, log_start), log_offset) AS last"))
        .selectExpr(*KEY, "time", "last.*")
        .selectExpr(*KEY, "time", "committed", "log_end", f"{LAG_OF_COMMIT} AS lag")
    )


def latest_commits(
    commits: DataFrame, measured: DataFrame | None = None, before: DataFrame | None = None
) -> DataFrame:
    """Return a row for each group and partition with a committed offset: its last commit, and in
    `recent` the time, offset and lag of the last `WINDOW` commits whose lag is known, oldest first.

    `measured`: the table of `measured_commits`, None if no lag is known; `before`: this table as it
    was before these commits.
    """
    last = commits.groupBy(*KEY).agg(
        F.expr("max_by(struct(offset, topic_id, removed), log_offset) AS last")
    )
    if measured is None:
        # No rows, only the columns of `measured_commits` that are used below, with their types.
        measured = commits.limit(0).selectExpr(
            *KEY, "log_time AS time", "offset AS committed", "offset AS lag"
        )
    recent = (
        measured.selectExpr(
            "*", f"row_number() OVER (PARTITION BY {', '.join(KEY)} ORDER BY time DESC) AS nth"
        )
        .where(f"nth <= {WINDOW}")
        .groupBy(*KEY)
        .agg(F.expr("array_sort(collect_list(struct(time, committed, lag))) AS recent"))
    )
    new = last.join(recent, [*KEY], "left").selectExpr(
        *KEY, "last", "coalesce(recent, array()) AS recent"
    )
    if before is not None:
        known = before.selectExpr(
            *KEY,
            "struct(offset, topic_id, false AS removed) AS known_last",
            "recent AS known_recent",
        )
        # The offsets of a topic that was recreated since have nothing to do with the new ones.
        is_recreated = "coalesce(last.topic_id <> known_last.topic_id, false)"
        same_topic = f"filter(coalesce(known_recent, array()), x -> NOT {is_recreated})"
        new = new.join(known, [*KEY], "full").selectExpr(
            *KEY,
            "coalesce(last, known_last) AS last",
            f"array_sort(concat({same_topic}, coalesce(recent, array()))) AS recent",
        )
    newest = f"reverse(slice(reverse(recent), 1, {WINDOW}))"
    return new.where("NOT last.removed").selectExpr(
        *KEY, "last.offset", "last.topic_id", f"{newest} AS recent"
    )

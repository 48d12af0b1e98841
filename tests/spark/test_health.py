"""The health of groups: of which time it is, and which groups no longer exist."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark.sql.pandas.types import from_arrow_schema

from kafkagroup.spark import groups, health, history
from kafkagroup.spark.ends import LOG_ENDS
from kafkagroup.spark.events import schema
from kafkagroup.spark.lag import LAG
from kafkagroup.spark.latest_commits import latest_commits


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def frame(spark: Any, *records: dict[str, Any]) -> Any:
    """Events with the given fields, one after the other in partition 0 of the log."""
    made = from_arrow_schema(schema())
    rows = [
        {**dict.fromkeys(made.names), "log_partition": 0, "log_offset": offset, **record}
        for offset, record in enumerate(records)
    ]
    return spark.createDataFrame([tuple(row[name] for name in made.names) for row in rows], made)


def commit(group: str, partition: int, seconds: int, removed: bool = False) -> dict[str, Any]:
    committed = {"topic": "t", "partition": partition, "offset": None if removed else 7}
    empty = dict.fromkeys(("topic_id", "leader_epoch", "metadata", "commit_time", "expire_time"))
    return {
        "log_time": at(seconds),
        "record": "OffsetCommit",
        "kind": "offsets",
        "group_id": group,
        "removed": removed,
        "commit": {**empty, **committed},
    }


def epoch(group: str, number: int | None, seconds: int, kind: str = "Share") -> dict[str, Any]:
    empty = dict.fromkeys(("protocol_type", "protocol", "leader", "state_time", "members"))
    return {
        "log_time": at(seconds),
        "record": f"{kind}GroupMetadata",
        "kind": kind.lower() or "classic",
        "group_id": group,
        "removed": number is None,
        "generation": None if number is None else {**empty, "number": number},
    }


def group_health(spark: Any, events: Any, now: datetime, left_out: str = "none") -> dict[str, Any]:
    """Return the row of each group but `left_out`, whose records are there as the pipeline's own
    are."""
    (found,) = _health(spark, events, ["true"], now, left_out)
    return found


def group_health_in_two_runs(spark: Any, events: Any, now: datetime) -> dict[str, Any]:
    middle = events.count() // 2
    parts = (f"log_offset < {middle}", f"log_offset >= {middle}")
    return _health(spark, events, parts, now, "none")[-1]


def _health(
    spark: Any, events: Any, parts: Sequence[str], now: datetime, left_out: str
) -> list[dict[str, Any]]:
    no_samples = spark.createDataFrame([], LAG)
    no_ends = spark.createDataFrame([], LOG_ENDS)
    covered = facts = latest = timelines = None
    found, closed = [], []
    for part in parts:
        new = events.where(part)
        covered = health.coverage(new, covered)
        others = new.where(f"group_id <> '{left_out}'")
        facts = health.group_facts(others, facts)
        commits = history.commits(others)
        latest = latest_commits(commits, before=latest)
        timelines = groups.timelines(others, timelines)
        closed.append(groups.rebalances(timelines, may_change=False))
        rebalances = groups.rebalances(timelines, may_change=True)
        for more in closed:
            rebalances = rebalances.union(more)
        rows = health.group_health(
            facts,
            covered,
            latest,
            health.evaluation(no_samples, latest, no_ends),
            rebalances,
            groups.members(timelines),
            now,
        )
        found.append({row.group_id: row for row in rows.collect()})
    return found


@pytest.mark.long
def test_groups_that_were_deleted_or_expired_are_gone(spark: Any) -> None:
    events = frame(
        spark,
        epoch("deleted", 1, 100),
        epoch("kept", 1, 100, kind=""),
        epoch("migrated", 1, 100, kind=""),
        commit("deleted", 0, 110),
        commit("expired", 0, 110),
        commit("expired", 1, 110),
        commit("half-expired", 0, 110),
        commit("half-expired", 1, 110),
        commit("kept", 0, 110),
        commit("deleted", 0, 200, removed=True),
        epoch("deleted", None, 210),
        commit("expired", 1, 220, removed=True),
        commit("expired", 0, 230, removed=True),
        commit("half-expired", 1, 230, removed=True),
        epoch("kept", None, 240, kind=""),
        epoch("migrated", None, 250, kind=""),
        epoch("migrated", 2, 250, kind="Consumer"),
    )
    found = group_health(spark, events, at(1000))
    gone = {group: row.gone_at and row.gone_at.timestamp() for group, row in found.items()}
    assert gone == {
        "deleted": 210,
        "expired": 230,
        "half-expired": None,
        "kept": None,
        "migrated": None,
    }
    assert group_health_in_two_runs(spark, events, at(1000)) == found

    facts, commits = health.group_facts(events), history.commits(events)
    kept = health.without_removed_groups(facts, latest_commits(commits), at(220)).select("group_id")
    assert {row.group_id for row in kept.collect()} == found.keys() - {"deleted"}


def test_rates_are_of_the_time_up_to_the_run(spark: Any) -> None:
    """The last record of a share group may be much older: nothing commits to this log."""
    members = [{**dict.fromkeys(schema().field("members").type.value_type.names), "member_id": "m"}]
    joined = {**epoch("shared", None, 100), "record": "ShareGroupMemberMetadata", "removed": False}
    events = frame(
        spark, {**joined, "members": members}, epoch("shared", 1, 100), epoch("shared", 2, 110)
    )
    (row,) = group_health(spark, events, at(100 + 7200)).values()
    assert (row.rebalances, row.rebalances_per_hour) == (2, 1.0)
    assert row.evaluated_at.timestamp() == 7300


@pytest.mark.long
def test_records_of_a_group_that_is_left_out_are_no_gap(spark: Any) -> None:
    """With every few commits of the pipeline's own, coverage began anew."""
    own = [commit("own", 0, 110)] * 3
    events = frame(spark, epoch("a", 1, 100), *own, epoch("a", 2, 200))
    (row,) = group_health(spark, events, at(300), left_out="own").values()
    assert row.coverage.timestamp() == 100
    (row,) = group_health(spark, events.where("group_id = 'a'"), at(300)).values()
    assert row.coverage.timestamp() == 200

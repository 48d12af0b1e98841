"""The data of the report, read from the pipeline's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from test_health import at

from kafkagroup.spark.ends import LOG_ENDS
from kafkagroup.spark.frames import frame
from kafkagroup.spark.report.facts import gather, lag_over_time, selected
from kafkagroup.spark.stored_tables import Tables

LAG_HISTORY = (
    "group_id string, topic string, partition int, time timestamp, committed bigint,"
    " log_end bigint, lag bigint"
)


def test_the_lag_of_a_stopped_group_follows_the_log_ends_of_other_groups(
    spark: Any, tmp_path: Path
) -> None:
    tables = Tables(spark, str(tmp_path))
    known = [
        ("stopped", "t", 0, at(10), 5, 8, 3),
        ("stopped", "t", 0, at(50), 5, 90, 85),
        ("stopped", "t", 1, at(50), 0, 7, 7),
        ("other", "t", 0, at(20), 9, 9, 0),
    ]
    tables.replace("lag_history", frame(spark, known, LAG_HISTORY))
    ends = [
        ("t", "id", 0, 0, 4, at(5), True),  # before the group's first commit
        ("t", "id", 0, 0, 8, at(10), True),
        ("t", "id", 0, 0, 9, at(20), True),
        ("t", "id", 0, 0, 9, at(20), True),  # looked up by two runs
        ("t", "id", 0, 6, 80, at(30), True),  # records were deleted up to 6
        ("t", "id", 0, 6, 99, at(60), False),
        ("t", "id", 1, 0, 7, at(40), True),
    ]
    tables.replace("log_ends", frame(spark, ends, LOG_ENDS))
    found = lag_over_time(tables, ["stopped"]).orderBy("partition", "time").collect()
    assert [(r.partition, round(r.time.timestamp()), r.committed, r.lag) for r in found] == [
        (0, 10, 5, 3),
        (0, 20, 5, 4),
        (0, 30, 5, 74),
        (0, 50, 5, 85),
        (1, 50, 0, 7),
    ]


HEALTH = (
    "group_id string, kind string, status string, members bigint, lag bigint,"
    " stuck_partitions bigint, rebalances bigint, gone_at timestamp, evaluated_at timestamp"
)
EVALUATION = (
    "group_id string, topic string, partition int, status string, stuck boolean, lag bigint,"
    " seconds double, last_commit timestamp"
)
DAY = 86_400


@pytest.fixture(scope="module")
def crowd(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Groups of each kind, living and ended. In each name the status is the second word."""
    tables = Tables(spark, str(tmp_path_factory.mktemp("crowd")))
    now = at(9 * DAY)
    groups = [
        # Name, kind, members, when it was gone, when it has last committed.
        ("alive-OK", "classic", 2, None, now),
        ("alive-WARN", "consumer", 1, None, now),
        ("alive-STOP", "classic", 1, None, at(DAY)),
        ("spark-OK", None, 0, None, at(8 * DAY + 60)),
        ("streams-OK", "streams", 0, None, now),
        ("left-STOP", "consumer", 0, None, now),
        ("left_STOP", "classic", 0, None, now),
        ("spark-STOP", None, 0, None, now),
        ("spark-OK-long-ago", None, 0, None, at(8 * DAY - 60)),
        ("gone--", "classic", 0, at(5), None),
    ]
    status = {name: name.replace("_", "-").split("-")[1] or None for name, *_ in groups}
    rows = [
        (name, kind, status[name], members, 7, 0, 3, gone, now)
        for name, kind, members, gone, _ in groups
    ]
    tables.replace("group_health", frame(spark, rows, HEALTH))
    rows = [
        (name, "t", 0, status[name], status[name] == "STOP", 7, 1.0, last)
        for name, _, _, gone, last in groups
        if gone is None
    ]
    tables.replace("evaluation", frame(spark, rows, EVALUATION))
    tables.replace("lag_history", frame(spark, [], LAG_HISTORY))
    tables.replace("log_ends", frame(spark, [], LOG_ENDS))
    started = "group_id string, started timestamp"
    tables.replace("ownership", frame(spark, [], started))
    tables.replace("rebalances", frame(spark, [], started))
    return tables


def test_living_groups_come_before_ended_ones_that_are_worse(crowd: Tables) -> None:
    """On a cluster with 142 groups, 99 that had ended were STOP, and hid those that lived."""
    found = gather(crowd)
    assert [(g.name, g.is_ended) for g in found.groups] == [
        ("alive-STOP", False),
        ("alive-WARN", False),
        ("alive-OK", False),
        ("spark-OK", False),
        ("streams-OK", False),
        ("left-STOP", True),
        ("left_STOP", True),
        ("spark-STOP", True),
        ("spark-OK-long-ago", True),
        ("gone--", True),
    ]
    assert [(s.group, s.is_ended) for s in found.stuck] == [
        ("alive-STOP", False),
        ("left-STOP", True),
        ("left_STOP", True),
        ("spark-STOP", True),
    ]


@pytest.mark.parametrize(
    ("groups", "exclude", "names"),
    [
        (["left_*"], [], ["left_STOP"]),
        (["alive-??"], [], ["alive-OK"]),
        (["gone--", "left?STOP"], [], ["left-STOP", "left_STOP", "gone--"]),
        (["*STOP"], ["left*", "spark-STOP"], ["alive-STOP"]),
        (["alive%", "alive", "\\", "*'*"], [], []),
    ],
)
def test_groups_are_selected_by_patterns(
    crowd: Tables, groups: list[str], exclude: list[str], names: list[str]
) -> None:
    found = selected(crowd.read("group_health"), groups, exclude).collect()
    assert sorted(row.group_id for row in found) == sorted(names)


def test_the_report_has_the_selected_groups_only(crowd: Tables) -> None:
    found = gather(crowd, ["*STOP"], ["left*"])
    assert [group.name for group in found.groups] == ["alive-STOP", "spark-STOP"]
    assert [one.group for one in found.stuck] == ["alive-STOP", "spark-STOP"]
    assert found.others == 0

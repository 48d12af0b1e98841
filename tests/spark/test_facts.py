"""The data of the report, read from the pipeline's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from test_health import at

from kafkagroup.spark.ends import LOG_ENDS
from kafkagroup.spark.frames import frame
from kafkagroup.spark.report.facts import lag_over_time
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

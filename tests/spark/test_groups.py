"""Timelines of groups from run to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark.sql import functions as F
from test_health import commit, epoch, frame

from kafkagroup.spark import groups


def generations(timelines: Any) -> dict[str, list[int]]:
    rows = groups.rebalances(timelines).groupBy("group_id").agg(F.collect_list("generation"))
    return {group: sorted(numbers) for group, numbers in rows.collect()}


@pytest.mark.long
def test_only_groups_with_new_records_are_computed(spark: Any, tmp_path: Path) -> None:
    earlier = [epoch("a", 1, 10), epoch("b", 1, 10), epoch("gone", 1, 10)]
    folder = str(tmp_path / "timelines")
    groups.timelines(frame(spark, *earlier)).write.parquet(folder)
    known = spark.read.parquet(folder)
    marked = known.withColumn("rebalances", F.expr("slice(rebalances, 1, 0)"))

    events = frame(spark, *earlier, commit("a", 0, 20), epoch("b", 2, 20))
    found = groups.updated_timelines(marked, events.where("group_id <> 'gone'")).cache()
    assert generations(found) == {"b": [1, 2]}
    assert {row.group_id for row in found.collect()} == {"a", "b"}
    assert generations(groups.updated_timelines(known, events)) == generations(
        groups.timelines(events)
    )


def test_timelines_of_another_release_are_refused(spark: Any) -> None:
    events = frame(spark, epoch("a", 1, 10))
    with pytest.raises(ValueError, match="not timelines: struct<group_id"):
        groups.updated_timelines(groups.timelines(events).drop("members"), events)

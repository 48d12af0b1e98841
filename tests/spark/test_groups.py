"""Timelines of groups from run to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark.sql import functions as F
from test_health import commit, epoch, frame

from kafkagroup.spark import groups


def generations(timelines: Any, may_change: bool | None = None) -> dict[str, list[int]]:
    rows = groups.rebalances(timelines, may_change=may_change)
    found = rows.groupBy("group_id").agg(F.collect_list("generation"))
    return {group: sorted(numbers) for group, numbers in found.collect()}


@pytest.mark.long
def test_timelines_continue_from_those_before(spark: Any, tmp_path: Path) -> None:
    def kept(name: str, timelines: Any) -> Any:
        timelines.write.parquet(str(tmp_path / name))
        return spark.read.parquet(str(tmp_path / name))

    first = kept("first", groups.timelines(frame(spark, epoch("a", 1, 10), epoch("b", 1, 10))))
    assert generations(first, may_change=True) == {"a": [1], "b": [1]}
    assert generations(first, may_change=False) == {}

    events = frame(spark, commit("a", 0, 20), epoch("b", 2, 20), epoch("c", 1, 20))
    second = kept("second", groups.timelines(events, first))
    assert generations(second, may_change=True) == {"a": [1], "b": [2], "c": [1]}
    assert generations(second, may_change=False) == {"b": [1]}
    rows = groups.rebalances(second).where("group_id = 'b'").orderBy("generation").collect()
    assert [(row.cause, row.started.second) for row in rows] == [
        ("first seen", 10),
        ("all left", 20),
    ]

    third = groups.timelines(frame(spark, epoch("a", 2, 30)), second)
    assert generations(third, may_change=True) == {"a": [2], "b": [2], "c": [1]}
    assert generations(third, may_change=False) == {"a": [1]}

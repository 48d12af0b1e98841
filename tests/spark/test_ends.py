"""The log ends for groups: how many times are requested, each only once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from brokers import numbered

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup.spark.ends import log_ends


@pytest.mark.long
def test_log_ends_are_looked_up_once_for_many_commits(spark: Any, broker: Any, name: str) -> None:
    broker.create(name, 1)
    broker.fill(name, 0, numbered(0, 5))
    began = datetime(2026, 1, 1, tzinfo=UTC)
    commits = spark.createDataFrame(
        [(name, 0, "a group", began + timedelta(seconds=n), False) for n in range(600)],
        "topic string, partition int, group_id string, commit_time timestamp, removed boolean",
    ).selectExpr("*", "commit_time AS log_time")
    options = {"bootstrap.servers": broker.address}

    first = log_ends(spark, options, commits)
    found = Counter((row.looked_up, row.log_end) for row in first.collect())
    # The last ten, every tenth of all, and now; the hundredth and so on are in both only once.
    assert found == {(True, 5): 69, (False, 5): 1}

    before = commits.where("false"), commits.select("topic", "partition")
    again = log_ends(spark, options, *before)
    assert Counter(row.looked_up for row in again.collect()) == {False: 1}

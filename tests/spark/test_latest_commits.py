"""The last commits of each group and partition, from run to run."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from test_health import at, commit, frame

from kafkagroup.spark import history
from kafkagroup.spark.ends import LOG_ENDS
from kafkagroup.spark.evaluation import WINDOW
from kafkagroup.spark.frames import frame as rows_of
from kafkagroup.spark.latest_commits import latest_commits, measured_commits


def committed(group: str, partition: int, seconds: int, offset: int, topic_id: Any = None) -> Any:
    event = commit(group, partition, seconds)
    event["commit"] |= {"offset": offset, "topic_id": topic_id}
    return event


def test_new_commits_are_merged_into_those_before(spark: Any) -> None:
    ends = rows_of(
        spark,
        [("t", "id", 0, 0, 100 + n, at(n), True) for n in range(20)]
        + [("t", "id", 0, 0, 500, at(99), False)],
        LOG_ENDS,
    )

    def merged(before: Any, *events: Any) -> Any:
        commits = history.commits(frame(spark, *events))
        return latest_commits(commits, measured_commits(commits, ends), before)

    def content(table: Any) -> dict[tuple[str, int], Any]:
        return {
            (row.group_id, row.partition): (
                row.offset,
                [(round(c.time.timestamp()), c.committed, c.lag) for c in row.recent],
            )
            for row in table.collect()
        }

    first = merged(
        None,
        *(committed("g", 0, n, 10 * n) for n in range(7)),
        committed("g", 0, 6, 61),  # in the same millisecond
        committed("g", 1, 5, 7),  # of another partition, whose log ends are not known
        committed("h", 0, 3, 9, topic_id="another"),  # the topic was recreated
        committed("idle", 0, 2, 4),
    )
    start = [(n, 10 * n, 100 + n - 10 * n) for n in range(6)] + [(6, 61, 45)]
    assert content(first) == {
        ("g", 0): (61, start),
        ("g", 1): (7, []),
        ("h", 0): (9, []),
        ("idle", 0): (4, [(2, 4, 98)]),
    }
    second = merged(
        first,
        *(committed("g", 0, n, 200) for n in range(7, 12)),
        commit("g", 1, 8, removed=True),
        committed("new", 0, 9, 1),
    )
    assert content(second) == {
        ("g", 0): (200, (start + [(n, 200, 0) for n in range(7, 12)])[-WINDOW:]),
        ("h", 0): (9, []),
        ("idle", 0): (4, [(2, 4, 98)]),
        ("new", 0): (1, [(9, 1, 108)]),
    }


def test_commits_to_a_topic_that_was_recreated_since_are_dropped(spark: Any) -> None:
    """The commits to the new topic looked like a rewind."""
    ends = rows_of(
        spark,
        [("t", "old" if n < 3 else "new", 0, 0, 100, at(n), True) for n in range(6)],
        LOG_ENDS,
    )

    def merged(before: Any, *events: Any) -> Any:
        commits = history.commits(frame(spark, *events))
        return latest_commits(commits, measured_commits(commits, ends), before)

    first = merged(None, *(committed("g", 0, n, 90 + n, "old") for n in range(3)))
    assert [c.committed for c in first.first().recent] == [90, 91, 92]
    second = merged(first, *(committed("g", 0, n, n, "new") for n in range(3, 6)))
    assert [c.committed for c in second.first().recent] == [3, 4, 5]
    third = merged(second, committed("g", 0, 5, 6, None))
    assert [c.committed for c in third.first().recent][:3] == [3, 4, 5]

"""The part of the logs that the filters of Spark select. No Spark runs here."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest

from kafkagroup import TopicPartition

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from kafkagroup.spark.filters import Selection, select

TIME = datetime(1970, 1, 1, 0, 0, 1, 500, UTC)
"""1.0005 seconds after the epoch: not a whole millisecond."""


@pytest.mark.parametrize(
    ("filters", "selected"),
    [
        ([EqualTo(("topic",), "a")], Selection(topics=frozenset("a"))),
        (
            [In(("topic",), ("a", "b")), In(("topic",), ("b", "c"))],
            Selection(topics=frozenset("b")),
        ),
        (
            [EqualTo(("partition",), 1), In(("partition",), (1, 2))],
            Selection(partitions=frozenset([1])),
        ),
        ([EqualTo(("offset",), 5)], Selection(first=5, end=6)),
        (
            [GreaterThan(("offset",), 5), GreaterThanOrEqual(("offset",), 3)],
            Selection(first=6, end=math.inf),
        ),
        ([LessThan(("offset",), 5), LessThanOrEqual(("offset",), 3)], Selection(end=4)),
    ],
)
def test_filters_that_spark_need_not_evaluate(filters: list[Filter], selected: Selection) -> None:
    assert select(filters) == (selected, [])


@pytest.mark.parametrize("kind", [EqualTo, GreaterThan, GreaterThanOrEqual])
def test_spark_evaluates_times_again(kind: type[EqualTo]) -> None:
    """Records are not sorted by time, and timestamps in a log are whole milliseconds."""
    one = kind(("timestamp",), TIME.astimezone(timezone(timedelta(hours=2))))
    assert select([one]) == (Selection(since=1000), [one])


@pytest.mark.parametrize(
    "one",
    [
        LessThan(("timestamp",), TIME),
        GreaterThan(("timestamp",), TIME.replace(tzinfo=None)),
        EqualTo(("value",), b"x"),
        EqualTo(("partition",), "1"),
        In(("partition",), (1, None)),
        Not(EqualTo(("partition",), 1)),
        IsNotNull(("key",)),
    ],
)
def test_other_filters_are_left_to_spark(one: Filter) -> None:
    assert select([one]) == (Selection(), [one])


def test_a_selection_checks_partitions_and_narrows_offsets() -> None:
    selection = Selection(partitions=frozenset([1]), first=5, end=9)
    assert selection.includes(TopicPartition("a", 1))
    assert not selection.includes(TopicPartition("a", 2))
    # Of the last two ranges nothing is selected.
    assert [selection.narrow(*range_) for range_ in ((0, 20), (6, 8), (0, 3), (12, 20))] == [
        (5, 9),
        (6, 8),
        (5, 5),
        (12, 12),
    ]

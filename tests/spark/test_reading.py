"""How much a task fetches; no Spark runs here."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup.spark.reading import FetchSize

KIB, MIB = 1 << 10, 1 << 20


def test_a_task_fetches_about_what_is_left_of_it() -> None:
    """A batch of 250 small records once cost a fetch of 8 MiB of the log behind them."""
    size = FetchSize(8 * MIB)
    assert [size.of(n) for n in (1, 250, 10_000, 10_000_000)] == [
        64 * KIB,
        70_400,
        2_816_000,
        8 * MIB,
    ]
    size.learn(1000, 1000 * KIB)
    assert size.of(1000) == int(1000 * KIB * 1.1)
    size.learn(0, 0)
    assert size.of(1000) == int(1000 * KIB * 1.1)


def test_a_limit_below_the_least_fetch_holds() -> None:
    assert FetchSize(KIB).of(1) == KIB

"""From measured lag to assignments: the loads of the pipeline, used by an assignor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from kafkagroup import LoadsFile, TopicPartition
from kafkagroup.assign import (
    Assignor,
    GroupSpec,
    MemberSpec,
    cooperative_sticky_assignor,
    weighted_sticky,
)

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup.spark.weights import write_loads

PACES = {"quick": 160.0, "slow": 80.0}
RATES = (100, 10, 60, 10, 10, 10)


def test_measured_loads_balance_the_lag(spark: Any, tmp_path: Path) -> None:
    """The first and the third partition have the most records. Balanced by count, one member has
    both and cannot keep up; balanced by load, every member keeps up."""
    weights = spark.sql(
        "SELECT 'g' AS group_id, 't' AS topic, p AS partition, CAST(r AS double) AS load,"
        " current_timestamp() AS made_at FROM VALUES "
        + ", ".join(f"({p}, {rate})" for p, rate in enumerate(RATES))
        + " AS of(p, r)"
    )
    file = tmp_path / "loads.json"
    assert write_loads(weights, "g", file) == len(RATES)
    loads = anyio.run(LoadsFile(file, 60.0))
    spec = GroupSpec(
        members={
            name: MemberSpec(topics=frozenset(("t",)), capacity=pace)
            for name, pace in PACES.items()
        },
        partitions={"t": len(RATES)},
        loads=loads,
    )

    def overload(assignor: Assignor) -> float:
        """Of the worst member: its load by what it gets through."""
        return max(
            sum(RATES[tp.partition] for tp in partitions) / PACES[member]
            for member, partitions in assignor(spec).items()
        )

    assert loads[TopicPartition("t", 0)] == 100.0
    assert overload(cooperative_sticky_assignor) > 1
    assert overload(weighted_sticky()) < 0.95

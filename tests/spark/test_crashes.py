"""Kill the driver at each point of a batch; compare the group's committed offset with the sink.

The committed offset is never beyond the sink's last record. It reaches it once the query has run
again. The sink has each record once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from brokers import numbered

from kafkagroup import TopicPartition

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

import dying_driver
import pyarrow.dataset
from dying_driver import PER_BATCH, ROWS

import kafkagroup.spark


def kill_at(point: str, address: str, topic: str, folder: Path) -> None:
    """Run a driver until it kills itself at this point."""
    command = [sys.executable, dying_driver.__file__, point, address, topic, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


def written(folder: Path) -> list[int]:
    """Return the offsets in the sink."""
    batches = sorted((folder / "out").glob("batch=*/*.parquet"))
    table = pyarrow.dataset.dataset(list(map(str, batches))).to_table()
    return sorted(table.column("offset").to_pylist())


@pytest.mark.long
@pytest.mark.parametrize(
    ("point", "written_count", "committed_count", "reconciled_count"),
    [
        ("before the offset log", 1, 0, 1),
        ("before the sink", 1, 1, 1),
        ("after the sink", 2, 1, 1),
        ("before the group", 2, 1, 2),
        ("after the group", 2, 2, 2),
    ],
)
def test_a_killed_driver_loses_and_duplicates_nothing(
    spark: Any,
    broker: Any,
    name: str,
    tmp_path: Path,
    point: str,
    written_count: int,
    committed_count: int,
    reconciled_count: int,
) -> None:
    """The counts are those of batches in the sink, committed, and committed after `reconcile`."""
    tp = TopicPartition(name, 0)
    options = dying_driver.options(broker.address, name)
    checkpoint = str(tmp_path / "checkpoint")
    broker.create(name)
    broker.fill(name, 0, numbered(0, ROWS))

    def committed() -> int:
        (at,) = broker.committed(name, tp)
        return -1 if at is None else at

    kill_at(point, broker.address, name, tmp_path)
    assert written(tmp_path) == list(range(written_count * PER_BATCH))
    assert committed() == committed_count * PER_BATCH
    kafkagroup.spark.reconcile(spark, checkpoint, options)
    assert committed() == reconciled_count * PER_BATCH
    query = dying_driver.start(spark, "kafkagroup", broker.address, name, tmp_path)
    assert query.awaitTermination(300)
    assert written(tmp_path) == list(range(ROWS))
    assert committed() == ROWS

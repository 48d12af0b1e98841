"""A stream on a cluster of two executors, which have the package only by --py-files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from brokers import numbered

from kafkagroup import TopicPartition

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

import cluster_driver
import pyarrow.dataset
import pyspark
from cluster_driver import BATCHES, EXECUTOR_DIES, PER_BATCH, WORKER_DIES

import kafkagroup

PARTITIONS = 2


def packed(folder: Path) -> Path:
    """Return an archive of the package as it is on no other path of the cluster: not compiled."""
    package = Path(kafkagroup.__file__).parent
    with ZipFile(folder / "shipped.zip", "w") as archive:
        for file in package.rglob("*.py"):
            archive.write(file, Path("kafkagroup") / file.relative_to(package))
    return folder / "shipped.zip"


@pytest.mark.long
def test_a_stream_survives_killed_workers_and_executors(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    count = BATCHES * PER_BATCH // PARTITIONS
    broker.create(name, PARTITIONS)
    for partition in range(PARTITIONS):
        broker.fill(name, partition, numbered(partition, count))
    settings = (
        "spark.ui.enabled=false",
        "spark.driver.bindAddress=127.0.0.1",
        "spark.driver.host=127.0.0.1",
        "spark.driver.memory=500m",
        "spark.log.level=ERROR",
    )
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local-cluster[2,1,1024]"),
        *("--py-files", str(packed(tmp_path))),
        *(part for setting in settings for part in ("--conf", setting)),
        *(cluster_driver.__file__, broker.address, name, str(tmp_path)),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        # Executors put their folders here.
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]

    sink = pyarrow.dataset.dataset(tmp_path / "out", partitioning="hive")
    rows = sink.to_table().to_pylist()
    found = sorted((row["partition"], row["offset"]) for row in rows)
    assert found == [(p, offset) for p in range(PARTITIONS) for offset in range(count)]
    assert all("shipped.zip" in row["file"] for row in rows), rows[0]["file"]
    assert len({row["executor"] for row in rows}) >= 2
    retried = {row["batch"] for row in rows if row["attempt"]}
    assert retried == {WORKER_DIES, EXECUTOR_DIES}
    partitions = [TopicPartition(name, p) for p in range(PARTITIONS)]
    assert broker.committed(name, *partitions) == [count] * PARTITIONS

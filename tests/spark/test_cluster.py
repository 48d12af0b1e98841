"""A stream on a cluster of two executors, whose processes are killed.

The executors have the package from an archive or a wheel, not from this checkout. What is lost with
a process is read again, and the sink has each record once; the group is never ahead of Spark's
commit log.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brokers import numbered

from kafkagroup import TopicPartition

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

import cluster_driver
import pyarrow.dataset
from cluster_driver import PER_BATCH
from shipping import packed, with_wheel
from spark_processes import DRIVER_SETTINGS, HOME, Cluster, ProcessSession, standalone_cluster

from kafkagroup.spark.ranges import Positions

pytestmark = pytest.mark.long

PARTITIONS = 2
_DRIVER_TIMEOUT = 400.0


@pytest.fixture(params=["local-cluster", "standalone"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster with two workers of one core each."""
    if request.param == "standalone":
        with standalone_cluster(tmp_path / "cluster") as cluster:
            yield cluster
    else:
        yield Cluster("local-cluster[2,1,1024]")


class Query:
    """A query of `cluster_driver`, which several drivers continue one after the other."""

    def __init__(self, broker: Any, topic: str, folder: Path, master: str) -> None:
        self._broker, self._topic, self._folder, self._master = broker, topic, folder, master

    def run(self, victims: list[str], *options: str, **environment: str) -> int:
        """Run a driver until it ends; return its exit status. The group is compared with the commit
        log repeatedly."""
        settings = (
            *DRIVER_SETTINGS,
            "spark.driver.memory=500m",
            "spark.executor.memory=512m",
            "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1",
            "spark.log.level=ERROR",
            # Otherwise the first executor would run all tasks of the first batch.
            "spark.cores.max=2",
            "spark.scheduler.minRegisteredResourcesRatio=1.0",
        )
        command = [
            str(HOME / "bin" / "spark-submit"),
            *("--master", self._master),
            *(part for setting in settings for part in ("--conf", setting)),
            *(*options, cluster_driver.__file__),
            *(self._broker.address, self._topic, str(self._folder), *victims),
        ]
        deadline = time.monotonic() + _DRIVER_TIMEOUT
        with ProcessSession(command, self._folder / "driver.log", environment) as driver:
            while (status := driver.process.poll()) is None:
                assert time.monotonic() < deadline, driver.output()
                self.check_group()
                time.sleep(0.1)
            assert status in (0, -signal.SIGKILL), driver.output()
            return status

    def check_group(self) -> None:
        """Check that the group is not ahead of the commit log."""
        # Read in this order: the log only grows.
        committed, logged = self.committed(), self.logged()
        assert all(g <= done for g, done in zip(committed, logged, strict=True)), (
            f"the group has committed {committed}, Spark {logged}"
        )

    def committed(self) -> list[int]:
        partitions = [TopicPartition(self._topic, p) for p in range(PARTITIONS)]
        return [at or 0 for at in self._broker.committed(self._topic, *partitions)]

    def logged(self) -> list[int]:
        """Return the end of the last batch in the commit log."""
        checkpoint = self._folder / "checkpoint"
        batches = [int(file.name) for file in checkpoint.glob("commits/[0-9]*")]
        if not batches:
            return [0] * PARTITIONS
        *_, line = (checkpoint / "offsets" / str(max(batches))).read_text("utf-8").splitlines()
        offsets = Positions.from_json(json.loads(line)).offsets
        return [offsets[TopicPartition(self._topic, p)] for p in range(PARTITIONS)]

    def rows(self) -> list[dict[str, Any]]:
        sink = pyarrow.dataset.dataset(self._folder / "out", partitioning="hive")
        return sink.to_table().to_pylist()  # type: ignore[no-any-return]


def fill(broker: Any, topic: str, batches: int) -> int:
    """Create the topic with records for so many batches; return their number in each partition."""
    count = batches * PER_BATCH // PARTITIONS
    broker.create(topic, PARTITIONS)
    for partition in range(PARTITIONS):
        broker.fill(topic, partition, numbered(partition, count))
    return count


def check_all_once(rows: list[dict[str, Any]], count: int) -> None:
    found = sorted((row["partition"], row["offset"]) for row in rows)
    assert found == [(p, offset) for p in range(PARTITIONS) for offset in range(count)]


def test_a_stream_survives_killed_workers_executors_and_drivers(
    spark: Any, broker: Any, name: str, tmp_path: Path, cluster: Cluster
) -> None:
    victims = ["python", "executor", "driver", "worker"]
    if not cluster.workers:
        # They are threads of the driver.
        victims[victims.index("worker")] = "none"
    count = fill(broker, name, len(victims))
    query = Query(broker, name, tmp_path, cluster.master)
    shipped = ("--py-files", str(packed(tmp_path)))

    assert query.run(victims, *shipped) == -signal.SIGKILL
    query.check_group()
    dies = victims.index("driver")
    assert query.logged() == [dies * PER_BATCH // PARTITIONS] * PARTITIONS
    assert {row["batch"] for row in query.rows()} == set(range(dies + 1))
    victims[dies] = "none"
    assert query.run(victims, *shipped) == 0

    rows = query.rows()
    check_all_once(rows, count)
    assert all("shipped.zip" in row["file"] for row in rows), rows[0]["file"]
    assert len({row["executor"] for row in rows if row["batch"] < dies}) >= 2
    statuses = [worker.process.poll() for worker in cluster.workers]
    assert statuses.count(-signal.SIGKILL) == victims.count("worker")
    retried = {row["batch"] for row in rows if row["attempt"]}
    assert retried == {n for n, victim in enumerate(victims) if victim != "none"}
    assert query.committed() == query.logged() == [count] * PARTITIONS


@pytest.mark.parametrize("cluster", ["standalone"], indirect=True)
def test_a_stream_with_an_installed_wheel(
    spark: Any, broker: Any, name: str, tmp_path: Path, cluster: Cluster
) -> None:
    victims = ["none", "executor"]
    count = fill(broker, name, len(victims))
    query = Query(broker, name, tmp_path, cluster.master)
    python = with_wheel(tmp_path)
    assert query.run(victims, PYSPARK_PYTHON=str(python)) == 0
    rows = query.rows()
    check_all_once(rows, count)
    environment = str(python.parent.parent)
    assert all(row["file"].startswith(environment) for row in rows), rows[0]["file"]
    assert {row["batch"] for row in rows if row["attempt"]} == {1}
    assert query.committed() == query.logged() == [count] * PARTITIONS

"""Checkpoints belong to their cluster: the planner, the tasks and the commits of a stream, called
as by Spark, on two embedded clusters that listen on one port. Without Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from kafkagroup.errors import ClusterChangedError
from kafkagroup.spark.options import parse_options
from kafkagroup.spark.stream import StreamReader
from kafkagroup.testing import EmbeddedKafka

ALL = ReadAllAvailable()
SCHEMA = StructType([StructField("value", BinaryType())])


class Clusters:
    """One address, and the cluster that listens there."""

    def __init__(self) -> None:
        self.running = EmbeddedKafka({"t": 1}).start()
        self.port = int(self.running.bootstrap_servers.rsplit(":", 1)[1])

    def replace(self) -> EmbeddedKafka:
        self.running.stop()
        self.running = EmbeddedKafka(
            {"t": 1}, ports=[self.port], seed=7, cluster_id="another-cluster-000001"
        ).start()
        return self.running

    @contextmanager
    def planner(self) -> Iterator[StreamReader]:
        reader = StreamReader(
            parse_options(
                {
                    "bootstrap.servers": f"127.0.0.1:{self.port}",
                    "subscribe": "t",
                    "group.id": "g",
                    "commit": "source",
                    "default.api.timeout.ms": "5000",
                }
            ),
            SCHEMA,
        )
        yield reader
        reader.stop()


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    found = Clusters()
    yield found
    found.running.stop()


def test_a_checkpoint_of_another_cluster_is_refused(clusters: Clusters, caplog: Any) -> None:
    clusters.running.produce("t", ["a", "b"])
    with clusters.planner() as planner:
        begin = planner.initialOffset()
        end = planner.latestOffset(begin, ALL)
        (task,) = planner.partitions(begin, end)
    assert begin["cluster"] == end["cluster"] == "kafkagroup-embedded-01"
    other = clusters.replace()
    other.produce("t", ["x", "y", "z"])
    with clusters.planner() as planner:
        with pytest.raises(ClusterChangedError, match="belong to cluster 'kafkagroup-embedded-01'"):
            planner.latestOffset(end, ALL)
        with pytest.raises(ClusterChangedError):
            list(planner.read(task))
        with caplog.at_level(logging.WARNING):
            planner.commit(end)
    assert other.committed("g", "t") == {}


def test_a_checkpoint_of_an_earlier_release_continues(clusters: Clusters) -> None:
    """It has no id. Without new records its text must stay as it is: Spark would run a batch."""
    clusters.running.produce("t", ["a"])
    with clusters.planner() as planner:
        begin = planner.initialOffset()
        end = planner.latestOffset(begin, ALL)
    before = {name: value for name, value in end.items() if name != "cluster"}
    with clusters.planner() as planner:
        assert planner.latestOffset(before, ALL) == before
        clusters.running.produce("t", ["b"])
        after = planner.latestOffset(before, ALL)
        assert after["cluster"] == "kafkagroup-embedded-01"
        (task,) = planner.partitions(before, after)
        rows = [row for batch in planner.read(task) for row in batch.to_pydict()["value"]]
        assert rows == [b"b"]

"""One Spark session and one real Kafka, shared by all tests here: each takes long to start."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import subprocess
import sys
import uuid
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import confluent_kafka
import pytest
from brokers import append, wait_for_end
from confluent_kafka.admin import AdminClient, NewPartitions

from kafkagroup import TopicPartition
from kafkagroup.broker import Broker
from kafkagroup.testing._jars import LocalKafkaUnavailable, find_java
from kafkagroup.testing.embedded.topics import CLUSTER_ID
from kafkagroup.wire.batch_writing import NewRecord
from kafkagroup.wire.messages.admin import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

T = TypeVar("T")

DELTA = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Else reading the log of a small Delta table takes 50 tasks.
    "spark.databricks.delta.snapshotPartitions": "2",
}

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"

LAKES = {
    "4.1": {
        **DELTA,
        "spark.jars.packages": "io.delta:delta-spark_4.1_2.13:4.4.0,"
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,"
        "org.apache.spark:spark-avro_2.13:4.1.1",
        "spark.sql.extensions": f"{DELTA_EXTENSION},"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
    },
    "4.2": {
        **DELTA,
        "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0,"
        "org.apache.spark:spark-avro_2.13:4.2.0",
        "spark.sql.extensions": DELTA_EXTENSION,
    },
}
"""PySpark -> what a session needs for the formats of tables that have a release for it: Delta, and
for 4.1 Iceberg."""

TABLES = {
    "folder": ("parquet", None),
    "catalog": ("parquet", "spark_catalog"),
    "delta": ("delta", None),
    "delta-catalog": ("delta", "spark_catalog"),
    "iceberg": ("iceberg", "lake"),
}
"""Where tables may be -> their format and catalog."""


def why_no_spark() -> str | None:
    try:
        importlib.import_module("pyspark")
        find_java()
    except (ImportError, LocalKafkaUnavailable) as error:
        return str(error)
    return None


def connector_jars() -> list[str]:
    """Return the jars of Spark's own connector; none if they cannot be had."""
    from tests.bench.connector import connector

    try:
        return connector()
    except (OSError, subprocess.SubprocessError):
        return []


def lakes() -> dict[str, str]:
    """Return what a session of this PySpark needs for tables of Delta and Iceberg, if there are
    any."""
    return LAKES.get(importlib.metadata.version("pyspark").rpartition(".")[0], {})


def has_format(form: str) -> bool:
    return form == "parquet" or f":{form}-" in lakes().get("spark.jars.packages", "")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, real: str) -> Iterator[Any]:
    """Return a local session with two threads that knows the data source; skip without real
    Kafka."""
    if reason := why_no_spark():
        pytest.skip(f"NOT TESTED on Spark: {reason}")
    from pyspark.sql import SparkSession

    import kafkagroup.spark

    # Else workers are another Python, and die at once.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    warehouse = {"spark.sql.catalog.lake.warehouse": str(folder / "lake")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.driver.memory", "700m")
            # With one tier the cache has 48 MB, which all tests together fill: the JVM then
            # compiles nothing more.
            .config(
                "spark.driver.extraJavaOptions",
                "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
            )
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.log.level", "ERROR")
            .config("spark.jars", ",".join(connector_jars()))
            .config(map={**lakes(), **(warehouse if has_format("iceberg") else {})})
            .getOrCreate()
        )
        kafkagroup.spark.register(session)
    yield session
    session.stop()


@pytest.fixture
def stored(request: pytest.FixtureRequest, spark: Any) -> Mapping[str, str]:
    """Return the arguments of `Tables` and the pipeline for a key of `TABLES`."""
    form, catalog = TABLES[request.param]
    if not has_format(form):
        pytest.skip(
            f"NOT TESTED with {form}, which has no release for this PySpark: make test-lakes"
        )
    if catalog is None:
        return {"format": form}
    namespace = f"{catalog}.kept_{uuid.uuid4().hex[:8]}"
    spark.sql(f"CREATE NAMESPACE {namespace}")
    return {"format": form, "namespace": namespace}


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run without an event loop, as tests of Spark have none."""
    return asyncio.run(work)


@pytest.fixture(scope="session")
def real(kafka: str) -> str:
    """Return the address of real Kafka."""

    async def cluster_id() -> str | None:
        host, port = kafka.split(",")[0].split(":")
        async with Broker.open(host, int(port)) as broker:
            return (await broker.request_metadata([])).cluster_id

    if blocking(cluster_id()) == CLUSTER_ID:
        pytest.skip("NOT TESTED on Spark: no real Kafka here")
    return kafka


@pytest.fixture
def name() -> str:
    """Return a topic or group name of this test."""
    return f"test-{uuid.uuid4().hex[:8]}"


class Kafka:
    """Changes to a broker, without an event loop."""

    def __init__(self, address: str) -> None:
        self.address = address

    def with_broker(self, work: Callable[[Broker], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            host, port = self.address.split(",")[0].split(":")
            async with Broker.open(host, int(port)) as broker:
                return await work(broker)

        return blocking(run())

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        # Records of 1970, as tests have them, would be gone with the next look at retention.
        configs = {"retention_ms": "-1", **configs}
        new = CreatableTopic(
            name=topic,
            num_partitions=partitions,
            replication_factor=1,
            assignments=(),
            configs=tuple(
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ),
        )
        response = self.with_broker(lambda b: b.request(CreateTopicsRequest(topics=(new,))))
        assert [t.error_code for t in response.topics] == [0]

    def fill(self, topic: str, partition: int, records: list[NewRecord]) -> None:
        self.with_broker(lambda b: append(b, TopicPartition(topic, partition), records))

    def wait_for_end(self, topic: str, partition: int, offset: int) -> None:
        """Wait until the log ends at this offset."""
        wait_for_end(self.address, TopicPartition(topic, partition), offset)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete records at once, as retention does."""
        at = confluent_kafka.TopicPartition(topic, partition, before)
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.delete_records([at])[at].result(20)

    def add_partitions(self, topic: str, total: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_partitions([NewPartitions(topic, total)])[topic].result(20)

    def delete(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.delete_topics([topic])[topic].result(20)

    def exists(self, topic: str) -> bool:
        response = self.with_broker(lambda b: b.request_metadata([topic]))
        return response.topics[0].error_code == 0

    def commit(self, group: str, offsets: dict[TopicPartition, int]) -> None:
        """Commit like another client."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.address, "group.id": group, "enable.auto.commit": False}
        )
        at = [confluent_kafka.TopicPartition(*tp, offset) for tp, offset in offsets.items()]
        consumer.commit(offsets=at, asynchronous=False)
        consumer.close()

    def committed(self, group: str, *partitions: TopicPartition) -> list[int | None]:
        """Return the group's committed offset of each partition, or None."""
        response = self.with_broker(lambda b: b.fetch_consumer_group_offsets(group, partitions))
        found = {
            TopicPartition(topic.name, p.partition_index): p.committed_offset
            for of in response.groups
            for topic in of.topics
            for p in topic.partitions
            if p.committed_offset >= 0
        }
        return [found.get(tp) for tp in partitions]


@pytest.fixture
def broker(real: str) -> Kafka:
    return Kafka(real)


@pytest.fixture(scope="module")
def module_broker(real: str) -> Kafka:
    """The same, shared by the tests of a module."""
    return Kafka(real)

"""What works in a session of Spark Connect, and the errors of what does not."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from brokers import numbered

from kafkagroup import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from shipping import packed, with_wheel, without_package
from spark_processes import DRIVER_SETTINGS, HOME, ProcessSession

pytestmark = pytest.mark.long

_CLIENT_TIMEOUT = 600.0

COUNT = 10
"""Records in each partition."""

USES = (
    "table",
    "values_as_json",
    "unknown_option",
    "to_topic",
    "for_each_batch",
    "reconciled",
    "listener",
    "commits",
    "lags",
    "pipeline",
    "table_exists",
)

Outcomes = dict[str, dict[str, Any]]
"""Use -> what it has returned, or the type and text of its error."""


@contextmanager
def connect_server(folder: Path, python: Path) -> Iterator[tuple[ProcessSession, str]]:
    """Run a server of Spark Connect with this Python; yield it and its address."""
    settings = (
        *DRIVER_SETTINGS,
        "spark.driver.memory=700m",
        "spark.connect.grpc.binding.address=127.0.0.1",
        "spark.connect.grpc.binding.port=0",
        "spark.sql.shuffle.partitions=2",
        f"spark.sql.warehouse.dir={folder / 'warehouse'}",
    )
    command = [
        *(str(HOME / "bin" / "spark-submit"), "--master", "local[2]"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(part for setting in settings for part in ("--conf", setting)),
        "spark-internal",
    ]
    environment = {"PYSPARK_PYTHON": str(python)}
    with ProcessSession(command, folder / "server.log", environment) as server:
        yield server, "sc://" + server.wait_for(r"Spark Connect server started at: (\S+)")


@pytest.fixture(scope="module")
def topic(spark: Any, module_broker: Any) -> str:
    """Return the name of a topic with two partitions, and of other topics that begin with it."""
    # Not imported: gRPC starts threads in a process that others fork from.
    for package in ("googleapis-common-protos", "grpcio", "grpcio-status", "zstandard"):
        try:
            version(package)
        except PackageNotFoundError:
            pytest.skip(f"NOT TESTED on Spark Connect: {package} is not installed")
    broker, name = module_broker, "connect"
    broker.create(name, 2)
    for partition in range(2):
        broker.fill(name, partition, numbered(partition, COUNT))
    broker.create(f"{name}-json")
    values = (b'{"id": 1, "name": "one"}', b'{"id": 2}')
    broker.fill(f"{name}-json", 0, [NewRecord(None, value, 1000) for value in values])
    broker.create(f"{name}-copy")
    broker.create(f"{name}-new")
    return name


def run_client(server: ProcessSession, folder: Path, *arguments: str) -> Outcomes:
    """Return the outcome of each use."""
    command = [sys.executable, str(Path(__file__).with_name("connect_client.py")), *arguments]
    deadline = time.monotonic() + _CLIENT_TIMEOUT
    with ProcessSession(command, folder / "client.log") as client:
        while client.process.poll() is None:
            if time.monotonic() > deadline:
                pytest.fail(f"the client: {client.output()}\nthe server: {server.abort_pythons()}")
            time.sleep(0.1)
        assert client.process.returncode == 0, client.output()
    return json.loads((folder / "outcomes.json").read_text("utf-8"))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def outcomes(topic: str, module_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Return the outcomes of the uses on a server whose Python has the package."""
    folder = tmp_path_factory.mktemp("connect")
    with connect_server(folder, with_wheel(folder)) as (server, address):
        return run_client(server, folder, address, module_broker.address, topic, str(folder), *USES)


def test_tables_are_read(outcomes: Outcomes) -> None:
    rows = [[p, n, f"{p}/{n}"] for p in range(2) for n in range(COUNT)]
    assert outcomes["table"] == {"returned": rows}
    assert outcomes["values_as_json"] == {"returned": [[0, 1, "one"], [1, 2, None]]}


def test_an_error_of_an_option_names_it(outcomes: Outcomes) -> None:
    assert outcomes["unknown_option"]["raised"] == "AnalysisException"
    assert "unknown options: column (did you mean columns?)" in outcomes["unknown_option"]["text"]


def test_streams_are_read_and_written(outcomes: Outcomes) -> None:
    assert outcomes["to_topic"] == {"returned": [[8, 8, 4], 20]}
    assert outcomes["for_each_batch"] == {"returned": [[8, 8, 4], 20]}


def test_the_source_commits_the_last_batch_too(
    outcomes: Outcomes, module_broker: Any, topic: str
) -> None:
    assert "returned" in outcomes["to_topic"]
    partitions = [TopicPartition(topic, p) for p in range(2)]
    assert module_broker.committed(f"{topic}-to_topic", *partitions) == [10, 10]


def test_reconcile_commits_the_last_batch(
    outcomes: Outcomes, module_broker: Any, topic: str
) -> None:
    assert outcomes["reconciled"] == {"returned": [[], [1], [2], []]}
    assert module_broker.committed(f"{topic}-reconciled", TopicPartition(f"{topic}-new", 0)) == [2]


def test_the_listener_commits_every_batch(outcomes: Outcomes) -> None:
    assert outcomes["listener"] == {"returned": [8, 8, 4]}


def test_the_history_and_lag_of_groups_are_read(outcomes: Outcomes) -> None:
    # The end of each run.
    assert outcomes["commits"] == {"returned": [1, 2]}
    assert outcomes["lags"] == {"returned": [[0, 0], [1, 0]]}


def test_the_pipeline_needs_a_classic_session(outcomes: Outcomes) -> None:
    for use, what in (("pipeline", "the pipeline to "), ("table_exists", "access to the file")):
        assert outcomes[use]["raised"] == "ConfigurationError"
        text = outcomes[use]["text"]
        assert text.startswith(what)
        assert "a Spark Connect session does not have" in text
        assert "use a classic session: SparkSession.builder.master(...)" in text


def test_a_package_that_the_client_sends_is_there_for_tables_only(
    topic: str, module_broker: Any, tmp_path: Path
) -> None:
    """PySpark 4.3 does not pass artifacts to the process that plans a stream."""
    with connect_server(tmp_path, without_package(tmp_path)) as (server, address):
        sent = ("--send", str(packed(tmp_path)), address, module_broker.address)
        found = run_client(server, tmp_path, *sent, topic, str(tmp_path), "table", "to_topic")
    assert len(found["table"]["returned"]) == 2 * COUNT
    assert "No module named 'kafkagroup'" in found["to_topic"]["text"]

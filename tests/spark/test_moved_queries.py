"""Queries that move between Spark's own connector and this source with their checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from brokers import numbered
from click.testing import CliRunner

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup.cli._app import app


@pytest.fixture(scope="module")
def sparks_own(spark: Any) -> Any:
    """Return the session if it has Spark's own connector."""
    if not spark.conf.get("spark.jars"):
        pytest.skip("NOT TESTED with Spark's own connector: its jars cannot be fetched from Maven")
    return spark


def run(spark: Any, out: Path, checkpoint: Path, *sources: tuple[str, dict[str, str]]) -> None:
    """Read all that is available from the sources, each a format and its options."""
    columns = ("topic", "partition", "offset", "value")
    frames = [
        spark.readStream.format(form).options(**options).load().select(*columns)
        for form, options in sources
    ]
    whole = frames[0] if len(frames) == 1 else frames[0].union(frames[1])
    writer = whole.writeStream.format("parquet").option("path", str(out))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(300)


def rows(spark: Any, *folders: Path) -> list[tuple[int, int, bytes]]:
    # By its files: a folder's own log begins with batch 0.
    found = spark.read.parquet(*(f"{folder}/*.parquet" for folder in folders)).collect()
    return sorted((row.partition, row.offset, bytes(row.value)) for row in found)


def expected(*counts: int) -> list[tuple[int, int, bytes]]:
    return [(p, n, b"%d/%d" % (p, n)) for p, count in enumerate(counts) for n in range(count)]


def printed(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["spark-offsets", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_a_query_moves_there_and_back_without_losing_or_doubling_a_row(
    sparks_own: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    """The checkpoint of `format("kafka")` was an error: not the offsets of a kafkagroup source."""
    broker.create(name, 2)
    broker.fill(name, 0, numbered(0, 5))
    broker.fill(name, 1, numbered(1, 3))
    options = {
        "kafka.bootstrap.servers": broker.address,
        "subscribe": name,
        "startingOffsets": "EARLIEST",
        "maxOffsetsPerTrigger": "4",
        "kafka.group.id": name,
        "kafka.session.timeout.ms": "30000",
    }
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    run(sparks_own, out, checkpoint, ("kafka", options))
    assert rows(sparks_own, out) == expected(5, 3)
    assert [json.loads(line) for line in printed(str(checkpoint))] == [{name: {"0": 5, "1": 3}}]

    broker.fill(name, 0, numbered(0, 11, 5))
    run(sparks_own, out, checkpoint, ("kafkagroup", options))
    assert rows(sparks_own, out) == expected(11, 3)
    broker.add_partitions(name, 3)
    broker.fill(name, 2, numbered(2, 2))
    broker.fill(name, 1, numbered(1, 4, 3))
    run(sparks_own, out, checkpoint, ("kafkagroup", options))
    assert rows(sparks_own, out) == expected(11, 4, 2)

    (found,) = printed(checkpoint.as_uri())
    assert found == f'{{"{name}":{{"0":11,"1":4,"2":2}}}}'
    broker.fill(name, 0, numbered(0, 13, 11))
    back, new = tmp_path / "back", tmp_path / "new"
    run(sparks_own, back, new, ("kafka", {**options, "startingOffsets": found}))
    assert rows(sparks_own, out, back) == expected(13, 4, 2)


def test_a_batch_that_sparks_own_connector_has_planned_is_repeated_as_it_was(
    sparks_own: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    """It reads new partitions in the batch that finds them: their rows would have been lost."""
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    options = {
        "kafka.bootstrap.servers": broker.address,
        "subscribe": name,
        "startingOffsets": "earliest",
        "kafka.group.id": name,
    }
    checkpoint = tmp_path / "checkpoint"
    run(sparks_own, tmp_path / "first", checkpoint, ("kafka", options))
    broker.add_partitions(name, 2)
    broker.fill(name, 0, numbered(0, 7, 5))
    broker.fill(name, 1, numbered(1, 4))
    run(sparks_own, tmp_path / "planned", checkpoint, ("kafka", options))
    for file in ("1", ".1.crc"):  # as if the driver had died before the batch ended
        (checkpoint / "commits" / file).unlink()
    broker.fill(name, 1, numbered(1, 5, 4))

    run(sparks_own, tmp_path / "repeated", checkpoint, ("kafkagroup", options))
    assert rows(sparks_own, tmp_path / "first", tmp_path / "repeated") == expected(7, 5)


@pytest.mark.long
def test_one_of_two_sources_of_a_query_moves(
    sparks_own: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    topics = [f"{name}-{n}" for n in range(2)]
    for n, topic in enumerate(topics):
        broker.create(topic, 2)
        broker.fill(topic, n, numbered(n, 3))
    first, second = (
        {
            "kafka.bootstrap.servers": broker.address,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }
        for topic in topics
    )
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    run(sparks_own, out, checkpoint, ("kafka", first), ("kafka", second))
    for n, topic in enumerate(topics):
        broker.fill(topic, n, numbered(n, 5, 3))
    run(sparks_own, out, checkpoint, ("kafka", first), ("kafkagroup", second))
    assert rows(sparks_own, out) == expected(5, 5)
    run(sparks_own, out, checkpoint, ("kafkagroup", first), ("kafkagroup", second))
    assert rows(sparks_own, out) == expected(5, 5)  # without a new record
    assert [json.loads(line) for line in printed(str(checkpoint))] == [
        {topics[0]: {"0": 5, "1": 0}},
        {topics[1]: {"0": 0, "1": 5}},
    ]
    (line,) = printed(str(checkpoint), "--source", "1")
    assert json.loads(line) == {topics[1]: {"0": 0, "1": 5}}

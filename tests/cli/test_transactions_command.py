"""`kafkagroup transactions`: tables, JSON, the confirmation of an abort, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from kafkagroup.cli._app import app
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire.batch_writing import NewRecord, encode_batch

AT = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
HUNG = 4000
"""The producer id of the transaction that hangs."""


@attrs.frozen
class Scene:
    kafka: EmbeddedKafka
    red: Producer
    """It has a transaction with one record in orders-0."""

    def run(self, *arguments: str, given: str = "") -> Result:
        env = {"COLUMNS": "140", "NO_COLOR": "1"}
        words = ("transactions", *arguments, "--bootstrap-servers", self.kafka.bootstrap_servers)
        return CliRunner(env=env).invoke(app, words, input=given)


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A transaction that goes on, and in orders/1 one that hangs, from offset 0 on."""
    with EmbeddedKafka({"orders": 2}, wall=lambda: AT) as kafka:
        options = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "red-1"}
        red = Producer({**options, "linger.ms": 0, "log_level": 0})
        red.init_transactions(20)
        red.begin_transaction()
        red.produce("orders", "value", partition=0)
        assert red.flush(20) == 0
        hung = encode_batch(
            [NewRecord(None, b"hung", int(AT * 1000))],
            producer_id=HUNG,
            producer_epoch=3,
            base_sequence=0,
            transactional=True,
        )
        kafka.append("orders", 1, hung)
        yield Scene(kafka, red)


def rows(result: Result) -> list[list[str]]:
    """Return the title, the head and the rows of a table, in cells."""
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    return [line.split("  ") for line in lines if not line.startswith("─")]


def cells(result: Result) -> list[list[str]]:
    return [[cell.strip() for cell in row if cell.strip()] for row in rows(result)]


def value(result: Result) -> Any:
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def test_transactional_ids_are_listed(scene: Scene) -> None:
    broker = f"{scene.kafka.bootstrap_servers} (id 1)"
    head = ["transactional id", "state", "producer id", "coordinator"]
    assert cells(scene.run("list")) == [
        ["1 transactional id"],
        head,
        ["red-1", "Ongoing", "0", broker],
    ]
    nothing = [["0 transactional ids"], head]
    assert cells(scene.run("list", "blue")) == nothing
    assert cells(scene.run("list", "red", "--state", "empty")) == nothing
    assert cells(scene.run("list", "--longer-than", "10m")) == nothing
    assert cells(scene.run("list", "--producer-id", "7")) == nothing
    (found,) = value(scene.run("list", "--json"))["transactions"]
    assert found.pop("coordinator")["node_id"] == 1
    assert found == {"transactional_id": "red-1", "state": "Ongoing", "producer_id": 0}


def test_a_transactional_id_is_described(scene: Scene) -> None:
    result = scene.run("describe", "red-1", "none")
    assert result.exit_code == 1
    assert result.stderr == (
        "kafkagroup: transactional id 'none': TRANSACTIONAL_ID_NOT_FOUND (105): describing"
        " transactional id 'none'\n"
    )
    row = result.stdout.splitlines()[4].split("   ")
    found = [cell.strip() for cell in row if cell.strip()]
    assert found.pop(2).startswith("2026-01-31 1")
    assert found == [
        *("red-1", "Ongoing", "orders 0", "0", "0", "60 s"),
        f"{scene.kafka.bootstrap_servers} (id 1)",
    ]
    (described,) = value(scene.run("describe", "red-1", "--json"))["transactions"]
    assert described.pop("coordinator")["node_id"] == 1
    assert described.pop("started_at").startswith("2026-01-31 1")
    assert described == {
        "transactional_id": "red-1",
        "state": "Ongoing",
        "producer_id": 0,
        "producer_epoch": 0,
        "timeout_seconds": 60.0,
        "partitions": {"orders": [0]},
    }


def test_the_producers_of_partitions(scene: Scene) -> None:
    stuck = ["orders/1", "4000", "3", "0", "0", "2026-01-31 12:00:00Z"]
    assert cells(scene.run("producers", "--topic", "orders", "--partition", "1")) == [
        ["1 producer"],
        ["partition", "producer id", "epoch", "sequence", "start offset", "last written"],
        stuck,
    ]
    assert [row[0] for row in cells(scene.run("producers", "--topic", "orders"))[2:]] == [
        "orders/0",
        "orders/1",
    ]
    found = value(scene.run("producers", "--topic", "orders", "--partition", "1", "--json"))
    assert found["producers"] == [
        {
            "topic": "orders",
            "partition": 1,
            "producer_id": HUNG,
            "producer_epoch": 3,
            "last_sequence": 0,
            "last_written_at": "2026-01-31 12:00:00Z",
            "coordinator_epoch": -1,
            "transaction_start_offset": 0,
        }
    ]
    missing = scene.run("producers", "--topic", "orders", "--partition", "7")
    assert missing.exit_code == 1
    assert "there is no partition orders/7" in missing.stderr
    assert scene.run("producers").stderr == "kafkagroup: producers: give --topic\n"


@pytest.mark.parametrize("selected", [(), ("--topic", "orders")])
def test_hanging_transactions_are_found(scene: Scene, selected: tuple[str, ...]) -> None:
    hanging = ["orders/1", "0", "4000", "hanging", "2026-01-31 12:00:00Z"]
    assert cells(scene.run("find-hanging", *selected))[2:] == [hanging]
    opened = ["orders/0", "0", "0", "red-1", "Ongoing", "2026-01-31 12:00:00Z"]
    every = cells(scene.run("find-hanging", "--all", *selected))
    assert [row[:5] for row in every[2:]] == [opened[:5], hanging[:5]]
    (found,) = value(scene.run("find-hanging", "--json", *selected))["transactions"]
    assert (found["topic"], found["partition"], found["hanging"]) == ("orders", 1, True)
    assert found["transaction"] is None


def test_a_hanging_transaction_is_aborted(scene: Scene) -> None:
    where = ("abort", "--topic", "orders", "--start-offset", "0", "--partition")
    assert scene.kafka.stable_end("orders", 1) == 0
    asked = scene.run(*where, "1")
    assert asked.exit_code == 2
    assert "nothing is changed without --yes" in asked.stderr
    assert scene.kafka.stable_end("orders", 1) == 0
    done = scene.run(*where, "1", "--yes")
    assert (done.exit_code, done.stdout) == (
        0,
        "orders/1: aborted the transaction that began at offset 0\n",
    )
    assert scene.kafka.stable_end("orders", 1) == 2
    again = scene.run(*where, "1", "--yes")
    assert again.exit_code == 1
    assert again.stderr == (
        "kafkagroup: orders/1 has no transaction that begins at 0; it has no open transaction\n"
    )


def test_a_transaction_that_does_not_hang_is_aborted_by_force_only(scene: Scene) -> None:
    where = ("abort", "--topic", "orders", "--partition", "0", "--start-offset", "0", "--yes")
    refused = scene.run(*where)
    assert refused.exit_code == 1
    assert "does not hang: it is Ongoing under transactional id 'red-1'" in refused.stderr
    assert "--force" in refused.stderr
    assert scene.kafka.stable_end("orders", 0) == 0
    found = value(scene.run(*where, "--force", "--json"))
    assert found == {"aborted": {"topic": "orders", "partition": 0, "offset": 0}}
    assert scene.kafka.stable_end("orders", 0) == 2

"""`kafkagroup topics`: tables, JSON, the confirmation of deletions, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from kafkagroup.cli._app import app
from kafkagroup.testing import EmbeddedKafka


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"orders": 2, "audit": 1}) as broker:
        yield broker


def topics(kafka: EmbeddedKafka, *arguments: str) -> Result:
    env = {"COLUMNS": "120", "NO_COLOR": "1"}
    words = ("topics", *arguments, "--bootstrap-servers", kafka.bootstrap_servers)
    return CliRunner(env=env).invoke(app, words)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def values(result: Result) -> dict[str, object]:
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_a_list_of_topics(kafka: EmbeddedKafka) -> None:
    result = topics(kafka, "list")
    assert result.exit_code == 0
    title, head, _, *rows = lines(result.stdout)
    assert (title, head.split()) == ("2 topics", ["topic", "partitions", "replicas"])
    assert [row.split() for row in rows] == [["audit", "1", "1"], ["orders", "2", "1"]]


def test_a_list_of_topics_as_json(kafka: EmbeddedKafka) -> None:
    found = json.loads(topics(kafka, "list", "--json").stdout)["topics"]
    assert [UUID(topic.pop("topic_id")).int > 0 for topic in found] == [True, True]
    of = {"internal": False, "replication_factor": 1}
    assert found == [
        {"topic": "audit", "partition_count": 1, **of},
        {"topic": "orders", "partition_count": 2, **of},
    ]


def test_a_description(kafka: EmbeddedKafka) -> None:
    result = topics(kafka, "describe", "orders", "missing")
    assert result.exit_code == 1
    title, head, _, *rows = lines(result.stdout)
    assert title == "orders: 2 partitions"
    assert head.split() == ["partition", "leader", "replicas", "in", "sync", "offline"]
    leader = f"{kafka.bootstrap_servers} (id 1)".split()
    assert [row.split() for row in rows] == [[n, *leader, "1", "1"] for n in "01"]
    assert result.stderr.startswith(
        "kafkagroup: topic 'missing': UNKNOWN_TOPIC_OR_PARTITION (3): describing topic 'missing'"
    )


def test_a_description_as_json(kafka: EmbeddedKafka) -> None:
    host, port = kafka.bootstrap_servers.split(":")
    (topic,) = json.loads(topics(kafka, "describe", "audit", "--json").stdout)["topics"]
    assert topic["partitions"] == [
        {
            "partition": 0,
            "leader": {"node_id": 1, "host": host, "port": int(port)},
            "leader_epoch": 0,
            "replicas": [1],
            "in_sync_replicas": [1],
            "offline_replicas": [],
        }
    ]


def test_topics_are_created(kafka: EmbeddedKafka) -> None:
    tried = topics(kafka, "create", "a", "b", "--partitions", "3", "--dry-run")
    assert (tried.exit_code, tried.stdout) == (0, "a: would be created\nb: would be created\n")
    result = topics(kafka, "create", "a", "b", "--partitions", "3")
    assert (result.exit_code, result.stdout) == (0, "a: created\nb: created\n")
    assert (kafka.partitions("a"), kafka.partitions("b")) == (3, 3)


def test_a_topic_that_exists_is_an_error_and_the_others_are_created(kafka: EmbeddedKafka) -> None:
    result = topics(kafka, "create", "orders", "a", "--json")
    assert result.exit_code == 1
    found = values(result)
    assert (found["created"], found["dry_run"]) == (["a"], False)
    assert result.stderr.startswith(
        "kafkagroup: orders: not created: TOPIC_ALREADY_EXISTS (36): creating topic 'orders'"
    )


def test_topics_are_deleted_after_confirmation(kafka: EmbeddedKafka) -> None:
    refused = topics(kafka, "delete", "orders")
    assert refused.exit_code == 2
    assert "nothing is changed without --yes" in refused.stderr
    assert kafka.partitions("orders") == 2
    result = topics(kafka, "delete", "orders", "missing", "--yes")
    assert (result.exit_code, result.stdout) == (1, "orders: deleted\n")
    refusal = "kafkagroup: missing: not deleted: UNKNOWN_TOPIC_OR_PARTITION (3): deleting topic 'm"
    assert result.stderr.startswith(refusal)
    assert values(topics(kafka, "list", "--json"))["topics"] != []
    assert "orders" not in topics(kafka, "list").stdout


def test_partitions_are_added(kafka: EmbeddedKafka) -> None:
    tried = topics(kafka, "add-partitions", "orders", "--to", "4", "--dry-run")
    assert (tried.stdout, kafka.partitions("orders")) == ("orders: would be changed\n", 2)
    result = topics(kafka, "add-partitions", "orders", "--to", "4")
    assert (result.exit_code, result.stdout) == (0, "orders: changed\n")
    assert kafka.partitions("orders") == 4
    fewer = topics(kafka, "add-partitions", "orders", "--to", "3")
    assert (fewer.exit_code, fewer.stdout) == (1, "")
    assert "currently has 4 partition(s); 3 would not be an increase" in fewer.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("create",), "create: Missing argument 'TOPIC...'."),
        (
            ("create", "a", "--topic-config", "x"),
            "create: Invalid value for '--topic-config': 'x'; expected NAME=VALUE, as retention",
        ),
        (("create", "a", "--partitions", "0"), "create: Invalid value for '--partitions': 0 is"),
        (("add-partitions", "a"), "add-partitions: Missing option '--to'."),
    ],
)
def test_bad_input_is_one_line_that_helps(
    kafka: EmbeddedKafka, arguments: tuple[str, ...], line: str
) -> None:
    result = topics(kafka, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"kafkagroup: {line}")

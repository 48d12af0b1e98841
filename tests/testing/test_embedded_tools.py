"""Kafka's command-line tools work on the embedded broker: they print what they print elsewhere."""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from assign.java_side import compiled, find_java

from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing._jars import LocalKafkaUnavailable, resolve
from kafkagroup.testing._releases import TOOLS

DEADLINE = 120.0

ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
TOPICS = "org.apache.kafka.tools.TopicCommand"


def run(kafka: EmbeddedKafka, *commands: str) -> list[list[str]]:
    """Run tools, each given as its class, its arguments, and "< input"; return the lines that each
    prints to its standard output. Fails if one of them does."""
    try:
        java = find_java()
        tools = resolve(TOOLS, java.command)
        classes = compiled(Path(__file__).parent / "java" / "Tools.java")
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no tools of Kafka on this machine: {error}")
    path = f"{classes}:{tools}/*:{java.jars}/*"
    done = subprocess.run(
        (java.command, "-XX:TieredStopAtLevel=1", "-cp", path, "Tools"),
        input="".join(line for command in commands for line in lines_of(kafka, command)),
        check=True,
        timeout=DEADLINE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert re.findall(r"^exit .*$", done.stdout, re.MULTILINE) == ["exit 0"] * len(commands), (
        done.stdout
    )
    *outputs, rest = re.split(r"^exit 0\n", done.stdout, flags=re.MULTILINE)
    assert not rest
    return [[line for line in text.splitlines() if line.strip()] for text in outputs]


def lines_of(kafka: EmbeddedKafka, command: str) -> Sequence[str]:
    words, _, values = command.partition("<")
    tool, *arguments = words.split()
    call = "\t".join([tool, "--bootstrap-server", kafka.bootstrap_servers, *arguments]) + "\n"
    return ["<" + "\t".join(values.split()) + "\n", call] if values else [call]


def test_topics_and_their_options() -> None:
    with EmbeddedKafka({"old": 1}, nodes=2) as kafka:
        created, listed, described, _, changed, own, _, of_all, deleted, rest = run(
            kafka,
            f"{TOPICS} --create --topic new --partitions 2 --config retention.ms=7",
            f"{TOPICS} --list",
            f"{TOPICS} --describe --topic new",
            f"{TOPICS} --alter --topic new --partitions 3",
            f"{CONFIGS} --alter --entity-type topics --entity-name new"
            " --add-config cleanup.policy=[compact,delete],max.message.bytes=1000",
            f"{CONFIGS} --describe --entity-type topics --entity-name new",
            f"{CONFIGS} --alter --entity-type topics --entity-name new"
            " --delete-config cleanup.policy,retention.ms",
            f"{CONFIGS} --describe --entity-type topics",
            f"{TOPICS} --delete --topic old",
            f"{TOPICS} --list",
        )
        assert created == ["Created topic new."]
        assert listed == ["new", "old"]
        assert described[0].startswith("Topic: new\tTopicId: ")
        assert "PartitionCount: 2\tReplicationFactor: 2" in described[0]
        assert "retention.ms=7" in described[0]
        assert [line.split("\tElr")[0] for line in described[1:]] == [
            f"\tTopic: new\tPartition: {n}\tLeader: {n + 1}\tReplicas: 1,2\tIsr: 1,2"
            for n in range(2)
        ]
        assert kafka.partitions("new") == 3
        assert changed == ["Completed updating config for topic new."]
        assert [line.split()[0] for line in own[1:]] == [
            "cleanup.policy=compact,delete",
            "max.message.bytes=1000",
            "retention.ms=7",
        ]
        assert [line.split(" sensitive")[0].strip() for line in of_all] == [
            "Dynamic configs for topic new are:",
            "max.message.bytes=1000",
            "Dynamic configs for topic old are:",
        ]
        assert (deleted, rest) == ([], ["new"])


def test_records_and_acls(tmp_path: Path) -> None:
    deletion = tmp_path / "delete.json"
    place = {"topic": "t", "partition": 0, "offset": 2}
    deletion.write_text(json.dumps({"version": 1, "partitions": [place]}))
    with EmbeddedKafka({"t": 1}) as kafka:
        _, consumed, completed, offsets, acls, listed = run(
            kafka,
            f"{PRODUCER} --topic t < one two three",
            f"{CONSUMER} --topic t --group g --from-beginning --max-messages 3 --timeout-ms 30000",
            f"{DELETE_RECORDS} --offset-json-file {deletion}",
            f"{OFFSETS} --topic t --time earliest",
            f"{ACLS} --list",
            f"{TOPICS} --list",
        )
        assert consumed == ["one", "two", "three"]
        assert completed[-1] == "partition: t-0\tlow_watermark: 2"
        assert offsets == ["t:0:2"]
        assert acls == []
        assert listed == ["__consumer_offsets", "t"]
        assert kafka.committed("g", "t") == {0: 3}
        assert kafka.log_start("t", 0) == 2

"""The examples for those who come from pykafka, kafka-python and kiel, run as a reader would."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkagroup.testing import EmbeddedKafka

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"t": 1}) as broker:
        yield broker


def start(script: str, kafka: EmbeddedKafka, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, EXAMPLES / script, kafka.bootstrap_servers, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    found = [process.stdout.readline() for _ in range(count)]
    assert all(found), process.communicate()
    return found


def test_from_pykafka(kafka: EmbeddedKafka) -> None:
    kafka.produce("t", map(str, range(5)))
    with start("coming_from_pykafka.py", kafka, "t", "g") as process:
        told, errors = process.communicate(timeout=60)
    assert (errors, process.returncode) == ("", 0)
    assert told.splitlines() == ["had [], has [0]", *(f"0/{n}: b'{n}'" for n in range(5))]
    assert kafka.committed("g", "t") == {0: 5}
    kafka.produce("t", ["new"])
    with start("coming_from_pykafka.py", kafka, "t", "g") as process:
        told, _ = process.communicate(timeout=60)
    assert told.splitlines() == ["had [], has [0]", "0/3: b'3'", "0/4: b'4'", "0/5: b'new'"]
    assert kafka.committed("g", "t") == {0: 6}


def test_from_kafka_python(kafka: EmbeddedKafka) -> None:
    with start("coming_from_kafka_python.py", kafka, "g") as one:
        assert lines(one, 1) == ["my jobs: bills,mails,reports\n"]
        with start("coming_from_kafka_python.py", kafka, "g") as other:
            shares = {lines(one, 1)[0], lines(other, 1)[0]}
            assert shares == {"my jobs: bills,reports\n", "my jobs: mails\n"}
            other.send_signal(signal.SIGTERM)
            assert other.communicate(timeout=60) == ("joined: True\n", "")
        assert lines(one, 1) == ["my jobs: bills,mails,reports\n"]
        one.send_signal(signal.SIGINT)
        assert one.communicate(timeout=60) == ("joined: True\n", "")
    assert (one.returncode, other.returncode) == (0, 0)
    assert kafka.group_state("g") == "Empty"


def test_from_kiel(kafka: EmbeddedKafka) -> None:
    kafka.produce("t", ['{"order": 1}', "[2]"])
    with start("coming_from_kiel.py", kafka, "t", "g") as process:
        assert lines(process, 2) == ["{'order': 1}\n", "[2]\n"]
        kafka.produce("t", ["3"])
        assert lines(process, 1) == ["3\n"]
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0
    assert kafka.committed("g", "t") == {0: 3}
    assert kafka.group_state("g") == "Empty"

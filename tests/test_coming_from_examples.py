"""The examples for users of pykafka, kafka-python and kiel, run as a reader does."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest
from example_process import end, output_of, running

from kafkagroup.testing import EmbeddedKafka


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"t": 1}) as broker:
        yield broker


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    found = [process.stdout.readline() for _ in range(count)]
    assert all(found), process.communicate()
    return found


def test_the_example_for_pykafka_users_runs(kafka: EmbeddedKafka) -> None:
    kafka.produce("t", map(str, range(5)))
    with running("coming_from_pykafka.py", kafka.bootstrap_servers, "t", "g") as process:
        output, errors = output_of(process)
    assert (errors, process.returncode) == ("", 0)
    first = "the first is b'0'"
    assert output.splitlines() == [first, "had [], has [0]", *(f"0/{n}: b'{n}'" for n in range(5))]
    assert kafka.committed("g", "t") == {0: 5}
    kafka.produce("t", ["new"])
    with running("coming_from_pykafka.py", kafka.bootstrap_servers, "t", "g") as process:
        output, _ = output_of(process)
    starts = ["0/3: b'3'", "0/4: b'4'", "0/5: b'new'"]
    assert output.splitlines() == [first, "had [], has [0]", *starts]
    assert kafka.committed("g", "t") == {0: 6}


def test_the_example_for_kafka_python_users_runs(kafka: EmbeddedKafka) -> None:
    with running("coming_from_kafka_python.py", kafka.bootstrap_servers, "g") as one:
        assert lines(one, 1) == ["my jobs: bills,mails,reports\n"]
        with running("coming_from_kafka_python.py", kafka.bootstrap_servers, "g") as other:
            shares = {lines(one, 1)[0], lines(other, 1)[0]}
            assert shares == {"my jobs: bills,reports\n", "my jobs: mails\n"}
            assert end(other, signal.SIGTERM) == ("joined: True\n", "")
        assert lines(one, 1) == ["my jobs: bills,mails,reports\n"]
        assert end(one, signal.SIGINT) == ("joined: True\n", "")
    assert (one.returncode, other.returncode) == (0, 0)
    assert kafka.group_state("g") == "Empty"


def test_the_example_for_kiel_users_runs(kafka: EmbeddedKafka) -> None:
    kafka.produce("t", ['{"order": 1}', "[2]"])
    with running("coming_from_kiel.py", kafka.bootstrap_servers, "t", "g") as process:
        assert lines(process, 2) == ["{'order': 1}\n", "[2]\n"]
        kafka.produce("t", ["3"])
        assert lines(process, 1) == ["3\n"]
        assert end(process, signal.SIGINT) == ("", "")
    assert process.returncode == 0
    assert kafka.committed("g", "t") == {0: 3}
    assert kafka.group_state("g") == "Empty"

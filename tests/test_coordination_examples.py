"""The examples of the recipes, run as a reader would run them: several processes, some killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.settings import BrokerSettings

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def broker() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(settings=BrokerSettings(group_min_session_timeout=0.5)) as kafka:
        yield kafka


@contextmanager
def running(script: str, broker: EmbeddedKafka, name: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, EXAMPLES / script, broker.bootstrap_servers, "group", name]
    with subprocess.Popen(
        [*command, "--session-timeout-ms", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], pattern: str) -> int:
    """The number in the first line that matches as a whole; it fails when the process ends."""
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(line)
        if found := re.fullmatch(pattern, line.rstrip("\n")):
            return int(found[1]) if found.groups() else 0
    pytest.fail(f"no {pattern!r} in {told}; {process.communicate()[1]}")


def end(process: subprocess.Popen[str]) -> str:
    """Ctrl-C; what it told since."""
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    return rest


def test_the_leader_is_killed_and_another_one_leads_with_a_higher_token(broker) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(running("leader_election.py", broker, "one"))
        first = read_until(one, r"leading, token (\d+)")
        two = stack.enter_context(running("leader_election.py", broker, "two"))
        second = read_until(two, r"leader is one, token (\d+)")
        assert second > first
        assert read_until(one, r"leading, token (\d+)") == second

        one.kill()
        third = read_until(two, r"leading, token (\d+)")
        assert third > second
        assert "not leading any more\n" in end(two)
        assert broker.group_state("group") == "Empty"


def test_a_worker_is_killed_and_the_others_take_its_shards(broker) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(running("sharded_workers.py", broker, "one"))
        read_until(one, "joined: one")
        read_until(one, "here: one; my shards: 0 1 2 3 4 5 6 7")
        two = stack.enter_context(running("sharded_workers.py", broker, "two"))
        read_until(two, "here: one two; my shards: 4 5 6 7")
        read_until(one, "joined: two")
        read_until(one, "here: one two; my shards: 0 1 2 3")

        one.kill()
        read_until(two, "left: one")
        read_until(two, "here: two; my shards: 0 1 2 3 4 5 6 7")
        assert end(two) == ""
        assert broker.group_state("group") == "Empty"

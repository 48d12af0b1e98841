"""The examples of elections and shards, run as a reader does: several processes, some killed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from example_process import end, read_until, running

from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.settings import BrokerSettings


@pytest.fixture
def broker() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(settings=BrokerSettings(group_min_session_timeout=0.5)) as kafka:
        yield kafka


@contextmanager
def member(script: str, broker: EmbeddedKafka, name: str) -> Iterator[subprocess.Popen[str]]:
    options = ("--session-timeout-ms", "1000")
    with running(script, broker.bootstrap_servers, "group", name, *options) as process:
        yield process


def token(process: subprocess.Popen[str], line: str) -> int:
    return int(read_until(process.stdout, rf"^{line}, token (\d+)$")[1])


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    read_until(process.stdout, f"^{line}$")


def end_of(process: subprocess.Popen[str]) -> str:
    """Press Ctrl-C; return the output since."""
    rest, errors = end(process, signal.SIGINT)
    assert (process.returncode, errors) == (0, "")
    return rest


def test_after_the_leader_is_killed_another_leads_with_a_higher_token(broker) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(member("leader_election.py", broker, "one"))
        first = token(one, "leading")
        two = stack.enter_context(member("leader_election.py", broker, "two"))
        second = token(two, "leader is one")
        assert second > first
        assert token(one, "leading") == second

        one.kill()
        third = token(two, "leading")
        assert third > second
        assert "not leading any more\n" in end_of(two)
        assert broker.group_state("group") == "Empty"


def test_after_a_worker_is_killed_the_others_take_its_shards(broker) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(member("sharded_workers.py", broker, "one"))
        wait_for(one, "joined: one")
        wait_for(one, "here: one; my shards: 0 1 2 3 4 5 6 7")
        two = stack.enter_context(member("sharded_workers.py", broker, "two"))
        wait_for(two, "here: one two; my shards: 4 5 6 7")
        wait_for(one, "joined: two")
        wait_for(one, "here: one two; my shards: 0 1 2 3")

        one.kill()
        wait_for(two, "left: one")
        wait_for(two, "here: two; my shards: 0 1 2 3 4 5 6 7")
        assert end_of(two) == ""
        assert broker.group_state("group") == "Empty"

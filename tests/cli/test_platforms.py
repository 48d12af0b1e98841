"""The commands on each platform: with the signals of POSIX, and with those of Windows.

On Windows the second half of each test is skipped; on POSIX it removes what Windows lacks.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cli.programs import TIMEOUT, Program, environment

from kafkagroup.testing import EmbeddedKafka

AS_IT_IS = "from kafkagroup.cli import main; main()"
LIKE_WINDOWS = f"""
import asyncio, os, signal
for name in "SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGPIPE SIGSTOP SIGCONT SIGCHLD".split():
    delattr(signal, name)
def refuse(*_):
    raise NotImplementedError
asyncio.SelectorEventLoop.add_signal_handler = refuse
{AS_IT_IS}
"""

PLATFORMS = [
    pytest.param(AS_IT_IS, id="this platform"),
    pytest.param(
        LIKE_WINDOWS,
        id="like Windows",
        marks=pytest.mark.skipif(sys.platform == "win32", reason="it is Windows"),
    ),
]


@pytest.fixture(params=PLATFORMS)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def servers() -> Iterator[str]:
    with EmbeddedKafka({"t": 1}) as kafka:
        yield kafka.bootstrap_servers


@contextmanager
def running(program: str, *arguments: str) -> Iterator[Program]:
    flags = subprocess.CREATE_NEW_PROCESS_GROUP if sys.platform == "win32" else 0
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        creationflags=flags,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ask_to_end(process: Program) -> None:
    process.send_signal(signal.CTRL_BREAK_EVENT if sys.platform == "win32" else signal.SIGTERM)


@pytest.mark.parametrize("command", ["", "broker", "consume", "produce", "elect", "describe"])
def test_help(program: str, command: str) -> None:
    """Even `kafkagroup --help` once failed on Windows, which has no SIGHUP."""
    with running(program, *command.split(), "--help") as process:
        assert b"Usage:" in process.stdout.read()
        assert process.wait(TIMEOUT) == 0


def test_produce_and_consume(program: str, servers: str) -> None:
    given = ("--group", "g", "--from-beginning", "--bootstrap-servers", servers)
    with running(program, "consume", "t", *given) as reader:
        with running(program, "produce", "t", "--bootstrap-servers", servers) as writer:
            writer.communicate(b"one\ntwo\n", TIMEOUT)
            assert writer.returncode == 0
        assert reader.stdout.readline().rstrip().endswith(b"one")
        assert reader.stdout.readline().rstrip().endswith(b"two")
        ask_to_end(reader)
        assert reader.wait(TIMEOUT) == 0


def test_a_signal_ends_produce(program: str, servers: str) -> None:
    with running(program, "produce", "t", "--bootstrap-servers", servers) as writer:
        given = ("--from-beginning", "--bootstrap-servers", servers)
        with running(program, "consume", "t", *given) as reader:
            writer.stdin.write(b"one\n")
            writer.stdin.flush()
            assert reader.stdout.readline().rstrip().endswith(b"one")
        ask_to_end(writer)
        expected = signal.SIGBREAK if sys.platform == "win32" else signal.SIGTERM
        assert writer.wait(TIMEOUT) == 128 + expected


def test_a_signal_ends_the_broker(program: str) -> None:
    with running(program, "broker", "--port", "0") as process:
        assert b":" in process.stdout.readline()
        ask_to_end(process)
        assert process.wait(TIMEOUT) == 0


def test_a_signal_reaches_the_command_of_the_leader(program: str, servers: str) -> None:
    waits = "import time; print('leads', flush=True); time.sleep(60)"
    command = (sys.executable, "-c", waits)
    with running(
        program, "elect", "g", "--bootstrap-servers", servers, "--grace", "2", "--", *command
    ) as process:
        assert process.stdout.readline().rstrip() == b"leads"
        ask_to_end(process)
        assert process.wait(TIMEOUT) != 0
        assert process.stdout.read() == b""  # the command has ended, too

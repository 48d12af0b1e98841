"""`kafkagroup elect`: one of several candidates runs its command, and exits with its exit code."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from cli.programs import TIMEOUT, Program, run, running
from click.testing import CliRunner

from kafkagroup import Admin
from kafkagroup.cli._app import app
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Delay
from kafkagroup.wire.messages.group import HeartbeatRequest

QUICK = ("--session-timeout", "8", "--grace", "2")
TELL = "echo $KAFKAGROUP_ELECTION $KAFKAGROUP_FENCING_TOKEN $$; "


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as kafka:
        yield kafka


def elect(servers: str, *script: str) -> tuple[str, ...]:
    return ("elect", "g", "--bootstrap-servers", servers, *QUICK, "--", "sh", "-c", *script)


def started(process: Program) -> tuple[str, int, int]:
    """The environment of the command: the election, the token, and its own process id."""
    group, token, number = process.stdout.readline().split()
    return group.decode(), int(token), int(number)


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_there(number: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    # FileNotFoundError: it ended before the open; ProcessLookupError: between open and read.
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("exit 0", 0), ("kill -9 $$", 137)])
def test_exits_with_the_exit_code_of_the_command(
    kafka: EmbeddedKafka, script: str, code: int
) -> None:
    done = run(*elect(kafka.bootstrap_servers, f"echo out; echo err >&2; {script}"))
    assert (done.returncode, done.stdout) == (code, b"out\n")
    assert done.stderr == b"kafkagroup: elected to lead 'g', token 1\nerr\n"
    assert kafka.group_state("g") in ("Empty", "Dead")


def test_passes_stdin_to_the_command(kafka: EmbeddedKafka) -> None:
    done = run(*elect(kafka.bootstrap_servers, "cat; cat <&- 2>/dev/null"), given=b"\xff\n")
    assert done.stdout == b"\xff\n"


def test_the_leader_stays_when_others_join_and_the_next_takes_over(kafka: EmbeddedKafka) -> None:
    servers = kafka.bootstrap_servers
    with running(*elect(servers, TELL + "exec sleep 60")) as one:
        assert started(one)[:2] == ("g", 1)
        with running(*elect(servers, TELL + "exec sleep 60")) as two:
            wait(lambda: len(kafka.describe_group("g").members) == 2)
            wait(lambda: kafka.group_state("g") == "Stable")
            assert one.poll() is None
            one.send_signal(signal.SIGTERM)
            assert one.wait(TIMEOUT) == 128 + signal.SIGTERM
            assert one.stdout.read() == b""  # it was not started twice
            assert started(two)[1] > 1
            two.send_signal(signal.SIGINT)
            assert two.wait(TIMEOUT) == 128 + signal.SIGINT


def test_signals_are_passed_on(kafka: EmbeddedKafka) -> None:
    traps = 'trap "echo usr1" USR1; trap "echo term; exit 5" TERM; '
    script = traps + "echo up; while :; do sleep 0.05; done"
    with running(*elect(kafka.bootstrap_servers, script)) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == b"usr1\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=TIMEOUT)[0] == b"term\n"
    assert process.returncode == 5


def test_a_signal_ends_a_waiting_candidate(kafka: EmbeddedKafka) -> None:
    servers = kafka.bootstrap_servers
    with running(*elect(servers, TELL + "exec sleep 60")) as one:
        started(one)
        with running(*elect(servers, "echo never")) as two:
            wait(lambda: len(kafka.describe_group("g").members) == 2)
            wait(lambda: kafka.group_state("g") == "Stable")
            two.send_signal(signal.SIGTERM)
            assert two.communicate(timeout=TIMEOUT) == (b"", b"")
    assert two.returncode == 128 + signal.SIGTERM


@pytest.mark.serial  # the duration of the end is compared with the session timeout
def test_a_leader_without_a_connection_ends_its_command_before_another_leads(
    kafka: EmbeddedKafka,
) -> None:
    """Its child processes end with it, even those that ignore SIGTERM; then it becomes a candidate
    again."""
    script = TELL + "(trap '' TERM; while :; do sleep 0.05; done) & wait"
    with running(*elect(kafka.bootstrap_servers, script)) as process:
        _, token, number = started(process)
        kafka.kill(1)
        began = time.monotonic()
        wait(lambda: not is_there(number))
        wait(lambda: process.stderr.readline() == b"kafkagroup: no longer leads 'g'\n")
        # The other processes of its session have ended, too: none is left to signal.
        wait(lambda: not session(number))
        assert time.monotonic() - began < 8.0
        kafka.restart(1)
        assert started(process)[1] > token
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 128 + signal.SIGTERM


def session(number: int) -> list[int]:
    """Return the remaining processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == number and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def test_a_leader_that_was_frozen_ends_its_command_and_becomes_a_candidate_again(
    kafka: EmbeddedKafka,
) -> None:
    """Another candidate was elected meanwhile."""
    servers = kafka.bootstrap_servers
    with running(*elect(servers, TELL + "exec sleep 60")) as one:
        before = started(one)
        with running(*elect(servers, TELL + "exec sleep 60")) as two:
            wait(lambda: len(kafka.describe_group("g").members) == 2)
            wait(lambda: kafka.group_state("g") == "Stable")
            one.send_signal(signal.SIGSTOP)
            other = started(two)
            assert other[1] > before[1]
            one.send_signal(signal.SIGCONT)
            wait(lambda: not is_there(before[2]))
            os.kill(other[2], signal.SIGTERM)
            assert two.wait(TIMEOUT) == 128 + signal.SIGTERM
            assert started(one)[1] > other[1]


def test_a_leader_removed_by_an_admin_ends_its_command_as_soon_as_another_leads(
    kafka: EmbeddedKafka,
) -> None:
    """The notification is late, but long before the session expires."""
    script = TELL + "exec sleep 60"
    patient = ("--session-timeout", "120", "--grace", "2", "--", "sh", "-c", script)
    command = ("elect", "g", "--bootstrap-servers", kafka.bootstrap_servers, *patient)
    with running(*command) as one:
        before = started(one)
        (leader,) = kafka.describe_group("g").members
        with running(*command) as two:
            wait(lambda: len(kafka.describe_group("g").members) == 2)
            wait(lambda: kafka.group_state("g") == "Stable")
            kafka.fail(
                HeartbeatRequest,
                Delay(3.0),
                times=None,
                when=lambda beat: beat.member_id == leader.member_id,
            )
            # One of these waits at the broker from now on.
            asked = len(kafka.requests(HeartbeatRequest))
            wait(lambda: len(kafka.requests(HeartbeatRequest)) > asked + 2)
            anyio.run(remove, kafka.bootstrap_servers, leader.member_id)
            other = started(two)
            assert other[1] > before[1]
            wait(lambda: not is_there(before[2]))
            assert is_there(other[2])
            for process in (one, two):
                process.send_signal(signal.SIGTERM)
                assert process.wait(TIMEOUT) == 128 + signal.SIGTERM


async def remove(servers: str, member_id: str) -> None:
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.remove_member("g", member_id=member_id)


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("no-such-command-here",), 127, b"no-such-command-here: no such command"),
        (("/etc/passwd",), 126, b"/etc/passwd: Permission denied"),
    ],
)
def test_a_command_that_does_not_exist_is_an_error(
    kafka: EmbeddedKafka, words: tuple[str, ...], code: int, line: bytes
) -> None:
    done = run("elect", "g", "--bootstrap-servers", kafka.bootstrap_servers, "--", *words)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == b"kafkagroup: " + line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "elect: Missing argument 'GROUP'."),
        (("g",), "elect: Missing argument '-- COMMAND...'."),
        (("g", "--grace", "45", "--", "true"), "elect: --grace 45 must be less than --session-ti"),
        (("g", "--grace", "-1", "--", "true"), "elect: Invalid value for '--grace': -1.0 is not "),
        (
            ("g", "--bootstrap-servers", "a:b", "--", "true"),
            "--bootstrap-servers has 'a:b'; expect",
        ),
        (("g", "--value", "x" * 1025, "--", "true"), "value has 1025 bytes; the limit is 1024"),
    ],
)
def test_invalid_arguments_are_an_error(arguments: tuple[str, ...], line: str) -> None:
    found = CliRunner().invoke(app, ["elect", *arguments])
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"kafkagroup: {line}")
    assert found.stderr.count("\n") == 1


def test_without_a_broker_it_reports_an_error() -> None:
    done = run("elect", "g", "--bootstrap-servers", "127.0.0.1:1", "--", "true")
    assert done.returncode == 1
    assert done.stderr.startswith(b"kafkagroup: no broker answered: ")
    assert done.stderr.count(b"\n") == 1

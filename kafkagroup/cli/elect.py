"""`kafkagroup elect`: run a command on one of several machines, the elected leader."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from functools import partial

import anyio
import click
from anyio.abc import Process

from kafkagroup._signals import ENDING, open_signal_receiver
from kafkagroup.cli import _processes
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._first import first
from kafkagroup.cli._view import print_message
from kafkagroup.coordination import Election, Leadership

__all__ = ["command"]

_ENDING_SIGNALS = (*ENDING, "SIGHUP", "SIGQUIT")
"""The names of the signals that end the program while no command runs."""

_FORWARDED_SIGNALS = (*_ENDING_SIGNALS, "SIGUSR1", "SIGUSR2")
"""The names of the signals that the program passes on to the command."""

_LEASE_CHECK_INTERVAL = 0.1
"""Seconds between two checks of the lease."""

_SIGNAL_EXIT_BASE = 128
"""The exit code after a signal is this plus the signal's number, as in shells."""

_CANNOT_RUN, _NOT_FOUND = 126, 127
"""The exit codes of shells for a command that cannot be run, or is not found."""


@click.command(
    "elect",
    short_help="Run a command while leader.",
    # `-h` may be an option of the command to run, as of `df -h`.
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
@click.argument("group")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--grace",
    type=click.FloatRange(0.0),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="The time from SIGTERM to SIGKILL when the leadership ends.",
)
@click.option(
    "--session-timeout",
    # More than the heartbeat interval, and at most Kafka's default group.max.session.timeout.ms.
    type=click.FloatRange(1.1, 1_800.0),
    metavar="SECONDS",
    default=45.0,
    show_default=True,
    help="How long after the last heartbeat of a leader another is elected.",
)
@click.option("--value", metavar="TEXT", help="The name shown to others. Default: the host name.")
@connected
def command(
    group: str,
    words: tuple[str, ...],
    grace: float,
    session_timeout: float,
    value: str | None,
    connection: Connection,
) -> None:
    """Take part in the elections of GROUP, and run COMMAND while elected.

    The environment of COMMAND has KAFKAGROUP_ELECTION, the group, and KAFKAGROUP_FENCING_TOKEN, a
    number that is higher than that of every former leader: storage can use it to reject their
    writes. COMMAND keeps running when other members join or leave. Before the lease ends, COMMAND
    and its child processes get SIGTERM, and after --grace seconds SIGKILL, so that they have ended
    when another leader is elected. The program then waits for its next election.

    When COMMAND ends, the program ends with its exit code (128 plus the signal's number after a
    signal; 127 if the command does not exist), and another leader is elected. Signals are passed on
    to COMMAND; while it does not run, SIGINT, SIGTERM, SIGHUP and SIGQUIT end the program.
    """
    if grace >= session_timeout:
        raise click.UsageError(
            f"--grace {grace:g} must be less than --session-timeout {session_timeout:g}: otherwise"
            " another leader starts before this one has ended"
        )
    election = Election(
        group,
        (socket.gethostname() if value is None else value).encode(),
        session_timeout_ms=round(session_timeout * 1000),
        **connection.options(),
    )
    raise click.exceptions.Exit(anyio.run(_Candidate(election, group, words, grace).run))


class _Candidate:
    """A member of the election, and its running command."""

    def __init__(
        self, election: Election, group: str, words: tuple[str, ...], grace: float
    ) -> None:
        self._election = election
        self._group = group
        self._words = words
        self._grace = grace
        self._process: Process | None = None
        """The command, while it runs."""
        self._is_ending = False
        """Whether a signal has requested the end."""

    async def run(self) -> int:
        """Take part until the command ends or a signal ends the program; return the exit code."""
        with open_signal_receiver(*_FORWARDED_SIGNALS) as signals:
            async with self._election:
                code = await first(partial(self._forward_signals, signals), self._campaign)
        return code if code >= 0 else _SIGNAL_EXIT_BASE - code

    async def _forward_signals(self, signals: AsyncIterator[signal.Signals]) -> int:
        """Pass signals on to the command, until one ends the program while no command runs. Return
        its number, negative as that of a process that was killed."""
        async for number in signals:
            self._is_ending |= number.name in _ENDING_SIGNALS
            if self._process is not None:
                _processes.send(self._process, number)
            elif self._is_ending:
                return -number
        raise AssertionError("signals never end")

    async def _campaign(self) -> int:
        """Run the command each time that this member is elected; return its exit code."""
        while True:
            leadership = await anext(self._election)
            print_message(f"elected to lead {self._group!r}, token {leadership.token}")
            code = await self._lead(leadership)
            if code is not None:
                return code

    async def _lead(self, leadership: Leadership) -> int | None:
        """Run the command while this member leads. Return its exit code; None if the leadership has
        ended first, and no signal has requested the end of the program."""
        try:
            process = await self._start(leadership)
        except FileNotFoundError:
            print_message(f"{self._words[0]}: no such command")
            return _NOT_FOUND
        except OSError as error:
            print_message(f"{self._words[0]}: {error.strerror}")
            return _CANNOT_RUN
        self._process = process
        try:
            code = await first(process.wait, partial(self._wait_until_end, leadership))
            if code is None:
                print_message(f"no longer leads {self._group!r}")
        finally:
            with anyio.CancelScope(shield=True):
                ended = await self._stop(process)
            self._process = None
        return ended if code is not None or self._is_ending else None

    async def _start(self, leadership: Leadership) -> Process:
        variables: Mapping[str, str] = {
            "KAFKAGROUP_ELECTION": self._group,
            "KAFKAGROUP_FENCING_TOKEN": str(leadership.token),
        }
        return await _processes.start(self._words, {**os.environ, **variables})

    async def _stop(self, process: Process) -> int:
        """End the command and its child processes, if it still runs; return its exit code."""
        if process.returncode is None:
            _processes.send(process, signal.SIGTERM)
            with anyio.move_on_after(self._grace):
                await process.wait()
            # Its child processes may outlive it, and must not act after the leadership has ended.
            _processes.kill(process)
        return await process.wait()

    async def _wait_until_end(self, leadership: Leadership) -> None:
        """Return when the lease has only the grace period left, or when another member leads.

        In a rebalance the leader stays the same, so its command keeps running: no other member can
        be elected within a session timeout, unless an operator removes members.
        """
        following: Leadership | None = leadership
        while following is not None:
            leadership = following
            await first(leadership.over.wait, partial(self._wait_for_lease, leadership))
            if not leadership.over.is_set():
                # anext() would resign: a new leader could start before the command ends.
                return
            # None: another member leads, or the lease has only the grace period left.
            following = await first(
                partial(anext, self._election),
                self._wait_another,
                partial(self._wait_for_lease, leadership),
            )

    async def _wait_for_lease(self, leadership: Leadership) -> None:
        """Return when the lease has only the grace period left."""
        # Sleep in short steps: each heartbeat extends the lease, and a suspend of the system
        # shortens it, which a longer sleep would notice too late.
        while (left := leadership.lease_expires_at - self._grace - anyio.current_time()) > 0.0:  # noqa: ASYNC110
            await anyio.sleep(min(left, _LEASE_CHECK_INTERVAL))

    async def _wait_another(self) -> None:
        """Return when another member leads."""
        async for leader in self._election.leaders():
            if leader.member_id != self._election.member_id:
                return

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

from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._first import first
from kafkagroup.cli._view import say
from kafkagroup.coordination import Election, Leadership

__all__ = ["command"]

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

_ENDING = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
"""After these there is no other term."""

_SIGNALLED = 128
"""As shells tell it: an exit code of this and a signal's number."""

_CANNOT_RUN, _NOT_FOUND = 126, 127


@click.command(
    "elect",
    short_help="Run a command while leader.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("group")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--grace",
    type=click.FloatRange(0.0),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="From SIGTERM to SIGKILL, once it leads no more.",
)
@click.option(
    "--session-timeout",
    type=click.FloatRange(1.1, 1_800.0),
    metavar="SECONDS",
    default=45.0,
    show_default=True,
    help="How long a leader may be silent until another is elected.",
)
@click.option("--value", metavar="TEXT", help="What others know it by. Default: the host's name.")
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

    COMMAND finds KAFKAGROUP_ELECTION and KAFKAGROUP_FENCING_TOKEN in its environment: the group,
    and a number that is higher than that of every leader before, by which what it writes to can
    refuse those of the past. It goes on when others join or leave. When it cannot be sure any more
    to lead, it gets SIGTERM and after --grace seconds SIGKILL, with all processes that it has
    started; both before a session timeout has passed, and anybody else is elected. Then this waits
    to be elected again.

    When COMMAND ends by itself this ends with its exit code (128 and the signal's number if a
    signal ended it; 127 if there is no such command), and another is elected. Signals are passed
    on to COMMAND; while it does not run, one that asks for the end is the end.
    """
    if grace >= session_timeout:
        raise click.UsageError(
            f"--grace {grace:g} must be less than --session-timeout {session_timeout:g}: else"
            " another leads before this one has ended"
        )
    election = Election(
        group,
        (socket.gethostname() if value is None else value).encode(),
        session_timeout_ms=round(session_timeout * 1000),
        **connection.options(),
    )
    raise click.exceptions.Exit(anyio.run(_Candidate(election, group, words, grace).run))


class _Candidate:
    """A member of the election, and the command when it runs."""

    def __init__(
        self, election: Election, group: str, words: tuple[str, ...], grace: float
    ) -> None:
        self._election = election
        self._group = group
        self._words = words
        self._grace = grace
        self._process: Process | None = None
        """While it runs."""
        self._last_term = False
        """Whether somebody has asked for the end."""

    async def run(self) -> int:
        """Take part until the command has ended, or was not to begin; answer the exit code."""
        with anyio.open_signal_receiver(*_PASSED_ON) as signals:
            async with self._election:
                code = await first(partial(self._obey, signals), self._campaign)
        return code if code >= 0 else _SIGNALLED - code

    async def _obey(self, signals: AsyncIterator[signal.Signals]) -> int:
        async for number in signals:
            self._last_term |= number in _ENDING
            if self._process is not None:
                _signal(self._process, number)
            elif self._last_term:
                return -number
        raise AssertionError("signals never end")

    async def _campaign(self) -> int:
        while True:
            leadership = await anext(self._election)
            say(f"elected to lead {self._group!r}, token {leadership.token}")
            code = await self._lead(leadership)
            if code is not None:
                return code

    async def _lead(self, leadership: Leadership) -> int | None:
        """Run the command for one term. None: the term is over, and there may be another."""
        try:
            process = await self._start(leadership)
        except FileNotFoundError:
            say(f"{self._words[0]}: no such command")
            return _NOT_FOUND
        except OSError as error:
            say(f"{self._words[0]}: {error.strerror}")
            return _CANNOT_RUN
        self._process = process
        try:
            code = await first(process.wait, partial(self._wait_over, leadership))
            if code is None:
                say(f"leads {self._group!r} no more")
        finally:
            with anyio.CancelScope(shield=True):
                ended = await self._stop(process)
            self._process = None
        return ended if code is not None or self._last_term else None

    async def _start(self, leadership: Leadership) -> Process:
        told: Mapping[str, str] = {
            "KAFKAGROUP_ELECTION": self._group,
            "KAFKAGROUP_FENCING_TOKEN": str(leadership.token),
        }
        return await anyio.open_process(
            self._words,
            stdin=None,
            stdout=None,
            stderr=None,
            env={**os.environ, **told},
            # In its own session: a signal can then reach all of its child processes, and Ctrl-C on
            # the terminal does not reach it twice.
            start_new_session=True,
        )

    async def _stop(self, process: Process) -> int:
        """Let nothing of it go on; answer its exit code."""
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            with anyio.move_on_after(self._grace):
                await process.wait()
            # Its child processes may outlive it, and must not act after the leadership has ended.
            _signal(process, signal.SIGKILL)
        return await process.wait()

    async def _wait_over(self, leadership: Leadership) -> None:
        """Return when this member may lead no more, by as much too early as ending takes.

        Whoever leads stays while others come and go, so that it goes on meanwhile: until a session
        timeout has passed nobody else can be elected, but for a group whose members were removed.
        """
        following: Leadership | None = leadership
        while following is not None:
            leadership = following
            await first(leadership.over.wait, partial(self._wait_unsure, leadership))
            if not leadership.over.is_set():
                return  # anext() would resign: a new leader could start before the command ends
            following = await first(
                partial(anext, self._election),
                self._wait_another,
                partial(self._wait_unsure, leadership),
            )

    async def _wait_unsure(self, leadership: Leadership) -> None:
        # Each heartbeat extends the lease.
        while (until := leadership.lease_expires_at - self._grace) > anyio.current_time():  # noqa: ASYNC110
            await anyio.sleep_until(until)

    async def _wait_another(self) -> None:
        async for leader in self._election.leaders():
            if leader.member_id != self._election.member_id:
                return


def _signal(process: Process, number: signal.Signals) -> None:
    """To it, and all that it has started."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass  # the process has already ended

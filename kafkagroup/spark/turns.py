"""One run of a pipeline at a time, however many were started: each waits for its turn.

The turn is the leadership of an election on the cluster that the pipeline reads. A run that is
killed loses it after the session timeout, and no lock stays behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256

import anyio
from anyio.abc import TaskStatus
from anyio.from_thread import start_blocking_portal

from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.coordination import Election, Leadership
from kafkagroup.errors import IllegalStateError
from kafkagroup.spark.options import ConnectionOptions
from kafkagroup.transport.security import Security

__all__ = ["election_of", "election_prefix", "turn"]

_SESSION_TIMEOUT = 10.0
"""The session timeout of a run's membership in the election, in seconds."""

_LOST = "this run was away for too long: it has lost its turn"


def election_prefix(group: str) -> str:
    """Return the prefix of the names of all elections among runs that commit to `group`."""
    return f"{group}-turns-"


def election_of(group: str, out: str) -> str:
    """Return the name of the election among the runs that write to `out`."""
    return election_prefix(group) + sha256(out.encode()).hexdigest()[:8]


class _Turn:
    """The turn of this run. Used in the loop of its election only."""

    def __init__(self) -> None:
        self.leadership: Leadership | None = None
        """None while there is none, such as while the leader is elected again."""
        self.has_ended = False
        """Whether this run will not lead again."""
        self.changed = ChangeSignal()

    def set(self, leadership: Leadership | None) -> None:
        """Note that a leadership has begun; with None, that it has ended."""
        self.leadership = leadership
        self.changed.notify()

    def end(self) -> None:
        """Note that this run will not lead again."""
        self.has_ended = True
        self.set(None)

    @property
    def is_held(self) -> bool:
        """Whether no other run can have the turn. A process that was stopped checks the lease
        before its timers have run."""
        leadership = self.leadership
        return leadership is not None and anyio.current_time() < leadership.lease_expires_at


@contextmanager
def turn(options: ConnectionOptions, name: str, timeout: float) -> Iterator[Callable[[], None]]:
    """Wait for the turn among the runs with the same `name`, and hold it.

    Yields a function to call before each write. Raises: IllegalStateError after `timeout` seconds
    without a turn, and from that function if the turn was lost; the errors of `GroupMember`.
    """
    held = _Turn()
    with start_blocking_portal() as portal:
        holding, _ = portal.start_task(_hold, options, name, timeout, held)

        async def wait_held() -> None:
            # When another run joins, the leader is elected again, in less than a session timeout.
            with anyio.fail_after(_SESSION_TIMEOUT):
                while not (held.is_held or held.has_ended):
                    await held.changed.wait()

        def check() -> None:
            try:
                portal.call(wait_held)
            except TimeoutError:
                raise IllegalStateError(_LOST) from None
            if held.has_ended:
                holding.result()  # raises the error that ended it

        try:
            yield check
        finally:
            holding.cancel()


async def _hold(
    options: ConnectionOptions,
    name: str,
    timeout: float,
    held: _Turn,
    *,
    task_status: TaskStatus[None],
) -> None:
    """Take part in the election until cancelled. `task_status` reports the first leadership.
    Raises: IllegalStateError without a turn before `timeout`, and if the turn was lost."""
    election = Election(
        name,
        bootstrap_servers=options.bootstrap_servers,
        client_id=options.client_id,
        session_timeout_ms=round(_SESSION_TIMEOUT * 1000),
        # mypy cannot match the mapping's values, of several types, with the parameters.
        security=Security(**options.security) if options.security else None,  # type: ignore[arg-type]
    )
    try:
        async with election:
            await _lead(election, timeout, held, task_status)
    finally:
        held.end()
    # There was no turn before the timeout.
    raise IllegalStateError(f"another run has had the turn for {timeout:g} s")


async def _lead(
    election: Election, timeout: float, held: _Turn, task_status: TaskStatus[None]
) -> None:
    """Keep the present leadership in `held`, until `timeout` if there is none by then."""
    member_id = ""
    with anyio.move_on_after(timeout) as limit:
        async for leadership in election:
            if not member_id:
                # The timeout is only for the first leadership.
                member_id, limit.deadline = election.member_id, math.inf
                task_status.started()
            elif election.member_id != member_id:
                # This member was removed, and has joined again: another run may have had the
                # turn meanwhile, and done what this one was about to do.
                raise IllegalStateError(_LOST)
            held.set(leadership)
            with leadership.scope():  # is cancelled when the leadership ends
                await anyio.sleep_forever()
            held.set(None)

"""One run of a pipeline at a time, however many were started: each waits for its turn.

The turn is the leadership of an election on the cluster that the pipeline reads. A run that is
killed loses it after the session timeout, and no lock stays behind.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256

import anyio
from anyio.abc import TaskStatus
from anyio.from_thread import start_blocking_portal

from kafkagroup.coordination import Election
from kafkagroup.errors import IllegalStateError
from kafkagroup.spark.options import ConnectionOptions
from kafkagroup.transport.security import Security

__all__ = ["election_of", "election_prefix", "turn"]

_SESSION_TIMEOUT = 10.0
"""The session timeout of a run's membership in the election, in seconds."""


def election_prefix(group: str) -> str:
    """Return the prefix of the names of all elections among runs that commit to `group`."""
    return f"{group}-turns-"


def election_of(group: str, out: str) -> str:
    """Return the name of the election among the runs that write to `out`."""
    return election_prefix(group) + sha256(out.encode()).hexdigest()[:8]


@contextmanager
def turn(options: ConnectionOptions, name: str, timeout: float) -> Iterator[Callable[[], None]]:
    """Wait for the turn among the runs with the same `name`, and hold it.

    Yields a function to call before each write. Raises: IllegalStateError after `timeout` seconds
    without a turn, and from that function if the turn was lost; the errors of `GroupMember`.
    """
    has_turn = threading.Event()
    with start_blocking_portal() as portal:
        holding, _ = portal.start_task(_hold, options, name, timeout, has_turn)

        def check() -> None:
            if holding.done():
                holding.result()  # raises its error
            # When another run joins, the leader is elected again, in less than a session timeout.
            if not has_turn.wait(_SESSION_TIMEOUT):
                raise IllegalStateError("this run was away for too long: it has lost its turn")

        try:
            yield check
        finally:
            holding.cancel()


async def _hold(
    options: ConnectionOptions,
    name: str,
    timeout: float,
    has_turn: threading.Event,
    *,
    task_status: TaskStatus[None],
) -> None:
    """Take part in the election until cancelled. `task_status` reports the first turn; `has_turn`
    is set during each turn."""
    election = Election(
        name,
        bootstrap_servers=options.bootstrap_servers,
        client_id=options.client_id,
        session_timeout_ms=round(_SESSION_TIMEOUT * 1000),
        # mypy cannot match the mapping's values, of several types, with the parameters.
        security=Security(**options.security) if options.security else None,  # type: ignore[arg-type]
    )
    is_waiting = True
    async with election:
        with anyio.move_on_after(timeout) as limit:
            async for leadership in election:
                if is_waiting:
                    # The timeout is only for the first turn.
                    is_waiting, limit.deadline = False, math.inf
                    task_status.started()
                has_turn.set()
                with leadership.scope():  # is cancelled when the leadership ends
                    await anyio.sleep_forever()
                has_turn.clear()
    # There was no turn before the timeout.
    raise IllegalStateError(f"another run has had the turn for {timeout:g} s")

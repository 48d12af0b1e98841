"""The application's side of a consumer: one task at a time comes for records, and waits for them.

Coming for the next one says that what is in hand is processed. Every await lies before a record is
taken, and taking it is synchronous: a cancellation loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.lowlevel

from kafkagroup.errors import ConsumerClosedError
from kafkagroup.net.session import Session

__all__ = ["Reader"]

T = TypeVar("T")

_BUDGET = 0.005
"""Seconds that handing out records may keep the loop: heartbeats need it too."""


class Reader:
    """Hands out what a session's delivery has."""

    def __init__(self, session: Session) -> None:
        self.task: int | None = None
        """Id of the task that came last, as far as it has ever waited."""
        self._session = session
        self._reading = False
        self._checkpointed = float("-inf")

    async def next(self, take: Callable[[], T | None]) -> T:
        """Come for the next `T`, and wait until there is one.

        Raises: ConsumerClosedError, what went wrong in the background; anyio.BusyResourceError
        when another task is waiting here.
        """
        session = self._session
        self._refuse_two()
        session.count_processed()
        now = session.clock()
        if now - self._checkpointed > _BUDGET:
            now = await self._checkpoint()
        while True:
            if session.closing:
                raise ConsumerClosedError("the consumer is closed")
            if session.fatal is not None or session.errors:
                session.raise_error()
            # After a stop of the process or the loop the group may have given our partitions away:
            # the clock is asked before anything is handed out.
            driver = session.driver
            owns = driver is None or now < driver.owning_until
            if owns and (taken := take()) is not None:
                session.last_poll = now
                return taken
            now = await self._wait()

    async def breathe(self) -> None:
        """Let others run, if the loop was kept for long.

        For whoever comes with hardly any time: inside of its deadline this could never end, and
        nothing would ever be handed out. Raises: anyio.BusyResourceError as `next` does.
        """
        self._refuse_two()
        if self._session.clock() - self._checkpointed > _BUDGET:
            await self._checkpoint()

    def _refuse_two(self) -> None:
        if self._reading:
            raise anyio.BusyResourceError("iterating over")

    async def _checkpoint(self) -> float:
        """Let others run."""
        self._reading = True
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            self._reading = False
        self.task = anyio.get_current_task().id
        self._checkpointed = anyio.current_time()
        return self._checkpointed

    async def _wait(self) -> float:
        session = self._session
        self._reading = session.waiting = True
        try:
            if session.expired:
                session.rejoin()
            await session.changed.wait()
        finally:
            # First of all the time: the heartbeat thread may look at any moment.
            self._checkpointed = session.last_poll = anyio.current_time()
            self._reading = session.waiting = False
        return self._checkpointed

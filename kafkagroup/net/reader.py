"""The application's side of a consumer: one task at a time comes for records, and waits for them.

Coming for the next one says that what is in hand is processed. Every await lies before a record is
taken, and taking it is synchronous: a cancellation loses nothing. This file is compiled where a
compiler is at hand, by the types in `reader.pxd`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import anyio

from kafkagroup.errors import ConsumerClosedError
from kafkagroup.net.busy import ConsumerBusyError
from kafkagroup.net.session import Session
from kafkagroup.types import Record

__all__ = ["Reader", "Records"]

T = TypeVar("T")

_BUDGET = 0.001
"""Seconds that handing out records may keep the loop: heartbeats need it too."""


class Reader:
    """Hands out what a session's delivery has."""

    def __init__(self, session: Session) -> None:
        self.task: int | None = None
        """Id of the task that came last, as far as it has ever waited."""
        self._session = session
        self._lease = session.lease
        self._delivery = session.delivery
        self._clock = session.clock
        self._reading = False
        self._checkpointed = float("-inf")

    def ready(self) -> Record | None:
        """The next record, while the lease lasts; None when one must come by `next`.

        Raises: what taking a record raises.
        """
        now = self._clock()
        if now >= self._lease.until:
            return None
        self._delivery.count_processed()
        record = self._delivery.next_record()
        if record is not None:
            self._lease.last_poll = now
        return record

    async def next(self, take: Callable[[], T | None]) -> T:
        """Come for the next `T`, and wait until there is one.

        Raises: ConsumerClosedError, what went wrong in the background; ConsumerBusyError when
        another task is waiting here.
        """
        session = self._session
        self._refuse_two()
        session.count_processed()
        now = session.clock()
        if now - self._checkpointed > _BUDGET:
            now = await self._checkpoint()
        inflated = False
        while True:
            if session.closing:
                raise ConsumerClosedError("the consumer is closed")
            # What went wrong behind a batch is not told before that: not while it was inflated.
            if not inflated and session.has_errors:
                # To come is to poll: who meets the same error each time is not away.
                session.last_poll = now
                session.raise_error()
            # After a stop of the process or the loop the group may have given our partitions away:
            # the clock is asked before anything is handed out.
            driver = session.driver
            owns = driver is None or now < driver.owning_until
            inflated = owns and self._delivery.heavy is not None
            if inflated:
                now = await self._inflate()
                continue
            if owns and (taken := take()) is not None:
                session.last_poll = now
                self._grant(now)
                return taken
            if owns and self._delivery.heavy is not None:
                continue
            session.unsure = not owns
            now = await self._wait()

    async def breathe(self) -> None:
        """Let others run, if the loop was kept for long.

        For whoever comes with hardly any time: inside of its deadline this could never end, and
        nothing would ever be handed out. Raises: ConsumerBusyError as `next` does.
        """
        self._refuse_two()
        if self._session.clock() - self._checkpointed > _BUDGET:
            await self._checkpoint()

    def _refuse_two(self) -> None:
        if self._reading:
            raise ConsumerBusyError

    def _grant(self, now: float) -> None:
        """What was looked at may be taken for granted, until others need the loop or the group may
        think us gone; whatever changes before ends the lease."""
        session = self._session
        if session.draining:
            return
        self._clock = session.clock
        until = self._checkpointed + _BUDGET
        if session.driver is not None:
            until = min(until, session.driver.owning_until)
        self._lease.until = until

    async def _checkpoint(self) -> float:
        """Let others run."""
        return await self._step_aside(anyio.lowlevel.checkpoint)

    async def _inflate(self) -> float:
        """Have a thread do what would keep the loop for milliseconds."""
        heavy = self._delivery.heavy
        assert heavy is not None
        # To its end: who comes with hardly any time would never be given what is in it.
        with anyio.CancelScope(shield=True):
            now = await self._step_aside(partial(anyio.to_thread.run_sync, heavy.inflate))
        if self._delivery.heavy is heavy:
            self._delivery.heavy = None
        return now

    async def _step_aside(self, meanwhile: Callable[[], Awaitable[object]]) -> float:
        """Let others run until this is done; answers the time then."""
        self._reading = True
        self._lease.end()
        try:
            await meanwhile()
        finally:
            self._reading = False
        self.task = anyio.get_current_task().id
        self._checkpointed = anyio.current_time()
        return self._checkpointed

    async def _wait(self) -> float:
        session = self._session
        self._reading = session.waiting = True
        self._lease.end()
        try:
            if session.expired:
                session.rejoin()
            await session.changed.wait()
        finally:
            # First of all the time: the heartbeat thread may look at any moment.
            self._checkpointed = session.last_poll = anyio.current_time()
            self._reading = session.waiting = False
        return self._checkpointed


class Records:
    """What `async for` goes over a consumer by: a coroutine for each record, which is compiled and
    asks for nothing while the lease lasts."""

    def __init__(self, reader: Reader, wait: Callable[[], Awaitable[Record]]) -> None:
        self._reader = reader
        self._wait = wait

    def __aiter__(self) -> Records:
        return self

    async def __anext__(self) -> Record:
        """As `Consumer.__anext__`."""
        record = self._reader.ready()
        if record is not None:
            return record
        try:
            return await self._wait()
        except ConsumerClosedError:
            raise StopAsyncIteration from None

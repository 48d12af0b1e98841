"""The application's side of a consumer: one task at a time polls for records.

A poll acknowledges the records in flight as processed. Every await comes before a record is taken,
that of a coroutine deserializer too, and taking it is synchronous: a cancellation loses nothing.
Compiled where possible, by the types in `reader.pxd`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import anyio

from kafkagroup.errors import ConsumerClosedError, NotStartedError
from kafkagroup.runtime.busy import ConsumerBusyError
from kafkagroup.runtime.session import Session
from kafkagroup.types import Record
from kafkagroup.wire.records import RecordReader

__all__ = ["NothingArrived", "Reader", "Records"]

T = TypeVar("T")

_BUDGET = 0.001
"""Seconds that handing out records may keep the loop: heartbeats need it too."""


class NothingArrived(Exception):
    """The time is up. Not a TimeoutError: the application's own code may raise that one."""


class Reader:
    """Hands out what a session's delivery has."""

    def __init__(self, session: Session, rejoin: Callable[[], None]) -> None:
        """`rejoin`: called when the application polls after its member was expelled."""
        self.task: int | None = None
        """Id of the task that came last, as far as it has ever waited."""
        self._session = session
        self._rejoin = rejoin
        self._polls = session.polls
        self._errors = session.errors
        self._lease = session.lease
        self._delivery = session.delivery
        self._clock = session.clock
        self._reading = False
        self._checkpointed = float("-inf")

    def ready(self) -> Any:
        """The next record, of the types that the consumer's deserializers make, while the lease
        lasts; None when one must come by `next`.

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

    async def next(self, take: Callable[[], T | None], until: float = math.inf) -> T:
        """Come for the next `T`, and wait until there is one, or until a time on the loop's clock.
        Only what has not arrived is waited for up to then: were what is on its way to the
        application cut short, it would begin anew with each call and never end.

        Raises: NothingArrived; ConsumerClosedError, what went wrong in the background;
        ConsumerBusyError when another task is waiting here.
        """
        session = self._session
        self._refuse_two()
        session.came_back()
        now = session.clock()
        if now - self._checkpointed > _BUDGET:
            now = await self._checkpoint()
        aside = waited = False
        while True:
            if session.closing.has_begun:
                raise ConsumerClosedError("the consumer is closed")
            # What went wrong behind a batch is not raised before that: not while it was inflated,
            # or a record of it converted.
            if not aside and self._errors.is_pending:
                # To come is to poll: who meets the same error each time is not away.
                self._polls.note_poll(now)
                self._errors.raise_next()
            # After a stop of the process or the loop the group may have given our partitions away:
            # the clock is asked before anything is handed out.
            driver = session.membership.driver
            owns = driver is None or now < driver.ownership.lease_expires_at
            aside = owns and self._delivery.heavy is not None
            if aside:
                now = await self._inflate()
                continue
            if owns and (taken := take()) is not None:
                self._polls.note_poll(now)
                self._grant(now)
                return taken
            if owns and self._delivery.heavy is not None:
                continue
            aside = owns and self._delivery.unconverted is not None
            if aside:
                now = await self._convert(now)
                continue
            if self._errors.is_pending:
                continue  # of a partition whose last record was handed out before
            if waited and now >= until:
                raise NothingArrived
            now = await self._wait(until, owns=owns)
            waited = True

    def _refuse_two(self) -> None:
        if self._reading:
            raise ConsumerBusyError

    def _grant(self, now: float) -> None:
        """What was looked at may be taken for granted, until others need the loop or the group may
        think us gone; whatever changes before ends the lease."""
        session = self._session
        if session.is_draining:
            return
        self._clock = session.clock
        until = self._checkpointed + _BUDGET
        if session.membership.driver is not None:
            until = min(until, session.membership.driver.ownership.lease_expires_at)
        self._lease.grant(until)

    async def _checkpoint(self) -> float:
        """Let others run."""
        return await self._step_aside(anyio.lowlevel.checkpoint)

    async def _inflate(self) -> float:
        """Have a thread do what would keep the loop for milliseconds."""
        heavy = self._delivery.heavy
        assert heavy is not None
        # To its end: who comes with hardly any time would never be given what is in it.
        with anyio.CancelScope(shield=True):
            now = await self._step_aside(partial(self._prepare, heavy))
        self._delivery.drop_heavy(heavy)
        return now

    async def _convert(self, now: float) -> float:
        """Await a coroutine deserializer for the next record, which is not delivered meanwhile."""
        if now - self._checkpointed > _BUDGET:
            # One that finds all it needs in a cache never lets others run.
            return await self._checkpoint()
        delivery = self._delivery
        raw, conversion = delivery.unconverted, delivery.conversion
        assert raw is not None
        assert conversion is not None
        # The application's own code runs from here on: one that hangs must not keep partitions.
        self._polls.note_poll(now)
        self._reading = True
        self._lease.end()
        try:
            made = await conversion.later(raw)
        except Exception as error:
            delivery.refused(raw, error)
        else:
            delivery.converted(raw, made)
        finally:
            self._reading = False
        self.task = anyio.get_current_task().id
        return anyio.current_time()

    async def _prepare(self, heavy: RecordReader) -> None:
        # In slices: a thread that runs compiled code keeps all others from running.
        while self._delivery.heavy is heavy:
            if await anyio.to_thread.run_sync(heavy.prepare):
                return

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

    async def _wait(self, until: float, *, owns: bool) -> float:
        session = self._session
        self._reading = True
        self._polls.begin_wait(owns=owns)
        self._lease.end()
        try:
            if session.membership.is_expelled:
                self._rejoin()
            with anyio.move_on_at(until) if until < math.inf else nullcontext():
                await session.changed.wait()
        finally:
            self._checkpointed = session.clock()
            self._polls.end_wait(self._checkpointed)
            self._reading = False
        return self._checkpointed


class Records:
    """What `async for` goes over a consumer by: a coroutine for each record, which is compiled and
    asks for nothing while the lease lasts."""

    def __init__(self, reader: Reader, wait: Callable[[], Awaitable[Record[Any, Any]]]) -> None:
        self._reader = reader
        self._wait = wait

    def __aiter__(self) -> Records:
        return self

    async def __anext__(self) -> Record[Any, Any]:
        """As `Consumer.__anext__`."""
        record: Record[Any, Any] | None = self._reader.ready()
        if record is not None:
            return record
        try:
            return await self._wait()
        except NotStartedError:
            raise
        except ConsumerClosedError:
            raise StopAsyncIteration from None

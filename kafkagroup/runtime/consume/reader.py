"""The application's side of a consumer: one task at a time polls for records.

A poll acknowledges the records in flight as processed. Every await, that of a coroutine
deserializer too, comes before a record is taken, and taking it is synchronous: a cancellation loses
nothing. Compiled where possible, with the types in `reader.pxd`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from threading import get_ident
from typing import Any, TypeVar

import anyio

from kafkagroup.concurrency.clock import LeaseClock
from kafkagroup.errors import ClosedError, NotStartedError
from kafkagroup.runtime.consume.busy import ConsumerBusyError
from kafkagroup.runtime.consume.preparation import Preparation
from kafkagroup.runtime.consume.session import Session
from kafkagroup.transport.origin import Origin
from kafkagroup.types import Record

try:
    import cython
except ImportError:  # Cython is needed to compile, not to run: users do not have it
    from kafkagroup import _uncompiled as cython

__all__ = ["NothingArrived", "Reader", "Records"]

T = TypeVar("T")

_MAX_BLOCKED = 0.001
"""Seconds that delivering records may keep the event loop, which heartbeats need too."""

_NO_SYSTEM_CLOCK = -1
"""Stands for the id of the system's clock where the lease clock is another one."""


class NothingArrived(Exception):
    """No record arrived in time. Not a TimeoutError: the application's own code may raise that."""


class Reader:
    """Delivers the records of a session to the application."""

    def __init__(self, session: Session, rejoin: Callable[[], None]) -> None:
        """`rejoin`: called when the application polls after its member was expelled."""
        self._session = session
        self._rejoin = rejoin
        self._polls = session.polls
        self._errors = session.errors
        self._permit = session.permit
        self._processing = session.processing
        self._current_task = session.processing.current
        """Returns the current task, as `Processing.current`."""
        self._task = session.processing.task
        """Returns the task that polled last, as `Processing.task`."""
        self.iterator: Records | None = None
        """The iterator that took the last record. Only one task uses an iterator, so its next
        records are delivered without comparing the task: comparing takes a tenth of the time that
        delivering a record takes."""
        self._delivery = session.delivery
        self._acknowledgement = session.delivery.acknowledgement
        self._preparation = Preparation(session)
        self.use_clock(session.lease_clock)
        self._is_reading = False
        """Whether a task waits in `next`."""
        self._checkpoint_at = float("-inf")
        """When other tasks last ran, on the loop's clock."""
        self._thread_id = 0
        """The id of the thread of the consumer's loop; 0 before `bind`."""

    def ready(self) -> Any:
        """Return the next record, of the types that the consumer's deserializers return, while the
        permit lasts; None where the caller must await `next`.

        Raises: what taking a record raises.
        """
        # Not the loop's clock, which may not have advanced while the system was suspended. If this
        # file is not compiled, `_now` would only be one more call for each record.
        now = self._now() if cython.compiled else self._lease_now()
        if now >= self._permit.expires_at:
            return None
        self._acknowledgement.complete()
        record = self._delivery.next_record()
        if record is not None:
            self._permit.last_poll_at = now - self._permit.ahead
        return record

    def bind(self, origin: Origin) -> None:
        """Deliver to callers in this loop."""
        self._thread_id = origin.thread_id
        self._processing.bind()
        self._current_task = self._processing.current
        self.use_clock(self._session.lease_clock)

    def use_clock(self, clock: LeaseClock) -> None:
        """Read the time of leases from this clock."""
        self._lease_now = clock.now
        self._system_clock_id = _NO_SYSTEM_CLOCK if clock.system_id is None else clock.system_id

    def _now(self) -> float:
        """Return the time on the lease clock."""
        # Each record reads it, and a call of `time.clock_gettime` takes three times as long as one
        # of `system_time`, which `reader.pxd` defines.
        if cython.compiled and self._system_clock_id != _NO_SYSTEM_CLOCK:
            now: float = system_time(self._system_clock_id)  # type: ignore[name-defined]  # noqa: F821
            return now
        return self._lease_now()

    def ready_here(self) -> Any:
        """Return what `ready` returns, for any caller. None also for a task that did not poll last:
        `next` notes it as the one that polls. And None for a caller in another loop, which must not
        get records."""
        if cython.compiled:  # with the function that `reader.pxd` declares
            thread_id = PyThread_get_thread_ident()  # type: ignore[name-defined]  # noqa: F821
        else:
            thread_id = get_ident()
        # A thread runs one loop at a time. To ask asyncio for it would be a system call.
        if thread_id != self._thread_id or (task := self._current_task()) is None:
            return None
        if task is not self._task():
            return None
        return self.ready()

    async def next(self, take: Callable[[], T | None], until: float = math.inf) -> T:
        """Poll: return what `take` returns, and wait for it until a time on the loop's clock.

        The time does not limit a coroutine deserializer: each call would begin it anew, and it
        might never end.

        Raises: NothingArrived at that time; ClosedError; the errors of background tasks; what
        taking a record raises; ConsumerBusyError while another task waits here.
        """
        session = self._session
        self._raise_if_reading()
        # The time of the poll is noted where the call ends, with a record or an error.
        if self._processing.note_poller():
            self._task, self.iterator = self._processing.task, None
        session.on_poll()
        now = session.clock()
        if now - self._checkpoint_at > _MAX_BLOCKED:
            now = await self._checkpoint()
        # An earlier call may have begun the preparation, and was cancelled.
        must_deliver_first = self._preparation.resume(self._delivery.unprepared)
        waited = False
        while True:
            if session.closing.has_begun:
                raise session.closing.error()
            # An error in the data after a batch is raised after that batch: so not between
            # decompressing the batch, or converting one of its records, and delivering the record.
            # Other tasks run in between, and may report the error.
            if not must_deliver_first and self._errors.is_pending:
                # This call is a poll: an application that gets an error each time still polls.
                self._polls.note_poll(now)
                self._errors.raise_next()
            # After the process, the loop or the system was stopped, other members may own our
            # partitions: without this check of the lease, two would process the same records.
            driver = session.member.driver
            owns = driver is None or driver.member.ownership.lease_expires_at > self._now()
            unprepared = self._delivery.unprepared if owns else None
            must_deliver_first = unprepared is not None
            if unprepared is not None:
                if self._preparation.take(unprepared):
                    self._delivery.note_prepared(unprepared)
                    continue
                if waited and now >= until:
                    raise NothingArrived
                # Wait for any change, not only for the thread: the batch may be revoked, or the
                # consumer closed.
                look_at = now + self._preparation.begin(unprepared)
                now = await self._wait(min(until, look_at), owns=owns)
                waited = True
                continue
            if owns and (taken := take()) is not None:
                self._polls.note_poll(now)
                self._grant()
                return taken
            if owns and self._delivery.unprepared is not None:
                continue  # `take` came to a batch that a thread must prepare
            must_deliver_first = owns and self._delivery.unconverted is not None
            if must_deliver_first:
                now = await self._convert(now)
                continue
            if self._errors.is_pending:
                continue  # `take` came to the end of a batch, after which an error is due
            if waited and now >= until:
                raise NothingArrived
            now = await self._wait(until, owns=owns)
            waited = True

    def _raise_if_reading(self) -> None:
        if self._is_reading:
            raise ConsumerBusyError

    def _grant(self) -> None:
        """Grant the permit, so that `ready` may skip the checks of `next`: until other tasks need
        the loop, or the ownership lease expires. Any change before then ends the permit."""
        session = self._session
        if session.is_draining:
            return  # `ready` would not wake the task that waits for the records in flight
        # Read the loop's clock last: a suspend of the system between the two readings must not
        # lengthen the permit.
        ahead = self._now() - session.clock()
        expires_at = self._checkpoint_at + _MAX_BLOCKED + ahead
        if session.member.driver is not None:
            expires_at = min(expires_at, session.member.driver.member.ownership.lease_expires_at)
        self._permit.grant(expires_at, ahead)

    async def _checkpoint(self) -> float:
        """Let other tasks run; return the time afterwards."""
        return await self._run_others(anyio.lowlevel.checkpoint)

    async def _convert(self, now: float) -> float:
        """Await a coroutine deserializer for the next record, which is not delivered meanwhile."""
        if now - self._checkpoint_at > _MAX_BLOCKED:
            # A deserializer that finds everything in a cache never lets other tasks run.
            return await self._checkpoint()
        delivery = self._delivery
        raw, conversion = delivery.unconverted, delivery.conversion
        assert raw is not None
        assert conversion is not None
        # The application's own code runs now: if it hangs, the member must lose its partitions.
        self._polls.note_poll(now)
        self._is_reading = True
        self._permit.end()
        try:
            result = await conversion.later(raw)
        except Exception as error:
            delivery.on_conversion_failed(raw, error)
        else:
            delivery.on_converted(raw, result)
        finally:
            self._is_reading = False
        return anyio.current_time()

    async def _run_others(self, meanwhile: Callable[[], Awaitable[object]]) -> float:
        """Let other tasks run until `meanwhile` is done; return the time afterwards."""
        self._is_reading = True
        self._permit.end()
        try:
            await meanwhile()
        finally:
            self._is_reading = False
        self._checkpoint_at = anyio.current_time()
        return self._checkpoint_at

    async def _wait(self, until: float, *, owns: bool) -> float:
        """Wait for a change, or until a time on the loop's clock; return the time afterwards.
        `owns`: as in `PollState.begin_wait`."""
        session = self._session
        self._is_reading = True
        self._polls.begin_wait(owns=owns)
        self._permit.end()
        try:
            if session.member.is_expelled:
                self._rejoin()
            with anyio.move_on_at(until) if until < math.inf else nullcontext():
                await session.changed.wait()
        finally:
            self._checkpoint_at = session.clock()
            self._polls.end_wait(self._checkpoint_at)
            self._is_reading = False
        return self._checkpoint_at


class Records:
    """The async iterator of a consumer: compiled, and without any checks while the permit lasts."""

    def __init__(self, reader: Reader, wait: Callable[[], Awaitable[Record[Any, Any]]]) -> None:
        self._reader = reader
        self._wait = wait

    def __aiter__(self) -> Records:
        return self

    async def __anext__(self) -> Record[Any, Any]:
        """Return the next record; the one before it now counts as processed. Iteration ends when
        the consumer is closed. Raises: what `Consumer.__anext__` raises."""
        reader = self._reader
        record: Record[Any, Any] | None = reader.ready() if reader.iterator is self else None
        if record is not None:
            return record
        try:
            record = await self._wait()
        except NotStartedError:  # a ClosedError, but a mistake of the application
            raise
        except ClosedError:
            raise StopAsyncIteration from None
        reader.iterator = self
        return record

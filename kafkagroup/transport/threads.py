"""Threads of a client's own, for work that would block its event loop.

Nothing here uses the threads that the application shares: those of anyio and the loop's default
executor may all be busy for minutes, with work that itself waits for this client.

Waiting for a job needs no shield from cancellation: if a waiting task is cancelled, a job that has
begun still runs to its end, and other tasks can wait for it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from contextvars import Context
from typing import Any, Generic, TypeVar

import anyio

from kafkagroup._backend import asyncio_loop
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.errors import RequestTimeoutError

__all__ = ["Job", "Post", "ThreadTimeoutError", "ThreadWait", "WorkerThreads", "post_to_loop"]

T = TypeVar("T")

Post = Callable[[Callable[[], object]], object]
"""Schedules a call in a loop, from any thread; calls run in order. Raises: RuntimeError after the
loop has ended."""

_LONG = 0.25
"""Seconds after which a running job counts as long, and no longer towards `short_limit`."""


class ThreadTimeoutError(RequestTimeoutError):
    """A thread of this client took too long: the broker is not the cause."""


def post_to_loop() -> Post:
    """Return the function that posts calls to the running loop."""
    if (loop := asyncio_loop()) is not None:
        return loop.call_soon_threadsafe
    import trio

    return trio.lowlevel.current_trio_token().run_sync_soon


class Job(Generic[T]):
    """Work that runs once, in a thread. Any number of tasks of the loop that created the job may
    wait for it, at the same time or one after the other."""

    def __init__(
        self,
        work: Callable[[], T],
        threads: WorkerThreads,
        on_end: Callable[[Job[T]], object] = lambda _: None,
    ) -> None:
        """`on_end` is called in the loop when the work has ended."""
        self.work = work
        self._threads = threads
        self._on_end = on_end
        self._post = post_to_loop()
        self._has_ended = OneShotEvent()
        self.has_begun = False
        """Whether a thread does the work, or has done it."""
        self._waiter_count = 0
        self._value: T
        self._error: BaseException | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the work has ended."""
        return self._has_ended.is_set()

    def begin(self) -> float:
        """Begin the work as soon as a thread is free, unless it has begun. Return in how many
        seconds to call `WorkerThreads.begin_waiting`; infinity if no call is needed. `wait` calls
        both itself."""
        return self._threads.begin(self)

    async def wait(self, until: float = math.inf) -> bool:
        """Wait until the work has ended, or until a time on the loop's clock; return whether it has
        ended. If the work has not begun when the last waiting task leaves, the job is withdrawn; it
        is queued again when another task waits."""
        self._waiter_count += 1
        try:
            retry_in = self.begin()
            while True:
                retry_at = anyio.current_time() + retry_in if retry_in < math.inf else math.inf
                if await self._has_ended.wait(min(until, retry_at)) or until <= retry_at:
                    return self.has_ended
                # No event reports that a running job counts as long now, and so makes room.
                retry_in = self._threads.begin_waiting()
        finally:
            self._waiter_count -= 1
            if not self._waiter_count:
                self._threads.withdraw(self)

    def result(self) -> T:
        """Return the result of work that has ended. Raises: what the work raised."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # a cycle of error, frame and job would keep the job's objects in memory
        return self._value

    def run(self) -> None:
        """Do the work. Runs in the thread."""
        try:
            self._value = self.work()
        except BaseException as error:
            self._error = error
        with suppress(RuntimeError):  # the loop has ended
            self._post(self._end)

    def _end(self) -> None:
        self._has_ended.set()
        self._on_end(self)


class WorkerThreads:
    """Runs up to `short_limit` jobs at a time, each in a thread. Jobs that have become long are not
    counted, so that they do not hold up short ones, but there are never more than `total_limit`
    threads. May be called from any loop.

    The threads end when there is nothing to do, and do not keep the process from exiting.
    """

    def __init__(self, short_limit: int = 4, total_limit: int = 32) -> None:
        self._short_limit = short_limit
        self._total_limit = total_limit
        self._lock = threading.Lock()
        self._waiting: deque[Job[Any]] = deque()
        self._running: dict[Job[Any], float] = {}
        """Job -> when it began."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy has threads of its own.
        return WorkerThreads, (self._short_limit, self._total_limit)

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Run a function in a thread; return its result. If the caller is cancelled, a function
        that has begun still runs to its end, and its thread counts until then; one that has not
        begun is not called."""
        job = Job(work, self)
        await job.wait()
        return job.result()

    def begin(self, job: Job[Any]) -> float:
        """Queue a job unless it has begun, and begin the queued jobs for which there is room.
        Return in how many seconds to call `begin_waiting`; infinity if no call is needed."""
        with self._lock:
            if not job.has_begun and job not in self._waiting:
                self._waiting.append(job)
        return self.begin_waiting()

    def begin_waiting(self) -> float:
        """Begin the queued jobs for which there is room. Return in how many seconds to call this
        again, because a running job then counts as long, or because the system starts no more
        threads now; infinity if no job is queued, or only the end of a job makes room."""
        with self._lock:
            while (job := self._take_next()) is not None:
                try:
                    start_thread(job, self._finish)
                except RuntimeError:  # the process has as many threads as it may have
                    del self._running[job]
                    job.has_begun = False
                    self._waiting.appendleft(job)
                    return _LONG
            if not self._waiting or len(self._running) >= self._total_limit:
                return math.inf
            now = time.monotonic()
            # 0.0: the jobs that were short in `_take_next` have become long since.
            return min((at - now for at in self._long_at() if now < at), default=0.0)

    def withdraw(self, job: Job[Any]) -> None:
        """Forget a job that has not begun."""
        with self._lock, suppress(ValueError):
            self._waiting.remove(job)

    def _take_next(self) -> Job[Any] | None:
        """Move the next queued job to the running ones, and return it; None if no job is queued or
        there is no room. The caller holds the lock."""
        now = time.monotonic()
        short_count = sum(now < at for at in self._long_at())
        has_room = short_count < self._short_limit and len(self._running) < self._total_limit
        if not self._waiting or not has_room:
            return None
        job = self._waiting.popleft()
        job.has_begun = True
        self._running[job] = now
        return job

    def _long_at(self) -> Iterator[float]:
        """Return when each running job counts as long."""
        return (began + _LONG for began in self._running.values())

    def _finish(self, job: Job[Any]) -> Job[Any] | None:
        """Note that a job has ended; return the one that its thread runs next, if any."""
        with self._lock:
            del self._running[job]
            return self._take_next()


def start_thread(job: Job[Any], finish: Callable[[Job[Any]], Job[Any] | None]) -> None:
    """Run a job in a new thread, and then those that `finish` returns."""

    def run() -> None:
        following: Job[Any] | None = job
        while following is not None:
            following.run()
            following = finish(following)

    # An empty context: free-threaded Python would pass on the current one, in which anyio would
    # find a running loop.
    threading.Thread(
        target=Context().run, args=(run,), name="kafkagroup worker", daemon=True
    ).start()


class ThreadWait:
    """Runs functions in threads, and tells after a timeout whether a call was waiting for its
    thread. If it was, the error must not blame the broker."""

    def __init__(self, run_in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._run_in_thread = run_in_thread
        self.is_waiting = False
        """Whether the last call waits for a thread; stays True if it was cancelled or failed."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        self.is_waiting = True
        result: T = await self._run_in_thread(work)
        self.is_waiting = False
        return result

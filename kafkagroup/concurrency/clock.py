"""The running loop's clock, and the clock on which leases run.

Most systems stop the loop's clock while they are suspended. A coordinator keeps counting, so a
lease on the loop's clock would outlast the session. Nothing here reads the wall clock: it jumps.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FunctionType

import anyio

from kafkagroup._backend import asyncio_loop

__all__ = ["LeaseClock", "current_time", "lease_clock", "loop_clock"]

_SUSPEND_CHECK_INTERVAL = 0.1
"""Seconds after which a task that waits for the end of a lease reads the lease clock again."""


def current_time() -> float:
    """Return `anyio.current_time()`. Constructors store this function instead of anyio's: the first
    look-up of that attribute imports a part of anyio, which would block a running loop."""
    return anyio.current_time()


def loop_clock() -> Callable[[], float]:
    """Return the running loop's clock. `anyio.current_time` reads the same clock, but looks up the
    running loop at each call: on asyncio that takes longer than delivering a record, and in another
    thread it fails."""
    if (loop := asyncio_loop()) is None:
        import trio

        return trio.lowlevel.current_clock().current_time
    if type(loop).time is asyncio.BaseEventLoop.time:
        return time.monotonic  # the same clock, in half the time
    return loop.time


class LeaseClock:
    """The clock on which leases run, beside the loop's clock.

    It also counts the time for which the system is suspended, and its zero is its own: compare its
    times only with each other. It is the loop's clock where that counts suspends (Windows), where
    no clock does, and where the loop's time is virtual.
    """

    __slots__ = ("loop_now", "now")

    def __init__(self, now: Callable[[], float], loop_now: Callable[[], float]) -> None:
        self.now = now
        """Returns the time on this clock."""
        self.loop_now = loop_now
        """Returns the time on the loop's clock, in any thread."""

    @property
    def system_id(self) -> int | None:
        """The id of this clock for the system's clock_gettime; None if another call reads it."""
        if sys.platform == "win32":
            return None  # it has no clock_gettime
        now = self.now
        if isinstance(now, partial) and now.func is time.clock_gettime:
            return int(now.args[0])
        return None

    def in_loop_time(self, moment: float) -> float:
        """Return when a moment of this clock is, or was, on the loop's clock, as far as it is known
        now: each suspend from now until that moment makes the moment earlier on the loop's
        clock."""
        # The loop's clock is read first: a suspend between the two readings then counts.
        return moment + (self.loop_now() - self.now())

    def from_loop_time(self, moment: float) -> float:
        """Return when a moment of the loop's clock is on this clock, as far as it is known now."""
        return moment + (self.now() - self.loop_now())

    async def sleep_out(self, seconds_left: Callable[[], float]) -> None:
        """Wait until no seconds of a lease are left; `seconds_left` returns them. The lease may be
        extended meanwhile."""
        # A timer of the loop stands still while the system is suspended, and then ends that much
        # too late.
        longest = float("inf") if self.now == self.loop_now else _SUSPEND_CHECK_INTERVAL
        while (left := seconds_left()) > 0.0:  # noqa: ASYNC110
            await anyio.sleep(min(left, longest))


def lease_clock() -> LeaseClock:
    """Return the lease clock of the running loop."""
    loop_now = loop_clock()
    counting = _counting_clock()
    if counting is None or not _is_real_time():
        return LeaseClock(loop_now, loop_now)
    return LeaseClock(counting, loop_now)


def _counting_clock() -> Callable[[], float] | None:
    """Return the system's clock that counts suspends while `time.monotonic` does not; None without
    one."""
    if sys.platform == "win32":
        return None  # the loop's clock counts them
    if sys.platform == "darwin":
        # Unlike `time.monotonic`, which is mach_absolute_time there.
        clock_id = time.CLOCK_MONOTONIC
    elif hasattr(time, "CLOCK_BOOTTIME"):
        clock_id = time.CLOCK_BOOTTIME
    else:
        return None
    counting = partial(time.clock_gettime, clock_id)
    try:
        counting()
    except OSError:  # a sandbox may not have it
        return None
    return counting


def _is_real_time() -> bool:
    """Whether the time of the running loop is the system's. Tests run loops in virtual time."""
    if (loop := asyncio_loop()) is None:
        import trio

        clock = trio.lowlevel.current_clock()
        # A `MockClock` whose time stands still answers with a sleep of years.
        return 0.0 <= clock.deadline_to_sleep_time(clock.current_time() + 1.0) <= 1.0
    if not isinstance(type(loop).time, FunctionType):
        return True  # uvloop's, which rounds and caches it
    before = time.monotonic()
    return before <= loop.time() <= time.monotonic()

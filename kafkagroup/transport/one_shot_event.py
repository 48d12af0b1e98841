"""What somebody may wait for, and that happens once.

As an event of anyio, which on asyncio takes a kilobyte and as long to make as a request to encode:
an idle consumer has a dozen, of which most are never waited for, and each request waits for one.
"""

from __future__ import annotations

import asyncio
import math

import anyio

__all__ = ["OneShotEvent"]


class OneShotEvent:
    """Set once, for good. May be made where no loop runs; all else in one loop."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: tuple[asyncio.Future[None] | anyio.Event, ...] = ()

    def set(self) -> None:
        """It has happened: all who wait go on."""
        self._is_set = True
        for one in self._waiting:
            if isinstance(one, asyncio.Future):
                _go_on(one)
            else:
                one.set()
        self._waiting = ()

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    async def wait(self, until: float = math.inf) -> bool:
        """Wait until it happens, or until a time on the loop's clock; answer whether it has. When
        it had before, let others run."""
        if self._is_set:
            # anyio.lowlevel takes an import of its own.
            await anyio.sleep(0)  # noqa: ASYNC115
            return True
        one: asyncio.Future[None] | anyio.Event
        timer: asyncio.TimerHandle | None = None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            one = anyio.Event()
        else:
            one = loop.create_future()
            if until < math.inf:
                # Not a scope: a member that only beats would spend a tenth of its time on those.
                timer = loop.call_at(until, _go_on, one)
        self._waiting += (one,)
        try:
            if isinstance(one, asyncio.Future):
                await one
            else:
                with anyio.CancelScope(deadline=until):
                    await one.wait()
        finally:
            if timer is not None:
                timer.cancel()
            if not self._is_set:
                self._waiting = tuple(other for other in self._waiting if other is not one)
        return self._is_set


def _go_on(one: asyncio.Future[None]) -> None:
    if not one.done():  # as it is when who waits was cancelled
        one.set_result(None)

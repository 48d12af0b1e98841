"""An event that is never cleared, cheaper than `anyio.Event`.

An `anyio.Event` on asyncio takes a kilobyte, and as long to create as encoding a request. An idle
consumer has a dozen events, most of which no task ever waits for, and each request waits for one.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import anyio

from kafkagroup._backend import asyncio_loop

if TYPE_CHECKING:
    import trio

__all__ = ["OneShotEvent"]


class OneShotEvent:
    """An event that is never cleared. Can be created outside a loop; all calls are in one loop."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[asyncio.Future[None] | trio.Event] | None = None
        """One waiter for each task in `wait`; None, and no list, for none."""

    def set(self) -> None:
        """Set the event and wake all tasks that wait for it."""
        self._is_set = True
        for waiter in self._waiting or ():
            if isinstance(waiter, asyncio.Future):
                _wake(waiter)
            else:
                waiter.set()
        self._waiting = None

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._is_set

    async def wait(self, until: float = math.inf) -> bool:
        """Wait until the event is set, or until a time on the loop's clock; return whether it is
        set. If it is set already, other tasks run first."""
        if self._is_set:
            # Not anyio.lowlevel.checkpoint: that module would have to be imported.
            await anyio.sleep(0)  # noqa: ASYNC115
            return True
        # From here on nothing of anyio: a client that starts waits here while a thread imports
        # anyio's backend.
        if (loop := asyncio_loop()) is None:
            await self._wait_on_trio(until)
            return self._is_set
        waiter = loop.create_future()
        timer: asyncio.TimerHandle | None = None
        if until < math.inf:
            # Not a cancel scope: an idle member would spend a tenth of its CPU time on those.
            timer = loop.call_at(until, _wake, waiter)
        self.add(waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            self.withdraw(waiter)
        return self._is_set

    async def _wait_on_trio(self, until: float) -> None:
        import trio

        waiter = trio.Event()
        self.add(waiter)
        try:
            with trio.CancelScope(deadline=until):
                await waiter.wait()
        finally:
            self.withdraw(waiter)

    def add(self, waiter: asyncio.Future[None] | trio.Event) -> None:
        """Wake `waiter` when the event is set. The event must not be set yet."""
        if self._waiting is None:
            self._waiting = [waiter]
        else:
            self._waiting.append(waiter)

    def withdraw(self, waiter: asyncio.Future[None] | trio.Event) -> None:
        """Undo `add`. Without effect if the event is set."""
        if self._waiting is not None and not self._is_set:
            self._waiting.remove(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # done already where the waiting task was cancelled
        waiter.set_result(None)

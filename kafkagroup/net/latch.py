"""What somebody may wait for, and that happens once.

As an event of anyio, which on asyncio takes a kilobyte and as long to make as a request to encode:
an idle consumer has a dozen, of which most are never waited for, and each request waits for one.
"""

from __future__ import annotations

import asyncio

import anyio

__all__ = ["Latch"]


class Latch:
    """Set once, for good. May be made where no loop runs; all else in one loop."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: tuple[asyncio.Future[None] | anyio.Event, ...] = ()

    def set(self) -> None:
        """It has happened: all who wait go on."""
        self._is_set = True
        for one in self._waiting:
            if not isinstance(one, asyncio.Future):
                one.set()
            elif not one.done():  # as it is when who waits was cancelled
                one.set_result(None)
        self._waiting = ()

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    async def wait(self) -> None:
        """Wait until it happens; when it has, let others run."""
        if self._is_set:
            # anyio.lowlevel takes an import of its own.
            await anyio.sleep(0)  # noqa: ASYNC115
            return
        one: asyncio.Future[None] | anyio.Event
        try:
            one = asyncio.get_running_loop().create_future()
        except RuntimeError:
            one = anyio.Event()
        self._waiting += (one,)
        try:
            await (one if isinstance(one, asyncio.Future) else one.wait())
        finally:
            if not self._is_set:
                self._waiting = tuple(other for other in self._waiting if other is not one)

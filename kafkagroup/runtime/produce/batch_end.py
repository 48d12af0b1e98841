"""How tasks of asyncio wait for the end of a batch.

Compiled where possible, with the types in `batch_end.pxd`: a task waits for each awaited record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from typing import Any

__all__ = ["BatchEnd", "Waiter"]


class BatchEnd:
    """The end of a batch. One callback of the loop wakes all tasks that wait for it: with a future
    for each of them, the loop would run as many callbacks, in which it would spend a third of the
    time that an awaited record takes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: in which all calls are, and all tasks that wait."""
        self.loop = loop
        self.waiting: dict[Waiter, None] = {}
        """One key for each waiting task, in the order in which they began to wait."""

    def set(self) -> None:
        """Wake all tasks that wait. To be called once."""
        self.loop.call_soon(self._wake_all)

    def _wake_all(self) -> None:
        waiting = self.waiting
        try:
            for waiter in tuple(waiting):
                if waiter in waiting:  # else a task that was woken before has cancelled this one
                    del waiting[waiter]
                    waiter.wake()
        finally:
            # A task may raise what ends the loop, such as KeyboardInterrupt. If the loop is run
            # again, as `asyncio.run` does to cancel all tasks, it wakes the others.
            if waiting:
                self.loop.call_soon(self._wake_all)

    def __await__(self) -> Generator[Waiter, None, None]:
        """Wait until `set` is called."""
        yield Waiter(self)


class Waiter:
    """What one task waits for. Its coroutine yields this instead of a future: asyncio takes each
    object that has `_asyncio_future_blocking` for one. The methods are those that the tasks of
    asyncio call, and the functions of anyio for them."""

    def __init__(self, end: BatchEnd) -> None:
        self._asyncio_future_blocking = True
        """Whether the coroutine has just yielded this; the task resets it."""
        self._end = end
        self._callback: Callable[[Waiter], object] | None = None
        """Wakes the task; None before it waits."""
        self._context: Context
        self._others: tuple[tuple[Callable[[Waiter], object], Context], ...] = ()
        """Further callbacks, such as those of a debugger, and their contexts."""
        self._cancelled: asyncio.CancelledError | None = None
        """The error to raise in the task; None if it was not cancelled."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop. A task of another loop then raises RuntimeError."""
        return self._end.loop

    def add_done_callback(
        self, callback: Callable[[Waiter], object], *, context: Context | None = None
    ) -> None:
        """Begin to wait. `callback` wakes the task, in `context`."""
        if context is None:
            context = copy_context()
        if self._callback is None:
            self._callback, self._context = callback, context
            self._end.waiting[self] = None
        else:
            self._others = (*self._others, (callback, context))

    def wake(self) -> None:
        """Run the task until it waits again."""
        assert self._callback is not None
        if not self._others:
            self._context.run(self._callback, self)
            return
        for callback, context in ((self._callback, self._context), *self._others):
            self._end.loop.call_soon(callback, self, context=context)

    def cancel(self, msg: Any = None) -> bool:
        """Wake the task, which then raises CancelledError. Return False if it was woken before."""
        if self.done():
            return False
        del self._end.waiting[self]
        self._cancelled = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self._end.loop.call_soon(self.wake)
        return True

    def done(self) -> bool:
        """Return whether the task was woken."""
        return self not in self._end.waiting

    def result(self) -> None:
        """Raises: CancelledError if the task was cancelled."""
        if self._cancelled is not None:
            raise self._cancelled

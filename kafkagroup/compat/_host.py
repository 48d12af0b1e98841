"""Where things live that are started on first use.

Inside `async with` they run in a task group of their own, on asyncio and on trio. Outside of it
they are started and stopped as the main API's are: on asyncio, from any task.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import anyio
from anyio.abc import TaskGroup, TaskStatus

from kafkagroup.errors import IllegalStateError

__all__ = ["Guest", "Host", "Hosted", "Opened"]

T = TypeVar("T")


class Hosted(Protocol):
    """What the main API starts and stops."""

    async def run(self, *, task_status: TaskStatus[None] = ...) -> None:
        """Run until stopped."""

    async def start(self) -> None:
        """The same in a task of its own, on asyncio."""


class Host:
    """The tasks of one object."""

    def __init__(self) -> None:
        self._group: TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def enter(self) -> None:
        """From here on, and until `leave`, everything runs in a task group."""
        self._group = await anyio.create_task_group().__aenter__()

    async def leave(self) -> None:
        """End what is spawned; what was started must have been stopped by now."""
        group, self._group = self._group, None
        if group is not None:
            group.cancel_scope.cancel()
            # Without the user's exception: the group would wrap it.
            await group.__aexit__(None, None, None)

    async def start(self, hosted: Hosted) -> None:
        """Start, and raise what starting raises."""
        if self._group is None:
            await hosted.start()
        else:
            await self._group.start(hosted.run)

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function beside everything else. It must not raise."""
        if self._group is not None:
            self._group.start_soon(function)
            return
        task = asyncio.get_running_loop().create_task(function())
        # The loop alone would forget it.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Opened(Generic[T]):
    """What a context manager gives, held open by one task from its entry to its exit."""

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager
        self._closing = anyio.Event()
        self._closed = anyio.Event()
        self._task: asyncio.Task[None] | None = None
        self.value: T | None = None
        """None before it is entered, and again once it is left."""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Enter, and leave when asked to by `close`."""
        try:
            async with self._manager as self.value:
                task_status.started()
                await self._closing.wait()
        finally:
            self.value = None
            self._closed.set()

    async def start(self) -> None:
        """The same in a task of its own, on asyncio. Raises what entering raises."""
        try:
            entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        except RuntimeError:
            raise IllegalStateError("outside of `async with` this is for asyncio only") from None
        self._task = task = asyncio.create_task(self.run(task_status=_Entered(entered)))
        try:
            await asyncio.wait((task, entered), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            task.cancel()
            raise
        if not entered.done():
            await task

    async def close(self) -> None:
        """Leave, and wait until it is left."""
        self._closing.set()
        await self._closed.wait()


class _Entered:
    """A task status on asyncio, where no task group listens."""

    def __init__(self, entered: asyncio.Future[None]) -> None:
        self._entered = entered

    def started(self, value: None = None) -> None:
        self._entered.set_result(None)


class Guest(ABC):
    """An object with a host, for `async with`: begins in it, and has ended before it is left."""

    def __init__(self) -> None:
        self._host = Host()

    @abstractmethod
    async def _entered(self) -> None:
        """Start what is to be started at once."""

    @abstractmethod
    async def _leaving(self) -> None:
        """Stop what was started."""

    async def __aenter__(self) -> Self:
        await self._host.enter()
        try:
            await self._entered()
        except BaseException:
            await self._host.leave()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._leaving()
        finally:
            await self._host.leave()

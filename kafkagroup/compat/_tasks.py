"""Run the tasks of compat objects.

On asyncio they are tasks of the loop, which any task may start and stop. On trio they run in the
task group of `async with`, which the task that entered it has to leave.
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

from kafkagroup._backend import asyncio_loop
from kafkagroup.errors import IllegalStateError

__all__ = ["ContextTask", "Startable", "TaskOwner", "Tasks"]

T = TypeVar("T")


class Startable(Protocol):
    """An object of the main API that can be started."""

    async def run(self, *, task_status: TaskStatus[None] = ...) -> None:
        """Run until the object is stopped."""

    async def start(self) -> None:
        """Run in a task of its own; asyncio only."""


class Tasks:
    """The tasks of one object."""

    def __init__(self) -> None:
        self._group: TaskGroup | None = None
        """The task group on trio, from `enter` to `leave`; None on asyncio."""
        self._running: set[asyncio.Task[None]] = set()
        """The spawned tasks on asyncio that have not ended."""

    async def enter(self) -> None:
        """On trio, open the task group that runs everything until `leave`."""
        if asyncio_loop() is None:
            self._group = await anyio.create_task_group().__aenter__()

    async def leave(self) -> None:
        """Cancel the spawned tasks. Stop the started objects first."""
        group, self._group = self._group, None
        if group is not None:
            group.cancel_scope.cancel()
            # Without the user's exception, which the task group would wrap in an ExceptionGroup.
            await group.__aexit__(None, None, None)
        # All but the calling task, which may be a spawned one itself.
        elif running := self._running - {asyncio.current_task()}:
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    async def start(self, startable: Startable) -> None:
        """Start an object. Raises: what its start raises."""
        if self._group is None:
            await startable.start()
        else:
            await self._group.start(startable.run)

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function, which must not raise, in a task."""
        if self._group is not None:
            self._group.start_soon(function)
            return
        task = asyncio.get_running_loop().create_task(function())
        # The loop keeps only weak references: without this one the task could be collected.
        self._running.add(task)
        task.add_done_callback(self._running.discard)


class ContextTask(Generic[T]):
    """A context manager that one task enters and leaves, and its value."""

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager
        self._closing = anyio.Event()
        self._closed = anyio.Event()
        self._task: asyncio.Task[None] | None = None
        """Kept because the loop has only weak references to tasks."""
        self.value: T | None = None
        """None before the context manager is entered and after it is left."""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Enter the context manager, and leave it after `close`."""
        try:
            async with self._manager as self.value:
                task_status.started()
                await self._closing.wait()
        finally:
            self.value = None
            self._closed.set()

    async def start(self) -> None:
        """Run in a task of its own, and return when the context manager is entered; asyncio only.
        Raises: what entering raises."""
        if (loop := asyncio_loop()) is None:
            raise IllegalStateError("outside of `async with` this is for asyncio only")
        entered: asyncio.Future[None] = loop.create_future()
        self._task = task = asyncio.create_task(self.run(task_status=_EnteredStatus(entered)))
        try:
            await asyncio.wait((task, entered), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            task.cancel()
            raise
        if not entered.done():
            await task  # it ended before it had entered: raise its error

    async def close(self) -> None:
        """Leave the context manager, and wait until it is left."""
        self._closing.set()
        await self._closed.wait()


class _EnteredStatus:
    """A task status for asyncio, where no task group provides one."""

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def started(self, value: None = None) -> None:
        self._future.set_result(None)


class TaskOwner(ABC):
    """The base class of objects that own background tasks: `async with` starts and stops them."""

    def __init__(self) -> None:
        self._tasks = Tasks()

    @abstractmethod
    async def _start_tasks(self) -> None:
        """Start the object's tasks on entry."""

    @abstractmethod
    async def _stop_tasks(self) -> None:
        """Stop the object's tasks on exit."""

    async def __aenter__(self) -> Self:
        await self._tasks.enter()
        try:
            await self._start_tasks()
        except BaseException:
            # On asyncio, what was started before the failure runs in tasks of its own: stop it.
            try:
                with anyio.CancelScope(shield=True):
                    await self._stop_tasks()
            finally:
                await self._tasks.leave()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._stop_tasks()
        finally:
            await self._tasks.leave()

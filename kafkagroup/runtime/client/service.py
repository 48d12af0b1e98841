"""`Service`: starts and stops a client that has background tasks.

There are three ways to start one: `async with`, `start()`/`stop()` from any task (asyncio), and
`nursery.start(x.run)`. All of them execute `run` in one task, so that the task that enters a cancel
scope also leaves it. With the first two ways on asyncio, that is a task of its own, the host task:
so any task may close a client that another task has opened, as fixtures, exit stacks and frameworks
do. On trio a task belongs to a nursery, which the task that enters `async with` has to leave. The
user's exceptions are raised as they are, never inside an ExceptionGroup.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import traceback as tracebacks
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import anyio

from kafkagroup._backend import asyncio_loop
from kafkagroup._explained import Explained
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.concurrency.unrequested_end import unrequested_end
from kafkagroup.errors import ClosedError, ConnectionLostError, IllegalStateError
from kafkagroup.runtime.client import uncompiled
from kafkagroup.runtime.client.late_modules import LateModules
from kafkagroup.transport.origin import Origin
from kafkagroup.transport.os_errors import lacks_descriptors

if TYPE_CHECKING:
    from anyio.abc import TaskGroup, TaskStatus

__all__ = ["Service"]

logger = logging.getLogger(__name__)

_hosted_services: WeakSet[Service] = WeakSet()
"""The running services that `start()` began: the application may forget to call `stop()`."""

_running_services: WeakSet[Service] = WeakSet()
"""All running services."""


def _on_fork() -> None:
    for service in tuple(_running_services):
        service._on_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_on_fork)


@atexit.register
def _warn_of_all_left_open() -> None:
    """Warn of services whose loop was closed with their tasks pending. `__del__` could not do this:
    anyio keeps each task that waits in one of its scopes, so they are never collected."""
    for service in tuple(_hosted_services):
        service._warn_left_open()


class _Started:
    """The task status that a host task passes to `run`, as a task group passes its own."""

    def __init__(self) -> None:
        self.event = OneShotEvent()

    def started(self, value: None = None) -> None:
        self.event.set()


class Service(Explained, ABC):
    """The base class of clients, which are not opened again after the close. Subclasses implement
    `_open`, `_close` and `_crashed`."""

    _description = ""  # for repr(), if the options are refused before `__init__` runs

    def __init__(
        self, close_timeout: float, description: str = "", late_modules: LateModules | None = None
    ) -> None:
        """`description`: distinguishes this service from others of its class, in its repr.
        `late_modules`: what it imports when it starts; None for only what each connection
        needs."""
        self._close_timeout = close_timeout
        self._late_modules = late_modules or LateModules()
        self._description = description
        self._was_started = False
        """Whether `run` has begun; it may have ended since."""
        self._origin: Origin | None = None
        """The process and event loop in which the client was started; None before the start."""
        self._start_stack = ""
        """The stack of the `start()` call, if asyncio is in debug mode."""
        self._left_open = False
        """Whether `run` was cancelled before a stop was requested."""
        self._failure: Exception | None = None
        """The error for `run` to raise."""
        self._opening: anyio.CancelScope | None = None
        """The scope of `_open` while it runs."""
        self._opened = OneShotEvent()
        self._stop_requested = OneShotEvent()
        self._stopped = OneShotEvent()
        self._pending_calls: set[anyio.CancelScope] = set()
        """The scopes of the application's calls that wait for brokers."""
        self._background: set[anyio.CancelScope] = set()
        """The scopes of the background tasks."""
        self._run_task: anyio.TaskInfo | None = None
        """The task that executes `run`."""
        self._host: TaskGroup | None = None
        """On trio, after `async with`: the task group in which `run` is executed."""
        self._is_hosted = False
        """Whether a host task executes `run`."""
        self._host_task: asyncio.Task[None] | None = None
        """The host task, once the start has succeeded."""

    @abstractmethod
    async def _open(self, tasks: TaskGroup) -> None:
        """Start the background tasks in `tasks`. `start` raises the errors of this method."""

    @abstractmethod
    async def _close(self) -> None:
        """Close everything in order. It is cancelled after the close timeout."""

    @abstractmethod
    def _crashed(self, error: Exception) -> None:
        """Note the error of a background task, for later calls to raise."""

    def _ended_unrequested(self) -> Exception:
        """Note that the client ends although neither `stop` nor the end of `async with` requested
        it; return the error for later calls to raise."""
        error = unrequested_end(f"{self!r}: the client")
        self._crashed(error)
        return error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._description})"

    @property
    def closed(self) -> bool:
        """Whether the client is closed, or closes now. False before the start, unless `stop` was
        called already."""
        return self._stop_requested.is_set()

    @property
    def _fork_message(self) -> str:
        """The text of the error if this process was forked from the one that started the client;
        else ""."""
        return "" if self._origin is None else self._origin.fork_message

    def _check_origin(self) -> None:
        """Raises: IllegalStateError in another process than the one that started the client, and,
        while it runs, in another event loop."""
        if self._origin is not None and not self._stopped.is_set():
            self._origin.check()

    def _bind(self, origin: Origin) -> None:
        """Note the process and event loop in which the client starts. Subclasses add what calls
        from other threads need."""
        self._origin = origin

    def _on_fork(self) -> None:
        """Called in each process that is forked while the client runs, before other code."""
        # Only the other process has to stop the client: no warning here that it was left open.
        _hosted_services.discard(self)

    def _warn_left_open(self) -> None:
        message = f"{self!r} was never stopped; use `async with`, or await stop()"
        logger.warning("%s%s", message, self._start_stack)
        warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def _request_stop(self) -> None:
        self._stop_requested.set()
        if self._opening is not None:
            self._opening.cancel()

    async def run(self, *, task_status: TaskStatus[None] | None = None) -> None:
        """Run until `stop`. For `nursery.start(x.run)` on trio, or a task group of anyio.

        Returns when everything is closed. A cancelled run closes too, within the close timeout.
        """
        if self._was_started:
            self._check_origin()
            raise IllegalStateError(f"{type(self).__name__} was started already; make a new one")
        self._bind(Origin(repr(self)))
        uncompiled.log_once()
        self._was_started = True
        _running_services.add(self)
        try:
            await self._late_modules.import_first()
            self._run_task = anyio.get_current_task()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._open_and_close)
                try:
                    await self._opened.wait()
                    if self._failure is None and task_status is not None:
                        task_status.started()
                    await self._stop_requested.wait()
                except BaseException:
                    self._left_open = not self._stop_requested.is_set()
                    if self._left_open and self._is_hosted:
                        # The host task is in no cancel scope of the application, so nothing that
                        # the application meant to cancel includes it.
                        self._ended_unrequested()
                    raise
                finally:
                    self._request_stop()
        finally:
            _running_services.discard(self)
            self._stopped.set()
            for call in self._pending_calls:  # those that `_close` has not cancelled
                call.cancel()
        if self._failure is not None:
            # Raised here, outside the task group, which would wrap it.
            raise self._failure

    async def _open_and_close(self) -> None:
        """Open the client, keep its background tasks running until a stop is requested, and close
        it."""
        async with anyio.create_task_group() as tasks:
            # Shielded: if a cancellation of `run` also cancelled the connections, the member could
            # neither commit nor leave the group. `run` turns a cancellation into a stop request.
            tasks.cancel_scope.shield = True
            try:
                with anyio.CancelScope() as self._opening:
                    if self._stop_requested.is_set():
                        # The request came before this scope existed, and could not cancel it.
                        self._opening.cancel()
                    await self._open(tasks)
                self._opening = None
                self._opened.set()
                await self._stop_requested.wait()
            except Exception as error:
                self._failure = _start_error(error)
            except anyio.get_cancelled_exc_class():
                if not self._is_ending:
                    # Before `_close`: without the error, the application's iteration would end as
                    # it does after a stop.
                    self._failure = self._ended_unrequested()
                raise
            finally:
                with anyio.move_on_after(self._close_timeout) as deadline:
                    try:
                        # A forked process cancels its copies of the tasks.
                        if not self._fork_message:
                            await self._close()
                    except Exception:
                        # Not raised: it would be wrapped, and replace the error of the user's body.
                        logger.exception("closing %s failed", type(self).__name__)
                if deadline.cancelled_caught:
                    logger.warning("closed by force after %s s", self._close_timeout)
                tasks.cancel_scope.cancel()
        # If the start has failed, `run` still waits for both.
        self._opened.set()
        self._request_stop()

    @contextmanager
    def _until_stopped(self) -> Iterator[None]:
        """A context for a call of the application that may wait for brokers. Without it, a call
        that is in progress when the client stops would repeat its requests on closed connections.

        Raises: ClosedError if everything is closed, or is closed during the call.
        """
        with anyio.CancelScope() as scope:
            self._pending_calls.add(scope)
            try:
                if self._stopped.is_set():
                    raise ClosedError(f"{type(self).__name__} is closed")
                yield
            finally:
                self._pending_calls.discard(scope)
        if scope.cancelled_caught:
            raise ClosedError(
                f"{type(self).__name__} was closed during this call; what it requested may be done"
            )

    def _cancel_requests(self) -> None:
        """Cancel the background tasks and the application's calls, before `_close` closes the
        connections: each of them would log that its connection was closed, and send again."""
        for scope in (*self._background, *self._pending_calls):
            scope.cancel()

    def _spawn(self, tasks: TaskGroup, function: Callable[[], Awaitable[None]], name: str) -> None:
        """Run a background task. The application's next call raises its error; the task group does
        not."""
        tasks.start_soon(self._guarded, tasks, function, name, name=f"kafkagroup {name}")

    async def _guarded(
        self, tasks: TaskGroup, function: Callable[[], Awaitable[None]], name: str
    ) -> None:
        try:
            with anyio.CancelScope() as scope:
                self._background.add(scope)
                try:
                    await self._late_modules.import_others()
                    await function()
                finally:
                    self._background.discard(scope)
        except Exception as error:
            logger.exception("%s failed", name)
            self._crashed(_unwrapped(error))
        except anyio.get_cancelled_exc_class():
            if tasks.cancel_scope.cancel_called or self._is_ending:
                raise
            # Not raised: anyio would end all other tasks, too, as if the client had been stopped.
            failure = unrequested_end(f"{self!r}: {name}")
            logger.error("%s", failure)
            self._crashed(failure)

    @property
    def _is_ending(self) -> bool:
        """Whether a stop was requested, or `run` is being cancelled. At the end of `asyncio.run`
        all tasks are cancelled in any order, so that other tasks may notice it before `run`."""
        task = self._run_task
        return self._stop_requested.is_set() or (
            task is not None and task.has_pending_cancellation()
        )

    async def __aenter__(self) -> Self:
        if asyncio_loop() is not None:
            await self._start_hosted(self._run_hosted)
            return self
        await self._late_modules.import_first()  # a task group needs anyio's backend
        host = anyio.create_task_group()
        await host.__aenter__()
        try:
            await host.start(self.run)
        except BaseException:
            await host.__aexit__(None, None, None)
            raise
        self._host = host
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._fork_message:
            return  # the tasks are the other process's
        self._request_stop()
        if self._host is not None:
            # Without the user's exception: the group would wrap it.
            try:
                await self._host.__aexit__(None, None, None)
            except ExceptionGroup as group:
                raise _unwrapped(group) from None
        elif (task := self._host_task) is not None:
            self._check_origin()
            await _join(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                raise _unwrapped(error) if isinstance(error, Exception) else error

    async def start(self) -> None:
        """Start outside `async with`, on asyncio; `stop` may be called from another task.

        Raises: what made the start fail; IllegalStateError if the client was started before, and on
        trio: there use `async with` or `nursery.start(x.run)`.
        """
        self._check_origin()
        if (loop := asyncio_loop()) is None:
            raise IllegalStateError(
                "start() is for asyncio; on trio use `async with` or `nursery.start(x.run)`"
            )
        if loop.get_debug():
            stack = "".join(tracebacks.format_stack(sys._getframe(1), limit=3))
            self._start_stack = f"; it was started here:\n{stack}"
        await self._start_hosted(self._run_until_stopped)

    async def _start_hosted(self, run: Callable[[_Started], Coroutine[Any, Any, None]]) -> None:
        """Execute `run` in a host task. Raises: the errors of `_open`; IllegalStateError if the
        client was started before."""
        status = _Started()
        self._is_hosted = True
        task = asyncio.create_task(run(status))
        started = asyncio.create_task(status.event.wait())
        try:
            await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._request_stop()
            task.cancel()
            await _join(task)
            raise
        finally:
            started.cancel()
        if not status.event.is_set():
            await task  # the start has failed: raises its error
        self._host_task = task

    async def _run_hosted(self, status: _Started) -> None:
        await self.run(task_status=status)

    async def _run_until_stopped(self, status: _Started) -> None:
        """Run, and warn if the loop ends before `stop` is called."""
        _hosted_services.add(self)
        try:
            await self.run(task_status=status)
        finally:
            _hosted_services.discard(self)
            # Once the service has started, only the end of the loop cancels this task.
            if self._left_open:
                self._warn_left_open()

    async def stop(self) -> None:
        """Close in order, within the close timeout. A second call does nothing, and so does a call
        in a process that was forked from the one that started the client."""
        if self._fork_message:
            return
        self._check_origin()
        self._request_stop()
        if self._was_started:
            await self._stopped.wait()
        if self._host_task is not None and not self._host_task.done():
            await asyncio.wait((self._host_task,))

    async def aclose(self) -> None:
        """The same as `stop()`, for `contextlib.aclosing` and other code that closes what it is
        given."""
        await self.stop()


async def _join(task: asyncio.Task[None]) -> None:
    """Wait until a task has ended, which it does within the close timeout. If the caller is
    cancelled meanwhile, the cancellation is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


def _start_error(error: Exception) -> Exception:
    """Return the error for a failed start to raise: a ConnectionLostError if the process has
    reached its limit of open files, else the error itself."""
    if not lacks_descriptors(error):
        return error
    failure = ConnectionLostError(
        f"the start failed: {error}; close files, or raise the limit of the process (ulimit -n)"
    )
    failure.__cause__ = error
    return failure


def _unwrapped(error: Exception) -> Exception:
    """Return the error that a task group has wrapped: users catch the typed error, not a group
    around it. The first one if several tasks failed at once, as when credentials are refused."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error

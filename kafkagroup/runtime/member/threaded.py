"""The driver in a thread of its own: heartbeats continue while the application blocks its loop.

The thread has its own connections, and a loop of the same kind as the application's, with the same
clock. The two loops only post calls to each other, in order: calls of the application run in the
application's loop, and requests to the driver in the thread's. Neither side blocks on the other.
The application reads the driver's `member`, with its `ownership`: a value that the thread replaces
as a whole.

While the application's loop is blocked, a revocation waits for it up to the rebalance timeout, as
it does for slow work, and `max_poll_interval_ms` runs as if the application did not poll.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from kafkagroup._backend import asyncio_loop
from kafkagroup._user_code import USER_ERRORS, is_own_cancellation
from kafkagroup._values import evolve
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.errors import AuthenticationError
from kafkagroup.member.vocabulary import BaseEvent, Compute, GenerationInfo
from kafkagroup.runtime.member.driver import Driver
from kafkagroup.runtime.member.history import History
from kafkagroup.runtime.member.interfaces import Application, OverduePoll
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.protocol import (
    CoordinatedProtocol,
    CoordinatedState,
    SupportedProtocols,
)
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.coordinators import Coordinators, CoordinatorType, RequestCoordinator
from kafkagroup.transport.identity import MisdirectedError
from kafkagroup.transport.logins import Logins
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.options import Address
from kafkagroup.transport.os_errors import lacks_descriptors
from kafkagroup.transport.threads import Post, post_to_loop
from kafkagroup.transport.trouble import Problem, Troubles
from kafkagroup.wire.schema import Request

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ["ThreadedDriver", "running_loop"]

C = TypeVar("C", bound=CoordinatedState)
R = TypeVar("R")
T = TypeVar("T")

Call = Callable[[], object]

logger = logging.getLogger(__name__)

_LOOP_PAUSE = 1.0
"""Seconds between two attempts to make the thread's loop."""

_STOP_TIMEOUT = 1.0
"""Seconds to wait for the cancelled thread."""


class ThreadedDriver(Driver[C]):
    """One member of one group, running in a thread."""

    def __init__(
        self,
        cluster: Cluster,
        protocol: CoordinatedProtocol[C],
        member: C,
        application: Application,
        loop_delay: LoopDelay,
        log: MembershipLog,
        history: History,
    ) -> None:
        proxy = _ApplicationProxy(self, application)
        super().__init__(cluster, protocol, member, proxy, loop_delay, log, history)
        self._scope: anyio.CancelScope
        """The scope of all tasks in the thread."""
        self._post_to_application_loop: Post
        """Set when `run` starts."""
        self._post_to_thread_loop: Post | None = None
        """None until the thread has a loop."""
        self._thread_calls: deque[Call] = deque()
        """Calls that wait to run in the thread, which may not have a loop yet."""
        self._probe_sent_at: float | None = None
        """When the pending probe was posted to the application's loop; None without one."""
        self._error: BaseException | None = None
        """The error that ended the thread, or one of its calls in the application's loop."""
        self._may_end = threading.Event()
        """Set when the thread need not make its loop any more."""
        self._thread_ended = OneShotEvent()
        # Coroutines that `run` awaits in the application's loop, in order.
        self._coroutine_sender, self._coroutine_receiver = anyio.create_memory_object_stream[
            Callable[[], Awaitable[object]]
        ](float("inf"))

    # ------------------------------------------------------------ in the application's loop

    async def run(self) -> None:
        """Join, and return when the member has left or failed."""
        backend, options, self._post_to_application_loop = running_loop()
        # A daemon: if the thread hangs, the process can still exit.
        thread = threading.Thread(
            # Free-threaded Python would pass on this context, in which anyio finds a running loop.
            target=Context().run,
            args=(self._run_thread, backend, options),
            name="kafkagroup heartbeats",
            daemon=True,
        )
        try:
            thread.start()
            async for call in self._coroutine_receiver:
                await call()
        finally:
            self._may_end.set()
            self._post_to_thread(self._stop)
            with anyio.move_on_after(_STOP_TIMEOUT, shield=True):
                await self._thread_ended.wait()
                thread.join()  # does not block: the event was the last thing that the thread posted
            self._coroutine_receiver.close()
            self.closed.set()
        if self._error is not None:
            raise self._error
        self._check_ended()

    def _post_from_outside(self, event: BaseEvent) -> None:
        self._post_to_thread(partial(self._post, event))

    def _post_to_thread(self, call: Call) -> None:
        self._thread_calls.append(call)
        if self._post_to_thread_loop is not None:
            with suppress(RuntimeError):  # the thread's loop has ended, and so has the membership
                self._post_to_thread_loop(self._make_thread_calls)

    def _guard_call(self, call: Call) -> None:
        """Make a call that the thread has posted. If it fails, end the membership with its
        error."""
        try:
            call()
        except Exception as error:
            # This runs in no task: asyncio would only log the error, and trio would end the whole
            # run.
            self._error = error
            self._post_to_thread(self._stop)

    def _on_probe(self, sent_at: float) -> None:
        """Record how long a probe waited until the application's loop ran it."""
        self._probe_sent_at = None
        now = self._loop_now()
        self._loop_delay.record(now - sent_at, now)

    def _on_thread_end(self) -> None:
        self._coroutine_sender.close()  # also if the thread failed before it had a loop
        self._thread_ended.set()

    # ------------------------------------------------------------ in the thread

    def _run_thread(self, backend: str, options: dict[str, Any]) -> None:
        try:
            while not self._try_run(backend, options):
                self._may_end.wait(_LOOP_PAUSE)
        except BaseException as error:
            self._error = error
        finally:
            with suppress(RuntimeError):  # the application's loop has ended
                self._post_to_application_loop(self._on_thread_end)

    def _try_run(self, backend: str, options: dict[str, Any]) -> bool:
        """Run the loop; return False if there are no file descriptors to make it."""
        try:
            anyio.run(self._run_loop, backend=backend, backend_options=options)
        except OSError as error:
            is_made = self._post_to_thread_loop is not None
            if is_made or self._may_end.is_set() or not lacks_descriptors(error):
                raise
            logger.warning(
                "%s: the heartbeat thread waits for file descriptors: %s; close files, or"
                " raise the limit of the process (ulimit -n)",
                self._log.name,
                error,
            )
            return False
        return True

    async def _run_loop(self) -> None:
        with anyio.CancelScope() as self._scope:
            async with anyio.create_task_group() as tasks:
                self._cluster = _ThreadCluster(self._cluster, tasks, self.post_to_application)
                _, _, self._post_to_thread_loop = running_loop()
                self._make_thread_calls()
                tasks.start_soon(self._probe)
                await self._run_member()
                await self._cluster.aclose()
                tasks.cancel_scope.cancel()
        self._post_to_application_loop(self._coroutine_sender.close)

    def _make_thread_calls(self) -> None:
        while self._thread_calls:
            self._thread_calls.popleft()()

    def _stop(self) -> None:
        self._scope.cancel()

    async def _probe(self) -> None:
        """Measure how late the application's loop runs, by calls that are posted to it."""
        while True:
            now, sent_at = anyio.current_time(), self._probe_sent_at
            if sent_at is None:
                self._probe_sent_at = now
                self.post_to_application(partial(self._on_probe, now))
            else:
                self._loop_delay.add_delay(now - sent_at, now)
            await anyio.sleep(self.member.config.heartbeat_interval)

    def _call_history(self, report: Call) -> None:
        # Events are read in the application's loop.
        self.post_to_application(report)

    def _application_ran_at(self) -> float:
        # The application's loop may not have run since the pending probe was posted to it.
        sent_at = self._probe_sent_at
        return anyio.current_time() if sent_at is None else sent_at

    def post_to_application(self, call: Call) -> None:
        """Run a function in the application's loop."""
        self._post_to_application_loop(partial(self._guard_call, call))

    async def call_in_application(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine in the application's loop, after earlier ones; return its result."""
        result: Future[T] = Future()
        is_done = OneShotEvent()

        async def call() -> None:
            try:
                result.set_result(await function())
            except USER_ERRORS as error:
                if is_own_cancellation(error):
                    raise
                result.set_exception(error)
            self._post_to_thread(is_done.set)

        self.start_in_application(call)
        await is_done.wait()
        return result.result()

    def start_in_application(self, function: Callable[[], Awaitable[object]]) -> None:
        """Run a coroutine in the application's loop, after earlier ones; do not wait for it."""
        self.post_to_application(partial(self._coroutine_sender.send_nowait, function))


class _ApplicationProxy(Application):
    """Passes the driver's calls on to the application, in the application's loop."""

    def __init__(self, driver: ThreadedDriver[Any], application: Application) -> None:
        self._driver = driver
        self._application = application

    def on_generation_end(self, *, lost: bool) -> None:
        self._driver.post_to_application(partial(self._application.on_generation_end, lost=lost))

    def on_lease_extended(self) -> None:
        self._driver.post_to_application(self._application.on_lease_extended)

    def on_error(self, error: Exception) -> None:
        self._driver.post_to_application(partial(self._application.on_error, error))

    def on_fatal_error(self, error: Exception) -> None:
        self._driver.post_to_application(partial(self._application.on_fatal_error, error))

    def poll_due_at(self, loop_ran_at: float) -> float:
        return self._application.poll_due_at(loop_ran_at)

    def overdue_poll(self, loop_ran_at: float, now: float) -> OverduePoll:
        return self._application.overdue_poll(loop_ran_at, now)

    async def revoke(self, deadline: float) -> SupportedProtocols | None:
        async def revoke() -> SupportedProtocols | None:
            if not self._driver.member.ownership.is_revoking:
                return None  # lost while the loop was stalled: a commit would be refused
            return await self._application.revoke(deadline)

        return await self._driver.call_in_application(revoke)

    async def lose(self, reason: str) -> SupportedProtocols | None:
        lose = partial(self._application.lose, reason)
        leaving = self._driver.member.leaving
        if leaving is not None and leaving.lost:
            # Leave without waiting for the application, which may not have polled in time.
            self._driver.start_in_application(lose)
            return None
        return await self._driver.call_in_application(lose)

    async def assign(self, generation: GenerationInfo) -> None:
        await self._driver.call_in_application(partial(self._application.assign, generation))

    async def compute(self, work: Compute) -> Mapping[str, bytes]:
        return await self._driver.call_in_application(partial(self._application.compute, work))


class _TroublesProxy(Troubles):
    """Passes reports on to the application's `Troubles`, in the application's loop."""

    def __init__(self, troubles: Troubles, post_to_application: Callable[[Call], None]) -> None:
        super().__init__()
        self.ongoing = troubles.ongoing  # the same dict: the thread only tests if it is empty
        self._troubles = troubles
        self._post = post_to_application

    def failed(self, key: Hashable, now: float, problem: Problem, **options: Any) -> None:
        self._post(partial(self._troubles.failed, key, now, problem, **options))

    def succeeded(self, key: Hashable, now: float) -> None:
        self._post(partial(self._troubles.succeeded, key, now))

    def forget(self, key: Hashable) -> None:
        self._post(partial(self._troubles.forget, key))


class _LoginsProxy(Logins):
    """Passes reports on to the application's `Logins`, in the application's loop. Checks use the
    application's `Logins` in the thread: a login must not wait for a stalled loop."""

    def __init__(self, logins: Logins, post_to_application: Callable[[Call], None]) -> None:
        super().__init__()
        self.has_worked = logins.has_worked
        self._logins = logins
        self._post = post_to_application

    def check(self, address: Address, now: float) -> None:
        self._logins.check(address, now)

    def may_ask_source(self, now: float) -> bool:
        return self._logins.may_ask_source(now)

    def raise_suspended(self) -> None:
        self._logins.raise_suspended()

    def succeeded(self, address: Address, *, is_known: bool) -> None:
        self.has_worked |= is_known
        self._post(partial(self._logins.succeeded, address, is_known=is_known))

    def failed(self, address: Address, error: AuthenticationError, now: float) -> None:
        self._post(partial(self._logins.failed, address, error, now))

    def on_response(self) -> None:
        self._post(self._logins.on_response)

    def refused_everywhere(self, now: float) -> None:
        self._post(partial(self._logins.refused_everywhere, now))


class _CoordinatorsProxy(Coordinators):
    """Passes on what the thread finds and invalidates to the application's `Coordinators`, in the
    application's loop. What the application's loop finds is not passed to the thread: the driver is
    notified that the coordinator moved, and the thread looks it up itself."""

    def __init__(
        self,
        request: RequestCoordinator,
        coordinators: Coordinators,
        post_to_application: Callable[[Call], None],
    ) -> None:
        super().__init__(request)
        self._coordinators = coordinators
        self._post = post_to_application

    def store(self, node: Node, key: str, kind: CoordinatorType = CoordinatorType.GROUP) -> None:
        super().store(node, key, kind)
        self._post(partial(self._coordinators.store, node, key, kind))

    def invalidate(
        self,
        key: str,
        kind: CoordinatorType = CoordinatorType.GROUP,
        *,
        node: Node | None = None,
    ) -> None:
        super().invalidate(key, kind, node=node)
        self._post(partial(self._coordinators.invalidate, key, kind, node=node))


class _ThreadCluster(Cluster):
    """The same brokers as the application's cluster, over the thread's own connections."""

    def __init__(
        self, cluster: Cluster, tasks: TaskGroup, post_to_application: Callable[[Call], None]
    ) -> None:
        troubles = _TroublesProxy(cluster.troubles, post_to_application)
        # Only the application's cluster may change to another Kafka cluster.
        options = evolve(cluster.options, adopts_cluster_change=False)
        super().__init__(cluster.bootstrap_servers, options, tasks, troubles)
        self.identity = cluster.identity
        self.logins = _LoginsProxy(cluster.logins, post_to_application)
        self.coordinators = _CoordinatorsProxy(
            self._request_any, cluster.coordinators, post_to_application
        )
        self._application_cluster = cluster
        self._post = post_to_application

    async def _request_any(self, request: Request[R]) -> tuple[BrokerClient, R]:
        # The application's cluster keeps the list of brokers current.
        await self.replace_metadata(self._application_cluster.metadata)
        return await super()._request_any(request)

    def _on_misdirected(self, error: MisdirectedError) -> None:
        self._post(partial(self._application_cluster._on_misdirected, error))


def running_loop() -> tuple[str, dict[str, Any], Post]:
    """Return the running loop's backend, the options for a second loop with the same clock, and
    the function that posts calls to the running loop."""
    if asyncio_loop() is not None:
        # All loops of asyncio use the system's monotonic clock.
        return "asyncio", {}, post_to_loop()
    import trio

    # Each run of trio creates a clock with its own offset, unless it is given one.
    return "trio", {"clock": trio.lowlevel.current_clock()}, post_to_loop()

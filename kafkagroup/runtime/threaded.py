"""The driver in a thread of its own: heartbeats continue while the application blocks its loop.

The thread has a loop of the same kind, whose clock is the application's, and its own connections.
Two borders are crossed, by nothing but posting a call to the other loop: what the application is to
do runs in the application's loop, in the order it was said; what it asks of the driver runs in the
thread's. Neither side ever blocks on the other. What the application reads of the driver (`member`,
with its `ownership`) is a value that the thread replaces as a whole.

While the application's loop is blocked, a revocation waits for it up to the rebalance timeout, as
it does for slow work, and `max_poll_interval_ms` runs as if the application did not poll.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from kafkagroup.member.state import Member
from kafkagroup.member.vocabulary import Compute, GenerationInfo
from kafkagroup.runtime.driver import Driver, DriverEvent
from kafkagroup.runtime.history import History
from kafkagroup.runtime.interfaces import Application, Assignee, SupportedProtocols
from kafkagroup.runtime.lag import LoopLag
from kafkagroup.transport.clock import loop_clock
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.one_shot_event import OneShotEvent
from kafkagroup.transport.trouble import Problem, Troubles
from kafkagroup.wire.schema import Request

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from kafkagroup.member.consumer_state import Member as ConsumerMember

__all__ = ["Post", "ThreadedDriver", "this_loop"]

R = TypeVar("R")
T = TypeVar("T")

Call = Callable[[], object]
Post = Callable[[Call], object]
"""Has a loop make a call soon, from any thread; calls are made in order. Raises: RuntimeError when
the loop is over."""

_STOP_TIMEOUT = 1.0
"""Seconds that the thread, cut short, may take to end: a look-up of a host name cannot be."""


class ThreadedDriver(Driver):
    """One member of one group, running in a thread."""

    def __init__(
        self,
        cluster: Cluster,
        member: Member | ConsumerMember,
        application: Application,
        lag: LoopLag,
        history: History | None = None,
    ) -> None:
        super().__init__(cluster, member, _Border(self, application), lag, history)
        self._scope: anyio.CancelScope
        """Around all that the thread does."""
        self._post_here: Post
        self._post_there: Post | None = None
        self._asked: deque[Call] = deque()
        """For the thread, which may not have a loop yet."""
        self._probed: float | None = None
        """When the application's loop was asked whether it runs, until it answers."""
        self._error: BaseException | None = None
        self._ended = OneShotEvent()
        self._calls, self._called = anyio.create_memory_object_stream[
            Callable[[], Awaitable[object]]
        ](float("inf"))

    # ------------------------------------------------------------ in the application's loop

    async def run(self) -> None:
        """Join, and stay until the member has left or failed."""
        backend, options, self._post_here = this_loop()
        self._clock = loop_clock()  # the thread's own goes alike
        # A daemon: one that outlived the application's loop must not keep the process.
        thread = threading.Thread(
            target=self._main, args=(backend, options), name="kafkagroup heartbeats", daemon=True
        )
        try:
            thread.start()
            async for call in self._called:
                await call()
        finally:
            self._to_thread(self._stop)
            with anyio.move_on_after(_STOP_TIMEOUT, shield=True):
                await self._ended.wait()
                thread.join()
            self._called.close()
            self.closed.set()
        if self._error is not None:
            raise self._error

    def _ask(self, event: DriverEvent) -> None:
        self._to_thread(partial(self._post, event))

    def _to_thread(self, call: Call) -> None:
        self._asked.append(call)
        if self._post_there is not None:
            with suppress(RuntimeError):  # its loop is over, and so is the membership
                self._post_there(self._take_asked)

    def _run_here(self, call: Call) -> None:
        try:
            call()
        except Exception as error:
            # This is no task: asyncio would only log the error, and trio would end the whole run.
            self._error = error
            self._to_thread(self._stop)

    def _answer_probe(self, probed: float) -> None:
        self._probed = None
        now = self._clock()
        self._lag.saw(now - probed, now)

    def _end(self) -> None:
        self._calls.close()  # also if the thread failed before it had a loop
        self._ended.set()

    # ------------------------------------------------------------ in the thread

    def _main(self, backend: str, options: dict[str, Any]) -> None:
        try:
            anyio.run(self._live, backend=backend, backend_options=options)
        except BaseException as error:
            self._error = error
        finally:
            with suppress(RuntimeError):  # the application's loop has ended
                self._post_here(self._end)

    async def _live(self) -> None:
        with anyio.CancelScope() as self._scope:
            async with anyio.create_task_group() as tasks:
                self._cluster = _Beside(self._cluster, tasks, self.to_application)
                _, _, self._post_there = this_loop()
                self._take_asked()
                tasks.start_soon(self._probe)
                await self._be_member()
                await self._cluster.aclose()
                tasks.cancel_scope.cancel()
        self._post_here(self._calls.close)

    def _take_asked(self) -> None:
        while self._asked:
            self._asked.popleft()()

    def _stop(self) -> None:
        self._scope.cancel()

    async def _probe(self) -> None:
        while True:
            now, probed = anyio.current_time(), self._probed
            if probed is None:
                self._probed = now
                self.to_application(partial(self._answer_probe, now))
            else:
                self._lag.note(now - probed, now)
            await anyio.sleep(self.member.config.heartbeat_interval)

    def _observe(self, look: Call) -> None:
        # Whoever reads events does so in the application's loop.
        self.to_application(look)

    def _ran(self) -> float:
        probed = self._probed
        return anyio.current_time() if probed is None else probed

    def to_application(self, call: Call) -> None:
        """Have a call made in the application's loop."""
        self._post_here(partial(self._run_here, call))

    async def ask_application(self, function: Callable[[], Awaitable[T]]) -> T:
        """As `hand_over`, and wait for its answer."""
        answer: Future[T] = Future()
        answered = OneShotEvent()

        async def call() -> None:
            try:
                answer.set_result(await function())
            except Exception as error:
                answer.set_exception(error)
            self._to_thread(answered.set)

        self.hand_over(call)
        await answered.wait()
        return answer.result()

    def hand_over(self, function: Callable[[], Awaitable[object]]) -> None:
        """Have a coroutine run in the application's loop, when those before it are done."""
        self.to_application(partial(self._calls.send_nowait, function))


class _Border:
    """The application, as the thread sees it."""

    def __init__(self, driver: ThreadedDriver, application: Application) -> None:
        self._driver = driver
        self._application = application

    def on_generation_end(self, *, lost: bool) -> None:
        self._driver.to_application(partial(self._application.on_generation_end, lost=lost))

    def on_lease_extended(self) -> None:
        self._driver.to_application(self._application.on_lease_extended)

    def on_fatal_error(self, error: Exception) -> None:
        self._driver.to_application(partial(self._application.on_fatal_error, error))

    def on_error(self, error: Exception) -> None:
        self._driver.to_application(partial(cast(Assignee, self._application).on_error, error))

    def poll_due_at(self, loop_ran_at: float) -> float:
        return self._application.poll_due_at(loop_ran_at)

    async def revoke(self, deadline: float) -> SupportedProtocols | None:
        async def revoke() -> SupportedProtocols | None:
            if not self._driver.ownership.is_revoking:
                return None  # lost since, while the loop stalled: nothing can be committed
            return await self._application.revoke(deadline)

        return await self._driver.ask_application(revoke)

    async def lose(self, reason: str) -> SupportedProtocols | None:
        lose = partial(self._application.lose, reason)
        leaving = self._driver.member.leaving
        if leaving is not None and leaving.lost:
            # It did not poll in time; the others must not wait until it does.
            self._driver.hand_over(lose)
            return None
        return await self._driver.ask_application(lose)

    async def assign(self, generation: GenerationInfo) -> None:
        await self._driver.ask_application(partial(self._application.assign, generation))

    async def compute(self, work: Compute) -> Mapping[str, bytes]:
        return await self._driver.ask_application(partial(self._application.compute, work))


class _TroublesBeside(Troubles):
    """The application's, which are reported and read in its loop."""

    def __init__(self, troubles: Troubles, to_application: Callable[[Call], None]) -> None:
        super().__init__()
        self.open = troubles.open
        self._troubles = troubles
        self._to_application = to_application

    def failed(self, key: Hashable, now: float, problem: Problem, **options: Any) -> None:
        self._to_application(partial(self._troubles.failed, key, now, problem, **options))

    def succeeded(self, key: Hashable, now: float) -> None:
        self._to_application(partial(self._troubles.succeeded, key, now))


class _Beside(Cluster):
    """The brokers that the application's cluster knows, over connections of the thread's."""

    def __init__(
        self, cluster: Cluster, tasks: TaskGroup, to_application: Callable[[Call], None]
    ) -> None:
        troubles = _TroublesBeside(cluster.troubles, to_application)
        super().__init__(cluster.bootstrap_servers, cluster.options, tasks, troubles)
        self._other = cluster

    async def request_any(self, request: Request[R]) -> R:
        await self.take(self._other.metadata)
        return await super().request_any(request)


def this_loop() -> tuple[str, dict[str, Any], Post]:
    """The running loop: how to run another one with the same clock, and how to post to it."""
    try:
        # Clocks of asyncio's loops are the system's monotonic one.
        return "asyncio", {}, asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        import trio

        # Each run of trio has a clock with an offset of its own, unless it is given one.
        post = trio.lowlevel.current_trio_token().run_sync_soon
        return "trio", {"clock": trio.lowlevel.current_clock()}, post

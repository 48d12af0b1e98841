"""Event loops in virtual time, with a seeded order of steps and processes that can be frozen.

A simulated run uses one thread and one loop. A context variable that tasks inherit identifies their
process. The loop holds back the steps and timers of a frozen process, and runs them when the
process resumes, as after SIGCONT.

Tasks that are ready together run in an order that the seed determines. Plain callbacks keep theirs:
`call_soon` guarantees it, and programs rely on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, TypeVar

import anyio
import trio
import trio.testing
from trio._core import _run as trio_run

__all__ = ["PROCESS", "ReadyQueue", "run_virtual"]

T = TypeVar("T")

PROCESS: ContextVar[str | None] = ContextVar("process", default=None)
"""The process of a task or callback; None for the simulation itself."""


class ReadyQueue(deque[Any]):
    """The ready queue, without the items of frozen processes.

    It replaces the loop's own queue, of asyncio handles or of trio tasks.
    """

    def __init__(
        self,
        context_of: Callable[[Any], Context | None],
        filler: Callable[[], Any],
        now: Callable[[], float],
        true_now: Callable[[], float],
    ) -> None:
        super().__init__()
        self.now = now
        """The loop's clock, as the current process reads it. Reading it through anyio takes four
        calls."""
        self.true_now = true_now
        """The clock of the simulation and of the brokers, which no suspend stops."""
        self._context_of = context_of
        self._filler = filler
        self._held: dict[str, list[Any]] = {}

    def _hold_or_append(self, item: Any) -> None:
        """Replaces `append` while a process is frozen."""
        process = self._process_of(item)
        if process in self._held:
            self._held[process].append(item)
        else:
            super().append(item)

    def _process_of(self, item: Any) -> str | None:
        context = self._context_of(item)
        return None if context is None else context.get(PROCESS)

    def freeze(self, process: str) -> None:
        """Freeze this process."""
        held = self._hold(process)
        for index, item in enumerate(self):
            if self._process_of(item) == process:
                held.append(item)
                # The loop has counted the items already, so a filler takes this one's place.
                self[index] = self._filler()

    def suspend(self, process: str) -> None:
        """Stop the clock of a frozen process until it is resumed, where that is possible."""

    def resume(self, process: str) -> None:
        """Resume this process."""
        self.extend(self._held.pop(process, ()))
        if not self._held and "append" in vars(self):
            del self.append

    def _hold(self, process: str) -> list[Any]:
        # Replaced only while a process is frozen: `append` runs hundreds of thousands of times.
        self.append = self._hold_or_append  # type: ignore[method-assign]
        return self._held.setdefault(process, [])


# ------------------------------------------------------------------ asyncio


class _Task(asyncio.Task[Any]):
    """A task with a number: anyio cancels tasks from a set, whose order would differ between
    runs."""

    number: int


class _Handle(asyncio.Handle):
    """A handle without asyncio's debugging support: one is created for each step."""

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Any
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, None


_ROUNDING = 1e-9
"""Seconds added to a timer on a clock that is behind: without it, that clock may not have reached
the deadline when the timer fires, and the same timer is set again, for ever."""


class _AsyncioQueue(ReadyQueue):
    """The loop keeps the clocks of suspended processes."""

    def __init__(self, loop: _Loop) -> None:
        super().__init__(
            lambda handle: handle._context,
            lambda: _Handle(lambda: None, (), None),
            loop.time,
            lambda: loop._now,
        )
        self._loop = loop

    def suspend(self, process: str) -> None:
        self._loop.suspend(process)

    def resume(self, process: str) -> None:
        self._loop.wake(process)
        super().resume(process)


class _Loop(asyncio.BaseEventLoop):
    """An asyncio loop in virtual time, with shuffled steps, without files and threads.

    Its clock jumps where a real loop would sleep. Timers due at the same time run in the order in
    which they were set.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._now = 0.0
        self._shuffle = random.Random(seed).shuffle
        self._made = 0
        self._ready: ReadyQueue = _AsyncioQueue(self)
        self._timers: list[tuple[float, int, _Handle]] = []
        self._timers_set = 0
        self._behind: dict[str | None, float] = {}
        """Process -> for how many seconds it was suspended in all."""
        self._suspended: dict[str, tuple[float, list[tuple[float, int, _Handle]]]] = {}
        """Process -> since when it is suspended, and its timers."""
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now - self._behind.get(PROCESS.get(), 0.0) if self._behind else self._now

    def suspend(self, process: str) -> None:
        """Stop the clock of a frozen process, as a suspend of its machine does: its timers are due
        later by as long as that takes."""
        is_its = [handle._context.get(PROCESS) == process for _, _, handle in self._timers]
        its = [timer for timer, found in zip(self._timers, is_its, strict=True) if found]
        self._timers = [t for t, found in zip(self._timers, is_its, strict=True) if not found]
        heapify(self._timers)
        self._suspended[process] = (self._now, its)

    def wake(self, process: str) -> None:
        """Let the clock of a process continue if it is suspended."""
        if process not in self._suspended:
            return
        since, its = self._suspended.pop(process)
        gap = self._now - since
        self._behind[process] = self._behind.get(process, 0.0) + gap
        for when, number, handle in its:
            heappush(self._timers, (when + gap + _ROUNDING, number, handle))

    def _process_events(self, events: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        task = _Task(coro, loop=loop, **options)
        self._made += 1
        task.number = self._made
        return task

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> _Handle:  # type: ignore[override]
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, context)
        if self._behind:
            when += self._behind.get(handle._context.get(PROCESS), 0.0) + _ROUNDING
        return self._set_timer(when, handle)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> _Handle:
        when = self._now + delay
        if self._behind:
            when += _ROUNDING  # else one that sleeps until a time may wake before it, for ever
        return self._set_timer(when, _Handle(callback, args, context))

    def _set_timer(self, when: float, handle: _Handle) -> _Handle:
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, handle))
        return handle

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if len(ready) > 1:
            self._shuffle_tasks(ready)
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if not ready and not self._stopping:
            if not timers:
                raise RuntimeError("deadlock: every task waits, and no timer is set")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            handle = heappop(timers)[2]
            if not handle._cancelled:
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": "a callback failed", "exception": error})

    def _shuffle_tasks(self, ready: ReadyQueue) -> None:
        places, steps = [], []
        for place, handle in enumerate(ready):
            task = getattr(handle._callback, "__self__", None)
            if type(task) is _Task:
                places.append(place)
                steps.append((task.number, handle))
        if len(steps) > 1:
            steps.sort(key=itemgetter(0))
            self._shuffle(steps)
            for place, (_, handle) in zip(places, steps, strict=True):
                ready[place] = handle


# ------------------------------------------------------------------ trio


@contextlib.contextmanager
def _seeded_trio(seed: int) -> Iterator[None]:
    before, state = trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r.getstate()
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(seed)
    try:
        yield
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]
        trio_run._r.setstate(state)


class _TrioQueue(ReadyQueue):
    """Trio empties its queue before a batch runs, so no fillers are needed."""

    def __init__(self) -> None:
        now = trio.current_time
        super().__init__(lambda task: task.context, lambda: None, now, now)

    def freeze(self, process: str) -> None:
        self._hold(process)
        ready = list(self)
        self.clear()
        for task in ready:
            self.append(task)


# ------------------------------------------------------------------ both


def run_virtual(main: Callable[[ReadyQueue], Awaitable[T]], *, backend: str, seed: int) -> T:
    """Run `main` in virtual time from 0, with all randomness from `seed`.

    The garbage collector is off: its timing depends on earlier allocations, so finalizers would run
    at a different point of each replay.
    """
    state = random.getstate()
    collecting = gc.isenabled()
    gc.collect(0)
    gc.disable()
    random.seed(seed)
    try:
        if backend == "trio":
            return _run_trio(main, seed)
        return _run_asyncio(main, seed)
    finally:
        random.setstate(state)
        if collecting:
            gc.enable()


def _run_asyncio(main: Callable[[ReadyQueue], Awaitable[T]], seed: int) -> T:
    async def start() -> T:
        return await main(asyncio.get_running_loop()._ready)  # type: ignore[attr-defined]

    options = {"loop_factory": lambda: _Loop(seed)}
    return anyio.run(start, backend="asyncio", backend_options=options)


def _run_trio(main: Callable[[ReadyQueue], Awaitable[T]], seed: int) -> T:
    async def start() -> T:
        queue = _TrioQueue()
        runner = trio_run.GLOBAL_RUN_CONTEXT.runner
        queue.extend(runner.runq)
        runner.runq = queue
        return await main(queue)

    with _seeded_trio(seed):
        clock = trio.testing.MockClock(autojump_threshold=0)
        return anyio.run(start, backend="trio", backend_options={"clock": clock})

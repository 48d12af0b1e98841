"""Threads and name servers of simulated processes: in virtual time, and slow.

The threads of a client's own are jobs of the agenda. Those that it would share with the application
are all busy.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any
from unittest import mock

import anyio
import attrs
from anyio import to_thread

from kafkagroup.runtime.consume import large_jobs
from kafkagroup.transport import names, threads
from kafkagroup.transport.names import Names, Resolved, SocketAddress
from kafkagroup.transport.threads import Job

from .events import Borrowed, LookedUp
from .loop import PROCESS, ReadyQueue
from .network import Agenda

__all__ = ["SimulatedThreads"]

_USUAL = 0.0005
"""Seconds that a job takes on a machine that is not busy."""

_BUSY = 20.0
"""Seconds for which the application's threads are busy."""


@attrs.define
class SimulatedThreads:
    """The threads of all processes."""

    agenda: Agenda
    ready_queue: ReadyQueue
    record_event: Callable[..., None]
    slow: dict[str, float] = attrs.field(factory=dict)
    """Slot -> how many seconds each of its jobs takes."""
    hangs_until: dict[str, float] = attrs.field(factory=dict)
    """Slot -> when its name servers answer again."""

    def install(self, stack: ExitStack) -> None:
        """Replace all threads; let every job of the library run in one."""
        resolve = Names.resolve

        async def watched_resolve(own: Names, host: str, until: float = math.inf) -> Resolved:
            began_at, outcome = self.ready_queue.true_now(), "cancelled"
            try:
                found = await resolve(own, host, until)
                outcome = "ok"
            except names.UnresolvedError:
                outcome = "unresolved"
                raise
            finally:
                took = self.ready_queue.true_now() - began_at
                member = PROCESS.get()
                self.record_event(LookedUp, member=member, host=host, seconds=took, outcome=outcome)
            return found

        clock = SimpleNamespace(monotonic=self.ready_queue.now)
        for owner, name, new in (
            (threads, "start_thread", self._start),
            (threads, "time", clock),
            (names, "_addresses", _addresses),
            (Names, "resolve", watched_resolve),
            (large_jobs, "_LARGE_JOB", -1),
            (to_thread, "run_sync", self._run_shared),
            (anyio, "getaddrinfo", self._look_up_shared),
        ):
            stack.enter_context(mock.patch.object(owner, name, new))

    def _start(self, job: Job[Any], finish: Callable[[Job[Any]], Job[Any] | None]) -> None:
        """Replaces `start_thread`."""
        context = copy_context()
        slot, now = (PROCESS.get() or "").partition(".")[0], self.ready_queue.true_now()
        ends_at = now + self.slow.get(slot, _USUAL)
        if getattr(job.work, "func", None) is _addresses:
            ends_at = max(now + _USUAL, self.hangs_until.get(slot, 0.0))

        def run() -> None:
            job.run()
            if (following := finish(job)) is not None:
                self._start(following, finish)

        self.agenda.at(ends_at, context.run, run)

    async def _run_shared(self, work: Callable[[], Any], *_: Any, **__: Any) -> Any:
        self.record_event(Borrowed, member=PROCESS.get(), what="a worker thread")
        await anyio.sleep(_BUSY)
        return work()

    async def _look_up_shared(self, host: str, *_: Any, **__: Any) -> Any:
        self.record_event(Borrowed, member=PROCESS.get(), what=f"a look-up of {host}")
        await anyio.sleep(_BUSY)
        return []


def _addresses(host: str, flags: int = 0) -> list[SocketAddress]:
    """Replaces the look-up of a name: names are addresses."""
    if flags:
        raise socket.gaierror(socket.EAI_NONAME, "not an address")
    return [(0, (host, 0))]

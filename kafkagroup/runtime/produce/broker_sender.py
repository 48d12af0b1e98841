"""Sends the batches of the partitions that one broker leads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio

from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.concurrency.coalescing_task import Spawn
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.produce.partition_queue import PartitionQueue

__all__ = ["BrokerSender", "Exchange", "Taken"]

_MAX_IDLE = 60.0
"""Seconds without work after which a task ends: that of a broker, or of its requests."""

Taken = Sequence[tuple[PartitionQueue, ProduceBatch]]
"""The batches of one request, of which each partition has one at most."""

Exchange = Callable[[Taken, Callable[[], None]], Awaitable[None]]
"""Sends a request and handles its response; calls the function once the request is on the
connection."""


class BrokerSender:
    """One task, which sends requests in order, and keeps up to a number of them in flight."""

    def __init__(
        self,
        take: Callable[[OrderedDict[PartitionQueue, None]], Taken],
        exchange: Exchange,
        spawn: Spawn,
        max_in_flight: int,
    ) -> None:
        """`take` returns the batches of the next request, and removes the queues that have nothing
        more to send from those that it gets; `exchange` sends them."""
        self._ready: OrderedDict[PartitionQueue, None] = OrderedDict()
        self._take = take
        self._exchange = exchange
        self._spawn = spawn
        self._max_in_flight = max_in_flight
        self._in_flight_count = 0
        self._idle: list[_Worker] = []
        """The last one to become idle is the first to work again, so that the others end after
        `_MAX_IDLE`."""
        self._changed = ChangeSignal()
        self._is_running = False

    def add(self, queue: PartitionQueue) -> None:
        """Note that a queue may have a batch to send."""
        self._ready[queue] = None
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run, "sender")
        self._changed.notify()

    async def _run(self) -> None:
        try:
            while True:
                taken: Taken = ()
                if self._ready and self._in_flight_count < self._max_in_flight:
                    taken = self._take(self._ready)
                if taken:
                    await self._send(taken)
                elif self._in_flight_count or self._ready:
                    await self._changed.wait()
                elif not await self._changed.wait(anyio.current_time() + _MAX_IDLE):
                    return
        finally:
            self._is_running = False

    async def _send(self, taken: Taken) -> None:
        """Begin an exchange. Returns when it is on the connection: the next one comes behind it."""
        job = _Job(taken)
        self._in_flight_count += 1
        if self._idle:
            self._idle.pop().take(job)
        else:
            self._spawn(partial(self._work, _Worker(job)), "produce request")
        if not job.sent.is_set():
            await job.sent.wait()

    async def _work(self, worker: _Worker) -> None:
        """Do one exchange after the other. A task for each would cost as much as the request."""
        while (job := await worker.next()) is not None:
            try:
                await self._exchange(job.taken, job.sent.set)
            finally:
                job.sent.set()
                self._in_flight_count -= 1
                self._changed.notify()
            self._idle.append(worker)
        self._idle.remove(worker)


class _Job:
    """An exchange, and whether it is on the connection."""

    __slots__ = ("sent", "taken")

    def __init__(self, taken: Taken) -> None:
        self.taken = taken
        self.sent = OneShotEvent()


class _Worker:
    """A task that waits for its next exchange."""

    __slots__ = ("_given", "_job")

    def __init__(self, job: _Job) -> None:
        self._job: _Job | None = job
        self._given = OneShotEvent()

    def take(self, job: _Job) -> None:
        """Do this exchange next."""
        self._job = job
        self._given.set()

    async def next(self) -> _Job | None:
        """Return the next exchange; None after a while without one."""
        if self._job is None:
            self._given = OneShotEvent()
            await self._given.wait(anyio.current_time() + _MAX_IDLE)
        job, self._job = self._job, None
        return job

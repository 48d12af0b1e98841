"""Sends the batches of the partitions that one broker leads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.concurrency.coalescing_task import Spawn
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.produce.partition_queue import PartitionQueue

__all__ = ["BrokerSender", "Exchange", "Taken"]

_MAX_IDLE = 60.0
"""Seconds without work after which a task ends."""

Taken = Sequence[tuple[PartitionQueue, ProduceBatch]]
"""The batches of one request, of which each partition has one at most."""

Exchange = Callable[[Taken, Callable[[], None], Callable[[], None]], Awaitable[None]]
"""Sends a request and handles its response. Calls the first function as soon as the request is on
the connection, the second one as soon as the response has arrived, before handling it."""


class BrokerSender:
    """Sends requests in order, and keeps up to a number of them in flight, each in a task. One task
    at a time takes batches, until its request is on the connection; then it has the next task take
    some, and waits for the response. If one task took the batches of all requests, and passed each
    request on to another task, each would be sent one turn of the loop later.

    A response is handled when it arrives, before its task runs again. What its records' senders
    send next, woken meanwhile, that task takes as soon as it runs.
    """

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
        """The queues that may have a batch to send, the next one first."""
        self._take = take
        self._exchange = exchange
        self._spawn = spawn
        self._max_in_flight = max_in_flight
        self._clock = loop_clock()
        self._in_flight_count = 0
        self._resuming_count = 0
        """The number of tasks whose response has arrived, and that have not run since. They take
        batches when they do, so that no other task need be woken for it."""
        self._is_taking = False
        """Whether a task takes batches, or will as soon as it runs: no other may, so that the
        requests are on the connection in the order in which their batches were taken."""
        self._idle: list[OneShotEvent] = []
        """An event for each task without work; set to have that task take batches. The task that
        became idle last works first, so that the others end after `_MAX_IDLE`."""

    def add(self, queue: PartitionQueue) -> None:
        """Note that a queue may have a batch to send."""
        self._ready[queue] = None
        self._start_taking()

    def _start_taking(self) -> None:
        """Have a task take batches, if none does and another request may be sent. That task runs
        after all tasks that are ready to run now, so that what these send goes into the same
        request."""
        if self._is_taking or self._resuming_count or not self._may_take():
            return
        self._is_taking = True
        if self._idle:
            self._idle.pop().set()
        else:
            self._spawn(self._work, "produce requests")

    def _may_take(self) -> bool:
        """Whether there may be a batch to send, and the limit allows another request."""
        return bool(self._ready) and self._in_flight_count < self._max_in_flight

    async def _work(self) -> None:
        """Do one exchange after the other. A task for each would cost as much as the request."""
        has_work = True
        while has_work:
            taken = self._take(self._ready) if self._may_take() else ()
            self._is_taking = bool(taken)
            is_answered = await self._send(taken) if taken else False
            has_work = (is_answered and not self._is_taking) or await self._wait_idle()

    async def _wait_idle(self) -> bool:
        """Wait until this task shall take batches; return False after a while without work."""
        given = OneShotEvent()
        self._idle.append(given)
        # Even if this wakes this task, it takes batches only after the event: other tasks whose
        # requests failed at the same time, with the connection, act on that first. What follows a
        # batch that was not written must not be sent before that is known.
        self._start_taking()
        if await given.wait(self._clock() + _MAX_IDLE):
            return True
        self._idle.remove(given)
        return False

    async def _send(self, taken: Taken) -> bool:
        """Do one exchange; return whether there was a response."""
        is_on_connection = is_answered = False

        def on_sent() -> None:
            nonlocal is_on_connection
            if not is_on_connection:
                is_on_connection = True
                self._is_taking = False
                self._start_taking()

        def on_answered() -> None:
            nonlocal is_answered
            is_answered = True
            self._in_flight_count -= 1
            self._resuming_count += 1

        self._in_flight_count += 1
        try:
            await self._exchange(taken, on_sent, on_answered)
        finally:
            if is_answered:
                self._resuming_count -= 1
            else:
                self._in_flight_count -= 1
            on_sent()  # does nothing if the request was sent
        return is_answered

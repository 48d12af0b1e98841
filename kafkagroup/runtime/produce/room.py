"""Waiting for room in the memory of a producer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.produce.accumulator import Accumulator

__all__ = ["Room", "Waiter"]


class Room:
    """Wakes the tasks that wait for room when memory was released: those of `send` in the order in
    which they began to wait, and all of `ready`."""

    def __init__(self, accumulator: Accumulator) -> None:
        self.waiters: deque[Waiter] = deque()
        """The tasks of `send` that wait, the first one first. The same object all the time."""
        self._accumulator = accumulator
        self._released = ChangeSignal()
        self._ready_count = 0
        """The number of tasks that wait in `wait_any`."""

    def notify(self) -> None:
        """Wake the first task of `send`, and all of `ready`: memory was released."""
        self._wake_first()
        if self._ready_count:  # saves the call: most batches end while no task waits
            self._released.notify()

    def notify_all(self) -> None:
        """Wake all tasks: the producer accepts no more records."""
        for waiter in self.waiters:
            waiter.wake()
        self._released.notify()

    def _wake_first(self) -> None:
        if self.waiters:
            self.waiters[0].wake()

    @contextmanager
    def waiting(self) -> Iterator[Waiter]:
        """A context in which the task is the last one that waits. At the end, whether the task has
        got its room or not, the first of the others is woken: there may be room for it, too."""
        waiter = Waiter()
        self.waiters.append(waiter)
        try:
            yield waiter
        finally:
            self.waiters.remove(waiter)
            self._wake_first()

    async def wait_any(self) -> None:
        """Wait until the memory is not full any more, as `Accumulator.is_full` defines it."""
        self._ready_count += 1
        try:
            while self._accumulator.is_full:
                await self._released.wait()
        finally:
            self._ready_count -= 1


class Waiter:
    """A task of `send` that waits for room."""

    def __init__(self) -> None:
        self._woken = OneShotEvent()

    def wake(self) -> None:
        """Have the task try again."""
        self._woken.set()

    async def wait(self, until: float) -> None:
        """Wait until woken, or until a time on the loop's clock."""
        await self._woken.wait(until)
        self._woken = OneShotEvent()

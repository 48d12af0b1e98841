"""Functions to call at their times: one task waits for the earliest of these."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

import anyio

from kafkagroup.concurrency.change_signal import ChangeSignal

__all__ = ["Alarms"]


class Alarms:
    """Calls functions at their times."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        """The time of each alarm, its number, and its function."""
        self._numbers = count()  # order alarms of equal times: functions cannot be compared
        self._changed = ChangeSignal()

    def set(self, at: float, ring: Callable[[], None]) -> None:
        """Call `ring` at a time on the loop's clock."""
        is_first = not self._heap or at < self._heap[0][0]
        heappush(self._heap, (at, next(self._numbers), ring))
        if is_first:
            self._changed.notify()

    async def run(self) -> None:
        """Call the functions at their times until cancelled."""
        while True:
            now = anyio.current_time()
            while self._heap and self._heap[0][0] <= now:
                heappop(self._heap)[2]()
            await self._changed.wait(self._heap[0][0] if self._heap else math.inf)

"""Waiting for room in the memory of a producer."""

from __future__ import annotations

import math

from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.produce.accumulator import Accumulator

__all__ = ["Room"]


class Room:
    """Wakes the tasks that wait for room when memory was released."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._released = ChangeSignal()
        self._waiting_count = 0

    def notify(self) -> None:
        """Wake the waiting tasks: memory was released, or the producer accepts no more records."""
        if self._waiting_count:  # saves the call: most batches end while no task waits
            self._released.notify()

    async def wait(self, until: float = math.inf) -> None:
        """Wait until memory is released, or until a time on the loop's clock."""
        self._waiting_count += 1
        try:
            await self._released.wait(until)
        finally:
            self._waiting_count -= 1

    async def wait_any(self) -> None:
        """Wait until the memory is not full any more, as `Accumulator.is_full` defines it."""
        while self._accumulator.is_full:
            await self.wait()

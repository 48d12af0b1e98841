"""A signal that something has changed."""

from __future__ import annotations

import math
from collections.abc import Awaitable

from kafkagroup.concurrency.one_shot_event import OneShotEvent

__all__ = ["ChangeSignal"]


class ChangeSignal:
    """Wakes all tasks that wait for a change. Each then checks whether the change concerns it."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = OneShotEvent()

    def notify(self) -> None:
        """Wake the tasks that wait now."""
        self._next.set()
        self._next = OneShotEvent()

    def wait(self, until: float = math.inf) -> Awaitable[bool]:
        """Wait for the next change, or until a time on the loop's clock. Returns whether there was
        one."""
        return self._next.wait(until)

"""A queue from which one task takes items in order, with an optional deadline.

It is cheaper than a memory stream of anyio: no checkpoint for each item, and five objects fewer. A
member takes two items for each heartbeat.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from kafkagroup.concurrency.one_shot_event import OneShotEvent

__all__ = ["Mailbox"]

T = TypeVar("T")


class Mailbox(Generic[T]):
    """An unbounded queue for one task that takes."""

    __slots__ = ("_items", "_wake")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._wake: OneShotEvent | None = None
        """Set by `put`; None unless a task waits in `take`."""

    def put(self, item: T) -> None:
        """Add an item. Call it only in the loop of the task that takes."""
        self._items.append(item)
        if self._wake is not None:
            self._wake.set()

    async def take(self, until: float = float("inf")) -> T | None:
        """Remove and return the oldest item. Wait for one until a time on the loop's clock, and
        return None if none is put by then."""
        if not self._items:
            self._wake = OneShotEvent()
            try:
                await self._wake.wait(until)
            finally:
                self._wake = None
        return self._items.pop(0) if self._items else None

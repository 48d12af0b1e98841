"""Where one task waits for what others hand to it, in order, and for a time to come.

As a memory stream of anyio is, but for a stay in the loop at each item and five objects: a member
takes two items for each heartbeat, all its life.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from kafkagroup.transport.one_shot_event import OneShotEvent

__all__ = ["Mailbox"]

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Unbounded; one task takes."""

    __slots__ = ("_items", "_wake")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._wake: OneShotEvent | None = None
        """While somebody waits."""

    def put(self, item: T) -> None:
        """Hand over an item. From the loop of whoever takes it."""
        self._items.append(item)
        if self._wake is not None:
            self._wake.set()

    async def take(self, until: float = float("inf")) -> T | None:
        """The oldest item; None when there is none by `until`, on the loop's clock."""
        if not self._items:
            self._wake = OneShotEvent()
            try:
                await self._wake.wait(until)
            finally:
                self._wake = None
        return self._items.pop(0) if self._items else None

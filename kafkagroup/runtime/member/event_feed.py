"""Passes events to readers, each with a bounded buffer, so that none delays the membership.

A reader that is too slow loses the oldest events, and receives `EventsMissed` with their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from weakref import WeakSet

import anyio

from kafkagroup._public import public
from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.errors import ConfigurationError
from kafkagroup.events import EventsMissed, GroupEvent

__all__ = ["EventFeed", "GroupEvents"]


class EventFeed:
    """Passes events on to readers, all in one event loop."""

    def __init__(self) -> None:
        # Weak references: readers need not be closed.
        self._readers: WeakSet[GroupEvents] = WeakSet()
        self._is_closed = False

    def publish(self, event: GroupEvent) -> None:
        """Pass an event on to all readers."""
        for reader in tuple(self._readers):
            reader._add(event)

    def close(self) -> None:
        """End the readers, after their buffered events."""
        self._is_closed = True
        for reader in tuple(self._readers):
            reader._end()

    def open(self, buffer: int, check: Callable[[], None] = lambda: None) -> GroupEvents:
        """Return a reader of later events, with room for `buffer` events. The reader calls `check`
        before each event: `check` raises in another process or event loop than the client's.
        Raises: ConfigurationError unless `buffer` is a whole number, at least 1."""
        if not isinstance(buffer, int) or buffer < 1:
            raise ConfigurationError(f"buffer={buffer!r}; expected a whole number, at least 1")
        reader = GroupEvents(buffer)
        reader._set_check(check)
        self._readers.add(reader)
        if self._is_closed:
            reader._end()
        return reader


@public
class GroupEvents:
    """The async iterator of `events()`: the events from its creation until the client is closed.

    A cancelled wait loses nothing.
    """

    def __init__(self, buffer: int) -> None:
        self._check: Callable[[], None] = lambda: None
        self._events: deque[GroupEvent] = deque()
        self._buffer = buffer
        """How many events it holds at most."""
        self._missed = 0
        """How many events were dropped since the last `EventsMissed`."""
        self._is_closed = False
        self._changed = ChangeSignal()

    def __aiter__(self) -> GroupEvents:
        return self

    async def __anext__(self) -> GroupEvent:
        """Return the next event; `EventsMissed` in place of dropped ones. Ends when the client is
        closed and no buffered events are left."""
        self._check()
        await anyio.lowlevel.checkpoint()
        while not self._events:
            if self._is_closed:
                raise StopAsyncIteration
            await self._changed.wait()
        if self._missed:
            missed, self._missed = EventsMissed(count=self._missed), 0
            return missed
        return self._events.popleft()

    def _set_check(self, check: Callable[[], None]) -> None:
        self._check = check

    def _add(self, event: GroupEvent) -> None:
        if len(self._events) == self._buffer:
            self._events.popleft()
            self._missed += 1
        self._events.append(event)
        self._changed.notify()

    def _end(self) -> None:
        self._is_closed = True
        self._changed.notify()

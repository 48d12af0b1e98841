"""What must happen in time: L1 to L6.

Deadlines count only while the world keeps its part: before `Healed` only what the member can do by
itself is asked of it. Time in which a process stands still is not its own.
"""

from __future__ import annotations

from collections import deque

import attrs

from ..events import (
    Answered,
    Closing,
    Delivered,
    Ended,
    Finished,
    Lost,
    Processed,
    Sent,
)
from .book import Book, Handlers, Life

_GAP = 0.1
"""Seconds, L1."""
_REJOIN = 2.0
"""Seconds, L2."""
_RATE = 20
"""Requests in a second under an error, L6."""
_SLACK = 0.5
"""Seconds by which a heartbeat may be late: what answers it waits for what is before it."""
_ALIKE = 4
"""So many pauses of exactly the same length are no accident, L6."""

_RETRIED = frozenset(
    (
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REQUEST_TIMED_OUT",
        "UNSTABLE_OFFSET_COMMIT",
    )
)
"""Errors after which the same request is sent again after a back-off."""
_PAUSED = frozenset(("JoinGroup", "OffsetCommit", "OffsetFetch", "FindCoordinator"))
"""Requests that are retried after a pause of their own."""
_MEMBERSHIP = frozenset(("JoinGroup", "SyncGroup", "Heartbeat"))


@attrs.define(eq=False)
class Pulse:
    """How a member is."""

    beaten_at: float | None = None
    """When the last heartbeat was answered well; None while it owes none."""
    beaten_by: int = -1
    connection: int = -1
    parked: bool = False
    """A JoinGroup or SyncGroup is its heartbeat now."""
    away_since: float | None = None
    """Since when the application has not come to the client; None while it waits there."""
    away_by: int = -1
    requests: dict[str, deque[tuple[float, int]]] = attrs.field(factory=dict)
    """Kind of request -> when and by which event those of the last second were refused."""
    refused_at: dict[str, tuple[float, str]] = attrs.field(factory=dict)
    """Kind of request -> when it was refused by what passes."""
    pauses: dict[float, int] = attrs.field(factory=dict)
    """Length of a pause before a retry, in microseconds -> how many there were."""


class Liveness:
    """The rules of time."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._pulses: dict[Life, Pulse] = {}
        self.longest_beat = 0.0
        self.handlers: Handlers = {
            Sent: self._sent,
            Answered: self._answered,
            Ended: self._ended,
            Lost: self._lost,
            Delivered: self._delivered,
            Processed: self._processed,
            Closing: self._closing,
            Finished: self._finished,
        }

    def _pulse(self, life: Life) -> Pulse:
        pulse = self._pulses.get(life)
        if pulse is None:
            pulse = self._pulses[life] = Pulse()
        return pulse

    # ------------------------------------------------------------ heartbeats

    def _sent(self, number: int, event: Sent) -> None:
        life = self._book.life(event.member)
        pulse = self._pulse(life)
        if event.api == "FindCoordinator":
            pulse.beaten_at = None  # nobody to send it to
        if event.api in _MEMBERSHIP or event.api == "LeaveGroup":
            self._beat(number, event, life, pulse)
        if event.api in ("JoinGroup", "LeaveGroup"):
            pulse.parked = True
        if event.api == "Heartbeat":
            self._away(number, event, life, pulse)
        refused = pulse.refused_at.pop(event.api, None)
        if refused is not None:
            self._paused(number, event, life, pulse, event.time - refused[0])

    def _beat(self, number: int, event: Sent, life: Life, pulse: Pulse) -> None:
        """L3: where the connection is the same nothing was in the way."""
        if pulse.beaten_at is None:
            return
        since = max(pulse.beaten_at, life.thawed_at)
        gap = event.time - since
        if event.connection == pulse.connection:
            self.longest_beat = max(self.longest_beat, gap)
            if gap > life.told.heartbeat_interval + _SLACK:
                text = f"{life.name} sends no heartbeat for {gap:.2f} s"
                self._book.report("L3", event, text, pulse.beaten_by, number)
        pulse.beaten_at = None

    def _away(self, number: int, event: Sent, life: Life, pulse: Pulse) -> None:
        """L2: a member whose application is gone must not keep its partitions."""
        if pulse.away_since is None or not life.held:
            return
        since = max(pulse.away_since, life.thawed_at)
        if event.time - since > life.told.max_poll_interval + _REJOIN:
            text = f"{life.name} beats on, {event.time - since:.1f} s after its application left"
            self._book.report("L2", event, text, pulse.away_by, number)

    def _answered(self, number: int, event: Answered) -> None:
        life = self._book.life(event.member)
        pulse = self._pulse(life)
        if event.api == "SyncGroup":
            pulse.parked = False
        if event.api in ("Heartbeat", "SyncGroup"):
            pulse.beaten_at = None
            if not pulse.parked and event.error in ("NONE", "REBALANCE_IN_PROGRESS"):
                pulse.beaten_at, pulse.beaten_by = event.time, number
                pulse.connection = event.connection
        if event.error == "NONE":
            pulse.requests.pop(event.api, None)
            return
        if event.error in _RETRIED and event.api in _PAUSED:
            pulse.refused_at[event.api] = (event.time, event.error)
        self._refused(number, event, life, pulse)

    def _lost(self, number: int, event: Lost) -> None:
        self._pulse(self._book.life(event.member)).beaten_at = None

    # ------------------------------------------------------------ back-off

    def _refused(self, number: int, event: Answered, life: Life, pulse: Pulse) -> None:
        """L6: the same thing is not refused more than 20 times in a second."""
        times = pulse.requests.setdefault(event.api, deque())
        times.append((event.time, number))
        while times[0][0] <= event.time - 1.0:
            times.popleft()
        if len(times) > _RATE and life.thawed_at < times[0][0]:
            text = f"{life.name} sends {event.api} {len(times)} times in a second; {event.error}"
            self._book.report("L6", event, text, times[0][1], number)
            times.clear()

    def _paused(self, number: int, event: Sent, life: Life, pulse: Pulse, pause: float) -> None:
        """L6: pauses before retries are not alike, or members come back all at once."""
        if not self._book.virtual or pause < 0.01 or life.thawed_at > event.time - pause:
            return
        length = round(pause, 6)
        pulse.pauses[length] = pulse.pauses.get(length, 0) + 1
        if pulse.pauses[length] == _ALIKE:
            text = f"{life.name} has waited exactly {length} s before {_ALIKE} retries"
            self._book.report("L6", event, text, number)

    # ------------------------------------------------------------ the application

    def _delivered(self, number: int, event: Delivered) -> None:
        pulse = self._pulse(self._book.life(event.member))
        pulse.away_since, pulse.away_by = event.time, number

    def _processed(self, number: int, event: Processed) -> None:
        pulse = self._pulse(self._book.life(event.member))
        pulse.away_since = None

    # ------------------------------------------------------------ closing

    def _closing(self, number: int, event: Closing) -> None:
        self._pulse(self._book.life(event.member)).beaten_at = None

    def _ended(self, number: int, event: Ended) -> None:
        life = self._book.life(event.member)
        if event.leaked:
            text = f"{life.name} leaves behind {', '.join(event.leaked)}"
            self._book.report("L4", event, text, number)
        if life.closing is None:
            return
        by, at = life.closing
        took = event.time - max(at, life.thawed_at)
        if took > life.told.close_timeout + _SLACK:
            text = f"{life.name} closes for {took:.1f} s"
            self._book.report("L4", event, text, by, number)

    def _finished(self, number: int, event: Finished) -> None:
        for life in self._book.lives.values():
            if life.closing is not None and not life.over:
                text = f"{life.name} never ends"
                self._book.report("L4", event, text, life.closing[0], number)
        if self._book.healed is None:
            return
        for tp, end in event.ends.items():
            log = self._book.logs.get(tp)
            at = event.committed.get(tp, -1)
            if log is not None and log.known and log.next_visible(max(at, 0)) < end:
                text = f"{tp} is left at {at} of {end}, {event.time - self._book.healed:.1f} s"
                self._book.report("L2", event, f"{text} after all was well again", number)

"""Timers by key. The caller passes the time, runs what is due, and asks for the next deadline.

Nothing here reads a clock or sleeps. Actions due at the same time run in the order in which they
were scheduled, so that a run in virtual time is reproducible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

__all__ = ["Action", "Timers", "elapsed_ms"]

Action = Callable[[float], None]
"""Called with the time at which it runs."""


class Timers:
    """At most one deadline per key; a new one replaces the old one. Times are in seconds, on the
    caller's clock."""

    def __init__(self) -> None:
        self._due: dict[Hashable, tuple[float, int, Action]] = {}
        """Key -> deadline, sequence number of the call that scheduled it, action."""
        self._sequence = 0
        self.on_earlier: Callable[[], None] = lambda: None
        """Called when the next deadline moves earlier, to wake a task that sleeps until the old
        one."""

    def schedule(self, key: Hashable, at: float, action: Action) -> None:
        """Run `action` at time `at`, or at the first `run` after it."""
        before = self.next()
        at = _without_rounding_errors(at)
        self._sequence += 1
        self._due[key] = (at, self._sequence, action)
        if before is None or at < before:
            self.on_earlier()

    def cancel(self, key: Hashable) -> None:
        """Remove the deadline of this key, if there is one."""
        self._due.pop(key, None)

    def next(self) -> float | None:
        """Return the nearest deadline; None when nothing is scheduled. O(deadlines)."""
        return min(at for at, _, _ in self._due.values()) if self._due else None

    def run(self, now: float) -> None:
        """Run all due actions, including those that these actions schedule."""
        until = _without_rounding_errors(now)
        while due := [(at, n, key) for key, (at, n, _) in self._due.items() if at <= until]:
            _, _, key = min(due, key=lambda item: item[:2])  # without keys: they have no order
            _, _, action = self._due.pop(key)
            action(now)


def _without_rounding_errors(moment: float) -> float:
    """Return a moment to the microsecond: sums of seconds that are equal in milliseconds may differ
    in their last bits, which would decide what runs first."""
    return round(moment, 6)


def elapsed_ms(since: float, now: float) -> float:
    """Return the whole milliseconds between two moments, as a broker's clock counts them; infinite
    if `since` is -inf. To learn whether an interval is over, compare these: in seconds, a rounding
    error can put the sum of a moment and the interval slightly after the moment of its end."""
    elapsed = now - since
    return elapsed if math.isinf(elapsed) else round(elapsed * 1000)

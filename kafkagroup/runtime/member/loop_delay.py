"""Records how late the event loop ran, and warns when heartbeats are at risk.

A task that waits until some time reports by how much later it ran. Nothing here waits or reads a
clock. All clients of a loop are late together, so they share one warning.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyio.lowlevel import RunVar

__all__ = ["LoopDelay"]

logger = logging.getLogger(__name__)

_WINDOW = 30.0
"""Seconds of one window; the maxima of the current and the last window are kept."""

_WARN_INTERVAL = 60.0
"""Seconds between two warnings: a loop that is blocked once is blocked often."""

_WARN_FRACTION = 1 / 3
"""A delay of this fraction of the session timeout causes a warning."""

_WARN_AFTER = 5.0
"""Seconds of delay that cause a warning even if the session timeout is long: rebalances wait for
the loop, too."""

_ADVICE = "run what blocks it in a thread, for example with anyio.to_thread.run_sync"


@cache
def _next_warning_at() -> RunVar[float]:
    """Return each loop's own variable: when it may log the next warning. The members of one loop
    share it, or a thousand of them would log a thousand warnings."""
    # Imported here: few loops are ever late, and importing a consumer must stay cheap.
    from anyio.lowlevel import RunVar

    return RunVar("kafkagroup_next_loop_delay_warning_at", float("-inf"))


class LoopDelay:
    """The lateness of one loop. Several threads may use it."""

    def __init__(self, group_id: str, session_timeout: float, *, threaded: bool) -> None:
        """`threaded`: whether a thread with a loop of its own sends the heartbeats."""
        self._group_id = group_id
        self.warn_after = min(session_timeout * _WARN_FRACTION, _WARN_AFTER)
        """Seconds of delay that cause a warning."""
        self._delayed = "rebalances" if threaded else "heartbeats"
        self._advice = _ADVICE if threaded else f"{_ADVICE}, or set heartbeat_thread=True"
        self._window_began_at = float("-inf")
        self._longest = 0.0
        self._previous_longest = 0.0

    @property
    def longest(self) -> float:
        """The longest delay of the last 30 to 60 seconds before the last report, in seconds."""
        return max(self._longest, self._previous_longest)

    def add_delay(self, late: float, now: float) -> None:
        """Add the delay of something that ran, or still waits, `late` seconds after its time; `now`
        is on the loop's clock."""
        elapsed = now - self._window_began_at
        if elapsed >= _WINDOW:
            # After a pause of two windows, no delay of the last window is recent.
            self._previous_longest = self._longest if elapsed < 2 * _WINDOW else 0.0
            self._longest, self._window_began_at = 0.0, now
        self._longest = max(self._longest, late)

    def record(self, late: float, now: float) -> None:
        """Add the delay of something that ran `late` seconds after its time; warn of a long one.
        Must be called in an event loop: all clients of the loop share the time of the next
        warning."""
        self.add_delay(late, now)
        if late < self.warn_after or now < _next_warning_at().get():
            return
        _next_warning_at().set(now + _WARN_INTERVAL)
        logger.warning(
            "group %s: the event loop was late by %.1f s, which delayed %s; %s",
            self._group_id,
            late,
            self._delayed,
            self._advice,
        )

"""Records how late the event loop ran, and warns when heartbeats are at risk.

A task that waits for a moment reports by how much it was late. Nothing here waits or reads a clock.
"""

from __future__ import annotations

import logging

__all__ = ["LoopLag"]

logger = logging.getLogger(__name__)

_HALF = 30.0
"""Seconds of one window; the maxima of the current and the last window are kept."""

_QUIET = 60.0
"""Seconds between warnings: a loop that is blocked once is blocked often."""

_SHARE = 1 / 3
"""The share of the session timeout from which a delay causes a warning."""

_MOST = 5.0
"""Seconds from which it does for any session timeout: rebalances wait as well."""

_ADVICE = "let what blocks run in a thread, as by anyio.to_thread.run_sync"


class LoopLag:
    """The lateness of one loop. Several threads may use it."""

    def __init__(self, group_id: str, session_timeout: float, *, threaded: bool) -> None:
        self._group_id = group_id
        self.enough = min(session_timeout * _SHARE, _MOST)
        """Seconds of delay that cause a warning."""
        self._waited = "rebalances" if threaded else "heartbeats"
        self._advice = _ADVICE if threaded else f"{_ADVICE}, or set heartbeat_thread=True"
        self._quiet_until = float("-inf")
        self._turned = float("-inf")
        self._worst = 0.0
        self._before = 0.0

    @property
    def longest(self) -> float:
        """By how many seconds the loop was late, at most, during the last minute or so."""
        return max(self._worst, self._before)

    def note(self, late: float, now: float) -> None:
        """Keep that something ran, or still waits, `late` seconds after its time."""
        if now - self._turned >= _HALF:
            self._before, self._worst, self._turned = self._worst, 0.0, now
        self._worst = max(self._worst, late)

    def saw(self, late: float, now: float) -> None:
        """Keep that something ran `late` seconds after its time, and warn if that was long."""
        self.note(late, now)
        if late < self.enough or now < self._quiet_until:
            return
        self._quiet_until = now + _QUIET
        logger.warning(
            "group %s: the event loop was late by %.1f s, and %s waited: %s",
            self._group_id,
            late,
            self._waited,
            self._advice,
        )

"""Deadlines for leaving the group, and whether the consumer is closing.

To leave, the member finishes the records in flight, commits, calls the rebalance listener, and
sends LeaveGroup. `stop` and `unsubscribe` both leave the group.
"""

from __future__ import annotations

import math

from kafkagroup.errors import ClosedError

__all__ = ["LEAVE_FRACTION", "CloseSequence"]

_DRAIN_FRACTION = 0.5
"""The part of the close timeout that the records in flight get. The commit and the callbacks get
what is left until `LEAVE_FRACTION`."""

LEAVE_FRACTION = 0.95
"""The part of the close timeout that leaving the group may take; the rest is for closing the
connections."""


class CloseSequence:
    """The close sequence of one consumer. Times are on its loop's clock."""

    def __init__(self, timeout: float, leave_group: bool | None) -> None:
        """`timeout`: the close timeout, in seconds. `leave_group`: see the field."""
        self.has_begun = False
        """Whether the consumer is closing or closed."""
        self.failure: Exception | None = None
        """Why the consumer closes, if the application has not requested it."""
        self.leave_group = leave_group
        """Whether leaving sends LeaveGroup; None: all but static members send it."""
        self.drain_deadline = math.inf
        """When the member stops waiting for the records in flight; inf while not leaving."""
        self.leave_deadline = math.inf
        """When leaving must be complete; inf while not leaving."""
        self._timeout = timeout

    @property
    def drain_timeout(self) -> float:
        """Seconds that the records in flight get."""
        return self._timeout * _DRAIN_FRACTION

    @property
    def leave_timeout(self) -> float:
        """Seconds that leaving may take."""
        return self._timeout * LEAVE_FRACTION

    def error(self) -> Exception:
        """Return what calls raise once the consumer is closing."""
        return self.failure or ClosedError("the consumer is closed")

    def begin_leaving(self, now: float) -> None:
        """Set both deadlines when the member starts to leave."""
        self.drain_deadline = now + self.drain_timeout
        self.leave_deadline = now + self.leave_timeout

    def end_leaving(self) -> None:
        """Clear the deadlines when the member has left."""
        self.drain_deadline = self.leave_deadline = math.inf

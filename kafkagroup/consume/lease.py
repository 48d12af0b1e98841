"""Until when records may be handed out without looking around: pure, and asked for each record.

Whoever looks around, grants; whatever may change what there was to see, ends it. It is compiled
where a compiler is at hand, by the types in `lease.pxd`.
"""

from __future__ import annotations

__all__ = ["Lease"]

_ENDED = float("-inf")


class Lease:
    """Of one consumer. Times are on its loop's clock."""

    __slots__ = ("last_poll", "until")

    def __init__(self) -> None:
        self.until = _ENDED
        """No record is handed out from here on before somebody has looked around."""
        self.last_poll = 0.0
        """When the application last came to the client or left it."""

    def grant(self, until: float) -> None:
        """Records may be handed out until a time on the loop's clock."""
        self.until = until

    def note_poll(self, now: float) -> None:
        """The application has entered or left the client."""
        self.last_poll = now

    def end(self) -> None:
        """Something has changed, or somebody else needs the loop."""
        self.until = _ENDED

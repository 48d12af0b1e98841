"""The delivery permit: until when records may be delivered without further checks. Pure.

It is read for each record. The reader grants it after its checks; any change that could alter their
result ends it. This file is compiled, with the types in `delivery_permit.pxd`, where a compiler is
available.
"""

from __future__ import annotations

__all__ = ["DeliveryPermit"]

_ENDED = float("-inf")


class DeliveryPermit:
    """The delivery permit of one consumer, ended until it is granted."""

    __slots__ = ("ahead", "expires_at", "last_poll_at")

    def __init__(self) -> None:
        self.expires_at = _ENDED
        """When the permit expires, on the lease clock, which also counts while the system is
        suspended: after that, no record is delivered before the next checks."""
        self.ahead = 0.0
        """By how many seconds the lease clock was ahead of the loop's when the permit was
        granted."""
        self.last_poll_at = 0.0
        """When the application last entered or left the client, on the loop's clock."""

    def grant(self, expires_at: float, ahead: float) -> None:
        """Allow records to be delivered until a time on the lease clock, which is `ahead` seconds
        ahead of the loop's."""
        self.expires_at = expires_at
        self.ahead = ahead

    def note_poll(self, now: float) -> None:
        """Note, by the loop's clock, that the application has entered or left the client."""
        self.last_poll_at = now

    def end(self) -> None:
        """End the permit: the state has changed, or another task needs the loop."""
        self.expires_at = _ENDED

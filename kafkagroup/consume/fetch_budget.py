"""How many bytes to fetch ahead: within the memory limit, and at the application's pace. Pure.

One limit bounds the sum of the buffered bytes and of those that all fetch requests in flight may
return. The only exception: a broker responds with at least one batch, however large (KIP-74).
Within the limit, the target adapts so that the application rarely waits. Long polls leave a part of
the limit to immediate fetches: a broker may hold a long poll for seconds, and with it the bytes
reserved for its response.
"""

from __future__ import annotations

__all__ = ["FetchBudget"]

_MIN_TARGET = 1024 * 1024
"""Lower limit of the target, in bytes: smaller responses cost more than they save."""


class FetchBudget:
    """The fetch budget of one consumer, updated with each request and response."""

    def __init__(self, limit: int) -> None:
        """`limit`: the maximum of the buffered bytes and those in flight, together."""
        self._limit = limit
        self._reserve = min(_MIN_TARGET, limit // 4)
        """Bytes that long polls leave to immediate fetches."""
        self.target = min(_MIN_TARGET, limit)
        """How many bytes to have buffered; also the maximum that one request asks for."""
        self.in_flight_bytes = 0
        """The most bytes that the requests in flight may return."""

    def long_poll_size(self, *, buffered: int, unread: int, lanes: int) -> int:
        """Return how many bytes a long poll may ask for; 0 without room, or if enough are unread.

        `lanes` is how many long polls can be in flight. `unread` is the part of the `buffered`
        bytes that can be delivered: the bytes of paused partitions take room, but the application
        cannot read them.
        """
        if unread >= self.target:
            return 0
        limit = self._limit - self._reserve
        left = limit - buffered - self.in_flight_bytes
        return max(0, min(self.target, limit // lanes, left))

    def immediate_size(self, *, buffered: int) -> int:
        """Return how many bytes an immediate fetch may ask for. Unread bytes do not matter: they
        belong to other partitions, and the application may be waiting for this one."""
        return max(0, min(self.target, self._limit - buffered - self.in_flight_bytes))

    def on_request(self, size: int) -> None:
        """Count a fetch request that was sent, and may return `size` bytes."""
        self.in_flight_bytes += size

    def on_response(self, size: int) -> None:
        """Count a request of `size` bytes as ended, by a response or an error."""
        self.in_flight_bytes -= size

    def on_records(self, unread: int) -> None:
        """Adapt the target when records arrive, while `unread` bytes of earlier ones are left: with
        none left the application had to wait, and with most of them left it is slow."""
        if not unread:
            self.target = min(self._limit, 2 * self.target)
        elif unread > self.target * 3 // 4:
            self.target = max(min(_MIN_TARGET, self._limit), self.target // 2)

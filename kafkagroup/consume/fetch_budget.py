"""How many bytes to fetch ahead: within the memory limit, and at the application's pace. Pure.

The bytes that are buffered and those that requests in flight to all brokers may bring stay within
one limit together. The only exception: a broker responds with at least one batch, however large
(KIP-74). Within the limit, the target adapts so that the application rarely waits. Long polls leave
a part of the limit to immediate fetches: a broker may hold a long poll, and the bytes reserved for
its response, for seconds.
"""

from __future__ import annotations

__all__ = ["FetchBudget"]

_LEAST = 1024 * 1024
"""Lower limit of the target, in bytes: smaller responses cost more than they save."""


class FetchBudget:
    """The fetch budget of one consumer, updated with each request and response."""

    def __init__(self, most: int) -> None:
        """`most` limits the bytes that are buffered and in flight together."""
        self._most = most
        self._reserve = min(_LEAST, most // 4)
        """Bytes that long polls leave to immediate fetches."""
        self.wanted = min(_LEAST, most)
        """The target: bytes to have buffered, and the most that one request asks for."""
        self.in_flight_bytes = 0
        """Bytes that the responses to requests in flight may bring."""

    def share(self, *, buffered: int, unread: int, lanes: int) -> int:
        """Return how many bytes a long poll on one of the `lanes` may ask for; 0 while enough are
        unread.

        `unread` is the part of the `buffered` bytes that can be delivered: the bytes of paused
        partitions take room, but the application cannot read them.
        """
        if unread >= self.wanted:
            return 0
        most = self._most - self._reserve
        left = most - buffered - self.in_flight_bytes
        return max(0, min(self.wanted, most // lanes, left))

    def immediate_share(self, *, buffered: int) -> int:
        """Return how many bytes an immediate fetch may ask for. Unread bytes do not matter: they
        belong to other partitions, and the application may wait for these."""
        return max(0, min(self.wanted, self._most - buffered - self.in_flight_bytes))

    def asked(self, size: int) -> None:
        """Count a fetch request that was sent, and may bring `size` bytes."""
        self.in_flight_bytes += size

    def answered(self, size: int) -> None:
        """Count that request as ended, by a response or an error."""
        self.in_flight_bytes -= size

    def arrived(self, unread: int) -> None:
        """Adapt the target when records arrive; `unread` bytes of earlier ones were left then."""
        if not unread:
            self.wanted = min(self._most, 2 * self.wanted)
        elif unread > self.wanted * 3 // 4:
            self.wanted = max(min(_LEAST, self._most), self.wanted // 2)

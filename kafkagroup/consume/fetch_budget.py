"""How many bytes are fetched ahead: what memory allows, and what the application keeps up with.

Pure. What is buffered and what is on its way from all brokers stays within one bound, whatever each
of them has; only that a broker answers with one batch at least, however large (KIP-74), goes beyond
it. Within the bound, as much is wanted as keeps the application from waiting. Long polls leave a
part of it free for immediate fetches: a broker may hold a long poll, and the bytes that it may
bring, for seconds.
"""

from __future__ import annotations

__all__ = ["FetchBudget"]

_LEAST = 1024 * 1024
"""Bytes that are always wanted: smaller answers cost more than they save."""


class FetchBudget:
    """Of one consumer. Mutable: asked before each fetch, and told of each answer."""

    def __init__(self, most: int) -> None:
        """`most`: bytes that may be buffered and on their way, together."""
        self._most = most
        self._reserve = min(_LEAST, most // 4)
        """Bytes that long polls leave to immediate fetches."""
        self.wanted = min(_LEAST, most)
        """Bytes that are enough, for now, to have buffered; and to ask for at a time."""
        self.on_its_way = 0
        """Bytes that were asked for and may come."""

    def share(self, *, buffered: int, unread: int, lanes: int) -> int:
        """Return how many bytes a long poll on one of the `lanes` may ask for; 0 while enough are
        unread.

        `unread` of the `buffered` bytes the application can have: those of paused partitions take
        room, but keep nobody from waiting.
        """
        if unread >= self.wanted:
            return 0
        most = self._most - self._reserve
        left = most - buffered - self.on_its_way
        return max(0, min(self.wanted, most // lanes, left))

    def immediate_share(self, *, buffered: int) -> int:
        """Return how many bytes an immediate fetch may ask for. What is unread does not count: it
        is of other partitions, and the application may wait for these."""
        return max(0, min(self.wanted, self._most - buffered - self.on_its_way))

    def asked(self, size: int) -> None:
        """A fetch has left that may bring so many bytes."""
        self.on_its_way += size

    def answered(self, size: int) -> None:
        """That fetch has ended, well or not."""
        self.on_its_way -= size

    def arrived(self, unread: int) -> None:
        """Records have come, and so many bytes of those before were unread then."""
        if not unread:
            self.wanted = min(self._most, 2 * self.wanted)
        elif unread > self.wanted * 3 // 4:
            self.wanted = max(min(_LEAST, self._most), self.wanted // 2)

"""Java's `Random`, and the `UUID`s that it makes: both coordinators draw the same ids from a seed.

Orders depend on the ids: see `hash_map`.
"""

from __future__ import annotations

from uuid import UUID

__all__ = ["JavaRandom"]

_MASK = (1 << 48) - 1


class JavaRandom:
    """The linear congruential generator of `java.util.Random`."""

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ 0x5DEECE66D) & _MASK

    def next_bytes(self, count: int) -> bytes:
        """Return what `nextBytes` writes, for a count divisible by 4."""
        return b"".join(self._next_int().to_bytes(4, "little") for _ in range(count // 4))

    def _next_int(self) -> int:
        self._state = (self._state * 0x5DEECE66D + 0xB) & _MASK
        return self._state >> 16

    def uuid(self) -> UUID:
        """Return what `UUID.randomUUID` makes of the next 16 bytes."""
        return UUID(bytes=self.next_bytes(16), version=4)

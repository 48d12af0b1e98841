"""Corruptions of a response in transit: other bytes, or an end in the middle of the frame.

None of these yields a different valid response, so a correct client detects each one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

__all__ = ["MANGLERS", "Mangler"]

Mangler = Callable[[bytes], list[bytes] | None]
"""Takes a frame with its length, and returns the chunks that arrive; None: its first half arrives,
and then the connection closes."""

_HEADER_SIZE = 8
"""Bytes of the length and the correlation id."""


def _garbage(random: Random) -> Mangler:
    """Replace the frame with noise, under a correlation id that no request has."""

    def mangle(frame: bytes) -> list[bytes]:
        noise = b"\x7f" + random.randbytes(max(7, len(frame) - 5))
        return [len(noise).to_bytes(4, "big") + noise]

    return mangle


def _truncate(random: Random) -> Mangler:
    """Shorten the frame and its length, so that the message ends too early."""

    def mangle(frame: bytes) -> list[bytes]:
        keep = max(_HEADER_SIZE, len(frame) - random.randint(1, 8))
        return [(keep - 4).to_bytes(4, "big") + frame[4:keep]]

    return mangle


def _duplicate(_: Random) -> Mangler:
    return lambda frame: [frame, frame]


def _cut(_: Random) -> Mangler:
    return lambda frame: None


MANGLERS: dict[str, Callable[[Random], Mangler]] = {
    "garbage": _garbage,
    "truncate": _truncate,
    "duplicate": _duplicate,
    "cut": _cut,
}
"""Name of the fault -> a function that creates it."""

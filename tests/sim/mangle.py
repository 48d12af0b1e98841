"""What can become of one answer on its way: other bytes, or an end in the middle of it.

None of these can pass for another whole answer: what is broken here no client can take for sound.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

__all__ = ["MANGLERS", "Mangler"]

Mangler = Callable[[bytes], list[bytes] | None]
"""Frame, with its length -> what arrives, piece by piece; None for its first half and the end."""

_HEAD = 8
"""Length and correlation id."""


def _garbage(random: Random) -> Mangler:
    """A frame of noise in its place, its id that of no request."""

    def mangle(frame: bytes) -> list[bytes]:
        noise = b"\x7f" + random.randbytes(max(7, len(frame) - 5))
        return [len(noise).to_bytes(4, "big") + noise]

    return mangle


def _truncate(random: Random) -> Mangler:
    """A shorter frame, whole by its length, whose message ends too early."""

    def mangle(frame: bytes) -> list[bytes]:
        keep = max(_HEAD, len(frame) - random.randint(1, 8))
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
"""Name of the fault -> what makes one."""

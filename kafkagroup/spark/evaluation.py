"""Whether a group gets on with a partition, by the rules that Burrow made known. Pure.

They look at the last commits, not at a threshold: a lag that shrinks is no matter, and one that is
small but does not move is. The order of the rules counts. Source: Burrow's wiki, "Consumer Lag
Evaluation Rules".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise

import attrs

__all__ = ["WINDOW", "Commit", "Status", "evaluate"]

WINDOW = 10
"""How many commits are looked at."""


class Status(IntEnum):
    """How it is, the worse the higher: a group is as badly off as its worst partition."""

    OK = 0
    WARN = 1
    """It falls behind."""
    STALL = 2
    """It commits, and always the same."""
    STOP = 3
    """It has ceased to commit."""
    REWIND = 4
    """It has gone back, and not come again to where it was."""


@attrs.frozen
class Commit:
    """One commit, and how far the log's end was from it then."""

    time: float
    """Seconds since the epoch."""
    offset: int
    lag: int


def evaluate(
    window: Sequence[Commit], ends: Sequence[int], now: float, *, lag: int, allowed: int = 0
) -> Status:
    """The status of a partition.

    `window`: the last commits, `WINDOW` at most, oldest first; `ends`: the log ends sampled lately;
    `lag`: that of now. A lag of up to `allowed` is none.
    """
    if not window or lag <= allowed:
        return Status.OK
    first, last = window[0], window[-1]
    quiet = now - last.time > last.time - first.time
    if quiet and ends and all(end > last.offset for end in ends):
        return Status.STOP
    went_back = any(later.offset < earlier.offset for earlier, later in pairwise(window))
    if went_back and last.offset < max(commit.offset for commit in window):
        return Status.REWIND
    if any(commit.lag <= allowed for commit in window):
        return Status.OK
    if all(commit.offset == first.offset for commit in window):
        return Status.STALL
    if all(later.lag >= earlier.lag for earlier, later in pairwise(window)):
        return Status.WARN
    return Status.OK

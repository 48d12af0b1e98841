"""The status of a group's consumption of a partition, by Burrow's rules. Pure.

The rules use the last commits, and by default no threshold: a lag that shrinks is healthy, and a
small lag that does not shrink is not. The first rule that applies decides. Source: Burrow's wiki,
"Consumer Lag Evaluation Rules".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise

import attrs

__all__ = ["WINDOW", "Commit", "Status", "evaluate"]

WINDOW = 10
"""The number of last commits that are evaluated."""


class Status(IntEnum):
    """The status of a partition; a higher value is worse. A group has the status of its worst
    partition."""

    OK = 0
    WARN = 1
    """The lag does not shrink: it grows, or stays the same."""
    STALL = 2
    """The group commits, but always the same offset."""
    STOP = 3
    """The group no longer commits."""
    REWIND = 4
    """The committed offset went back, and has not reached its former value again."""


@attrs.frozen
class Commit:
    """One commit, and the lag at its time."""

    time: float
    """Seconds since the epoch."""
    offset: int
    lag: int


def evaluate(
    window: Sequence[Commit], ends: Sequence[int], now: float, *, lag: int, allowed: int = 0
) -> Status:
    """Return the status of a partition.

    `window`: the last commits, at most `WINDOW`, oldest first; `ends`: the recent log ends; `now`:
    seconds since the epoch; `lag`: the current lag. A lag of up to `allowed` records counts as
    none.
    """
    if not window or lag <= allowed:
        return Status.OK
    first, last = window[0], window[-1]
    # No commit for longer than the whole window took.
    has_stopped = now - last.time > last.time - first.time
    if has_stopped and ends and all(end > last.offset for end in ends):
        return Status.STOP
    if last.offset < max(commit.offset for commit in window):
        return Status.REWIND
    if any(commit.lag <= allowed for commit in window):
        return Status.OK
    if all(commit.offset == first.offset for commit in window):
        return Status.STALL
    if all(later.lag >= earlier.lag for earlier, later in pairwise(window)):
        return Status.WARN
    return Status.OK

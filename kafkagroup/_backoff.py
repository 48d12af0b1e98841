"""The backoff before a retry."""

from __future__ import annotations

__all__ = ["backoff", "backoff_within"]


def backoff(attempt: int, first: float, most: float, jitter: float) -> float:
    """Return the seconds to wait before retry number `attempt` (from 1): `first`, doubled with each
    attempt up to `most`, and then plus or minus 20%. So the longest pause is 1.2 times `most`.

    `first` and `most` are in seconds. `jitter` is a random number in [0, 1). Without it, members
    that lost a broker at the same time would reconnect at the same time. Source: KIP-580.
    """
    # `float` raises OverflowError from 2**1024 on; `most` is reached long before 2**30.
    exponent = min(attempt - 1, 30)
    return min(most, first * float(2**exponent)) * (0.8 + 0.4 * jitter)


def backoff_within(pause: float, first: float, left: float) -> float:
    """Return `pause`, shortened to half of the seconds that are `left` until a deadline, or to
    `first`, the initial backoff, if that is more.

    A pause that ends after the deadline leaves no time for another attempt: the call would fail
    even if the broker recovered soon after the last one.
    """
    return min(pause, max(left / 2, first))

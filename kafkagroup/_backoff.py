"""The backoff before a retry."""

from __future__ import annotations

__all__ = ["backoff", "backoff_within"]


def backoff(attempt: int, first: float, most: float, jitter: float) -> float:
    """Return the seconds to wait before retry number `attempt` (from 1): `first`, doubled with each
    attempt up to `most`, plus or minus 20%.

    `jitter` lies in [0, 1). Without it, members that lost a broker at the same time would reconnect
    at the same time. Source: KIP-580.
    """
    exponent = min(attempt - 1, 30)
    return min(most, first * float(2**exponent)) * (0.8 + 0.4 * jitter)


def backoff_within(pause: float, first: float, left: float) -> float:
    """Return `pause`, or half of the seconds that are `left` until a deadline if that is less, but
    not less than `first`, the initial backoff.

    A pause beyond the deadline would be the end of the retries, although up to a whole pause is
    left: what recovers in it would not be noticed.
    """
    return min(pause, max(left / 2, first))

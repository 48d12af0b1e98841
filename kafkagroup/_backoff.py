"""How long to wait before trying again."""

from __future__ import annotations

__all__ = ["backoff"]


def backoff(attempt: int, first: float, most: float, jitter: float) -> float:
    """Seconds before retry number `attempt` (from 1): doubling up to `most`, plus or minus 20%.

    `jitter` lies in [0, 1). Without it members that lost a broker together come back together.
    Source: KIP-580.
    """
    exponent = min(attempt - 1, 30)
    return min(most, first * float(2**exponent)) * (0.8 + 0.4 * jitter)

"""The attempts of one operation: backoff between them, and the time of each.

The steps of a membership (`kafkagroup.member`) compute their own backoff, as they do no I/O.
"""

from __future__ import annotations

import math
import random

import anyio

from kafkagroup._backoff import backoff, backoff_within
from kafkagroup.transport.options import ClientOptions

__all__ = ["RetryBackoff", "part_of", "part_until"]

_PART = 1 / 3
"""The fraction of a timeout that the first attempt gets."""

_LEAST_PART = 1.0
"""Seconds. A shorter attempt would fail at brokers that are only busy."""


def part_of(timeout: float) -> float:
    """Return how many seconds of a timeout one attempt may take, if another one may follow: if the
    connection is dead, only another attempt over a new connection succeeds."""
    return max(timeout * _PART, min(timeout, _LEAST_PART))


def part_until(deadline: float) -> float:
    """Return the deadline of one attempt, if another one may follow until `deadline`. Both are on
    the loop's clock."""
    now = anyio.current_time()
    return now + part_of(deadline - now)


class RetryBackoff:
    """The exponential backoff of one operation."""

    def __init__(self, options: ClientOptions, initial: float | None = None) -> None:
        """`initial`: the first backoff, in seconds; None: `retry_backoff` of the options."""
        self._initial = options.retry_backoff if initial is None else initial
        self._max = max(options.retry_backoff_max, self._initial)
        self._attempts = 0

    def next(self) -> float:
        """Count an attempt; return the seconds to wait before the next one."""
        self._attempts += 1
        return backoff(self._attempts, self._initial, self._max, random.random())

    async def wait(self, deadline: float = math.inf) -> None:
        """Wait before the next attempt. Near the deadline of the operation, on the loop's clock,
        wait less, so that its last attempt has time."""
        left = deadline - anyio.current_time()
        await anyio.sleep(backoff_within(self.next(), self._initial, left))

    def reset(self) -> None:
        """Begin with the initial backoff again, after a success."""
        self._attempts = 0

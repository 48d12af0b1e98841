"""Backoff between the attempts of one operation.

The steps of a membership (`kafkagroup.member`) compute their own backoff, as they do no I/O.
"""

from __future__ import annotations

import random

import anyio

from kafkagroup._backoff import backoff
from kafkagroup.transport.options import ClientOptions

__all__ = ["RetryBackoff"]


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

    async def wait(self) -> None:
        """Wait before the next attempt."""
        await anyio.sleep(self.next())

    def reset(self) -> None:
        """Begin with the initial backoff again, after a success."""
        self._attempts = 0

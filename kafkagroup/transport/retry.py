"""Backoff between retries. The membership has a backoff of its own, in the pure core."""

from __future__ import annotations

import random

import anyio

from kafkagroup._backoff import backoff
from kafkagroup.transport.options import ClientOptions

__all__ = ["Pauses"]


class Pauses:
    """The growing pauses between the attempts of one operation."""

    def __init__(self, options: ClientOptions, first: float | None = None) -> None:
        """`first`: the first pause, in seconds; None: `retry_backoff` of the options."""
        self._first = options.retry_backoff if first is None else first
        self._most = max(options.retry_backoff_max, self._first)
        self._attempts = 0

    def next(self) -> float:
        """Count an attempt; return the seconds to wait before the next one."""
        self._attempts += 1
        return backoff(self._attempts, self._first, self._most, random.random())

    async def wait(self) -> None:
        """Wait before the next attempt."""
        await anyio.sleep(self.next())

    def reset(self) -> None:
        """Reset after a success: the next pause is the first again."""
        self._attempts = 0

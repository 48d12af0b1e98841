"""Waiting between tries, for what is not the membership's business (that has its own back-off)."""

from __future__ import annotations

import random

import anyio

from kafkagroup._backoff import backoff
from kafkagroup.transport.options import ClientOptions

__all__ = ["Pauses"]


class Pauses:
    """The growing pauses of one thing that is tried again and again."""

    def __init__(self, options: ClientOptions, first: float | None = None) -> None:
        """`first`: the first pause, in seconds; None for that of the options."""
        self._first = options.retry_backoff if first is None else first
        self._most = max(options.retry_backoff_max, self._first)
        self._attempts = 0

    def next(self) -> float:
        """Seconds to wait before the next try."""
        self._attempts += 1
        return backoff(self._attempts, self._first, self._most, random.random())

    async def wait(self) -> None:
        """Wait before the next try."""
        await anyio.sleep(self.next())

    def reset(self) -> None:
        """It worked: the next pause is short again."""
        self._attempts = 0

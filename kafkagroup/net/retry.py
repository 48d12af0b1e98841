"""Waiting between tries, for what is not the membership's business (that has its own back-off)."""

from __future__ import annotations

import random

import anyio

from kafkagroup.member.backoff import backoff
from kafkagroup.net.options import ClientOptions

__all__ = ["Pauses"]


class Pauses:
    """The growing pauses of one thing that is tried again and again."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._attempts = 0

    def next(self) -> float:
        """Seconds to wait before the next try."""
        self._attempts += 1
        options = self._options
        return backoff(
            self._attempts, options.retry_backoff, options.retry_backoff_max, random.random()
        )

    async def wait(self) -> None:
        """Wait before the next try."""
        await anyio.sleep(self.next())

    def reset(self) -> None:
        """It worked: the next pause is short again."""
        self._attempts = 0

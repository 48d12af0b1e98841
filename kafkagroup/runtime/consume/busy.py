"""The error for two tasks that read from one consumer at the same time.

Not in `kafkagroup.errors`, which must be importable without anyio.
"""

from __future__ import annotations

import anyio

from kafkagroup._public import public
from kafkagroup.errors import IllegalStateError

__all__ = ["ConsumerBusyError"]


@public
class ConsumerBusyError(IllegalStateError, anyio.BusyResourceError):
    """Another task is reading from this consumer; only one task at a time may."""

    def __init__(
        self,
        message: str = "another task is reading from this consumer; let one task read, and hand the"
        " records on to others",
    ) -> None:
        # Not `super()`: anyio's `__init__` takes a verb, and builds a message of its own.
        Exception.__init__(self, message)

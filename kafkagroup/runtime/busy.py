"""The error of two tasks that read from one consumer at a time.

Not in `kafkagroup.errors`, which must be importable where anyio is missing.
"""

from __future__ import annotations

import anyio

from kafkagroup._public import public
from kafkagroup.errors import IllegalStateError

__all__ = ["ConsumerBusyError"]


@public
class ConsumerBusyError(IllegalStateError, anyio.BusyResourceError):
    """Another task is reading from this consumer: one task at a time may."""

    def __init__(
        self,
        message: str = "another task is reading from this consumer; let one task read, and hand the"
        " records on to others",
    ) -> None:
        # Not `super()`: anyio's takes a verb, and makes another sentence of it.
        Exception.__init__(self, message)

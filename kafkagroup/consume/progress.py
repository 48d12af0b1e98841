"""How far one partition has been read: what changes with each record, apart from what does not.

It is compiled where a compiler is at hand, by the types in `progress.pxd`.
"""

from __future__ import annotations

__all__ = ["UNKNOWN", "Progress"]

UNKNOWN = -1
"""An offset that is not known yet."""


class Progress:
    """Base of `OwnedPartition`."""

    def __init__(self) -> None:
        self.position = UNKNOWN
        """Offset of the next record to hand out."""
        self.processed = UNKNOWN
        """Everything below it is processed: what a commit commits."""
        self.leader_epoch = -1
        """Epoch of the last record handed out, committed beside its offset (KIP-320)."""

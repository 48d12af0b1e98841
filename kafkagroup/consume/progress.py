"""The position of one partition: the fields of `OwnedPartition` that change with each record.

This file is compiled, with the types in `progress.pxd`, where a compiler is available.
"""

from __future__ import annotations

__all__ = ["UNKNOWN", "Progress"]

UNKNOWN = -1
"""An offset that is not known yet."""


class Progress:
    """The fields of `OwnedPartition` that change with each record. They are in a class of their own
    so that Cython stores them as C integers."""

    def __init__(self) -> None:
        self.position = UNKNOWN
        """Offset of the next record to deliver."""
        self.processed = UNKNOWN
        """All records below this offset are processed; a commit commits this offset."""
        self.leader_epoch = -1
        """Leader epoch of the record before `position`, -1 if it is unknown; committed with
        `processed` (KIP-320)."""

    def advance(self, position: int, leader_epoch: int) -> None:
        """Set the position, after reading or skipping records of this leader epoch."""
        self.position = position
        self.leader_epoch = leader_epoch

    def mark_processed(self) -> None:
        """Mark all records below the position as processed."""
        self.processed = self.position

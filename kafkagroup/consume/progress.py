"""The position of one partition: the fields of `OwnedPartition` that change with each record.

This file is compiled, with the types in `progress.pxd`, where a compiler is available.
"""

from __future__ import annotations

__all__ = ["UNKNOWN", "Progress"]

UNKNOWN = -1
"""An offset that is not known yet."""


class Progress:
    """Base of `OwnedPartition`."""

    def __init__(self) -> None:
        self.position = UNKNOWN
        """Offset of the next record to deliver."""
        self.processed = UNKNOWN
        """All records below this offset are processed; a commit commits this offset."""
        self.leader_epoch = -1
        """Leader epoch of the last record delivered; committed with the offset (KIP-320)."""

    def advance(self, position: int, leader_epoch: int) -> None:
        """Set the position past the records, or the batch, of this leader epoch."""
        self.position = position
        self.leader_epoch = leader_epoch

    def count_processed(self) -> None:
        """Count all records below the position as processed."""
        self.processed = self.position

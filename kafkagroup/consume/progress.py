"""The progress of one partition: what is delivered, in flight and complete.

A delivery is one record, or consecutive ones that are processed together. Deliveries may be
completed in any order. All records below the oldest delivery that is not complete are processed; a
commit commits the offset at which that delivery begins. An acknowledgement policy decides when a
delivery is complete. This file is compiled, with the types in `progress.pxd`, where a compiler is
available.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["UNKNOWN", "Progress"]

UNKNOWN = -1
"""An offset that is not known yet."""


class Progress:
    """The fields of `OwnedPartition` that change with each record. They are in a class of their own
    so that Cython stores them as C integers."""

    def __init__(self) -> None:
        self.position = UNKNOWN
        """Offset of the next record to deliver."""
        self.leader_epoch = -1
        """Leader epoch of the record before `position`, -1 if it is unknown (KIP-320)."""
        self.processed = UNKNOWN
        """All records below this offset are processed: where the oldest delivery in flight begins,
        or, without one, the position."""
        self.processed_epoch = -1
        """Leader epoch of the record before `processed`; committed with it."""
        self.oldest = 0
        """Number of the oldest delivery in flight; 0 for none."""
        self._begun = 0
        """How many deliveries have begun: the number of the last one."""
        self._later: OrderedDict[int, tuple[int, int]] | None = None
        """The deliveries in flight after the oldest, in order: number -> the position and the
        leader epoch at which it began. A policy with one delivery at a time needs no entry, so
        nothing is allocated for each record."""

    def begin(self) -> int:
        """Begin a delivery at the position; the caller advances the position past it. Return the
        number of the delivery, for `complete`. An offset would not identify it: after a seek,
        another delivery begins at the same offset."""
        self._begun += 1
        if self.oldest == 0:
            self.oldest = self._begun
        else:
            if self._later is None:
                self._later = OrderedDict()
            self._later[self._begun] = self.position, self.leader_epoch
        return self._begun

    def complete(self, delivery: int) -> None:
        """Note that the delivery of this number is processed. Without effect for one that a seek or
        a truncation has dropped."""
        if delivery != self.oldest:
            if self._later is not None:
                self._later.pop(delivery, None)
        elif self._later is not None and self._later:
            self.oldest, (self.processed, self.processed_epoch) = self._later.popitem(last=False)
        else:
            self.oldest = 0
            self.processed = self.position
            self.processed_epoch = self.leader_epoch

    def advance(self, position: int, leader_epoch: int) -> None:
        """Set the position, after reading or skipping records of this leader epoch."""
        self.position = position
        self.leader_epoch = leader_epoch
        if self.oldest == 0:
            self.processed = position
            self.processed_epoch = leader_epoch

    def restart(self, position: int, leader_epoch: int) -> None:
        """Continue at another position. Drop all deliveries in flight: they never count as
        processed, even if they are completed."""
        self.oldest = 0
        self._later = None
        self.advance(position, leader_epoch)

    def restart_above(self, position: int) -> None:
        """Continue at another position. Deliveries that began below it stay in flight, and the
        others are dropped."""
        if self.processed >= position:  # where the oldest delivery begins: all are dropped
            self.oldest = 0
            self._later = None
        elif self._later is not None:
            kept = [(number, at) for number, at in self._later.items() if at[0] < position]
            self._later = OrderedDict(kept)
        self.advance(position, -1)

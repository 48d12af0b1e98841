"""The acknowledgement policy: when what was delivered counts as processed.

Only here does a poll of the application count as an acknowledgement. This file is compiled, with
the types in `acknowledgement.pxd`, where a compiler is available.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.consume.progress import Progress
from kafkagroup.types import TopicPartition

__all__ = ["SequentialPolling"]


class SequentialPolling:
    """What was delivered is in flight until the application polls again, or commits. All records of
    a partition that are in flight are one delivery of its `Progress`."""

    def __init__(self) -> None:
        self.is_held = False
        """Whether `complete` has no effect: a transaction collects records by several polls, and
        completes them at its end."""
        self._first: OwnedPartition | None = None
        """A partition with records in flight; None for none."""
        self._others: tuple[OwnedPartition, ...] = ()
        """The other partitions with records in flight, mostly none. They are apart from `_first`
        because a tuple of one partition would be allocated for each record."""

    def begin(self, owned: OwnedPartition) -> None:
        """Note that the records from the position on are delivered. Call it before the position is
        advanced past them."""
        if self._first is None:
            self._first = owned
        elif owned is not self._first and owned not in self._others:
            self._others = (*self._others, owned)
        if owned.oldest == 0:  # `Progress` has no delivery of it in flight yet
            Progress.begin(owned)  # not `owned.begin()`: see `progress.pxd`

    def complete(self) -> None:
        """Note that the application polls or commits: it has processed what was delivered."""
        if self._first is None or self.is_held:
            return
        Progress.complete(self._first, self._first.oldest)  # not the method: see `progress.pxd`
        for owned in self._others:
            owned.complete(owned.oldest)
        self._first, self._others = None, ()

    def forget(self, partitions: Iterable[OwnedPartition]) -> None:
        """Forget what is in flight of these partitions: it does not count as processed. Their
        delivery in `Progress` stays open, so that nothing past it is committed: the caller restarts
        the partitions, or delivers no more of them."""
        forgotten = frozenset(partitions)
        kept = [owned for owned in self._in_flight() if owned not in forgotten]
        self.forget_all()
        if kept:
            self._first, *others = kept
            self._others = tuple(others)

    def forget_all(self) -> None:
        """Forget all that is in flight, as `forget` does: the application will not process it."""
        self._first, self._others = None, ()

    def in_flight_among(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return those of these partitions that have records in flight."""
        return [owned.tp for owned in self._in_flight() if owned.tp in partitions]

    def _in_flight(self) -> tuple[OwnedPartition, ...]:
        return () if self._first is None else (self._first, *self._others)

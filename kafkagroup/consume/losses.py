"""Partitions that were lost before the delivered records were committed.

A later commit cannot commit these records: the new owner delivers them again. But the next
`commit()` must report them, once, or the application would believe that they are committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import CommitFailedError
from kafkagroup.types import TopicPartition

__all__ = ["Losses"]

_MAX_NAMES = 20
"""The most partitions that a message names: an eager rebalance may revoke thousands."""


class Losses:
    """The lost partitions of one consumer since the last report."""

    def __init__(self) -> None:
        self._lost: dict[TopicPartition, tuple[OwnedPartition, str]] = {}

    def add(self, owned: OwnedPartition, reason: str) -> None:
        """Note a partition that is being released, unless all that was delivered is committed."""
        before = self._lost.get(owned.tp)
        # An earlier loss stays: a commit in flight may yet be acknowledged for the later one, and
        # the earlier one would not be reported.
        if owned.is_uncommitted and (before is None or not before[0].is_uncommitted):
            self._lost[owned.tp] = owned, reason

    def forget(self) -> None:
        """Drop the losses: the application leaves those records to the auto-commit."""
        self._lost.clear()

    def take(self, owned: Mapping[TopicPartition, OwnedPartition]) -> CommitFailedError | None:
        """Return the error that reports the losses, and forget them; None if there are none.

        A partition is not reported if its position was committed after all: by a commit whose
        response arrived after the release, or since the partition was assigned again, as `owned`
        shows.
        """
        lost, self._lost = self._lost, {}
        by_reason: dict[str, list[TopicPartition]] = {}
        for tp, (one, reason) in sorted(lost.items(), key=lambda item: item[0]):
            again = owned.get(tp)
            if one.is_uncommitted and (again is None or again.committed < one.position):
                by_reason.setdefault(reason, []).append(tp)
        if not by_reason:
            return None
        partitions = sorted(tp for tps in by_reason.values() for tp in tps)
        why = "; ".join(
            reason if len(by_reason) == 1 else f"{_names(tps)}: {reason}"
            for reason, tps in by_reason.items()
        )
        return CommitFailedError(
            f"commit of {_names(partitions)} failed: lost before the delivered records were"
            f" committed ({why}); the new owner continues from the last committed offset",
            tuple(partitions),
        )


def _names(partitions: list[TopicPartition]) -> str:
    names = ", ".join(map(str, partitions[:_MAX_NAMES]))
    more = len(partitions) - _MAX_NAMES
    return names if more <= 0 else f"{names} and {more} more"

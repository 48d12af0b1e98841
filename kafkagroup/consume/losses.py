"""Partitions that were lost before the delivered records were committed.

A later commit cannot commit these records: the new owner delivers them again. But the next
`commit()` must report them: otherwise the application would believe that they are committed.
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
        """Partition -> its ended assignment, which a late response to a commit still changes, and
        the reason of the loss."""

    def add(self, owned: OwnedPartition, reason: str) -> None:
        """Note a partition that is being released, unless all that was delivered is committed."""
        before = self._lost.get(owned.tp)
        # An earlier loss stays while it is uncommitted: if a commit in flight covers the later one,
        # only the earlier one is left to report.
        if owned.is_uncommitted and (before is None or not before[0].is_uncommitted):
            self._lost[owned.tp] = owned, reason

    def forget(self) -> None:
        """Drop the losses without a report: the auto-commit is responsible for those records."""
        self._lost.clear()

    def take(self, owned: Mapping[TopicPartition, OwnedPartition]) -> CommitFailedError | None:
        """Return the error that reports the losses, and forget them; None if there are none.

        A partition is not reported if its position was committed after all: by a commit whose
        response arrived after the release, or since the partition was assigned again. `owned`: the
        partitions that the consumer owns now.
        """
        lost, self._lost = self._lost, {}
        by_reason: dict[str, list[TopicPartition]] = {}
        for tp, (released, reason) in sorted(lost.items(), key=lambda item: item[0]):
            current = owned.get(tp)
            if released.is_uncommitted and (
                current is None or current.committed < released.position
            ):
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

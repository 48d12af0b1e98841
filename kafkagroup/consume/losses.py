"""What was delivered and never committed of partitions that are no longer owned.

A commit can do nothing for it: the new owner gets those records again. But an application that
asks for a commit has to be told, once, or it takes them for committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import CommitFailedError
from kafkagroup.types import TopicPartition

__all__ = ["Losses"]

_MOST_NAMED = 20
"""Partitions that a message names: an eager rebalance may take thousands."""


class Losses:
    """Of one consumer, from one report to the next."""

    def __init__(self) -> None:
        self._lost: dict[TopicPartition, tuple[OwnedPartition, str]] = {}

    def add(self, owned: OwnedPartition, reason: str) -> None:
        """Note a partition that is being released; nothing where all of it is committed."""
        before = self._lost.get(owned.tp)
        # The one before stays: a commit on its way may yet be acknowledged for this one.
        if owned.is_uncommitted and (before is None or not before[0].is_uncommitted):
            self._lost[owned.tp] = owned, reason

    def forget(self) -> None:
        """The application does not rely on a commit of its own for what it has lost."""
        self._lost.clear()

    def take(self, owned: Mapping[TopicPartition, OwnedPartition]) -> CommitFailedError | None:
        """The error that reports what is lost, and forget it; None if there is nothing to report.

        What has been committed after all is not lost: by an answer that came after the release, or
        since the partition came back, of which `owned` tells.
        """
        lost, self._lost = self._lost, {}
        reasons: dict[str, list[TopicPartition]] = {}
        for tp, (one, reason) in sorted(lost.items(), key=lambda item: item[0]):
            again = owned.get(tp)
            if one.is_uncommitted and (again is None or again.committed < one.position):
                reasons.setdefault(reason, []).append(tp)
        if not reasons:
            return None
        partitions = sorted(tp for tps in reasons.values() for tp in tps)
        why = "; ".join(
            reason if len(reasons) == 1 else f"{_names(tps)}: {reason}"
            for reason, tps in reasons.items()
        )
        return CommitFailedError(
            f"commit of {_names(partitions)} failed: lost before what was delivered was committed"
            f" ({why}); the new owner continues from the last committed offset",
            tuple(partitions),
        )


def _names(partitions: list[TopicPartition]) -> str:
    names = ", ".join(map(str, partitions[:_MOST_NAMED]))
    more = len(partitions) - _MOST_NAMED
    return names if more <= 0 else f"{names} and {more} more"

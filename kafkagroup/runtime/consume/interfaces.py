"""What the parts of a running consumer require of its engine. No implementer is imported here."""

from __future__ import annotations

from typing import Protocol

from kafkagroup.consume.owned import OwnedPartition

__all__ = ["FetchControl"]


class FetchControl(Protocol):
    """What the parts of a consumer call when a partition has changed. No method waits."""

    def wake(self) -> None:
        """Have the fetcher and the waiting tasks check again: there may be more to fetch."""

    def on_partitions_added(self) -> None:
        """Look up the positions of new partitions, and fetch those that already have one."""

    def look_up_positions(self) -> None:
        """Look up missing positions, and validate those that need it."""

    def fail_partition(self, owned: OwnedPartition, error: Exception) -> None:
        """Raise `error` to the application, and fetch nothing from the partition until it seeks."""

"""The partitions that a member owns according to its callbacks, which every client has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import attrs

__all__ = ["Ownership", "Record"]

Record = Callable[[int], None]
"""Called with the partition of each record that a member reads."""


@attrs.define(eq=False)
class Ownership:
    """The partitions that one member owns according to its callbacks."""

    owned: frozenset[int] = frozenset()
    """Partitions of the one topic."""
    changed_at: float = 0.0
    """When that changed last, on the clock of `time.perf_counter`."""

    def gained(self, partitions: Iterable[Any]) -> None:
        """Add partitions: anything that has a `partition`."""
        self._change(self.owned | {tp.partition for tp in partitions})

    def gone(self, partitions: Iterable[Any]) -> None:
        """Remove partitions."""
        self._change(self.owned - {tp.partition for tp in partitions})

    def _change(self, owned: frozenset[int]) -> None:
        # A new value, never a changed one: librdkafka's threads come here while the loop looks.
        if owned != self.owned:
            self.owned, self.changed_at = owned, time.perf_counter()

"""Which replica the records of each partition are fetched from (KIP-392). No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable

from kafkagroup.types import TopicPartition

__all__ = ["NearestReplicas"]

_MAX_AGE = 300.0
"""Seconds for which a preferred replica, or its refusal of a partition, is remembered. Java's
consumers remember a preferred replica as long (`metadata.max.age.ms`)."""


class NearestReplicas:
    """The replicas that leaders prefer for the client's rack, and the partitions that such replicas
    did not serve. Times are on `clock`, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._preferred: dict[TopicPartition, tuple[int, float]] = {}
        """Partition -> the node id of its preferred read replica, and until when it is used."""
        self._refused: dict[TopicPartition, float] = {}
        """Partition -> until when it is fetched from its leader."""

    def preferred(self, tp: TopicPartition) -> int | None:
        """Return the node id of the replica to fetch from; None if none is known."""
        node_id, until = self._preferred.get(tp, (None, 0.0))
        return node_id if self._clock() < until else None

    def note_preferred(self, tp: TopicPartition, node_id: int) -> None:
        self._preferred[tp] = node_id, self._clock() + _MAX_AGE

    def is_refused(self, tp: TopicPartition) -> bool:
        """Whether the preferred replica did not serve the partition in the last `_MAX_AGE` seconds.
        For so long the rack must not be sent to the leader, which would name that replica again."""
        return self._clock() < self._refused.get(tp, 0.0)

    def note_refused(self, tp: TopicPartition) -> None:
        self._preferred.pop(tp, None)
        self._refused[tp] = self._clock() + _MAX_AGE

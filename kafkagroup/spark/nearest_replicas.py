"""Which replica the records of each partition are fetched from (KIP-392). Pure."""

from __future__ import annotations

import time
from collections.abc import Callable

from kafkagroup.types import TopicPartition

__all__ = ["NearestReplicas"]

_MAX_AGE = 300.0
"""Seconds after which the leader is asked again, as Java's consumers ask it."""


class NearestReplicas:
    """The replicas that leaders have named for the client's rack, and those that do not serve."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._named: dict[TopicPartition, tuple[int, float]] = {}
        """Partition -> node id, and until when it is used."""
        self._refused: dict[TopicPartition, float] = {}
        """Partition -> until when it is fetched from its leader."""

    def named(self, tp: TopicPartition) -> int | None:
        """Return the node id of the replica to fetch from; None if none is known."""
        node_id, until = self._named.get(tp, (None, 0.0))
        return node_id if self._clock() < until else None

    def note_named(self, tp: TopicPartition, node_id: int) -> None:
        self._named[tp] = node_id, self._clock() + _MAX_AGE

    def is_refused(self, tp: TopicPartition) -> bool:
        """Whether the named replica has not served the partition: its leader would name it again
        if it knew the rack."""
        return self._clock() < self._refused.get(tp, 0.0)

    def note_refused(self, tp: TopicPartition) -> None:
        self._named.pop(tp, None)
        self._refused[tp] = self._clock() + _MAX_AGE

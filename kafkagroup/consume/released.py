"""Where to continue if partitions that were released come back. Pure.

Without a group no coordinator keeps positions. A topic that all brokers reported as absent may come
back under the same id: it was not deleted, so its positions stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.types import TopicPartition

__all__ = ["ReleasedPartitions"]

_MAX_PARTITIONS = 100_000
"""The limit of partitions that are kept; those released first are forgotten first."""


class ReleasedPartitions:
    """The partitions that are not owned while their topic is absent."""

    def __init__(self) -> None:
        self._kept: dict[TopicPartition, OwnedPartition] = {}

    def keep(self, released: Iterable[OwnedPartition]) -> None:
        """Keep the positions of partitions that are released."""
        for owned in released:
            owned.drop_buffer()
            self._kept[owned.tp] = owned
        while len(self._kept) > _MAX_PARTITIONS:
            del self._kept[next(iter(self._kept))]

    def forget(self, is_subscribed: Callable[[str], bool]) -> None:
        """Forget the partitions of topics that are not subscribed to."""
        self._kept = {tp: owned for tp, owned in self._kept.items() if is_subscribed(tp.topic)}

    def restore(self, owned: OwnedPartition, topic_id: UUID) -> None:
        """Continue where the partition was released, unless it is of another topic now. `topic_id`:
        the topic's id; NO_ID from a broker without topic ids, whose leader then tells whether the
        position is in its log."""
        before = self._kept.pop(owned.tp, None)
        if before is not None and not before.is_of_other_topic(topic_id):
            owned.continue_from(before)

"""The partitions of one topic, and how records without a partition are spread over them.

The key determines the partition as in Java's producer, so that both write the same key to the same
partition. Records without a key follow KIP-480 and KIP-794: one partition takes some kilobytes of
them, then the next is drawn. The less a partition has to send, the likelier it is drawn. Partitions
without a leader are not drawn.

Compiled where possible, with the types in `topic_queues.pxd`: `choose` runs for each record.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from uuid import UUID

from kafkagroup.callbacks import Partitioner
from kafkagroup.errors import ConfigurationError
from kafkagroup.produce.batch import UnplacedRecords
from kafkagroup.produce.partition_queue import PartitionQueue
from kafkagroup.wire.murmur2 import partition_of
from kafkagroup.wire.schema import NO_ID

__all__ = ["TopicQueues"]

_STICKY_BYTES = 16_384
"""Bytes of records without a key that one partition takes before the next is drawn: Java's default
`batch.size`, however large the batches are here."""

_WEIGHTS_MAX_AGE = 0.1
"""Seconds for which partitions may be drawn by the same weights."""


class TopicQueues:
    """The queues of one topic's partitions."""

    def __init__(
        self,
        name: str,
        create: Callable[[str, int], PartitionQueue],
        random: Callable[[], float],
        partitioner: Partitioner | None,
        clock: Callable[[], float],
    ) -> None:
        """`create`: creates the queue of a topic and partition number. `random`: returns a number
        from 0.0 to 1.0. `partitioner`: None for that of Java's producer. `clock`: returns the
        loop's time."""
        self.name = name
        self.queues: list[PartitionQueue] = []
        """By partition number; empty as long as the number of partitions is not known. Also of
        partitions that a recreated topic does not have: their batches may be in flight."""
        self.count = 0
        """The number of partitions; 0 as long as it is not known."""
        self.available: Sequence[int] = ()
        """The numbers of the partitions that have a leader. If none has, any partition may be
        drawn."""
        self.unplaced: UnplacedRecords | None = None
        """The records that wait for the number of partitions."""
        self.awaiting_count = 0
        """The number of calls that wait for the number of partitions."""
        self.used_at = clock()
        """When a batch last began, or the number of partitions was last wanted; on the loop's
        clock."""
        self.looked_up_at = -math.inf
        """When a partition that does not exist was last looked up, on the loop's clock."""
        self._topic_id = NO_ID
        self._create = create
        self._random = random
        self._partitioner = partitioner
        self._clock = clock
        self._sticky = -1
        """The partition that takes records without a key; -1 before the first."""
        self._left = 0
        """The bytes that the sticky partition still takes."""
        self._weights: list[int] = []
        """For each partition that may be drawn, the sum of its weight and those before it."""
        self._draws_left = 0
        """How many partitions may still be drawn by these weights."""
        self._weights_end_at = -math.inf
        """When new weights are needed in any case, on the loop's clock."""

    @property
    def is_awaited(self) -> bool:
        """Whether something waits for the number of partitions."""
        return self.unplaced is not None or self.awaiting_count > 0

    @property
    def vanished(self) -> Sequence[PartitionQueue]:
        """The queues of partitions that the topic had before it was recreated with fewer."""
        return self.queues[self.count :]

    def follow(self, topic_id: UUID, count: int, available: Sequence[int]) -> None:
        """Note the partitions by new metadata: their number, and which have a leader. `topic_id`:
        NO_ID if it is not known. A smaller number than before counts only under another id: a
        broker may lag behind, but a topic loses partitions only when it is recreated."""
        is_recreated = NO_ID not in (topic_id, self._topic_id) and topic_id != self._topic_id
        if topic_id != NO_ID:
            self._topic_id = topic_id
        if is_recreated or count > self.count:
            self.count = count
        for number in range(len(self.queues), self.count):
            self.queues.append(self._create(self.name, number))
        self.available = available
        self._draws_left = 0
        if self._sticky not in (available or range(self.count)):
            self._left = 0  # else it would take records that cannot be sent, or not exist

    def choose(self, key: bytes | None, size: int) -> PartitionQueue:
        """Return the queue for a record of `size` bytes. The number of partitions must be known.
        Raises: what the partitioner raises; ConfigurationError if it returns a partition that does
        not exist."""
        if self._partitioner is not None:
            number = self._partitioner(self.name, key, self.count)
            if number is not None:
                return self.queue(number, "the partitioner returned ")
        elif key is not None:
            return self.queues[partition_of(key, self.count)]
        if self._left <= 0:
            self._sticky = self.draw()
            self._left = _STICKY_BYTES
        self._left -= size
        return self.queues[self._sticky]

    def queue(self, number: int, source: str = "partition=") -> PartitionQueue:
        """Return the queue of a partition. Raises: ConfigurationError if there is none; its text
        begins with `source` and the number."""
        try:
            if 0 <= number < self.count:
                return self.queues[number]
        except (TypeError, ValueError):
            pass  # not an integer, or an array of them
        raise ConfigurationError(
            f"{source}{number!r}; topic {self.name!r} has partitions 0 to {self.count - 1}"
        )

    def draw(self) -> int:
        """Return the number of a partition for records without a key. The number of partitions
        must be known."""
        numbers = self.available or range(self.count)
        if len(numbers) == 1:
            return numbers[0]
        # As many draws as there are partitions have the same weights, so that the cost of a draw
        # does not grow with the number of partitions.
        if self._draws_left <= 0 or self._clock() >= self._weights_end_at:
            self._weigh(numbers)
        self._draws_left -= 1
        drawn = bisect_right(self._weights, self._random() * self._weights[-1])
        return numbers[min(drawn, len(numbers) - 1)]  # `random` may return 1.0

    def _weigh(self, numbers: Sequence[int]) -> None:
        """Give each of these partitions a weight: how many bytes fewer than the fullest one it has,
        plus 1."""
        sizes = [_unacknowledged(self.queues[number]) for number in numbers]
        most = max(sizes)
        self._weights = list(accumulate(most + 1 - size for size in sizes))
        self._draws_left = len(numbers)
        self._weights_end_at = self._clock() + _WEIGHTS_MAX_AGE


def _unacknowledged(queue: PartitionQueue) -> int:
    """Return the bytes of the records of a queue that were not acknowledged."""
    open_ = queue.open
    size = 0 if open_ is None else open_.size
    for batches in (queue.in_flight, queue.retried, queue.closed):
        for batch in batches:
            size += batch.size
    return size

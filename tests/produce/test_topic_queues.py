"""Which partition is drawn for records without a key."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.produce.partition_queue import PartitionQueue
from kafkagroup.produce.topic_queues import TopicQueues
from kafkagroup.types import TopicPartition

TOPIC_ID = UUID(int=1)


class World:
    """A topic with as many partitions as `sizes`, which are what is unacknowledged in each."""

    def __init__(self, *sizes: int) -> None:
        self.now = 0.0
        self.random = 0.0
        self.topic = TopicQueues("t", _queue, lambda: self.random, None, lambda: self.now)
        self.topic.follow(TOPIC_ID, len(sizes), range(len(sizes)))
        for number, size in enumerate(sizes):
            self.fill(number, size)

    def fill(self, number: int, size: int) -> None:
        """Have `size` bytes unacknowledged in a partition."""
        queue = self.topic.queues[number]
        queue.open = ProduceBatch(queue.tp, 0.0, 10.0, 0)
        queue.open.size = size

    def draw(self, random: float) -> int:
        self.random = random
        return self.topic.draw()


def _queue(topic: str, number: int) -> PartitionQueue:
    return PartitionQueue(TopicPartition(topic, number), None, 5)


def test_the_less_a_partition_has_to_send_the_likelier_it_is_drawn() -> None:
    world = World(99, 0, 49)
    drawn = Counter(world.draw(n / 152) for n in range(152))
    assert drawn == {0: 1, 1: 100, 2: 51}


def test_the_last_partition_is_drawn_by_the_greatest_number() -> None:
    assert World(0, 0).draw(1.0) == 1


def test_as_many_draws_as_there_are_partitions_have_the_same_weights() -> None:
    world = World(0, 0)
    assert world.draw(0.0) == 0
    world.fill(0, 1_000)
    assert [world.draw(0.1) for _ in range(3)] == [0, 1, 1]


def test_weights_are_not_used_for_long() -> None:
    world = World(0, 0, 0)
    assert world.draw(0.0) == 0
    world.fill(0, 1_000)
    world.now = 0.099
    assert world.draw(0.1) == 0
    world.now = 0.1
    assert world.draw(0.1) == 1


def test_a_partition_that_loses_its_leader_is_not_drawn_any_more() -> None:
    world = World(0, 0, 0)
    assert world.draw(0.0) == 0
    world.topic.follow(TOPIC_ID, 3, [1, 2])
    assert [world.draw(0.4), world.draw(0.6)] == [1, 2]

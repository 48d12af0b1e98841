"""Range: each topic's partitions in runs of neighbours, so that topics with the same number of
partitions line up."""

from __future__ import annotations

from kafkagroup.assign.spec import GroupSpec, named
from kafkagroup.types import Assignment, TopicPartition

__all__ = ["range_assignor"]


@named("range")
def range_assignor(spec: GroupSpec) -> Assignment:
    """Give each subscriber of a topic a run of its partitions, the first ones one more each where
    they do not divide evenly.

    Run lengths of one topic differ by at most one; over many topics the first members get more.
    O(topics x members log members + partitions). Source: Kafka's RangeAssignor.
    """
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in spec.members}
    for topic in spec.topics():
        subscribers = spec.subscribers(topic)
        length, longer = divmod(spec.partitions[topic], len(subscribers))
        start = 0
        for index, member in enumerate(subscribers):
            end = start + length + (index < longer)
            assigned[member].extend(TopicPartition(topic, p) for p in range(start, end))
            start = end
    return {member: tuple(partitions) for member, partitions in assigned.items()}

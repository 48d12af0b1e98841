"""Round robin: all partitions of all topics dealt out one by one."""

from __future__ import annotations

from itertools import cycle

from kafkagroup.assign.spec import GroupSpec, named
from kafkagroup.types import Assignment, TopicPartition

__all__ = ["roundrobin_assignor"]


@named("roundrobin")
def roundrobin_assignor(spec: GroupSpec) -> Assignment:
    """Deal the sorted partitions to the members in order, passing over those that do not subscribe.

    With the same subscription everywhere, counts differ by at most one. O(partitions x members)
    at worst, O(partitions) with the same subscription. Source: Kafka's RoundRobinAssignor.
    """
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in spec.members}
    dealer = cycle(spec.order())
    for topic in spec.topics():
        for partition in range(spec.partitions[topic]):
            member = next(m for m in dealer if topic in spec.members[m].topics)
            assigned[member].append(TopicPartition(topic, partition))
    return {member: tuple(partitions) for member, partitions in assigned.items()}

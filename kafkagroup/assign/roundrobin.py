"""Round robin: deal all partitions of all topics to the members one by one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from kafkagroup.assign.spec import GroupSpec, named
from kafkagroup.types import Assignment, TopicPartition

__all__ = ["deal_in_turn", "roundrobin_assignor"]


@named("roundrobin")
def roundrobin_assignor(spec: GroupSpec) -> Assignment:
    """Deal the sorted partitions to the members in order; skip members that do not subscribe.

    If all members subscribe to the same topics, counts differ by at most one.
    O(members log members + subscriptions + partitions). Source: Kafka's RoundRobinAssignor.
    """
    return deal_in_turn(spec, {topic: range(spec.partitions[topic]) for topic in spec.topics()})


def deal_in_turn(spec: GroupSpec, numbers: Mapping[str, Sequence[int]]) -> Assignment:
    """Deal partitions, given as topic -> numbers, to the members in order, one by one; skip members
    that do not subscribe. The partitions are dealt in the order of `numbers`.

    Each topic must be one of `GroupSpec.topics`.
    """
    held: dict[str, list[TopicPartition]] = {member: [] for member in spec.order()}
    position = {member: index for index, member in enumerate(held)}
    takers = spec.subscribers()
    turn = 0  # the position of the next member
    for topic, all_numbers in numbers.items():
        among = takers[topic]
        # The subscriber whose turn it is; after the last one the first, as indices are modulo.
        first = bisect_left(among, turn, key=position.__getitem__)
        for index, member in enumerate(among):
            dealt = all_numbers[(index - first) % len(among) :: len(among)]
            held[member].extend(TopicPartition(topic, number) for number in dealt)
        turn = position[among[(first + len(all_numbers) - 1) % len(among)]] + 1
    return {member: tuple(sorted(partitions)) for member, partitions in held.items()}

"""Partition -> owner, turned into the partitions and the load of each member."""

from __future__ import annotations

from collections.abc import Mapping, Set

from kafkagroup.assign.spec import GroupSpec
from kafkagroup.types import TopicPartition

__all__ = ["loads_by_member", "partitions_by_member", "sorted_partitions"]


def loads_by_member(spec: GroupSpec, owner: Mapping[TopicPartition, str]) -> dict[str, float]:
    """Return member id -> the sum of its loads, added in the partitions' order: in another order
    a sum may differ in its last digit, and equal loads would not compare as equal."""
    loads = dict.fromkeys(spec.members, 0.0)
    for tp in sorted(owner):
        loads[owner[tp]] += spec.loads.get(tp, 1.0)
    return loads


def partitions_by_member(
    owner: Mapping[TopicPartition, str],
) -> dict[str, frozenset[TopicPartition]]:
    """Return member id -> its partitions."""
    held: dict[str, set[TopicPartition]] = {}
    for tp, member in owner.items():
        held.setdefault(member, set()).add(tp)
    return {member: frozenset(tps) for member, tps in held.items()}


def sorted_partitions(
    held: Mapping[str, Set[TopicPartition]],
) -> dict[str, tuple[TopicPartition, ...]]:
    """Return the partitions of each member, sorted, without members that have none."""
    return {member: tuple(sorted(held[member])) for member in sorted(held) if held[member]}

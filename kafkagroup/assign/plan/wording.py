"""How the texts of a plan name members, and partitions that do not exist."""

from __future__ import annotations

from kafkagroup.assign.spec import GroupSpec
from kafkagroup.types import TopicPartition

__all__ = ["label", "missing"]


def label(spec: GroupSpec, member: str) -> str:
    """Return the name to show for a member: its instance id, if it has one."""
    return spec.members[member].instance_id or member


def missing(spec: GroupSpec, tp: TopicPartition) -> str | None:
    """Return why a partition does not exist, as text; None if it exists."""
    count = spec.partitions.get(tp.topic, 0)
    if 0 <= tp.partition < count:
        return None
    return f"{tp.topic} has {count} partitions" if count else f"topic {tp.topic} does not exist"

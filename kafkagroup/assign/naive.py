"""Naive: kiel's assignor, which knows neither subscriptions nor owners."""

from __future__ import annotations

from kafkagroup.assign.roundrobin import deal_in_turn
from kafkagroup.assign.spec import GroupSpec, named
from kafkagroup.types import Assignment

__all__ = ["naive_assignor"]


@named("naive")
def naive_assignor(spec: GroupSpec) -> Assignment:
    """Assign the partitions to the members in turn.

    The partitions are sorted as kiel writes them, "topic:number", so 10 comes before 2. Members
    that do not subscribe to a topic are skipped; in kiel, all members consume all topics, and
    counts differ by at most one.
    O(members log members + subscriptions + partitions log partitions).
    Source: kiel's naive_allocator.
    """
    topics = sorted(spec.topics(), key=lambda topic: f"{topic}:")
    numbers = {topic: sorted(range(spec.partitions[topic]), key=str) for topic in topics}
    return deal_in_turn(spec, numbers)

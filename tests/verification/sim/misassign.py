"""Bad assignments that a leader may compute, derived from good ones."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from kafkagroup.assign import GroupSpec, sticky_assignor
from kafkagroup.types import Assignment, TopicPartition

__all__ = ["MISASSIGNMENTS"]


def _foreign(spec: GroupSpec, assignment: Assignment) -> Assignment:
    """Assign every member a partition of a topic that no member subscribes to."""
    foreign = {m: TopicPartition("foreign", number) for number, m in enumerate(spec.order())}
    return {m: (*share, foreign[m]) for m, share in assignment.items()}


def _handed_over(spec: GroupSpec, _: Assignment) -> Assignment:
    """Assign partitions that members own to other members in the same round."""
    members = {m: attrs.evolve(of, owned=(), generation=-1) for m, of in spec.members.items()}
    return sticky_assignor(attrs.evolve(spec, members=members))


MISASSIGNMENTS: dict[str, Callable[[GroupSpec, Assignment], Assignment]] = {
    "foreign": _foreign,
    "handover": _handed_over,
}
"""Name -> a function that spoils an assignment."""

"""A group after a change: the input of a plan that asks what the change would move."""

from __future__ import annotations

import attrs

from kafkagroup.assign.spec import GroupSpec, MemberSpec
from kafkagroup.errors import ConfigurationError

__all__ = ["with_newcomers", "without"]


def without(spec: GroupSpec, member: str) -> GroupSpec:
    """Return the group without a member, named by its id, or by its instance id if that is no
    member's id.

    Raises: ConfigurationError when there is no such member.
    """
    gone = {member} & spec.members.keys() or {
        m for m, member_spec in spec.members.items() if member == member_spec.instance_id
    }
    if not gone:
        known = ", ".join(sorted(spec.members)[:5]) or "none"
        more = ", ..." if len(spec.members) > 5 else ""
        raise ConfigurationError(f"{member!r} is not in the group; its members: {known}{more}")
    return attrs.evolve(
        spec, members={m: member_spec for m, member_spec in spec.members.items() if m not in gone}
    )


def with_newcomers(spec: GroupSpec, count: int) -> GroupSpec:
    """Return the group with `count` more members, named new-1 and so on. They own nothing, and
    subscribe to all topics that the group subscribes to."""
    topics = frozenset[str]().union(*(member_spec.topics for member_spec in spec.members.values()))
    members = dict(spec.members)
    number = 0
    while len(members) < len(spec.members) + count:
        number += 1
        members.setdefault(f"new-{number}", MemberSpec(topics=topics))
    return attrs.evolve(spec, members=members)

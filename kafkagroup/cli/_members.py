"""The members of a group that keep a command from changing it. Commands look for them before they
ask for confirmation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kafkagroup.admin import Admin, GroupDescription, MemberDescription
from kafkagroup.cli._groups import split_results
from kafkagroup.cli._view import count, member_name

__all__ = ["blocking_members", "describe_known", "subscribers"]

_SHOWN = 3
"""Most members that a message names."""


async def describe_known(admin: Admin, groups: Iterable[str]) -> dict[str, GroupDescription]:
    """Return the groups that can be described. The others are not checked here: the coordinator
    accepts or refuses the change."""
    found, _ = split_results(await admin.describe_groups(groups))
    return found


def subscribers(group: GroupDescription, topic: str) -> list[MemberDescription]:
    """Return the members that subscribe to the topic, or have partitions of it, as far as the
    coordinator reports both: a subscription by pattern names no topics."""
    return [
        member
        for member in group.members
        if (member.subscription is not None and topic in member.subscription.topics)
        or any(tp.topic == topic for tp in member.partitions or ())
    ]


def blocking_members(members: Sequence[MemberDescription]) -> str:
    """Return the part of a message that names the members and says what to do."""
    shown = ", ".join(f"{member_name(member)} ({member.host})" for member in members[:_SHOWN])
    more = f" and {len(members) - _SHOWN} more" if len(members) > _SHOWN else ""
    return (
        f"{count(len(members), 'member')}, {shown}{more}; stop its members first, and wait until"
        " they have left or timed out"
    )

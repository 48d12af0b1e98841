"""The changes of a group between two descriptions. Pure.

A coordinator describes the group's current state, not its history: the reason why a member left is
unknown, and changes that began and ended between two descriptions are missed.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kafkagroup import TopicPartition
from kafkagroup.admin import GroupDescription, GroupState, MemberDescription
from kafkagroup.cli._view import count, member_name, ranges
from kafkagroup.types import by_topic

__all__ = ["Change", "changes_between", "with_known_assignments"]

_REBALANCING = (
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.ASSIGNING,
    GroupState.RECONCILING,
)

_LABELS = {
    "joined": "joined",
    "gone": "left or timed out",
    "came_again": "rejoined",
    "subscribed_anew": "changed subscription",
}
"""Kind of change of a member -> its text."""

PartitionsByMember = Mapping[str, tuple[TopicPartition, ...]]
"""Name of a member (`member_name`) -> partitions."""


@attrs.frozen(kw_only=True)
class Change:
    """Two descriptions of a group, each None if the group did not exist, and what changed between
    them. `bool` returns whether anything changed."""

    before: GroupDescription | None
    after: GroupDescription | None
    members: Mapping[str, tuple[MemberDescription, ...]]
    """Kind of change, as in the JSON output -> members; without empty entries. "gone" are members
    that left or timed out, "came_again" static members with a new member id, "subscribed_anew"
    members with another subscription."""
    gained: PartitionsByMember
    """Partitions that members have gained."""
    lost: PartitionsByMember
    """Partitions that members have lost."""

    def __bool__(self) -> bool:
        changes = self.members or self.gained or self.lost
        return bool(changes) or self._state != self._state_before or self._has_new_epoch

    @property
    def cause(self) -> str | None:
        """What changed among the members, or else why the group may be rebalancing; None if neither
        is known."""
        if self.members:
            return ", ".join(
                f"{len(found)} {_LABELS[kind]}" for kind, found in self.members.items()
            )
        if self.before is None or self.after is None:
            return None
        if self._has_new_epoch:
            return "the members are the same: topics or assignor changed, or one joined and left"
        if self.after.state in _REBALANCING and self.before.state not in _REBALANCING:
            return "the members are the same: they rejoined, or one joined and left"
        return None

    def as_line(self) -> str:
        """Return the change as one line."""
        parts = [self._state]
        if self._state_before != self._state:
            parts = [f"{self._state_before} -> {self._state}"]
        if self._has_new_epoch and self.after is not None:
            parts.append(f"epoch {self.after.group_epoch}")
        for kind, members in self.members.items():
            listed = ", ".join(f"{member_name(m)} ({m.host})" for m in members)
            parts.append(f"{_LABELS[kind]}: {listed}")
        if not self.members and self.cause:
            parts.append(self.cause)
        for word, held in (("no longer has", self.lost), ("gets", self.gained)):
            parts += [f"{member} {word} {ranges(tps)}" for member, tps in held.items()]
        if not self:
            # `watch` prints the first description of a group as a change from itself.
            parts.append(count(len(_members(self.after)), "member"))
        return "; ".join(parts)

    def value(self) -> dict[str, object]:
        """Return the change as a JSON value."""
        return {
            "state": self._state,
            "state_before": self._state_before,
            "epoch": None if self.after is None else self.after.group_epoch,
            "member_count": 0 if self.after is None else len(self.after.members),
            "cause": self.cause,
            **{
                kind: [
                    {
                        "member_id": member.member_id,
                        "instance_id": member.instance_id,
                        "client_id": member.client_id,
                        "host": member.host,
                    }
                    for member in self.members.get(kind, ())
                ]
                for kind in _LABELS
            },
            "gained": {member: by_topic(tps) for member, tps in self.gained.items()},
            "lost": {member: by_topic(tps) for member, tps in self.lost.items()},
        }

    @property
    def _state(self) -> str:
        return "absent" if self.after is None else self.after.state.value

    @property
    def _state_before(self) -> str:
        return "absent" if self.before is None else self.before.state.value

    @property
    def _has_new_epoch(self) -> bool:
        epochs = [None if g is None else g.group_epoch for g in (self.before, self.after)]
        return epochs[1] is not None and epochs[0] != epochs[1]


def changes_between(before: GroupDescription | None, after: GroupDescription | None) -> Change:
    """Return the changes from `before` to `after`. Assignments that the coordinator does not report
    count as unchanged."""
    old, new = _members(before), _members(after)
    members = {
        "joined": tuple(new[m] for m in new if m not in old),
        "gone": tuple(old[m] for m in old if m not in new),
        "came_again": tuple(
            new[m] for m in new if m in old and old[m].member_id != new[m].member_id
        ),
        "subscribed_anew": tuple(
            new[m] for m in new if m in old and _has_changed_subscription(old[m], new[m])
        ),
    }
    return Change(
        before=before,
        after=after,
        members={kind: found for kind, found in members.items() if found},
        gained=_only_in(new, old),
        lost=_only_in(old, new),
    )


def with_known_assignments(
    before: GroupDescription | None, after: GroupDescription | None
) -> GroupDescription | None:
    """Return `after`. While a classic group rebalances, the coordinator reports no assignments and
    subscriptions: members then keep those of `before`, and new members get an empty assignment."""
    if after is None:
        return None
    old = _members(before)
    members = []
    for member in after.members:
        if member.partitions is None:
            earlier = old.get(member_name(member))
            known = ((), None) if earlier is None else (earlier.partitions, earlier.subscription)
            member = attrs.evolve(member, partitions=known[0], subscription=known[1])
        members.append(member)
    return attrs.evolve(after, members=tuple(members))


def _members(group: GroupDescription | None) -> dict[str, MemberDescription]:
    return {} if group is None else {member_name(member): member for member in group.members}


def _has_changed_subscription(before: MemberDescription, after: MemberDescription) -> bool:
    if before.subscription is None or after.subscription is None:
        return False
    topics_differ = set(before.subscription.topics) != set(after.subscription.topics)
    return topics_differ or before.topic_pattern != after.topic_pattern


def _only_in(
    members: Mapping[str, MemberDescription], others: Mapping[str, MemberDescription]
) -> dict[str, tuple[TopicPartition, ...]]:
    """Return the partitions that each member has in `members` and not in `others`: all of a member
    that is not in `others`, none of a member whose assignment in `others` is unknown."""
    found = {}
    for name, member in members.items():
        counterpart = others.get(name)
        if counterpart is None or counterpart.partitions is not None:
            had = set(counterpart.partitions or ()) if counterpart else set()
            if more := tuple(tp for tp in member.partitions or () if tp not in had):
                found[name] = more
    return found

"""One consumer group (KIP-848): members, epochs and assignments. No time, no requests.

A partition is assigned to a member only when no other member holds it, and a member holds it until
it reports the revocation: `ConsumerGroup.reconcile` is that rule. Source: KIP-848 and Apache Kafka
4.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple
from uuid import UUID

import attrs

from kafkagroup.assign import GroupSpec, MemberSpec, range_assignor, sticky_assignor
from kafkagroup.types import TopicPartition

__all__ = [
    "ASSIGNORS",
    "AWAY",
    "AssignedPartition",
    "ConsumerGroup",
    "ConsumerMember",
    "MemberState",
]

ASSIGNORS = {"uniform": sticky_assignor, "range": range_assignor}
"""The server-side assignors, the default first. Kafka's break ties differently."""

AWAY = -2
"""The epoch of a static member that has left temporarily."""


class MemberState(Enum):
    """How far a member's assignment has converged to its target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    """The member has not reported the revocation of all partitions that it must revoke."""
    UNRELEASED = "unreleased"
    """Another member still holds a partition of this member's target."""


class AssignedPartition(NamedTuple):
    """A partition of one topic. A topic that was deleted and created again has another id, and so
    other partitions."""

    topic: str
    partition: int
    topic_id: UUID


@attrs.define(eq=False)
class ConsumerMember:
    """The coordinator's view of one member."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rack: str | None = None
    rebalance_timeout: float = 0.0
    """Seconds."""
    topics: frozenset[str] = frozenset()
    """Topics subscribed to by name."""
    pattern: str | None = None
    subscribed: frozenset[str] = frozenset()
    """Topics subscribed to by name or by pattern."""
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: dict[AssignedPartition, int] = attrs.field(factory=dict)
    """Assigned partition -> the epoch in which it was assigned (KIP-1251)."""
    revoking: frozenset[AssignedPartition] = frozenset()
    """Partitions that the member must revoke and still owns."""

    @property
    def held(self) -> set[AssignedPartition]:
        """The partitions that no other member may get yet."""
        return {*self.assigned, *self.revoking}


@attrs.define(eq=False)
class ConsumerGroup:
    """The state of one group, and the rules that depend only on that state."""

    group_id: str
    epoch: int = 0
    """Incremented when members, subscriptions or topics change."""
    target_epoch: int = 0
    """The epoch for which the target was computed."""
    target: dict[str, frozenset[AssignedPartition]] = attrs.field(factory=dict)
    assignor: str = "uniform"
    """The assignor that computed the target."""
    topics: Mapping[str, tuple[UUID, int]] = attrs.field(factory=dict)
    """Subscribed topic -> its id and partition count, as of the last change of `epoch`."""
    members: dict[str, ConsumerMember] = attrs.field(factory=dict)
    computed_at: float = float("-inf")

    @property
    def state(self) -> str:
        """The group's state, by Kafka's name."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        reached = all(
            m.state is MemberState.STABLE and m.epoch == self.target_epoch
            for m in self.members.values()
        )
        return "Stable" if reached else "Reconciling"

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Return the member that holds this instance id."""
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def remove(self, member: ConsumerMember) -> None:
        """Remove a member, and free its partitions."""
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        self.epoch += 1

    def replace(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Replace a returning static member, under its new member id, with its assignment kept."""
        new = attrs.evolve(
            old,
            member_id=member_id,
            epoch=0,
            previous_epoch=0,
            revoking=frozenset(),
            state=MemberState.STABLE,
        )
        del self.members[old.member_id]
        self.members[member_id] = new
        self.target[member_id] = self.target.pop(old.member_id, frozenset())
        return new

    def preferred_assignor(self) -> str:
        """Return the assignor that most members request; the default if none does."""
        votes = Counter(m.assignor for m in self.members.values() if m.assignor is not None)
        return votes.most_common(1)[0][0] if votes else next(iter(ASSIGNORS))

    def compute_target(self, now: float) -> None:
        """Compute the target assignment; members keep as many partitions as balance permits."""
        self.assignor = self.preferred_assignor()
        ids = {topic: topic_id for topic, (topic_id, _) in self.topics.items()}
        counts = {topic: count for topic, (_, count) in self.topics.items()}
        members = {
            m.member_id: MemberSpec(
                topics=m.subscribed,
                instance_id=m.instance_id,
                rack=m.rack,
                owned=tuple(
                    TopicPartition(p.topic, p.partition)
                    for p in sorted(self.target.get(m.member_id, ()))
                    if ids.get(p.topic) == p.topic_id
                ),
                generation=self.target_epoch,
            )
            for m in self.members.values()
        }
        found = ASSIGNORS[self.assignor](GroupSpec(members=members, partitions=counts))
        self.target = {
            m: frozenset(
                AssignedPartition(topic, partition, ids[topic])
                for topic, partition in found.get(m, ())
            )
            for m in self.members
        }
        self.target_epoch, self.computed_at = self.epoch, now

    def reconcile(self, member: ConsumerMember, owned: Iterable[AssignedPartition] | None) -> bool:
        """Move a member's assignment towards its target, given the partitions that it reports as
        owned (None: unchanged). Returns whether the member's assignment has changed."""
        unrevoked = member.revoking if owned is None else member.revoking & {*owned}
        if member.state is MemberState.UNREVOKED and unrevoked:
            return False
        if member.state is MemberState.STABLE and member.epoch == self.target_epoch:
            return False
        member.revoking = frozenset()
        target = self.target.get(member.member_id, frozenset())
        kept = {tp: e for tp, e in member.assigned.items() if tp in target}
        revoked = frozenset(member.assigned) - target
        before = set(member.assigned)
        if revoked and (owned is None or revoked & {*owned}):
            member.state, member.revoking, member.assigned = MemberState.UNREVOKED, revoked, kept
            return True
        held_by_others = {tp for m in self.members.values() if m is not member for tp in m.held}
        added = dict.fromkeys(sorted(target - kept.keys() - held_by_others), self.target_epoch)
        blocked = target - kept.keys() - added.keys()
        member.state = MemberState.UNRELEASED if blocked else MemberState.STABLE
        member.assigned = kept | added
        if member.epoch != self.target_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.target_epoch
        return set(member.assigned) != before

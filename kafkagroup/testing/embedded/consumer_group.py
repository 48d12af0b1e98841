"""One consumer group (KIP-848): members, epochs and assignments. No clock, no requests.

A partition is assigned to a member only when no other member holds it. A member holds a partition
until the member reports its revocation, or is removed: `ConsumerGroup.reconcile` enforces that.
Source: KIP-848 and Apache Kafka 4.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
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
"""The server-side assignors, by Kafka's names, the default first. Between members that may equally
get a partition, Kafka's assignors choose differently."""

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
    pattern: str = ""
    """The regular expression that the member subscribes to; empty for none."""
    assignor: str | None = None
    """The server-side assignor that the member requests; None for no request."""
    epoch: int = 0
    previous_epoch: int = 0
    """The epoch before the last change of the assignment. A heartbeat may still send it, if the
    response with the new epoch was lost."""
    state: MemberState = MemberState.STABLE
    assigned: dict[AssignedPartition, int] = attrs.field(factory=dict)
    """Assigned partition -> the epoch in which it was assigned (KIP-1251)."""
    revoking: dict[AssignedPartition, int] = attrs.field(factory=dict)
    """Partition that the member must revoke and still owns -> the epoch in which it was
    assigned."""

    @property
    def held(self) -> set[AssignedPartition]:
        """The partitions that no other member may get yet."""
        return {*self.assigned, *self.revoking}


@attrs.define(eq=False)
class ConsumerGroup:
    """The state of one group, and the rules that depend only on that state."""

    group_id: str
    epoch: int = 1
    """Incremented when members, subscriptions or topics change."""
    target_epoch: int = 1
    """The epoch for which the target was computed."""
    target: dict[str, frozenset[AssignedPartition]] = attrs.field(factory=dict)
    """Member id -> the partitions that it is to own."""
    subscriptions: dict[str, frozenset[str]] = attrs.field(factory=dict)
    """Member id -> topics that it subscribed to when the target was computed; empty before."""
    assignor: str = "uniform"
    """The assignor that computed the target."""
    topics: Mapping[str, tuple[UUID, int]] = attrs.field(factory=dict)
    """Subscribed topic -> its id and partition count, as of the last change of `epoch`."""
    image: Mapping[str, tuple[UUID, int]] | None = None
    """All topics as they were when a heartbeat last compared `topics` with them; None if the next
    heartbeat must compare them."""
    resolved: dict[str, frozenset[str]] = attrs.field(factory=dict)
    """Regular expression -> the topics that it matched when it was resolved."""
    resolved_at: float = float("-inf")
    """When the regular expressions were last resolved, on the clock of `Caller.now`."""
    resolved_creations: int = 0
    """How many topics had been created at `resolved_at`."""
    members: dict[str, ConsumerMember] = attrs.field(factory=dict)
    static_ids: dict[str, str] = attrs.field(factory=dict)
    """Instance id -> member id, as heartbeats have named them. As in Kafka, the entry remains when
    the member gets another instance id, and then refers to a removed member after its removal."""
    computed_at: float = float("-inf")
    """When the target was computed, on the clock of `Caller.now`."""

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
        return self.members.get(self.static_ids.get(instance_id, ""))

    def note_instance(self, member: ConsumerMember) -> None:
        """Note which instance id the member holds."""
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id

    def subscribed(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics that the member subscribes to by name, or by a resolved pattern."""
        return member.topics | self.resolved.get(member.pattern, frozenset())

    def subscriber_count(self, pattern: str) -> int:
        """Return how many members subscribe to the regular expression."""
        return sum(m.pattern == pattern for m in self.members.values())

    def update_topics(self, image: Mapping[str, tuple[UUID, int]]) -> bool:
        """Update the subscribed topics from all topics. Returns whether they have changed."""
        names = {topic for member in self.members.values() for topic in self.subscribed(member)}
        before, self.topics = self.topics, {t: image[t] for t in image if t in names}
        return self.topics != before

    def has_changed_topics(self, image: Mapping[str, tuple[UUID, int]]) -> bool:
        """Whether a subscribed topic was created, has grown or was deleted between `self.image` and
        `image`, which is the present one."""
        if self.image is None:
            return True
        changed = {t for t, _ in self.image.items() ^ image.items()}
        return any(changed & self.subscribed(member) for member in self.members.values())

    def remove(self, member: ConsumerMember, image: Mapping[str, tuple[UUID, int]]) -> None:
        """Remove a member, and free its partitions."""
        if self.has_changed_topics(image):
            # `update_topics` below stores the change in `topics`, and `image` stays as it was. If
            # the change is reverted before the next heartbeat, `image` would not show that `topics`
            # has to be updated again.
            self.image = None
        del self.members[member.member_id]
        if member.instance_id is not None:
            self.static_ids.pop(member.instance_id, None)
        self.target.pop(member.member_id, None)
        if not self.subscriber_count(member.pattern):
            self.resolved.pop(member.pattern, None)
        self.update_topics(image)
        self.epoch += 1

    def replace(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Replace a returning static member, under its new member id, with its assignment kept."""
        new = attrs.evolve(old, member_id=member_id, epoch=0, previous_epoch=0)
        del self.members[old.member_id]
        self.members[member_id] = new
        self.note_instance(new)
        self.target[member_id] = self.target.pop(old.member_id, frozenset())
        return new

    def preferred_assignor(self) -> str:
        """Return the assignor that most members request; the default if none does, or in a tie."""
        votes = Counter(m.assignor for m in self.members.values() if m.assignor is not None)
        return max(ASSIGNORS, key=lambda assignor: votes[assignor])

    def compute_target(self, now: float) -> None:
        """Compute the target assignment. With the assignor `uniform`, members keep as many of their
        partitions as balance permits."""
        self.assignor = self.preferred_assignor()
        self.subscriptions = {name: self.subscribed(m) for name, m in self.members.items()}
        ids = {topic: topic_id for topic, (topic_id, _) in self.topics.items()}
        counts = {topic: count for topic, (_, count) in self.topics.items()}
        members = {
            m.member_id: MemberSpec(
                topics=self.subscriptions[m.member_id],
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
        # Without this, `_move` would not find the target of a member that has just become static.
        for member in self.members.values():
            self.note_instance(member)

    def reconcile(
        self,
        member: ConsumerMember,
        owned: Collection[AssignedPartition] | None,
        subscribed_ids: Collection[UUID],
        *,
        is_subscription_new: bool,
    ) -> None:
        """Move a member's assignment towards its target.

        `owned` has the partitions that the member reports as owned (None: unchanged),
        `subscribed_ids` the ids of the existing topics that it subscribes to.
        `is_subscription_new`: whether this heartbeat has changed what the member subscribes to.
        """
        is_reconciled = member.state is MemberState.STABLE and member.epoch == self.target_epoch
        must_revoke = member.state is MemberState.UNREVOKED and _owns(owned, member.revoking)
        if is_reconciled or must_revoke:
            if is_subscription_new:
                self._drop_unsubscribed(member, owned, subscribed_ids)
        else:
            self._move(member, owned, subscribed_ids)

    def _drop_unsubscribed(
        self,
        member: ConsumerMember,
        owned: Collection[AssignedPartition] | None,
        subscribed_ids: Collection[UUID],
    ) -> None:
        """Let the member revoke what it no longer subscribes to, without waiting for a target."""
        dropped = {p: e for p, e in member.assigned.items() if p.topic_id not in subscribed_ids}
        # Kafka writes a new assignment also for a member that names no topic and has no partition:
        # from then on it may not repeat its previous epoch.
        if not dropped and (self.subscribed(member) or member.revoking):
            return
        revoking = member.revoking | dropped
        member.assigned = {p: e for p, e in member.assigned.items() if p not in dropped}
        member.previous_epoch = member.epoch
        if revoking and _owns(owned, revoking):
            member.state, member.revoking = MemberState.UNREVOKED, revoking

    def _move(
        self,
        member: ConsumerMember,
        owned: Collection[AssignedPartition] | None,
        subscribed_ids: Collection[UUID],
    ) -> None:
        """Let the member revoke what its target does not have. If it need not, assign to it what no
        other member holds, in the epoch of the target."""
        # Kafka finds the target of a static member by the instance id. A heartbeat that makes a
        # member static finds none, unless it computes one.
        is_noted = member.instance_id is None or member.instance_id in self.static_ids
        target = {
            partition
            for partition in (self.target.get(member.member_id, ()) if is_noted else ())
            if partition.topic_id in subscribed_ids
        }
        kept = {p: e for p, e in member.assigned.items() if p in target}
        revoking = {p: e for p, e in member.assigned.items() if p not in target}
        member.previous_epoch = member.epoch
        if revoking and _owns(owned, revoking):
            member.state, member.assigned, member.revoking = MemberState.UNREVOKED, kept, revoking
            return
        held_by_others = {p for m in self.members.values() if m is not member for p in m.held}
        added = dict.fromkeys(sorted(target - kept.keys() - held_by_others), self.target_epoch)
        blocked = target - kept.keys() - added.keys()
        member.state = MemberState.UNRELEASED if blocked else MemberState.STABLE
        member.assigned, member.revoking = kept | added, {}
        member.epoch = self.target_epoch


def _owns(
    owned: Collection[AssignedPartition] | None, partitions: Collection[AssignedPartition]
) -> bool:
    """Whether a member may still own one of the partitions. `owned`: those that it reports; None if
    its heartbeat reports none, so that nothing has changed."""
    return owned is None or not set(partitions).isdisjoint(owned)

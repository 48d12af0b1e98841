"""One consumer group (KIP-848): its members, their epochs, who holds what. No time, no requests.

A partition is given to a member only once no other one holds it, and held until its member says
that it has let go: `ConsumerGroup.reconcile` is that rule. Source: KIP-848, and Apache Kafka 4.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum

import attrs

from kafkagroup.assign import GroupSpec, MemberSpec, range_assignor, sticky_assignor
from kafkagroup.types import TopicPartition

__all__ = ["ASSIGNORS", "AWAY", "ConsumerGroup", "ConsumerMember", "MemberState"]

ASSIGNORS = {"uniform": sticky_assignor, "range": range_assignor}
"""The coordinator's own, the default first. Kafka's differ in which of equals they choose."""

AWAY = -2
"""The epoch of a static member that is to come back."""


class MemberState(Enum):
    """How far a member has got towards its target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    """It has not said yet that it let go of what it must."""
    UNRELEASED = "unreleased"
    """Another member still holds some of what it is to get."""


@attrs.define(eq=False)
class ConsumerMember:
    """One member as the coordinator knows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rack: str | None = None
    rebalance_timeout: float = 0.0
    """Seconds."""
    topics: frozenset[str] = frozenset()
    """Subscribed to by name."""
    pattern: str | None = None
    subscribed: frozenset[str] = frozenset()
    """By name, and by what the pattern matches."""
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: dict[TopicPartition, int] = attrs.field(factory=dict)
    """What it may use -> the epoch in which it was given (KIP-1251)."""
    revoking: frozenset[TopicPartition] = frozenset()
    """What it is to let go of and has not."""

    @property
    def holds(self) -> set[TopicPartition]:
        """What no other member may be given."""
        return {*self.assigned, *self.revoking}


@attrs.define(eq=False)
class ConsumerGroup:
    """The state of one group, and the rules that need nothing but that state."""

    group_id: str
    epoch: int = 0
    """Moves with each change of members, subscriptions or topics."""
    target_epoch: int = 0
    """The epoch that the target was computed in."""
    target: dict[str, frozenset[TopicPartition]] = attrs.field(factory=dict)
    assignor: str = "uniform"
    """The one that computed the target."""
    counts: Mapping[str, int] = attrs.field(factory=dict)
    """The partitions of the topics that are subscribed to, when the epoch last moved."""
    members: dict[str, ConsumerMember] = attrs.field(factory=dict)
    computed_at: float = float("-inf")

    @property
    def state(self) -> str:
        """By the names that Kafka reports."""
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
        """The member that holds this instance id."""
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def remove(self, member: ConsumerMember) -> None:
        """A member is gone, and what it held is free."""
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        self.epoch += 1

    def replace(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back under another id; what it had is still its own."""
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
        """The one that most members name; the default where none does."""
        votes = Counter(m.assignor for m in self.members.values() if m.assignor is not None)
        return votes.most_common(1)[0][0] if votes else next(iter(ASSIGNORS))

    def compute_target(self, counts: Mapping[str, int], now: float) -> None:
        """Assign all partitions anew; who has some keeps as many as is fair."""
        self.assignor = self.preferred_assignor()
        members = {
            m.member_id: MemberSpec(
                topics=m.subscribed,
                instance_id=m.instance_id,
                rack=m.rack,
                owned=tuple(sorted(self.target.get(m.member_id, ()))),
                generation=self.target_epoch,
            )
            for m in self.members.values()
        }
        found = ASSIGNORS[self.assignor](GroupSpec(members=members, partitions=counts))
        self.target = {m: frozenset(found.get(m, ())) for m in self.members}
        self.target_epoch, self.computed_at = self.epoch, now

    def reconcile(self, member: ConsumerMember, owned: Iterable[TopicPartition] | None) -> bool:
        """Bring a member nearer to its target, after it said what it owns (None: as before).
        Answers whether what it may use has changed."""
        still = member.revoking if owned is None else member.revoking & {*owned}
        if member.state is MemberState.UNREVOKED and still:
            return False
        if member.state is MemberState.STABLE and member.epoch == self.target_epoch:
            return False
        member.revoking = frozenset()
        target = self.target.get(member.member_id, frozenset())
        kept = {tp: e for tp, e in member.assigned.items() if tp in target}
        going = frozenset(member.assigned) - target
        before = set(member.assigned)
        if going and (owned is None or going & {*owned}):
            member.state, member.revoking, member.assigned = MemberState.UNREVOKED, going, kept
            return True
        taken = {tp for m in self.members.values() if m is not member for tp in m.holds}
        fresh = dict.fromkeys(sorted(target - kept.keys() - taken), self.target_epoch)
        blocked = target - kept.keys() - fresh.keys()
        member.state = MemberState.UNRELEASED if blocked else MemberState.STABLE
        member.assigned = kept | fresh
        if member.epoch != self.target_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.target_epoch
        return set(member.assigned) != before

"""One classic group: its members, its state, and what was last written to the log. No I/O and no
clock.

Every transition goes through `ClassicGroup.become` and is listed in `_MOVES`; any other raises and
changes nothing. Source: KIP-345 (static members), KIP-394 (pending members), and the states that
Apache Kafka 4.3 reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum

import attrs

from kafkagroup.errors import DecodeError
from kafkagroup.testing.embedded.java_hash import bucket
from kafkagroup.wire.embedded_protocol import decode_subscription
from kafkagroup.wire.messages.group import (
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

__all__ = ["ClassicGroup", "GroupState", "Member"]


class GroupState(Enum):
    """The group's states, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


_MOVES = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.STABLE, GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.PREPARING_REBALANCE},
}
"""State -> the states that may follow."""


@attrs.define(eq=False)
class Member:
    """The coordinator's view of one member."""

    member_id: str
    instance_id: str | None
    """Set for static members."""
    client_id: str
    client_host: str
    session_timeout: float
    """Seconds."""
    rebalance_timeout: float
    """Seconds."""
    protocols: tuple[JoinGroupRequestProtocol, ...]
    """In the member's order of preference."""
    assignment: bytes = b""
    is_new: bool = False
    """Whether the member is in its first rebalance: its session may then expire even while its join
    is pending."""
    awaiting_join: Callable[[JoinGroupResponse], None] | None = None
    """Answers the pending JoinGroup."""
    awaiting_sync: Callable[[SyncGroupResponse], None] | None = None
    """Answers the pending SyncGroup."""

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if the member does not support it."""
        return next((bytes(p.metadata) for p in self.protocols if p.name == protocol), b"")

    @property
    def needs_no_heartbeat(self) -> bool:
        """Whether a pending JoinGroup or SyncGroup replaces the member's heartbeats."""
        waits = self.awaiting_join is not None or self.awaiting_sync is not None
        return waits and not self.is_new

    def answer_join(self, response: JoinGroupResponse) -> bool:
        """Answer the pending JoinGroup. Returns whether there was one."""
        reply, self.awaiting_join = self.awaiting_join, None
        if reply is not None:
            reply(response)
        return reply is not None

    def answer_sync(self, response: SyncGroupResponse) -> bool:
        """Answer the pending SyncGroup. Returns whether there was one."""
        reply, self.awaiting_sync = self.awaiting_sync, None
        if reply is not None:
            reply(response)
        return reply is not None


@attrs.define(eq=False)
class ClassicGroup:
    """The state of one group, and the rules that depend only on that state."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    previous: GroupState = GroupState.EMPTY
    """The state before `state`."""
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = attrs.field(factory=dict)
    pending: set[str] = attrs.field(factory=set)
    """Member ids returned with MEMBER_ID_REQUIRED that have not joined yet."""
    unsynced: set[str] = attrs.field(factory=set)
    """Ids of the members that have got a JoinGroup response of this generation, and have not sent
    SyncGroup."""
    subscribed: frozenset[str] | None = None
    """Topics to which this generation's members subscribe; None if that is not known."""
    has_new_member: bool = False
    """Whether a member joined since the delay of the group's first rebalance began or was last
    extended; such a member extends the delay."""
    _written: ClassicGroup | None = None
    """The group as last written to the log; None before the first write."""

    def become(self, state: GroupState) -> None:
        """Change the state. Raises: ValueError for a transition that is not in `_MOVES`."""
        if state not in _MOVES[self.state]:
            raise ValueError(f"group {self.group_id}: {self.state.value} -> {state.value}")
        self.previous, self.state = self.state, state

    @property
    def can_rebalance(self) -> bool:
        return GroupState.PREPARING_REBALANCE in _MOVES[self.state]

    @property
    def all_joined(self) -> bool:
        """Whether every member waits for its JoinGroup response, and `pending` is empty."""
        return not self.pending and all(m.awaiting_join for m in self.members.values())

    @property
    def rebalance_timeout(self) -> float:
        """Seconds: the longest rebalance timeout among the members; 0 without members."""
        return max((0.0, *(m.rebalance_timeout for m in self.members.values())))

    def static_member(self, instance_id: str | None) -> Member | None:
        """Return the member that holds this instance id, if any."""
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def supports(self, protocol_type: str, protocols: tuple[JoinGroupRequestProtocol, ...]) -> bool:
        """Whether a member with these protocols may join this group."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        shared = self._shared_protocols()
        return protocol_type == self.protocol_type and any(
            shared is None or p.name in shared for p in protocols
        )

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those that every member supports.

        Each member votes for the first of these in its own list. Kafka counts in a hash map; if
        several have the most votes, it takes the one that the map iterates first: hence `bucket`.
        """
        shared = self._shared_protocols() or set()
        votes = Counter(
            next(p.name for p in m.protocols if p.name in shared) for m in self.members.values()
        )
        return max(sorted(votes, key=bucket), key=votes.__getitem__)

    def _shared_protocols(self) -> set[str] | None:
        """Return the protocols that all members support; None without members."""
        names = [{p.name for p in m.protocols} for m in self.members.values()]
        return set.intersection(*names) if names else None

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member. The first one becomes the leader and sets the protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member or pending member. The oldest remaining member succeeds a leader."""
        self.members.pop(member_id, None)
        self.pending.discard(member_id)
        self.unsynced.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, old: Member, member_id: str) -> Member:
        """Give a static member a new id; it keeps its assignment and leadership (KIP-345)."""
        new = attrs.evolve(
            old, member_id=member_id, awaiting_join=None, awaiting_sync=None, is_new=False
        )
        del self.members[old.member_id]
        self.members[member_id] = new
        if self.leader == old.member_id:
            self.leader = member_id
        return new

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else elect a member that has. Return False if no member
        has joined."""
        joined = [m.member_id for m in self.members.values() if m.awaiting_join]
        if joined and self.leader not in joined:
            self.leader = joined[0]
        return bool(joined)

    def next_generation(self) -> None:
        """Start the next generation with the current members; without any, the group is empty."""
        self.generation += 1
        self.unsynced.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.become(GroupState.COMPLETING_REBALANCE)
        else:
            self.protocol = None
            self.become(GroupState.EMPTY)
        self.subscribed = self._subscribed_topics()

    def _subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != "consumer":
            return None
        try:
            return frozenset(
                topic
                for member in self.members.values()
                for topic in decode_subscription(member.metadata(self.protocol)).topics
            )
        except DecodeError:
            return None

    def joined_members(self) -> tuple[JoinGroupResponseMember, ...]:
        """Return the member list of the leader's JoinGroup response."""
        return tuple(
            JoinGroupResponseMember(
                member_id=m.member_id,
                group_instance_id=m.instance_id,
                metadata=m.metadata(self.protocol),
            )
            for m in self.members.values()
        )

    def write(self) -> None:
        """Save what a coordinator writes to the log: generation, members and assignments."""
        self._written = ClassicGroup(
            self.group_id,
            state=GroupState.STABLE if self.members else GroupState.EMPTY,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            subscribed=self.subscribed,
            members={
                m.member_id: attrs.evolve(m, awaiting_join=None, awaiting_sync=None, is_new=False)
                for m in self.members.values()
            },
        )

    def as_written(self) -> ClassicGroup:
        """Return the group as another coordinator loads it: without a rebalance in progress."""
        loaded = self._written or ClassicGroup(self.group_id)
        # The loaded group will change: it gets a copy of its own of what was written.
        loaded.write()
        return loaded

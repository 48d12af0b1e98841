"""The state of a member of a consumer group (KIP-848): its phases, the legal moves, its fields."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from uuid import UUID

from kafkagroup._values import field, frozen
from kafkagroup.member.consumer_target import PartitionsByTopicId, Target, is_missing
from kafkagroup.member.coordinated import CoordinatedMember

__all__ = [
    "ENDING",
    "HEARTBEATING",
    "MOVES",
    "PASSIVE",
    "Member",
    "Phase",
    "ReportedState",
]

_DEFAULT_BROKER_INTERVAL = 5.0
"""The interval in seconds that brokers request by default
(`group.consumer.heartbeat.interval.ms`)."""


class Phase(Enum):
    """The phases of a membership."""

    IDLE = "idle"
    """Not started."""
    UNJOINED = "unjoined"
    """About to join, once the coordinator is known and back-off has ended."""
    JOINING = "joining"
    """The heartbeat of epoch 0 is in flight."""
    RELEASING = "releasing"
    """The heartbeat of epoch -2 is in flight, before a static member joins: an earlier join without
    a response may hold its instance id, and the coordinator would refuse another."""
    MEMBER = "member"
    """In the group: sends heartbeats, and owns what the coordinator assigns."""
    REVOKING = "revoking"
    """It leaves: the application processes, commits and releases. Heartbeats continue."""
    LOSING = "losing"
    """The coordinator has removed the member; the application is notified."""
    DEPARTING = "departing"
    """About to send the heartbeat of epoch -1 or -2, once the coordinator is known and back-off has
    ended."""
    LEAVING = "leaving"
    """The heartbeat of epoch -1 or -2 is in flight."""
    LEFT = "left"
    """The member has left the group."""
    FAILED = "failed"
    """An error that no retry can fix has ended the membership."""


_ENDING_MOVES: Mapping[Phase, str] = {
    Phase.DEPARTING: "Leaving, or a fatal response; a heartbeat of epoch -1 or -2 follows",
    Phase.LEFT: "Leaving, without a need for a heartbeat; or FallBack",
    Phase.FAILED: "Replied or SendFailed with an error that no retry can fix",
}
"""The moves that end the membership of a member that owns nothing."""

MOVES: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.IDLE: {
        Phase.UNJOINED: "Started",
        Phase.LEFT: "Leaving, before it was started",
    },
    Phase.UNJOINED: {
        **_ENDING_MOVES,
        Phase.JOINING: "any event, once the coordinator is known and back-off has ended",
        Phase.RELEASING: "likewise, of a static member whose last join may have succeeded",
    },
    Phase.RELEASING: {
        Phase.UNJOINED: "Replied or SendFailed",
        Phase.DEPARTING: _ENDING_MOVES[Phase.DEPARTING],
        Phase.FAILED: "Replied: fenced; or SendFailed of FindCoordinator with a fatal error",
    },
    Phase.JOINING: {
        **_ENDING_MOVES,
        Phase.UNJOINED: "Replied with a retriable error, or SendFailed",
        Phase.MEMBER: "Replied with an epoch",
    },
    Phase.MEMBER: {
        **_ENDING_MOVES,
        Phase.UNJOINED: "Replied: removed, before anything was assigned",
        Phase.REVOKING: "Leaving",
        Phase.LOSING: "Replied: removed, or a fatal error; SendFailed of FindCoordinator with one;"
        " AssignFailed; Leaving as `lost`",
    },
    Phase.REVOKING: {
        Phase.LOSING: "as from MEMBER, except for Leaving",
        Phase.DEPARTING: "Revoked; a heartbeat of epoch -1 or -2 follows",
        Phase.LEFT: "Revoked; no heartbeat is needed",
    },
    Phase.LOSING: {
        **_ENDING_MOVES,
        Phase.UNJOINED: "Revoked",
    },
    Phase.DEPARTING: {
        Phase.LEAVING: "any event, once the coordinator is known and back-off has ended",
        Phase.LEFT: "the time is over, or the coordinator cannot be looked up",
    },
    Phase.LEAVING: {
        Phase.LEFT: "Replied; SendFailed with a fatal error; or the time is over",
        Phase.DEPARTING: "Replied with a retriable error, or SendFailed",
        Phase.FAILED: "Replied: fenced by another process, while the application stays",
    },
    Phase.LEFT: {},
    Phase.FAILED: {},
}
"""Phase -> each phase that may follow -> the event that causes the move. Any other move is a bug,
and raises. "Removed": the coordinator has removed the member. A fatal error is one that no retry
can fix."""

HEARTBEATING = frozenset((Phase.MEMBER, Phase.REVOKING))
"""Phases in which the member sends heartbeats, and may commit."""

ENDING = frozenset((Phase.DEPARTING, Phase.LEAVING, Phase.LEFT, Phase.FAILED))
"""Phases of a membership that ends or has ended."""

PASSIVE = frozenset((Phase.IDLE, Phase.LEFT, Phase.FAILED))
"""Phases in which nothing is due."""


@frozen
class ReportedState:
    """What heartbeats report of a member. Only changes are sent again."""

    topics: tuple[str, ...]
    pattern: str | None
    owned: PartitionsByTopicId
    reconciliation_count: int = 0
    """How often the member had applied an assignment. The coordinator waits for a report after each
    time, even if the member owns the same as before."""


@frozen(kw_only=True)
class Member(CoordinatedMember):
    """The whole state of a member of a consumer group."""

    member_id: str
    """Generated by the client, the same for all its memberships (KIP-1082)."""
    topics: tuple[str, ...] = ()
    """What is subscribed to by name, sorted."""
    pattern: str | None = None
    """The regular expression subscribed to, in the coordinator's syntax (RE2J)."""
    phase: Phase = Phase.IDLE
    epoch: int = 0
    """The member's epoch; 0 outside of the group."""
    target: Target | None = None
    """The last assignment of the coordinator; None before the first."""
    owned: PartitionsByTopicId = field(factory=dict)
    """What the application owns, including what it is revoking."""
    next_owned: PartitionsByTopicId = field(factory=dict)
    """What the application will own after the current reconciliation."""
    reconciliation_count: int = 0
    """How often the application has applied an assignment."""
    reconciling: int | None = None
    """Token of the current reconciliation."""
    abandoned_heartbeat: int | None = None
    """Token of the last heartbeat, if its coordinator was invalidated while it was in flight."""
    last_acknowledged_at: float = float("-inf")
    """When the last heartbeat was sent that the coordinator has acknowledged; the lease may begin
    earlier."""
    revocation_requested_at: float | None = None
    """A moment before the coordinator requested the revocation that it waits for; None once it has
    acknowledged that the partitions were released."""
    outdated_epoch: int | None = None
    """The epoch whose assignment is still that of an earlier subscription; None if the assignment
    is that of the present one."""
    names: Mapping[UUID, str] = field(factory=dict)
    """Topic id -> name, of the assigned and owned topics that were looked up."""
    unnamed: frozenset[UUID] = frozenset()
    """Topic ids whose names are being looked up."""
    acknowledged_state: ReportedState | None = None
    """What the coordinator has acknowledged of this member; None: report everything again."""
    state_in_flight: ReportedState | None = None
    """What the heartbeat in flight reports."""
    has_sent_pattern: bool = False
    """Whether the coordinator may know a pattern, which only an empty pattern unsets."""
    may_be_known: bool = False
    """Whether the coordinator may count this client as a member, which then holds the instance
    id."""
    can_release: bool = True
    """Whether this member can release its instance id; False once a broker has only version 0 of
    the heartbeat, in which the coordinator chooses the member ids."""
    broker_interval: float = 0.0
    """Seconds between heartbeats that the broker requests; zero before its first response."""
    frequent_until: float = 0.0
    """Until when heartbeats are frequent."""
    immediate_heartbeats: int = 0
    """How many heartbeats were sent without waiting for the interval since the member was last
    stable."""
    loss_count: int = 0
    """How often the coordinator removed the member since it last acknowledged a heartbeat."""
    unreleased_since: float | None = None
    """When the coordinator first refused a join because another member holds the instance id; None
    if it has not since the last join."""
    is_unavailable: bool = False
    """Whether the last join was refused as if the broker did not offer this protocol."""
    has_reported_denial: bool = False
    """Whether the application was notified of denied topics since the last successful heartbeat."""

    @property
    def generation_id(self) -> int:
        """The epoch, by its name in commits."""
        return self.epoch

    @property
    def protocols(self) -> tuple[tuple[str, bytes], ...]:
        """Always empty: the coordinator assigns."""
        return ()

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats of a stable member. A longer interval than brokers request
        by default is followed: an operator has configured it to reduce requests."""
        interval = self.broker_interval or self.config.heartbeat_interval
        if interval > _DEFAULT_BROKER_INTERVAL:
            return interval
        return min(interval, self.config.heartbeat_interval)

    @property
    def may_commit(self) -> bool:
        """Whether the coordinator takes commits: from each member, at all times."""
        return self.phase in HEARTBEATING

    @property
    def leads(self) -> bool:
        """Always False: the coordinator assigns, and watches the topics."""
        return False

    def is_current(self, generation_id: int) -> bool:
        """Return whether the member has an assignment. A new epoch alone does not change it."""
        return self.phase is Phase.MEMBER and self.ownership.is_assigned

    @property
    def follows_subscription(self) -> bool:
        """Whether the assignment is that of the present subscription, and is applied."""
        is_assigned = self.ownership.is_assigned
        is_applied = is_assigned and self.reconciling is None and not self.unnamed
        return self.phase is Phase.MEMBER and is_applied and self.outdated_epoch is None

    @property
    def reported_state(self) -> ReportedState:
        """What the coordinator must know after the next heartbeat."""
        return ReportedState(
            self.topics, self.pattern, self._reported_partitions, self.reconciliation_count
        )

    @property
    def _reported_partitions(self) -> PartitionsByTopicId:
        """The partitions to report as owned: all that the application may own, as the coordinator
        would assign any other to another member."""
        if self.reconciling is None:
            return self.owned
        claimed = {
            **self.owned,
            **{t: _union(self.owned.get(t, ()), p) for t, p in self.next_owned.items()},
        }
        if (
            self.acknowledged_state is None
            or self.acknowledged_state.reconciliation_count != self.reconciliation_count
        ):
            return claimed
        # If nothing is released, report what is acknowledged: partitions that are being added are
        # reported when the reconciliation is done.
        return (
            claimed
            if is_missing(claimed, self.acknowledged_state.owned)
            else self.acknowledged_state.owned
        )


def _union(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return the partitions of both, sorted."""
    return other if not one or one is other else tuple(sorted({*one, *other}))

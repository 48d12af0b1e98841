"""The state of a member of a classic group: its phases, the legal moves, its fields."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from kafkagroup._values import field, frozen
from kafkagroup.member.coordinated import CoordinatedMember

__all__ = [
    "COMMITTING",
    "ENDING",
    "HEARTBEATING",
    "MOVES",
    "PASSIVE",
    "PURGATORY",
    "Member",
    "Phase",
]


class Phase(Enum):
    """The phases of a membership."""

    IDLE = "idle"
    """Not started."""
    UNJOINED = "unjoined"
    """About to send JoinGroup, once the coordinator is known and back-off has ended."""
    JOINING = "joining"
    """JoinGroup is in flight; the coordinator waits for the other members."""
    COMPUTING = "computing"
    """Leader only: the assignor runs."""
    SYNCING = "syncing"
    """SyncGroup is in flight."""
    SYNCED = "synced"
    """The assignment has arrived, without a lease, which the next acknowledged heartbeat begins."""
    STABLE = "stable"
    """A member of a generation."""
    REVOKING = "revoking"
    """The generation ends; the application processes, commits and releases. Heartbeats continue."""
    LOSING = "losing"
    """The generation ended before the application could revoke; the application is notified."""
    DEPARTING = "departing"
    """About to send LeaveGroup, once the coordinator is known and back-off has ended."""
    LEAVING = "leaving"
    """LeaveGroup is in flight."""
    LEFT = "left"
    """The member has left the group."""
    FAILED = "failed"
    """An error that no retry can fix has ended the membership."""


_ENDING_MOVES: Mapping[Phase, str] = {
    Phase.DEPARTING: "Leaving, or a fatal response; LeaveGroup follows",
    Phase.LEFT: "Leaving, or a later event; LeaveGroup is not needed, or there is no member id",
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
        Phase.REVOKING: "Leaving, while a cooperative member keeps the generation's assignment",
        Phase.LOSING: "Leaving, Replied or SendFailed, while it keeps an assignment",
    },
    Phase.JOINING: {
        **_ENDING_MOVES,
        Phase.UNJOINED: "Replied with a retriable error, or SendFailed",
        Phase.COMPUTING: "Replied to the leader",
        Phase.SYNCING: "Replied to another member, or to a static leader that came back",
        Phase.REVOKING: "Leaving, while a cooperative member keeps the generation's assignment",
        Phase.LOSING: "Replied: removed, missed a generation, or a fatal error; or Leaving; while"
        " the member keeps an assignment",
    },
    Phase.COMPUTING: {
        **_ENDING_MOVES,
        Phase.UNJOINED: "Replied to a heartbeat with an error; or Computed without a coordinator",
        Phase.SYNCING: "Computed",
        Phase.LOSING: "ComputeFailed, Replied or Leaving, while it keeps an assignment",
    },
    Phase.SYNCING: {
        **_ENDING_MOVES,
        Phase.UNJOINED: "Replied with a retriable error, or SendFailed",
        Phase.SYNCED: "Replied with the assignment, without a lease",
        Phase.STABLE: "Replied with the assignment, during the lease of earlier heartbeats",
        Phase.LOSING: "Replied: removed or a fatal error; or Leaving; while it keeps an assignment",
    },
    Phase.SYNCED: {
        **_ENDING_MOVES,
        Phase.UNJOINED: "Replied to a heartbeat: the group rebalances, or does not know the member",
        Phase.SYNCED: "Replied to a heartbeat that was sent a session timeout ago",
        Phase.STABLE: "Replied to a heartbeat, which begins the lease",
        Phase.LOSING: "Replied: removed or a fatal error; or Leaving; while it keeps an assignment",
    },
    Phase.STABLE: {
        Phase.REVOKING: "Replied to a heartbeat: the group rebalances; RejoinRequested; Leaving",
        Phase.LOSING: "Replied: removed, or a fatal error; SendFailed of FindCoordinator with one;"
        " AssignFailed; Leaving as `lost`",
    },
    Phase.REVOKING: {
        Phase.UNJOINED: "Revoked",
        Phase.REVOKING: "Revoked of a part, while leaving: the rest follows",
        Phase.LOSING: "as from STABLE",
        Phase.DEPARTING: "Revoked, while leaving; LeaveGroup follows",
        Phase.LEFT: "Revoked, while leaving; LeaveGroup is not needed",
    },
    Phase.LOSING: {
        Phase.UNJOINED: "Revoked",
        Phase.DEPARTING: "Revoked, while leaving; LeaveGroup follows",
        Phase.LEFT: "Revoked, while leaving; LeaveGroup is not needed",
        Phase.FAILED: "Replied to an earlier heartbeat: fenced; or SendFailed of FindCoordinator,"
        " with a fatal error",
    },
    Phase.DEPARTING: {
        Phase.LEAVING: "any event, once the coordinator is known and back-off has ended",
        Phase.LEFT: "the time is over, or the coordinator cannot be looked up",
    },
    Phase.LEAVING: {
        Phase.LEFT: "Replied; SendFailed with a fatal error; or the time is over",
        Phase.DEPARTING: "Replied with a retriable error, or SendFailed",
    },
    Phase.LEFT: {},
    Phase.FAILED: {},
}
"""Phase -> each phase that may follow -> the event that causes the move. Any other move is a bug,
and raises. "Removed": the coordinator has removed the member, or begun a generation without it. A
fatal error is one that no retry can fix."""

HEARTBEATING = frozenset((Phase.COMPUTING, Phase.SYNCED, Phase.STABLE, Phase.REVOKING))
"""Phases with heartbeats. A JoinGroup or SyncGroup in purgatory keeps the session alive, if the
coordinator received it. To find out whether it did, a member that owns partitions also sends
heartbeats on another connection."""

PURGATORY = frozenset((Phase.JOINING, Phase.SYNCING))
"""Phases in which the coordinator may hold the request in purgatory. Until it answers, it reads no
later request on that connection."""

ENDING = frozenset((Phase.DEPARTING, Phase.LEAVING, Phase.LEFT, Phase.FAILED))
"""Phases of a membership that ends or has ended."""

PASSIVE = frozenset((Phase.IDLE, Phase.LEFT, Phase.FAILED))
"""Phases in which nothing is due."""

COMMITTING = frozenset((Phase.SYNCED, Phase.STABLE, Phase.REVOKING))
"""Phases in which the coordinator takes commits: until JoinGroup is sent, and once SyncGroup is
answered."""


@frozen(kw_only=True)
class Member(CoordinatedMember):
    """The whole state of a member of a classic group."""

    protocols: tuple[tuple[str, bytes], ...]
    """Protocol name and metadata, the preferred first."""
    phase: Phase = Phase.IDLE
    member_id: str = ""
    member_id_token: int = 0
    """The last token before the member got its id: older replies concern another id."""
    generation_id: int = -1
    generation_token: int = 0
    """The last token before the current generation: older replies concern an earlier one."""
    protocol_name: str = ""
    leader_id: str = ""
    members: Mapping[str, bytes] = field(factory=dict)
    """On the leader: member id -> metadata."""
    instance_ids: Mapping[str, str] = field(factory=dict)
    """On the leader: member id -> group_instance_id of the static members."""
    assignment: bytes = b""
    """What SyncGroup assigned; the application gets it once the lease has begun."""
    join_sent_at: float = 0.0
    """When the last JoinGroup or SyncGroup was sent."""
    joined_at: float = 0.0
    """When the JoinGroup of the current generation was answered."""
    first_heartbeat_delay: float = 0.0
    """The delay of the first heartbeat in this generation; 0.0 once a heartbeat has found the group
    stable."""
    stable_at: float = 0.0
    """When the last request was sent whose response showed that no earlier rebalance is under way:
    a JoinGroup, a SyncGroup, or a heartbeat that found the group stable."""
    rebalancing_at: float = 0.0
    """When the last heartbeat was sent that found the group rebalancing."""
    joined_after: float = 0.0
    """A moment before all members had joined the current generation: when the last JoinGroup or
    heartbeat was sent that the coordinator handled before that."""
    is_unsynced: bool = False
    """Whether the coordinator waits for this member's SyncGroup, as far as the member knows: also
    while the member joins again because it got no response to SyncGroup."""
    must_rejoin: bool = False
    """Whether a rejoin was requested while the member was joining."""
    assigned_generation: int = -1
    """The generation whose assignment the application was given last."""
    revokes_all: bool = False
    """Whether the current revocation is of everything, because the member leaves."""
    is_connection_held: bool = False
    """Whether a JoinGroup or SyncGroup that a leaving member no longer waits for may be in
    purgatory. The coordinator then reads no later request on the connection of group requests."""

    @property
    def may_be_known(self) -> bool:
        """Always False: the next member joins under a new id, which the coordinator does not know.
        If leaving had no response, the driver keeps the old id (`unanswered_id`)."""
        return False

    @property
    def may_commit(self) -> bool:
        """Whether the coordinator takes commits: not from JoinGroup until SyncGroup is answered."""
        return self.phase in COMMITTING

    @property
    def leads(self) -> bool:
        """Whether this member leads a stable generation, and rejoins when the topics change."""
        return self.phase is Phase.STABLE and self.is_leader

    def is_current(self, generation_id: int) -> bool:
        """Return whether this is the member's generation, and its assignment has arrived."""
        return self.phase is Phase.STABLE and self.generation_id == generation_id

    @property
    def follows_subscription(self) -> bool:
        """Whether the generation was joined with the present protocols, and is stable: a stable
        member whose protocols change begins to revoke at once."""
        return self.phase is Phase.STABLE

    @property
    def is_leader(self) -> bool:
        """Whether this member leads its generation."""
        return bool(self.member_id) and self.leader_id == self.member_id

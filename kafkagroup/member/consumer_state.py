"""The state of a member of a consumer group (KIP-848): its phases, the legal moves, its memory."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from uuid import UUID

from kafkagroup._values import field, frozen
from kafkagroup.member.coordinated import CoordinatedConfig, CoordinatedMember

__all__ = [
    "ENDED",
    "HEARTBEATING",
    "MOVES",
    "PASSIVE",
    "Config",
    "Member",
    "PartitionsByTopicId",
    "Phase",
    "ReportedState",
    "is_missing",
]

PartitionsByTopicId = Mapping[UUID, tuple[int, ...]]
"""Topic id -> partitions, sorted; no topic without any."""


class Phase(Enum):
    """Where a member stands."""

    IDLE = "idle"
    """Not started."""
    UNJOINED = "unjoined"
    """About to join, once the coordinator is known and back-off is over."""
    JOINING = "joining"
    """The heartbeat of epoch 0 is on its way."""
    MEMBER = "member"
    """In the group: beats, and owns what the coordinator gives it."""
    REVOKING = "revoking"
    """It leaves: the application finishes and commits. Heartbeats go on."""
    LOSING = "losing"
    """The coordinator has given its place away; the application is being told."""
    LEAVING = "leaving"
    """The heartbeat of epoch -1 or -2 is on its way."""
    LEFT = "left"
    """Out of the group for good."""
    FAILED = "failed"
    """Out of the group by an error that no retry mends."""


_LEFT: Mapping[Phase, str] = {
    Phase.LEAVING: "Leaving, or a fatal answer; a heartbeat of epoch -1 or -2 is sent",
    Phase.LEFT: "Leaving, or fallen back; there is no coordinator to tell, or nothing to tell it",
    Phase.FAILED: "Replied or SendFailed with an error that no retry mends",
}
"""How a member ends that owns nothing."""

MOVES: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.IDLE: {
        Phase.UNJOINED: "Started",
        Phase.LEFT: "Leaving, before it was started",
    },
    Phase.UNJOINED: {
        **_LEFT,
        Phase.JOINING: "any event, once the coordinator is known and back-off has ended",
    },
    Phase.JOINING: {
        **_LEFT,
        Phase.UNJOINED: "Replied with a retriable error, or SendFailed",
        Phase.MEMBER: "Replied with an epoch",
    },
    Phase.MEMBER: {
        **_LEFT,
        Phase.UNJOINED: "Replied: fenced or unknown, before anything was assigned",
        Phase.REVOKING: "Leaving",
        Phase.LOSING: "Replied: fenced or unknown; AssignFailed; Leaving as `lost`",
    },
    Phase.REVOKING: {
        Phase.LOSING: "Replied: fenced or unknown",
        Phase.LEAVING: "Revoked; the coordinator is told",
        Phase.LEFT: "Revoked; there is nothing to tell",
    },
    Phase.LOSING: {
        **_LEFT,
        Phase.UNJOINED: "Revoked",
    },
    Phase.LEAVING: {Phase.LEFT: "Replied or SendFailed"},
    Phase.LEFT: {},
    Phase.FAILED: {},
}
"""Phase -> each phase that may follow -> the event that causes the move. Any other move is a bug,
and raises."""

HEARTBEATING = frozenset((Phase.MEMBER, Phase.REVOKING))
"""Phases with heartbeats, and with commits."""

ENDED = frozenset((Phase.LEAVING, Phase.LEFT, Phase.FAILED))
"""Phases in which nothing is due any more."""

PASSIVE = ENDED | {Phase.IDLE}
"""Phases in which nothing is due."""


@frozen(kw_only=True)
class Config(CoordinatedConfig):
    """What a member of a consumer group is told once."""

    rack: str | None = None
    assignor: str | None = None
    """The server's assignor, "uniform" or "range"; None: the broker's default."""
    may_fall_back: bool = False
    """Whether a group or broker without this protocol ends the membership with `FallBack`."""
    release_timeout: float = 60.0
    """How long another member may hold our `group_instance_id`: after a crash it is ourselves."""


@frozen
class ReportedState:
    """What a member tells of itself; only what has changed is sent again."""

    topics: tuple[str, ...]
    pattern: str | None
    owned: PartitionsByTopicId
    reconciliation_count: int = 0
    """How often it had taken up what it was assigned: the coordinator waits to hear of each time,
    also where that leaves it with what it said before."""


@frozen(kw_only=True)
class Member(CoordinatedMember):
    """The whole state of a member of a consumer group."""

    config: Config
    member_id: str
    """Made by the client and kept for its life (KIP-1082)."""
    topics: tuple[str, ...] = ()
    """What is subscribed to by name, sorted."""
    pattern: str | None = None
    """What is subscribed to by a regular expression, of the server's kind (RE2J)."""
    phase: Phase = Phase.IDLE
    epoch: int = 0
    """The member's epoch; 0 outside of the group."""
    target: PartitionsByTopicId | None = None
    """What the coordinator last said that is to be owned; None before it said anything."""
    owned: PartitionsByTopicId = field(factory=dict)
    """What the application holds, or is letting go of."""
    next_owned: PartitionsByTopicId = field(factory=dict)
    """What it is to hold after the reconciliation under way."""
    reconciliation_count: int = 0
    """How often the application has taken up what was assigned."""
    reconciling: int | None = None
    """Token of that reconciliation."""
    abandoned_heartbeat: int | None = None
    """Token of the last heartbeat, if it is in flight to a coordinator that is doubted since."""
    revocation_requested_at: float | None = None
    """The coordinator waits since after this for something to be let go of; None once it has
    surely heard that it was."""
    names: Mapping[UUID, str] = field(factory=dict)
    """Topic id -> name, of all that were asked for."""
    unnamed: frozenset[UUID] = frozenset()
    """The topic ids whose names are being looked up."""
    acknowledged_state: ReportedState | None = None
    """What the coordinator surely knows of this member; None: all of it is to be said again."""
    state_in_flight: ReportedState | None = None
    """What the heartbeat in flight says."""
    has_sent_pattern: bool = False
    """Whether the coordinator may know a pattern, which only an empty one takes back."""
    may_be_known: bool = False
    """Whether the coordinator may count this member in."""
    broker_interval: float = 0.0
    """What the broker asks for between heartbeats; zero before it has asked."""
    frequent_until: float = 0.0
    """Until then heartbeats are frequent."""
    immediate_heartbeats: int = 0
    """How many heartbeats did not wait for their time since it last was at rest."""
    loss_count: int = 0
    """How often the place was given away since a heartbeat found it standing."""
    unreleased_since: float | None = None
    """When the coordinator first said that another member holds the instance id."""
    has_reported_denial: bool = False
    """The application was told of topics that are denied, and no heartbeat was taken since."""

    @property
    def generation_id(self) -> int:
        """The epoch, under the name that it has in commits."""
        return self.epoch

    @property
    def protocols(self) -> tuple[tuple[str, bytes], ...]:
        """No member computes, so none has anything to offer."""
        return ()

    @property
    def is_closed(self) -> bool:
        """Whether the membership is over for good."""
        return self.phase in (Phase.LEFT, Phase.FAILED)

    @property
    def revoking(self) -> bool:
        """Whether the application is letting go of what it still owns."""
        return self.phase is Phase.REVOKING

    @property
    def may_commit(self) -> bool:
        """Whether the coordinator takes commits: from each member, at all times."""
        return self.phase in HEARTBEATING

    @property
    def leads(self) -> bool:
        """The coordinator assigns, and watches the topics."""
        return False

    def is_current(self, generation_id: int) -> bool:
        """Whether it owns what it was told to, whatever has become of the epoch since."""
        return self.phase is Phase.MEMBER and self.ownership.is_assigned

    @property
    def reported_state(self) -> ReportedState:
        """What there is to tell now."""
        return ReportedState(
            self.topics, self.pattern, self._reported_partitions, self.reconciliation_count
        )

    @property
    def _reported_partitions(self) -> PartitionsByTopicId:
        """What is told to be owned. What the application may hold must never seem to be let go of:
        the coordinator would give it to another member."""
        if self.reconciling is None:
            return self.owned
        both = {t: {*self.owned.get(t, ()), *p} for t, p in self.next_owned.items()}
        claimed = {**self.owned, **{t: tuple(sorted(p)) for t, p in both.items()}}
        if (
            self.acknowledged_state is None
            or self.acknowledged_state.reconciliation_count != self.reconciliation_count
        ):
            return claimed
        # What is being taken up is said once that is done.
        return (
            claimed
            if is_missing(claimed, self.acknowledged_state.owned)
            else self.acknowledged_state.owned
        )


def is_missing(share: PartitionsByTopicId, other: PartitionsByTopicId) -> bool:
    """Whether anything of the other is not in the share."""
    return any({*p} - {*share.get(t, ())} for t, p in other.items())

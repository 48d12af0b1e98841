"""The state of a member of a group that is kept in ZooKeeper: phases, legal moves, what it
remembers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import attrs

from kafkagroup.member.ownership import Ownership
from kafkagroup.member.vocabulary import Leaving
from kafkagroup.member.zookeeper_nodes import MemberNode

__all__ = ["MOVES", "SURE", "Config", "Member", "Phase", "View"]

SURE = 0.5
"""For which share of the session ownership is sure after the leader of the servers confirmed it.

The leader counts the session from when it last heard of the member. That may be older than the
confirmation: by the pause between two pings, a sixth of the session here, and by half a tick of the
servers, at most a quarter of the session. The rest is for clocks that drift."""


class Phase(Enum):
    """Where a member stands."""

    IDLE = "idle"
    """Not started."""
    CONNECTING = "connecting"
    """Waits for ZooKeeper to begin a session."""
    REGISTERING = "registering"
    """There is a session, and no member's node yet."""
    MEMBER = "member"
    """Among the members: reads them, computes, claims and takes up."""
    LOSING = "losing"
    """The session is over; the application is being told."""
    REVOKING = "revoking"
    """About to leave: the application finishes and commits. Claims are kept until then."""
    LEAVING = "leaving"
    """The session is being closed."""
    LEFT = "left"
    """Out of the group for good."""
    FAILED = "failed"
    """Out of the group by an error that no retry mends."""


_LEFT: Mapping[Phase, str] = {
    Phase.LEAVING: "Leaving, or Revoked while leaving; the session is closed",
    Phase.LEFT: "Leaving, or Revoked while leaving; the session had ended",
    Phase.FAILED: "AskFailed, ComputeFailed, AssignFailed or SessionFailed",
}
"""How a member ends."""

MOVES: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.IDLE: {
        Phase.CONNECTING: "Started",
        Phase.LEFT: "Leaving, before it was started",
    },
    Phase.CONNECTING: {
        **_LEFT,
        Phase.REGISTERING: "SessionEstablished",
    },
    Phase.REGISTERING: {
        **_LEFT,
        Phase.MEMBER: "Registered",
        Phase.CONNECTING: "SessionExpired, or any event after the session's end",
    },
    Phase.MEMBER: {
        **_LEFT,
        Phase.CONNECTING: "SessionExpired, or any event after the session's end; nothing was given",
        Phase.LOSING: "SessionExpired, any event after the session's end, or Leaving as `lost`",
        Phase.REVOKING: "Leaving",
    },
    Phase.LOSING: {
        **_LEFT,
        Phase.CONNECTING: "Revoked",
    },
    Phase.REVOKING: {
        **_LEFT,
        Phase.LOSING: "SessionExpired, or any event after the session's end",
    },
    Phase.LEAVING: {Phase.LEFT: "SessionClosed"},
    Phase.LEFT: {},
    Phase.FAILED: {},
}
"""Phase -> each phase that may follow -> the event that causes the move. Any other move is a bug,
and raises."""


@attrs.frozen(kw_only=True)
class Config:
    """What a member is told once. Times in seconds."""

    group_id: str
    protocol_type: str
    name: str
    """What its member ids begin with; no other member's do."""
    whole: bool = False
    """Whether it claims whole generations, not partitions."""
    session_timeout: float = 10.0
    """What ZooKeeper is asked for; it grants what lies between 2 and 20 ticks of its own."""
    rebalance_timeout: float = 300.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0
    max_retries: int | None = None
    """How often in a row claims may be refused and tried again; None: for ever."""


@attrs.frozen
class View:
    """The list of members, as it was at one moment."""

    version: int
    nodes: tuple[MemberNode, ...]


@attrs.frozen(kw_only=True)
class Member:
    """The whole state of a member."""

    config: Config
    protocols: tuple[tuple[str, bytes], ...]
    """Protocol name and metadata, the preferred first."""
    phase: Phase = Phase.IDLE
    session: int = 0
    """Number of the session, of those of this member."""
    timeout: float = 0.0
    """Of the session, as granted; zero before there is one."""
    registration: int = 0
    """How often it has registered: part of its id, so that a node never changes its content."""
    renew: bool = False
    """To register again: other metadata, or everybody is to compute again."""
    view: View | None = None
    is_outdated: bool = False
    """The list of members is to be read again."""
    members: Mapping[str, bytes] = attrs.field(factory=dict)
    """Those of the view that speak one protocol: member id -> metadata, first come first."""
    protocol_name: str = ""
    assignment: bytes = b""
    """This member's, by its own computation."""
    target: frozenset[str] | None = None
    """The units of the assignment; None before one was computed in this session."""
    held: frozenset[str] = frozenset()
    """The units whose claims are this member's."""
    unconfirmed: frozenset[str] = frozenset()
    """The units of claims and releases that were not answered: released before anything else."""
    given: frozenset[str] = frozenset()
    """The units that the application was last told to own; each of them is held."""
    told: int = -1
    """Under which registration it was told."""
    registering: int | None = None
    """Token of the registration in flight."""
    reading: int | None = None
    """Token of the reading of the members."""
    computing: int | None = None
    """Token of the computation."""
    asking: int | None = None
    """Token of the claim or release in flight: one write at a time."""
    asked: frozenset[str] = frozenset()
    """The units that it is about."""
    reconciling: int | None = None
    """Token of what the application is doing."""
    confirming: int | None = None
    """Token of the confirmation in flight."""
    confirm_sent_at: float = 0.0
    next_confirm_at: float = 0.0
    ownership: Ownership = attrs.field(factory=Ownership)
    session_ends_at: float = 0.0
    """Without another confirmation the session counts as over then."""
    retry_at: float = 0.0
    """Neither register, read nor claim before this."""
    attempts: int = 0
    """Failures in a row, for back-off."""
    reason: str = ""
    """Why the session is given up."""
    leaving: Leaving | None = None
    last_token: int = 0

    @property
    def member_id(self) -> str:
        """The name of the member's node, or of the one it will have; "" before the first."""
        if self.registration == 0:
            return ""
        return f"{self.config.name}-{self.registration}"

    @property
    def generation_id(self) -> int:
        """The version of the list of members that this member goes by; -1 before the first."""
        return -1 if self.view is None else self.view.version

    @property
    def leader_id(self) -> str:
        """The member that came first. It computes no more than the others."""
        return next(iter(self.members), "")

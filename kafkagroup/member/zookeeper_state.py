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
    """The phases of a membership."""

    IDLE = "idle"
    """Not started."""
    CONNECTING = "connecting"
    """Waiting for ZooKeeper to begin a session."""
    REGISTERING = "registering"
    """There is a session, and no member's node yet."""
    MEMBER = "member"
    """Registered: reads the list, computes, claims, and assigns to the application."""
    LOSING = "losing"
    """The session has ended; the application is notified."""
    REVOKING = "revoking"
    """It leaves: the application processes and commits. Claims are kept until then."""
    LEAVING = "leaving"
    """The session is being closed."""
    LEFT = "left"
    """The member has left the group."""
    FAILED = "failed"
    """An error that no retry can fix has ended the membership."""


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
    """Configuration of a member. Times in seconds."""

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
    must_register: bool = False
    """Whether to register again: with other metadata, or so that all members compute again."""
    view: View | None = None
    is_outdated: bool = False
    """Whether the list of members must be read again."""
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
    """The units of claims and releases without an answer: these are released first."""
    assigned_units: frozenset[str] = frozenset()
    """The units that the application owns or is being assigned; each of them is held."""
    notified_registration: int = -1
    """The registration under which the application got its assignment."""
    registering: int | None = None
    """Token of the registration in flight."""
    reading: int | None = None
    """Token of the reading of the members."""
    computing: int | None = None
    """Token of the computation."""
    write_in_flight: int | None = None
    """Token of the claim or release in flight: one write at a time."""
    written_units: frozenset[str] = frozenset()
    """The units of that claim or release."""
    reconciling: int | None = None
    """Token of the effect that the application is carrying out."""
    confirming: int | None = None
    """Token of the confirmation in flight."""
    confirm_sent_at: float = 0.0
    next_confirm_at: float = 0.0
    ownership: Ownership = attrs.field(factory=Ownership)
    session_ends_at: float = 0.0
    """When the session ends without another confirmation."""
    retry_at: float = 0.0
    """Neither register, read nor claim before this."""
    attempts: int = 0
    """Failures in a row, for back-off."""
    reason: str = ""
    """Why the session was ended."""
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

"""The state of a member whose group is kept in ZooKeeper: its phases, the legal moves, its fields.

A unit is what a member claims: a partition, or a whole generation
(`MemberConfig.exclusive_generations`). Times are seconds on the lease clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import attrs

from kafkagroup.member.config import MemberConfig
from kafkagroup.member.ownership import Ownership
from kafkagroup.member.vocabulary import Leaving
from kafkagroup.member.zookeeper_nodes import MemberNode

__all__ = ["LEASE_FRACTION", "MOVES", "Member", "Phase", "View"]

LEASE_FRACTION = 0.5
"""The length of the lease after a confirmation by ZooKeeper's leader, as a fraction of the session
timeout.

The leader's timeout runs from the last request of the session that it knows of. That may be older
than the confirmation: by the interval between two confirmations, a sixth of the session timeout,
and by half a tick of the servers, after which a follower reports its sessions. By default, servers
grant a session timeout of at least two ticks, so half a tick is at most a quarter of it. The rest
is for clocks that drift."""

_CONFIRM_FRACTION = 1 / 6
"""The interval between confirmations, as a fraction of the session timeout. `LEASE_FRACTION`
depends on it."""


class Phase(Enum):
    """The phases of a membership."""

    IDLE = "idle"
    """Not started."""
    CONNECTING = "connecting"
    """Waiting for ZooKeeper to begin a session."""
    REGISTERING = "registering"
    """There is a session, and no node of this member yet."""
    MEMBER = "member"
    """Registered. The member reads the list of members, computes the assignment, claims its units,
    and assigns them to the application."""
    LOSING = "losing"
    """The session has ended; the application is notified."""
    REVOKING = "revoking"
    """Leaving: the application finishes its records and commits. Claims are kept until then."""
    LEAVING = "leaving"
    """The session is being closed."""
    LEFT = "left"
    """The member has left the group."""
    FAILED = "failed"
    """An error that no retry can fix has ended the membership."""


_ENDING_MOVES: Mapping[Phase, str] = {
    Phase.LEAVING: "Leaving, or Revoked while leaving",
    Phase.FAILED: "RequestFailed, ComputeFailed, AssignFailed or SessionFailed; MembersRead: this"
    " member is not admitted; or Claimed: refused too often",
}
"""The moves that end a membership with a session."""

MOVES: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.IDLE: {
        Phase.CONNECTING: "Started",
        Phase.LEFT: "Leaving, before it was started",
    },
    Phase.CONNECTING: {
        **_ENDING_MOVES,
        Phase.REGISTERING: "SessionEstablished",
    },
    Phase.REGISTERING: {
        **_ENDING_MOVES,
        Phase.MEMBER: "Registered",
        Phase.CONNECTING: "SessionExpired, or any event after the session's end",
    },
    Phase.MEMBER: {
        **_ENDING_MOVES,
        Phase.CONNECTING: "SessionExpired, or any event after the session's end; without"
        " `may_own_units`",
        Phase.LOSING: "SessionExpired, any event after the session's end, or Leaving as `lost`;"
        " with `may_own_units`",
        Phase.REVOKING: "Leaving, with `may_own_units`",
    },
    Phase.LOSING: {
        Phase.LEFT: "Revoked while leaving: there is no session to close",
        Phase.FAILED: _ENDING_MOVES[Phase.FAILED],
        Phase.CONNECTING: "Revoked",
    },
    Phase.REVOKING: {
        **_ENDING_MOVES,
        Phase.LOSING: "SessionExpired, or any event after the session's end",
    },
    Phase.LEAVING: {Phase.LEFT: "SessionClosed"},
    Phase.LEFT: {},
    Phase.FAILED: {},
}
"""Phase -> each phase that may follow -> the event that causes the move. Any other move is a bug,
and raises."""


@attrs.frozen
class View:
    """The list of members as read at one moment."""

    version: int
    nodes: tuple[MemberNode, ...]


@attrs.frozen(kw_only=True)
class Member:
    """The whole state of a member."""

    config: MemberConfig
    name: str
    """The prefix of this member's ids; no other member has it."""
    protocols: tuple[tuple[str, bytes], ...]
    """Protocol name and metadata, the preferred first."""
    phase: Phase = Phase.IDLE
    session: int = 0
    """The number of the current session, counted by this member."""
    timeout: float = 0.0
    """The granted session timeout in seconds; zero before there is a session."""
    registration: int = 0
    """How often the member has registered. The number is part of the member id, so that the content
    of a node never changes."""
    must_register: bool = False
    """Whether to register again: its metadata has changed, or all members must compute again."""
    view: View | None = None
    """The list of members in use; None before it was read in this session."""
    is_outdated: bool = False
    """Whether the list of members must be read again."""
    members: Mapping[str, bytes] = attrs.field(factory=dict)
    """The members of the view that share a protocol: member id -> metadata, in the order of their
    registration."""
    protocol_name: str = ""
    assignment: bytes = b""
    """This member's assignment, as it has computed it."""
    target: frozenset[str] | None = None
    """The units of the assignment; None before one was computed in this session."""
    computed_registration: int = -1
    """The registration that the assignment was computed from."""
    held: frozenset[str] = frozenset()
    """The units that this member has claimed."""
    uncertain: frozenset[str] = frozenset()
    """The units whose claim or release got no response. The member releases them first."""
    assigned_units: frozenset[str] = frozenset()
    """The units that the application owns or is being assigned; each of them is held."""
    notified_registration: int = -1
    """The `computed_registration` of the assignment that the application got last."""
    registering: int | None = None
    """Token of the registration in flight."""
    reading: int | None = None
    """Token of the `ReadMembers` in flight."""
    computing: int | None = None
    """Token of the `Compute` in progress."""
    write_in_flight: int | None = None
    """Token of the claim or release in flight: one write at a time."""
    written_units: frozenset[str] = frozenset()
    """The units of the claim or release in flight."""
    reconciling: int | None = None
    """Token of the effect that the application is executing."""
    confirming: int | None = None
    """Token of the confirmation in flight."""
    confirm_sent_at: float = 0.0
    """When the last confirmation was requested."""
    next_confirm_at: float = 0.0
    """When to request the next one."""
    ownership: Ownership = attrs.field(factory=Ownership)
    session_ends_at: float = 0.0
    """When the session ends without another confirmation."""
    retry_at: float = 0.0
    """When back-off ends. Until then the member sends no registration, read or claim."""
    attempts: int = 0
    """Failures in a row, for back-off."""
    leaving: Leaving | None = None
    """The event by which the application left; None if it has not."""
    last_token: int = 0

    @property
    def confirm_interval(self) -> float:
        """Seconds between two confirmations of the session."""
        return self.timeout * _CONFIRM_FRACTION

    @property
    def is_closed(self) -> bool:
        """Whether the membership has ended."""
        return self.phase in (Phase.LEFT, Phase.FAILED)

    @property
    def may_commit(self) -> bool:
        """Whether the claims are valid, as far as this member knows."""
        return self.phase in (Phase.MEMBER, Phase.REVOKING)

    @property
    def leads(self) -> bool:
        """Whether the member has computed an assignment: every member does, so each requests a new
        generation when its input has changed."""
        return self.phase is Phase.MEMBER and self.target is not None

    def is_current(self, generation_id: int) -> bool:
        """Return whether the application was given the whole assignment. `generation_id` does not
        matter: the application is not notified of a newer list of members that leaves the
        assignment as it is."""
        return self.assigned_units == self.target

    @property
    def may_own_units(self) -> bool:
        """Whether the application owns units, or is executing an effect."""
        return bool(self.assigned_units) or self.reconciling is not None

    @property
    def follows_subscription(self) -> bool:
        """Whether the assignment was computed from the present protocols."""
        return not self.must_register and self.computed_registration == self.registration

    @property
    def member_id(self) -> str:
        """The name of the member's node, or of the one it will have; "" before the first."""
        if self.registration == 0:
            return ""
        return f"{self.name}-{self.registration}"

    @property
    def generation_id(self) -> int:
        """The version of the list of members that this member uses; -1 before the first."""
        return -1 if self.view is None else self.view.version

    @property
    def leader_id(self) -> str:
        """The member that registered first. It has no special role: all members compute."""
        return next(iter(self.members), "")

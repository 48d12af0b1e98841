"""Events and effects of a membership kept in ZooKeeper, besides those of all members.

Every effect with a token is answered once, with the event of its name or with `AskFailed`; one with
a session number is answered by that session's events. A session that was disconnected says nothing
any more but `SessionClosed`.
"""

from __future__ import annotations

import attrs

from kafkagroup.member.vocabulary import (
    AssignFailed,
    AssignmentApplied,
    BaseEvent,
    Compute,
    Computed,
    ComputeFailed,
    Fail,
    GenerationInfo,
    Leave,
    Leaving,
    Lose,
    RejoinRequested,
    Revoke,
    Revoked,
    Started,
    WakeAt,
    Woke,
)
from kafkagroup.member.zookeeper_nodes import MemberNode

__all__ = [
    "AskFailed",
    "AssignmentApplied",
    "Claim",
    "Claimed",
    "Confirm",
    "Confirmed",
    "Connect",
    "Disconnect",
    "MembersChanged",
    "MembersRead",
    "ReadMembers",
    "Register",
    "Registered",
    "Release",
    "Released",
    "SessionClosed",
    "SessionEstablished",
    "SessionExpired",
    "SessionFailed",
    "Take",
    "ZooKeeperEffect",
    "ZooKeeperEvent",
]

# ---------------------------------------------------------------- events


@attrs.frozen(kw_only=True)
class SessionEstablished(BaseEvent):
    """ZooKeeper has begun the session, or the connection is back and the session continues."""

    session: int
    timeout: float
    """What ZooKeeper granted: without contact for this long the session, and all claims, end."""


@attrs.frozen(kw_only=True)
class SessionExpired(BaseEvent):
    """ZooKeeper has ended the session and its claims: others may hold them."""

    session: int


@attrs.frozen(kw_only=True)
class SessionFailed(BaseEvent):
    """There will be no session, as when credentials are refused."""

    session: int
    error: Exception


@attrs.frozen(kw_only=True)
class SessionClosed(BaseEvent):
    """A `Disconnect` is done."""

    session: int


@attrs.frozen(kw_only=True)
class Registered(BaseEvent):
    """The member's node is there."""

    token: int


@attrs.frozen(kw_only=True)
class MembersChanged(BaseEvent):
    """The list of members is another than the one that was read last."""

    session: int


@attrs.frozen(kw_only=True)
class MembersRead(BaseEvent):
    """The members."""

    token: int
    version: int
    """Of the list: grows with each member that comes or goes."""
    nodes: tuple[MemberNode, ...]


@attrs.frozen(kw_only=True)
class Confirmed(BaseEvent):
    """The servers' leader knows the session. It is alive since the `Confirm` was sent."""

    token: int
    version: int
    """Of the list of members."""


@attrs.frozen(kw_only=True)
class Claimed(BaseEvent):
    """What a `Claim` came to; the units that are missing are held by others."""

    token: int
    granted: frozenset[str]


@attrs.frozen(kw_only=True)
class Released(BaseEvent):
    """The claims were deleted."""

    token: int


@attrs.frozen(kw_only=True)
class AskFailed(BaseEvent):
    """There was no answer, or an error; what was asked for may have happened or not."""

    token: int
    error: Exception


ZooKeeperEvent = (
    Started
    | SessionEstablished
    | SessionExpired
    | SessionFailed
    | SessionClosed
    | Registered
    | MembersChanged
    | MembersRead
    | Confirmed
    | Claimed
    | Released
    | AskFailed
    | AssignmentApplied
    | Revoked
    | Computed
    | ComputeFailed
    | AssignFailed
    | Woke
    | RejoinRequested
    | Leaving
)


# ---------------------------------------------------------------- effects


@attrs.frozen(kw_only=True)
class Connect:
    """Begin a session."""

    session: int


@attrs.frozen(kw_only=True)
class Disconnect:
    """End a session, and with it the member's node and all its claims."""

    session: int


@attrs.frozen(kw_only=True)
class Register:
    """Make the member's node, in place of an older one of its own if there is one."""

    token: int
    member_id: str
    data: bytes
    replaces: str | None


@attrs.frozen(kw_only=True)
class ReadMembers:
    """Read all members' nodes, and watch the list."""

    token: int


@attrs.frozen(kw_only=True)
class Confirm:
    """Have the servers' leader say that the session stands: a follower that is cut off would go on
    answering reads."""

    token: int


@attrs.frozen(kw_only=True)
class Claim:
    """Claim units that no other session holds."""

    token: int
    units: frozenset[str]


@attrs.frozen(kw_only=True)
class Release:
    """Give claims up."""

    token: int
    units: frozenset[str]


@attrs.frozen(kw_only=True)
class Take:
    """Own exactly these units: process, commit and revoke the others first, then add the rest."""

    token: int
    generation: GenerationInfo
    units: frozenset[str]
    deadline: float
    """When to stop waiting for work in flight."""


ZooKeeperEffect = (
    Connect
    | Disconnect
    | Register
    | ReadMembers
    | Confirm
    | Claim
    | Release
    | Take
    | Revoke
    | Lose
    | Compute
    | WakeAt
    | Fail
    | Leave
)

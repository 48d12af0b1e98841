"""Events and effects of a membership kept in ZooKeeper, besides those of all members.

A unit is what a member claims: a partition such as "orders:3", or a generation such as "17" (see
`zookeeper_nodes`). `session` is not ZooKeeper's session id: a member numbers its sessions, from 1.

The driver answers each `Register`, `ReadMembers`, `Confirm`, `Claim` and `Release` once, with
`Registered`, `MembersRead`, `Confirmed`, `Claimed` or `Released`, or with `RequestFailed`; and each
`AssignUnits` with `AssignmentApplied` or `AssignFailed`. An answer has the `token` of its request.
`Connect` begins a session, whose events follow, until `Disconnect` ends it. After `Disconnect` the
session's requests get no answer, and its only event is `SessionClosed`.
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
    "AssignUnits",
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
    "RequestFailed",
    "SessionClosed",
    "SessionEstablished",
    "SessionExpired",
    "SessionFailed",
    "ZooKeeperEffect",
    "ZooKeeperEvent",
]

# ---------------------------------------------------------------- events


@attrs.frozen(kw_only=True)
class SessionEstablished(BaseEvent):
    """ZooKeeper has begun the session, or the connection is back and the session continues."""

    session: int
    timeout: float
    """The granted timeout, in seconds: after this time without contact, the session and all claims
    end."""


@attrs.frozen(kw_only=True)
class SessionExpired(BaseEvent):
    """ZooKeeper has ended the session and deleted its claims: other members may hold the units."""

    session: int


@attrs.frozen(kw_only=True)
class SessionFailed(BaseEvent):
    """The session cannot begin, for example because ZooKeeper refuses the credentials."""

    session: int
    error: Exception


@attrs.frozen(kw_only=True)
class SessionClosed(BaseEvent):
    """The session has ended, as `Disconnect` requested."""

    session: int


@attrs.frozen(kw_only=True)
class Registered(BaseEvent):
    """The member's node exists."""

    token: int


@attrs.frozen(kw_only=True)
class MembersChanged(BaseEvent):
    """The list of members has changed since the last `ReadMembers`."""

    session: int


@attrs.frozen(kw_only=True)
class MembersRead(BaseEvent):
    """The list of members was read."""

    token: int
    version: int
    """The list's version: it grows when a member registers or is removed."""
    nodes: tuple[MemberNode, ...]


@attrs.frozen(kw_only=True)
class Confirmed(BaseEvent):
    """ZooKeeper's leader still knew the session after the `Confirm` was sent."""

    token: int
    version: int
    """The version of the list of members."""


@attrs.frozen(kw_only=True)
class Claimed(BaseEvent):
    """The result of a `Claim`. A unit was not granted because another member holds it; a
    generation, because another member claims a different one."""

    token: int
    granted: frozenset[str]


@attrs.frozen(kw_only=True)
class Released(BaseEvent):
    """The claims were deleted."""

    token: int


@attrs.frozen(kw_only=True)
class RequestFailed(BaseEvent):
    """A request failed or got no response. ZooKeeper may have executed it."""

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
    | RequestFailed
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
    """End a session, which deletes the member's node and all its claims."""

    session: int


@attrs.frozen(kw_only=True)
class Register:
    """Create the member's node, and delete the member's older node if there is one."""

    token: int
    member_id: str
    data: bytes
    replaces: str | None
    """The member id of the older node; None if there is none."""


@attrs.frozen(kw_only=True)
class ReadMembers:
    """Read all members' nodes, and watch the list."""

    token: int


@attrs.frozen(kw_only=True)
class Confirm:
    """Have ZooKeeper's leader confirm the session. A follower that has lost the leader would still
    answer reads."""

    token: int


@attrs.frozen(kw_only=True)
class Claim:
    """Claim the units that no other session holds. A generation is claimed only if no other
    session claims a different generation."""

    token: int
    units: frozenset[str]


@attrs.frozen(kw_only=True)
class Release:
    """Delete the claims of these units."""

    token: int
    units: frozenset[str]


@attrs.frozen(kw_only=True)
class AssignUnits:
    """Have the application own exactly these units. First process the records in flight of the
    other units that it owns, commit their offsets, and revoke them; then add the new units."""

    token: int
    generation: GenerationInfo
    units: frozenset[str]
    deadline: float
    """When to stop waiting for records in flight, on the lease clock."""


ZooKeeperEffect = (
    Connect
    | Disconnect
    | Register
    | ReadMembers
    | Confirm
    | Claim
    | Release
    | AssignUnits
    | Revoke
    | Lose
    | Compute
    | WakeAt
    | Fail
    | Leave
)

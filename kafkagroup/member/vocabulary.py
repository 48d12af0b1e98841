"""Events and effects: the inputs and outputs of a membership protocol.

Names of events are in the past tense, except `Leaving`; those of effects are imperative. The driver
of a `step` answers every `Send` once with `Replied` or `SendFailed`, unless the member has stopped
awaiting it before it could be sent; every `FindCoordinator` with a `Coordinator` in `Replied` or
with `SendFailed`; every `Revoke` and `Lose` with `Revoked`; and every `Compute` with `Computed` or
`ComputeFailed`. These events echo the token of their effect: one whose token is no longer current
changes nothing. An `Assign` has no token, and is answered only if it failed, with `AssignFailed`.
All moments are on the lease clock (see `BaseEvent.now`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafkagroup._values import field, frozen
from kafkagroup.wire.schema import Request

if TYPE_CHECKING:
    from kafkagroup.member.consumer_target import TargetChange

__all__ = [
    "Assign",
    "AssignFailed",
    "AssignmentApplied",
    "AssignmentRequested",
    "BaseEvent",
    "ClassicEffect",
    "ClassicEvent",
    "Compute",
    "ComputeFailed",
    "Computed",
    "Coordinator",
    "CoordinatorInvalidated",
    "Fail",
    "FindCoordinator",
    "GenerationInfo",
    "Leave",
    "Leaving",
    "Lose",
    "MemberMetadata",
    "RejoinRequested",
    "Replied",
    "ReportError",
    "Revoke",
    "Revoked",
    "Route",
    "Send",
    "SendFailed",
    "Started",
    "WakeAt",
    "Woke",
]


@frozen
class Coordinator:
    """The broker that coordinates the group."""

    node_id: int
    host: str
    port: int


@frozen
class GenerationInfo:
    """One generation of the group, as this member sees it."""

    generation_id: int
    """With KIP-848, the member epoch; in ZooKeeper, the version of the list of members."""
    member_id: str
    leader_id: str
    """Empty where the coordinator assigns (KIP-848)."""
    protocol_name: str
    """The name of the assignor by which members assign; where the coordinator assigns, that of the
    assignor that this member requested, "" for none."""
    members: Mapping[str, bytes]
    """Member id -> metadata; filled on the leader only."""
    assignment: bytes
    """What the leader assigned to this member; empty where the coordinator assigns (KIP-848)."""
    topic_ids: Mapping[str, UUID] = field(factory=dict)
    """Name -> id of each assigned topic, where the coordinator assigns by id (KIP-848)."""
    topics: Mapping[str, tuple[int, ...]] | None = None
    """Name -> the assigned partitions, where the coordinator assigns; else None."""

    @property
    def is_leader(self) -> bool:
        """Whether this member leads the generation."""
        return self.leader_id == self.member_id


@frozen(kw_only=True)
class MemberMetadata:
    """What a member tells its group about itself."""

    protocols: tuple[tuple[str, bytes], ...] = ()
    """Where members assign: protocol name -> metadata, the preferred first."""
    topics: tuple[str, ...] = ()
    """Where the coordinator assigns: the topics subscribed to by name, sorted."""
    pattern: str | None = None
    """Where the coordinator assigns: the regular expression subscribed to, in its syntax
    (RE2J); None for none."""


# ---------------------------------------------------------------- events


@frozen(kw_only=True)
class BaseEvent:
    """What every event carries."""

    now: float
    """Seconds on the lease clock, which is monotonic and counts suspends of the system."""
    jitter: float = 0.5
    """A random number in [0, 1): spreads what many members would do at the same moment."""


@frozen(kw_only=True)
class Started(BaseEvent):
    """The member was started."""


@frozen(kw_only=True)
class Replied(BaseEvent):
    """A `Send` or `FindCoordinator` was answered, if only with an error code."""

    token: int
    message: Any
    """The response to the `Send`, or the `Coordinator` that was found."""
    sender: Coordinator | None = None
    """The broker that answered the `Send`; None for a `FindCoordinator`."""
    target_change: TargetChange | None = None
    """What a large assignment changes, as a thread has prepared it (KIP-848)."""


@frozen(kw_only=True)
class SendFailed(BaseEvent):
    """A `Send` got no response: the connection broke, or the deadline passed. Or a
    `FindCoordinator` failed."""

    token: int
    error: Exception


@frozen(kw_only=True)
class Revoked(BaseEvent):
    """The application has released its partitions, as a `Revoke` or `Lose` required."""

    token: int
    protocols: tuple[tuple[str, bytes], ...] | None = None
    """Protocol name -> metadata for the next JoinGroup; None: unchanged."""


@frozen(kw_only=True)
class Computed(BaseEvent):
    """The assignments are ready."""

    token: int
    assignments: Mapping[str, bytes]
    """Member id -> assignment."""


@frozen(kw_only=True)
class ComputeFailed(BaseEvent):
    """The assignor raised."""

    token: int
    error: Exception


@frozen(kw_only=True)
class AssignFailed(BaseEvent):
    """The application could not apply its assignment."""

    error: Exception


@frozen(kw_only=True)
class AssignmentApplied(BaseEvent):
    """The application has committed, released what is revoked, and applied its assignment, as a
    `Reconcile` or `AssignUnits` required. A classic member gets no such event."""

    token: int


@frozen(kw_only=True)
class Woke(BaseEvent):
    """The time of a `WakeAt` has come."""


@frozen(kw_only=True)
class AssignmentRequested(BaseEvent):
    """The application requests another assignment. The base of all events that do so."""


@frozen(kw_only=True)
class RejoinRequested(AssignmentRequested):
    """The application requests a new generation, as its metadata or the topics have changed."""

    reason: str
    protocols: tuple[tuple[str, bytes], ...] | None = None
    """Protocol name -> metadata from now on; None: unchanged."""


@frozen(kw_only=True)
class CoordinatorInvalidated(BaseEvent):
    """The coordinator may have moved, or cannot be reached."""

    reason: str
    """For debugging: no step uses it."""


@frozen(kw_only=True)
class Leaving(BaseEvent):
    """The application leaves the group."""

    reason: str
    leave_group: bool | None = None
    """Whether to leave at the coordinator, which otherwise waits for the session to time out. None:
    only a dynamic member does. True removes a static member, too (KIP-1092)."""
    lost: bool = False
    """Whether the partitions are lost, and nothing is committed: the application did not poll in
    time, or the client has adopted another cluster."""
    deadline: float = math.inf
    """When the member stops trying to leave, after at least one attempt. If none had a response,
    the coordinator removes the member at the end of its session."""


ClassicEvent = (
    Started
    | Replied
    | SendFailed
    | Revoked
    | Computed
    | ComputeFailed
    | AssignFailed
    | Woke
    | RejoinRequested
    | CoordinatorInvalidated
    | Leaving
)
"""The events of a classic member."""


# ---------------------------------------------------------------- effects


class Route(Enum):
    """Which connection to the coordinator a request takes."""

    COORDINATOR = "coordinator"
    """The connection of group requests."""
    SEPARATE_CONNECTION = "separate connection"
    """Another connection. While a JoinGroup or SyncGroup is in purgatory, the coordinator reads no
    other request on the connection of group requests."""


@frozen(kw_only=True)
class Send:
    """Send a request."""

    token: int
    request: Request[Any]
    route: Route
    coordinator: Coordinator
    timeout: float
    """Seconds until the connection must be ready, and from then on until the response."""
    lowest: int = 0
    """The lowest version of the request that has the wanted effect. The send fails with
    UnsupportedVersionError if the broker supports only lower ones."""


@frozen(kw_only=True)
class FindCoordinator:
    """Find the coordinator of the group. A refusal is the BrokerError of a `SendFailed`."""

    token: int
    timeout: float
    """Seconds until it must be found."""


@frozen(kw_only=True)
class Revoke:
    """The generation ends: process what is in flight, commit, release, then report `Revoked`.

    A cooperative application releases what it no longer subscribes to, and keeps the rest.
    """

    token: int
    deadline: float
    """When to stop waiting for records in flight. The rest of the rebalance timeout is for the
    commit and the join."""


@frozen(kw_only=True)
class Lose:
    """The generation has ended, and others may own its partitions: release them without a commit,
    then report `Revoked`."""

    token: int
    reason: str


@frozen(kw_only=True)
class Compute:
    """Compute every member's assignment: this member leads, or the group is in ZooKeeper, where all
    members compute."""

    token: int
    protocol_name: str
    members: Mapping[str, bytes]
    """Member id -> metadata."""
    instance_ids: Mapping[str, str]
    """Member id -> group_instance_id of the static members."""


@frozen(kw_only=True)
class Assign:
    """Have the application apply its assignment of a new generation."""

    generation: GenerationInfo


@frozen(kw_only=True)
class WakeAt:
    """Report `Woke` at this time. Each `WakeAt` replaces the one before it."""

    time: float


@frozen(kw_only=True)
class ReportError:
    """Notify the application of an error that the member survives."""

    error: Exception


@frozen(kw_only=True)
class Fail:
    """Notify the application of the error that ends the membership. The member may still have to
    release its partitions and leave the group; other effects follow then."""

    error: Exception


@frozen(kw_only=True)
class Leave:
    """Note that the membership has ended. The last effect."""

    doubt: str = ""
    """Why the coordinator may still have the member; "" if it does not."""


ClassicEffect = (
    FindCoordinator | Send | Revoke | Lose | Compute | Assign | ReportError | WakeAt | Fail | Leave
)
"""The effects of a classic member."""

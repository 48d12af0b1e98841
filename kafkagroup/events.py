"""Events of a membership: rebalances and their causes, lost memberships, coordinators.

An event has only what the member can know. The coordinator does not report why a group rebalances:
a member knows the causes on its own side, and a leader sees which members joined and left. In other
cases the cause is UNKNOWN. Durations are seconds; `at` is a time of the loop's clock
(`anyio.current_time()`).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from kafkagroup._public import late_names
from kafkagroup._values import frozen

__all__ = [
    "CoordinatorFound",
    "EventsMissed",
    "GroupEvent",
    "GroupLeft",
    "MembershipLost",
    "RebalanceCause",
    "RebalancePhases",
    "RebalanceStarted",
    "Rebalanced",
    "TroubleEnded",
    "TroubleReported",
]


class RebalanceCause(Enum):
    """Why the group rebalanced. A rebalance may have several causes."""

    JOINING = "joining"
    """This member joins: for the first time, or again after `max_poll_interval_ms` expired."""
    SUBSCRIPTION = "subscription"
    """This member changed its subscription, or its metadata for the leader."""
    REQUESTED = "requested"
    """This member's application requested it."""
    TOPICS = "topics"
    """Partitions of a topic were added or deleted, or their replicas moved to other racks. The
    leader of a classic group reports it; with KIP-848, each member that is assigned a partition
    it did not know of."""
    HANDOVER = "handover"
    """This member revoked partitions; a second rebalance assigns them to others (KIP-429)."""
    FENCED = "fenced"
    """The coordinator had removed this member."""
    COORDINATOR = "coordinator"
    """The coordinator moved, or was unavailable."""
    SILENCE = "silence"
    """This member had no response from the coordinator for the whole session timeout."""
    POLL_TIMEOUT = "poll timeout"
    """This member's application did not ask for records within `max_poll_interval_ms`."""
    MEMBER_JOINED = "member joined"
    """This member is the leader, and other members joined."""
    MEMBER_LEFT = "member left"
    """This member is the leader, and other members left, or their sessions timed out: the
    coordinator does not report which."""
    UNKNOWN = "unknown"
    """The coordinator requested the rebalance, and gives no reason."""


@frozen
class GroupEvent:
    """Base of all events."""


@frozen(kw_only=True)
class RebalancePhases:
    """How long each phase of a rebalance took, in seconds; 0.0 for a phase that was skipped."""

    revoking: float = 0.0
    """Revoking: the record in flight, the commit, the application's callback."""
    waiting: float = 0.0
    """Finding the coordinator, and the backoff before retries."""
    joining: float = 0.0
    """JoinGroup, mostly waiting for other members; with KIP-848, the heartbeat that joins."""
    computing: float = 0.0
    """Running the assignor, on the leader."""
    syncing: float = 0.0
    """SyncGroup: waiting for the leader's assignment."""
    assigning: float = 0.0
    """Applying the assignment: the application's callback, or notifying a GroupMember."""


@frozen(kw_only=True)
class RebalanceStarted(GroupEvent):
    """A rebalance began: this member's assignment may change."""

    at: float
    generation_id: int
    """The generation, or member epoch, that ends; below 1 when there was none."""
    causes: tuple[RebalanceCause, ...]
    """The causes known so far; may be empty."""
    reason: str
    """This member's reason, in words; often empty."""


@frozen(kw_only=True)
class Rebalanced(GroupEvent):
    """A rebalance ended: the application has applied the new assignment."""

    at: float
    generation_id: int
    """The current generation; with KIP-848, the member epoch."""
    member_id: str
    is_leader: bool
    """Whether this member leads the generation; never with KIP-848. The leader computes the
    assignment, unless it is a static member that came back (KIP-814)."""
    causes: tuple[RebalanceCause, ...]
    """At least one."""
    reason: str
    """This member's reason, in words; often empty."""
    joined: tuple[str, ...]
    """Ids of the members that the previous generation did not have, sorted; known only to a member
    that was the leader of both generations."""
    left: tuple[str, ...]
    """Ids of the members that only the previous generation had, sorted; known only to a member that
    was the leader of both generations."""
    seconds: float
    """Since `RebalanceStarted`. Partitions that did not move may have been consumed meanwhile."""
    phases: RebalancePhases


@frozen(kw_only=True)
class MembershipLost(GroupEvent):
    """The member lost its membership and its partitions, and could not commit their offsets."""

    at: float
    generation_id: int
    """The generation, or member epoch, that was lost."""
    cause: RebalanceCause
    reason: str
    """In words."""


@frozen(kw_only=True)
class CoordinatorFound(GroupEvent):
    """The client found the group's coordinator, for the first time or on another broker."""

    at: float
    node_id: int
    host: str
    port: int


@frozen(kw_only=True)
class GroupLeft(GroupEvent):
    """The membership has ended: the member left the group, or failed."""

    at: float
    reason: str
    """Why, in words."""


@frozen(kw_only=True)
class TroubleReported(GroupEvent):
    """An operation has been retried without success for 10 s, or for about 2 s when a topic cannot
    be consumed. Reported at once: another cluster at the bootstrap addresses, and a nearest replica
    that does not serve a partition. The client logs a warning at the same time, unless it has
    logged the same one in the last minute."""

    at: float
    subject: str
    """What fails, such as "broker 1 at localhost:9092"."""
    cause: str
    """Why it fails."""
    advice: str
    """What to check."""
    seconds: float
    """Since the first failure."""


@frozen(kw_only=True)
class TroubleEnded(GroupEvent):
    """A reported problem ended."""

    at: float
    subject: str
    """As in `TroubleReported`."""
    seconds: float
    """Since the first failure."""


@frozen(kw_only=True)
class EventsMissed(GroupEvent):
    """The reader was too slow: the oldest events were dropped, in this place of the sequence."""

    count: int


if not TYPE_CHECKING:  # a type checker would accept every name
    # Explains names that are not here; there are none to import late.
    __getattr__ = late_names(__name__, {})

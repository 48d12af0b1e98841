"""What happened to a membership, as values: rebalances and why, losses, coordinators.

Only what a member can know is said. Nobody tells it why the group rebalances: its own part in it is
sure, and a leader sees who came and who went; where neither is to be known, the cause is UNKNOWN.
Times are seconds, moments are on the loop's clock (`anyio.current_time()`).
"""

from __future__ import annotations

from enum import Enum

from kafkagroup._public import public
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


@public
class RebalanceCause(Enum):
    """Why the group rebalanced. A rebalance may have several causes."""

    JOINING = "joining"
    """This member joins, for the first time or again after its application was away."""
    SUBSCRIPTION = "subscription"
    """This member subscribes to something else, or offers the leader other metadata."""
    REQUESTED = "requested"
    """This member's application asked for it."""
    TOPICS = "topics"
    """Topics have other partitions than before, or replicas in other racks: seen by the leader of a
    classic group; with KIP-848 by who is assigned the first of the new partitions."""
    HANDOVER = "handover"
    """This member let go of partitions, which another round gives away (KIP-429)."""
    FENCED = "fenced"
    """The coordinator had given this member's place away."""
    COORDINATOR = "coordinator"
    """The coordinator moved, or could not be reached."""
    SILENCE = "silence"
    """This member heard nothing from the coordinator for a whole session."""
    POLL_TIMEOUT = "poll timeout"
    """This member's application stayed away for too long (`max_poll_interval_ms`)."""
    MEMBER_JOINED = "member joined"
    """This member leads, and saw others come."""
    MEMBER_LEFT = "member left"
    """This member leads, and saw others gone: that they left, or that their sessions timed out, is
    the coordinator's secret."""
    UNKNOWN = "unknown"
    """The coordinator said so, without a word why."""


@public
@frozen
class GroupEvent:
    """Base of all events."""


@public
@frozen(kw_only=True)
class RebalancePhases:
    """Where the time of a rebalance went, in seconds; 0.0 for what was not needed."""

    letting_go: float = 0.0
    """The application: the record in hand, the commit, its callback."""
    waiting: float = 0.0
    """For a coordinator, or until a failure may be tried again."""
    joining: float = 0.0
    """JoinGroup, mostly the other members' time; with KIP-848 the heartbeat that joins."""
    computing: float = 0.0
    """The assignor, on the leader."""
    syncing: float = 0.0
    """SyncGroup: the leader's time."""
    taking_up: float = 0.0
    """The application: its callback, and of a GroupMember that it was told."""


@public
@frozen(kw_only=True)
class RebalanceStarted(GroupEvent):
    """What is assigned is about to change; this member begins to act on that."""

    at: float
    generation_id: int
    """The generation, or epoch, that ends; below 1 when there was none."""
    causes: tuple[RebalanceCause, ...]
    """As far as they are known by now; empty while that is not at all."""
    reason: str
    """The same in words, of this member's own; often empty."""


@public
@frozen(kw_only=True)
class Rebalanced(GroupEvent):
    """A rebalance is over: the application has taken up what is assigned."""

    at: float
    generation_id: int
    """The generation that stands now; with KIP-848 the member's epoch."""
    member_id: str
    is_leader: bool
    """Whether this member computed the assignment; never with KIP-848."""
    causes: tuple[RebalanceCause, ...]
    """At least one."""
    reason: str
    """The same in words, of this member's own; often empty."""
    joined: tuple[str, ...]
    """Ids of members that were not in the generation before, sorted; known to those that led
    both."""
    left: tuple[str, ...]
    """Ids of members that are not in it any more, sorted; known to those that led both."""
    seconds: float
    """From `RebalanceStarted`. The partitions that do not move may have gone on meanwhile."""
    phases: RebalancePhases


@public
@frozen(kw_only=True)
class MembershipLost(GroupEvent):
    """The place in the group was given away, or had to be given up: nothing could be committed."""

    at: float
    generation_id: int
    cause: RebalanceCause
    reason: str
    """In words."""


@public
@frozen(kw_only=True)
class CoordinatorFound(GroupEvent):
    """A broker coordinates the group that is not the one before, if there was one."""

    at: float
    node_id: int
    host: str
    port: int


@public
@frozen(kw_only=True)
class GroupLeft(GroupEvent):
    """The member is out of the group."""

    at: float
    reason: str
    """Why, in words."""


@public
@frozen(kw_only=True)
class TroubleReported(GroupEvent):
    """Something that is tried again and again has made no progress for 10 s, or for 2 s
    where a topic cannot be consumed. A warning is logged at the same time."""

    at: float
    subject: str
    """What is tried, such as "broker 1 at localhost:9092"."""
    cause: str
    """Why it fails."""
    advice: str
    """What to check."""
    seconds: float
    """Since the first failure."""


@public
@frozen(kw_only=True)
class TroubleEnded(GroupEvent):
    """What was reported works again."""

    at: float
    subject: str
    """As in `TroubleReported`."""
    seconds: float
    """Since the first failure."""


@public
@frozen(kw_only=True)
class EventsMissed(GroupEvent):
    """The reader was too slow: the oldest events were dropped, here, to make room."""

    count: int

"""The events of a run: of members, of brokers and of the simulation.

A run is a list of events in the order in which they happened. It comes from a simulation or,
as lines of JSON, from processes and a proxy on a real broker; the checker cannot tell which. Times
are seconds on one clock that all members share: the virtual one, or the machine's monotonic one.

Who writes what:
- a member (its observer, outside the product): from `Opening` to `Ended`;
- the wire (the network in memory, or the proxy, on the member's side of it): `Sent`, `Answered`.
  All or nothing: once a member has a request in a run, all of its requests are there;
- the broker: `Appended`, `Truncated`, `Deleted`, `Recreated`, `Stored`, `Formed`;
- the simulation: `Faulted`, `Misassigning`, `Killed`, `Frozen`, `Thawed`, `Healed`, `Finished`.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kafkagroup import TopicPartition

Partitions = tuple[TopicPartition, ...]
Offsets = Mapping[TopicPartition, int]


@attrs.frozen(kw_only=True)
class Event:
    """Something that happened."""

    time: float


@attrs.frozen(kw_only=True)
class OfMember(Event):
    """Something that happened to, or was done by, one member."""

    member: str
    """One run of one process: "m1", killed and started again "m1.2". Not Kafka's member id."""


# ------------------------------------------------------------------ what a member tells


@attrs.frozen(kw_only=True)
class Opening(OfMember):
    """`start` or `async with` began. What the member was told, in seconds; the defaults are those
    of the product."""

    shards: bool = False
    """It is a group member that owns shards, and is not told whether it lets go or has lost."""
    cooperative: bool = False
    auto_commit: bool = True
    resets: bool = True
    """Where it has no position in the log it finds one by itself; else its application does."""
    instance: str | None = None
    """The `group_instance_id` of a static member."""
    session_timeout: float = 45.0
    rebalance_timeout: float = 300.0
    heartbeat_interval: float = 1.0
    max_poll_interval: float = 300.0
    close_timeout: float = 10.0


@attrs.frozen(kw_only=True)
class Joined(OfMember):
    """It took up a generation (classic) or an epoch (KIP-848)."""

    member_id: str
    generation: int


@attrs.frozen(kw_only=True)
class Assigned(OfMember):
    """`on_partitions_assigned` was called; of a group member: a generation was handed out."""

    partitions: Partitions
    generation: int


@attrs.frozen(kw_only=True)
class Revoking(OfMember):
    """`on_partitions_revoked` was called: from here on nothing of these is delivered. Of a group
    member: the work in its generation has ended."""

    partitions: Partitions


@attrs.frozen(kw_only=True)
class Revoked(OfMember):
    """`on_partitions_revoked` returned; a group member is ready for the next generation."""

    partitions: Partitions


@attrs.frozen(kw_only=True)
class Lost(OfMember):
    """`on_partitions_lost` was called."""

    partitions: Partitions


@attrs.frozen(kw_only=True)
class Delivered(OfMember):
    """A record was handed out."""

    partition: TopicPartition
    offset: int
    sequence: int
    """The number that the producer wrote into the record."""


@attrs.frozen(kw_only=True)
class Worked(OfMember):
    """The application did a piece of work on what it was assigned: a shard, where members consume
    nothing."""

    partition: TopicPartition


@attrs.frozen(kw_only=True)
class Processed(OfMember):
    """The application was done with a record: it comes back for the next, or commits."""

    partition: TopicPartition
    offset: int


@attrs.frozen(kw_only=True)
class Committing(OfMember):
    """The application asked for a commit. `offsets` is None for all that it has processed."""

    token: int
    offsets: Offsets | None


@attrs.frozen(kw_only=True)
class Committed(OfMember):
    """That commit ended."""

    token: int
    outcome: str
    """"ok", "cancelled" (it may have happened), or the name of the error."""


@attrs.frozen(kw_only=True)
class Sought(OfMember):
    """The application moved its position."""

    partition: TopicPartition
    offset: int


@attrs.frozen(kw_only=True)
class Away(OfMember):
    """The application does something else; whether it waits for records again is not known before
    one is delivered."""


@attrs.frozen(kw_only=True)
class Absent(OfMember):
    """The application stopped polling: it does something else, with no record in flight."""


@attrs.frozen(kw_only=True)
class Polling(OfMember):
    """The application waits in the client for records, until the member's next `Delivered`,
    `Cancelling`, `Absent` or `Closing`."""


@attrs.frozen(kw_only=True)
class Paused(OfMember):
    """The application has paused or resumed: from here on these are paused, of what it has.
    Recorded from what the application asked for, not from what the client reports."""

    partitions: Partitions


@attrs.frozen(kw_only=True)
class Cancelling(OfMember):
    """The application's call of the client, or all of it, is cancelled; it must end soon."""


@attrs.frozen(kw_only=True)
class Cancelled(OfMember):
    """The call that was cancelled has ended, however."""


@attrs.frozen(kw_only=True)
class Raised(OfMember):
    """A call of the client raised; the member goes on unless it ends."""

    error: str


@attrs.frozen(kw_only=True)
class Closing(OfMember):
    """`stop` or the end of `async with` began."""


@attrs.frozen(kw_only=True)
class Ended(OfMember):
    """It is closed. Not written for a member that was killed."""

    leaked: tuple[str, ...] = ()
    """Names of tasks and sockets that outlived it."""


# ------------------------------------------------------------------ what crosses the wire


@attrs.frozen(kw_only=True)
class Sent(OfMember):
    """A request left the member, of whatever family: checked is also how many there are.

    The fields that are not in the request are empty.
    """

    api: str
    """"JoinGroup", "OffsetCommit", ..."""
    connection: int
    correlation: int
    member_id: str = ""
    generation: int = -1
    offsets: Offsets = attrs.field(factory=dict)
    """Of a commit: what is to be committed; of a fetch: from where."""
    owned: Partitions | None = ()
    """Of a join: what the member says that it owns (all protocols alike). Of a KIP-848 heartbeat
    too; None where it says nothing, which is the same as before."""
    node: int = 0
    """The broker that it goes to; 0 where that is not known."""


@attrs.frozen(kw_only=True)
class Answered(OfMember):
    """Its answer reached the member, whole."""

    api: str
    connection: int
    correlation: int
    error: str
    """Kafka's name of the error, the first that is not NONE; "NONE"."""
    member_id: str = ""
    generation: int = -1
    offsets: Offsets = attrs.field(factory=dict)
    """Of a commit: what was stored. Of an offset fetch: what is committed, -1 where nothing is.
    Of a fetch: how far the records reach that came. Partitions with errors are left out."""
    assigned: Partitions | None = None
    """Of a sync or a KIP-848 heartbeat: the assignment; None where it holds none."""
    node: int = 0
    """The broker that it is from; 0 where that is not known."""
    throttle: float = 0.0
    """For how many seconds the broker asks for silence (KIP-219)."""


# ------------------------------------------------------------------ what the broker knows


@attrs.frozen(kw_only=True)
class Appended(Event):
    """A record was written to the log."""

    partition: TopicPartition
    offset: int
    sequence: int
    """-1 for what no reader may see: control records, aborted ones."""


@attrs.frozen(kw_only=True)
class Truncated(Event):
    """The log has lost its end, as in an unclean leader election; others take the place of what was
    written there."""

    partition: TopicPartition
    offset: int
    """Where it ends now."""


@attrs.frozen(kw_only=True)
class Deleted(Event):
    """The topic was deleted. Its partitions' logs and committed offsets are gone."""

    topic: str


@attrs.frozen(kw_only=True)
class Recreated(Event):
    """A topic was created under the name of a deleted one: an empty log for each partition."""

    topic: str


@attrs.frozen(kw_only=True)
class Stored(Event):
    """The broker took a commit of this partition."""

    partition: TopicPartition
    offset: int
    member_id: str
    generation: int


@attrs.frozen(kw_only=True)
class Formed(Event):
    """The broker has a generation's assignment: the leader's SyncGroup, or a target (KIP-848)."""

    generation: int
    protocol: str
    assignment: Mapping[str, Partitions]
    """Member id -> what it gets."""
    subscriptions: Mapping[str, tuple[str, ...]]
    """Member id -> topics."""
    claims: Mapping[str, Partitions] = attrs.field(factory=dict)
    """Member id -> what it said, at its join, that it owns: where the protocol goes by that."""
    claimed_at: Mapping[str, int] = attrs.field(factory=dict)
    """Member id -> the generation that it said it had that from."""
    partitions: Mapping[str, int] = attrs.field(factory=dict)
    """Topic -> how many partitions it has; none of a topic: not known."""
    leader: str = ""
    """Member id of the member that computed it; "" where the coordinator did."""


# ------------------------------------------------------------------ what the simulation does


@attrs.frozen(kw_only=True)
class Faulted(Event):
    """A fault began. For the reader of the transcript; the checker takes nothing from its text."""

    text: str


@attrs.frozen(kw_only=True)
class Misassigning(OfMember):
    """From here on this member, as leader, computes bad assignments; or no more."""

    active: bool


@attrs.frozen(kw_only=True)
class Killed(OfMember):
    """The process is gone, without a word."""


@attrs.frozen(kw_only=True)
class Frozen(OfMember):
    """The process stands still (SIGSTOP, or its loop is blocked)."""


@attrs.frozen(kw_only=True)
class Thawed(OfMember):
    """It runs again."""


@attrs.frozen(kw_only=True)
class Healed(Event):
    """From here on nothing goes wrong any more; the deadlines of liveness start."""


@attrs.frozen(kw_only=True)
class Finished(Event):
    """All members are closed or dead: the last event."""

    committed: Offsets
    """What the group has committed."""
    ends: Offsets
    """Of each log: the offset that its next record would get."""
    starts: Offsets

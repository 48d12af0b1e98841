"""The events of a run: of members, of brokers and of the simulation.

A run is a list of events in the order in which they happened. A simulation records it, or, as lines
of JSON, the processes of members of a real broker; the checker treats both alike. Times are
seconds on a clock that all members share: the virtual one, or the machine's monotonic one.

The recorders are:
- a member (its observer, outside the product): from `Opening` to `Ended`;
- the wire (the network in memory, or the member's own connections): `Sent`, `Responded`,
  `Throttled`. If one request of a member is recorded in a run, all of its requests are;
- the network in memory: `Connecting`, `Silenced`, `Missed`;
- the broker: `Appended`, `Truncated`, `Deleted`, `Recreated`, `Created`, `Stored`, `Forgotten`,
  `Formed`, `Misdirected`, `Unlisted`, `HeldOff`, `StillCounted`;
- the simulation: `Faulted`, `Misassigning`, `Rejoining`, `Computing`, `Killed`, `Frozen`, `Thawed`,
  `Healed`, `Finished`.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kafkagroup import TopicPartition

Partitions = tuple[TopicPartition, ...]
Offsets = Mapping[TopicPartition, int]


@attrs.frozen(kw_only=True)
class Event:
    """An event of a run."""

    time: float


@attrs.frozen(kw_only=True)
class OfMember(Event):
    """An event of one member."""

    member: str
    """One run of one process: "m1", or "m1.2" after a restart. Not Kafka's member id."""


# ------------------------------------------------------------------ recorded by a member


@attrs.frozen(kw_only=True)
class Opening(OfMember):
    """`start` or `async with` began. The fields are the member's options, in seconds, with the
    product's defaults."""

    shards: bool = False
    """It is a group member that owns shards; it has no revocation and loss callbacks."""
    cooperative: bool = False
    auto_commit: bool = True
    resets: bool = True
    """Whether the client resets a missing position by itself; else its application seeks."""
    instance: str | None = None
    """The `group_instance_id` of a static member."""
    session_timeout: float = 45.0
    rebalance_timeout: float = 300.0
    heartbeat_interval: float = 1.0
    max_poll_interval: float = 300.0
    close_timeout: float = 10.0


@attrs.frozen(kw_only=True)
class Joined(OfMember):
    """The member joined a generation (classic) or reached a member epoch (KIP-848)."""

    member_id: str
    generation: int


@attrs.frozen(kw_only=True)
class Assigned(OfMember):
    """`on_partitions_assigned` was called; for a group member: a generation was returned."""

    partitions: Partitions
    generation: int


@attrs.frozen(kw_only=True)
class Revoking(OfMember):
    """`on_partitions_revoked` was called: no record of these partitions is delivered from now on.
    For a group member: the work in its generation has ended."""

    partitions: Partitions


@attrs.frozen(kw_only=True)
class Revoked(OfMember):
    """`on_partitions_revoked` returned; a group member can join the next generation."""

    partitions: Partitions


@attrs.frozen(kw_only=True)
class Lost(OfMember):
    """`on_partitions_lost` was called."""

    partitions: Partitions


@attrs.frozen(kw_only=True)
class Delivered(OfMember):
    """A record was delivered to the application."""

    partition: TopicPartition
    offset: int
    sequence: int
    """The number that the producer wrote into the record."""


@attrs.frozen(kw_only=True)
class Worked(OfMember):
    """The application of a group member worked on its assignment: a shard, where members consume
    nothing."""

    partition: TopicPartition


@attrs.frozen(kw_only=True)
class Processed(OfMember):
    """The application finished a record: it asked for the next one, or committed."""

    partition: TopicPartition
    offset: int


@attrs.frozen(kw_only=True)
class Committing(OfMember):
    """The application called commit. `offsets` is None for all processed records."""

    token: int
    offsets: Offsets | None


@attrs.frozen(kw_only=True)
class Committed(OfMember):
    """That call of commit returned or raised."""

    token: int
    outcome: str
    """"ok", "cancelled" (the commit may have been stored), or the name of the error."""


@attrs.frozen(kw_only=True)
class Subscribing(OfMember):
    """The application replaces its subscription."""

    topics: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Sought(OfMember):
    """The application sought to an offset."""

    partition: TopicPartition
    offset: int


@attrs.frozen(kw_only=True)
class Away(OfMember):
    """The application does other work; whether it polls again is unknown until its next record."""


@attrs.frozen(kw_only=True)
class Absent(OfMember):
    """The application stopped polling: it does other work, with no record in flight."""


@attrs.frozen(kw_only=True)
class Polling(OfMember):
    """The application waits in the client for records, until the member's next `Delivered`,
    `Raised`, `Cancelling`, `Absent` or `Closing`."""


@attrs.frozen(kw_only=True)
class Paused(OfMember):
    """The application has paused or resumed: these partitions of its assignment are paused now.
    Recorded from the application's calls, not from what the client reports."""

    partitions: Partitions


@attrs.frozen(kw_only=True)
class Cancelling(OfMember):
    """The application's call of the client, or the whole member, is cancelled; it must end soon."""


@attrs.frozen(kw_only=True)
class Cancelled(OfMember):
    """The cancelled call has ended, with or without an error."""


@attrs.frozen(kw_only=True)
class Raised(OfMember):
    """A call of the client raised; the member continues unless `Ended` follows."""

    error: str
    partition: TopicPartition | None = None
    """The partition that the error names, if it is a broker's about one."""


@attrs.frozen(kw_only=True)
class Closing(OfMember):
    """`stop` or the end of `async with` began."""


@attrs.frozen(kw_only=True)
class Ended(OfMember):
    """The member is closed. Not recorded for a member that was killed."""

    leaked: tuple[str, ...] = ()
    """Names of tasks and sockets that it left open."""


@attrs.frozen(kw_only=True)
class LoggingIn(OfMember):
    """The client asks its source of credentials, for a new connection or for another session."""


@attrs.frozen(kw_only=True)
class LookedUp(OfMember):
    """The client has looked up the name of a broker."""

    host: str
    seconds: float
    """How long that took."""
    outcome: str
    """"ok", "unresolved" or "cancelled"."""


@attrs.frozen(kw_only=True)
class Borrowed(OfMember):
    """The client uses a thread that the application shares: one of anyio's workers, or of the
    loop's executor."""

    what: str


# ------------------------------------------------------------------ recorded on the wire


@attrs.frozen(kw_only=True)
class Sent(OfMember):
    """A request left the member. All types are recorded, as the request rate is checked too.

    Fields that the request does not have are empty.
    """

    api: str
    """"JoinGroup", "OffsetCommit", ..."""
    connection: int
    correlation: int
    member_id: str = ""
    generation: int = -1
    offsets: Offsets = attrs.field(factory=dict)
    """Of a commit: the offsets to commit; of a fetch: the positions."""
    owned: Partitions | None = ()
    """Of a join: the partitions that the member reports as owned, the same for all its protocols.
    Of a KIP-848 heartbeat: the same; None if it reports no change."""
    node: int = 0
    """The broker it is sent to; 0 if unknown."""
    waited: float = 0.0
    """For how many seconds it waited in the member: for a connection, for the end of a throttle, or
    because the process was frozen; a commit also for the coordinator, or for a second attempt. 0 if
    unknown."""
    issued_after: int | None = None
    """How many events were recorded before the member issued it; None if unknown."""
    queued: float = 0.0
    """Of a commit: for how many seconds it had waited for earlier commits before that."""
    explicit: bool = False
    """Of a commit: the application gave the offsets; otherwise they are of processed records."""

    @property
    def issued_at(self) -> float:
        """When the member issued it, with what it knew then."""
        return self.time - self.waited

    @property
    def called_at(self) -> float:
        """When the call began that sends a commit."""
        return self.issued_at - self.queued


@attrs.frozen(kw_only=True)
class Responded(OfMember):
    """The member got the response. A response that arrived after the member had given its request
    up, so that it changed nothing, is not recorded."""

    api: str
    connection: int
    correlation: int
    error: str
    """Kafka's name of the first error; "NONE" without one."""
    member_id: str = ""
    generation: int = -1
    offsets: Offsets = attrs.field(factory=dict)
    """Of a commit: the stored offsets. Of an offset fetch: the committed offsets, -1 for none. Of a
    fetch: the offsets after the last records received. Partitions with errors are left out."""
    assigned: Partitions | None = None
    """Of a sync or a KIP-848 heartbeat: the assignment; None if it contains none."""
    counts: Mapping[str, int] = attrs.field(factory=dict)
    """Of metadata: topic -> partition count, 0 for a topic that is absent or in error; without the
    topics that the broker denies."""
    refused: Mapping[TopicPartition, str] = attrs.field(factory=dict)
    """Of a fetch, or of the validation of positions: partition -> Kafka's name of its error."""


@attrs.frozen(kw_only=True)
class Throttled(OfMember):
    """A response arrived by which a broker throttles the member (KIP-219)."""

    connection: int
    node: int = 0
    """The broker; 0 if unknown."""
    seconds: float


@attrs.frozen(kw_only=True)
class Connecting(OfMember):
    """The member opens a connection; it may fail, or stay pending."""

    node: int


@attrs.frozen(kw_only=True)
class Silenced(OfMember):
    """What lies between dropped an idle connection, and notified neither side: nothing arrives any
    more."""

    connection: int


@attrs.frozen(kw_only=True)
class Missed(OfMember):
    """A response arrived at a connection that the member itself had closed."""

    connection: int


# ------------------------------------------------------------------ recorded by the broker


@attrs.frozen(kw_only=True)
class Appended(Event):
    """A record was written to the log."""

    partition: TopicPartition
    offset: int
    sequence: int
    """-1 for records that no reader may see: control records and aborted ones."""


@attrs.frozen(kw_only=True)
class Truncated(Event):
    """The log was truncated, as in an unclean leader election; other records may follow at these
    offsets."""

    partition: TopicPartition
    offset: int
    """The log's end after the truncation."""


@attrs.frozen(kw_only=True)
class Deleted(Event):
    """The topic was deleted, with its logs and committed offsets."""

    topic: str


@attrs.frozen(kw_only=True)
class Recreated(Event):
    """A topic was created under the name of a deleted one, with empty logs."""

    topic: str


@attrs.frozen(kw_only=True)
class Created(Event):
    """Partitions were created during the run: added to a topic, or those of a recreated one."""

    partitions: Partitions


@attrs.frozen(kw_only=True)
class Stored(Event):
    """The broker stored a commit of this partition."""

    partition: TopicPartition
    offset: int
    member_id: str
    generation: int


@attrs.frozen(kw_only=True)
class Forgotten(Event):
    """The coordinator deleted these committed offsets, as retention or an operator does."""

    partitions: Partitions


@attrs.frozen(kw_only=True)
class Misdirected(OfMember):
    """A broker of another cluster, at the address of one of the group's brokers, got a request that
    concerns the group or its logs."""

    api: str
    node: int


@attrs.frozen(kw_only=True)
class Unlisted(OfMember):
    """A broker whose metadata lags behind sent the member's client a response without these
    partitions, which exist."""

    partitions: Partitions


@attrs.frozen(kw_only=True)
class HeldOff(OfMember):
    """The coordinator refused the join of a static member with UNRELEASED_INSTANCE_ID, because the
    member itself has joined before (KIP-848)."""

    member_id: str


@attrs.frozen(kw_only=True)
class StillCounted(OfMember):
    """The process has ended, and was not killed, and its coordinator counts it as a member."""

    ids: tuple[str, ...]
    """Its member ids, also one that the coordinator has only assigned (KIP-394)."""


@attrs.frozen(kw_only=True)
class Formed(Event):
    """The broker has a generation's assignment: from the leader's SyncGroup, or a target
    (KIP-848)."""

    generation: int
    protocol: str
    assignment: Mapping[str, Partitions]
    """Member id -> its assigned partitions."""
    subscriptions: Mapping[str, tuple[str, ...]]
    """Member id -> its subscribed topics."""
    claims: Mapping[str, Partitions] = attrs.field(factory=dict)
    """Member id -> the partitions it reported as owned when it joined, if the protocol uses
    them."""
    claimed_at: Mapping[str, int] = attrs.field(factory=dict)
    """Member id -> the generation that it reported these partitions for."""
    partitions: Mapping[str, int] = attrs.field(factory=dict)
    """Topic -> partition count; a topic whose count is unknown is missing."""
    leader: str = ""
    """Member id of the leader that computed it; "" if the coordinator did."""


# ------------------------------------------------------------------ recorded by the simulation


@attrs.frozen(kw_only=True)
class Faulted(Event):
    """A fault began. For the transcript; the checker ignores its text."""

    text: str


@attrs.frozen(kw_only=True)
class Misassigning(OfMember):
    """This member, as leader, starts or stops computing bad assignments."""

    active: bool


@attrs.frozen(kw_only=True)
class Rejoining(OfMember):
    """The client has its member rejoin: its application requests it, or topics have changed."""


@attrs.frozen(kw_only=True)
class Computing(OfMember):
    """As the leader, the member computes an assignment."""

    partitions: Mapping[str, int]
    """Topic -> partition count, as its metadata has them."""


@attrs.frozen(kw_only=True)
class Killed(OfMember):
    """The process was killed, without leaving the group."""


@attrs.frozen(kw_only=True)
class Frozen(OfMember):
    """The process stopped running (SIGSTOP, or a blocked event loop)."""

    suspended: bool = False
    """Whether its machine is suspended, and with it the clock of its loop."""


@attrs.frozen(kw_only=True)
class Thawed(OfMember):
    """The process runs again."""


@attrs.frozen(kw_only=True)
class Healed(Event):
    """All faults have ended; the deadlines of liveness start."""


@attrs.frozen(kw_only=True)
class Finished(Event):
    """All members are closed or dead: the last event."""

    committed: Offsets
    """The group's committed offsets."""
    ends: Offsets
    """Each log's end: the offset of its next record."""
    starts: Offsets

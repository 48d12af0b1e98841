"""The checker's record of a run: members, ownership, logs, and the violations found.

All rules share one recorder, and each module writes what its rules are about: `ownership` periods,
`offsets` positions and logs, `membership` memberships, `polls` poll clocks, `pace` throttles, and
`examine` requests in flight, leases and the state of processes.

A field `x_by` is the index of the event that last caused x, -1 or None before the first; `x_at` is
its time.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping

import attrs

from kafkagroup import TopicPartition

from ..events import Delivered, Event, OfMember, Opening, Responded, Sent

Handlers = Mapping[type[Event], Callable[..., None]]
"""Event type -> the function that handles the event's number and the event."""

CONSUMER_HEARTBEAT = "ConsumerGroupHeartbeat"
"""KIP-848: members join (epoch 0), heartbeat, report ownership, and leave (epoch below 0) with
it."""

MEMBERSHIP = frozenset(("JoinGroup", "SyncGroup", "Heartbeat", CONSUMER_HEARTBEAT))
"""Requests by which a member joins its group and stays in it."""

_AWAY = -2
"""The epoch with which a static member leaves for a while (KIP-848)."""

_JOIN_GRACE = 5.0
"""L2: seconds for which a group waits for a member beyond the rebalance timeout."""

REJOIN = 2.0
"""L2: seconds that a rejoin may take."""


@attrs.frozen
class Violation:
    """One violation of an invariant."""

    invariant: str
    """Its name in the list of invariants, such as "S4"."""
    time: float
    member: str
    """The member that caused it; "" if no particular member did."""
    text: str
    events: tuple[int, ...]
    """The indices of the events that prove it, in order."""

    def __str__(self) -> str:
        return f"{self.invariant} at {self.time:.3f}: {self.text}"


@attrs.define(eq=False)
class OwnershipPeriod:
    """One partition while one member owns it: from `Assigned` to the end of its revocation."""

    run: MemberRun
    tp: TopicPartition
    began_by: int
    began_at: float
    generation: int
    end_reason: str = ""
    """"revoked", "lost", "killed" or "closed"; "" while it lasts."""
    ended_by: int = -1
    ended_at: float = math.inf
    released_by: int = -1
    """The last event by which others could learn that this member does not own it."""
    revoking_by: int | None = None
    """The event from which on nothing of it may be delivered."""
    revoking_at: float = math.inf
    membership_was_lost: bool = False
    """Whether the membership had ended when this revocation began (shards only), so that the member
    may rejoin during it."""
    is_position_unknown: bool = False
    """Whether the log no longer contains the position: the next delivery may be anywhere."""
    denied_by: int = -1
    """The last response by which a broker denied that the log has the position, though it does.
    """
    truncations: set[int] = attrs.field(factory=set)
    """The offsets at which the log was truncated, each until a record of the current log at or
    above it is delivered."""
    starts: set[int] = attrs.field(factory=set)
    """Possible start offsets, from responses; -1 if nothing is committed."""
    committed_before: int = 0
    """The offset that was committed when the member issued the request for a start offset. After
    that, the coordinator may store a commit that the member issued before it lost the partition, if
    it has rejoined in the same generation."""
    position: int | None = None
    """Offset after the last delivered record; None before the first."""
    delivered_by: int = -1
    in_flight: OrderedDict[int, int | None] = attrs.field(factory=OrderedDict)
    """The records that were delivered and are not processed, in order: offset -> the position
    before it."""
    processed: int | None = None
    """The records below it are processed: the position before the first one in flight, or, without
    one, the position. None before the first record is processed."""
    processed_by: int = -1
    processed_at: float = -math.inf
    reported_processed: int | None = None
    """The value of `processed` at the application's last poll, by which the client learns of it."""
    reported_at: float = -math.inf
    """When the records below `reported_processed` were processed."""
    processed_before_move: int = -1
    """The highest processed or start offset before any move of the position."""
    moved: tuple[int, float] | None = None
    """The event and time at which a seek, a truncation or an out-of-range response last moved the
    position."""
    sent: int | None = None
    """The offset of the last commit request."""
    sent_by: int = -1
    minimum_commit: int = 0
    """A commit of processed records below it goes back (S5): the last such commit since the
    position moved, or the start."""
    floor: int | None = None
    """The lowest position since the period began (S25); None until the start is known."""
    floor_known: tuple[int, float] = (-1, -math.inf)
    """The event and time at which the start became known."""
    called_at: float | None = None
    """When the call that sent the last commit began; None once it is answered, or the application's
    call was cancelled or failed."""
    failed_commit: tuple[int, float] | None = None
    """The event and time at which a commit of the application was last cancelled or failed."""
    acked: int | None = None
    """The offset of the last acknowledged commit."""
    acked_by: int = -1
    """The response of the last acknowledged commit."""


@attrs.define(eq=False)
class PollClock:
    """When the application last polled, for `max_poll_interval`."""

    polled_at: float = 0.0
    """When it last called the client for records, or got some."""
    polled_before: float = 0.0
    """The time before that."""
    delivered_at: float = 0.0
    """When it last got records."""
    processed_at: float = 0.0
    """When it had last processed one."""
    unprocessed: int = 0
    """How many of the records it got it has not processed. It polls again after all of them."""
    waiting_by: int | None = None
    """The event since which it waits in the client; None while it does not."""
    expired: bool = False
    """Whether the application has once, since the member last joined, not polled for the interval:
    so the member leaves."""
    had_partitions: bool = False
    """Whether its last assignment in this membership had partitions, so that it had to poll."""


@attrs.define(eq=False)
class MemberRun:
    """One run of the process of one member."""

    name: str
    opening: Opening
    opened_by: int = -1
    """The event with which its process began to open; -1 if that is not among the events."""
    has_opening: bool = False
    """Whether its `Opening` is among the events, and so is its `Closing`, if it closes."""
    held: dict[TopicPartition, OwnershipPeriod] = attrs.field(factory=dict)
    """The current periods."""
    periods: dict[TopicPartition, OwnershipPeriod] = attrs.field(factory=dict)
    """The last period of each partition that it ever owned."""
    unlisted: set[TopicPartition] = attrs.field(factory=set)
    """Partitions that a broker has left out of its metadata: for its client they may be new."""
    topics: tuple[str, ...] | None = None
    """The topics of its application's last subscription; None before it changes the first one."""
    uses_consumer_protocol: bool = False
    """Whether it sends KIP-848 heartbeats."""
    has_wire_events: bool = False
    """Whether its requests are among the events."""
    in_flight: dict[tuple[int, int], tuple[int, Sent]] = attrs.field(factory=dict)
    """Connection and correlation id -> the request, and its number."""
    target: frozenset[TopicPartition] | None = None
    """Its last assignment by the group; None if a join has made that outdated."""
    is_joining: bool = True
    """Whether it joins, or has to, and has not got a response (KIP-848): a request to leave then
    releases an earlier join, whose response may be lost, or which may not have left."""
    is_syncing: bool = False
    """Whether a JoinGroup succeeded, and no SyncGroup since: the coordinator waits for one."""
    lease_since: float = 0.0
    """Since when its lease has not expired."""
    lease_expires_at: float = 0.0
    """When its lease expires (`kafkagroup.member.ownership`): one session timeout after it issued
    the last acknowledged heartbeat, or earlier while a rebalance waits for it."""
    stable_at: float = 0.0
    """When it issued the last request whose response showed no rebalance, or no longer the same."""
    acknowledged_at: float = 0.0
    """When it issued the last heartbeat that the coordinator has acknowledged (KIP-848)."""
    rebalancing_at: float = 0.0
    """When it issued the last heartbeat whose response showed a rebalance."""
    joined_after: float = 0.0
    """When it issued the last such heartbeat, or JoinGroup, before all members had joined."""
    owes_revocation: bool = False
    """Whether the coordinator waits for it to report a revocation (KIP-848)."""
    is_suspended: bool = False
    """Whether its machine is suspended."""
    thawed_at: float = -math.inf
    scopes_end_at: float = -math.inf
    """By when the scopes of its shards are cancelled after it was frozen."""
    throttled_until: dict[int, float] = attrs.field(factory=dict)
    """Broker -> until when it throttles this member (KIP-219)."""
    closing: tuple[int, float] | None = None
    has_ended: bool = False
    """Whether the process was killed or has ended."""
    polls: PollClock = attrs.field(factory=PollClock)
    membership_end: tuple[int, float, str, int] | None = None
    """The end of its last membership: the event (a response, or its own request to leave), time,
    member id and generation. None while it is a member."""
    troubled_by: int = -1
    """The last response, other than to Fetch, with an error that a healthy broker does not
    return."""
    raised_by: int = -1
    """The last event in which a call of the client raised."""
    polled_by: int = -1
    """The last event that shows that the application called the client."""
    assigned_by: int = -1
    """The event of its last assignment, even if it was empty."""
    misassigns_until: float = -math.inf
    """Until when, as a leader, it may compute bad assignments."""

    @property
    def hindered_until(self) -> float:
        """Until when it was frozen or throttled."""
        return max((self.thawed_at, *self.throttled_until.values()))


@attrs.define(eq=False)
class Log:
    """The log of one partition, as far as the events show it."""

    has_appends: bool = False
    """Whether its records are among the events."""
    flags: bytearray = attrs.field(factory=bytearray)
    sequences: list[int] = attrs.field(factory=list)
    current: OwnershipPeriod | None = None
    """The period of the current owner: that of the latest generation."""
    stored: int | None = None
    """The group's commit on the broker; None before the first."""
    stored_by: int = -1
    highest_stored: int = 0
    """The highest stored commit, if a commit that arrived late has replaced it; else 0. No member
    has a reason to commit it again."""
    floor: int = 0
    """No record below it may be delivered again: the last commit known to have happened."""
    floor_by: int = -1
    committer: MemberRun | None = None
    """Whose commit the broker stored last, if that is known."""
    appended_at: float = -math.inf
    truncations: list[int] = attrs.field(factory=list)
    """Where the log ended after each truncation."""
    lost: dict[int, set[int]] = attrs.field(factory=dict)
    """Offset -> the sequence numbers of the records lost there; -1 if it had no visible record."""
    lost_deliveries: int = 0
    """How many records were delivered before or after they were lost."""
    read_by: dict[str, set[int]] = attrs.field(factory=dict)
    """Member -> the offsets of the records that were delivered to it and are still in the log."""
    forgotten_by: int = -1
    """The event in which the coordinator last deleted the group's commit."""
    forgotten_at: float = -math.inf
    processed_end: int = 0
    """The offset after the last processed record."""
    created_by: int = -1
    """The event that created this partition during the run; -1 if it was there before."""
    deleted_by: int = -1
    """The event that deleted the topic of this name before the current one; -1 if none did."""
    checked_end: int = 0
    """Every record below it was processed, or is part of a reported violation."""

    def set_flag(self, offset: int, flag: int) -> None:
        """Set a flag of an offset."""
        flags = self.flags
        if offset >= len(flags):
            # In a known log, offsets without a record were removed by compaction.
            fill = HIDDEN if self.has_appends else 0
            flags.extend(bytes((fill,)) * (offset - len(flags)))
            flags.append(flag)
        else:
            flags[offset] |= flag

    def next_visible(self, offset: int) -> int:
        """Return the offset of the first visible record at or above `offset`."""
        flags = self.flags
        while offset < len(flags) and flags[offset] & HIDDEN:
            offset += 1
        return offset

    def adjoins(self, start: int, offset: int) -> bool:
        """Whether a reader at `start` may read `offset` next: at each offset between, this log or a
        truncated one has no visible record."""
        return start <= offset and all(
            (at < len(self.flags) and self.flags[at] & HIDDEN) or -1 in self.lost.get(at, ())
            for at in range(start, offset)
        )

    def cut(self, end: int) -> None:
        """Truncate the log to `end`."""
        for offset, sequence in enumerate(self.sequences[end:], end):
            self.lost.setdefault(offset, set()).add(sequence)
        self.lost_deliveries += sum(flag & DELIVERED > 0 for flag in self.flags[end:])
        del self.sequences[end:], self.flags[end:]
        self.truncations.append(end)
        self.floor, self.checked_end = min(self.floor, end), min(self.checked_end, end)
        self.highest_stored = min(self.highest_stored, end)
        self.processed_end = min(self.processed_end, end)
        for member, offsets in self.read_by.items():
            self.read_by[member] = {offset for offset in offsets if offset < end}

    def has_lost(self, offset: int, sequence: int) -> bool:
        """Whether a record was in a part of the log that was truncated or deleted."""
        return sequence >= 0 and sequence in self.lost.get(offset, ())

    def delete(self, number: int) -> None:
        """Delete the log and the group's commit, as its topic was deleted."""
        self.cut(0)
        self.stored, self.stored_by, self.deleted_by = None, -1, number


DELIVERED, PROCESSED, HIDDEN, PASSED = 1, 2, 4, 8
"""Flags of an offset. HIDDEN: no reader may see it, or compaction has removed it. PASSED: the
application skipped it."""


def is_join(event: Sent) -> bool:
    """Whether the request joins the group."""
    return event.api == "JoinGroup" or (event.api == CONSUMER_HEARTBEAT and event.generation == 0)


def is_leave(event: Sent) -> bool:
    """Whether the request leaves the group."""
    return event.api == "LeaveGroup" or (event.api == CONSUMER_HEARTBEAT and event.generation < 0)


def is_release(run: MemberRun, event: Sent) -> bool:
    """Whether the request releases the instance id that the member may hold by an earlier join, so
    that it can join again; it leaves nothing."""
    return event.api == CONSUMER_HEARTBEAT and event.generation == _AWAY and run.is_joining


def is_heartbeat(event: Sent) -> bool:
    """Whether the request is a heartbeat of a current member."""
    return event.api == "Heartbeat" or (event.api == CONSUMER_HEARTBEAT and event.generation > 0)


def longest_wait(run: MemberRun) -> float:
    """Return how long a healthy group may wait for a lost member, in seconds: for its session
    timeout, and for a JoinGroup that is never answered."""
    options = run.opening
    return options.session_timeout + options.rebalance_timeout + _JOIN_GRACE + REJOIN


class Recorder:
    """The state that all rules share."""

    def __init__(self, *, virtual: bool) -> None:
        self.virtual = virtual
        """Whether time is virtual: what happens at once takes no time."""
        self.notice_delay = 0.0 if virtual else 0.05
        """Seconds that a process may take to notice an event."""
        self.runs: dict[str, MemberRun] = {}
        self.logs: dict[TopicPartition, Log] = {}
        self.violations: list[Violation] = []
        self.healed_at = math.inf
        """When the last fault ended."""
        self.sees_broker = False
        """Whether there are events of the broker, which alone determine what is committed."""
        self.run_of_member_id: dict[str, MemberRun] = {}
        """Member id -> the run that uses it."""
        self.instances: dict[str, MemberRun] = {}
        """Instance id of a static member -> the run that last joined with it."""
        self.misassigned: frozenset[str] = frozenset()
        """Ids of members whose last assignment contains topics that they do not subscribe to. They
        refuse all of it, and rejoin."""

    def run_of(self, name: str) -> MemberRun:
        run = self.runs.get(name)
        if run is None:
            run = self.runs[name] = MemberRun(name, Opening(time=0.0, member=name))
        return run

    def refuses_assignment(self, run: MemberRun) -> bool:
        """Whether the member's last assignment is one that it must refuse."""
        return any(self.run_of_member_id.get(member_id) is run for member_id in self.misassigned)

    def fails_by_assignment(self, run: MemberRun, now: float) -> bool:
        """Whether an assignment may end its membership: one that it must refuse, or a bad one that
        it has computed as the leader."""
        return now < run.misassigns_until or self.refuses_assignment(run)

    def elapsed(self, run: MemberRun, now: float, *since: float) -> float:
        """Return for how many seconds, after the latest of these moments, the member could act."""
        return now - max(*since, run.hindered_until)

    def elapsed_healthy(self, run: MemberRun, now: float, *since: float) -> float:
        """Return `elapsed`, counted from the end of the last fault; below 0 before that."""
        return self.elapsed(run, now, self.healed_at, *since)

    def is_replaced(self, run: MemberRun) -> bool:
        """Whether a newer run has replaced this one of a static member, so that others may own its
        partitions. It cannot know before it is fenced, and is checked from then on."""
        instance = run.opening.instance
        return instance is not None and self.instances.get(instance, run) is not run

    def knew(self, by: int, at: float, decision: Sent | Delivered) -> bool:
        """Whether the member knew of the event `by`, of time `at`, when it issued a request or
        delivered a record."""
        if not isinstance(decision, Sent):
            return decision.time > at + self.notice_delay
        if decision.issued_after is None:
            return decision.issued_at > at + self.notice_delay
        return decision.issued_after > by

    def log(self, tp: TopicPartition) -> Log:
        log = self.logs.get(tp)
        if log is None:
            log = self.logs[tp] = Log()
        return log

    def request(self, response: Responded) -> tuple[int, Sent] | None:
        """Return the request of a response, and its number; None if there is none."""
        return self.run_of(response.member).in_flight.get(
            (response.connection, response.correlation)
        )

    def report(self, invariant: str, event: Event, text: str, *events: int) -> None:
        """Report a violation, at the time of `event`."""
        member = event.member if isinstance(event, OfMember) else ""
        proof = tuple(sorted({number for number in events if number >= 0}))
        self.violations.append(Violation(invariant, event.time, member, text, proof))

"""The checker's record of a run: members, ownership, logs, and the violations found.

All rules share one recorder. Each fact has one writer: `ownership` opens and closes periods,
`offsets` updates positions and logs, `membership` updates memberships, and the pass itself updates
requests and the state of processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs

from kafkagroup import TopicPartition

from ..events import Answered, Delivered, Event, OfMember, Opening, Sent

Handlers = Mapping[type[Event], Callable[..., None]]
"""Event type -> the function that handles the event's number and the event."""

CONSUMER_HEARTBEAT = "ConsumerGroupHeartbeat"
"""KIP-848: members join (epoch 0), heartbeat, report ownership, and leave (epoch below 0) with
it."""

MEMBERSHIP = frozenset(("JoinGroup", "SyncGroup", "Heartbeat", CONSUMER_HEARTBEAT))
"""Requests by which a member joins its group and stays in it."""

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
    began: int
    began_at: float
    generation: int
    ended: str = ""
    """"revoked", "lost", "killed" or "closed"; "" while it lasts."""
    ended_by: int = -1
    ended_at: float = math.inf
    released_by: int = -1
    """The last event by which others could learn that this member does not own it."""
    revoking: int | None = None
    """The event from which on nothing of it may be delivered."""
    was_lost: bool = False
    """The partition was lost before, so no commit waits for its processing."""
    is_anywhere: bool = False
    """The log no longer contains the position: the next delivery may be anywhere."""
    cuts: set[int] = attrs.field(factory=set)
    """The log's truncation offsets, until what was written there since is delivered."""
    starts: set[int] = attrs.field(factory=set)
    """Possible start offsets, from responses; -1 if nothing is committed."""
    position: int | None = None
    """Offset after the last delivered record; None before the first."""
    delivered_by: int = -1
    processed: int | None = None
    """Offset after the last processed record; None before the first."""
    processed_by: int = -1
    processed_at: float = -math.inf
    safe: int | None = None
    """The part of `processed` that the client knows of: the application has polled since."""
    safe_at: float = -math.inf
    """When that part was processed."""
    processed_before_move: int = -1
    """The highest value that `processed` had when the position was last moved."""
    moved: tuple[int, float] | None = None
    """By which event the application, or the end of the log, last moved the position, and when."""
    sent: int | None = None
    """The offset of the last commit request."""
    sent_by: int = -1
    least: int = 0
    """No commit of processed records may be below it: the last commit since the position moved, as
    far as it was of processed records, or else the start."""
    called_at: float | None = None
    """When the call that sent the last commit began; None once it is answered or has timed out."""
    given_up: tuple[int, float] | None = None
    """By which event a commit of the application was last cancelled or failed, and when."""
    acked: int | None = None
    """The offset of the last acknowledged commit."""


@attrs.define(eq=False)
class PollClock:
    """When the application last polled, for `max_poll_interval`."""

    polled_at: float = 0.0
    """When it last called the client for records, or got some."""
    polled_before: float = 0.0
    """The time before that."""
    delivered_at: float = 0.0
    """When it last got records."""
    waiting_by: int | None = None
    """The event since which it waits in the client; None while it does not."""
    expired: bool = False
    """The interval has passed since the member last joined: it leaves, if it has not."""
    had_partitions: bool = False
    """Whether its last assignment in this membership had partitions, so that it had to poll."""


@attrs.define(eq=False)
class MemberRun:
    """One run of the process of one member."""

    name: str
    opening: Opening
    opened: bool = False
    """Its `Opening` is among the events, and so is its `Closing`, if it closes."""
    held: dict[TopicPartition, OwnershipPeriod] = attrs.field(factory=dict)
    """The current periods."""
    periods: dict[TopicPartition, OwnershipPeriod] = attrs.field(factory=dict)
    """The last period of each partition that it ever owned."""
    assigned_to: bool = False
    """The coordinator assigns: the member sends KIP-848 heartbeats."""
    wired: bool = False
    """Its requests are among the events."""
    in_flight: dict[tuple[int, int], tuple[int, Sent]] = attrs.field(factory=dict)
    """Connection and correlation id -> the request, and its number."""
    target: frozenset[TopicPartition] | None = None
    """Its last assignment by the group; None if a join has made that outdated."""
    is_syncing: bool = False
    """Whether its JoinGroup was answered without error, and its SyncGroup was not."""
    lease_since: float = 0.0
    """Since when it has been sure, without a break, that it owns what it holds."""
    lease_expires_at: float = 0.0
    """Until when it is: as of `kafkagroup.member.ownership`, the session timeout after it issued
    the last request that the group acknowledged."""
    rebalances_since: float = 0.0
    """When it issued the last request whose answer required nothing of it."""
    owes_revocation: bool = False
    """Whether the coordinator waits for it to report a revocation (KIP-848)."""
    frozen: bool = False
    thawed_at: float = -math.inf
    throttled_until: dict[int, float] = attrs.field(factory=dict)
    """Broker -> until when it throttles this member (KIP-219)."""
    closing: tuple[int, float] | None = None
    is_over: bool = False
    """It was killed, or has ended."""
    polls: PollClock = attrs.field(factory=PollClock)
    ended: tuple[int, float, str, int] | None = None
    """How its last membership ended, until it is in the group again: the event of the response, or
    of its request to leave, the time, and the member id and generation that ended."""
    troubled_by: int = -1
    """The last event with a coordinator error."""
    raised_by: int = -1
    """The last event in which a call of the client raised."""
    polled_by: int = -1
    """The last event that shows that the application called the client."""
    joined_by: int = -1
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

    known: bool = False
    """Its records are among the events."""
    flags: bytearray = attrs.field(factory=bytearray)
    sequences: list[int] = attrs.field(factory=list)
    holder: OwnershipPeriod | None = None
    """The last period that began; with two, the one of the later generation."""
    stored: int | None = None
    """The group's commit on the broker; None before the first."""
    stored_by: int = -1
    reached: int = 0
    """The highest commit that was stored, if one that arrived late has moved the commit back: no
    member has a reason to commit it again."""
    floor: int = 0
    """No record below it may be delivered again: the last commit known to have happened."""
    floor_by: int = -1
    appended_at: float = -math.inf
    cuts: list[int] = attrs.field(factory=list)
    """Where the log ended after each truncation."""
    gone: dict[int, set[int]] = attrs.field(factory=dict)
    """Offset -> the sequence numbers of the records lost there."""
    gone_deliveries: int = 0
    """Number of deliveries of records that were lost, then or since."""
    read_by: dict[str, set[int]] = attrs.field(factory=dict)
    """Member -> the offsets of the records that were delivered to it and are still in the log."""
    processed_end: int = 0
    """The offset after the last of these that was processed."""
    deleted_by: int = -1
    """The event that deleted the topic of this name before the current one; -1 if none did."""
    checked: int = 0
    """Every record below it was processed, or is part of a reported violation."""

    def flag(self, offset: int, flag: int) -> int:
        """Set a flag of an offset; return the flags before."""
        flags = self.flags
        if offset >= len(flags):
            # In a known log, offsets without a record were removed by compaction.
            fill = HIDDEN if self.known else 0
            flags.extend(bytes((fill,)) * (offset - len(flags)))
            flags.append(flag)
            return 0
        before = flags[offset]
        flags[offset] = before | flag
        return before

    def next_visible(self, offset: int) -> int:
        """Return the offset of the first visible record at or above `offset`."""
        flags = self.flags
        while offset < len(flags) and flags[offset] & HIDDEN:
            offset += 1
        return offset

    def adjoins(self, start: int, offset: int) -> bool:
        """Whether a reader at `start` may read `offset` next: no visible record lies between, or
        those that did were lost in a truncation."""
        return start <= offset and all(
            (at < len(self.flags) and self.flags[at] & HIDDEN) or -1 in self.gone.get(at, ())
            for at in range(start, offset)
        )

    def cut(self, end: int) -> None:
        """Truncate the log to `end`."""
        for offset, sequence in enumerate(self.sequences[end:], end):
            self.gone.setdefault(offset, set()).add(sequence)
        self.gone_deliveries += sum(flag & DELIVERED > 0 for flag in self.flags[end:])
        del self.sequences[end:], self.flags[end:]
        self.cuts.append(end)
        self.floor, self.checked = min(self.floor, end), min(self.checked, end)
        self.reached = min(self.reached, end)
        self.processed_end = min(self.processed_end, end)
        for member, offsets in self.read_by.items():
            self.read_by[member] = {offset for offset in offsets if offset < end}

    def has_lost(self, offset: int, sequence: int) -> bool:
        """Whether a record was in a log that was truncated or deleted, and is not in this one."""
        return sequence >= 0 and sequence in self.gone.get(offset, ())

    def delete(self, number: int) -> None:
        """Delete the log and the group's commit, as its topic was deleted."""
        self.cut(0)
        self.stored, self.stored_by, self.deleted_by = None, -1, number


DELIVERED, PROCESSED, HIDDEN, PASSED = 1, 2, 4, 8
"""Flags of an offset. PASSED: the application skipped it."""


def joins(event: Sent) -> bool:
    """Whether the request joins the group."""
    return event.api == "JoinGroup" or (event.api == CONSUMER_HEARTBEAT and event.generation == 0)


def leaves(event: Sent) -> bool:
    """Whether the request leaves the group."""
    return event.api == "LeaveGroup" or (event.api == CONSUMER_HEARTBEAT and event.generation < 0)


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
        """Time is virtual: what happens at once takes no time."""
        self.race = 0.0 if virtual else 0.05
        """Seconds that a process may take to notice an event."""
        self.runs: dict[str, MemberRun] = {}
        self.logs: dict[TopicPartition, Log] = {}
        self.violations: list[Violation] = []
        self.healed_at = math.inf
        """When the last fault ended."""
        self.sees_broker = False
        """Broker events exist, and alone determine what is committed."""
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
        """Return the same, counted from the end of the last fault; below 0 before that."""
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
            return decision.time > at + self.race
        if decision.issued_after is None:
            return decision.issued_at > at + self.race
        return decision.issued_after > by

    def log(self, tp: TopicPartition) -> Log:
        log = self.logs.get(tp)
        if log is None:
            log = self.logs[tp] = Log()
        return log

    def request(self, answer: Answered) -> tuple[int, Sent] | None:
        """Return the request of a response, and its number; None if there is none."""
        return self.run_of(answer.member).in_flight.get((answer.connection, answer.correlation))

    def report(self, invariant: str, event: Event, text: str, *events: int) -> None:
        """Report a violation, at the time of `event`."""
        member = event.member if isinstance(event, OfMember) else ""
        proof = tuple(sorted({number for number in events if number >= 0}))
        self.violations.append(Violation(invariant, event.time, member, text, proof))

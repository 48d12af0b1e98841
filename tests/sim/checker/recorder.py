"""What the checker records of a run: members, ownership, logs, and the violations that it found.

The families of rules share one recorder. Each fact has one writer: `ownership` opens and closes
periods, `offsets` keeps positions and logs, `membership` keeps who a member is to its group, the
pass itself keeps requests and what befell processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs

from kafkagroup import TopicPartition

from ..events import Answered, Event, OfMember, Opening, Sent

Handlers = Mapping[type[Event], Callable[..., None]]
"""Kind of event -> what a family does with its number and itself."""

BEATS = "ConsumerGroupHeartbeat"
"""With it members of KIP-848 join (epoch 0), live, say what they own, and leave (below 0)."""

_JOIN_GRACE = 5.0
"""Seconds for which a group waits for a member beyond the rebalance timeout, L2."""

REJOIN = 2.0
"""Seconds, L2."""

_HELD_BACK = 0.01
"""Seconds in which leaves what a broker's wish for silence has held back."""


@attrs.frozen
class Violation:
    """One thing that no correct client does."""

    invariant: str
    """Its name in the list of invariants: "S4"."""
    time: float
    member: str
    """Whose doing it is; "" where it is nobody's in particular."""
    text: str
    events: tuple[int, ...]
    """The events that prove it, by their place among the events, in order."""

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
    told_by: int = -1
    """By which event others could hear last that this member does not have it."""
    revoking: int | None = None
    """The event from which on nothing of it may be delivered."""
    forsaken: bool = False
    """It was lost by then, and nobody waits for the end of the work on it."""
    moved: bool = False
    """The log no longer had the position: the next delivery may be anywhere."""
    loose: bool = False
    """The application has sought, or named an offset to commit that it was not at, or the log was
    cut: its commits may go back."""
    late: int | None = None
    """An offset that may go back, in a commit of the period before that was not answered."""
    cuts: set[int] = attrs.field(factory=set)
    """Where the log was cut, until it has delivered what was written there since."""
    gone: set[int] = attrs.field(factory=set)
    """Offsets of what it has delivered that is no longer in the log."""
    starts: set[int] = attrs.field(factory=set)
    """Where it may start, by the answers it got; -1 where nothing is committed."""
    position: int | None = None
    """Offset behind the last record that was delivered; None before the first."""
    delivered_by: int = -1
    processed: int | None = None
    """Offset behind the last record that was processed; None before the first."""
    processed_by: int = -1
    processed_at: float = -math.inf
    safe: int | None = None
    """What of that the client is sure to know of: the application has come back since."""
    left_behind: int = -1
    """How far it had processed when it went back, until the next commit leaves."""
    sought_by: int = -1
    sought_at: float = -math.inf
    asked: int = -1
    """The highest offset that the application has asked to commit, in numbers."""
    named: tuple[int, float] = (-1, -math.inf)
    """The last one, and until when one that was asked for before may have left after it."""
    sent: int | None = None
    """The offset of the last commit that left."""
    sent_by: int = -1
    sent_at: float = -math.inf
    flying: bool = False
    """That commit was not answered."""
    cancelled: tuple[int, float] | None = None
    """The offset of the application's last commit that it gave up, or that failed, and when."""
    flying_since: float = -math.inf
    """When it left, or the first of those that it repeats or has waited for."""
    landed_at: float = -math.inf
    """When the last one was answered."""
    identities: set[tuple[str, int, int]] = attrs.field(factory=set)
    """Member id, generation and offset of the commits that left and were not acknowledged."""
    acked: int | None = None
    """The offset of the last commit that was acknowledged."""


@attrs.define(eq=False)
class MemberRun:
    """One run of the process of one member."""

    name: str
    opening: Opening
    opened: bool = False
    """It has told how it was configured, and tells when it closes."""
    held: dict[TopicPartition, OwnershipPeriod] = attrs.field(factory=dict)
    """The periods that last."""
    periods: dict[TopicPartition, OwnershipPeriod] = attrs.field(factory=dict)
    """The last period of each partition that it ever had."""
    assigned_to: bool = False
    """Its coordinator assigns: it sends heartbeats of KIP-848."""
    wired: bool = False
    """Its requests are among the events."""
    in_flight: dict[tuple[int, int], tuple[int, Sent]] = attrs.field(factory=dict)
    """Connection and correlation id -> the request, and its number."""
    used: dict[int, float] = attrs.field(factory=dict)
    """Connections that more than a greeting was sent over, and since when."""
    has_connected: bool = False
    """What it sent last is among the first on its connection: it may have waited for that."""
    sure_until: float = math.inf
    """Until when it can be sure to be in its group: a session after it last asked."""
    found_by: int = -1
    """The last answer to where its coordinator is."""
    frozen: bool = False
    thawed_at: float = -math.inf
    muted: dict[int, float] = attrs.field(factory=dict)
    """Broker -> until when it wants to hear nothing of it (KIP-219)."""
    closing: tuple[int, float] | None = None
    over: bool = False
    """It was killed, or has ended."""
    refused: tuple[int, float, str, int] | None = None
    """The last answer that ended its membership: its number, its time, and the member id and
    generation that it ended."""
    troubled: int = -1
    """The last event that tells of an error at the coordinator."""
    came_back: int = -1
    """The last event that shows that the application came back to the client."""
    joined_by: int = -1
    """When it was assigned something last, if nothing: the event."""
    misassigned_until: float = -math.inf
    """Until when, as a leader, it may compute bad assignments."""

    def has_waited(self, now: float) -> bool:
        """Whether what it sends may have been on its way out for long: it waited for a connection,
        or for a broker that wanted to hear nothing."""
        held_back = any(abs(now - until) < _HELD_BACK for until in self.muted.values())
        return self.has_connected or held_back

    @property
    def hindered_until(self) -> float:
        """Until when it could not do what is asked of it in time."""
        return max((self.thawed_at, *self.muted.values()))


@attrs.define(eq=False)
class Log:
    """One partition's log, as far as the events show it."""

    known: bool = False
    """Its records are among the events."""
    flags: bytearray = attrs.field(factory=bytearray)
    sequences: list[int] = attrs.field(factory=list)
    holder: OwnershipPeriod | None = None
    """Whoever got it last: of the latest generation, where there are two."""
    stored: int | None = None
    """What the broker has as the group's commit; None before the first."""
    stored_by: int = -1
    reached: int = 0
    """The highest commit that the broker had, where one that came later than it was sent has put
    it back: nobody has a reason to commit that again."""
    floor: int = 0
    """Nothing below it may come again: the last commit that is known to have happened."""
    floor_by: int = -1
    appended_at: float = -math.inf
    cuts: list[int] = attrs.field(factory=list)
    """Where it ended each time that it had lost its end."""
    gone: dict[int, set[int]] = attrs.field(factory=dict)
    """Offset -> the sequences of what was lost there."""
    gone_deliveries: int = 0
    """How often something was delivered that was lost then, or since."""
    recreated: bool = False
    """Its topic has the name of one that was deleted."""
    checked: int = 0
    """Everything below it is known to be processed, or was complained about."""

    def flag(self, offset: int, flag: int) -> int:
        """Set a flag of an offset; answer what was set before."""
        flags = self.flags
        if offset >= len(flags):
            # Of a log that is known, what was never appended is not there: compaction.
            fill = HIDDEN if self.known else 0
            flags.extend(bytes((fill,)) * (offset - len(flags)))
            flags.append(flag)
            return 0
        before = flags[offset]
        flags[offset] = before | flag
        return before

    def next_visible(self, offset: int) -> int:
        """The offset of the first record at or above `offset` that a reader may see."""
        flags = self.flags
        while offset < len(flags) and flags[offset] & HIDDEN:
            offset += 1
        return offset

    def adjoins(self, start: int, offset: int) -> bool:
        """Whether a reader at `start` may come to `offset` next: nothing that it may see lies
        between, or what did was cut off, and something else with it."""
        return start <= offset and all(
            (at < len(self.flags) and self.flags[at] & HIDDEN) or -1 in self.gone.get(at, ())
            for at in range(start, offset)
        )

    def cut(self, end: int) -> None:
        """It has lost what was from `end` on."""
        for offset, sequence in enumerate(self.sequences[end:], end):
            self.gone.setdefault(offset, set()).add(sequence)
        self.gone_deliveries += sum(flag & DELIVERED > 0 for flag in self.flags[end:])
        del self.sequences[end:], self.flags[end:]
        self.cuts.append(end)
        self.floor, self.checked = min(self.floor, end), min(self.checked, end)
        self.reached = min(self.reached, end)

    def delete(self) -> None:
        """Its topic is gone, with what groups have committed for it."""
        self.cut(0)
        self.stored, self.stored_by, self.recreated = None, -1, True


DELIVERED, PROCESSED, HIDDEN, PASSED = 1, 2, 4, 8
"""Flags of an offset. What was passed over is what the application did not want."""


def joins(event: Sent) -> bool:
    """Whether the request asks to be let into the group."""
    return event.api == "JoinGroup" or (event.api == BEATS and event.generation == 0)


def leaves(event: Sent) -> bool:
    """Whether it asks to be let out."""
    return event.api == "LeaveGroup" or (event.api == BEATS and event.generation < 0)


def lives_on(event: Sent) -> bool:
    """Whether it says that its member lives, in the group that it is in."""
    return event.api == "Heartbeat" or (event.api == BEATS and event.generation > 0)


def longest_wait(run: MemberRun) -> float:
    """How long the group may wait for one that was lost, when all is well, in seconds: for a
    session to end, and for a JoinGroup that nobody will ever answer."""
    told = run.opening
    return told.session_timeout + told.rebalance_timeout + _JOIN_GRACE + REJOIN


class Recorder:
    """Everything that is remembered."""

    def __init__(self, *, virtual: bool) -> None:
        self.virtual = virtual
        """Time is virtual: what happens at once takes none of it."""
        self.race = 0.0 if virtual else 0.05
        """Seconds that a process may take to notice what has reached it."""
        self.runs: dict[str, MemberRun] = {}
        self.logs: dict[TopicPartition, Log] = {}
        self.violations: list[Violation] = []
        self.healed: float | None = None
        self.sees_broker = False
        """What brokers store is among the events: nothing else tells what is committed."""
        self.speakers: dict[str, MemberRun] = {}
        """Member id -> who uses it."""
        self.instances: dict[str, MemberRun] = {}
        """Instance id of a static member -> who asked to join by it last."""
        self.misassigned: frozenset[str] = frozenset()
        """Ids of members to which the last assignment gave topics that they do not subscribe to.
        They refuse all of it, and join again."""

    def run_of(self, name: str) -> MemberRun:
        run = self.runs.get(name)
        if run is None:
            run = self.runs[name] = MemberRun(name, Opening(time=0.0, member=name))
        return run

    def is_replaced(self, run: MemberRun) -> bool:
        """Another has come in the place of a static member: what it had may be anybody's now. Until
        it hears that it is fenced it cannot know, which is checked where it hears of it."""
        instance = run.opening.instance
        return instance is not None and self.instances.get(instance, run) is not run

    def log(self, tp: TopicPartition) -> Log:
        log = self.logs.get(tp)
        if log is None:
            log = self.logs[tp] = Log()
        return log

    def request(self, answer: Answered) -> tuple[int, Sent] | None:
        """The request that is answered, and its number; None for an answer to nothing."""
        return self.run_of(answer.member).in_flight.get((answer.connection, answer.correlation))

    def report(self, invariant: str, event: Event, text: str, *events: int) -> None:
        """Something is wrong, at the time of `event`."""
        member = event.member if isinstance(event, OfMember) else ""
        proof = tuple(sorted({number for number in events if number >= 0}))
        self.violations.append(Violation(invariant, event.time, member, text, proof))

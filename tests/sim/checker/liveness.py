"""What must happen in time: L2 to L5.

Deadlines count only while the brokers and the network work. Before `Healed` the checker expects
only what a member can do by itself, on connections that work. It does not count time in which the
process is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs

from kafkagroup import TopicPartition

from ..events import (
    Absent,
    Answered,
    Assigned,
    Away,
    Cancelled,
    Cancelling,
    Closing,
    Committed,
    Committing,
    Deleted,
    Delivered,
    Ended,
    Event,
    Finished,
    Killed,
    Lost,
    Polling,
    Processed,
    Revoked,
    Revoking,
    Sent,
)
from .recorder import (
    BEATS,
    REJOIN,
    Handlers,
    MemberRun,
    Recorder,
    joins,
    leaves,
    lives_on,
    longest_wait,
)

_SLACK = 0.5
"""Seconds by which a heartbeat may be late: what answers it waits for what is before it."""
_ENDING = 0.1
"""Seconds that a call may take to end once it is cancelled, L5."""
_COMMIT_SHARE = 0.375
"""How much of the rebalance timeout the last commit may take, where nothing has to drain."""
_CALLBACK_SHARE = 0.1875
"""And how much more those may take that the application asks for when it lets go."""

_MEMBERSHIP = frozenset(("JoinGroup", "SyncGroup", "Heartbeat", BEATS))
_ASKING = _MEMBERSHIP | {"FindCoordinator", "LeaveGroup", "Metadata"}
"""With what one that is out of its group asks for its place."""
_ALIVE = ("NONE", "REBALANCE_IN_PROGRESS")
_OVER = ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID")


@attrs.define(eq=False)
class Pulse:
    """How a member is."""

    beaten_at: float | None = None
    """When the last heartbeat was answered well; None while it owes none."""
    beaten_by: int = -1
    connection: int = -1
    parked: bool = False
    """A JoinGroup or SyncGroup is its heartbeat now."""
    parked_by: int = -1
    """The last JoinGroup or LeaveGroup."""
    joined_as: str = ""
    """The member id that it joined with last, or was given for that."""
    seen_at: float = 0.0
    """When the group last knew it."""
    away_since: float | None = None
    """Since when the application has not come to the client; None while it waits there."""
    away_by: int = -1
    had: bool = False
    """Whether its last assignment was of any partitions."""
    back_at: float = 0.0
    """When it last came."""
    commits: int = 0
    """The application's own that are under way: what waits for them waits for the application."""
    told_at: float | None = None
    """Since when the member knows that the group rebalances, and has not rejoined."""
    told_by: int = -1
    drains_at: float | None = None
    """The same, whatever becomes of the coordinator meanwhile."""
    target: frozenset[TopicPartition] = frozenset()
    """What its coordinator assigned last (KIP-848)."""
    idle_since: float | None = 0.0
    """Since when it has no generation to work in; None while it has."""
    letting_go_since: float = 0.0
    """When the application was last told to let go."""
    freeing: bool = False
    """A commit of its application was under way then, and still is."""
    free: tuple[float, int] | None = None
    """When it let go of something that nobody else gets before it has rejoined."""
    refused: tuple[float, int] | None = None
    """When it was told something after which it is to ask again, and has not."""
    looks_since: float | None = None
    """When it asked for its coordinator last, if it was not answered."""
    cancelling: tuple[float, int] | None = None
    """When a call was cancelled that has not ended."""


class Liveness:
    """The rules of time."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pulses: dict[MemberRun, Pulse] = {}
        self._orphans: dict[TopicPartition, tuple[MemberRun, float, int, float]] = {}
        """Partition -> the dead member that has it, when it died, by which event, and how long that
        may stay so."""
        self.heartbeat_gap = 0.0
        self.takeover = 0.0
        self.handlers: Handlers = {
            Sent: self._sent,
            Answered: self._answered,
            Assigned: self._assigned,
            Revoking: self._revoking,
            Revoked: self._revoked,
            Lost: self._lost,
            Delivered: self._delivered,
            Processed: self._processed,
            Committing: self._committing,
            Committed: self._committed,
            Away: self._went_away,
            Absent: self._absent,
            Polling: self._polling,
            Deleted: self._deleted,
            Cancelling: self._cancelling,
            Cancelled: self._cancelled,
            Closing: self._closing,
            Killed: self._killed,
            Ended: self._ended,
            Finished: self._finished,
        }

    def _pulse(self, run: MemberRun) -> Pulse:
        pulse = self._pulses.get(run)
        if pulse is None:
            pulse = self._pulses[run] = Pulse()
        return pulse

    # ------------------------------------------------------------ the group

    def _sent(self, number: int, event: Sent) -> None:
        run = self._recorder.run_of(event.member)
        pulse = self._pulse(run)
        if event.api in _ASKING:
            self._check_asked_again(number, event, run, pulse)
            pulse.refused = None
        if event.api == "FindCoordinator":
            # There is nobody to send anything to.
            pulse.beaten_at = pulse.told_at = pulse.free = None
            pulse.looks_since = event.time
        elif event.api in _MEMBERSHIP or event.api == "LeaveGroup":
            self._beat(number, event, run, pulse)
        if joins(event) or leaves(event):
            # The one request of KIP-848 is answered at once.
            pulse.parked, pulse.told_at, pulse.free = event.api != BEATS, None, None
            pulse.drains_at = None
            pulse.parked_by, pulse.joined_as = number, event.member_id
        elif event.api == BEATS and event.owned is not None and pulse.target >= {*event.owned}:
            pulse.told_at = pulse.drains_at = pulse.free = None
        elif lives_on(event):
            self._check_away(number, event, run, pulse)
            self._check_told(number, event, run, pulse)
            self._check_free(number, event, run, pulse)

    def _beat(self, number: int, event: Sent, run: MemberRun, pulse: Pulse) -> None:
        """L3: on the connection that the last one was answered on nothing was in the way."""
        if pulse.beaten_at is None:
            return
        gap = event.time - max(pulse.beaten_at, run.hindered_until)
        if event.connection == pulse.connection:
            self.heartbeat_gap = max(self.heartbeat_gap, gap)
            if gap > run.opening.heartbeat_interval + _SLACK:
                text = f"{run.name} sends no heartbeat for {gap:.2f} s"
                self._recorder.report("L3", event, text, pulse.beaten_by, number)
        pulse.beaten_at = None

    def _check_away(self, number: int, event: Sent, run: MemberRun, pulse: Pulse) -> None:
        """L2: a member whose application is gone must not keep its partitions."""
        if pulse.away_since is None or not run.held:
            return
        gone = event.time - max(pulse.away_since, run.hindered_until)
        owned = event.time - min(period.began_at for period in run.held.values())
        # A revocation that is under way waits for it, at most as long as the group does.
        told = event.time - pulse.drains_at if pulse.drains_at is not None else math.inf
        patience = run.opening.max_poll_interval + REJOIN
        if gone > patience and owned > REJOIN and told > run.opening.rebalance_timeout:
            text = f"{run.name} beats on, {gone:.1f} s after its application left"
            self._recorder.report("L2", event, text, pulse.away_by, number)

    def _check_told(self, number: int, event: Sent, run: MemberRun, pulse: Pulse) -> None:
        """L2: who is told that the group rebalances rejoins, once the application has let go."""
        if pulse.told_at is None or pulse.away_since is not None or pulse.commits:
            return
        late = event.time - max(pulse.told_at, pulse.back_at, run.hindered_until)
        if late > _time_to_commit(run):
            text = f"{run.name} was told to rejoin and has not for {late:.1f} s"
            self._recorder.report("L2", event, text, pulse.told_by, number)
            pulse.told_at = None

    def _check_free(self, number: int, event: Sent, run: MemberRun, pulse: Pulse) -> None:
        """L2: what a cooperative member has let go of is given away in a second round (KIP-429)."""
        if pulse.free is None:
            return
        at, by = pulse.free
        late = event.time - max(at, run.hindered_until)
        # It does not rejoin before the commits that are under way are answered, or have had time.
        waits = pulse.commits or _commits(run)
        if late > (max(REJOIN, _time_to_commit(run)) if waits else REJOIN):
            text = f"{run.name} let go of something and has not rejoined for {late:.1f} s"
            self._recorder.report("L2", event, text, by, number)
            pulse.free = None

    def _check_asked_again(self, number: int, event: Event, run: MemberRun, pulse: Pulse) -> None:
        """L2: once the coordinator is well, whoever it has turned away comes again."""
        if pulse.refused is None or self._recorder.healed is None:
            return
        if pulse.away_since is not None or pulse.commits:
            return  # the application is told first, or asked
        if pulse.looks_since is not None and pulse.looks_since < self._recorder.healed:
            return  # it had begun to, and nobody told it that this was lost
        at, by = pulse.refused
        late = event.time - max(at, pulse.back_at, self._recorder.healed, run.hindered_until)
        if late > max(REJOIN, run.opening.heartbeat_interval) + _SLACK:
            text = f"{run.name} was turned away and has not come again for {late:.1f} s"
            self._recorder.report("L2", event, text, by, number)

    def _revoking(self, number: int, event: Revoking) -> None:
        self._pulse(self._recorder.run_of(event.member)).letting_go_since = event.time

    def _revoked(self, number: int, event: Revoked) -> None:
        run = self._recorder.run_of(event.member)
        pulse = self._pulse(run)
        pulse.idle_since = event.time
        # What a dead member had waits for the callbacks of the others, as long as those take.
        took = event.time - pulse.letting_go_since
        for tp, (dead, at, by, patience) in self._orphans.items():
            self._orphans[tp] = dead, at, by, patience + took
        if event.partitions and run.opening.cooperative and run.closing is None:
            pulse.free, pulse.freeing = (event.time, number), pulse.commits > 0

    def _answered(self, number: int, event: Answered) -> None:
        run = self._recorder.run_of(event.member)
        pulse = self._pulse(run)
        if event.api == "FindCoordinator":
            pulse.looks_since = None
        if event.api not in _MEMBERSHIP:
            return
        request = self._recorder.request(event)
        if event.api == "JoinGroup":
            pulse.joined_as = event.member_id or pulse.joined_as
        # One that has joined again since is told nothing new by an answer to what it asked before,
        # or asked as who it was before, on a connection that had to be made first.
        late = request is not None and (
            request[0] < pulse.parked_by or request[1].member_id not in ("", pulse.joined_as)
        )
        # Past a join that is parked only the end of the membership is news.
        aside = event.api == "Heartbeat" and pulse.parked and event.error not in _OVER
        if event.error not in _ALIVE and run.closing is None and not (late or aside):
            pulse.refused = (event.time, number)
        if event.error in _ALIVE or event.error == "UNRELEASED_INSTANCE_ID":
            pulse.seen_at = event.time  # or another is, that has its instance id
        if event.api == "JoinGroup":
            return
        if event.api == "SyncGroup" and request is not None and request[0] > pulse.parked_by:
            pulse.parked = False
        pulse.beaten_at = None
        if pulse.parked or event.error not in _ALIVE:
            return
        if event.api == BEATS and request is not None:
            if leaves(request[1]):
                return
            self._given(number, event, run, pulse)
        pulse.beaten_at, pulse.beaten_by = event.time, number
        pulse.connection = event.connection
        told = event.api == "Heartbeat" and event.error == "REBALANCE_IN_PROGRESS"
        if told and pulse.told_at is None and run.closing is None:
            pulse.told_at, pulse.told_by = event.time, number
            pulse.drains_at = pulse.drains_at or event.time

    def _given(self, number: int, event: Answered, run: MemberRun, pulse: Pulse) -> None:
        """KIP-848: what is to be let go of is what is assigned no more."""
        if event.assigned is None:
            return
        pulse.target = frozenset(event.assigned)
        if run.held.keys() <= pulse.target:
            pulse.told_at = pulse.drains_at = None
        elif pulse.told_at is None and run.closing is None:
            pulse.told_at, pulse.told_by = event.time, number
            pulse.drains_at = pulse.drains_at or event.time

    def _lost(self, number: int, event: Lost) -> None:
        pulse = self._pulse(self._recorder.run_of(event.member))
        pulse.beaten_at = pulse.told_at = pulse.drains_at = pulse.free = None

    # ------------------------------------------------------------ the application

    def _delivered(self, number: int, event: Delivered) -> None:
        pulse = self._pulse(self._recorder.run_of(event.member))
        pulse.away_since, pulse.away_by = event.time, number

    def _processed(self, number: int, event: Processed) -> None:
        pulse = self._pulse(self._recorder.run_of(event.member))
        pulse.away_since, pulse.back_at = None, event.time

    def _committing(self, number: int, event: Committing) -> None:
        self._pulse(self._recorder.run_of(event.member)).commits += 1

    def _committed(self, number: int, event: Committed) -> None:
        pulse = self._pulse(self._recorder.run_of(event.member))
        pulse.commits, pulse.back_at = pulse.commits - 1, event.time
        if pulse.freeing and pulse.free is not None:
            pulse.free = (event.time, pulse.free[1])
        pulse.freeing = pulse.freeing and pulse.commits > 0

    def _went_away(self, number: int, event: Away) -> None:
        pulse = self._pulse(self._recorder.run_of(event.member))
        if pulse.away_since is None:
            # What it does may well be a call of the client, which is as good as a poll.
            pulse.told_at = None

    def _absent(self, number: int, event: Absent) -> None:
        pulse = self._pulse(self._recorder.run_of(event.member))
        pulse.away_since, pulse.away_by = event.time, number

    def _polling(self, number: int, event: Polling) -> None:
        pulse = self._pulse(self._recorder.run_of(event.member))
        pulse.away_since, pulse.back_at = None, event.time

    def _deleted(self, number: int, event: Deleted) -> None:
        for tp in [tp for tp in self._orphans if tp.topic == event.topic]:
            del self._orphans[tp]

    def _cancelling(self, number: int, event: Cancelling) -> None:
        pulse = self._pulse(self._recorder.run_of(event.member))
        if pulse.cancelling is None:
            pulse.cancelling = (event.time, number)

    def _cancelled(self, number: int, event: Cancelled) -> None:
        self._check_cancelled(number, event, self._recorder.run_of(event.member))

    def _check_cancelled(self, number: int, event: Event, run: MemberRun) -> None:
        pulse = self._pulse(run)
        if pulse.cancelling is None:
            return
        (at, by), pulse.cancelling = pulse.cancelling, None
        took = event.time - max(at, run.hindered_until)
        if took > _ENDING:
            text = f"{run.name} goes on for {took:.2f} s in a call that is cancelled"
            self._recorder.report("L5", event, text, by, number)

    # ------------------------------------------------------------ the end

    def _closing(self, number: int, event: Closing) -> None:
        run = self._recorder.run_of(event.member)
        pulse = self._pulse(run)
        pulse.beaten_at = pulse.told_at = None
        self._check_cancelled(number, event, run)
        self._check_asked_again(number, event, run, pulse)
        pulse.refused = None
        self._check_takeovers(number, event, self._orphans)
        if not run.wired or self._recorder.healed is None:
            return
        out = event.time - max(
            pulse.seen_at, self._recorder.healed, run.hindered_until, run.opening.time
        )
        if out > longest_wait(run):
            text = f"{run.name} has been out of its group for {out:.1f} s, and all was well"
            self._recorder.report("L2", event, text, number)
        if not run.opening.shards or pulse.idle_since is None:
            return
        idle = event.time - max(
            pulse.idle_since, self._recorder.healed, run.hindered_until, run.opening.time
        )
        if idle > longest_wait(run):
            text = f"{run.name} was given no generation for {idle:.1f} s, and all was well"
            self._recorder.report("L2", event, text, number)

    def _killed(self, number: int, event: Killed) -> None:
        run = self._recorder.run_of(event.member)
        self._pulse(run).cancelling = None
        healed = math.inf if self._recorder.healed is None else self._recorder.healed
        # A fault that is over may be in the way for a while: of a request that nobody answers.
        calm = event.time - healed > longest_wait(run)
        patience = _time_to_take_over(run) if calm else longest_wait(run)
        for tp, period in run.periods.items():
            # What was given to another while this one stood still has an owner.
            if period.ended_by == number and self._recorder.log(tp).holder is period:
                self._orphans[tp] = (run, event.time, number, patience)

    def _assigned(self, number: int, event: Assigned) -> None:
        self._check_takeovers(number, event, event.partitions)
        for tp in event.partitions:
            self._orphans.pop(tp, None)
        run = self._recorder.run_of(event.member)
        pulse = self._pulse(run)
        if pulse.away_since is not None and not pulse.had:
            pulse.away_since = event.time  # it had nothing to come for
        pulse.had, pulse.idle_since = bool(run.held), None

    def _check_takeovers(
        self, number: int, event: Event, partitions: Iterator[TopicPartition]
    ) -> None:
        """L2: what a dead member had is somebody's again."""
        for tp in [tp for tp in partitions if tp in self._orphans]:
            dead, at, by, patience = self._orphans[tp]
            if self._recorder.healed is None:
                continue
            took = event.time - max(at, self._recorder.healed)
            self.takeover = max(self.takeover, took)
            if took > patience:
                text = f"{tp} is nobody's for {took:.1f} s after {dead.name} died"
                self._recorder.report("L2", event, text, by, number)
                del self._orphans[tp]

    def _ended(self, number: int, event: Ended) -> None:
        run = self._recorder.run_of(event.member)
        self._check_cancelled(number, event, run)
        if event.leaked:
            text = f"{run.name} leaves behind {', '.join(event.leaked)}"
            self._recorder.report("L4", event, text, number)
        if run.closing is None:
            return
        by, at = run.closing
        took = event.time - max(at, run.hindered_until)
        if took > run.opening.close_timeout + _SLACK:
            text = f"{run.name} closes for {took:.1f} s"
            self._recorder.report("L4", event, text, by, number)

    def _finished(self, number: int, event: Finished) -> None:
        for run in self._recorder.runs.values():
            if run.over:
                continue
            self._check_cancelled(number, event, run)
            if run.closing is not None:
                text = f"{run.name} never ends"
                self._recorder.report("L4", event, text, run.closing[0], number)
        if self._recorder.healed is None:
            return
        for tp, end in event.ends.items():
            log = self._recorder.logs.get(tp)
            at = event.committed.get(tp, -1)
            if log is not None and log.known and log.next_visible(max(at, log.reached)) < end:
                since = event.time - self._recorder.healed
                text = f"{tp} is left at {at} of {end}, {since:.1f} s after all was well again"
                self._recorder.report("L2", event, text, number)


def _commits(run: MemberRun) -> bool:
    """Whether a commit of it is not answered."""
    return any(sent.api == "OffsetCommit" for _, sent in run.in_flight.values())


def _time_to_commit(run: MemberRun) -> float:
    """How long a member may take for its last commits, of what was processed."""
    share = _COMMIT_SHARE + (_CALLBACK_SHARE if _commits(run) else 0.0)
    return run.opening.rebalance_timeout * share + 2 * _SLACK


def _time_to_take_over(dead: MemberRun) -> float:
    """How long nobody may have what a dead member had, with nothing else in the way: its session
    ends, the others hear of it by a heartbeat, and join."""
    told = dead.opening
    return told.session_timeout + max(REJOIN, told.heartbeat_interval + _SLACK)

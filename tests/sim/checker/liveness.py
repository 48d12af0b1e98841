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
"""Seconds by which a heartbeat may be late: its response waits for earlier ones."""
_ENDING = 0.1
"""L5: seconds that a call may take to end after its cancellation."""
_COMMIT_SHARE = 0.375
"""Share of the rebalance timeout for the last commit, if no record is in flight."""
_CALLBACK_SHARE = 0.1875
"""Additional share for commits by the application in its revocation callback."""

_MEMBERSHIP = frozenset(("JoinGroup", "SyncGroup", "Heartbeat", BEATS))
_ASKING = _MEMBERSHIP | {"FindCoordinator", "LeaveGroup", "Metadata"}
"""Requests by which a member outside its group tries to return."""
_ALIVE = ("NONE", "REBALANCE_IN_PROGRESS")
_OVER = ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID")


@attrs.define(eq=False)
class Pulse:
    """The state of a member's deadlines."""

    beaten_at: float | None = None
    """When the last heartbeat was answered without an error; None while none is due."""
    beaten_by: int = -1
    connection: int = -1
    parked: bool = False
    """Whether a pending JoinGroup or SyncGroup serves as its heartbeat."""
    parked_by: int = -1
    """The event of the last JoinGroup or LeaveGroup."""
    joined_as: str = ""
    """The member id in its last join, or in the response to it."""
    seen_at: float = 0.0
    """When the coordinator last confirmed the membership."""
    away_since: float | None = None
    """Since when the application has not polled; None while it waits in the client."""
    away_by: int = -1
    had: bool = False
    """Whether its last assignment contained partitions."""
    back_at: float = 0.0
    """When the application last polled."""
    commits: int = 0
    """Unanswered commits of the application: what waits for them waits for the application."""
    told_at: float | None = None
    """Since when the member knows of a rebalance and has not rejoined."""
    told_by: int = -1
    drains_at: float | None = None
    """The same, but not reset when the coordinator is lost."""
    target: frozenset[TopicPartition] = frozenset()
    """Its last assignment by the coordinator (KIP-848)."""
    idle_since: float | None = 0.0
    """Since when it has no generation to work in; None while it has one."""
    letting_go_since: float = 0.0
    """When the application's last revocation callback began."""
    freeing: bool = False
    """A commit of the application was in flight at that time, and still is."""
    free: tuple[float, int] | None = None
    """When it revoked partitions that no other member gets before it rejoins."""
    refused: tuple[float, int] | None = None
    """When it got an error after which it must send another request, and has not."""
    looks_since: float | None = None
    """When it last sent FindCoordinator, if that is unanswered."""
    cancelling: tuple[float, int] | None = None
    """When a call was cancelled that has not ended."""


class Liveness:
    """The rules of deadlines."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pulses: dict[MemberRun, Pulse] = {}
        self._orphans: dict[TopicPartition, tuple[MemberRun, float, int, float]] = {}
        """Partition -> the dead member that owned it, when it died, by which event, and how long
        the partition may stay unassigned."""
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
            # The coordinator is unknown, so no heartbeat is due.
            pulse.beaten_at = pulse.told_at = pulse.free = None
            pulse.looks_since = event.time
        elif event.api in _MEMBERSHIP or event.api == "LeaveGroup":
            self._beat(number, event, run, pulse)
        if joins(event) or leaves(event):
            # A KIP-848 heartbeat is answered at once.
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
        """L3: on the connection of the last response, nothing delayed the heartbeat."""
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
        """L2: a member whose application does not poll must not keep its partitions."""
        if pulse.away_since is None or not run.held:
            return
        gone = event.time - max(pulse.away_since, run.hindered_until)
        owned = event.time - min(period.began_at for period in run.held.values())
        # A revocation in progress waits for the application, at most as long as the group does.
        told = event.time - pulse.drains_at if pulse.drains_at is not None else math.inf
        patience = run.opening.max_poll_interval + REJOIN
        if gone > patience and owned > REJOIN and told > run.opening.rebalance_timeout:
            text = f"{run.name} beats on, {gone:.1f} s after its application left"
            self._recorder.report("L2", event, text, pulse.away_by, number)

    def _check_told(self, number: int, event: Sent, run: MemberRun, pulse: Pulse) -> None:
        """L2: a member that learns of a rebalance rejoins after its revocation."""
        if pulse.told_at is None or pulse.away_since is not None or pulse.commits:
            return
        late = event.time - max(pulse.told_at, pulse.back_at, run.hindered_until)
        if late > _time_to_commit(run):
            text = f"{run.name} was told to rejoin and has not for {late:.1f} s"
            self._recorder.report("L2", event, text, pulse.told_by, number)
            pulse.told_at = None

    def _check_free(self, number: int, event: Sent, run: MemberRun, pulse: Pulse) -> None:
        """L2: partitions that a cooperative member revokes are assigned in a second round
        (KIP-429)."""
        if pulse.free is None:
            return
        at, by = pulse.free
        late = event.time - max(at, run.hindered_until)
        # It rejoins only when unanswered commits are answered, or have had enough time.
        waits = pulse.commits or _commits(run)
        if late > (max(REJOIN, _time_to_commit(run)) if waits else REJOIN):
            text = f"{run.name} let go of something and has not rejoined for {late:.1f} s"
            self._recorder.report("L2", event, text, by, number)
            pulse.free = None

    def _check_asked_again(self, number: int, event: Event, run: MemberRun, pulse: Pulse) -> None:
        """L2: after an error, the member tries again once the coordinator is healthy."""
        if pulse.refused is None or self._recorder.healed is None:
            return
        if pulse.away_since is not None or pulse.commits:
            return  # the application is notified first, or a commit is in flight
        if pulse.looks_since is not None and pulse.looks_since < self._recorder.healed:
            return  # its request was lost before `Healed`, and it has not timed out
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
        # A dead member's partitions wait for the callbacks of the others, however long those take.
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
        # A member that has rejoined since ignores the response to an earlier request, or to one
        # under its former member id that had to wait for a connection.
        late = request is not None and (
            request[0] < pulse.parked_by or request[1].member_id not in ("", pulse.joined_as)
        )
        # While a join is pending, only the end of the membership matters.
        aside = event.api == "Heartbeat" and pulse.parked and event.error not in _OVER
        if event.error not in _ALIVE and run.closing is None and not (late or aside):
            pulse.refused = (event.time, number)
        if event.error in _ALIVE or event.error == "UNRELEASED_INSTANCE_ID":
            pulse.seen_at = event.time  # or another member with its instance id was seen
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
        """KIP-848: the member must revoke the partitions that are no longer assigned to it."""
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
            # The application may be calling the client, which is equivalent to a poll.
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
        # The effects of an earlier fault may last for a while: a request without a response.
        calm = event.time - healed > longest_wait(run)
        patience = _time_to_take_over(run) if calm else longest_wait(run)
        for tp, period in run.periods.items():
            # Partitions assigned to another member while this one was frozen have an owner.
            if period.ended_by == number and self._recorder.log(tp).holder is period:
                self._orphans[tp] = (run, event.time, number, patience)

    def _assigned(self, number: int, event: Assigned) -> None:
        self._check_takeovers(number, event, event.partitions)
        for tp in event.partitions:
            self._orphans.pop(tp, None)
        run = self._recorder.run_of(event.member)
        pulse = self._pulse(run)
        if pulse.away_since is not None and not pulse.had:
            pulse.away_since = event.time  # it had no partitions to poll for
        pulse.had, pulse.idle_since = bool(run.held), None

    def _check_takeovers(
        self, number: int, event: Event, partitions: Iterator[TopicPartition]
    ) -> None:
        """L2: a dead member's partitions are assigned again."""
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
    """Whether one of its commits is unanswered."""
    return any(sent.api == "OffsetCommit" for _, sent in run.in_flight.values())


def _time_to_commit(run: MemberRun) -> float:
    """How long a member may take for its last commits of processed records."""
    share = _COMMIT_SHARE + (_CALLBACK_SHARE if _commits(run) else 0.0)
    return run.opening.rebalance_timeout * share + 2 * _SLACK


def _time_to_take_over(dead: MemberRun) -> float:
    """How long a dead member's partitions may stay unassigned, if nothing else delays this: its
    session expires, the others learn of it by a heartbeat, and rejoin."""
    told = dead.opening
    return told.session_timeout + max(REJOIN, told.heartbeat_interval + _SLACK)

"""What must happen in time: L2 to L5.

Deadlines count only while the brokers and the network work. Before `Healed` the checker expects
only what a member can do by itself, on connections that work. It does not count time in which the
process is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import attrs

from kafkagroup import TopicPartition

from ..events import (
    Absent,
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
    Raised,
    Rejoining,
    Responded,
    Revoked,
    Revoking,
    Sent,
)
from .logins import LOGIN_PAUSE
from .recorder import (
    CONSUMER_HEARTBEAT,
    MEMBERSHIP,
    REJOIN,
    Handlers,
    Log,
    MemberRun,
    OwnershipPeriod,
    Recorder,
    is_heartbeat,
    is_join,
    is_leave,
    longest_wait,
)

_SLACK = 0.5
"""Seconds by which a heartbeat may be late: its response waits for earlier ones."""

_CLOSING = 6.0
"""Seconds in which all members have closed that close at the same time."""

_CANCELLATION = 0.1
"""L5: seconds that a call may take to end after its cancellation."""
_COMMIT_FRACTION = 0.375
"""Share of the rebalance timeout for the last commit, if no record is in flight: half of the time
until the deadline of the revocation. After the callback, commits get half of the time left."""
_REST_FRACTION = 0.1875
"""That share, if the last commit has taken all of its time."""

_RETURNS = MEMBERSHIP | {"FindCoordinator"}
"""Requests by which a member outside its group tries to return."""
_RETRIES = _RETURNS | {"LeaveGroup", "Metadata"}
"""Requests that may follow an error."""
_CONFIRMATIONS = ("NONE", "REBALANCE_IN_PROGRESS")


@attrs.define(eq=False)
class Deadlines:
    """The state of a member's deadlines."""

    heartbeat_answered_at: float | None = None
    """When the last heartbeat was answered without an error; None while none is due."""
    heartbeat_answered_by: int = -1
    connection: int = -1
    join_pending: bool = False
    """Whether a pending JoinGroup or SyncGroup serves as its heartbeat."""
    confirmed_at: float = 0.0
    """When the coordinator last confirmed the membership."""
    busy_since: float | None = None
    """Since when the application has not polled; None while it waits in the client."""
    busy_by: int = -1
    had_partitions: bool = False
    """Whether its last assignment in this membership contained partitions."""
    polled_at: float = 0.0
    """When the application last polled."""
    delivered_at: float = 0.0
    """When the application last got a record."""
    resumed_at: float = -math.inf
    """When it last polled after a record or batch that took it longer than `_CLOSING`."""
    commit_count: int = 0
    """Unanswered commits of the application: what waits for them waits for the application."""
    must_rejoin_since: float | None = None
    """Since when the member knows of a rebalance and has not rejoined."""
    must_rejoin_by: int = -1
    unassigned_since: float | None = 0.0
    """Since when it has no generation to work in; None while it has one."""
    revoking_since: float = 0.0
    """When the application's last revocation callback began."""
    rejoin_due: tuple[float, int] | None = None
    """When it revoked partitions that no other member gets before it rejoins; once its client has
    it rejoin, when that was."""
    has_requested_rejoin: bool = False
    """Whether its client has had it rejoin since then."""
    unreported: frozenset[TopicPartition] = frozenset()
    """These partitions."""
    awaits_commit: bool = False
    """Whether a commit has not ended since before that revocation."""
    committed_at: float = 0.0
    """When it ended, if it has."""
    retry_due: tuple[float, int] | None = None
    """When it got an error after which it must send another request, and has not."""
    refused_at: float = -math.inf
    """When a broker last refused its login."""
    failure: str = ""
    """The error of the group's last response, if it has not tried to return since; else ""."""
    return_due_at: float = 0.0
    """From when it must try to return. After a failure: when the application first polled, as a
    client may have to report an error that ends the membership; infinity before that, and once a
    call has raised that error. After it left by its poll timeout: the next poll."""
    connections: dict[int, float] = attrs.field(factory=dict)
    """Connection -> when its first request was sent."""
    lookup_connection_since: float | None = None
    """When the first request was sent on the connection of the last FindCoordinator; None if that
    is answered."""
    cancelling: tuple[float, int] | None = None
    """When a call was cancelled that has not ended."""

    def on_poll(self, now: float) -> None:
        """Note that the application polled."""
        self.polled_at = now
        self.return_due_at = min(self.return_due_at, now)


class Liveness:
    """The rules of deadlines."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._deadlines: dict[MemberRun, Deadlines] = {}
        self._unowned: dict[TopicPartition, tuple[MemberRun, float, int, float]] = {}
        """Partition -> the dead member that owned it, when it died, by which event, and how long
        the partition may stay unassigned."""
        self.heartbeat_gap = 0.0
        self.takeover = 0.0
        self.handlers: Handlers = {
            Sent: self._sent,
            Responded: self._answered,
            Assigned: self._assigned,
            Revoking: self._revoking,
            Revoked: self._revoked,
            Rejoining: self._rejoining,
            Lost: self._lost,
            Delivered: self._delivered,
            Processed: self._processed,
            Committing: self._committing,
            Committed: self._committed,
            Away: self._works,
            Absent: self._absent,
            Polling: self._polling,
            Raised: self._raised,
            Deleted: self._deleted,
            Cancelling: self._cancelling,
            Cancelled: self._cancelled,
            Closing: self._closing,
            Killed: self._killed,
            Ended: self._ended,
            Finished: self._finished,
        }

    def _of(self, run: MemberRun) -> Deadlines:
        deadlines = self._deadlines.get(run)
        if deadlines is None:
            deadlines = self._deadlines[run] = Deadlines()
        return deadlines

    # ------------------------------------------------------------ the group

    def _sent(self, number: int, event: Sent) -> None:
        run = self._recorder.run_of(event.member)
        deadlines = self._of(run)
        first_sent_at = deadlines.connections.setdefault(event.connection, event.time)
        if event.api in _RETRIES:
            self._check_retry(number, event, run, deadlines)
            deadlines.retry_due = None
        if event.api in _RETURNS and not is_leave(event):
            deadlines.failure, deadlines.return_due_at = "", 0.0
        if event.api == "FindCoordinator":
            # The coordinator is unknown, so no heartbeat is due.
            deadlines.heartbeat_answered_at = deadlines.must_rejoin_since = deadlines.rejoin_due = (
                None
            )
            deadlines.lookup_connection_since = first_sent_at
        elif event.api == "SaslHandshake" and event.connection == deadlines.connection:
            deadlines.connection = -1  # a renewal holds the heartbeat back, for two responses
        elif event.api in MEMBERSHIP or event.api == "LeaveGroup":
            self._check_heartbeat(number, event, run, deadlines)
        if is_join(event) or is_leave(event):
            # A KIP-848 heartbeat is answered at once.
            deadlines.join_pending, deadlines.must_rejoin_since, deadlines.rejoin_due = (
                event.api != CONSUMER_HEARTBEAT,
                None,
                None,
            )
        elif event.api == CONSUMER_HEARTBEAT and event.owned is not None:
            if _has_revoked(run, event.owned):
                deadlines.must_rejoin_since = None
            if deadlines.unreported.isdisjoint(event.owned):
                deadlines.rejoin_due = None
        elif is_heartbeat(event):
            self._check_polls(number, event, run, deadlines)
            self._check_rejoin(number, event, run, deadlines)
            self._check_second_round(number, event, run, deadlines)

    def _check_heartbeat(
        self, number: int, event: Sent, run: MemberRun, deadlines: Deadlines
    ) -> None:
        """L3: on the connection of the last response, nothing delayed the heartbeat."""
        if deadlines.heartbeat_answered_at is None:
            return
        gap = self._recorder.elapsed(run, event.time, deadlines.heartbeat_answered_at)
        if event.connection == deadlines.connection:
            self.heartbeat_gap = max(self.heartbeat_gap, gap)
            if gap > run.opening.heartbeat_interval + _SLACK:
                text = f"{run.name} sends no heartbeat for {gap:.2f} s"
                self._recorder.report("L3", event, text, deadlines.heartbeat_answered_by, number)
        deadlines.heartbeat_answered_at = None

    def _check_polls(self, number: int, event: Sent, run: MemberRun, deadlines: Deadlines) -> None:
        """L2: a member whose application does not poll must not keep its partitions."""
        if deadlines.busy_since is None or not run.held:
            return
        idle = self._recorder.elapsed(run, event.time, deadlines.busy_since)
        owned = event.time - min(period.began_at for period in run.held.values())
        limit = run.opening.max_poll_interval + REJOIN
        if idle > limit and owned > REJOIN:
            text = f"{run.name} sends heartbeats {idle:.1f} s after its application last polled"
            self._recorder.report("L2", event, text, deadlines.busy_by, number)

    def _check_rejoin(self, number: int, event: Sent, run: MemberRun, deadlines: Deadlines) -> None:
        """L2: a member that learns of a rebalance rejoins after its revocation."""
        if (
            deadlines.must_rejoin_since is None
            or deadlines.busy_since is not None
            or deadlines.commit_count
        ):
            return
        late = self._recorder.elapsed(
            run, event.time, deadlines.must_rejoin_since, deadlines.polled_at
        )
        if late > run.opening.rebalance_timeout * (_COMMIT_FRACTION + _REST_FRACTION) + 2 * _SLACK:
            text = f"{run.name} must rejoin, and has not for {late:.1f} s"
            self._recorder.report("L2", event, text, deadlines.must_rejoin_by, number)
            deadlines.must_rejoin_since = None

    def _check_second_round(
        self, number: int, event: Sent, run: MemberRun, deadlines: Deadlines
    ) -> None:
        """L2: partitions that a cooperative member revokes are assigned in a second round
        (KIP-429)."""
        if deadlines.rejoin_due is None:
            return
        at, by = deadlines.rejoin_due
        late = self._recorder.elapsed(run, event.time, at)
        timeout = run.opening.rebalance_timeout
        commits = deadlines.commit_count or _commits(run)
        # The callback of the next assignment may begin when the last commit ends.
        committing = 0.0 if commits else max(0.0, deadlines.committed_at - at)
        share = _COMMIT_FRACTION if commits else _REST_FRACTION
        limit = min(committing, timeout * _COMMIT_FRACTION) + timeout * share + _SLACK
        if late > max(REJOIN, limit):
            text = f"{run.name} has revoked partitions, and has not rejoined for {late:.1f} s"
            self._recorder.report("L2", event, text, by, number)
            deadlines.rejoin_due = None

    def _check_retry(self, number: int, event: Event, run: MemberRun, deadlines: Deadlines) -> None:
        """L2: after an error, the member tries again once the coordinator is healthy."""
        if deadlines.retry_due is None:
            return
        if deadlines.busy_since is not None or deadlines.commit_count:
            return  # the application is notified first, or a commit is in flight
        since = deadlines.lookup_connection_since
        if since is not None and since < self._recorder.healed_at:
            return  # a fault may have killed the connection without a reset: the request times out
        if event.time - deadlines.refused_at < LOGIN_PAUSE:
            return
        at, by = deadlines.retry_due
        late = self._recorder.elapsed_healthy(run, event.time, at, deadlines.polled_at)
        if late > max(REJOIN, run.opening.heartbeat_interval) + _SLACK:
            text = f"{run.name} got an error, and has not tried again for {late:.1f} s"
            self._recorder.report("L2", event, text, by, number)

    def _revoking(self, number: int, event: Revoking) -> None:
        self._of(self._recorder.run_of(event.member)).revoking_since = event.time

    def _revoked(self, number: int, event: Revoked) -> None:
        run = self._recorder.run_of(event.member)
        deadlines = self._of(run)
        deadlines.unassigned_since = event.time
        # A dead member's partitions wait for the callbacks of the others, however long those take.
        took = event.time - deadlines.revoking_since
        for tp, (dead, at, by, limit) in self._unowned.items():
            self._unowned[tp] = dead, at, by, limit + took
        if event.partitions and run.opening.cooperative and run.closing is None:
            deadlines.rejoin_due, deadlines.has_requested_rejoin = (event.time, number), False
            deadlines.unreported = frozenset(event.partitions)
            deadlines.awaits_commit = bool(deadlines.commit_count)

    def _rejoining(self, number: int, event: Rejoining) -> None:
        deadlines = self._of(self._recorder.run_of(event.member))
        if deadlines.rejoin_due is not None and not deadlines.has_requested_rejoin:
            # The second round begins with the commit of a revocation of its own.
            deadlines.rejoin_due, deadlines.has_requested_rejoin = (event.time, number), True

    def _answered(self, number: int, event: Responded) -> None:
        run = self._recorder.run_of(event.member)
        deadlines = self._of(run)
        if event.api == "FindCoordinator":
            deadlines.lookup_connection_since = None
        if event.api == "SaslAuthenticate" and event.error != "NONE":
            deadlines.refused_at = event.time
        if event.api not in MEMBERSHIP:
            return
        request = self._recorder.request(event)
        if event.error not in _CONFIRMATIONS and run.closing is None:
            deadlines.retry_due = (event.time, number)
            deadlines.failure = event.error
            deadlines.return_due_at = 0.0 if deadlines.busy_since is None else math.inf
        if event.error in _CONFIRMATIONS or event.error == "UNRELEASED_INSTANCE_ID":
            deadlines.confirmed_at = event.time  # or another member with its instance id was seen
        if event.api == "JoinGroup":
            return
        if event.api == "SyncGroup":
            deadlines.join_pending = False
        deadlines.heartbeat_answered_at = None
        if deadlines.join_pending or event.error not in _CONFIRMATIONS:
            return
        if event.api == CONSUMER_HEARTBEAT and request is not None:
            if is_leave(request[1]):
                return
            self._on_target(number, event, run, deadlines)
        deadlines.heartbeat_answered_at, deadlines.heartbeat_answered_by = event.time, number
        deadlines.connection = event.connection
        must_rejoin = event.api == "Heartbeat" and event.error == "REBALANCE_IN_PROGRESS"
        if must_rejoin and deadlines.must_rejoin_since is None and run.closing is None:
            deadlines.must_rejoin_since, deadlines.must_rejoin_by = event.time, number

    def _on_target(
        self, number: int, event: Responded, run: MemberRun, deadlines: Deadlines
    ) -> None:
        """KIP-848: the member must revoke the partitions that are no longer assigned to it."""
        if event.assigned is None:
            return
        if _has_revoked(run, run.held):
            deadlines.must_rejoin_since = None
        elif deadlines.must_rejoin_since is None and run.closing is None:
            deadlines.must_rejoin_since, deadlines.must_rejoin_by = event.time, number

    def _lost(self, number: int, event: Lost) -> None:
        run = self._recorder.run_of(event.member)
        deadlines = self._of(run)
        if run.polls.expired:
            # It leaves; the next poll begins a new membership.
            deadlines.had_partitions, deadlines.return_due_at = False, math.inf
        deadlines.heartbeat_answered_at = deadlines.must_rejoin_since = deadlines.rejoin_due = None

    # ------------------------------------------------------------ the application

    def _delivered(self, number: int, event: Delivered) -> None:
        deadlines = self._of(self._recorder.run_of(event.member))
        deadlines.busy_since, deadlines.busy_by = event.time, number
        deadlines.delivered_at = event.time

    def _processed(self, number: int, event: Processed) -> None:
        deadlines = self._of(self._recorder.run_of(event.member))
        if event.time - deadlines.delivered_at > _CLOSING:
            deadlines.resumed_at = event.time
        deadlines.busy_since = None
        deadlines.on_poll(event.time)

    def _committing(self, number: int, event: Committing) -> None:
        self._of(self._recorder.run_of(event.member)).commit_count += 1

    def _committed(self, number: int, event: Committed) -> None:
        deadlines = self._of(self._recorder.run_of(event.member))
        deadlines.commit_count -= 1
        deadlines.on_poll(event.time)
        if deadlines.awaits_commit:
            deadlines.committed_at = event.time
            deadlines.awaits_commit = bool(deadlines.commit_count)

    def _works(self, number: int, event: Away) -> None:
        deadlines = self._of(self._recorder.run_of(event.member))
        if deadlines.busy_since is None:
            # The application may be calling the client, which is equivalent to a poll.
            deadlines.must_rejoin_since = None

    def _absent(self, number: int, event: Absent) -> None:
        deadlines = self._of(self._recorder.run_of(event.member))
        deadlines.busy_since, deadlines.busy_by = event.time, number
        if deadlines.return_due_at == event.time:
            deadlines.return_due_at = math.inf  # after the last record, it did not ask for more

    def _polling(self, number: int, event: Polling) -> None:
        deadlines = self._of(self._recorder.run_of(event.member))
        deadlines.busy_since = None
        deadlines.on_poll(event.time)

    def _raised(self, number: int, event: Raised) -> None:
        deadlines = self._of(self._recorder.run_of(event.member))
        if deadlines.failure and f"({deadlines.failure})" in event.error:
            deadlines.return_due_at = math.inf

    def _deleted(self, number: int, event: Deleted) -> None:
        for tp in [tp for tp in self._unowned if tp.topic == event.topic]:
            del self._unowned[tp]

    def _cancelling(self, number: int, event: Cancelling) -> None:
        deadlines = self._of(self._recorder.run_of(event.member))
        if deadlines.cancelling is None:
            deadlines.cancelling = (event.time, number)

    def _cancelled(self, number: int, event: Cancelled) -> None:
        self._check_cancelled(number, event, self._recorder.run_of(event.member))

    def _check_cancelled(self, number: int, event: Event, run: MemberRun) -> None:
        deadlines = self._of(run)
        if deadlines.cancelling is None:
            return
        (at, by), deadlines.cancelling = deadlines.cancelling, None
        took = self._recorder.elapsed(run, event.time, at)
        if took > _CANCELLATION:
            text = f"{run.name} has not ended a cancelled call for {took:.2f} s"
            self._recorder.report("L5", event, text, by, number)

    # ------------------------------------------------------------ the end

    def _closing(self, number: int, event: Closing) -> None:
        run = self._recorder.run_of(event.member)
        deadlines = self._of(run)
        deadlines.heartbeat_answered_at = deadlines.must_rejoin_since = None
        self._check_cancelled(number, event, run)
        self._check_retry(number, event, run, deadlines)
        deadlines.retry_due = None
        self._check_takeovers(number, event, self._unowned)
        if not run.has_wire_events:
            return
        outside = self._recorder.elapsed_healthy(
            run, event.time, deadlines.confirmed_at, run.opening.time, deadlines.return_due_at
        )
        if outside > longest_wait(run):
            text = f"{run.name} has been outside its group for {outside:.1f} s without a fault"
            self._recorder.report("L2", event, text, number)
        if not run.opening.shards or deadlines.unassigned_since is None:
            return
        idle = self._recorder.elapsed_healthy(
            run, event.time, deadlines.unassigned_since, run.opening.time
        )
        if idle > longest_wait(run):
            text = f"{run.name} has had no generation for {idle:.1f} s without a fault"
            self._recorder.report("L2", event, text, number)

    def _killed(self, number: int, event: Killed) -> None:
        run = self._recorder.run_of(event.member)
        self._of(run).cancelling = None
        # The effects of an earlier fault may last for a while: a request without a response.
        recovered = event.time - self._recorder.healed_at > longest_wait(run)
        limit = _time_to_take_over(run) if recovered else longest_wait(run)
        for tp, period in run.periods.items():
            # Partitions assigned to another member while this one was frozen have an owner.
            if period.ended_by == number and self._recorder.log(tp).current is period:
                self._unowned[tp] = (run, event.time, number, limit)

    def _assigned(self, number: int, event: Assigned) -> None:
        self._check_takeovers(number, event, event.partitions)
        for tp in event.partitions:
            self._unowned.pop(tp, None)
        run = self._recorder.run_of(event.member)
        deadlines = self._of(run)
        if deadlines.busy_since is not None and not deadlines.had_partitions:
            deadlines.busy_since = event.time  # it had no partitions to poll for
        deadlines.had_partitions, deadlines.unassigned_since = bool(run.held), None

    def _check_takeovers(
        self, number: int, event: Event, partitions: Iterable[TopicPartition]
    ) -> None:
        """L2: a dead member's partitions are assigned again."""
        for tp in [tp for tp in partitions if tp in self._unowned]:
            dead, at, by, limit = self._unowned[tp]
            took = event.time - max(at, self._recorder.healed_at)
            self.takeover = max(self.takeover, took)
            if took > limit:
                text = f"{tp} has no owner {took:.1f} s after {dead.name} died"
                self._recorder.report("L2", event, text, by, number)
                del self._unowned[tp]

    def _ended(self, number: int, event: Ended) -> None:
        run = self._recorder.run_of(event.member)
        self._check_cancelled(number, event, run)
        if event.leaked:
            text = f"{run.name} leaves open: {', '.join(event.leaked)}"
            self._recorder.report("L4", event, text, number)
        if run.closing is None:
            return
        by, at = run.closing
        took = self._recorder.elapsed(run, event.time, at)
        if took > run.opening.close_timeout + _SLACK:
            text = f"{run.name} takes {took:.1f} s to close"
            self._recorder.report("L4", event, text, by, number)

    def _finished(self, number: int, event: Finished) -> None:
        for run in self._recorder.runs.values():
            if run.has_ended:
                continue
            self._check_cancelled(number, event, run)
            if run.closing is not None:
                text = f"{run.name} never closes"
                self._recorder.report("L4", event, text, run.closing[0], number)
        since = event.time - self._recorder.healed_at
        if since < 0:
            return
        for tp, end in event.ends.items():
            log = self._recorder.logs.get(tp)
            at = event.committed.get(tp, -1)
            if (
                log is not None
                and log.has_appends
                and not self._may_stay_forgotten(log, event.time)
                and log.next_visible(max(at, log.highest_stored)) < end
            ):
                text = f"{tp} is left at {at} of {end}, {since:.1f} s after the last fault"
                self._recorder.report("L2", event, text, number)

    def _may_stay_forgotten(self, log: Log, now: float) -> bool:
        """Whether the coordinator has forgotten the commit, and no member must store it again: the
        last owner has committed nothing itself, or only when its application asked it to, or has
        got the acknowledgement later, or has released the partition before, or is dead, or has lost
        it, and must not commit. A later owner reads it again, unless it closes, too, be it later
        because its application was busy until then. Whether a commit that is sent while it closes
        gets a response in time does not depend on the member."""
        owner = log.current
        if log.forgotten_by < 0:
            return False
        if log.stored is not None:
            if owner is None or owner.began_by < log.forgotten_by:
                return False
            since = max(log.forgotten_at, self._of(owner.run).resumed_at)
            return now - since < _CLOSING
        return (
            owner is None
            or owner.acked is None
            or owner.acked_by > log.forgotten_by
            or _commits_at_end(owner, log.forgotten_by)
            or not owner.run.opening.auto_commit
            or owner.end_reason in ("lost", "killed")
            or (owner.revoking_by is not None and owner.revoking_by < log.forgotten_by)
        )


def _commits_at_end(owner: OwnershipPeriod, forgotten_by: int) -> bool:
    """Whether the owner has sent a commit since it closes, and since the last was forgotten."""
    closing_by = math.inf if owner.run.closing is None else owner.run.closing[0]
    return owner.sent_by > max(forgotten_by, closing_by)


def _has_revoked(run: MemberRun, owned: Collection[TopicPartition]) -> bool:
    """Whether a KIP-848 member with these partitions has revoked what its assignment lacks."""
    return run.target is None or run.target.issuperset(owned)


def _commits(run: MemberRun) -> bool:
    """Whether one of its commits is unanswered."""
    return any(sent.api == "OffsetCommit" for _, sent in run.in_flight.values())


def _time_to_take_over(dead: MemberRun) -> float:
    """How long a dead member's partitions may stay unassigned, if nothing else delays this: its
    session expires, the others learn of it by a heartbeat, and rejoin."""
    options = dead.opening
    return options.session_timeout + max(REJOIN, options.heartbeat_interval + _SLACK)

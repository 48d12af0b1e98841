"""Which member owns which partition when: S1, S2 and S9.

A period begins with `Assigned` and ends with `Revoked`, `Lost` or the end of the member. Between
`Revoking` and `Revoked` the member may still commit, but nothing is delivered any more.

A member that was expired without knowing it may have a period at the same time as its successor;
but it must not deliver. It notices by its own clock that its lease has expired, so this holds only
if the rebalance timeout is at least the session timeout: with a shorter one, the group may expire a
member before its lease ends.
"""

from __future__ import annotations

from kafkagroup import TopicPartition

from ..events import (
    Assigned,
    Delivered,
    Ended,
    Killed,
    Lost,
    Revoked,
    Revoking,
    Sent,
    Worked,
)
from .recorder import Handlers, MemberRun, OwnershipPeriod, Recorder, is_join, is_leave


class Ownership:
    """The rules of ownership."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._owners: dict[tuple[int, TopicPartition], tuple[MemberRun, int]] = {}
        """Generation and partition -> the owner, and by which event."""
        self.handlers: Handlers = {
            Assigned: self._assigned,
            Revoking: self._revoking,
            Revoked: self._revoked,
            Lost: self._lost,
            Delivered: self._delivered,
            Worked: self._worked,
            Sent: self._sent,
            Killed: self._killed,
            Ended: self._ended,
        }

    def _assigned(self, number: int, event: Assigned) -> None:
        run = self._recorder.run_of(event.member)
        for tp in event.partitions:
            if (before := run.held.get(tp)) is not None:
                text = f"{run.name} is assigned {tp}, which it owns already"
                self._recorder.report("S1", event, text, before.began_by, number)
            period = OwnershipPeriod(run, tp, number, event.time, event.generation)
            run.held[tp] = run.periods[tp] = period
            log = self._recorder.log(tp)
            if not _is_late(period, log.current):
                log.current = period
        # It also owns the partitions that it keeps in this generation.
        for tp in run.held if event.generation >= 0 else ():
            owner, since = self._owners.setdefault((event.generation, tp), (run, number))
            if owner is not run and not _same_instance(owner, run):
                text = f"{owner.name} and {run.name} both own {tp} in generation"
                self._recorder.report("S1", event, f"{text} {event.generation}", since, number)

    def _revoking(self, number: int, event: Revoking) -> None:
        run = self._recorder.run_of(event.member)
        for tp in event.partitions:
            if (period := run.held.get(tp)) is not None:
                period.revoking_by, period.revoking_at = number, event.time
                period.membership_was_lost = run.opening.shards and _has_lost_membership(
                    run, event.time
                )

    def _revoked(self, number: int, event: Revoked) -> None:
        self._end(number, event, "revoked")

    def _lost(self, number: int, event: Lost) -> None:
        self._end(number, event, "lost")

    def _end(self, number: int, event: Revoked | Lost, how: str) -> None:
        run = self._recorder.run_of(event.member)
        for tp in event.partitions:
            if (period := run.held.pop(tp, None)) is not None:
                _close(period, number, event.time, how)

    def _killed(self, number: int, event: Killed) -> None:
        run = self._recorder.run_of(event.member)
        for period in run.held.values():
            _close(period, number, event.time, "killed")
        run.held.clear()

    def _ended(self, number: int, event: Ended) -> None:
        run = self._recorder.run_of(event.member)
        since = event.time if run.closing is None else run.closing[1]
        in_time = event.time - since < run.opening.close_timeout
        for tp, period in run.held.items():
            # After its close timeout, the member may end without a callback.
            if in_time:
                text = f"{run.name} ended without revoking {tp}"
                self._recorder.report("S2", event, text, period.began_by, number)
            _close(period, number, event.time, "closed")
        run.held.clear()

    def _delivered(self, number: int, event: Delivered) -> None:
        self._used(number, event, f"{event.member} delivers {event.partition}@{event.offset}")

    def _worked(self, number: int, event: Worked) -> None:
        # When a process resumes, it may work until it notices, and its scope is cancelled.
        if event.time > self._recorder.run_of(event.member).scopes_end_at:
            self._used(number, event, f"{event.member} works on {event.partition}")

    def _used(self, number: int, event: Delivered | Worked, what: str) -> None:
        """Check that the member owns the partition and is not revoking it (S9), and that no other
        member has owned it since (S1)."""
        tp = event.partition
        run = self._recorder.run_of(event.member)
        period = run.held.get(tp)
        if period is None or period.revoking_by is not None:
            last = run.periods.get(tp)
            if last is None:
                self._recorder.report(
                    "S9", event, f"{what}, a partition that it never owned", number
                )
            elif last.revoking_by is not None and not last.end_reason:
                text = f"{what} while the partition is being revoked"
                self._recorder.report("S9", event, text, last.revoking_by, number)
            else:
                text = f"{what}, a partition that it no longer owns ({last.end_reason})"
                self._recorder.report("S9", event, text, last.ended_by, number)
            return
        log = self._recorder.log(tp)
        if (
            isinstance(event, Delivered)
            and period.began_by < log.deleted_by
            and log.has_lost(event.offset, event.sequence)
        ):
            return  # a record of the deleted topic, which the owner in the new one does not read
        if log.current is not None and log.current is not period:
            self._check_second_owner(number, event, period, log.current, what)

    def _check_second_owner(
        self,
        number: int,
        event: Delivered | Worked,
        period: OwnershipPeriod,
        current: OwnershipPeriod,
        what: str,
    ) -> None:
        run = period.run
        if run.opening.rebalance_timeout < run.opening.session_timeout:
            return
        if _same_instance(run, current.run) or self._recorder.is_replaced(run):
            return
        text = f"{what}, which {current.run.name} owns now"
        self._recorder.report("S1", event, text, period.began_by, current.began_by, number)

    def _sent(self, number: int, event: Sent) -> None:
        if not (is_join(event) or is_leave(event)):
            return
        run = self._recorder.run_of(event.member)
        if event.api == "JoinGroup" and run.opening.instance is not None:
            self._recorder.instances[run.opening.instance] = run
        if run.opening.shards and _has_lost_membership(run, event.time):
            return  # a member of shards rejoins while its application still ends its work
        for tp, period in run.held.items():
            if period.revoking_by is not None and not period.membership_was_lost:
                text = f"{run.name} sends {event.api} while {tp} is being revoked"
                self._recorder.report("S2", event, text, period.revoking_by, number)
        if event.api == "JoinGroup":
            self._check_owned(number, event, run)

    def _check_owned(self, number: int, event: Sent, run: MemberRun) -> None:
        """Check the owned partitions that a join reports. If one is missing, it is assigned to
        another member too soon; if one is added, no member gets it."""
        claimed = event.owned or ()
        for tp, period in run.held.items():
            if period.revoking_by is None and not (run.opening.cooperative and tp in claimed):
                text = f"{run.name} joins without having revoked {tp}"
                self._recorder.report("S2", event, text, period.began_by, number)
        for tp in claimed:
            if tp not in run.held:
                last = run.periods.get(tp)
                if (
                    last is not None
                    and event.issued_at <= last.ended_at + self._recorder.notice_delay
                ):
                    continue  # the member owned it when it issued the join
                text = f"{run.name} reports {tp} as owned, but does not own it"
                self._recorder.report(
                    "S2", event, text, -1 if last is None else last.ended_by, number
                )


def _close(period: OwnershipPeriod, number: int, time: float, how: str) -> None:
    period.end_reason, period.ended_by, period.ended_at = how, number, time


def _is_late(period: OwnershipPeriod, current: OwnershipPeriod | None) -> bool:
    """Whether the assignment is of an older generation than the current owner's: its member was
    frozen."""
    return current is not None and 0 <= period.generation < current.generation


def _has_lost_membership(run: MemberRun, now: float) -> bool:
    """Whether the membership has ended, or its lease has expired."""
    return run.membership_end is not None or now >= run.lease_expires_at


def _same_instance(one: MemberRun, other: MemberRun) -> bool:
    """Whether these are runs of the same static member: the later one replaces the earlier one,
    also in its generation."""
    return one.opening.instance is not None and one.opening.instance == other.opening.instance

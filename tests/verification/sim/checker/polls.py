"""When the application polls, and when a member leaves because it does not: L9.

L2 checks that it leaves in time, and S10 that nothing else ends its ownership.
"""

from __future__ import annotations

import attrs

from ..events import (
    Absent,
    Assigned,
    Away,
    Cancelling,
    Committed,
    Committing,
    Delivered,
    Lost,
    OfMember,
    Polling,
    Processed,
    Raised,
    Revoked,
    Revoking,
    Sent,
)
from .recorder import Handlers, MemberRun, Recorder, is_join, is_leave, is_release


class PollClocks:
    """Keeps the poll clocks, from what the applications do."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._commits: dict[str, int] = {}
        """Member -> the token of its application's unfinished commit of all processed records."""
        self.handlers: Handlers = {
            Assigned: self._assigned,
            Delivered: self._delivered,
            Processed: self._processed,
            Polling: self._polling,
            Absent: self._left_client,
            Cancelling: self._left_client,
            Away: self._works,
            Committing: self._committing,
            Committed: self._committed,
            Raised: self._raised,
            Sent: self._sent,
            Revoking: self._check,
            Revoked: self._check,
            Lost: self._check,
        }

    def _check(self, number: int, event: OfMember) -> None:
        """Record whether the application has not polled for longer than `max_poll_interval`."""
        run = self._recorder.run_of(event.member)
        clock = run.polls
        if clock.waiting_by is not None:
            return
        # It may have polled in the instant in which the interval ended, just too late.
        since = clock.polled_before if clock.polled_at == event.time else clock.polled_at
        if event.time - since > run.opening.max_poll_interval - 1e-6:
            clock.expired = True

    def _sent(self, number: int, event: Sent) -> None:
        run = self._recorder.run_of(event.member)
        if is_leave(event) and not is_release(run, event):
            run.polls.had_partitions = False

    def _assigned(self, number: int, event: Assigned) -> None:
        run = self._recorder.run_of(event.member)
        if not run.polls.had_partitions:
            run.polls.polled_at = event.time  # it had nothing to poll for
        run.polls.had_partitions = bool(run.held)

    def _delivered(self, number: int, event: Delivered) -> None:
        clock = self._recorder.run_of(event.member).polls
        clock.polled_at = clock.delivered_at = event.time
        clock.unprocessed += 1
        clock.waiting_by = None

    def _processed(self, number: int, event: Processed) -> None:
        """After the last of the records that it got, it asks for more."""
        run = self._recorder.run_of(event.member)
        clock = run.polls
        if run.held:
            self._check(number, event)
        clock.processed_at = event.time
        clock.unprocessed = max(0, clock.unprocessed - 1)
        if not clock.unprocessed and event.time > clock.polled_at:
            clock.polled_before, clock.polled_at = clock.polled_at, event.time

    def _polling(self, number: int, event: Polling) -> None:
        run = self._recorder.run_of(event.member)
        if run.held:
            self._check(number, event)
        run.polls.polled_at, run.polls.waiting_by = event.time, number

    def _left_client(self, number: int, event: Absent | Cancelling) -> None:
        clock = self._recorder.run_of(event.member).polls
        if clock.waiting_by is not None:
            clock.polled_at, clock.waiting_by = event.time, None

    def _works(self, number: int, event: Away | Committing) -> None:
        """It does other work instead of asking for the next record."""
        clock = self._recorder.run_of(event.member).polls
        clock.waiting_by = None
        if clock.polled_at == event.time:
            clock.polled_at = clock.delivered_at

    def _committing(self, number: int, event: Committing) -> None:
        if event.offsets is None:
            self._works(number, event)
            self._commits[event.member] = event.token

    def _committed(self, number: int, event: Committed) -> None:
        if self._commits.get(event.member) == event.token:
            del self._commits[event.member]
            run = self._recorder.run_of(event.member)
            if run.held:
                self._check(number, event)
            run.polls.polled_at = event.time

    def _raised(self, number: int, event: Raised) -> None:
        self._recorder.run_of(event.member).polls.waiting_by = None


@attrs.define(eq=False)
class _Membership:
    joined_by: int = -1
    """The event of its last join."""
    released: bool = False
    """Whether it has lost or revoked partitions since then."""


class PollTimer:
    """The rule of the poll timer."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._memberships: dict[MemberRun, _Membership] = {}
        self.handlers: Handlers = {
            Lost: self._released,
            Revoked: self._released,
            Sent: self._sent,
        }

    def _of(self, event: OfMember) -> tuple[MemberRun, _Membership]:
        run = self._recorder.run_of(event.member)
        return run, self._memberships.setdefault(run, _Membership())

    def _released(self, number: int, event: Lost | Revoked) -> None:
        _, membership = self._of(event)
        membership.released = membership.released or bool(event.partitions)

    def _sent(self, number: int, event: Sent) -> None:
        run, membership = self._of(event)
        if is_join(event):
            membership.joined_by, membership.released = number, False
            run.polls.expired = False
        elif is_leave(event) and run.closing is None and not run.opening.shards:
            self._check_leave(number, event, run, membership)

    def _check_leave(
        self, number: int, event: Sent, run: MemberRun, membership: _Membership
    ) -> None:
        """A member that neither closes nor has failed leaves only because of the poll timer."""
        failed = max(run.troubled_by, run.raised_by) > membership.joined_by
        if failed or is_release(run, event) or self._recorder.fails_by_assignment(run, event.time):
            return
        waiting_by = None if run.polls.expired else run.polls.waiting_by
        if waiting_by is not None and run.thawed_at < event.time:
            text = f"{run.name} leaves the group while its application polls"
            self._recorder.report("L9", event, text, waiting_by, number)
        elif not (run.held or membership.released):
            text = f"{run.name} leaves the group for the poll timer without owning partitions"
            self._recorder.report("L9", event, text, membership.joined_by, number)

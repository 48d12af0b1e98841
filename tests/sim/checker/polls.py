"""When a member leaves because its application does not poll: L9.

L2 checks that it leaves in time, and S10 that nothing else ends its ownership.
"""

from __future__ import annotations

import math

import attrs

from ..events import (
    Absent,
    Away,
    Cancelling,
    Committing,
    Delivered,
    Event,
    Lost,
    OfMember,
    Polling,
    Raised,
    Revoked,
    Sent,
)
from .recorder import Handlers, MemberRun, Recorder, joins, leaves


@attrs.define(eq=False)
class _Polls:
    polling: int | None = None
    """The event since which the application waits in the client; None while it does not, and if it
    came back after `max_poll_interval`: the member may be leaving already, after it has completed a
    revocation."""
    left_at: float = math.inf
    """When the application's last call of the client ended."""
    joined_by: int = -1
    gave_up_some: bool = False
    """Whether it has lost or revoked partitions since it joined."""
    failed_by: int = -1
    """The last event in which a call of the client raised."""


class PollTimer:
    """The rule of the poll timer."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._members: dict[MemberRun, _Polls] = {}
        self.handlers: Handlers = {
            Polling: self._polling,
            Absent: self._busy,
            Away: self._busy,
            Cancelling: self._busy,
            Committing: self._busy,
            Delivered: self._busy,
            Raised: self._raised,
            Lost: self._gave_up,
            Revoked: self._gave_up,
            Sent: self._sent,
        }

    def _of(self, event: OfMember) -> tuple[MemberRun, _Polls]:
        run = self._recorder.run_of(event.member)
        return run, self._members.setdefault(run, _Polls())

    def _polling(self, number: int, event: Polling) -> None:
        run, polls = self._of(event)
        is_late = event.time - polls.left_at > run.opening.max_poll_interval - 1e-6
        polls.polling = None if is_late else number

    def _busy(self, number: int, event: Event) -> None:
        assert isinstance(event, OfMember)
        polls = self._of(event)[1]
        polls.polling = None
        if not isinstance(event, Committing):  # a commit is not a poll
            polls.left_at = event.time

    def _raised(self, number: int, event: Raised) -> None:
        polls = self._of(event)[1]
        polls.polling, polls.failed_by = None, number

    def _gave_up(self, number: int, event: Lost | Revoked) -> None:
        polls = self._of(event)[1]
        polls.gave_up_some = polls.gave_up_some or bool(event.partitions)

    def _sent(self, number: int, event: Sent) -> None:
        run, polls = self._of(event)
        if joins(event):
            polls.joined_by, polls.gave_up_some = number, False
        if not leaves(event) or run.closing is not None or run.opening.shards:
            return
        failed = max(run.troubled, polls.failed_by) > polls.joined_by
        if failed or event.time < run.misassigned_until:
            return  # the member failed, and its application is notified next
        if polls.polling is not None and run.thawed_at < event.time:
            text = f"{run.name} leaves the group while its application polls"
            self._recorder.report("L9", event, text, polls.polling, number)
        elif not (run.held or polls.gave_up_some):
            text = f"{run.name} leaves the group, and owned nothing to be polled for"
            self._recorder.report("L9", event, text, polls.joined_by, number)

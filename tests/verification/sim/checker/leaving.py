"""How memberships end, and how they do not begin: L12 and L13."""

from __future__ import annotations

import attrs

from ..events import (
    Ended,
    HeldOff,
    Missed,
    Responded,
    Sent,
    StillCounted,
)
from .recorder import CONSUMER_HEARTBEAT, Handlers, MemberRun, Recorder, is_join, is_leave

_ID = 2.0
"""Seconds for which a member waits for the member id that its first join asked for."""

_ALL = 0.9
"""A member that cannot leave tries for this share of its close timeout at least."""

_SLACK = 0.1

_FORGETS = frozenset(("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "GROUP_ID_NOT_FOUND"))
"""Errors by which a coordinator tells that it does not count a member id. It tells the same when it
refuses a join of KIP-848, for which it assigns no id."""

_PASSES = frozenset(
    (
        "NONE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REBALANCE_IN_PROGRESS",
        "REQUEST_TIMED_OUT",
    )
)
"""Answers after which a member tries again, or need not."""


@attrs.define(eq=False)
class _Membership:
    ids: set[str] = attrs.field(factory=set)
    """The ids that either of it and the coordinator has sent to the other, and that are
    not known to have ended."""
    is_refused: bool = False
    """Whether a broker has refused to let it leave, or to name its coordinator since its last join,
    with an error that no retry can fix."""
    first_join: int | None = None
    """The connection of its last join without an id, while that is unanswered."""
    joins: set[tuple[int, int]] = attrs.field(factory=set)
    """Connection and correlation id of its unanswered joins."""
    missed_by: int = -1
    """The response with an id for which it did not wait."""
    ended_at: float = 0.0
    held_off_by: int = -1
    """The last refusal of a static member because of its own join; -1 if it has released that
    since."""


class Leaving:
    """The rules of leaving."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._memberships: dict[MemberRun, _Membership] = {}
        self.handlers: Handlers = {
            Sent: self._sent,
            Responded: self._answered,
            Missed: self._missed,
            HeldOff: self._held_off,
            Ended: self._ended,
            StillCounted: self._still_counted,
        }

    def _of(self, name: str) -> tuple[MemberRun, _Membership]:
        run = self._recorder.run_of(name)
        return run, self._memberships.setdefault(run, _Membership())

    def _sent(self, number: int, event: Sent) -> None:
        _, membership = self._of(event.member)
        if is_join(event):
            membership.is_refused = False
            membership.joins.add((event.connection, event.correlation))
            if event.member_id:
                membership.ids.add(event.member_id)
            else:
                # It does not wait for the ids of the joins that this one replaces.
                membership.first_join = event.connection
        elif is_leave(event):
            membership.held_off_by = -1

    def _answered(self, number: int, event: Responded) -> None:
        _, membership = self._of(event.member)
        if event.api == "FindCoordinator" and event.error not in _PASSES:
            membership.is_refused = True
        found = self._recorder.request(event)
        if found is None:
            return
        request = found[1]
        if is_join(request):
            if membership.first_join == event.connection:
                membership.first_join = None
            membership.joins.discard((event.connection, event.correlation))
            if event.member_id:
                membership.ids.add(event.member_id)
            if event.error == "NONE":
                membership.held_off_by = -1
                membership.joins.clear()
        is_refused = event.api == CONSUMER_HEARTBEAT and is_join(request)
        if event.error in _FORGETS or (is_refused and event.error not in _PASSES):
            membership.ids.discard(request.member_id)
        if is_leave(request):
            membership.is_refused = event.error not in _PASSES
            if event.error == "NONE":
                # A coordinator that fails before it has stored the next generation may count the
                # member again, which cannot know that.
                membership.ids.discard(request.member_id)

    def _missed(self, number: int, event: Missed) -> None:
        run, membership = self._of(event.member)
        if event.connection != membership.first_join or run.closing is None:
            return
        if event.time - run.closing[1] < _ID:
            membership.missed_by = number

    # ------------------------------------------------------------ L12

    def _ended(self, number: int, event: Ended) -> None:
        self._of(event.member)[1].ended_at = event.time

    def _still_counted(self, number: int, event: StillCounted) -> None:
        """L12: a member that closes has left, or has tried for all of its close timeout."""
        run, membership = self._of(event.member)
        if run.closing is None or run.opening.instance is not None or membership.is_refused:
            return
        by, at = run.closing
        # Its timeout expires while the process is frozen, too: the clock of its loop goes on.
        took = membership.ended_at - at
        if took >= _ALL * run.opening.close_timeout - _SLACK:
            return
        if known := sorted(membership.ids.intersection(event.ids)):
            text = f"{run.name} has closed in {took:.2f} s, and its group counts {known[0]} on"
            self._recorder.report("L12", event, text, by, number)
        elif membership.missed_by >= 0:
            text = f"{run.name} has closed in {took:.2f} s, and did not wait for its member id"
            self._recorder.report("L12", event, text, by, membership.missed_by, number)

    # ------------------------------------------------------------ L13

    def _held_off(self, number: int, event: HeldOff) -> None:
        """L13: a static member releases its own join whose response it has not got."""
        run, membership = self._of(event.member)
        if len(membership.joins) < 2:
            return  # it is held off by a join that was answered: an error has reset its epoch
        if membership.held_off_by >= 0:
            text = f"{run.name} joins again, and has not released its earlier join"
            self._recorder.report("L13", event, text, membership.held_off_by, number)
        membership.held_off_by = number

"""The pass: each event goes to the rules that handle its type, in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import attrs

from ..events import (
    Answered,
    Closing,
    Ended,
    Event,
    Formed,
    Frozen,
    Healed,
    Killed,
    Misassigning,
    Opening,
    Sent,
    Thawed,
)
from .epochs import Epochs
from .figures import Counting, Figures
from .gaps import Gaps
from .leading import Leading
from .liveness import Liveness
from .membership import Membership
from .offsets import Offsets
from .ownership import Ownership
from .pace import Pace
from .pauses import Pauses
from .polls import PollTimer
from .recorder import BEATS, Recorder, Violation
from .revocations import Revocations
from .topics import Topics

_TIMED = frozenset(("L1", "L2", "L3"))
"""Asserted in virtual time only: on a real machine, other processes may delay the member."""

_QUIETLY = ("NONE", "REBALANCE_IN_PROGRESS", "MEMBER_ID_REQUIRED")
"""Responses of a healthy coordinator to a healthy member."""


_LATE_ASSIGNMENT = 10.0
"""Seconds that a leader's SyncGroup may be in transit."""

_MEMBERSHIP = frozenset(("JoinGroup", "SyncGroup", "Heartbeat", BEATS))
"""Requests whose responses confirm the membership."""


@attrs.frozen
class CheckResult:
    """The violations and figures of one run."""

    violations: tuple[Violation, ...]
    """The violations, in the order in which they were found."""
    figures: Figures

    @property
    def clean(self) -> bool:
        """Whether there are no violations and no lost records."""
        return not self.violations and not self.figures.lost


def find_violations(events: Iterable[Event], *, virtual: bool = True) -> list[Violation]:
    """Return the violations among the events of one run; see `examine`."""
    return list(examine(events, virtual=virtual).violations)


def examine(events: Iterable[Event], *, virtual: bool = True) -> CheckResult:
    """Check the events of one run in one pass. O(events), and a byte for each offset of the logs.

    L1 to L3 are asserted only in `virtual` time; otherwise they are only counted in the figures.
    """
    recorder = Recorder(virtual=virtual)
    gaps, pace, liveness = Gaps(recorder), Pace(recorder), Liveness(recorder)
    counting = Counting(recorder, gaps, pace, liveness)
    families = (
        _Course(recorder),
        gaps,  # before the event changes the held partitions and the delivered offsets
        Revocations(recorder),  # before the event ends ownership
        Ownership(recorder),
        Pauses(recorder),
        Offsets(recorder),
        Topics(recorder),
        Leading(recorder),
        PollTimer(recorder),
        Membership(recorder),
        Epochs(recorder),
        pace,
        liveness,
        counting,
        _After(recorder),
    )
    handlers: dict[type[Event], list[Callable[..., None]]] = {}
    for family in families:
        for kind, handler in family.handlers.items():
            handlers.setdefault(kind, []).append(handler)
    for number, event in enumerate(events):
        for handler in handlers.get(type(event), ()):
            handler(number, event)
    asserted = [v for v in recorder.violations if virtual or v.invariant not in _TIMED]
    return CheckResult(tuple(asserted), counting.figures())


class _Course:
    """Tracks processes and unanswered requests. Runs before all other rules."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.handlers = {
            Opening: self._opening,
            Closing: self._closing,
            Frozen: self._frozen,
            Thawed: self._thawed,
            Healed: self._healed,
            Misassigning: self._misassigning,
            Formed: self._formed,
            Sent: self._sent,
            Answered: self._answered,
        }

    def _opening(self, number: int, event: Opening) -> None:
        run = self._recorder.run_of(event.member)
        run.opening, run.opened = event, True

    def _closing(self, number: int, event: Closing) -> None:
        run = self._recorder.run_of(event.member)
        if run.closing is None:
            run.closing = (number, event.time)

    def _frozen(self, number: int, event: Frozen) -> None:
        self._recorder.run_of(event.member).frozen = True

    def _thawed(self, number: int, event: Thawed) -> None:
        run = self._recorder.run_of(event.member)
        run.frozen, run.thawed_at = False, event.time

    def _misassigning(self, number: int, event: Misassigning) -> None:
        # The coordinator may still receive assignments that were computed before.
        until = math.inf if event.active else event.time + _LATE_ASSIGNMENT
        self._recorder.run_of(event.member).misassigned_until = until

    def _formed(self, number: int, event: Formed) -> None:
        self._recorder.misassigned = frozenset(
            member
            for member, assigned in event.assignment.items()
            if any(tp.topic not in event.subscriptions.get(member, ()) for tp in assigned)
        )

    def _healed(self, number: int, event: Healed) -> None:
        self._recorder.healed = event.time

    def _sent(self, number: int, event: Sent) -> None:
        run = self._recorder.run_of(event.member)
        run.wired = True
        run.assigned_to = run.assigned_to or event.api == BEATS
        run.in_flight[event.connection, event.correlation] = (number, event)

    def _answered(self, number: int, event: Answered) -> None:
        if event.api != "Fetch" and event.error not in _QUIETLY:
            self._recorder.run_of(event.member).troubled = number
        if event.api == "FindCoordinator":
            self._recorder.run_of(event.member).found_by = number
        elif event.api in _MEMBERSHIP and event.error in _QUIETLY:
            run = self._recorder.run_of(event.member)
            if (request := self._recorder.request(event)) is not None:
                run.sure_until = request[1].issued_at + run.opening.session_timeout


class _After:
    """Drops the state that the other rules still need for this event. Runs last."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.handlers = {Answered: self._answered, Killed: self._over, Ended: self._over}

    def _answered(self, number: int, event: Answered) -> None:
        in_flight = self._recorder.run_of(event.member).in_flight
        in_flight.pop((event.connection, event.correlation), None)

    def _over(self, number: int, event: Killed | Ended) -> None:
        run = self._recorder.run_of(event.member)
        run.over = True
        run.in_flight.clear()

"""Run the checker: pass each event to the rules that handle its type, in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import attrs

from ..events import (
    Closing,
    Ended,
    Event,
    Formed,
    Frozen,
    Healed,
    Killed,
    Misassigning,
    Opening,
    Raised,
    Responded,
    Sent,
    Subscribing,
    Thawed,
)
from .epochs import ENDS_MEMBERSHIP, Epochs
from .figures import Counting, Figures
from .gaps import Gaps
from .identity import Identity
from .leading import Leading
from .leases import Leases
from .leaving import Leaving
from .liveness import Liveness
from .logins import Logins
from .membership import Membership
from .offsets import Offsets
from .ownership import Ownership
from .pace import Pace
from .pauses import Pauses
from .polls import PollClocks, PollTimer
from .recorder import CONSUMER_HEARTBEAT, MEMBERSHIP, MemberRun, Recorder, Violation
from .refusals import Refused
from .revocations import Revocations
from .second_opinions import SecondOpinions
from .silence import Silence
from .threads import Threads

_TIMED = frozenset(("L1", "L2", "L3", "S27"))
"""Asserted in virtual time only: on a real machine, other processes may delay the member."""

_EXPECTED_ERRORS = ("NONE", "REBALANCE_IN_PROGRESS", "MEMBER_ID_REQUIRED")
"""Responses of a healthy coordinator to a healthy member."""

_SUSPEND_NOTICE = 0.1
"""Seconds after which a process notices that it was suspended: no timer ran out meanwhile."""

_LATE_ASSIGNMENT = 10.0
"""Seconds that a leader's SyncGroup may be in transit."""


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
    """Check the events of one run in one pass: the time is linear in the events, the memory in the
    records.

    L1 to L3 and S27 are asserted only in `virtual` time; otherwise L1 to L3 are only counted in the
    figures.
    """
    recorder = Recorder(virtual=virtual)
    gaps, pace, liveness = Gaps(recorder), Pace(recorder), Liveness(recorder)
    counting = Counting(recorder, gaps, pace, liveness)
    families = (
        _Facts(recorder),
        gaps,  # before the event changes the held partitions and the delivered offsets
        Revocations(recorder),  # before the event ends ownership
        Leases(recorder),
        Ownership(recorder),  # before Pauses, Offsets and Membership, which read what it changes
        Pauses(recorder),
        Offsets(recorder),
        Identity(recorder),
        Refused(recorder),
        SecondOpinions(recorder),
        Leading(recorder),
        PollClocks(recorder),
        Membership(recorder),
        PollTimer(recorder),  # after `Membership` has read whether the member may need a new id
        Epochs(recorder),
        pace,
        liveness,
        Leaving(recorder),
        Silence(recorder),
        Logins(recorder),
        Threads(recorder),
        counting,
        _Cleanup(recorder),
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


class _Facts:
    """Keeps the state of processes, requests in flight, assignments and leases. Runs before all
    other rules."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.handlers = {
            Opening: self._opening,
            Closing: self._closing,
            Frozen: self._frozen,
            Thawed: self._thawed,
            Healed: self._healed,
            Raised: self._raised,
            Misassigning: self._misassigning,
            Formed: self._formed,
            Subscribing: self._subscribing,
            Sent: self._sent,
            Responded: self._answered,
        }

    def _opening(self, number: int, event: Opening) -> None:
        run = self._recorder.run_of(event.member)
        run.opening, run.has_opening, run.opened_by = event, True, number

    def _closing(self, number: int, event: Closing) -> None:
        run = self._recorder.run_of(event.member)
        if run.closing is None:
            run.closing = (number, event.time)

    def _frozen(self, number: int, event: Frozen) -> None:
        self._recorder.run_of(event.member).is_suspended = event.suspended

    def _thawed(self, number: int, event: Thawed) -> None:
        run = self._recorder.run_of(event.member)
        run.thawed_at = event.time
        run.scopes_end_at = event.time + _SUSPEND_NOTICE * run.is_suspended

    def _misassigning(self, number: int, event: Misassigning) -> None:
        # The coordinator may still receive assignments that were computed before.
        until = math.inf if event.active else event.time + _LATE_ASSIGNMENT
        self._recorder.run_of(event.member).misassigns_until = until

    def _formed(self, number: int, event: Formed) -> None:
        self._recorder.misassigned = frozenset(
            member
            for member, assigned in event.assignment.items()
            if any(tp.topic not in event.subscriptions.get(member, ()) for tp in assigned)
        )

    def _subscribing(self, number: int, event: Subscribing) -> None:
        self._recorder.run_of(event.member).topics = event.topics

    def _healed(self, number: int, event: Healed) -> None:
        self._recorder.healed_at = event.time

    def _raised(self, number: int, event: Raised) -> None:
        self._recorder.run_of(event.member).raised_by = number

    def _sent(self, number: int, event: Sent) -> None:
        run = self._recorder.run_of(event.member)
        run.has_wire_events = True
        run.uses_consumer_protocol = run.uses_consumer_protocol or event.api == CONSUMER_HEARTBEAT
        run.in_flight[event.connection, event.correlation] = (number, event)
        if event.api == "JoinGroup":
            run.target = None
        elif event.api == CONSUMER_HEARTBEAT and event.generation >= 0:
            run.is_joining = event.generation == 0

    def _answered(self, number: int, event: Responded) -> None:
        run = self._recorder.run_of(event.member)
        if event.api != "Fetch" and event.error not in _EXPECTED_ERRORS:
            run.troubled_by = number
        found = self._recorder.request(event) if event.api in MEMBERSHIP else None
        if found is not None and event.api == CONSUMER_HEARTBEAT:
            if event.error == "NONE":
                run.is_joining = run.is_joining and found[1].generation != 0
                _acknowledge(run, found[1])
            elif event.error in ENDS_MEMBERSHIP:
                run.is_joining = True
        if event.assigned is not None:
            run.target = frozenset(event.assigned)
        if event.api == "JoinGroup" and event.error == "NONE":
            run.is_syncing, run.joined_after = True, run.rebalancing_at
            if found is not None:
                run.joined_after = max(run.rebalancing_at, found[1].issued_at)
        elif event.api == "SyncGroup" and event.error in ("NONE", "REBALANCE_IN_PROGRESS"):
            run.is_syncing = False
        if found is not None:
            _extend_lease(run, event, found[1])


def _acknowledge(run: MemberRun, request: Sent) -> None:
    """Note a heartbeat of KIP-848 that the coordinator has answered. If it reports the revocation
    for which the coordinator waited, another that the response demands began after the acknowledged
    heartbeat before."""
    owned, target = request.owned, run.target
    reports_it = owned is not None and target is not None and target.issuperset(owned)
    if run.owes_revocation and reports_it:
        run.stable_at = run.acknowledged_at
    run.acknowledged_at = request.issued_at


def _extend_lease(run: MemberRun, event: Responded, request: Sent) -> None:
    """Extend the lease of the member's ownership after an acknowledged heartbeat.

    The coordinator may answer JoinGroup and SyncGroup without beginning a session, so these only
    show that no rebalance waits for the member.

    A group waits no longer than the rebalance timeout for a member that must rejoin, then as long
    for its SyncGroup, or for a report that it has revoked partitions, even if a request or response
    was lost.
    """
    must_rejoin = event.api == "Heartbeat" and event.error == "REBALANCE_IN_PROGRESS"
    if event.error != "NONE" and not must_rejoin:
        return
    if must_rejoin:
        run.rebalancing_at = max(run.rebalancing_at, request.issued_at)
    if must_rejoin and run.is_syncing:
        return  # brokers before 2.7 answer so without beginning a session (KAFKA-10134)
    if event.api == CONSUMER_HEARTBEAT:
        if run.target is not None and run.held.keys() - run.target:
            run.owes_revocation = True
        elif request.owned is not None:
            run.owes_revocation = False
    waits_since = math.inf
    if must_rejoin or run.owes_revocation:
        waits_since = run.stable_at
    else:
        run.stable_at = request.issued_at
        if event.api == "Heartbeat" and run.is_syncing:
            waits_since = run.joined_after
    expires_at = min(
        request.issued_at + run.opening.session_timeout, waits_since + run.opening.rebalance_timeout
    )
    if event.api in ("JoinGroup", "SyncGroup"):
        return
    if event.time > run.lease_expires_at:
        run.lease_since = event.time
    run.lease_expires_at = max(run.lease_expires_at, expires_at)


class _Cleanup:
    """Drops the state that the other rules still need for this event. Runs last."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.handlers = {Responded: self._answered, Killed: self._ended, Ended: self._ended}

    def _answered(self, number: int, event: Responded) -> None:
        in_flight = self._recorder.run_of(event.member).in_flight
        in_flight.pop((event.connection, event.correlation), None)

    def _ended(self, number: int, event: Killed | Ended) -> None:
        run = self._recorder.run_of(event.member)
        run.has_ended = True
        run.in_flight.clear()

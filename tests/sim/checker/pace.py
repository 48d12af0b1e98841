"""How often a member asks: L6. Not in a hot loop, not in step with the others, and not while the
broker has asked for silence (KIP-219)."""

from __future__ import annotations

from collections import deque

import attrs

from ..events import Answered, Sent
from .recorder import BEATS, Handlers, MemberRun, Recorder, leaves

_RATE = 20
"""Requests in a second."""
_ALIKE = 3
"""So many pauses of exactly the same length are no accident."""
_SHORT = 0.05
"""Seconds: what is shorter is no pause."""
_HASTY = 3
"""So many retries without a pause are no accident: once, another's request may come by."""

_EARLY = 1e-6
"""Seconds: clocks that are added to differ by less."""

_DRIVEN = frozenset(("Fetch", "OffsetCommit"))
"""Requests that come as often as records and applications do, when they go well."""

_RETRIED = frozenset(
    (
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REQUEST_TIMED_OUT",
        "UNSTABLE_OFFSET_COMMIT",
    )
)
"""Errors after which the same request is sent again after a back-off."""
_PAUSED = frozenset((BEATS, "JoinGroup", "OffsetCommit", "OffsetFetch", "FindCoordinator"))
"""Requests that are retried after a pause of their own."""
_REJOINED = frozenset(("JoinGroup", "SyncGroup"))
"""Requests after whose refusal a member that holds nothing pauses before it joins again."""
_AT_ONCE = frozenset(("MEMBER_ID_REQUIRED", "FENCED_INSTANCE_ID"))
"""Refusals of a join that are answered at once, or by no other join."""
_ALONE = frozenset((BEATS, "JoinGroup", "OffsetCommit"))
"""Of these one is sent at a time, so that the next is the retry."""


@attrs.define(eq=False)
class _Steps:
    """What a member asked lately."""

    sent: dict[str, deque[tuple[float, int]]] = attrs.field(factory=dict)
    """Kind of request -> when and by which event those of the last second left."""
    refused: dict[str, deque[tuple[float, int]]] = attrs.field(factory=dict)
    """The same of those that were refused, in a row."""
    hasty: int = 0
    """How often it has sent again at once what was refused."""
    turned_away_at: float | None = None
    """When its JoinGroup or SyncGroup was refused, if it has not joined again."""
    refused_at: dict[str, float] = attrs.field(factory=dict)
    """Kind of request -> when it was refused by what passes, and was not sent since."""
    silent: dict[int, tuple[float, float, int]] = attrs.field(factory=dict)
    """Broker -> when and until when it asked for silence, and by which event. Where brokers are not
    known it is each connection, with a minus."""


class Pace:
    """The rules of back-off."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._steps: dict[MemberRun, _Steps] = {}
        self._pauses: dict[float, int] = {}
        """Length of a pause before a retry, to the nanosecond -> how many there were, of all."""
        self.requests_per_second = 0
        self.handlers: Handlers = {Sent: self._sent, Answered: self._answered}

    def _of(self, name: str) -> tuple[MemberRun, _Steps]:
        run = self._recorder.run_of(name)
        steps = self._steps.get(run)
        if steps is None:
            steps = self._steps[run] = _Steps()
        return run, steps

    def _sent(self, number: int, event: Sent) -> None:
        run, steps = self._of(event.member)
        if steps.silent:
            self._check_silent(number, event, run, steps)
        if event.api not in _DRIVEN:
            times = steps.sent.setdefault(event.api, deque())
            self._count(number, event, run, times, "")
            self.requests_per_second = max(self.requests_per_second, len(times))
        if event.api == "JoinGroup":
            self._check_rejoin(number, event, run, steps)
        refused_at = steps.refused_at.pop(event.api, None)
        if refused_at is not None and not leaves(event):
            pause = event.time - refused_at
            self._paused(number, event, run, pause)
            if event.api in _ALONE and pause < _SHORT and run.thawed_at < refused_at:
                self._hasten(number, event, run, steps)

    def _check_rejoin(self, number: int, event: Sent, run: MemberRun, steps: _Steps) -> None:
        """Whatever a join or its sync was refused with, the next join comes after a pause."""
        at, steps.turned_away_at = steps.turned_away_at, None
        counted = "JoinGroup" in steps.refused_at
        if at is not None and not counted and run.thawed_at < at and event.time - at < _SHORT:
            self._hasten(number, event, run, steps)

    def _hasten(self, number: int, event: Sent, run: MemberRun, steps: _Steps) -> None:
        steps.hasty += 1
        if steps.hasty == _HASTY:
            text = f"{run.name} has sent at once {_HASTY} times what was just refused"
            self._recorder.report("L6", event, text, number)

    def _check_silent(self, number: int, event: Sent, run: MemberRun, steps: _Steps) -> None:
        at, until, by = steps.silent.get(event.node or -event.connection, (0.0, 0.0, -1))
        # What was sent already is on its way; and a new connection has to say hello.
        asked = event.time > max(at, run.thawed_at) + self._recorder.race
        if asked and event.time < until - _EARLY and event.api != "ApiVersions":
            left = until - event.time
            text = f"{run.name} sends {event.api}, to a broker that wants silence for {left:.2f} s"
            self._recorder.report("L6", event, text, by, number)

    def _answered(self, number: int, event: Answered) -> None:
        run, steps = self._of(event.member)
        if event.throttle > 0:
            broker, until = event.node or -event.connection, event.time + event.throttle
            if until > steps.silent.get(broker, (0.0, 0.0, -1))[1]:
                steps.silent[broker] = (event.time, until, number)
                run.muted[broker] = until
        if event.error == "NONE":
            steps.refused.pop(event.api, None)
            return
        refused = event.api == "JoinGroup" or event.error != "REBALANCE_IN_PROGRESS"
        if event.api in _REJOINED and event.error not in _AT_ONCE and refused and not run.held:
            # A sync that another rebalance overtook is repeated at once: the group waits for it.
            steps.turned_away_at = event.time
        if event.error in _RETRIED and event.api in _PAUSED:
            steps.refused_at[event.api] = event.time
        times = steps.refused.setdefault(event.api, deque())
        self._count(number, event, run, times, f", refused with {event.error}")

    def _count(
        self,
        number: int,
        event: Sent | Answered,
        run: MemberRun,
        times: deque[tuple[float, int]],
        how: str,
    ) -> None:
        times.append((event.time, number))
        while times[0][0] <= event.time - 1.0:
            times.popleft()
        # What piled up while the process stood still comes at once.
        if len(times) > _RATE and run.thawed_at < times[0][0]:
            text = f"{run.name} sends {event.api} {len(times)} times in a second{how}"
            self._recorder.report("L6", event, text, times[0][1], number)
            times.clear()

    def _paused(self, number: int, event: Sent, run: MemberRun, pause: float) -> None:
        if not self._recorder.virtual or pause < _SHORT or run.thawed_at > event.time - pause:
            return
        length = round(pause, 9)
        self._pauses[length] = self._pauses.get(length, 0) + 1
        if self._pauses[length] == _ALIKE:
            text = f"{_ALIKE} retries came after a pause of exactly {length} s"
            self._recorder.report("L6", event, text, number)

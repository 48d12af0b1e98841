"""Logins that fail: L15, and how often they are repeated (L6)."""

from __future__ import annotations

import math
from collections import deque

import attrs

from ..events import Assigned, LoggingIn, Raised, Responded
from .recorder import Handlers, MemberRun, Recorder

_ERRORS = ("AuthenticationError", "TlsError")
"""What a call of the client raises for a login."""

_LOGINS = frozenset(("SaslHandshake", "SaslAuthenticate"))

_RECENT = 20.0
"""Seconds after which a refusal no longer explains an error."""

LOGIN_PAUSE = 12.0
"""Seconds after which a client that was refused tries again, if its application polls on."""

_RATE = 20
"""Maximum logins per second."""


@attrs.define(eq=False)
class _Logins:
    has_started: bool = False
    """Whether it has had an assignment: before that, a failure may end it."""
    refused: tuple[int, float] = (-1, -math.inf)
    """By which answer, and when, a broker last refused a login."""
    attempted: tuple[int, float] = (-1, -math.inf)
    """By which event, and when, the client last tried to log in."""
    raised_at: float = -math.inf
    """When a call last raised a refusal. Until then the application does not poll on: no attempt is
    due."""
    recent: deque[tuple[float, int]] = attrs.field(factory=deque)


class Logins:
    """The rules of logins."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._logins: dict[MemberRun, _Logins] = {}
        self.handlers: Handlers = {
            Assigned: self._assigned,
            LoggingIn: self._logging_in,
            Responded: self._answered,
            Raised: self._raised,
        }

    def _of(self, name: str) -> tuple[MemberRun, _Logins]:
        run = self._recorder.run_of(name)
        return run, self._logins.setdefault(run, _Logins())

    def _assigned(self, number: int, event: Assigned) -> None:
        self._of(event.member)[1].has_started = True

    def _logging_in(self, number: int, event: LoggingIn) -> None:
        run, logins = self._of(event.member)
        logins.attempted = number, event.time
        logins.recent.append((event.time, number))
        while logins.recent[0][0] <= event.time - 1.0:
            logins.recent.popleft()
        if len(logins.recent) > _RATE and run.thawed_at < logins.recent[0][0]:
            text = f"{run.name} logs in {len(logins.recent)} times in a second"
            self._recorder.report("L6", event, text, logins.recent[0][1], number)
            logins.recent.clear()

    def _answered(self, number: int, event: Responded) -> None:
        if event.api in _LOGINS and event.error != "NONE":
            self._of(event.member)[1].refused = number, event.time

    def _raised(self, number: int, event: Raised) -> None:
        """L15: a call raises only what a broker has refused, and the client tries again."""
        run, logins = self._of(event.member)
        if event.error not in _ERRORS or not logins.has_started:
            return
        refused_by, refused_at = logins.refused
        if self._recorder.elapsed(run, event.time, refused_at) > _RECENT:
            text = f"{run.name} raises {event.error}, and no broker has refused a login"
            self._recorder.report("L15", event, text, refused_by, number)
            return
        attempted_by, attempted_at = logins.attempted
        idle = self._recorder.elapsed(run, event.time, attempted_at)
        is_again, logins.raised_at = logins.raised_at > attempted_at, event.time
        if is_again and idle > LOGIN_PAUSE:
            text = f"{run.name} raises a refused login again, and has not tried for {idle:.1f} s"
            self._recorder.report("L15", event, text, refused_by, attempted_by, number)

"""Connections that went silent: L14."""

from __future__ import annotations

import attrs

from ..events import Committed, Committing, Connecting, Sent, Silenced
from .recorder import Handlers, MemberRun, Recorder

_LEAST_ATTEMPT = 1.0
"""Seconds that an attempt gets, if its call has them: a call with less left, for example after
waiting for the commits before it, has only one."""


@attrs.define(eq=False)
class _Connections:
    """A member's silent connections, and its last commit."""

    silenced: dict[int, int] = attrs.field(factory=dict)
    """Connection -> the event in which it was dropped."""
    tried_by: int = -1
    """The last event in which the member opened a connection, used another one that was silent, or
    asked another broker for the coordinator."""
    calls: dict[int, int] = attrs.field(factory=dict)
    """Token of the application's unfinished commits -> the event in which the call began."""
    commit: tuple[int, Sent] | None = None
    """The last attempt to commit."""
    used_since: float = 0.0
    """When the first of the last attempts on the same connection was sent."""


class Silence:
    """The rule that one connection does not use up a call."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._connections: dict[MemberRun, _Connections] = {}
        self.handlers: Handlers = {
            Silenced: self._silenced,
            Connecting: self._connecting,
            Committing: self._committing,
            Sent: self._sent,
            Committed: self._committed,
        }

    def _of(self, name: str) -> tuple[MemberRun, _Connections]:
        run = self._recorder.run_of(name)
        return run, self._connections.setdefault(run, _Connections())

    def _silenced(self, number: int, event: Silenced) -> None:
        connections = self._of(event.member)[1]
        connections.silenced[event.connection] = number
        if connections.commit is None or connections.commit[1].connection != event.connection:
            connections.tried_by = number

    def _connecting(self, number: int, event: Connecting) -> None:
        self._of(event.member)[1].tried_by = number

    def _committing(self, number: int, event: Committing) -> None:
        self._of(event.member)[1].calls[event.token] = number

    def _sent(self, number: int, event: Sent) -> None:
        connections = self._of(event.member)[1]
        if event.api == "OffsetCommit":
            last = connections.commit
            if last is None or last[1].connection != event.connection:
                connections.used_since = event.time
            connections.commit = number, event
        elif event.api == "FindCoordinator":
            connections.tried_by = number

    def _committed(self, number: int, event: Committed) -> None:
        """L14: while a call waits for a response on a connection that was dropped before, or by the
        attempt itself, its client tries another one."""
        run, connections = self._of(event.member)
        began = connections.calls.pop(event.token, number)
        if event.outcome != "RequestTimeoutError" or connections.commit is None:
            return
        by, attempt = connections.commit
        silenced_by = connections.silenced.get(attempt.connection)
        if silenced_by is None or by < began or connections.tried_by > by:
            return
        if silenced_by > by + 1:
            return  # it was dropped later, while it waited for the response
        if event.time - connections.used_since < _LEAST_ATTEMPT:
            return
        if run.hindered_until < attempt.time:
            waited = event.time - attempt.time
            text = f"{run.name} waits for {waited:.1f} s on one connection that is silent"
            self._recorder.report("L14", event, text, began, silenced_by, by, number)

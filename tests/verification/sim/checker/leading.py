"""The assignments of a leader: S20 and L7."""

from __future__ import annotations

from collections import deque

from kafkagroup import TopicPartition

from ..events import Formed, Sent
from .recorder import Handlers, MemberRun, Recorder

_COOPERATIVE = frozenset(("cooperative-sticky",))
"""Protocols in which members keep what they own while they rejoin."""

_WINDOW = 10.0
"""Length of the window in seconds."""

_MOST = 20
"""Maximum joins in a window by a member that gets topics it does not subscribe to."""


class Leading:
    """The rules of successive assignments."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._joins: dict[MemberRun, deque[tuple[float, int]]] = {}
        """Member -> its recent joins for that reason: time and event."""
        self.handlers: Handlers = {Formed: self._formed, Sent: self._sent}

    def _formed(self, number: int, event: Formed) -> None:
        if event.protocol in _COOPERATIVE:
            self._check_handover(number, event)

    def _check_handover(self, number: int, event: Formed) -> None:
        """S20, by what members report as owned, whatever they subscribe to: of two claims, the one
        with the later generation counts."""
        newest: dict[TopicPartition, int] = {}
        for member, claimed in event.claims.items():
            for tp in claimed:
                at = event.claimed_at.get(member, -1)
                newest[tp] = max(newest.get(tp, at), at)
        owners: dict[TopicPartition, list[str]] = {}
        for member, claimed in event.claims.items():
            for tp in claimed:
                if event.claimed_at.get(member, -1) == newest[tp]:
                    owners.setdefault(tp, []).append(member)
        for member, share in event.assignment.items():
            for tp in share:
                if others := [owner for owner in owners.get(tp, ()) if owner != member]:
                    text = f"generation {event.generation} assigns {tp} of {others[0]} to {member}"
                    self._recorder.report("S20", event, text, number)

    def _sent(self, number: int, event: Sent) -> None:
        """L7: a member joins at a bounded rate for assignments that it must refuse."""
        run = self._recorder.run_of(event.member)
        if event.api != "JoinGroup" or not self._recorder.refuses_assignment(run):
            return
        times = self._joins.setdefault(run, deque())
        times.append((event.time, number))
        while times[0][0] <= event.time - _WINDOW:
            times.popleft()
        if len(times) > _MOST:
            text = f"{run.name} joins {len(times)} times in {_WINDOW:g} s for a bad assignment"
            self._recorder.report("L7", event, text, times[0][1], number)
            times.clear()

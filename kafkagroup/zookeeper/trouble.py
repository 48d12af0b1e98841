"""Report problems with ZooKeeper: sessions that do not begin, and requests that fail."""

from __future__ import annotations

from collections.abc import Callable

from kafkagroup.member.vocabulary import BaseEvent
from kafkagroup.member.zookeeper_state import Member, Phase
from kafkagroup.member.zookeeper_vocabulary import (
    Claimed,
    Confirmed,
    MembersRead,
    Registered,
    Released,
    RequestFailed,
    SessionEstablished,
)
from kafkagroup.transport.trouble import Problem, Troubles

__all__ = ["TroubleReporter"]

_CONNECTING = "connecting"
_REGISTERING = "registering"
_READING = "reading the list of members"
_CONFIRMING = "confirming the session"
_CLAIMING = "claiming and releasing partitions"
_EXCLUDING = "keeping members of other libraries out"

_ADVICE = (
    "check that a majority of its servers is up, and that names, ports and firewalls lead this"
    " client to them"
)

_FOREIGN_ADVICE = "stop either the members of the other library or those of this one"

_ALL = (_CONNECTING, _REGISTERING, _READING, _CONFIRMING, _CLAIMING, _EXCLUDING)


class TroubleReporter:
    """Reports the problems of one member. Times are on the loop's clock, except those in events."""

    def __init__(
        self,
        hosts: str,
        group_id: str,
        troubles: Troubles,
        in_loop_time: Callable[[float], float],
    ) -> None:
        """`in_loop_time` converts the member's times to the loop's clock, which `troubles` uses."""
        self._hosts = hosts
        self._group_id = group_id
        self._troubles = troubles
        self._in_loop_time = in_loop_time

    def on_no_session(self, now: float, since: float, cause: str) -> None:
        """Report that no session has begun since `since`. `cause`: why, "" if unknown."""
        self._failed(_CONNECTING, now, cause or "no server answers", since)

    def on_foreign_members(self, now: float, found: str) -> None:
        """Report members of other libraries, which process each record a second time. `found` names
        them; "" if there are none, which ends the report."""
        if found:
            cause = f"members of both libraries process every record: {found}"
            problem = self._problem(_EXCLUDING, cause, _FOREIGN_ADVICE)
            self._troubles.failed(self._key(_EXCLUDING), now, problem, warn_after=0.0)
        else:
            self._succeeded(_EXCLUDING, now)

    def on_event(self, member: Member, event: BaseEvent) -> None:
        """Report failures and recoveries that an event shows. `member`: before the event."""
        now = self._in_loop_time(event.now)
        match event:
            case SessionEstablished():
                self._succeeded(_CONNECTING, now)
            case Registered():
                self._succeeded(_REGISTERING, now)
            case MembersRead():
                self._succeeded(_READING, now)
            case Confirmed():
                self._succeeded(_CONFIRMING, now)
            case Claimed() | Released():
                self._succeeded(_CLAIMING, now)
            case RequestFailed(token=token, error=error):
                # Confirmations are the only requests of which the member records the time.
                if token == member.confirming:
                    since = self._in_loop_time(member.confirm_sent_at)
                    self._failed(_CONFIRMING, now, str(error), since)
                elif (what := _request_of(member, token)) is not None:
                    self._failed(what, now, str(error), now)

    def on_end(self, member: Member) -> None:
        """Forget the reported problems of a member that has left or failed. A driver that was
        cancelled, with its client, ends in another phase: its problems stay reported."""
        if member.phase in (Phase.LEFT, Phase.FAILED):
            for what in _ALL:
                self._troubles.forget(self._key(what))

    def _failed(self, what: str, now: float, cause: str, since: float) -> None:
        problem = self._problem(what, cause, _ADVICE)
        self._troubles.failed(self._key(what), now, problem, since=since)

    def _problem(self, what: str, cause: str, advice: str) -> Problem:
        subject = f"{what} for group {self._group_id} (ZooKeeper at {self._hosts})"
        return Problem(subject=subject, cause=cause, advice=advice)

    def _succeeded(self, what: str, now: float) -> None:
        if self._troubles.ongoing:
            self._troubles.succeeded(self._key(what), now)

    def _key(self, what: str) -> tuple[str, str]:
        return f"ZooKeeper group {self._group_id}", what


def _request_of(member: Member, token: int) -> str | None:
    """Return what the request with this token was doing; None if its response is not awaited any
    more."""
    tokens = {
        member.registering: _REGISTERING,
        member.reading: _READING,
        member.write_in_flight: _CLAIMING,
    }
    return tokens.get(token)

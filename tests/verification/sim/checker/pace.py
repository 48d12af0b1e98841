"""Request rates: L6. Retries must back off, with jitter, and requests must respect throttle times
(KIP-219)."""

from __future__ import annotations

from collections import deque

import attrs

from ..events import Responded, Sent, Throttled
from .recorder import CONSUMER_HEARTBEAT, Handlers, MemberRun, Recorder, is_leave

_RATE = 20
"""Maximum requests of one type per second."""
_ALIKE = 3
"""This many pauses of exactly the same length mean that there is no jitter."""
_SHORT = 0.05
"""Seconds; a shorter pause does not count as back-off."""
_QUICK_RETRIES = 3
"""This many retries without a pause are a violation: fewer may be independent requests."""

_EARLY = 1e-6
"""Seconds of tolerance for rounding in sums of times."""

_OPENING = frozenset(("ApiVersions", "SaslHandshake", "SaslAuthenticate"))

_DRIVEN = frozenset(("Fetch", "OffsetCommit"))
"""Requests whose rate depends on records and applications, when they succeed."""

_RETRIED = frozenset(
    (
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REQUEST_TIMED_OUT",
        "UNSTABLE_OFFSET_COMMIT",
    )
)
"""Errors after which the same request is retried after a back-off."""
_BACKED_OFF = frozenset(
    (CONSUMER_HEARTBEAT, "JoinGroup", "OffsetCommit", "OffsetFetch", "FindCoordinator")
)
"""Requests with their own back-off."""
_REJOINED = frozenset(("JoinGroup", "SyncGroup"))
"""Requests after whose rejection a member without partitions pauses before it rejoins."""
_AT_ONCE = frozenset(("MEMBER_ID_REQUIRED", "FENCED_INSTANCE_ID"))
"""Errors of a join that are followed by the next join at once, or by none."""
_ALONE = frozenset((CONSUMER_HEARTBEAT, "JoinGroup", "OffsetCommit"))
"""Requests of which only one is in flight, so that the next one is the retry."""


@attrs.define(eq=False)
class _Requests:
    """A member's recent requests."""

    sent: dict[str, deque[tuple[float, int]]] = attrs.field(factory=dict)
    """Request type -> time and event of those sent in the last second."""
    refused: dict[str, deque[tuple[float, int]]] = attrs.field(factory=dict)
    """The same for consecutive rejected ones."""
    quick_retry_count: int = 0
    """How often it has retried a rejected request at once."""
    rejected_at: float | None = None
    """When its JoinGroup or SyncGroup was rejected, if it has not rejoined."""
    refused_at: dict[str, float] = attrs.field(factory=dict)
    """Request type -> when it got a transient error, if it was not sent since."""
    identified: set[int] = attrs.field(factory=set)
    """The connections on which it has requested metadata."""
    throttled: dict[int, tuple[float, float, int]] = attrs.field(factory=dict)
    """Broker -> when and until when it throttles, and by which event. If brokers are unknown, the
    key is the negated connection."""


class Pace:
    """The rules of back-off."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._requests: dict[MemberRun, _Requests] = {}
        self._pauses: dict[float, int] = {}
        """Length of a pause before a retry, in whole nanoseconds -> its count over all members."""
        self.requests_per_second = 0
        self.handlers: Handlers = {
            Sent: self._sent,
            Throttled: self._throttled,
            Responded: self._answered,
        }

    def _of(self, name: str) -> tuple[MemberRun, _Requests]:
        run = self._recorder.run_of(name)
        requests = self._requests.get(run)
        if requests is None:
            requests = self._requests[run] = _Requests()
        return run, requests

    def _sent(self, number: int, event: Sent) -> None:
        run, requests = self._of(event.member)
        if requests.throttled:
            self._check_throttle(number, event, run, requests)
        if event.api not in _DRIVEN and not self._asks_for_cluster(event, requests):
            times = requests.sent.setdefault(event.api, deque())
            self._count(number, event, run, times, "")
            self.requests_per_second = max(self.requests_per_second, len(times))
        if event.api == "JoinGroup":
            self._check_rejoin(number, event, run, requests)
        refused_at = requests.refused_at.pop(event.api, None)
        if refused_at is not None and not is_leave(event):
            pause = event.time - refused_at
            self._check_jitter(number, event, run, pause)
            if event.api in _ALONE and pause < _SHORT and run.thawed_at < refused_at:
                self._count_quick_retry(number, event, run, requests)

    def _asks_for_cluster(self, event: Sent, requests: _Requests) -> bool:
        """Whether this is the request by which each new connection finds out its cluster."""
        if event.api != "Metadata" or event.connection in requests.identified:
            return False
        requests.identified.add(event.connection)
        return True

    def _check_rejoin(self, number: int, event: Sent, run: MemberRun, requests: _Requests) -> None:
        """After a rejected join or sync, the next join comes after a pause, with jitter."""
        at, requests.rejected_at = requests.rejected_at, None
        if at is None or "JoinGroup" in requests.refused_at:  # that retry is checked anyway
            return
        pause = event.time - at
        self._check_jitter(number, event, run, pause)
        if run.thawed_at < at and pause < _SHORT:
            self._count_quick_retry(number, event, run, requests)

    def _count_quick_retry(
        self, number: int, event: Sent, run: MemberRun, requests: _Requests
    ) -> None:
        requests.quick_retry_count += 1
        if requests.quick_retry_count == _QUICK_RETRIES:
            text = f"{run.name} has repeated {_QUICK_RETRIES} refused requests without a pause"
            self._recorder.report("L6", event, text, number)

    def _check_throttle(
        self, number: int, event: Sent, run: MemberRun, requests: _Requests
    ) -> None:
        """KIP-219: a member sends nothing to a broker that throttles it."""
        at, until, by = requests.throttled.get(event.node or -event.connection, (0.0, 0.0, -1))
        # Requests in transit do not count, nor do those that open a connection.
        asked = event.time > max(at, run.thawed_at) + self._recorder.notice_delay
        if asked and event.time < until - _EARLY and event.api not in _OPENING:
            left = until - event.time
            text = (
                f"{run.name} sends {event.api} to a broker that throttles it for {left:.2f} s more"
            )
            self._recorder.report("L6", event, text, by, number)

    def _throttled(self, number: int, event: Throttled) -> None:
        run, requests = self._of(event.member)
        broker, until = event.node or -event.connection, event.time + event.seconds
        if until > requests.throttled.get(broker, (0.0, 0.0, -1))[1]:
            requests.throttled[broker] = (event.time, until, number)
            run.throttled_until[broker] = until

    def _answered(self, number: int, event: Responded) -> None:
        run, requests = self._of(event.member)
        if event.error == "NONE":
            requests.refused.pop(event.api, None)
            return
        refused = event.api == "JoinGroup" or event.error != "REBALANCE_IN_PROGRESS"
        if event.api in _REJOINED and event.error not in _AT_ONCE and refused and not run.held:
            # A sync that another rebalance overtook is followed by a join at once.
            requests.rejected_at = event.time
        if event.error in _RETRIED and event.api in _BACKED_OFF:
            requests.refused_at[event.api] = event.time
        times = requests.refused.setdefault(event.api, deque())
        self._count(number, event, run, times, f", refused with {event.error}")

    def _count(
        self,
        number: int,
        event: Sent | Responded,
        run: MemberRun,
        times: deque[tuple[float, int]],
        how: str,
    ) -> None:
        times.append((event.time, number))
        while times[0][0] <= event.time - 1.0:
            times.popleft()
        # Requests that accumulated while the process was frozen are sent at once.
        if len(times) > _RATE and run.thawed_at < times[0][0]:
            text = f"{run.name} sends {event.api} {len(times)} times in a second{how}"
            self._recorder.report("L6", event, text, times[0][1], number)
            times.clear()

    def _check_jitter(self, number: int, event: Sent, run: MemberRun, pause: float) -> None:
        if not self._recorder.virtual or pause < _SHORT or run.thawed_at > event.time - pause:
            return
        if any(abs(event.time - until) <= _EARLY for until in run.throttled_until.values()):
            return  # the broker sets the length of a throttle (KIP-219), for all its clients
        length = round(pause, 9)
        self._pauses[length] = self._pauses.get(length, 0) + 1
        if self._pauses[length] == _ALIKE:
            text = f"{_ALIKE} retries came after a pause of exactly {length} s"
            self._recorder.report("L6", event, text, number)

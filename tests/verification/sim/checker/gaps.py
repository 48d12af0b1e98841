"""How long deliverable records wait while a cooperative group rebalances: L1.

A gap is a time in which the member rejoins, the application waits in the client, and the client has
records of a partition that the member keeps: at the current position, of a subscribed topic, not
paused, and with a membership that is not in doubt.
"""

from __future__ import annotations

import math

import attrs

from kafkagroup import TopicPartition

from ..events import (
    Assigned,
    Away,
    Closing,
    Committed,
    Committing,
    Deleted,
    Delivered,
    Lost,
    OfMember,
    Paused,
    Polling,
    Processed,
    Raised,
    Responded,
    Sent,
    Sought,
    Truncated,
)
from .recorder import CONSUMER_HEARTBEAT, Handlers, MemberRun, Recorder

_VALIDATION = "OffsetForLeaderEpoch"
"""By which a leader confirms a position (KIP-320). If it refuses to, the log below the position may
be another one: the response to a fetch request in flight is not used."""

_GAP = 0.1
"""Seconds at the 99th percentile; with fewer than a hundred gaps, of each gap."""


@attrs.define(eq=False)
class _Window:
    """What a member can deliver, and since when."""

    rejoining: tuple[float, int] | None = None
    """When the rejoin began, and by which event; None while there is none."""
    waiting_since: float | None = None
    """Since when the application waits for a record; None while it does not."""
    commits_before_wait: set[int] = attrs.field(factory=set)
    """The commits, its own or a callback's, that delay its next wait; without those that a callback
    began while the application was busy."""
    reach: dict[TopicPartition, tuple[int, float]] = attrs.field(factory=dict)
    """Partition -> the offset after the received records, and when they arrived."""
    dropped: dict[TopicPartition, int] = attrs.field(factory=dict)
    """Partition -> the last event after which what was requested before does not count: the
    application has sought, or the log may be another one below the position."""
    paused: frozenset[TopicPartition] = frozenset()


class Gaps:
    """The rule of delivery gaps."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._windows: dict[MemberRun, _Window] = {}
        self._lengths: list[float] = []
        self.handlers: Handlers = {
            Sent: self._sent,
            Responded: self._answered,
            Assigned: self._assigned,
            Lost: self._lost,
            Paused: self._paused,
            Sought: self._sought,
            Truncated: self._truncated,
            Deleted: self._deleted,
            Away: self._away,
            Committing: self._committing,
            Committed: self._back,
            Processed: self._processed,
            Polling: self._polling,
            Delivered: self._returned,
            Raised: self._returned,
            Closing: self._returned,
        }

    @property
    def p99(self) -> float:
        """The 99th percentile of the gaps, in seconds; 0 without gaps."""
        lengths = sorted(self._lengths)
        return lengths[min(len(lengths) - 1, math.ceil(len(lengths) * 0.99) - 1)] if lengths else 0

    def _of(self, name: str) -> tuple[MemberRun, _Window]:
        run = self._recorder.run_of(name)
        window = self._windows.get(run)
        if window is None:
            window = self._windows[run] = _Window()
        return run, window

    def _sent(self, number: int, event: Sent) -> None:
        run, window = self._of(event.member)
        if event.api == "JoinGroup" and run.held and run.opening.cooperative:
            window.rejoining = window.rejoining or (event.time, number)

    def _answered(self, number: int, event: Responded) -> None:
        run, window = self._of(event.member)
        if event.api == "Fetch":
            issued = self._issued(event)
            for tp in event.refused:  # it was fetched again, so what was received before is dropped
                window.reach.pop(tp, None)
            for tp, reach in event.offsets.items():
                if issued > window.dropped.get(tp, -1):
                    window.reach[tp] = (reach, event.time)
        elif event.api == _VALIDATION:
            for tp in event.refused:  # what it has received already is still delivered
                window.dropped[tp] = number
        elif event.api == CONSUMER_HEARTBEAT and event.assigned is not None:
            # It reconciles until it owns exactly its assignment.
            changes = bool(run.held) and run.target != run.held.keys()
            window.rejoining = (window.rejoining or (event.time, number)) if changes else None

    def _issued(self, event: Responded) -> float:
        """Return after how many events the member issued the request of a response."""
        asked = self._recorder.request(event)
        if asked is None:
            return math.inf
        number, sent = asked
        return number if sent.issued_after is None else sent.issued_after

    def _assigned(self, number: int, event: Assigned) -> None:
        run, window = self._of(event.member)
        self._close(number, event, run, window)
        window.rejoining = None

    def _lost(self, number: int, event: Lost) -> None:
        _, window = self._of(event.member)
        window.rejoining = None

    def _paused(self, number: int, event: Paused) -> None:
        _, window = self._of(event.member)
        window.paused = frozenset(event.partitions)
        window.waiting_since = None
        window.commits_before_wait.clear()

    def _sought(self, number: int, event: Sought) -> None:
        _, window = self._of(event.member)
        self._drop_received(window, event.partition, number)  # fetched for the previous position

    def _truncated(self, number: int, event: Truncated) -> None:
        self._forget(number, event.partition)

    def _deleted(self, number: int, event: Deleted) -> None:
        for tp in self._recorder.logs:
            if tp.topic == event.topic:
                self._forget(number, tp)

    def _forget(self, number: int, tp: TopicPartition) -> None:
        for window in self._windows.values():
            self._drop_received(window, tp, number)  # the received records may be lost

    def _drop_received(self, window: _Window, tp: TopicPartition, number: int) -> None:
        """Count only what the member requests after this event."""
        window.reach.pop(tp, None)
        window.dropped[tp] = number

    def _committing(self, number: int, event: Committing) -> None:
        _, window = self._of(event.member)
        if window.waiting_since is not None or window.commits_before_wait:
            window.commits_before_wait.add(event.token)
        window.waiting_since = None

    def _away(self, number: int, event: Away) -> None:
        _, window = self._of(event.member)
        window.waiting_since = None
        window.commits_before_wait.clear()

    def _back(self, number: int, event: Committed) -> None:
        _, window = self._of(event.member)
        if event.token in window.commits_before_wait:
            window.commits_before_wait.remove(event.token)
            window.waiting_since = None if window.commits_before_wait else event.time

    def _processed(self, number: int, event: Processed) -> None:
        _, window = self._of(event.member)
        window.waiting_since = event.time
        window.commits_before_wait.clear()

    def _polling(self, number: int, event: Polling) -> None:
        _, window = self._of(event.member)
        window.waiting_since = event.time
        window.commits_before_wait.clear()

    def _returned(self, number: int, event: Delivered | Raised | Closing) -> None:
        """The application waits no more: after an error, too, it may do other work first."""
        run, window = self._of(event.member)
        self._close(number, event, run, window)
        window.waiting_since = None
        window.commits_before_wait.clear()

    def _close(self, number: int, event: OfMember, run: MemberRun, window: _Window) -> None:
        """Measure the gap when the application gets a record or an error or closes the client, or
        when the rebalance ends."""
        if window.rejoining is None or window.waiting_since is None:
            return
        since, by = window.rejoining
        since = max(since, window.waiting_since, run.lease_since, run.thawed_at)
        until = min(event.time, run.lease_expires_at)
        had = [
            max(since, came)
            for tp, (reach, came) in window.reach.items()
            if tp not in window.paused
            and (run.topics is None or tp.topic in run.topics)
            and (run.target is None or tp in run.target)
            and self._has(run, tp, reach)
        ]
        if not had:
            return
        gap = max(0.0, until - min(had))
        self._lengths.append(gap)
        # With fewer than a hundred gaps, the longest is the 99th percentile.
        if gap > _GAP and self.p99 > _GAP:
            text = f"{run.name} has records and delivers none for {gap:.2f} s while it rejoins"
            self._recorder.report("L1", event, text, by, number)

    def _has(self, run: MemberRun, tp: TopicPartition, reach: int) -> bool:
        period = run.held.get(tp)
        if period is None or period.revoking_by is not None or period.position is None:
            return False
        return self._recorder.log(tp).next_visible(period.position) < reach

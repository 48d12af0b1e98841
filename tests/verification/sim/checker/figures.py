"""The numbers of a run, whether or not it is checked."""

from __future__ import annotations

import attrs

from ..events import Assigned, Delivered, Finished, Lost, Offsets
from .gaps import Gaps
from .liveness import Liveness
from .pace import Pace
from .recorder import DELIVERED, HIDDEN, PASSED, Handlers, Recorder


@attrs.frozen(kw_only=True)
class Figures:
    """The numbers of one run."""

    records: int = 0
    """Visible records in all logs."""
    delivered: int = 0
    """Visible records that were delivered."""
    lost: int = 0
    """Visible records that were not delivered, and that no application has skipped."""
    duplicated: int = 0
    """Deliveries of a record beyond its first."""
    periods: int = 0
    fenced: int = 0
    """Ownership periods that ended with the membership, not with a commit."""
    delivery_gap: float = 0.0
    """L1: how long records waited during cooperative rebalances: 99th percentile, in seconds."""
    takeover: float = 0.0
    """L2: the longest time until a dead member's partitions were owned again, after `Healed`."""
    heartbeat_gap: float = 0.0
    """L3: the longest time between the response to a heartbeat and the next heartbeat."""
    requests_per_second: int = 0
    """L6: the most requests of one type in a second by one member, without fetches and commits."""


class Counting:
    """Counts the figures."""

    def __init__(self, recorder: Recorder, gaps: Gaps, pace: Pace, liveness: Liveness) -> None:
        self._recorder = recorder
        self._gaps = gaps
        self._pace = pace
        self._liveness = liveness
        self._deliveries = self._periods = self._fenced = 0
        self._starts: Offsets = {}
        self._ends: Offsets = {}
        self.handlers: Handlers = {
            Assigned: self._assigned,
            Lost: self._lost,
            Delivered: self._delivered,
            Finished: self._finished,
        }

    def _assigned(self, number: int, event: Assigned) -> None:
        self._periods += len(event.partitions)

    def _lost(self, number: int, event: Lost) -> None:
        self._fenced += len(event.partitions)

    def _delivered(self, number: int, event: Delivered) -> None:
        self._deliveries += 1

    def _finished(self, number: int, event: Finished) -> None:
        self._starts, self._ends = event.starts, event.ends

    def figures(self) -> Figures:
        """Return the figures so far."""
        records = delivered = unwanted = 0
        for tp, end in self._ends.items():
            start, log = self._starts.get(tp, 0), self._recorder.log(tp)
            flags = log.flags[start:end]
            missing = 0 if log.has_appends else end - start - len(flags)
            records += sum(not flag & HIDDEN for flag in flags) + missing
            delivered += sum(flag & DELIVERED > 0 for flag in flags)
            unwanted += sum(flag & (DELIVERED | HIDDEN | PASSED) == PASSED for flag in flags)
        distinct = sum(
            log.lost_deliveries + sum(flag & DELIVERED > 0 for flag in log.flags)
            for log in self._recorder.logs.values()
        )
        return Figures(
            records=records,
            delivered=delivered,
            lost=records - delivered - unwanted,
            duplicated=self._deliveries - distinct,
            periods=self._periods,
            fenced=self._fenced,
            delivery_gap=self._gaps.p99,
            takeover=self._liveness.takeover,
            heartbeat_gap=self._liveness.heartbeat_gap,
            requests_per_second=self._pace.requests_per_second,
        )

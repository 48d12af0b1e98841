"""Rates and durations of a membership's requests, over the last minute.

Callers pass the time; nothing here reads a clock or keeps more than a few sums.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkagroup._public import public
from kafkagroup._values import define, field, frozen
from kafkagroup.events import RebalanceCause, Rebalanced
from kafkagroup.types import TopicPartition

__all__ = ["GroupMeters", "GroupMetrics", "Meter", "RequestMetrics"]

_SLOT = 10.0
"""Seconds that are summed up together."""
_SLOTS = 6
"""How many of these make the window: the last one is still being filled."""


@public
@frozen
class RequestMetrics:
    """The requests of one kind that were answered in the last minute."""

    rate: float = 0.0
    """How many a second."""
    average: float = float("nan")
    """Seconds that an answer took; nan when there was none."""
    maximum: float = float("nan")
    """Seconds that the slowest one took."""


@public
@frozen(kw_only=True)
class GroupMetrics:
    """One member of a group, at one moment."""

    heartbeat: RequestMetrics = RequestMetrics()
    join: RequestMetrics = RequestMetrics()
    """JoinGroup: what it takes is mostly the other members' time."""
    sync: RequestMetrics = RequestMetrics()
    commit: RequestMetrics = RequestMetrics()
    rebalance: RequestMetrics = RequestMetrics()
    """Rebalances that ended: how many a second, and what they took, of which the application's part
    is in `last_rebalance.phases`."""
    rebalances: int = 0
    """How many there were, since the start."""
    rebalance_causes: Mapping[RebalanceCause, int] = field(factory=dict)
    """How many of them for each cause; one may have several."""
    last_rebalance: Rebalanced | None = None
    losses: int = 0
    """How often the membership was lost, or ended by the member, since the start."""
    last_heartbeat_seconds_ago: float = float("inf")
    """Since the last heartbeat was sent; inf before the first."""
    session_seconds_left: float = 0.0
    """Seconds until ownership expires without another answer; 0 while nothing is assigned."""
    loop_lag: float = 0.0
    """By how many seconds the event loop was late, at most, during the last minute."""
    assigned_partitions: int = 0
    """Of a consumer: how many partitions it owns."""
    lag: Mapping[TopicPartition, int] = field(factory=dict)
    """Of a consumer: how many offsets lie between the position and the end of each partition, as of
    its last fetch. Without those not fetched yet."""
    skipped_records: int = 0
    """Of a consumer: how many records were passed over as they did not deserialize, since the start
    (`on_deserialization_error`)."""
    buffered_bytes: int = 0
    """Of a consumer: what was fetched, and waits to be handed out, as it came."""
    fetching_bytes: int = 0
    """Of a consumer: what was asked for and may come. This and `buffered_bytes` stay within
    `fetch_max_bytes`, but for the one batch that a broker answers with however large it is."""


@define
class _Sum:
    slot: int
    count: int = 0
    total: float = 0.0
    maximum: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one more duration."""
        self.count += 1
        self.total += seconds
        self.maximum = max(self.maximum, seconds)


class Meter:
    """Durations of the last minute."""

    def __init__(self) -> None:
        self._sums: list[_Sum] = []
        self._since = float("inf")

    def record(self, now: float, seconds: float) -> None:
        """Record a duration that ended now."""
        self._since = min(self._since, now - seconds)
        slot = int(now // _SLOT)
        if not self._sums or self._sums[-1].slot != slot:
            self._sums = [*self._sums[1 - _SLOTS :], _Sum(slot)]
        self._sums[-1].add(seconds)

    def read(self, now: float) -> RequestMetrics:
        """Return rate, average and maximum of the last minute."""
        first = int(now // _SLOT) - _SLOTS + 1
        sums = [s for s in self._sums if s.slot >= first]
        if not sums:
            return RequestMetrics()
        count = sum(s.count for s in sums)
        # Of a meter that is young, or just begins to count, one second counts at least.
        elapsed = max(now - max(first * _SLOT, self._since), 1.0)
        return RequestMetrics(
            rate=count / elapsed,
            average=sum(s.total for s in sums) / count,
            maximum=max(s.maximum for s in sums),
        )


@frozen
class GroupMeters:
    """The meters of one member."""

    heartbeat: Meter = field(factory=Meter)
    join: Meter = field(factory=Meter)
    sync: Meter = field(factory=Meter)
    commit: Meter = field(factory=Meter)
    rebalance: Meter = field(factory=Meter)

    def read(self, now: float) -> GroupMetrics:
        """Return the metrics that were measured here; callers add the rest."""
        return GroupMetrics(
            heartbeat=self.heartbeat.read(now),
            join=self.join.read(now),
            sync=self.sync.read(now),
            commit=self.commit.read(now),
            rebalance=self.rebalance.read(now),
        )

"""Rates and durations of a membership's requests, over the last minute.

Callers pass the time; nothing here reads a clock or keeps more than a few sums.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkagroup._public import public
from kafkagroup._values import field, frozen
from kafkagroup.events import RebalanceCause, Rebalanced
from kafkagroup.types import TopicPartition

__all__ = ["GroupMeters", "GroupMetrics", "Meter", "RequestMetrics"]

_SLOT = 10.0
"""Seconds of one slot, whose durations are added up."""
_SLOTS = 6
"""The number of slots in the window; the last one is not complete yet."""


@public
@frozen
class RequestMetrics:
    """The requests of one kind with a response in the last minute."""

    rate: float = 0.0
    """Requests per second."""
    average: float = float("nan")
    """The average seconds until the response; nan without requests."""
    maximum: float = float("nan")
    """The longest seconds until a response; nan without requests."""


@public
@frozen(kw_only=True)
class GroupMetrics:
    """The metrics of one member of a group."""

    heartbeat: RequestMetrics = RequestMetrics()
    join: RequestMetrics = RequestMetrics()
    """JoinGroup without an error, which the coordinator holds until the other members have joined;
    under KIP-848 the heartbeat that joins."""
    sync: RequestMetrics = RequestMetrics()
    """SyncGroup without an error; none under KIP-848."""
    commit: RequestMetrics = RequestMetrics()
    rebalance: RequestMetrics = RequestMetrics()
    """Completed rebalances, and the seconds that they took; `last_rebalance.phases` has the
    application's part."""
    rebalances: int = 0
    """The number of rebalances since the start."""
    rebalance_causes: Mapping[RebalanceCause, int] = field(factory=dict)
    """The number of rebalances by cause; one rebalance may have several."""
    last_rebalance: Rebalanced | None = None
    losses: int = 0
    """How often, since the start, the member lost its assignment without a revocation: it was
    fenced, its session ended, it failed, or it left because the application did not poll."""
    last_heartbeat_seconds_ago: float = float("inf")
    """Seconds since the last heartbeat was sent; inf before the first."""
    session_seconds_left: float = 0.0
    """Seconds until the ownership lease expires if no other heartbeat is acknowledged; 0 without an
    assignment."""
    loop_delay: float = 0.0
    """The longest delay of the event loop during the last minute, in seconds."""
    assigned_partitions: int = 0
    """Of a consumer: the number of owned partitions."""
    lag: Mapping[TopicPartition, int] = field(factory=dict)
    """Of a consumer: the offsets from the position to the log's end, or under read_committed to the
    last stable offset, as of the last fetch, by partition; without partitions that were not fetched
    yet."""
    skipped_records: int = 0
    """Of a consumer: the number of records, since the start, that were skipped because their
    deserializer failed (`on_deserialization_error`)."""
    buffered_bytes: int = 0
    """Of a consumer: bytes of fetched records that are not delivered yet, as compressed."""
    fetching_bytes: int = 0
    """Of a consumer: bytes that fetch requests in flight may return. Together with
    `buffered_bytes` at most `fetch_max_bytes`, except that a broker returns at least one batch,
    however large."""


@frozen
class _Sum:
    """The durations of one slot, added up."""

    slot: int
    """The number of the slot, counted from the clock's zero."""
    count: int
    total: float
    maximum: float

    def add(self, seconds: float) -> _Sum:
        """Return the sum with one more duration."""
        return _Sum(self.slot, self.count + 1, self.total + seconds, max(self.maximum, seconds))


class Meter:
    """Durations of the last minute. One thread records; others may read at the same time."""

    def __init__(self) -> None:
        self._sums: tuple[_Sum, ...] = ()
        """The latest slots that have durations, in order."""
        self._since = float("inf")
        """When the earliest duration began; inf before there is one."""

    def record(self, now: float, seconds: float) -> None:
        """Record a duration in seconds that ended at `now`, on the loop's clock."""
        self._since = min(self._since, now - seconds)
        slot = int(now // _SLOT)
        # Replaced as a whole: a reader in another thread sees a duration with its count or not at
        # all. A slot that is visible before its first duration would make the reader divide by 0.
        if self._sums and self._sums[-1].slot == slot:
            self._sums = (*self._sums[:-1], self._sums[-1].add(seconds))
        else:
            self._sums = (*self._sums[1 - _SLOTS :], _Sum(slot, 1, seconds, seconds))

    def read(self, now: float) -> RequestMetrics:
        """Return rate, average and maximum of the last minute."""
        first = int(now // _SLOT) - _SLOTS + 1
        sums = [s for s in self._sums if s.slot >= first]
        if not sums:
            return RequestMetrics()
        count = sum(s.count for s in sums)
        # At least a second: one request just after the start is not a hundred a second.
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
        """Return the metrics of these meters; callers set the other fields."""
        return GroupMetrics(
            heartbeat=self.heartbeat.read(now),
            join=self.join.read(now),
            sync=self.sync.read(now),
            commit=self.commit.read(now),
            rebalance=self.rebalance.read(now),
        )

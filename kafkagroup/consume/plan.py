"""What to fetch next from one broker, and what an error in the answer means."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
from kafkagroup.errors import ErrorCode

__all__ = ["ErrorAction", "action_for", "is_fetchable", "wanted"]


def is_fetchable(owned: OwnedPartition) -> bool:
    """Whether a partition is to be fetched, now or after its back-off, once there is room."""
    return owned.fetch_offset != UNKNOWN and not (
        owned.revoked or owned.paused or owned.failed or owned.reset
    )


def wanted(
    owned: Iterable[OwnedPartition],
    now: float,
    *,
    room: int,
    records_per_partition: int,
) -> list[OwnedPartition]:
    """The partitions to ask for, those with the least buffered first.

    A partition is left out while its position is unknown, it is paused, revoked, failed, backing
    off, or has `records_per_partition` records waiting; all are when `room` bytes are used up. Not
    for the bytes that it has waiting: asked without it, a broker that has nothing for the others
    keeps the question for `fetch_max_wait_ms`, and what waits is long gone by then.
    """
    if room <= 0:
        return []
    ready = [
        o
        for o in owned
        if is_fetchable(o) and o.buffered_records < records_per_partition and o.retry_at <= now
    ]
    return sorted(ready, key=lambda o: o.buffered_bytes)


class ErrorAction(Enum):
    """What is done about a partition's error in a fetch or offsets answer."""

    RETRY = "retry"
    """The same broker, after a back-off."""
    REFRESH = "refresh"
    """Metadata is stale: ask for it, then the leader that it names."""
    RESET = "reset"
    """The position is not in the log: apply `auto_offset_reset`."""
    RAISE = "raise"
    """Nothing here can mend it: the application is told."""


_REMEDIES: dict[int, ErrorAction] = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorAction.REFRESH,
    ErrorCode.REPLICA_NOT_AVAILABLE: ErrorAction.REFRESH,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorAction.REFRESH,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorAction.REFRESH,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorAction.REFRESH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorAction.REFRESH,
    ErrorCode.UNKNOWN_TOPIC_ID: ErrorAction.REFRESH,
    ErrorCode.INCONSISTENT_TOPIC_ID: ErrorAction.REFRESH,
    ErrorCode.LEADER_NOT_AVAILABLE: ErrorAction.REFRESH,
    ErrorCode.OFFSET_NOT_AVAILABLE: ErrorAction.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: ErrorAction.RETRY,
    ErrorCode.UNKNOWN_SERVER_ERROR: ErrorAction.RETRY,
    ErrorCode.CORRUPT_MESSAGE: ErrorAction.RAISE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ErrorAction.RAISE,
    ErrorCode.OFFSET_OUT_OF_RANGE: ErrorAction.RESET,
}


def action_for(code: int) -> ErrorAction:
    """The row of an error code; one that is not in the table is raised."""
    return _REMEDIES.get(code, ErrorAction.RAISE)

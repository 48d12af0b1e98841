"""Which partitions to fetch next from one broker, and how to handle a partition's error."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
from kafkagroup.errors import ErrorCode

__all__ = ["ACTIONS", "ErrorAction", "action_for", "is_fetchable", "wanted"]


def is_fetchable(owned: OwnedPartition) -> bool:
    """Return whether a partition may be fetched now, or after its back-off, or when the buffer has
    room."""
    return owned.fetch_offset != UNKNOWN and not (
        owned.revoked
        or owned.paused
        or owned.failed
        or owned.reset
        or owned.is_out_of_range
        or owned.awaits_start_commit
        or owned.awaits_listener
    )


def wanted(
    owned: Iterable[OwnedPartition],
    now: float,
    *,
    room: int,
    records_per_partition: int,
) -> list[OwnedPartition]:
    """Return the partitions to fetch, those with the fewest buffered bytes first.

    A partition is left out while its position is unknown or in doubt, or its start is not
    committed, or the rebalance listener is called about it, or it is paused, revoked, failed,
    backing off, or has `records_per_partition` records buffered; all are left out if `room` (bytes)
    is 0. The bytes that a partition has buffered do not matter: a broker with no records for the
    others holds a long poll without this partition for `fetch_max_wait_ms`, and the application has
    processed the buffered records long before.
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
    """The reaction to a partition's error in a response to a fetch or offsets request."""

    RETRY = "retry"
    """Ask the same broker again, after a back-off."""
    REFRESH = "refresh"
    """Metadata is stale: refresh it, then ask the leader that it names."""
    RESET = "reset"
    """The position is not in the log, as this broker reports: ask the leader where the log starts
    and ends, and apply `auto_offset_reset` if the position is outside."""
    RAISE = "raise"
    """The broker refuses: raise it to the application, and ask again after a back-off. The cause
    may pass without the application, so it never ends the reading."""


ACTIONS: dict[int, ErrorAction] = {
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
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: ErrorAction.RETRY,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: ErrorAction.RETRY,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: ErrorAction.RETRY,
    ErrorCode.OFFSET_OUT_OF_RANGE: ErrorAction.RESET,
    ErrorCode.CORRUPT_MESSAGE: ErrorAction.RAISE,
    ErrorCode.INVALID_FETCH_SIZE: ErrorAction.RAISE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorAction.RAISE,
    ErrorCode.INVALID_TOPIC_EXCEPTION: ErrorAction.RAISE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ErrorAction.RAISE,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorAction.RAISE,
    ErrorCode.UNSUPPORTED_VERSION: ErrorAction.RAISE,
    ErrorCode.INVALID_REQUEST: ErrorAction.RAISE,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: ErrorAction.RAISE,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: ErrorAction.RAISE,
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: ErrorAction.RAISE,
}
"""The codes that a broker may legally send for a partition in a response to Fetch, ListOffsets or
OffsetForLeaderEpoch, or for a Fetch as a whole."""


def action_for(code: int) -> ErrorAction:
    """Return the action for an error code; RAISE for a code that is not in the table, such as one
    of a newer broker."""
    return ACTIONS.get(code, ErrorAction.RAISE)

"""Which partitions to fetch next from one broker."""

from __future__ import annotations

from collections.abc import Iterable

from kafkagroup.consume.owned import UNKNOWN, OwnedPartition

__all__ = ["is_fetchable", "partitions_to_fetch"]


def is_fetchable(owned: OwnedPartition) -> bool:
    """Return whether a partition may be fetched, apart from its back-off and from room in the
    buffers."""
    return owned.fetch_offset != UNKNOWN and not (
        owned.revoked
        or owned.paused
        or owned.failed
        or owned.needs_reset
        or owned.is_out_of_range
        or owned.awaits_start_commit
        or owned.awaits_listener
    )


def partitions_to_fetch(
    owned: Iterable[OwnedPartition],
    now: float,
    *,
    room: int,
    records_per_partition: int,
) -> list[OwnedPartition]:
    """Return the partitions to fetch, those with the fewest buffered bytes first.

    A partition is left out while its position is unknown or in doubt; while it is new, and its
    first position must still be committed; while the rebalance listener is called for it; while it
    is paused, revoked, failed or backing off (`now` is on the loop's clock); and while
    `records_per_partition` of its records are buffered. All are left out without `room` in the
    buffers (bytes).

    Buffered bytes do not exclude a partition. Otherwise the broker, with no records for the others,
    would hold their long poll for `fetch_max_wait_ms`; the application would have processed what is
    buffered long before, and would wait for the next poll.
    """
    if room <= 0:
        return []
    ready = [
        o
        for o in owned
        if is_fetchable(o) and o.buffered_records < records_per_partition and o.retry_at <= now
    ]
    return sorted(ready, key=lambda o: o.buffered_bytes)

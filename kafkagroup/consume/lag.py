"""Lag of a position: in offsets, and as the age of the next record.

Offsets without a record, due to compaction or transaction markers, count as well. If the age is
unknown, a string says why.
"""

from __future__ import annotations

from kafkagroup.types import TopicPartition
from kafkagroup.wire.records import read_batches

__all__ = ["age_of", "first_timestamp", "lag_of"]


def lag_of(position: int, end: int) -> int:
    """Return the number of offsets from a position to the end of the partition's log. Never
    negative: the position may have passed an end that was looked up earlier."""
    return max(0, end - position)


def first_timestamp(records: bytes | memoryview, tp: TopicPartition, offset: int) -> int | None:
    """Return the timestamp (ms) of the first record at or after an offset in fetched batches; None
    if they hold no such record, only transaction markers for example. Raises: DecodeError."""
    for batch in read_batches(memoryview(records), topic=tp.topic, partition=tp.partition):
        if not batch.is_control:
            for record in batch.records(offset):
                return record.timestamp
    return None


def age_of(timestamp: int | None, now: float) -> float | str:
    """Return the seconds from `timestamp` (ms) to `now` (seconds since the epoch); if the age is
    unknown, a string that says why. `timestamp`: that of the first record at or after the committed
    offset, None if none was found."""
    if timestamp is None:
        return "no record was found at the committed offset"
    if timestamp < 0:
        return "the record at the committed offset has no timestamp"
    return max(0.0, now - timestamp / 1000)

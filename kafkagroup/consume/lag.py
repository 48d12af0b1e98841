"""How far behind a position is: in offsets, and by the age of the record that waits there.

Gaps of compaction and markers count as offsets. What cannot be told is a sentence that says why.
"""

from __future__ import annotations

from kafkagroup.types import TopicPartition
from kafkagroup.wire.records import read_batches

__all__ = ["age", "behind", "first_timestamp"]


def behind(position: int, end: int) -> int:
    """Offsets between a position and the end of its log. Never negative: an end that was asked for
    first may be passed meanwhile."""
    return max(0, end - position)


def first_timestamp(records: bytes | memoryview, tp: TopicPartition, offset: int) -> int | None:
    """The timestamp (ms) of the first record at or after an offset, in what a fetch brought; None
    when that holds none, as when markers of transactions are all there is. Raises: DecodeError."""
    for batch in read_batches(memoryview(records), topic=tp.topic, partition=tp.partition):
        if not batch.is_control:
            for record in batch.records(offset):
                return record.timestamp
    return None


def age(timestamp: int | None, now: float) -> float | str:
    """Seconds since a record was made, at `now` in seconds since the epoch; or why nobody can
    tell."""
    if timestamp is None:
        return "no record was found at the committed offset"
    if timestamp < 0:
        return "the record at the committed offset has no timestamp"
    return max(0.0, now - timestamp / 1000)

"""Split a batch that a broker refuses because it is too large. Pure."""

from __future__ import annotations

from typing import cast

from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.records import read_batches

__all__ = ["halves"]


def halves(batch: bytes) -> tuple[bytes, ...]:
    """Return two batches with the records of one, compressed as it is; none if it has but one
    record."""
    (whole,) = read_batches(batch, topic="", partition=0, check_crcs=False)
    if whole.count < 2:
        return ()
    records = [
        NewRecord(
            cast("bytes | None", record.key),
            cast("bytes | None", record.value),
            record.timestamp,
            record.headers,
        )
        for record in whole.records()
    ]
    middle = len(records) // 2
    return tuple(
        encode_batch(part, codec=whole.codec) for part in (records[:middle], records[middle:])
    )

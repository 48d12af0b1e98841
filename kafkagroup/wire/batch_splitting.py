"""Split a batch that a broker refuses because it is too large. Pure."""

from __future__ import annotations

from typing import cast

from kafkagroup.wire.batch_writing import NewRecord
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.records import read_batches

__all__ = ["records_in_halves"]


def records_in_halves(batch: bytes | memoryview) -> tuple[Codec, tuple[list[NewRecord], ...]]:
    """Return the codec of a batch, and its records in two halves; no halves if it has only one
    record."""
    # Without a check of the CRC: this client has written the batch.
    (whole,) = read_batches(batch, topic="", partition=0, check_crcs=False)
    if whole.count < 2:
        return whole.codec, ()
    records = [
        # The casts: without deserializers, keys and values are bytes.
        NewRecord(
            cast("bytes | None", record.key),
            cast("bytes | None", record.value),
            record.timestamp,
            record.headers,
        )
        for record in whole.records()
    ]
    middle = len(records) // 2
    return whole.codec, (records[:middle], records[middle:])

"""Splits a batch that its broker found too large."""

from __future__ import annotations

from typing import cast

from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.wire.records import read_batches

__all__ = ["split"]


def split(batch: ProduceBatch) -> tuple[ProduceBatch, ProduceBatch]:
    """Return two batches with the records of one that has at least two; they have moved there."""
    assert batch.data is not None
    topic, partition = batch.tp
    (sent,) = read_batches(memoryview(batch.data), topic=topic, partition=partition)
    records = tuple(sent.records(0))
    middle = len(records) // 2
    halves: list[ProduceBatch] = []
    places: list[tuple[ProduceBatch, int]] = []
    for part in (records[:middle], records[middle:]):
        half = ProduceBatch(batch.tp, batch.created_at, batch.deadline, part[0].timestamp)
        size = batch.size * len(part) // batch.count
        for n, record in enumerate(part):
            places.append((half, n))
            key, value = cast("bytes | None", record.key), cast("bytes | None", record.value)
            half.append(key, value, record.timestamp, record.headers, 0)
        half.size = size
        halves.append(half)
    halves[-1].size = batch.size - halves[0].size
    batch.move(places)
    return halves[0], halves[1]

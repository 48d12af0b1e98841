"""Splits a batch that its broker found too large."""

from __future__ import annotations

from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.wire.batch_splitting import records_in_halves

__all__ = ["split"]


def split(batch: ProduceBatch) -> tuple[ProduceBatch, ProduceBatch]:
    """Move the records of a batch, which has at least two, to two new batches; return these."""
    assert batch.data is not None  # the batch was sent
    _, parts = records_in_halves(memoryview(batch.data))  # without its codec
    halves: list[ProduceBatch] = []
    places: list[tuple[ProduceBatch, int]] = []
    for part in parts:
        half = ProduceBatch(batch.tp, batch.created_at, batch.deadline, part[0].timestamp)
        size = batch.size * len(part) // batch.count  # the second half gets the rest below
        for n, (key, value, timestamp, headers) in enumerate(part):
            places.append((half, n))
            half.append(key, value, timestamp, headers, 0)  # `half.size` is set after the loop
        half.size = size
        halves.append(half)
    halves[-1].size = batch.size - halves[0].size
    batch.move(places)
    return halves[0], halves[1]

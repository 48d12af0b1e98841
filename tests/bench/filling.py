"""Fills a topic with records for readers."""

from __future__ import annotations

from kafkagroup import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec

from . import broker, decoding
from .readers import VALUE_BYTES

__all__ = ["BATCH", "fill"]

BATCH = 1_000
"""Records of one produced batch: about 100 KB before compression."""


async def fill(
    bootstrap: str,
    topic: str,
    partitions: int,
    codec: Codec,
    batches: int,
    size: int = VALUE_BYTES,
    per_batch: int = BATCH,
) -> int:
    """Append whole batches to all partitions in turn; return the number of records."""
    records = [
        NewRecord(None, value, 1_700_000_000_000) for value in decoding.values(size, per_batch)
    ]
    batch = encode_batch(records, codec=codec)
    async with broker.connected(bootstrap) as node:
        for n in range(batches):
            await broker.produce(node, {TopicPartition(topic, n % partitions): batch})
    return batches * per_batch

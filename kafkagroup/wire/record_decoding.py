"""`decode_records`: the public decoder of what `Broker.fetch_messages` returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from kafkagroup.errors import LimitExceededError
from kafkagroup.types import Record
from kafkagroup.wire.batch_format import LEADER_EPOCH_OFFSET, PREFIX
from kafkagroup.wire.compression import MAX_BATCH_BYTES
from kafkagroup.wire.records import read_batches

__all__ = ["decode_records"]


def decode_records(
    data: bytes | memoryview | None,
    topic: str,
    partition: int,
    *,
    start_offset: int = 0,
    max_batch_bytes: int = MAX_BATCH_BYTES,
) -> Iterator[Record[bytes | None, bytes | None]]:
    """Decode the records of a partition in a fetch response, from `start_offset` on: give the
    offset that was requested, as the first batch may begin before it.

    ```python
    response = await broker.fetch_messages({TopicPartition("orders", 0): 5})
    for data in response.responses[0].partitions:
        for record in decode_records(data.records, "orders", 0, start_offset=5): ...
    ```

    - `data` is the field `records`; None and empty bytes have no records.
    - Compressed batches are decompressed: zstd, lz4, snappy and gzip, each to `max_batch_bytes` at
      most.
    - Formats 0 and 1, from before Kafka 0.11, are read too. Format 0 has no timestamps: they are
      -1.
    - Brokers cut a response at its size limit, so its last batch may be partial: it is left out.
    - Markers of transactions are left out. Records of aborted and of open transactions are not:
      `fetch_messages` reads them all. `Consumer(isolation_level="read_committed")` does not.

    Raises, only during iteration, after the records before the fault: CorruptRecordError for
    damaged data, with the offset, where possible also the next one that can be read;
    LimitExceededError for a batch that exceeds `max_batch_bytes`, and if the data has only a part
    of one batch, which a fetch with a larger limit returns whole.
    """
    view = memoryview(data or b"")
    has_whole_batch = not view  # without bytes no batch is incomplete
    for batch in read_batches(
        view, topic=topic, partition=partition, max_batch_bytes=max_batch_bytes
    ):
        has_whole_batch = True
        if not batch.is_control:
            records = batch.records(start_offset)
            yield from cast(Iterator[Record[bytes | None, bytes | None]], records)
    if not has_whole_batch:
        size = ""
        if len(view) >= PREFIX.size:
            size = f" of {PREFIX.unpack_from(view)[1] + LEADER_EPOCH_OFFSET}"
        raise LimitExceededError(
            f"{topic}/{partition}: the response has {len(view)} bytes{size} of its first batch;"
            " fetch with a larger limit for the partition"
        )

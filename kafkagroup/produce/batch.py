"""A batch of records on its way into the log of one partition, and what became of its records.

Compiled where possible, with the types in `batch.pxd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kafkagroup.errors import KafkaGroupError, NotWrittenError, RecordRefusedError
from kafkagroup.types import Headers, TopicPartition
from kafkagroup.wire.batch_format import HEADER_SIZE, TRANSACTIONAL
from kafkagroup.wire.batch_writing import EncodedRecords, put_record, seal
from kafkagroup.wire.compression import Codec, compress

__all__ = ["NO_SEQUENCE", "EndEvent", "ProduceBatch", "UnplacedRecords"]

NO_SEQUENCE = -1
"""The sequence number of a batch that has none: it is yet to get one, or is not idempotent."""


class EndEvent(Protocol):
    """The event that wakes the tasks that await records of a batch."""

    def set(self) -> None:
        """Wake the tasks: the records have ended, or moved to other batches."""


class ProduceBatch:
    """Consecutive records for one partition, encoded as they are added.

    A record is identified by its batch and its index there. It ends with its offset or an error; or
    it moves to another batch, because its batch was too large and is split, or because its
    partition was not known before.
    """

    def __init__(
        self, tp: TopicPartition, created_at: float, deadline: float, timestamp: int
    ) -> None:
        """`created_at` and `deadline`, when its records fail, are on the loop's clock; `timestamp`
        is that of its first record, in ms."""
        self.tp = tp
        self.created_at = created_at
        self.deadline = deadline
        self.base_timestamp = timestamp
        self.max_timestamp = timestamp
        self.last_timestamp = timestamp
        """That of the last record, in ms."""
        self.records = bytearray(HEADER_SIZE)
        """Room for the header, and the encoded records, not compressed; empty once they are in
        `data`."""
        self.count = 0
        self.size = 0
        """The bytes by which the records count against the memory of the producer."""
        self.data: bytearray | None = None
        """The batch as `encode` last returned it, which is not changed any more: a batch that may
        have been written is sent again as it was. None before that, and after the end."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = NO_SEQUENCE
        self.attempts = 0
        """How often the batch was sent, with the attempt in flight."""
        self.is_maybe_written = False
        """Whether an attempt had no definite response: the records may be in the log."""
        self.has_ended = False
        """Whether its records have ended, or `moved` to other batches."""
        self.base_offset = -1
        """The offset of the first record; -1 before the end, and where the broker does not say."""
        self.append_time = -1
        """The timestamp that the broker gave the records, in ms; -1 if they keep their own."""
        self.error: KafkaGroupError | None = None
        self.is_failure_noted = False
        """Whether the failure is counted, and kept for `flush()` to raise."""
        self.read_count = 0
        """The number of records whose outcome the application has awaited, or awaits."""
        self.moved: Sequence[tuple[ProduceBatch, int]] | None = None
        """For each record the batch to which it moved, and its index there."""
        self.end_event: EndEvent | None = None
        """Set when the records end or move; None until a task waits."""

    def append(
        self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers, size: int
    ) -> None:
        """Add a record, which counts `size` bytes against the memory of the producer."""
        put_record(self.records, self.count, timestamp - self.base_timestamp, key, value, headers)
        self.last_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        self.size += size

    def fill(self, encoded: EncodedRecords) -> None:
        """Put records that are encoded already into the batch, which has none."""
        self.records, self.count, self.base_timestamp, self.max_timestamp = encoded
        self.size = len(self.records)

    def stamp(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Give the batch its place in the sequence of its partition, before it is first sent. If it
        was certainly not written, it may be given another place, or none."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence

    def encode(self, codec: Codec, level: int | None, is_transactional: bool) -> bytearray:
        """Return the batch as it is sent. The first call compresses the records; each call writes
        the header anew, as the batch may have been stamped again. `level`: of the compression; None
        for the codec's default."""
        if self.data is not None:
            batch = bytearray(self.data)  # a copy: an earlier request may still have `data`
        elif codec is Codec.NONE:
            batch = self.records
        else:
            batch = bytearray(HEADER_SIZE)
            batch += compress(codec, memoryview(self.records)[HEADER_SIZE:], level)
        seal(
            batch,
            codec | (TRANSACTIONAL if is_transactional else 0),
            self.count,
            self.base_timestamp,
            self.max_timestamp,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
        )
        self.records, self.data = bytearray(), batch
        return batch

    def acknowledge(self, base_offset: int, append_time: int) -> None:
        """Note that the records are in the log, from `base_offset` on."""
        self.base_offset = base_offset
        self.append_time = append_time
        self._end()

    def fail(self, error: KafkaGroupError) -> None:
        """Note that the records were not written, or not acknowledged in time."""
        self.error = error
        self._end()

    def move(self, places: Sequence[tuple[ProduceBatch, int]]) -> None:
        """Note that the records have moved: `places` has, for each record in order, its new batch,
        and its index there."""
        self.moved = places
        self._end()

    def _end(self) -> None:
        self.has_ended = True
        self.records = bytearray(HEADER_SIZE)  # as in a new batch: frees the memory
        self.data = None
        if self.end_event is not None:
            self.end_event.set()
            self.end_event = None

    def error_of(self, index: int) -> NotWrittenError | None:
        """Return why a record of a batch that has ended was not written; None if it was, or has
        moved."""
        error = self.error
        if error is None:
            return None
        is_other = isinstance(error, RecordRefusedError) and error.index != index
        return NotWrittenError(
            self.tp, error, is_maybe_written=self.is_maybe_written, is_of_another_record=is_other
        )


class UnplacedRecords(ProduceBatch):
    """The records of a topic whose number of partitions is not known."""

    def __init__(self, topic: str, created_at: float, deadline: float) -> None:
        super().__init__(TopicPartition(topic, -1), created_at, deadline, 0)
        self.waiting: list[tuple[int | None, bytes | None, bytes | None, Headers, int, int]] = []
        """Partition, key, value, headers, timestamp and size of each record. Partition None: it is
        chosen when the number of partitions is known. Empty after the end."""

    def _end(self) -> None:
        super()._end()
        self.waiting = []  # frees the memory

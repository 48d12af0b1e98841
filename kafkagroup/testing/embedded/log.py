"""The log of one partition: record batches as bytes.

Only the fixed header of a batch is parsed; like a broker, the log writes the offset and the leader
epoch into it, and changes nothing else. Records are parsed only to search by time. Everything
appended is committed at once: the high watermark is the end.
Source: record batch format v2, and the leader epoch cache of Apache Kafka 4.3 (KIP-101, 279).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import attrs

from kafkagroup.testing.embedded.producer_states import ProducerStates
from kafkagroup.wire.batch_format import PREFIX
from kafkagroup.wire.batch_writing import with_base_offset
from kafkagroup.wire.records import RecordBatch, read_batches

__all__ = ["PartitionLog", "TimedOffset"]


@attrs.frozen
class TimedOffset:
    """The result of an offset lookup. All fields are -1 if nothing was found."""

    offset: int = -1
    timestamp: int = -1
    """In milliseconds; -1 for the log's start or end."""
    leader_epoch: int = -1


class PartitionLog:
    """The log of one partition. Offsets in `[start, end)` can be read."""

    def __init__(self) -> None:
        self._batches: list[RecordBatch] = []
        self._epochs: list[tuple[int, int]] = [(0, 0)]
        """The leader epochs, each with its start offset, in order."""
        self.producers = ProducerStates()
        """The state of the producers that have written the batches."""
        self.start = 0
        """The first offset that remains."""
        self.end = 0
        """The offset of the next record; also the high watermark."""

    @property
    def stable_end(self) -> int:
        """The last stable offset: no record from the log's start up to it belongs to an open
        transaction.

        As in Kafka, an open transaction that began below the log's start holds it at the first
        batch that remains, which may contain the start.
        """
        open_from = self.producers.open_from
        if open_from is None:
            return self.end
        if open_from >= self.start:
            return open_from
        return next((batch.base_offset for batch in self._from(self.start)), self.start)

    @property
    def epoch(self) -> int:
        """The leader epoch of new batches."""
        return self._epochs[-1][0]

    def begin_epoch(self, epoch: int) -> None:
        """Start a leader epoch, above the present one. Earlier epochs without batches are
        dropped."""
        kept = [e for e in self._epochs if e[0] < epoch and e[1] < self.end]
        self._epochs = [*kept, (epoch, self.end)]

    def append(self, data: bytes | memoryview) -> int:
        """Append one whole batch, without a check of its records; return the offset of the first.

        Messages of formats 0 and 1 keep the offsets that they have. For them, return where the log
        ended before the append.

        Raises: ValueError unless `data` is exactly one batch, or whole messages, the first of
        which ends at or above the log's end; CorruptRecordError if it is damaged.
        """
        if len(data) < PREFIX.size:
            raise ValueError(f"expected one whole batch, not 0 in {len(data)} bytes")
        if PREFIX.unpack_from(data)[2] < 2:
            return self._append_messages(bytes(data))
        placed = with_base_offset(data, self.end, self.epoch)
        batches = tuple(read_batches(placed, topic="", partition=-1))
        if len(batches) != 1 or batches[0].size != len(placed):
            raise ValueError(f"expected one whole batch, not {len(batches)} in {len(placed)} bytes")
        self._batches += batches
        self.end = batches[0].next_offset
        self.producers.on_append(batches[0])
        return batches[0].base_offset

    def _append_messages(self, data: bytes) -> int:
        end, batches = self.end, tuple(read_batches(data, topic="", partition=-1))
        size = sum(batch.size for batch in batches)
        if not size or size != len(data) or batches[0].last_offset < end:
            raise ValueError(f"expected whole messages from offset {end} on in {len(data)} bytes")
        self._batches += batches
        self.end = batches[-1].next_offset
        return end

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool = True, end: int | None = None
    ) -> bytes:
        """Return up to `max_bytes` of batches, beginning with the one that contains `offset`, or
        the next one after it; none that begins at or above `end`, if it is given.

        The last batch may be truncated, as a broker sends a slice of its file. A first batch that
        does not fit is returned whole, or, without `at_least_one`, not at all.
        """
        chunks: list[memoryview] = []
        size = 0
        for batch in self._from(offset):
            if end is not None and batch.base_offset >= end:
                break
            if not chunks and batch.size > max_bytes:
                return bytes(batch.raw) if at_least_one else b""
            chunks.append(batch.raw)
            size += batch.size
            if size >= max_bytes:
                break
        return b"".join(chunks)[:max_bytes]

    def _from(self, offset: int) -> Iterator[RecordBatch]:
        """Return the batches from the first that ends at or above `offset` on."""
        first = bisect_right(self._batches, offset, key=lambda b: b.last_offset + 1)
        return iter(self._batches[first:])

    def earliest(self) -> TimedOffset:
        """Return the log's start."""
        return TimedOffset(self.start, -1, self._epoch_at(self.start))

    def latest(self) -> TimedOffset:
        """Return the log's end."""
        return TimedOffset(self.end, -1, self.epoch)

    def latest_stable(self) -> TimedOffset:
        """Return the last stable offset."""
        return TimedOffset(self.stable_end, -1, self._epoch_at(self.stable_end))

    def at_max_timestamp(self) -> TimedOffset:
        """Return the place of the record with the largest timestamp, of the first one if there are
        several (KIP-734)."""
        tops = (
            batch.max_timestamp
            if batch.base_offset >= self.start
            # Records of this batch are deleted: its header has the timestamps of all.
            else max((record.timestamp for record in batch.records(self.start)), default=-1)
            for batch in self._from(self.start)
        )
        top = max(tops, default=None)
        return TimedOffset() if top is None else self.at_time(top)

    def at_time(self, timestamp: int) -> TimedOffset:
        """Return the place of the first record at or after `timestamp`, in milliseconds."""
        for batch in self._from(self.start):
            if batch.max_timestamp >= timestamp:
                for record in batch.records(self.start):
                    if record.timestamp >= timestamp:
                        return TimedOffset(record.offset, record.timestamp, batch.leader_epoch)
        return TimedOffset()

    def _epoch_at(self, offset: int) -> int:
        return next((epoch for epoch, start in reversed(self._epochs) if start <= offset), -1)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest known epoch up to `epoch`, and its end offset: the start of the next
        epoch, or the log's end.

        Return `epoch` itself if all known epochs are above it; (-1, -1) if all are below it, or if
        it is negative.
        """
        if epoch == self.epoch:
            return epoch, self.end
        above = next((start for e, start in self._epochs if e > epoch), None)
        if above is None or epoch < 0:
            return -1, -1
        return max((e for e, _ in self._epochs if e <= epoch), default=epoch), above

    def delete_before(self, offset: int) -> None:
        """Delete the records below `offset`, as DeleteRecords and retention do. Raises: ValueError
        for an offset beyond the end."""
        if offset > self.end:
            raise ValueError(f"cannot delete up to {offset}: the log ends at {self.end}")
        self.start = max(self.start, offset)
        self._batches = list(self._from(self.start))

    def truncate(self, offset: int) -> None:
        """Delete everything from `offset` on, as an unclean leader election does.

        A batch that contains `offset` is deleted as a whole.
        """
        self._batches = [b for b in self._batches if b.last_offset < offset]
        self.end = self._batches[-1].next_offset if self._batches else self.start
        self.producers.rebuild(self._batches)
        kept = [e for e in self._epochs if e[1] < self.end]
        self._epochs = kept or [(self.epoch, self.end)]

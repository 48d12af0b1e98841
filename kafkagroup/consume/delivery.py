"""Deliver records in order, and track which are delivered, in flight and processed.

Everything here is synchronous: a cancellation comes before a record is taken or after the caller
has it, never between. While a coroutine deserializer of a record is awaited, the record is
`unconverted`: not delivered, not below the position, and dropped if its partition is revoked. This
file is compiled, with the types in `delivery.pxd`, where a compiler is available.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from kafkagroup._generic import K_co, KeyValueGeneric, V_co
from kafkagroup._public import public
from kafkagroup._record import Record
from kafkagroup.consume.acknowledgement import SequentialPolling
from kafkagroup.consume.conversion import Conversion, Outcome
from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
from kafkagroup.consume.progress import Progress
from kafkagroup.errors import DecodeError
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.arrow import columns, columns_of
from kafkagroup.wire.records import COMPILED, RecordBatch, RecordReader

if TYPE_CHECKING:
    import pyarrow

    from kafkagroup.types import Record as TypedRecord

__all__ = ["Batch", "Delivery"]

SUSPENDS = Outcome.SUSPENDS


@public
class Batch(KeyValueGeneric[K_co, V_co]):
    """Consecutive records of one partition, to be processed together: frozen, and compared by
    topic, partition and records.

    ```python
    async for batch in consumer.batches():
        for record in batch: ...
    ```
    """

    # Without deserializers, if this file is compiled or the batch is for Arrow, records are only
    # checked and counted, and decoded during iteration.
    __slots__ = ("_count", "_partition", "_records", "_topic", "_undecoded")
    __match_args__ = ("topic", "partition", "records")

    def __init__(
        self, topic: str, partition: int, records: tuple[TypedRecord[K_co, V_co], ...]
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._records: tuple[TypedRecord[K_co, V_co], ...] | None = records
        """None until they are decoded."""
        self._undecoded: RecordReader | None = None
        """Decodes the records; None for a batch that was made of decoded ones."""
        self._count = len(records)

    @classmethod
    def _of_undecoded(
        cls, topic: str, partition: int, undecoded: RecordReader, count: int
    ) -> Batch[Any, Any]:
        """Return a batch of `count` records that are checked and not decoded yet."""
        batch: Batch[Any, Any] = cls(topic, partition, ())
        batch._decode_on_use(undecoded, count)
        return batch

    def _decode_on_use(self, undecoded: RecordReader, count: int) -> None:
        self._records = None
        self._undecoded = undecoded
        self._count = count

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._partition

    @property
    def records(self) -> tuple[TypedRecord[K_co, V_co], ...]:
        """The records, at least one, by ascending offset, with gaps where the log has them."""
        if self._records is None:
            self._records = tuple(self)
        return self._records

    def __iter__(self) -> Iterator[TypedRecord[K_co, V_co]]:
        if self._undecoded is not None and self._records is None:
            return cast("Iterator[TypedRecord[K_co, V_co]]", self._undecoded.fork())
        return iter(self.records)

    def __len__(self) -> int:
        return self._count

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return the records as columns, `wire.arrow.schema`; records that are not decoded yet need
        no Python objects.

        Raises: ConfigurationError without pyarrow (the extra `arrow`), or if a deserializer
        returned something other than bytes for keys or values.
        """
        if self._undecoded is not None:
            return columns(self._undecoded.fork(), self._count, self._topic, self._partition)
        return columns_of(self.records, self._topic, self._partition)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return (self._topic, self._partition, self.records) == (
            other._topic,
            other._partition,
            other.records,
        )

    def __hash__(self) -> int:
        return hash((self._topic, self._partition, self.records))

    def __repr__(self) -> str:
        return f"Batch({self._topic!r}, {self._partition}, {self.records!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (self._topic, self._partition, self.records)


class Delivery:
    """The owned partitions, and the order in which their records are delivered."""

    def __init__(
        self,
        conversion: Conversion | None = None,
        *,
        views: bool = False,
    ) -> None:
        self.owned: dict[TopicPartition, OwnedPartition] = {}
        self.acknowledgement = SequentialPolling()
        self.conversion = conversion
        self._views = views
        """Whether keys and values are memoryviews of the batch, not bytes."""
        self._lazy = COMPILED and conversion is None
        """Whether batches are decoded during iteration only. That reads the bytes twice, which is
        slower if this file is not compiled."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when the buffers shrank: there is room to fetch. The fetcher sets it."""
        self.on_awaiting_seek: Callable[[], None] = lambda: None
        """Called when `awaiting_seek` returns one more partition than before. The engine sets
        it."""
        self._round_robin: OrderedDict[OwnedPartition, None] = OrderedDict()
        """Partitions with buffered records, except the current and the paused ones, in the order of
        delivery."""
        self._current: OwnedPartition | None = None
        """The partition whose batch is open; None for none."""
        self._batch: RecordBatch | None = None
        """The open batch, of the current partition."""
        self._reader: RecordReader | None = None
        """Reads the open batch; None for a control batch, or one of an aborted transaction."""
        self._converting: Record | None = None
        """The record of the open batch that is being converted. If its deserializer fails, it stays
        here, and each call converts it again until the application seeks."""
        self._conversion_error: Exception | None = None
        """The error of the last conversion of `_converting`."""
        self.unconverted: Record | None = None
        """`_converting`, if its conversion must be awaited. The caller awaits it, and then calls
        `on_converted` or `on_conversion_failed`."""
        self._converted: deque[tuple[Record, Record | Outcome]] = deque()
        """Records before `_converting` whose conversion was awaited, raw and converted. They are
        not delivered yet; the position is before them."""
        self._error_after_converted: Exception | None = None
        """The error to raise as soon as `_converted` is delivered: a conversion failed or, if
        `_converting` is None, the batch is corrupt."""
        self._deferred_error: tuple[OwnedPartition, Exception] | None = None
        """An error to raise after the records before it were delivered, and its partition."""
        self.unprepared: RecordReader | None = None
        """Reads the open batch if a thread must prepare it first: it is large when decompressed, or
        the position is far inside. The caller then calls `note_prepared`."""

    # ------------------------------------------------------------ ownership

    def own(self, partitions: Iterable[TopicPartition]) -> list[OwnedPartition]:
        """Own these partitions. The caller sets their positions."""
        created = self.create(partitions)
        self.assign(created)
        return created

    def create(
        self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID] | None = None
    ) -> list[OwnedPartition]:
        """Create an `OwnedPartition` of each partition that is not owned yet. `topic_ids`: the ids
        of the topics, if the coordinator assigns by id (KIP-848)."""
        if not topic_ids:
            return [OwnedPartition(tp) for tp in partitions if tp not in self.owned]
        return [
            OwnedPartition(tp, assigned_topic_id=topic_ids[tp.topic], topic_id=topic_ids[tp.topic])
            for tp in partitions
            if tp not in self.owned
        ]

    def assign(self, created: Iterable[OwnedPartition]) -> None:
        """Own the partitions that `create` returned."""
        for owned in created:
            self.owned[owned.tp] = owned

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop delivering these partitions. Records in flight may still become processed."""
        for tp in partitions:
            if (owned := self.owned.get(tp)) is not None and not owned.revoked:
                owned.revoke()
                owned.drop_buffer()
                self._stop_delivering(owned)
        self.on_room()

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop owning these partitions."""
        released = [self.owned.pop(tp) for tp in tuple(partitions) if tp in self.owned]
        for owned in released:
            owned.revoke()
            self._stop_delivering(owned)
        self.acknowledgement.forget(released)
        self.on_room()

    def pause(self, tp: TopicPartition) -> None:
        """Stop delivering and fetching a partition. Its buffer stays."""
        owned = self.owned[tp]
        owned.paused = True
        if owned is self._current and self._batch is not None:
            owned.put_back(self._batch)
        deferred_error = self._deferred_error
        self._stop_delivering(owned)
        if owned.failure is not None:
            # The partition is not read again before a seek, so that no read would raise the error
            # again.
            self._deferred_error = deferred_error
        self.on_room()

    def resume(self, tp: TopicPartition) -> None:
        """Deliver and fetch a partition again."""
        owned = self.owned[tp]
        owned.paused = False
        self._enqueue(owned)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue at `offset`. Records in flight do not count as processed."""
        owned = self.owned[tp]
        self._stop_delivering(owned)
        self.acknowledgement.forget((owned,))
        owned.seek(offset)
        self.on_room()

    def relocate(self, tp: TopicPartition, offset: int) -> None:
        """Continue at `offset` after a truncation or a reset. Records in flight below it stay in
        flight until the application polls again, unless they are of a deleted topic."""
        owned = self.owned[tp]
        self._stop_delivering(owned)
        owned.relocate(offset)
        self.on_room()

    def _stop_delivering(self, owned: OwnedPartition) -> None:
        if self._current is owned:
            self._current = self._batch = self._reader = self.unprepared = None
            self._converting = self.unconverted = None
            self._conversion_error = self._error_after_converted = None
            self._converted.clear()
        if self._deferred_error is not None and self._deferred_error[0] is owned:
            self._deferred_error = None
        self._round_robin.pop(owned, None)

    # ------------------------------------------------------------ buffers and offsets

    def add(self, owned: OwnedPartition, batches: list[RecordBatch]) -> None:
        """Buffer the fetched batches of a partition; drop them if it was revoked."""
        if owned.revoked:
            return
        owned.add(batches)
        self._enqueue(owned)

    def _enqueue(self, owned: OwnedPartition) -> None:
        is_queued = owned is self._current or owned in self._round_robin
        if owned.buffered and not owned.paused and not is_queued:
            self._round_robin[owned] = None

    def processed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offset up to which each partition is processed, committed or not."""
        return {
            tp: OffsetAndMetadata(owned.processed, leader_epoch=owned.processed_epoch)
            for tp, owned in self.owned.items()
            if owned.processed != UNKNOWN
        }

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are buffered, including those of paused partitions."""
        return sum(owned.buffered_bytes for owned in self.owned.values())

    @property
    def unread_bytes(self) -> int:
        """Bytes that are buffered and can be delivered."""
        return sum(owned.buffered_bytes for owned in self.owned.values() if not owned.paused)

    # ------------------------------------------------------------ delivery

    def note_prepared(self, reader: RecordReader) -> None:
        """Note that a thread has prepared this batch, so that its records can be delivered; without
        effect for another batch than the `unprepared` one."""
        if self.unprepared is reader:
            self.unprepared = None

    def next_record(self) -> Any:
        """Deliver the next record, converted by the deserializers. None if no record is buffered,
        or the next one is in an `unprepared` batch, or is `unconverted`.

        Raises: CorruptRecordError or LimitExceededError, once; DeserializationError, or what the
        error handler raised, at each call until the application seeks. The position stays before
        the record.
        """
        if self._deferred_error is not None:
            self._raise_deferred_error()
        while True:
            owned = self._current
            if owned is None:
                owned = self._open_batch()
                if owned is None or self.unprepared is not None:
                    return None
            record = self._read(owned)
            if record is not None:
                return record
            if self.unconverted is not None:
                return None
            self._close_batch(owned)

    def next_batch(
        self, max_records: int, *, undecoded: bool = False, follows_batch: bool = False
    ) -> Batch[Any, Any] | None:
        """Deliver up to `max_records` records of one partition. They are in flight together with
        those delivered before. With `undecoded`, and without deserializers, they are decoded during
        iteration. None as for `next_record`.

        A record that cannot be decoded or converted ends the batch before it, and the next call
        raises its error. `follows_batch`: another batch was delivered in the same call of the
        application. Then the error of a first record is also raised by the next call, because
        raising it now would lose that batch.
        """
        if self._deferred_error is not None:
            if follows_batch:
                return None
            self._raise_deferred_error()
        while True:
            owned = self._current
            if owned is None:
                owned = self._open_batch()
                if owned is None or self.unprepared is not None:
                    return None
            if self.conversion is not None and self._must_await(self.conversion, max_records):
                return None
            lazy = self._lazy or (undecoded and self.conversion is None)
            try:
                batch = (
                    self._read_undecoded(owned, max_records)
                    if lazy
                    else self._read_many(owned, max_records)
                )
            except Exception as error:
                if not follows_batch:
                    raise
                self._deferred_error = (owned, error)
                return None
            if batch is not None:
                return batch
            if self.unconverted is not None:
                return None
            self._close_batch(owned)

    def next_batches(self, max_records: int) -> list[Batch[Any, Any]]:
        """Deliver up to `max_records` records of all partitions, as `next_batch` does."""
        batches: list[Batch[Any, Any]] = []
        while (
            max_records > 0
            and (batch := self.next_batch(max_records, follows_batch=bool(batches))) is not None
        ):
            batches.append(batch)
            max_records -= len(batch)
        return batches

    def on_converted(self, raw: Record, result: Record | Outcome) -> None:
        """Take the result of the awaited conversion of the `unconverted` record; drop it if the
        partition was revoked, paused or sought meanwhile."""
        if self.unconverted is raw:
            self.unconverted = self._converting = self._conversion_error = None
            self._converted.append((raw, result))

    def on_conversion_failed(self, raw: Record, error: Exception) -> None:
        """Note that the awaited conversion failed: its error is raised after the records before it
        were delivered."""
        if self.unconverted is raw:
            self.unconverted = None
            self._error_after_converted = error

    def _raise_deferred_error(self) -> None:
        if self._deferred_error is not None:
            (_, error), self._deferred_error = self._deferred_error, None
            raise error

    def _read(self, owned: OwnedPartition) -> Record | None:
        """Return the next record of the open batch, and advance the position past it; None at the
        batch's end, or if the next record is `unconverted`."""
        if self.conversion is not None:
            return self._read_converted(owned)
        if self._reader is None:
            return None
        try:
            record = self._reader.next()
        except DecodeError as error:
            self._fail_partition(owned, error)
            raise
        if record is not None:
            self.acknowledgement.begin(owned)
            # Not `owned.advance`, which would be looked up for each record: see `progress.pxd`.
            Progress.advance(owned, record._offset + 1, record._leader_epoch)
        return record

    def _read_converted(self, owned: OwnedPartition) -> Record | None:
        conversion = self.conversion
        assert conversion is not None
        while True:
            if self._converted:
                raw, result = self._converted.popleft()
            else:
                following = self._next_raw()
                if self._error_after_converted is not None:
                    error, self._error_after_converted = self._error_after_converted, None
                    if self._converting is not None:
                        self._note_conversion_error(error)
                    elif isinstance(error, DecodeError):
                        self._fail_partition(owned, error)
                    raise error
                if following is None:
                    return None
                raw = following
                try:
                    result = conversion.now(raw)
                except Exception as error:
                    self._note_conversion_error(error)
                    raise
                if result is SUSPENDS:
                    self.unconverted = raw
                    return None
                self._converting = self._conversion_error = self.unconverted = None
            delivered = result if isinstance(result, Record) else None
            if delivered is not None:
                self.acknowledgement.begin(owned)
            # Taken from the raw record: an error handler may have returned a different record.
            Progress.advance(owned, raw._offset + 1, raw._leader_epoch)
            if delivered is not None:
                return delivered

    def _next_raw(self) -> Record | None:
        """Return the record to convert next; None at the end of the open batch, or if
        `_error_after_converted` has the error to raise instead."""
        if (
            self._converting is None
            and self._reader is not None
            and self._error_after_converted is None
        ):
            try:
                self._converting = self._reader.next()
            except DecodeError as error:
                self._error_after_converted = error
        return self._converting

    def _must_await(self, conversion: Conversion, max_records: int) -> bool:
        """Return whether a conversion must be awaited before `max_records` can be delivered at
        once; if so, set `unconverted`."""
        if not conversion.suspends or len(self._converted) >= max_records:
            return False
        raw = self._next_raw()
        if raw is None or self._error_after_converted is not None:
            return False
        self.unconverted = raw
        return True

    def _read_many(self, owned: OwnedPartition, max_records: int) -> Batch[Any, Any] | None:
        """Return up to `max_records` records of the open batch."""
        if self.conversion is None:
            return self._read_many_raw(owned, max_records)
        records: list[Any] = []
        try:
            while len(records) < max_records:
                record = self._read_converted(owned)
                if record is None:
                    break
                records.append(record)
        except Exception as error:
            if not records:
                raise
            self._deferred_error = (owned, error)
        return Batch(owned.tp.topic, owned.tp.partition, tuple(records)) if records else None

    def _read_many_raw(self, owned: OwnedPartition, max_records: int) -> Batch[Any, Any] | None:
        """Do as `_read_many`, without deserializers."""
        if self._reader is None:
            return None
        try:
            records = self._reader.take(max_records)
        except DecodeError as error:
            self._fail_partition(owned, error)
            raise
        if not records:
            return None
        self.acknowledgement.begin(owned)
        owned.advance(records[-1].offset + 1, records[-1].leader_epoch)
        return Batch(owned.tp.topic, owned.tp.partition, cast("Any", tuple(records)))

    def _read_undecoded(self, owned: OwnedPartition, max_records: int) -> Batch[Any, Any] | None:
        """Return as many records as `_read_many` would, checked and not decoded."""
        reader, batch = self._reader, self._batch
        if reader is None or batch is None:
            return None
        try:
            undecoded = reader.fork()  # at the first of the records, before `skip` advances
            count = reader.skip(max_records)
        except DecodeError as error:
            self._fail_partition(owned, error)
            raise
        if not count:
            return None
        undecoded.stop_after(count)
        self.acknowledgement.begin(owned)
        owned.advance(reader.offset + 1, batch.leader_epoch)
        return Batch._of_undecoded(owned.tp.topic, owned.tp.partition, undecoded, count)

    def _fail_partition(self, owned: OwnedPartition, error: DecodeError) -> None:
        """Stop delivering the partition until the application seeks: to continue would silently
        skip the rest of the batch."""
        owned.failure = error
        self._stop_delivering(owned)
        owned.drop_buffer()
        self.on_room()
        self.on_awaiting_seek()

    def _note_conversion_error(self, error: Exception) -> None:
        """Keep the error of `_converting` for `awaiting_seek`. Each call converts that record
        again, and raises, until the application seeks."""
        known, self._conversion_error = self._conversion_error, error
        if known is None:
            self.on_awaiting_seek()

    def awaiting_seek(self) -> list[tuple[OwnedPartition, Exception]]:
        """Return the partitions that deliver nothing until the application seeks, and why. May be
        called from any thread."""
        found = [
            (owned, owned.failure)
            for owned in self.owned.copy().values()
            if owned.failure is not None and not owned.revoked
        ]
        current, error = self._current, self._conversion_error
        if current is not None and error is not None:
            found.append((current, error))
        return found

    def _open_batch(self) -> OwnedPartition | None:
        """Open the first batch of the partition whose turn it is, and return that partition; None
        if no record is buffered. Sets `unprepared` if a thread must prepare the batch."""
        if not self._round_robin:
            return None
        owned, _ = self._round_robin.popitem(last=False)
        self._current = owned
        batch = self._batch = owned.take_batch()
        self.on_room()  # the next fetch can be sent while these records are delivered
        # Control batches are transaction markers, and hidden ones are of aborted transactions.
        is_skipped = batch.is_control or batch.is_hidden
        self._reader = None if is_skipped else batch.records(owned.position, views=self._views)
        is_prepared = self._reader is None or self._reader.prepare_at_once()
        self.unprepared = None if is_prepared else self._reader
        return owned

    def _close_batch(self, owned: OwnedPartition) -> None:
        """Advance the position past the batch, including offsets at its end that compaction or
        transaction markers left empty: otherwise lag would never reach zero."""
        if self._batch is not None:
            owned.skip_to(self._batch.next_offset, self._batch.leader_epoch)
        self._current = self._batch = self._reader = None
        self._enqueue(owned)

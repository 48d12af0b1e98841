"""Hands out records in order and keeps the account: delivered, in hand, processed.

A record in hand becomes processed when the next one is asked for. Everything here is synchronous,
so a cancellation falls before a record is taken or after it is the caller's, never between. A
record for which a coroutine deserializer is to be awaited is `unconverted` meanwhile: not
delivered, not below the position, and dropped where its partition is revoked. This file is compiled
where a compiler is at hand, by the types in `delivery.pxd`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from kafkagroup._generic import K_co, Keyed, V_co
from kafkagroup._public import public
from kafkagroup._record import Record
from kafkagroup.consume.conversion import Conversion, Outcome
from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
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
class Batch(Keyed[K_co, V_co]):
    """Consecutive records of one partition, which are processed together: frozen, and compared by
    its records.

    ```python
    async for batch in consumer.batches():
        for record in batch: ...
    ```
    """

    # Compiled, and without deserializers, the records are still bytes: counted and checked, and
    # made one at a time while they are gone over.
    __slots__ = ("_count", "_made", "_partition", "_topic", "_unread")
    __match_args__ = ("topic", "partition", "records")

    def __init__(
        self, topic: str, partition: int, records: tuple[TypedRecord[K_co, V_co], ...]
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._made: tuple[TypedRecord[K_co, V_co], ...] | None = records
        self._unread: RecordReader | None = None
        self._count = len(records)

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
        """At least one; offsets grow, with gaps where the log has them."""
        if self._made is None:
            self._made = tuple(self)
        return self._made

    def __iter__(self) -> Iterator[TypedRecord[K_co, V_co]]:
        if self._unread is not None and self._made is None:
            return cast("Iterator[TypedRecord[K_co, V_co]]", self._unread.fork())
        return iter(self.records)

    def __len__(self) -> int:
        return self._count

    def to_arrow(self) -> pyarrow.RecordBatch:
        """The records as columns, `wire.arrow.schema`; without an object for each record where they
        are still bytes.

        Raises: ConfigurationError without pyarrow (the extra `arrow`), or where a deserializer made
        something else of keys or values than bytes.
        """
        if self._unread is not None:
            return columns([(self._unread.fork(), self._count)], self._topic, self._partition)
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


def _lazy_batch(owned: OwnedPartition, records: RecordReader, count: int) -> Batch[Any, Any]:
    """Of `count` records that were checked, and are not made yet."""
    batch: Batch[Any, Any] = Batch(owned.tp.topic, owned.tp.partition, ())
    batch._made = None
    batch._unread = records
    batch._count = count
    return batch


class Delivery:
    """The partitions that are owned now, and whose turn it is."""

    def __init__(
        self,
        conversion: Conversion | None = None,
        took: Callable[[], None] = lambda: None,
        came_to_rest: Callable[[], None] = lambda: None,
        *,
        views: bool = False,
    ) -> None:
        self.owned: dict[TopicPartition, OwnedPartition] = {}
        self.conversion = conversion
        self._views = views
        self._lazy = COMPILED and conversion is None
        """Whether batches stay bytes. Going over them twice costs more than it saves where nothing
        is compiled."""
        self._took = took
        """Called when less is buffered than was, or less of it counts: there is room to fetch."""
        self._came_to_rest = came_to_rest
        """Called when there is one more in `resting`."""
        self._turn: OrderedDict[OwnedPartition, None] = OrderedDict()
        """Those with something to hand out, but the current one; the next to come first."""
        self._current: OwnedPartition | None = None
        self._batch: RecordBatch | None = None
        """The batch that is open, of the current partition."""
        self._records: RecordReader | None = None
        """Reads that batch; None for one that no application sees."""
        self._stuck: Record | None = None
        """The record of that batch that is being converted. It stays when its deserializer fails,
        and is converted anew for each call until the application seeks."""
        self._conversion_error: Exception | None = None
        """Why it could not be converted when that was tried last."""
        self.unconverted: Record | None = None
        """The same record, where it has to be awaited: by whoever takes records, with `converted`
        or `refused` as the end."""
        self._ahead: deque[tuple[Record, Record | Outcome]] = deque()
        """Records before that one which were awaited and are not handed out yet, as they came and
        as they are to be delivered. The position is below them."""
        self._refused: Exception | None = None
        """What is to be raised behind these: the awaited conversion failed, or, where no record is
        stuck, the batch is damaged."""
        self._kept: tuple[OwnedPartition, Exception] | None = None
        """An error that came behind records which had to be handed out first, and whose it is."""
        self.heavy: RecordReader | None = None
        """Reads that batch too, where a thread is to prepare it first: it inflates to much, or the
        position lies far inside."""
        self._hand: tuple[OwnedPartition, ...] = ()

    # ------------------------------------------------------------ ownership

    def own(self, partitions: Iterable[TopicPartition]) -> list[OwnedPartition]:
        """Begin to own partitions; positions are looked up by others."""
        fresh = self.made(partitions)
        self.take_up(fresh)
        return fresh

    def made(self, partitions: Iterable[TopicPartition]) -> list[OwnedPartition]:
        """What `take_up` takes, of those that are not owned yet; most of the work of owning."""
        return [OwnedPartition(tp) for tp in partitions if tp not in self.owned]

    def take_up(self, fresh: Iterable[OwnedPartition]) -> None:
        """Begin to own these."""
        for owned in fresh:
            self.owned[owned.tp] = owned

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out no more of them; what is in hand may still become processed."""
        for tp in partitions:
            if (owned := self.owned.get(tp)) is not None:
                owned.revoked = True
                owned.drop_buffer()
                self._leave(owned)
        self._took()

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Own them no longer."""
        gone = [self.owned.pop(tp) for tp in tuple(partitions) if tp in self.owned]
        for owned in gone:
            owned.revoked = True
            self._leave(owned)
        self._hand = tuple(owned for owned in self._hand if owned not in gone)
        self._took()

    def pause(self, tp: TopicPartition) -> None:
        """Hand out nothing of a partition, and fetch nothing; what is buffered stays."""
        owned = self.owned[tp]
        owned.paused = True
        if owned is self._current and self._batch is not None:
            owned.put_back(self._batch)
        self._leave(owned)
        self._took()

    def resume(self, tp: TopicPartition) -> None:
        """Hand out and fetch again."""
        owned = self.owned[tp]
        owned.paused = False
        self._queue(owned)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on at `offset`. What is in hand of this partition is not counted as processed."""
        owned = self.owned[tp]
        self._leave(owned)
        self._hand = tuple(o for o in self._hand if o is not owned)
        covered = owned.covered
        owned.start_at(offset)
        if covered != UNKNOWN:
            # A commit would be of this offset. Before there was a position it is only a start.
            owned.covered = covered
        self._took()

    def relocate(self, tp: TopicPartition, offset: int) -> None:
        """Go on at `offset`, as the log is not what it was. What is in hand stays there: not before
        the application comes back is it processed."""
        owned = self.owned[tp]
        processed, in_hand = owned.processed, owned.processed != owned.position
        self._leave(owned)
        owned.start_at(offset)
        if in_hand:
            owned.processed = min(processed, offset)
        self._took()

    def _leave(self, owned: OwnedPartition) -> None:
        if self._current is owned:
            self._current = self._batch = self._records = self.heavy = None
            self._stuck = self._conversion_error = self.unconverted = self._refused = None
            self._ahead.clear()
        if self._kept is not None and self._kept[0] is owned:
            self._kept = None
        self._turn.pop(owned, None)

    # ------------------------------------------------------------ what was fetched

    def add(self, owned: OwnedPartition, batches: list[RecordBatch]) -> None:
        """Queue what was fetched for a partition; dropped when it is no longer owned."""
        if owned.revoked:
            return
        owned.add(batches)
        self._queue(owned)

    def _queue(self, owned: OwnedPartition) -> None:
        waits = owned is self._current or owned in self._turn
        if owned.buffered and not owned.paused and not waits:
            self._turn[owned] = None

    def to_commit(
        self, among: Iterable[OwnedPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is processed and not committed, of all that is owned or of what still is among
        these."""
        among = self.owned.values() if among is None else among
        pending = {o.tp: o.to_commit() for o in among if self.owned.get(o.tp) is o}
        return {tp: offset for tp, offset in pending.items() if offset is not None}

    def processed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Up to where each partition is processed, committed or not."""
        return {
            tp: OffsetAndMetadata(owned.processed, leader_epoch=owned.leader_epoch)
            for tp, owned in self.owned.items()
            if owned.processed != UNKNOWN
        }

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait to be handed out, those of paused partitions too."""
        return sum(owned.buffered_bytes for owned in self.owned.values())

    @property
    def unread_bytes(self) -> int:
        """Bytes that the application gets when it comes for more."""
        return sum(owned.buffered_bytes for owned in self.owned.values() if not owned.paused)

    # ------------------------------------------------------------ handing out

    def drop_heavy(self, heavy: RecordReader) -> None:
        """A thread has prepared `heavy`: hand out its records like any others."""
        if self.heavy is heavy:
            self.heavy = None

    def in_hand(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether the application holds a record of these that is not processed."""
        return any(owned.tp in partitions for owned in self._hand)

    def count_processed(self) -> None:
        """What is in hand is processed: the application asked for more, or committed."""
        for owned in self._hand:
            owned.processed = owned.position
        self._hand = ()

    def drop_in_flight(self) -> None:
        """The application does not come back for what it has in hand: it is not processed."""
        self._hand = ()

    def next_record(self) -> Any:
        """The next record, now in hand, of the types that deserializers make; None when nothing is
        buffered, it is in a `heavy` batch, or it is `unconverted`.

        Raises: CorruptRecordError, once, and DeserializationError, until the application seeks;
        the position stays before the record.
        """
        if self._kept is not None:
            self._raise_kept()
        while True:
            owned = self._current
            if owned is None:
                owned = self._open_batch()
                if owned is None or self.heavy is not None:
                    return None
            record = self._read(owned)
            if record is not None:
                self._hand = (owned,)
                return record
            if self.unconverted is not None:
                return None
            self._close_batch(owned)

    def next_batch(
        self, most: int, *, unread: bool = False, behind: bool = False
    ) -> Batch[Any, Any] | None:
        """Up to `most` records of one partition, now in hand beside what is there already; with
        `unread`, and without deserializers, still as bytes. None as `next_record`.

        A record that raises ends the batch before it; the next call raises. With `behind` the
        application is given another batch at the same time: then that is so for the first record,
        too, as what is raised now would take that batch from it.
        """
        if self._kept is not None:
            if behind:
                return None
            self._raise_kept()
        while True:
            owned = self._current
            if owned is None:
                owned = self._open_batch()
                if owned is None or self.heavy is not None:
                    return None
            if self.conversion is not None and self._must_await(self.conversion, most):
                return None
            lazy = self._lazy or (unread and self.conversion is None)
            try:
                batch = self._skip(owned, most) if lazy else self._read_many(owned, most)
            except Exception as error:
                if not behind:
                    raise
                self._kept = (owned, error)
                return None
            if batch is not None:
                self._put_in_hand(owned)
                return batch
            if self.unconverted is not None:
                return None
            self._close_batch(owned)

    def next_batches(self, most: int) -> list[Batch[Any, Any]]:
        """Up to `most` records of all partitions, in hand as by `next_batch`."""
        batches: list[Batch[Any, Any]] = []
        while most > 0 and (batch := self.next_batch(most, behind=bool(batches))) is not None:
            batches.append(batch)
            most -= len(batch)
        return batches

    def converted(self, raw: Record, made: Record | Outcome) -> None:
        """A record that was `unconverted` is awaited; dropped where its partition is gone."""
        if self.unconverted is raw:
            self.unconverted = self._stuck = self._conversion_error = None
            self._ahead.append((raw, made))

    def refused(self, raw: Record, error: Exception) -> None:
        """Its deserializer failed: raised when the records before it are handed out."""
        if self.unconverted is raw:
            self.unconverted = None
            self._refused = error

    def _put_in_hand(self, owned: OwnedPartition) -> None:
        self._hand = (*(o for o in self._hand if o is not owned), owned)

    def _raise_kept(self) -> None:
        if self._kept is not None:
            (_, error), self._kept = self._kept, None
            raise error

    def _read(self, owned: OwnedPartition) -> Record | None:
        """The next record of the open batch, and the position past it; None at its end, or where
        the next one is `unconverted`."""
        if self.conversion is not None:
            return self._read_converted(owned)
        if self._records is None:
            return None
        try:
            record = self._records.next()
        except DecodeError as error:
            self._give_up(owned, error)
            raise
        if record is not None:
            owned.position = record._offset + 1
            owned.leader_epoch = record._leader_epoch
        return record

    def _read_converted(self, owned: OwnedPartition) -> Record | None:
        conversion = self.conversion
        assert conversion is not None
        while True:
            if self._ahead:
                raw, made = self._ahead.popleft()
            else:
                following = self._next_raw()
                if self._refused is not None:
                    error, self._refused = self._refused, None
                    if self._stuck is not None:
                        self._not_converted(error)
                    elif isinstance(error, DecodeError):
                        self._give_up(owned, error)
                    raise error
                if following is None:
                    return None
                raw = following
                try:
                    made = conversion.now(raw)
                except Exception as error:
                    self._not_converted(error)
                    raise
                if made is SUSPENDS:
                    self.unconverted = raw
                    return None
                self._stuck = self._conversion_error = self.unconverted = None
            # Not of what is delivered: a handler may have made it anew.
            owned.position = raw._offset + 1
            owned.leader_epoch = raw._leader_epoch
            if isinstance(made, Record):
                return made

    def _next_raw(self) -> Record | None:
        """The record to convert next; None at the end of the open batch, or where `_refused` says
        what comes instead."""
        if self._stuck is None and self._records is not None and self._refused is None:
            try:
                self._stuck = self._records.next()
            except DecodeError as error:
                self._refused = error
        return self._stuck

    def _must_await(self, conversion: Conversion, most: int) -> bool:
        """Whether a record is `unconverted` before there are `most` of them to hand out at once."""
        if not conversion.suspends or len(self._ahead) >= most:
            return False
        raw = self._next_raw()
        if raw is None or self._refused is not None:
            return False
        self.unconverted = raw
        return True

    def _read_many(self, owned: OwnedPartition, most: int) -> Batch[Any, Any] | None:
        """Up to `most` records of the open batch, as `_read` makes them one by one."""
        records: list[Any] = []
        try:
            while len(records) < most and (record := self._read(owned)) is not None:
                records.append(record)
        except Exception as error:
            if not records:
                raise
            self._kept = (owned, error)
        return Batch(owned.tp.topic, owned.tp.partition, tuple(records)) if records else None

    def _skip(self, owned: OwnedPartition, most: int) -> Batch[Any, Any] | None:
        """As many, checked and not made."""
        records, raw = self._records, self._batch
        if records is None or raw is None:
            return None
        try:
            unread = records.fork()
            count = records.skip(most)
        except DecodeError as error:
            self._give_up(owned, error)
            raise
        if not count:
            return None
        unread.stop_after(count)
        owned.position = records.offset + 1
        owned.leader_epoch = raw.leader_epoch
        return _lazy_batch(owned, unread, count)

    def _give_up(self, owned: OwnedPartition, error: DecodeError) -> None:
        """The iterator is dead: going on would skip the rest of the batch in silence."""
        owned.failure = error
        self._leave(owned)
        owned.drop_buffer()
        self._took()
        self._came_to_rest()

    def _not_converted(self, error: Exception) -> None:
        """The stuck record is raised for each call, and holds up its partition."""
        known, self._conversion_error = self._conversion_error, error
        if known is None:
            self._came_to_rest()

    def resting(self) -> list[tuple[OwnedPartition, Exception]]:
        """The partitions of which the application gets nothing until it seeks, and why."""
        found = [
            (owned, owned.failure)
            for owned in self.owned.values()
            if owned.failure is not None and not owned.revoked
        ]
        if self._current is not None and self._conversion_error is not None:
            found.append((self._current, self._conversion_error))
        return found

    def _open_batch(self) -> OwnedPartition | None:
        if not self._turn:
            return None
        owned, _ = self._turn.popitem(last=False)
        self._current = owned
        batch = self._batch = owned.take_batch()
        self._took()  # there is room: the next fetch can leave while these are handed out
        # Control batches are the broker's markers of transactions: passed over, offsets and all.
        passed_over = batch.is_control or batch.hidden
        self._records = None if passed_over else batch.records(owned.position, views=self._views)
        ready = self._records is None or self._records.prepare_at_once()
        self.heavy = None if ready else self._records
        return owned

    def _close_batch(self, owned: OwnedPartition) -> None:
        """Step past the batch, and past what compaction or markers left empty at its end: without
        that, lag would stay above zero for ever."""
        if self._batch is not None and self._batch.next_offset > owned.position:
            if not owned.is_uncommitted:
                owned.covered = self._batch.next_offset  # nothing of that is the application's
            owned.position = self._batch.next_offset
            # Its own, too: in the epoch before, the log ends below this position (KIP-320).
            owned.leader_epoch = self._batch.leader_epoch
        if owned not in self._hand:
            owned.processed = owned.position
        self._current = self._batch = self._records = None
        self._queue(owned)

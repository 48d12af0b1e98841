"""Rows to records: Arrow arrays in, the encoded records of batches out, without an object for each
row. The reverse of the module `arrow`.

A row has the columns `value`, and optionally `key`, `topic`, `partition`, `timestamp` and
`headers`. The bytes are those of `encode_batch`, before compression. This file is compiled, with
the types in `arrow_writing.pxd`, where a compiler is available. Source: the Arrow columnar format;
KIP-98.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafkagroup.errors import ConfigurationError
from kafkagroup.types import MAX_INT32
from kafkagroup.wire.batch_format import HEADER_SIZE
from kafkagroup.wire.batch_writing import EncodedRecords, varint_size
from kafkagroup.wire.buffers import copy, grown
from kafkagroup.wire.murmur2 import partition_in

if TYPE_CHECKING:
    import pyarrow

__all__ = ["BatchBuilder", "RowBatcher", "RowColumns"]

_NULL = -1
"""The start of a null value; also the timestamp of a record that has none."""

_ANY = -1
"""In place of a partition, for rows without partition and key: the producer chooses one."""

_UNSET = -(1 << 40)
"""In place of a null partition. No partition has this number, as it does not fit into 32 bits."""

_FIRST_CAPACITY = 16 << 10
"""Bytes to allocate for the first batch of a partition; doubled when they are full. Small, because
a topic may have thousands of partitions to which each task writes only a few records."""

_MAX_PENDING_BYTES = 64 << 20
"""If the batches that are not full have more bytes than this together, all are sent: with thousands
of partitions they would otherwise become gigabytes."""


class RowColumns:
    """The rows of one Arrow record batch, with their columns as C arrays."""

    __slots__ = (
        "_header_ends",
        "_header_names",
        "_header_values",
        "_keys",
        "_partitions",
        "_timestamps",
        "_topics",
        "_values",
        "count",
        "least_timestamp",
        "topic_names",
    )

    def __init__(self, batch: pyarrow.RecordBatch, now: int) -> None:
        """Take the columns of a batch. `now`, in milliseconds since the epoch, is the timestamp of
        rows that have none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        self.count = batch.num_rows
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self._keys = _Bytes(_column(columns, "key", pa.binary(), self.count))
        self._values = _Bytes(_column(columns, "value", pa.binary(), self.count))
        times = _column(columns, "timestamp", pa.timestamp("ms"), self.count)
        # `safe=False`, because Spark's timestamps have microseconds: they are cut off.
        times = times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64())
        self.least_timestamp: int | None = pc.min(times).as_py()
        """The least timestamp of the rows, in milliseconds; None if all are null."""
        self._timestamps = _numbers(times, now)
        self._partitions = _numbers(_column(columns, "partition", pa.int32(), self.count), _UNSET)
        topics = _column(columns, "topic", pa.binary(), self.count)
        topics = topics.cast(pa.binary()).dictionary_encode()
        self.topic_names = [name.decode(errors="replace") for name in topics.dictionary.to_pylist()]
        """The topics of the rows. Bytes that are not UTF-8, which no topic has, become U+FFFD."""
        self._topics = _numbers(topics.indices, _NULL)
        """The place of each row's topic in `topic_names`; -1 for a row without a topic."""
        no_headers = pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))
        headers = _column(columns, "headers", no_headers, self.count)
        sizes = headers.value_lengths().fill_null(0).cast(pa.int64())
        ends = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(sizes)])
        self._header_ends = _numbers(ends, 0)
        """Item n + 1 is how many headers the rows up to number n have."""
        # The first call returns the structs of all lists, the second one the fields of the structs.
        names, values = headers.flatten().flatten()
        self._header_names = _Bytes(names)
        self._header_values = _Bytes(values)


class _Bytes:
    """A column of bytes: where each value begins and ends in one buffer, and which are null."""

    __slots__ = ("_bits", "_data", "_ends", "_first", "_has_nulls")

    def __init__(self, column: pyarrow.Array) -> None:
        import pyarrow as pa

        # The cast of any other type of strings or bytes converts only the offsets, not the data.
        column = column.cast(pa.large_binary())
        bits, ends, data = column.buffers()
        self._first = column.offset
        """The column's first value in the buffers, of which it may be a slice."""
        self._has_nulls = column.null_count > 0
        self._bits = _memory(bits if self._has_nulls else None)
        self._ends = _int64(ends, column.offset, len(column) + 1)
        self._data = _memory(data)

    def start(self, n: int) -> int:
        """Return where value number `n` begins; -1 if it is null."""
        if self._has_nulls:
            bit = self._first + n
            if not self._bits[bit >> 3] >> (bit & 7) & 1:
                return _NULL
        return self._ends[n]

    def encoded_size(self, n: int) -> int:
        """Return how many bytes `put` writes for value number `n`: its length and the value."""
        start = self.start(n)
        if start < 0:
            return 1
        size = self._ends[n + 1] - start
        return varint_size(size) + size

    def put(self, target: memoryview, at: int, n: int) -> int:
        """Write at `at` the length of value number `n`, -1 if it is null, and then the value;
        return where they end."""
        start = self.start(n)
        if start < 0:
            return _put(target, at, _NULL)
        end = self._ends[n + 1]
        at = _put(target, at, end - start)
        copy(target, at, self._data, start, end)
        return at + end - start


class BatchBuilder:
    """The next batch of one partition: its encoded records, after room for the batch's header."""

    __slots__ = (
        "_base_timestamp",
        "_buffer",
        "_capacity",
        "_least_capacity",
        "_max_record",
        "_max_size",
        "_max_timestamp",
        "_size",
        "_view",
        "count",
    )

    def __init__(self, max_bytes: int, max_record: int) -> None:
        """`max_bytes`: the limit of the records of a batch before compression; a larger record gets
        a batch of its own. `max_record`: the limit of a record, and so of a batch, with the header
        of a batch."""
        self._max_size = min(HEADER_SIZE + max_bytes, max_record)
        self._max_record = max_record
        self._capacity = 0
        self._least_capacity = _FIRST_CAPACITY
        """Bytes to allocate at least for the next batch: the size of the last batch, as batches of
        a partition are mostly of one size."""
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._size = HEADER_SIZE
        self._base_timestamp = self._max_timestamp = 0

    @property
    def size(self) -> int:
        """The bytes of the batch so far, before compression; 0 without a record."""
        return self._size if self.count else 0

    def append(self, rows: RowColumns, n: int) -> bool:
        """Append row number `n`. Return False, without a change, if the batch is full.

        Raises: ConfigurationError if a header has no name, or the row is too large.
        """
        timestamp = rows._timestamps[n]
        base = self._base_timestamp if self.count else timestamp
        first, end = rows._header_ends[n], rows._header_ends[n + 1]
        # 1: the byte of the record's attributes, all unused.
        size = 1 + varint_size(timestamp - base) + varint_size(self.count)
        size += rows._keys.encoded_size(n) + rows._values.encoded_size(n)
        size += varint_size(end - first)
        for header in range(first, end):
            size += rows._header_names.encoded_size(header)
            size += rows._header_values.encoded_size(header)
        whole = self._size + varint_size(size) + size
        if HEADER_SIZE + size > self._max_record:
            raise ConfigurationError(
                f"a row of {HEADER_SIZE + size} bytes, as it is sent, is larger than"
                f" max.request.size={self._max_record}"
            )
        if self.count and whole > self._max_size:
            return False
        if whole > self._capacity:
            self._reserve(whole)
        view = self._view
        at = _put(view, self._size, size)
        view[at] = 0
        at = _put(view, at + 1, timestamp - base)
        at = _put(view, at, self.count)
        at = rows._keys.put(view, at, n)
        at = rows._values.put(view, at, n)
        at = _put(view, at, end - first)
        for header in range(first, end):
            if rows._header_names.start(header) < 0:
                raise ConfigurationError("a row has a header without a name, which Kafka has not")
            at = rows._header_names.put(view, at, header)
            at = rows._header_values.put(view, at, header)
        if not self.count or timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        self._base_timestamp = base
        self._size = at
        self.count += 1
        return True

    def _reserve(self, size: int) -> None:
        doubled = min(2 * self._capacity, self._max_size)
        self._capacity = max(size, doubled, self._least_capacity)
        self._buffer = grown(self._buffer, self.size, self._capacity)
        self._view = memoryview(self._buffer)

    def finish(self) -> EncodedRecords:
        """Return the records, and begin the next batch."""
        data, self._buffer = self._buffer, bytearray()
        self._view = memoryview(self._buffer)  # `data` cannot be cut while it has a view
        del data[self._size :]
        made = EncodedRecords(data, self.count, self._base_timestamp, self._max_timestamp)
        self._least_capacity, self._capacity = self._size, 0
        self._clear()
        return made


class _Topic:
    """A topic that rows are written to."""

    __slots__ = ("builders", "name", "of_any")

    def __init__(self, name: str, of_any: BatchBuilder) -> None:
        self.name = name
        self.builders: list[BatchBuilder] = []
        """One for each partition."""
        self.of_any = of_any
        """The builder for rows without partition and key."""


class RowBatcher:
    """Encodes rows into batches, and passes each batch to `send` when it is full. The order of the
    rows is kept within a partition, and among the rows of a topic without partition and key."""

    __slots__ = (
        "_count_partitions",
        "_default_topic",
        "_max_bytes",
        "_max_record",
        "_send",
        "_topics",
    )

    def __init__(
        self,
        *,
        topic: str | None,
        max_bytes: int,
        max_record: int = MAX_INT32,
        count_partitions: Callable[[str, int], int],
        send: Callable[[str, int, EncodedRecords], None],
    ) -> None:
        """`topic` is for rows without a topic; if it is None, they are an error. `max_bytes` and
        `max_record` are those of `BatchBuilder`. `count_partitions` is called with a topic and the
        number of partitions known here, and returns the number of the topic's partitions; it looks
        the number up again unless it knows a higher one. `send` is called with topic, partition and
        records. The partition is -1 for a batch of rows without partition and key: the producer
        chooses one."""
        self._default_topic = topic
        self._max_bytes = max_bytes
        self._max_record = max_record
        self._count_partitions = count_partitions
        self._send = send
        self._topics: dict[str, _Topic] = {}

    def add(self, rows: RowColumns) -> None:
        """Add rows, and send the batches that they fill.

        Raises: ConfigurationError for a row without a topic, for a partition that does not exist,
        for a row that is too large, and for a header without a name; what `count_partitions` and
        `send` raise.
        """
        topics = [self._topic(name) for name in rows.topic_names]
        default = None if self._default_topic is None else self._topic(self._default_topic)
        for n in range(rows.count):
            at = rows._topics[n]
            topic = default if at < 0 else topics[at]
            if topic is None:
                raise ConfigurationError("a row names no topic, and there is no option topic")
            self._add_row(topic, rows, n)
        if self._pending_bytes() > _MAX_PENDING_BYTES:
            self.flush()

    def _pending_bytes(self) -> int:
        """Return the bytes of the batches that are not sent yet, before compression."""
        size = 0
        for topic in self._topics.values():
            size += topic.of_any.size
            for builder in topic.builders:
                size += builder.size
        return size

    def _add_row(self, topic: _Topic, rows: RowColumns, n: int) -> None:
        partition = self._choose_partition(topic, rows, n)
        builder = topic.of_any if partition == _ANY else topic.builders[partition]
        if not builder.append(rows, n):
            self._send(topic.name, partition, builder.finish())
            builder.append(rows, n)  # as its first row, which always fits

    def _choose_partition(self, topic: _Topic, rows: RowColumns, n: int) -> int:
        partition = rows._partitions[n]
        if partition == _UNSET:
            start = rows._keys.start(n)
            if start < 0:
                return _ANY
            end = rows._keys._ends[n + 1]
            return partition_in(rows._keys._data, start, end, len(topic.builders))
        if not 0 <= partition < len(topic.builders):
            self._expect_partition(topic, partition)
        return partition

    def _topic(self, name: str) -> _Topic:
        if (topic := self._topics.get(name)) is None:
            topic = self._topics[name] = _Topic(name, self._new_builder())
            self._update_count(topic)
        return topic

    def _new_builder(self) -> BatchBuilder:
        return BatchBuilder(self._max_bytes, self._max_record)

    def _update_count(self, topic: _Topic) -> None:
        known = len(topic.builders)
        more = self._count_partitions(topic.name, known) - known
        topic.builders += [self._new_builder() for _ in range(more)]

    def _expect_partition(self, topic: _Topic, partition: int) -> None:
        """Update the number of the topic's partitions: `partition` is not among the known ones.
        Raises: ConfigurationError if it is still unknown."""
        self._update_count(topic)
        count = len(topic.builders)
        if not 0 <= partition < count:
            raise ConfigurationError(
                f"a row names partition {partition} of topic {topic.name!r}, which has {count}"
                f" partitions, 0 to {count - 1}; name one of these, or none"
            )

    def flush(self) -> None:
        """Send the batches that are not full."""
        for topic in self._topics.values():
            # `_ANY` is -1, so that partition 0 follows.
            for partition, builder in enumerate([topic.of_any, *topic.builders], _ANY):
                if builder.count:
                    self._send(topic.name, partition, builder.finish())


def _column(columns: dict[str, Any], name: str, kind: Any, count: int) -> Any:
    """Return a column, decoded if it is encoded by a dictionary; a column of nulls if it is
    missing."""
    import pyarrow as pa

    if (found := columns.get(name)) is None:
        return pa.nulls(count, kind)
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def _numbers(column: pyarrow.Array, of_null: int) -> memoryview:
    """Return a column of integers as 64-bit integers, with `of_null` in place of nulls."""
    import pyarrow as pa

    column = column.cast(pa.int64()).fill_null(of_null)
    return _int64(column.buffers()[1], column.offset, len(column))


def _int64(buffer: Any, first: int, count: int) -> memoryview:
    """Return `count` numbers, from number `first` on, of a buffer of 64-bit integers. If the buffer
    is None, as that of an empty array may be, the numbers are zeros."""
    data = memoryview(bytes(8 * (first + count))) if buffer is None else _memory(buffer)
    return data[8 * first : 8 * (first + count)].cast("q")


def _memory(buffer: Any) -> memoryview:
    """Return the bytes of Arrow's buffer; no bytes if it is None."""
    return memoryview(b"" if buffer is None else buffer).cast("B")


def _put(target: memoryview, at: int, value: int) -> int:
    """Write a signed integer of at most 64 bits as a zigzag varint; return where it ends."""
    left = (value << 1) ^ (value >> 63)
    while left > 127:
        target[at] = left & 0x7F | 0x80
        left >>= 7
        at += 1
    target[at] = left
    return at + 1

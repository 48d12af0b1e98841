"""Records as columns: batches of bytes in, Arrow arrays out, without an object for each record.

This module fills the buffers in Arrow's layout, and imports pyarrow (the extra `arrow`) only to
make arrays of them. A caller without an event loop, such as a Spark executor, passes the records
field of a fetch response to `arrow_batches`. This file is compiled, with the types in `arrow.pxd`,
where a compiler is available. Source: the Arrow columnar format.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kafkagroup.errors import ConfigurationError, DecodeError, LimitExceededError
from kafkagroup.types import Record
from kafkagroup.wire.buffers import copy, grown
from kafkagroup.wire.compression import MAX_BATCH_BYTES
from kafkagroup.wire.records import RecordBatch, RecordReader, read_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow

__all__ = ["ColumnBuilder", "arrow_batches", "columns", "columns_of", "schema"]

Buffer = bytes | memoryview

_NULL = -1
"""The start of a null value; also the timestamp of a record that has none."""

_NOT_ASCII = 0x80
"""The lowest byte that is not ASCII."""

_MAX_COLUMN_BYTES = 0x7FFFFFFF
"""Maximum number of bytes in a column: Arrow's offsets have 32 bits."""

_ROW_BYTES = 28
"""The bytes of a row without its key, value and headers: 8 each for the offset and the timestamp, 4
each for where its key, value and headers end."""

_ALL = 0x7FFFFFFFFFFFFFFF
"""In place of a limit, if there is none: a number of records or bytes, or an offset."""


@lru_cache(maxsize=1_000)
def schema(topic: str, partition: int) -> pyarrow.Schema:
    """Return the schema of all record batches made here: offset, timestamp (null if a record has
    none), key, value, and headers as a list of names and values. Bytes of a name that are not UTF-8
    become U+FFFD. The metadata has the topic and the partition.

    Raises: ConfigurationError if pyarrow is not installed.
    """
    pa = _pyarrow()
    header = pa.struct([pa.field("name", pa.string(), nullable=False), ("value", pa.binary())])
    return pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(pa.field("item", header, nullable=False)), nullable=False),
        ],
        metadata={"topic": topic, "partition": str(partition)},
    )


def arrow_batches(
    data: Buffer,
    *,
    topic: str,
    partition: int,
    start_offset: int = 0,
    check_crcs: bool = True,
    max_batch_bytes: int = MAX_BATCH_BYTES,
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records of a fetch response or produce request, as one Arrow record batch for each
    Kafka batch that has any.

    Control batches are skipped, and records below `start_offset`. Raises, only during iteration:
    CorruptRecordError, after the records before the damage; LimitExceededError for a batch larger
    than `max_batch_bytes`, or a column larger than 2 GiB; ConfigurationError without pyarrow.
    """
    for batch in read_batches(
        data,
        topic=topic,
        partition=partition,
        check_crcs=check_crcs,
        max_batch_bytes=max_batch_bytes,
    ):
        builder = ColumnBuilder()
        try:
            builder.append_batch(batch.records(start_offset))
        except DecodeError:
            if builder.count:
                yield builder.finish(topic, partition)
            raise
        if builder.count:
            yield builder.finish(topic, partition)


def columns(records: RecordReader, count: int, topic: str, partition: int) -> pyarrow.RecordBatch:
    """Return the next `count` records of a reader as columns. The caller has skipped the same
    records with another reader, which has checked them.

    Raises: LimitExceededError for more than the 2 GiB that a column can hold.
    """
    builder = ColumnBuilder()
    builder.append(records, most=count)
    return builder.finish(topic, partition)


def columns_of(
    records: Sequence[Record[Any, Any]], topic: str, partition: int
) -> pyarrow.RecordBatch:
    """Return, as columns, records that are already decoded.

    Raises: ConfigurationError if Arrow cannot convert a key or value to bytes (it can convert a
    str, to UTF-8), or if pyarrow is not installed.
    """
    pa = _pyarrow()
    times = [None if r.timestamp == _NULL else r.timestamp for r in records]
    headers = [
        [{"name": _utf8(name), "value": value} for name, value in record.headers]
        for record in records
    ]
    lists: tuple[list[Any], ...] = (
        [r.offset for r in records],
        times,
        [r.key for r in records],
        [r.value for r in records],
        headers,
    )
    made = schema(topic, partition)
    try:
        arrays = [pa.array(items, kind) for items, kind in zip(lists, made.types, strict=True)]
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        raise ConfigurationError(
            "Arrow has columns of bytes; leave out the deserializers"
        ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=made)


def _pyarrow() -> Any:
    try:
        return import_module("pyarrow")
    except ImportError:
        raise ConfigurationError(
            "pyarrow is not installed; install kafkagroup[arrow] to read records as columns"
        ) from None


@lru_cache(maxsize=1)
def _types() -> tuple[Any, ...]:
    """Return the types of the columns, which are the same for all topics."""
    return tuple(schema("", 0).types)


class ColumnBuilder:
    """The columns of one partition's records, which are appended batch by batch."""

    __slots__ = (
        "_batches",
        "_capacity",
        "_count",
        "_header_count",
        "_header_ends",
        "_header_keys",
        "_header_room",
        "_header_values",
        "_header_view",
        "_is_ascii",
        "_keys",
        "_offset_view",
        "_offsets",
        "_size",
        "_timestamp_view",
        "_timestamps",
        "_values",
    )

    def __init__(self, size: int = 0) -> None:
        """Allocate memory for `size` bytes of values; more is allocated when it is needed."""
        self._count = 0
        self._capacity = 0
        """The number of records for which memory is allocated."""
        self._size = 0
        """How many bytes the records had in their batches, decompressed."""
        self._offsets = bytearray()
        self._timestamps = bytearray()
        self._offset_view = memoryview(self._offsets).cast("q")
        self._timestamp_view = memoryview(self._timestamps).cast("q")
        self._keys = _BinaryColumn(0)
        self._values = _BinaryColumn(size)
        self._header_keys = _BinaryColumn(0)
        self._header_values = _BinaryColumn(0)
        self._header_count = 0
        """The number of headers of all records."""
        self._header_room = 0
        """The number of headers for which memory is allocated."""
        self._header_ends = bytearray(4)
        self._header_view = memoryview(self._header_ends).cast("i")
        """Arrow's offsets of the list of headers: item n + 1 is how many headers the records up to
        number n have."""
        self._is_ascii = True
        """Whether the keys of all headers are ASCII."""
        self._batches: list[tuple[RecordBatch, int]] = []

    @property
    def count(self) -> int:
        """How many records were appended."""
        return self._count

    @property
    def batches(self) -> Sequence[tuple[RecordBatch, int]]:
        """The batches that were appended, in order, and how many records of each."""
        return self._batches

    def append_batch(
        self, records: RecordReader, end_offset: int = _ALL, max_bytes: int = _ALL
    ) -> bool:
        """Append the unread records of a reader's batch whose offsets are below `end_offset`; none
        of a control batch or a hidden batch. Return False, and append none, if the records of this
        builder would take more than `max_bytes` with them: the reader can then be passed to another
        builder, which need not decompress the batch again. The first batch of a builder always
        fits. Raises: what `append` raises.
        """
        batch = records._batch
        if batch.is_control or batch.is_hidden or batch.base_offset >= end_offset:
            return True
        size = self._size + records.unread_size()
        before = self._count
        if before and size + (before + records._left) * _ROW_BYTES > max_bytes:
            return False
        try:
            self.append(records, end_offset)
        finally:
            if self._count > before:
                self._batches.append((batch, self._count - before))
        return True

    def append(self, records: RecordReader, end_offset: int = _ALL, most: int = _ALL) -> int:
        """Append up to `most` next records of a reader, up to `end_offset`: the first record at or
        above it is read, but not appended. Return how many were appended.

        Raises: CorruptRecordError for a damaged record, after the records before it were appended;
        LimitExceededError for a batch larger than the reader's limit, and for more than the 2 GiB
        that a column can hold.
        """
        size, left = records.unread_size(), records._left
        count = min(most, left)
        self._reserve(count, size * count // max(left, 1))
        start = records._pos
        before = n = self._count
        try:
            while n - before < most and records._step():
                if records._offset >= end_offset:
                    break
                self._offset_view[n] = records._offset
                self._timestamp_view[n] = records._timestamp
                self._keys.put(n, records._buf, records._key_at, records._key_end)
                self._values.put(n, records._buf, records._value_at, records._value_end)
                if records._headers_at >= 0:
                    self._put_headers(records)
                n += 1
                self._header_view[n] = self._header_count
        finally:
            self._count = n
            self._size += records._pos - start
        return n - before

    def _put_headers(self, records: RecordReader) -> None:
        """Append the headers of the reader's current record, whose lengths the reader has
        checked."""
        # A length in zigzag form is twice the length if it is even, and null if it is odd.
        buf = records._buf
        records._pos = records._headers_at
        count = records._read_varint(buf, 32) >> 1
        n = self._header_count
        if n + count > self._header_room:
            self._header_room = max(n + count, 2 * self._header_room)
            self._header_keys.extend(n, self._header_room)
            self._header_values.extend(n, self._header_room)
        for _ in range(count):
            length = records._read_varint(buf, 32)
            start = records._pos
            end = start + (length >> 1)
            if self._is_ascii:
                for at in range(start, end):
                    if buf[at] >= _NOT_ASCII:
                        self._is_ascii = False
            self._header_keys.put(n, buf, start, end)
            records._pos = end
            length = records._read_varint(buf, 32)
            start = _NULL if length & 1 else records._pos
            end = start + (length >> 1)
            self._header_values.put(n, buf, start, end)
            if start >= 0:
                records._pos = end
            n += 1
        self._header_count = n

    def _reserve(self, count: int, size: int) -> None:
        """Make room for `count` more records. `size`: about how many bytes their values have; used
        only if they are the first records."""
        needed = self._count + count
        if needed <= self._capacity:
            return
        if not self._capacity:
            self._values.reserve(min(size, _MAX_COLUMN_BYTES))
        self._capacity = max(needed, 2 * self._capacity)
        self._offsets = grown(self._offsets, 8 * self._count, 8 * self._capacity)
        self._offset_view = memoryview(self._offsets).cast("q")
        self._timestamps = grown(self._timestamps, 8 * self._count, 8 * self._capacity)
        self._timestamp_view = memoryview(self._timestamps).cast("q")
        self._keys.extend(self._count, self._capacity)
        self._values.extend(self._count, self._capacity)
        self._header_ends = grown(
            self._header_ends, 4 * (self._count + 1), 4 * (self._capacity + 1)
        )
        self._header_view = memoryview(self._header_ends).cast("i")

    def finish(self, topic: str, partition: int) -> pyarrow.RecordBatch:
        """Return the columns, which own the memory from now on: append nothing more."""
        pa = _pyarrow()
        made = schema(topic, partition)
        count = self._count
        valid = _not_null(self._timestamp_view, count)
        buffers: tuple[list[Any], ...] = (
            [None, _buffer(self._offsets, 8 * count)],
            [_buffer(valid, len(valid)) if valid else None, _buffer(self._timestamps, 8 * count)],
            self._keys.buffers(count),
            self._values.buffers(count),
        )
        types = _types()
        arrays = [
            pa.Array.from_buffers(kind, count, parts)
            for kind, parts in zip(types[:4], buffers, strict=True)
        ]
        return pa.RecordBatch.from_arrays([*arrays, self._header_array(types[4])], schema=made)

    def _header_array(self, kind: Any) -> Any:
        pa = _pyarrow()
        count, (key, value) = self._header_count, kind.value_type
        buffers = self._header_keys.buffers(count)
        if self._is_ascii:
            keys = pa.Array.from_buffers(key.type, count, buffers)
        else:
            # Arrow's strings cannot hold bytes that are not UTF-8.
            given = pa.Array.from_buffers(pa.binary(), count, buffers).to_pylist()
            keys = pa.array([one.decode(errors="replace") for one in given], key.type)
        values = pa.Array.from_buffers(value.type, count, self._header_values.buffers(count))
        pairs = pa.StructArray.from_arrays([keys, values], fields=[key, value])
        ends = _buffer(self._header_ends, 4 * (self._count + 1))
        return pa.Array.from_buffers(kind, self._count, [None, ends], children=[pairs])


class _BinaryColumn:
    """Keys or values: their bytes one after another in `_bytes`, the end of each in `_ends`, and in
    `_bits` which are not null."""

    __slots__ = (
        "_bit_view",
        "_bits",
        "_byte_view",
        "_bytes",
        "_capacity",
        "_end_view",
        "_ends",
        "_nulls",
        "_size",
    )

    def __init__(self, size: int) -> None:
        """Allocate memory for `size` bytes."""
        self._size = 0
        self._nulls = 0
        """How many values are null."""
        self._capacity = 0
        """The number of bytes for which memory is allocated."""
        self._bytes = bytearray()
        self._byte_view = memoryview(self._bytes)
        self._ends = bytearray(4)
        self._end_view = memoryview(self._ends).cast("i")
        self._bits = bytearray()
        self._bit_view = memoryview(self._bits)
        self.reserve(size)

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes in all. Raises: LimitExceededError for more than 2 GiB."""
        if size <= self._capacity:
            return
        if size > _MAX_COLUMN_BYTES:
            raise LimitExceededError(f"{size} bytes in one column; Arrow's offsets have 32 bits")
        self._capacity = min(max(size, 2 * self._capacity), _MAX_COLUMN_BYTES)
        self._bytes = grown(self._bytes, self._size, self._capacity)
        self._byte_view = memoryview(self._bytes)

    def extend(self, count: int, capacity: int) -> None:
        """Make room for `capacity` values in all; there are `count` so far."""
        self._ends = grown(self._ends, 4 * (count + 1), 4 * (capacity + 1))
        self._end_view = memoryview(self._ends).cast("i")
        bits = bytearray((capacity + 7) // 8)
        bits[: len(self._bits)] = self._bits
        self._bits = bits
        self._bit_view = memoryview(bits)

    def put(self, n: int, buf: Buffer, start: int, end: int) -> None:
        """Append value number `n`, `buf[start:end]`; a null value's start is -1."""
        if start < 0:
            self._nulls += 1
        else:
            size = end - start
            if self._size + size > self._capacity:
                self.reserve(self._size + size)
            copy(self._byte_view, self._size, buf, start, end)
            self._size += size
            self._bit_view[n >> 3] |= 1 << (n & 7)
        self._end_view[n + 1] = self._size

    def buffers(self, count: int) -> list[Any]:
        """Return the buffers of an Arrow array of the first `count` values."""
        return [
            _buffer(self._bits, (count + 7) // 8) if self._nulls else None,
            _buffer(self._ends, 4 * (count + 1)),
            _buffer(self._bytes, self._size),
        ]


def _utf8(name: str) -> str:
    """Return the key of a header with U+FFFD for bytes that are not UTF-8, which Arrow's strings
    cannot hold."""
    if name.isascii():
        return name
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _buffer(data: bytearray, size: int) -> Any:
    """Return the first `size` bytes as Arrow's buffer, without a copy."""
    whole = _pyarrow().py_buffer(data)
    return whole if len(data) == size else whole.slice(0, size)


def _not_null(values: memoryview, count: int) -> bytearray | None:
    """Return Arrow's bitmap: whether each value is not -1; None if no value is -1."""
    bitmap = bytearray((count + 7) // 8)
    bits = memoryview(bitmap)
    nulls = 0
    for n in range(count):
        if values[n] == _NULL:
            nulls += 1
        else:
            bits[n >> 3] |= 1 << (n & 7)
    return bitmap if nulls else None

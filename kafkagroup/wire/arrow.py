"""Records as columns: batches of bytes in, Arrow arrays out, without an object for each record.

This module fills the buffers in Arrow's layout, and imports pyarrow (the extra `arrow`) only to
make arrays of them. A caller without an event loop, such as a Spark executor, passes the records
field of a fetch response to `arrow_batches`. This file is compiled, with the types in `arrow.pxd`,
where a compiler is available. Source: the Arrow columnar format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kafkagroup.errors import ConfigurationError, LimitExceededError
from kafkagroup.types import Headers, Record
from kafkagroup.wire.compression import MAX_BATCH_BYTES
from kafkagroup.wire.records import RecordReader, read_batches

try:
    import cython
except ImportError:  # Cython is needed to compile, not to run: users do not have it
    from kafkagroup import _uncompiled as cython

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow

__all__ = ["arrow_batches", "columns", "columns_of", "schema"]

Buffer = bytes | memoryview

Column = tuple[bytearray | None, bytearray, bytearray]
"""The bitmap of values that are not null (None: all), the ends of the values, and their bytes."""

_NULL = -1
"""The place of a null value; also the timestamp of a record that has none."""

_MAX_COLUMN_BYTES = 0x7FFFFFFF
"""Maximum number of bytes in a column: Arrow's offsets have 32 bits."""


@lru_cache(maxsize=1_000)
def schema(topic: str, partition: int) -> pyarrow.Schema:
    """Return the schema of all record batches made here: offset, timestamp (null if a record has
    none), key, value, and headers as a list of names and values. Its metadata has the topic and the
    partition.

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

    Control batches are skipped, and records below `start_offset`. Raises: as `read_batches` and
    `RecordBatch.records`; damage is raised after the records before it.
    """
    for batch in read_batches(
        data,
        topic=topic,
        partition=partition,
        check_crcs=check_crcs,
        max_batch_bytes=max_batch_bytes,
    ):
        if batch.is_control:
            continue
        records = batch.records(start_offset)
        while True:
            unread = records.fork()
            if not (count := records.skip(batch.count)):
                break
            yield columns([(unread, count)], topic, partition)


def columns(
    runs: Iterable[tuple[RecordReader, int]], topic: str, partition: int
) -> pyarrow.RecordBatch:
    """Return the next records of each reader, as many as its count; another reader has skipped, and
    so checked, them before.

    Raises: LimitExceededError for more than the 2 GiB that a column can hold.
    """
    runs = tuple(runs)
    filling = _Filling(sum(count for _, count in runs))
    for reader, count in runs:
        filling.fill(reader, count)
    return filling.to_arrow(topic, partition)


def columns_of(
    records: Sequence[Record[Any, Any]], topic: str, partition: int
) -> pyarrow.RecordBatch:
    """Return records that are already decoded as columns.

    Raises: ConfigurationError unless their keys and values are bytes.
    """
    pa = _pyarrow()
    times = [None if r.timestamp == _NULL else r.timestamp for r in records]
    headers = [
        [{"name": name, "value": value} for name, value in record.headers] for record in records
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
        arrays = [pa.array(*of) for of in zip(lists, made.types, strict=True)]
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
    return tuple(schema("", 0).types)


class _Filling:
    """The buffers of the columns of `count` records while they are filled."""

    __slots__ = (
        "_at",
        "_count",
        "_headers",
        "_keys",
        "_offsets",
        "_runs",
        "_timestamps",
        "_values",
    )

    def __init__(self, count: int) -> None:
        self._count = count
        self._at = 0
        self._offsets = bytearray(8 * count)
        self._timestamps = bytearray(8 * count)
        self._keys = bytearray(16 * count)
        """The start and the end of each key in its reader's buffer."""
        self._values = bytearray(16 * count)
        self._runs: list[tuple[RecordReader, int]] = []
        self._headers: list[tuple[int, Headers]] = []
        """Index and headers of each record that has headers."""

    def fill(self, reader: RecordReader, count: int) -> None:
        """Find the parts of the next `count` records; `to_arrow` copies them."""
        start = self._at
        offsets = memoryview(self._offsets).cast("q")
        timestamps = memoryview(self._timestamps).cast("q")
        keys = memoryview(self._keys).cast("q")
        values = memoryview(self._values).cast("q")
        for n in range(start, start + count):
            reader._step()
            offsets[n] = reader._offset
            timestamps[n] = reader._timestamp
            keys[2 * n] = reader._key_at
            keys[2 * n + 1] = reader._key_end
            values[2 * n] = reader._value_at
            values[2 * n + 1] = reader._value_end
            if reader._headers_at >= 0:
                self._headers.append((n, reader._make().headers))
        self._at = start + count
        self._runs.append((reader, count))

    def to_arrow(self, topic: str, partition: int) -> pyarrow.RecordBatch:
        """Return the columns, which own the buffers from now on."""
        pa = _pyarrow()
        made = schema(topic, partition)
        offset, timestamp, binary, _, headers = _types()
        stamped = _not_null(memoryview(self._timestamps).cast("q"), 1, self._count)
        keys = _gather(self._runs, memoryview(self._keys).cast("q"), self._count)
        values = _gather(self._runs, memoryview(self._values).cast("q"), self._count)

        def column(kind: Any, *buffers: bytearray | None) -> Any:
            shared = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
            return pa.Array.from_buffers(kind, self._count, shared)

        arrays = [
            column(offset, None, self._offsets),
            column(timestamp, stamped, self._timestamps),
            column(binary, *keys),
            column(binary, *values),
            self._header_array(pa, headers),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=made)

    def _header_array(self, pa: Any, kind: Any) -> Any:
        ends = bytearray(4 * (self._count + 1))
        if self._headers:
            marks = memoryview(ends).cast("i")
            for n, headers in self._headers:
                marks[n + 1] = len(headers)
            for n in range(self._count):
                marks[n + 1] += marks[n]
        flat = [pair for _, headers in self._headers for pair in headers]
        pairs = _pairs(flat) if flat else _no_pairs()
        buffers = [None, pa.py_buffer(ends)]
        return pa.Array.from_buffers(kind, self._count, buffers, children=[pairs])


def _pairs(flat: Sequence[tuple[str, bytes | None]]) -> Any:
    """Return the names and values of all headers as one array of structs."""
    pa = _pyarrow()
    name, value = _types()[4].value_type
    names = pa.array([pair[0] for pair in flat], name.type)
    values = pa.array([pair[1] for pair in flat], value.type)
    return pa.StructArray.from_arrays([names, values], fields=[name, value])


@lru_cache(maxsize=1)
def _no_pairs() -> Any:
    return _pairs(())


def _gather(runs: list[tuple[RecordReader, int]], places: memoryview, count: int) -> Column:
    """Return the bytes between each pair of places as a column. A null value's place is -1."""
    total = 0
    for n in range(count):
        if places[2 * n] >= 0:
            total += places[2 * n + 1] - places[2 * n]
    if total > _MAX_COLUMN_BYTES:
        raise LimitExceededError(f"{total} bytes in one column; Arrow's offsets have 32 bits")
    ends = bytearray(4 * (count + 1))
    data = bytearray(total)
    marks = memoryview(ends).cast("i")
    target = memoryview(data)
    at = end = 0
    for reader, more in runs:
        start, end = end, end + more
        for n in range(start, end):
            if places[2 * n] >= 0:
                _copy(target, at, reader._buf, places[2 * n], places[2 * n + 1])
                at += places[2 * n + 1] - places[2 * n]
            marks[n + 1] = at
    return _not_null(places, 2, count), ends, data


def _not_null(values: memoryview, step: int, count: int) -> bytearray | None:
    """Return Arrow's bitmap: whether each value is not -1; None if no value is -1."""
    bitmap = bytearray((count + 7) // 8)
    bits = memoryview(bitmap)
    nulls = 0
    for n in range(count):
        if values[n * step] == _NULL:
            nulls += 1
        else:
            bits[n >> 3] |= 1 << (n & 7)
    return bitmap if nulls else None


def _copy(target: memoryview, at: int, buf: Buffer, start: int, end: int) -> None:
    """Copy `buf[start:end]` to `target` at `at`; the caller has checked the bounds."""
    if cython.compiled:
        if start < end:
            to = cython.cast(cython.p_char, cython.address(target[at]))
            source = cython.cast(cython.p_char, cython.address(buf[start]))
            memcpy(to, source, end - start)  # type: ignore[name-defined]  # noqa: F821
    else:
        target[at : at + end - start] = buf[start:end]

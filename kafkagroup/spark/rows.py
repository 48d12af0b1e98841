"""Convert the bytes of a fetch response to the columns of Spark's rows, without an object per
row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from kafkagroup.consume.transactions import mark_aborted
from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.ranges import Range
from kafkagroup.wire.arrow import columns
from kafkagroup.wire.messages.fetch import PartitionData
from kafkagroup.wire.records import RecordBatch, RecordReader, read_batches

if TYPE_CHECKING:
    from kafkagroup.spark.json_values import JsonValues

__all__ = ["Rows"]

_MAX_BYTES = 64 << 20
"""The maximum of uncompressed bytes in one Arrow batch, unless one record batch is larger. It
bounds the memory that a task needs in the JVM."""

_ROW_BYTES = 28
"""The size of a row without its key, value and headers."""


@attrs.frozen
class _Part:
    """The records of one batch that belong to the range, and the batch's fields."""

    records: RecordReader
    """A reader at the first of them."""
    count: int
    size: int
    """Their size in bytes, as columns."""
    timestamp_type: int
    leader_epoch: int
    producer_id: int
    transactional: bool


class Rows:
    """The rows of one task, in Spark's schema."""

    def __init__(self, options: SourceOptions, planned: Range, schema: pa.Schema) -> None:
        """`schema`: the columns that Spark needs, in its order, as Arrow types."""
        self._options = options
        self._range = planned
        self._schema = schema
        self._values: JsonValues | None = None
        """How values are parsed into the columns that are not the record's own."""
        self._record_fields = list(schema)
        if options.parse is not None:
            from kafkagroup.spark.json_values import JsonValues  # only here: Arrow's parser

            self._record_fields = [f for f in schema if f.name in options.columns]
            fields = pa.schema([f for f in schema if f.name not in options.columns])
            self._values = JsonValues(fields, options.on_error, planned.tp)

    def convert(self, data: PartitionData, position: int) -> tuple[int, Iterator[pa.RecordBatch]]:
        """Return the next position, and the rows from `position` to the range's end.

        Raises: DecodeError for a damaged batch.
        """
        batches = list(
            read_batches(
                memoryview(data.records or b""),
                topic=self._range.tp.topic,
                partition=self._range.tp.partition,
                check_crcs=self._options.check_crcs,
            )
        )
        if self._options.isolation == "read_committed":
            mark_aborted(batches, data.aborted_transactions or ())
        after = max((batch.next_offset for batch in batches), default=position)
        return max(position, after), self._rows(batches, position)

    def _rows(self, batches: Sequence[RecordBatch], position: int) -> Iterator[pa.RecordBatch]:
        parts: list[_Part] = []
        size = 0
        for batch in batches:
            if batch.is_control or batch.hidden or batch.base_offset >= self._range.end:
                continue
            part = self._part(batch, position)
            if part is None:
                continue
            if parts and size + part.size > _MAX_BYTES:
                yield self._to_arrow(parts)
                parts, size = [], 0
            parts.append(part)
            size += part.size
        if parts:
            yield self._to_arrow(parts)

    def _part(self, batch: RecordBatch, position: int) -> _Part | None:
        records = batch.records(position)
        unread = records.fork()
        count = 0
        if batch.last_offset < self._range.end:
            # In a loop: at a damaged record, a call returns the count before it, and the next call
            # raises the error.
            while more := records.skip(batch.count):
                count += more
        else:
            while records.skip(1) and records.offset < self._range.end:
                count += 1
        if not count:
            return None
        return _Part(
            unread,
            count,
            records.passed + count * _ROW_BYTES,
            batch.timestamp_type,
            batch.leader_epoch,
            batch.producer_id,
            batch.is_transactional,
        )

    def _to_arrow(self, parts: Sequence[_Part]) -> pa.RecordBatch:
        tp = self._range.tp
        whole = columns(((part.records, part.count) for part in parts), tp.topic, tp.partition)
        arrays = {f.name: self._column(f, whole, parts) for f in self._record_fields}
        remains = None
        if self._values is not None:
            parsed, remains = self._values.parse(whole.column("value"), whole.column("offset"))
            arrays |= parsed
        rows = pa.RecordBatch.from_arrays(
            [arrays[n] for n in self._schema.names], schema=self._schema
        )
        return rows if remains is None else rows.filter(remains)

    def _column(self, field: pa.Field, whole: pa.RecordBatch, parts: Sequence[_Part]) -> pa.Array:
        if field.name == "headers" and field.type.value_type.field(0).name == "key":
            return _connector_headers(whole.column("headers")).cast(field.type)
        if field.name in whole.schema.names:
            return whole.column(field.name).cast(field.type)
        constants = {
            "topic": self._range.tp.topic,
            "partition": self._range.tp.partition,
            "topic_id": self._range.topic_id or None,
        }
        if field.name in constants:
            return pa.repeat(pa.scalar(constants[field.name], field.type), whole.num_rows)
        name = "timestamp_type" if field.name == "timestampType" else field.name
        values = [getattr(part, name) for part in parts]
        if field.name != "transactional":
            values = [None if value == -1 else value for value in values]
        if len(set(values)) == 1:
            return pa.repeat(pa.scalar(values[0], field.type), whole.num_rows)
        ends = pc.cumulative_sum(pa.array([part.count for part in parts], pa.int32()))
        return pc.run_end_decode(
            pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, field.type))
        )


def _connector_headers(headers: pa.ListArray) -> pa.ListArray:
    """Return headers as Spark's own connector has them: null for none, else keys and values."""
    pairs = pa.StructArray.from_arrays(headers.values.flatten(), ["key", "value"])
    without = pc.equal(pc.list_value_length(headers), 0)
    return pa.ListArray.from_arrays(headers.offsets, pairs, mask=without)

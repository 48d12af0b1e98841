"""Convert the bytes of a fetch response to the columns of Spark's rows, without an object per
row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from kafkagroup.consume.transactions import mark_aborted
from kafkagroup.errors import DecodeError
from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.ranges import Range
from kafkagroup.wire.arrow import ColumnBuilder
from kafkagroup.wire.messages.fetch import PartitionData
from kafkagroup.wire.records import RecordBatch, read_batches

if TYPE_CHECKING:
    from kafkagroup.spark.json_values import JsonValues

__all__ = ["Rows"]

_MAX_BYTES = 2 << 20
"""The maximum of uncompressed bytes in one Arrow batch, unless one record batch is larger. It
bounds the memory that a task needs in the JVM, and is so low that rows are still in the processor's
cache when Spark's worker sends them."""

_MAX_MILLISECONDS = (2**63 - 1) // 1000
"""The most milliseconds before or after the epoch that fit into Spark's 64 bits of microseconds."""

_BATCH_FIELDS = {
    "timestamp_type": "timestamp_type",
    "timestampType": "timestamp_type",
    "leader_epoch": "leader_epoch",
    "producer_id": "producer_id",
    "transactional": "is_transactional",
}
"""Column -> the field of a record batch that all its records have in common."""


class Rows:
    """The rows of one task, in Spark's schema."""

    def __init__(self, options: SourceOptions, planned: Range, schema: pa.Schema) -> None:
        """`schema`: the columns that Spark needs, in its order, as Arrow types."""
        self._options = options
        self._range = planned
        self._schema = schema
        self._values: JsonValues | None = None
        """Parses values into the columns that are not the record's own; None without `parse`."""
        self._record_fields = list(schema)
        """The columns that are the record's own."""
        if options.parse is not None:
            # Only here: it loads Arrow's parser.
            from kafkagroup.spark.json_values import JsonValues

            self._record_fields = [f for f in schema if f.name in options.columns]
            fields = pa.schema([f for f in schema if f.name not in options.columns])
            self._values = JsonValues(fields, options.on_error, planned.tp)

    def convert(self, data: PartitionData, position: int) -> tuple[int, Iterator[pa.RecordBatch]]:
        """Return the next position, and the rows from `position` to the range's end.

        Raises: DecodeError for a damaged batch.
        """
        records = memoryview(data.records or b"")
        batches = list(
            read_batches(
                records,
                topic=self._range.tp.topic,
                partition=self._range.tp.partition,
                check_crcs=self._options.check_crcs,
            )
        )
        if self._options.isolation == "read_committed":
            mark_aborted(batches, data.aborted_transactions or ())
        after = max((batch.next_offset for batch in batches), default=position)
        builder = ColumnBuilder(min(len(records), _MAX_BYTES))
        return max(position, after), self._rows(batches, position, builder)

    def _rows(
        self, batches: Iterable[RecordBatch], position: int, builder: ColumnBuilder
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `batches` from `position` to the range's end, `_MAX_BYTES` at a time.
        If a batch is damaged, the rows before it are yielded first."""
        end = self._range.end
        try:
            for batch in batches:
                records = batch.records(position)
                # `append_batch` returns False if the batch does not fit; a new builder accepts any.
                if not builder.append_batch(records, end, _MAX_BYTES):
                    yield self._to_arrow(builder)
                    builder = ColumnBuilder(_MAX_BYTES)
                    builder.append_batch(records, end)
        except DecodeError:
            if builder.count:
                yield self._to_arrow(builder)
            raise
        if builder.count:
            yield self._to_arrow(builder)

    def _to_arrow(self, builder: ColumnBuilder) -> pa.RecordBatch:
        """Return the builder's records as rows, without those that `on_error=skip` leaves out."""
        whole = builder.finish(self._range.tp.topic, self._range.tp.partition)
        arrays = {f.name: self._column(f, whole, builder.batches) for f in self._record_fields}
        mask = None
        if self._values is not None:
            parsed, mask = self._values.parse(whole.column("value"), whole.column("offset"))
            arrays |= parsed
        rows = pa.RecordBatch.from_arrays(
            [arrays[n] for n in self._schema.names], schema=self._schema
        )
        return rows if mask is None else rows.filter(mask)

    def _column(
        self, field: pa.Field, whole: pa.RecordBatch, batches: Sequence[tuple[RecordBatch, int]]
    ) -> pa.Array:
        """Return a column that is the record's own. `whole`: the records with all columns that a
        builder has; `batches`: each record batch, and how many of the records it has."""
        # In this library's own rows, a header has a `name` instead of a `key`.
        if field.name == "headers" and field.type.value_type.field(0).name == "key":
            return _connector_headers(whole.column("headers")).cast(field.type)
        if field.name == "timestamp":
            return _times(whole.column("timestamp"), field.type)
        if field.name in whole.schema.names:
            return whole.column(field.name).cast(field.type)
        constants = {
            "topic": self._range.tp.topic,
            "partition": self._range.tp.partition,
            "topic_id": self._range.topic_id or None,
        }
        if field.name in constants:
            return pa.repeat(pa.scalar(constants[field.name], field.type), whole.num_rows)
        name = _BATCH_FIELDS[field.name]
        found = (getattr(batch, name) for batch, _ in batches)
        values = [None if value == -1 else value for value in found]  # -1: the batch has none
        if len(set(values)) == 1:
            return pa.repeat(pa.scalar(values[0], field.type), whole.num_rows)
        ends = pc.cumulative_sum(pa.array([count for _, count in batches], pa.int32()))
        return pc.run_end_decode(
            pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, field.type))
        )


def _times(times: pa.TimestampArray, kind: pa.TimestampType) -> pa.TimestampArray:
    """Return timestamps in Spark's microseconds; null for those that do not fit in 64 bits."""
    try:
        return times.cast(kind)
    except pa.ArrowInvalid:
        numbers = times.cast(pa.int64())
        fits = pc.and_(
            pc.greater_equal(numbers, -_MAX_MILLISECONDS),
            pc.less_equal(numbers, _MAX_MILLISECONDS),
        )
        return pc.if_else(fits, times, None).cast(kind)


def _connector_headers(headers: pa.ListArray) -> pa.ListArray:
    """Return headers as in Spark's own connector: keys and values, null for a record without
    any."""
    pairs = pa.StructArray.from_arrays(headers.values.flatten(), ["key", "value"])
    without = pc.equal(pc.list_value_length(headers), 0)
    return pa.ListArray.from_arrays(headers.offsets, pairs, mask=without)

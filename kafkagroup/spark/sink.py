"""Write rows to topics, at least once: if Spark repeats a task, its rows are written again.

The columns are `value`, and optionally `key`, `topic`, `partition`, `timestamp` and `headers`, in
any order; strings are written as UTF-8. A record goes to its `partition`; without one, to the
partition of its key; without a key, to a partition that changes with each batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kafkagroup._timestamps import check_timestamp
from kafkagroup.errors import ConfigurationError
from kafkagroup.spark.options import SinkOptions
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.murmur2 import partition_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from kafkagroup.spark.appends import Appends

__all__ = ["StreamWriter", "TableWriter", "check_schema"]

_TYPES = {
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (
        "array<struct<name:string,value:binary>>",
        "array<struct<key:string,value:binary>>",
    ),
}
"""Column -> its possible types."""

_MAX_IN_FLIGHT = 4
"""Batches of a task in flight, in all. A partition has at most one: retries could reorder two."""


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Check that rows can be written. Raises: ConfigurationError."""
    given = {field.name: field.dataType.simpleString() for field in schema}
    names = schema.names
    errors = [f"the column {name} is there twice" for name in given if names.count(name) > 1]
    errors += [
        f"{name} is {kind}, expected {' or '.join(_TYPES[name])}"
        if name in _TYPES
        else f"a record has no column {name}"
        for name, kind in given.items()
        if kind not in _TYPES.get(name, ())
    ]
    if "value" not in given:
        errors.append("there is no column value")
    if "topic" not in given and options.topic is None:
        errors.append("there is neither a column topic nor the option topic")
    if errors:
        raise ConfigurationError("; ".join(errors))


class TableWriter(DataSourceArrowWriter):
    """Writes a table."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, iterator)


def _write(options: SinkOptions, rows: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
    """Write all rows, and return when they are acknowledged. Raises: BrokerError;
    TransportError."""
    from kafkagroup.spark.appends import Appends

    with Appends(options) as appends:
        batcher = _RowBatcher(options, appends)
        for batch in rows:
            batcher.add(batch)
        batcher.finish()
    return WriterCommitMessage()


class _RowBatcher:
    """Collects the rows of one task into batches, and sends them."""

    def __init__(self, options: SinkOptions, appends: Appends) -> None:
        self._options = options
        self._appends = appends
        self._partition_counts: dict[str, int] = {}
        self._pending: dict[TopicPartition, tuple[list[NewRecord], int]] = {}
        """Partition -> the records of its next batch, and their bytes."""
        self._in_flight: dict[TopicPartition, Future[None]] = {}
        self._send_order: deque[TopicPartition] = deque()
        """The partitions of `_in_flight`, the one sent first at the left."""
        self._sent_count = 0
        """Batches sent so far; it chooses the partition of records without a key."""

    def add(self, batch: pyarrow.RecordBatch) -> None:
        """Add the batch's rows, and send each partition's records when they fill a batch."""
        columns = _columns(batch)
        now = time.time_ns() // 1_000_000
        for n in range(batch.num_rows):
            key, value = columns["key"][n], columns["value"][n]
            stamp, headers = columns["timestamp"][n], columns["headers"][n] or ()
            if stamp is not None:
                check_timestamp(stamp)
            record = NewRecord(
                key,
                value,
                now if stamp is None else stamp,
                tuple(_decoded(*header.values()) for header in headers),
            )
            tp = self._choose_partition(
                columns["topic"][n] or self._options.topic, columns["partition"][n], key
            )
            records, size = self._pending.get(tp, ([], 0))
            more = len(key or b"") + len(value or b"")
            if records and size + more > self._options.batch_bytes:
                self._send(tp, records)
                records, size = [], 0
            records.append(record)
            self._pending[tp] = records, size + more

    def finish(self) -> None:
        """Send the rest, and wait until all is acknowledged."""
        for tp, (records, _) in self._pending.items():
            self._send(tp, records)
        for sent in self._in_flight.values():
            sent.result()

    def _choose_partition(
        self, topic: str | None, partition: int | None, key: bytes | None
    ) -> TopicPartition:
        if topic is None:
            raise ConfigurationError("a row names no topic, and there is no option topic")
        if partition is not None:
            return TopicPartition(topic, partition)
        if topic not in self._partition_counts:
            self._partition_counts[topic] = self._appends.partition_count(topic)
        count = self._partition_counts[topic]
        return TopicPartition(
            topic, self._sent_count % count if key is None else partition_of(key, count)
        )

    def _send(self, tp: TopicPartition, records: Sequence[NewRecord]) -> None:
        if before := self._in_flight.pop(tp, None):
            before.result()
            self._send_order.remove(tp)
        while len(self._send_order) >= _MAX_IN_FLIGHT:
            self._in_flight.pop(self._send_order.popleft()).result()
        data = encode_batch(records, codec=self._options.compression)
        self._in_flight[tp] = self._appends.start_append(tp, data)
        self._send_order.append(tp)
        self._sent_count += 1


def _decoded(name: bytes, value: bytes | None) -> tuple[str, bytes | None]:
    """Return a header with its name as `encode_batch` writes it unchanged."""
    return name.decode(errors="surrogateescape"), value


def _columns(batch: pyarrow.RecordBatch) -> Mapping[str, Sequence[Any]]:
    """Return each column as a list; a missing one has only nulls."""
    import pyarrow as pa

    found: dict[str, Sequence[Any]] = dict.fromkeys(_TYPES, [None] * batch.num_rows)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name in ("key", "value"):
            column = column.cast(pa.binary())
        elif field.name == "timestamp":
            column = column.cast(pa.timestamp("ms", field.type.tz), safe=False).cast(pa.int64())
        elif field.name == "headers":
            # Spark does not check that strings are UTF-8, and Python would.
            name, value = field.type.value_type
            column = column.cast(pa.list_(pa.struct([name.with_type(pa.binary()), value])))
        found[field.name] = column.to_pylist()
    return found

"""Write rows to topics, at least once: if Spark repeats a task, its rows are written again. Within
a task an idempotent producer, the default, writes each row once.

The columns are `value`, and optionally `key`, `topic`, `partition`, `timestamp` and `headers`, in
any order; strings are written as UTF-8. A record goes to its `partition`; without one, to the
partition of its key; without a key, to one that the producer draws for each batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kafkagroup._timestamps import check_timestamp
from kafkagroup.errors import ConfigurationError
from kafkagroup.spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

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
"""Column -> the types that it may have."""


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Check that rows of this schema can be written. Raises: ConfigurationError that names all
    errors."""
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
    """Write all rows, and return when they are acknowledged. Raises: NotWrittenError; BrokerError;
    TransportError; ConfigurationError for a row that cannot be a record."""
    from kafkagroup.spark.worker_sessions import producer_of_task
    from kafkagroup.wire.arrow_writing import RowBatcher, RowColumns

    with producer_of_task(options) as producer:
        batcher = RowBatcher(
            topic=options.topic,
            max_bytes=options.batch_bytes,
            max_record=options.max_row_bytes,
            count_partitions=producer.partition_count,
            send=producer.send,
        )
        for batch in rows:
            columns = RowColumns(batch, time.time_ns() // 1_000_000)
            # Only a negative timestamp can be invalid: the columns have 64 bits.
            if columns.least_timestamp is not None:
                check_timestamp(columns.least_timestamp)
            batcher.add(columns)
        batcher.flush()
        producer.flush()
    return WriterCommitMessage()

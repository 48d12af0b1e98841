"""Write rows to topics, at least once: if Spark repeats a task, its rows are written again.

The columns are `value`, and optionally `key`, `topic`, `partition`, `timestamp` and `headers`, in
any order; strings are written as UTF-8. A record goes to its `partition`; without one, to the
partition of its key; without a key, to a partition that changes with each batch.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kafkagroup._timestamps import check_timestamp
from kafkagroup.errors import ConfigurationError
from kafkagroup.spark.options import SinkOptions
from kafkagroup.types import MAX_INT32, TopicPartition

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
    from kafkagroup.wire.arrow_writing import RowBatcher, RowColumns

    with Appends(options) as appends:
        in_flight = _InFlight(appends)
        batcher = RowBatcher(
            topic=options.topic,
            max_bytes=options.batch_bytes,
            codec=options.compression,
            # Each task begins at another one: small batches would all go to the same partition.
            first_partition=random.randrange(MAX_INT32),
            count_partitions=appends.partition_count,
            send=in_flight.send,
        )
        for batch in rows:
            columns = RowColumns(batch, time.time_ns() // 1_000_000)
            if columns.least_timestamp is not None:
                check_timestamp(columns.least_timestamp)
            batcher.add(columns)
        batcher.flush()
        in_flight.wait()
    return WriterCommitMessage()


class _InFlight:
    """The batches of a task that are sent and not acknowledged."""

    def __init__(self, appends: Appends) -> None:
        self._appends = appends
        self._sent: dict[TopicPartition, Future[None]] = {}
        self._order: deque[TopicPartition] = deque()
        """The partitions of `_sent`, the one sent first at the left."""

    def send(self, tp: TopicPartition, batch: bytes) -> None:
        """Send a batch after those before it are acknowledged, as far as they must be. Raises: the
        error of one of these."""
        if before := self._sent.pop(tp, None):
            before.result()
            self._order.remove(tp)
        while len(self._order) >= _MAX_IN_FLIGHT:
            self._sent.pop(self._order.popleft()).result()
        self._sent[tp] = self._appends.start_append(tp, batch)
        self._order.append(tp)

    def wait(self) -> None:
        """Wait until all are acknowledged. Raises: the error of one of them."""
        for sent in self._sent.values():
            sent.result()

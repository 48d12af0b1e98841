"""Data sources of ready-made Arrow batches: they show what Spark takes in from any Python source.

In a module of their own, which Spark's workers import: the benchmark itself runs as `__main__`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from kafkagroup.spark.option_values import COLUMNS
from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.ranges import Range
from kafkagroup.spark.source import KafkaGroupSource
from kafkagroup.spark.table import TableReader
from kafkagroup.wire.messages.fetch import PartitionData
from kafkagroup.wire.records import read_batches

__all__ = ["HEADERS", "PARTITIONS", "Fetched", "Ready", "key_of", "value_of"]

PARTITIONS = 2
"""The tasks of a read, and the partitions of the topic."""

READY_BYTES = 7_000_000
"""The values of a ready-made batch: those of one of our fetches."""

HEADERS = (("trace", b"0123456789abcdef"),)
"""The headers of each record."""


def key_of(n: int) -> bytes:
    """Return key number `n`, of 20 bytes."""
    return b"%020d" % n


def value_of(size: int) -> bytes:
    """Return a value of this many bytes."""
    text = b'{"id": 123456789, "name": "a customer", "price": 12.5, "paid": true, "comment": "%s"}'
    return text % (b"x" * (size + len(b"%s") - len(text)))


class Ready(DataSource):
    """Returns as many rows as the option `rows` says, by repeating one batch; `bytes` are those of
    a value."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        names = self.options["columns"].split(",")
        return ", ".join(f"{name} {COLUMNS[name]}" for name in names)

    def reader(self, schema: Any) -> DataSourceReader:
        return ReadyReader(schema, int(self.options["rows"]), int(self.options["bytes"]))


class ReadyReader(DataSourceReader):
    def __init__(self, schema: Any, rows: int, size: int) -> None:
        self._schema = schema
        self._rows = rows
        self._size = size

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // PARTITIONS) for _ in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        count = READY_BYTES // self._size
        batch = ready_rows(schema, count, value_of(self._size))
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, count))
            left -= count


class Fetched(KafkaGroupSource):
    """Our source, with ready-made rows in place of the fetched records."""

    @classmethod
    def name(cls) -> str:
        return "fetched"

    def reader(self, schema: Any) -> DataSourceReader:
        return FetchedReader(self._source(schema), schema)


class FetchedReader(TableReader):
    def read(self, partition: InputPartition | None) -> Iterator[pyarrow.RecordBatch]:
        # `read` imports the class when it is called.
        with mock.patch("kafkagroup.spark.rows.Rows", ReadyRows):
            yield from super().read(partition)


class ReadyRows:
    """Takes the place of `Rows`; the fetched batches must be equal, but for their offsets."""

    def __init__(self, options: SourceOptions, planned: Range, schema: pyarrow.Schema) -> None:
        self._end = planned.end
        self._ready = ready_rows(schema, 0, b"")

    def convert(
        self, data: PartitionData, position: int
    ) -> tuple[int, Iterable[pyarrow.RecordBatch]]:
        fetched = memoryview(data.records or b"")
        first = next(read_batches(fetched, topic="", partition=0))
        after = first.base_offset + len(fetched) // first.size * first.count
        count = min(after, self._end) - position
        if count > self._ready.num_rows:
            value = next(first.records()).value
            assert isinstance(value, bytes)
            self._ready = ready_rows(self._ready.schema, count, value)
        return after, [self._ready.slice(0, count)]


def ready_rows(schema: pyarrow.Schema, count: int, value: bytes) -> pyarrow.RecordBatch:
    """Return `count` equal rows."""
    row = {
        "topic": "bench-12345678",
        "topic_id": "x" * 36,
        "partition": 0,
        "offset": 5,
        "timestamp": datetime.datetime.now(datetime.UTC),
        "timestamp_type": 0,
        "key": key_of(0),
        "value": value,
        "headers": [{"name": name, "value": of} for name, of in HEADERS],
        "leader_epoch": 0,
        "transactional": False,
    }
    columns = [pyarrow.array([row.get(f.name)] * count, f.type) for f in schema]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)

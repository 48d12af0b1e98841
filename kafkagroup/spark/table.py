"""Topics as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.ranges import Range, split
from kafkagroup.spark.reading import data_loss, inside, positions_at, read

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

__all__ = ["TableReader"]


class TableReader(DataSourceReader):
    """A topic as a table, from one offset to another."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. The end offsets are looked up here: later records are not read."""
        from kafkagroup.spark.logs import Logs

        options = self._options
        with Logs(options) as session:
            partitions, ids = session.partitions()
            starts, ends = session.log_bounds(partitions)
            first = positions_at(session, options.starting_offsets, options, starts, ends, ids)
            last = positions_at(session, options.ending_offsets, options, starts, ends, ids)
        ranges = []
        for tp in partitions:
            start, end = inside(tp, first[tp], starts[tp], ends[tp], options), last[tp]
            if end > ends[tp]:
                data_loss(f"{tp} is to be read up to {end}, but ends at {ends[tp]}", options)
                end = ends[tp]
            ranges.append(Range(tp, ids[tp.topic], start, end))
        return [InputPartition(r) for r in split(ranges, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        # With an empty plan, Spark starts one task whose partition has no value.
        planned = partition.value
        return iter(()) if planned is None else read(self._options, self._schema, planned)

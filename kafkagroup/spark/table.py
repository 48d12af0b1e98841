"""Topics as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from kafkagroup.errors import ConfigurationError
from kafkagroup.spark.filters import Selection, select
from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.ranges import Range, split
from kafkagroup.spark.reading import clamped, positions_at, read, report_data_loss

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

__all__ = ["FilteringTableReader", "TableReader"]


class TableReader(DataSourceReader):
    """A topic as a table, from one offset to another."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._selection = Selection()

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. The end offsets are looked up here: later records are not read.

        Raises: ConfigurationError for a start after the end, and as `positions_at`; DataLossError;
        BrokerError; TransportError.
        """
        from kafkagroup.spark.logs import Logs

        options = self._options
        with Logs(options) as session:
            partitions, ids = session.partitions()
            cluster_id = session.cluster_id
            starts, ends = session.log_bounds(partitions)
            first = positions_at(session, options.starting_offsets, options, starts, ends, ids)
            last = positions_at(session, options.ending_offsets, options, starts, ends, ids)
            needed = self._selection
            since = {tp: needed.since for tp in partitions if needed.since and needed.includes(tp)}
            # Of a partition, no record below its floor passes the filter on the timestamp.
            floors = session.offsets_at(since)
        ranges = []
        for tp in partitions:
            # The whole range lies below the log's start, to which `first` may have moved already.
            if last[tp] < starts[tp] and (first[tp] <= last[tp] or first[tp] == starts[tp]):
                report_data_loss(
                    f"{tp} is to be read up to {last[tp]} by endingOffsets, but has {starts[tp]} to"
                    f" {ends[tp]}: retention has moved past the end",
                    options,
                )
                continue
            if last[tp] < first[tp] <= ends[tp]:  # a start after the log's end is lost data
                raise ConfigurationError(
                    f"{tp} is to be read from {first[tp]} to {last[tp]}: startingOffsets lie after"
                    " endingOffsets"
                )
            start, end = clamped(tp, first[tp], starts[tp], ends[tp], options), last[tp]
            if end > ends[tp]:
                report_data_loss(f"{tp} is to be read up to {end}, but ends at {ends[tp]}", options)
                end = ends[tp]
            if needed.includes(tp):
                start, end = needed.narrow(max(start, floors.get(tp, 0)), end)
                ranges.append(Range(tp, ids[tp.topic], start, end, cluster_id))
        tasks = split(ranges, options.min_partitions, options.max_records_per_partition)
        return [InputPartition(r) for r in tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pyarrow.RecordBatch]:
        # With an empty plan, Spark starts one task, whose partition has no value; PySpark 4.1 gives
        # no partition at all.
        if partition is None or partition.value is None:
            return iter(())
        return read(self._options, self._schema, partition.value)


class FilteringTableReader(TableReader):
    """A topic as a table, with the filters that Spark pushes down. It is a class of its own because
    Spark refuses a reader with `pushFilters` while filter pushdown is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep what the filters select, and return those that Spark must still evaluate."""
        options = self._options
        fields = set(self._schema.names) - set(options.columns) if options.parse else ()
        self._selection, remaining = select(filters, fields)
        return remaining

"""The data source: Kafka topics as tables and streams of Spark.

Spark creates and pickles these objects, and calls them in its own processes. So readers hold only
options. A connection lasts for one call; in a stream's planner until `stop`; in a worker until a
task fails or the worker ends. A task needs only the options and its `Range` to read.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from kafkagroup.errors import ConfigurationError
from kafkagroup.spark.option_values import record_types
from kafkagroup.spark.options import (
    ConnectionOptions,
    SinkOptions,
    SourceOptions,
    parse_options,
    parse_sink_options,
)
from kafkagroup.spark.parsed_schema import check_parsed_schema, check_record_schema
from kafkagroup.spark.sink import StreamWriter, TableWriter, check_schema
from kafkagroup.spark.table import FilteringTableReader, TableReader
from kafkagroup.spark.worker_python import check_worker_python
from kafkagroup.spark.write_modes import append_by_default

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


__all__ = ["KafkaGroupSource", "register"]


logger = logging.getLogger(__name__)

_warned: set[str] = set()
"""The options that this process has warned about: a stream creates a writer for each batch."""


def register(spark: SparkSession) -> None:
    """Register `format("kafkagroup")` with a session, and install the listener that commits the
    batches of its queries (the option `commit`). Let PySpark's writers append to this format by
    default.

    Raises: ConfigurationError if the workers of the session run on this machine, and their Python
    lacks this package.
    """
    # A session of Spark Connect has no context here.
    if (context := getattr(spark, "_sc", None)) is not None:
        check_worker_python(context)
    spark.dataSource.register(KafkaGroupSource)
    is_remote = "connect" in type(spark).__module__.split(".")
    module = "pyspark.sql.connect.readwriter" if is_remote else "pyspark.sql.readwriter"
    append_by_default(import_module(module).DataFrameWriter, KafkaGroupSource.name())
    if _has_streams():
        from kafkagroup.spark.listener import install

        install(spark, KafkaGroupSource.name())


def _has_streams() -> bool:
    """Whether PySpark has what a stream needs: limits of batches for sources in Python. PySpark 4.1
    lacks them."""
    return find_spec("pyspark.sql.streaming.datasource") is not None


class KafkaGroupSource(DataSource):
    """`format("kafkagroup")`; the options are those of `SourceOptions` and `SinkOptions`."""

    _has_warned = False
    """Whether this object has warned about options without effect. It is pickled with the object:
    Spark creates readers from copies in several processes, which must not warn again."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._process_id = os.getpid()

    @classmethod
    def name(cls) -> str:
        return "kafkagroup"

    def schema(self) -> str:
        options = parse_options(dict(self.options))
        self._warn(options)
        if options.parse is not None:
            raise ConfigurationError(
                f"parse={options.parse} needs the fields of the values: call"
                ' .schema("id bigint, name string") before .load()'
            )
        types = record_types(options.has_connector_rows)
        return ", ".join(f"{name} {types[name]}" for name in options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._source(schema)
        kind = FilteringTableReader if options.push_filters else TableReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if not _has_streams():
            raise ConfigurationError(
                f"a stream from Kafka needs PySpark 4.2 or later; this is {pyspark.__version__},"
                " in which tables work"
            )
        from kafkagroup.spark.measured_stream import MeasuredStreamReader

        options = self._source(schema, is_stream=True)
        if options.ending_offsets.kind != "latest":
            raise ConfigurationError(
                "endingOffsets, endingTimestamp and endingOffsetsByTimestamp end a table; a stream"
                " ends with its trigger or its query"
            )
        return MeasuredStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise ConfigurationError('a topic cannot be overwritten; use mode("append")')
        return TableWriter(self._sink(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        # In the output mode complete, `overwrite` is true. Spark's own connector appends then, too.
        return StreamWriter(self._sink(schema))

    def _source(self, schema: StructType, *, is_stream: bool = False) -> SourceOptions:
        options = parse_options(dict(self.options), is_stream=is_stream)
        if options.parse is not None:
            check_parsed_schema(schema, options)
        else:
            check_record_schema(schema)
        self._warn(options)
        return options

    def _sink(self, schema: StructType) -> SinkOptions:
        options = parse_sink_options(
            {name: value for name, value in self.options.items() if name not in _SPARKS_OWN}
        )
        check_schema(schema, options)
        # In another process this is a copy, from which a stream creates one more writer.
        if os.getpid() == self._process_id:
            self._warn(options)
        return options

    def _warn(self, options: ConnectionOptions) -> None:
        """Warn once about options that have no effect."""
        for name, reason in options.ignored.items():
            if name not in _warned and not self._has_warned:
                _warned.add(name)
                logger.warning("option %s has no effect%s", name, reason and f": {reason}")
        self._has_warned = True


_SPARKS_OWN = ("checkpointlocation", "queryname")
"""Spark's own options, which it also passes to sinks, in lower case as all options."""

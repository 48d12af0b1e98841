"""The data source: Kafka topics as tables and streams of Spark.

Spark makes and pickles these objects, and calls them in processes of its own: readers hold options
only, and connections live as long as one call, or, in a stream's planner, until `stop`. What a task
is to read is all in its `Range`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from kafkagroup.errors import ConfigurationError
from kafkagroup.spark.options import COLUMNS, SinkOptions, parse_options, parse_sink_options
from kafkagroup.spark.sink import StreamWriter, TableWriter, check_schema
from kafkagroup.spark.stream import StreamReader
from kafkagroup.spark.table import TableReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


__all__ = ["KafkaGroupSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("kafkagroup")` known to a session."""
    spark.dataSource.register(KafkaGroupSource)


class KafkaGroupSource(DataSource):
    """`format("kafkagroup")`; the options are those of `SourceOptions` and `SinkOptions`."""

    @classmethod
    def name(cls) -> str:
        return "kafkagroup"

    def schema(self) -> str:
        columns = parse_options(dict(self.options)).columns
        return ", ".join(f"{name} {COLUMNS[name]}" for name in columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(parse_options(dict(self.options)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(parse_options(dict(self.options)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise ConfigurationError(
                'a topic is only written to behind its end; use mode("append")'
            )
        return TableWriter(self._sink(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self._sink(schema))

    def _sink(self, schema: StructType) -> SinkOptions:
        options = parse_sink_options(
            {name: value for name, value in self.options.items() if name not in _SPARKS_OWN}
        )
        check_schema(schema, options)
        return options


_SPARKS_OWN = ("checkpointlocation",)
"""Options of Spark's that it hands to sinks too."""

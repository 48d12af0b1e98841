"""Tables of Spark from rows of the driver, and their schemas in Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["arrow_schema", "frame"]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Spark's schema as one of Arrow, with timestamps in UTC."""
    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # PySpark 4.1, in which timestamps are always in UTC


def frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
    """Return a table of these rows, in their order; `schema` is Spark's DDL.

    The rows go to the JVM as Arrow: `createDataFrame(rows)` would check and pickle each value.
    """
    fields = arrow_schema(StructType.fromDDL(schema))
    columns = zip(*rows, strict=True) if rows else ((),) * len(fields)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=fields))

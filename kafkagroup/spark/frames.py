"""Tables of Spark from rows of the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["frame"]


def frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
    """Return a table of these rows, in their order; `schema` is Spark's DDL.

    The rows go to the JVM as Arrow: `createDataFrame(rows)` would check and pickle each value.
    """
    arrow_schema = to_arrow_schema(StructType.fromDDL(schema), timezone="UTC")
    columns = zip(*rows, strict=True) if rows else ((),) * len(arrow_schema)
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, arrow_schema, strict=True)
    ]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow_schema))

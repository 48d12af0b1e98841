"""The columns of rows to write, without Spark."""

from __future__ import annotations

import pytest

from kafkagroup import ConfigurationError
from kafkagroup.spark.options import SinkOptions

sink = pytest.importorskip("kafkagroup.spark.sink")


def test_a_column_that_is_there_twice_is_named() -> None:
    """The last one was written."""
    from pyspark.sql.types import BinaryType, StructType

    schema = StructType().add("value", BinaryType()).add("value", BinaryType())
    options = SinkOptions(bootstrap_servers="k", topic="t")
    with pytest.raises(ConfigurationError, match="the column value is there twice"):
        sink.check_schema(schema, options)

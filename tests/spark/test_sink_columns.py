"""The columns of rows to write, without Spark."""

from __future__ import annotations

import pytest

from kafkagroup import ConfigurationError
from kafkagroup.spark.options import SinkOptions

pa = pytest.importorskip("pyarrow")
sink = pytest.importorskip("kafkagroup.spark.sink")


def test_a_column_that_is_there_twice_is_named() -> None:
    """The last one was written."""
    from pyspark.sql.types import BinaryType, StructType

    schema = StructType().add("value", BinaryType()).add("value", BinaryType())
    options = SinkOptions(bootstrap_servers="k", topic="t")
    with pytest.raises(ConfigurationError, match="the column value is there twice"):
        sink.check_schema(schema, options)


@pytest.mark.parametrize("key", ["name", "key"])
def test_header_names_that_are_not_utf8_are_written_unchanged(key: str) -> None:
    """Spark does not check the bytes of a string, and Python's conversion raised an error."""
    names = pa.array([b"\xc3(id", "hé".encode(), b"plain"], pa.binary()).view(pa.string())
    fields = [pa.field(key, pa.string()), pa.field("value", pa.binary())]
    pairs = pa.StructArray.from_arrays([names, pa.array([b"7", None, b""])], fields=fields)
    headers = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), pairs)
    batch = pa.record_batch({"value": pa.array([b"a", b"b", b"c"]), "headers": headers})
    found = [
        [sink._decoded(*header.values()) for header in row or ()]
        for row in sink._columns(batch)["headers"]
    ]
    assert found == [[("\udcc3(id", b"7"), ("hé", None)], [], [("plain", b"")]]

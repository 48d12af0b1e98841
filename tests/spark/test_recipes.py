"""The functions of the page of recipes, on real tables and records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import ROOT, blocks

from kafkagroup.wire.batch_writing import NewRecord

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")


def shown(name: str) -> Callable[..., Any]:
    """Return a function that the page shows."""
    page = ROOT / "docs" / "spark-recipes.md"
    (block,) = (
        block for block in blocks(page) if f"def {name}(" in block.text and not block.hidden
    )
    names: dict[str, Any] = {}
    exec(compile(block.text, block.where, "exec"), names)
    return names[name]


@pytest.fixture
def orders(spark: Any, stored: dict[str, str]) -> Iterator[Callable[[], list[Any]]]:
    """Return a function that reads the table `orders`, which is in the current namespace."""
    spark.sql(f"USE {stored['namespace']}")
    columns = "id STRING, value STRING, offset BIGINT"
    spark.sql(f"CREATE TABLE orders ({columns}) USING {stored['format']}")
    yield lambda: sorted(map(tuple, spark.table("orders").collect()))
    spark.sql("USE spark_catalog.default")


def record(key: str, value: str | None) -> NewRecord:
    return NewRecord(key.encode(), None if value is None else value.encode(), 1000)


@pytest.mark.parametrize("stored", ["delta-catalog", "iceberg"], indirect=True)
def test_a_merged_table_has_the_last_value_of_each_key(
    spark: Any, orders: Callable[[], list[Any]]
) -> None:
    """A batch that failed runs again as a whole: it must not bring back what a later record has
    deleted or changed."""
    merge = shown("merge")

    def batch(*rows: tuple[str, str | None, int]) -> Any:
        made = [(key.encode(), None if v is None else v.encode(), at) for key, v, at in rows]
        return spark.createDataFrame(made, "key binary, value binary, offset bigint")

    first = batch(("a", "1", 0), ("b", "2", 1), ("c", "3", 2), ("a", "4", 3), ("d", None, 4))
    merge(first, 0)
    assert orders() == [("a", "4", 3), ("b", "2", 1), ("c", "3", 2)]
    second = batch(("b", None, 5), ("c", "6", 6))
    for again in (second, second, first.where("offset > 1 AND offset < 4")):
        merge(again, 1)
        assert orders() == [("a", "4", 3), ("c", "6", 6)]


@pytest.mark.parametrize("stored", ["delta-catalog"], indirect=True)
def test_a_stream_is_merged(
    spark: Any, broker: Any, name: str, orders: Callable[[], list[Any]], tmp_path: Path
) -> None:
    broker.create(name)
    merge = shown("merge")

    def run() -> None:
        options = {"bootstrap.servers": broker.address, "subscribe": name, "maxRowsPerBatch": "2"}
        rows = spark.readStream.format("kafkagroup").options(**options).load()
        writer = rows.writeStream.foreachBatch(merge).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(300)

    broker.fill(name, 0, [record("a", "1"), record("b", "2"), record("a", "3")])
    run()
    assert orders() == [("a", "3", 2), ("b", "2", 1)]
    broker.fill(name, 0, [record("b", None), record("c", "5")])
    run()
    assert orders() == [("a", "3", 2), ("c", "5", 4)]


def test_avro_after_confluents_prefix(spark: Any) -> None:
    """`from_avro` reads the prefix as data: a column of nulls, or wrong values."""
    if "spark-avro" not in spark.conf.get("spark.jars.packages", ""):
        pytest.skip("NOT TESTED, Avro: spark-avro has no release for this PySpark: make test-lakes")
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
    }
    avro = bytes([2 * 21, 2 * 3]) + b"tea"  # zigzag: twice the number, and twice the length
    values = [b"\0\0\0\1\7" + avro, b"\0\0\0\0\7" + avro, b"\1" + avro, b"", None]
    rows = spark.createDataFrame([(value,) for value in values], "value binary")
    found = shown("decoded")(rows, 0x107, json.dumps(schema)).select("order.*").collect()
    assert [tuple(row) for row in found] == [(21, "tea")]

"""`parse=json` in Spark: its rows are those of `from_json`, in tables and in streams."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafkagroup.wire.batch_writing import NewRecord

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark.sql import functions

FIELDS = (
    "id bigint, name string, price double, paid boolean, small tinyint, amount decimal(9, 2),"
    " day date, at timestamp, local timestamp_ntz, tags array<string>,"
    " line struct<n: int, days: array<date>>"
)

MALFORMED = (
    *("null", "[]", "x", "{", '{"id": 1', '{"id": "1"}', '{"id": 1.5}', '{"small": 300}'),
    *('{"paid": 0}', '{"day": "x"}', '{"local": "2026-01-31T00:00:00Z"}', '{"tags": {}}'),
    *('{"line": [1]}', '{"line": {"n": "1"}}', '{"amount": 123456789}', '{"name": "a\tb"}'),
)


def value(random: Random) -> bytes | None:
    """Return a value, which may be malformed or none at all."""
    kind = random.random()
    if kind < 0.15:
        return random.choice(MALFORMED).encode()
    if kind < 0.2:
        return random.choice((None, b"", b" \n"))
    minute = f"2026-01-{random.randint(10, 31)}T10:{random.randint(10, 59)}"
    fields: dict[str, Any] = {
        "id": random.randint(-(2**63), 2**63 - 1),
        "name": random.choice(("", "é", 'a"b\\c', "x\ny", "\u2028😀", "{}")),
        "price": random.choice((0, -1.5, 1e300, random.random())),
        "paid": random.random() < 0.5,
        "small": random.randint(-128, 127),
        "amount": random.choice((1, 0.25, "12.5", -1234567.89)),
        "day": minute[:10],
        "at": minute + random.choice((":00Z", ":01.5+02:00", ":59.123456789Z")),
        "local": minute + random.choice((":00", ":01.000001")),
        "tags": random.choice(([], ["a", None], ["}{"])),
        "line": random.choice(({}, {"n": 3, "days": None}, {"days": [minute[:10], None], "m": 1})),
        "other": [{"id": 1}, "x", None, 1.5],
    }
    kept = {
        name: None if random.random() < 0.1 else field
        for name, field in fields.items()
        if random.random() < 0.8
    }
    text = json.dumps(kept, indent=random.choice((None, 2)), ensure_ascii=random.random() < 0.5)
    return random.choice(("", " ", "\r\n")).join(("", text, "")).encode()


def test_rows_are_those_of_from_json(spark: Any, broker: Any, name: str) -> None:
    """With nulls for malformed values; Spark's partial results, which keep the fields that fit,
    are off."""
    random = Random(24)
    broker.create(name, 2)
    for partition in range(2):
        values = [value(random) for _ in range(300)]
        broker.fill(name, partition, [NewRecord(None, one, 1_500) for one in values])
    reader = spark.read.format("kafkagroup")
    reader = reader.option("bootstrap.servers", broker.address).option("subscribe", name)
    own = "partition int, offset bigint, value binary, timestamp timestamp"
    ours = (
        reader.option("parse", "json")
        .option("on_error", "null")
        .option("columns", "partition, offset, value, timestamp")
        .schema(f"{own}, {FIELDS}")
        .load()
    )
    parsed = functions.from_json(functions.col("value").cast("string"), FIELDS)
    plain = spark.read.format("kafkagroup").option("bootstrap.servers", broker.address)
    theirs = plain.option("subscribe", name).load().withColumn("j", parsed)
    partial = "spark.sql.json.enablePartialResults"
    spark.conf.set(partial, "false")
    try:
        expected = theirs.select("partition", "offset", "value", "timestamp", "j.*").collect()
    finally:
        spark.conf.unset(partial)
    assert len(expected) == 600
    assert sorted(ours.collect(), key=_place) == sorted(expected, key=_place)


def _place(row: Any) -> tuple[int, int]:
    return row.partition, row.offset


def test_a_malformed_value_fails_a_query_and_is_named(spark: Any, broker: Any, name: str) -> None:
    broker.create(name)
    broker.fill(name, 0, [NewRecord(None, b'{"id": 1}'), NewRecord(None, b'{"id": "2"}')])
    frame = (
        spark.read.format("kafkagroup")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", name)
        .option("parse", "json")
        .schema("id bigint")
        .load()
    )
    with pytest.raises(Exception, match=f"the value of {name}/0 at offset 1 does not match"):
        frame.collect()


@pytest.mark.long
def test_a_stream_leaves_malformed_values_out(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    """Also if a batch has no other value."""
    broker.create(name)
    values: list[bytes | None] = [b"{", b"{", b'{"id": 2}', None, b"}", b'{"id": 5}']
    broker.fill(name, 0, [NewRecord(None, one) for one in values])
    frame = (
        spark.readStream.format("kafkagroup")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", name)
        .option("maxRowsPerBatch", "2")
        .option("parse", "json")
        .option("on_error", "skip")
        .option("columns", "offset")
        .schema("offset bigint, id bigint")
        .load()
    )
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert [progress.numInputRows for progress in query.recentProgress] == [0, 2, 1]
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.offset, row.id) for row in rows) == [(2, 2), (3, None), (5, 5)]

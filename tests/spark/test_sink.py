"""Rows written to topics."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from brokers import numbered

from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.settings import BrokerSettings


def write(frame: Any, address: str, **options: str) -> None:
    given = {name.replace("_", "."): value for name, value in options.items()}
    writer = frame.write.format("kafkagroup").mode("append").option("bootstrap.servers", address)
    writer.options(**given).save()


def read(spark: Any, address: str, topic: str) -> list[Any]:
    reader = spark.read.format("kafkagroup").option("bootstrap.servers", address)
    return reader.option("subscribe", topic).load().orderBy("partition", "offset").collect()


def test_a_record_has_every_column_of_a_row(spark: Any, broker: Any, name: str) -> None:
    broker.create(name, 3)
    stamp = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_901)
    row = (name, 1, stamp, bytearray(b"k"), "välue", [("h", bytearray(b"x")), ("h", None)])
    frame = spark.createDataFrame(
        [row],
        "topic string, partition int, timestamp timestamp, key binary, value string,"
        " headers array<struct<name: string, value: binary>>",
    )
    write(frame, broker.address, compression_type="zstd")
    (found,) = read(spark, broker.address, name)
    assert (found.partition, found.timestamp) == (1, stamp.replace(microsecond=678_000))
    assert (bytes(found.key), bytes(found.value)) == (b"k", "välue".encode())
    assert [(h.name, h.value and bytes(h.value)) for h in found.headers] == [
        ("h", b"x"),
        ("h", None),
    ]


def test_keys_go_to_the_partitions_that_other_producers_choose(
    spark: Any, broker: Any, name: str
) -> None:
    ours, theirs = f"{name}-ours", f"{name}-theirs"
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "partitioner": "murmur2"}
    )
    for topic in (ours, theirs):
        broker.create(topic, 5)
    for n in range(50):
        producer.produce(theirs, b"v", f"key {n}")
    producer.flush(20)
    frame = spark.range(50).selectExpr("concat('key ', id) AS key", "'v' AS value")
    write(frame, broker.address, topic=ours)
    places = [
        sorted((row.partition, bytes(row.key)) for row in read(spark, broker.address, topic))
        for topic in (ours, theirs)
    ]
    assert places[0] == places[1]
    assert len({partition for partition, _ in places[0]}) == 5


def test_rows_keep_their_order_and_none_is_lost(spark: Any, broker: Any, name: str) -> None:
    broker.create(name, 2)
    frame = spark.range(0, 5000, 1, 2).selectExpr("cast(id AS string) AS value")
    write(frame, broker.address, topic=name, batch_size="2000")
    rows = read(spark, broker.address, name)
    assert sorted(int(row.value) for row in rows) == list(range(5000))
    assert {row.partition for row in rows} == {0, 1}
    for task in (range(2500), range(2500, 5000)):
        for partition in range(2):
            values = [int(r.value) for r in rows if r.partition == partition]
            of_task = [value for value in values if value in task]
            assert of_task == sorted(of_task)


def test_a_stream_from_topic_to_topic(spark: Any, broker: Any, name: str, tmp_path: Path) -> None:
    broker.create(name)
    broker.create(f"{name}-copy")
    broker.fill(name, 0, numbered(0, 20))
    reader = spark.readStream.format("kafkagroup").option("bootstrap.servers", broker.address)
    frame = reader.option("subscribe", name).option("maxRowsPerBatch", "8").load()
    query = (
        frame.select("key", "value", "timestamp", "headers")
        .writeStream.format("kafkagroup")
        .option("bootstrap.servers", broker.address)
        .queryName("copy")  # Spark passes it as an option, too
        .option("kafka.acks", "all")
        .option("includeHeaders", "true")
        .option("topic", f"{name}-copy")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    copied = [bytes(row.value) for row in read(spark, broker.address, f"{name}-copy")]
    assert copied == [b"0/%d" % n for n in range(20)]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("id AS value", {"topic": "t"}, "value is bigint, expected binary or string"),
        ("'v' AS value", {}, "neither a column topic nor the option topic"),
        ("'v' AS value, 1 AS x", {"topic": "t"}, "a record has no column x"),
        ("'k' AS key", {"topic": "t"}, "there is no column value"),
        ("'v' AS value, timestamp '1969-01-01' AS timestamp", {"topic": "t"}, "since 1970"),
    ],
)
def test_wrong_columns_are_reported(
    spark: Any, broker: Any, columns: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        write(spark.range(1).selectExpr(*columns.split(", ")), broker.address, **options)


def test_a_missing_topic_is_created_where_the_cluster_allows_it(spark: Any, name: str) -> None:
    """Spark's own connector creates it, and a query that was moved failed."""
    settings = BrokerSettings(auto_create_topics=True, default_partitions=2)
    with EmbeddedKafka(settings=settings) as broker:
        frame = spark.range(0, 40, 1, 2).selectExpr("cast(id AS string) AS key", "'v' AS value")
        write(frame, broker.bootstrap_servers, topic=name)
        keys = [row.key for row in read(spark, broker.bootstrap_servers, name)]
    assert sorted(int(key) for key in keys) == list(range(40))


def test_a_missing_topic_is_an_error_where_the_cluster_does_not_create_it(
    spark: Any, broker: Any, name: str
) -> None:
    frame = spark.range(1).selectExpr("'v' AS value")
    message = f"topic '{name}' does not exist.*--create --topic {name}"
    with pytest.raises(Exception, match=message):
        write(frame, broker.address, topic=name, default_api_timeout_ms="2000")
    assert not broker.exists(name)


def test_rows_are_appended_by_default(spark: Any, broker: Any, name: str, tmp_path: Path) -> None:
    """Spark refuses its default mode for sources in Python; a query that was moved failed."""
    broker.create(name)
    frame = spark.range(1).selectExpr("'v' AS value")
    options = {"bootstrap.servers": broker.address, "topic": name}
    frame.write.format("kafkagroup").options(**options).save()
    frame.write.mode("error").format("KafkaGroup").options(**options).save()
    frame.write.save(format="kafkagroup", **options)
    assert len(read(spark, broker.address, name)) == 3
    for mode, message in (("overwrite", "cannot be overwritten; use mode"), ("ignore", "Append")):
        with pytest.raises(Exception, match=message):
            frame.write.mode(mode).format("kafkagroup").options(**options).save()
    frame.write.format("kafkagroup").format("parquet").mode("error").save(str(tmp_path / "a"))
    with pytest.raises(Exception, match="PATH_ALREADY_EXISTS"):
        frame.write.format("kafkagroup").format("parquet").save(str(tmp_path / "a"))


def test_a_partition_that_does_not_exist_fails_at_once(spark: Any, broker: Any, name: str) -> None:
    """It was retried until the timeout, whose error named neither the partition nor the count."""
    broker.create(name, 3)
    frame = spark.range(1).selectExpr("'v' AS value", "99 AS partition")
    with pytest.raises(Exception, match=f"partition 99 of topic '{name}', which has 3 partitions"):
        write(frame, broker.address, topic=name)

"""Topics as tables: their rows, their range, and errors for deleted records."""

from __future__ import annotations

import datetime
from typing import Any

import confluent_kafka
import pytest
from brokers import numbered

from kafkagroup import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord
from kafkagroup.wire.coordinator.offsets import OffsetCommitKey
from kafkagroup.wire.group_log import GroupRecord, decode_group_record


def table(spark: Any, address: str, **options: str) -> Any:
    reader = spark.read.format("kafkagroup").option("bootstrap.servers", address)
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), value)
    return reader.load()


def test_a_row_has_every_field_of_a_record(spark: Any, broker: Any, name: str) -> None:
    broker.create(name)
    broker.fill(name, 0, [NewRecord(b"k", b"v", 1_500, (("h", b"x"), ("h", None)))])
    broker.fill(name, 0, [NewRecord(None, None, 2_000)])
    frame = table(spark, broker.address, subscribe=name)
    first, second = (row.asDict(recursive=True) for row in frame.orderBy("offset").collect())
    topic_id = first.pop("topic_id")
    assert len(topic_id) == 36
    assert first == {
        "topic": name,
        "partition": 0,
        "offset": 0,
        "timestamp": datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000),
        "timestamp_type": 0,
        "key": b"k",
        "value": b"v",
        "headers": [{"name": "h", "value": b"x"}, {"name": "h", "value": None}],
        "leader_epoch": 0,
        "producer_id": None,
        "transactional": False,
    }
    assert (second["key"], second["value"], second["headers"]) == (None, None, [])
    assert frame.schema.simpleString() == (
        "struct<topic:string,topic_id:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestamp_type:int,key:binary,value:binary,headers:array<struct<name:string,value:binary>>,"
        "leader_epoch:int,producer_id:bigint,transactional:boolean>"
    )


def values(frame: Any) -> list[tuple[int, int, bytes]]:
    rows = frame.select("partition", "offset", "value").collect()
    return sorted((row.partition, row.offset, bytes(row.value)) for row in rows)


def test_a_topic_in_the_requested_number_of_tasks(spark: Any, broker: Any, name: str) -> None:
    broker.create(name, 3)
    for partition in range(2):
        for start, end in ((0, 40), (40, 80), (80, 100)):
            broker.fill(name, partition, numbered(partition, end, start))
    expected = [(p, n, b"%d/%d" % (p, n)) for p in range(2) for n in range(100)]
    frame = table(spark, broker.address, subscribe=name)
    assert values(frame) == expected
    split = table(spark, broker.address, subscribe=name, minPartitions="7")
    assert split.rdd.getNumPartitions() in (7, 8)
    assert values(split) == expected


def test_selected_columns_keep_their_order(spark: Any, broker: Any, name: str) -> None:
    broker.create(name)
    broker.fill(name, 0, numbered(0, 2))
    frame = table(spark, broker.address, subscribe=name, columns="value,topic")
    assert frame.columns == ["value", "topic"]
    assert [(bytes(v), t) for v, t in frame.collect()] == [(b"0/0", name), (b"0/1", name)]


def test_starting_and_ending_offsets(spark: Any, broker: Any, name: str) -> None:
    broker.create(name, 2)
    broker.fill(name, 0, numbered(0, 10))
    broker.fill(name, 1, numbered(1, 10))
    offsets = f'{{"{name}": {{"0": 3, "1": -1}}}}'
    ends = f'{{"{name}": {{"0": 5}}}}'
    some = table(spark, broker.address, subscribe=name, startingOffsets=offsets, endingOffsets=ends)
    assert values(some) == [(0, 3, b"0/3"), (0, 4, b"0/4")]
    # Records are a millisecond apart, from 1000 on.
    timed = table(
        spark,
        broker.address,
        assign=f'{{"{name}": [1]}}',
        startingOffsets="1008",
        endingOffsets="1970-01-01T00:00:01.009Z",
    )
    assert values(timed) == [(1, 8, b"1/8")]


def test_filters_are_pushed_down(spark: Any, broker: Any, name: str) -> None:
    broker.create(name, 2)
    for partition in range(2):
        broker.fill(name, partition, numbered(partition, 10))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = table(spark, broker.address, subscribe=name, pushFilters="true")
        one = frame.where("partition = 1 AND offset BETWEEN 3 AND 5")
        assert values(one) == [(1, n, b"1/%d" % n) for n in (3, 4, 5)]
        assert one.rdd.getNumPartitions() == 1
        # Records are a millisecond apart, from 1000 on.
        late = frame.where("timestamp >= timestamp_millis(1008)")
        assert values(late) == [(p, n, b"%d/%d" % (p, n)) for p in (0, 1) for n in (8, 9)]
        assert values(frame.where(f"topic = '{name}-other'")) == []
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_rows_as_of_sparks_own_connector(spark: Any, broker: Any, name: str) -> None:
    broker.create(name)
    with_header = NewRecord(b"k", b"v", 1_500, (("h", b"x"),))
    broker.fill(name, 0, [with_header, NewRecord(None, None, 2_000)])
    reader = spark.read.format("kafkagroup").option("kafka.bootstrap.servers", broker.address)
    frame = reader.option("subscribe", name).option("includeHeaders", "true").load()
    first, second = frame.orderBy("offset").collect()
    assert second.headers is None
    assert first.asDict(recursive=True) == {
        "key": b"k",
        "value": b"v",
        "topic": name,
        "partition": 0,
        "offset": 0,
        "timestamp": datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000),
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"x"}],
    }


def test_starts_in_time_of_each_partition(spark: Any, broker: Any, name: str) -> None:
    broker.create(name, 3)
    for partition in range(3):
        broker.fill(name, partition, numbered(partition, 5))
    times = f'{{"{name}": {{"0": 1003, "1": 9999}}}}'
    options = {"subscribe": name, "startingOffsetsByTimestamp": times}
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    frame = table(spark, broker.address, **options, **strategy)
    assert values(frame) == [(0, 3, b"0/3"), (0, 4, b"0/4")] + [
        (2, n, b"2/%d" % n) for n in range(5)
    ]
    with pytest.raises(Exception, match=f"no record at or after the start in {name}/1 at 9999: "):
        table(spark, broker.address, **options).collect()


def test_a_start_after_the_end_is_an_error(spark: Any, broker: Any, name: str) -> None:
    broker.create(name)
    broker.fill(name, 0, numbered(0, 10))
    options = {"subscribe": name, "endingOffsets": f'{{"{name}": {{"0": 5}}}}'}
    frame = table(spark, broker.address, startingOffsets=f'{{"{name}": {{"0": 5}}}}', **options)
    assert values(frame) == []
    with pytest.raises(Exception, match=f"{name}/0 is to be read from 6 to 5: startingOffsets lie"):
        table(
            spark,
            broker.address,
            startingOffsets=f'{{"{name}": {{"0": 6}}}}',
            failOnDataLoss="false",
            **options,
        ).collect()


def test_records_that_a_group_has_not_read(spark: Any, broker: Any, name: str) -> None:
    broker.create(name, 2)
    for partition in range(2):
        broker.fill(name, partition, numbered(partition, 3))
    broker.commit(name, {TopicPartition(name, 1): 2})
    frame = table(spark, broker.address, subscribe=name, startingOffsets="group", group_id=name)
    assert values(frame) == [(0, n, b"0/%d" % n) for n in range(3)] + [(1, 2, b"1/2")]


def test_a_table_of_committed_records_excludes_aborted_ones(
    spark: Any, broker: Any, name: str
) -> None:
    """A table of committed records ends at the last stable offset, after aborted records and
    control records, which are no rows."""
    broker.create(name)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "transactional.id": name}
    )
    producer.init_transactions(20)
    for value, end in (
        ("committed", producer.commit_transaction),
        ("aborted", producer.abort_transaction),
    ):
        producer.begin_transaction()
        producer.produce(name, value, partition=0)
        producer.flush(20)
        end(20)
    broker.wait_for_end(name, 0, 4)
    broker.fill(name, 0, [NewRecord(None, b"plain", 1)])
    producer.begin_transaction()
    producer.produce(name, "open", partition=0)
    producer.flush(20)
    try:
        everything = table(spark, broker.address, subscribe=name).orderBy("offset").collect()
        assert [(r.offset, bytes(r.value), r.transactional) for r in everything] == [
            (0, b"committed", True),
            (2, b"aborted", True),
            (4, b"plain", False),
            (5, b"open", True),
        ]
        assert (everything[0].producer_id is None, everything[2].producer_id) == (False, None)
        decided = table(spark, broker.address, subscribe=name, isolation_level="read_committed")
        assert values(decided) == [(0, 0, b"committed"), (0, 4, b"plain")]
    finally:
        producer.abort_transaction(20)


def test_deleted_records_are_an_error_or_a_warning(spark: Any, broker: Any, name: str) -> None:
    broker.create(name)
    broker.fill(name, 0, numbered(0, 10))
    broker.delete_records(name, 0, 6)
    options = {"subscribe": name, "startingOffsets": f'{{"{name}": {{"0": 2}}}}'}
    with pytest.raises(Exception, match=f"{name}/0 is to be read from 2, but has 6 to 10"):
        table(spark, broker.address, **options).collect()
    frame = table(spark, broker.address, failOnDataLoss="false", **options)
    assert values(frame) == [(0, n, b"0/%d" % n) for n in range(6, 10)]


def test_a_schema_that_does_not_fit_is_refused_when_the_query_is_planned(
    spark: Any, broker: Any, name: str
) -> None:
    reader = spark.read.format("kafkagroup").option("bootstrap.servers", broker.address)
    with pytest.raises(Exception, match="the record's value is binary, not string; convert it"):
        reader.option("subscribe", name).schema("offset bigint, value string").load().collect()


def test_an_end_that_retention_has_passed_is_an_error_or_a_warning(
    spark: Any, broker: Any, name: str
) -> None:
    """The error blamed startingOffsets, and `failOnDataLoss=false` did not help."""
    broker.create(name)
    broker.fill(name, 0, numbered(0, 10))
    broker.delete_records(name, 0, 6)
    options = {"subscribe": name, "endingOffsets": f'{{"{name}": {{"0": 5}}}}'}
    message = (
        f"{name}/0 is to be read up to 5 by endingOffsets, but has 6 to 10: retention has moved"
    )
    with pytest.raises(Exception, match=message):
        table(spark, broker.address, **options).collect()
    frame = table(spark, broker.address, failOnDataLoss="false", **options)
    assert values(frame) == []


def test_the_records_of_the_group_log(spark: Any, broker: Any, name: str) -> None:
    """Spark's own source shows no record of an internal topic."""
    broker.create(name)
    broker.commit(name, {TopicPartition(name, 0): 7})
    rows = table(spark, broker.address, subscribe="__consumer_offsets").collect()
    decoded = [
        decode_group_record(row.key and bytes(row.key), row.value and bytes(row.value))
        for row in rows
    ]
    commits = [
        d.value.offset
        for d in decoded
        if isinstance(d, GroupRecord)
        and d.key == OffsetCommitKey(group=name, topic=name, partition=0)
    ]
    assert commits == [7]


def test_an_empty_topic_has_no_rows(spark: Any, broker: Any, name: str) -> None:
    broker.create(name, 2)
    assert table(spark, broker.address, subscribe=name).collect() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t", "startingOffset": "latest"}, "unknown options: startingoffset"),
        ({}, "give one of the options subscribe, subscribePattern and assign"),
        ({"subscribe": "not-there"}, "topic 'not-there'"),
    ],
)
def test_wrong_options_are_reported(
    spark: Any, broker: Any, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        table(spark, broker.address, **options).collect()

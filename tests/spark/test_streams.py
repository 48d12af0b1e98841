"""Topics as streams: the rows, their batches, and the commits to the group."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from brokers import numbered

from kafkagroup import TopicPartition
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Change
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.wire.batch_writing import NewRecord
from kafkagroup.wire.messages.metadata import MetadataRequest, MetadataResponse

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark.sql import SparkSession

from kafkagroup.spark import CommitListener, reconcile, register


class Stream:
    """A query that writes rows to Parquet and can run repeatedly with one checkpoint."""

    def __init__(self, spark: Any, address: str, folder: Path, **options: str) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {"bootstrap.servers": address} | {
            name.replace("_", "."): value for name, value in options.items()
        }

    @property
    def checkpoint(self) -> str:
        return str(self.folder / "checkpoint")

    def start(self, **trigger: Any) -> Any:
        reader = self.spark.readStream.format("kafkagroup").options(**self.options)
        writer = reader.load().select("topic", "partition", "offset", "value").writeStream
        return (
            writer.format("parquet")
            .option("path", str(self.folder / "out"))
            .option("checkpointLocation", self.checkpoint)
            .trigger(**trigger)
            .start()
        )

    def run(self) -> list[int]:
        """Read all available records; return the number of rows in each batch."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(300)
        return [progress.numInputRows for progress in query.recentProgress]

    def rows(self) -> list[tuple[int, int, bytes]]:
        """Return all written rows."""
        found = self.spark.read.parquet(str(self.folder / "out")).collect()
        return sorted((row.partition, row.offset, bytes(row.value)) for row in found)

    def reconcile(self) -> dict[TopicPartition, int]:
        return reconcile(self.spark, self.checkpoint, self.options)


def wait_until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.1)


def expected(**counts: int) -> list[tuple[int, int, bytes]]:
    return [
        (int(p[1:]), n, b"%s/%d" % (p[1:].encode(), n)) for p in counts for n in range(counts[p])
    ]


@pytest.mark.long
def test_available_now_reads_in_batches_of_the_given_size(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    broker.create(name, 2)
    broker.fill(name, 0, numbered(0, 30))
    broker.fill(name, 1, numbered(1, 10))
    stream = Stream(spark, broker.address, tmp_path, subscribe=name, maxRowsPerBatch="16")
    assert stream.run() == [15, 15, 10]
    assert stream.rows() == expected(p0=30, p1=10)
    broker.fill(name, 1, numbered(1, 12, 10))
    assert stream.run() == [2]
    assert stream.rows() == expected(p0=30, p1=12)


def test_partitions_that_are_added_are_read_from_their_start(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    broker.create(name)
    broker.fill(name, 0, numbered(0, 3))
    stream = Stream(spark, broker.address, tmp_path, subscribe=name, startingOffsets="latest")
    stream.run()
    broker.add_partitions(name, 2)
    broker.fill(name, 1, numbered(1, 4))
    broker.fill(name, 0, numbered(0, 5, 3))
    stream.run()
    assert stream.rows() == [(0, 3, b"0/3"), (0, 4, b"0/4"), *expected(p1=4)]


@pytest.mark.parametrize("selection", [{"subscribe": "a"}, {"subscribePattern": "^a"}])
def test_responses_of_8_4_and_8_partitions_give_all_rows_once(
    spark: Any, tmp_path: Path, selection: dict[str, str]
) -> None:
    """Four partitions left the stream's offsets, and all their records were read again."""

    def lagging(response: MetadataResponse) -> MetadataResponse:
        topics = (evolve(t, partitions=t.partitions[:4]) for t in response.topics)
        return evolve(response, topics=tuple(topics))

    with EmbeddedKafka({"a": 8}) as broker:
        for partition in range(8):
            broker.produce("a", [f"{partition}/{n}" for n in range(5)], partition=partition)
        stream = Stream(spark, broker.bootstrap_servers, tmp_path, **selection)
        assert sum(stream.run()) == 40
        lag = broker.fail(MetadataRequest, Change(lagging), times=None)
        assert sum(stream.run()) == 0
        lag.stop()
        broker.produce("a", ["7/5"], partition=7)
        assert sum(stream.run()) == 1
        assert len(list((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))) == 2
        assert stream.rows() == expected(**{f"p{n}": 5 for n in range(7)}, p7=6)


@pytest.mark.parametrize("commit", ["both", "source", "listener"])
def test_the_lag_is_0_after_available_now(
    spark: Any, broker: Any, name: str, tmp_path: Path, commit: str
) -> None:
    """The last batch was never committed: the finished job looked stuck for ever."""
    tp = TopicPartition(name, 0)
    broker.create(name)
    broker.fill(name, 0, numbered(0, 25))
    stream = Stream(
        spark, broker.address, tmp_path, subscribe=name, maxRowsPerBatch="10", group_id=name
    )
    if commit != "both":  # the default
        stream.options["commit"] = commit
    assert sum(stream.run()) == 25
    if commit == "listener":
        wait_until(lambda: broker.committed(name, tp) == [25])
    assert broker.committed(name, tp) == [25]
    assert stream.reconcile() == {}


def test_a_run_of_nothing_commits_what_is_in_the_commit_log(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    """A driver that was killed after its last batch left the group behind, until new records
    came."""
    tp = TopicPartition(name, 0)
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    stream = Stream(spark, broker.address, tmp_path, subscribe=name, group_id=name, commit="off")
    stream.run()
    assert broker.committed(name, tp) == [None]
    stream.options["commit"] = "source"
    assert sum(stream.run()) == 0
    assert broker.committed(name, tp) == [5]


def test_the_listener_that_register_installs_commits_while_a_query_waits(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    """With a long interval of the trigger, the group showed the lag of the batch before."""
    tp = TopicPartition(name, 0)
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    stream = Stream(spark, broker.address, tmp_path, subscribe=name, group_id=name)
    rates = spark.readStream.format("rate").load().writeStream.format("noop").start()
    query = stream.start(processingTime="1 hour")
    try:
        wait_until(lambda: broker.committed(name, tp) == [5])
    finally:
        query.stop()
        rates.stop()
    assert query.exception() is rates.exception() is None


def test_register_installs_one_listener_in_a_session(spark: Any) -> None:
    def count() -> int:
        return len(spark.streams._jsqm.listListeners())

    before = count()
    assert before >= 1
    register(spark)
    register(SparkSession(spark.sparkContext, spark._jsparkSession))
    assert count() == before


def test_a_listener_of_ones_own_commits_every_batch(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    tp = TopicPartition(name, 0)
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    stream = Stream(spark, broker.address, tmp_path, subscribe=name, group_id=name, commit="off")
    listener = CommitListener(stream.options)
    spark.streams.addListener(listener)
    try:
        stream.run()
        wait_until(lambda: broker.committed(name, tp) == [5])
    finally:
        spark.streams.removeListener(listener)


def test_a_stream_without_commits(spark: Any, broker: Any, name: str, tmp_path: Path) -> None:
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    options = {"subscribe": name, "group_id": name, "maxRowsPerBatch": "2", "commit": "off"}
    Stream(spark, broker.address, tmp_path, **options).run()
    assert broker.committed(name, TopicPartition(name, 0)) == [None]


def test_a_new_query_resumes_at_the_groups_offsets(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    tp = TopicPartition(name, 0)
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    broker.commit(name, {tp: 3})
    options = {"subscribe": name, "group_id": name, "startingOffsets": "group"}
    stream = Stream(spark, broker.address, tmp_path / "a", **options)
    stream.run()
    assert stream.rows() == [(0, 3, b"0/3"), (0, 4, b"0/4")]
    stream.reconcile()
    broker.fill(name, 0, numbered(0, 6, 5))
    other = Stream(spark, broker.address, tmp_path / "b", **options)
    other.run()
    assert other.rows() == [(0, 5, b"0/5")]


@pytest.mark.parametrize(
    "lost",
    [
        "the commit log and the sink",
        pytest.param("the commit log", marks=pytest.mark.long),
        pytest.param("nothing", marks=pytest.mark.long),
    ],
)
def test_a_driver_killed_around_its_last_batch_loses_nothing(
    spark: Any, broker: Any, name: str, tmp_path: Path, lost: str
) -> None:
    """The group is never ahead of the sink, and level with it once the query has run again."""
    tp = TopicPartition(name, 0)
    broker.create(name)
    broker.fill(name, 0, numbered(0, 10))
    stream = Stream(
        spark, broker.address, tmp_path, subscribe=name, maxRowsPerBatch="6", group_id=name
    )
    stream.options["commit"] = "off"  # the driver is killed before it commits
    assert stream.run() == [6, 4]
    stream.options["commit"] = "both"
    if lost != "nothing":
        for file in (tmp_path / "checkpoint" / "commits").iterdir():
            if file.name in ("1", ".1.crc"):
                file.unlink()
    if lost == "the commit log and the sink":
        for file in (tmp_path / "out" / "_spark_metadata").iterdir():
            if file.name in ("1", ".1.crc"):
                file.unlink()
    stream.reconcile()
    (committed,) = broker.committed(name, tp)
    assert committed == (10 if lost == "nothing" else 6)
    assert committed <= len(stream.rows())
    stream.run()
    stream.reconcile()
    assert stream.rows() == expected(p0=10)
    assert broker.committed(name, tp) == [10]


def test_commits_to_a_group_with_members_are_refused(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    member = confluent_kafka.Consumer({"bootstrap.servers": broker.address, "group.id": name})
    member.subscribe([name])
    try:
        while not member.assignment():
            member.poll(0.1)
        stream = Stream(spark, broker.address, tmp_path, subscribe=name, group_id=name)
        with pytest.raises(Exception, match=f"group '{name}' has members"):
            stream.run()
    finally:
        member.close()


def test_the_offsets_of_a_group_move_back_only_on_request(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    tp = TopicPartition(name, 0)
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    broker.commit(name, {tp: 4})
    options = {"subscribe": name, "group_id": name}
    stream = Stream(spark, broker.address, tmp_path / "a", **options)
    with pytest.raises(Exception, match=f"has committed 4 of {tp}, but the query begins at 0"):
        stream.run()
    assert broker.committed(name, tp) == [4]
    stream = Stream(spark, broker.address, tmp_path / "b", rewind="true", **options)
    stream.run()
    assert stream.rows() == expected(p0=5)
    stream.reconcile()
    assert broker.committed(name, tp) == [5]


def test_a_recreated_topic_is_read_from_its_start(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    tp = TopicPartition(name, 0)
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    stream = Stream(spark, broker.address, tmp_path, subscribe=name, group_id=name)
    stream.run()
    stream.reconcile()
    broker.delete(name)
    wait_until(lambda: not broker.exists(name))
    broker.create(name)
    broker.fill(name, 0, numbered(0, 2))
    with pytest.raises(Exception, match=f"topic '{name}' was recreated"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    stream.run()
    assert stream.rows() == sorted([*expected(p0=5), *expected(p0=2)])
    stream.reconcile()
    assert broker.committed(name, tp) == [2]


def test_records_deleted_before_a_batch_fail_it_or_are_skipped(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    stream = Stream(spark, broker.address, tmp_path, subscribe=name)
    stream.run()
    broker.fill(name, 0, numbered(0, 10, 5))
    broker.delete_records(name, 0, 8)
    with pytest.raises(Exception, match=f"{name}/0 is to be read at 5, but has 8 to 10"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    stream.run()
    assert [offset for _, offset, _ in stream.rows()] == [0, 1, 2, 3, 4, 8, 9]


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes-on"])
def test_records_deleted_during_a_batch_fail_it_or_are_skipped(
    spark: Any, broker: Any, name: str, tmp_path: Path, fails: bool
) -> None:
    """After its offsets are planned, some are deleted: an error, and the batch is retried; or the
    remaining records."""
    broker.create(name)
    broker.fill(name, 0, numbered(0, 10))
    seen: list[list[int]] = []

    def late(frame: Any, number: int) -> None:
        broker.delete_records(name, 0, 3)
        seen.append(sorted(row.offset for row in frame.select("offset").collect()))

    stream = Stream(
        spark, broker.address, tmp_path, subscribe=name, failOnDataLoss=str(fails).lower()
    )
    reader = spark.readStream.format("kafkagroup").options(**stream.options).load()
    writer = reader.writeStream.foreachBatch(late).option("checkpointLocation", stream.checkpoint)
    query = writer.trigger(availableNow=True).start()
    if fails:
        with pytest.raises(Exception, match=f"{name}/0 is to be read at 0, but has 3 to 10"):
            query.awaitTermination(300)
        assert seen == []
    else:
        assert query.awaitTermination(300)
        assert seen == [[3, 4, 5, 6, 7, 8, 9]]


@pytest.mark.long
def test_a_pattern_follows_created_and_deleted_topics(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    for topic in (f"{name}-a", f"{name}-other"):
        broker.create(topic)
        broker.fill(topic, 0, numbered(0, 2))
    stream = Stream(spark, broker.address, tmp_path, subscribePattern=f"{name}-[abc]")
    stream.run()
    broker.create(f"{name}-b")
    broker.fill(f"{name}-b", 0, numbered(0, 3))
    # Its start is pinned by one batch, and it is read by the next.
    stream.run()
    stream.run()
    assert stream.rows() == sorted([*expected(p0=2), *expected(p0=3)])
    broker.delete(f"{name}-a")
    wait_until(lambda: not broker.exists(f"{name}-a"))
    with pytest.raises(Exception, match=f"topic '{name}-a' was deleted"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    broker.fill(f"{name}-b", 0, numbered(0, 4, 3))
    stream.run()
    assert stream.rows() == sorted([*expected(p0=2), *expected(p0=4)])


def test_a_compacted_topic_is_read_with_its_gaps(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    """The latest record of each key, at its original offset."""
    broker.create(
        name,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        min_compaction_lag_ms="0",
    )
    for round_ in range(4):
        # Each a second later than the one before, which makes a segment of its own.
        records = [NewRecord(b"%d" % key, b"%d" % round_, round_ * 1000) for key in range(5)]
        broker.fill(name, 0, records)
    broker.fill(name, 0, [NewRecord(b"last", b"", 4_000)])
    frame = spark.read.format("kafkagroup").options(
        **{"bootstrap.servers": broker.address, "subscribe": name}
    )
    wait_until(lambda: frame.load().count() < 21)
    stream = Stream(
        spark, broker.address, tmp_path, maxRowsPerBatch="4", subscribe=name, group_id=name
    )
    stream.run()
    offsets = [offset for _, offset, _ in stream.rows()]
    assert offsets == sorted({*offsets, *range(15, 21)})
    assert len(offsets) < 21
    latest = {offset % 5: value for _, offset, value in stream.rows() if offset < 20}
    assert latest == dict.fromkeys(range(5), b"3")
    stream.reconcile()
    assert broker.committed(name, TopicPartition(name, 0)) == [21]


def test_aborted_transactions_are_skipped(
    spark: Any, broker: Any, name: str, tmp_path: Path
) -> None:
    """A batch ends at an offset, and may have few records or none: the query continues after
    gaps."""
    broker.create(name)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "transactional.id": name}
    )
    producer.init_transactions(20)
    for n, end in enumerate((producer.abort_transaction, producer.commit_transaction) * 3):
        producer.begin_transaction()
        producer.produce(name, str(n), partition=0)
        producer.flush(20)
        end(20)
    broker.wait_for_end(name, 0, 12)
    options = {"subscribe": name, "isolation_level": "read_committed", "group_id": name}
    stream = Stream(spark, broker.address, tmp_path, maxRowsPerBatch="3", **options)
    stream.run()
    # Of a transaction an offset goes to the record, and one to its marker.
    assert stream.rows() == [(0, 2, b"1"), (0, 6, b"3"), (0, 10, b"5")]
    stream.reconcile()
    assert broker.committed(name, TopicPartition(name, 0)) == [12]

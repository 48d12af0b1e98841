"""The history of groups as tables: groups of real Kafka, compared with the broker's own data."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from brokers import numbered

from kafkagroup import TopicPartition

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup.spark import history
from kafkagroup.spark.ends import log_ends
from kafkagroup.spark.lag import lag
from kafkagroup.spark.latest_commits import latest_commits, measured_commits

pytestmark = pytest.mark.long


def consume(address: str, group: str, topic: str, **more: str) -> None:
    given = {name.replace("_", "."): value for name, value in more.items()}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", **given}
    )
    consumer.subscribe([topic])
    message = consumer.poll(30)
    assert message is not None
    consumer.commit(message, asynchronous=False)
    consumer.close()


@pytest.fixture(scope="module")
def group_log(spark: Any, module_broker: Any) -> Any:
    """Return the events after two groups have joined and left; topic "history"."""
    broker = module_broker
    broker.create("history", 2)
    broker.fill("history", 0, numbered(0, 3))
    consume(broker.address, "history-classic", "history")
    consume(broker.address, "history-848", "history", group_protocol="consumer")
    frame = history.events(spark, {"bootstrap.servers": broker.address})
    return frame.where("group_id LIKE 'history-%' OR undecoded IS NOT NULL").cache()


def test_every_record_of_the_group_log_is_decoded(group_log: Any) -> None:
    assert history.undecoded(group_log).collect() == []
    keys = group_log.select("log_partition", "log_offset")
    assert keys.distinct().count() == group_log.count() > 10


def test_commits_are_listed(group_log: Any, module_broker: Any) -> None:
    rows = history.commits(group_log).where("partition = 0 AND NOT removed").collect()
    assert {(r.group_id, r.topic, r.offset) for r in rows} == {
        ("history-classic", "history", 1),
        ("history-848", "history", 1),
    }
    tp = TopicPartition("history", 0)
    for group in ("history-classic", "history-848"):
        assert module_broker.committed(group, tp) == [1]


def test_generations(group_log: Any) -> None:
    rows = history.generations(group_log).orderBy("log_offset").collect()
    classic = [(r.generation, r.protocol, r.members) for r in rows if r.kind == "classic"]
    assert (1, "range", 1) in classic
    assert [number for number, _, _ in classic] == sorted(number for number, _, _ in classic)
    newer = [r.generation for r in rows if r.kind == "consumer"]
    assert newer == sorted(newer)
    assert len(newer) >= 2
    assert all(r.time is not None for r in rows)


def test_assignments_are_listed(group_log: Any) -> None:
    names = history.topic_names(group_log).withColumnRenamed("topic", "name")
    frame = history.assignments(group_log).join(names, "topic_id", "left")
    rows = frame.selectExpr("*", "coalesce(topic, name) AS of").collect()
    had = {(r.kind, r.of, r.partition) for r in rows if r.partition is not None and not r.removed}
    assert had == {(kind, "history", p) for kind in ("classic", "consumer") for p in (0, 1)}
    assert {r.kind for r in rows if r.removed} == {"consumer"}


def test_the_history_as_a_stream(
    spark: Any, module_broker: Any, group_log: Any, tmp_path: Any
) -> None:
    options = {"bootstrap.servers": module_broker.address}
    frame = history.commits(history.events(spark, options, streaming=True))
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "commits"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    written = spark.read.parquet(str(tmp_path / "commits")).where("group_id LIKE 'history-%'")
    key = ["log_partition", "log_offset"]
    assert sorted(written.select(key).collect()) == sorted(
        history.commits(group_log).select(key).collect()
    )


def test_lag_is_computed_from_commits(spark: Any, module_broker: Any, group_log: Any) -> None:
    options = {"bootstrap.servers": module_broker.address}
    commits = history.commits(group_log)
    latest = latest_commits(commits, measured_commits(commits, log_ends(spark, options, commits)))
    recent = [row.recent[-1] for row in latest.where("partition = 0").collect()]
    assert [(c.committed, c.lag) for c in recent] == [(1, 2)] * 2
    rows = lag(spark, options, latest).where("partition = 0").collect()
    assert {(r.group_id, r.topic, r.committed, r.log_end, r.lag) for r in rows} == {
        ("history-classic", "history", 1, 3, 2),
        ("history-848", "history", 1, 3, 2),
    }
    assert all(r.seconds > 0 and r.reason is None for r in rows)

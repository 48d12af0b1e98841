"""What retention removes, and what the tables need of older events."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from brokers import numbered
from test_health import at, commit, epoch, frame

from kafkagroup import ConfigurationError, TopicPartition
from kafkagroup.spark import files, history, pipeline
from kafkagroup.spark.evaluation import WINDOW
from kafkagroup.spark.events import schema


def member(group: str, name: str, seconds: int, removed: bool = False) -> dict[str, Any]:
    fields = dict.fromkeys(schema().field("members").type.value_type.names)
    return {
        **epoch(group, None, seconds, "Consumer"),
        "record": "ConsumerGroupMemberMetadata",
        "removed": removed,
        "members": [{**fields, "member_id": name}],
    }


def test_of_old_events_the_state_at_that_time_is_kept(spark: Any) -> None:
    events = frame(
        spark,
        *(commit("g", 0, n) for n in range(WINDOW + 5)),
        commit("g", 1, 20),
        commit("g", 1, 21, removed=True),
        member("g", "a", 30),
        member("g", "a", 31),
        member("g", "b", 32),
        member("g", "c", 33),
        member("g", "c", 34, removed=True),
        epoch("g", 1, 40, "Consumer"),
        epoch("g", 2, 41, "Consumer"),
        epoch("gone", 1, 42),
        epoch("gone", None, 43),
        {"log_time": at(44), "undecoded": {"reason": "r", "key": b"", "value": b""}},
        commit("g", 0, 100),
        member("g", "b", 101, removed=True),
        epoch("g", 3, 102, "Consumer"),
    )
    kept = history.compacted(events, at(100)).orderBy("log_offset").collect()
    seconds = [round(row.log_time.timestamp()) for row in kept]
    assert seconds == [*range(5, WINDOW + 5), 31, 32, 41, 100, 101, 102]
    assert history.compacted(events, at(0)).count() == events.count()


@pytest.mark.long
@pytest.mark.parametrize("stored", ["folder", "delta", "delta-catalog", "iceberg"], indirect=True)
def test_retention_leaves_the_health_of_groups(
    spark: Any, broker: Any, name: str, tmp_path: Path, stored: Mapping[str, str]
) -> None:
    address, out = {"bootstrap.servers": broker.address}, str(tmp_path / "out")
    broker.create(name, 1)
    broker.fill(name, 0, numbered(0, 9))
    for _ in range(2):
        for offset in range(2 * WINDOW):
            broker.commit(name, {TopicPartition(name, 0): offset % 7})
        tables = pipeline.run(spark, address, out, **stored)

    def of_group(table: str, *columns: str) -> list[Any]:
        rows = tables.read(table).where(f"group_id = '{name}'")
        return sorted(rows.select(*columns).collect())

    def counts() -> tuple[int, int, int]:
        return (
            len(of_group("events", "log_offset")),
            len(of_group("lag", "sampled_at")),
            tables.read("log_ends").where(f"topic = '{name}'").count(),
        )

    health = ("group_id", "status", "partitions", "lag", "stuck_partitions", "gone_at")
    before = (
        of_group("evaluation", "status", "lag", "last_commit"),
        of_group("group_health", *health),
    )
    assert counts()[0] == 4 * WINDOW
    pipeline.run(spark, address, out, retention=timedelta(microseconds=1), **stored)
    after = (
        of_group("evaluation", "status", "lag", "last_commit"),
        of_group("group_health", *health),
    )
    assert after == before
    assert counts() == (WINDOW, 1, 1)
    assert of_group("commits", "log_offset") == []
    broker.commit(name, {TopicPartition(name, 0): 9})
    pipeline.run(spark, address, out, retention=timedelta(days=1), **stored)
    assert counts()[0] == WINDOW + 1, "events were read again, or removed too early"
    assert len(of_group("commits", "log_offset")) == 1
    assert of_group("evaluation", "status", "lag")[0] == ("OK", 0)
    assert not [entry for entry in os.listdir(out) if entry.endswith(".draft")]


def test_retention_is_refused_where_tables_cannot_be_replaced_safely(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**more: Any) -> None:
        nowhere = {"bootstrap.servers": "nowhere.invalid:1"}
        pipeline.run(spark, nowhere, str(tmp_path), retention=timedelta(1), **more)

    with pytest.raises(ConfigurationError, match="got parquet in lake"):
        run(namespace="lake")
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    with pytest.raises(ConfigurationError, match=f"got parquet in {tmp_path}"):
        run()
    assert os.listdir(tmp_path) == []

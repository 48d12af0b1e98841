"""Lag in records and seconds, on real Kafka but without Spark."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kafkagroup import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup.spark.lag import Committed, Lag, measure


def test_each_null_has_a_reason(broker: Any, name: str) -> None:
    now = round(time.time() * 1000)
    broker.create(name, 3)
    aged = [NewRecord(None, b"v", now - 1000 * age) for age in (500, 400, 300)]
    broker.fill(name, 0, aged)
    broker.fill(name, 1, aged)
    broker.fill(name, 2, [NewRecord(None, b"v")])
    broker.delete_records(name, 1, 2)
    tps = [TopicPartition(name, n) for n in range(4)]
    wanted = [
        Committed("g", tps[0], 1),
        Committed("h", tps[0], 0),
        Committed("g", tps[0], 3),
        Committed("g", tps[0], 4),  # beyond the end of the log
        Committed("g", tps[0], 0, "00112233-4455-6677-8899-aabbccddeeff"),  # of another topic
        Committed("g", tps[1], 0),  # below the start of the log
        Committed("g", tps[2], 0),  # at a record without a timestamp
        Committed("g", tps[3], 0),  # in no partition of the topic
        Committed("g", TopicPartition(f"{name}-gone", 0), 0),
    ]
    found = measure({"bootstrap.servers": broker.address}, wanted)
    assert [lag.committed for lag in found] == wanted
    assert found[6].seconds is None
    for n, age in ((0, 400), (1, 500), (5, 300)):
        measured = found[n].seconds
        assert measured is not None
        assert age <= measured <= age + 60  # the broker may be slow
    assert [(lag.start, lag.end, lag.lag, lag.reason) for lag in found] == [
        (0, 3, 2, None),
        (0, 3, 3, None),
        (0, 3, 0, None),
        (0, 3, None, "the log ends before the committed offset"),
        (0, 3, None, "the topic was recreated since the commit"),
        (2, 3, 1, None),
        (0, 1, 1, "the record at the committed offset has no timestamp"),
        (None, None, None, "there is no such partition"),
        (None, None, None, "there is no such partition"),
    ]
    assert found[2] == Lag(wanted[2], 0, 3, 0, 0.0)


def test_without_commits_nothing_is_requested() -> None:
    assert measure({"bootstrap.servers": "nowhere.invalid:1"}, []) == []

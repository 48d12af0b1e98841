"""The planner of a stream, called as by Spark, on real Kafka but without Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from brokers import numbered

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kafkagroup import Admin, KafkaGroupError, TopicPartition
from kafkagroup.spark import commits
from kafkagroup.spark.commits import CommitListener
from kafkagroup.spark.options import parse_options
from kafkagroup.spark.ranges import Positions, Range
from kafkagroup.spark.stream import StreamReader

Planner = Callable[..., StreamReader]


@pytest.fixture
def planner(broker: Any, name: str) -> Iterator[Planner]:
    """Return a factory of planners for the topic `name`, each as in a new process."""
    made = []

    def make(**options: str) -> StreamReader:
        given = {name.replace("_", "."): value for name, value in options.items()}
        least = {"bootstrap.servers": broker.address, "subscribe": name}
        reader = StreamReader(parse_options({**least, **given}), None)
        made.append(reader)
        return reader

    yield make
    for reader in made:
        reader.stop()


def offsets(positions: dict[str, Any]) -> dict[int, int]:
    return {tp.partition: at for tp, at in Positions.from_json(positions).offsets.items()}


def tasks(planner: StreamReader, start: Any, end: Any) -> list[tuple[int, int, int]]:
    found: list[Range] = [task.value for task in planner.partitions(start, end)]
    return [(r.tp.partition, r.start, r.end) for r in found]


@pytest.mark.parametrize("where", ["latest", "earliest", "3000"])
def test_a_query_that_failed_in_its_first_batch_restarts_at_the_same_offsets(
    broker: Any, name: str, planner: Planner, where: str
) -> None:
    """Spark stores the end of a batch, and asks again for the start of the first one: records
    produced since the first start would be lost."""
    broker.create(name)
    broker.fill(name, 0, numbered(0, 3))
    options = {"group_id": name, "startingOffsets": where}
    first = planner(**options)
    begin = first.initialOffset()
    assert first.initialOffset() == begin
    broker.fill(name, 0, numbered(0, 5, 3))
    end = first.latestOffset(begin, ReadAllAvailable())
    assert tasks(first, begin, end) == [(0, 0 if where == "earliest" else 3, 5)]
    broker.delete_records(name, 0, 2)
    again = planner(**options)
    assert again.initialOffset() == begin


def test_without_a_group_start_offsets_last_only_in_one_process(
    broker: Any, name: str, planner: Planner
) -> None:
    broker.create(name)
    reader = planner(startingOffsets="latest")
    begin = reader.initialOffset()
    broker.fill(name, 0, numbered(0, 2))
    assert offsets(begin) == {0: 0}
    assert reader.initialOffset() == begin


def test_a_query_may_begin_before_all_brokers_know_its_new_topic(
    broker: Any, name: str, planner: Planner
) -> None:
    """It failed at once: the broker that was asked had not heard of the topic yet."""
    creation = threading.Timer(0.5, broker.create, [name])
    creation.start()
    begin = planner(startingOffsets="latest").initialOffset()
    creation.join()
    assert offsets(begin) == {0: 0}


def test_a_new_partition_is_read_from_its_start(broker: Any, name: str, planner: Planner) -> None:
    broker.create(name)
    broker.fill(name, 0, numbered(0, 2))
    reader = planner(startingOffsets="latest")
    begin = reader.initialOffset()
    broker.add_partitions(name, 2)
    broker.fill(name, 1, numbered(1, 6))
    broker.delete_records(name, 1, 4)
    seen = reader.latestOffset(begin, ReadAllAvailable())
    assert offsets(seen) == {0: 2, 1: 4}
    assert tasks(reader, begin, seen) == []
    end = reader.latestOffset(seen, ReadAllAvailable())
    assert tasks(reader, seen, end) == [(1, 4, 6)]


def test_available_now_ends_at_the_log_ends_of_its_start(
    broker: Any, name: str, planner: Planner
) -> None:
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    reader = planner()
    begin = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    broker.fill(name, 0, numbered(0, 9, 5))
    first = reader.latestOffset(begin, ReadMaxRows(3))
    second = reader.latestOffset(first, ReadMaxRows(3))
    assert [offsets(first), offsets(second)] == [{0: 3}, {0: 5}]
    assert reader.latestOffset(second, ReadMaxRows(3)) == second


def test_a_batch_waits_for_the_least_number_of_records(
    broker: Any, name: str, planner: Planner
) -> None:
    broker.create(name)
    broker.fill(name, 0, numbered(0, 2))
    reader = planner(minOffsetsPerTrigger="3")
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, ReadAllAvailable()) == begin
    late = planner(minOffsetsPerTrigger="3", maxTriggerDelay="0ms")
    assert offsets(late.latestOffset(begin, ReadAllAvailable())) == {0: 2}
    broker.fill(name, 0, numbered(0, 3, 2))
    assert offsets(reader.latestOffset(begin, ReadAllAvailable())) == {0: 3}
    # All must be read that there is.
    last = planner(minOffsetsPerTrigger="5")
    last.prepareForTriggerAvailableNow()
    assert offsets(last.latestOffset(begin, ReadAllAvailable())) == {0: 3}


def test_commits_never_move_back(broker: Any, name: str, planner: Planner) -> None:
    tp = TopicPartition(name, 0)
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    reader = planner(group_id=name)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert broker.committed(name, tp) == [0]
    reader.commit(end)
    assert broker.committed(name, tp) == [5]
    reader.commit(begin)
    assert broker.committed(name, tp) == [5]
    end["topics"][name]["id"] = "12345678-1234-1234-1234-123456789012"
    end["topics"][name]["offsets"]["0"] = 1
    reader.commit(end)
    assert broker.committed(name, tp) == [1]


def test_the_offsets_of_an_idle_query_are_committed_again(
    broker: Any, name: str, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query without new records commits nothing: after seven days the broker deleted its offsets,
    and the next query from `startingOffsets=group` read the log again."""
    monkeypatch.setattr(commits, "RENEWAL_INTERVAL", 0.0)
    tp = TopicPartition(name, 0)
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    reader = planner(group_id=name)
    begin = reader.initialOffset()
    delete_offsets(broker, name, tp)
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert broker.committed(name, tp) == [0]
    assert planner(group_id=name, startingOffsets="latest").initialOffset() == begin
    reader.commit(end)
    delete_offsets(broker, name, tp)
    reader.latestOffset(end, ReadAllAvailable())
    assert broker.committed(name, tp) == [5]
    broker.commit(name, {tp: 3})
    reader.latestOffset(end, ReadAllAvailable())
    assert broker.committed(name, tp) == [3], "moved by an operator"
    delete_offsets(broker, name, tp)
    broker.delete(name)
    broker.create(name)
    with suppress(KafkaGroupError):
        reader.latestOffset(end, ReadAllAvailable())
    assert broker.committed(name, tp) == [None], "the topic was recreated"


def test_the_listener_commits_the_offsets_of_an_idle_query_again(
    broker: Any, name: str, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "RENEWAL_INTERVAL", 0.0)
    tp = TopicPartition(name, 0)
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    reader = planner(group_id=name, commit="listener")
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadAllAvailable())
    listener = CommitListener(
        {"bootstrap.servers": broker.address, "subscribe": name, "group.id": name}
    )
    source = SimpleNamespace(endOffset=json.dumps(end))
    progress = SimpleNamespace(id="query", batchId=0, sources=[source])
    listener.onQueryProgress(SimpleNamespace(progress=progress))
    for query, expected in (("another", None), ("query", 5)):
        delete_offsets(broker, name, tp)
        reader.latestOffset(end, ReadAllAvailable())
        listener.onQueryIdle(SimpleNamespace(id=query))
        assert broker.committed(name, tp) == [expected]
    listener.onQueryTerminated(SimpleNamespace(id="query"))
    delete_offsets(broker, name, tp)
    listener.onQueryIdle(SimpleNamespace(id="query"))
    assert broker.committed(name, tp) == [None]


def test_the_listener_commits_the_offsets_of_each_source_of_an_idle_query_again(
    broker: Any, name: str, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept the end of the last source only, and the others' offsets expired."""
    monkeypatch.setattr(commits, "RENEWAL_INTERVAL", 0.0)
    topics = [f"{name}-{source}" for source in ("a", "b")]
    sources = []
    for topic in topics:
        broker.create(topic)
        broker.fill(topic, 0, numbered(0, 5))
        reader = planner(subscribe=topic, group_id=name, commit="listener")
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        sources.append(SimpleNamespace(endOffset=json.dumps(end)))
    listener = CommitListener(
        {
            "bootstrap.servers": broker.address,
            "subscribe": ",".join(topics),
            "group.id": name,
        }
    )
    progress = SimpleNamespace(id="query", batchId=0, sources=sources)
    listener.onQueryProgress(SimpleNamespace(progress=progress))
    for topic in topics:
        tp = TopicPartition(topic, 0)
        delete_offsets(broker, name, tp)
        listener.onQueryIdle(SimpleNamespace(id="query"))
        assert broker.committed(name, tp) == [5]


def delete_offsets(broker: Any, group: str, tp: TopicPartition) -> None:
    async def delete() -> None:
        async with Admin(bootstrap_servers=broker.address) as admin:
            assert await admin.delete_offsets(group, [tp]) == (tp,)

    anyio.run(delete)


def test_a_failed_commit_does_not_fail_the_query(
    broker: Any, name: str, planner: Planner, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create(name)
    begin = planner(group_id=name).initialOffset()
    reader = planner(group_id=name, default_api_timeout_ms="200")
    begin["topics"][name]["offsets"]["77"] = 1
    reader.commit(begin)
    assert "offsets are not committed to group" in caplog.text


def test_commits_of_a_deleted_topic_are_ignored(broker: Any, name: str, planner: Planner) -> None:
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    reader = planner(group_id=name)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    end["topics"][name]["id"] = "12345678-1234-1234-1234-123456789012"
    reader.commit(end)
    assert broker.committed(name, TopicPartition(name, 0)) == [5]
    again = planner(group_id=name, startingOffsets="group")
    assert offsets(again.initialOffset()) == {0: 0}


def test_a_first_batch_that_sparks_own_connector_has_planned_is_not_skipped(
    broker: Any, name: str, planner: Planner
) -> None:
    """A repeated first batch begins at the latest offsets of now, after its own end: without an
    error its records were lost."""
    broker.create(name)
    broker.fill(name, 0, numbered(0, 10))
    planned = {name: {"0": 7}}
    restarted = planner(startingOffsets="latest")
    with pytest.raises(KafkaGroupError, match=f"{name}/0 is to be read from 10, but the batch was"):
        restarted.partitions(restarted.initialOffset(), planned)
    given = planner(startingOffsets=f'{{"{name}": {{"0": 3}}}}')
    assert tasks(given, given.initialOffset(), planned) == [(0, 3, 7)]


def test_a_checkpoint_of_sparks_own_connector_gets_topic_ids_with_the_next_batch(
    broker: Any, name: str, planner: Planner
) -> None:
    broker.create(name)
    broker.fill(name, 0, numbered(0, 5))
    moved = planner(group_id=name)
    start = {name: {"0": 5}}
    assert moved.latestOffset(start, ReadAllAvailable()) == start
    moved.commit(start)
    assert broker.committed(name, TopicPartition(name, 0)) == [5]
    broker.fill(name, 0, numbered(0, 7, 5))
    end = moved.latestOffset(start, ReadAllAvailable())
    assert Positions.from_json(end).topic_ids[name] != ""
    assert tasks(moved, start, end) == [(0, 5, 7)]
    broker.delete_records(name, 0, 6)
    broker.delete(name)
    broker.create(name)
    with pytest.raises(KafkaGroupError, match=f"topic '{name}' was recreated"):
        moved.latestOffset(end, ReadAllAvailable())

"""The listener that `register` installs, called as by Spark, on the embedded broker."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup.spark import commits
from kafkagroup.spark import listener as listeners
from kafkagroup.spark.commits import CommitListener
from kafkagroup.spark.listener import QueryCommits, install
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire.messages.offsets import OffsetCommitRequest


@pytest.fixture
def two() -> Iterator[tuple[EmbeddedKafka, EmbeddedKafka]]:
    """Two clusters with the same topics."""
    with (
        EmbeddedKafka({"a": 1, "b": 1}) as one,
        EmbeddedKafka({"a": 1, "b": 1}, seed=7, cluster_id="another") as other,
    ):
        yield one, other


def relation(broker: EmbeddedKafka, name: str = "kafkagroup", **options: str) -> Any:
    """Return a source in a query's plan, as the JVM has it."""
    given = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"} | options
    map_ = SimpleNamespace(asCaseSensitiveMap=lambda: given)
    kind = SimpleNamespace(getSimpleName=lambda: "StreamingRelationV2")
    return SimpleNamespace(
        getClass=lambda: kind, sourceName=lambda: name, extraOptions=lambda: map_
    )


def session(*relations: Any) -> Any:
    """Return a session in which a query with these sources runs."""
    leaves = SimpleNamespace(size=lambda: len(relations), apply=lambda n: relations[n])
    plan = SimpleNamespace(collectLeaves=lambda: leaves)
    execution = SimpleNamespace(analyzedPlan=lambda: plan)
    query = SimpleNamespace(streamingQuery=lambda: execution)
    streams = SimpleNamespace(get=lambda id_: query if id_ == "query" else None)
    return SimpleNamespace(_jsparkSession=SimpleNamespace(streams=lambda: streams))


def offsets(topic: str, at: int, group: str = "g", cluster: str = "kafkagroup-embedded-01") -> str:
    topics = {topic: {"id": "", "offsets": {"0": at}}}
    return json.dumps({"cluster": cluster, "kafkagroup": 1, "group": group, "topics": topics})


def started(query: str = "query") -> Any:
    return SimpleNamespace(id=query, runId=f"{query}-run")


def progress(*ends: str, query: str = "query") -> Any:
    sources = [SimpleNamespace(endOffset=end) for end in ends]
    batch = SimpleNamespace(id=query, runId=f"{query}-run", batchId=0, sources=sources)
    return SimpleNamespace(progress=batch)


def fill(*brokers: EmbeddedKafka) -> None:
    for broker in brokers:
        for topic in ("a", "b"):
            broker.produce(topic, [str(n) for n in range(9)])


def test_each_source_of_a_query_commits_its_own_batches(
    two: tuple[EmbeddedKafka, EmbeddedKafka],
) -> None:
    one, other = two
    fill(one, other)
    spark = session(
        relation(one, subscribe="a"), relation(other, subscribe="b"), relation(one, name="rate")
    )
    listener = QueryCommits(spark, "kafkagroup")
    listener.onQueryStarted(started())
    listener.onQueryProgress(progress(offsets("a", 3), offsets("b", 5, cluster="another"), "null"))
    assert [one.committed("g", "a"), one.committed("g", "b")] == [{0: 3}, {}]
    assert [other.committed("g", "a"), other.committed("g", "b")] == [{}, {0: 5}]


def test_sources_of_two_clusters_may_share_group_and_topic(
    two: tuple[EmbeddedKafka, EmbeddedKafka],
) -> None:
    """As of a cluster and its mirror."""
    one, other = two
    fill(one, other)
    spark = session(relation(one, subscribe="a"), relation(other, subscribePattern="a"))
    listener = QueryCommits(spark, "kafkagroup")
    for end in (3, 4):
        listener.onQueryProgress(
            progress(offsets("a", end), offsets("a", end + 2, cluster="another"))
        )
        listener.onQueryTerminated(started())
        assert (one.committed("g", "a"), other.committed("g", "a")) == ({0: end}, {0: end + 2})


@pytest.mark.parametrize(
    "given", [{"commit": "off"}, {"commit": "source"}, {"group.id": ""}, {"subscribe": "b"}]
)
def test_other_queries_are_left_alone(
    two: tuple[EmbeddedKafka, EmbeddedKafka], given: dict[str, str]
) -> None:
    one, _ = two
    listener = QueryCommits(session(relation(one, **{"subscribe": "a"} | given)), "kafkagroup")
    for query in ("query", "of another session"):
        listener.onQueryStarted(started(query))
        listener.onQueryProgress(progress(offsets("a", 3), "1", "[]", query=query))
        listener.onQueryTerminated(started(query))
    assert one.requests(OffsetCommitRequest) == []


def test_fast_batches_are_committed_once_a_second_and_at_the_end(
    two: tuple[EmbeddedKafka, EmbeddedKafka],
) -> None:
    one, _ = two
    fill(one)
    listener = QueryCommits(session(relation(one, subscribe="a")), "kafkagroup")
    for end in (1, 2, 3):
        listener.onQueryProgress(progress(offsets("a", end)))
    assert one.committed("g", "a") == {0: 1}
    listener.onQueryTerminated(started())
    assert one.committed("g", "a") == {0: 3}
    assert len(one.requests(OffsetCommitRequest)) == 2


def test_an_idle_query_commits_what_waits_and_what_the_broker_has_deleted(
    two: tuple[EmbeddedKafka, EmbeddedKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_COMMIT_INTERVAL", 0.0)
    monkeypatch.setattr(listeners, "RENEWAL_INTERVAL", 0.0)
    one, _ = two
    fill(one)
    listener = QueryCommits(session(relation(one, subscribe="a")), "kafkagroup")
    listener.onQueryProgress(progress(offsets("a", 3)))
    one.expire_offsets("g")
    listener.onQueryIdle(started())
    assert one.committed("g", "a") == {0: 3}


def test_an_error_never_leaves_the_listener(
    two: tuple[EmbeddedKafka, EmbeddedKafka], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither without a broker, nor with a release of Spark whose plan is another."""
    one, _ = two
    broken = relation(one, subscribe="a", **{"default.api.timeout.ms": "200"})
    listener = QueryCommits(session(broken), "kafkagroup")
    listener.onQueryStarted(started())
    one.kill(1)
    listener.onQueryProgress(progress(offsets("a", 3)))
    listener.onQueryTerminated(started())
    unknown = QueryCommits(SimpleNamespace(), "kafkagroup")  # type: ignore[arg-type]
    unknown.onQueryStarted(started())
    unknown.onQueryProgress(progress(offsets("a", 3)))
    install(SimpleNamespace(), "kafkagroup")  # type: ignore[arg-type]
    assert [r.message.split(":")[0] for r in caplog.records if r.name == listeners.__name__] == [
        "offsets are not committed to group 'g'",
        "offsets are not committed to group 'g'",
        "query query",
        "offsets are committed by the source only",
    ]


def test_a_commit_listener_without_file_descriptors_logs_each_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that may open no more files cannot create the loop of a connection."""

    def fail(options: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(commits, "Logs", fail)
    listener = CommitListener(
        {"bootstrap.servers": "localhost:9092", "subscribe": "a,b", "group.id": "g"}
    )
    listener.onQueryProgress(progress(offsets("a", 3), offsets("b", 3)))
    message = "offsets of batch 0 are not committed: [Errno 24] Too many open files"
    assert caplog.messages == [message, message]

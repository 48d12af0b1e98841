"""Sessions that tasks share; no Spark runs here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark import TaskContext

from kafkagroup.spark import worker_sessions
from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.worker_sessions import session_of_task
from kafkagroup.testing import EmbeddedKafka


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceOptions]:
    monkeypatch.setattr(worker_sessions, "_idle", {})
    with EmbeddedKafka({"a": 1}) as broker:
        yield SourceOptions(bootstrap_servers=broker.bootstrap_servers, subscribe=("a",))
        for session in worker_sessions._idle.values():
            session.__exit__(None, None, None)


def test_the_tasks_of_a_worker_share_a_session(
    options: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    with session_of_task(options) as first:
        assert first.partitions()[0]
        with session_of_task(options) as beside:
            assert beside is not first
    with session_of_task(options) as again:
        assert again is beside
        assert again.partitions()[0]
    with pytest.raises(KeyError), session_of_task(options) as failing:
        assert failing is beside
        raise KeyError
    with session_of_task(options) as new:
        assert new is not beside


def test_outside_a_worker_a_session_is_closed(options: SourceOptions) -> None:
    with session_of_task(options) as first:
        pass
    with session_of_task(options) as second:
        assert second is not first
    assert worker_sessions._idle == {}

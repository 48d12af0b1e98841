"""Sessions that the tasks of one Python worker of Spark use one after the other.

A connection, its thread and the metadata cost more than the records of a small task.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import TaskContext

from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import SourceOptions

__all__ = ["session_of_task"]

_idle: dict[bytes, Logs] = {}
"""Pickled options and cluster id -> a session that no task uses. A worker runs one task at a
time."""


@contextmanager
def session_of_task(options: SourceOptions, cluster_id: str | None = None) -> Iterator[Logs]:
    """Yield a session with the cluster of that id. It stays open for the worker's next task, unless
    this one fails.

    Outside a worker it is closed: its thread would keep the process from ending.
    """
    key = pickle.dumps((options, cluster_id))
    session = _idle.pop(key, None)
    if session is None:
        session = Logs(options).__enter__()
    keeps = False
    try:
        session.expect_cluster(cluster_id)
        yield session
        keeps = TaskContext.get() is not None and key not in _idle
    finally:
        if keeps:
            _idle[key] = session
        else:
            session.__exit__(None, None, None)

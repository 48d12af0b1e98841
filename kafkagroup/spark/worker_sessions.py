"""Sessions that the tasks of one Python worker of Spark use one after the other.

A connection, its thread and the metadata cost more than the records of a small task. A producer
also has an id, which the brokers remember for a day.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import TaskContext

if TYPE_CHECKING:
    from kafkagroup.spark.logs import Logs
    from kafkagroup.spark.options import SinkOptions, SourceOptions
    from kafkagroup.spark.sink_producer import SinkProducer

__all__ = ["producer_of_task", "session_of_task"]

S = TypeVar("S", bound=AbstractContextManager[Any])

_idle: dict[bytes, AbstractContextManager[Any]] = {}
"""The pickled options, with those of a source the cluster id, too -> a session or producer that no
task uses. A worker runs one task at a time."""


@contextmanager
def session_of_task(options: SourceOptions, cluster_id: str | None = None) -> Iterator[Logs]:
    """Yield a session with the cluster of this id. It stays open for the worker's next task, unless
    this task fails. Raises: ClusterChangedError if the options lead to another cluster."""
    from kafkagroup.spark.logs import Logs

    with _of_task(lambda: Logs(options), (options, cluster_id)) as session:
        session.expect_cluster(cluster_id)
        yield session


@contextmanager
def producer_of_task(options: SinkOptions) -> Iterator[SinkProducer]:
    """Yield a producer, which stays open as a session does. The task must flush it."""
    from kafkagroup.spark.sink_producer import SinkProducer

    with _of_task(lambda: SinkProducer(options), options) as producer:
        yield producer


@contextmanager
def _of_task(create: Callable[[], S], key: object) -> Iterator[S]:
    """Yield the idle session of this key, or a new one. Afterwards it is idle again. If the task
    fails, it is closed instead; and also outside a worker, where the thread of an idle session
    would keep the process from ending."""
    pickled = pickle.dumps(key)
    session: Any = _idle.pop(pickled, None)
    if session is None:
        session = create().__enter__()
    try:
        yield session
    except BaseException:
        session.__exit__(*sys.exc_info())
        raise
    # A task may have used two sessions of the same key at the same time. Only one is kept.
    if TaskContext.get() is not None and pickled not in _idle:
        _idle[pickled] = session
    else:
        session.__exit__(None, None, None)

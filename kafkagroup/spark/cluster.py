"""The cluster for code without an event loop: Spark's driver and its tasks.

A `Session` runs an event loop in a thread of its own, so that connections stay alive and the next
request is in flight while Spark processes a batch. Each call is limited by the option
`default.api.timeout.ms`; retriable errors are retried, all others raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from contextvars import ContextVar
from types import TracebackType
from typing import Self, TypeVar

import anyio
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal

from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    ClusterChangedError,
    RequestTimeoutError,
)
from kafkagroup.spark.options import ConnectionOptions
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.identity import require_cluster
from kafkagroup.transport.options import ClientOptions, parse_servers
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.security import Security

__all__ = ["Session"]

T = TypeVar("T")


class _Failures:
    """What has failed in one call."""

    def __init__(self) -> None:
        self.last: Exception | None = None
        """The last retriable error, which is raised when the timeout of the call expires."""


_failures: ContextVar[_Failures] = ContextVar("_failures")
"""The failures of the call that this task runs; other tasks may run calls at the same time."""


class Session:
    """Connections to one cluster, as a context manager. Its methods block the calling thread.

    It cannot be pickled: each task creates its own.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._topics = set(options.topics)
        """The topics whose metadata each refresh requests."""
        self._stack = ExitStack()
        # Set by `__enter__`.
        self._portal: BlockingPortal
        self._cluster: Cluster

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            stop = self._portal.call(anyio.Event)
            running, self._cluster = self._portal.start_task(self._run, stop)
            # The last callback is called first: end `_run`, wait for it, then end the loop.
            stack.callback(running.result)
            stack.callback(self._portal.call, stop.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    async def _run(self, stop: anyio.Event, *, task_status: TaskStatus[Cluster]) -> None:
        """Run the tasks of the cluster until `stop` is set."""
        options = self._options
        # The type is ignored because the values of `security` have several types.
        security = Security(**options.security) if options.security else None  # type: ignore[arg-type]
        client = ClientOptions(
            client_id=options.client_id,
            # At most half of the time of a call, so that there is time for a second attempt; but at
            # least a second.
            request_timeout=min(options.request_timeout, max(options.api_timeout / 2, 1.0)),
            connections_max_idle=options.connections_max_idle,
            security=security,
        )
        async with anyio.create_task_group() as tasks:
            cluster = Cluster(parse_servers(options.bootstrap_servers), client, tasks)
            cluster.topics.follow(lambda: self._topics)
            task_status.started(cluster)
            await stop.wait()
            await cluster.aclose()

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster; None before its first response, and if it has no id."""
        return self._cluster.identity.cluster_id

    def expect_cluster(self, expected: str | None) -> None:
        """Check that the cluster has the id `expected`, unless it has none or `expected` is None.

        Raises: ClusterChangedError.
        """
        if expected is None:
            return
        if self.cluster_id is None:
            self._call(lambda: self._retry(self._cluster.refresh))
        require_cluster(expected, self.cluster_id, "the offsets of this query")

    def _call(self, work: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Run `work` in the loop, and wait for it. `timeout`, in seconds, replaces the option
        `default.api.timeout.ms`."""
        return self._portal.call(self._bounded, work, timeout)

    async def _bounded(self, work: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Await `work`. At the timeout, raise the last retriable error, or RequestTimeoutError if
        there was none."""
        failures = _Failures()
        _failures.set(failures)
        seconds = self._options.api_timeout if timeout is None else timeout
        with anyio.move_on_after(seconds):
            return await work()
        raise failures.last or RequestTimeoutError(f"no response in {seconds:g} s")

    def _note_failure(self, error: Exception) -> None:
        """Note the last retriable error of the call that runs."""
        _failures.get().last = error

    async def _retry(
        self,
        request: Callable[[], Awaitable[T]],
        fatal_error: Callable[[BrokerError, int], Exception | None] = lambda error, attempts: None,
    ) -> T:
        """Return the result of `request`; retry after retriable errors, each time with new
        metadata. `fatal_error` gets a retriable error and the number of attempts, and returns the
        error to raise instead of a retry, or None."""
        pauses, attempts = RetryBackoff(self._cluster.options), 0
        while True:
            attempts += 1
            try:
                return await request()
            except ClusterChangedError:  # which is among RETRIED_ERRORS
                raise
            except RETRIED_ERRORS as error:
                if self._cluster.logins.is_final(error):
                    raise
                self._note_failure(error)
            except BrokerError as error:
                if not error.retriable:
                    raise
                if fatal := fatal_error(error, attempts):
                    raise fatal from error
                self._note_failure(error)
            await pauses.wait()
            try:
                await self._cluster.refresh()
            except RETRIED_ERRORS as error:
                if self._cluster.logins.is_final(error):
                    raise
                self._note_failure(error)

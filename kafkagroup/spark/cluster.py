"""The cluster, for who has no event loop: Spark's driver and its tasks.

A `Session` runs one loop in a thread of its own, so that a connection stays alive, and the next
request is on its way, while Spark takes its time. Each call is bounded by the option
`default.api.timeout.ms`, tries again what may be tried again, and raises what is not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self, TypeVar

import anyio
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal

from kafkagroup.errors import (
    BrokerError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
)
from kafkagroup.spark.options import ConnectionOptions
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import ClientOptions, parse_servers
from kafkagroup.transport.retry import Pauses
from kafkagroup.transport.security import Security

__all__ = ["Session"]

T = TypeVar("T")


class Session:
    """Connections to one cluster, as a context manager whose methods block.

    Not for pickling: a task makes its own.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._stack = ExitStack()
        self._portal: BlockingPortal
        self._cluster: Cluster
        self._last: Exception | None = None
        """Why the call at hand was tried again: what to tell when its time is up."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            stop = self._portal.call(anyio.Event)
            running, self._cluster = self._portal.start_task(self._run, stop)
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
        options = self._options
        security = Security(**options.security) if options.security else None  # type: ignore[arg-type]
        client = ClientOptions(
            client_id=options.client_id, request_timeout=options.request_timeout, security=security
        )
        async with anyio.create_task_group() as tasks:
            cluster = Cluster(parse_servers(options.bootstrap_servers), client, tasks)
            cluster.topics |= set(options.topics)
            task_status.started(cluster)
            await stop.wait()
            await cluster.aclose()

    def _call(self, work: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Do it in the loop, and wait for it; `timeout` in place of the option's."""
        return self._portal.call(self._bounded, work, timeout)

    async def _bounded(self, work: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        self._last = None
        seconds = self._options.api_timeout if timeout is None else timeout
        with anyio.move_on_after(seconds):
            return await work()
        raise self._last or RequestTimeoutError(f"no answer in {seconds:g} s")

    async def _again(
        self,
        ask: Callable[[], Awaitable[T]],
        give_up: Callable[[BrokerError, int], Exception | None] = lambda error, tries: None,
    ) -> T:
        """Ask until there is an answer that no retry would change. Between two tries the metadata
        is renewed. `give_up` answers what to raise in place of another try, by their number."""
        pauses, tries = Pauses(self._cluster.options), 0
        while True:
            tries += 1
            try:
                return await ask()
            except (TransportError, RemoteProtocolError) as error:
                self._last = error
            except BrokerError as error:
                if not error.retriable:
                    raise
                if end := give_up(error, tries):
                    raise end from error
                self._last = error
            await pauses.wait()
            try:
                await self._cluster.refresh()
            except (TransportError, RemoteProtocolError) as error:
                self._last = error

"""Asking a cluster until there is an answer that no retry would change, or the time is up; and what
clients have in common that do nothing else.

Of many groups or brokers at a time: each has its own answer or its own error, and waits for no
other; all share one deadline.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from kafkagroup.errors import (
    BrokerError,
    ConfigurationError,
    ConsumerClosedError,
    DecodeError,
    KafkaGroupError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
)
from kafkagroup.options import CommonOptions
from kafkagroup.runtime.service import Service
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import ClientOptions, client_options, parse_servers
from kafkagroup.transport.retry import Pauses
from kafkagroup.transport.trouble import Problem

__all__ = ["Asking", "AskingService", "named"]

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_AT_ONCE = 64
"""Keys that are asked about at a time: each has its requests in a broker's queue."""


class Asking:
    """Whom to ask, and for how long."""

    def __init__(self, options: ClientOptions, timeout: float) -> None:
        """`timeout` bounds each call with all its retries, in seconds."""
        self.options = options
        self.timeout = timeout
        self.cluster: Cluster | None = None
        """None before it was opened, and once it is closed."""

    def opened(self) -> Cluster:
        """Raises: ConsumerClosedError."""
        if self.cluster is None:
            raise ConsumerClosedError("the client is not running; use `async with` or start()")
        return self.cluster

    async def once(
        self,
        ask: Callable[[Cluster], Awaitable[T]],
        deadline: float = math.inf,
        *,
        final: Collection[int] = (),
    ) -> T:
        """The answer to one question. Raises: what no retry mends, such as a BrokerError with a
        code in `final`; TransportError, or the last retriable BrokerError, when the time is up."""
        cluster = self.opened()
        pauses = Pauses(self.options)
        troubles, key = cluster.troubles, object()
        last: Exception | None = None
        try:
            with anyio.CancelScope(deadline=min(deadline, anyio.current_time() + self.timeout)):
                while True:
                    try:
                        answer = await ask(cluster)
                        if troubles.open:
                            troubles.succeeded(key, anyio.current_time())
                        return answer
                    except BrokerError as error:
                        if not error.retriable or error.code in final:
                            raise
                        last = error
                        troubles.failed(key, anyio.current_time(), _refused(error))
                    except DecodeError:
                        raise  # what a member once sent stays damaged
                    except (TransportError, RemoteProtocolError) as error:
                        last = error
                    await pauses.wait()
        finally:
            troubles.forget(key)
        raise last or RequestTimeoutError(f"no answer within {self.timeout:g} s")

    async def each(
        self,
        keys: Iterable[K],
        ask: Callable[[Cluster, K], Awaitable[T]],
        *,
        final: Collection[int] = (),
    ) -> dict[K, T | KafkaGroupError]:
        """Key -> its answer, or what `once` would raise; in the order of the keys."""
        self.opened()
        wanted = tuple(dict.fromkeys(keys))
        answers: dict[K, T | KafkaGroupError] = {}
        deadline = anyio.current_time() + self.timeout
        room = anyio.CapacityLimiter(_AT_ONCE)

        async def answer(key: K) -> None:
            async with room:
                try:
                    answers[key] = await self.once(
                        lambda cluster: ask(cluster, key), deadline, final=final
                    )
                except KafkaGroupError as error:
                    answers[key] = error

        async with anyio.create_task_group() as tasks:
            for key in wanted:
                tasks.start_soon(answer, key)
        return {key: answers[key] for key in wanted}


def _refused(error: BrokerError) -> Problem:
    """What is tried again until its call times out. A broker that does not answer is reported where
    the connection is."""
    return Problem(
        subject="a request of the client",
        cause=str(error),
        advice="it is tried again until its call times out; check the brokers",
    )


class AskingService(Service):
    """A client that asks, and has no background tasks."""

    def __init__(self, options: CommonOptions, call_timeout: float) -> None:
        """`call_timeout` bounds each call with all its retries, in seconds."""
        super().__init__(options.close_timeout, f"client_id={options.client_id!r}")
        self._servers = parse_servers(options.bootstrap_servers)
        self._asking = Asking(client_options(options), call_timeout)

    async def _open(self, tasks: TaskGroup) -> None:
        cluster = Cluster(self._servers, self._asking.options, tasks)
        self._asking.cluster = cluster
        await cluster.refresh()

    async def _close(self) -> None:
        if (cluster := self._asking.cluster) is not None:
            self._asking.cluster = None  # no call opens a connection any more
            await cluster.aclose()

    def _crashed(self, error: Exception) -> None:
        """There are no background tasks."""


def named(group_ids: Iterable[str]) -> list[str]:
    """The ids, each once. Raises: ConfigurationError for one string, or an empty id."""
    if isinstance(group_ids, str):
        raise ConfigurationError(f"expected several group ids, not {group_ids!r} alone")
    found = list(dict.fromkeys(group_ids))
    if not all(found):
        raise ConfigurationError("group_id is empty")
    return found

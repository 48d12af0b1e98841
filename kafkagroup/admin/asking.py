"""Asking a cluster until there is an answer that no retry would change, or the time is up; and what
clients have in common that do nothing else.

Of many groups or brokers at a time: each has its own answer or its own error, and waits for no
other; all share one deadline.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
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
from kafkagroup.net.cluster import Cluster
from kafkagroup.net.options import ClientOptions, parse_servers
from kafkagroup.net.retry import Pauses
from kafkagroup.net.security import Security
from kafkagroup.net.service import Service

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

    async def once(self, ask: Callable[[Cluster], Awaitable[T]], deadline: float = math.inf) -> T:
        """The answer to one question. Raises: what no retry mends; TransportError, or the last
        retriable BrokerError, when the time is up."""
        cluster = self.opened()
        pauses = Pauses(self.options)
        last: Exception | None = None
        with anyio.CancelScope(deadline=min(deadline, anyio.current_time() + self.timeout)):
            while True:
                try:
                    return await ask(cluster)
                except BrokerError as error:
                    if not error.retriable:
                        raise
                    last = error
                except DecodeError:
                    raise  # what a member once sent stays damaged
                except (TransportError, RemoteProtocolError) as error:
                    last = error
                await pauses.wait()
        raise last or RequestTimeoutError(f"no answer within {self.timeout:g} s")

    async def each(
        self, keys: Iterable[K], ask: Callable[[Cluster, K], Awaitable[T]]
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
                    answers[key] = await self.once(lambda cluster: ask(cluster, key), deadline)
                except KafkaGroupError as error:
                    answers[key] = error

        async with anyio.create_task_group() as tasks:
            for key in wanted:
                tasks.start_soon(answer, key)
        return {key: answers[key] for key in wanted}


class AskingService(Service):
    """A client that asks, and has no background tasks."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        client_id: str,
        security: Security | None,
        request_timeout_ms: int,
        call_timeout_ms: tuple[str, int],
        retry_backoff_ms: int,
        retry_backoff_max_ms: int,
        close_timeout: float,
    ) -> None:
        """`call_timeout_ms`: what bounds a call with all its retries, by the option's name.

        Raises: ConfigurationError.
        """
        super().__init__(close_timeout)
        for name, value, least in (
            ("request_timeout_ms", request_timeout_ms, 1),
            (*call_timeout_ms, 1),
            ("retry_backoff_ms", retry_backoff_ms, 1),
            ("retry_backoff_max_ms", retry_backoff_max_ms, retry_backoff_ms),
            ("close_timeout", close_timeout, 0),
        ):
            if not isinstance(value, int | float) or not least <= value < 2**31:
                raise ConfigurationError(f"{name}={value}; expected {least} to {2**31 - 1}")
        self._servers = parse_servers(bootstrap_servers)
        options = ClientOptions(
            client_id=client_id,
            request_timeout=request_timeout_ms / 1000,
            retry_backoff=retry_backoff_ms / 1000,
            retry_backoff_max=retry_backoff_max_ms / 1000,
            security=security,
        )
        self._asking = Asking(options, call_timeout_ms[1] / 1000)

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

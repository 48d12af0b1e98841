"""Asking a cluster until there is an answer that no retry would change, or the time is up.

Of many groups or brokers at a time: each has its own answer or its own error, and waits for no
other; all share one deadline.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import TypeVar

import anyio

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
from kafkagroup.net.options import ClientOptions
from kafkagroup.net.retry import Pauses

__all__ = ["Asking", "named"]

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
            raise ConsumerClosedError("the admin is not running; use `async with` or start()")
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


def named(group_ids: Iterable[str]) -> list[str]:
    """The ids, each once. Raises: ConfigurationError for one string, or an empty id."""
    if isinstance(group_ids, str):
        raise ConfigurationError(f"expected several group ids, not {group_ids!r} alone")
    found = list(dict.fromkeys(group_ids))
    if not all(found):
        raise ConfigurationError("group_id is empty")
    return found

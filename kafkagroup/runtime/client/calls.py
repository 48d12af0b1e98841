"""Calls with retries until a timeout, and the base class of clients that only make such calls.

A call for many keys, such as groups or brokers, makes the calls for all of them concurrently, with
one deadline: each key has its own result or error.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from kafkagroup._client_name import client_name
from kafkagroup._values import define, evolve
from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    ChangesRefusedError,
    ClosedError,
    ConfigurationError,
    DecodeError,
    KafkaGroupError,
    NotStartedError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
)
from kafkagroup.options import CommonOptions
from kafkagroup.runtime.client.connection_options import connection_options
from kafkagroup.runtime.client.late_modules import LateModules
from kafkagroup.runtime.client.service import Service
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import ClientOptions, parse_servers
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.trouble import Problem
from kafkagroup.wire.schema import Request

__all__ = [
    "CallingService",
    "ChangeAttempts",
    "RetriedCalls",
    "changed",
    "checked_group_ids",
    "checked_names",
]

R = TypeVar("R")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_MAX_CONCURRENT = 64
"""The limit of concurrent calls in `each`: more would only fill the brokers' request queues."""


@define
class ChangeAttempts:
    """The attempts to change something, in one call of the application."""

    is_lost: bool = False
    """Whether the response to an attempt was lost: that attempt may have made the change."""

    async def send(self, broker: BrokerClient, request: Request[R], **options: Any) -> R:
        """Send the request of one attempt, with `options` of `BrokerClient.request`."""
        is_sent = False

        def on_sent() -> None:
            nonlocal is_sent
            is_sent = True

        try:
            return await broker.request(request, on_sent=on_sent, **options)
        except (TransportError, RemoteProtocolError):
            # An attempt that found no connection has changed nothing.
            self.is_lost = self.is_lost or is_sent
            raise


class RetriedCalls:
    """Calls to one cluster, with retries until a timeout."""

    def __init__(self, options: ClientOptions, timeout: float) -> None:
        """`timeout` bounds each call with all its retries, in seconds."""
        self.options = options
        self.timeout = timeout
        self.cluster: Cluster | None = None
        """None before the client is opened, and after it is closed."""
        self._was_opened = False
        self._check: Callable[[], None] = lambda: None

    def open(self, cluster: Cluster, check: Callable[[], None] = lambda: None) -> None:
        """Send the calls to `cluster`. `check` is called first in each call, and raises if the
        caller's process or event loop may not use the client."""
        self.cluster, self._was_opened, self._check = cluster, True, check

    def close(self) -> None:
        """Refuse further calls. The cluster's owner closes the cluster."""
        self.cluster = None

    def opened(self) -> Cluster:
        """Return the cluster. Raises: NotStartedError; ClosedError."""
        if self.cluster is not None:
            return self.cluster
        if self._was_opened:
            raise ClosedError("the client is closed; make a new one")
        raise NotStartedError("the client is not started; use `async with` or start()")

    async def one(
        self,
        call: Callable[[Cluster], Awaitable[T]],
        deadline: float = math.inf,
        *,
        final: Collection[int] = (),
    ) -> T:
        """Make one call: await `call` again and again until it returns, and return its result. The
        call ends at `deadline`, on the loop's clock, if that is before the end of the timeout.

        Raises, without a retry: errors that are not retriable, and a BrokerError with a code in
        `final`; ClusterChangedError; AuthenticationError if a broker refused the credentials, or
        has never accepted them; NotStartedError; ClosedError; IllegalStateError in another process
        or event loop than the client's. Raises, at the deadline: the last retriable error, or
        RequestTimeoutError if there was none."""
        self._check()
        cluster = self.opened()
        pauses = RetryBackoff(self.options)
        troubles, key = cluster.troubles, object()  # no other call has this key
        last: Exception | None = None
        deadline = min(deadline, anyio.current_time() + self.timeout)
        try:
            with anyio.CancelScope(deadline=deadline):
                while True:
                    try:
                        result = await call(cluster)
                        if troubles.ongoing:  # nearly always empty
                            troubles.succeeded(key, anyio.current_time())
                        return result
                    except BrokerError as error:
                        if not error.retriable or error.code in final:
                            raise
                        last = error
                        troubles.failed(key, anyio.current_time(), _refused(error))
                    except DecodeError:
                        raise  # a retry returns the same bytes
                    except RETRIED_ERRORS as error:
                        if cluster.logins.is_final(error):
                            raise
                        if (change := cluster.cluster_change) is not None:
                            raise change from error
                        last = error
                    await pauses.wait(deadline)
        finally:
            troubles.forget(key)
        raise last or RequestTimeoutError(f"no response within {self.timeout:g} s")

    async def each(
        self,
        keys: Iterable[K],
        call: Callable[[Cluster, K], Awaitable[T]],
        *,
        final: Collection[int] = (),
    ) -> dict[K, T | KafkaGroupError]:
        """Return each key's result, or the error that `one` would raise, in the order of keys.
        Raises: NotStartedError; ClosedError; IllegalStateError as `one`."""
        # `one` calls both, too; but there their errors would become the results of the keys.
        self._check()
        self.opened()
        wanted = tuple(dict.fromkeys(keys))
        results: dict[K, T | KafkaGroupError] = {}
        deadline = anyio.current_time() + self.timeout
        limiter = anyio.CapacityLimiter(_MAX_CONCURRENT)

        async def call_one(key: K) -> None:
            async with limiter:
                try:
                    results[key] = await self.one(
                        lambda cluster: call(cluster, key), deadline, final=final
                    )
                except KafkaGroupError as error:
                    results[key] = error

        async with anyio.create_task_group() as tasks:
            for key in wanted:
                tasks.start_soon(call_one, key)
        return {key: results[key] for key in wanted}

    async def change(
        self,
        doing: str,
        keys: Iterable[K],
        call: Callable[[Cluster, K], Awaitable[object]],
        *,
        final: Collection[int] = (),
    ) -> tuple[K, ...]:
        """Change each key by `call`, and return the keys. `doing`: the name of the change, for the
        error. Raises: ChangesRefusedError, after the calls for all keys, if some keys were not
        changed; otherwise as `each`."""
        return changed(doing, await self.each(keys, call, final=final))


def changed(doing: str, results: Mapping[K, object]) -> tuple[K, ...]:
    """Return the keys of the results. Raises: ChangesRefusedError if some are errors."""
    errors: dict[Hashable, KafkaGroupError] = {
        key: result for key, result in results.items() if isinstance(result, KafkaGroupError)
    }
    done = tuple(key for key in results if key not in errors)
    if errors:
        raise ChangesRefusedError(doing, errors, done)
    return done


def _refused(error: BrokerError) -> Problem:
    """Describe a request that a broker refused. Requests without a response need no `Problem` here:
    the broker's connection reports them."""
    return Problem(
        subject="a request of the client",
        cause=str(error),
        advice="it is retried until its call times out; check the brokers",
    )


class CallingService(Service):
    """A client that makes calls with retries, and runs no task of its own between them."""

    def __init__(
        self, options: CommonOptions, call_timeout: float, late_modules: Iterable[str] = ()
    ) -> None:
        """`call_timeout` bounds each call with all its retries, in seconds. `late_modules`: the
        modules that the calls import on first use (`afterwards` of `LateModules`)."""
        super().__init__(
            options.close_timeout,
            f"client_id={options.client_id!r}",
            LateModules(afterwards=late_modules, secured=options.security is not None),
        )
        self._servers = parse_servers(options.bootstrap_servers)
        name = client_name(type(self).__name__.lower(), options.client_id)
        connection = connection_options(options, name)
        # Half of a call's timeout, so that it has time for a second attempt, but at least a second.
        attempt_timeout = min(connection.request_timeout, max(call_timeout / 2, 1.0))
        connection = evolve(connection, request_timeout=attempt_timeout)
        self._calls = RetriedCalls(connection, call_timeout)

    async def _open(self, tasks: TaskGroup) -> None:
        cluster = Cluster(self._servers, self._calls.options, tasks)
        self._calls.open(cluster, self._check_origin)
        await cluster.refresh()

    async def _close(self) -> None:
        if (cluster := self._calls.cluster) is not None:
            self._cancel_requests()
            self._calls.close()  # before closing: later calls must not open a connection
            await cluster.aclose()

    def _crashed(self, error: Exception) -> None:
        """Do nothing: no background task is spawned that could fail. Calls after the end raise
        ClosedError."""


def checked_names(names: Iterable[str], kind: str) -> list[str]:
    """Return names without duplicates. `kind`: what they name, such as "topic". Raises:
    ConfigurationError for what is no string, and for a string in place of several, whose characters
    would be taken for names."""
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise ConfigurationError(f"expected several {kind}s, not {names!r} alone")
    found = list(names)
    for name in found:
        if not isinstance(name, str):
            raise ConfigurationError(f"{kind.replace(' ', '_')}={name!r}; expected a string")
    return list(dict.fromkeys(found))


def checked_group_ids(group_ids: Iterable[str]) -> list[str]:
    """Return the group ids without duplicates. Raises: ConfigurationError as `checked_names`, and
    for an empty id."""
    found = checked_names(group_ids, "group id")
    if not all(found):
        raise ConfigurationError("group_id is empty")
    return found

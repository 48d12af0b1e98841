"""Run one call to a cluster, on connections of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from kafkagroup.errors import KafkaGroupError
from kafkagroup.runtime.client.calls import RetriedCalls
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import Address, ClientOptions

__all__ = ["request_from"]

T = TypeVar("T")


async def request_from(
    servers: Sequence[Address],
    options: ClientOptions,
    call: Callable[[Cluster], Awaitable[T]],
) -> T:
    """Return the result of a call with a new `Cluster`, which is closed afterwards.

    Retriable errors are retried until the request timeout: a coordinator that is still starting is
    not a finding. Raises: an error that is not retriable, or the last retriable one.
    """
    results: list[T] = []
    errors: list[KafkaGroupError] = []
    async with anyio.create_task_group() as tasks:
        cluster = Cluster(tuple(servers), options, tasks)
        calls = RetriedCalls(options, options.request_timeout)
        calls.open(cluster)
        try:
            results.append(await calls.one(call))
        except KafkaGroupError as error:
            # Raised below: the task group would wrap it.
            errors.append(error)
        finally:
            await cluster.aclose()
            tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return results[0]

"""A cluster for one check: opened, asked, and closed before anything is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from kafkagroup.admin.asking import Asking
from kafkagroup.errors import KafkaGroupError
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import Address, ClientOptions

__all__ = ["ask"]

T = TypeVar("T")


async def ask(
    servers: Sequence[Address],
    options: ClientOptions,
    question: Callable[[Cluster], Awaitable[T]],
) -> T:
    """The answer, of however many tries a request's time has room for: a coordinator that starts is
    nothing wrong. Raises: what no retry mends, bare, or what was said last."""
    answers: list[T] = []
    errors: list[KafkaGroupError] = []
    async with anyio.create_task_group() as tasks:
        cluster = Cluster(tuple(servers), options, tasks)
        asking = Asking(options, options.request_timeout)
        asking.cluster = cluster
        try:
            answers.append(await asking.once(question))
        except KafkaGroupError as error:
            # Raised below: the task group would wrap it.
            errors.append(error)
        finally:
            await cluster.aclose()
            tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return answers[0]

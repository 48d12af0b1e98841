"""A cluster for one check: opened, asked, and closed before anything is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from kafkagroup.errors import KafkaGroupError
from kafkagroup.net.cluster import Cluster
from kafkagroup.net.options import Address, ClientOptions

__all__ = ["ask"]

T = TypeVar("T")


async def ask(
    servers: Sequence[Address],
    options: ClientOptions,
    question: Callable[[Cluster], Awaitable[T]],
) -> T:
    """The answer. Raises: what asking raises, bare."""
    answers: list[T] = []
    errors: list[KafkaGroupError] = []
    async with anyio.create_task_group() as tasks:
        cluster = Cluster(tuple(servers), options, tasks)
        try:
            answers.append(await question(cluster))
        except KafkaGroupError as error:
            # Raised below: the task group would wrap it.
            errors.append(error)
        finally:
            await cluster.aclose()
            tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return answers[0]

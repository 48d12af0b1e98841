"""Run functions concurrently until the first one returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

__all__ = ["first"]

T = TypeVar("T")


async def first(*works: Callable[[], Awaitable[T]]) -> T:
    """Return or raise the result of the first to finish; cancel the others."""
    results: list[T] = []
    errors: list[Exception] = []

    async def run(work: Callable[[], Awaitable[T]]) -> None:
        try:
            results.append(await work())
        except Exception as error:
            # Raised below: the task group would wrap it in an ExceptionGroup.
            errors.append(error)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for work in works:
            tasks.start_soon(run, work)
    if errors:
        raise errors[0]
    return results[0]

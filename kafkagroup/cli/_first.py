"""Run functions concurrently until the first one returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

__all__ = ["first"]

T = TypeVar("T")


async def first(*functions: Callable[[], Awaitable[T]]) -> T:
    """Return the result of the first function that ends, or raise its error; cancel the others."""
    results: list[T] = []
    errors: list[Exception] = []

    async def run(function: Callable[[], Awaitable[T]]) -> None:
        try:
            result = await function()
        except Exception as error:
            # Raised below: the task group would wrap it in an ExceptionGroup. Another one, also of
            # a function that is being cancelled, is dropped.
            if not (results or errors):
                errors.append(error)
        else:
            results.append(result)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for function in functions:
            tasks.start_soon(run, function)
    if errors:
        raise errors[0]
    return results[0]

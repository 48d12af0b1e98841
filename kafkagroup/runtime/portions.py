"""Work for each of many partitions, in slices between which the loop's other tasks run.

A consumer may own 100,000 partitions: a few microseconds for each would be most of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

import anyio

__all__ = ["are_many", "slices", "together"]

R = TypeVar("R")
T = TypeVar("T")

AT_ONCE = 1_000
"""Most partitions that are gone through before others run: some milliseconds' work."""


def are_many(items: Collection[object]) -> bool:
    """Whether others run while `items` are gone through."""
    return len(items) > AT_ONCE


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Go over `items`, `AT_ONCE` of them at a time."""
    for start in range(0, len(items), AT_ONCE):
        yield items[start : start + AT_ONCE]


async def together(work: Callable[[Collection[T]], Iterable[R]], items: Collection[T]) -> list[R]:
    """Return what `work` makes of `items`, a slice at a time.

    Up to `AT_ONCE` items are one slice, and nobody else runs. Of more, what was found in the first
    slice may hold no longer when the last one is done.
    """
    if not are_many(items):
        return list(work(items))
    made: list[R] = []
    for some in slices(tuple(items)):
        made += work(some)
        await anyio.sleep(0)  # noqa: ASYNC115 - anyio.lowlevel takes an import of its own
    return made

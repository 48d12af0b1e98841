"""Work in slices, between which the loop's other tasks run.

`process_in_slices`, `apply_in_slices` and `slices` are for work on each of many partitions: a
consumer may own 100,000, and a few microseconds for each would block the loop for most of a second.
`Slices` is for long work on one item, such as a response of megabytes: a generator that yields when
its time is up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import anyio

__all__ = ["Slices", "apply_in_slices", "are_many", "process_in_slices", "slices"]

R = TypeVar("R")
T = TypeVar("T")

SLICE_SIZE = 1_000
"""Most partitions that are processed before other tasks run: some milliseconds' work."""


def are_many(items: Collection[object]) -> bool:
    """Return whether other tasks run while `items` are processed."""
    return len(items) > SLICE_SIZE


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield `items` in slices of `SLICE_SIZE`."""
    for start in range(0, len(items), SLICE_SIZE):
        yield items[start : start + SLICE_SIZE]


async def process_in_slices(
    work: Callable[[Collection[T]], Iterable[R]], items: Collection[T]
) -> list[R]:
    """Return the results of `work` for `items`, a slice at a time.

    Up to `SLICE_SIZE` items are one slice, and no other task runs. With more, the results of the
    first slice may be outdated when the last one is done.
    """
    if not are_many(items):
        return list(work(items))
    results: list[R] = []
    for part in slices(tuple(items)):
        results += work(part)
        await anyio.sleep(0)  # noqa: ASYNC115 - anyio.lowlevel takes an import of its own
    return results


async def apply_in_slices(work: Callable[[Sequence[T]], object], items: Sequence[T]) -> None:
    """Call `work` for `items`, a slice at a time. Other tasks run between the slices if there are
    several."""
    for part in slices(items):
        work(part)
        if are_many(items):
            await anyio.sleep(0)  # noqa: ASYNC115 - anyio.lowlevel takes an import of its own


class Slices(Generic[T]):
    """The slices of `work`, which yields wherever other tasks may run."""

    __slots__ = ("_is_done", "_result", "_work")

    _result: T  # set with `_is_done`

    def __init__(self, work: Generator[None, None, T]) -> None:
        self._work = work
        self._is_done = False

    def do_one(self) -> None:
        """Do the next slice; there must be one. Raises: what the work raises."""
        try:
            next(self._work)
        except StopIteration as end:
            self._result = end.value
            self._is_done = True

    async def do_rest(self) -> T:
        """Do the slices that are left, if any, and return what the work returns. Other tasks run
        between two slices, but neither before the first nor after the last. Raises: what the work
        raises."""
        while not self._is_done:
            self.do_one()
            if not self._is_done:
                # anyio.lowlevel takes an import of its own.
                await anyio.sleep(0)  # noqa: ASYNC115
        return self._result

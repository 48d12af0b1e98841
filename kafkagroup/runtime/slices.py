"""Work that is done in slices, between which the loop's other tasks run.

`together` and `slices` are for work on each of many partitions: a consumer may own 100,000, and a
few microseconds for each would be most of a second. `Slices` is for work that takes long for a
single item, as a response of megabytes: its generator yields when its time is up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import anyio

__all__ = ["Slices", "are_many", "slices", "together"]

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


class Slices(Generic[T]):
    """The slices of `work`, which yields wherever other tasks may run."""

    __slots__ = ("_is_done", "_result", "_work")

    _result: T

    def __init__(self, work: Generator[None, None, T]) -> None:
        self._work = work
        self._is_done = False

    def do_one(self) -> None:
        """Do the next slice. Raises: what the work raises."""
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

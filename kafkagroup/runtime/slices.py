"""Work that is done a slice at a time, so that it never keeps the loop for long."""

from __future__ import annotations

from collections.abc import Generator
from typing import Generic, TypeVar

import anyio

__all__ = ["Slices"]

T = TypeVar("T")


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

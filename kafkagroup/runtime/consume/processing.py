"""The task of the application that took the records in flight, and whether it may yet finish them.

A rebalance waits until these records are processed. It must not wait for a task that has ended, or
that itself waits for the group: such a task will not process them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

from kafkagroup._backend import asyncio_loop

__all__ = ["Processing"]


def _no_task() -> Any:
    return None


class Processing:
    """The task that polled last, which processes the records in flight.

    Tasks have the type Any: they are asyncio's or trio's.
    """

    def __init__(self) -> None:
        self.current: Callable[[], Any] = _no_task
        """Returns the task that runs in the consumer's loop now; None if none does."""
        self.task: Callable[[], Any] = _no_task
        """Returns the task that polled last; None if it is gone. Not a strong reference: asyncio
        logs the exception of a task as soon as nothing refers to it."""
        self._waiting: set[Any] = set()
        """The tasks that wait for the group."""

    def bind(self) -> None:
        """Use the tasks of the loop that runs now."""
        self.current = _current_task()

    def note_poller(self) -> bool:
        """Note that the current task polls; return whether it did not poll last. Where no task
        runs, note nothing and return False."""
        current = self.current()
        if current is None or self.task() is current:
            return False
        self.task = ref(current)
        return True

    @property
    def is_by_caller(self) -> bool:
        """Whether the current task is the one that polled last."""
        current = self.current()
        return current is not None and current is self.task()

    @property
    def may_end(self) -> bool:
        """Whether the task that polled last may still finish the records: it runs, and does not
        wait for the group."""
        task = self.task()
        return task is not None and task not in self._waiting and not _has_ended(task)

    @contextmanager
    def caller_waits(self) -> Iterator[None]:
        """A context in which the current task waits for the group, and processes nothing."""
        current = self.current()
        self._waiting.add(current)
        try:
            yield
        finally:
            self._waiting.discard(current)


def _current_task() -> Callable[[], Any]:
    """Return a function that returns the current task of this loop; None where no task runs."""
    if (loop := asyncio_loop()) is None:
        return _trio_task
    if sys.version_info < (3, 12):
        # `asyncio.current_task` is written in Python there, and takes as long as delivering a
        # record.
        return partial(asyncio.tasks._current_tasks.get, loop)  # type: ignore[attr-defined]
    return partial(asyncio.current_task, loop)


def _trio_task() -> Any:
    import trio

    try:
        return trio.lowlevel.current_task()
    except RuntimeError:  # no task runs
        return None


def _has_ended(task: Any) -> bool:
    if isinstance(task, asyncio.Future):  # asyncio's tasks are futures
        return task.done()
    return task.coro.cr_frame is None  # trio's tasks have no method for this

"""Work of which there is some now and then. A task does it, and ends with it: a consumer that has
nothing to do keeps no tasks for what it may have to do one day."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

__all__ = ["CoalescingTask", "Spawn"]

Spawn = Callable[[Callable[[], Awaitable[None]], str], None]
"""Runs a background task with a name; its error reaches the application."""


class CoalescingTask:
    """Done by one task at a time. `work` returns, without a last wait, once nothing is to do."""

    __slots__ = ("_busy", "_name", "_spawn", "_work")

    def __init__(self, spawn: Spawn, work: Callable[[], Awaitable[None]], name: str) -> None:
        self._spawn = spawn
        self._work = work
        self._name = name
        self._busy = False

    def ask(self) -> None:
        """There may be something to do."""
        if not self._busy:
            self._busy = True
            self._spawn(self._run, self._name)

    async def _run(self) -> None:
        try:
            await self._work()
        finally:
            self._busy = False

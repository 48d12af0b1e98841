"""A background task that runs only while there is work: an idle consumer keeps no task for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

__all__ = ["CoalescingTask", "Spawn"]

Spawn = Callable[[Callable[[], Awaitable[None]], str], None]
"""Runs a background task with a name; its error reaches the application."""


class CoalescingTask:
    """Runs `work` in one task at a time.

    `work` must not wait between finding nothing more to do and returning: `ensure_running` starts
    no second task meanwhile.
    """

    __slots__ = ("_is_running", "_name", "_spawn", "_work")

    def __init__(self, spawn: Spawn, work: Callable[[], Awaitable[None]], name: str) -> None:
        self._spawn = spawn
        self._work = work
        self._name = name
        self._is_running = False

    def ensure_running(self) -> None:
        """Start the task unless it is running. Call this whenever there may be work."""
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run, self._name)

    async def _run(self) -> None:
        try:
            await self._work()
        finally:
            self._is_running = False

"""The event loop that runs the caller: one of asyncio, or trio's."""

from __future__ import annotations

import asyncio
import contextvars
import sys

__all__ = ["asyncio_loop", "callback_context"]


def asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """Return the asyncio loop that runs the caller; None on trio, or without a loop.

    In trio's guest mode a loop of asyncio runs in the same thread, and calls trio's tasks.
    """
    loop = asyncio._get_running_loop()  # the public function raises without a loop
    if loop is None or (trio := sys.modules.get("trio.lowlevel")) is None:
        return loop
    # Another thread may be importing trio.
    is_in_trio = getattr(trio, "in_trio_task", None)
    return None if is_in_trio is not None and is_in_trio() else loop


def callback_context() -> contextvars.Context:
    """Return the context for callbacks of asyncio's loop, which run outside of tasks. There
    sniffio, which anyio asks if it is installed, finds no library: without this context, a callback
    that reads a response could not start a task."""
    context = contextvars.copy_context()
    try:
        from sniffio import current_async_library_cvar
    except ImportError:
        return context  # anyio asks asyncio itself
    context.run(current_async_library_cvar.set, "asyncio")
    return context

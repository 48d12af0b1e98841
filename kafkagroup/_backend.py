"""The event loop that runs the caller: asyncio's or trio's."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from asyncio import _get_running_loop  # the public function raises without a loop

__all__ = ["asyncio_loop", "callback_context"]

_modules = sys.modules


def asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """Return the asyncio loop that runs the caller; None in a task of trio, or without a loop.

    In trio's guest mode an asyncio loop runs trio's tasks in the same thread: None in these, too.
    """
    # For each awaited record: names that are looked up in one step.
    loop = _get_running_loop()
    if loop is None or (trio := _modules.get("trio.lowlevel")) is None:
        return loop
    # None while another thread is importing trio.
    is_in_trio = getattr(trio, "in_trio_task", None)
    return None if is_in_trio is not None and is_in_trio() else loop


def callback_context() -> contextvars.Context:
    """Return the context for callbacks of asyncio's loop, which run outside of tasks.

    anyio asks sniffio, if it is installed, which library runs. Outside of tasks sniffio finds none,
    so that without this context a callback that reads a response could not start a task.
    """
    context = contextvars.copy_context()
    try:
        from sniffio import current_async_library_cvar
    except ImportError:
        return context  # without sniffio, anyio asks asyncio itself
    context.run(current_async_library_cvar.set, "asyncio")
    return context

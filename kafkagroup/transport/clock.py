"""The running loop's clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["loop_clock"]


def loop_clock() -> Callable[[], float]:
    """What `anyio.current_time` asks, without looking for the loop each time: on asyncio that look
    takes longer than handing out a record, and in another thread there is none to be found."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        import trio

        return trio.lowlevel.current_clock().current_time
    if type(loop).time is asyncio.BaseEventLoop.time:
        return time.monotonic  # which is all that it asks, in half the time
    return loop.time

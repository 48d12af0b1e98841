"""The running loop's clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["loop_clock"]


def loop_clock() -> Callable[[], float]:
    """Return the clock of `anyio.current_time`, which looks up the running loop at each call: on
    asyncio that takes longer than delivering a record, and in another thread it fails."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        import trio

        return trio.lowlevel.current_clock().current_time
    if type(loop).time is asyncio.BaseEventLoop.time:
        return time.monotonic  # the same clock, in half the time
    return loop.time

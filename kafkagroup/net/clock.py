"""The running loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

__all__ = ["loop_clock"]


def loop_clock() -> Callable[[], float]:
    """What `anyio.current_time` asks, without looking for the loop each time: on asyncio that look
    takes longer than handing out a record."""
    try:
        return asyncio.get_running_loop().time
    except RuntimeError:
        return anyio.current_time

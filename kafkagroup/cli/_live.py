"""Commands that run until Ctrl-C, and then exit with success."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import anyio

__all__ = ["run_live", "stamp", "ticks"]


def run_live(view: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Run `view(*args)`; Ctrl-C ends it without a failure."""
    try:
        anyio.run(view, *args)
    except KeyboardInterrupt:
        return


async def ticks(interval: float) -> AsyncIterator[None]:
    """Yield at once, and then every `interval` seconds. A caller that takes longer than that gets
    the next tick at once; ticks that it has missed are skipped."""
    due = anyio.current_time()
    while True:
        yield
        due = max(due + interval, anyio.current_time())
        await anyio.sleep_until(due)


def stamp() -> str:
    """Return the current time in ISO 8601, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

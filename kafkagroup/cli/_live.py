"""Commands that go on until Ctrl-C, which ends them well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import anyio

__all__ = ["clock", "run_live", "stamp"]


def run_live(view: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Run it; it is not a failure that somebody has seen enough."""
    try:
        anyio.run(view, *args)
    except KeyboardInterrupt:
        return


async def clock(every: float) -> AsyncIterator[None]:
    """Ticks at once, and then whenever that many seconds have passed; late ones are left out."""
    due = anyio.current_time()
    while True:
        yield
        due = max(due + every, anyio.current_time())
        await anyio.sleep_until(due)


def stamp() -> str:
    """This moment in ISO 8601, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

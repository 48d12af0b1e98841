"""The error of something that ran in the background, and has ended although nothing requested it.

asyncio lets any code cancel any task. anyio ends a task group in silence when one of its tasks was
cancelled, so the client would look as if it had been stopped.
"""

from __future__ import annotations

from kafkagroup.errors import IllegalStateError

__all__ = ["unrequested_end"]


def unrequested_end(what: str) -> IllegalStateError:
    """Return the error to report when `what` has ended."""
    return IllegalStateError(
        f"{what} has ended, and nothing has requested it: code outside of this client has cancelled"
        " one of its tasks"
    )

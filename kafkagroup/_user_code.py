"""Errors of the user's code: callbacks, deserializers, assignors, token sources.

Code that awaits a cancelled task lets CancelledError out, which is no Exception. In a task of this
library it would end that task in silence, and in the application's task it would look as if that
task had been cancelled.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError

__all__ = ["USER_ERRORS", "CancelledError", "is_own_cancellation", "user_error"]

USER_ERRORS = (Exception, CancelledError)
"""What to catch around the user's code, before `user_error`."""


def is_own_cancellation(error: BaseException) -> bool:
    """Return whether an error is the cancellation of the current task, not of an awaited one."""
    if not isinstance(error, CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False  # under trio, which cancels by an exception of its own
    return task is not None and task.cancelling() > 0


def user_error(error: BaseException, what: str) -> Exception:
    """Return the error to report for one that the user's code, named `what`, let out: the same, or
    for a CancelledError a RuntimeError, as PEP 479 has it for StopIteration.

    Raises: `error` itself if the current task is cancelled.
    """
    if isinstance(error, Exception):
        return error
    if is_own_cancellation(error):
        raise error
    failure = RuntimeError(
        f"{what} let {type(error).__name__} out, and nothing has cancelled the task that called it:"
        " catch it where a task or future is awaited that may be cancelled"
    )
    failure.__cause__ = error
    return failure

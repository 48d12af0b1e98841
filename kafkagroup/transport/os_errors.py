"""What the operating system says when a connection cannot be made.

`anyio` and `asyncio` put words of their own before it ("All connection attempts failed"): the
reason stands in the errors that those were raised from.
"""

from __future__ import annotations

import os

from kafkagroup.errors import escaped

__all__ = ["reason"]


def reason(error: BaseException) -> str:
    """The system's reason, such as "Connection refused"; several, if a name has several addresses
    and each failed for another reason."""
    while isinstance(error.__cause__, OSError):
        error = error.__cause__
    if isinstance(error.__cause__, BaseExceptionGroup):
        return ", ".join(dict.fromkeys(map(reason, error.__cause__.exceptions)))
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:
        return os.strerror(number)
    # Looking up a name fails with a number that is not of the system's errors.
    return escaped((isinstance(error, OSError) and error.strerror) or str(error))

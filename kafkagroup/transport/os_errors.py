"""The operating system's reason why a connection failed.

`anyio` and `asyncio` raise general errors ("All connection attempts failed"); the reason is in the
errors that caused them.
"""

from __future__ import annotations

import errno
import os
import socket

from kafkagroup._text import escaped

__all__ = ["lacks_descriptors", "reason"]


def reason(error: BaseException) -> str:
    """Return the system's reason, such as "Connection refused"; several, if a name has several
    addresses that failed for different reasons."""
    while isinstance(error.__cause__, OSError):
        error = error.__cause__
    if isinstance(error.__cause__, BaseExceptionGroup):
        return ", ".join(dict.fromkeys(map(reason, error.__cause__.exceptions)))
    # The number of a failed name look-up is not an errno, but positive too on macOS and Windows.
    is_look_up = isinstance(error, socket.gaierror)
    number = error.errno if isinstance(error, OSError) and not is_look_up else None
    if number is not None and number > 0:
        return os.strerror(number)
    return escaped((isinstance(error, OSError) and error.strerror) or str(error))


def lacks_descriptors(error: BaseException | None) -> bool:
    """Return whether an error means that the process, or the system, has reached its limit of open
    files. The error may pass. Any code that opens a file may raise it, even the import of a
    module."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)

"""Read stdin and write stdout without blocking the event loop on a slow peer.

Each read or write runs in a daemon thread, so that a blocked one does not keep the program from
exiting. The threads use file descriptors and not Python's buffers: a blocked thread would hold a
buffer's lock, which Python needs when it exits.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

__all__ = ["read_stdin", "write_stdout"]

T = TypeVar("T")


async def read_stdin(max_bytes: int) -> bytes:
    """Wait for input, and return at most `max_bytes` bytes; b"" at the end.

    A cancelled call loses the next input. Raises: OSError.
    """
    if sys.stdin is None:  # the program was started with a closed stdin
        return b""
    return await _in_thread(lambda: os.read(sys.stdin.fileno(), max_bytes))


async def write_stdout(data: bytes) -> None:
    """Write all bytes, and return when the system has accepted them.

    A cancelled call may still write. Raises: OSError; BrokenPipeError if the reader has closed.
    """

    def write() -> None:
        if sys.stdout is None:  # the program was started with a closed stdout
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        left = memoryview(data)
        while left:
            left = left[os.write(sys.stdout.fileno(), left) :]

    await _in_thread(write)


async def _in_thread(work: Callable[[], T]) -> T:
    """Return the result of `work`, run in a daemon thread. Raises: what `work` raises."""
    done = anyio.Event()
    results: list[T] = []
    errors: list[Exception] = []
    token = anyio.lowlevel.current_token()

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            errors.append(error)
        try:
            anyio.from_thread.run_sync(done.set, token=token)
        except anyio.RunFinishedError:
            pass  # the event loop has ended

    threading.Thread(target=run, daemon=True, name="kafkagroup pipe").start()
    await done.wait()
    if errors:
        raise errors[0]
    return results[0]

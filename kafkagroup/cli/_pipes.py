"""Read stdin and write stdout without blocking the event loop on a slow peer.

Each read or write runs in a daemon thread, so that a blocked one does not keep the program from
exiting. They use file descriptors, not Python's buffers: a blocked thread would hold their locks.
"""

from __future__ import annotations

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


async def read_stdin(most: int) -> bytes:
    """What there is to read, `most` bytes at most; waits for the first one. b"" at the end.

    Cancelled, it loses what comes next. Raises: OSError.
    """
    return await _in_thread(lambda: os.read(sys.stdin.fileno(), most))


async def write_stdout(data: bytes) -> None:
    """Return when the system has taken all of it.

    Cancelled, it may write on. Raises: OSError; BrokenPipeError when nobody reads any more.
    """

    def write() -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(sys.stdout.fileno(), left) :]

    await _in_thread(write)


async def _in_thread(work: Callable[[], T]) -> T:
    done = anyio.Event()
    answers: list[T] = []
    errors: list[OSError] = []
    token = anyio.lowlevel.current_token()

    def run() -> None:
        try:
            answers.append(work())
        except OSError as error:
            errors.append(error)
        try:
            anyio.from_thread.run_sync(done.set, token=token)
        except anyio.RunFinishedError:
            pass  # the event loop has ended

    threading.Thread(target=run, daemon=True, name="kafkagroup pipe").start()
    await done.wait()
    if errors:
        raise errors[0]
    return answers[0]

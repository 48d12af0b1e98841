"""A child process with a process group of its own.

A signal to the group also reaches the processes that the child has started. Ctrl-C on the terminal
reaches only this program, which forwards it: the child gets it once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import anyio
from anyio.abc import Process

if sys.platform != "win32":
    import os

__all__ = ["kill", "send", "start"]


async def start(words: Sequence[str], env: Mapping[str, str]) -> Process:
    """Start a command with the streams of this process. Raises: OSError."""
    flags = 0
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP
    return await anyio.open_process(
        words,
        stdin=None,
        stdout=None,
        stderr=None,
        env=env,
        start_new_session=True,  # ignored on Windows
        creationflags=flags,
    )


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to the process and its child processes. On Windows any signal becomes
    Ctrl-Break: no other can be sent to a group."""
    with suppress(ProcessLookupError):  # it has already ended
        if sys.platform == "win32":
            process.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            os.killpg(process.pid, number)


def kill(process: Process) -> None:
    """End the process at once; on POSIX also its child processes, even those that have outlived
    it."""
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)

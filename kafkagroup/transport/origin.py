"""Where a client was started: its process and its event loop, to which it belongs.

A forked process has copies of the client's buffers: it would deliver the same records as its
parent. It also shares the connections: the parent would miss the bytes that the forked process
reads, and what this process sends would be mixed into the parent's requests. Another loop knows
none of the client's tasks and events.
"""

from __future__ import annotations

import os
import sys
import threading

from kafkagroup._backend import asyncio_loop
from kafkagroup.errors import IllegalStateError

__all__ = ["Origin"]


class Origin:
    """The process and the event loop in which a client was started."""

    __slots__ = ("_forks", "_loop", "_process", "_subject", "_thread", "_trio", "thread_id")

    def __init__(self, subject: str) -> None:
        """`subject` names the client in errors."""
        self._subject = subject
        self._process = os.getpid()
        self._forks = _forks
        self._thread = threading.current_thread()
        self._loop = asyncio_loop()
        """None on trio."""
        self._trio = _trio_token()
        """What identifies a run of trio; None on asyncio."""
        self.thread_id = threading.get_ident()
        """The thread of the loop. Comparing it is cheap enough to do for each record."""

    @property
    def fork_message(self) -> str:
        """The text of the error in a process that was forked from the client's; "" in the client's
        own process."""
        if self._forks == _forks:
            return ""
        return (
            f"{self._subject} works only in process {self._process}, which started it, and this is"
            f" process {os.getpid()}, forked from it: make and start another one here, after the"
            " fork"
        )

    def check(self) -> None:
        """Raises: IllegalStateError if the caller runs in another process or another loop, or
        outside of any loop in another thread."""
        if message := self.fork_message:
            raise IllegalStateError(message)
        if (loop := asyncio_loop()) is not None:
            is_here = loop is self._loop
        elif (trio := _trio_token()) is not None:
            is_here = trio is self._trio
        else:  # outside of any loop
            is_here = threading.current_thread() is self._thread
        if not is_here:
            raise IllegalStateError(self._elsewhere())

    def check_running(self) -> None:
        """As `check`, and raise IllegalStateError also outside of any loop."""
        self.check()
        if asyncio_loop() is None and _trio_token() is None:
            raise IllegalStateError(self._elsewhere())

    def _elsewhere(self) -> str:
        home = "a loop of trio" if self._loop is None else repr(self._loop)
        began = (
            f"{self._subject} works only in the event loop that started it,"
            f" {home} in thread {self._thread.name!r}"
        )
        if self._loop is not None and self._loop.is_closed():
            return f"{began}, which is closed: make and start another one in this loop"
        call = "trio.from_thread.run" if self._loop is None else "asyncio.run_coroutine_threadsafe"
        return (
            f"{began}: call it there, from another thread with {call}, or make and start another"
            " one in this loop"
        )


def _trio_token() -> object | None:
    """Return the token of the run of trio that runs the caller; None without one."""
    trio = sys.modules.get("trio.lowlevel")
    # `getattr`, because the module is incomplete while another thread imports it.
    is_in_trio = getattr(trio, "in_trio_run", None)
    if trio is None or is_in_trio is None or not is_in_trio():
        return None
    token: object = trio.current_trio_token()
    return token


_forks = 0
"""The number of forks between the process that imported this module and the present one. Compared
in place of process ids, as each `os.getpid()` is a system call."""


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_count_fork)

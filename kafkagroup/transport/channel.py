"""The bytes of one connection: read to where they stay, and written at once.

A plain socket is read and written by ourselves, beside the stream that it belongs to and that only
closes it: the bytes of records go from the kernel to the buffer that they are read from, and
nowhere else; and a request is the kernel's before whoever sends it waits, without a task for it.
On asyncio the loop itself calls what reads the socket: a task would run a turn of the loop later.
What goes through TLS, or through a stream that is no socket, is copied once.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from anyio.abc import ByteStream

__all__ = ["Channel"]

T = TypeVar("T")

_SHORT = 4096
"""Bytes: after fewer there is hardly ever more to read yet, and looking takes longer than waiting
for a socket that has something."""

_A_TURN = 65_536
"""Bytes after which a room that was filled is looked at in another turn of the loop."""


class Channel:
    """Takes what a stream receives, and gives it what to send. Whoever uses it, never receives from
    the stream nor sends to it: one of the two would overtake the other."""

    def __init__(self, stream: ByteStream, most: int) -> None:
        """`most`: bytes that are asked for at a time."""
        self._stream = stream
        self._most = most
        self._drained = False
        """Whether the socket is likely to have nothing."""
        self._socket: socket.socket | None = None
        # Here, as it is a tenth of what importing a consumer costs, and is there once one connects.
        from anyio.abc import SocketAttribute, SocketStream

        # Where a loop has asked the kernel for bytes before we do, as on Windows, it gets them.
        if isinstance(stream, SocketStream) and sys.platform != "win32":
            # Another descriptor of the same socket: loops refuse to wait for one that they read.
            self._socket = stream.extra(SocketAttribute.raw_socket).dup()
            self._socket.setblocking(False)

    async def receive(self, room: Callable[[], memoryview], take: Callable[[int], T | None]) -> T:
        """Write bytes to `room`, at least one at a time, and call `take` with how many, until that
        returns something; return it.

        Raises: anyio.EndOfStream, OSError, what the stream or `take` raises.
        """
        if self._socket is not None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                pass  # trio
            else:
                return await self._receive_in_callbacks(loop, self._socket, room, take)
        while True:
            with room() as view:
                count = await self._into(view)
            if (taken := take(count)) is not None:
                return taken

    async def _receive_in_callbacks(
        self,
        loop: asyncio.AbstractEventLoop,
        source: socket.socket,
        room: Callable[[], memoryview],
        take: Callable[[int], T | None],
    ) -> T:
        end: asyncio.Future[T] = loop.create_future()

        def read() -> None:
            came = 0
            try:
                while not end.done():
                    with room() as view:
                        most = min(len(view), self._most)
                        count = source.recv_into(view, most)
                    if not count:
                        raise anyio.EndOfStream
                    if (taken := take(count)) is not None:
                        end.set_result(taken)
                    came += count
                    if count < most or came >= _A_TURN:
                        return
            except BlockingIOError:
                return
            except Exception as error:
                end.set_exception(error)

        _callback_context().run(loop.add_reader, source, read)
        try:
            return await end
        finally:
            loop.remove_reader(source)

    async def _into(self, room: memoryview) -> int:
        """Write bytes to `room`, at least one; answer how many."""
        most = min(len(room), self._most)
        if self._socket is None:
            data = await self._stream.receive(most)
            room[: len(data)] = data
            return len(data)
        if not self._drained:
            # A fast broker would keep the loop. anyio.lowlevel takes an import of its own.
            await anyio.sleep(0)  # noqa: ASYNC115
        while True:
            if self._drained:
                await anyio.wait_readable(self._socket)
            try:
                count = self._socket.recv_into(room, most)
            except BlockingIOError:
                self._drained = True
                continue
            if not count:
                raise anyio.EndOfStream
            self._drained = count < min(most, _SHORT)
            return count

    def send_now(self, data: bytes) -> int:
        """Send what the kernel takes at once; answer how many bytes. None through TLS and its kin.

        Only while nobody is in `send`. What is wrong with the socket is left for `send` to meet.
        """
        if self._socket is None:
            return 0
        try:
            return self._socket.send(data)
        except OSError:
            return 0

    async def send(self, data: bytes) -> None:
        """Send all of it; cancelled, some of it. Raises: OSError, what the stream raises."""
        if self._socket is None:
            await self._stream.send(data)
            return
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)

    def close(self) -> None:
        """Take and give nothing more. The stream is closed by whoever has it."""
        if self._socket is not None:
            self._socket.close()


def _callback_context() -> contextvars.Context:
    """A context for what the loop calls outside of tasks. Where sniffio is installed, anyio asks it
    for the loop, and it looks for a task: without this, a response could start no task."""
    context = contextvars.copy_context()
    try:
        from sniffio import current_async_library_cvar
    except ImportError:
        return context  # anyio asks asyncio itself
    context.run(current_async_library_cvar.set, "asyncio")
    return context

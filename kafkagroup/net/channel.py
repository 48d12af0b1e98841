"""The bytes of one connection: read to where they stay, and written at once.

A plain socket is read and written by ourselves, beside the stream that it belongs to and that only
closes it: the bytes of records go from the kernel to the buffer that they are read from, and
nowhere else; and a request is the kernel's before whoever sends it waits, without a task for it.
What goes through TLS, or through a stream that is no socket, is copied once.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from anyio.abc import ByteStream

__all__ = ["Channel"]

_SHORT = 4096
"""Bytes: after fewer there is hardly ever more to read yet, and looking takes longer than waiting
for a socket that has something."""


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

    async def into(self, room: memoryview) -> int:
        """Write bytes to `room`, at least one; answer how many.

        Raises: anyio.EndOfStream, OSError, what the stream raises.
        """
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

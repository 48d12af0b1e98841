"""What a stream receives, written to where it stays.

A plain socket is read by ourselves, beside the stream that it belongs to and that only sends: the
bytes of records then go from the kernel to the buffer that they are read from, and nowhere else.
What comes through TLS, or through a stream that is no socket, is copied once.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from anyio.abc import ByteStream

__all__ = ["Incoming"]


class Incoming:
    """Takes what a stream receives. Whoever uses it, never receives from the stream."""

    def __init__(self, stream: ByteStream, most: int) -> None:
        """`most`: bytes that are asked for at a time."""
        self._stream = stream
        self._most = most
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
        # A fast broker would keep the loop. anyio.lowlevel takes an import of its own.
        await anyio.sleep(0)  # noqa: ASYNC115
        while True:
            try:
                count = self._socket.recv_into(room, most)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            else:
                if not count:
                    raise anyio.EndOfStream
                return count

    def close(self) -> None:
        """Take nothing more. The stream is closed by whoever has it."""
        if self._socket is not None:
            self._socket.close()

"""The bytes of one connection: received without a copy, and sent without a task.

A plain socket is read and written directly; its stream only closes it. The kernel writes received
bytes to the buffer that records are decoded from. A request is passed to the kernel before its
caller waits. On asyncio the loop calls the reader as a callback of the socket: a task would run one
turn of the loop later. With TLS, or another stream that is not a socket, bytes are copied once.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import anyio

from kafkagroup._backend import asyncio_loop, callback_context

if TYPE_CHECKING:
    from anyio.abc import ByteStream

__all__ = ["Channel"]

T = TypeVar("T")

_SHORT_READ = 4096
"""Bytes. After a shorter read the socket is most likely empty: waiting until it is readable is
cheaper than another read."""

_MAX_BYTES_PER_TURN = 65_536
"""After this many bytes the callback lets other tasks of the loop run."""


class Channel:
    """Receives from a stream and sends to it. Nothing else may use the stream directly: bytes would
    come out of order."""

    def __init__(self, stream: ByteStream, receive_bytes: int) -> None:
        """`receive_bytes`: the most bytes to receive at a time."""
        self._stream = stream
        self._receive_bytes = receive_bytes
        self._is_drained = False
        """Whether the socket is probably empty."""
        self._socket: socket.socket | None = None
        # Imported here: `anyio.abc` is a tenth of the import time of a consumer.
        from kafkagroup.transport.plain_stream import PlainStream

        # Not on Windows: asyncio's loop there has no callbacks for sockets.
        if isinstance(stream, PlainStream) and sys.platform != "win32":
            self._socket = stream.socket

    async def receive(self, room: Callable[[], memoryview], take: Callable[[int], T | None]) -> T:
        """Write received bytes to the memory that `room` returns, and call `take` with the number
        of these bytes. Repeat both until `take` returns something other than None; return that.

        Raises: anyio.EndOfStream, OSError, what the stream or `take` raises.
        """
        if self._socket is not None and (loop := asyncio_loop()) is not None:
            return await self._receive_in_callbacks(loop, self._socket, room, take)
        while True:
            with room() as view:
                count = await self._receive_into(view)
            if (taken := take(count)) is not None:
                return taken

    async def _receive_in_callbacks(
        self,
        loop: asyncio.AbstractEventLoop,
        source: socket.socket,
        room: Callable[[], memoryview],
        take: Callable[[int], T | None],
    ) -> T:
        """Receive as `receive` does, in callbacks of asyncio's loop."""
        end: asyncio.Future[T] = loop.create_future()

        def read() -> None:
            # The loop calls this again as long as the socket is readable.
            received = 0  # in this call
            try:
                while not end.done():
                    with room() as view:
                        most = min(len(view), self._receive_bytes)
                        count = source.recv_into(view, most)
                    if not count:
                        raise anyio.EndOfStream
                    if (taken := take(count)) is not None:
                        end.set_result(taken)
                    received += count
                    if count < most or received >= _MAX_BYTES_PER_TURN:
                        return
            except BlockingIOError:
                return
            except Exception as error:
                end.set_exception(error)

        # Not in the context of this task: `take` may handle a response that starts tasks by anyio.
        callback_context().run(loop.add_reader, source, read)
        try:
            return await end
        finally:
            loop.remove_reader(source)

    async def _receive_into(self, view: memoryview) -> int:
        """Write one or more received bytes to `view`; return how many."""
        most = min(len(view), self._receive_bytes)
        if self._socket is None:
            data = await self._stream.receive(most)
            view[: len(data)] = data
            return len(data)
        if not self._is_drained:
            # Without this checkpoint a fast broker would block the loop. Not
            # anyio.lowlevel.checkpoint: that module would have to be imported.
            await anyio.sleep(0)  # noqa: ASYNC115
        while True:
            if self._is_drained:
                await anyio.wait_readable(self._socket)
            try:
                count = self._socket.recv_into(view, most)
            except BlockingIOError:
                self._is_drained = True
                continue
            if not count:
                raise anyio.EndOfStream
            self._is_drained = count < min(most, _SHORT_READ)
            return count

    def send_now(self, data: memoryview) -> int:
        """Send the bytes that the kernel takes at once; return how many, 0 without a plain socket.

        Call it only while no task is in `send`. After an error of the socket it returns 0, and
        `send` raises the error.
        """
        if self._socket is None:
            return 0
        try:
            return self._socket.send(data)
        except OSError:
            return 0

    async def send(self, data: bytes | memoryview) -> None:
        """Send all bytes; if it is cancelled, some may have been sent. Raises: OSError, what the
        stream raises."""
        if self._socket is None:
            await self._stream.send(bytes(data))
            return
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)

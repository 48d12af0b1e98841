"""The byte stream of a TCP socket, without a transport of asyncio. In asyncio's loop, except on
Windows, `Channel` reads and writes the socket itself; TLS always reads and writes the stream."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import anyio
from anyio.abc import ByteStream, SocketAttribute

__all__ = ["PlainStream"]


class PlainStream(ByteStream):
    """The stream of a connected, non-blocking socket, which it owns."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        """For code that reads or writes the socket itself instead of using this stream."""
        _open_streams.add(self)
        self._receiving = anyio.ResourceGuard("reading from")
        self._sending = anyio.ResourceGuard("writing to")

    async def receive(self, max_bytes: int = 65536) -> bytes:
        # A checkpoint, as in anyio's own streams: the loop below may not wait. The function
        # `anyio.lowlevel.checkpoint` is not used, as its module would have to be imported.
        await anyio.sleep(0)  # noqa: ASYNC115
        with self._receiving:
            while True:
                try:
                    data = self.socket.recv(max_bytes)
                except BlockingIOError:
                    await anyio.wait_readable(self.socket)
                    continue
                except OSError as error:
                    raise self._failure() from error
                if not data:
                    raise anyio.EndOfStream
                return data

    async def send(self, item: bytes) -> None:
        await anyio.sleep(0)  # noqa: ASYNC115
        with self._sending:
            left = memoryview(item)
            while left:
                try:
                    left = left[self.socket.send(left) :]
                except BlockingIOError:
                    await anyio.wait_writable(self.socket)
                except OSError as error:
                    raise self._failure() from error

    async def send_eof(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        if self.socket.fileno() >= 0:
            anyio.notify_closing(self.socket)
            self.socket.close()
        await anyio.sleep(0)  # noqa: ASYNC115

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {SocketAttribute.raw_socket: lambda: self.socket}

    def _failure(self) -> Exception:
        is_closed = self.socket.fileno() < 0
        return anyio.ClosedResourceError() if is_closed else anyio.BrokenResourceError()


_open_streams: WeakSet[PlainStream] = WeakSet()


def _on_fork() -> None:
    """Release the parent's connections in a forked process, which could read the parent's responses
    and would keep the connections open after the parent has ended. The descriptors are replaced,
    not closed: the copy of the loop still has them registered, and if it unregistered them, those
    of the parent would be unregistered, too."""
    descriptors = [number for stream in _open_streams if (number := stream.socket.fileno()) >= 0]
    if not descriptors:
        return
    # Closed before the null device is opened: the process may have reached its limit of open files.
    os.close(descriptors[0])
    null = os.open(os.devnull, os.O_RDWR)
    for number in descriptors:
        if number != null:
            os.dup2(null, number, inheritable=False)
    if null not in descriptors:  # usually it is `descriptors[0]`, which stays open
        os.close(null)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_on_fork)

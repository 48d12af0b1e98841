"""The byte stream of a TCP socket, without a transport of asyncio: `Channel` reads and writes the
socket itself, and TLS reads and writes this stream."""

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
        """For a user that reads or writes it directly, in place of this stream."""
        _open.add(self)
        self._receiving = anyio.ResourceGuard("reading from")
        self._sending = anyio.ResourceGuard("writing to")

    async def receive(self, max_bytes: int = 65536) -> bytes:
        # Not anyio.lowlevel.checkpoint: that module would have to be imported.
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


_open: WeakSet[PlainStream] = WeakSet()


def _on_fork() -> None:
    """Let go of the parent's connections in a forked process, which could read the responses, and
    keep the broker from seeing that the parent has ended. The descriptors stay valid: the loop's
    copy still has them, and to unregister them would unregister the parent's."""
    connected = [number for stream in _open if (number := stream.socket.fileno()) >= 0]
    if not connected:
        return
    # First, and not last: the process may have as many files open as it may have.
    os.close(connected[0])
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in connected:
        if number != nothing:
            os.dup2(nothing, number, inheritable=False)
    if nothing not in connected:
        os.close(nothing)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_on_fork)

"""The server side of TLS, in a stream that sends an alert when the handshake fails, as Kafka does.

anyio's own stream sends none: a client without a required certificate would only see that the
connection ends.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
from anyio.abc import ByteStream

__all__ = ["TlsStream"]

T = TypeVar("T")

_ALERT = bytes.fromhex("15 0303 0002 02 50")
"""An internal_error alert in plaintext, as Java sends it to a client that does not speak TLS, where
OpenSSL sends nothing."""

_CLOSE_TIMEOUT = 1.0
"""Seconds that the server waits for the client to read the alert and close the connection."""


class TlsStream(ByteStream):
    """TLS over a stream, for one task at a time. Raises: ssl.SSLError; the stream's errors."""

    def __init__(self, stream: ByteStream, context: ssl.SSLContext) -> None:
        self._stream = stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def do_handshake(self) -> None:
        """Run the handshake. Must be called first, and once."""
        await self._run(self._tls.do_handshake)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._run(partial(self._tls.read, max_bytes))
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        await self._run(partial(self._tls.write, item))

    async def send_eof(self) -> None:
        raise NotImplementedError("TLS ends in both directions at once")

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _run(self, step: Callable[[], T]) -> T:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush()
                self._incoming.write(await self._stream.receive())
            except ssl.SSLError:
                await self._send_alert()
                raise
            else:
                await self._flush()
                return result

    async def _send_alert(self) -> None:
        with anyio.move_on_after(_CLOSE_TIMEOUT):
            try:
                if not self._outgoing.pending:
                    await self._stream.send(_ALERT)
                await self._flush()
                # Closing a socket with unread data may discard data that it has not sent.
                await self._stream.send_eof()
                while True:
                    await self._stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._stream.send(self._outgoing.read())

"""Record a member's requests and responses in its own process.

A proxy would see them in another order, and would miss those that never arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol
from unittest import mock

from anyio.abc import ByteStream

from kafkagroup.transport import dialing


class Tap(Protocol):
    """Receives the recorded bytes of each connection."""

    def connected(self, process: str, connection: int) -> None: ...

    def sent(self, process: str, connection: int, data: bytes) -> None: ...

    def received(self, process: str, connection: int, data: bytes) -> None: ...


class RecordedStream(ByteStream):
    """A stream that is recorded if its first request has the client id `client`."""

    def __init__(self, stream: ByteStream, tap: Tap, connection: int, client: str) -> None:
        self._stream = stream
        self._tap = tap
        self._connection = connection
        self._client = client
        self._is_recorded: bool | None = None
        """None before the first request."""

    async def send(self, item: bytes) -> None:
        if self._is_recorded is None:
            self._is_recorded = _client_of(item) == self._client
            if self._is_recorded:
                self._tap.connected(self._client, self._connection)
        if self._is_recorded:
            # Recorded before it is sent: the response may arrive before this task runs again.
            self._tap.sent(self._client, self._connection, bytes(item))
        await self._stream.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._stream.receive(max_bytes)
        if self._is_recorded:
            self._tap.received(self._client, self._connection, bytes(data))
        return data

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._stream.extra_attributes


@contextmanager
def record_connections(tap: Tap, client: str) -> Iterator[None]:
    """Record every connection that a client with this id opens meanwhile."""
    numbers = count(1)
    connect = dialing.connect

    async def connect_recorded(*args: Any) -> ByteStream:
        return RecordedStream(await connect(*args), tap, next(numbers), client)

    with mock.patch.object(dialing, "connect", connect_recorded):
        yield


def _client_of(request: bytes) -> str:
    """Return the client id of a request; before it are length, api, version and correlation id."""
    length = int.from_bytes(request[12:14], "big", signed=True)
    return request[14 : 14 + max(0, length)].decode()

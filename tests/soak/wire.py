"""Records requests and responses in the member's own process, in the order in which the member
sends and receives them: not all may arrive at the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol
from unittest import mock

import anyio
from anyio.abc import ByteStream


class Tap(Protocol):
    """Receives the recorded exchanges."""

    def connected(self, process: str, connection: int) -> None: ...

    def sent(self, process: str, connection: int, data: bytes) -> None: ...

    def received(self, process: str, connection: int, data: bytes) -> None: ...


class Tapped(ByteStream):
    """A stream that is recorded once its first request has the recorded client's name."""

    def __init__(self, stream: ByteStream, tap: Tap, connection: int, client: str) -> None:
        self._stream = stream
        self._tap = tap
        self._connection = connection
        self._client = client
        self._ours: bool | None = None

    async def send(self, item: bytes) -> None:
        if self._ours is None:
            self._ours = _client_of(item) == self._client
            if self._ours:
                self._tap.connected(self._client, self._connection)
        if self._ours:
            # Before it leaves: the answer may be here before this task runs again.
            self._tap.sent(self._client, self._connection, bytes(item))
        await self._stream.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._stream.receive(max_bytes)
        if self._ours:
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
def tapped(tap: Tap, client: str) -> Iterator[None]:
    """Record every connection that the client of that name opens meanwhile."""
    numbers = count(1)
    connect = anyio.connect_tcp

    async def connect_tapped(*args: Any, **options: Any) -> ByteStream:
        return Tapped(await connect(*args, **options), tap, next(numbers), client)

    with mock.patch.object(anyio, "connect_tcp", connect_tapped):
        yield


def _client_of(request: bytes) -> str:
    """The client id in the header of a request, behind length, api, version and correlation id."""
    length = int.from_bytes(request[12:14], "big", signed=True)
    return request[14 : 14 + max(0, length)].decode()

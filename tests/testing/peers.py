"""Clients of an embedded broker that send single requests, over TCP or in memory."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio.testing
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream
from memory_network import MemoryStream
from verification.lockstep.wire import encode_request

from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire.codec import decode
from kafkagroup.wire.messages.metadata import ApiVersionsRequest
from kafkagroup.wire.schema import Request

LOOPS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
VIRTUAL = pytest.mark.parametrize(
    "anyio_backend",
    [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})],
    ids=["trio-virtual"],
)


def frame(
    request: Request[Any], version: int, correlation_id: int, client_id: str = "test"
) -> bytes:
    body = encode_request(request, version, client_id, correlation_id)
    return struct.pack(">i", len(body)) + body


class Peer:
    """A client of one connection: responses arrive in the order of the requests."""

    def __init__(self, stream: ByteStream, client_id: str = "test") -> None:
        self.stream = stream
        self.client_id = client_id
        self.reader = BufferedByteReceiveStream(stream)
        self.sent: list[tuple[Request[Any], int]] = []
        self.answered = 0

    async def send(self, request: Request[Any], version: int) -> None:
        self.sent.append((request, version))
        await self.stream.send(frame(request, version, len(self.sent), self.client_id))

    async def receive(self) -> Any:
        """Return the response to the oldest unanswered request; check its correlation id."""
        response, _ = await self.receive_with_version()
        return response

    async def receive_with_version(self) -> tuple[Any, int]:
        request, version = self.sent[self.answered]
        self.answered += 1
        (size,) = struct.unpack(">i", await self.reader.receive_exactly(4))
        data = await self.reader.receive_exactly(size)
        assert struct.unpack_from(">i", data) == (self.answered,)
        tags = version in request.flexible and request.api_key != ApiVersionsRequest.api_key
        return decode(request.response, version, data, 4 + tags), version

    async def receives_nothing(self, seconds: float) -> bool:
        """Return whether no byte arrives for that time."""
        with anyio.move_on_after(seconds):
            self.reader.feed_data(await self.reader.receive(1))
            return False
        return True

    async def ask(self, request: Request[Any], version: int) -> Any:
        await self.send(request, version)
        return await self.receive()


@asynccontextmanager
async def in_memory(kafka: EmbeddedKafka, count: int = 1) -> AsyncIterator[list[Peer]]:
    """Connections to node 1."""
    async with kafka, anyio.create_task_group() as group:
        peers = []
        for _ in range(count):
            there, here = MemoryStream.pair()
            peers.append(Peer(here))
            group.start_soon(kafka.handle_stream, there, 1)
        yield peers
        for peer in peers:
            await peer.stream.aclose()


@asynccontextmanager
async def connected(kafka: EmbeddedKafka, node_id: int = 1) -> AsyncIterator[Peer]:
    host, _, port = kafka.address(node_id).partition(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        yield Peer(stream)

"""What a stream receives lands in the room it is given, by way of a socket of our own or not."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import trustme
from anyio.abc import ByteStream, SocketStream
from anyio.streams.tls import TLSStream

from kafkagroup.net.incoming import Incoming

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Real time, as the sockets are real."""
    name: str = request.param
    return name


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[SocketStream, ByteStream]]:
    """Both ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = await anyio.connect_tcp(*listener.getsockname())
        peer = await SocketStream.from_socket(listener.accept()[0])
    async with stream, peer:
        yield stream, peer


async def read(incoming: Incoming, size: int) -> bytes:
    data = bytearray(size)
    filled = 0
    with anyio.fail_after(5):
        while filled < size:
            with memoryview(data) as view, view[filled:] as room:
                filled += await incoming.into(room)
    return bytes(data)


async def test_what_a_socket_has_is_read_without_its_stream() -> None:
    async with connected() as (stream, peer):
        incoming = Incoming(stream, 1000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.send, b"0123456789" * 100_000)
            assert await read(incoming, 1_000_000) == b"0123456789" * 100_000
        incoming.close()


async def test_no_more_is_read_than_is_asked_for_or_there_is_room_for() -> None:
    async with connected() as (stream, peer):
        await peer.send(b"abcdefgh")
        incoming = Incoming(stream, 3)
        assert await incoming.into(memoryview(bytearray(100))) == 3
        assert await incoming.into(memoryview(bytearray(2))) == 2
        assert await read(incoming, 3) == b"fgh"
        incoming.close()


async def test_the_end_comes_after_all_that_was_sent() -> None:
    async with connected() as (stream, peer):
        incoming = Incoming(stream, 1000)
        await peer.send(b"all")
        await peer.aclose()
        assert await read(incoming, 3) == b"all"
        with pytest.raises(anyio.EndOfStream):
            await incoming.into(memoryview(bytearray(1)))
        incoming.close()


async def test_a_socket_that_always_has_more_leaves_the_loop_to_others() -> None:
    async with connected() as (stream, peer):
        await peer.send(bytes(10_000))
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        incoming = Incoming(stream, 10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            await read(incoming, 10_000)
            tasks.cancel_scope.cancel()
        incoming.close()
        assert turns >= 500


async def test_cancelled_while_it_waits_it_has_taken_nothing() -> None:
    async with connected() as (stream, peer):
        incoming = Incoming(stream, 1000)
        with anyio.move_on_after(0.05) as scope:
            await incoming.into(memoryview(bytearray(1)))
        assert scope.cancelled_caught
        await peer.send(b"x")
        assert await read(incoming, 1) == b"x"
        incoming.close()


async def test_what_comes_through_tls_is_received_from_the_stream() -> None:
    authority = trustme.CA()
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("broker").configure_cert(theirs)
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    async with connected() as (plain, peer):

        async def serve() -> None:
            stream = await TLSStream.wrap(peer, server_side=True, ssl_context=theirs)
            await stream.send(b"secret")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            stream = await TLSStream.wrap(plain, hostname="broker", ssl_context=ours)
        incoming = Incoming(stream, 4)
        assert await incoming.into(memoryview(bytearray(100))) == 4
        assert await read(incoming, 2) == b"et"
        incoming.close()

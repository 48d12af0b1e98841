"""A channel receives into the given buffers and sends in order, with or without a socket of its
own."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import trustme
from anyio.abc import ByteStream, SocketStream
from anyio.streams.tls import TLSStream

from kafkagroup.transport import dialing
from kafkagroup.transport.channel import Channel

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Return a backend with real time, as the sockets are real."""
    name: str = request.param
    return name


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    """Return both ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = await dialing.connect(socket.AF_INET, listener.getsockname(), None)
        peer = await SocketStream.from_socket(listener.accept()[0])
    async with stream, peer:
        yield stream, peer


async def into(channel: Channel, room: memoryview) -> int:
    """Receive once, and return the number of bytes."""
    return await channel.receive(lambda: room[:], lambda count: count)


async def read(channel: Channel, size: int) -> bytes:
    data = bytearray(size)
    filled = 0
    with anyio.fail_after(5):
        while filled < size:
            with memoryview(data) as view, view[filled:] as room:
                filled += await into(channel, room)
    return bytes(data)


async def test_the_channel_reads_directly_from_the_socket() -> None:
    async with connected() as (stream, peer):
        channel = Channel(stream, 1000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.send, b"0123456789" * 100_000)
            assert await read(channel, 1_000_000) == b"0123456789" * 100_000


async def test_no_more_is_read_than_requested_or_than_the_buffer_holds() -> None:
    async with connected() as (stream, peer):
        await peer.send(b"abcdefgh")
        channel = Channel(stream, 3)
        assert await into(channel, memoryview(bytearray(100))) == 3
        assert await into(channel, memoryview(bytearray(2))) == 2
        assert await read(channel, 3) == b"fgh"


async def test_end_of_stream_is_reported_after_all_data() -> None:
    async with connected() as (stream, peer):
        channel = Channel(stream, 1000)
        await peer.send(b"all")
        await peer.aclose()
        assert await read(channel, 3) == b"all"
        with pytest.raises(anyio.EndOfStream):
            await into(channel, memoryview(bytearray(1)))


async def test_other_tasks_run_while_a_socket_always_has_data() -> None:
    async with connected() as (stream, peer):
        await peer.send(bytes(10_000))
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        channel = Channel(stream, 10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            await read(channel, 10_000)
            tasks.cancel_scope.cancel()
        assert turns >= 500


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_on_asyncio_the_loop_reads_without_a_task() -> None:
    """A task that waits for the socket runs a turn later."""
    async with connected() as (stream, peer):
        channel = Channel(stream, 1000)
        data, came = bytearray(100), 0
        readers: list[object] = []

        def take(count: int) -> str | None:
            nonlocal came
            came += count
            readers.append(asyncio.current_task())
            return "all" if came == 3 else None

        async def send() -> None:
            for n in range(3):
                await peer.send(b"x")
                while came == n:
                    await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            with anyio.fail_after(5):
                assert await channel.receive(lambda: memoryview(data), take) == "all"
        assert readers == [None] * 3


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_full_buffer_is_replaced_by_the_next_without_yielding() -> None:
    """A response longer than the first buffer took one more turn of the loop for each growth."""
    async with connected() as (stream, peer):
        await peer.send(bytes(5_000))
        channel = Channel(stream, 100_000)
        sizes = iter((512, 4_096, 8_192))
        turn, turns = 0, []

        async def count_turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await anyio.lowlevel.checkpoint()

        def take(count: int) -> str | None:
            turns.append((count, turn))
            return "all" if sum(n for n, _ in turns) == 5_000 else None

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_turns)
            await channel.receive(lambda: memoryview(bytearray(next(sizes))), take)
            tasks.cancel_scope.cancel()
        assert turns == [(n, turns[0][1]) for n in (512, 4_096, 392)]


async def test_an_error_of_the_receiving_callback_is_raised_by_receive() -> None:
    async with connected() as (stream, peer):
        await peer.send(b"x")
        channel = Channel(stream, 1000)

        def take(count: int) -> None:
            raise ValueError(f"{count} bytes")

        with anyio.fail_after(5), pytest.raises(ValueError, match="1 bytes"):
            await channel.receive(lambda: memoryview(bytearray(10)), take)


async def test_a_cancelled_receive_consumes_no_data() -> None:
    async with connected() as (stream, peer):
        channel = Channel(stream, 1000)
        with anyio.move_on_after(0.05) as scope:
            await into(channel, memoryview(bytearray(1)))
        assert scope.cancelled_caught
        await peer.send(b"x")
        assert await read(channel, 1) == b"x"


async def test_tls_data_is_received_through_the_stream() -> None:
    authority = trustme.CA()
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("broker").configure_cert(theirs)
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    secret: list[TLSStream] = []
    async with connected() as (plain, peer):

        async def serve() -> None:
            stream = await TLSStream.wrap(peer, server_side=True, ssl_context=theirs)
            await stream.send(b"secret")
            secret.append(stream)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            stream = await TLSStream.wrap(plain, hostname="broker", ssl_context=ours)
        channel = Channel(stream, 4)
        assert await into(channel, memoryview(bytearray(100))) == 4
        assert await read(channel, 2) == b"et"
        assert channel.send_now(b"a request") == 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.send, b"a request")
            assert await secret[0].receive() == b"a request"


async def test_data_that_fits_the_socket_buffer_is_sent_at_once() -> None:
    async with connected() as (stream, peer):
        channel = Channel(stream, 1000)
        assert channel.send_now(b"a request") == 9
        with anyio.fail_after(5):
            assert await peer.receive() == b"a request"


async def test_the_rest_is_sent_as_the_peer_reads() -> None:
    async with connected() as (stream, peer):
        channel = Channel(stream, 1000)
        data = b"0123456789" * 2_000_000
        sent = channel.send_now(data)
        assert 0 < sent < len(data)
        got = bytearray()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(channel.send, data[sent:])
                while len(got) < len(data):
                    got += await peer.receive()
        assert got == data


async def test_a_socket_error_is_raised_by_send_and_not_by_send_now() -> None:
    async with connected() as (stream, _):
        channel = Channel(stream, 1000)
        await stream.aclose()
        assert channel.send_now(b"a request") == 0
        with pytest.raises(OSError, match="descriptor"):
            await channel.send(b"a request")

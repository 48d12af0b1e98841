"""The stream of a plain socket: what TLS, and a closing connection, rely on. Sockets are real."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream

from kafkagroup.transport import dialing, plain_stream
from kafkagroup.transport.plain_stream import PlainStream

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Return a backend with real time, as the sockets are real."""
    name: str = request.param
    return name


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ByteStream, socket.socket]]:
    """Provide a stream, and the other end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = await dialing.connect(socket.AF_INET, listener.getsockname(), None)
        with listener.accept()[0] as peer:
            async with stream:
                yield stream, peer


async def receive(stream: ByteStream, found: list[Any]) -> None:
    try:
        found.append(await stream.receive())
    except Exception as error:
        found.append(type(error))


async def test_bytes_arrive_on_both_sides_up_to_the_end() -> None:
    async with connected() as (stream, peer):
        peer.sendall(b"from the peer")
        assert await stream.receive(4) == b"from"
        assert await stream.receive() == b" the peer"
        await stream.send(b"to the peer")
        await stream.send_eof()
        assert (peer.recv(100), peer.recv(100)) == (b"to the peer", b"")
        peer.shutdown(socket.SHUT_WR)
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()


async def test_more_than_the_system_buffers_is_sent_as_the_peer_reads() -> None:
    data, got = b"0123456789" * 1_000_000, bytearray()
    async with connected() as (stream, peer):
        peer.setblocking(False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.send, data)
            with anyio.fail_after(20):
                while len(got) < len(data):
                    await anyio.wait_readable(peer)
                    got += peer.recv(2**20)
    assert got == data


async def test_closing_wakes_the_reader() -> None:
    found: list[Any] = []
    async with connected() as (stream, _), anyio.create_task_group() as tasks:
        tasks.start_soon(receive, stream, found)
        await anyio.wait_all_tasks_blocked()
        await stream.aclose()
    assert found == [anyio.ClosedResourceError]
    with pytest.raises(anyio.ClosedResourceError):
        await stream.send(b"more")


async def test_two_readers_would_share_the_bytes() -> None:
    found: list[Any] = []
    async with connected() as (stream, peer), anyio.create_task_group() as tasks:
        tasks.start_soon(receive, stream, found)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await stream.receive()
        peer.sendall(b"all")
    assert found == [b"all"]


async def test_a_connection_that_the_peer_resets_is_broken() -> None:
    async with connected() as (stream, peer):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()


async def test_a_refused_connection_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    class Socket(socket.socket):
        def __init__(self, *what: Any) -> None:
            super().__init__(*what)
            made.append(self)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    monkeypatch.setattr(socket, "socket", Socket)
    with pytest.raises(ConnectionRefusedError):
        await dialing.connect(socket.AF_INET, address, None)
    assert [one.fileno() for one in made] == [-1]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
async def test_a_forked_process_lets_go_of_the_connection() -> None:
    """It could read the responses, and keep a broker from seeing that the parent has ended."""
    async with connected() as (stream, peer):
        peer.sendall(b"a response")
        plain_stream._on_fork()  # here, where no other process has the connection
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()
        with pytest.raises(anyio.BrokenResourceError):
            await stream.send(b"a request")
        peer.settimeout(5)
        with suppress(ConnectionResetError):  # as the response is unread
            assert peer.recv(100) == b""


async def test_the_stream_names_its_socket() -> None:
    async with connected() as (stream, _):
        assert isinstance(stream, PlainStream)
        attribute = anyio.abc.SocketAttribute.raw_socket
        assert stream.extra(attribute) is stream.socket


FORK = """
import os, resource, socket, sys
from kafkagroup.transport.plain_stream import PlainStream

pairs = [socket.socketpair() for _ in range(2)]
streams = [PlainStream(ours) for ours, _ in pairs]
if sys.argv[1] == "full":
    largest = max(theirs.fileno() for _, theirs in pairs)
    resource.setrlimit(resource.RLIMIT_NOFILE, (largest + 1, largest + 1))
for _, theirs in pairs:
    theirs.sendall(b"for the parent")
if os.fork() == 0:
    print([os.read(stream.socket.fileno(), 100) for stream in streams], flush=True)
    os._exit(0)
os.wait()
print([stream.socket.recv(100) for stream in streams])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.parametrize("limit", ["full", "roomy"])
def test_a_forked_process_lets_go_of_the_parents_connections(limit: str) -> None:
    """Where the process had as many files open as it may have, the child kept them all."""
    ran = subprocess.run(
        [sys.executable, "-c", FORK, limit], capture_output=True, text=True, check=True, timeout=30
    )
    assert ran.stdout.splitlines() == ["[b'', b'']", "[b'for the parent', b'for the parent']"]
    assert ran.stderr == ""

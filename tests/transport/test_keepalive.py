"""The values of TCP keepalive, on real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from kafkagroup.broker import Broker
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.transport import dialing
from kafkagroup.transport.keepalive import keep_alive
from kafkagroup.transport.options import parse_servers

pytestmark = pytest.mark.anyio

VALUES = {
    "TCP_KEEPIDLE": 60,
    "TCP_KEEPALIVE": 60,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 90_000,
}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Return a backend with real time, as the sockets are real."""
    name: str = request.param
    return name


def values_of(connected: socket.socket) -> dict[str, int]:
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return {
        name: connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
        for name in VALUES
        if hasattr(socket, name)
    }


@asynccontextmanager
async def connected() -> AsyncIterator[SocketStream]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            yield stream


async def test_each_connection_to_a_broker_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """SO_KEEPALIVE alone begins after two hours: a load balancer has forgotten the connection by
    then."""
    streams: list[ByteStream] = []
    connect = dialing.connect

    async def note(*args: Any) -> ByteStream:
        streams.append(await connect(*args))
        return streams[-1]

    monkeypatch.setattr(dialing, "connect", note)
    with EmbeddedKafka({"t": 1}) as kafka:
        ((host, port),) = parse_servers(kafka.bootstrap_servers)
        async with Broker.open(host, port) as broker:
            await broker.connect("fetch")
            found = [values_of(stream.extra(SocketAttribute.raw_socket)) for stream in streams]
    assert found == [{n: v for n, v in VALUES.items() if hasattr(socket, n)}] * 2


async def test_a_system_without_an_option_has_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS and Windows have no TCP_USER_TIMEOUT; a system may refuse what it has a name for."""
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT", raising=False)
    monkeypatch.setattr(socket, "TCP_KEEPCNT", 9999, raising=False)
    async with connected() as stream:
        keep_alive(stream)
        raw = stream.extra(SocketAttribute.raw_socket)
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 10

"""A session over kazoo, with a server that answers as the test says."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from kafkagroup.member.zookeeper_nodes import Paths
from kafkagroup.member.zookeeper_vocabulary import SessionEstablished, ZooKeeperEvent
from kafkagroup.transport.threads import Post
from kafkagroup.zookeeper.session import Access, Session

pytestmark = pytest.mark.anyio

PATHS = Paths("/kafkagroup", "g")


@contextmanager
def granting(timeout_ms: int) -> Iterator[str]:
    """Run a server that begins each session with this timeout and answers nothing else; yield its
    address."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                (size,) = struct.unpack(">i", stream.read(4))
                stream.read(size)
                response = struct.pack(">iiqi16s?", 0, timeout_ms, 77, 16, bytes(16), False)
                connection.sendall(struct.pack(">i", len(response)) + response)
                stream.read(1)  # of the request to close the session

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        yield "{}:{}".format(*listener.getsockname())
        listener.shutdown(socket.SHUT_RDWR)
        server.join(10)


def session_with(
    hosts: str,
    on_event: Callable[[ZooKeeperEvent], object],
    post: Post = lambda call: call(),
) -> Session:
    return Session(
        1,
        hosts,
        10.0,
        PATHS,
        "me",
        client="member me of group g",
        access=Access(),
        exclusive_generations=False,
        post=post,
        on_event=on_event,
    )


async def test_a_session_begins_with_the_timeout_that_the_server_grants() -> None:
    """The lease is computed from it: a lease of half of 10 s would outlive a session of 4 s."""
    events: list[ZooKeeperEvent] = []
    calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
    with granting(4_000) as address:
        session = session_with(address, events.append, calls.put)
        session.open()
        try:
            while not events:
                calls.get(timeout=30)()
        finally:
            session.close()
    (begun,) = events
    assert isinstance(begun, SessionEstablished)
    assert begun.timeout == 4.0

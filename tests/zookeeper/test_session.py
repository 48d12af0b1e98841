"""A session over kazoo, with a server that responds as the test says."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from kazoo.exceptions import NodeExistsError, NoNodeError

from kafkagroup.errors import ConnectionLostError
from kafkagroup.member.zookeeper_nodes import Paths
from kafkagroup.member.zookeeper_vocabulary import (
    Claim,
    Claimed,
    Register,
    Registered,
    Release,
    Released,
    RequestFailed,
    SessionEstablished,
    ZooKeeperEvent,
)
from kafkagroup.transport.threads import Post
from kafkagroup.zookeeper.session import Access, Session

pytestmark = pytest.mark.anyio

OTHERS = "/consumers/g/ids"
PATHS = Paths("/kafkagroup", "g", foreign=(OTHERS,))


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


class Pending:
    """The result of a request to kazoo, which is known at once."""

    def __init__(self, result: object) -> None:
        self._result = result

    def rawlink(self, done: Callable[[object], object]) -> None:
        done(self)

    def get(self, block: bool) -> object:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class FakeTransaction:
    """A transaction of checks, creations and deletions."""

    def __init__(self, client: FakeKazoo) -> None:
        self._client = client
        self._operations: list[tuple[str, str]] = []

    def check(self, path: str, version: int) -> None:
        self._operations.append(("check", path))

    def create(self, path: str, data: bytes, ephemeral: bool) -> None:
        self._operations.append(("create", path))

    def delete(self, path: str) -> None:
        self._operations.append(("delete", path))

    def commit_async(self) -> Pending:
        self._client.before_commit()
        nodes = dict(self._client.nodes)
        for kind, path in self._operations:
            if kind == "create" and path in nodes:
                return Pending([NodeExistsError()])
            if kind != "create" and path not in nodes:
                return Pending([NoNodeError()])
            if kind == "create":
                nodes[path] = b""
            elif kind == "delete":
                del nodes[path]
        self._client.nodes = nodes
        return Pending([True for _ in self._operations])


class FakeKazoo:
    """kazoo's client, whose nodes all belong to its session."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.listed: dict[str, list[str]] = {}
        """Parent -> its children, as of before some nodes were deleted."""
        self.before_commit: Callable[[], object] = int
        """Called before each transaction."""

    def ensure_path_async(self, path: str) -> Pending:
        self.nodes[path] = b""
        return Pending(path)

    def create_async(self, path: str, data: bytes, *, ephemeral: bool) -> Pending:
        self.nodes[path] = data
        return Pending(path)

    def get_children_async(self, parent: str) -> Pending:
        return Pending(self.listed[parent] if parent in self.listed else NoNodeError())

    def get_async(self, path: str) -> Pending:
        return Pending((self.nodes[path], None) if path in self.nodes else NoNodeError())

    def sync_async(self, path: str) -> Pending:
        return Pending(path)

    def exists_async(self, path: str) -> Pending:
        return Pending(SimpleNamespace(ephemeralOwner=77) if path in self.nodes else None)

    def transaction(self) -> FakeTransaction:
        return FakeTransaction(self)


def session_over(client: FakeKazoo, on_event: Callable[[ZooKeeperEvent], object]) -> Session:
    """Return a session that has begun."""
    session = session_with("127.0.0.1:2181", on_event)
    session._client = client
    session._session_id = 77
    return session


async def test_a_foreign_member_that_leaves_does_not_hide_the_others() -> None:
    client = FakeKazoo()
    session = session_over(client, print)
    client.listed = {OTHERS: ["a", "b", "c", "d", "e", "f"]}
    client.nodes = dict.fromkeys((f"{OTHERS}/{name}" for name in "def"), b"")
    assert await session.foreign_members() == f"{OTHERS}/d, {OTHERS}/e, {OTHERS}/f"
    client.nodes = {f"{OTHERS}/d": b"worker-1"}
    assert await session.foreign_members() == f"{OTHERS}/d of worker-1"
    client.nodes = {}
    assert await session.foreign_members() == ""


async def test_a_release_fails_while_the_claim_exists() -> None:
    """An operator has deleted the member's node: the transaction is not executed."""
    events: list[ZooKeeperEvent] = []
    client = FakeKazoo()
    session = session_over(client, events.append)
    units = frozenset(("t:0",))
    await session.execute(Register(token=1, member_id="me-1", data=b"", replaces=None))
    await session.execute(Claim(token=2, units=units))
    del client.nodes[PATHS.member("me-1")]
    await session.execute(Release(token=3, units=units))
    assert PATHS.claim("t:0") in client.nodes
    await session.execute(Register(token=4, member_id="me-2", data=b"", replaces="me-1"))
    await session.execute(Release(token=5, units=units))
    assert PATHS.claim("t:0") not in client.nodes
    kinds = [type(event) for event in events]
    assert kinds == [Registered, Claimed, RequestFailed, Registered, Released]
    assert isinstance(events[2], RequestFailed)
    assert isinstance(events[2].error, ConnectionLostError)  # the member retries


async def test_a_claim_that_is_deleted_meanwhile_is_released() -> None:
    events: list[ZooKeeperEvent] = []
    client = FakeKazoo()
    session = session_over(client, events.append)
    units = frozenset(("t:0",))
    await session.execute(Register(token=1, member_id="me-1", data=b"", replaces=None))
    await session.execute(Claim(token=2, units=units))
    client.before_commit = lambda: client.nodes.pop(PATHS.claim("t:0"))
    await session.execute(Release(token=3, units=units))
    assert type(events[-1]) is Released

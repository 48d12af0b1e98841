"""The I/O: listeners, connections, and the task that waits for the next deadline.

The requests of a connection are answered in order, each before the next is read. So a pending
JoinGroup or Fetch delays the requests behind it, and a disconnect is noticed only after the pending
response, as in Kafka. Everything runs in one task group on one event loop, asyncio's or trio's, on
its clock.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from functools import partial
from struct import Struct
from typing import Any

import anyio
import attrs
from anyio.abc import ByteStream, SocketAttribute, TaskStatus

from kafkagroup._text import escaped
from kafkagroup.errors import DecodeError, UnsupportedVersionError
from kafkagroup.testing.embedded.broker import Incoming, handle, read_request, write_response
from kafkagroup.testing.embedded.cluster import Cluster, Node
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.testing.embedded.faults import (
    Change,
    Close,
    Delay,
    Faults,
    Late,
    Swallow,
    Throttle,
)
from kafkagroup.testing.embedded.refusals import refuse
from kafkagroup.testing.embedded.sasl import MAX_REQUEST_BYTES, Accounts, SaslAuthenticator
from kafkagroup.testing.embedded.tls import TlsStream
from kafkagroup.testing.embedded.writes import has_errors
from kafkagroup.wire.messages.produce import ProduceRequest
from kafkagroup.wire.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from kafkagroup.wire.schema import Request

__all__ = ["Seen", "Server"]

_log = logging.getLogger(__name__)

_LENGTH = Struct(">i")

_ENDS_CONNECTION = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    DecodeError,
    UnsupportedVersionError,
    ssl.SSLError,
)
"""Errors that end a connection: a disconnect, or data for which Kafka closes the connection."""


@attrs.frozen
class Seen:
    """A received request."""

    node_id: int
    client_id: str
    api: type[Request[Any]]
    version: int
    connection: int = attrs.field(default=0, eq=False)
    """The number of the connection: 1 for the first one to any node. Not compared by `==`."""


@attrs.define(eq=False)
class _Connection:
    """A connection that a node has accepted."""

    stream: ByteStream
    node_id: int
    number: int
    """As `Seen.connection`."""
    host: str
    """The client's address, as Kafka writes it: "/127.0.0.1"."""
    authenticator: SaslAuthenticator | None
    """None if clients need not authenticate."""
    client_id: str = ""
    """Of the last request; "" before the first one."""


class _Reader:
    """Buffers received bytes. anyio's buffered stream would receive twice per frame: the length,
    then the rest."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def receive_exactly(self, size: int) -> bytes:
        """Return exactly `size` bytes. Raises: what the stream raises at its end."""
        while len(self._buffer) < size:
            self._buffer += await self._stream.receive()
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken


class Server:
    """The sockets and connections of all nodes."""

    def __init__(
        self,
        cluster: Cluster,
        faults: Faults,
        host: str,
        tls: ssl.SSLContext | None,
        accounts: Accounts | None,
    ) -> None:
        self._cluster = cluster
        self._faults = faults
        self._host = host
        self._tls = tls
        self._accounts = accounts
        self._connection_count = 0
        self._scopes: dict[int, dict[anyio.CancelScope, None]] = {n: {} for n in cluster.nodes}
        """Node -> the scopes of its listener and its connections, which `kill` cancels. The inner
        dictionary is an ordered set."""
        self._restarted: dict[int, anyio.Event] = {}
        """Node -> set by `restart`. Here and in `_stopped` are only nodes that have had a
        listener."""
        self._stopped: dict[int, anyio.Event] = {}
        """Node -> set when its listener is closed."""
        self._listening: dict[int, anyio.Event] = {}
        """Node that was killed -> set when it listens again."""
        self.seen: deque[Seen] = deque(maxlen=10_000)
        """The last 10,000 requests, oldest first."""

    async def run_clock(self) -> None:
        """Run each timer when its deadline passes, until cancelled."""
        timers = self._cluster.timers
        while True:
            earlier = anyio.Event()
            timers.on_earlier = earlier.set
            timers.run(anyio.current_time())
            deadline = timers.next()
            with anyio.CancelScope(deadline=float("inf") if deadline is None else deadline):
                await earlier.wait()

    async def run_node(
        self, node: Node, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen as this node, after each `restart` again, until cancelled."""
        is_first = True
        while True:
            listener = await anyio.create_tcp_listener(local_host=self._host, local_port=node.port)
            node.port = listener.extra(SocketAttribute.local_port)
            self._restarted[node.node_id] = anyio.Event()
            self._stopped[node.node_id] = anyio.Event()
            with anyio.CancelScope() as scope:
                self._scopes[node.node_id][scope] = None
                async with listener:
                    if is_first:
                        task_status.started()
                    else:
                        self._listening[node.node_id].set()
                    is_first = False
                    await listener.serve(partial(self.handle_stream, node_id=node.node_id))
            self._stopped[node.node_id].set()
            await self._restarted[node.node_id].wait()

    def kill(self, node_id: int) -> None:
        """Kill the node: cut its connections and close its listener."""
        self._cluster.kill(node_id, anyio.current_time())
        self._listening[node_id] = anyio.Event()
        scopes, self._scopes[node_id] = self._scopes[node_id], {}
        for scope in scopes:
            scope.cancel()

    def restart(self, node_id: int) -> None:
        """Restart a killed node: it listens again, on the same port."""
        self._cluster.restart(node_id, anyio.current_time())
        if node_id in self._restarted:
            self._restarted[node_id].set()

    async def wait_down(self, node_id: int) -> None:
        """Wait until the listener of a killed node is closed."""
        if node_id in self._stopped:
            await self._stopped[node_id].wait()

    async def wait_up(self, node_id: int) -> None:
        """Wait until a restarted node listens."""
        if node_id in self._restarted:
            await self._listening[node_id].wait()

    async def handle_stream(self, stream: ByteStream, node_id: int) -> None:
        """Serve a connection as node `node_id`, until either side ends it."""
        scopes = self._scopes[node_id]  # `kill` replaces the dictionary
        connection: _Connection | None = None
        with anyio.CancelScope() as scope:
            scopes[scope] = None
            try:
                if self._cluster.nodes[node_id].is_alive:
                    connection = await self._accept(stream, node_id)
                    await self._serve_requests(connection)
            except _ENDS_CONNECTION as error:
                client = escaped(connection.client_id) if connection else ""
                _log.debug("node %d closes a connection of client %r: %r", node_id, client, error)
            finally:
                scopes.pop(scope, None)
                await anyio.aclose_forcefully(stream)

    async def _accept(self, stream: ByteStream, node_id: int) -> _Connection:
        self._connection_count += 1
        number = self._connection_count
        address = stream.extra(SocketAttribute.remote_address, ("127.0.0.1", 0))
        if self._tls is not None:
            tls_stream = TlsStream(stream, self._tls)
            await tls_stream.do_handshake()
            stream = tls_stream
        authenticator = None if self._accounts is None else SaslAuthenticator(self._accounts)
        return _Connection(stream, node_id, number, f"/{address[0]}", authenticator)

    async def _serve_requests(self, connection: _Connection) -> None:
        reader = _Reader(connection.stream)
        limit = self._cluster.settings.max_request_bytes
        while True:
            (size,) = _LENGTH.unpack(await reader.receive_exactly(_LENGTH.size))
            is_authenticated = (
                connection.authenticator is None or connection.authenticator.is_authenticated
            )
            if not 0 <= size <= (limit if is_authenticated else MAX_REQUEST_BYTES):
                return
            incoming = read_request(await reader.receive_exactly(size))
            # A connection task of a killed node may run once more before its cancellation arrives.
            if not self._cluster.nodes[connection.node_id].is_alive or not await self._answer(
                connection, incoming
            ):
                return

    async def _answer(self, connection: _Connection, incoming: Incoming) -> bool:
        """Answer one request. False: close the connection."""
        request, connection.client_id = incoming.request, incoming.client_id
        self.seen.append(
            Seen(
                connection.node_id,
                incoming.client_id,
                type(request),
                incoming.version,
                connection.number,
            )
        )
        action = self._faults.action(connection.node_id, request)
        if action == Close(before=True):
            return False
        if isinstance(action, Late):
            self._execute_later(connection, incoming, anyio.current_time() + action.seconds)
            return False
        must_close = False
        if isinstance(action, int):  # an error code
            response = refuse(request, action, incoming.version)
            # Kafka closes the connection after a failed authentication.
            must_close = isinstance(request, SaslHandshakeRequest | SaslAuthenticateRequest)
        else:
            verdict = None
            if connection.authenticator is not None:
                verdict = connection.authenticator.admit(incoming, anyio.current_time())
            if verdict is None:
                response = await self._execute(connection, incoming)
            else:
                response, must_close = verdict.response, verdict.must_close
        match action:
            case Change():
                response = action.change(response)
            case Close():
                return False
            case Delay():
                await anyio.sleep(action.seconds)
            case Swallow():
                while True:
                    await connection.stream.receive()  # raises when the client disconnects
            case Throttle() if hasattr(response, "throttle_time_ms"):
                response = evolve(response, throttle_time_ms=round(action.seconds * 1000))
        # There is no response if the authenticator only closes the connection, or if `handle`
        # replies with None, as it may where simulated runs replace it by another function.
        if response is None:
            return not must_close
        if isinstance(request, ProduceRequest) and request.acks == 0:
            must_close = must_close or has_errors(response)
        else:
            await connection.stream.send(write_response(incoming, response))
        if isinstance(action, Throttle):  # after the response, as brokers do since KIP-219
            await anyio.sleep(action.seconds)
        return not must_close

    def _execute_later(self, connection: _Connection, incoming: Incoming, at: float) -> None:
        """Execute a request at the loop's time `at`, and drop the response."""

        def execute(now: float) -> None:
            if self._cluster.nodes[connection.node_id].is_alive:
                ignore: list[Any] = []
                handle(
                    self._cluster, connection.node_id, incoming, now, connection.host, ignore.append
                )

        self._cluster.timers.schedule(object(), at, execute)

    async def _execute(self, connection: _Connection, incoming: Incoming) -> Any:
        """Execute a request, and return the response once it is no longer pending."""
        results: list[Any] = []
        pending: anyio.Event | None = None

        def reply(value: Any) -> None:
            results.append(value)
            if pending is not None:
                pending.set()

        now = anyio.current_time()
        handle(self._cluster, connection.node_id, incoming, now, connection.host, reply)
        if not results:
            pending = anyio.Event()
            await pending.wait()
        return results[0]

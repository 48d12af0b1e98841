"""A scripted broker: a thread for each connection, with blocking sockets.

It shares nothing with the client's I/O. It encodes correct responses with `wire`, and writes
hostile ones byte by byte.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kafkagroup.testing.embedded.broker import Incoming, write_response
from kafkagroup.wire.codec import decode_prefix
from kafkagroup.wire.messages import (
    consumer_heartbeat,
    fetch,
    group,
    metadata,
    offsets,
    produce,
    sasl,
)
from kafkagroup.wire.schema import Request

__all__ = ["SPOKEN", "Conversation", "Left", "Server", "Wire", "listening"]

_TIMEOUT = 30.0
"""Seconds that a client may send nothing: longer than any of its deadlines."""

SPOKEN: tuple[type[Request[Any]], ...] = (
    metadata.ApiVersionsRequest,
    metadata.MetadataRequest,
    metadata.FindCoordinatorRequest,
    fetch.FetchRequest,
    offsets.ListOffsetsRequest,
    offsets.OffsetCommitRequest,
    offsets.OffsetFetchRequest,
    group.JoinGroupRequest,
    group.SyncGroupRequest,
    group.HeartbeatRequest,
    group.LeaveGroupRequest,
    group.ListGroupsRequest,
    group.DescribeGroupsRequest,
    consumer_heartbeat.ConsumerGroupHeartbeatRequest,
    produce.ProduceRequest,
    sasl.SaslHandshakeRequest,
    sasl.SaslAuthenticateRequest,
)

_BY_KEY = {cls.api_key: cls for cls in SPOKEN}


class Left(Exception):
    """The client has closed the connection."""


class Wire:
    """The broker's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.asked: Counter[type[Request[Any]]] = Counter()
        """How many requests of each kind have come."""
        self.correlation_id = b""
        """Of the last request."""

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Become a TLS server. Raises: Left when the client rejects it."""
        try:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        except OSError as error:
            raise Left from error

    def receive(self, size: int) -> bytes:
        """Return that many bytes. Raises: Left."""
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except OSError as error:
                raise Left from error
            if not piece:
                raise Left
            data += piece
        return bytes(data)

    def request(self) -> Incoming:
        """Return the next request. Raises: Left."""
        frame = self.receive(int.from_bytes(self.receive(4), "big"))
        api_key, version = (int.from_bytes(frame[at : at + 2], "big") for at in (0, 2))
        cls = _BY_KEY[api_key]
        body = 10 + int.from_bytes(frame[8:10], "big") + (version in cls.flexible)
        request, _ = decode_prefix(cls, version, frame, body)
        self.asked[cls] += 1
        self.correlation_id = frame[4:8]
        return Incoming(request, version, int.from_bytes(frame[4:8], "big"), "")

    def send(self, data: bytes) -> None:
        """Raises: Left."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Left from error

    def respond(self, incoming: Incoming, message: object) -> None:
        """Send a correct response or, with bytes, a correct header and that body."""
        if not isinstance(message, bytes):
            self.send(write_response(incoming, message))
            return
        cls = type(incoming.request)
        flexible = incoming.version in cls.response.flexible
        tags = b"\0" if flexible and cls is not metadata.ApiVersionsRequest else b""
        frame = incoming.correlation_id.to_bytes(4, "big") + tags + message
        self.send(len(frame).to_bytes(4, "big") + frame)

    def close(self) -> None:
        """Close the connection."""
        raise Left

    def wait_until_left(self) -> None:
        """Send nothing more, and wait until the client disconnects. Raises: Left."""
        while True:
            self.receive(1)


Conversation = Callable[[Wire], None]
"""What is done with a connection; it is closed at the end, and when the client leaves."""


class Server:
    """A listener at a port of 127.0.0.1, until closed."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, Wire] = {}
        self._closing = False
        self.errors: list[Exception] = []
        self._wires: list[Wire] = []
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(_TIMEOUT)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire = Wire(sock)
            thread = threading.Thread(target=self._converse, args=(wire,), daemon=True)
            with self._lock:
                self._open[thread] = wire
                self._wires.append(wire)
            thread.start()

    def _converse(self, wire: Wire) -> None:
        try:
            self._conversation(wire)
        except Left:
            pass
        except Exception as error:
            self.errors.append(error)
        finally:
            wire.socket.close()
            with self._lock:
                self._open.pop(threading.current_thread(), None)

    @property
    def asked(self) -> int:
        """The number of requests on all connections."""
        with self._lock:
            return sum(wire.asked.total() for wire in self._wires)

    def close(self) -> None:
        # Only `shutdown` wakes the thread that waits in `accept`.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        with self._lock:
            left = dict(self._open)
        for thread, wire in left.items():
            try:
                wire.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            thread.join()


@contextmanager
def listening(conversation: Conversation) -> Iterator[Server]:
    """Return a server that runs the conversation on every connection. Raises its errors at the end,
    as the attack was then not the intended one."""
    server = Server(conversation)
    try:
        yield server
    finally:
        server.close()
    if server.errors:
        raise server.errors[0]

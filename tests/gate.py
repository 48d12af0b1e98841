"""A proxy to a server that can be blocked: it holds back bytes and keeps connections open.

It can also disconnect its clients.
"""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Gate:
    """A port on loopback before an address."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.accepted = 0
        """How many connections were accepted."""
        self._unanswered = 0
        """How many of the next connections are never read."""
        self._open = threading.Event()
        self._open.set()

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def bar(self) -> None:
        self._open.clear()

    def unbar(self) -> None:
        self._open.set()

    def disconnect(self, *, leave_unanswered: int) -> None:
        """End all connections; `leave_unanswered` of the next ones stay open without a response."""
        self._unanswered = leave_unanswered
        for end in list(self._sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # `close` alone would not wake `accept`
        for end in [self._listener, *self._sockets]:
            end.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                self.accepted += 1
                if self._unanswered:
                    self._unanswered -= 1
                    continue
                threading.Thread(target=self._lead, args=(client,), daemon=True).start()

    def _lead(self, client: socket.socket) -> None:
        self._open.wait()
        with suppress(OSError):
            server = socket.create_connection(self._target)
            self._sockets.append(server)
            threading.Thread(target=self._pass, args=(server, client), daemon=True).start()
            self._pass(client, server)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._open.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

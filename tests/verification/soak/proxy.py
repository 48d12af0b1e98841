"""A TCP proxy that damages connections: bytes stay unchanged and in order, but are fragmented,
delayed or dropped, and no connection lasts long.

The faults of a connection are drawn from the proxy's seed and the connection's number. The proxy
does not parse the bytes.
"""

from __future__ import annotations

import math
import random
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, suppress
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import attrs
from anyio.abc import ByteStream, SocketAttribute, TaskStatus
from anyio.from_thread import start_blocking_portal

HOST = "127.0.0.1"

_MAX_FRAGMENT = 7
"""Maximum bytes of a fragment: less than the length and correlation id that open a response."""

_TRUNCATION_TIMEOUT = 0.25
"""Seconds that a connection to be cut within a message waits for a message."""

_RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER: closing discards unsent bytes and sends a RST."""

_ENDED = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class End(StrEnum):
    """How a connection is cut."""

    CLOSED = "closed"
    RESET = "reset"
    TRUNCATED = "truncated"
    """Reset within a message, of which the first half was forwarded."""


@attrs.frozen(kw_only=True)
class ConnectionFaults:
    """The faults of one connection."""

    life: float = math.inf
    """Seconds until it is cut."""
    end: End = End.CLOSED
    fragmented: int = 0
    """How many bytes of each direction are forwarded in fragments of 1 to 7 bytes; later bytes are
    forwarded as they arrive."""
    stall: tuple[float, float] = (math.inf, 0.0)
    """Start and end of the time in which nothing is forwarded, in seconds since it was opened."""
    seed: int = 0
    """Determines the lengths of the fragments."""


@attrs.frozen(kw_only=True)
class FaultPolicy:
    """The distribution from which faults are drawn."""

    life: tuple[float, float] = (0.5, 1.5)
    """Minimum and maximum lifetime in seconds."""
    stall: tuple[float, float] = (0.05, 0.5)
    """Minimum and maximum stall in seconds."""
    stalled: float = 0.2
    """The fraction of connections that stall for a while."""
    silenced: float = 0.05
    """The fraction of connections that stall until they close: open, without a response."""
    fragmented: float = 0.25
    """The fraction of connections that are fragmented."""

    def draw(self, seed: int, number: int) -> ConnectionFaults:
        """Draw the faults of a connection."""
        # Both in one string: their sum would give two seeds almost the same faults.
        chance = random.Random(f"{seed}/{number}")
        life = chance.uniform(*self.life)
        stall = (math.inf, 0.0)
        if (drawn := chance.random()) < self.stalled + self.silenced:
            begin = chance.uniform(0.0, life)
            silent = drawn < self.silenced
            stall = (begin, math.inf if silent else begin + chance.uniform(*self.stall))
        return ConnectionFaults(
            life=life,
            end=chance.choice(list(End)),
            fragmented=chance.randrange(64, 2048) if chance.random() < self.fragmented else 0,
            stall=stall,
            seed=chance.getrandbits(32),
        )


class _NoFaults(FaultPolicy):
    def draw(self, seed: int, number: int) -> ConnectionFaults:
        return ConnectionFaults()


NO_FAULTS = _NoFaults()
"""The policy under which no connection has faults."""


class Relay:
    """One connection with its faults."""

    def __init__(self, faults: ConnectionFaults, client: ByteStream, server: ByteStream) -> None:
        self.occurred: set[str] = set()
        """The kinds of faults that have occurred."""
        self._faults = faults
        self._streams = (client, server)
        self._scope = anyio.CancelScope()
        self._started_at = 0.0
        self._truncating = False
        self._truncated = False

    async def run(self) -> End | None:
        """Relay bytes until the planned cut, and return its kind, or None if a side has closed."""
        client, server = self._streams
        self._started_at = anyio.current_time()
        end: End | None = None
        with self._scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._forward, client, server)
                tasks.start_soon(self._forward, server, client)
                await anyio.sleep(self._faults.life)
                end = self._faults.end
                if end is End.TRUNCATED:
                    self._truncating = True
                    await anyio.sleep(_TRUNCATION_TIMEOUT)
                self._scope.cancel()
        if end is End.TRUNCATED and not self._truncated:
            end = End.RESET
        if end is not None:
            self.occurred.add(end)
        return end

    async def _forward(self, source: ByteStream, sink: ByteStream) -> None:
        chance = random.Random(self._faults.seed)
        fragmented = self._faults.fragmented
        try:
            while True:
                data = await source.receive()
                await self._wait_while_stalled()
                if self._truncating:
                    self._truncated = True
                    data = data[: len(data) // 2]
                for piece in _fragments(data[:fragmented], chance):
                    self.occurred.add("fragmented")
                    await sink.send(piece)
                if rest := data[fragmented:]:
                    await sink.send(rest)
                if self._truncated:
                    break
                fragmented = max(0, fragmented - len(data))
        except _ENDED:
            pass
        self._scope.cancel()

    async def _wait_while_stalled(self) -> None:
        begin, end = self._faults.stall
        if begin <= anyio.current_time() - self._started_at < end:
            self.occurred.add("silenced" if end == math.inf else "stalled")
            await anyio.sleep_until(self._started_at + end)


def _fragments(data: bytes, chance: random.Random) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        end = start + chance.randint(1, _MAX_FRAGMENT)
        yield data[start:end]
        start = end


class Proxy:
    """A port on loopback for each node of a cluster, in a thread of its own while it is entered.

    ```python
    with Proxy(3, seed=1) as proxy:
        with LocalKafka(nodes=3, listeners={"P": Listener(advertised_ports=proxy.ports)}) as kafka:
            proxy.set_targets([kafka.address(node, "P") for node in (1, 2, 3)])
            connect(proxy.addresses)
    ```
    """

    def __init__(self, nodes: int, *, seed: int, policy: FaultPolicy | None = None) -> None:
        self.policy = FaultPolicy() if policy is None else policy
        """Applies to connections that are opened from now on."""
        self.ports: Sequence[int] = ()
        self.faults: Counter[str] = Counter()
        """Kind of fault -> count; "refused": the node of the connection was down."""
        self.connections = 0
        self._nodes = nodes
        self._seed = seed
        self._targets: Sequence[tuple[str, int]] = ()
        self._running = ExitStack()
        self._task: Future[None]

    @property
    def addresses(self) -> str:
        """`host:port` of every port, comma-separated."""
        return ",".join(f"{HOST}:{port}" for port in self.ports)

    @property
    def cut(self) -> int:
        """The number of connections that were cut."""
        return sum(self.faults[end] for end in End)

    def set_targets(self, addresses: Sequence[str]) -> None:
        """Set the addresses of the nodes, in the order of `ports`. Until then connections are
        refused."""
        pairs = (address.rpartition(":") for address in addresses)
        self._targets = [(host, int(port)) for host, _, port in pairs]

    def raise_if_ended(self) -> None:
        """Raise the error that ended the proxy, if any."""
        if self._task.done():
            self._task.result()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            portal = undo.enter_context(start_blocking_portal())
            self._task, self.ports = portal.start_task(self._run)
            undo.callback(self._task.cancel)
            self._running = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()

    async def _run(self, *, task_status: TaskStatus[Sequence[int]]) -> None:
        ports = []
        async with AsyncExitStack() as listeners, anyio.create_task_group() as tasks:
            for node in range(self._nodes):
                listener = await anyio.create_tcp_listener(local_host=HOST)
                await listeners.enter_async_context(listener)
                ports.append(listener.extra(SocketAttribute.local_port))
                tasks.start_soon(listener.serve, partial(self._serve, node))
            task_status.started(ports)

    async def _serve(self, node: int, client: ByteStream) -> None:
        async with client:
            self.connections += 1
            faults = self.policy.draw(self._seed, self.connections)
            try:
                server = await anyio.connect_tcp(*self._targets[node])
            except (OSError, IndexError):
                self.faults["refused"] += 1
                return
            async with server:
                relay = Relay(faults, client, server)
                end = await relay.run()
                self.faults.update(relay.occurred)
                for stream in (client, server):
                    if end in (End.RESET, End.TRUNCATED):
                        raw = stream.extra(SocketAttribute.raw_socket)
                        with suppress(OSError):  # the other side was faster
                            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    await anyio.aclose_forcefully(stream)

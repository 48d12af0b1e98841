"""The network between processes and brokers: streams in memory, in virtual time.

It replaces TCP at the byte boundary. The bytes of one direction of a connection arrive in order;
the `Link` between a process and a node decides when they arrive, in what chunks, and whether
they do. A broker writes each response at once, so one write is one frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from random import Random
from typing import Any, Protocol

import anyio
import attrs
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from kafkagroup.transport.names import Resolved

from .events import Connecting, Missed, Silenced
from .loop import PROCESS
from .mangle import Mangler

__all__ = ["Agenda", "Link", "Listener", "Network", "Socket"]

_BASE = 0.0005
"""Minimum latency in seconds."""

_APART = 1e-6
"""Seconds between two arrivals: timers due at the same time may run in either order."""

_SHREDDED = 48
"""Bytes of a message that are delivered one at a time; the rest comes in one chunk."""


class Agenda:
    """The simulation's schedule of actions."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._earlier = anyio.Event()
        self._context = copy_context()
        self._loop: asyncio.AbstractEventLoop | None = None

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call the action at this time, or as soon after as possible."""
        if self._loop is not None:
            # In the simulation's context: bytes must still travel while their sender is frozen.
            self._loop.call_at(time, action, *arguments, context=self._context)
            return
        entry = (time, next(self._count), action, arguments)
        heapq.heappush(self._due, entry)
        if self._due[0] is entry:
            self._earlier.set()

    async def run(self) -> None:
        """Run the scheduled actions, until cancelled."""
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()  # its timers are cheaper than this task
        while True:
            now = anyio.current_time()
            while self._due and self._due[0][0] <= now:
                _, _, action, arguments = heapq.heappop(self._due)
                action(*arguments)
            self._earlier = anyio.Event()
            with anyio.CancelScope(deadline=self._due[0][0] if self._due else float("inf")):
                await self._earlier.wait()


class Listener(Protocol):
    """Receives what crosses the wire, on the process's side of it."""

    def connected(self, process: str, connection: int, node: int) -> None: ...

    def sent(self, process: str, connection: int, data: bytes) -> None: ...

    def received(self, process: str, connection: int, data: bytes) -> None: ...


@attrs.define(eq=False)
class Link:
    """The network conditions between one process and one node. They can change at any time."""

    delay: float = 0.0
    """Additional latency in seconds, in both directions."""
    bytes_per_second: float = float("inf")
    shredded: int = 0
    """How many more messages to the process arrive byte by byte."""
    mangle: deque[Mangler] = attrs.field(factory=deque)
    """Corruptions of the next responses."""
    is_down: bool = False
    """Nothing arrives, and no connection succeeds."""

    def clear(self) -> None:
        """Remove all faults."""
        self.delay, self.bytes_per_second, self.shredded = 0.0, float("inf"), 0
        self.mangle.clear()
        self.is_down = False


class Socket(ByteStream):
    """One end of a connection."""

    def __init__(self, network: Network, process: str, node: int, number: int) -> None:
        self.process = process
        self.node = node
        self.number = number
        self.at_broker = False
        self.peer: Socket
        self.closed = False
        self.lost = False
        """The connection is half-open: bytes sent from here are lost."""
        self._network = network
        self._chunks: deque[bytes] = deque()
        self._ended = False
        self._broken = False
        self._changed: anyio.Event | None = None
        """Set while a task waits in `receive`."""
        self.arrival = 0.0
        """When the last bytes that were sent from here arrive."""
        self.used_at = network.now()
        """When bytes were last sent from here."""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._chunks or self._ended or self._broken:
            await checkpoint()  # waiting below would be a checkpoint, too
        while True:
            if self.closed:
                raise anyio.ClosedResourceError
            if self._broken:
                raise anyio.BrokenResourceError
            if self._chunks:
                break
            if self._ended:
                raise anyio.EndOfStream
            if self._changed is None:
                self._changed = anyio.Event()
            await self._changed.wait()
        data = self._chunks.popleft()
        if len(data) > max_bytes:
            self._chunks.appendleft(data[max_bytes:])
            data = data[:max_bytes]
        if not self.at_broker:
            self._network.listener.received(self.process, self.number, data)
        return data

    async def send(self, item: bytes) -> None:
        if not self.at_broker:
            await checkpoint()
        if self.closed:
            raise anyio.ClosedResourceError
        if self._broken:
            raise anyio.BrokenResourceError
        if not self.at_broker:
            self._network.listener.sent(self.process, self.number, item)
        self._network.carry(self, bytes(item))

    async def send_eof(self) -> None:
        self._network.end(self)

    async def aclose(self) -> None:
        self.close()
        await checkpoint()

    def close(self) -> None:
        """Close this end. Bytes in transit still arrive, and then the end of the stream."""
        if not self.closed:
            self.closed = True
            self._network.end(self)
            self._network.forget(self)
            self._notify()

    # ------------------------------------------------------------ called by the network

    def deliver(self, chunks: list[bytes]) -> None:
        if self.closed and not (self.lost or self._broken or self.at_broker):
            self._network.record_event(Missed, member=self.process, connection=self.number)
        if not self.lost:
            self._chunks.extend(chunks)
            self._notify()

    def finish(self) -> None:
        if not self.lost:
            self._ended = True
            self._notify()

    def reset(self) -> None:
        """Reset the connection, as a RST does: received bytes that were not read are lost too."""
        self._broken = True
        self._notify()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


class Network:
    """All connections."""

    def __init__(
        self,
        agenda: Agenda,
        random: Random,
        listener: Listener,
        serve: Callable[[Socket, int], Awaitable[None]],
        is_up: Callable[[str, int], bool],
        record_event: Callable[..., None],
        now: Callable[[], float],
    ) -> None:
        self.listener = listener
        self.record_event = record_event
        self.now = now
        self.idle_limit = float("inf")
        """Seconds without bytes after which what lies between drops a connection."""
        self.links: dict[tuple[str, int], Link] = {}
        """(Slot of a process, node) -> the link between them."""
        self.sockets: dict[int, Socket] = {}
        """The processes' open ends, by number."""
        self.settled = anyio.Event()
        """Set when no more faults come: pending connection attempts then succeed."""
        self._agenda = agenda
        self._random = random
        self._serve = serve
        self._is_up = is_up
        self._count = 0
        self._tasks: anyio.abc.TaskGroup | None = None
        """None before the run and after it: a process may still connect while it is cancelled."""

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Serve the brokers' ends, until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    def link(self, process: str, node: int) -> Link:
        """Return the link between the two; callers may change it."""
        place = process.partition(".")[0]  # a restarted process keeps the links of its predecessor
        return self.links.setdefault((place, node), Link())

    async def resolve(self, host: str, until: float = math.inf) -> Resolved:
        """Replaces `Names.resolve` during the run: names are addresses."""
        return Resolved([(0, (host, 0))])

    async def connect(self, family: int, address: Any, source: Any) -> Socket:
        """Replaces `dialing.connect` during the run."""
        return await self.connect_tcp(*address)

    async def connect_tcp(self, host: str, port: int) -> Socket:
        process = PROCESS.get() or ""
        node = int(host.removeprefix("kafka-"))
        self.record_event(Connecting, member=process, node=node)
        await anyio.sleep(2 * self._latency(process, node))
        if self.link(process, node).is_down:
            await self.settled.wait()
        if self._tasks is None or not self._is_up(process, node):
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        self._count += 1
        ours, theirs = (Socket(self, process, node, self._count) for _ in range(2))
        ours.peer, theirs.peer = theirs, ours
        theirs.at_broker = True
        self.sockets[ours.number] = ours
        self.listener.connected(process, ours.number, node)
        # The broker's side is not part of the process: it runs while the process is frozen.
        token = PROCESS.set(None)
        self._tasks.start_soon(self._serve, theirs, node)
        PROCESS.reset(token)
        return ours

    def forget(self, socket: Socket) -> None:
        if not socket.at_broker:
            self.sockets.pop(socket.number, None)

    # ------------------------------------------------------------ bytes in transit

    def _latency(self, process: str, node: int) -> float:
        link = self.link(process, node)
        return _BASE * (1 + self._random.random()) + link.delay

    def carry(self, sender: Socket, data: bytes) -> None:
        """Send bytes to the other end."""
        link = self.link(sender.process, sender.node)
        self._drop_if_idle(sender)
        chunks = [data]
        cut = False
        if sender.at_broker and link.mangle and len(data) > 4:
            mangled = link.mangle.popleft()(data)
            cut = mangled is None
            chunks = [data[: len(data) // 2]] if mangled is None else mangled
        if sender.at_broker and link.shredded:
            link.shredded -= 1
            data = b"".join(chunks)
            chunks = [data[i : i + 1] for i in range(min(_SHREDDED, len(data)))]
            chunks += [data[_SHREDDED:]] if len(data) > _SHREDDED else []
        if sender.lost or link.is_down:
            # No retransmission is modelled: lost bytes never arrive, so neither do later ones.
            sender.lost = sender.peer.lost = True
            return
        size = sum(map(len, chunks))
        start = max(sender.arrival + _APART, self.now())
        arrival = start + size / link.bytes_per_second
        arrival = max(arrival, self.now() + self._latency(sender.process, sender.node))
        sender.arrival = arrival
        self._agenda.at(arrival, sender.peer.deliver, chunks)
        if cut:
            sender.close()

    def _drop_if_idle(self, sender: Socket) -> None:
        """Drop a connection that was idle for too long, in silence."""
        now, peer = self.now(), sender.peer
        if now - max(sender.used_at, peer.used_at) > self.idle_limit and not sender.lost:
            sender.lost = peer.lost = True
            ours = peer if sender.at_broker else sender
            self.record_event(Silenced, member=ours.process, connection=ours.number)
        sender.used_at = now

    def end(self, sender: Socket) -> None:
        """Send the end of the stream."""
        if not sender.lost:
            at = max(sender.arrival + _APART, self.now() + _BASE)
            self._agenda.at(at, sender.peer.finish)

    # ------------------------------------------------------------ faults

    def between(self, process: str, node: int) -> list[Socket]:
        """Return the open connections of a process ("" for all) with a node (0 for all)."""
        return [
            socket
            for socket in self.sockets.values()
            if process in ("", socket.process) and node in (0, socket.node)
        ]

    def reset(self, process: str, node: int) -> None:
        """Reset connections at both ends."""
        for socket in self.between(process, node):
            socket.reset()
            socket.peer.reset()

    def half_open(self, process: str, node: int) -> None:
        """Make connections half-open: nothing arrives any more, and neither end notices."""
        for socket in self.between(process, node):
            socket.lost = socket.peer.lost = True

    def close(self, process: str, node: int) -> None:
        """Close connections from the broker's side, gracefully."""
        for socket in self.between(process, node):
            socket.peer.close()

    def abandon(self, process: str) -> None:
        """Close the connections of a process that is gone, as its kernel does."""
        for socket in self.between(process, 0):
            socket.close()

"""The network between processes and brokers: streams in memory, whose bytes travel by the clock.

It takes the place of TCP at the byte boundary. Bytes of one direction of one connection arrive in
order; how late, in what pieces, and whether at all, is up to the `Weather` between a process and a
node. A broker writes each answer at once, so that what it writes is one frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from random import Random
from typing import Any, Protocol

import anyio
import attrs
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from .loop import PROCESS
from .mangle import Mangler

__all__ = ["Agenda", "Listener", "Network", "Socket", "Weather"]

_BASE = 0.0005
"""Seconds that bytes travel at least."""

_APART = 1e-6
"""Seconds between two arrivals: of two timers of one instant either may be the first."""

_SHREDDED = 48
"""How many bytes of a message are delivered one at a time; the rest comes as a whole."""


class Agenda:
    """What the simulation does, and when."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._earlier = anyio.Event()
        self._context = copy_context()
        self._loop: asyncio.AbstractEventLoop | None = None

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call at this time, or soon."""
        if self._loop is not None:
            # In the simulation's context: bytes go on travelling while their sender stands still.
            self._loop.call_at(time, action, *arguments, context=self._context)
            return
        entry = (time, next(self._count), action, arguments)
        heapq.heappush(self._due, entry)
        if self._due[0] is entry:
            self._earlier.set()

    async def run(self) -> None:
        """Do it; runs until cancelled."""
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()  # its own timers are cheaper than a task
        while True:
            now = anyio.current_time()
            while self._due and self._due[0][0] <= now:
                _, _, action, arguments = heapq.heappop(self._due)
                action(*arguments)
            self._earlier = anyio.Event()
            with anyio.CancelScope(deadline=self._due[0][0] if self._due else float("inf")):
                await self._earlier.wait()


class Listener(Protocol):
    """Who hears what crosses the wire, on the process's side of it."""

    def connected(self, process: str, connection: int, node: int) -> None: ...

    def sent(self, process: str, connection: int, data: bytes) -> None: ...

    def received(self, process: str, connection: int, data: bytes) -> None: ...


@attrs.define(eq=False)
class Weather:
    """What bytes between one process and one node meet. All of it can change at any time."""

    delay: float = 0.0
    """Seconds more that bytes travel, both ways."""
    bytes_per_second: float = float("inf")
    shredded: int = 0
    """How many messages to the process still come byte by byte."""
    mangle: deque[Mangler] = attrs.field(factory=deque)
    """What happens to the next answers: other bytes, or None for an end in the middle of it."""
    dark: bool = False
    """Nothing arrives, nobody connects."""

    def clear(self) -> None:
        """Fair weather again."""
        self.delay, self.bytes_per_second, self.shredded = 0.0, float("inf"), 0
        self.mangle.clear()
        self.dark = False


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
        """The connection is half-open: what is sent from here vanishes."""
        self._network = network
        self._chunks: deque[bytes] = deque()
        self._ended = False
        self._broken = False
        self._changed: anyio.Event | None = None
        """While somebody waits."""
        self.arrival = 0.0
        """When the last bytes that were sent from here arrive."""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._chunks or self._ended or self._broken:
            await checkpoint()  # else it waits, which is one
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
        """What is on its way still arrives, and then the end."""
        if not self.closed:
            self.closed = True
            self._network.end(self)
            self._network.forget(self)
            self._notify()

    # ------------------------------------------------------------ called by the network

    def deliver(self, chunks: list[bytes]) -> None:
        if not self.lost:
            self._chunks.extend(chunks)
            self._notify()

    def finish(self) -> None:
        if not self.lost:
            self._ended = True
            self._notify()

    def reset(self) -> None:
        """As by a RST: what has arrived and was not read is gone too."""
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
        is_up: Callable[[int], bool],
    ) -> None:
        self.listener = listener
        self.weather: dict[tuple[str, int], Weather] = {}
        """(Place of a process, node) -> weather."""
        self.sockets: dict[int, Socket] = {}
        """The processes' ends that are open, by number."""
        self.settled = anyio.Event()
        """No weather comes any more: who still knocks in the dark is heard."""
        self._agenda = agenda
        self._random = random
        self._serve = serve
        self._is_up = is_up
        self._count = 0
        self._tasks: anyio.abc.TaskGroup

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Serve the brokers' ends; runs until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            task_status.started()
            await anyio.sleep_forever()

    def over(self, process: str, node: int) -> Weather:
        """The weather between the two, for reading and for changing."""
        place = process.partition(".")[0]  # one that is started again is where the last one was
        return self.weather.setdefault((place, node), Weather())

    async def connect_tcp(self, host: str, port: int, **_: Any) -> Socket:
        """What `anyio.connect_tcp` is meanwhile."""
        process = PROCESS.get() or ""
        node = int(host.removeprefix("kafka-"))
        await anyio.sleep(2 * self._latency(process, node))
        if self.over(process, node).dark:
            await self.settled.wait()
        if not self._is_up(node):
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        self._count += 1
        ours, theirs = (Socket(self, process, node, self._count) for _ in range(2))
        ours.peer, theirs.peer = theirs, ours
        theirs.at_broker = True
        self.sockets[ours.number] = ours
        self.listener.connected(process, ours.number, node)
        # The broker's side is no part of the process: it goes on while that stands still.
        token = PROCESS.set(None)
        self._tasks.start_soon(self._serve, theirs, node)
        PROCESS.reset(token)
        return ours

    def forget(self, socket: Socket) -> None:
        if not socket.at_broker:
            self.sockets.pop(socket.number, None)

    # ------------------------------------------------------------ what travels

    def _latency(self, process: str, node: int) -> float:
        weather = self.over(process, node)
        return _BASE * (1 + self._random.random()) + weather.delay

    def carry(self, sender: Socket, data: bytes) -> None:
        """Let bytes arrive at the other end."""
        weather = self.over(sender.process, sender.node)
        chunks = [data]
        cut = False
        if sender.at_broker and weather.mangle and len(data) > 4:
            mangled = weather.mangle.popleft()(data)
            cut = mangled is None
            chunks = [data[: len(data) // 2]] if mangled is None else mangled
        if sender.at_broker and weather.shredded:
            weather.shredded -= 1
            data = b"".join(chunks)
            chunks = [data[i : i + 1] for i in range(min(_SHREDDED, len(data)))]
            chunks += [data[_SHREDDED:]] if len(data) > _SHREDDED else []
        if sender.lost or weather.dark:
            # A retransmission after the dark would come late; this one never comes.
            sender.lost = sender.peer.lost = True
            return
        size = sum(map(len, chunks))
        start = max(sender.arrival + _APART, anyio.current_time())
        arrival = start + size / weather.bytes_per_second
        arrival = max(arrival, anyio.current_time() + self._latency(sender.process, sender.node))
        sender.arrival = arrival
        self._agenda.at(arrival, sender.peer.deliver, chunks)
        if cut:
            sender.close()

    def end(self, sender: Socket) -> None:
        """No more comes from this end."""
        if not sender.lost:
            at = max(sender.arrival + _APART, anyio.current_time() + _BASE)
            self._agenda.at(at, sender.peer.finish)

    # ------------------------------------------------------------ what breaks

    def between(self, process: str, node: int) -> list[Socket]:
        """The open connections of a process ("" for all) with a node (0 for all)."""
        return [
            socket
            for socket in self.sockets.values()
            if process in ("", socket.process) and node in (0, socket.node)
        ]

    def reset(self, process: str, node: int) -> None:
        """Break connections, at both ends at once."""
        for socket in self.between(process, node):
            socket.reset()
            socket.peer.reset()

    def half_open(self, process: str, node: int) -> None:
        """From now on nothing arrives on these connections, and neither end is told."""
        for socket in self.between(process, node):
            socket.lost = socket.peer.lost = True

    def close(self, process: str, node: int) -> None:
        """The broker closes them, in good order."""
        for socket in self.between(process, node):
            socket.peer.close()

    def abandon(self, process: str) -> None:
        """The process is gone: its kernel closes what it had."""
        for socket in self.between(process, 0):
            socket.close()

"""A group on the embedded broker in virtual time: the same run each time, in no time.

Members, broker and network share one loop whose clock jumps where it would sleep. The network is in
memory; bytes are on their way for a millisecond.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar
from unittest import mock

import anyio
from anyio.abc import ByteStream

from kafkagroup.runtime.client import late_modules
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.transport import dialing
from kafkagroup.transport.names import Names, Resolved

__all__ = ["run"]

T = TypeVar("T")

_TRAVEL = 0.001
"""Seconds that bytes are on their way."""


class _Selector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits, and no timer is set")
        self.now += max(timeout, 0.0)
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


class _End(ByteStream):
    """One end of a connection."""

    peer: _End

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._ended = self._closed = False
        self._changed = anyio.Event()

    def _take(self, data: bytes) -> None:
        if data:
            self._chunks.append(data)
        else:
            self._ended = True
        self._changed.set()
        self._changed = anyio.Event()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        while not self._chunks:
            if self._closed:
                raise anyio.ClosedResourceError
            if self._ended:
                raise anyio.EndOfStream
            await self._changed.wait()
        data = self._chunks.popleft()
        if len(data) > max_bytes:
            self._chunks.appendleft(data[max_bytes:])
        return data[:max_bytes]

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if self._closed:
            raise anyio.ClosedResourceError
        loop = asyncio.get_running_loop()
        loop.call_later(_TRAVEL, self.peer._take, bytes(item))

    async def send_eof(self) -> None:
        asyncio.get_running_loop().call_later(_TRAVEL, self.peer._take, b"")

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self.send_eof()
            self._take(b"")
        await anyio.lowlevel.checkpoint()


async def _resolve(_: Names, host: str, until: float = 0.0) -> Resolved:
    """No thread looks up names, which would take real time."""
    return Resolved([(0, (host, 0))])


def run(
    story: Callable[[EmbeddedKafka], Awaitable[T]],
    topics: dict[str, int],
    *,
    nodes: int = 1,
    seed: int = 0,
) -> T:
    """Return the result of `story`, run on a cluster with these topics at kafka-1:9092, ..."""

    async def run_story() -> T:
        wall = anyio.current_time
        kafka = EmbeddedKafka(topics, nodes=nodes, listen=False, seed=seed, wall=wall)
        async with anyio.create_task_group() as connections:

            async def connect(_: int, address: tuple[str, int], source: object) -> _End:
                near, far = _End(), _End()
                near.peer, far.peer = far, near
                node_id = int(address[0].rpartition("-")[2])
                connections.start_soon(kafka.handle_stream, far, node_id)
                await anyio.sleep(2 * _TRAVEL)
                return near

            with (
                mock.patch.object(dialing, "connect", connect),
                mock.patch.object(Names, "resolve", _resolve),
                # No thread imports modules either.
                mock.patch.object(late_modules, "_import_in_thread", return_value=None),
            ):
                async with kafka:
                    answer = await story(kafka)
            connections.cancel_scope.cancel()
        return answer

    before = random.getstate()
    random.seed(seed)
    try:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            return runner.run(run_story())
    finally:
        random.setstate(before)

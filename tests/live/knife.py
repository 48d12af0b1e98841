"""What sweeps over cancellations are made of: a knife, a network in memory, two event loops.

A `Knife` counts the suspensions of one awaitable and cuts at the n-th. A sweep lets n grow, with
broker and client made anew each time, until the awaitable is done before its n-th suspension.

There are two cuts. `EARLY`: a cancel scope, while what is waited for has not come. `LATE`:
`Task.cancel` of asyncio in the moment in which it comes, so that the task hears of both at once.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio.testing
from conftest import VirtualLoop
from memory_network import Network

from kafkagroup import TopicPartition
from kafkagroup.testing import EmbeddedKafka

EARLY, LATE = "early", "late"
TIMEOUT = 60.0
"""Virtual seconds: more than any session or back-off."""

ZERO, ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
RECORDS = 12
"""In the partitions of t; u has 3."""

BACKENDS = ["asyncio", "asyncio-late", "trio"]
"""Event loops and cuts: what a module's `anyio_backend` is parametrized with."""


def backend(name: str) -> tuple[str, dict[str, Any]]:
    """The event loop, in virtual time."""
    if name == "trio":
        return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}
    return "asyncio", {"loop_factory": VirtualLoop}


def cut_of(name: str) -> str:
    """Which cut belongs to it."""
    return LATE if name == "asyncio-late" else EARLY


class Knife:
    """Cancels what goes `through` it at its n-th suspension."""

    def __init__(self, at: int, cut: str) -> None:
        self._at = at
        self._late = cut == LATE
        self._suspensions = 0
        self._scope = anyio.CancelScope()

    @property
    def used(self) -> bool:
        return self._suspensions >= self._at

    async def run(self, story: Coroutine[Any, Any, None]) -> None:
        """Run a story, in which something goes `through`; a cut ends it, and nothing else does."""
        if not self._late:
            with self._scope:
                await story
            return
        task = asyncio.create_task(story)
        await asyncio.wait((task,))
        if not (task.cancelled() and self.used):
            task.result()

    @types.coroutine
    def through(self, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
        steps = awaitable.__await__()
        resume = partial(next, steps)
        while True:
            try:
                suspended = resume()
            except StopIteration as done:
                return done.value
            self._suspensions += 1
            if self._suspensions == self._at:
                self._cut(suspended)
            try:
                resume = partial(steps.send, (yield suspended))
            except BaseException as error:
                resume = partial(steps.throw, error)

    def _cut(self, suspended: Any) -> None:
        if not self._late:
            self._scope.cancel()
            return
        task = asyncio.current_task()
        assert task is not None
        if suspended is None:  # a bare yield: the loop comes back by itself
            task.cancel()
        else:
            # The task's own callback, which wakes it, is behind this one.
            suspended.add_done_callback(lambda _: task.cancel())


@asynccontextmanager
async def broker(nodes: int = 1) -> AsyncIterator[tuple[EmbeddedKafka, Network]]:
    """A broker with a network of its own; at the end the client has left nothing there."""
    before = running()
    network = Network()
    kafka = EmbeddedKafka({"t": 2, "u": 1}, nodes=nodes, listen=False)
    kafka.produce("t", [b""] * RECORDS)
    kafka.produce("u", [b""] * 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anyio, "connect_tcp", network.connect_tcp)
        async with network, kafka:
            network.serve_embedded(kafka, nodes)
            with anyio.fail_after(TIMEOUT):
                yield kafka, network
            await settle()
            assert network.open == 0
            assert kafka.group_state("g") in ("Empty", "Dead")
    await settle()
    assert running() == before


async def settle() -> None:
    """Let tasks that are over end."""
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


def running() -> set[int]:
    return {task.id for task in anyio.get_running_tasks()}


async def cut_everywhere(cut: str, story: Callable[[Knife], Awaitable[None]]) -> None:
    """Tell the story again and again, with a cut at each suspension, and once without."""
    for at in count(1):
        knife = Knife(at, cut)
        try:
            await story(knife)
        except BaseException as error:
            error.add_note(f"cut at suspension {at}")
            raise
        if not knife.used:
            assert at > 1, "it never waits"
            return

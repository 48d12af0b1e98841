"""Cancel an awaitable at each of its suspensions, on both event loops.

A `Canceller` counts the suspensions of one awaitable and cancels it at the n-th. A sweep increases
n, each time with a new broker and client, until the awaitable ends before its n-th suspension.

There are two timings. `EARLY`: a cancel scope, before the awaited result is there. `LATE`:
asyncio's `Task.cancel` at the moment at which the result is there, so that the task receives both.
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


@pytest.fixture(params=["asyncio", "asyncio-late", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The event loop, in virtual time."""
    if request.param == "trio":
        return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture
def timing(request: pytest.FixtureRequest, anyio_backend: object) -> str:
    """When to cancel with this backend."""
    return LATE if request.node.callspec.params["anyio_backend"] == "asyncio-late" else EARLY


class Canceller:
    """Cancels an awaitable, run by `cancel_in`, at its n-th suspension."""

    def __init__(self, at: int, timing: str) -> None:
        self._at = at
        self._late = timing == LATE
        self._suspensions = 0
        self._scope = anyio.CancelScope()

    @property
    def has_cancelled(self) -> bool:
        return self._suspensions >= self._at

    async def run(self, story: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that uses `cancel_in`. Only that cancellation may end it early."""
        if not self._late:
            with self._scope:
                await story
            return
        task = asyncio.create_task(story)
        await asyncio.wait((task,))
        if not (task.cancelled() and self.has_cancelled):
            task.result()

    @types.coroutine
    def cancel_in(self, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
        steps = awaitable.__await__()
        resume = partial(next, steps)
        while True:
            try:
                suspended = resume()
            except StopIteration as done:
                return done.value
            self._suspensions += 1
            if self._suspensions == self._at:
                self._cancel(suspended)
            try:
                resume = partial(steps.send, (yield suspended))
            except BaseException as error:
                resume = partial(steps.throw, error)

    def _cancel(self, suspended: Any) -> None:
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
    """A broker on its own network; at the end no connection, member or task is left."""
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
    """Let cancelled tasks end."""
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


def running() -> set[int]:
    return {task.id for task in anyio.get_running_tasks()}


async def cancel_at_each_suspension(
    timing: str, story: Callable[[Canceller], Awaitable[None]]
) -> None:
    """Run the story once for each suspension, cancelled there, and once without a cancellation."""
    for at in count(1):
        canceller = Canceller(at, timing)
        try:
            await story(canceller)
        except BaseException as error:
            error.add_note(f"cancelled at suspension {at}")
            raise
        if not canceller.has_cancelled:
            assert at > 1, "it never waits"
            return

"""Requests to one broker: what is sent when."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from kafkagroup.runtime.produce.broker_sender import BrokerSender

pytestmark = pytest.mark.anyio


async def start(take: Any, exchange: Any, tasks: TaskGroup) -> tuple[BrokerSender, list[str]]:
    """Return a sender of which one queue is ready, a second later, and the names of the tasks that
    it spawns."""
    spawned: list[str] = []

    def spawn(function: Callable[[], Awaitable[None]], name: str) -> None:
        spawned.append(name)
        tasks.start_soon(function)

    sender = BrokerSender(take, exchange, spawn, max_in_flight=2)
    sender.add("queue")  # type: ignore[arg-type]
    await anyio.sleep(1)
    return sender, spawned


async def test_a_request_follows_all_failures_that_have_arrived() -> None:
    """With a connection all its requests fail: one of them is sent again before the next batch,
    which was written twice when it was sent at once."""
    batches, story, failed = ["A", "B", "C"], [], anyio.Event()

    def take(ready: OrderedDict[Any, None]) -> Any:
        taken = batches.pop(0)
        if not batches:
            ready.clear()
        return taken

    async def exchange(
        taken: Any, on_sent: Callable[[], None], on_answered: Callable[[], None]
    ) -> None:
        story.append(f"{taken} is sent")
        on_sent()
        await failed.wait()
        story.append(f"{taken} has failed")

    async with anyio.create_task_group() as tasks:
        await start(take, exchange, tasks)
        assert story == ["A is sent", "B is sent"]
        failed.set()
        await anyio.sleep(1)
        assert sorted(story[2:4]) == [f"{name} has failed" for name in "AB"]
        assert story[4:] == ["C is sent", "C has failed"]
        tasks.cancel_scope.cancel()


async def test_the_task_of_a_response_sends_what_was_written_after_it() -> None:
    """Woken for it, another task would send it one turn of the loop later."""
    responses: dict[str, tuple[Callable[[], None], anyio.Event]] = {}
    batches, story = ["A", "B"], []

    def take(ready: OrderedDict[Any, None]) -> Any:
        taken = batches.pop(0)
        ready.clear()
        return taken

    async def exchange(
        taken: Any, on_sent: Callable[[], None], on_answered: Callable[[], None]
    ) -> None:
        story.append(f"{taken} is sent")
        on_sent()
        responses[taken] = on_answered, anyio.Event()
        await responses[taken][1].wait()
        story.append(f"the task of {taken} runs")

    async with anyio.create_task_group() as tasks:
        sender, spawned = await start(take, exchange, tasks)
        on_answered, resumed = responses["A"]
        on_answered()
        resumed.set()
        sender.add("queue")  # type: ignore[arg-type]
        await anyio.sleep(1)
        assert story == ["A is sent", "the task of A runs", "B is sent"]
        assert len(spawned) == 1
        tasks.cancel_scope.cancel()

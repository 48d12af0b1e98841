"""Requests to one broker: what is sent when."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from kafkagroup.runtime.produce.broker_sender import BrokerSender

pytestmark = pytest.mark.anyio


async def test_a_request_follows_all_responses_that_have_arrived() -> None:
    """Another one may refuse what comes before the next batch: sent at once, that was written
    twice."""
    batches, story, responses = ["A", "B", "C"], [], anyio.Event()

    def take(ready: OrderedDict[Any, None]) -> Any:
        taken = batches.pop(0)
        if not batches:
            ready.clear()
        return taken

    async def exchange(taken: Any, on_sent: Callable[[], None]) -> None:
        story.append(f"{taken} is sent")
        on_sent()
        await responses.wait()
        story.append(f"the response to {taken} is handled")

    async with anyio.create_task_group() as tasks:

        def spawn(function: Callable[[], Awaitable[None]], name: str) -> None:
            tasks.start_soon(function)

        sender = BrokerSender(take, exchange, spawn, max_in_flight=2)
        sender.add("queue")  # type: ignore[arg-type]
        await anyio.sleep(1)
        assert story == ["A is sent", "B is sent"]
        responses.set()
        await anyio.sleep(1)
        assert sorted(story[2:4]) == [f"the response to {name} is handled" for name in "AB"]
        assert story[4:] == ["C is sent", "the response to C is handled"]
        tasks.cancel_scope.cancel()

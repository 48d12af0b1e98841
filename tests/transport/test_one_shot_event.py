"""An event that is set once, and the tasks that wait for it."""

from __future__ import annotations

import anyio
import pytest

from kafkagroup.transport.one_shot_event import OneShotEvent

pytestmark = pytest.mark.anyio


def test_an_event_can_be_created_and_set_without_a_loop() -> None:
    latch = OneShotEvent()
    assert not latch.is_set()
    latch.set()
    assert latch.is_set()


async def test_all_waiters_resume() -> None:
    latch, story = OneShotEvent(), []

    async def wait(name: str) -> None:
        await latch.wait()
        story.append(name)

    async with anyio.create_task_group() as tasks:
        for name in ("first", "second"):
            tasks.start_soon(wait, name)
            await anyio.wait_all_tasks_blocked()
        assert story == []
        latch.set()
        latch.set()
    assert sorted(story) == ["first", "second"]


async def test_a_later_waiter_lets_other_tasks_run() -> None:
    latch, story = OneShotEvent(), []
    latch.set()

    async def other() -> None:
        story.append("other")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        for _ in range(2):  # trio may let this one go first, once
            await latch.wait()
        story.append("waited")
    assert story == ["other", "waited"]


async def test_a_cancelled_waiter_delays_no_other() -> None:
    latch = OneShotEvent()
    with anyio.move_on_after(1):
        await latch.wait()
    assert latch._waiting == ()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(latch.wait)
        with anyio.CancelScope() as scope:
            tasks.start_soon(_cancel_and_set, scope, latch)
            await latch.wait()
        assert scope.cancelled_caught
    assert latch.is_set()


async def test_a_wait_with_a_timeout_returns_whether_the_event_is_set() -> None:
    latch, began = OneShotEvent(), anyio.current_time()
    assert not await latch.wait(began - 1)
    assert not await latch.wait(began + 5)
    assert (anyio.current_time() - began, latch._waiting) == (pytest.approx(5), ())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_set_after, 2, latch)
        assert await latch.wait(began + 10)
        assert anyio.current_time() - began == pytest.approx(7)
    assert await latch.wait(began)
    assert anyio.current_time() - began == pytest.approx(7)


async def _set_after(seconds: float, latch: OneShotEvent) -> None:
    await anyio.sleep(seconds)
    latch.set()


async def _cancel_and_set(scope: anyio.CancelScope, latch: OneShotEvent) -> None:
    await anyio.wait_all_tasks_blocked()
    scope.cancel()
    latch.set()

"""An event that is set once, and the tasks that wait for it."""

from __future__ import annotations

import anyio
import pytest

from kafkagroup.concurrency.one_shot_event import OneShotEvent

pytestmark = pytest.mark.anyio


def test_an_event_can_be_created_and_set_without_a_loop() -> None:
    event = OneShotEvent()
    assert not event.is_set()
    event.set()
    assert event.is_set()


async def test_all_waiters_resume() -> None:
    event, resumed = OneShotEvent(), []

    async def wait(name: str) -> None:
        await event.wait()
        resumed.append(name)

    async with anyio.create_task_group() as tasks:
        for name in ("first", "second"):
            tasks.start_soon(wait, name)
            await anyio.wait_all_tasks_blocked()
        assert resumed == []
        event.set()
        event.set()
    assert sorted(resumed) == ["first", "second"]


async def test_a_later_waiter_lets_other_tasks_run() -> None:
    event, order = OneShotEvent(), []
    event.set()

    async def other() -> None:
        order.append("other")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        # On trio, this task may resume once before `other` has begun.
        for _ in range(2):
            await event.wait()
        order.append("waited")
    assert order == ["other", "waited"]


async def test_set_resumes_the_others_when_one_waiter_is_cancelled() -> None:
    event = OneShotEvent()
    with anyio.move_on_after(1):
        await event.wait()
    assert not event._waiting
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(event.wait)
        with anyio.CancelScope() as scope:
            tasks.start_soon(_cancel_and_set, scope, event)
            await event.wait()
        assert scope.cancelled_caught
    assert event.is_set()


async def test_a_wait_with_a_timeout_returns_whether_the_event_is_set() -> None:
    event, began = OneShotEvent(), anyio.current_time()
    assert not await event.wait(began - 1)
    assert not await event.wait(began + 5)
    assert (anyio.current_time() - began, event._waiting) == (pytest.approx(5), [])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_set_after, 2, event)
        assert await event.wait(began + 10)
        assert anyio.current_time() - began == pytest.approx(7)
    assert await event.wait(began)
    assert anyio.current_time() - began == pytest.approx(7)


async def _set_after(seconds: float, event: OneShotEvent) -> None:
    await anyio.sleep(seconds)
    event.set()


async def _cancel_and_set(scope: anyio.CancelScope, event: OneShotEvent) -> None:
    await anyio.wait_all_tasks_blocked()
    scope.cancel()
    event.set()

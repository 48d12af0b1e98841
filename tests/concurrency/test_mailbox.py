"""Items of a mailbox are received in order, or not before the timeout; coalescing tasks run one at
a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio.abc import TaskGroup

from kafkagroup.concurrency.coalescing_task import CoalescingTask
from kafkagroup.concurrency.mailbox import Mailbox

pytestmark = pytest.mark.anyio


async def test_items_are_received_in_order_including_those_that_arrive_meanwhile() -> None:
    mailbox: Mailbox[int] = Mailbox()
    taken = []

    async def take() -> None:
        while len(taken) < 4:
            taken.append(await mailbox.take())

    mailbox.put(1)
    mailbox.put(2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        await anyio.sleep(1)
        assert taken == [1, 2]
        mailbox.put(3)
        mailbox.put(4)
    assert taken == [1, 2, 3, 4]


async def test_receiving_times_out_without_an_item() -> None:
    mailbox: Mailbox[int] = Mailbox()
    began = anyio.current_time()
    assert await mailbox.take(began + 5) is None
    assert anyio.current_time() == began + 5
    mailbox.put(1)
    assert await mailbox.take(began) == 1  # a present item is received, however late


async def test_items_arriving_while_a_receiver_is_cancelled_stay() -> None:
    mailbox: Mailbox[int] = Mailbox()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mailbox.take)
        await anyio.sleep(1)
        tasks.cancel_scope.cancel()
        mailbox.put(1)
    assert await mailbox.take() == 1


def spawner(tasks: TaskGroup, names: list[str]) -> Callable[..., None]:
    def spawn(function: Callable[[], Awaitable[None]], name: str) -> None:
        names.append(name)
        tasks.start_soon(function)

    return spawn


async def test_a_coalescing_task_runs_once_at_a_time_and_ends() -> None:
    todo, done, names = [1, 2], [], []

    async def work() -> None:
        while todo:
            await anyio.sleep(1)
            done.append(todo.pop(0))

    async with anyio.create_task_group() as tasks:
        task = CoalescingTask(spawner(tasks, names), work, "sweeping")
        task.ensure_running()
        task.ensure_running()
        await anyio.sleep(1.5)
        todo.append(3)
        task.ensure_running()
        await anyio.sleep(2)
        assert (done, names) == ([1, 2, 3], ["sweeping"])
        todo.append(4)
        task.ensure_running()
    assert (done, names) == ([1, 2, 3, 4], ["sweeping", "sweeping"])


async def test_a_cancelled_coalescing_task_runs_again_on_request() -> None:
    done: list[int] = []

    async def work() -> None:
        await anyio.sleep(1)
        done.append(1)

    async with anyio.create_task_group() as outer:
        inner = anyio.CancelScope()

        def spawn(function: Callable[[], Awaitable[None]], name: str) -> None:
            async def scoped() -> None:
                with inner:
                    await function()

            outer.start_soon(scoped)

        task = CoalescingTask(spawn, work, "sweeping")
        task.ensure_running()
        await anyio.sleep(0.5)
        inner.cancel()
        await anyio.sleep(0.5)
        inner = anyio.CancelScope()
        task.ensure_running()
    assert done == [1]

"""How tasks of asyncio wait for the end of a batch: in order, cancelled, and with their context."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from kafkagroup.runtime.produce.batch_end import BatchEnd

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


class Waiting:
    """Tasks that wait for one end, and in which order they continued."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.end = BatchEnd(self.loop)
        self.woken: list[str] = []

    async def start(self, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self._wait(name))
        await asyncio.sleep(0)  # until it waits
        return task

    async def _wait(self, name: str) -> None:
        await self.end
        self.woken.append(name)


async def test_all_tasks_continue_in_the_order_in_which_they_began_to_wait() -> None:
    waiting = Waiting()
    for name in "abc":
        await waiting.start(name)
    waiting.end.set()
    await asyncio.sleep(0)
    assert waiting.woken == ["a", "b", "c"]


async def test_a_cancelled_task_raises_at_once_and_the_others_wait() -> None:
    waiting = Waiting()
    first, second = [await waiting.start(name) for name in "ab"]
    first.cancel("why")
    with pytest.raises(asyncio.CancelledError, match="why"):
        await first
    assert not second.done()
    waiting.end.set()
    await second
    assert waiting.woken == ["b"]


async def test_a_task_that_is_cancelled_after_the_end_raises() -> None:
    waiting = Waiting()
    task = await waiting.start("a")
    waiting.end.set()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert waiting.woken == []


async def test_a_task_that_continues_can_cancel_one_behind_it() -> None:
    waiting = Waiting()
    later: asyncio.Task[None]

    async def cancel() -> None:
        await waiting.end
        later.cancel()

    canceller = asyncio.create_task(cancel())
    await asyncio.sleep(0)
    later, last = [await waiting.start(name) for name in "ab"]
    waiting.end.set()
    await asyncio.wait([canceller, later, last])
    assert later.cancelled()
    assert waiting.woken == ["b"]


async def test_each_task_continues_in_its_context() -> None:
    waiting = Waiting()
    name: ContextVar[str] = ContextVar("name")
    seen: list[str] = []

    async def wait(own: str) -> None:
        name.set(own)
        await waiting.end
        seen.append(name.get())

    tasks = [asyncio.create_task(wait(own)) for own in "ab"]
    await asyncio.sleep(0)
    waiting.end.set()
    await asyncio.wait(tasks)
    assert seen == ["a", "b"]


async def test_the_loop_that_an_interrupt_has_ended_wakes_the_other_tasks_when_it_runs_again() -> (
    None
):
    def run() -> list[str]:
        with asyncio.Runner() as runner:
            waiting: list[Waiting] = []
            tasks: list[asyncio.Task[None]] = []

            async def interrupt() -> None:
                await waiting[0].end
                raise KeyboardInterrupt

            async def main() -> None:
                waiting.append(Waiting())
                tasks.append(asyncio.create_task(interrupt()))
                await asyncio.sleep(0)
                await waiting[0].start("other")
                waiting[0].end.set()
                await asyncio.Event().wait()

            with pytest.raises(KeyboardInterrupt):
                runner.run(main())
            runner.run(asyncio.sleep(0))
            return waiting[0].woken

    assert await asyncio.to_thread(run) == ["other"]


async def test_a_task_of_another_loop_raises_and_the_others_continue() -> None:
    waiting = Waiting()
    task = await waiting.start("a")

    async def wait() -> None:
        await waiting.end

    with pytest.raises(RuntimeError, match="different loop"):
        await asyncio.to_thread(asyncio.run, wait())
    waiting.end.set()
    await task
    assert waiting.woken == ["a"]

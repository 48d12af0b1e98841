"""Threads of a client's own: each job runs once, whoever waits for it, and long jobs do not hold up
short ones."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from loop_threads import LoopThreads

from kafkagroup.transport import threads as worker_threads
from kafkagroup.transport.options import ClientOptions
from kafkagroup.transport.threads import Job, ThreadTimeoutError, ThreadWait, WorkerThreads

pytestmark = pytest.mark.anyio


async def settle() -> None:
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


async def collect(found: list[object], call: Callable[[], Any]) -> None:
    found.append(await call())


async def test_a_function_runs_in_a_thread_and_its_result_is_returned(threads: Any) -> None:
    assert await WorkerThreads()(lambda: 7) == 7
    assert len(threads.jobs) == 1


async def test_the_error_of_the_work_is_raised_by_each_wait(threads: Any) -> None:
    job = Job(lambda: 1 // 0, WorkerThreads())
    for _ in range(2):
        assert await job.wait()
        with pytest.raises(ZeroDivisionError):
            job.result()
    assert len(threads.jobs) == 1


async def test_cancelled_waits_leave_one_job_running_for_the_next(threads: LoopThreads) -> None:
    """Each retry after a timeout began the work again: 22 threads became 142, each with a copy of
    the same batch."""
    threads.held = []
    job = Job(lambda: "done", WorkerThreads())
    for _ in range(3):
        with anyio.move_on_after(0.2) as scope:
            await job.wait()
        assert scope.cancelled_caught
    assert not await job.wait(anyio.current_time() + 1)
    assert len(threads.jobs) == 1
    async with anyio.create_task_group() as tasks:
        found: list[object] = []
        tasks.start_soon(collect, found, job.wait)
        tasks.start_soon(collect, found, job.wait)
        await settle()
        threads.held.pop()()
    assert found == [True, True]
    assert job.result() == "done"
    assert len(threads.jobs) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_timeout_of_asyncio_leaves_the_job_running(threads: LoopThreads) -> None:
    """`asyncio.timeout` cancels the task itself, and no shield of anyio holds it up."""
    threads.held = []
    job = Job(lambda: "done", WorkerThreads())
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await job.wait()
    threads.held.pop()()
    assert await job.wait()
    assert len(threads.jobs) == 1


async def test_long_jobs_do_not_hold_up_short_ones(threads: LoopThreads) -> None:
    """One look-up that hung for half a minute would be enough to hold up all that wait behind
    it."""
    run_in_thread = WorkerThreads(short_limit=2)
    threads.held = []
    async with anyio.create_task_group() as tasks:
        found: list[object] = []
        for n in range(5):
            tasks.start_soon(collect, found, lambda n=n: run_in_thread(lambda: n))
        await settle()
        assert len(threads.jobs) == 2
        await anyio.sleep(0.3)
        assert len(threads.jobs) == 4  # the first two count as long by now
        threads.held.pop(2)()
        await settle()
        assert len(threads.jobs) == 5  # a short one has ended
        for run in threads.held:
            run()
    assert sorted(map(repr, found)) == [*"01234"]


async def test_the_number_of_threads_is_limited(threads: LoopThreads) -> None:
    run_in_thread = WorkerThreads(short_limit=2, total_limit=3)
    threads.held = []
    async with anyio.create_task_group() as tasks:
        found: list[object] = []
        for n in range(5):
            tasks.start_soon(collect, found, lambda n=n: run_in_thread(lambda: n))
        await anyio.sleep(60)
        assert len(threads.jobs) == 3
        while threads.held:
            threads.held.pop()()
            await settle()
    assert len(threads.jobs) == 5
    assert sorted(map(repr, found)) == [*"01234"]


async def test_a_job_that_has_not_begun_when_its_last_waiter_leaves_waits_for_the_next(
    threads: LoopThreads,
) -> None:
    run_in_thread = WorkerThreads(short_limit=1, total_limit=1)
    threads.held = []
    job, ran = Job(lambda: ran.append("job"), run_in_thread), []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_in_thread, lambda: ran.append("first"))
        await settle()
        assert not await job.wait(anyio.current_time() + 1)
        assert not job.has_begun
        threads.held.pop()()
    assert ran == ["first"]
    threads.held = None
    assert await job.wait()
    assert ran == ["first", "job"]


async def test_a_process_that_may_start_no_thread_tries_again(threads: LoopThreads) -> None:
    """The application may use up the process's threads, and return them."""
    threads.refused_count = 3
    began_at = anyio.current_time()
    assert await WorkerThreads()(lambda: 7) == 7
    assert anyio.current_time() - began_at == pytest.approx(0.75)


async def test_a_wait_for_a_thread_differs_from_one_for_the_broker(threads: LoopThreads) -> None:
    threads.held = []
    run_in_thread = ThreadWait(WorkerThreads())
    assert not run_in_thread.is_waiting
    with anyio.move_on_after(1):
        await run_in_thread(lambda: 7)
    assert run_in_thread.is_waiting
    threads.held = None
    assert await run_in_thread(lambda: 7) == 7
    assert not run_in_thread.is_waiting
    assert issubclass(ThreadTimeoutError, worker_threads.RequestTimeoutError)


def test_options_with_threads_may_be_copied_to_another_process() -> None:
    options = ClientOptions(client_id="copied")
    copied = pickle.loads(pickle.dumps(options))
    assert copied.client_id == "copied"
    assert type(copied.run_in_thread) is WorkerThreads
    assert copied.run_in_thread is not options.run_in_thread


# ---------------------------------------------------------------- real threads


KEPT: ContextVar[str] = ContextVar("KEPT", default="nothing")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_real_threads_are_daemons_with_a_context_of_their_own(backend: str) -> None:
    def work() -> tuple[bool, str, str]:
        thread = threading.current_thread()
        return thread.daemon, thread.name, KEPT.get()

    async def main() -> list[tuple[bool, str, str]]:
        KEPT.set("the application's")
        run_in_thread = WorkerThreads(short_limit=1)
        found: list[Any] = []
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(collect, found, lambda: run_in_thread(work))
        return found

    assert anyio.run(main, backend=backend) == [(True, "kafkagroup worker", "nothing")] * 3


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thread_that_outlives_its_loop_ends_quietly(
    backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    may_end, before = threading.Event(), set(threading.enumerate())

    async def main() -> None:
        with anyio.move_on_after(0.01):
            await WorkerThreads()(may_end.wait)

    anyio.run(main, backend=backend)
    (thread,) = (
        t for t in threading.enumerate() if t.name == "kafkagroup worker" and t not in before
    )
    may_end.set()
    thread.join(5)
    assert not thread.is_alive()
    assert capfd.readouterr() == ("", "")

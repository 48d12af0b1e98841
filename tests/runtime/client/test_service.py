"""Starting and stopping a service: three ways to start, every way to end, and nothing left
behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import math
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from kafkagroup import Consumer
from kafkagroup.errors import ConnectionLostError, IllegalStateError, NoBrokersAvailableError
from kafkagroup.runtime.client import service
from kafkagroup.runtime.client.service import Service
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.transport import origin

pytestmark = pytest.mark.anyio
ASYNCIO_ONLY = pytest.mark.parametrize("anyio_backend", ["asyncio"])


class Thing(Service):
    """Records its calls. Times in seconds."""

    def __init__(
        self,
        *,
        opening: float = 0.0,
        closing: float = 0.0,
        close_timeout: float = 5.0,
        open_error: Exception | None = None,
        close_error: Exception | None = None,
    ) -> None:
        super().__init__(close_timeout)
        self.opening = opening
        self.closing = closing
        self.open_error = open_error
        self.close_error = close_error
        self.story: list[str] = []
        self.crash: Exception | None = None
        self.background: Any = anyio.sleep_forever

    async def _open(self, tasks: TaskGroup) -> None:
        self.story.append("opening")
        self._spawn(tasks, self._work, "work")
        await anyio.sleep(self.opening)
        if self.open_error is not None:
            raise self.open_error
        self.story.append("open")

    async def _work(self) -> None:
        try:
            await self.background()
        finally:
            self.story.append("work ended")

    async def _close(self) -> None:
        self.story.append("closing")
        await anyio.sleep(self.closing)
        if self.close_error is not None:
            raise self.close_error
        self.story.append("closed")

    def _crashed(self, error: Exception) -> None:
        self.crash = error


WHOLE = ["opening", "open", "closing", "closed", "work ended"]


@pytest.fixture(autouse=True)
def no_task_left(anyio_backend: object) -> Any:
    """Check that only tasks from before the test run; each test calls this at its end."""

    async def check(before: set[int]) -> None:
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert {t.id for t in anyio.get_running_tasks()} == before

    return check


def running() -> set[int]:
    return {t.id for t in anyio.get_running_tasks()}


# ---------------------------------------------------------------- three ways in


async def test_async_with_starts_and_stops(no_task_left: Any) -> None:
    before = running()
    thing = Thing()
    async with thing as entered:
        assert entered is thing
        assert thing.story == ["opening", "open"]
    assert thing.story == WHOLE
    await no_task_left(before)


async def test_run_in_a_task_group_of_the_caller(no_task_left: Any) -> None:
    before = running()
    thing = Thing()
    async with anyio.create_task_group() as tasks:
        await tasks.start(thing.run)
        assert thing.story == ["opening", "open"]
        await thing.stop()
        assert thing.story == WHOLE
    await no_task_left(before)


@ASYNCIO_ONLY
async def test_start_and_stop_from_different_tasks(no_task_left: Any) -> None:
    before = running()
    thing = Thing()
    await asyncio.create_task(thing.start())
    assert thing.story == ["opening", "open"]
    await asyncio.create_task(thing.stop())
    assert thing.story == WHOLE
    await no_task_left(before)


@ASYNCIO_ONLY
async def test_async_with_may_be_left_by_another_task(no_task_left: Any) -> None:
    """Fixtures, exit stacks and frameworks do that: anyio's cancel scopes raised RuntimeError."""
    before = running()
    thing = Thing(closing=0.01)
    stack = contextlib.AsyncExitStack()
    await asyncio.create_task(stack.enter_async_context(thing))
    await asyncio.sleep(0.01)
    assert thing.story == ["opening", "open"]
    await asyncio.create_task(stack.aclose())
    assert thing.story == WHOLE
    await no_task_left(before)


async def test_aclosing_stops_a_service(no_task_left: Any) -> None:
    before = running()
    async with anyio.create_task_group() as tasks:
        async with contextlib.aclosing(Thing()) as thing:
            await tasks.start(thing.run)
            assert thing.story == ["opening", "open"]
        assert thing.story == WHOLE
    await no_task_left(before)


@ASYNCIO_ONLY
async def test_services_may_be_closed_in_the_order_of_their_start(no_task_left: Any) -> None:
    before = running()
    things = [Thing(), Thing()]
    for thing in things:
        await thing.__aenter__()
    with anyio.CancelScope():
        for thing in things:
            await thing.__aexit__(None, None, None)
    assert [thing.story for thing in things] == [WHOLE, WHOLE]
    await no_task_left(before)


@ASYNCIO_ONLY
async def test_async_with_runs_in_an_async_generator(no_task_left: Any) -> None:
    """The loop closes an abandoned generator in a task of its own."""

    async def generator() -> AsyncIterator[int]:
        async with thing:
            yield 1

    before = running()
    thing = Thing()
    values = generator()
    assert await anext(values) == 1
    del values
    gc.collect()
    await thing._stopped.wait()
    await asyncio.sleep(0.01)
    assert thing.story == WHOLE
    await no_task_left(before)


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_start_on_trio_is_an_error() -> None:
    thing = Thing()
    with pytest.raises(IllegalStateError, match=r"nursery.start\(x.run\)"):
        await thing.start()
    assert thing.story == []
    async with thing:
        pass
    assert thing.story == WHOLE


def test_a_service_can_be_created_outside_an_event_loop() -> None:
    thing = Thing()

    async def use() -> None:
        async with thing:
            pass

    asyncio.run(use())
    assert thing.story == WHOLE


# ---------------------------------------------------------------- out of order


async def test_a_second_start_is_an_error_without_side_effects(no_task_left: Any) -> None:
    before = running()
    thing = Thing()
    async with thing:
        with pytest.raises(IllegalStateError, match=r"^Thing was started already; make a new one$"):
            async with thing:
                raise AssertionError
        with pytest.raises(IllegalStateError):
            await thing.run()
        assert thing.story == ["opening", "open"]
    assert thing.story == WHOLE
    with pytest.raises(IllegalStateError):
        await thing.run()
    assert thing.story == WHOLE
    await no_task_left(before)


@ASYNCIO_ONLY
async def test_stop_after_a_second_start_still_closes(no_task_left: Any) -> None:
    before = running()
    thing = Thing(closing=0.01)
    await thing.start()
    with pytest.raises(IllegalStateError):
        await thing.start()
    await thing.stop()
    assert thing.story == WHOLE
    assert thing._host_task is not None
    assert thing._host_task.done()
    await no_task_left(before)


async def test_stop_may_be_called_twice_and_concurrently() -> None:
    thing = Thing(closing=1)
    async with thing:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(thing.stop)
            tasks.start_soon(thing.stop)
        assert thing.story == WHOLE
        await thing.stop()
    assert thing.story == WHOLE


async def test_a_service_stopped_before_its_start_opens_nothing(no_task_left: Any) -> None:
    before = running()
    thing = Thing(opening=60)
    await thing.stop()
    assert thing.story == []
    start = anyio.current_time()
    async with thing:
        pass
    assert anyio.current_time() - start < 1
    assert "open" not in thing.story
    await no_task_left(before)


async def test_a_service_stopped_while_it_opens_closes() -> None:
    thing = Thing(opening=60)
    start = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(thing.run)
        await anyio.sleep(1)
        await thing.stop()
    assert anyio.current_time() - start == pytest.approx(1)
    assert thing.story == ["opening", "closing", "closed", "work ended"]


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("way", ["with", "run", "start"])
async def test_a_failure_to_open_is_raised_unwrapped_and_closes(
    way: str, anyio_backend_name: str, no_task_left: Any
) -> None:
    before = running()
    thing = Thing(open_error=OSError("no"))
    if way == "start" and anyio_backend_name == "trio":
        pytest.skip("start() is for asyncio")
    with pytest.raises(OSError, match=r"^no$"):
        if way == "start":
            await thing.start()
        elif way == "run":
            await thing.run()
        else:
            async with thing:
                raise AssertionError
    assert thing.story == ["opening", "closing", "closed", "work ended"]
    await no_task_left(before)


async def test_a_start_that_finds_no_file_descriptor_is_a_connection_error() -> None:
    """Also where no socket is wanted: a module is imported at its first use."""
    with pytest.raises(ConnectionLostError, match=r"^the start failed: .*Too many open files"):
        async with Thing(open_error=OSError(errno.EMFILE, "Too many open files")):
            raise AssertionError


async def test_the_users_exception_is_raised_unwrapped_after_closing(no_task_left: Any) -> None:
    before = running()
    thing = Thing()
    with pytest.raises(ValueError, match=r"^mine$"):
        async with thing:
            raise ValueError("mine")
    assert thing.story == WHOLE
    await no_task_left(before)


async def test_a_failure_to_close_is_logged_and_replaces_no_exception(
    caplog: pytest.LogCaptureFixture, no_task_left: Any
) -> None:
    """The user's exception must be neither replaced nor wrapped."""
    before = running()
    thing = Thing(close_error=OSError("stuck"))
    with pytest.raises(ValueError, match=r"^mine$"):
        async with thing:
            raise ValueError("mine")
    async with Thing(close_error=OSError("stuck")):
        pass
    assert [r.getMessage() for r in caplog.records] == ["closing Thing failed"] * 2
    await no_task_left(before)


async def test_a_crash_of_a_background_task_is_raised_by_the_users_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    thing = Thing()

    async def crash() -> None:
        async with anyio.create_task_group():
            raise OSError("crash")

    thing.background = crash
    async with thing:
        await anyio.sleep(1)
        assert repr(thing.crash) == "OSError('crash')"
    assert thing.story[-2:] == ["closing", "closed"]
    assert [r.getMessage() for r in caplog.records] == ["work failed"]


async def test_an_error_of_the_engine_is_raised_unwrapped_when_the_body_ends(
    no_task_left: Any,
) -> None:
    before = running()
    thing = Thing()

    async def fail() -> None:
        raise OSError("engine")

    async def open_and_fail(tasks: TaskGroup) -> None:
        tasks.start_soon(fail)

    thing._open = open_and_fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match=r"^engine$"):
        async with thing:
            await thing._stopped.wait()
    await no_task_left(before)


# ---------------------------------------------------------------- cancellation


@pytest.mark.parametrize("way", ["with", "run", "start"])
@pytest.mark.parametrize(("opening", "at"), [(60.0, 1.0), (60.0, 0.0), (0.0, 1.0)])
async def test_a_cancelled_service_closes_gracefully(
    way: str, opening: float, at: float, anyio_backend_name: str, no_task_left: Any
) -> None:
    """The close is shielded: otherwise no member could leave the group or commit."""
    if way == "start" and (anyio_backend_name == "trio" or not opening):
        pytest.skip("start() is for asyncio, and returns once open")
    before = running()
    thing = Thing(opening=opening, closing=2)
    start = anyio.current_time()
    with anyio.move_on_after(at) as scope:
        if way == "with":
            async with thing:
                await anyio.sleep_forever()
        elif way == "run":
            await thing.run()
        else:
            await thing.start()
    assert scope.cancelled_caught
    if thing.story:
        assert anyio.current_time() - start == pytest.approx(at + 2)
        assert thing.story[-3:] == ["closing", "closed", "work ended"]
    else:
        assert (at, anyio.current_time() - start) == (0, pytest.approx(0))
    await no_task_left(before)


async def test_a_cancelled_service_closes_forcibly_after_the_close_timeout(
    caplog: pytest.LogCaptureFixture, no_task_left: Any
) -> None:
    before = running()
    thing = Thing(closing=60, close_timeout=3)
    start = anyio.current_time()
    with anyio.move_on_after(1):
        async with thing:
            await anyio.sleep_forever()
    assert anyio.current_time() - start == pytest.approx(4)
    assert thing.story == ["opening", "open", "closing", "work ended"]
    assert [r.getMessage() for r in caplog.records] == ["closed by force after 3 s"]
    await no_task_left(before)


@ASYNCIO_ONLY
async def test_a_task_cancelled_while_it_leaves_still_waits_for_the_close(
    no_task_left: Any,
) -> None:
    before = running()
    thing = Thing(closing=0.1)

    async def use() -> None:
        async with thing:
            pass

    task = asyncio.create_task(use())
    for _ in range(2):
        await asyncio.sleep(0.02)
        task.cancel()
    await asyncio.wait((task,))
    assert (task.cancelled(), thing.story) == (True, WHOLE)
    await no_task_left(before)


@ASYNCIO_ONLY
async def test_a_host_task_cancelled_twice_still_waits_for_the_close(no_task_left: Any) -> None:
    """asyncio.run cancels remaining tasks at its end; the member must still leave its group."""
    before = running()
    thing = Thing(closing=0.05)
    await thing.start()
    assert thing._host_task is not None
    thing._host_task.cancel()
    await asyncio.sleep(0.01)
    thing._host_task.cancel()
    await asyncio.wait((thing._host_task,))
    assert thing.story == WHOLE
    await no_task_left(before)


# ---------------------------------------------------------------- with sockets


@pytest.mark.parametrize("how", ["body", "stop", "cancel", "error"])
async def test_a_consumer_leaves_no_connection_open(
    network: Any, how: str, no_task_left: Any
) -> None:
    from kafkagroup.testing import EmbeddedKafka

    before = running()
    async with network, EmbeddedKafka({"t": 2}, listen=False) as kafka:
        network.serve_embedded(kafka)
        consumer = Consumer("t", bootstrap_servers="kafka-1:9092", group_id="g")
        with anyio.move_on_after(5):
            try:
                async with consumer:
                    with anyio.move_on_after(2):
                        await consumer.getone()
                    assert network.open == 3
                    if how == "stop":
                        await consumer.stop()
                    elif how == "error":
                        raise ValueError
                    elif how == "cancel":
                        await anyio.sleep_forever()
            except ValueError:
                assert how == "error"
        assert network.open == 0
        assert kafka.group_state("g") == "Empty"
    await no_task_left(before)


async def test_a_consumer_without_a_reachable_broker_raises(
    network: Any, no_task_left: Any
) -> None:
    before = running()
    async with network:
        with pytest.raises(NoBrokersAvailableError, match="kafka-1:9092: refused"):
            async with Consumer("t", bootstrap_servers="kafka-1:9092", group_id="g"):
                raise AssertionError
    await no_task_left(before)


async def test_a_fork_ends_the_delivery_lease_of_the_copy(network: Any) -> None:
    """For a millisecond after a record the next one is delivered without checks."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0", "1"])
        async with Consumer("t", bootstrap_servers="kafka-1") as consumer:
            assert (await consumer.getone()).offset == 0
            assert consumer._session.permit.expires_at > anyio.current_time()
            service._on_fork()
            assert consumer._session.permit.expires_at == -math.inf


async def test_a_forked_process_closes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its copies of the tasks sent at the close would be the parent's requests."""
    thing = Thing()
    async with anyio.create_task_group() as tasks:
        await tasks.start(thing.run)
        monkeypatch.setattr(origin, "_forks", origin._forks + 1)
        await thing.stop()
        assert thing.story == ["opening", "open"]
        tasks.cancel_scope.cancel()
    assert thing.story == ["opening", "open", "work ended"]

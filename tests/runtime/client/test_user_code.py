"""CancelledError out of the user's code, as from `worker.cancel(); await worker` in a callback. And
tasks of the library that code of the application cancels."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from conftest import VirtualLoop

from kafkagroup import (
    Consumer,
    DeserializationError,
    Election,
    GroupMember,
    GroupProtocol,
    HealthProblem,
    Shards,
)
from kafkagroup._user_code import is_own_cancellation, user_error
from kafkagroup.assign import GroupSpec, range_assignor
from kafkagroup.assign.spec import named
from kafkagroup.errors import ErrorCode, IllegalStateError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.types import Assignment, TopicPartition
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import HeartbeatRequest

pytestmark = pytest.mark.anyio
ASYNCIO_ONLY = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"loop_factory": VirtualLoop})], ids=["asyncio"]
)

TP = TopicPartition("t", 0)


async def let_out(*_: object) -> Any:
    """Cancel a worker and await it: on asyncio its CancelledError leaves. trio has none, but code
    there may raise it, too."""
    try:
        worker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    except RuntimeError:
        raise asyncio.CancelledError from None
    worker.cancel()
    await worker


def let_out_at_once(*_: object) -> Any:
    raise asyncio.CancelledError


@pytest.fixture
def kafka(network: Any) -> Any:
    @asynccontextmanager
    async def opened() -> AsyncIterator[EmbeddedKafka]:
        async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as broker:
            network.serve_embedded(broker)
            broker.produce("t", ["0", "1", "2"], partition=0)
            with anyio.fail_after(60):
                yield broker

    return opened


def consumer(**options: Any) -> Consumer:
    given = {"bootstrap_servers": "kafka-1", "group_id": "g", "heartbeat_interval_ms": 50}
    return Consumer("t", **{**given, **options})


def member() -> GroupMember:
    protocol = GroupProtocol("mine", "all", b"", lambda members: dict.fromkeys(members, b""))
    return GroupMember("m", protocol, bootstrap_servers="kafka-1")


def election() -> Election:
    return Election("e", bootstrap_servers="kafka-1")


def shards() -> Shards:
    return Shards("s", 4, bootstrap_servers="kafka-1")


def findings(client: Consumer | GroupMember) -> list[HealthProblem]:
    return [finding.problem for finding in client.health().findings]


HEARTBEATS = {"classic": HeartbeatRequest, "consumer": ConsumerGroupHeartbeatRequest}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("callback", [let_out, let_out_at_once])
@pytest.mark.parametrize("which", ["assigned", "revoked", "lost"])
async def test_a_cancellation_out_of_a_listener_is_the_listeners_error(
    kafka: Any, protocol: str, callback: Any, which: str
) -> None:
    """The membership ended, nothing was logged, `getone` waited for ever, and the consumer was
    healthy."""
    given = {f"on_partitions_{which}": callback}
    async with kafka() as broker, consumer(group_protocol=protocol, **given) as c:
        if which == "lost":
            await c.getone()
            broker.fail(HEARTBEATS[protocol], ErrorCode.UNKNOWN_MEMBER_ID)
        elif which == "revoked":
            await c.getone()
            await c.subscribe("u")
        with pytest.raises(RuntimeError, match=r"^a rebalance callback let CancelledError out"):
            while True:
                await c.getone()
        broker.produce("u" if which == "revoked" else "t", ["more"], partition=0)
        assert (await c.getone()).partition == 0
        assert findings(c) == []


async def test_a_cancellation_out_of_an_assignor_fails_the_member(kafka: Any) -> None:
    async with kafka():
        async with consumer(assignors=[named("mine")(let_out_at_once)]) as c:
            with pytest.raises(RuntimeError, match=r"^the assignor 'mine' let CancelledError out"):
                await c.getone()
            assert findings(c) == [HealthProblem.FAILED]
        protocol = GroupProtocol("mine", "even", b"", let_out_at_once)
        async with GroupMember("m", protocol, bootstrap_servers="kafka-1") as member:
            with pytest.raises(RuntimeError, match=r"^the assignor 'even' let CancelledError out"):
                await anext(member)
            assert findings(member) == [HealthProblem.FAILED]


async def test_an_assignor_that_finds_no_file_descriptor_is_called_again(
    kafka: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It imported a module at the wrong moment, and the consumer failed at every later call."""
    errors = [OSError(errno.EMFILE, "Too many open files") for _ in range(2)]

    @named("mine")
    def assignor(spec: GroupSpec) -> Assignment:
        if errors:
            raise errors.pop()
        return range_assignor(spec)

    async with kafka():
        began = anyio.current_time()
        async with consumer(assignors=[assignor]) as c:
            assert (await c.getone()).offset == 0
            assert anyio.current_time() - began == pytest.approx(2.0, abs=0.1)
    assert caplog.text.count("the assignment is computed again in 1 s") == 2


async def test_an_assignor_that_never_finds_a_file_descriptor_fails_its_member(kafka: Any) -> None:
    @named("mine")
    def assignor(spec: GroupSpec) -> Assignment:
        raise OSError(errno.EMFILE, "Too many open files")

    async with kafka(), consumer(assignors=[assignor]) as c:
        with pytest.raises(OSError, match="Too many open files"):
            await c.getone()
        assert findings(c) == [HealthProblem.FAILED]


@pytest.mark.parametrize("loads", [let_out, let_out_at_once])
async def test_a_cancellation_out_of_the_loads_counts_them_all_alike(
    kafka: Any, loads: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with kafka(), consumer(partition_loads=loads) as c:
        assert (await c.getone()).offset == 0
    assert "partition_loads failed, all count as 1.0" in caplog.text


@pytest.mark.parametrize("deserializer", [let_out, let_out_at_once])
async def test_a_cancellation_out_of_a_deserializer_is_its_error(
    kafka: Any, deserializer: Any
) -> None:
    """`getone` let it out, and the task of the application ended in silence."""
    async with kafka(), consumer(value_deserializer=deserializer) as c:
        for _ in range(2):
            with pytest.raises(DeserializationError) as caught:
                await c.getone()
            assert isinstance(caught.value.__cause__, asyncio.CancelledError)
            assert caught.value.record.offset == 0
        assert await c.position(TP) == 0


@pytest.mark.parametrize("deserializer", [let_out, let_out_at_once])
@pytest.mark.parametrize("handler", [let_out, let_out_at_once])
async def test_a_cancellation_out_of_the_handler_of_bad_records_is_its_error(
    kafka: Any, deserializer: Any, handler: Any
) -> None:
    given = {"value_deserializer": deserializer, "on_deserialization_error": handler}
    async with kafka(), consumer(**given) as c:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"^on_deserialization_error let Cancelled"):
                await c.getone()
        assert await c.position(TP) == 0


async def test_a_cancelled_deserializer_is_no_error(kafka: Any) -> None:
    async def slow(data: bytes) -> bytes:
        await anyio.sleep(len(started) == 0 and 60)
        started.append(data)
        return data

    started: list[bytes] = []
    async with kafka(), consumer(value_deserializer=slow) as c:
        with anyio.move_on_after(10) as scope:
            await c.getone()
        assert scope.cancelled_caught
        started.append(b"")
        assert (await c.getone()).value == b"0"


# ---------------------------------------------------------------- cancelled by other code


def cancel_tasks(*names: str) -> None:
    for task in asyncio.all_tasks():
        if task.get_name() in names:
            task.cancel()


@ASYNCIO_ONLY
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_listener_that_cancels_its_own_task_fails_the_consumer(
    kafka: Any, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def cancel(_: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async with kafka():
        async with consumer(group_protocol=protocol, on_partitions_assigned=cancel) as c:
            for _ in range(2):
                with pytest.raises(IllegalStateError, match="nothing has requested it"):
                    await c.getone()
            assert findings(c) == [HealthProblem.FAILED]
    assert "membership failed" in caplog.text


@ASYNCIO_ONLY
async def test_a_task_that_other_code_cancels_fails_the_consumer(kafka: Any) -> None:
    """Some programs cancel all tasks that they do not know."""
    async with kafka(), consumer() as c:
        await c.getone()
        cancel_tasks("kafkagroup membership")
        with pytest.raises(IllegalStateError, match="membership has ended, and nothing has"):
            while True:
                await c.getone()
        assert findings(c) == [HealthProblem.FAILED]


@ASYNCIO_ONLY
async def test_a_connection_that_other_code_cancels_fails_the_consumer(kafka: Any) -> None:
    """anyio ended all tasks with it, and the iteration ended as after a stop."""
    async with kafka():
        c = consumer()
        with pytest.raises(IllegalStateError, match="the client has ended, and nothing has"):
            async with c:
                await c.getone()
                for task in asyncio.all_tasks():
                    if "kafkagroup connection" in task.get_name():
                        task.cancel()
                with pytest.raises(IllegalStateError, match="the client has ended"):
                    async for _ in c:
                        pass
                with pytest.raises(IllegalStateError, match="the client has ended"):
                    await c.getone()
                assert not c.health()


async def cancel_all_tasks() -> None:
    """Cancel all tasks of the client, but not those of the broker, which are in this loop, too."""
    found = {
        task
        for task in asyncio.all_tasks()
        if task.get_name().startswith(("kafkagroup ", "kafkagroup.runtime"))
        or getattr(task.get_coro(), "__qualname__", "").startswith("Service._run")
    }
    for task in found:
        task.cancel()
    await asyncio.wait(found)


@ASYNCIO_ONLY
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("enter", ["start", "__aenter__"])
async def test_a_consumer_whose_tasks_are_all_cancelled_has_not_been_stopped(
    kafka: Any, protocol: str, enter: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers and test cases may cancel all tasks of a loop. `async for` ended as after a stop,
    without a word: a service looked as if it had nothing to do."""
    async with kafka():
        c = consumer(group_protocol=protocol)
        await getattr(c, enter)()
        await c.getone()
        await cancel_all_tasks()
        with pytest.raises(IllegalStateError, match="the client has ended, and nothing has"):
            async for _ in c:
                pass
        for call in (c.getone, c.commit):
            with pytest.raises(IllegalStateError, match="the client has ended, and nothing has"):
                await call()
        assert findings(c) == [HealthProblem.FAILED]
        await c.stop()
    assert ("was never stopped" in caplog.text) == (enter == "start")


@ASYNCIO_ONLY
async def test_after_a_connection_was_cancelled_the_consumer_has_not_been_stopped(
    kafka: Any,
) -> None:
    """Once all was closed, calls raised that the consumer was closed, and not why."""
    async with kafka():
        c = consumer()
        await c.start()
        await c.getone()
        cancelled = [t for t in asyncio.all_tasks() if "kafkagroup connection" in t.get_name()]
        for task in cancelled:
            task.cancel()
        await asyncio.sleep(10)
        with pytest.raises(IllegalStateError, match="the client has ended, and nothing has"):
            async for _ in c:
                pass
        assert findings(c) == [HealthProblem.FAILED]
        await c.stop()


@ASYNCIO_ONLY
@pytest.mark.parametrize("make", [member, election, shards])
async def test_a_member_whose_tasks_are_all_cancelled_has_not_been_stopped(
    kafka: Any, make: Any
) -> None:
    async with kafka():
        m = make()
        await m.start()
        await anext(m)
        await cancel_all_tasks()
        for _ in range(2):
            with pytest.raises(IllegalStateError, match="the client has ended, and nothing has"):
                await anext(m)
        await m.stop()


@ASYNCIO_ONLY
@pytest.mark.parametrize("make", [member, election, shards])
async def test_a_task_that_other_code_cancels_fails_the_member(kafka: Any, make: Any) -> None:
    async with kafka(), make() as m:
        await anext(m)
        cancel_tasks("kafkagroup membership")
        for _ in range(2):
            with pytest.raises(IllegalStateError, match="membership has ended, and nothing has"):
                await anext(m)


@ASYNCIO_ONLY
async def test_only_the_current_tasks_cancellation_is_its_own() -> None:
    async def caught(awaited: Any) -> asyncio.CancelledError:
        try:
            await awaited
        except asyncio.CancelledError as error:
            owns.append(is_own_cancellation(error))
            return error
        raise AssertionError

    owns: list[bool] = []
    task = asyncio.create_task(caught(asyncio.sleep(1)))
    await asyncio.sleep(0)
    task.cancel()
    await task
    await caught(let_out())
    with anyio.CancelScope() as scope:
        scope.cancel()
        await caught(anyio.sleep(1))
    assert owns == [True, False, True]
    assert not is_own_cancellation(ValueError())


def test_errors_of_the_user_stay_as_they_are() -> None:
    error = ValueError("mine")
    assert user_error(error, "it") is error
    cancelled = asyncio.CancelledError()
    failure = user_error(cancelled, "it")
    assert (type(failure), failure.__cause__) == (RuntimeError, cancelled)

"""Which task processes the records in flight, and calls that wait for the group in that task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer, TopicPartition
from kafkagroup.runtime.consume.processing import Processing
from kafkagroup.testing import EmbeddedKafka

pytestmark = pytest.mark.anyio

T, U = TopicPartition("t", 0), TopicPartition("u", 0)


def make(*topics: str, **options: Any) -> Consumer:
    options = {"heartbeat_interval_ms": 100, "auto_commit_interval_ms": 600_000, **options}
    return Consumer(*topics, bootstrap_servers="kafka-1:9092", group_id="g", **options)


@asynccontextmanager
async def broker(network: Any) -> AsyncIterator[EmbeddedKafka]:
    """Provide a broker with 10 records in each of the topics t and u."""
    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        for topic in ("t", "u"):
            kafka.produce(topic, [b"%d" % n for n in range(10)], partition=0)
        with anyio.fail_after(300):
            yield kafka


async def taken_by_a_task_that_ends(consumer: Consumer, count: int = 1) -> None:
    """Have another task take records, and end, as `asyncio.wait_for` does on Python 3.11."""

    async def take() -> None:
        for _ in range(count):
            await consumer.getone()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)


# ---------------------------------------------------------------- a task that waits for the group


async def test_a_subscription_does_not_wait_for_the_record_of_its_own_task(
    network: Any, kind: dict[str, Any]
) -> None:
    """`getone()`, `subscribe()` and `wait_assignment()`, one after the other: the revocation waited
    for the record of the task that waited for the revocation, and nothing happened for 90 s."""
    async with broker(network) as kafka, make("t", **kind) as consumer:
        assert [(await consumer.getone()).offset for _ in range(3)] == [0, 1, 2]
        start = anyio.current_time()
        await consumer.subscribe("u")
        assert await consumer.wait_assignment() == {U}
        assert anyio.current_time() - start < 5
        # The third record was in flight, and does not count as processed.
        assert kafka.committed("g", "t") == {0: 2}
        assert (await consumer.getone()).offset == 0


@pytest.mark.parametrize("call", ["unsubscribe", "assign"])
async def test_leaving_does_not_wait_for_the_record_of_its_own_task(
    network: Any, kind: dict[str, Any], call: str
) -> None:
    async with broker(network) as kafka, make("t", **kind) as consumer:
        assert [(await consumer.getone()).offset for _ in range(3)] == [0, 1, 2]
        start = anyio.current_time()
        await consumer.unsubscribe()
        if call == "assign":
            await consumer.assign([T])
            assert [(await consumer.getone()).offset for _ in range(3)] == [2, 3, 4]
            await consumer.assign([U])
        assert anyio.current_time() - start < 1
        assert kafka.committed("g", "t") == {0: 2 if call == "unsubscribe" else 4}


async def test_a_record_stays_in_flight_while_other_partitions_are_assigned(network: Any) -> None:
    """A call that changes nothing about its partition must not lose the record for `commit()`."""
    async with broker(network) as kafka, make() as consumer:
        await consumer.assign([T])
        assert (await consumer.getone()).offset == 0
        await consumer.assign([T, U])
        await consumer.commit()
        assert kafka.committed("g", "t") == {0: 1}


async def test_a_rebalance_waits_for_the_record_of_a_task_that_gave_up_waiting(
    network: Any, kind: dict[str, Any]
) -> None:
    """Only while it waits for the group, the task processes nothing."""
    async with broker(network) as kafka, make("t", **kind) as consumer:
        assert (await consumer.getone()).offset == 0
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            with anyio.move_on_after(0.0):
                await consumer.subscribe("u")
            tasks.start_soon(consumer.wait_assignment)
            await anyio.sleep(2)
            await consumer.commit()
        assert 2 <= anyio.current_time() - start < 7
        assert kafka.committed("g", "t") == {0: 1}


async def test_a_task_that_begins_to_wait_ends_a_revocations_wait(
    network: Any, kind: dict[str, Any]
) -> None:
    async with broker(network), make("t", **kind) as consumer:
        assert (await consumer.getone()).offset == 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.subscribe, "u")
            await anyio.sleep(2)
            start = anyio.current_time()
            assert await consumer.wait_assignment() == {U}
        assert anyio.current_time() - start < 5


# ---------------------------------------------------------------- a task that has ended


@pytest.mark.parametrize("how", ["ended", "failed", "cancelled"])
async def test_closing_does_not_wait_for_a_task_that_has_ended(
    network: Any, kind: dict[str, Any], how: str
) -> None:
    """A web service whose worker had died took 5 s to stop: the close waited for the record that
    the worker had taken."""

    async def work() -> None:
        for _ in range(3):
            await consumer.getone()
        if how == "failed":
            raise RuntimeError
        if how == "cancelled":
            await anyio.sleep_forever()

    async with broker(network) as kafka, make("t", **kind) as consumer:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work)
                await anyio.sleep(1)
                tasks.cancel_scope.cancel()
        except ExceptionGroup:
            assert how == "failed"
        start = anyio.current_time()
        await consumer.stop()
        assert anyio.current_time() - start < 0.5
        assert kafka.committed("g", "t") == {0: 2}


async def test_closing_ends_its_wait_when_the_task_ends(network: Any) -> None:
    async def work() -> None:
        async for _ in consumer:
            await anyio.sleep(2)
            return

    async with broker(network), make("t") as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await anyio.sleep(1)
        start = anyio.current_time()
        await consumer.stop()
        assert 0.5 < anyio.current_time() - start < 1.5


async def test_a_rebalance_does_not_wait_for_a_task_that_has_ended(
    network: Any, kind: dict[str, Any]
) -> None:
    async with broker(network) as kafka, make("t", **kind) as consumer:
        await taken_by_a_task_that_ends(consumer, 3)
        start = anyio.current_time()
        await consumer.subscribe("u")
        await consumer.wait_assignment()
        assert anyio.current_time() - start < 5
        assert kafka.committed("g", "t") == {0: 2}


async def test_the_next_poll_processes_the_record_of_a_task_that_has_ended(network: Any) -> None:
    """The caller of `asyncio.wait_for` polls in one short-lived task after the other."""
    async with broker(network) as kafka, make("t") as consumer:
        for _ in range(3):
            await taken_by_a_task_that_ends(consumer)
        await consumer.commit()
        assert kafka.committed("g", "t") == {0: 3}


# ---------------------------------------------------------------- several tasks


Poll = Callable[[Consumer], Callable[[], Awaitable[Any]]]

POLLS: dict[str, Poll] = {
    "getone": lambda consumer: consumer.getone,
    "iterator": lambda consumer: aiter(consumer).__anext__,
    "getmany": lambda consumer: partial(consumer.getmany, 1, 10.0),
    "batches": lambda consumer: aiter(consumer.batches(1)).__anext__,
}


@pytest.mark.parametrize("first", POLLS)
@pytest.mark.parametrize("second", POLLS)
async def test_the_record_is_that_of_the_task_that_polled_last(
    network: Any, first: str, second: str
) -> None:
    """Within the millisecond in which records need no checks, too: the time is virtual here."""

    async def end() -> None:
        await POLLS[first](consumer)()

    async def work() -> None:
        await POLLS[second](consumer)()
        await anyio.sleep(1)
        await consumer.commit()

    async with broker(network) as kafka, make("t") as consumer:
        one = POLLS[first](consumer)
        await one()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await anyio.sleep(0.5)
            await consumer.subscribe("u")
            await consumer.wait_assignment()
        assert kafka.committed("g", "t") == {0: 3}


@pytest.mark.parametrize("poll", POLLS)
async def test_a_task_that_polls_after_another_may_wait_for_the_group(
    network: Any, poll: str
) -> None:
    async with broker(network) as kafka, make("t") as consumer:
        once_more = POLLS[poll](consumer)
        has_polled = anyio.Event()

        async def other() -> None:
            await consumer.getone()
            has_polled.set()
            await anyio.sleep(20)

        async with anyio.create_task_group() as tasks:
            await once_more()
            tasks.start_soon(other)
            await has_polled.wait()
            await once_more()
            start = anyio.current_time()
            await consumer.subscribe("u")
            assert await consumer.wait_assignment() == {U}
            assert anyio.current_time() - start < 5
        assert kafka.committed("g", "t") == {0: 2}


async def test_only_a_task_processes_records() -> None:
    """A callback of the loop runs outside of tasks."""
    processing = Processing()
    processing.bind()
    assert (processing.note_poller(), processing.note_poller()) == (True, False)
    task = processing.task()
    assert (processing.is_by_caller, processing.may_end) == (True, True)
    processing.current = lambda: None
    assert (processing.note_poller(), processing.is_by_caller) == (False, False)
    assert processing.task() is task

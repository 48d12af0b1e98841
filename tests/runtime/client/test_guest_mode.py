"""Clients on trio in guest mode, where a loop of asyncio runs in the same thread. Real time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio

from kafkagroup import Consumer, GroupMember, GroupProtocol, Producer
from kafkagroup._backend import asyncio_loop
from kafkagroup.errors import IllegalStateError
from kafkagroup.runtime.consume.processing import Processing
from kafkagroup.testing import EmbeddedKafka

PROTOCOL = GroupProtocol("work", "all", b"", lambda members: dict.fromkeys(members, b""))


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"t": 1}) as broker:
        broker.produce("t", ["0", "1"])
        yield broker


async def as_guest(function: Callable[[], Awaitable[None]]) -> None:
    """Run an async function on trio, as a guest of this loop."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    trio.lowlevel.start_guest_run(
        function,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=done.set_result,
    )
    (await asyncio.wait_for(done, 30)).unwrap()


@pytest.mark.parametrize("threaded", [False, True])
def test_clients_work_on_trio_as_a_guest(kafka: EmbeddedKafka, threaded: bool) -> None:
    """trio's tasks were given futures of asyncio, and the first wait raised TypeError."""
    given = {"bootstrap_servers": kafka.bootstrap_servers, "heartbeat_thread": threaded}

    async def guest() -> None:
        assert asyncio_loop() is None
        async with Consumer("t", group_id="g", **given) as consumer:
            offsets = [(await consumer.getone()).offset for _ in range(2)]
            assert offsets == [0, 1]
            await consumer.commit()
            with pytest.raises(IllegalStateError, match="on trio use `async with`"):
                await Consumer("t", **given).start()
        async with GroupMember("m", PROTOCOL, **given) as member:
            assert (await anext(member)).is_leader

    asyncio.run(as_guest(guest))
    assert kafka.committed("g", "t") == {0: 2}
    assert {kafka.group_state(group) for group in "gm"} <= {"Empty", "Dead"}


def test_the_task_of_a_guest_is_known() -> None:
    """It was looked for among the tasks of asyncio: a rebalance did not wait for its record."""
    seen: list[bool] = []

    async def guest() -> None:
        processing = Processing()
        processing.bind()
        processing.note_poller()
        await trio.lowlevel.checkpoint()
        seen.extend((processing.is_by_caller, processing.may_end))

    asyncio.run(as_guest(guest))
    assert seen == [True, True]


def test_clients_of_both_loops_in_one_thread(kafka: EmbeddedKafka) -> None:
    """In between trio's tasks, the loop of asyncio runs its own."""
    servers = kafka.bootstrap_servers

    async def guest() -> None:
        async with Consumer("t", bootstrap_servers=servers, group_id="guest") as consumer:
            assert (await consumer.getone()).offset == 0

    async def main() -> None:
        async with Consumer("t", bootstrap_servers=servers, group_id="host") as consumer:
            assert (await consumer.getone()).offset == 0
            await as_guest(guest)
            assert (await consumer.getone()).offset == 1

    asyncio.run(main())


def test_a_guest_cannot_write_with_a_producer_of_its_host(kafka: EmbeddedKafka) -> None:
    """Its record was accepted, and then the task could not wait for it: TypeError."""

    async def main() -> None:
        servers = kafka.bootstrap_servers
        async with Producer(bootstrap_servers=servers, linger_ms=100) as producer:
            await producer.send("t", b"2")

            async def guest() -> None:
                with pytest.raises(IllegalStateError, match="only in the event loop"):
                    await producer.send("t", b"4")

            producer.send_nowait("t", b"3")  # the next record opens no batch
            await as_guest(guest)

    asyncio.run(main())
    assert kafka.log_end("t", 0) == 4

"""`closed`: the end of loops that take records until the client is stopped, on an embedded broker
in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup import (
    Admin,
    ClosedError,
    Consumer,
    Election,
    GroupMember,
    GroupProtocol,
    Producer,
    Shards,
)
from kafkagroup.errors import ErrorCode, FencedError, NotStartedError
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.wire.messages.group import HeartbeatRequest

pytestmark = pytest.mark.anyio

WORK = GroupProtocol("work", "all", b"", lambda members: dict.fromkeys(members, b""))


@asynccontextmanager
async def cluster(network: Any) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(60):
            yield kafka


def consumer(**options: Any) -> Consumer:
    return Consumer("t", bootstrap_servers="kafka-1", **options)


async def take(one: Consumer, taken: list[int], processing: float = 0.0) -> None:
    """Take records as the docs show it, until the consumer is stopped from elsewhere."""
    while not one.closed:
        for records in (await one.getmany(timeout=10.0)).values():
            await anyio.sleep(processing)
            taken += [record.offset for record in records]


@pytest.mark.parametrize("group", [{}, {"group_id": "g"}])
async def test_a_loop_that_waits_ends_when_the_consumer_is_stopped(
    network: Any, group: dict[str, Any]
) -> None:
    taken: list[int] = []
    async with cluster(network) as kafka, consumer(**group) as ours:
        kafka.produce("t", ["0", "1"], partition=0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, ours, taken)
            await anyio.sleep(5.0)
            assert (taken, ours.closed) == ([0, 1], False)
            stopped_at = anyio.current_time()
            await ours.stop()
        assert anyio.current_time() - stopped_at < 1.0
        assert ours.closed
        with pytest.raises(ClosedError):
            await ours.getmany()


async def test_a_loop_that_processes_commits_its_last_records(network: Any) -> None:
    """A loop that ended at once would leave them uncommitted, and another member would process them
    again."""
    taken: list[int] = []
    async with cluster(network) as kafka, consumer(group_id="g") as ours:
        kafka.produce("t", ["0", "1"], partition=0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, ours, taken, 3.0)
            await anyio.sleep(2.0)
            await ours.stop()
            assert (taken, kafka.committed("g", "t")) == ([0, 1], {0: 2})


async def test_a_loop_that_processes_for_too_long_ends(network: Any) -> None:
    """The close does not wait for it: another member processes the records again."""
    taken: list[int] = []
    async with cluster(network) as kafka, consumer(group_id="g", close_timeout=4.0) as ours:
        kafka.produce("t", ["0", "1"], partition=0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, ours, taken, 20.0)
            await anyio.sleep(2.0)
            await ours.stop()
            assert (taken, kafka.committed("g", "t")) == ([], {0: 0})
        assert taken == [0, 1]


async def test_a_stop_in_the_loop_ends_it(network: Any) -> None:
    taken: list[int] = []
    async with cluster(network) as kafka, consumer(group_id="g") as ours:
        kafka.produce("t", ["0", "1"], partition=0)
        while not ours.closed:
            for records in (await ours.getmany(timeout=1.0)).values():
                taken += [record.offset for record in records]
                await ours.stop()
        assert taken == [0, 1]


async def test_an_error_still_ends_the_loop(network: Any) -> None:
    async with cluster(network) as kafka, consumer(group_id="g", group_instance_id="i") as ours:
        await ours.wait_assignment()
        kafka.fail(HeartbeatRequest, ErrorCode.FENCED_INSTANCE_ID)
        with pytest.raises(FencedError):
            await take(ours, [])
        assert not ours.closed


async def test_a_consumer_that_was_not_started_is_not_closed() -> None:
    ours = consumer()
    assert not ours.closed
    with pytest.raises(NotStartedError):
        await ours.getmany()


@pytest.mark.parametrize(
    "client",
    [
        lambda **options: Admin(**options),
        lambda **options: Producer(**options),
        lambda **options: GroupMember("g", WORK, **options),
        lambda **options: Election("g", **options),
        lambda **options: Shards("g", 2, **options),
    ],
)
async def test_other_clients_tell_whether_they_are_closed(network: Any, client: Any) -> None:
    async with cluster(network):
        ours = client(bootstrap_servers="kafka-1")
        states = [ours.closed]
        async with ours:
            states.append(ours.closed)
        assert [*states, ours.closed] == [False, False, True]

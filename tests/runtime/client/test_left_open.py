"""Errors of clients that were never started, and warnings about clients that were never stopped."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from kafkagroup import (
    Admin,
    Consumer,
    Election,
    GroupMember,
    GroupProtocol,
    Producer,
    Shards,
)
from kafkagroup.errors import NotStartedError
from kafkagroup.runtime.client.service import Service
from kafkagroup.testing import EmbeddedKafka

PROTOCOL = GroupProtocol("work", "all", b"", lambda members: {})

# ---------------------------------------------------------------- never started


def calls(consumer: Consumer) -> list[Callable[[], Awaitable[object]]]:
    """Return every way to request records."""
    return [
        consumer.getone,
        consumer.getmany,
        lambda: anext(consumer),
        lambda: anext(aiter(consumer)),
        lambda: anext(consumer.batches()),
        lambda: anext(consumer.batches(arrow=True)),
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("number", range(6))
async def test_a_consumer_that_was_never_started_raises(number: int) -> None:
    """The iteration ended without an error, as after a stop, and the process exited with 0."""
    with pytest.raises(NotStartedError, match="not started; use `async with` or start"):
        await calls(Consumer("t"))[number]()


@pytest.mark.anyio
async def test_iterating_a_stopped_client_ends_without_an_error(network: Any) -> None:
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka, 1)
        consumer = Consumer("t", bootstrap_servers="kafka-1")
        async with consumer:
            pass
        assert [record async for record in consumer] == []
        assert [batch async for batch in consumer.batches()] == []
        assert [batch async for batch in consumer.batches(arrow=True)] == []


@pytest.mark.anyio
async def test_a_member_that_was_never_started_raises() -> None:
    """It waited without end."""
    member, election = GroupMember("g", PROTOCOL), Election("g")
    waiting: list[Callable[[], Awaitable[object]]] = [
        lambda: anext(member),
        lambda: anext(aiter(election)),
        lambda: anext(aiter(Shards("g", 4))),
    ]
    for wait in waiting:
        with anyio.fail_after(5), pytest.raises(NotStartedError):
            await wait()


# ---------------------------------------------------------------- never stopped


class Thing(Service):
    def __init__(self) -> None:
        super().__init__(5.0, "number=1")
        self.story: list[str] = []

    async def _open(self, tasks: TaskGroup) -> None:
        self.story.append("open")

    async def _close(self) -> None:
        self.story.append("closed")

    def _crashed(self, error: Exception) -> None:
        raise AssertionError


LEFT_OPEN = "Thing(number=1) was never stopped; use `async with`, or await stop()"


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_a_client_open_when_the_loop_ends_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    thing = Thing()
    with pytest.warns(ResourceWarning) as caught:
        asyncio.run(thing.start())
    assert [str(one.message) for one in caught] == [LEFT_OPEN]
    assert caught[0].source is thing
    assert warned(caplog) == [LEFT_OPEN]
    assert thing.story == ["open", "closed"]


def test_in_debug_mode_the_warning_shows_where_the_client_was_started(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def somewhere() -> None:
        await Thing().start()

    with pytest.warns(ResourceWarning):
        asyncio.run(somewhere(), debug=True)
    (warning,) = (line for line in warned(caplog) if line.startswith(LEFT_OPEN))
    assert "it was started here:\n" in warning
    assert "in somewhere\n    await Thing().start()" in warning


async def stopped() -> None:
    thing = Thing()
    await thing.start()
    await thing.stop()


async def stopped_while_the_loop_ends() -> None:
    thing = Thing()
    await thing.start()
    thing._request_stop()  # as stop() in a callback does, which does not wait


async def in_a_block() -> None:
    async with Thing():
        pass


async def in_a_task_group() -> None:
    async with anyio.create_task_group() as tasks:
        await tasks.start(Thing().run)
        tasks.cancel_scope.cancel()


async def cancelled_while_it_starts() -> None:
    thing = Thing()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await thing.start()


async def never_started() -> None:
    Thing()


@pytest.mark.parametrize(
    "story",
    [
        stopped,
        stopped_while_the_loop_ends,
        in_a_block,
        in_a_task_group,
        cancelled_while_it_starts,
        never_started,
    ],
)
def test_a_closed_consumer_causes_no_warning(
    story: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Warnings are errors in these tests."""
    asyncio.run(story())
    assert warned(caplog) == []


PROGRAM = """
import asyncio, logging, sys
from kafkagroup import Admin, Consumer, GroupMember, GroupProtocol
from kafkagroup import Producer
from kafkagroup.testing import EmbeddedKafka

logging.basicConfig(format="logged: %(message)s")

async def main(client):
    await client.start()

with EmbeddedKafka({"t": 1}) as kafka:
    client = {CLIENT}
    if sys.argv[1] == "run":
        asyncio.run(main(client))
    else:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main(client))
        if sys.argv[1] == "close":
            loop.close()
print("the end")
"""
CLIENTS = {
    "Consumer(group_id='g', client_id='c')": (
        "Consumer('t', group_id='g', client_id='c', {SERVERS})"
    ),
    "GroupMember(group_id='g', client_id='kafkagroup')": (
        "GroupMember('g', GroupProtocol('work', 'all', b'', dict), {SERVERS})"
    ),
    "Admin(client_id='kafkagroup')": "Admin({SERVERS})",
    "Producer(client_id='kafkagroup')": "Producer({SERVERS})",
}


@pytest.mark.parametrize("end", ["run", "close", "exit"])
@pytest.mark.parametrize("client", CLIENTS)
def test_each_open_client_is_warned_about_once_however_its_loop_ends(client: str, end: str) -> None:
    made = CLIENTS[client].format(SERVERS="bootstrap_servers=kafka.bootstrap_servers")
    program = PROGRAM.replace("{CLIENT}", made)
    done = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", program, end],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    warning = f"{client} was never stopped; use `async with`, or await stop()"
    assert done.stdout == "the end\n"
    assert done.stderr.count(f"logged: {warning}\n") == 1
    assert done.stderr.count(f"ResourceWarning: {warning}\n") == 1


def test_the_repr_of_a_client_names_it() -> None:
    assert repr(Consumer(client_id="c")) == "Consumer(group_id=None, client_id='c')"
    assert repr(GroupMember("g", PROTOCOL)) == "GroupMember(group_id='g', client_id='kafkagroup')"
    assert repr(Admin()) == "Admin(client_id='kafkagroup')"
    assert repr(Producer()) == "Producer(client_id='kafkagroup')"

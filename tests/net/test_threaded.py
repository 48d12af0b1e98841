"""Heartbeats in a thread of their own, while the application's loop stands still.

Threads and sockets are real, so time is: sessions are as short as the machine allows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer, FencedError, GroupMember, GroupProtocol
from kafkagroup.errors import BrokerError, ErrorCode
from kafkagroup.net.lag import LoopLag
from kafkagroup.testing.embedded import BrokerSettings, EmbeddedKafka
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest

pytestmark = pytest.mark.anyio

SESSION = 0.6
NAME = "kafkagroup heartbeats"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    settings = BrokerSettings(group_min_session_timeout=0.1)
    with EmbeddedKafka({"t": 2}, settings=settings) as broker:
        for partition in range(2):
            broker.produce("t", [f"{n}" for n in range(100)], partition=partition)
        yield broker


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert threads() == 0


def threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


class Told:
    """A consumer, and what it was told."""

    def __init__(self, kafka: EmbeddedKafka, **options: Any) -> None:
        self.story: list[str] = []
        self.consumer = Consumer(
            "t",
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="g",
            on_partitions_assigned=lambda _: self.story.append("assigned"),
            on_partitions_revoked=lambda _: self.story.append("revoked"),
            on_partitions_lost=lambda _: self.story.append("lost"),
            **{
                "heartbeat_thread": True,
                "session_timeout_ms": int(SESSION * 1000),
                "heartbeat_interval_ms": 50,
                **options,
            },
        )

    def generation(self) -> int:
        return self.consumer.group_metadata().generation_id


async def until(condition: Any) -> None:
    with anyio.fail_after(20):
        while not condition():
            await anyio.sleep(0.005)


def until_blocking(condition: Any) -> None:
    """As `until`, with the loop blocked."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("threaded", [True, False])
async def test_a_blocked_loop_costs_no_membership(kafka: EmbeddedKafka, threaded: bool) -> None:
    told = Told(kafka, heartbeat_thread=threaded)
    async with told.consumer as consumer:
        first = await consumer.getone()
        before = told.generation()
        time.sleep(2 * SESSION)
        second = await consumer.getone()
        await consumer.commit()
        joins = len(kafka.requests(JoinGroupRequest))
        if threaded:
            assert (told.story, told.generation()) == (["assigned"], before)
            assert (second.partition, second.offset) == (first.partition, 1)
        else:
            await until(lambda: told.generation() > before)
            assert told.story == ["assigned", "lost", "assigned"]
    assert joins == len(kafka.requests(JoinGroupRequest)) or not threaded
    assert told.story[-1] == "revoked"
    assert len(kafka.requests(LeaveGroupRequest)) == 1


async def test_a_loop_blocked_past_max_poll_leaves_at_once_and_comes_back(
    kafka: EmbeddedKafka,
) -> None:
    told = Told(kafka, max_poll_interval_ms=300, session_timeout_ms=30_000)
    async with told.consumer as consumer:
        await consumer.getone()
        until_blocking(lambda: kafka.group_state("g") == "Empty")
        assert len(kafka.requests(LeaveGroupRequest)) == 1
        assert told.story == ["assigned"]
        with anyio.fail_after(20):
            await consumer.getone()
        assert told.story == ["assigned", "lost", "assigned"]
    assert len(kafka.requests(LeaveGroupRequest)) == 2


async def test_waiting_in_the_client_does_not_excuse_a_blocked_loop(kafka: EmbeddedKafka) -> None:
    told = Told(kafka, max_poll_interval_ms=1_500, auto_offset_reset="latest")
    seen: list[int] = []

    async def read() -> None:
        async for record in told.consumer:
            seen.append(record.offset)

    async with told.consumer as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await until(lambda: told.story == ["assigned"])
        await consumer.seek_to_end()
        await anyio.sleep(2)  # that long it may wait
        assert (told.story, len(kafka.requests(LeaveGroupRequest))) == (["assigned"], 0)
        until_blocking(lambda: kafka.group_state("g") == "Empty")
        await until(lambda: told.story == ["assigned", "lost", "assigned"])
        await consumer.stop()
    assert seen == []


async def test_a_revocation_waits_for_a_blocked_loop(kafka: EmbeddedKafka) -> None:
    first = Told(kafka, session_timeout_ms=300)
    second = Told(kafka)
    async with first.consumer as consumer, anyio.create_task_group() as tasks:
        record = await consumer.getone()
        await anyio.sleep(0)
        start_elsewhere(second.consumer)
        tasks.start_soon(second.consumer.run)
        await until(lambda: len(kafka.requests(JoinGroupRequest)) >= 3)

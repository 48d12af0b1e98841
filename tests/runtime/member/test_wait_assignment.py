"""`wait_assignment()` after `subscribe()`: what the group assigns by the new subscription."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from rebalance_kinds import KINDS
from zookeeper.fake_sessions import fake_sessions

from kafkagroup import Consumer, TopicPartition, ZooKeeperMembership
from kafkagroup.testing import EmbeddedKafka

pytestmark = pytest.mark.anyio

T, U = TopicPartition("t", 0), TopicPartition("u", 0)


@pytest.fixture(params=[*KINDS, "zookeeper"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options of each kind in turn, and those of a member in ZooKeeper."""
    if request.param != "zookeeper":
        return KINDS[request.param]
    fake_sessions(monkeypatch, begin_at_once=True)
    return {"membership": ZooKeeperMembership("zk:2181")}


def make(*topics: str, **options: Any) -> Consumer:
    return Consumer(*topics, bootstrap_servers="kafka-1:9092", group_id="g", **options)


@asynccontextmanager
async def broker(network: Any) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(300):
            yield kafka


@pytest.mark.parametrize(
    ("topics", "pattern", "found"),
    [
        (("u",), None, {U}),
        (("t", "u"), None, {T, U}),
        (("t",), None, {T}),
        (("missing",), None, set()),
        (("t", "missing"), None, {T}),
        ((), "u", {U}),
        ((), "t|u", {T, U}),
        ((), "t", {T}),
    ],
)
async def test_the_assignment_is_that_of_the_last_subscription(
    network: Any, kind: dict[str, Any], topics: Any, pattern: str | None, found: set[TopicPartition]
) -> None:
    """The member had its assignment still, as the request for another one was not sent yet: a
    caller that read `u` next got the partitions of `t`."""
    async with broker(network), make("t", **kind) as consumer:
        assert await consumer.wait_assignment() == {T}
        start = anyio.current_time()
        await consumer.subscribe(*topics, pattern=pattern)
        assert await consumer.wait_assignment() == found
        assert anyio.current_time() - start < 10
        await anyio.sleep(30)
        assert consumer.assignment() == found
        assert await consumer.wait_assignment() == found


async def test_the_last_of_two_subscriptions_counts(network: Any, kind: dict[str, Any]) -> None:
    async with broker(network), make("t", **kind) as consumer:
        assert await consumer.wait_assignment() == {T}
        await consumer.subscribe("u")
        await consumer.subscribe("t", "u")
        assert await consumer.wait_assignment() == {T, U}
        await consumer.subscribe("u")
        await consumer.subscribe("t")
        assert await consumer.wait_assignment() == {T}


async def test_a_subscription_before_the_first_assignment_counts(
    network: Any, kind: dict[str, Any]
) -> None:
    async with broker(network), make("t", **kind) as consumer:
        await consumer.subscribe("u")
        assert await consumer.wait_assignment() == {U}


async def test_a_subscription_while_an_assignment_is_applied_counts(
    network: Any, kind: dict[str, Any]
) -> None:
    """The earlier assignment's callback returns after the subscription was changed."""
    story: list[str] = []

    async def assigned(partitions: list[TopicPartition]) -> None:
        story.append("begins")
        await anyio.sleep(2)
        story.append("ends")

    consumer = make("t", on_partitions_assigned=assigned, **kind)
    async with broker(network), consumer:
        await anyio.sleep(1)
        await consumer.subscribe("u")
        assert story == ["begins"]
        assert await consumer.wait_assignment() == {U}
        assert story[:2] == ["begins", "ends"]


async def test_a_caller_that_waits_already_gets_the_new_subscriptions_assignment(
    network: Any, kind: dict[str, Any]
) -> None:
    found: list[frozenset[TopicPartition]] = []

    async def wait() -> None:
        found.append(await consumer.wait_assignment())

    async with broker(network), make("t", **kind) as consumer:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await consumer.subscribe("u")
            tasks.start_soon(wait)
        assert found == [{U}, {U}]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_the_members_of_a_group_change_their_subscription(
    network: Any, kind: dict[str, Any]
) -> None:
    """A member whose topic has fewer partitions than members may get none."""
    async with broker(network), make("t", **kind) as first, make("t", **kind) as second:
        await first.wait_assignment()
        await second.wait_assignment()
        await anyio.sleep(30)
        async with anyio.create_task_group() as tasks:
            for consumer in (first, second):
                tasks.start_soon(consumer.subscribe, "u")
            await anyio.sleep(0.1)
        with anyio.fail_after(30):
            found = [await first.wait_assignment(), await second.wait_assignment()]
        assert {tp.topic for tps in found for tp in tps} <= {"u"}
        await anyio.sleep(30)
        assert first.assignment() | second.assignment() == {U}

"""Which topics a consumer requests metadata of: those that something needs, and no others."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import UUID

import anyio
import pytest

from kafkagroup import Consumer, Producer, TopicPartition
from kafkagroup._values import evolve
from kafkagroup.admin import Admin
from kafkagroup.runtime.consume.topic_watch import TopicWatch
from kafkagroup.testing.embedded import Change, Delay, EmbeddedKafka
from kafkagroup.wire.messages.consumer_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kafkagroup.wire.messages.group import JoinGroupRequest
from kafkagroup.wire.messages.metadata import MetadataRequest

pytestmark = pytest.mark.anyio

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)
WAYS = pytest.mark.parametrize(
    "options",
    [
        {"group_id": "g"},
        {"group_id": "g", "group_protocol": "consumer"},
        {"group_id": "g", "group_instance_id": "i"},
        {"group_id": None},
    ],
    ids=["classic", "consumer", "static", "alone"],
)


@pytest.fixture
def cluster(network: Any) -> Any:
    @asynccontextmanager
    async def opened(*topics: str) -> AsyncIterator[EmbeddedKafka]:
        async with network, EmbeddedKafka(dict.fromkeys(topics, 2), listen=False) as kafka:
            network.serve_embedded(kafka)
            with anyio.fail_after(10_000):
                yield kafka

    return opened


def consumer(*topics: str, **options: Any) -> Consumer:
    return Consumer(
        *topics,
        bootstrap_servers="kafka-1",
        metadata_max_age_ms=60_000,
        max_poll_interval_ms=10**8,
        **options,
    )


Requests = list[list[str] | None]


@contextmanager
def recorded(kafka: EmbeddedKafka) -> Iterator[Requests]:
    """Record the topics of each metadata request; None for all."""
    found: Requests = []

    def on_request(request: MetadataRequest) -> bool:
        topics = request.topics
        if topics != ():  # a new connection asks for the cluster's id only
            found.append(None if topics is None else sorted(str(topic.name) for topic in topics))
        return False

    fault = kafka.fail(MetadataRequest, Delay(0), times=None, when=on_request)
    yield found
    fault.stop()


async def requested(kafka: EmbeddedKafka) -> Requests:
    """Return the topics of each metadata request of the next five minutes."""
    with recorded(kafka) as found:
        await anyio.sleep(300.0)
    return found


def are_seldom(requests: Requests, expected: list[str] | None) -> bool:
    """Return whether each request of five minutes has these topics, and there is one a minute."""
    return requests == [expected] * len(requests) and 4 <= len(requests) <= 6


@WAYS
async def test_a_topic_is_not_requested_after_the_subscription_to_it(
    cluster: Any, options: Any
) -> None:
    """A deleted topic was requested each second for ever, long after the last use of it."""
    async with cluster("a", "b") as kafka, consumer(**options) as one:
        await one.subscribe("a")
        await one.wait_assignment()
        await one.subscribe("b")
        await anyio.sleep(30.0)
        assert {tp.topic for tp in one.assignment()} == {"b"}
        kafka.delete_topic("a")
        assert are_seldom(await requested(kafka), ["b"])
        assert one.health()


async def test_a_subscription_replaces_a_pattern_while_topics_are_listed(cluster: Any) -> None:
    """The list of topics came after the application had subscribed to something else: the consumer
    then read what the pattern had matched."""
    async with cluster("a", "b") as kafka, consumer(group_id="g") as one:
        kafka.fail(MetadataRequest, Delay(5.0), when=lambda request: request.topics is None)
        async with anyio.create_task_group() as tasks:

            async def subscribe_by_pattern() -> None:
                await one.subscribe(pattern="a")

            tasks.start_soon(subscribe_by_pattern)
            await anyio.sleep(1.0)
            await one.subscribe("b")
        await anyio.sleep(30.0)
        assert {tp.topic for tp in one.assignment()} == {"b"}
        assert are_seldom(await requested(kafka), ["b"])


async def test_topics_that_arrive_while_a_pattern_waits_for_more_are_joined_for_once(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second response was requested, to confirm the first one. By the first the member joined,
    and after the second the group rebalanced for the same subscription."""
    list_matching = TopicWatch.list_matching

    async def list_slowly(watch: TopicWatch, pattern: re.Pattern[str]) -> frozenset[str]:
        matching = await list_matching(watch, pattern)
        await anyio.sleep(1.0)
        return matching

    monkeypatch.setattr(TopicWatch, "list_matching", list_slowly)
    async with cluster("a", "b") as kafka, consumer(pattern="a", group_id="g") as one:
        await one.wait_assignment()
        await anyio.sleep(5.0)
        assert len(kafka.requests(JoinGroupRequest)) == 2, "the first one gets the member's id"
        assert one.metrics().rebalances == 1


@WAYS
async def test_topics_that_a_pattern_matched_are_forgotten(cluster: Any, options: Any) -> None:
    async with cluster("a-0", "b") as kafka, consumer(**options) as one:
        await one.subscribe(pattern="a-.*")
        for n in range(3):
            kafka.create_topic(f"a-{n + 1}", 1)
            await anyio.sleep(150.0)
            assert f"a-{n + 1}" in {tp.topic for tp in one.assignment()}
            kafka.delete_topic(f"a-{n}")
            await anyio.sleep(150.0)
        is_listed = options.get("group_protocol") != "consumer"
        assert are_seldom(await requested(kafka), None if is_listed else ["a-3"])
        await one.subscribe("b")
        await anyio.sleep(30.0)
        kafka.delete_topic("a-3")
        assert are_seldom(await requested(kafka), ["b"])


@WAYS
async def test_topics_that_were_assigned_are_forgotten(cluster: Any, options: Any) -> None:
    async with cluster("a", "b") as kafka, consumer(**options) as one:
        await one.assign([A0])
        await one.assign([B0])
        kafka.delete_topic("a")
        assert are_seldom(await requested(kafka), ["b"])
        await one.unsubscribe()
        kafka.delete_topic("b")
        assert await requested(kafka) == []


LOOK_UPS: list[Callable[[Consumer], Awaitable[object]]] = [
    lambda one: one.end_offsets([A0]),
    lambda one: one.beginning_offsets([A0]),
    lambda one: one.offsets_for_times({A0: 1}),
    lambda one: one.committed([A0]),
]


@pytest.mark.parametrize("number", range(len(LOOK_UPS)))
async def test_a_look_up_needs_its_topic_as_long_as_it_lasts(cluster: Any, number: int) -> None:
    async with cluster("a", "b") as kafka, consumer("b", group_id="g") as one:
        await one.wait_assignment()
        await LOOK_UPS[number](one)
        kafka.delete_topic("a")
        assert are_seldom(await requested(kafka), ["b"])


async def test_a_leader_follows_the_topics_of_the_present_members_only(cluster: Any) -> None:
    async with cluster("a", "b") as kafka, consumer("b", group_id="g") as one:
        await one.wait_assignment()
        async with consumer("a", group_id="g"):
            await anyio.sleep(30.0)
            assert ["a", "b"] in await requested(kafka)
        await anyio.sleep(30.0)
        kafka.delete_topic("a")
        assert are_seldom(await requested(kafka), ["b"])


async def test_a_producer_needs_a_topic_for_five_minutes_after_a_write(cluster: Any) -> None:
    """Without that time, writes to two topics by turns would request metadata each time."""
    options: Any = {"bootstrap_servers": "kafka-1", "metadata_max_age_ms": 3_600_000}
    async with cluster("a", "b", "c") as kafka, Producer(**options) as producer:
        with recorded(kafka) as found:
            for topic in "abab":
                await producer.send(topic, b"v")
            assert found == [["a"], ["a", "b"]]
            kafka.delete_topic("a")
            await anyio.sleep(200.0)
            await producer.send("b", b"v")
            await anyio.sleep(200.0)
            await producer.partition_count("c")
            assert found[2:] == [["b", "c"]]


async def test_an_admin_forgets_the_topics_of_earlier_calls(cluster: Any) -> None:
    async with cluster("a", "b") as kafka:
        kafka.produce("a", ["v", "w"], partition=0)
        async with consumer("a", group_id="g", auto_offset_reset="earliest") as one:
            await one.getone()
            await one.commit()
        async with Admin(bootstrap_servers="kafka-1") as admin:
            lags = (await admin.lag(["g"]))["g"]
            assert isinstance(lags, dict)
            assert (lags[A0].lag, lags[A0].seconds is not None) == (1, True)
            with recorded(kafka) as found:
                await admin.list_groups()
            assert found == []


async def test_the_names_of_two_thousand_assigned_topics_are_requested_at_a_time(
    cluster: Any, threads: Any
) -> None:
    """A request for 200,000 unknown ids blocked the loop."""
    ids = [UUID(int=n + 1) for n in range(5_000)]
    assigned = Assignment(
        topic_partitions=tuple(TopicPartitions(topic_id=i, partitions=(0,)) for i in ids)
    )
    asked: list[int] = []

    def on_request(request: MetadataRequest) -> bool:
        if request.topics and request.topics[0].topic_id.int:
            asked.append(len(request.topics))
        return False

    async with cluster("b") as kafka:
        kafka.fail(MetadataRequest, Delay(0), times=None, when=on_request)
        change = Change(lambda response: evolve(response, assignment=assigned))
        kafka.fail(ConsumerGroupHeartbeatRequest, change, times=None)
        async with consumer("b", group_id="g", group_protocol="consumer"):
            await anyio.sleep(5.0)
    assert asked[:3] == [2_000] * 3

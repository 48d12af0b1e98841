"""One Metadata response of a broker that lags behind the others changes nothing for a consumer.

Each of these once made a group rebalance, and a consumer without a group skip or repeat records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

from kafkagroup import Consumer, TopicPartition
from kafkagroup.admin import Admin
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.errors import AuthorizationError, ErrorCode
from kafkagroup.testing.embedded import Change, EmbeddedKafka
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from kafkagroup.wire.schema import NO_ID

pytestmark = pytest.mark.anyio


def lagging(change: Callable[[MetadataResponseTopic], Any]) -> Change:
    """Return a fault that changes each topic of a response; it lists the brokers, as Kafka does."""

    def changed(response: MetadataResponse) -> MetadataResponse:
        return attrs.evolve(response, topics=tuple(map(change, response.topics)))

    return Change(changed)


def without_topics(code: int = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) -> Change:
    """Return the response of a broker that has this error for each topic."""
    return lagging(
        lambda topic: attrs.evolve(topic, error_code=code, topic_id=NO_ID, partitions=())
    )


def with_count(count: int) -> Change:
    """Return the response of a broker that knows only the first `count` partitions."""
    return lagging(lambda topic: attrs.evolve(topic, partitions=tuple(topic.partitions)[:count]))


def unlisted() -> Change:
    """Return the response of a broker that leaves out all topics."""
    return Change(lambda response: attrs.evolve(response, topics=()))


def without_node(node_id: int) -> Change:
    """Return the response of a broker that does not list this one."""
    return Change(
        lambda response: attrs.evolve(
            response, brokers=tuple(b for b in response.brokers if b.node_id != node_id)
        )
    )


PARTITIONS = 4
LAGGING = {
    "unknown": without_topics(),
    "error": without_topics(ErrorCode.UNKNOWN_SERVER_ERROR),
    "illegal": without_topics(ErrorCode.INVALID_TOPIC_EXCEPTION),
    "unlisted": unlisted(),
    "fewer": with_count(1),
    "none": with_count(0),
    "node": without_node(2),
}
ONE_BROKER = ("unknown", "unlisted", "fewer")
"""Some of them with one broker, which is asked again."""
FAULTS = pytest.mark.parametrize(
    ("fault", "nodes"),
    [*((LAGGING[name], 1) for name in ONE_BROKER), *((fault, 2) for fault in LAGGING.values())],
    ids=[*(f"one-{name}" for name in ONE_BROKER), *LAGGING],
)

Opened = Callable[..., Any]


@pytest.fixture
def cluster(network: Any) -> Opened:
    @asynccontextmanager
    async def opened(nodes: int) -> AsyncIterator[EmbeddedKafka]:
        async with (
            network,
            EmbeddedKafka({"t": PARTITIONS}, nodes=nodes, listen=False) as kafka,
        ):
            network.serve_embedded(kafka, nodes)
            with anyio.fail_after(5_000):
                yield kafka

    return opened


class Reading:
    """Consumers that read in tasks, with the records and errors that they got."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.revoked: list[tuple[TopicPartition, ...]] = []

    def consumer(self, *topics: str, **options: Any) -> Consumer:
        return Consumer(
            *topics,
            bootstrap_servers="kafka-1",
            metadata_max_age_ms=1_000,
            on_partitions_revoked=lambda revoked: self.revoked.append(tuple(revoked)),
            on_partitions_lost=lambda lost: self.revoked.append(tuple(lost)),
            **options,
        )

    async def read(self, one: Consumer) -> None:
        async for record in one:
            assert record.value is not None
            self.values.append(record.value.decode())


@asynccontextmanager
async def running(reading: Reading, consumers: Iterable[Consumer]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        for one in consumers:
            await stack.enter_async_context(one)
            tasks.start_soon(reading.read, one)
        yield
        tasks.cancel_scope.cancel()


async def produce_through(kafka: EmbeddedKafka, fault: Change, times: int = 1) -> list[str]:
    """Produce for 20 s, with the fault after 5; return what was produced."""
    values = [str(n) for n in range(100)]
    for n, value in enumerate(values):
        if n == 25:
            injected = kafka.fail(MetadataRequest, fault, times=times)
        kafka.produce("t", [value])
        await anyio.sleep(0.2)
    assert injected.hits == times
    await anyio.sleep(5)
    return values


async def owned(consumers: Iterable[Consumer], counts: list[int]) -> None:
    while [len(one.assignment()) for one in consumers] != counts:
        await anyio.sleep(0.1)


@FAULTS
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pattern": "t"},
        {"group_protocol": "consumer"},
        {"assignors": (cooperative_sticky_assignor,)},
    ],
    ids=["classic", "pattern", "consumer", "cooperative"],
)
async def test_a_group_goes_on_without_a_rebalance(
    cluster: Opened, fault: Change, nodes: int, options: dict[str, Any]
) -> None:
    reading = Reading()
    topics = () if "pattern" in options else ("t",)
    consumers = [reading.consumer(*topics, group_id="g", **options) for _ in range(2)]
    async with cluster(nodes) as kafka, running(reading, consumers):
        await owned(consumers, [2, 2])
        await anyio.sleep(5)
        reading.revoked.clear()
        generations = [one.group_metadata().generation_id for one in consumers]
        values = await produce_through(kafka, fault)
        assert sorted(reading.values) == sorted(values)
        assert reading.revoked == []
        assert [one.group_metadata().generation_id for one in consumers] == generations


@FAULTS
@pytest.mark.parametrize(
    ("how", "policy"),
    [("topics", "latest"), ("topics", "earliest"), ("pattern", "latest"), ("assigned", "latest")],
)
async def test_a_consumer_without_a_group_goes_on_at_its_position(
    cluster: Opened, fault: Change, nodes: int, how: str, policy: Any
) -> None:
    reading = Reading()
    given: dict[str, Any] = {"pattern": "t"} if how == "pattern" else {}
    one = reading.consumer(*(("t",) if how == "topics" else ()), **given, auto_offset_reset=policy)
    async with cluster(nodes) as kafka, running(reading, [one]):
        if how == "assigned":
            await one.assign([TopicPartition("t", p) for p in range(PARTITIONS)])
        await owned([one], [PARTITIONS])
        await anyio.sleep(2)
        values = await produce_through(kafka, fault)
        assert sorted(reading.values) == sorted(values)


@pytest.mark.parametrize("nodes", [1, 2])
async def test_a_topic_that_was_deleted_is_noticed_within_seconds(
    cluster: Opened, nodes: int
) -> None:
    reading = Reading()
    one = reading.consumer("t", group_id="g")
    async with cluster(nodes) as kafka, running(reading, [one]):
        await owned([one], [PARTITIONS])
        kafka.delete_topic("t")
        with anyio.fail_after(3):
            await owned([one], [0])


async def test_a_denied_topic_is_raised_at_once_and_its_partitions_stay(cluster: Opened) -> None:
    reading = Reading()
    one = reading.consumer("t", group_id="g")
    async with cluster(2) as kafka, one:
        await owned([one], [PARTITIONS])
        await anyio.sleep(5)
        kafka.fail(MetadataRequest, without_topics(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        with anyio.fail_after(2), pytest.raises(AuthorizationError):
            await one.getone()
        kafka.produce("t", ["1"])
        record = await one.getone()
        assert (record.value, reading.revoked) == (b"1", [])


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.describe_topics(["t"]),
        lambda admin: admin.lag(["g"]),
        lambda admin: admin.group_spec("g"),
    ],
    ids=["topics", "lag", "spec"],
)
async def test_an_admin_client_asks_another_broker(
    cluster: Opened, call: Callable[[Admin], Awaitable[Any]]
) -> None:
    """A plan without a topic would take its partitions from all members."""
    reading = Reading()
    one = reading.consumer("t", group_id="g")
    async with (
        cluster(2) as kafka,
        running(reading, [one]),
        Admin(bootstrap_servers="kafka-1") as admin,
    ):
        await owned([one], [PARTITIONS])
        kafka.produce("t", ["1", "2"])
        await anyio.sleep(5)
        before = await call(admin)
        injected = kafka.fail(
            MetadataRequest,
            without_topics(),
            when=lambda request: bool(request.topics),
        )
        assert (await call(admin), injected.hits) == (before, 1)

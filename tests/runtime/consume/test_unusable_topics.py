"""Topics that are missing, have an illegal name or may not be described, and empty subscriptions.

Each of these looked like a consumer without records.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

from kafkagroup import (
    BrokerError,
    ConfigurationError,
    Consumer,
    HealthProblem,
    TopicPartition,
)
from kafkagroup.errors import AuthorizationError, ErrorCode
from kafkagroup.events import TroubleEnded, TroubleReported
from kafkagroup.runtime.offsets.log_offsets import LogOffsets
from kafkagroup.runtime.offsets.values import LATEST, READ_UNCOMMITTED
from kafkagroup.testing.embedded import Delay, EmbeddedKafka
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import ClientOptions
from kafkagroup.types import OffsetAndTimestamp
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import LeaveGroupRequest
from kafkagroup.wire.messages.metadata import MetadataRequest
from kafkagroup.wire.messages.offsets import ListOffsetsRequest

pytestmark = pytest.mark.anyio

T0, ILLEGAL = TopicPartition("t", 0), TopicPartition("a b", 0)
MISSING = (
    "topic 'orders': it does not exist: UNKNOWN_TOPIC_OR_PARTITION (3); create it, or correct the"
    " name; once it exists it is consumed"
)
DENIED = (
    "topic 't': it may not be described: TOPIC_AUTHORIZATION_FAILED (29); this client's principal"
    " needs an ACL that allows it READ (or DESCRIBE)"
)
WAYS = pytest.mark.parametrize(
    "options",
    [
        {"group_id": "g"},
        {"group_id": "g", "group_protocol": "consumer"},
        {"group_id": None},
    ],
    ids=["classic", "consumer", "alone"],
)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the warnings since the last call, without their durations."""
    caplog.set_level(logging.INFO, "kafkagroup.transport.trouble")

    def taken() -> list[str]:
        found = [r.getMessage() for r in caplog.records if r.name == "kafkagroup.transport.trouble"]
        caplog.clear()
        return [line.partition(" s: ")[2] or line for line in found]

    return taken


@pytest.fixture
def cluster(network: Any) -> Any:
    @asynccontextmanager
    async def opened() -> AsyncIterator[EmbeddedKafka]:
        async with network, EmbeddedKafka({"t": 2}, listen=False) as kafka:
            network.serve_embedded(kafka)
            with anyio.fail_after(5_000):
                yield kafka

    return opened


def consumer(*topics: str, **options: Any) -> Consumer:
    return Consumer(*topics, bootstrap_servers="kafka-1", **options)


def topics(one: Consumer) -> list[str]:
    """Return the details of the findings about topics, without their durations."""
    found = [f for f in one.health().findings if f.problem is HealthProblem.TOPIC]
    return [", for ".join(f.detail.split(", for ")[:1]) for f in found]


@WAYS
async def test_unusable_topics_are_warned_about_after_three_seconds_and_every_five_minutes(
    cluster: Any, warned: Any, options: Any
) -> None:
    async with cluster() as kafka, consumer("t", "orders", **options) as one:
        events = one.events()
        assert one.health()
        await anyio.sleep(3.0)
        assert warned() == [MISSING]
        assert [detail.split(";")[0] for detail in topics(one)] == [MISSING.split(";")[0]]
        reported = [await anext(events) for _ in range(1 if options["group_id"] is None else 0)]
        assert [type(event) for event in reported] == [TroubleReported] * len(reported)
        await anyio.sleep(298.0)
        assert warned() == []
        await anyio.sleep(4.0)
        assert warned() == [MISSING]
        kafka.create_topic("orders", 1)
        kafka.produce("orders", ["at last"], partition=0)
        assert (await one.getone()).topic == "orders"
        await anyio.sleep(2.0)
        assert [line.split(",")[0] for line in warned()] == ["topic 'orders': works again"]
        assert topics(one) == []
        if options["group_id"] is None:
            assert isinstance(await anext(events), TroubleEnded)


@WAYS
async def test_missing_topics_subscribed_to_later_are_warned_about(
    cluster: Any, warned: Any, options: Any
) -> None:
    """Metadata is refreshed every five minutes: a missing topic was noticed only then."""
    async with cluster(), consumer("t", **options) as one:
        await anyio.sleep(60.0)
        await one.subscribe("t", "orders")
        await anyio.sleep(3.0)
        assert warned() == [MISSING]
        await one.subscribe("t")
        await anyio.sleep(60.0)
        assert (topics(one), warned()) == ([], [])


async def test_a_missing_topic_assigned_manually_is_warned_about(cluster: Any, warned: Any) -> None:
    async with cluster(), consumer(group_id=None) as one:
        await one.assign([("orders", 0)])
        await anyio.sleep(3.0)
        assert warned() == [MISSING]
        await anyio.sleep(60.0)
        assert warned() == []


@pytest.fixture
def hidden(network: Any, leader_of: Any) -> None:
    """A broker that permits no client to describe t."""

    class Hidden(leader_of):
        def metadata(self, request: object) -> Any:
            response = super().metadata(request)
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            denied = attrs.evolve(response.topics[0], error_code=code, partitions=())
            return attrs.evolve(response, topics=(denied,))

    network.handlers["b", 9092] = Hidden(lambda offset: b"")


async def test_an_unauthorized_topic_is_warned_about(
    network: Any, hidden: None, warned: Any
) -> None:
    """The next call raises, once. An application that catches that is still warned."""
    async with network, Consumer("t", bootstrap_servers="b:9092") as one:
        with pytest.raises(AuthorizationError):
            await one.getone()
        await anyio.sleep(3.0)
        assert warned() == [DENIED]
        assert [f.problem for f in one.health().findings] == [HealthProblem.TOPIC]


@WAYS
async def test_a_deleted_topic_is_warned_about(cluster: Any, warned: Any, options: Any) -> None:
    async with cluster() as kafka, consumer("t", metadata_max_age_ms=5_000, **options) as one:
        await one.wait_assignment()
        await anyio.sleep(20.0)
        assert warned() == []
        kafka.delete_topic("t")
        await anyio.sleep(9.0)
        assert warned()[0] == MISSING.replace("orders", "t")


async def test_a_topic_created_at_the_same_time_is_not_warned_about(
    cluster: Any, warned: Any
) -> None:
    async with cluster() as kafka, consumer("orders", group_id="g") as one:
        await anyio.sleep(0.5)
        kafka.create_topic("orders", 1)
        await anyio.sleep(10.0)
        assert (warned(), bool(one.health())) == ([], True)


async def test_a_topic_without_a_metadata_response_is_not_reported_as_missing(
    cluster: Any, warned: Any, network: Any
) -> None:
    async with cluster(), consumer("t", group_id=None) as one:
        network.handlers.clear()
        for stream in network.streams:
            await stream.aclose()
        await one.subscribe("elsewhere")
        await anyio.sleep(4.0)
        assert (warned(), topics(one)) == ([], [])


# ---------------------------------------------------------------- nothing at all


NOTHING = r"^nothing is subscribed to and nothing is assigned: name topics or a pattern"


@WAYS
async def test_waiting_for_records_without_a_subscription_is_an_error(
    cluster: Any, options: Any
) -> None:
    """A consumer may start without topics, but waiting for a record without topics is an error."""
    async with cluster() as kafka, consumer(**options) as one:
        kafka.produce("t", ["0"], partition=0)
        for call in (one.getone, lambda: anext(one), lambda: anext(one.batches())):
            with pytest.raises(ConfigurationError, match=NOTHING):
                await call()
        with pytest.raises(ConfigurationError, match=NOTHING):
            async for _ in one:
                raise AssertionError
        await one.subscribe("t")
        assert (await one.getone()).value == b"0"
        await one.unsubscribe()
        with pytest.raises(ConfigurationError, match=NOTHING):
            await one.getone()
        await one.assign([T0])
        one.seek(T0, 0)
        assert (await one.getone()).value == b"0"


@WAYS
async def test_waiting_with_a_timeout_without_a_subscription_is_warned_about(
    cluster: Any, warned: Any, options: Any
) -> None:
    """It waits only for a limited time: another task may subscribe before the next call."""
    async with cluster() as kafka, consumer(**options) as one:
        for _ in range(9):
            assert await one.getmany(timeout=1.0) == {}
        assert (warned(), one.health().findings) == ([], ())
        for _ in range(3):
            assert await one.getmany(timeout=1.0) == {}
        nothing = "waiting for records: nothing is subscribed to and nothing is assigned"
        assert [line.split(";")[0] for line in warned()] == [nothing]
        assert [f.detail.split(",")[0] for f in one.health().findings] == [nothing]
        await one.subscribe("t")
        kafka.produce("t", ["0"], partition=0)
        assert (await one.getmany(timeout=30.0)).keys() == {T0}
        assert [line.split(",")[0] for line in warned()] == ["waiting for records: works again"]
        assert one.health()


@WAYS
async def test_a_waiting_reader_continues_after_another_task_changes_the_topics(
    cluster: Any, options: Any
) -> None:
    """`unsubscribe` waits for the last commit and the group's response, `assign` for metadata: a
    reader that starts meanwhile gets a record of the new topics."""
    async with cluster() as kafka, consumer("t", **options) as one:
        kafka.create_topic("u", 1)
        kafka.produce("t", ["0"], partition=0)
        values: list[bytes | None] = []
        for api in (LeaveGroupRequest, ConsumerGroupHeartbeatRequest, MetadataRequest):
            kafka.fail(api, Delay(1.0), times=None)

        async def read(count: int) -> None:
            while len(values) < count:
                with anyio.move_on_after(0.2):
                    values.append((await one.getone()).value)

        await read(1)

        async def change(wanted: str) -> None:
            await one.unsubscribe()
            if wanted == "u":
                await one.subscribe("u")
            else:
                await one.assign([T0])
                one.seek(T0, 0)

        kafka.produce("u", ["1"], partition=0)
        for wanted in ("u", "t"):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(change, wanted)
                tasks.start_soon(read, len(values) + 1)
        assert values == [b"0", b"1", b"0"]


async def test_wait_assignment_waits_for_the_next_subscription(
    cluster: Any,
) -> None:
    async with cluster() as kafka, consumer("orders", group_id="g") as one:
        kafka.create_topic("u", 1)
        found = []

        async def wait() -> None:
            found.append(await one.wait_assignment())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.sleep(0.0)
            await one.unsubscribe()
            # Metadata changes, which wakes it while nothing is subscribed to.
            kafka.create_topic("orders", 1)
            await anyio.sleep(5.0)
            assert found == []
            await one.subscribe("u")
        assert found == [{("u", 0)}]


async def test_waiting_for_an_assignment_without_a_subscription_is_an_error(cluster: Any) -> None:
    async with cluster(), consumer(group_id="g") as one:
        with pytest.raises(ConfigurationError, match=NOTHING):
            await one.wait_assignment()
        await one.subscribe("t")
        assert len(await one.wait_assignment()) == 2


async def test_a_waiting_reader_continues_with_the_next_subscription(cluster: Any) -> None:
    """Another task changes the subscription."""
    async with cluster() as kafka, consumer("t", group_id="g") as one:
        kafka.create_topic("u", 1)
        values = []

        async def read() -> None:
            values.append((await one.getone()).value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.sleep(5.0)
            await one.unsubscribe()
            await anyio.sleep(5.0)
            await one.subscribe("u")
            kafka.produce("u", ["0"], partition=0)
    assert values == [b"0"]


async def test_iterating_a_closed_consumer_ends(cluster: Any) -> None:
    async with cluster():
        one = consumer(group_id="g")
        async with one:
            pass
        assert [record async for record in one] == []


# ---------------------------------------------------------------- their logs


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (("orders", 0), "the topic does not exist"),
        (("t", 7), "topic t has 2 partitions"),
        (("my orders", 0), "INVALID_TOPIC_EXCEPTION"),
    ],
)
async def test_offsets_of_a_missing_topic_raise(cluster: Any, partition: Any, message: str) -> None:
    """They failed at the request timeout, with an error about unresponsive leaders."""
    tp = TopicPartition(*partition)
    async with cluster(), consumer(group_id=None) as one:
        start = anyio.current_time()
        for ask in (
            lambda: one.end_offsets([T0, tp]),
            lambda: one.beginning_offsets([tp]),
            lambda: one.offsets_for_times({tp: 0, T0: 0}),
        ):
            with pytest.raises(BrokerError, match=f"offsets of {tp}.*".replace("7", "7: ")) as got:
                await ask()
            assert message in str(got.value)
        assert anyio.current_time() - start < 15.0
        if message == "INVALID_TOPIC_EXCEPTION":
            return
        await one.assign([tp])
        with pytest.raises(BrokerError):
            await one.lag()


async def test_offsets_of_an_unauthorized_topic_raise(network: Any, hidden: None) -> None:
    async with network, Consumer(bootstrap_servers="b:9092") as one:
        with pytest.raises(AuthorizationError, match="DESCRIBE on topic 't' is not allowed"):
            await one.end_offsets([T0])


@asynccontextmanager
async def log_offsets() -> AsyncIterator[LogOffsets]:
    async with anyio.create_task_group() as tasks:
        brokers = Cluster((("kafka-1", 9092),), ClientOptions(), tasks)
        yield LogOffsets(brokers, READ_UNCOMMITTED)
        await brokers.aclose()
        tasks.cancel_scope.cancel()


async def test_an_unusable_topic_raises_without_waiting_for_another_partitions_leader(
    cluster: Any,
) -> None:
    async with cluster() as kafka, log_offsets() as logs:
        kafka.fail(ListOffsetsRequest, ErrorCode.LEADER_NOT_AVAILABLE, times=None)
        with anyio.fail_after(0.05), pytest.raises(BrokerError, match="INVALID_TOPIC_EXC"):
            await logs.at({T0: LATEST, ILLEGAL: LATEST})


async def test_an_unusable_topic_does_not_keep_another_partition_from_being_retried(
    cluster: Any,
) -> None:
    async with cluster() as kafka, log_offsets() as logs:
        kafka.fail(ListOffsetsRequest, ErrorCode.LEADER_NOT_AVAILABLE, times=3)
        found = await logs.each({T0: LATEST, ILLEGAL: LATEST})
        assert found.offsets == {T0: OffsetAndTimestamp(0, -1, 0)}
        assert {tp: error.name for tp, error in found.errors.items()} == {
            ILLEGAL: "INVALID_TOPIC_EXCEPTION"
        }
        assert dict(logs._cluster.troubles.ongoing) == {}


async def test_offsets_of_a_topic_just_created_are_retried(cluster: Any) -> None:
    """Not every broker knows the topic at once."""
    async with cluster() as kafka, consumer(group_id=None) as one:
        async with anyio.create_task_group() as tasks:

            async def make() -> None:
                await anyio.sleep(1.0)
                kafka.create_topic("orders", 1)

            tasks.start_soon(make)
            assert await one.end_offsets([("orders", 0)]) == {("orders", 0): 0}


async def test_a_topic_recreated_after_its_leader_was_away_is_retried(cluster: Any) -> None:
    """The attempts without a leader counted as attempts at which the topic was unknown."""
    async with cluster() as kafka, log_offsets() as logs, anyio.create_task_group() as tasks:
        fault = kafka.fail(ListOffsetsRequest, ErrorCode.LEADER_NOT_AVAILABLE, times=None)

        async def recreate() -> None:
            await anyio.sleep(10)
            fault.stop()
            kafka.delete_topic("t")
            await anyio.sleep(3)
            kafka.create_topic("t", 1)

        tasks.start_soon(recreate)
        assert await logs.at({T0: LATEST}) == {T0: OffsetAndTimestamp(0, -1, 0)}


async def test_a_leader_that_is_replaced_while_it_is_asked_does_not_count(network: Any) -> None:
    """Its log may end elsewhere."""
    found: list[Any] = []
    async with network, EmbeddedKafka({"t": 1}, nodes=2, listen=False) as kafka:
        network.serve_embedded(kafka, 2)
        kafka.move_leader("t", 0, 1)
        with anyio.fail_after(60):
            async with (
                log_offsets() as logs,
                log_offsets() as others,
                anyio.create_task_group() as tasks,
            ):

                async def ask() -> None:
                    found.append(await logs.at({T0: LATEST}))

                await others.at({T0: LATEST})
                await logs.at({T0: LATEST})
                kafka.fail(ListOffsetsRequest, Delay(5))
                tasks.start_soon(ask)
                await anyio.sleep(1)
                kafka.move_leader("t", 0, 2)
                kafka.produce("t", ["0"], partition=0)
                # Over another connection: this one's responses come in order.
                await others._cluster.refresh()
                await logs._cluster.replace_metadata(others._cluster.metadata)
    assert [one[T0].offset for one in found] == [1]


async def test_a_broker_that_does_not_lead_is_asked_again_with_new_metadata(cluster: Any) -> None:
    async with cluster() as kafka, log_offsets() as logs:
        assert (await logs.at({T0: LATEST}))[T0].offset == 0
        before = len(kafka.requests(MetadataRequest))
        kafka.fail(ListOffsetsRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert (await logs.at({T0: LATEST}))[T0].offset == 0
        assert len(kafka.requests(MetadataRequest)) == before + 1

"""Partitions that are created while a consumer is subscribed to their topic: read from the
beginning, whatever the reset policy is."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup.errors import AuthorizationError, ErrorCode, NoOffsetError
from kafkagroup.testing.embedded import Change, EmbeddedKafka, refusals
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from kafkagroup.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

pytestmark = pytest.mark.anyio

E = ErrorCode
Opened = tuple[EmbeddedKafka, Callable[..., Consumer]]

GROUPS: list[Any] = [
    pytest.param({"group_id": "g"}, id="classic"),
    pytest.param({"group_id": "g", "group_protocol": "consumer"}, id="consumer"),
]
ALONE: Any = pytest.param({}, id="alone")


@pytest.fixture
def opened(network: Any) -> Any:
    """Two brokers with topic "old": one partition, of ten records."""

    @asynccontextmanager
    async def opened(nodes: int = 2) -> AsyncIterator[Opened]:
        settings = BrokerSettings(group_consumer_heartbeat_interval=1.0)
        embedded = EmbeddedKafka({"old": 1}, listen=False, nodes=nodes, settings=settings)
        async with network, embedded as kafka:
            network.serve_embedded(kafka, nodes)
            kafka.produce("old", [f"old {n}" for n in range(10)], partition=0)

            def consumer(*topics: str, **options: Any) -> Consumer:
                servers = [f"kafka-{n + 1}" for n in range(nodes)]
                defaults = {"auto_offset_reset": "latest", "metadata_max_age_ms": 20_000}
                return Consumer(*topics, bootstrap_servers=servers, **{**defaults, **options})

            with anyio.fail_after(500):
                yield kafka, consumer

    return opened


def create(kafka: EmbeddedKafka, topic: str, count: int = 1) -> None:
    """Create a topic with a record in each partition."""
    kafka.create_topic(topic, count)
    fill(kafka, topic, range(count))


def fill(kafka: EmbeddedKafka, topic: str, partitions: range) -> None:
    for partition in partitions:
        kafka.produce(topic, [f"{topic} {partition}"], partition=partition)


def refused_topics(request: MetadataRequest, error: int, _: int) -> MetadataResponse:
    """Return a Metadata response with the brokers, and with an error for each topic."""
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=n, host=f"kafka-{n}", port=9092) for n in (1, 2)
        ),
        topics=tuple(
            MetadataResponseTopic(error_code=error, name=t.name, partitions=())
            for t in request.topics or ()
        ),
    )


async def take(consumer: Consumer, count: int) -> list[str]:
    """Return the next values, sorted."""
    values = [(await consumer.getone()).value for _ in range(count)]
    return sorted(value.decode() for value in values if isinstance(value, bytes))


async def assigned(consumer: Consumer, *partitions: tuple[str, int]) -> None:
    """Wait until exactly these partitions are assigned."""
    while consumer.assignment() != set(partitions):
        await anyio.sleep(0.01)


async def is_idle(consumer: Consumer, seconds: float = 30.0) -> bool:
    """Return whether no record arrives for that time."""
    with anyio.move_on_after(seconds) as scope:
        await consumer.getone()
    return scope.cancelled_caught


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


# ---------------------------------------------------------------- what is new


@pytest.mark.parametrize("options", [*GROUPS, ALONE])
@pytest.mark.parametrize("nodes", [1, 2])
async def test_a_topic_created_after_the_start_is_read_from_its_beginning(
    opened: Any, options: dict[str, Any], nodes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """`latest` lost each record that was produced before the consumer noticed the topic."""
    caplog.set_level(logging.INFO, "kafkagroup.runtime.consume.positions")
    async with opened(nodes) as (kafka, consumer), consumer("old", "t", **options) as c:
        create(kafka, "t", 2)
        assert await take(c, 2) == ["t 0", "t 1"]
        assert await is_idle(c)
    starts = [line.partition("start of ")[2] for line in caplog.messages if "start of" in line]
    assert starts == [
        "1 partition (auto_offset_reset): old/0 at 10",
        "2 partitions (new partition): t/0 at 0, t/1 at 0",
    ]


@pytest.mark.parametrize("options", [*GROUPS, ALONE])
@pytest.mark.parametrize(
    "policy",
    ["latest", "none", timedelta(0), "earliest"],
    ids=["latest", "none", "duration", "earliest"],
)
async def test_added_partitions_are_read_from_their_beginning(
    opened: Any, options: dict[str, Any], policy: Any
) -> None:
    """With `none` they once raised NoOffsetError, though no record of theirs was read or skipped
    before."""
    async with opened() as (kafka, consumer):
        if options:
            async with consumer("old", **{**options, "auto_offset_reset": "latest"}) as c:
                await c.wait_assignment()
                await c.position(("old", 0))
        async with consumer("old", **options, auto_offset_reset=policy) as c:
            if not options and policy == "none":
                await c.wait_assignment()
                c.seek(("old", 0), 10)
            if not options and policy == "earliest":
                await take(c, 10)
            assert await is_idle(c, 5)
            kafka.add_partitions("old", 3)
            fill(kafka, "old", range(1, 3))
            assert await take(c, 2) == ["old 1", "old 2"]
            assert await is_idle(c)


@pytest.mark.parametrize("options", [*GROUPS, ALONE])
async def test_a_topic_that_a_pattern_matches_later_is_read_from_its_beginning(
    opened: Any, options: dict[str, Any]
) -> None:
    """The lists of topics prove it, also where the coordinator matches the pattern: the client
    never requested a topic of that name."""
    async with opened() as (kafka, consumer), consumer(pattern="old|t.*", **options) as c:
        create(kafka, "t1", 2)
        create(kafka, "other", 2)
        assert await take(c, 2) == ["t1 0", "t1 1"]
        kafka.add_partitions("old", 2)
        fill(kafka, "old", range(1, 2))
        assert await take(c, 1) == ["old 1"]
        assert await is_idle(c)


@pytest.mark.parametrize("options", [*GROUPS, ALONE])
async def test_a_recreated_topic_is_read_from_its_beginning(
    opened: Any, options: dict[str, Any]
) -> None:
    """Its deletion and its creation are both during the subscription; positions and commits of the
    deleted topic do not count."""
    async with opened() as (kafka, consumer), consumer("old", **options) as c:
        await anyio.sleep(5)
        kafka.produce("old", ["read"], partition=0)
        assert await take(c, 1) == ["read"]
        kafka.delete_topic("old")
        create(kafka, "old", 2)
        assert await take(c, 2) == ["old 0", "old 1"]
        assert await is_idle(c)


@pytest.mark.parametrize("options", [*GROUPS, ALONE])
async def test_a_new_partition_starts_where_its_log_does(
    opened: Any, options: dict[str, Any]
) -> None:
    """Retention, or an administrator, may have deleted its first records already."""
    async with opened() as (kafka, consumer), consumer("t", **options) as c:
        await anyio.sleep(2)
        kafka.create_topic("t")
        kafka.produce("t", ["a", "b", "c"], partition=0)
        kafka.delete_records("t", 0, 1)
        assert await take(c, 2) == ["b", "c"]


# ---------------------------------------------------------------- what is not new


@pytest.mark.parametrize("options", [*GROUPS, ALONE])
async def test_a_topic_that_the_application_adds_follows_the_policy(
    opened: Any, options: dict[str, Any]
) -> None:
    async with opened() as (kafka, consumer), consumer("old", **options) as c:
        await anyio.sleep(2)
        create(kafka, "t", 2)
        await c.subscribe("old", "t")
        assert await is_idle(c)


@pytest.mark.parametrize("options", [*GROUPS, ALONE])
async def test_partitions_that_the_application_assigns_follow_the_policy(
    opened: Any, options: dict[str, Any]
) -> None:
    async with opened() as (kafka, consumer), consumer("t", **options) as c:
        await anyio.sleep(2)
        await c.unsubscribe()
        create(kafka, "t", 2)
        await c.assign([("t", 0), ("t", 1)])
        assert await is_idle(c)


@pytest.mark.parametrize("options", [*GROUPS, ALONE])
async def test_by_option_new_partitions_follow_the_policy(
    opened: Any, options: dict[str, Any]
) -> None:
    chosen = {"auto_offset_reset_new_partitions": "policy", **options}
    async with opened() as (kafka, consumer), consumer("old", "t", **chosen) as c:
        await anyio.sleep(2)
        create(kafka, "t", 2)
        kafka.add_partitions("old", 2)
        fill(kafka, "old", range(1, 2))
        assert await is_idle(c)
    assert kafka.log_end("t", 0) == 1


@pytest.mark.parametrize("options", [*GROUPS, ALONE])
async def test_a_topic_that_one_broker_does_not_know_is_not_new(
    opened: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two brokers lagged behind, and did not know an old topic."""
    monkeypatch.setitem(refusals._REFUSALS, MetadataRequest, refused_topics)
    async with opened() as (kafka, consumer):
        refused = kafka.fail(MetadataRequest, E.UNKNOWN_TOPIC_OR_PARTITION)
        async with consumer("old", **options) as c:
            assert await is_idle(c)
        assert refused.hits == 1


async def test_a_topic_that_was_denied_is_not_new(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(refusals._REFUSALS, MetadataRequest, refused_topics)
    async with opened() as (kafka, consumer):
        refused = kafka.fail(MetadataRequest, E.TOPIC_AUTHORIZATION_FAILED, times=4)
        async with consumer("old") as c:
            with pytest.raises(AuthorizationError):
                await c.getone()
            assert await is_idle(c)
        assert refused.hits == 4


@pytest.mark.parametrize("policy", ["none", "latest"])
async def test_a_position_outside_of_a_new_partition_follows_the_policy(
    opened: Any, policy: Any
) -> None:
    async with opened() as (kafka, consumer):
        async with consumer("t", auto_offset_reset=policy) as c:
            await anyio.sleep(2)
            create(kafka, "t")
            await take(c, 1)
            c.seek(("t", 0), 7)
            if policy == "none":
                with pytest.raises(Exception, match="no such offset in the log"):
                    await c.getone()
            else:
                assert await is_idle(c)
                kafka.produce("t", ["later"], partition=0)
                assert await take(c, 1) == ["later"]


async def test_with_none_old_partitions_still_raise(opened: Any) -> None:
    async with opened() as (kafka, consumer):
        async with consumer("old", "t", auto_offset_reset="none") as c:
            await anyio.sleep(2)
            create(kafka, "t")
            with pytest.raises(NoOffsetError) as caught:
                await take(c, 2)
            assert caught.value.partitions == (("old", 0),)
            c.seek(("old", 0), 10)
            assert await take(c, 1) == ["t 0"]


# ---------------------------------------------------------------- the committed start


@pytest.mark.parametrize("options", GROUPS)
@pytest.mark.parametrize("auto_commit", [True, False])
async def test_the_start_is_committed_before_the_first_delivery(
    opened: Any, options: dict[str, Any], auto_commit: bool
) -> None:
    """A member that joins later and takes a new partition over, before anything else was committed,
    applied `latest` to it."""
    options = {**options, "enable_auto_commit": auto_commit, "auto_commit_interval_ms": 10**6}
    async with opened() as (kafka, consumer):
        async with anyio.create_task_group() as tasks, consumer("t", **options) as first:
            await anyio.sleep(2)
            create(kafka, "t", 2)
            assert await take(first, 1) in (["t 0"], ["t 1"])
            assert kafka.committed("g", "t") == {0: 0, 1: 0}
            fetches = [r for r in kafka.requests() if r.api in (OffsetCommitRequest, FetchRequest)]
            assert fetches[0].api is OffsetCommitRequest
            tasks.cancel_scope.cancel()
        async with consumer("t", **options) as later:
            assert len(await take(later, 1)) == 1


@pytest.mark.parametrize("options", GROUPS)
async def test_a_member_that_joins_later_follows_the_policy(
    opened: Any, options: dict[str, Any]
) -> None:
    """The partition was added before it joined, and nothing of it was committed."""
    async with opened() as (kafka, consumer):
        kafka.add_partitions("old", 2)
        fill(kafka, "old", range(1, 2))
        async with consumer("old", **options) as c:
            assert await is_idle(c)


@pytest.mark.parametrize("options", GROUPS)
async def test_a_restarted_member_continues_at_the_committed_start(
    opened: Any, options: dict[str, Any]
) -> None:
    async with opened() as (kafka, consumer):
        async with consumer("t", **options) as c:
            await anyio.sleep(2)
            create(kafka, "t")
            await assigned(c, ("t", 0))
            assert await c.position(("t", 0)) == 0
            await anyio.sleep(1)
            assert kafka.committed("g", "t") == {0: 0}
        async with consumer("t", **options) as c:
            assert await take(c, 1) == ["t 0"]


@pytest.mark.parametrize("code", [E.NOT_COORDINATOR, E.REBALANCE_IN_PROGRESS])
async def test_the_first_delivery_waits_for_the_commit_of_the_start(
    opened: Any, code: ErrorCode
) -> None:
    options = {"group_id": "g", "request_timeout_ms": 3_000}
    async with opened() as (kafka, consumer), consumer("t", **options) as c:
        await anyio.sleep(2)
        refused = kafka.fail(OffsetCommitRequest, code, times=None)
        create(kafka, "t")
        assert await is_idle(c, 20)
        refused.stop()
        assert await take(c, 1) == ["t 0"]
        assert 10 <= refused.hits <= 100


async def test_a_refused_commit_of_the_start_does_not_stop_the_partition(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as (kafka, consumer):
        async with consumer("t", group_id="g", enable_auto_commit=False) as c:
            await anyio.sleep(2)
            kafka.fail(OffsetCommitRequest, E.TOPIC_AUTHORIZATION_FAILED, times=None)
            caplog.clear()
            create(kafka, "t")
            assert await take(c, 1) == ["t 0"]
    (warning,) = warnings(caplog)
    assert warning == (
        "committing where new partitions start failed: TOPIC_AUTHORIZATION_FAILED (29): READ on"
        " topic 't' is not allowed: committing t/0 of group 'g'; until the first commit, another"
        " owner of them applies auto_offset_reset"
    )


async def test_a_seek_ends_the_wait_for_the_commit_of_the_start(opened: Any) -> None:
    async with opened() as (kafka, consumer):
        async with consumer("t", group_id="g", enable_auto_commit=False) as c:
            await anyio.sleep(2)
            kafka.fail(OffsetCommitRequest, E.NOT_COORDINATOR, times=None)
            kafka.create_topic("t")
            kafka.produce("t", ["a", "b"], partition=0)
            await assigned(c, ("t", 0))
            assert await c.position(("t", 0)) == 0
            c.seek(("t", 0), 1)
            assert await take(c, 1) == ["b"]


async def test_without_a_group_or_with_earliest_nothing_is_committed_by_itself(
    opened: Any,
) -> None:
    options: list[dict[str, Any]] = [{}, {"group_id": "g", "auto_offset_reset": "earliest"}]
    for number, chosen in enumerate(options):
        topic = f"t{number}"
        async with opened() as (kafka, consumer):
            async with consumer(topic, enable_auto_commit=False, **chosen) as c:
                await anyio.sleep(2)
                create(kafka, topic)
                assert await take(c, 1) == [f"{topic} 0"]
            assert kafka.requests(OffsetCommitRequest) == []


async def test_a_committed_offset_takes_precedence(opened: Any) -> None:
    async with opened() as (kafka, consumer), consumer("t", group_id="g") as c:
        await anyio.sleep(2)
        delayed = kafka.fail(OffsetFetchRequest, E.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        kafka.create_topic("t")
        kafka.produce("t", ["a", "b"], partition=0)
        await assigned(c, ("t", 0))
        await c.commit({("t", 0): 1})
        delayed.stop()
        assert await take(c, 1) == ["b"]


async def test_an_assignment_may_come_before_the_metadata(opened: Any) -> None:
    """The leader of the group notices added partitions; a follower's metadata is minutes old."""
    found: list[str] = []

    async def collect(consumer: Consumer) -> None:
        while True:
            found.extend(await take(consumer, 1))

    async with opened() as (kafka, consumer), consumer("old", group_id="g") as leader:
        await leader.wait_assignment()
        follower = consumer("old", group_id="g", metadata_max_age_ms=10**6)
        async with follower, anyio.create_task_group() as tasks:
            tasks.start_soon(collect, leader)
            tasks.start_soon(collect, follower)
            await anyio.sleep(10)
            kafka.add_partitions("old", 4)
            fill(kafka, "old", range(1, 4))
            await anyio.sleep(60)
            assert {len(leader.assignment()), len(follower.assignment())} == {2}
            assert sorted(found) == ["old 1", "old 2", "old 3"]
            tasks.cancel_scope.cancel()


# ---------------------------------------------------------------- what it costs


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_a_topic_that_exists_needs_no_more_than_one_response(
    opened: Any, policy: Any
) -> None:
    async with opened() as (kafka, consumer):
        started_at = anyio.current_time()
        # Each connection asks once for the cluster, and for no topic.
        counted = kafka.fail(
            MetadataRequest,
            Change(lambda response: response),
            times=None,
            when=lambda request: bool(request.topics),
        )
        async with consumer("old", group_id="g", auto_offset_reset=policy) as c:
            assert anyio.current_time() - started_at < 0.01
            await assigned(c, ("old", 0))
            await anyio.sleep(5)
            assert counted.hits == 1


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({}, 0, 0.01),
        ({"group_id": "g", "group_protocol": "consumer"}, 0.08, 0.13),
        ({"auto_offset_reset": "earliest"}, 0, 0.01),
        ({"auto_offset_reset_new_partitions": "policy"}, 0, 0.01),
    ],
)
async def test_a_topic_that_does_not_exist_takes_the_start_a_second_response(
    opened: Any, options: dict[str, Any], least: float, most: float
) -> None:
    """Of the same broker, where there is no other one: after the backoff, unless the second one is
    needed anyway."""
    async with opened(1) as (_, consumer):
        started_at = anyio.current_time()
        async with consumer("t", **options):
            assert least <= anyio.current_time() - started_at <= most


async def test_a_denied_topic_does_not_delay_the_start(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(refusals._REFUSALS, MetadataRequest, refused_topics)
    async with opened() as (kafka, consumer):
        kafka.fail(MetadataRequest, E.TOPIC_AUTHORIZATION_FAILED, times=None)
        started_at = anyio.current_time()
        async with consumer("old", retry_backoff_max_ms=100):
            assert anyio.current_time() - started_at < 0.01
            await anyio.sleep(60)
        assert len(kafka.requests(MetadataRequest)) < 70


@pytest.mark.parametrize("options", GROUPS)
@pytest.mark.parametrize(("policy", "list_count"), [("latest", 2), ("earliest", 1)])
async def test_a_pattern_needs_two_lists(
    opened: Any, options: dict[str, Any], policy: Any, list_count: int
) -> None:
    """One, if it does not matter what is new; none, if the coordinator matches the pattern, too."""
    lists: list[float] = []

    def note(request: MetadataRequest) -> bool:
        if request.topics is None:
            lists.append(anyio.current_time())
        return False

    async with opened() as (kafka, consumer):
        kafka.fail(MetadataRequest, E.NONE, when=note)
        async with consumer(pattern="old", **options, auto_offset_reset=policy) as c:
            assert anyio.current_time() < 0.3
            await assigned(c, ("old", 0))
            await anyio.sleep(5)
    is_matched_here = options.get("group_protocol") != "consumer"
    assert len(lists) == (list_count if is_matched_here or policy == "latest" else 0)

"""A position moves only when its leader confirms it: not for one false refusal, nor for brokers
with old metadata."""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup.errors import AuthorizationError, ErrorCode, OffsetOutOfRangeError
from kafkagroup.testing.embedded import Delay, EmbeddedKafka, broker, topics
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.transport.metadata import NamedLeaders
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.fetch import FetchRequest, LeaderIdAndEpoch
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from kafkagroup.wire.messages.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafkagroup.wire.schema import NO_ID

pytestmark = pytest.mark.anyio

E = ErrorCode
TP = TopicPartition("t", 0)
Transform = Callable[[MetadataResponseTopic], MetadataResponseTopic]


class Responses:
    """Changes the Metadata responses of an embedded broker: a broker that lags behind."""

    def __init__(self) -> None:
        self._transform: Transform | None = None
        self.left = 0
        """How many more responses are changed."""

    def change(self, transform: Transform, times: int) -> None:
        """Change each topic in so many responses from now on."""
        self._transform, self.left = transform, times

    def apply(self, response: MetadataResponse) -> MetadataResponse:
        """Return the response of the broker that lags behind."""
        if self._transform is None or self.left <= 0:
            return response
        self.left -= 1
        return evolve(response, topics=tuple(map(self._transform, response.topics)))


@pytest.fixture
def responses(monkeypatch: pytest.MonkeyPatch) -> Responses:
    changed, real = Responses(), topics.metadata
    monkeypatch.setattr(topics, "metadata", lambda *args: changed.apply(real(*args)))
    return changed


def with_id(topic_id: UUID) -> Transform:
    return lambda topic: evolve(topic, topic_id=topic_id)


def led(leader: int, epoch: int) -> Transform:
    """Report another leader, and its epoch."""
    return lambda topic: evolve(
        topic,
        partitions=tuple(evolve(p, leader_id=leader, leader_epoch=epoch) for p in topic.partitions),
    )


def absent(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=E.UNKNOWN_TOPIC_OR_PARTITION, name=topic.name, partitions=()
    )


Opened = Callable[..., Any]


@pytest.fixture
def reading(network: Any) -> Opened:
    """Two brokers with t/0 of ten records in a topic that was recreated once, and the id of the
    deleted topic."""

    @asynccontextmanager
    async def opened(
        *, nodes: int = 1
    ) -> AsyncIterator[tuple[EmbeddedKafka, Callable[..., Consumer], UUID]]:
        embedded = EmbeddedKafka({"t": 1}, listen=False, nodes=nodes)
        async with network, embedded as kafka:
            network.serve_embedded(kafka, nodes)
            old = kafka._cluster.topics["t"].topic_id
            kafka.delete_topic("t")
            kafka.create_topic("t", 1)
            kafka.move_leader("t", 0, 1)
            fill(kafka, 0, 10)

            def consumer(*names: str, **options: Any) -> Consumer:
                return Consumer(
                    *names,
                    **{
                        "bootstrap_servers": [f"kafka-{n + 1}" for n in range(nodes)],
                        "enable_auto_commit": False,
                        "metadata_max_age_ms": 1000,
                        **options,
                    },
                )

            with anyio.fail_after(1000):
                yield kafka, consumer, old

    return opened


def fill(kafka: EmbeddedKafka, start: int, end: int) -> None:
    for number in range(start, end):
        kafka.produce("t", [str(number)], partition=0)


async def values_of(consumer: Consumer, count: int) -> list[int]:
    return [int((await consumer.getone()).value or b"") for _ in range(count)]


async def commit(consumer: Consumer, offset: int, leader_epoch: int = -1) -> None:
    async with consumer:
        await consumer.assign([TP])
        await consumer.commit({TP: OffsetAndMetadata(offset, leader_epoch=leader_epoch)})


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


GROUPS = {
    "classic": {"group_id": "g", "group_protocol": "classic"},
    "consumer": {"group_id": "g", "group_protocol": "consumer"},
}
POLICIES = ["earliest", "latest", "none", timedelta(days=1)]
ways = pytest.mark.parametrize("way", ["classic", "consumer", "assign", "assign without a group"])


@asynccontextmanager
async def consuming(consumer: Any, way: str, **options: Any) -> AsyncIterator[Consumer]:
    """Consume t from offset 5 on."""
    if not way.startswith("assign"):
        async with consumer("t", **GROUPS[way], **options) as c:
            yield c
        return
    group = {} if "without" in way else {"group_id": "g"}
    async with consumer(**group, **options) as c:
        await c.assign([TP])
        if "without" in way:
            c.seek(TP, 5)
        yield c


async def test_a_position_is_looked_up_once_the_metadata_has_the_topic(
    reading: Opened, responses: Responses
) -> None:
    """Without a pause: the first broker that was asked did not know the topic yet."""
    async with reading() as (_, consumer, _), consumer(auto_offset_reset="earliest") as c:
        responses.change(absent, 1)
        await c.assign([TP])
        began = anyio.current_time()
        assert await values_of(c, 1) == [0]
        assert anyio.current_time() == began


# ---------------------------------------------------------------- OFFSET_OUT_OF_RANGE


@ways
@pytest.mark.parametrize("policy", POLICIES, ids=str)
async def test_one_false_refusal_moves_nothing(
    reading: Opened, way: str, policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With "earliest" 50 records came again and the commit went back from 50 to 10, with "latest"
    50 were skipped."""
    async with reading() as (kafka, consumer, _):
        await commit(consumer(group_id="g"), 5)
        kafka.fail(FetchRequest, E.OFFSET_OUT_OF_RANGE)
        async with consuming(consumer, way, auto_offset_reset=policy) as c:
            assert await values_of(c, 2) == [5, 6]
            fill(kafka, 10, 12)
            assert await values_of(c, 5) == [7, 8, 9, 10, 11]
            # Not of the first position: nothing is buffered.
            kafka.fail(FetchRequest, E.OFFSET_OUT_OF_RANGE)
            with anyio.move_on_after(10):
                await c.getone()
            fill(kafka, 12, 13)
            assert await values_of(c, 1) == [12]
        assert warnings(caplog) == []


async def test_a_false_refusal_while_records_are_buffered_moves_nothing(reading: Opened) -> None:
    async with reading() as (kafka, consumer, _), consumer() as c:
        await c.assign([TP])
        assert await values_of(c, 3) == [0, 1, 2]
        kafka.fail(FetchRequest, E.OFFSET_OUT_OF_RANGE, times=5)
        await anyio.sleep(10)
        fill(kafka, 10, 12)
        assert await values_of(c, 9) == list(range(3, 12))


async def test_the_leader_is_asked_for_the_uncommitted_start_and_end(reading: Opened) -> None:
    """The last stable offset is not the end: a position above it would count as out of range. A
    leader of another epoch must refuse."""
    asked: list[tuple[int, int, int]] = []

    def record(request: ListOffsetsRequest) -> bool:
        (topic,) = request.topics
        (one,) = topic.partitions
        asked.append((request.isolation_level, one.current_leader_epoch, one.timestamp))
        return False

    async with reading() as (kafka, consumer, _):
        async with consumer(isolation_level="read_committed") as c:
            await c.assign([TP])
            await values_of(c, 10)
            kafka.fail(ListOffsetsRequest, E.NONE, times=None, when=record)
            kafka.fail(FetchRequest, E.OFFSET_OUT_OF_RANGE)
            fill(kafka, 10, 11)
            assert await values_of(c, 1) == [10]
        epoch = kafka._cluster.topics["t"].partitions[0].leader_epoch
        assert asked == [(0, epoch, -2), (0, epoch, -1)]


@pytest.mark.parametrize("code", [E.OFFSET_NOT_AVAILABLE, E.UNKNOWN_LEADER_EPOCH])
async def test_a_failed_look_up_of_the_range_moves_nothing(
    reading: Opened, code: ErrorCode
) -> None:
    """A new leader does not know its high watermark yet."""
    async with reading() as (kafka, consumer, _), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        kafka.fail(FetchRequest, E.OFFSET_OUT_OF_RANGE)
        fault = kafka.fail(ListOffsetsRequest, code, times=7)
        fill(kafka, 10, 11)
        assert await values_of(c, 1) == [10]
        assert fault.hits == 7


async def test_a_refused_look_up_of_the_range_is_raised_and_repeated(reading: Opened) -> None:
    """Without an error the application would wait for a partition that an ACL keeps from it."""
    async with reading() as (kafka, consumer, _), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        kafka.fail(FetchRequest, E.OFFSET_OUT_OF_RANGE)
        fault = kafka.fail(ListOffsetsRequest, E.TOPIC_AUTHORIZATION_FAILED, times=7)
        fill(kafka, 10, 11)
        with pytest.raises(AuthorizationError):
            await values_of(c, 1)
        assert await values_of(c, 1) == [10]
        assert (fault.hits, c.health().findings) == (7, ())


async def test_a_leader_that_contradicts_itself_is_reported_and_not_asked_in_a_loop(
    reading: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with reading() as (kafka, consumer, _), consumer(auto_offset_reset="latest") as c:
        await c.assign([TP])
        c.seek(TP, 5)
        fault = kafka.fail(FetchRequest, E.OFFSET_OUT_OF_RANGE, times=None)
        with anyio.move_on_after(30):
            await c.getone()
        assert await c.position(TP) == 5
        assert 20 < fault.hits < 60
        infos = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
        assert [text for text in infos if text.startswith("t/0: position 5")] == [
            "t/0: position 5 is in the log, 0 to 10, and stays"
        ]
        assert not [text for text in infos if "OUT_OF_RANGE" in text]
        (warning,) = warnings(caplog)
        assert (
            "s: fetching t/0: its leader refuses offset 5, and reports its log as 0 to 10"
            in warning
        )
        (finding,) = c.health().findings
        assert "its leader refuses offset 5" in finding.detail
        fault.stop()
        assert await values_of(c, 5) == [5, 6, 7, 8, 9]
        assert c.health().findings == ()


async def test_a_seek_overrides_a_look_up_of_the_range_in_flight(reading: Opened) -> None:
    async with reading() as (kafka, consumer, _), consumer() as c:
        await c.assign([TP])
        c.seek(TP, 99)
        kafka.fail(ListOffsetsRequest, Delay(5))
        await anyio.sleep(2)
        c.seek(TP, 8)
        assert await values_of(c, 1) == [8]
        await anyio.sleep(10)
        assert await values_of(c, 1) == [9]


@pytest.mark.parametrize(("policy", "first"), [("earliest", 6), ("latest", 10)])
async def test_a_position_below_the_start_follows_the_policy_with_a_warning(
    reading: Opened, policy: Any, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading() as (kafka, consumer, _), consumer(auto_offset_reset=policy) as c:
        kafka.delete_records("t", 0, 6)
        await c.assign([TP])
        c.seek(TP, 2)
        await anyio.sleep(5)
        fill(kafka, 10, 11)
        assert await values_of(c, 1) == [first]
        (warning,) = warnings(caplog)
        assert warning == (
            "t/0: position 2 is below the start of the log, 6: its records were deleted;"
            " auto_offset_reset applies"
        )


@pytest.mark.parametrize("offset", [2, 99])
async def test_a_position_outside_of_the_log_is_an_error_without_a_policy(
    reading: Opened, offset: int
) -> None:
    async with reading() as (kafka, consumer, _), consumer(auto_offset_reset="none") as c:
        kafka.delete_records("t", 0, 6)
        await c.assign([TP])
        c.seek(TP, offset)
        with pytest.raises(OffsetOutOfRangeError) as caught:
            await c.getone()
        assert caught.value.offsets == {TP: offset}


async def test_a_position_above_the_end_follows_the_policy_with_both_numbers(
    reading: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading() as (_, consumer, _), consumer() as c:
        await c.assign([TP])
        c.seek(TP, 99)
        assert await values_of(c, 1) == [0]
        assert warnings(caplog) == [
            "t/0: position 99 is above the end of the log, 10; auto_offset_reset applies"
        ]


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_a_log_that_became_shorter_under_the_same_leader_was_truncated(
    reading: Opened, policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The epoch of the last record is known, so its leader can tell where the logs diverge: the
    policy would repeat or skip records."""
    async with reading() as (kafka, consumer, _), consumer(auto_offset_reset=policy) as c:
        await c.assign([TP])
        c.seek(TP, 0)
        await values_of(c, 10)
        kafka._cluster.topics["t"].partitions[0].log.truncate(6)
        await anyio.sleep(5)
        assert await c.position(TP) == 6
        fill(kafka, 6, 7)
        assert await values_of(c, 1) == [6]
        assert warnings(caplog) == ["t/0: the log was truncated: position 10, but it diverges at 6"]


def name_leader(consumer: Consumer, leader: int, epoch: int) -> None:
    """Let the consumer know a new leader of t/0, as from a fetch response (KIP-951)."""
    named = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    cluster, leaders = consumer._engine._cluster, NamedLeaders(())
    assert leaders.add(cluster.metadata, TP, named)
    cluster.apply_leaders(leaders)


def asks_for_the_end(request: ListOffsetsRequest) -> bool:
    return any(p.timestamp == -1 for topic in request.topics for p in topic.partitions)


async def test_the_range_that_a_former_leader_reports_does_not_count(reading: Opened) -> None:
    """Its log ends where it was isolated."""
    async with reading(nodes=2) as (kafka, consumer, _), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        partition = kafka._cluster.topics["t"].partitions[0]
        whole = partition.log
        kafka.fail(FetchRequest, E.OFFSET_OUT_OF_RANGE)
        slow = kafka.fail(ListOffsetsRequest, Delay(5), when=asks_for_the_end)
        c.seek(TP, 10)  # no epoch is known of the record before it
        partition.log = copy.copy(whole)
        partition.log.truncate(6)
        while not slow.hits:
            await anyio.sleep(0.1)
        partition.log = whole
        kafka.move_leader("t", 0, 2)
        name_leader(c, 2, partition.leader_epoch)
        fill(kafka, 10, 12)
        assert await values_of(c, 2) == [10, 11]


# ---------------------------------------------------------------- topic ids


@pytest.mark.parametrize("times", [1, 2, 3, 6])
@pytest.mark.parametrize("policy", ["earliest", "latest"])
@ways
async def test_a_lagging_broker_that_has_the_old_topic_id_moves_nothing(
    reading: Opened,
    responses: Responses,
    way: str,
    policy: Any,
    times: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One later response with the old id gave 51 records twice, or 49 were skipped."""
    async with reading() as (kafka, consumer, old):
        await commit(consumer(group_id="g"), 5)
        async with consuming(consumer, way, auto_offset_reset=policy) as c:
            assert await values_of(c, 2) == [5, 6]
            responses.change(with_id(old), times)
            while responses.left:
                await anyio.sleep(0.1)
            fill(kafka, 10, 20)
            assert await values_of(c, 13) == list(range(7, 20))
            await anyio.sleep(10)
            fill(kafka, 20, 22)
            assert await values_of(c, 2) == [20, 21]
            if way != "assign without a group":
                await c.commit()
                assert kafka.committed("g", "t") == {0: 22}
        assert warnings(caplog) == []


async def test_records_are_delivered_while_the_metadata_has_the_old_topic_id(
    reading: Opened, responses: Responses, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader serves the id of the position, so it knows better; the metadata is requested
    again, and it is reported."""
    async with reading() as (kafka, consumer, old), consumer(metadata_max_age_ms=300_000) as c:
        await c.assign([TP])
        await values_of(c, 10)
        responses.change(with_id(old), 10**9)
        await c._engine._cluster.refresh()
        before = len(kafka.requests(MetadataRequest))
        for n in range(10, 30):
            fill(kafka, n, n + 1)
            assert await values_of(c, 1) == [n]
            await anyio.sleep(1)
        assert 10 < len(kafka.requests(MetadataRequest)) - before < 80
        (warning,) = warnings(caplog)
        assert warning.endswith(
            ": fetching t/0: the metadata has another topic id than the one that was read; check"
            " that the brokers agree on its id and its leaders"
        )
        responses.left = 0
        await anyio.sleep(3)
        assert c.health().findings == ()


@pytest.mark.parametrize("start", ["committed", "seek", "latest", "earliest"])
@pytest.mark.parametrize("times", [1, 3])
async def test_an_old_topic_id_in_the_first_response_moves_nothing(
    reading: Opened, responses: Responses, start: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The position was looked up by name, so it is of the topic that the brokers serve: the id that
    one of them had is wrong, not the position."""
    async with reading() as (kafka, consumer, old):
        await commit(consumer(group_id="g"), 5)
        responses.change(with_id(old), times)
        group = {"group_id": "g"} if start == "committed" else {}
        policy = "earliest" if start == "earliest" else "latest"
        async with consumer(**group, auto_offset_reset=policy) as c:
            await c.assign([TP])
            if start == "seek":
                c.seek(TP, 7)
            await c.position(TP)
            fill(kafka, 10, 12)
            first = {"committed": 5, "seek": 7, "latest": 10, "earliest": 0}[start]
            assert await values_of(c, 12 - first) == list(range(first, 12))
        assert warnings(caplog) == []


@pytest.mark.parametrize("code", [E.UNKNOWN_TOPIC_ID, E.INCONSISTENT_TOPIC_ID])
async def test_a_leader_that_refuses_the_id_that_all_metadata_has_moves_nothing(
    reading: Opened, code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    """A new leader may not know the topic yet."""
    async with reading() as (kafka, consumer, _), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        fault = kafka.fail(FetchRequest, code, times=None)
        await anyio.sleep(30)
        assert 10 < fault.hits < 100
        assert len(warnings(caplog)) == 1
        assert len(c.health().findings) == 1
        fault.stop()
        fill(kafka, 10, 12)
        assert await values_of(c, 2) == [10, 11]


async def test_a_position_stays_if_the_topic_id_comes_back_before_the_reset(
    reading: Opened, responses: Responses
) -> None:
    """The leader refuses the id for a while, in which the metadata has another: the reset is
    pending when the metadata has the id again."""
    async with reading() as (kafka, consumer, old), consumer(auto_offset_reset="latest") as c:
        await c.assign([TP])
        c.seek(TP, 0)
        assert await values_of(c, 10) == list(range(10))
        responses.change(with_id(old), 10**9)
        unavailable = kafka.fail(ListOffsetsRequest, E.OFFSET_NOT_AVAILABLE, times=None)
        refused = kafka.fail(FetchRequest, E.UNKNOWN_TOPIC_ID, times=None)
        while not unavailable.hits:
            await anyio.sleep(0.1)
        fill(kafka, 10, 12)
        responses.left = 0
        refused.stop()
        await anyio.sleep(5)
        unavailable.stop()
        assert await values_of(c, 2) == [10, 11]


def recreate(kafka: EmbeddedKafka, records: int) -> None:
    kafka.delete_topic("t")
    kafka.create_topic("t", 1)
    fill(kafka, 100, 100 + records)


async def test_a_recreated_topic_is_followed_although_one_partition_is_behind(
    reading: Opened,
) -> None:
    """Two positions of one topic may have two ids: a request has one id for each topic."""
    async with reading() as (kafka, consumer, _):
        kafka.add_partitions("t", 2)
        one = TopicPartition("t", 1)
        kafka.produce("t", [str(n) for n in range(10)], partition=1)
        async with consumer() as c:
            await c.assign([TP, one])
            await values_of(c, 20)
            c.pause(one)
            kafka.delete_topic("t")
            kafka.create_topic("t", 2)
            kafka.produce("t", [str(n) for n in range(200, 220)], partition=1)
            fill(kafka, 100, 101)
            assert await values_of(c, 1) == [100]
            c.resume(one)
            assert await values_of(c, 2) == [200, 201]


@pytest.fixture
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers of Kafka 2.8 to 3.0: the metadata has topic ids, fetches have names."""
    capped = tuple(
        evolve(api, max_version=12) if api.api_key == FetchRequest.api_key else api
        for api in broker._SUPPORTED
    )
    monkeypatch.setattr(broker, "_SUPPORTED", capped)


@pytest.mark.parametrize("records", [3, 20])
@pytest.mark.usefixtures("by_name")
async def test_a_topic_that_is_fetched_by_name_is_reset_once_recreated(
    reading: Opened, records: int
) -> None:
    """No fetch is refused: the leader itself is asked for the topic's id."""
    async with reading() as (kafka, consumer, _), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        c.pause(TP)
        recreate(kafka, records)
        await anyio.sleep(5)
        c.resume(TP)
        assert await values_of(c, 3) == [100, 101, 102]


@pytest.mark.usefixtures("by_name")
async def test_a_topic_that_is_fetched_by_name_stays_if_its_leader_has_the_id(
    reading: Opened, responses: Responses
) -> None:
    async with reading() as (kafka, consumer, old), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        responses.change(with_id(old), 2)
        while responses.left:
            await anyio.sleep(0.1)
        fill(kafka, 10, 12)
        assert await values_of(c, 2) == [10, 11]


# ---------------------------------------------------------------- absent topics, without a group

SUBSCRIPTIONS: dict[str, Any] = {"topics": {}, "pattern": {"pattern": "^t$"}}


@asynccontextmanager
async def subscribed(consumer: Any, how: str, **options: Any) -> AsyncIterator[Consumer]:
    names = () if how == "pattern" else ("t",)
    async with consumer(*names, **SUBSCRIPTIONS[how], **options) as c:
        yield c


@pytest.mark.parametrize("how", SUBSCRIPTIONS)
@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize("has_ids", [True, False])
async def test_a_position_stays_if_a_topic_comes_back(
    reading: Opened,
    responses: Responses,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    policy: Any,
    has_ids: bool,
) -> None:
    """The partition was released, and started by the policy when the topic was known again: with
    "latest" records were skipped, with "earliest" they came again."""
    if not has_ids:
        answered = responses.apply
        monkeypatch.setattr(
            responses,
            "apply",
            lambda response: answered(
                evolve(response, topics=tuple(map(with_id(NO_ID), response.topics)))
            ),
        )
    async with reading() as (kafka, consumer, _):
        async with subscribed(consumer, how, auto_offset_reset=policy) as c:
            await c.position(TP)
            fill(kafka, 10, 15)
            first = 0 if policy == "earliest" else 10
            assert await values_of(c, 15 - first) == list(range(first, 15))
            c.pause(TP)
            responses.change(absent, 10**9)
            while c.assignment():
                await anyio.sleep(0.1)
            fill(kafka, 15, 20)
            responses.left = 0
            while not c.assignment():
                await anyio.sleep(0.1)
            assert c.paused() == {TP}
            c.resume(TP)
            assert await values_of(c, 5) == [15, 16, 17, 18, 19]


@pytest.mark.parametrize("how", SUBSCRIPTIONS)
async def test_a_topic_that_comes_back_with_another_id_starts_by_the_policy(
    reading: Opened, how: str
) -> None:
    async with reading() as (kafka, consumer, _), subscribed(consumer, how) as c:
        await values_of(c, 10)
        kafka.delete_topic("t")
        while c.assignment():
            await anyio.sleep(0.1)
        kafka.create_topic("t", 1)
        fill(kafka, 100, 120)
        assert await values_of(c, 2) == [100, 101]


async def test_a_topic_that_was_unsubscribed_while_absent_starts_by_the_policy(
    reading: Opened, responses: Responses
) -> None:
    async with reading() as (_, consumer, _), consumer("t", "u") as c:
        await values_of(c, 10)
        responses.change(lambda t: absent(t) if t.name == "t" else t, 10**9)
        while c.assignment():
            await anyio.sleep(0.1)
        await c.subscribe("u")
        await c.subscribe("t")
        responses.left = 0
        assert await values_of(c, 2) == [0, 1]


# ---------------------------------------------------------------- leader epochs


async def test_an_epoch_that_was_too_high_falls_and_the_position_is_validated(
    reading: Opened, responses: Responses
) -> None:
    """One leader epoch that was too high stopped a partition for ever."""
    epochs: list[int] = []

    def record(request: OffsetForLeaderEpochRequest) -> bool:
        epochs.extend(p.current_leader_epoch for t in request.topics for p in t.partitions)
        return False

    async with reading() as (kafka, consumer, _), consumer() as c:
        kafka.fail(OffsetForLeaderEpochRequest, E.NONE, times=None, when=record)
        await c.assign([TP])
        await values_of(c, 10)
        epoch = kafka._cluster.topics["t"].partitions[0].leader_epoch
        responses.change(led(1, 99), 1)
        while responses.left:
            await anyio.sleep(0.1)
        fill(kafka, 10, 12)
        with anyio.fail_after(15):
            assert await values_of(c, 2) == [10, 11]
        assert epochs[-1] == epoch


async def test_nothing_is_fetched_from_a_leader_of_an_earlier_epoch_than_a_record_that_was_read(
    reading: Opened, responses: Responses, caplog: pytest.LogCaptureFixture
) -> None:
    """All brokers but one are isolated with a former leader: its log lacks what was written
    since."""
    async with reading(nodes=2) as (kafka, consumer, _), consumer() as c:
        kafka.move_leader("t", 0, 2)
        epoch = kafka._cluster.topics["t"].partitions[0].leader_epoch
        fill(kafka, 10, 12)
        await c.assign([TP])
        await values_of(c, 12)
        responses.change(led(1, epoch - 1), 10**9)
        await anyio.sleep(5)
        before = len(kafka.requests())
        for seeks in (False, True):
            if seeks:  # no epoch is known of the record before the position
                c.seek(TP, 3)
            await anyio.sleep(30)
        sent = [r for r in kafka.requests()[before:] if r.node_id == 1]
        kinds = {r.api for r in sent}
        assert not kinds & {FetchRequest, OffsetForLeaderEpochRequest}
        assert len(kafka.requests()) - before < 300
        (warning, *_) = warnings(caplog)
        assert warning.endswith(
            f"s: fetching t/0: records of leader epoch {epoch} were read, but the metadata has"
            f" broker 1 as the leader, of epoch {epoch - 1}; check that the brokers agree on its id"
            " and its leaders"
        )
        assert len(c.health().findings) == 1
        responses.left = 0
        assert await values_of(c, 9) == list(range(3, 12))
        await anyio.sleep(3)
        assert c.health().findings == ()


async def test_the_end_of_an_epoch_that_a_former_leader_reports_does_not_count(
    reading: Opened,
) -> None:
    """Its log was cut off, and the new leader's was not."""
    async with reading(nodes=2) as (kafka, consumer, _), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        partition = kafka._cluster.topics["t"].partitions[0]
        whole = partition.log
        slow = kafka.fail(OffsetForLeaderEpochRequest, Delay(5), node_id=2)
        partition.log = copy.copy(whole)
        partition.log.truncate(6)
        kafka.move_leader("t", 0, 2)
        while not slow.hits:
            await anyio.sleep(0.1)
        partition.log = whole
        kafka.move_leader("t", 0, 1)
        name_leader(c, 1, partition.leader_epoch)
        fill(kafka, 10, 12)
        assert await values_of(c, 2) == [10, 11]

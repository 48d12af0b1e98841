"""A broker refuses requests about partitions: each code once, and for ever.

A refusal never silences a partition: it is raised or reported, the request is repeated after a
back-off, and the records come as soon as the broker serves them, without a seek.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer, HealthProblem
from kafkagroup.errors import AuthorizationError, BrokerError, ErrorCode
from kafkagroup.events import TroubleEnded, TroubleReported
from kafkagroup.testing.embedded import Change, EmbeddedKafka
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.batch_writing import NewRecord
from kafkagroup.wire.error_codes import FetchAction, fetch_action
from kafkagroup.wire.messages.fetch import FetchRequest, FetchResponse
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)

pytestmark = pytest.mark.anyio

E = ErrorCode
NEWER = 999
"""A code of a newer broker."""

LEADER_CODES = (
    E.UNKNOWN_SERVER_ERROR,
    E.OFFSET_OUT_OF_RANGE,
    E.CORRUPT_MESSAGE,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.INVALID_FETCH_SIZE,
    E.LEADER_NOT_AVAILABLE,
    E.NOT_LEADER_OR_FOLLOWER,
    E.REQUEST_TIMED_OUT,
    E.REPLICA_NOT_AVAILABLE,
    E.MESSAGE_TOO_LARGE,
    E.INVALID_TOPIC_EXCEPTION,
    E.TOPIC_AUTHORIZATION_FAILED,
    E.CLUSTER_AUTHORIZATION_FAILED,
    E.UNSUPPORTED_VERSION,
    E.INVALID_REQUEST,
    E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    E.KAFKA_STORAGE_ERROR,
    E.FENCED_LEADER_EPOCH,
    E.UNKNOWN_LEADER_EPOCH,
    E.UNSUPPORTED_COMPRESSION_TYPE,
    E.OFFSET_NOT_AVAILABLE,
    E.UNKNOWN_TOPIC_ID,
    E.INCONSISTENT_TOPIC_ID,
    E.OFFSET_MOVED_TO_TIERED_STORAGE,
    NEWER,
)
"""What a leader may send for a partition."""

COORDINATOR_CODES = (
    E.UNKNOWN_SERVER_ERROR,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.REQUEST_TIMED_OUT,
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_COORDINATOR,
    E.INVALID_GROUP_ID,
    E.TOPIC_AUTHORIZATION_FAILED,
    E.GROUP_AUTHORIZATION_FAILED,
    E.UNSTABLE_OFFSET_COMMIT,
    E.UNKNOWN_TOPIC_ID,
    NEWER,
)
"""What a coordinator may send for a partition or for the group as a whole."""

MEMBER_CODES = (
    E.UNKNOWN_MEMBER_ID,
    E.GROUP_ID_NOT_FOUND,
    E.FENCED_MEMBER_EPOCH,
    E.STALE_MEMBER_EPOCH,
)
"""What it may send for the group only."""

CODES: dict[Any, tuple[int, ...]] = {
    FetchRequest: LEADER_CODES,
    ListOffsetsRequest: LEADER_CODES,
    OffsetForLeaderEpochRequest: LEADER_CODES,
    OffsetFetchRequest: COORDINATOR_CODES,
}
EACH_API = pytest.mark.parametrize("api", CODES, ids=lambda api: api.__name__)
COUNT = 4
"""The number of records in each partition."""
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
Cluster = tuple[EmbeddedKafka, Callable[..., Consumer]]
Where = tuple[int, int]
"""Partition and offset."""


@pytest.fixture
def refusing(network: Any) -> Any:
    """Provide a broker with a topic t of some partitions, and consumers."""

    @asynccontextmanager
    async def opened(partitions: int = 2, nodes: int = 2) -> AsyncIterator[Cluster]:
        embedded = EmbeddedKafka({"t": partitions}, listen=False, nodes=nodes)
        async with network, embedded as kafka:
            network.serve_embedded(kafka, nodes)
            for number in range(partitions):
                kafka.produce("t", [NewRecord(None, b"x")] * COUNT, partition=number)

            def consumer(*topics: str, **options: Any) -> Consumer:
                return Consumer(
                    *topics,
                    **{"bootstrap_servers": ["kafka-1", "kafka-2"], "group_id": "g", **options},
                )

            with anyio.fail_after(2_000):
                yield kafka, consumer

    return opened


async def poll(consumer: Consumer) -> list[Where]:
    batches = await consumer.getmany(100, 0.5)
    return [(r.partition, r.offset) for records in batches.values() for r in records]


async def drain(consumer: Consumer, count: int) -> tuple[list[Where], list[BrokerError]]:
    """Poll for `count` records, as an application does that logs errors and goes on."""
    found: list[Where] = []
    errors: list[BrokerError] = []
    while len(found) < count:
        try:
            found += await poll(consumer)
        except BrokerError as error:
            errors.append(error)
    return found, errors


async def with_validated_positions(
    kafka: EmbeddedKafka, consumer: Any, partitions: int, nodes: int = 2
) -> None:
    """Commit positions with an epoch that a new leader must validate."""
    async with consumer() as c:
        await c.assign([TopicPartition("t", n) for n in range(partitions)])
        await c.commit({tp: OffsetAndMetadata(0, leader_epoch=0) for tp in c.assignment()})
    for number in range(partitions):
        kafka.move_leader("t", number, kafka.leader("t", number) % nodes + 1)


def paces(kafka: EmbeddedKafka, api: Any) -> Counter[int]:
    """Return a counter of the requests of each second from now on."""
    counted: Counter[int] = Counter()

    def count(_: Any) -> bool:
        counted[int(anyio.current_time())] += 1
        return False

    kafka.fail(api, E.NONE, times=None, when=count)
    return counted


# ---------------------------------------------------------------- each code


@EACH_API
async def test_each_code_sent_once_costs_no_record_and_no_seek(refusing: Any, api: Any) -> None:
    """One TOPIC_AUTHORIZATION_FAILED in a fetch, a look-up of offsets or a validation silenced its
    partition until the application sought."""
    codes = CODES[api]
    async with refusing(len(codes)) as (kafka, consumer):
        if api is OffsetForLeaderEpochRequest:
            await with_validated_positions(kafka, consumer, len(codes))
        faults = [
            kafka.fail(api, code, partition=TopicPartition("t", number))
            for number, code in enumerate(codes)
        ]
        async with consumer("t") as c:
            found, errors = await drain(c, COUNT * len(codes))
            assert sorted(found) == [(p, n) for p in range(len(codes)) for n in range(COUNT)]
            assert [fault.hits for fault in faults] == [1] * len(codes)
            assert c.health().healthy
        raised = [code for code in codes if is_raised(api, code)]
        assert sorted(e.code for e in errors) == sorted(raised)


def is_raised(api: Any, code: int) -> bool:
    if api is OffsetFetchRequest:
        return code in (
            E.UNKNOWN_SERVER_ERROR,
            E.INVALID_GROUP_ID,
            E.TOPIC_AUTHORIZATION_FAILED,
            E.GROUP_AUTHORIZATION_FAILED,
            NEWER,
        )
    action = fetch_action(code)
    return action is FetchAction.RAISE or (action is FetchAction.RESET and api is not FetchRequest)


@EACH_API
async def test_each_code_sent_for_ever_is_reported_and_paced(refusing: Any, api: Any) -> None:
    """The other partitions go on; requests keep the pace of L6; a permanent cause is named within
    12 s, as is one that is retried silently; nothing is raised twice within a minute."""
    codes = [c for c in CODES[api] if (api, c) != (FetchRequest, E.OFFSET_OUT_OF_RANGE)]
    async with refusing(len(codes) + 1) as (kafka, consumer):
        if api is OffsetForLeaderEpochRequest:
            await with_validated_positions(kafka, consumer, len(codes) + 1)
        counted = paces(kafka, api)
        for number, code in enumerate(codes):
            kafka.fail(api, code, partition=TopicPartition("t", number), times=None)
        raised: dict[int, list[float]] = defaultdict(list)
        async with consumer("t") as c:
            start, others = anyio.current_time(), []
            named: list[str] = []
            while (passed := anyio.current_time() - start) < 150:
                try:
                    others += await poll(c)
                except BrokerError as error:
                    raised[error.code].append(anyio.current_time())
                if 11.5 < passed < 12.5:
                    named = [str(finding) for finding in c.health().findings]
        assert others == [(len(codes), n) for n in range(COUNT)]
        assert {c: len(times) for c, times in raised.items()} == {
            c: 3 for c in codes if is_raised(api, c) or c in UNKNOWN_TOPIC[api]
        }
        for times in raised.values():
            assert all(later - earlier >= 60 for earlier, later in pairwise(times))
        text = "; ".join(named)
        # One warning and finding is about the group's offsets, whatever codes they have.
        for code in codes if api is not OffsetFetchRequest else raised:
            assert str(BrokerError(code)) in text, text
        assert max(counted.values()) <= 20


UNKNOWN_TOPIC: dict[Any, tuple[int, ...]] = defaultdict(tuple) | {
    # Raised as well once they do not pass.
    OffsetFetchRequest: (E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID),
}


@EACH_API
async def test_many_refused_partitions_are_asked_for_together(refusing: Any, api: Any) -> None:
    """Each of ten brokers got five requests a second, as their partitions had different pauses."""
    async with refusing(60, nodes=10) as (kafka, consumer):
        if api is OffsetForLeaderEpochRequest:
            await with_validated_positions(kafka, consumer, 60, nodes=10)
        counted = paces(kafka, api)
        for number in range(60):
            partition = TopicPartition("t", number)
            kafka.fail(api, E.TOPIC_AUTHORIZATION_FAILED, partition=partition, times=None)
        async with consumer("t") as c:
            start, errors = anyio.current_time(), []
            while (passed := anyio.current_time() - start) < 30:
                try:
                    assert await poll(c) == []
                except BrokerError as error:
                    errors.append(str(error))
            assert len(errors) == len(set(errors)) == 60
        of_last_seconds = [n for at, n in counted.items() if start + 5 < at < start + passed - 1]
        assert max(of_last_seconds) <= 20


@pytest.mark.parametrize("code", [*COORDINATOR_CODES, *MEMBER_CODES])
async def test_a_refused_group_is_raised_once_a_minute(refusing: Any, code: int) -> None:
    """One error is for all partitions: a denied group refused each of them."""
    async with refusing() as (kafka, consumer):
        async with consumer() as c:
            await c.assign([T0, T1])
            await c.commit({T0: OffsetAndMetadata(1), T1: OffsetAndMetadata(2)})
        counted = paces(kafka, OffsetFetchRequest)
        fault = kafka.fail(OffsetFetchRequest, code, times=None)
        async with consumer() as c:
            await c.assign([T0, T1])
            start, raised = anyio.current_time(), []
            while anyio.current_time() - start < 150:
                try:
                    assert await poll(c) == []
                except BrokerError as error:
                    raised.append(error)
            is_silent = code in SILENT_FOR_GROUPS
            assert [e.code for e in raised] == ([] if is_silent else [code] * 3)
            assert str(BrokerError(code)) in str(c.health())
            assert max(counted.values()) <= 20
            fault.stop()
            found, errors = await drain(c, 2 * COUNT - 3)
            assert sorted(found) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
            assert errors == []
            assert c.health().healthy


SILENT_FOR_GROUPS = (
    *MEMBER_CODES,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.UNKNOWN_TOPIC_ID,
    E.REQUEST_TIMED_OUT,
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_COORDINATOR,
    E.UNSTABLE_OFFSET_COMMIT,
)


@pytest.mark.parametrize(
    "code",
    [
        *LEADER_CODES,
        E.FETCH_SESSION_ID_NOT_FOUND,
        E.INVALID_FETCH_SESSION_EPOCH,
        E.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
async def test_a_fetch_that_is_refused_as_a_whole_is_reported(refusing: Any, code: int) -> None:
    """Kafka answers an exception with one code for the whole fetch. It was only logged, at INFO,
    while the partitions of that broker stood still."""
    async with refusing() as (kafka, consumer), consumer() as c:
        other = next(n for n in range(2) if kafka.leader("t", n) == 2)
        counted = paces(kafka, FetchRequest)
        whole = Change(lambda _: FetchResponse(error_code=code, responses=()))
        fault = kafka.fail(FetchRequest, whole, times=None, node_id=1)
        await c.assign([T0, T1])
        start, raised = anyio.current_time(), []
        found = []
        while anyio.current_time() - start < 150:
            try:
                found += await poll(c)
            except BrokerError as error:
                raised.append(error)
        assert found == [(other, n) for n in range(COUNT)]
        is_refusal = fetch_action(code) is FetchAction.RAISE
        assert [e.code for e in raised] == ([code] * 3 if is_refusal else [])
        assert str(BrokerError(code)) in str(c.health())
        assert max(counted.values()) <= 20
        fault.stop()
        assert await drain(c, COUNT) == ([(1 - other, n) for n in range(COUNT)], [])
        assert c.health().healthy


# ---------------------------------------------------------------- how it is raised


def by_getone(consumer: Consumer) -> Callable[[], Awaitable[list[Where]]]:
    async def call() -> list[Where]:
        record = await consumer.getone()
        return [(record.partition, record.offset)]

    return call


def by_iteration(consumer: Consumer) -> Callable[[], Awaitable[list[Where]]]:
    records = aiter(consumer)

    async def call() -> list[Where]:
        record = await anext(records)
        return [(record.partition, record.offset)]

    return call


def by_batches(consumer: Consumer) -> Callable[[], Awaitable[list[Where]]]:
    batches = consumer.batches(2)

    async def call() -> list[Where]:
        return [(r.partition, r.offset) for r in await anext(batches)]

    return call


def by_getmany(consumer: Consumer) -> Callable[[], Awaitable[list[Where]]]:
    return partial(poll, consumer)


@pytest.mark.parametrize("way", [by_getone, by_iteration, by_batches, by_getmany])
@pytest.mark.parametrize("api", [FetchRequest, ListOffsetsRequest, OffsetFetchRequest])
async def test_every_way_of_reading_raises_and_goes_on(refusing: Any, api: Any, way: Any) -> None:
    async with refusing() as (kafka, consumer):
        fault = kafka.fail(api, E.TOPIC_AUTHORIZATION_FAILED, partition=T1, times=None)
        async with consumer("t") as c:
            call, found, errors = way(c), [], []
            while len(found) < COUNT or not errors:
                try:
                    found += await call()
                except AuthorizationError as error:
                    errors.append(error)
            assert found == [(0, n) for n in range(COUNT)]
            operation = "READ" if api is FetchRequest else "DESCRIBE"
            (error,) = errors
            assert (error.operation, error.resource) == (operation, "topic 't'")
            fault.stop()
            while len(found) < 2 * COUNT:
                found += await call()
            assert found[COUNT:] == [(1, n) for n in range(COUNT)]


async def test_the_records_before_a_refused_fetch_come_first(refusing: Any) -> None:
    async with refusing() as (kafka, consumer), consumer() as c:
        await c.assign([T0])
        assert (await c.getone()).offset == 0
        kafka.fail(FetchRequest, E.TOPIC_AUTHORIZATION_FAILED, partition=T0)
        kafka.produce("t", [NewRecord(None, b"y")], partition=0)
        await anyio.sleep(5)  # refused, and then fetched
        offsets: list[int] = []
        with pytest.raises(AuthorizationError, match="fetching t/0 at 4"):
            while True:
                offsets.append((await c.getone()).offset)
                await anyio.sleep(0.01)
        assert offsets == [1, 2, 3]
        assert (await c.getone()).offset == 4


async def test_a_refusal_that_passed_before_a_poll_is_raised(refusing: Any) -> None:
    """Otherwise an application that works for a while would never see it."""
    async with refusing() as (kafka, consumer), consumer() as c:
        fault = kafka.fail(OffsetFetchRequest, E.TOPIC_AUTHORIZATION_FAILED, partition=T0)
        await c.assign([T0])
        await anyio.sleep(10)
        assert (fault.hits, await c.position(T0)) == (1, 0)
        with pytest.raises(AuthorizationError):
            await c.getone()
        assert (await c.getone()).offset == 0


async def test_each_partition_and_code_has_its_own_minute(refusing: Any) -> None:
    async with refusing() as (kafka, consumer), consumer() as c:
        one = kafka.fail(FetchRequest, E.TOPIC_AUTHORIZATION_FAILED, partition=T0, times=None)
        kafka.fail(FetchRequest, E.TOPIC_AUTHORIZATION_FAILED, partition=T1, times=None)
        await c.assign([T0, T1])
        errors = []
        for code in (E.TOPIC_AUTHORIZATION_FAILED, E.CORRUPT_MESSAGE):
            start = anyio.current_time()
            while anyio.current_time() - start < 20:
                try:
                    assert await poll(c) == []
                except BrokerError as error:
                    errors.append(str(error))
            if code is E.TOPIC_AUTHORIZATION_FAILED:
                one.stop()
                kafka.fail(FetchRequest, E.CORRUPT_MESSAGE, partition=T0, times=None)
        denied = "TOPIC_AUTHORIZATION_FAILED (29): READ on topic 't' is not allowed"
        assert sorted(errors) == [
            "CORRUPT_MESSAGE (2): fetching t/0 at 0",
            f"{denied}: fetching t/0 at 0",
            f"{denied}: fetching t/1 at 0",
        ]


# ---------------------------------------------------------------- meanwhile


async def test_a_refusal_is_reported_until_it_ends(refusing: Any) -> None:
    """A warning and an event after 10 s, a finding at once, and none of them says that the
    application must seek."""
    async with refusing() as (kafka, consumer), consumer() as c:
        events = c.events()
        fault = kafka.fail(FetchRequest, E.TOPIC_AUTHORIZATION_FAILED, partition=T0, times=None)
        await c.assign([T0])
        with pytest.raises(AuthorizationError) as caught:
            await c.getone()
        (finding,) = c.health().findings
        assert (finding.problem, finding.partition) == (HealthProblem.REFUSED, T0)
        assert finding.detail == f"t/0 is refused, and asked for again: {caught.value}"
        assert c._delivery.awaiting_seek() == []
        await anyio.sleep(12)
        reported = await anext(events)
        assert isinstance(reported, TroubleReported)
        assert (reported.subject, reported.cause, reported.advice) == (
            "reading topic t",
            "TOPIC_AUTHORIZATION_FAILED (29)",
            "allow this principal READ on topic 't'; the client asks again",
        )
        fault.stop()
        assert (await c.getone()).offset == 0
        assert isinstance(await anext(events), TroubleEnded)
        assert c.health().healthy


@pytest.mark.parametrize("api", [FetchRequest, OffsetFetchRequest, ListOffsetsRequest])
async def test_a_seek_during_a_refusal(refusing: Any, api: Any) -> None:
    async with refusing() as (kafka, consumer), consumer() as c:
        fault = kafka.fail(api, E.TOPIC_AUTHORIZATION_FAILED, partition=T0, times=None)
        await c.assign([T0])
        with pytest.raises(AuthorizationError):
            await c.getone()
        c.seek(T0, 2)
        if api is FetchRequest:
            await anyio.sleep(5)
            assert c.health().findings[0].problem is HealthProblem.REFUSED
            fault.stop()
        else:
            assert c.health().healthy
        assert [(await c.getone()).offset for _ in range(2)] == [2, 3]
        assert c.health().healthy


async def test_a_seek_drops_an_error_that_was_not_raised_yet(refusing: Any) -> None:
    async with refusing() as (kafka, consumer), consumer() as c:
        kafka.fail(OffsetFetchRequest, E.TOPIC_AUTHORIZATION_FAILED, partition=T0, times=None)
        await c.assign([T0])
        await anyio.sleep(5)
        c.seek(T0, 2)
        assert [(await c.getone()).offset for _ in range(2)] == [2, 3]


async def test_a_pause_during_a_refusal(refusing: Any) -> None:
    """Nothing is fetched, so nothing is refused, until `resume`."""
    async with refusing() as (kafka, consumer), consumer() as c:
        fault = kafka.fail(FetchRequest, E.TOPIC_AUTHORIZATION_FAILED, partition=T0, times=None)
        await c.assign([T0])
        with pytest.raises(AuthorizationError):
            await c.getone()
        c.pause(T0)
        await anyio.sleep(2)
        hits = fault.hits
        await anyio.sleep(100)
        assert (fault.hits, c.health().healthy) == (hits, True)
        c.resume(T0)
        with pytest.raises(AuthorizationError):
            await c.getone()
        fault.stop()
        assert (await c.getone()).offset == 0


async def test_a_refused_look_up_does_not_delay_those_of_others(refusing: Any) -> None:
    """They shared one back-off, of a second."""
    async with refusing(8) as (kafka, consumer), consumer() as c:
        kafka.fail(OffsetFetchRequest, E.TOPIC_AUTHORIZATION_FAILED, partition=T0, times=None)
        await c.assign([T0])
        with pytest.raises(AuthorizationError):
            await c.getone()
        for number in range(1, 8):
            await anyio.sleep(2.7)
            await c.assign([T0, TopicPartition("t", number)])
            start = anyio.current_time()
            assert (await c.getone()).partition == number
            assert anyio.current_time() - start < 0.1


async def test_the_position_of_a_refused_partition_raises(refusing: Any) -> None:
    """Also where the error was raised less than a minute ago: the caller would wait."""
    async with refusing() as (kafka, consumer), consumer() as c:
        fault = kafka.fail(
            OffsetFetchRequest, E.TOPIC_AUTHORIZATION_FAILED, partition=T0, times=None
        )
        await c.assign([T0])
        for _ in range(3):
            with pytest.raises(AuthorizationError):
                await c.position(T0)
        fault.stop()
        await anyio.sleep(3)
        assert await c.position(T0) == 0


async def test_commits_go_on_while_a_partition_is_refused(refusing: Any) -> None:
    async with refusing() as (kafka, consumer):
        kafka.fail(FetchRequest, E.TOPIC_AUTHORIZATION_FAILED, partition=T1, times=None)
        async with consumer("t", auto_commit_interval_ms=1_000) as c:
            found, errors = await drain(c, COUNT)
            assert (len(found), len(errors)) in [(COUNT, 0), (COUNT, 1)]
            start = anyio.current_time()
            while anyio.current_time() - start < 5:
                try:
                    await poll(c)
                except BrokerError as error:
                    errors.append(error)
            assert len(errors) == 1
            assert kafka.committed("g", "t") == {0: COUNT, 1: 0}
            kafka.produce("t", [NewRecord(None, b"y")], partition=0)
            assert await poll(c) == [(0, COUNT)]
            await c.commit()
        assert kafka.committed("g", "t") == {0: COUNT + 1, 1: 0}


async def test_a_refused_auto_commit_is_raised_once_a_minute(refusing: Any) -> None:
    """It was raised at each interval: every five seconds while an ACL was missing."""
    async with refusing() as (kafka, consumer):
        kafka.fail(OffsetCommitRequest, E.TOPIC_AUTHORIZATION_FAILED, times=None)
        async with consumer("t", auto_commit_interval_ms=1_000) as c:
            _, errors = await drain(c, COUNT)
            start = anyio.current_time()
            while anyio.current_time() - start < 130:
                kafka.produce("t", [NewRecord(None, b"y")], partition=0)
                await anyio.sleep(1)
                try:
                    await poll(c)
                except BrokerError as error:
                    errors.append(error)
            assert [error.code for error in errors] == [E.TOPIC_AUTHORIZATION_FAILED] * 3


async def test_a_revoked_partition_raises_no_refusal(refusing: Any) -> None:
    async with refusing() as (kafka, consumer), consumer() as c:
        kafka.fail(FetchRequest, E.TOPIC_AUTHORIZATION_FAILED, partition=T0, times=None)
        await c.assign([T0])
        await anyio.sleep(5)
        await c.assign([T1])
        found, errors = await drain(c, COUNT)
        assert (found, errors) == ([(1, n) for n in range(COUNT)], [])
        assert c.health().healthy

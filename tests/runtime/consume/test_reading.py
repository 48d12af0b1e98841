"""The start position, and what follows each error: positions and fetcher together."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from struct import pack_into
from typing import Any
from uuid import UUID

import anyio
import anyio.lowlevel
import pytest
from crc32c import crc32c

from kafkagroup import Consumer, HealthProblem
from kafkagroup._extended_consumer import TunedConsumer
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import (
    AuthorizationError,
    BrokerError,
    ConfigurationError,
    CorruptRecordError,
    ErrorCode,
    NoOffsetError,
    OffsetOutOfRangeError,
    broker_error,
)
from kafkagroup.runtime.consume import fetch_response, fetch_sources
from kafkagroup.runtime.consume.engine import Engine
from kafkagroup.testing.embedded import Close, Delay, EmbeddedKafka, Swallow
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.arrow import schema
from kafkagroup.wire.batch_writing import NewRecord, encode_batch, with_base_offset
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
)
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

pytestmark = pytest.mark.anyio

E = ErrorCode
TP = TopicPartition("t", 0)
Cluster = tuple[EmbeddedKafka, Callable[..., Consumer]]


@pytest.fixture
def reading(network: Any) -> Any:
    """Provide a broker with t/0, t/1 and t/2, ten records in t/0, and consumers that are assigned
    t/0."""

    @asynccontextmanager
    async def opened(nodes: int = 1, records: int = 10) -> AsyncIterator[Cluster]:
        clock = 1_700_000_000.0
        async with (
            network,
            EmbeddedKafka({"t": 3}, listen=False, nodes=nodes, wall=lambda: clock) as kafka,
        ):
            network.serve_embedded(kafka, nodes)
            for number in range(records):
                stamped = NewRecord(None, b"%d" % number, 1_000 * number)
                kafka.produce("t", [stamped], partition=0)

            def consumer(*topics: str, private: Any = (), **options: Any) -> Consumer:
                servers = [f"kafka-{n}" for n in range(1, nodes + 1)]
                return TunedConsumer(
                    dict(private),
                    *topics,
                    **{"bootstrap_servers": servers, "enable_auto_commit": False, **options},
                )

            with anyio.fail_after(500):
                yield kafka, consumer

    return opened


async def offsets_of(consumer: Consumer, count: int) -> list[int]:
    return [(await consumer.getone()).offset for _ in range(count)]


async def read(consumer: Consumer, count: int, *partitions: TopicPartition) -> list[int]:
    """Return the offsets of the first `count` records."""
    async with consumer:
        await consumer.assign(partitions or (TP,))
        return await offsets_of(consumer, count)


# ---------------------------------------------------------------- where to start


@pytest.mark.parametrize(
    ("policy", "start"),
    [("earliest", 2), ("latest", 10), (timedelta(days=400_000), 2), (timedelta(0), 10)],
    ids=str,
)
async def test_the_reset_policy(reading: Any, policy: Any, start: int) -> None:
    """A duration is relative to now; if no record is that young, reading starts at the end."""
    async with reading() as (kafka, consumer):
        kafka.delete_records("t", 0, 2)
        async with consumer(auto_offset_reset=policy) as c:
            await c.assign([TP])
            assert await c.position(TP) == start


async def test_a_duration_starts_at_the_first_young_enough_record(
    reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkagroup.runtime.consume.positions.time.time", lambda: 10.0)
    async with reading() as (_, consumer):
        assert await read(consumer(auto_offset_reset=timedelta(seconds=4.5)), 2) == [6, 7]


async def test_each_partition_is_reset_on_its_own(
    reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some have young enough records, others only older ones, or none; and of one the log starts
    later."""
    monkeypatch.setattr("kafkagroup.runtime.consume.positions.time.time", lambda: 10.0)
    partitions = [TopicPartition("t", number) for number in range(3)]
    async with reading() as (kafka, consumer):
        kafka.produce("t", [NewRecord(None, b"old", 2_000)] * 3, partition=1)
        kafka.delete_records("t", 0, 7)
        found = {}
        for policy in ("earliest", "latest", timedelta(seconds=4.5), timedelta(seconds=2.5)):
            async with consumer(auto_offset_reset=policy) as c:
                await c.assign(partitions)
                positions = [await c.position(tp) for tp in partitions]
                lags = await c.lag()
                found[policy] = list(zip(positions, map(lags.__getitem__, partitions), strict=True))
    assert found == {
        "earliest": [(7, 3), (0, 3), (0, 0)],
        "latest": [(10, 0), (3, 0), (0, 0)],
        timedelta(seconds=4.5): [(7, 3), (3, 0), (0, 0)],
        timedelta(seconds=2.5): [(8, 2), (3, 0), (0, 0)],
    }


async def test_a_partition_without_a_commit_or_reset_policy_is_an_error(
    reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail, failed = Engine.fail_partition, list[TopicPartition]()

    def recorded(engine: Engine, owned: OwnedPartition, error: Exception) -> None:
        failed.append(owned.tp)
        fail(engine, owned, error)

    monkeypatch.setattr(Engine, "fail_partition", recorded)
    async with reading() as (_, consumer), consumer(auto_offset_reset="none", group_id="g") as c:
        await c.assign([TP])
        with pytest.raises(NoOffsetError) as caught:
            await c.getone()
        assert caught.value.partitions == (TP,)
        await anyio.sleep(30)
        assert failed == [TP]  # it is not looked up again: only the application can go on
        c.seek(TP, 3)
        assert await offsets_of(c, 2) == [3, 4]


def calls(c: Consumer, partition: TopicPartition = TP) -> list[Callable[[], Awaitable[object]]]:
    """Return every call that the application can make while a partition has no position."""
    return [
        c.getone,
        c.getone,
        lambda: anext(c),
        lambda: anext(aiter(c)),
        lambda: anext(c.batches()),
        c.getmany,
        partial(c.getmany, timeout=9.0),
        partial(c.position, partition),
    ]


async def test_every_call_names_all_partitions_without_a_position(reading: Any) -> None:
    """Each was raised once; afterwards nothing was read from them, without an error."""
    first, second, third = (TopicPartition("t", n) for n in range(3))
    async with (
        reading() as (kafka, consumer),
        consumer(auto_offset_reset="none", group_id="g") as c,
    ):
        kafka.produce("t", ["a", "b"], partition=1)
        await c.assign([first, second, third])
        c.seek(third, 7)  # where its log has nothing
        await anyio.sleep(5)
        for call in calls(c)[:-1]:
            with pytest.raises(NoOffsetError) as caught:
                await call()
            assert set(caught.value.partitions) == {first, second, third}
            assert caught.value.out_of_range == {third: 7}
        for tp, error in (
            (first, NoOffsetError((first,))),
            (third, OffsetOutOfRangeError({third: 7})),
        ):
            with pytest.raises(type(error), match=str(error)):
                await c.position(tp)
        with pytest.raises(NoOffsetError):
            await c.lag()
        findings = c.health().findings
        assert [f.partition for f in findings] == [first, second, third]
        assert {f.problem for f in findings} == {HealthProblem.NO_POSITION}
        for finding, found in zip(
            findings, ("no committed", "no committed", "no such offset"), strict=True
        ):
            assert f"until the application seeks: {found}" in finding.detail

        c.seek(second, 0)
        await anyio.sleep(5)
        with pytest.raises(NoOffsetError) as caught:
            await c.getone()
        assert caught.value.partitions == (first, third)
        c.seek(first, 9)
        with pytest.raises(OffsetOutOfRangeError) as out_of_range:
            await c.getone()
        assert out_of_range.value.offsets == {third: 7}
        await c.assign([first, second])
        taken = [((one := await c.getone()).partition, one.offset) for _ in range(3)]
        assert sorted(taken) == [(0, 9), (1, 0), (1, 1)]


async def test_a_partition_without_a_position_loses_no_record_of_the_others(reading: Any) -> None:
    """The error is raised before a record is taken, and the check sends no request."""
    other = TopicPartition("t", 1)
    async with (
        reading() as (kafka, consumer),
        consumer(auto_offset_reset="none", group_id="g") as c,
    ):
        await c.assign([TP])
        c.seek(TP, 0)
        assert await offsets_of(c, 2) == [0, 1]
        await c.assign([TP, other])
        taken: list[int] = []
        for _ in range(30):
            with anyio.move_on_after(0.01):
                try:
                    taken.append((await c.getone()).offset)
                except NoOffsetError:
                    await anyio.sleep(0.1)
        before = len(kafka.requests())
        with anyio.move_on_after(3):
            while True:
                with suppress(NoOffsetError):
                    await c.getone()
                await anyio.sleep(0.0001)
        assert len(kafka.requests()) - before < 20
        c.seek(other, 0)
        taken += await offsets_of(c, 8 - len(taken))
        assert taken == list(range(2, 10))


async def test_polling_without_a_position_counts_as_polling(reading: Any) -> None:
    """An application that waited for a committed offset was removed from its group."""
    lost: list[object] = []
    async with reading() as (_, consumer):
        member = consumer(
            "t",
            auto_offset_reset="none",
            group_id="g",
            max_poll_interval_ms=6_000,
            rebalance_timeout_ms=6_000,
            session_timeout_ms=6_000,
            on_partitions_lost=lost.extend,
        )
        async with member as c:
            for _ in range(10):
                with pytest.raises(NoOffsetError):
                    await c.getone()
                await anyio.sleep(3)
    assert lost == []


async def test_the_committed_offset_takes_precedence_over_the_reset_policy(reading: Any) -> None:
    async with reading() as (kafka, consumer):
        async with consumer(group_id="g") as c:
            await c.assign([TP])
            await c.commit({TP: OffsetAndMetadata(7)})
        assert kafka.committed("g", "t") == {0: 7}
        assert await read(consumer(group_id="g", auto_offset_reset="latest"), 3) == [7, 8, 9]


@pytest.mark.parametrize(
    "action",
    [E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR, E.UNSTABLE_OFFSET_COMMIT, Close()],
    ids=str,
)
async def test_a_failed_offset_fetch_never_applies_the_reset_policy(
    reading: Any, action: Any
) -> None:
    """S12: a failed offset fetch is not offset 0, nor the end."""
    async with reading() as (kafka, consumer):
        async with consumer(group_id="g") as c:
            await c.assign([TP])
            await c.commit({TP: OffsetAndMetadata(7)})
            await c.position(TP)
        before = kafka.requests(ListOffsetsRequest)
        kafka.fail(OffsetFetchRequest, action, times=5)
        assert await read(consumer(group_id="g", auto_offset_reset="latest"), 1) == [7]
        assert kafka.requests(ListOffsetsRequest) == before


async def test_a_refused_offset_fetch_reaches_the_application(reading: Any) -> None:
    async with reading() as (kafka, consumer):
        kafka.fail(OffsetFetchRequest, E.GROUP_AUTHORIZATION_FAILED, times=None)
        async with consumer(group_id="g") as c:
            await c.assign([TP])
            with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                await c.getone()
            with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                await c.position(TP)
            (finding,) = c.health().findings
            assert (finding.problem, finding.partition) == (HealthProblem.REFUSED, TP)
            c.seek(TP, 8)
            assert await offsets_of(c, 2) == [8, 9]


@pytest.mark.parametrize("committed", [None, 2])
async def test_a_seek_overrides_an_offset_fetch_in_flight(
    reading: Any, committed: int | None
) -> None:
    async with reading() as (kafka, consumer), consumer(group_id="g") as c:
        if committed is not None:
            await c.assign([TopicPartition("t", 0)])
            await c.commit({TP: OffsetAndMetadata(committed)})
            await c.assign([])
        kafka.fail(OffsetFetchRequest, Delay(5))
        await c.assign([TP])
        await anyio.sleep(1)
        c.seek(TP, 5)
        await anyio.sleep(10)
        assert await c.position(TP) == 5
        assert await offsets_of(c, 2) == [5, 6]


async def test_a_seek_overrides_an_offset_fetch_error_in_flight(reading: Any) -> None:
    async with reading() as (kafka, consumer), consumer(group_id="g") as c:
        kafka.fail(OffsetFetchRequest, Close(), times=3)
        kafka.fail(OffsetFetchRequest, E.GROUP_AUTHORIZATION_FAILED)
        await c.assign([TP])
        await anyio.sleep(0.01)
        c.seek(TP, 5)
        await anyio.sleep(10)
        assert await offsets_of(c, 2) == [5, 6]


# ---------------------------------------------------------------- errors of ListOffsets


@pytest.mark.parametrize(
    "action",
    [
        E.NOT_LEADER_OR_FOLLOWER,
        E.LEADER_NOT_AVAILABLE,
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.OFFSET_NOT_AVAILABLE,
        E.REQUEST_TIMED_OUT,
        Close(),
    ],
    ids=str,
)
async def test_a_failed_list_offsets_request_is_retried(reading: Any, action: Any) -> None:
    async with reading() as (kafka, consumer):
        kafka.fail(ListOffsetsRequest, action, times=3)
        assert await read(consumer(), 1) == [0]
        assert len(kafka.requests(ListOffsetsRequest)) == 4


async def test_a_permanent_list_offsets_error_is_raised(reading: Any) -> None:
    async with reading() as (kafka, consumer):
        kafka.fail(ListOffsetsRequest, E.TOPIC_AUTHORIZATION_FAILED)
        async with consumer() as c:
            await c.assign([TP])
            with pytest.raises(BrokerError) as caught:
                await c.getone()
            assert caught.value == broker_error(
                29, "offsets of t/0", operation="DESCRIBE", topic="t"
            )


# ---------------------------------------------------------------- errors of Fetch

RETRIED = (E.OFFSET_NOT_AVAILABLE, E.REQUEST_TIMED_OUT, E.UNKNOWN_SERVER_ERROR)
REFRESHED = (
    E.NOT_LEADER_OR_FOLLOWER,
    E.REPLICA_NOT_AVAILABLE,
    E.KAFKA_STORAGE_ERROR,
    E.FENCED_LEADER_EPOCH,
    E.UNKNOWN_LEADER_EPOCH,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.UNKNOWN_TOPIC_ID,
    E.INCONSISTENT_TOPIC_ID,
    E.LEADER_NOT_AVAILABLE,
)
RAISED = (E.CORRUPT_MESSAGE, E.TOPIC_AUTHORIZATION_FAILED, E.UNSUPPORTED_COMPRESSION_TYPE)


@pytest.mark.parametrize(
    ("code", "refreshed"), [*((c, 0) for c in RETRIED), *((c, 3) for c in REFRESHED)]
)
async def test_a_fetch_is_retried_after_a_retriable_error(
    reading: Any, code: ErrorCode, refreshed: int
) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        before = len(kafka.requests(MetadataRequest))
        kafka.fail(FetchRequest, code, times=3)
        assert await offsets_of(c, 3) == [0, 1, 2]
        # One more tells the cluster of the connection for fetches.
        assert len(kafka.requests(MetadataRequest)) - before == refreshed + 1


@pytest.mark.parametrize("code", RAISED)
async def test_a_refused_fetch_is_raised_once_a_minute(reading: Any, code: ErrorCode) -> None:
    """It stopped the partition until the application sought. Now only the back-off does."""
    async with reading() as (kafka, consumer), consumer() as c:
        other = TopicPartition("t", 1)
        kafka.produce("t", ["x"], partition=1)
        fault = kafka.fail(FetchRequest, code, partition=TP, times=None)
        await c.assign([TP])
        with pytest.raises(BrokerError) as caught:
            await c.getone()
        assert caught.value == broker_error(code, "fetching t/0 at 0", operation="READ", topic="t")
        await c.assign([TP, other])
        one = await c.getone()
        assert (one.topic, one.partition, one.offset) == ("t", 1, 0)
        with anyio.move_on_after(59) as idle:
            await c.getone()
        assert idle.cancelled_caught
        assert await c.position(TP) == 0
        (finding,) = c.health().findings
        assert (finding.problem, finding.partition) == (HealthProblem.REFUSED, TP)
        assert str(caught.value) in finding.detail
        with pytest.raises(BrokerError), anyio.fail_after(4):
            await c.getone()
        fault.stop()
        assert await offsets_of(c, 2) == [0, 1]


async def test_a_moved_leader_is_followed(reading: Any) -> None:
    async with reading(nodes=2) as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        assert await offsets_of(c, 10) == list(range(10))
        kafka.move_leader("t", 0, 3 - kafka.leader("t", 0))
        kafka.produce("t", ["more"], partition=0)
        assert await offsets_of(c, 1) == [10]


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_dead_leader_is_replaced(reading: Any, how: str) -> None:
    async with reading(nodes=2) as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        await offsets_of(c, 10)
        leader = kafka.leader("t", 0)
        if how == "killed":
            kafka.kill(leader)
        else:
            kafka.fail(FetchRequest, Swallow(), times=None, node_id=leader)
            await anyio.sleep(1)
            kafka.move_leader("t", 0, 3 - leader)
        kafka.produce("t", ["more"], partition=0)
        assert await offsets_of(c, 1) == [10]


@pytest.mark.parametrize("group_id", ["g", None])
async def test_a_position_is_looked_up_until_a_cluster_is_back(
    reading: Any, group_id: str | None
) -> None:
    async with reading() as (kafka, consumer), consumer(group_id=group_id) as c:
        await c.assign([TP])
        await offsets_of(c, 10)
        kafka.produce("t", ["a"], partition=1)
        await c.assign([TP, TopicPartition("t", 1)])
        kafka.kill(1)
        await anyio.sleep(30)
        kafka.restart(1)
        with anyio.fail_after(3):
            assert await offsets_of(c, 1) == [0]


@pytest.mark.parametrize("group_id", ["g", None])
async def test_a_call_to_assign_while_all_brokers_are_away_is_followed_once_they_are_back(
    reading: Any, group_id: str | None
) -> None:
    """It raised NoBrokersAvailableError, after it had released the other partitions."""
    one = TopicPartition("u", 0)
    async with reading() as (kafka, consumer), consumer(group_id=group_id) as c:
        kafka.create_topic("u")
        kafka.produce("u", ["a"])
        await c.assign([TP])
        await offsets_of(c, 10)
        kafka.kill(1)
        await c.assign([one])
        assert c.assignment() == {one}
        await anyio.sleep(30)
        kafka.restart(1)
        with anyio.fail_after(3):
            assert (await c.getone()).value == b"a"


async def test_a_subscription_without_a_group_while_all_brokers_are_away_is_followed(
    reading: Any,
) -> None:
    async with reading() as (kafka, consumer), consumer("t") as c:
        kafka.create_topic("u")
        kafka.produce("u", ["a"])
        await offsets_of(c, 10)
        kafka.kill(1)
        await c.subscribe("u")
        await anyio.sleep(30)
        kafka.restart(1)
        with anyio.fail_after(3):
            assert (await c.getone()).value == b"a"


async def test_a_partition_does_not_wait_for_the_look_up_before_it(reading: Any) -> None:
    """Only look-ups that have failed are followed by a pause."""
    other = TopicPartition("t", 1)
    async with reading() as (kafka, consumer), consumer(group_id="g") as c:
        kafka.produce("t", ["a"], partition=1)
        await c.assign([TP])
        await offsets_of(c, 10)
        began = anyio.current_time()
        await c.assign([TP, other])
        await offsets_of(c, 1)
        assert anyio.current_time() == began


# ---------------------------------------------------------------- OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(("policy", "after"), [("earliest", 6), ("latest", 10)])
async def test_a_position_out_of_range_is_reset_with_a_warning(
    reading: Any, policy: Any, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading() as (kafka, consumer), consumer(auto_offset_reset=policy) as c:
        await c.assign([TP])
        c.seek(TP, 99)
        while await c.position(TP) == 99:
            await anyio.sleep(1)
        assert await c.position(TP) == (0 if policy == "earliest" else 10)
        assert [
            (r.levelname, r.getMessage()) for r in caplog.records if "position 99" in r.getMessage()
        ] == [
            (
                "WARNING",
                "t/0: position 99 is above the end of the log, 10; auto_offset_reset applies",
            )
        ]
        kafka.delete_records("t", 0, 6)
        c.seek(TP, 2)
        while await c.position(TP) == 2:
            await anyio.sleep(1)
        assert await c.position(TP) == after


async def test_a_position_out_of_range_without_a_reset_policy_is_an_error(reading: Any) -> None:
    async with reading() as (_, consumer), consumer(auto_offset_reset="none") as c:
        await c.assign([TP])
        c.seek(TP, 99)
        for call in calls(c):
            with pytest.raises(OffsetOutOfRangeError) as caught:
                await call()
            assert caught.value.offsets == {TP: 99}
        (finding,) = c.health().findings
        assert (finding.problem, finding.partition) == (HealthProblem.NO_POSITION, TP)
        c.seek(TP, 9)
        assert c.health()
        assert await c.position(TP) == 9
        assert await offsets_of(c, 1) == [9]


async def test_a_reset_that_waits_for_buffered_records_is_no_trouble(reading: Any) -> None:
    """It was reported with advice about topics and leaders while the application was busy."""
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        assert await offsets_of(c, 1) == [0]
        fault = kafka.fail(FetchRequest, E.OFFSET_OUT_OF_RANGE, partition=TP, times=None)
        await anyio.sleep(60)
        assert fault.hits > 2
        assert [
            f.problem for f in c.health().findings if f.problem is HealthProblem.NO_PROGRESS
        ] == []


async def test_a_repeated_ineffective_reset_causes_no_hot_loop(reading: Any) -> None:
    """L6: at most 20 requests a second under a permanent error."""
    async with reading() as (kafka, consumer), consumer() as c:
        kafka.fail(FetchRequest, E.OFFSET_OUT_OF_RANGE, times=None)
        await c.assign([TP])
        with anyio.move_on_after(10):
            await c.getone()
        asked = len(kafka.requests(FetchRequest)) + len(kafka.requests(ListOffsetsRequest))
        assert 10 < asked < 200


@pytest.mark.parametrize("code", [*RETRIED, *REFRESHED])
async def test_a_permanent_fetch_error_causes_no_hot_loop(reading: Any, code: ErrorCode) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        kafka.fail(FetchRequest, code, times=None)
        await c.assign([TP])
        with anyio.move_on_after(10):
            await c.getone()
        assert 10 < len(kafka.requests()) < 200


# ---------------------------------------------------------------- what comes back


async def test_a_batch_larger_than_the_fetch_size_is_delivered(reading: Any) -> None:
    """KIP-74: the broker sends at least one batch, however large."""
    async with reading(records=0) as (kafka, consumer):
        for size in (50_000, 10, 70_000):
            kafka.produce("t", [b"x" * size], partition=0)
        c = consumer(max_partition_fetch_bytes=1000, fetch_max_bytes=2000)
        async with c:
            await c.assign([TP])
            values = [(await c.getone()).value for _ in range(3)]
            assert [len(v) for v in values if isinstance(v, bytes)] == [50_000, 10, 70_000]


@pytest.mark.parametrize("nodes", [1, 2])
async def test_buffered_and_requested_bytes_stay_within_fetch_max_bytes(
    reading: Any, nodes: int
) -> None:
    """Two partitions of 100 batches, from one broker or from two; and the metrics show it."""
    one, count = 1_100, 100
    bound = 10_000
    async with reading(nodes, records=0) as (kafka, consumer):
        for partition in (0, 1):
            for _ in range(count):
                kafka.produce("t", [b"x" * 1_000], partition=partition)
        async with consumer(fetch_max_bytes=bound) as c:
            await c.assign([TP, TopicPartition("t", 1)])
            seen, fetching = [], []
            for _ in range(2 * count):
                await c.getone()
                await anyio.sleep(0.01)
                found = c.metrics()
                seen.append(found.buffered_bytes)
                fetching.append(found.fetching_bytes)
        assert max(a + b for a, b in zip(seen, fetching, strict=True)) <= bound + nodes * one
        assert max(seen) >= bound // 2
        assert fetching[-1] > 0  # for what may still be appended


async def test_a_paused_partition_with_a_full_buffer_delays_no_other(reading: Any) -> None:
    async with reading(records=0) as (kafka, consumer):
        for _ in range(40):
            kafka.produce("t", [b"x" * 100_000], partition=0)
        async with consumer() as c:
            await c.assign([TP, TopicPartition("t", 1)])
            await c.getone()
            await anyio.sleep(2)
            kafka.produce("t", [b"the other"], partition=1)
            c.pause(TP)
            assert (await c.getone()).value == b"the other"


async def test_a_fetch_response_from_before_a_seek_is_dropped(reading: Any) -> None:
    """Otherwise the records from 6 on would be delivered in place of those from 2 on."""
    async with reading() as (kafka, consumer), consumer() as c:
        kafka.fail(FetchRequest, Delay(5))
        await c.assign([TP])
        c.seek(TP, 6)
        await anyio.sleep(1)
        c.seek(TP, 2)
        assert await offsets_of(c, 3) == [2, 3, 4]


async def test_a_fetch_response_of_an_earlier_assignment_is_dropped(
    reading: Any,
) -> None:
    """It is another assignment: the response belongs to the first one."""
    async with reading() as (kafka, consumer), consumer() as c:
        kafka.fail(FetchRequest, Delay(5))
        await c.assign([TP])
        c.seek(TP, 6)
        await anyio.sleep(1)
        await c.assign([])
        await c.assign([TP])
        c.seek(TP, 2)
        assert await offsets_of(c, 3) == [2, 3, 4]


async def test_records_below_the_position_are_skipped(reading: Any) -> None:
    async with reading(records=0) as (kafka, consumer), consumer() as c:
        kafka.produce("t", ["0", "1", "2", "3"], partition=0)
        await c.assign([TP])
        c.seek(TP, 2)
        assert await offsets_of(c, 2) == [2, 3]


async def test_a_partition_with_a_full_buffer_is_not_fetched(reading: Any) -> None:
    async with reading(records=0) as (kafka, consumer):
        for _ in range(10):
            kafka.produce("t", [b"x" * 1000], partition=0)
        async with consumer(fetch_max_bytes=2500) as c:
            await c.assign([TP])
            await anyio.sleep(60)
            assert c._delivery.buffered_bytes < 2500 + 1100  # KIP-74: at least one batch comes
            assert len(kafka.requests(FetchRequest)) <= 3
            assert await offsets_of(c, 10) == list(range(10))


async def test_other_tasks_run_between_the_partitions_of_a_large_response(
    reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read of this clock takes 2 ms, like the CRC check of a few MB."""
    seen: list[int | str] = []
    late = itertools.count(0, 0.002)
    read_batches = fetch_response.read_batches

    def noted(*args: Any, partition: int, **options: Any) -> Any:
        seen.append(partition)
        return read_batches(*args, partition=partition, **options)

    async def take_turns() -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            seen.append("turn")

    monkeypatch.setattr(fetch_response, "read_batches", noted)

    def clock() -> float:
        return anyio.current_time() + next(late)

    monkeypatch.setattr(fetch_response, "loop_clock", lambda: clock)
    async with reading(records=3) as (kafka, consumer), consumer() as c:
        kafka.produce("t", ["a", "b"], partition=1)
        kafka.produce("t", ["a"], partition=2)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_turns)
            await c.assign([TopicPartition("t", p) for p in range(3)])
            assert sorted(await offsets_of(c, 6)) == [0, 0, 0, 1, 1, 2]
            tasks.cancel_scope.cancel()
    first, _, third = (i for i, one in enumerate(seen) if one != "turn")
    # Who is last in one round of the loop may be first in the next: only of two are both sure.
    assert "turn" in seen[first:third]


async def test_a_partition_at_its_end_does_not_delay_one_with_more_records(reading: Any) -> None:
    """A partition with one response's worth of buffered bytes was omitted from the next fetch. The
    broker had no records of the others and held that fetch for half a second, while the buffered
    records were soon delivered."""
    async with reading(records=0) as (kafka, consumer):
        for _ in range(10):
            kafka.produce("t", [b"x" * 1000], partition=0)
        async with consumer(max_partition_fetch_bytes=1500) as c:
            await c.assign([TP, TopicPartition("t", 1)])
            await anyio.sleep(0.7)
            before = anyio.current_time()
            assert await offsets_of(c, 10) == list(range(10))
            assert anyio.current_time() == before


# ---------------------------------------------------------------- a scripted leader

HERE = ("b", 9092)
TOPIC_ID = UUID(int=7)


def batch_at(offset: int, count: int = 1) -> bytes:
    records = [NewRecord(None, b"v")] * count
    return with_base_offset(encode_batch(records), offset, 0)


def lone(**options: Any) -> Consumer:
    return Consumer(bootstrap_servers="b:9092", **options)


async def test_metadata_of_a_partition_without_a_leader_is_refreshed_soon(
    network: Any, leader_of: Any
) -> None:
    """During an election, do not wait five minutes for the next metadata refresh."""
    leader = leader_of(lambda offset: batch_at(offset))
    leader.leaders = [1, -1, -1, 1]
    network.handlers[HERE] = leader
    async with network, lone() as c:
        await c.assign([TP])
        c.seek(TP, 3)
        start = anyio.current_time()
        assert await offsets_of(c, 1) == [3]
        assert anyio.current_time() - start < 5
        assert leader.count("metadata") == 4


async def test_a_partition_without_a_leader_causes_no_hot_loop(
    network: Any, leader_of: Any
) -> None:
    leader = leader_of(lambda offset: batch_at(offset))
    leader.leaders = [-1]
    network.handlers[HERE] = leader
    async with network, lone() as c:
        await c.assign([TP])
        c.seek(TP, 3)
        await anyio.sleep(20)
        assert 15 < leader.count("metadata") < 60


@pytest.mark.parametrize("offset", [-2, -(2**63)])
async def test_a_negative_log_start_offset_is_requested_again(
    network: Any, leader_of: Any, offset: int
) -> None:
    leader = leader_of(lambda offset: batch_at(offset), offset)
    network.handlers[HERE] = leader
    async with network, lone() as c:
        await c.assign([TP])
        with anyio.move_on_after(10):
            await c.getone()
        assert leader.count("fetch") == 0
        assert 8 < leader.count("list") < 40
        leader.offset = 4
        assert await offsets_of(c, 1) == [4]


async def test_a_response_entirely_below_the_position_is_raised_once(
    network: Any, leader_of: Any
) -> None:
    """If they were skipped silently, they would be fetched again at once, without end."""
    leader = leader_of(lambda offset: batch_at(1, 2))
    network.handlers[HERE] = leader
    async with network, lone() as c:
        await c.assign([TP])
        c.seek(TP, 5)
        with anyio.fail_after(5), pytest.raises(CorruptRecordError) as caught:
            await c.getone()
        assert str(caught.value).startswith("t/0 at offset 5: ")
        with anyio.move_on_after(60):
            await c.getone()
        assert leader.count("fetch") == 1
        leader.fetched = lambda offset: batch_at(offset)
        c.seek(TP, 5)
        assert await offsets_of(c, 1) == [5]


@pytest.fixture
def fails_at_three(leader_of: Any) -> Any:
    """A leader with three records and an error after them."""
    three = batch_at(0) + batch_at(1) + batch_at(2)
    return leader_of(lambda offset: three if offset == 0 else E.TOPIC_AUTHORIZATION_FAILED)


async def test_records_fetched_before_an_error_are_delivered_before_it(
    network: Any, fails_at_three: Any
) -> None:
    """The error names the next position: if it were too high, seeking there would skip records."""
    network.handlers[HERE] = fails_at_three
    async with network, lone() as c:
        await c.assign([TP])
        assert await offsets_of(c, 1) == [0]
        await anyio.sleep(5)  # the fetch of the records after them is answered
        assert fails_at_three.count("fetch") > 2
        assert await offsets_of(c, 2) == [1, 2]
        with anyio.fail_after(5), pytest.raises(AuthorizationError):
            await c.getone()
        with pytest.raises(TimeoutError), anyio.fail_after(59):
            await c.getone()


async def test_an_error_below_the_new_position_is_not_raised(
    network: Any, fails_at_three: Any
) -> None:
    network.handlers[HERE] = fails_at_three
    async with network, lone() as c:
        await c.assign([TP])
        assert await offsets_of(c, 1) == [0]
        await anyio.sleep(5)
        c.seek(TP, 0)
        assert await offsets_of(c, 3) == [0, 1, 2]


async def test_a_batch_that_is_always_truncated_is_raised_once(
    network: Any, leader_of: Any
) -> None:
    leader = leader_of(lambda offset: batch_at(offset)[:-1])
    network.handlers[HERE] = leader
    async with network, lone() as c:
        await c.assign([TP])
        with anyio.fail_after(5), pytest.raises(CorruptRecordError) as caught:
            await c.getone()
        assert str(caught.value).startswith(
            f"t/0 at offset 0: the next batch is larger than the {len(batch_at(0)) - 1} bytes"
        )
        with anyio.move_on_after(60):
            await c.getone()
        assert leader.count("fetch") == 1


async def test_fetched_records_are_delivered_before_a_reset(network: Any, leader_of: Any) -> None:
    """The log was truncated below the buffered records: they are valid, and must not be lost."""
    three = batch_at(0) + batch_at(1) + batch_at(2)
    leader = leader_of(lambda offset: three if offset == 0 else E.OFFSET_OUT_OF_RANGE)
    network.handlers[HERE] = leader
    async with network, lone() as c:
        await c.assign([TP])
        found = await offsets_of(c, 1)
        leader.offset = 50
        await anyio.sleep(5)
        assert leader.count("list") == 1
        found += await offsets_of(c, 2)
        leader.fetched = lambda offset: batch_at(offset) if offset == 50 else E.OFFSET_OUT_OF_RANGE
        found += await offsets_of(c, 1)
        # Its start and its end, and then where to start.
        assert (found, leader.count("list")) == ([0, 1, 2, 50], 1 + 3)


async def test_a_truncated_last_batch_is_dropped_and_fetched_again(
    network: Any, leader_of: Any
) -> None:
    wholes = {0: batch_at(0) + batch_at(1)[:-1], 1: batch_at(1)}
    leader = leader_of(lambda offset: wholes.get(offset, b""))
    network.handlers[HERE] = leader
    async with network, lone() as c:
        await c.assign([TP])
        assert await offsets_of(c, 2) == [0, 1]


async def test_partitions_in_a_response_that_were_not_requested_are_ignored(
    network: Any, leader_of: Any
) -> None:
    leader = leader_of(lambda offset: batch_at(offset))
    honest = leader.fetch

    async def strange(request: FetchRequest) -> FetchResponse:
        (topic,) = (await honest(request)).responses
        (data,) = topic.partitions
        stranger = PartitionData(
            partition_index=5, error_code=1, high_watermark=9, records=batch_at(0)
        )
        return FetchResponse(
            responses=(
                FetchableTopicResponse(topic_id=UUID(int=99), partitions=(data,)),
                FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(stranger, data)),
            )
        )

    leader.fetch = strange
    network.handlers[HERE] = leader
    async with network, lone() as c:
        await c.assign([TP])
        assert await offsets_of(c, 3) == [0, 1, 2]


@pytest.mark.parametrize("how", ["asked", "by itself", "revoked", "closing"])
@pytest.mark.parametrize("offset", [10, 1])
async def test_a_commit_includes_the_target_of_a_seek(reading: Any, how: str, offset: int) -> None:
    """At the end of the log no record follows it: the group's lag would stay above zero."""
    options = {"group_id": "g", "enable_auto_commit": how != "asked"}
    async with reading() as (kafka, consumer):
        async with consumer("t", **options, auto_commit_interval_ms=300) as c:
            assert await offsets_of(c, 3) == [0, 1, 2]
            await c.commit()
            c.seek(TP, offset)
            if how == "asked":
                await c.commit()
            elif how == "by itself":
                await anyio.sleep(1)
            elif how == "revoked":
                await c.unsubscribe()
            if how != "closing":
                assert kafka.committed("g", "t")[0] == offset
        assert kafka.committed("g", "t")[0] == offset


async def test_a_seek_to_the_committed_offset_needs_no_commit(reading: Any) -> None:
    async with reading() as (kafka, consumer), consumer("t", group_id="g") as c:
        await offsets_of(c, 3)
        await c.commit()
        c.seek(TP, 3)
        await c.commit()
        assert len(kafka.requests(OffsetCommitRequest)) == 1


async def test_a_commit_with_a_lost_response_is_retried(reading: Any) -> None:
    async with reading() as (kafka, consumer), consumer(group_id="g") as c:
        await c.assign([TP])
        await offsets_of(c, 3)
        kafka.fail(OffsetCommitRequest, Close())
        await c.commit()
        assert kafka.committed("g", "t") == {0: 3}


# ---------------------------------------------------------------- how much is fetched, and by whom


async def test_a_partition_with_enough_records_waiting_is_not_fetched(reading: Any) -> None:
    """Ten batches of one record are buffered, and each fetch returns one; the byte limit alone
    allows more."""
    async with reading() as (kafka, consumer):
        one = len(encode_batch([NewRecord(None, b"0", 0)]))
        options = {"max_partition_fetch_bytes": one + one // 2, "fetch_max_wait_ms": 100}
        async with consumer(private={"queued_max_records": 1}, **options) as c:
            await c.assign([TP])
            await anyio.sleep(5)
            assert len(kafka.requests(FetchRequest)) == 1
            assert await offsets_of(c, 10) == [*range(10)]


async def test_seeking_many_partitions_groups_them_by_broker_once(
    reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grouping visits every partition: two thousand seeks blocked the loop for three seconds."""
    looks: list[int] = []
    lanes = fetch_sources.FetchSources.lanes

    def counted(self: fetch_sources.FetchSources, owned: Any) -> set[tuple[int, int]]:
        looks.append(1)
        return lanes(self, owned)

    async with reading() as (kafka, consumer), consumer() as c:
        kafka.add_partitions("t", 50)
        partitions = [TopicPartition("t", n) for n in range(50)]
        await c.assign(partitions)
        await offsets_of(c, 10)
        monkeypatch.setattr(fetch_sources.FetchSources, "lanes", counted)
        for tp in partitions:
            c.seek(tp, 0)
        assert await offsets_of(c, 10) == [*range(10)]
        assert len(looks) == 1


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 5.0),
        ({"fetch_max_wait_ms": 100}, 0.1),
        ({"fetch_max_wait_ms": 9_000}, 9.0),
        ({"fetch_min_bytes": 2}, 0.5),
    ],
    ids=str,
)
async def test_idle_partitions_are_fetched_with_a_longer_wait(
    reading: Any, options: Any, seconds: float
) -> None:
    """Except with `fetch_min_bytes` above 1, which would delay records as long, and with a
    `fetch_max_wait_ms` set by the application."""
    async with reading() as (kafka, consumer), consumer(**options) as c:
        await c.assign([TP])
        await offsets_of(c, 10)
        await anyio.sleep(30)
        asked = len(kafka.requests(FetchRequest))
        await anyio.sleep(90)
        assert len(kafka.requests(FetchRequest)) - asked == pytest.approx(90 / seconds, rel=0.1)
        kafka.produce("t", ["!" * 100])
        with anyio.fail_after(0.1):
            assert await offsets_of(c, 1) == [10]


@pytest.mark.parametrize("how", ["seek", "assign", "committed", "anew", "back", "resume"])
async def test_a_new_partition_does_not_wait_for_the_long_poll_of_idle_ones(
    reading: Any, how: str
) -> None:
    async with reading() as (kafka, consumer), consumer(group_id="g") as c:
        other = TopicPartition("t", 1)
        kafka.produce("t", ["x"], partition=1)
        if how == "committed":
            # Of which its leader is asked first whether it still stands.
            await c.assign([other])
            await c.commit({other: OffsetAndMetadata(0, leader_epoch=0)})
        await c.assign([TP, other] if how == "resume" else [TP])
        await offsets_of(c, 11 if how == "resume" else 10)
        if how == "resume":
            c.pause(other)
            kafka.produce("t", ["y"], partition=1)
        await anyio.sleep(30.3)
        match how:
            case "seek":
                c.seek(TP, 9)
            case "assign" | "committed":
                await c.assign([TP, other])
            case "anew":
                await c.assign([other])
            case "back":
                await c.assign([])
                await c.assign([TP])
                c.seek(TP, 9)
            case _:
                c.resume(other)
        began = anyio.current_time()
        await c.getone()
        # Who has paused something is asked about again after `fetch_max_wait_ms`.
        assert anyio.current_time() - began < (0.5 if how == "resume" else 0.1)
        assert await c.getmany(timeout=1) == {}


async def test_a_partition_with_a_full_queue_does_not_wait_long_for_idle_ones_once_read(
    reading: Any,
) -> None:
    async with reading() as (kafka, consumer), consumer(private={"queued_max_records": 5}) as c:
        await c.assign([TP, TopicPartition("t", 1)])
        await c.getone()
        kafka.produce("t", ["more"], partition=0)
        await anyio.sleep(30)
        with anyio.fail_after(0.6):
            assert await offsets_of(c, 10) == [*range(1, 11)]


async def test_several_fetchers_share_the_partitions_of_a_broker(reading: Any) -> None:
    async with reading() as (kafka, consumer):
        kafka.add_partitions("t", 5)
        for partition in range(1, 5):
            kafka.produce("t", ["a", "b"], partition=partition)
        async with consumer("t", private={"num_consumer_fetchers": 2}, fetch_max_wait_ms=100) as c:
            records = [await c.getone() for _ in range(10 + 8)]
        per_partition = {p: [r.offset for r in records if r.partition == p] for p in range(5)}
        assert per_partition == {0: [*range(10)], **{p: [0, 1] for p in range(1, 5)}}


@pytest.mark.parametrize("fetchers", [1, 3])
async def test_each_fetcher_has_its_own_connection(
    reading: Any, network: Any, fetchers: int
) -> None:
    async with reading() as (kafka, consumer):
        kafka.add_partitions("t", 3)
        async with consumer("t", private={"num_consumer_fetchers": fetchers}) as c:
            await offsets_of(c, 10)
            await anyio.sleep(5)
            # One for metadata and the offsets of logs.
            assert network.open == fetchers + 1


async def test_getmany_without_a_timeout_returns_records_that_have_arrived(reading: Any) -> None:
    """Each call first let other tasks run, and its timeout of 0 had passed by then: an application
    that did not call every few milliseconds got no records."""
    async with reading() as (_, consumer), consumer() as c:
        await c.assign([TP])
        await anyio.sleep(5)
        found = []
        for _ in range(4):
            response = await c.getmany(3)
            found.append([r.offset for r in response.get(TP, [])])
            await anyio.sleep(1)
        assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
        assert await c.getmany() == {}


# ---------------------------------------------------------------- columns


async def test_next_batch_returns_arrow_record_batches(reading: Any) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        kafka.produce("t", [NewRecord(b"k", None)] * 3, partition=1)
        await c.assign([TP])
        batches = c.batches(7, arrow=True)
        seen: list[int] = []
        while len(seen) < 10:
            batch = await anext(batches)
            assert batch.schema.metadata == {b"topic": b"t", b"partition": b"0"}
            assert 0 < batch.num_rows <= 7
            seen += batch.column("offset").to_pylist()
            assert await c.position(TP) == len(seen)
        assert seen == list(range(10))


# ---------------------------------------------------------------- what a thread inflates


def heavy_batch(codec: Codec, size: int, count: int = 4) -> bytes:
    """Return a batch of about `size` bytes of incompressible records."""
    values = random.Random(1)
    records = [NewRecord(None, values.randbytes(size // count), 1_000) for _ in range(count)]
    return encode_batch(records, codec=codec)


async def one_by_one(c: Consumer) -> list[int]:
    return await offsets_of(c, 5)


async def iterated(c: Consumer) -> list[int]:
    return [r.offset async for r in take(c, 5)]


async def in_batches(c: Consumer) -> list[int]:
    return [r.offset async for batch in take(c.batches(3), 3) for r in batch]


async def in_columns(c: Consumer) -> list[int]:
    found: list[int] = []
    async for batch in take(c.batches(3, arrow=True), 3):
        found += batch.column("offset").to_pylist()
    return found


async def without_time(c: Consumer) -> list[int]:
    found: list[int] = []
    while len(found) < 5:
        found += [r.offset for r in (await c.getmany(3)).get(TP, [])]
        await anyio.sleep(1)
    return found


async def take(items: AsyncIterator[Any], count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await anext(items)


async def seek_when_held(threads: Any, c: Consumer) -> None:
    """Seek to offset 3 while a thread prepares a batch."""
    while not threads.held:
        await anyio.sleep(0.001)
    c.seek(TP, 3)


@pytest.mark.parametrize("read_all", [one_by_one, iterated, in_batches, in_columns, without_time])
@pytest.mark.parametrize(
    ("codec", "size"),
    [
        (Codec.GZIP, 140_000),
        (Codec.ZSTD, 280_000),
        (Codec.LZ4, 1_060_000),
        (Codec.SNAPPY, 1_060_000),
    ],
    ids=lambda value: str(getattr(value, "name", value)),
)
async def test_large_batches_are_inflated_in_a_thread(
    reading: Any, threads: Any, read_all: Any, codec: Codec, size: int
) -> None:
    async with reading(records=0) as (kafka, consumer), consumer() as c:
        kafka.append("t", 0, heavy_batch(codec, size))
        kafka.append("t", 0, heavy_batch(codec, size // 2, count=1))
        await c.assign([TP])
        assert await read_all(c) == [0, 1, 2, 3, 4]
        assert len(threads.jobs) == 1


async def test_small_batches_that_inflate_to_a_large_size_are_inflated_in_a_thread(
    reading: Any, threads: Any
) -> None:
    async with reading(records=0) as (kafka, consumer), consumer() as c:
        kafka.append("t", 0, encode_batch([NewRecord(None, bytes(10**7))], codec=Codec.ZSTD))
        await c.assign([TP])
        assert (await c.getone()).value == bytes(10**7)
        assert len(threads.jobs) == 1


async def test_a_thread_skips_records_below_the_position_until_the_application_seeks(
    reading: Any, threads: Any
) -> None:
    many = encode_batch([NewRecord(None, b"", 1_000)] * 450_000)
    async with reading(records=0) as (kafka, consumer), consumer() as c:
        kafka.append("t", 0, many)
        await c.assign([TP])
        c.seek(TP, 449_999)
        assert (await c.getone()).offset == 449_999
        assert len(threads.jobs) == 1
        threads.held = []
        c.seek(TP, 449_998)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(seek_when_held, threads, c)
            assert (await c.getone()).offset == 3
        threads.held[0]()  # ends at once: nobody wants the records any more
        assert len(threads.jobs) == 2


# ---------------------------------------------------------------- a response of many batches


class Pauses:
    """Counts how often the loop yields without a delay, and runs an action then."""

    def __init__(self) -> None:
        self.count = 0
        self.at: dict[int, Callable[[], None]] = {}

    def count_one(self) -> None:
        self.count += 1
        self.at.pop(self.count, lambda: None)()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    counted, sleep = Pauses(), anyio.sleep

    async def counting_sleep(delay: float) -> None:
        if delay == 0:
            counted.count_one()
        await sleep(delay)

    monkeypatch.setattr(anyio, "sleep", counting_sleep)
    return counted


SMALL = encode_batch([NewRecord(None, b"", 1_000)])


async def test_other_tasks_run_while_a_response_of_many_batches_is_parsed(
    reading: Any, pauses: Pauses
) -> None:
    """40 MiB of tiny batches blocked the loop for two seconds."""
    async with reading(records=0) as (kafka, consumer), consumer() as c:
        for _ in range(2_400):
            kafka.append("t", 0, SMALL)
        await c.assign([TP])
        assert await offsets_of(c, 2_400) == [*range(2_400)]
        assert pauses.count >= 4


async def test_a_seek_while_a_response_is_parsed_drops_it(reading: Any, pauses: Pauses) -> None:
    async with reading(records=0) as (kafka, consumer), consumer() as c:
        for _ in range(1_200):
            kafka.append("t", 0, SMALL)
        await c.assign([TP])
        c.seek(TP, 0)
        pauses.at[2] = lambda: c.seek(TP, 700)
        assert await offsets_of(c, 500) == [*range(700, 1_200)]


async def test_batches_beyond_the_limit_of_one_response_are_fetched_again(
    reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_response, "_MAX_BATCHES", 100)
    async with reading(records=0) as (kafka, consumer), consumer() as c:
        for _ in range(250):
            kafka.append("t", 0, SMALL)
        await c.assign([TP])
        assert await offsets_of(c, 250) == [*range(250)]


async def test_partitions_released_during_inflation_are_not_delivered(
    reading: Any, threads: Any
) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        kafka.append("t", 0, heavy_batch(Codec.GZIP, 140_000))
        await c.assign([TP])
        c.seek(TP, 10)
        threads.held = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(seek_when_held, threads, c)
            assert (await c.getone()).offset == 3
        threads.held.pop()()
        threads.held = None
        assert await offsets_of(c, 10) == [*range(4, 14)]


async def test_a_failed_inflation_in_a_thread_names_its_offset(reading: Any, threads: Any) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        damaged = bytearray(heavy_batch(Codec.GZIP, 140_000))
        damaged[len(damaged) // 2] ^= 0xFF
        pack_into(">I", damaged, 17, crc32c(bytes(damaged[21:])))
        kafka.append("t", 0, bytes(damaged))
        await c.assign([TP])
        assert await offsets_of(c, 10) == [*range(10)]
        with pytest.raises(CorruptRecordError, match="t/0 at offset 10: gzip"):
            await c.getone()
        assert len(threads.jobs) == 1


async def test_without_pyarrow_an_arrow_batch_raises_before_a_batch_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error was once raised with the first batch in flight, which the next call then counted as
    processed."""
    schema.cache_clear()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"^pyarrow is not installed"):
        Consumer("t").batches(arrow=True)


async def test_keys_and_values_are_views_of_the_received_bytes(reading: Any) -> None:
    """They are read-only, though views of the received bytes."""
    async with reading(records=0) as (kafka, consumer), consumer(views=True) as c:
        kafka.produce("t", [NewRecord(b"k", b"x" * 1000), NewRecord(None, None)], partition=0)
        kafka.produce("t", [b"y" * 1000] * 2, partition=0)
        await c.assign([TP])
        one, nothing = await c.getone(), await c.getone()
        batch = await anext(c.batches())
        assert (one.key, one.value) == (b"k", b"x" * 1000)
        assert (nothing.key, nothing.value) == (None, None)
        assert [r.value for r in batch] == [b"y" * 1000] * 2
        parts = [one.key, one.value, *(r.value for r in batch)]
        assert all(isinstance(part, memoryview) and part.readonly for part in parts)


async def test_deserializers_receive_views(reading: Any) -> None:
    async with reading(records=1) as (_, consumer):
        async with consumer(views=True, value_deserializer=lambda view: view.obj) as c:
            await c.assign([TP])
            assert b"0" in bytes((await c.getone()).value)

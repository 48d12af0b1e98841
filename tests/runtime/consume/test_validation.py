"""Positions that the leader's log may not have: truncated logs (KIP-320), recreated topics."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup.errors import BrokerError, ErrorCode, OffsetOutOfRangeError, broker_error
from kafkagroup.runtime.offsets.group_offsets import CommittedOffsets, GroupOffsets
from kafkagroup.testing.embedded import Close, Delay, EmbeddedKafka
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.metadata import MetadataRequest
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)

pytestmark = pytest.mark.anyio

E = ErrorCode
TP = TopicPartition("t", 0)
EpochRequests = list[tuple[int, int]]
Cluster = tuple[EmbeddedKafka, Callable[..., Consumer]]


@pytest.fixture
def epoch_requests() -> EpochRequests:
    """The epoch requests for t/0: (the leader's epoch, the epoch whose end is requested)."""
    return []


@pytest.fixture
def reading(network: Any, epoch_requests: EpochRequests) -> Any:
    """Two brokers with t/0 of ten records, each a batch, in leader epoch 0."""

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[Cluster]:
        embedded = EmbeddedKafka(
            {"t": 1}, listen=False, nodes=2, settings=BrokerSettings(**settings)
        )
        async with network, embedded as kafka:
            network.serve_embedded(kafka, 2)
            fill(kafka, 0, 10)

            def record(request: OffsetForLeaderEpochRequest) -> bool:
                assert request.replica_id == -1
                for topic in request.topics:
                    epoch_requests.extend(
                        [(p.current_leader_epoch, p.leader_epoch) for p in topic.partitions]
                    )
                return False

            kafka.fail(OffsetForLeaderEpochRequest, E.NONE, times=None, when=record)

            def consumer(**options: Any) -> Consumer:
                servers = ["kafka-1", "kafka-2"]
                return Consumer(
                    **{"bootstrap_servers": servers, "enable_auto_commit": False, **options}
                )

            with anyio.fail_after(500):
                yield kafka, consumer

    return opened


def fill(kafka: EmbeddedKafka, start: int, end: int, what: str = "old") -> None:
    for number in range(start, end):
        kafka.produce("t", [f"{what} {number}"], partition=0)


def move(kafka: EmbeddedKafka) -> None:
    kafka.move_leader("t", 0, 3 - kafka.leader("t", 0))


async def values_of(consumer: Consumer, count: int) -> list[str]:
    found = []
    for _ in range(count):
        value = (await consumer.getone()).value
        assert isinstance(value, bytes)
        found.append(value.decode())
    return found


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


async def commit(consumer: Consumer, offset: int, leader_epoch: int) -> None:
    async with consumer:
        await consumer.assign([TP])
        await consumer.commit({TP: OffsetAndMetadata(offset, leader_epoch=leader_epoch)})


# ---------------------------------------------------------------- a new leader


async def test_positions_are_not_validated_while_the_leader_is_unchanged(
    reading: Any, epoch_requests: EpochRequests
) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        fill(kafka, 10, 12)
        await values_of(c, 2)
        assert epoch_requests == []


async def test_a_position_is_validated_at_a_new_leader_before_it_is_fetched(
    reading: Any,
    epoch_requests: EpochRequests,
) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        before = len(kafka.requests())
        move(kafka)
        fill(kafka, 10, 11, "new")
        assert await values_of(c, 1) == ["new 10"]
        assert epoch_requests == [(1, 0)]
        leader = kafka.leader("t", 0)
        kinds = [r.api for r in kafka.requests()[before:] if r.node_id == leader]
        kinds = [kind for kind in kinds if kind in (FetchRequest, OffsetForLeaderEpochRequest)]
        assert kinds[0] is OffsetForLeaderEpochRequest
        move(kafka)
        fill(kafka, 11, 12, "newer")
        assert await values_of(c, 1) == ["newer 11"]
        assert epoch_requests == [(1, 0), (2, 1)]


async def test_a_position_without_an_epoch_is_not_validated(
    reading: Any, epoch_requests: EpochRequests
) -> None:
    async with reading() as (kafka, consumer), consumer(auto_offset_reset="latest") as c:
        await c.assign([TP])
        assert await c.position(TP) == 10
        move(kafka)
        fill(kafka, 10, 11)
        assert await values_of(c, 1) == ["old 10"]
        assert epoch_requests == []


async def test_after_a_truncation_reading_continues_where_the_logs_diverge(
    reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading() as (kafka, consumer), consumer(group_id="g") as c:
        await c.assign([TP])
        await values_of(c, 10)
        kafka.truncate("t", 0, 6)
        fill(kafka, 6, 12, "new")
        assert await values_of(c, 6) == [f"new {n}" for n in range(6, 12)]
        assert warnings(caplog) == ["t/0: the log was truncated: position 10, but it diverges at 6"]
        await c.commit()
        assert kafka.committed_offsets("g") == {TP: OffsetAndMetadata(12, leader_epoch=1)}


async def test_after_a_truncation_reading_continues_at_the_end_of_a_shorter_log(
    reading: Any,
) -> None:
    """Without validation, the position would be out of range, and the reset policy would skip or
    repeat records."""
    async with reading() as (kafka, consumer), consumer(auto_offset_reset="earliest") as c:
        await c.assign([TP])
        await values_of(c, 10)
        kafka.truncate("t", 0, 6)
        await anyio.sleep(5)
        assert await c.position(TP) == 6
        fill(kafka, 6, 7, "new")
        assert await values_of(c, 1) == ["new 6"]


async def test_without_a_reset_policy_a_truncation_is_raised_until_a_seek(
    reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading() as (kafka, consumer), consumer(auto_offset_reset="none") as c:
        await c.assign([TP])
        c.seek(TP, 0)
        await values_of(c, 10)
        kafka.truncate("t", 0, 6)
        fill(kafka, 6, 12, "new")
        for _ in range(3):
            with pytest.raises(OffsetOutOfRangeError) as caught:
                await c.getone()
            assert caught.value.offsets == {TP: 10}
        assert warnings(caplog) == ["t/0: the log was truncated: position 10, but it diverges at 6"]
        c.seek(TP, 6)
        assert await values_of(c, 2) == ["new 6", "new 7"]


async def test_undelivered_records_are_fetched_again(
    reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The position is below the divergence: nothing is lost, and nothing is reported."""
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        assert await values_of(c, 2) == ["old 0", "old 1"]
        kafka.truncate("t", 0, 6)
        fill(kafka, 6, 12, "new")
        await anyio.sleep(5)
        expected = [f"old {n}" for n in range(2, 6)] + [f"new {n}" for n in range(6, 12)]
        assert await values_of(c, 10) == expected
        assert warnings(caplog) == []


async def test_a_fetch_response_from_before_a_truncation_is_dropped(
    reading: Any,
) -> None:
    """The position was validated before the late response, but its records were truncated. The
    consumer continued after them, and skipped the records that replaced them."""
    async with reading() as (kafka, consumer), consumer(metadata_max_age_ms=500) as c:

        def at_the_end(request: FetchRequest) -> bool:
            return any(p.fetch_offset == 10 for t in request.topics for p in t.partitions)

        kafka.fail(FetchRequest, Delay(5.0), when=at_the_end)
        await c.assign([TP])
        await values_of(c, 10)
        await anyio.sleep(0.2)
        fill(kafka, 10, 12)
        await anyio.sleep(1)
        kafka.truncate("t", 0, 10)
        fill(kafka, 10, 14, "new")
        assert await values_of(c, 4) == [f"new {n}" for n in range(10, 14)]


async def test_a_partly_delivered_batch_is_delivered_to_its_end(reading: Any) -> None:
    async with reading() as (kafka, consumer), consumer(group_id="g") as c:
        kafka.produce("t", [f"old {n}" for n in range(10, 20)], partition=0)
        fill(kafka, 20, 25)
        await c.assign([TP])
        c.seek(TP, 10)
        assert await values_of(c, 1) == ["old 10"]
        kafka.truncate("t", 0, 22)
        fill(kafka, 22, 23, "new")
        await anyio.sleep(5)
        await c.commit()
        assert kafka.committed("g", "t") == {0: 11}
        expected = [f"old {n}" for n in range(11, 22)]
        assert await values_of(c, 12) == [*expected, "new 22"]


async def test_an_unfinished_batch_does_not_advance_the_position_after_a_truncation(
    reading: Any,
) -> None:
    """The application processes the last record of a batch when its position moves back: at its end
    the batch moved the position forward again, and the records between were lost."""
    async with reading() as (kafka, consumer), consumer(auto_offset_reset="earliest") as c:
        await c.assign([TP])
        await values_of(c, 10)
        kafka.truncate("t", 0, 7)
        await anyio.sleep(5)
        assert await c.position(TP) == 7
        fill(kafka, 7, 10, "new")
        assert await values_of(c, 3) == ["new 7", "new 8", "new 9"]


# ---------------------------------------------------------------- resuming


async def test_a_committed_position_is_validated_at_the_start(
    reading: Any, epoch_requests: EpochRequests, caplog: pytest.LogCaptureFixture
) -> None:
    """The log was truncated and grew past the group's commit while no member ran."""
    async with reading() as (kafka, consumer):
        await commit(consumer(group_id="g"), 8, 0)
        kafka.truncate("t", 0, 4)
        fill(kafka, 4, 12, "new")
        async with consumer(group_id="g") as c:
            await c.assign([TP])
            assert await values_of(c, 2) == ["new 4", "new 5"]
        assert epoch_requests == [(1, 0)]
        assert warnings(caplog) == ["t/0: the log was truncated: position 8, but it diverges at 4"]


async def test_a_valid_committed_position_is_kept(
    reading: Any, epoch_requests: EpochRequests
) -> None:
    async with reading() as (_, consumer):
        await commit(consumer(group_id="g"), 8, 0)
        async with consumer(group_id="g") as c:
            await c.assign([TP])
            assert await values_of(c, 2) == ["old 8", "old 9"]
        assert epoch_requests == [(0, 0)]


async def test_a_committed_position_is_validated_during_a_long_poll(reading: Any) -> None:
    """The broker may hold it for seconds, without the new partition."""
    idle = TopicPartition("u", 0)
    async with reading() as (kafka, consumer):
        kafka.create_topic("u", 1)
        kafka.move_leader("u", 0, kafka.leader("t", 0))
        await commit(consumer(group_id="g"), 8, 0)
        async with consumer(group_id="g", fetch_max_wait_ms=4_000) as c:
            await c.assign([idle])
            await anyio.sleep(0.5)
            await c.assign([idle, TP])
            began = anyio.current_time()
            assert await values_of(c, 2) == ["old 8", "old 9"]
            assert anyio.current_time() == began


async def test_a_commit_after_a_control_record_has_its_epoch(
    reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit once had the epoch of the last record. That epoch ends before the marker, so the
    next consumer took the log for truncated."""
    async with reading() as (kafka, consumer):
        move(kafka)
        kafka.append("t", 0, encode_batch([NewRecord(b"", b"")], control=True, transactional=True))
        async with consumer(group_id="g", enable_auto_commit=True) as c:
            await c.assign([TP])
            await values_of(c, 10)
            with anyio.move_on_after(1):
                await c.getone()
        assert kafka.committed_offsets("g")[TP] == OffsetAndMetadata(11, leader_epoch=1)
        move(kafka)
        fill(kafka, 11, 12, "new")
        async with consumer(group_id="g", auto_offset_reset="none") as c:
            await c.assign([TP])
            assert await values_of(c, 1) == ["new 11"]
        assert warnings(caplog) == []


@pytest.mark.parametrize(("policy", "first"), [("earliest", "old 0"), ("latest", "new 10")])
async def test_an_epoch_unknown_to_the_leader_applies_the_reset_policy(
    reading: Any,
    epoch_requests: EpochRequests,
    policy: Any,
    first: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Metadata is older than the commit, so it is refreshed first; it never becomes newer."""
    async with reading() as (kafka, consumer):
        await commit(consumer(group_id="g"), 8, 7)
        before = len(kafka.requests(MetadataRequest))
        async with consumer(group_id="g", auto_offset_reset=policy) as c:
            await c.assign([TP])
            await anyio.sleep(20)
            fill(kafka, 10, 11, "new")
            assert await values_of(c, 1) == [first]
        assert 5 <= len(kafka.requests(MetadataRequest)) - before < 12
        assert epoch_requests == [(0, 7)]
        (warning,) = warnings(caplog)
        assert warning == (
            "t/0: the log was truncated: its leader has no records of leader epoch 7, to"
            " which the records before position 8 belong"
        )


def kip848_consumer(**options: Any) -> Consumer:
    return Consumer(
        "t",
        bootstrap_servers=["kafka-1", "kafka-2"],
        group_id="g",
        group_protocol="consumer",
        **options,
    )


async def test_a_recreated_topic_is_read_once_the_coordinator_has_assigned_it(reading: Any) -> None:
    """A coordinator assigns by topic id, and may assign the new topic to another member, which then
    read it beside this one."""
    events: list[str] = []
    async with reading() as (kafka, _):
        consumer = kip848_consumer(
            on_partitions_assigned=lambda found: events.extend(["assigned"] * len(found)),
            on_partitions_revoked=lambda _: events.append("revoked"),
        )
        async with consumer as c:
            await values_of(c, 10)
            recreate_topic(kafka, 3)
            events += await values_of(c, 1)
    assert events == ["assigned", "revoked", "assigned", "new 0", "revoked"]


async def test_a_topic_recreated_before_the_first_position_is_read_once_assigned(
    reading: Any,
) -> None:
    """The metadata had no topic of that name when the partition was assigned, so the first id that
    it had later, of the new topic, counted as the assigned one."""
    events: list[str] = []

    async with reading(group_consumer_assignment_interval=5.0) as (kafka, _):

        async def delete_and_recreate(found: list[TopicPartition]) -> None:
            events.extend(["assigned"] * len(found))
            if events.count("assigned") == 1:
                kafka.delete_topic("t")
                await anyio.sleep(0.5)  # the metadata loses the topic
                kafka.create_topic("t", 1)
                fill(kafka, 0, 3, "new")

        consumer = kip848_consumer(
            metadata_max_age_ms=100,
            on_partitions_assigned=delete_and_recreate,
            on_partitions_revoked=lambda _: events.append("revoked"),
        )
        async with consumer as c:
            events += await values_of(c, 1)
    assert events == ["assigned", "revoked", "assigned", "new 0", "revoked"]


async def test_no_auto_commit_delays_a_revocation(reading: Any) -> None:
    """After a failed commit before a revocation, an auto-commit of the same partitions followed,
    and the member acknowledged the revocation only after it."""
    times: dict[str, float] = {}
    async with reading() as (kafka, _):
        consumer = kip848_consumer(
            auto_commit_interval_ms=500,
            on_partitions_assigned=lambda _: times.update(assigned=anyio.current_time()),
            on_partitions_revoked=lambda _: times.update(revoked=anyio.current_time()),
        )
        async with consumer as c:
            await values_of(c, 10)
            recreate_topic(kafka, 3)
            await values_of(c, 1)
            assert 0 <= times["assigned"] - times["revoked"] < 0.5


async def test_an_epoch_unknown_to_the_leader_without_a_reset_policy_is_an_error(
    reading: Any,
) -> None:
    async with reading() as (_, consumer):
        await commit(consumer(group_id="g"), 8, 7)
        async with consumer(group_id="g", auto_offset_reset="none") as c:
            await c.assign([TP])
            with pytest.raises(OffsetOutOfRangeError) as caught:
                await c.getone()
            assert caught.value.offsets == {TP: 8}


async def test_metadata_older_than_the_commit_is_refreshed_first(
    reading: Any, epoch_requests: EpochRequests
) -> None:
    """The leader that the response names has been replaced: it would report an unknown leader
    epoch."""
    async with reading() as (kafka, consumer), consumer(group_id="g") as c:
        await c.assign([TP])
        c.seek(TP, 9)
        await values_of(c, 1)
        move(kafka)
        await c.assign([])
        await commit(consumer(group_id="g"), 9, 1)
        kafka.fail(MetadataRequest, E.LEADER_NOT_AVAILABLE, times=3)  # no news for a while
        await c.assign([TP])
        assert await values_of(c, 1) == ["old 9"]
        assert epoch_requests == [(1, 1)]


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "action",
    [
        E.NOT_LEADER_OR_FOLLOWER,
        E.FENCED_LEADER_EPOCH,
        E.UNKNOWN_LEADER_EPOCH,
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.OFFSET_NOT_AVAILABLE,
        E.UNKNOWN_SERVER_ERROR,
        Close(),
    ],
    ids=str,
)
async def test_a_failed_validation_is_retried(
    reading: Any, epoch_requests: EpochRequests, action: Any
) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        kafka.fail(OffsetForLeaderEpochRequest, action, times=3)
        move(kafka)
        fill(kafka, 10, 11)
        assert await values_of(c, 1) == ["old 10"]
        assert epoch_requests == [(1, 0)] * 4


@pytest.mark.parametrize("code", [E.OFFSET_OUT_OF_RANGE, E.TOPIC_AUTHORIZATION_FAILED])
async def test_an_error_of_a_former_leader_resets_and_raises_nothing(
    reading: Any, code: ErrorCode
) -> None:
    """Its response came while the position was validated with the new leader, and sent the consumer
    back to the beginning of the log."""
    async with reading() as (kafka, consumer), consumer(metadata_max_age_ms=1_000) as c:
        await c.assign([TP])
        await values_of(c, 10)
        await anyio.sleep(20)
        former = kafka.leader("t", 0)
        late = kafka.fail(FetchRequest, Delay(4), node_id=former)
        while not late.hits:
            await anyio.sleep(0.1)
        kafka.fail(FetchRequest, code, partition=TP, node_id=former)
        kafka.fail(OffsetForLeaderEpochRequest, Delay(8))
        looked_up = len(kafka.requests(ListOffsetsRequest))
        move(kafka)
        await anyio.sleep(10)
        kafka.produce("t", ["more"], partition=0)
        assert await values_of(c, 1) == ["more"]
        assert len(kafka.requests(ListOffsetsRequest)) == looked_up


async def test_a_refused_validation_is_raised_and_repeated(
    reading: Any, epoch_requests: EpochRequests
) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        kafka.fail(OffsetForLeaderEpochRequest, E.TOPIC_AUTHORIZATION_FAILED, times=None)
        move(kafka)
        with pytest.raises(BrokerError) as caught:
            await c.getone()
        assert caught.value == broker_error(
            29, "validating t/0 at 10", operation="DESCRIBE", topic="t"
        )
        with anyio.move_on_after(59) as idle:
            await c.getone()
        assert idle.cancelled_caught
        assert 30 < len(epoch_requests) < 100
        c.seek(TP, 9)
        assert await values_of(c, 1) == ["old 9"]


@pytest.mark.parametrize(
    "action", [E.FENCED_LEADER_EPOCH, E.OFFSET_NOT_AVAILABLE, Close()], ids=str
)
async def test_a_validation_that_never_succeeds_causes_no_hot_loop(
    reading: Any, action: Any
) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        kafka.fail(OffsetForLeaderEpochRequest, action, times=None)
        move(kafka)
        await anyio.sleep(1)
        before = len(kafka.requests())
        with anyio.move_on_after(10):
            await c.getone()
        assert 8 < len(kafka.requests()) - before < 100


async def test_a_seek_overrides_a_validation_in_flight(reading: Any) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        kafka.fail(OffsetForLeaderEpochRequest, Delay(5))
        kafka.truncate("t", 0, 4)
        fill(kafka, 4, 12, "new")
        await anyio.sleep(2)
        c.seek(TP, 8)
        assert await values_of(c, 1) == ["new 8"]
        await anyio.sleep(10)
        assert await values_of(c, 1) == ["new 9"]


# ---------------------------------------------------------------- a recreated topic


def recreate_topic(kafka: EmbeddedKafka, records: int) -> None:
    kafka.delete_topic("t")
    kafka.create_topic("t", 1)
    fill(kafka, 0, records, "new")


@pytest.mark.parametrize("records", [3, 20])
async def test_a_recreated_topic_is_read_from_its_start(
    reading: Any, records: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With twenty records the old position is within the new log: only the topic id differs."""
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        recreate_topic(kafka, records)
        assert await values_of(c, 3) == ["new 0", "new 1", "new 2"]
        assert warnings(caplog) == [
            "topic t was recreated: position 10 is of the deleted topic, and is reset"
        ]


@pytest.mark.parametrize("policy", ["earliest", "none"])
async def test_the_same_offset_is_committed_again_in_a_recreated_topic(
    reading: Any, policy: str
) -> None:
    """The offset that was committed in the old topic counted as committed in the new one."""
    async with reading() as (kafka, consumer):
        options = {"auto_offset_reset": policy, "enable_auto_commit": False}
        async with consumer(group_id="g", **options) as c:
            await c.assign([TP])
            c.seek(TP, 0)
            await values_of(c, 10)
            await c.commit()
            assert kafka.committed("g", "t") == {0: 10}
            recreate_topic(kafka, 10)
            if policy == "none":
                with pytest.raises(OffsetOutOfRangeError):
                    await c.getone()
                c.seek(TP, 0)
            assert (await values_of(c, 10))[0] == "new 0"
            await c.commit()
            assert kafka.committed("g", "t") == {0: 10}


async def test_a_recreated_topic_follows_the_reset_policy(reading: Any) -> None:
    async with reading() as (kafka, consumer), consumer(auto_offset_reset="latest") as c:
        await c.assign([TP])
        c.seek(TP, 5)
        await values_of(c, 5)
        recreate_topic(kafka, 20)
        await anyio.sleep(10)
        assert await c.position(TP) == 20


async def test_a_recreated_topic_without_a_reset_policy_is_an_error(reading: Any) -> None:
    async with reading() as (kafka, consumer), consumer(auto_offset_reset="none") as c:
        await c.assign([TP])
        c.seek(TP, 5)
        await values_of(c, 5)
        recreate_topic(kafka, 20)
        for _ in range(3):
            with pytest.raises(OffsetOutOfRangeError) as caught:
                await c.getone()
            assert caught.value.offsets == {TP: 10}
        c.seek(TP, 1)
        assert await values_of(c, 1) == ["new 1"]


async def test_a_topic_recreated_before_the_first_fetch_is_read_from_its_start(
    reading: Any,
) -> None:
    """The partition is paused since its position was fetched: the commit belongs to the old
    topic."""
    async with reading() as (kafka, consumer):
        await commit(consumer(group_id="g"), 8, -1)
        async with consumer(group_id="g", metadata_max_age_ms=1000) as c:
            await c.assign([TP])
            c.pause(TP)
            assert await c.position(TP) == 8
            recreate_topic(kafka, 20)
            await anyio.sleep(5)
            c.resume(TP)
            assert await values_of(c, 1) == ["new 0"]


async def test_a_topic_recreated_during_the_offset_fetch_is_read_from_its_start(
    reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response was for the old topic and was applied to the new one: its first records were
    skipped."""
    once = GroupOffsets.fetch_once
    slow = [True]

    async def answered_late(self: GroupOffsets, *epoch_requests: Any) -> CommittedOffsets:
        found = await once(self, *epoch_requests)
        if slow:
            slow.clear()
            recreate_topic(kafka, 20)
            await self._cluster.refresh()
        return found

    async with reading() as (kafka, consumer):
        await commit(consumer(group_id="g"), 8, -1)
        monkeypatch.setattr(GroupOffsets, "fetch_once", answered_late)
        async with consumer(group_id="g") as c:
            await c.assign([TP])
            assert await values_of(c, 1) == ["new 0"]


async def test_a_topic_recreated_before_the_metadata_has_it_is_read_from_its_start(
    reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata had no topic of that name, so nothing showed that the response was for another
    one: the first records of the new topic were skipped."""
    once = GroupOffsets.fetch_once
    slow = [True]

    async def answered_late(self: GroupOffsets, *arguments: Any) -> CommittedOffsets:
        found = await once(self, *arguments)
        if slow:
            slow.clear()
            recreate_topic(kafka, 20)
        return found

    async with reading() as (kafka, consumer):
        await commit(consumer(group_id="g"), 8, -1)
        monkeypatch.setattr(GroupOffsets, "fetch_once", answered_late)
        async with consumer(group_id="g") as c:
            began = anyio.current_time()
            kafka.fail(
                MetadataRequest,
                E.UNKNOWN_TOPIC_OR_PARTITION,
                times=None,
                when=lambda _: anyio.current_time() < began + 1,
            )
            await c.assign([TP])
            assert await values_of(c, 1) == ["new 0"]


async def test_the_shorter_log_of_a_recreated_topic_is_not_a_truncation(reading: Any) -> None:
    """OffsetForLeaderEpoch names no topic id, and the metadata was refreshed before the next fetch:
    the end of the new topic's log counted as a position in it, and its first records were
    skipped."""
    async with reading() as (kafka, consumer), consumer(metadata_max_age_ms=1000) as c:
        await c.assign([TP])
        await values_of(c, 10)
        c.pause(TP)
        await anyio.sleep(5)
        pending = [True]

        def recreate(_: OffsetForLeaderEpochRequest) -> bool:
            if pending:
                pending.clear()
                recreate_topic(kafka, 3)
                move(kafka)
            return False

        kafka.fail(OffsetForLeaderEpochRequest, E.NONE, times=None, when=recreate)
        move(kafka)
        await anyio.sleep(5)
        assert not pending
        c.resume(TP)
        assert await values_of(c, 1) == ["new 0"]


async def test_a_topic_deleted_for_a_while_is_read_from_its_start_once_recreated(
    reading: Any,
) -> None:
    async with reading() as (kafka, consumer), consumer() as c:
        await c.assign([TP])
        await values_of(c, 10)
        kafka.delete_topic("t")
        before = len(kafka.requests())
        await anyio.sleep(10)
        assert len(kafka.requests()) - before < 100
        kafka.create_topic("t", 1)
        fill(kafka, 0, 20, "new")
        assert await values_of(c, 2) == ["new 0", "new 1"]
        assert kafka.requests(ListOffsetsRequest)

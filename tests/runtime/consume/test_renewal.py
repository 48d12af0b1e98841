"""Committed offsets that the broker has deleted: on an embedded broker, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from rebalance_kinds import KINDS
from zookeeper.fake_sessions import FakeSession, fake_sessions

from kafkagroup import Consumer, OffsetAndMetadata, TopicPartition, ZooKeeperMembership
from kafkagroup.errors import ErrorCode
from kafkagroup.runtime.offsets.group_offsets import GroupOffsets
from kafkagroup.testing.embedded import Close, Delay, EmbeddedKafka, Swallow
from kafkagroup.wire.messages.metadata import MetadataRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

pytestmark = pytest.mark.anyio

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
THREE = OffsetAndMetadata(3, "by me", 0)

each_protocol = pytest.mark.parametrize("protocol", KINDS)
each_auto_commit = pytest.mark.parametrize("auto_commit", [True, False], ids=["auto", "manual"])


@asynccontextmanager
async def cluster(network: Any, partitions: int = 2) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": partitions}, listen=False) as kafka:
        network.serve_embedded(kafka)
        for partition in range(partitions):
            kafka.produce("t", ["0", "1", "2"], partition=partition)
        with anyio.fail_after(5_000):
            yield kafka


def consumer(*topics: str, **options: Any) -> Consumer:
    return Consumer(*topics, bootstrap_servers="kafka-1", group_id="g", **options)


@asynccontextmanager
async def idle(*partitions: TopicPartition, **options: Any) -> AsyncIterator[Consumer]:
    """A consumer without a membership that has read everything, and polls."""
    async with consumer(**options) as ours, anyio.create_task_group() as tasks:
        await ours.assign(partitions or [T0])
        tasks.start_soon(poll, ours)
        await anyio.sleep(7)
        yield ours
        tasks.cancel_scope.cancel()


async def poll(ours: Consumer) -> None:
    async for _ in ours:
        pass


def count(kafka: EmbeddedKafka, api: Any) -> int:
    return len(kafka.requests(api))


def store(kafka: EmbeddedKafka, offset: OffsetAndMetadata) -> None:
    """Commit as an operator does, or another consumer."""
    kafka._cluster.offsets.setdefault("g", {})[T0] = offset


# ---------------------------------------------------------------- without a membership


async def test_an_offset_that_expires_while_its_consumer_is_idle_is_committed_again(
    network: Any,
) -> None:
    """Acknowledged once, it was never sent again. After seven idle days the broker deleted it, and
    the next start read the log from its beginning."""
    async with cluster(network) as kafka, idle(T0, T1):
        before = kafka.committed_offsets("g")
        assert {tp: at.offset for tp, at in before.items()} == {T0: 3, T1: 3}
        for _ in range(2):
            kafka.expire_offsets("g")
            await anyio.sleep(70)
            assert kafka.committed_offsets("g") == before


async def test_an_offset_that_was_only_read_at_the_start_is_committed_again(network: Any) -> None:
    """With the metadata and the leader epoch of the earlier commit."""
    async with cluster(network) as kafka:
        store(kafka, THREE)
        async with idle():
            assert count(kafka, OffsetCommitRequest) == 0
            kafka.expire_offsets("g")
            await anyio.sleep(70)
            assert kafka.committed_offsets("g") == {T0: THREE}
            assert count(kafka, OffsetCommitRequest) == 1


async def test_all_old_offsets_are_looked_up_by_one_request_a_minute(network: Any) -> None:
    partitions = [TopicPartition("t", n) for n in range(5)]
    async with cluster(network, 5) as kafka, idle(*partitions):
        before = [count(kafka, api) for api in (OffsetFetchRequest, OffsetCommitRequest)]
        await anyio.sleep(600)
        after = [count(kafka, api) for api in (OffsetFetchRequest, OffsetCommitRequest)]
        assert [now - then for then, now in zip(before, after, strict=True)] == [10, 0]


async def test_the_age_is_an_option(network: Any) -> None:
    async with (
        cluster(network) as kafka,
        idle(auto_commit_interval_ms=1_000, committed_offsets_max_age_ms=3_000),
    ):
        kafka.expire_offsets("g")
        await anyio.sleep(5)
        assert kafka.committed("g", "t") == {0: 3}


async def test_an_offset_that_an_operator_has_moved_is_left_alone_with_one_warning(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(network) as kafka:
        async with idle():
            for offset in (1, 2):
                store(kafka, OffsetAndMetadata(offset))
                await anyio.sleep(300)
                assert kafka.committed("g", "t") == {0: offset}
        assert kafka.committed("g", "t") == {0: 2}, "after the close"
    assert [r.getMessage() for r in caplog.records if "moved it" in r.getMessage()] == [
        f"t/0: the committed offset is {offset}, but this consumer has committed 3: an operator or"
        " another consumer has moved it; it stays until this consumer processes more"
        for offset in (1, 2)
    ]


async def test_a_failed_look_up_is_retried_a_minute_later_and_not_taken_for_absent(
    network: Any,
) -> None:
    async with cluster(network) as kafka, idle():
        looked_up = count(kafka, OffsetFetchRequest)
        store(kafka, OffsetAndMetadata(1))  # a commit of 3 would show
        fault = kafka.fail(OffsetFetchRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        await anyio.sleep(200)
        assert 3 <= count(kafka, OffsetFetchRequest) - looked_up <= 4
        assert kafka.committed("g", "t") == {0: 1}
        fault.stop()
        kafka.expire_offsets("g")
        await anyio.sleep(70)
        assert kafka.committed("g", "t") == {0: 3}


async def test_a_partition_released_during_the_look_up_does_not_keep_others_from_being_renewed(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Their commit would be refused as a whole, with a warning, and repeated a minute later."""
    async with cluster(network) as kafka, idle(T0, T1) as ours:
        before = kafka.committed_offsets("g")
        kafka.expire_offsets("g")
        looked_up = count(kafka, OffsetFetchRequest)
        kafka.fail(OffsetFetchRequest, Delay(25))
        while count(kafka, OffsetFetchRequest) == looked_up:
            await anyio.sleep(1)
        await ours.assign([T1])  # its own commit waits for the look-up, for a shorter time
        assert kafka.committed_offsets("g") == {}
        await anyio.sleep(25)
        assert kafka.committed_offsets("g") == {T1: before[T1]}
    assert [m for m in caplog.messages if "not renewed" in m] == []


async def test_an_offset_is_not_renewed_while_the_metadata_cannot_be_refreshed(
    network: Any,
) -> None:
    """It may be missing because its topic was recreated."""
    async with cluster(network) as kafka, idle():
        kafka.expire_offsets("g")
        fault = kafka.fail(MetadataRequest, Close(), times=None)
        await anyio.sleep(70)
        assert kafka.committed("g", "t") == {}
        fault.stop()
        await anyio.sleep(70)
        assert kafka.committed("g", "t") == {0: 3}


@pytest.mark.parametrize("by", ["id", "name"])
async def test_s19_a_recreated_topic_gets_no_offset_of_the_deleted_one(
    network: Any, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A paused partition does not notice the recreation by a fetch. Brokers before 4.1 take commits
    by name."""
    if by == "name":
        monkeypatch.setattr(GroupOffsets, "_topic_ids", lambda *_: {})
    async with cluster(network) as kafka:
        async with idle() as ours:
            ours.pause(T0)
            await anyio.sleep(6)
            sent: list[int] = []

            def note(request: OffsetCommitRequest) -> bool:
                sent.extend(p.committed_offset for t in request.topics for p in t.partitions)
                return False

            kafka.fail(OffsetCommitRequest, Close(), when=note)
            kafka.delete_topic("t")
            kafka.create_topic("t", 2)
            await anyio.sleep(200)
        assert set(sent) <= {0}


async def test_a_commit_of_the_application_renews_the_offsets_of_its_idle_partitions(
    network: Any,
) -> None:
    """An application that commits each record commits nothing for a partition without records."""
    options = {"enable_auto_commit": False}
    async with cluster(network) as kafka, idle(T0, T1, **options) as ours:
        await ours.commit({T0: THREE, T1: 3})
        kafka.expire_offsets("g")
        await anyio.sleep(50)
        await ours.commit()
        assert kafka.committed("g", "t") == {}, "sent nothing: acknowledged a minute ago or less"
        await anyio.sleep(20)
        await ours.commit({T1: 3})
        assert kafka.committed_offsets("g") == {T0: THREE, T1: OffsetAndMetadata(3)}
        kafka.expire_offsets("g")
        await anyio.sleep(70)
        await ours.commit()
        assert kafka.committed_offsets("g") == {T0: THREE, T1: OffsetAndMetadata(3)}


async def test_a_consumer_that_never_commits_sends_nothing(network: Any) -> None:
    """Its application keeps the offsets elsewhere, or in transactions of a producer."""
    async with cluster(network) as kafka:
        store(kafka, THREE)
        async with idle(enable_auto_commit=False):
            kafka.expire_offsets("g")
            looked_up = count(kafka, OffsetFetchRequest)
            await anyio.sleep(600)
        assert kafka.committed("g", "t") == {}
        assert (count(kafka, OffsetFetchRequest), count(kafka, OffsetCommitRequest)) == (
            looked_up,
            0,
        )


# ---------------------------------------------------------------- the close


async def test_an_offset_deleted_before_the_close_is_committed_again_by_the_close(
    network: Any,
) -> None:
    async with cluster(network) as kafka:
        async with idle(T0, T1) as ours:
            before = kafka.committed_offsets("g")
            kafka.expire_offsets("g")
            await ours.assign([T1])
            assert kafka.committed_offsets("g") == {T0: before[T0]}
        assert kafka.committed_offsets("g") == before


@each_protocol
async def test_a_member_commits_what_was_acknowledged_once_more_at_the_close(
    network: Any, protocol: str
) -> None:
    async with cluster(network) as kafka:
        store(kafka, THREE)
        async with consumer("t", **KINDS[protocol]) as ours, anyio.create_task_group() as tasks:
            tasks.start_soon(poll, ours)
            await anyio.sleep(600)
            commits = count(kafka, OffsetCommitRequest)
            before = kafka.committed_offsets("g")
            assert (commits, before) == (1, {T0: THREE, T1: before[T1]})
            kafka.expire_offsets("g")
            tasks.cancel_scope.cancel()
        assert kafka.committed_offsets("g") == before


@each_protocol
async def test_a_member_commits_what_was_acknowledged_once_more_at_a_revocation(
    network: Any, protocol: str
) -> None:
    async with cluster(network) as kafka:
        async with consumer("t", **KINDS[protocol]) as ours, anyio.create_task_group() as tasks:
            tasks.start_soon(poll, ours)
            await anyio.sleep(10)
            before = kafka.committed_offsets("g")
            kafka.expire_offsets("g")
            async with consumer("t", enable_auto_commit=False, **KINDS[protocol]) as other:
                while not other.assignment():
                    await anyio.sleep(0.1)
                (moved,) = other.assignment()
                # An eager member revokes both.
                assert kafka.committed_offsets("g")[moved] == before[moved]
                assert await other.position(moved) == 3
            tasks.cancel_scope.cancel()


@each_protocol
@each_auto_commit
async def test_a_listener_that_commits_renews_the_offsets_of_revoked_partitions(
    network: Any, protocol: str, auto_commit: bool
) -> None:
    async def revoked(_: object) -> None:
        await ours.commit()

    async with cluster(network) as kafka:
        options = {**KINDS[protocol], "enable_auto_commit": auto_commit}
        ours = consumer("t", on_partitions_revoked=revoked, **options)
        async with ours:
            for _ in range(6):
                await ours.getone()
            await ours.commit()
            before = kafka.committed_offsets("g")
            assert kafka.committed("g", "t") == {0: 3, 1: 3}
            kafka.expire_offsets("g")
            commits = count(kafka, OffsetCommitRequest)
        assert kafka.committed_offsets("g") == before
        assert count(kafka, OffsetCommitRequest) == commits + 1


@each_protocol
async def test_a_member_that_never_commits_sends_nothing_at_the_close(
    network: Any, protocol: str
) -> None:
    async with cluster(network) as kafka:
        store(kafka, THREE)
        async with consumer("t", enable_auto_commit=False, **KINDS[protocol]) as ours:
            for _ in range(3):
                await ours.getone()
            kafka.expire_offsets("g")
        assert count(kafka, OffsetCommitRequest) == 0


@pytest.mark.parametrize("membership", ["assign", *KINDS])
async def test_a_close_without_a_commit_renews_nothing(network: Any, membership: str) -> None:
    async with cluster(network) as kafka:
        store(kafka, THREE)
        is_member = membership in KINDS
        topics = ("t",) if is_member else ()
        async with consumer(*topics, **KINDS.get(membership, {})) as ours:
            if not is_member:
                await ours.assign([T0])
            await ours.getmany(timeout=2)
            kafka.expire_offsets("g")
            commits = count(kafka, OffsetCommitRequest)
            await ours.stop(commit=False)
        assert count(kafka, OffsetCommitRequest) == commits


@pytest.mark.parametrize("membership", ["assign", *KINDS])
@pytest.mark.parametrize("action", [Swallow(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Close()])
async def test_l4_a_coordinator_that_does_not_respond_does_not_prolong_the_close(
    network: Any, membership: str, action: Any
) -> None:
    async with cluster(network) as kafka:
        store(kafka, THREE)
        is_member = membership in KINDS
        ours = consumer(*(("t",) if is_member else ()), **KINDS.get(membership, {}))
        async with ours:
            if not is_member:
                await ours.assign([T0])
            await ours.getmany(timeout=2)
            await anyio.sleep(6)
            for api in (OffsetFetchRequest, OffsetCommitRequest):
                kafka.fail(api, action, times=None)
            began_at = anyio.current_time()
        assert anyio.current_time() - began_at <= 10.0


# ---------------------------------------------------------------- claims in ZooKeeper


async def test_the_offsets_of_claimed_partitions_are_renewed(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka knows no members of such a group: its offsets expire like those of `assign()`."""
    sessions: list[FakeSession] = fake_sessions(monkeypatch)
    async with cluster(network) as kafka:
        ours = consumer("t", membership=ZooKeeperMembership("zk:2181"))
        async with ours, anyio.create_task_group() as tasks:
            while not sessions:
                await anyio.sleep(0.1)
            sessions[-1].begin()
            tasks.start_soon(poll, ours)
            await anyio.sleep(10)
            before = kafka.committed_offsets("g")
            assert kafka.committed("g", "t") == {0: 3, 1: 3}
            kafka.expire_offsets("g")
            await anyio.sleep(70)
            assert kafka.committed_offsets("g") == before
            store(kafka, OffsetAndMetadata(1))
            kafka._cluster.offsets["g"].pop(T1)
            tasks.cancel_scope.cancel()
        assert kafka.committed_offsets("g") == {T0: OffsetAndMetadata(1), T1: before[T1]}

"""A consumer that claims its partitions in ZooKeeper, on an embedded broker in virtual time."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from zookeeper.fake_sessions import SESSION, FakeSession, fake_sessions

from kafkagroup import CommitFailedError, Consumer, TopicPartition, ZooKeeperMembership
from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.wire.messages.offsets import OffsetCommitRequest

pytestmark = pytest.mark.anyio


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[FakeSession]:
    return fake_sessions(monkeypatch)


def consumer(**options: Any) -> Consumer:
    return Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        membership=ZooKeeperMembership("zk:2181"),
        auto_commit_interval_ms=60_000,
        **options,
    )


async def begin(sessions: list[FakeSession]) -> None:
    while not sessions:
        await anyio.sleep(0.1)
    sessions[-1].begin()


async def test_partitions_revoked_on_reconnection_are_committed_first(
    network: Any, sessions: list[FakeSession]
) -> None:
    """The list of members arrived before the session was confirmed: the partition was released
    without its last commit, and its next owner started below the processed records."""
    async with network, EmbeddedKafka({"t": 2}, listen=False) as kafka:
        network.serve_embedded(kafka)
        for partition in (0, 1):
            kafka.produce("t", ["0"], partition=partition)
        with anyio.fail_after(90):
            async with consumer() as ours:
                await begin(sessions)
                assert {(await ours.getone()).partition for _ in range(2)} == {0, 1}
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ours.getmany)
                    session = sessions[-1]
                    session.away_until = anyio.current_time() + 0.8 * SESSION
                    await anyio.sleep(0.7 * SESSION)
                    session.join("zz")
                    await anyio.sleep(0.2 * SESSION)
                    assert kafka.committed("g", "t") == {0: 1, 1: 1}
                    assert session.claims == {"t:0"}
                    tasks.cancel_scope.cancel()


async def test_a_commit_is_retried_while_the_partitions_are_claimed(
    network: Any, sessions: list[FakeSession]
) -> None:
    """A coordinator was away for longer than a check of the claims is valid. The commit once failed
    then, long before its timeout."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0"], partition=0)
        with anyio.fail_after(90):
            async with consumer() as ours:
                await begin(sessions)
                await ours.getone()
                refused = kafka.fail(OffsetCommitRequest, ErrorCode.NOT_COORDINATOR, times=None)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ours.commit)
                    await anyio.sleep(1.5 * SESSION)
                    refused.stop()
                assert kafka.committed("g", "t") == {0: 1}


async def test_a_commit_is_not_retried_after_its_partition_was_reassigned(
    network: Any, sessions: list[FakeSession]
) -> None:
    """The retry would overwrite the new owner's commit with an offset of an earlier session."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0"], partition=0)
        with anyio.fail_after(90):
            async with consumer() as ours:
                await begin(sessions)
                await ours.getone()
                refused = kafka.fail(OffsetCommitRequest, ErrorCode.NOT_COORDINATOR, times=None)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(fails_to_commit, ours)
                    await anyio.sleep(SESSION / 4)
                    sessions[-1].expire()
                    while len(sessions) == 1:
                        await anyio.lowlevel.checkpoint()
                    sessions[-1].begin()
                    await ours.getone()
                    refused.stop()
                assert kafka.committed("g", "t") == {}


async def test_a_batch_in_flight_when_the_session_ends_is_lost(
    network: Any, sessions: list[FakeSession]
) -> None:
    """The callback reports it once; the records are delivered again and then committed."""
    lost: list[Any] = []
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0"], partition=0)
        with anyio.fail_after(90):
            async with consumer(on_partitions_lost=lost.append) as ours:
                await begin(sessions)
                await ours.getone()
                sessions[-1].expire()
                with pytest.raises(CommitFailedError, match="ZooKeeper has ended") as caught:
                    await ours.commit()
                tps = (TopicPartition("t", 0),)
                assert (caught.value.partitions, lost) == (tps, [list(tps)])
                await ours.commit()
                while len(sessions) == 1:
                    await anyio.sleep(0.1)
                sessions[-1].begin()
                await ours.getone()
                await ours.commit()
                assert kafka.committed("g", "t") == {0: 1}


async def test_a_member_that_joins_during_a_callback_and_gets_nothing_delays_no_caller(
    network: Any, sessions: list[FakeSession]
) -> None:
    """The assignment was applied when the list of members was another one already, which left it
    as it was: `wait_assignment()` never returned."""

    async def assigned(partitions: list[TopicPartition]) -> None:
        sessions[-1].join("zz")
        await anyio.sleep(2)

    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with consumer(on_partitions_assigned=assigned) as ours:
            await begin(sessions)
            with anyio.fail_after(5):
                assert await ours.wait_assignment() == {TopicPartition("t", 0)}


async def fails_to_commit(ours: Consumer) -> None:
    with pytest.raises(CommitFailedError):
        await ours.commit()

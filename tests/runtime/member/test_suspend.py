"""The system is suspended: the loop's clock stands still, and the coordinator's goes on.

A laptop's lid is closed. Meanwhile the session ends, and the partitions get other owners. On the
loop's clock the lease would last as long as before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from zookeeper.fake_sessions import SESSION as ZOOKEEPER_SESSION
from zookeeper.fake_sessions import fake_sessions

from kafkagroup import CommitFailedError, Consumer, HealthProblem, ZooKeeperMembership
from kafkagroup.runtime.offsets.group_offsets import GroupOffsets
from kafkagroup.testing.embedded import EmbeddedKafka, Swallow
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest

pytestmark = pytest.mark.anyio

Suspend = Callable[[float], None]

TP = TopicPartition("t", 0)
SESSION = 45.0
"""Seconds."""
HEARTBEATS = {"classic": HeartbeatRequest, "consumer": ConsumerGroupHeartbeatRequest}


@pytest.fixture
async def kafka(network: Any) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", [str(n) for n in range(100)], partition=0)
        yield kafka


def consumer(**options: Any) -> Consumer:
    return Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        auto_commit_interval_ms=60_000,
        **options,
    )


async def first_of_many(ours: Consumer) -> Any:
    (records,) = (await ours.getmany(1, timeout=SESSION)).values()
    return records[0]


async def first_of_batch(ours: Consumer) -> Any:
    return (await anext(ours.batches(1))).records[0]


CALLS = {
    "getone": Consumer.getone,
    "anext": Consumer.__anext__,
    "getmany": first_of_many,
    "batches": first_of_batch,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("protocol", HEARTBEATS)
async def test_nothing_is_delivered_after_a_suspend_until_a_heartbeat_is_acknowledged(
    kafka: EmbeddedKafka, suspend: Suspend, protocol: str, call: str
) -> None:
    """Up to 110 records were delivered that other members had processed."""
    next_record: Callable[[Consumer], Awaitable[Any]] = CALLS[call]
    async with consumer(group_protocol=protocol) as ours:
        assert (await next_record(ours)).offset == 0
        silent = kafka.fail(HEARTBEATS[protocol], Swallow(), times=None)
        suspend(SESSION + 1.0)
        with anyio.move_on_after(30.0) as waiting:
            await next_record(ours)
        assert waiting.cancelled_caught
        assert await ours.position(TP) == 1
        assert HealthProblem.SILENCE in [finding.problem for finding in ours.health().findings]
        assert ours.metrics().session_seconds_left == 0.0
        silent.stop()
        with anyio.fail_after(120.0):
            # The coordinator still knew the member; if not, record 0 was not committed yet.
            assert (await next_record(ours)).offset in (0, 1)


@pytest.mark.parametrize("protocol", HEARTBEATS)
async def test_a_suspend_that_is_shorter_than_the_lease_changes_nothing(
    kafka: EmbeddedKafka, suspend: Suspend, protocol: str
) -> None:
    async with consumer(group_protocol=protocol) as ours:
        await ours.getone()
        suspend(SESSION - 10.0)
        assert [(await ours.getone()).offset for _ in range(99)] == list(range(1, 100))
        assert 0.0 < ours.metrics().session_seconds_left <= 10.0
        assert ours.health()


async def test_a_heartbeat_sent_before_a_suspend_does_not_extend_the_lease_after_it(
    kafka: EmbeddedKafka, suspend: Suspend
) -> None:
    """The response lies in the socket while the system sleeps: it says what was true before."""
    async with consumer() as ours:
        await ours.getone()
        held = kafka.fail(HeartbeatRequest, Swallow(), times=None)
        await anyio.sleep(4.0)
        assert held.hits == 1
        driver = ours._session.member.driver
        assert driver is not None
        sent_at, expires_at = driver.last_heartbeat, driver.member.ownership.lease_expires_at
        suspend(SESSION + 1.0)
        assert driver.lease_left < 0.0
        assert driver.last_heartbeat == sent_at - SESSION - 1.0
        acknowledged = driver.member.ownership.acknowledge(driver.member.heartbeat_sent_at, SESSION)  # type: ignore[attr-defined]
        assert expires_at < acknowledged.lease_expires_at < driver._now()  # type: ignore[attr-defined]
        held.stop()


async def test_a_suspend_is_not_reported_as_a_blocked_loop(
    kafka: EmbeddedKafka, suspend: Suspend, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that the application could run in a thread has delayed the heartbeats."""
    async with consumer() as ours:
        await ours.getone()
        suspend(3600.0)
        await anyio.sleep(10.0)
        assert ours.loop_delay < 1.0
        assert "late by" not in caplog.text
        assert (await ours.getone()).offset == 1


async def test_claims_in_zookeeper_are_confirmed_again_after_a_suspend(
    kafka: EmbeddedKafka, suspend: Suspend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No coordinator refuses these commits. The claims were confirmed just before the suspend, and
    belong to another member since: the commit would overwrite its."""
    sessions = fake_sessions(monkeypatch)
    connecting = GroupOffsets._coordinator

    async def connect_after_a_suspend(self: GroupOffsets) -> Any:
        monkeypatch.setattr(GroupOffsets, "_coordinator", connecting)
        sessions[-1].claims.clear()
        suspend(ZOOKEEPER_SESSION / 2)
        return await connecting(self)

    async with consumer(membership=ZooKeeperMembership("zk:2181")) as ours:
        while not sessions:
            await anyio.sleep(0.1)
        sessions[-1].begin()
        await ours.getone()
        monkeypatch.setattr(GroupOffsets, "_coordinator", connect_after_a_suspend)
        with pytest.raises(CommitFailedError, match="not claimed by this member any more"):
            await ours.commit()
        assert kafka.requests(OffsetCommitRequest) == []

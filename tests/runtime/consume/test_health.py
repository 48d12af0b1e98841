"""The reasons that a health check returns; none if all is well. On an embedded broker in virtual
time. A second check shows what has not moved since the first one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import pytest

from kafkagroup import (
    AuthorizationError,
    Consumer,
    GroupMember,
    GroupProtocol,
    Health,
    HealthFinding,
    HealthProblem,
    TopicPartition,
)
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import ErrorCode
from kafkagroup.runtime.consume.health import Checkup
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.testing.embedded import Delay, EmbeddedKafka, Swallow
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest

pytestmark = pytest.mark.anyio

T = TypeVar("T")

T0 = TopicPartition("t", 0)
WELL = Health()
BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@asynccontextmanager
async def cluster(network: Any) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(3_000):
            yield kafka


def consumer(**options: Any) -> Consumer:
    return Consumer("t", **{"bootstrap_servers": "kafka-1", "group_id": "g", **options})


def sick(problem: HealthProblem, detail: str, partition: TopicPartition | None = None) -> Health:
    return Health((HealthFinding(problem=problem, detail=detail, partition=partition),))


@BOTH
async def test_a_joined_member_without_partitions_is_healthy(network: Any, protocol: Any) -> None:
    options = {"group_protocol": protocol}
    async with cluster(network), consumer(**options) as one, consumer(**options) as two:
        for _ in range(9):
            await anyio.sleep(60)
            assert (one.health(), two.health()) == (WELL, WELL)
            assert len(one.assignment() | two.assignment()) == 1
            with anyio.move_on_after(1):  # it has come for more
                await one.getone()
            with anyio.move_on_after(1):
                await two.getone()


def test_health_is_truthy_when_healthy_and_lists_its_findings_as_text() -> None:
    stalled = sick(HealthProblem.STALLED, "t/0 stands still", T0)
    silent = sick(HealthProblem.SILENCE, "no answer")
    both = Health((*stalled.findings, *silent.findings), notes=())
    assert [bool(h) for h in (WELL, stalled)] == [WELL.healthy, stalled.healthy] == [True, False]
    assert str(Health(notes=())) == "healthy"
    assert str(both) == "stalled: t/0 stands still; silence: no answer"


async def test_a_stopped_consumer_is_unhealthy(network: Any) -> None:
    one = consumer()
    out = sick(HealthProblem.NOT_RUNNING, "not started, or closed")
    assert one.health() == out
    async with cluster(network), one:
        assert one.health() == WELL
    assert one.health() == out


async def test_a_missing_permission_of_a_member_is_a_finding_while_it_lasts(network: Any) -> None:
    async with cluster(network) as kafka, consumer() as one:
        await one.wait_assignment()
        assert one.health() == WELL
        fault = kafka.fail(HeartbeatRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None)
        with pytest.raises(AuthorizationError):
            await one.getone()
        assert one.health() == WELL
        with anyio.move_on_after(15):
            await one.getone()
        (finding,) = one.health().findings
        assert finding.problem is HealthProblem.NO_PROGRESS
        assert "membership of group g: GROUP_AUTHORIZATION_FAILED (30)" in finding.detail
        fault.stop()
        with anyio.move_on_after(5):
            await one.getone()
        assert one.health() == WELL


async def test_a_rebalance_beyond_its_timeout_is_a_finding(network: Any) -> None:
    async with cluster(network) as kafka:
        kafka.fail(JoinGroupRequest, Delay(1_000), times=None)
        async with consumer() as one:
            assert one.health() == WELL
            await anyio.sleep(299)
            assert one.health() == WELL
            await anyio.sleep(1)
            found = one.health(), one.health(joining_after=600)
    assert found == (sick(HealthProblem.NOT_JOINED, "in no stable generation for 300.0 s"), WELL)


@BOTH
async def test_an_unresponsive_coordinator_is_a_finding(network: Any, protocol: Any) -> None:
    """Other members may own the partitions once the session has expired."""
    async with cluster(network) as kafka, consumer(group_protocol=protocol) as one:
        await one.wait_assignment()
        await anyio.sleep(10)
        kafka.fail(HeartbeatRequest, Swallow(), times=None)
        kafka.fail(ConsumerGroupHeartbeatRequest, Swallow(), times=None)
        await anyio.sleep(40)
        before = one.health()
        await anyio.sleep(6)
        after = one.health()
    assert [f.problem for f in before.findings] == [HealthProblem.NO_PROGRESS]
    assert [f.problem for f in after.findings] == [HealthProblem.SILENCE, HealthProblem.NO_PROGRESS]
    assert str(after).startswith("silence: no heartbeat is acknowledged; the last was sent ")


async def test_a_stuck_partition_with_growing_lag_is_reported(network: Any) -> None:
    async with cluster(network) as kafka, consumer() as one:
        kafka.produce("t", ["0", "1", "2"], partition=0)
        assert (await one.getone()).offset == 0
        assert (await one.getone()).offset == 1  # and 0 is processed
        healths = [one.health(stalled_after=60)]
        for _ in range(2):
            await anyio.sleep(59)
            healths.append(one.health(stalled_after=60))
            kafka.produce("t", ["3"], partition=0)
        await anyio.sleep(1)
        stalled, patient = one.health(stalled_after=60), one.health()
        metrics = one.metrics()
        assert (await one.getone()).offset == 2
        again = one.health(stalled_after=60)
    # At the second look, nothing had come for a minute, as nothing was produced.
    assert healths[:2] == [WELL, WELL]
    assert healths[2] == stalled_of(118, 2)
    assert (stalled, patient, again) == (stalled_of(119, 3), WELL, WELL)
    assert metrics.lag == {T0: 3}


def stalled_of(seconds: int, lag: int) -> Health:
    detail = f"t/0: position 1 for {seconds}.0 s, lag {lag}"
    return sick(HealthProblem.STALLED, detail, T0)


async def test_a_paused_partition_is_not_reported_as_stalled(network: Any) -> None:
    async with cluster(network) as kafka, consumer() as one:
        await one.wait_assignment()
        kafka.produce("t", ["0"], partition=0)
        assert (await one.getone()).offset == 0
        one.pause(T0)
        for _ in range(4):
            kafka.produce("t", ["1"], partition=0)
            await anyio.sleep(60)
            assert one.health(stalled_after=60) == WELL


async def test_a_consumer_without_a_group_stalls_too(network: Any) -> None:
    async with cluster(network) as kafka, consumer(group_id=None) as one:
        kafka.produce("t", ["0", "1"], partition=0)
        await one.getone()
        await one.getone()
        assert one.health(stalled_after=60) == WELL
        kafka.produce("t", ["2", "3"], partition=0)
        await anyio.sleep(60)
        assert one.health(stalled_after=60) == stalled_of(60, 2)


async def test_an_application_that_stops_polling_is_reported(network: Any) -> None:
    async with cluster(network) as kafka, consumer(max_poll_interval_ms=10_000) as one:
        kafka.produce("t", ["0"], partition=0)
        await one.getone()
        await anyio.sleep(12)
        away = one.health()
        with anyio.move_on_after(5):
            await one.getone()
        back = one.health()
    detail = "the application has not polled for 12.0 s"
    assert (away, back) == (sick(HealthProblem.AWAY, detail), WELL)


async def test_a_stalled_event_loop_is_a_finding(network: Any) -> None:
    async with cluster(network), consumer() as one:
        await one.wait_assignment()
        one._session.loop_delay.add_delay(4.5, anyio.current_time())
        found = one.health(), one.health(loop_delay_above=1.0)
        loop_delay = one.metrics().loop_delay
    late = sick(HealthProblem.LOOP_DELAY, "the event loop was late by 4.5 s")
    assert (found, loop_delay) == ((WELL, late), 4.5)


async def test_members_of_custom_groups_are_supported(network: Any) -> None:
    protocol = GroupProtocol("workers", "all", b"", lambda members: dict.fromkeys(members, b""))
    one = GroupMember("w", protocol, bootstrap_servers="kafka-1")
    out = sick(HealthProblem.NOT_RUNNING, "not started, or closed")
    assert one.health() == out
    async with cluster(network) as kafka:
        async with one:
            assert one.health() == WELL
            await anext(one)
            await anyio.sleep(9)
            assert one.health() == WELL
            silent = [
                kafka.fail(api, Swallow(), times=None)
                for api in (HeartbeatRequest, JoinGroupRequest)
            ]
            await anyio.sleep(60)
            unanswered = one.health(joining_after=60)
            await anyio.sleep(60)
            unjoined = one.health(joining_after=60)
        assert one.health() == out
        for fault in silent:
            fault.stop()
        kafka.fail(HeartbeatRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None)
        async with GroupMember("x", protocol, bootstrap_servers="kafka-1") as other:
            with pytest.raises(AuthorizationError) as caught:
                async for _ in other:
                    pass
            assert other.health() == sick(HealthProblem.FAILED, str(caught.value))
    assert [f.problem for f in unanswered.findings] == [HealthProblem.NO_PROGRESS]
    problems = [f.problem for f in unjoined.findings]
    assert problems == [HealthProblem.NOT_JOINED, HealthProblem.NO_PROGRESS]
    assert unjoined.findings[0].detail == "in no stable generation for 60.0 s"


# ---------------------------------------------------------------- comparison with the previous call


def owned(position: int, end: int) -> OwnedPartition:
    one = OwnedPartition(T0)
    one.position = one.processed = one.fetch_offset = position
    one.end = end
    return one


def buffered(one: OwnedPartition) -> OwnedPartition:
    one.buffered_records = 1
    return one


def look(checkup: Checkup, now: float, *partitions: OwnedPartition) -> list[int]:
    """Return the positions of the stalled partitions."""
    found = list(checkup.check_partitions(now, partitions, stalled_after=60.0))
    assert [f.problem for f in found] == [HealthProblem.STALLED] * len(found)
    return [int(f.detail.split()[2]) for f in found]


def test_a_constant_lag_is_no_finding() -> None:
    checkup, one = Checkup(LoopDelay("g", 45.0, threaded=False)), owned(5, 9)
    assert [look(checkup, at, one) for at in (0.0, 60.0, 600.0)] == [[], [], []]
    one.end = 10
    assert look(checkup, 601.0, one) == [5]
    assert look(checkup, 602.0) == []
    assert look(checkup, 603.0, owned(5, 10)) == []  # granted again


def test_a_partition_that_waits_behind_buffered_records_is_not_reported() -> None:
    """While the application takes any records, a partition may wait for its turn."""
    checkup = Checkup(LoopDelay("g", 45.0, threaded=False))
    waiting, other = buffered(owned(5, 9)), buffered(owned(1, 9))
    assert look(checkup, 0.0, waiting, other) == []
    other.processed = 2
    assert look(checkup, 50.0, waiting, other) == []
    assert look(checkup, 100.0, waiting, other) == []
    assert look(checkup, 110.0, waiting, other) == [5, 2]


def test_unknown_values_are_no_finding() -> None:
    checkup, one = Checkup(LoopDelay("g", 45.0, threaded=False)), owned(5, -1)
    assert one.lag is None
    assert [look(checkup, at, one) for at in (0.0, 600.0)] == [[], []]
    assert owned(5, 3).lag == 0


def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread, while this loop waits."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@pytest.mark.parametrize("expired", [False, True])
async def test_the_health_of_a_member_at_work_can_be_asked_for_in_a_thread(
    network: Any, expired: bool
) -> None:
    """It changed the deadlines of the scopes, which only their loop may do: RuntimeError."""
    protocol = GroupProtocol("work", "all", b"", lambda members: dict.fromkeys(members, b""))
    async with network, EmbeddedKafka(listen=False) as kafka:
        network.serve_embedded(kafka)
        async with GroupMember("g", protocol, bootstrap_servers="kafka-1") as member:
            generation = await anext(member)
            with generation.scope():
                await anyio.sleep(5)
                if expired:
                    member._queue.lease_expires_at = lambda: -1.0
                assert in_thread(member.health) == WELL
                assert not generation.over.is_set()


def test_a_lag_that_becomes_unknown_during_a_check_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop runs beside a check in another thread, which kept None as a lag: TypeError."""
    checkup, one = Checkup(LoopDelay("g", 45.0, threaded=False)), owned(5, 9)
    lags = [4, None, 4, 4, 4]
    monkeypatch.setattr(OwnedPartition, "lag", property(lambda _: lags.pop(0)))
    assert list(checkup.check_partitions(0.0, [one], stalled_after=5.0)) == []
    assert list(checkup.check_partitions(9.0, [one], stalled_after=5.0)) == []

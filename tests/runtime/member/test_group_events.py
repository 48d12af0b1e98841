"""The events of a group: rebalances with causes and phases, on an embedded broker in virtual time.
Events contain only facts that are certain."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup import (
    ConfigurationError,
    Consumer,
    GroupMember,
    GroupProtocol,
    RequestMetrics,
    ZooKeeperMembership,
)
from kafkagroup._values import evolve, fields
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.errors import BrokerError, ClosedError, ErrorCode, IllegalStateError
from kafkagroup.events import (
    CoordinatorFound,
    EventsMissed,
    GroupEvent,
    GroupLeft,
    MembershipLost,
    RebalanceCause,
    Rebalanced,
    RebalancePhases,
    RebalanceStarted,
)
from kafkagroup.runtime.member.event_feed import EventFeed
from kafkagroup.testing.embedded import Delay, EmbeddedKafka
from kafkagroup.wire.messages.consumer_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

pytestmark = pytest.mark.anyio

Cause = RebalanceCause

FOUND = CoordinatorFound(at=0.0, node_id=1, host="kafka-1", port=9092)


@asynccontextmanager
async def cluster(network: Any) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": 4, "u": 2}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(600):
            yield kafka


def consumer(topic: str = "t", **options: Any) -> Consumer:
    return Consumer(topic, bootstrap_servers="kafka-1", group_id="g", **options)


def protocol(metadata: bytes = b"x") -> GroupProtocol:
    return GroupProtocol(
        "workers", "all", metadata, lambda members: dict.fromkeys(members, b"mine")
    )


def worker() -> GroupMember:
    return GroupMember("w", protocol(), bootstrap_servers="kafka-1")


async def rebalanced(events: Any, times: int = 1) -> Rebalanced:
    """Return the next completed rebalance, or the one after the given number."""
    while True:
        event = await anext(events)
        if isinstance(event, Rebalanced):
            times -= 1
            if not times:
                return event


async def rest(events: Any) -> list[GroupEvent]:
    return [event async for event in events]


def plain(event: Rebalanced) -> tuple[Sequence[Cause], str, float, RebalancePhases]:
    phases = {name: round(getattr(event.phases, name), 9) for name in fields(RebalancePhases)}
    return event.causes, event.reason, round(event.seconds, 9), RebalancePhases(**phases)


async def test_the_events_of_a_member_from_joining_to_leaving(network: Any) -> None:
    async with cluster(network) as kafka, consumer() as one:
        await one.wait_assignment()
        one_id = one._session.member.identity.member_id
        events = one.events()
        async with consumer() as two:
            await two.wait_assignment()
            two_id = two._session.member.identity.member_id
            began = await anext(events)
            joined = await rebalanced(events)
            await anyio.sleep(3)
        left = await rebalanced(events)
        await anyio.sleep(3)
        kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID, times=1)
        lost = await anext(events)
        again = await anext(events)
        metrics = one.metrics()
        await one.stop()
        gone = await rest(events)
    assert began == RebalanceStarted(at=joined.at, generation_id=1, causes=(), reason="")
    assert joined == Rebalanced(
        at=joined.at,
        generation_id=2,
        member_id=one_id,
        is_leader=True,
        causes=(Cause.MEMBER_JOINED,),
        reason="",
        joined=(two_id,),
        left=(),
        seconds=0.0,
        phases=RebalancePhases(),
    )
    assert left == evolve(
        joined,
        at=left.at,
        generation_id=3,
        causes=(Cause.MEMBER_LEFT,),
        joined=(),
        left=(two_id,),
    )
    reason = "the coordinator does not know this member"
    assert lost == MembershipLost(at=lost.at, generation_id=3, cause=Cause.FENCED, reason=reason)
    assert again == RebalanceStarted(
        at=lost.at, generation_id=3, causes=(Cause.FENCED,), reason=reason
    )
    assert gone[-1] == GroupLeft(at=gone[-1].at, reason="the consumer was closed")
    assert (metrics.rebalances, metrics.losses, metrics.last_rebalance) == (3, 1, left)
    assert metrics.rebalance_causes == Counter(
        {Cause.JOINING: 1, Cause.MEMBER_JOINED: 1, Cause.MEMBER_LEFT: 1}
    )
    assert metrics.rebalance == RequestMetrics(
        rate=metrics.rebalance.rate, average=0.0, maximum=0.0
    )


async def test_the_first_join_reports_the_duration_of_its_phases(network: Any) -> None:
    async def slowly(_: Any) -> None:
        await anyio.sleep(4)

    one = consumer(on_partitions_assigned=slowly)
    events = one.events()
    async with cluster(network) as kafka:
        kafka.fail(JoinGroupRequest, Delay(1), times=2)  # the first one only gives an id
        kafka.fail(SyncGroupRequest, Delay(2), times=1)
        async with one:
            started, found = await anext(events), await anext(events)
            done = await rebalanced(events)
    assert started == RebalanceStarted(at=0.0, generation_id=-1, causes=(Cause.JOINING,), reason="")
    assert found == FOUND
    assert plain(done) == (
        (Cause.JOINING,),
        "",
        8.0,
        RebalancePhases(joining=2.0, syncing=2.0, assigning=4.0),
    )


async def test_a_follower_reports_no_cause_that_it_does_not_know(network: Any) -> None:
    async with cluster(network), consumer() as one, consumer() as two:
        events = one.events()
        await two.wait_assignment()
        first = await rebalanced(events)
        follower, leader = (two, one) if first.is_leader else (one, two)
        follower_events = follower.events()
        await leader.subscribe("t", "u")
        unknown = await rebalanced(follower_events)
    assert plain(unknown)[:2] == ((Cause.UNKNOWN,), "")


async def test_a_subscription_change_of_this_member_is_reported_as_the_cause(network: Any) -> None:
    async with cluster(network), consumer() as one:
        await one.wait_assignment()
        events = one.events()
        await one.subscribe("t", "u")
        found = plain(await rebalanced(events))
    assert found[:2] == ((Cause.SUBSCRIPTION,), "the subscription changed")


async def test_the_leader_reports_added_partitions_as_the_cause(network: Any) -> None:
    async with cluster(network) as kafka, consumer(metadata_max_age_ms=1_000) as one:
        await one.wait_assignment()
        events = one.events()
        kafka.add_partitions("t", 6)
        found = plain(await rebalanced(events))
    assert found[:2] == ((Cause.TOPICS,), "topic t went from 4 to 6 partitions")


async def test_partitions_added_during_the_assignment_cause_a_rebalance(network: Any) -> None:
    """The leader missed a change that came before its first generation."""
    async with cluster(network) as kafka:
        kafka.fail(SyncGroupRequest, Delay(3))
        async with consumer(metadata_max_age_ms=1_000) as one:
            while not kafka.requests(SyncGroupRequest):
                await anyio.sleep(0.1)
            kafka.add_partitions("t", 6)
            while len(await one.wait_assignment()) < 6:
                await anyio.sleep(0.1)


async def test_partitions_added_while_the_static_leader_is_away_cause_a_rebalance(
    network: Any,
) -> None:
    """When it returns, its assignment is still valid, and no member computes another (KIP-814)."""
    static = {"group_instance_id": "a", "metadata_max_age_ms": 300_000}
    async with cluster(network) as kafka:
        async with consumer(**static) as before:
            assert len(await before.wait_assignment()) == 4
        async with consumer(**static) as same:
            assert len(await same.wait_assignment()) == 4
            await anyio.sleep(10)
            assert len(kafka.requests(JoinGroupRequest)) == 2, "it came back to what stood"
        kafka.add_partitions("t", 6)
        async with consumer(**static) as after:
            events = after.events()
            found = [plain(await rebalanced(events))[:2] for _ in (1, 2)]
            assert len(after.assignment()) == 6
    grown = ((Cause.TOPICS,), "topic t went from 4 to 6 partitions")
    assert found == [((Cause.JOINING,), ""), grown]


async def test_added_partitions_are_the_cause_when_the_coordinator_assigns(network: Any) -> None:
    async with cluster(network) as kafka:
        kafka.create_topic("v", 1)
        async with consumer("v", group_protocol="consumer") as one:
            await one.wait_assignment()
            events = one.events()
            kafka.add_partitions("v", 3)
            found = plain(await rebalanced(events))
    assert found[:2] == ((Cause.TOPICS,), "topic v went from 1 to 3 partitions or more")


async def test_a_cooperative_member_reports_both_rebalances(network: Any) -> None:
    """The other member causes the rebalance in which this one revokes; this one causes the next."""

    async def slowly(_: Any) -> None:
        await anyio.sleep(3)

    options = {"assignors": [cooperative_sticky_assignor]}
    async with cluster(network), consumer(**options, on_partitions_revoked=slowly) as one:
        await one.wait_assignment()
        events = one.events()
        async with consumer(**options) as two:
            await two.wait_assignment()
            first, second = await rebalanced(events), await rebalanced(events)
    assert plain(first) == (
        (Cause.MEMBER_JOINED,),
        "",
        3.0,
        RebalancePhases(revoking=3.0),
    )
    assert plain(second)[:2] == ((Cause.HANDOVER,), "revoked 2 partitions")


async def test_the_consumer_protocol_reports_no_cause(network: Any) -> None:
    """KIP-848: an assignment has no cause. The partitions that are gained are counted."""

    async def slowly(_: Any) -> None:
        await anyio.sleep(3)

    async with cluster(network) as kafka:
        one = consumer(group_protocol="consumer", on_partitions_revoked=slowly)
        events = one.events()
        async with one:
            joined = await rebalanced(events)
            async with consumer(group_protocol="consumer"):
                other = await rebalanced(events)
                await anyio.sleep(3)
            await rebalanced(events)
            await one.subscribe("t", "u")
            mine = await rebalanced(events)
            kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.FENCED_MEMBER_EPOCH, times=1)
            while not isinstance(lost := await anext(events), MembershipLost):
                pass
            fenced = await rebalanced(events)
    assert plain(joined) == ((Cause.JOINING,), "", 0.0, RebalancePhases())
    assert plain(other) == ((Cause.UNKNOWN,), "", 3.0, RebalancePhases(revoking=3.0))
    assert plain(mine)[:2] == ((Cause.SUBSCRIPTION,), "the subscription changed")
    assert (lost.cause, fenced.causes) == (Cause.FENCED, (Cause.FENCED,))


async def test_an_application_that_stops_polling_is_reported(network: Any) -> None:
    async with cluster(network) as kafka, consumer(max_poll_interval_ms=10_000) as one:
        kafka.produce("t", ["0"], partition=0)
        await one.getone()
        events = one.events()
        await anyio.sleep(11)
        lost, left = await anext(events), await anext(events)
        with anyio.move_on_after(1):
            await one.getone()
        back = await rebalanced(events)
    reason = "the application stopped polling"
    assert lost == MembershipLost(
        at=lost.at, generation_id=1, cause=Cause.POLL_TIMEOUT, reason=reason
    )
    assert left == GroupLeft(at=lost.at, reason=reason)
    assert back.causes == (Cause.JOINING,)


async def test_a_member_that_fails_leaves_once(network: Any) -> None:
    """`GroupLeft` was published with the error, and again when LeaveGroup was answered."""
    async with cluster(network) as kafka:
        async with consumer() as one:
            kafka.produce("t", ["0"], partition=0)
            await one.getone()
            events = one.events()
            kafka.fail(HeartbeatRequest, ErrorCode.INVALID_REQUEST, times=1)
            with pytest.raises(BrokerError):
                await one.getone()
            await anyio.sleep(1)
        published = await rest(events)
    assert [type(event) for event in published] == [MembershipLost, GroupLeft]
    assert "INVALID_REQUEST" in published[1].reason


async def test_members_of_custom_groups_are_supported(network: Any) -> None:
    one = worker()
    events = one.events()
    async with cluster(network), one:
        first = await anext(one)
        joined = await rebalanced(events)
        one.update(protocol(b"y"))
        second = await anext(one)
        updated = await rebalanced(events)
        one.rejoin("for the fun of it")
        await anext(one)
        asked = await rebalanced(events)
        metrics = one.metrics()
        await one.stop()
        left = (await rest(events))[-1]
    assert (joined.generation_id, joined.causes) == (first.generation_id, (Cause.JOINING,))
    assert (updated.generation_id, *plain(updated)[:2]) == (
        second.generation_id,
        (Cause.SUBSCRIPTION,),
        "the metadata changed",
    )
    assert plain(asked)[:2] == ((Cause.REQUESTED,), "for the fun of it")
    assert left == GroupLeft(at=left.at, reason="the member was closed")
    assert (metrics.rebalances, metrics.last_rebalance) == (3, asked)


async def test_a_rebalance_requested_by_the_application_has_that_cause(network: Any) -> None:
    async with cluster(network) as kafka, consumer() as one:
        owned = await one.wait_assignment()
        joins = len(kafka.requests(JoinGroupRequest))
        events = one.events()
        one.rejoin("loads have changed")
        asked = await rebalanced(events)
        await anyio.sleep(10)
        assert plain(asked)[:2] == ((Cause.REQUESTED,), "loads have changed")
        assert (asked.generation_id, one.assignment()) == (2, owned)
        assert len(kafka.requests(JoinGroupRequest)) == joins + 1


async def test_a_rebalance_requested_during_a_join_follows_that_join(
    network: Any,
) -> None:
    async with cluster(network) as kafka, consumer() as one:
        events = one.events()
        kafka.fail(SyncGroupRequest, Delay(2.0))
        while not kafka.requests(SyncGroupRequest):
            await anyio.sleep(0.1)
        one.rejoin()
        assert (await rebalanced(events)).generation_id == 2
        assert len(one.assignment()) == 4


async def test_a_rebalance_request_in_the_consumer_protocol_sends_a_full_heartbeat(
    network: Any,
) -> None:
    full: list[ConsumerGroupHeartbeatRequest] = []

    def on_request(request: ConsumerGroupHeartbeatRequest) -> bool:
        if request.rebalance_timeout_ms != -1:
            full.append(request)
        return False

    async with cluster(network) as kafka, consumer(group_protocol="consumer") as one:
        owned = await one.wait_assignment()
        await anyio.sleep(30)
        kafka.fail(ConsumerGroupHeartbeatRequest, Delay(0), times=None, when=on_request)
        events = one.events()
        before = anyio.current_time()
        one.rejoin("are we all right?")
        while not full:
            await anyio.sleep(0.001)
        assert anyio.current_time() - before < 0.1
        await anyio.sleep(10)
        assert one.assignment() == owned
        member_id = one._session.member.identity.member_id
        t = kafka._cluster.topics["t"].topic_id
        await one.stop()
        assert [type(e) for e in await rest(events)] == [GroupLeft]
    assert full == [
        ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member_id,
            member_epoch=2,
            rebalance_timeout_ms=300_000,
            subscribed_topic_names=("t",),
            topic_partitions=(TopicPartitions(topic_id=t, partitions=(0, 1, 2, 3)),),
        )
    ]


async def test_a_rebalance_request_without_a_group_is_an_error(network: Any) -> None:
    one = consumer()
    with pytest.raises(ClosedError):
        one.rejoin()
    async with cluster(network), one:
        await one.wait_assignment()
        await one.unsubscribe()
        with pytest.raises(IllegalStateError, match=r"^in no group"):
            one.rejoin()
    with pytest.raises(ClosedError):
        one.rejoin()


async def test_a_coordinator_change_is_reported(network: Any) -> None:
    async with network, EmbeddedKafka({"t": 1}, nodes=2, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with consumer() as one:
            await one.wait_assignment()
            events = one.events()
            before = one.coordinator
            assert before is not None
            other = 3 - before.node_id
            kafka.move_coordinator("g", other)
            found = await anext(events)
    assert found == CoordinatorFound(at=found.at, node_id=other, host=f"kafka-{other}", port=9092)


# ---------------------------------------------------------------- readers


def left(n: int) -> GroupLeft:
    return GroupLeft(at=float(n), reason="")


async def test_a_slow_reader_loses_the_oldest_events_and_is_notified() -> None:
    feed = EventFeed()
    slow, quick = feed.open(2), feed.open(9)
    for n in range(5):
        feed.publish(left(n))
    assert [await anext(slow) for _ in range(3)] == [EventsMissed(count=3), left(3), left(4)]
    feed.publish(left(5))
    feed.close()
    assert await rest(slow) == [left(5)]
    assert await rest(quick) == [left(n) for n in range(6)]
    assert await rest(feed.open(1)) == []


async def test_a_waiting_reader_gets_events_at_once_and_the_end() -> None:
    feed = EventFeed()
    events = feed.open(9)
    received: list[GroupEvent] = []

    async def read() -> None:
        received.extend(await rest(events))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        feed.publish(left(1))
        await anyio.wait_all_tasks_blocked()
        assert received == []
        feed.close()
    assert received == [left(1)]


async def test_a_discarded_reader_is_removed() -> None:
    feed = EventFeed()
    feed.open(1)
    assert len(feed._readers) == 0


def test_events_need_a_group_coordinated_by_kafka() -> None:
    kept = ZooKeeperMembership("zk")
    elsewhere = consumer(membership=kept)
    member = GroupMember("w", protocol(), membership=kept)
    for one in (elsewhere, member):
        with pytest.raises(ConfigurationError, match="a group that Kafka coordinates"):
            one.events()
    wrong: Any
    for wrong in (0, "x"):
        with pytest.raises(ConfigurationError, match=f"buffer={wrong!r}; expected a whole number"):
            consumer().events(wrong)

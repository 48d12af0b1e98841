"""The state that a consumer or member shows, and how it leaves its group."""

import anyio
import pytest
from brokers import FAST, Worker, until

from kafkagroup import (
    Admin,
    ClosedError,
    Consumer,
    GroupMember,
    GroupProtocol,
    OffsetAndMetadata,
    TopicPartition,
)
from kafkagroup._extended_consumer import TunedConsumer
from kafkagroup.errors import ConfigurationError, ErrorCode, JoinFailedError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire.messages.group import JoinGroupRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest

pytestmark = pytest.mark.anyio


def everything_to(who):
    return lambda members: {member: b"all" for member in members if member == who(members)}


PROTOCOL = GroupProtocol("workers", "first", b"", everything_to(min))


async def test_processed_positions_are_shown(bootstrap, name, fill):
    """What an auto-commit would commit: never the record in flight."""
    await fill(2, 5)
    consumer = Consumer(
        name, bootstrap_servers=bootstrap, group_id=name, enable_auto_commit=False, **FAST
    )
    assert consumer.processed() == {}
    async with consumer:
        with anyio.fail_after(20):
            records = [await consumer.getone() for _ in range(7)]
            done = {TopicPartition(name, p): 0 for p in range(2)}
            for record in records[:-1]:
                done[TopicPartition(name, record.partition)] = record.offset + 1
            assert {tp: o.offset for tp, o in consumer.processed().items()} == done
            await consumer.commit()
            done[TopicPartition(name, records[-1].partition)] += 1
            assert {tp: o.offset for tp, o in consumer.processed().items()} == done
            committed = await consumer.committed()
            assert {tp: o.offset for tp, o in committed.items()} == done


async def test_commits_carry_metadata(bootstrap, name, fill):
    await fill(1, 5)
    tp = TopicPartition(name, 0)
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        with anyio.fail_after(20):
            await consumer.getone()
            await consumer.commit(note="by host-1")
            found = (await consumer.committed())[tp]
            assert (found.offset, found.metadata) == (1, "by host-1")
            await consumer.commit({tp: 2}, note="x" * 5_000)
            assert await consumer.committed() == {tp: OffsetAndMetadata(2)}


async def test_a_stop_without_commit_commits_nothing(bootstrap, name, fill):
    await fill(1, 5)
    consumer = Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST)
    async with consumer:
        with anyio.fail_after(20):
            for _ in range(3):
                await consumer.getone()
            await consumer.stop(commit=False)
    async with Consumer(bootstrap_servers=bootstrap, group_id=name) as other:
        tp = TopicPartition(name, 0)
        assert await other.committed([tp]) == {tp: None}


@pytest.mark.parametrize("kind", ["consumer", "member"])
@pytest.mark.parametrize("leave", [True, False])
async def test_leaving_the_group_on_close_is_optional(bootstrap, name, fill, kind, leave):
    """Without a leave the membership lasts until the session times out: for a quick restart."""
    await fill(1)
    options = {"bootstrap_servers": bootstrap, "leave_group_on_close": not leave, **FAST}
    if kind == "consumer":
        joined = []
        one = Consumer(name, group_id=name, on_partitions_assigned=joined.append, **options)
        async with one:
            await until(lambda: joined)
            await one.stop(leave_group=leave)
    else:
        one = GroupMember(name, PROTOCOL, **options)
        async with one:
            await anext(one)
            await one.stop(leave_group=leave)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        group = await admin.describe_group(name)
    assert len(group.members) == (0 if leave else 1)


@pytest.mark.parametrize("kind", ["consumer", "member"])
@pytest.mark.parametrize("leave", [True, None])
async def test_a_static_member_keeps_its_membership_or_leaves(bootstrap, name, fill, kind, leave):
    """KIP-1092: a static member once always stayed, despite `leave_group_on_close`."""
    await fill(1)
    options = {"bootstrap_servers": bootstrap, "group_instance_id": "i", **FAST}
    if kind == "consumer":
        one = Consumer(name, group_id=name, **options)
        async with one:
            await one.wait_assignment()
            await one.stop(leave_group=leave)
    else:
        one = GroupMember(name, PROTOCOL, leave_group_on_close=leave, **options)
        async with one:
            await anext(one)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        group = await admin.describe_group(name)
    assert [m.instance_id for m in group.members] == ([] if leave else ["i"])


async def test_the_coordinator_of_a_consumer_and_a_member(bootstrap, name, fill):
    await fill(1)
    consumer = Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST)
    member = GroupMember(f"{name}-2", PROTOCOL, bootstrap_servers=bootstrap, **FAST)
    alone = Consumer(name, bootstrap_servers=bootstrap)
    assert (consumer.coordinator, member.coordinator, alone.coordinator) == (None, None, None)
    async with consumer, member, alone, Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(20):
            await anext(member)
            await until(lambda: consumer.coordinator and consumer.assignment())
            for group, one in ((name, consumer), (f"{name}-2", member)):
                found = await admin.find_coordinator(group)
                at = one.coordinator
                assert (at.node_id, at.host, at.port) == (found.node_id, found.host, found.port)
        assert alone.coordinator is None
        with pytest.raises(ConfigurationError, match="group_id is empty"):
            await admin.find_coordinator("")


async def test_metrics(bootstrap, name, fill):
    await fill(3, 5)
    worker = Worker(bootstrap, name)
    with pytest.raises(ClosedError):
        worker.consumer.metrics()
    async with worker.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await until(lambda: len(worker.seen) == 15)
        await worker.consumer.commit()
        await until(lambda: worker.consumer.metrics().heartbeat.rate > 0)
        found = worker.consumer.metrics()
        await worker.consumer.stop()
    assert found.assigned_partitions == 3
    assert 0 <= found.last_heartbeat_seconds_ago < 20
    assert 0 < found.session_seconds_left <= 6
    for one in (found.heartbeat, found.join, found.sync, found.commit):
        assert one.rate > 0
        assert 0 <= one.average <= one.maximum < 20  # the clock of uvloop has milliseconds


async def test_metrics_of_a_member(bootstrap, name):
    async with GroupMember(name, PROTOCOL, bootstrap_servers=bootstrap, **FAST) as member:
        with anyio.fail_after(20):
            await anext(member)
            await until(lambda: member.metrics().heartbeat.rate > 0)
            found = member.metrics()
    assert (found.assigned_partitions, found.commit.rate) == (0, 0.0)
    assert found.join.rate > 0


async def test_invalidating_the_coordinator_looks_it_up_again_and_changes_nothing_else():
    with EmbeddedKafka({"t": 1}) as kafka:
        servers = kafka.bootstrap_servers
        worker = Worker(servers, "t")
        member = GroupMember("g", PROTOCOL, bootstrap_servers=servers, **FAST)
        async with worker.consumer, member:
            await until(lambda: worker.owns)
            generation = await anext(member)
            for one in (worker.consumer, member):
                asked = len(kafka.requests(FindCoordinatorRequest))
                one.forget_coordinator("the host is drained")
                await until(lambda n=asked: len(kafka.requests(FindCoordinatorRequest)) > n)
                await until(lambda one=one: one.coordinator is not None)
            await worker.consumer.commit({TopicPartition("t", 0): 0})
            assert worker.story == [("assigned", [0])]
            assert not generation.over.is_set()


async def test_wait_assignment_returns_the_partitions(bootstrap, name, fill):
    """An empty assignment too: a member without partitions has joined as well."""
    await fill(1, 2)
    one = Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST)
    other = Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST)
    alone = Consumer(name, bootstrap_servers=bootstrap)
    with pytest.raises(ClosedError):
        await one.wait_assignment()
    async with one, alone:
        with anyio.fail_after(20):
            assert await alone.wait_assignment() == alone.assignment()
            assert await one.wait_assignment() == {TopicPartition(name, 0)}
            async with other:
                shares = [await other.wait_assignment(), await one.wait_assignment()]
                assert len(shares[0] | shares[1]) == 1
        await one.stop()
        with pytest.raises(ClosedError):
            await one.wait_assignment()


async def test_joining_fails_after_rebalance_max_retries():
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.fail(JoinGroupRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        private = {"rebalance_max_retries": 1}
        with anyio.fail_after(20):
            one = TunedConsumer(
                private, "t", group_id="g", bootstrap_servers=kafka.bootstrap_servers
            )
            async with one:
                with pytest.raises(JoinFailedError, match="failed 2 times in a row"):
                    await one.wait_assignment()
        assert len(kafka.requests(JoinGroupRequest)) == 2

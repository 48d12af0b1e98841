"""A member that ends hands over at once, whatever happens meanwhile: on the embedded broker and on
real Kafka, where sessions last for 45 s."""

from __future__ import annotations

from contextlib import contextmanager

import anyio
import pytest
from brokers import Worker, until

from kafkagroup import Consumer, GroupMember, GroupProtocol, TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.broker import Broker
from kafkagroup.errors import ConnectionLostError
from kafkagroup.transport.connection import BrokerConnection
from kafkagroup.wire.messages.consumer_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kafkagroup.wire.messages.group import JoinGroupRequest, LeaveGroupRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest

pytestmark = pytest.mark.anyio

WORK = GroupProtocol("work", "all", b"", lambda members: dict.fromkeys(members, b"w"))
SLOW = {"session_timeout_ms": 45_000, "heartbeat_interval_ms": 500}
SOON = 8.0
"""Seconds; a real broker assigns once a second, and asks for heartbeats each 5 s."""


def first_join(request):
    if isinstance(request, JoinGroupRequest):
        return not request.member_id
    return isinstance(request, ConsumerGroupHeartbeatRequest) and request.member_epoch == 0


def second_join(request):
    return isinstance(request, JoinGroupRequest) and bool(request.member_id)


def look_up(request):
    return isinstance(request, FindCoordinatorRequest)


def leave(request):
    if isinstance(request, LeaveGroupRequest):
        return True
    return isinstance(request, ConsumerGroupHeartbeatRequest) and request.member_epoch < 0


@contextmanager
def on_request(matches, call, *, before=False):
    """Call `call` with the connection as soon as the first matching request is sent, or before."""
    send, seen = BrokerConnection._send, []

    def sending(self, request, version):
        is_first = matches(request) and not seen
        if is_first:
            seen.append(request)
        if is_first and before:
            call(self)
        done = send(self, request, version)
        if is_first and not before:
            call(self)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerConnection, "_send", sending)
        yield seen


@contextmanager
def on_response(kind, call):
    """Call `call` with the connection instead of delivering the first response of this type."""
    deliver, seen = BrokerConnection._deliver, []

    def delivering(self, response):
        if isinstance(response.message, kind) and not seen:
            seen.append(response.message)
            call(self)
        else:
            deliver(self, response)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerConnection, "_deliver", delivering)
        yield seen


def lose(connection):
    connection._end(ConnectionLostError("cut by the test"))


def cut(connection):
    lose(connection)
    raise ConnectionLostError("cut by the test")


def member(kind, bootstrap, name, **options):
    options = {**SLOW, **options}
    if kind == "member":
        return GroupMember(name, WORK, bootstrap_servers=bootstrap, **options)
    return Consumer(
        name, bootstrap_servers=bootstrap, group_id=name, group_protocol=kind, **options
    )


async def works(one):
    """Take part in the group."""
    async for _ in one:
        pass


def is_alone(one):
    if isinstance(one, GroupMember):
        return one.generation is not None and len(one.generation.members) == 1
    return len(one.assignment()) == 2


async def has_joined(one):
    if isinstance(one, GroupMember):
        await anext(one)
    else:
        await until(one.assignment)


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        ("classic", first_join),
        ("classic", second_join),
        ("consumer", first_join),
        ("member", first_join),
    ],
)
async def test_a_member_that_is_cancelled_in_its_first_join_holds_up_no_other(
    bootstrap, name, fill, kind, when
):
    """Without a member id it could not leave, and the group waited until its session ended."""
    await fill(2)
    async with member(kind, bootstrap, name) as first, anyio.create_task_group() as tasks:
        await has_joined(first)
        tasks.start_soon(works, first)
        with anyio.CancelScope() as scope, on_request(when, lambda _: scope.cancel()) as seen:
            async with member(kind, bootstrap, name):
                await anyio.sleep(20)
        assert seen
        with anyio.fail_after(SOON):
            async with member(kind, bootstrap, name) as next_one:
                await has_joined(next_one)
                tasks.cancel_scope.cancel()


@pytest.mark.parametrize("before", [True, False], ids=["request lost", "response lost"])
@pytest.mark.parametrize("kind", ["classic", "consumer", "member"])
async def test_a_connection_that_breaks_does_not_keep_a_member_from_leaving(
    bootstrap, name, fill, kind, before
):
    await fill(2)
    async with member(kind, bootstrap, name) as stays, anyio.create_task_group() as tasks:
        tasks.start_soon(works, stays)
        async with member(kind, bootstrap, name) as ends:
            await has_joined(ends)
            with on_request(leave, cut if before else lose, before=before) as seen:
                await ends.stop()
        assert seen
        with anyio.fail_after(SOON):
            await until(lambda: is_alone(stays))
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["classic", "consumer"])
async def test_a_member_that_does_not_know_its_coordinator_looks_it_up_to_leave(
    bootstrap, name, fill, kind
):
    await fill(2)
    stays = Worker(bootstrap, name, group_protocol=kind, **SLOW)
    async with stays.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(stays.run)
        async with member(kind, bootstrap, name) as ends:
            await has_joined(ends)
            with on_request(look_up, cut, before=True) as seen:
                ends.forget_coordinator()
                await ends.stop()
        assert seen
        await until(lambda: len(stays.owns) == 2, seconds=SOON)
        await stays.consumer.stop()


async def test_a_static_member_whose_join_was_not_answered_does_not_wait_for_itself(
    bootstrap, name, fill
):
    """The coordinator refused its next join, until the session of the first one ended: 45 s."""
    await fill(1)
    with on_response(ConsumerGroupHeartbeatResponse, lose) as seen, anyio.fail_after(SOON):
        async with member("consumer", bootstrap, name, group_instance_id="i") as consumer:
            await has_joined(consumer)
    assert seen


async def test_closing_in_a_cooperative_rebalance_commits(bootstrap, name, fill):
    """Its JoinGroup waits for a member that never joins, and the coordinator takes commits of the
    generation until then."""
    await fill(1, 9)
    story = []
    options = {
        "assignors": [cooperative_sticky_assignor],
        "auto_commit_interval_ms": 60_000,
        "on_partitions_revoked": lambda tps: story.append("revoked"),
        "on_partitions_lost": lambda tps: story.append("lost"),
    }
    host, port = bootstrap.split(",")[0].split(":")
    async with Broker.open(host, int(port)) as broker:
        async with member("classic", bootstrap, name, **options) as consumer:
            with anyio.fail_after(20):
                assert (await consumer.getone()).offset == 0
            protocols = [("cooperative-sticky", b"")]
            ghost = await broker.join_group(
                name, "", protocol_type="consumer", protocols=protocols, session_timeout=30.0
            )
            with on_request(second_join, lambda _: None) as rejoined:
                consumer.rejoin()
                await until(lambda: rejoined)
            await anyio.sleep(0.3)
            with anyio.fail_after(5):
                assert [(await consumer.getone()).offset for _ in range(2)] == [1, 2]
        await broker.leave_group(name, ghost.member_id)
    async with Consumer(bootstrap_servers=bootstrap, group_id=name) as reader:
        tp = TopicPartition(name, 0)
        found = (await reader.committed([tp]))[tp]
    assert story == ["revoked"]
    assert found.offset == 2

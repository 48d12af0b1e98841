"""A load balancer that drops idle connections without a word, responses that are lost, and what is
sent again. In virtual time, on the embedded broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup import (
    Consumer,
    GroupMember,
    GroupProtocol,
    Producer,
    TopicPartition,
)
from kafkagroup._values import evolve
from kafkagroup.admin import Admin, NewTopic
from kafkagroup.errors import BrokerError, ChangesRefusedError, ErrorCode, RequestTimeoutError
from kafkagroup.testing.embedded import Change, Close, Delay, EmbeddedKafka, Swallow
from kafkagroup.wire.messages.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
)
from kafkagroup.wire.messages.metadata import MetadataRequest, MetadataResponse
from kafkagroup.wire.messages.offset_delete import OffsetDeleteRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest
from kafkagroup.wire.schema import NO_ID

pytestmark = pytest.mark.anyio

T0 = TopicPartition("t", 0)
QUICK = 3.0
"""Seconds that a call may take where connections are dropped: a second for each that it uses."""
BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@asynccontextmanager
async def kafka_behind(
    network: Any, idle_limit: float = 4.5, nodes: int = 1
) -> AsyncIterator[EmbeddedKafka]:
    """An embedded cluster behind a load balancer."""
    network.idle_limit = idle_limit
    async with network, EmbeddedKafka({"t": 1}, listen=False, nodes=nodes) as kafka:
        network.serve_embedded(kafka, nodes)
        yield kafka


def consumer(*topics: str, **options: Any) -> Consumer:
    return Consumer(*topics, **{"bootstrap_servers": "kafka-1:9092", "group_id": "g", **options})


async def refused(change: Any) -> int:
    """Return the code of the error of one change."""
    with pytest.raises(ChangesRefusedError) as caught:
        await change
    (error,) = caught.value.exceptions
    assert isinstance(error, BrokerError)
    return error.code


async def seconds(call: Any) -> float:
    start = anyio.current_time()
    await call
    return anyio.current_time() - start


# ---------------------------------------------------------------- dropped while idle


@pytest.mark.parametrize("is_member", [False, True])
async def test_commits_stay_quick(network: Any, is_member: bool) -> None:
    """Every second commit failed after 30 s."""
    async with kafka_behind(network) as kafka:
        kafka.produce("t", [str(n) for n in range(50)])
        topics = ["t"] if is_member else []
        async with consumer(*topics, enable_auto_commit=False) as one:
            if not is_member:
                await one.assign([T0])
            for number in range(1, 6):
                await one.getone()
                assert await seconds(one.commit()) < QUICK
                assert kafka.committed("g", "t") == {0: number}
                await anyio.sleep(10)
        assert any(each.is_dropped for each in network.forgotten)


async def test_fetches_and_look_ups_stay_quick(network: Any) -> None:
    async with kafka_behind(network) as kafka:
        async with consumer("t") as one:
            for number in range(4):
                kafka.produce("t", ["v"])
                # The first dropped long poll: 5 s are its wait, and 10 s a third of its timeout.
                with anyio.fail_after(16):
                    assert (await one.getone()).offset == number
                await anyio.sleep(30)
            # From then on no long poll is long enough to be dropped.
            kafka.produce("t", ["v"])
            with anyio.fail_after(QUICK):
                await one.getone()
            await anyio.sleep(30)
            assert await seconds(one.end_offsets([T0])) < QUICK
            await anyio.sleep(30)
            assert await seconds(one.committed([T0])) < QUICK


async def test_only_the_first_long_poll_of_an_idle_consumer_is_dropped(network: Any) -> None:
    """Each one that the broker held for 5 s was dropped, and waited for its timeout: records that
    were written meanwhile came late."""
    async with kafka_behind(network) as kafka:
        kafka.produce("t", ["v"])
        async with consumer("t", enable_auto_commit=False) as one:
            await one.getone()
            with anyio.move_on_after(200):
                await one.getone()
            assert sum(each.is_dropped for each in network.forgotten) == 1


@BOTH
async def test_heartbeats_keep_the_membership(network: Any, protocol: Any) -> None:
    """A heartbeat on a dropped connection waited until the session had ended."""
    lost: list[TopicPartition] = []
    async with kafka_behind(network, idle_limit=2.5) as kafka:
        options = {"heartbeat_interval_ms": 3_000, "on_partitions_lost": lost.extend}
        async with consumer("t", group_protocol=protocol, **options) as one:
            kafka.produce("t", ["v"])
            await one.getone()
            with anyio.move_on_after(300):
                await one.getone()
            assert (lost, one.assignment()) == ([], {T0})


async def test_a_paused_consumer_continues_quickly(network: Any) -> None:
    async with kafka_behind(network) as kafka:
        kafka.produce("t", ["v"])
        async with consumer("t") as one:
            await one.getone()
            one.pause([T0])
            await anyio.sleep(60)
            kafka.produce("t", ["v"])
            one.resume([T0])
            with anyio.fail_after(QUICK):
                await one.getone()


async def test_admin_and_producer_stay_quick(network: Any) -> None:
    async with kafka_behind(network) as kafka:
        servers = "kafka-1:9092"
        async with (
            Admin(bootstrap_servers=servers) as admin,
            Producer(bootstrap_servers=servers) as producer,
        ):
            for number in range(4):
                name = f"new-{number}"
                assert await seconds(admin.list_topics()) < QUICK
                await anyio.sleep(10)
                new = NewTopic(name=name, partitions=1)
                assert await seconds(admin.create_topics([new])) < QUICK
                await anyio.sleep(10)
                assert await seconds(admin.list_groups()) < QUICK
                await anyio.sleep(10)
                assert await seconds(producer.send("t", b"v")) < QUICK
                await anyio.sleep(10)
                assert await seconds(admin.delete_topics([name])) < QUICK
                await anyio.sleep(10)
        assert len(kafka.requests(CreateTopicsRequest)) == 4


async def test_a_group_member_keeps_its_generation(network: Any) -> None:
    async with kafka_behind(network, idle_limit=2.5):
        protocol = GroupProtocol(
            type="work", name="p", metadata=b"", assign=lambda members: dict.fromkeys(members, b"")
        )
        member = GroupMember(
            "g", [protocol], bootstrap_servers="kafka-1:9092", heartbeat_interval_ms=3_000
        )
        async with member:
            first = await member.wait_generation()
            await anyio.sleep(120)
            assert member.generation == first


# ---------------------------------------------------------------- lost responses


async def test_a_repeated_auto_commit_has_the_newest_offsets(network: Any) -> None:
    """The first one may be executed after it, so that it is sent once more."""
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        kafka.produce("t", [str(n) for n in range(10)])
        kafka.fail(OffsetCommitRequest, Swallow())
        async with consumer("t", auto_commit_interval_ms=5_000) as one:
            for _ in range(3):
                await one.getone()
            await anyio.sleep(6)
            assert len(kafka.requests(OffsetCommitRequest)) == 1
            for _ in range(4):
                await one.getone()
            await anyio.sleep(10)
            assert kafka.committed("g", "t") == {0: 6}
            assert len(kafka.requests(OffsetCommitRequest)) == 3
            await anyio.sleep(60)
            assert len(kafka.requests(OffsetCommitRequest)) == 3


async def test_a_repeated_commit_of_the_application_has_its_offsets(network: Any) -> None:
    """With manual commits, only the application knows what is processed."""
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        kafka.produce("t", [str(n) for n in range(10)])
        kafka.fail(OffsetCommitRequest, Swallow())
        async with consumer("t", enable_auto_commit=False) as one:
            await one.getone()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.commit)
                await anyio.sleep(1)
                for _ in range(4):
                    await one.getone()
            assert kafka.committed("g", "t") == {0: 1}
            assert len(kafka.requests(OffsetCommitRequest)) == 3


async def test_a_commit_after_one_that_failed_without_a_response_is_sent_twice(
    network: Any,
) -> None:
    """The commit that failed may be executed last."""
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        kafka.produce("t", [str(n) for n in range(10)])
        fault = kafka.fail(OffsetCommitRequest, Swallow(), times=None)
        options = {"enable_auto_commit": False, "request_timeout_ms": 6_000}
        async with consumer("t", **options) as one:
            await one.getone()
            start = anyio.current_time()
            with pytest.raises(RequestTimeoutError, match="did not answer the commit of group 'g'"):
                await one.commit()
            assert anyio.current_time() - start == pytest.approx(6)
            assert len(kafka.requests(OffsetCommitRequest)) == 2
            fault.stop()
            await one.getone()
            for count in (4, 5):  # once more only after the first
                await one.getone()
                await one.commit()
                assert len(kafka.requests(OffsetCommitRequest)) == count


async def test_each_coordinator_gets_a_part_of_the_deadline_first(network: Any) -> None:
    """The group moved to another broker, the connection to which was dead as well."""
    async with kafka_behind(network, idle_limit=9e9, nodes=2) as kafka:
        kafka.move_coordinator("g", 1)
        kafka.produce("t", ["v"], partition=0)
        async with consumer("t", enable_auto_commit=False) as one:
            await one.getone()
            for node in (1, 2):
                kafka.fail(OffsetCommitRequest, Swallow(), node_id=node)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.commit)
                await anyio.sleep(5)
                kafka.move_coordinator("g", 2)
                with anyio.fail_after(20):
                    while kafka.committed("g", "t") != {0: 1}:
                        await anyio.sleep(0.1)


async def test_a_slow_coordinator_is_waited_for(network: Any) -> None:
    """The first attempt gets a part of the deadline only, and the second one the rest."""
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        kafka.produce("t", ["v"])
        kafka.fail(OffsetCommitRequest, Delay(15.0), times=None)
        async with consumer("t", enable_auto_commit=False) as one:
            await one.getone()
            assert 25 <= await seconds(one.commit()) < 30
            assert kafka.committed("g", "t") == {0: 1}


LOST = pytest.mark.parametrize("fault", [Swallow(), Close(), Close(before=True)], ids=str)


@LOST
async def test_a_topic_is_created_once(network: Any, fault: Any) -> None:
    """The call failed with TOPIC_ALREADY_EXISTS for the topic that it had created itself."""
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        async with Admin(bootstrap_servers="kafka-1:9092") as admin:
            kafka.fail(CreateTopicsRequest, fault)
            new = NewTopic(name="new", partitions=2)
            assert await admin.create_topics([new]) == ("new",)
            was_executed = fault != Close(before=True)
            assert len(kafka.requests(CreateTopicsRequest)) == 2 - was_executed
            assert await refused(admin.create_topics([new])) == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_a_topic_that_existed_before_is_an_error_also_after_a_lost_response(
    network: Any,
) -> None:
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        async with Admin(bootstrap_servers="kafka-1:9092") as admin:
            kafka.fail(CreateTopicsRequest, Close())
            assert (
                await refused(admin.create_topics([NewTopic(name="t", partitions=2)]))
                == ErrorCode.TOPIC_ALREADY_EXISTS
            )


async def test_a_topic_that_the_controller_creates_slowly_is_created(network: Any) -> None:
    """REQUEST_TIMED_OUT: it is created, but not every broker knows it yet."""
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        async with Admin(bootstrap_servers="kafka-1:9092") as admin:
            new = NewTopic(name="new", partitions=2)

            def timed_out(response: Any) -> Any:
                (topic,) = response.topics
                return evolve(
                    response, topics=(evolve(topic, error_code=ErrorCode.REQUEST_TIMED_OUT),)
                )

            kafka.fail(CreateTopicsRequest, Change(timed_out))
            assert await admin.create_topics([new]) == ("new",)


@LOST
async def test_a_topic_is_deleted_once(network: Any, fault: Any) -> None:
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        async with Admin(bootstrap_servers="kafka-1:9092") as admin:
            kafka.fail(DeleteTopicsRequest, fault)
            assert await admin.delete_topics(["t"]) == ("t",)
            assert await refused(admin.delete_topics(["t"])) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_topic_that_cannot_be_looked_up_is_not_taken_for_deleted(network: Any) -> None:
    """The request was lost. The look-up before the next attempt had an error, and so no topic id:
    the call returned success, and the topic was still there."""

    def denied(response: MetadataResponse) -> MetadataResponse:
        refused = [
            evolve(topic, error_code=code, topic_id=NO_ID, partitions=())
            for topic in response.topics
            for code in [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        ]
        return evolve(response, topics=tuple(refused))

    async with kafka_behind(network, idle_limit=9e9) as kafka:
        async with Admin(bootstrap_servers="kafka-1:9092") as admin:
            kafka.fail(DeleteTopicsRequest, Close(before=True))
            kafka.fail(
                MetadataRequest,
                Change(denied),
                when=lambda request: bool(request.topics and kafka.requests(DeleteTopicsRequest)),
            )
            assert await admin.delete_topics(["t"]) == ("t",)
            assert await admin.list_topics() == ()


async def test_a_topic_that_was_recreated_meanwhile_is_not_deleted(network: Any) -> None:
    """The response to the deletion was lost, and another client has created the topic again."""
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        async with Admin(bootstrap_servers="kafka-1:9092") as admin:
            kafka.fail(DeleteTopicsRequest, Swallow())
            async with anyio.create_task_group() as tasks:

                async def delete() -> None:
                    assert await admin.delete_topics(["t"]) == ("t",)

                tasks.start_soon(delete)
                await anyio.sleep(5)
                async with Admin(bootstrap_servers="kafka-1:9092") as other:
                    new = NewTopic(name="t", partitions=3)
                    assert await other.create_topics([new]) == ("t",)
            (topic,) = await admin.list_topics()
            assert (topic.name, len(topic.partitions)) == ("t", 3)
            assert len(kafka.requests(DeleteTopicsRequest)) == 1


@LOST
async def test_partitions_are_added_once(network: Any, fault: Any) -> None:
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        async with Admin(bootstrap_servers="kafka-1:9092") as admin:
            kafka.fail(CreatePartitionsRequest, fault)
            assert await admin.add_partitions({"t": 3}) == ("t",)
            assert await refused(admin.add_partitions({"t": 3})) == ErrorCode.INVALID_PARTITIONS


async def test_an_attempt_that_was_not_sent_has_deleted_nothing(network: Any) -> None:
    """The first attempt cannot connect. The second one finds no group: that is an error."""
    async with kafka_behind(network, idle_limit=9e9, nodes=2) as kafka:
        kafka.move_coordinator("absent", 2)
        async with Admin(bootstrap_servers="kafka-1:9092") as admin:
            handler = network.handlers.pop(("kafka-2", 9092))
            async with anyio.create_task_group() as tasks:

                async def delete() -> None:
                    found = await refused(admin.delete_groups(["absent"]))
                    assert found == ErrorCode.GROUP_ID_NOT_FOUND

                tasks.start_soon(delete)
                await anyio.sleep(1)
                network.handlers["kafka-2", 9092] = handler


@LOST
async def test_groups_members_and_offsets_are_removed_once(network: Any, fault: Any) -> None:
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        async with Admin(bootstrap_servers="kafka-1:9092") as admin:
            await admin.alter_offsets("g", {T0: 0})
            kafka.fail(OffsetDeleteRequest, fault)
            assert await admin.delete_offsets("g", [T0]) == (T0,)
            await admin.alter_offsets("g", {T0: 0})
            kafka.fail(DeleteGroupsRequest, fault)
            assert await admin.delete_groups(["g"]) == ("g",)
            async with consumer("t") as one:
                with anyio.move_on_after(10):
                    await one.getone()
                (member,) = (await admin.describe_group("g")).members
                kafka.fail(LeaveGroupRequest, fault)
                await admin.remove_member("g", member_id=member.member_id)


async def test_a_first_join_without_a_response_is_repeated_soon(network: Any) -> None:
    """It waited for the rebalance timeout: five minutes."""
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        kafka.produce("t", ["v"])
        kafka.fail(JoinGroupRequest, Swallow())
        async with consumer("t") as one:
            with anyio.fail_after(31):
                await one.getone()


@BOTH
async def test_a_heartbeat_without_a_response_does_not_cost_the_membership(
    network: Any, protocol: Any
) -> None:
    lost: list[TopicPartition] = []
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        kafka.produce("t", ["v"])
        options = {"group_protocol": protocol, "on_partitions_lost": lost.extend}
        async with consumer("t", **options) as one:
            await one.getone()
            api = HeartbeatRequest if protocol == "classic" else ConsumerGroupHeartbeatRequest
            kafka.fail(api, Swallow())
            with anyio.move_on_after(120):
                await one.getone()
            kafka.produce("t", ["v"])
            with anyio.fail_after(6):
                await one.getone()
            assert (lost, one.assignment()) == ([], {T0})


async def test_a_fetch_without_a_response_is_repeated_in_a_new_session(network: Any) -> None:
    async with kafka_behind(network, idle_limit=9e9) as kafka:
        kafka.produce("t", ["v"])
        async with consumer("t") as one:
            await one.getone()
            kafka.fail(FetchRequest, Swallow())
            await anyio.sleep(1)
            kafka.produce("t", ["v"])
            with anyio.fail_after(16):
                await one.getone()

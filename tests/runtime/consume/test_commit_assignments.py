"""A commit belongs to the assignment of its call: on an embedded broker, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import anyio
import pytest
from rebalance_kinds import KINDS
from zookeeper.fake_sessions import FakeSession, fake_sessions

from kafkagroup import (
    CommitFailedError,
    Consumer,
    NotAssignedError,
    OffsetAndMetadata,
    TopicPartition,
    ZooKeeperMembership,
)
from kafkagroup.concurrency import slices
from kafkagroup.errors import ErrorCode, KafkaGroupError
from kafkagroup.runtime.offsets.group_offsets import GroupOffsets
from kafkagroup.testing.embedded import Close, Delay, EmbeddedKafka, Throttle
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import ClientOptions
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest
from kafkagroup.wire.messages.offsets import ListOffsetsRequest, OffsetCommitRequest

pytestmark = pytest.mark.anyio

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

each_protocol = pytest.mark.parametrize("protocol", KINDS)


@asynccontextmanager
async def cluster(network: Any, partitions: int = 1) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": partitions}, listen=False) as kafka:
        network.serve_embedded(kafka)
        for partition in range(partitions):
            kafka.produce("t", [str(n) for n in range(300)], partition=partition)
        with anyio.fail_after(500):
            yield kafka


def consumer(kafka: EmbeddedKafka, protocol: str, **options: Any) -> Consumer:
    """A member. When it loses its partitions, another one commits 200."""
    return Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        **{
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 500,
            "on_partitions_lost": lambda _: commit_200(kafka),
            **KINDS[protocol],
            **options,
        },
    )


def commit_200(kafka: EmbeddedKafka) -> None:
    kafka._cluster.offsets.setdefault("g", {})[T0] = OffsetAndMetadata(200)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await anyio.sleep(0.01)


async def read(ours: Consumer, count: int) -> None:
    for _ in range(count):
        await ours.getone()


async def lose_and_get_back(kafka: EmbeddedKafka, ours: Consumer) -> None:
    """Let the member lose its partition, and get it back."""
    before = ours._delivery.owned[T0]
    kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
    kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
    await until(lambda: ours._delivery.owned.get(T0) not in (None, before))
    assert await ours.position(T0) == 200


# ---------------------------------------------------------------- the floor


@each_protocol
async def test_a_worker_of_an_earlier_assignment_cannot_rewind_the_group(
    network: Any, protocol: str
) -> None:
    """Its commit was sent in the new generation: the group went back from 200 to 100, and 100
    records were processed again."""
    async with cluster(network) as kafka, consumer(kafka, protocol) as ours:
        await read(ours, 100)
        await lose_and_get_back(kafka, ours)
        with pytest.raises(CommitFailedError, match="100 is below 200, where this assig") as caught:
            await ours.commit({T0: 100})
        assert caught.value.partitions == (T0,)
        assert kafka.committed("g", "t") == {0: 200}
        await ours.commit({T0: 200})
        await ours.commit({T0: 250})
        await ours.commit({T0: 210})  # the application may commit what it likes above the floor
        assert kafka.committed("g", "t") == {0: 210}


@each_protocol
async def test_a_seek_lets_the_application_rewind_the_group(network: Any, protocol: str) -> None:
    """As after the abort of a transaction."""
    async with cluster(network) as kafka, consumer(kafka, protocol) as ours:
        await read(ours, 1)
        await lose_and_get_back(kafka, ours)
        ours.seek(T0, 100)
        await ours.commit({T0: 100})
        assert kafka.committed("g", "t") == {0: 100}
        with pytest.raises(CommitFailedError, match="99 is below 100"):
            await ours.commit({T0: 99})


@each_protocol
async def test_a_reset_moves_the_floor_down(network: Any, protocol: str) -> None:
    async with cluster(network) as kafka:
        kafka._cluster.offsets["g"] = {T0: OffsetAndMetadata(1_000)}  # beyond the end
        async with consumer(kafka, protocol) as ours:
            await read(ours, 1)
            await ours.commit({T0: 1})
            assert kafka.committed("g", "t") == {0: 1}


async def test_without_a_membership_the_application_may_rewind(network: Any) -> None:
    async with cluster(network) as kafka:
        kafka._cluster.offsets["g"] = {T0: OffsetAndMetadata(200)}
        async with Consumer(
            bootstrap_servers="kafka-1", group_id="g", enable_auto_commit=False
        ) as c:
            await c.assign([T0])
            assert await c.position(T0) == 200
            await c.commit({T0: 100})
            assert kafka.committed("g", "t") == {0: 100}


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
async def test_a_partition_that_is_kept_through_a_rebalance_keeps_its_assignment(
    network: Any, protocol: str
) -> None:
    async with cluster(network, 2) as kafka, consumer(kafka, protocol) as ours:
        await until(lambda: ours.assignment() == {T0, T1})
        async with consumer(kafka, protocol) as other:
            await until(other.assignment)
            await until(lambda: len(ours.assignment()) == 1)
            (kept,) = ours.assignment()
            await ours.commit({kept: 1})
            assert kafka.committed("g", "t") == {kept.partition: 1}


# ---------------------------------------------------------------- waits, in a consumer


@each_protocol
async def test_a_commit_that_waits_for_another_is_not_sent_in_the_next_assignment(
    network: Any, protocol: str
) -> None:
    """Even of an offset above the floor: it is of the earlier assignment."""
    failed: dict[int, str] = {}

    async def commit(offset: int) -> None:
        try:
            await ours.commit({T0: offset})
        except KafkaGroupError as error:
            failed[offset] = str(error)

    async with cluster(network) as kafka, consumer(kafka, protocol) as ours:
        await read(ours, 250)
        kafka.fail(OffsetCommitRequest, Delay(6.0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit, 50)
            await anyio.sleep(0.1)
            for offset in (100, 250):
                tasks.start_soon(commit, offset)
            await anyio.sleep(0.1)
            await lose_and_get_back(kafka, ours)
        assert kafka.committed("g", "t") == {0: 200}
        assert all("since it was requested" in failed[offset] for offset in (100, 250))


@each_protocol
async def test_a_commit_waits_through_a_rebalance_for_a_partition_that_is_kept(
    network: Any, protocol: str
) -> None:
    """Two commits are pipelined while the member rejoins."""
    async with cluster(network) as kafka, consumer(kafka, protocol) as ours:
        await read(ours, 100)
        before = ours._delivery.owned[T0]
        kafka.fail(OffsetCommitRequest, Delay(3.0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ours.commit, {T0: 50})
            await anyio.sleep(0.1)
            tasks.start_soon(ours.commit, {T0: 100})
            await anyio.sleep(0.1)
            ours.rejoin()
        assert kafka.committed("g", "t") == {0: 100}
        assert protocol == "eager" or ours._delivery.owned[T0] is before


async def test_a_cancelled_commit_leaves_the_others_in_order(network: Any) -> None:
    async with cluster(network) as kafka, consumer(kafka, "eager") as ours:
        await read(ours, 100)
        kafka.fail(OffsetCommitRequest, Delay(3.0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ours.commit, {T0: 50})
            await anyio.sleep(0.1)
            with anyio.move_on_after(0.5):
                await ours.commit({T0: 60})
            await ours.commit({T0: 70})
        assert kafka.committed("g", "t") == {0: 70}


@each_protocol
async def test_an_auto_commit_stays_above_the_floor(network: Any, protocol: str) -> None:
    options = {"enable_auto_commit": True, "auto_commit_interval_ms": 200}
    async with cluster(network) as kafka:
        async with consumer(kafka, protocol, **options) as ours:
            await read(ours, 100)
            await lose_and_get_back(kafka, ours)
            await ours.getone()
            await anyio.sleep(1)
            assert kafka.committed("g", "t") == {0: 200}
        assert kafka.committed("g", "t") == {0: 200}


@each_protocol
@pytest.mark.parametrize("end", [False, True], ids=["beginning", "end"])
async def test_a_seek_that_looks_up_its_offset_belongs_to_its_assignment(
    network: Any, protocol: str, end: bool
) -> None:
    """The offset of `seek_to_beginning` arrived in the next assignment, and the next commit went
    back to it."""
    async with cluster(network) as kafka, consumer(kafka, protocol) as ours:
        await read(ours, 100)
        kafka.fail(ListOffsetsRequest, Delay(6.0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lose_and_get_back, kafka, ours)
            with pytest.raises(NotAssignedError, match="t/0 was released while"):
                await (ours.seek_to_end() if end else ours.seek_to_beginning())
        assert await ours.position(T0) == 200


# ---------------------------------------------------------------- each wait, one by one

Wait = Callable[["Group"], Awaitable[object]]

OLD, NEW = UUID(int=7), UUID(int=8)


class Group:
    """Commits without a membership, whose partition can be assigned again at any moment."""

    def __init__(self, kafka: EmbeddedKafka, cluster: Cluster) -> None:
        self.kafka = kafka
        self.cluster = cluster
        self.session = Consumer(group_id="g")._session
        self.committer = self.session.committer
        self.committer.bind(GroupOffsets(cluster, "g"))
        self.session.delivery.own([T0, T1])
        for owned in self.session.delivery.owned.values():
            owned.note_topic(*cluster.topic_ids({"t"}).values())

    def reassign(self) -> None:
        """Let another member own t/0 and commit 200, and assign it to this one again."""
        self.session.delivery.release([T0])
        self.session.delivery.own([T0])
        commit_200(self.kafka)

    def recreate(self) -> None:
        """Reset the position in t/0 to a recreated topic, in which another member commits 200."""
        owned = self.session.delivery.owned[T0]
        owned.is_of_deleted_topic = True
        owned.start_at(0)
        owned.note_topic(NEW)
        commit_200(self.kafka)


@asynccontextmanager
async def grouped(network: Any) -> AsyncIterator[Group]:
    async with (
        cluster(network, 2) as kafka,
        anyio.create_task_group() as tasks,
    ):
        one = Cluster((("kafka-1", 9092),), ClientOptions(request_timeout=5.0), tasks)
        one.topics.follow(lambda: {"t"})
        await one.refresh()
        yield Group(kafka, one)
        await one.aclose()


async def commit(group: Group, **options: Any) -> None:
    offsets = {T1: OffsetAndMetadata(1), T0: OffsetAndMetadata(100)}
    await group.committer.commit(offsets, anyio.current_time() + 20, **options)


async def while_it_waits_for_the_coordinator(group: Group) -> None:
    group.kafka.fail(FindCoordinatorRequest, Delay(1.0))
    await commit(group)


async def while_it_waits_for_a_retry(group: Group) -> None:
    group.kafka.fail(OffsetCommitRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=12)
    await commit(group)


async def while_it_waits_for_a_connection(group: Group) -> None:
    group.kafka.fail(OffsetCommitRequest, Close(before=True), times=8)
    await commit(group)


async def while_the_broker_throttles(group: Group) -> None:
    group.kafka.fail(OffsetCommitRequest, Throttle(2.0))
    await group.committer.commit({T1: OffsetAndMetadata(0)}, anyio.current_time() + 20)
    await commit(group)


async def between_two_slices(group: Group) -> None:
    group.kafka.fail(OffsetCommitRequest, Delay(1.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "SLICE_SIZE", 1)
        await commit(group)


async def between_the_topics_of_one_name(group: Group) -> None:
    owned = group.session.delivery.owned
    (current,) = group.cluster.topic_ids({"t"}).values()
    owned[T0].note_topic(OLD)
    owned[T1].note_topic(current)
    group.kafka.fail(OffsetCommitRequest, Delay(1.0))
    await commit(group)


async def before_it_is_sent_without_the_note(group: Group) -> None:
    group.kafka.fail(OffsetCommitRequest, Delay(1.0))
    await commit(group, note="x" * 5_000)


WAITS: list[Wait] = [
    while_it_waits_for_the_coordinator,
    while_it_waits_for_a_retry,
    while_it_waits_for_a_connection,
    while_the_broker_throttles,
    between_two_slices,
    between_the_topics_of_one_name,
    before_it_is_sent_without_the_note,
]


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
@pytest.mark.parametrize("change", [Group.reassign, Group.recreate], ids=lambda c: c.__name__)
async def test_the_partition_of_the_call_is_checked_after_each_wait(
    network: Any, wait: Wait, change: Callable[[Group], None]
) -> None:
    """A commit that took the partition by its name after a wait was one of the next assignment."""

    async def change_soon() -> None:
        await anyio.sleep(0.5)
        change(group)

    async with grouped(network) as group, anyio.create_task_group() as tasks:
        tasks.start_soon(change_soon)
        with pytest.raises(CommitFailedError, match="t/0 failed: since it was requested"):
            await wait(group)
        assert group.kafka.committed("g", "t")[0] == 200


async def test_the_response_to_a_commit_does_not_count_for_a_recreated_topic(network: Any) -> None:
    """The same offset of the new topic counted as committed, and was never sent."""
    async with grouped(network) as group, anyio.create_task_group() as tasks:
        group.kafka.fail(OffsetCommitRequest, Delay(1.0))
        tasks.start_soon(commit, group)
        await anyio.sleep(0.5)
        group.recreate()
        await anyio.sleep(1)
        owned = group.session.delivery.owned
        assert (owned[T0].acknowledged, owned[T1].acknowledged) == (None, OffsetAndMetadata(1))


# ---------------------------------------------------------------- claims in ZooKeeper


async def test_claimed_partitions_have_a_floor_and_are_checked_after_their_confirmation(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a coordinator that refuses it, only the client stops the commit of an earlier
    assignment."""
    sessions: list[FakeSession] = fake_sessions(monkeypatch)
    async with cluster(network, 2) as kafka:
        ours = consumer(kafka, "eager", membership=ZooKeeperMembership("zk:2181"))
        async with ours:
            await until(lambda: sessions)
            session = sessions[-1]
            session.begin()
            await until(lambda: ours.assignment() == {T0, T1})
            assert await ours.position(T0) == 0
            session.away_until = anyio.current_time() + 5.0
            failed: list[str] = []

            async def commit() -> None:
                try:
                    await ours.commit({T0: 100})
                except CommitFailedError as error:
                    failed.append(str(error))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(commit)
                await anyio.sleep(1)
                ours._delivery.release([T0])
                ours._delivery.own([T0])
                commit_200(kafka)
            assert [text[:44] for text in failed] == [
                "commit of t/0 failed: since it was requested"
            ]
            ours._engine._positions.look_up()
            assert await ours.position(T0) == 200
            with pytest.raises(CommitFailedError, match="100 is below 200"):
                await ours.commit({T0: 100})
            assert kafka.committed("g", "t") == {0: 200}

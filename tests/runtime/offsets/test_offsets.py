"""Committed offsets: the reaction to each error code, their order, and lost responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup._values import define, evolve
from kafkagroup.errors import (
    BrokerError,
    CommitFailedError,
    ErrorCode,
    FencedError,
    KafkaGroupError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
    broker_error,
)
from kafkagroup.runtime.offsets.group_offsets import GroupOffsets
from kafkagroup.runtime.offsets.values import NO_MEMBER, GroupCommit, Identity
from kafkagroup.testing.embedded import Close, Delay, EmbeddedKafka, Swallow, Throttle
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import ClientOptions
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.metadata import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
)
from kafkagroup.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

pytestmark = pytest.mark.anyio

E = ErrorCode
TP = TopicPartition("t", 0)
SEVEN = {TP: OffsetAndMetadata(7)}
OPTIONS = ClientOptions(request_timeout=5.0)


class Group:
    """A group's offsets, their broker, and the session that orders commits."""

    def __init__(self, kafka: EmbeddedKafka, offsets: GroupOffsets) -> None:
        self.kafka = kafka
        self.offsets = offsets
        self.session = Consumer(group_id="g")._session
        self.session.committer.bind(offsets)
        (self.owned,) = self.session.delivery.own([TP])

    async def commit(self, offset: int, timeout: float = 20.0) -> None:
        offsets = {TP: OffsetAndMetadata(offset)}
        await self.session.committer.commit(offsets, anyio.current_time() + timeout)

    async def commit_processed(self, timeout: float, note: str = "") -> None:
        await self.session.committer.commit_processed(anyio.current_time() + timeout, note)

    @property
    def committed(self) -> int | None:
        return self.kafka.committed("g", "t").get(0)

    def count(self, api: Any) -> int:
        return len(self.kafka.requests(api))


@define(kw_only=True)
class CommitWhile(GroupCommit):
    """A commit of a member that is in its generation while a condition holds."""

    condition: Callable[[], bool]

    def is_current(self) -> bool:
        return self.condition()


@asynccontextmanager
async def grouped(
    network: Any, nodes: int = 1, options: ClientOptions = OPTIONS
) -> AsyncIterator[Group]:
    async with network, EmbeddedKafka({"t": 2}, listen=False, nodes=nodes) as kafka:
        network.serve_embedded(kafka, nodes)
        async with anyio.create_task_group() as tasks:
            servers = tuple((f"kafka-{n}", 9092) for n in range(1, nodes + 1))
            cluster = Cluster(servers, options, tasks)
            await cluster.refresh()
            yield Group(kafka, GroupOffsets(cluster, "g"))
            await cluster.aclose()


async def reconnect(network: Any) -> None:
    """Break all connections: new ones are served by the current handlers."""
    for stream in network.streams:
        await stream.aclose()
    await anyio.sleep(0.01)


# ---------------------------------------------------------------- the table of commit errors

SAME = (E.COORDINATOR_LOAD_IN_PROGRESS, E.UNKNOWN_TOPIC_OR_PARTITION, E.UNSTABLE_OFFSET_COMMIT)
REDISCOVER = (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.REQUEST_TIMED_OUT)
OVER = {
    E.UNKNOWN_MEMBER_ID: "the group has rebalanced",
    E.ILLEGAL_GENERATION: "the group has rebalanced",
    E.GROUP_ID_NOT_FOUND: "the group has rebalanced",
    E.REBALANCE_IN_PROGRESS: "commit again when the member has rejoined",
}
RAISED = (
    E.UNKNOWN_SERVER_ERROR,
    E.OFFSET_METADATA_TOO_LARGE,
    E.INVALID_GROUP_ID,
    E.INVALID_COMMIT_OFFSET_SIZE,
    E.TOPIC_AUTHORIZATION_FAILED,
    E.GROUP_AUTHORIZATION_FAILED,
)


@pytest.mark.parametrize(
    ("code", "looked_up"), [*((c, 1) for c in SAME), *((c, 2) for c in REDISCOVER)]
)
async def test_a_commit_is_retried_after_a_retriable_error(
    network: Any, code: ErrorCode, looked_up: int
) -> None:
    async with grouped(network) as group:
        group.kafka.fail(OffsetCommitRequest, code)
        await group.commit(7)
        assert group.committed == 7
        assert (group.count(OffsetCommitRequest), group.count(FindCoordinatorRequest)) == (
            2,
            looked_up,
        )


@pytest.mark.parametrize("code", OVER)
async def test_a_commit_rejected_after_a_rebalance_is_not_retried(
    network: Any, code: ErrorCode
) -> None:
    async with grouped(network) as group:
        group.kafka.fail(OffsetCommitRequest, code)
        with pytest.raises(CommitFailedError, match=f"^committing t/0: {code.name}.*{OVER[code]}"):
            await group.commit(7)
        assert (group.committed, group.count(OffsetCommitRequest)) == (None, 1)


async def test_a_commit_is_not_retried_after_the_membership_has_ended(network: Any) -> None:
    """After a process freeze, a commit was sent for a membership that the group had ended."""
    async with grouped(network) as group:
        refused = group.kafka.fail(OffsetCommitRequest, E.NOT_COORDINATOR)
        with pytest.raises(
            CommitFailedError, match=r"^commit of t/0 failed: group 'g' has rebalanced"
        ):
            await group.offsets.commit(
                CommitWhile(identity=NO_MEMBER, offsets=SEVEN, condition=lambda: not refused.hits),
                anyio.current_time() + 20,
            )
        assert (group.committed, group.count(OffsetCommitRequest)) == (None, 1)


async def test_a_throttled_commit_is_not_sent_after_the_membership_has_ended(network: Any) -> None:
    """It waited for the throttle after it had looked whether the member still was one."""
    async with grouped(network) as group:
        group.kafka.fail(OffsetFetchRequest, Throttle(2.0))
        await group.offsets.committed([TP])
        ends_at = anyio.current_time() + 1
        with pytest.raises(CommitFailedError, match="has rebalanced"):
            await group.offsets.commit(
                CommitWhile(
                    identity=NO_MEMBER,
                    offsets=SEVEN,
                    condition=lambda: anyio.current_time() < ends_at,
                ),
                anyio.current_time() + 20,
            )
        assert (group.committed, group.count(OffsetCommitRequest)) == (None, 0)


async def test_a_rejoined_static_member_is_not_fenced_by_its_earlier_commit(
    network: Any,
) -> None:
    """It already has a new member id, so the coordinator answers the commit with the old one as if
    another process had replaced it. That once ended the application."""
    async with grouped(network) as group:
        fenced = group.kafka.fail(OffsetCommitRequest, E.FENCED_INSTANCE_ID)
        with pytest.raises(CommitFailedError, match="this static member has rejoined group"):
            await group.offsets.commit(
                CommitWhile(identity=NO_MEMBER, offsets=SEVEN, condition=lambda: not fenced.hits),
                anyio.current_time() + 20,
            )
        assert (group.committed, group.count(OffsetCommitRequest)) == (None, 1)


@pytest.mark.parametrize("code", RAISED)
async def test_a_permanent_commit_error_is_raised(network: Any, code: ErrorCode) -> None:
    async with grouped(network) as group:
        group.kafka.fail(OffsetCommitRequest, code)
        with pytest.raises(BrokerError) as caught:
            await group.commit(7)
        assert caught.value == broker_error(
            code, "committing t/0 of group 'g'", operation="READ", topic="t", group="g"
        )
        assert (group.committed, group.count(OffsetCommitRequest)) == (None, 1)


async def test_a_commit_by_a_fenced_static_member_is_fatal(network: Any) -> None:
    async with grouped(network) as group:
        group.kafka.fail(OffsetCommitRequest, E.FENCED_INSTANCE_ID)
        with pytest.raises(FencedError, match=r"^committing t/0: another member took"):
            await group.commit(7)


async def test_a_commit_by_an_unknown_member_is_an_error(network: Any) -> None:
    async with grouped(network) as group:
        with pytest.raises(CommitFailedError, match="GROUP_ID_NOT_FOUND"):
            await group.offsets.commit(
                GroupCommit(identity=Identity(3, "nobody"), offsets={TP: OffsetAndMetadata(1)}),
                anyio.current_time() + 5,
            )


async def test_metadata_and_leader_epoch_of_a_commit_round_trip(network: Any) -> None:
    async with grouped(network) as group:
        full = OffsetAndMetadata(7, "note", 3)
        await group.offsets.commit(
            GroupCommit(identity=NO_MEMBER, offsets={TP: full}), anyio.current_time() + 5
        )
        other = TopicPartition("t", 1)
        assert await group.offsets.committed([TP, other]) == {TP: full, other: None}


# ---------------------------------------------------------------- deadlines


async def test_a_permanent_error_is_raised_at_the_deadline_without_a_hot_loop(
    network: Any,
) -> None:
    async with grouped(network) as group:
        group.kafka.fail(OffsetCommitRequest, E.NOT_COORDINATOR, times=None)
        start = anyio.current_time()
        with pytest.raises(BrokerError) as caught:
            await group.commit(7, timeout=20)
        assert caught.value.code == E.NOT_COORDINATOR
        assert anyio.current_time() - start == pytest.approx(20)
        assert 15 < group.count(OffsetCommitRequest) < 60


async def test_a_commit_is_retried_until_shortly_before_its_deadline(network: Any) -> None:
    """The coordinator was found again 0.9 s before the last commit of a closing member had to be
    done, and that waited for a second until its next attempt: the new owners repeated records."""
    async with grouped(network, options=evolve(OPTIONS, retry_backoff_max=60.0)) as group:
        refused = group.kafka.fail(OffsetCommitRequest, E.NOT_COORDINATOR, times=None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(group.commit, 7, 20.0)
            await anyio.sleep(19)
            refused.stop()
        assert group.committed == 7
        assert group.count(OffsetCommitRequest) < 20


async def test_a_commit_without_a_response_fails_at_its_deadline(network: Any) -> None:
    async with grouped(network) as group:
        group.kafka.fail(OffsetCommitRequest, Swallow(), times=None)
        with pytest.raises(
            TransportError, match=r"did not answer the commit of group 'g' within 2 s"
        ):
            await group.commit(7, timeout=2)


async def test_the_deadline_of_a_commit_includes_the_wait_for_another_commit(network: Any) -> None:
    """Closing must not wait for an auto-commit to a dead coordinator; the next commit covers
    uncommitted offsets."""
    async with grouped(network) as group:
        fault = group.kafka.fail(OffsetCommitRequest, E.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        group.owned.start_at(0)
        group.owned.processed = 8
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(group.commit, 7, 30)
            await anyio.sleep(1)
            for commit in (partial(group.commit, 9), group.commit_processed):
                start = anyio.current_time()
                with pytest.raises(RequestTimeoutError) as caught:
                    await commit(timeout=2)
                assert (
                    str(caught.value) == "the commits before this one were not answered within 2 s"
                )
                assert anyio.current_time() - start == pytest.approx(2)
            fault.stop()
        assert group.committed == 7
        await group.commit_processed(timeout=2)
        assert group.committed == 8


async def test_the_timeout_of_a_commit_includes_the_wait_for_its_turn(network: Any) -> None:
    async with grouped(network) as group:
        group.kafka.fail(OffsetCommitRequest, E.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        ended: list[float] = []

        async def commit(offset: int) -> None:
            start = anyio.current_time()
            with pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
                await group.commit(offset, timeout=10)
            ended.append(anyio.current_time() - start)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit, 1)
            await anyio.sleep(4)
            tasks.start_soon(commit, 2)
        assert ended == [pytest.approx(10), pytest.approx(10)]


async def test_closing_does_not_wait_for_a_commit_in_flight(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The last commit fails, but the close sequence is completed."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0", "1"], partition=0)
        consumer = Consumer(bootstrap_servers="kafka-1", group_id="g", close_timeout=8.0)
        async with anyio.create_task_group() as tasks:

            async def commit() -> None:
                with suppress(KafkaGroupError):
                    await consumer.commit({TP: 1})

            async with consumer:
                await consumer.assign([TP])
                assert [(await consumer.getone()).offset for _ in range(2)] == [0, 1]
                kafka.fail(OffsetCommitRequest, E.COORDINATOR_LOAD_IN_PROGRESS, times=None)
                tasks.start_soon(commit)
                await anyio.sleep(1)
                start = anyio.current_time()
                await consumer.stop()
                assert anyio.current_time() - start == pytest.approx(4)
            tasks.cancel_scope.cancel()
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "the last commit failed: the commits before this one were not answered within 4 s"
    ]


async def test_closing_without_membership_ends_before_the_close_timeout(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A record is in flight for half of the timeout, and the last commit gets no response."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0", "1"], partition=0)
        consumer = Consumer(bootstrap_servers="kafka-1", group_id="g", close_timeout=8.0)
        async with anyio.create_task_group() as tasks:

            async def process() -> None:
                assert [(await consumer.getone()).offset for _ in range(2)] == [0, 1]
                await anyio.sleep(100)

            async with consumer:
                await consumer.assign([TP])
                await consumer.seek_to_beginning()
                tasks.start_soon(process)
                await anyio.sleep(1)
                kafka.fail(OffsetCommitRequest, Swallow(), times=None)
                start = anyio.current_time()
                await consumer.stop()
                assert anyio.current_time() - start == pytest.approx(7.6)
            tasks.cancel_scope.cancel()
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [text.partition(":")[0] for text in warnings] == ["the last commit failed"]


# ---------------------------------------------------------------- order


async def test_commits_are_sent_in_order(network: Any) -> None:
    """The first commit fails; if the second overtook its retry, the offset would move back."""
    async with grouped(network) as group:
        group.kafka.fail(OffsetCommitRequest, E.COORDINATOR_LOAD_IN_PROGRESS, times=2)
        done: list[int] = []

        async def commit(offset: int) -> None:
            await group.commit(offset)
            done.append(offset)
            assert group.committed == offset

        async with anyio.create_task_group() as tasks:
            for offset in range(1, 6):
                tasks.start_soon(commit, offset)
                await anyio.sleep(0.001)
        assert (done, group.committed) == ([1, 2, 3, 4, 5], 5)


@pytest.mark.parametrize("before", [False, True])
async def test_a_commit_with_a_lost_response_is_retried_in_order(
    network: Any, before: bool
) -> None:
    async with grouped(network) as group:
        group.kafka.fail(OffsetCommitRequest, Close(before=before))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(group.commit, 1)
            await anyio.sleep(0.001)
            tasks.start_soon(group.commit, 2)
        # The retry is sent once more, as the first commit may be executed after it.
        assert (group.committed, group.count(OffsetCommitRequest)) == (2, 4)


async def test_a_cancelled_commit_does_not_overtake_the_next(network: Any) -> None:
    async with grouped(network) as group:
        group.kafka.fail(OffsetCommitRequest, Delay(2.0))
        with anyio.move_on_after(1):
            await group.commit(1)
        await group.commit(2)
        assert group.committed == 2


async def test_a_commit_after_a_cancelled_one_is_repeated(network: Any) -> None:
    """The coordinator may execute the cancelled one last, over another connection. A commit is also
    cancelled at its own deadline."""
    async with grouped(network) as group:
        for timeout, limit in ((20.0, 0.5), (0.5, 20.0)):
            sent = group.count(OffsetCommitRequest)
            group.kafka.fail(OffsetCommitRequest, Delay(1.0))
            with anyio.move_on_after(limit), suppress(RequestTimeoutError):
                await group.commit(7, timeout)
            await group.commit(8)
            assert group.count(OffsetCommitRequest) - sent == 3
            await group.commit(9)
            assert group.count(OffsetCommitRequest) - sent == 4


async def test_a_commit_succeeds_if_only_its_repetition_gets_no_response(network: Any) -> None:
    async with grouped(network) as group:
        broken = group.kafka.fail(OffsetCommitRequest, Close(), times=None)
        with pytest.raises(TransportError):
            await group.commit(7, timeout=0.5)
        broken.stop()
        sent = group.count(OffsetCommitRequest)
        lost = group.kafka.fail(
            OffsetCommitRequest,
            Swallow(),
            when=lambda _: group.count(OffsetCommitRequest) > sent + 1,
        )
        await group.commit(8, timeout=0.8)
        assert lost.hits == 1
        assert group.committed == 8


async def test_a_moved_coordinator_is_found(network: Any) -> None:
    async with grouped(network, nodes=2) as group:
        await group.commit(1)
        there = group.kafka.coordinator("g")
        group.kafka.kill(there)
        await group.commit(2)
        assert (group.committed, group.kafka.coordinator("g")) == (2, 3 - there)


async def test_a_response_without_a_partition_does_not_acknowledge_it(network: Any) -> None:
    async with grouped(network) as group:
        await group.offsets._coordinator()
        network.handlers["kafka-1", 9092] = lambda peer: peer.serve(
            {OffsetCommitRequest: lambda _: OffsetCommitResponse(topics=())}
        )
        await reconnect(network)
        with pytest.raises(RemoteProtocolError, match="did not answer for t/0"):
            await group.commit(7, timeout=0.01)


# ---------------------------------------------------------------- reading

FETCH_AGAIN = (
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.UNSTABLE_OFFSET_COMMIT,
    E.NOT_COORDINATOR,
    E.COORDINATOR_NOT_AVAILABLE,
    E.REQUEST_TIMED_OUT,
)


@pytest.mark.parametrize("action", [*FETCH_AGAIN, Close(), Close(before=True), Swallow()], ids=str)
async def test_a_failed_offset_fetch_is_retried_and_never_counts_as_no_offset(
    network: Any, action: Any
) -> None:
    async with grouped(network) as group:
        await group.commit(7)
        group.kafka.fail(OffsetFetchRequest, action, times=3)
        assert await group.offsets.committed([TP]) == {TP: OffsetAndMetadata(7)}
        assert group.count(OffsetFetchRequest) == 4


@pytest.mark.parametrize("code", [E.GROUP_AUTHORIZATION_FAILED, E.UNKNOWN_SERVER_ERROR])
async def test_a_permanent_offset_fetch_error_is_raised(network: Any, code: ErrorCode) -> None:
    async with grouped(network) as group:
        group.kafka.fail(OffsetFetchRequest, code)
        with pytest.raises(BrokerError) as caught:
            await group.offsets.committed([TP])
        assert caught.value.code == code


@pytest.mark.parametrize("code", [E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS])
async def test_the_coordinator_lookup_is_retried_until_it_succeeds(
    network: Any, code: ErrorCode
) -> None:
    async with grouped(network) as group:
        group.kafka.fail(FindCoordinatorRequest, code, times=3)
        assert await group.offsets.committed([TP]) == {TP: None}
        assert group.count(FindCoordinatorRequest) == 4


async def test_an_unauthorized_coordinator_lookup_is_an_error(network: Any) -> None:
    async with grouped(network) as group:
        group.kafka.fail(FindCoordinatorRequest, E.GROUP_AUTHORIZATION_FAILED)
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            await group.offsets.committed([TP])


def found(offset: int, metadata: str | None = "") -> OffsetFetchResponse:
    part = OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, metadata=metadata
    )
    topic = OffsetFetchResponseTopics(name="t", partitions=(part,))
    group = OffsetFetchResponseGroup(group_id="g", topics=(topic,))
    return OffsetFetchResponse(groups=(group,))


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (found(0), OffsetAndMetadata(0)),
        (found(5, None), OffsetAndMetadata(5)),
        (found(-1), None),
        (found(-2), None),
        (found(-(2**63)), None),
    ],
)
async def test_any_negative_offset_is_none(
    network: Any, response: OffsetFetchResponse, expected: OffsetAndMetadata | None
) -> None:
    async with grouped(network) as group:
        await group.offsets._coordinator()
        network.handlers["kafka-1", 9092] = lambda peer: peer.serve(
            {OffsetFetchRequest: lambda _: response}
        )
        await reconnect(network)
        assert await group.offsets.committed([TP]) == {TP: expected}


async def test_a_partition_missing_from_a_response_is_requested_again(network: Any) -> None:
    responses = iter([OffsetFetchResponse(), OffsetFetchResponse(), found(3)])
    coordinator = Coordinator(key="g", node_id=1, host="kafka-1", port=9092)
    async with grouped(network) as group:
        network.handlers["kafka-1", 9092] = lambda peer: peer.serve(
            {
                FindCoordinatorRequest: lambda _: FindCoordinatorResponse(
                    coordinators=(coordinator,)
                ),
                OffsetFetchRequest: lambda _: next(responses),
            }
        )
        await reconnect(network)
        assert await group.offsets.committed([TP]) == {TP: OffsetAndMetadata(3)}


# ---------------------------------------------------------------- topics by id


@asynccontextmanager
async def knowing_t(network: Any) -> AsyncIterator[Group]:
    async with grouped(network) as group:
        group.offsets._cluster.topics.follow(lambda: {"t"})
        await group.offsets._cluster.refresh()
        yield group


async def know_u(group: Group) -> None:
    """Create the topic, and let the metadata have it."""
    group.kafka.create_topic("u", 1)
    group.offsets._cluster.topics.follow(lambda: {"u"})
    await group.offsets._cluster.refresh()


@pytest.mark.parametrize("known", [grouped, knowing_t])
async def test_requests_use_the_topic_ids_of_the_metadata(network: Any, known: Any) -> None:
    async with known(network) as group:
        await group.commit(7)
        assert await group.offsets.committed([TP]) == {TP: OffsetAndMetadata(7)}
        version = 10 if known is knowing_t else 9
        for api in (OffsetCommitRequest, OffsetFetchRequest):
            assert [seen.version for seen in group.kafka.requests(api)] == [version]


async def test_offsets_of_a_deleted_topic_are_not_committed_to_the_recreated_topic(
    network: Any,
) -> None:
    """The commit went by name, and the group would have started in the middle of the new topic."""
    async with knowing_t(network) as group:
        group.kafka.delete_topic("t")
        group.kafka.create_topic("t", 2)
        with pytest.raises(BrokerError) as caught:
            await group.commit(7, timeout=3)
        assert caught.value.code == E.UNKNOWN_TOPIC_ID
        assert group.committed is None


async def test_a_position_in_a_deleted_topic_is_not_committed_with_the_new_topic_id(
    network: Any,
) -> None:
    """The commit used the new topic's id, and was stored."""
    async with knowing_t(network) as group:
        cluster = group.offsets._cluster
        group.owned.topic_id = cluster.metadata.topics["t"].topic_id
        group.kafka.delete_topic("t")
        group.kafka.create_topic("t", 2)
        await cluster.refresh()
        with pytest.raises(BrokerError) as caught:
            await group.commit(7, timeout=3)
        assert caught.value.code == E.UNKNOWN_TOPIC_ID
        assert group.committed is None


async def test_a_position_in_a_deleted_topic_is_not_committed_by_name(network: Any) -> None:
    """The commit went by name, and was stored once the topic was recreated."""
    async with knowing_t(network) as group:
        cluster = group.offsets._cluster
        group.owned.topic_id = cluster.metadata.topics["t"].topic_id
        group.kafka.delete_topic("t")
        await cluster.refresh()
        group.kafka.create_topic("t", 2)
        with pytest.raises(BrokerError) as caught:
            await group.commit(7, timeout=3)
        assert caught.value.code == E.UNKNOWN_TOPIC_ID
        assert group.committed is None


@pytest.mark.parametrize("old", [0, 1])
async def test_positions_in_a_deleted_topic_and_in_its_successor_are_committed_apart(
    network: Any, old: int
) -> None:
    """Both were committed with the id of one of them: the old position was stored as that of the
    new topic, or the new one was not stored."""
    async with knowing_t(network) as group:
        cluster = group.offsets._cluster
        owned = [group.owned, *group.session.delivery.own([TopicPartition("t", 1)])]
        owned[old].topic_id = cluster.metadata.topics["t"].topic_id
        group.kafka.delete_topic("t")
        group.kafka.create_topic("t", 2)
        await cluster.refresh()
        owned[1 - old].topic_id = cluster.metadata.topics["t"].topic_id
        offsets = {o.tp: OffsetAndMetadata(7 if o is owned[old] else 3) for o in owned}
        with pytest.raises(BrokerError) as caught:
            await group.session.committer.commit(offsets, anyio.current_time() + 20)
        assert caught.value == BrokerError(E.UNKNOWN_TOPIC_ID, GONE)
        assert group.kafka.committed("g", "t") == {1 - old: 3}
        assert [o.committed for o in owned] == ([-1, 3] if old == 0 else [3, -1])


GONE = "committing topic 't' of group 'g': it was deleted, or recreated, after it was read"


@pytest.mark.parametrize("way", ["deleted", "recreated", "deleted, by name", "deleted, by pattern"])
async def test_a_commit_of_a_deleted_topic_is_retried_a_few_times(network: Any, way: str) -> None:
    """It was retried until its timeout: 30 s by default, also in a rebalance."""
    async with knowing_t(network) as group:
        cluster = group.offsets._cluster
        if way != "deleted, by name":
            group.owned.topic_id = cluster.metadata.topics["t"].topic_id
        cluster.requests_all_topics = way == "deleted, by pattern"
        group.kafka.delete_topic("t")
        if way == "recreated":
            group.kafka.create_topic("t", 2)
        if way == "deleted, by name":
            await cluster.refresh()
        began = anyio.current_time()
        with pytest.raises(BrokerError) as caught:
            await group.commit(7, timeout=30)
        assert 0.5 < anyio.current_time() - began < 4
        unknown = E.UNKNOWN_TOPIC_OR_PARTITION if "by name" in way else E.UNKNOWN_TOPIC_ID
        assert caught.value == BrokerError(unknown, GONE)
        assert group.count(OffsetCommitRequest) == 5


async def test_the_next_commits_of_a_deleted_topic_are_not_sent(network: Any) -> None:
    """Each commit of a rebalance, before the revocation, after it and before the rejoin, retried
    for more than a second, and the group waited for all of them. Later, an application that
    committed each record caused as many requests."""
    async with knowing_t(network) as group:
        group.owned.topic_id = group.offsets._cluster.metadata.topics["t"].topic_id
        group.kafka.delete_topic("t")
        for _ in range(30):
            with pytest.raises(BrokerError) as caught:
                await group.commit(7)
            assert caught.value == BrokerError(E.UNKNOWN_TOPIC_ID, GONE)
            assert group.count(OffsetCommitRequest) == 5
        assert group.count(MetadataRequest) < 10


async def test_a_commit_with_a_deleted_topic_commits_the_other_topics(network: Any) -> None:
    async with knowing_t(network) as group:
        await know_u(group)
        cluster = group.offsets._cluster
        topic_ids = {t: cluster.metadata.topics[t].topic_id for t in ("t", "u")}
        group.kafka.delete_topic("t")
        for offset in (7, 8):
            offsets = dict.fromkeys((TP, TopicPartition("u", 0)), OffsetAndMetadata(offset))
            with pytest.raises(BrokerError) as caught:
                await group.offsets.commit(
                    GroupCommit(identity=NO_MEMBER, offsets=offsets, topic_ids=topic_ids),
                    anyio.current_time() + 9,
                )
            assert caught.value == BrokerError(E.UNKNOWN_TOPIC_ID, GONE)
            assert group.kafka.committed("g", "u") == {0: offset}
        assert group.count(OffsetCommitRequest) == 6


async def test_commits_are_retried_again_once_a_deleted_topic_is_back(network: Any) -> None:
    async with knowing_t(network) as group:
        group.kafka.fail(OffsetCommitRequest, E.UNKNOWN_TOPIC_OR_PARTITION, times=None)
        group.kafka.delete_topic("t")
        with pytest.raises(BrokerError):
            await group.commit(7)
        group.kafka.create_topic("t", 2)
        await anyio.sleep(1)
        with pytest.raises(BrokerError):
            await group.commit(7, timeout=3)
        assert group.count(OffsetCommitRequest) > 7
        group.kafka.delete_topic("t")
        before = group.count(OffsetCommitRequest)
        with pytest.raises(BrokerError):
            await group.commit(7)
        assert group.count(OffsetCommitRequest) == before + 5


@pytest.mark.parametrize("code", [E.UNKNOWN_TOPIC_ID, E.UNKNOWN_TOPIC_OR_PARTITION])
async def test_a_commit_is_retried_until_the_coordinator_knows_the_topic(
    network: Any, code: ErrorCode
) -> None:
    async with knowing_t(network) as group:
        group.kafka.fail(OffsetCommitRequest, code, times=15)
        await group.commit(7)
        assert group.committed == 7


async def test_a_commit_survives_metadata_that_briefly_omits_the_topic(network: Any) -> None:
    """A lagging broker answers for a topic that is new to it."""
    async with knowing_t(network) as group:
        commits = 0

        def lose_and_find(_: object) -> bool:
            nonlocal commits
            commits += 1
            if commits in (5, 10):
                group.kafka.create_topic("t", 2)
            elif commits == 6:
                group.kafka.delete_topic("t")
            return commits < 10

        group.kafka.fail(
            OffsetCommitRequest, E.UNKNOWN_TOPIC_OR_PARTITION, times=None, when=lose_and_find
        )
        group.kafka.delete_topic("t")
        await group.offsets._cluster.refresh()
        await group.commit(7)
        assert (commits, group.committed) == (10, 7)


async def test_a_commit_does_not_wait_for_metadata_beyond_its_timeout(network: Any) -> None:
    """The last commit of a revocation may have half a second, and the group waits for it."""
    async with knowing_t(network) as group:
        group.owned.topic_id = group.offsets._cluster.metadata.topics["t"].topic_id
        group.kafka.delete_topic("t")
        with pytest.raises(BrokerError):
            await group.commit(7)
        await anyio.sleep(2)
        group.kafka.fail(MetadataRequest, Swallow(), times=None)
        start = anyio.current_time()
        with pytest.raises(BrokerError) as caught:
            await group.commit(7, timeout=0.5)
        assert caught.value == BrokerError(E.UNKNOWN_TOPIC_ID, GONE)
        assert anyio.current_time() - start == pytest.approx(0.5)


async def test_a_commit_is_retried_while_metadata_is_unavailable(network: Any) -> None:
    async with knowing_t(network) as group:
        group.kafka.fail(OffsetCommitRequest, E.UNKNOWN_TOPIC_ID, times=3)
        group.kafka.fail(MetadataRequest, Close(), times=3)
        await group.commit(7)
        assert group.committed == 7


async def test_an_offset_fetch_finds_a_recreated_topic(network: Any) -> None:
    async with knowing_t(network) as group:
        group.kafka.delete_topic("t")
        group.kafka.create_topic("t", 2)
        assert await group.offsets.committed([TP]) == {TP: None}
        assert [seen.version for seen in group.kafka.requests(OffsetFetchRequest)] == [10, 10]


async def test_an_offset_fetch_does_not_depend_on_the_metadata(network: Any) -> None:
    """A failed refresh discarded the offsets of the other partitions, and the coordinator."""
    async with knowing_t(network) as group:
        await know_u(group)
        group.kafka.delete_topic("t")
        fault = group.kafka.fail(MetadataRequest, Close(), times=None)
        unknown: dict[TopicPartition, int] = {}
        other = TopicPartition("u", 0)
        assert (await group.offsets.fetch_once([TP, other], unknown)).offsets == {other: None}
        assert unknown == {TP: 1}
        fault.stop()
        # The closed connection is opened again, and has to tell its cluster.
        refreshed = group.count(MetadataRequest) + 1
        assert (await group.offsets.fetch_once([other], unknown)).offsets == {other: None}
        assert group.count(MetadataRequest) == refreshed, "for a partition of an earlier call"
        assert group.count(FindCoordinatorRequest) == 1


# ---------------------------------------------------------------- retries, and notes


async def test_the_number_and_backoff_of_commit_retries_are_configurable(
    network: Any,
) -> None:
    async with grouped(network) as group:
        group.session.committer.bind(
            GroupOffsets(group.offsets._cluster, "g", max_retries=2, backoff=2.0)
        )
        group.kafka.fail(OffsetCommitRequest, E.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        start = anyio.current_time()
        with pytest.raises(BrokerError) as caught:
            await group.commit(7)
        assert caught.value.code == E.COORDINATOR_LOAD_IN_PROGRESS
        assert group.count(OffsetCommitRequest) == 3
        # Two pauses of 2 s, give or take a fifth; they do not grow beyond the most of all others,
        # or themselves if that is less.
        assert 3.2 <= anyio.current_time() - start <= 4.8


async def test_the_last_commit_retry_gets_all_the_time_that_is_left(network: Any) -> None:
    """It was given up after a third of it, for the sake of a retry that was not allowed."""
    async with grouped(network) as group:
        offsets = GroupOffsets(group.offsets._cluster, "g", max_retries=0)
        group.kafka.fail(OffsetCommitRequest, Delay(3.0))
        commit = GroupCommit(identity=NO_MEMBER, offsets=SEVEN)
        assert await offsets.commit(commit, anyio.current_time() + 6) == SEVEN
        group.kafka.fail(OffsetCommitRequest, Swallow(), times=None)
        with pytest.raises(RequestTimeoutError, match="within 5 s: check its broker"):
            await offsets.commit(commit, anyio.current_time() + 9)


async def test_zero_commit_retries_raise_the_first_error(network: Any) -> None:
    async with grouped(network) as group:
        group.session.committer.bind(GroupOffsets(group.offsets._cluster, "g", max_retries=0))
        group.kafka.fail(OffsetCommitRequest, E.COORDINATOR_LOAD_IN_PROGRESS)
        with pytest.raises(BrokerError):
            await group.commit(7)
        assert (group.committed, group.count(OffsetCommitRequest)) == (None, 1)


async def test_default_commit_metadata_is_added_to_offsets_without_metadata(network: Any) -> None:
    async with grouped(network) as group:
        other = TopicPartition("t", 1)
        group.session.delivery.own([other])
        given = {TP: OffsetAndMetadata(7, leader_epoch=3), other: OffsetAndMetadata(8, "mine")}
        await group.session.committer.commit(given, anyio.current_time() + 5, note="by me")
        assert group.kafka.committed_offsets("g") == {
            TP: OffsetAndMetadata(7, "by me", 3),
            other: OffsetAndMetadata(8, "mine"),
        }


async def test_metadata_beyond_the_limit_is_omitted(network: Any) -> None:
    async with grouped(network) as group:
        group.owned.start_at(0)
        group.owned.processed = 8
        await group.commit_processed(5, note="x" * 5_000)
        assert group.kafka.committed_offsets("g") == {TP: OffsetAndMetadata(8)}
        assert group.count(OffsetCommitRequest) == 2


async def test_metadata_given_by_the_application_is_never_omitted(network: Any) -> None:
    async with grouped(network) as group:
        with pytest.raises(BrokerError) as caught:
            await group.session.committer.commit(
                {TP: OffsetAndMetadata(7, "x" * 5_000)}, anyio.current_time() + 5, note="by me"
            )
        assert caught.value.code == E.OFFSET_METADATA_TOO_LARGE
        assert group.committed is None


async def test_commits_are_counted_in_the_metrics(network: Any) -> None:
    async with grouped(network) as group:
        group.kafka.fail(OffsetCommitRequest, Delay(0.5))
        for offset in (7, 8):
            await group.commit(offset)
        measured = group.session.history.meters.read(anyio.current_time()).commit
        assert (measured.maximum, measured.average) == (0.5, 0.25)


async def test_an_auto_commit_leaves_out_what_is_being_revoked(network: Any) -> None:
    """The revocation commits that itself, when the records in flight are processed. It would have
    to wait for an automatic commit that has its partitions, too."""
    async with grouped(network) as group, anyio.create_task_group() as tasks:
        delivery, other = group.session.delivery, TopicPartition("t", 1)
        delivery.own([other])
        for owned in delivery.owned.values():
            owned.start_at(0)
            owned.advance(5, 0)
        delivery.revoke([TP])
        tasks.start_soon(group.session.committer.auto_commit, lambda _: None)
        await anyio.sleep(30)
        while_revoked = group.kafka.committed("g", "t")
        await group.commit_processed(5.0)
        after = group.kafka.committed("g", "t")
        tasks.cancel_scope.cancel()
    assert (while_revoked, after) == ({1: 5}, {0: 5, 1: 5})


async def test_a_commit_waits_for_a_listener_only_after_a_loss(network: Any) -> None:
    """Partitions that the application has assigned are never lost."""
    async with grouped(network) as group:
        delivery = group.session.delivery
        delivery.owned[TP].start_at(0)
        delivery.owned[TP].advance(5, 0)
        start = anyio.current_time()
        await group.session.committer.commit_delivered(anyio.current_time() + 20)
        assert (group.committed, anyio.current_time() - start < 1) == (5, True)

"""`commit()` after deliveries were lost: on an embedded broker, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup import Batch, CommitFailedError, Consumer, TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.errors import ErrorCode, TransportError
from kafkagroup.testing.embedded import Delay, EmbeddedKafka, Swallow
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest

pytestmark = pytest.mark.anyio

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {},
    "cooperative": {"assignors": [cooperative_sticky_assignor]},
    "consumer": {"group_protocol": "consumer"},
}
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


class Member:
    """A consumer, and the arguments of its callbacks."""

    def __init__(self, protocol: str, *topics: str, **options: Any) -> None:
        self.story: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.consumer = Consumer(
            *(topics or ("t",)),
            bootstrap_servers="kafka-1",
            group_id="g",
            on_partitions_assigned=lambda tps: self.story.append(("assigned", tuple(tps))),
            on_partitions_revoked=lambda tps: self.story.append(("revoked", tuple(tps))),
            **{
                "on_partitions_lost": lambda tps: self.story.append(("lost", tuple(tps))),
                "enable_auto_commit": False,
                "heartbeat_interval_ms": 500,
                **PROTOCOLS[protocol],
                **options,
            },
        )

    def calls_of(self, what: str) -> list[tuple[TopicPartition, ...]]:
        return [tps for name, tps in self.story if name == what and tps]

    async def take_all(self) -> list[TopicPartition]:
        """Poll until records of both partitions are in flight."""
        held: dict[TopicPartition, object] = {}
        while len(held) < 2:
            held = await self.consumer.getmany(timeout=1)
        return sorted(held)


@asynccontextmanager
async def cluster(network: Any, records: int = 9) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": 2, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        for partition in range(2):
            kafka.produce("t", [str(n) for n in range(records)], partition=partition)
        with anyio.fail_after(500):
            yield kafka


def expel(kafka: EmbeddedKafka) -> None:
    """Let the next heartbeat fail with UNKNOWN_MEMBER_ID."""
    kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
    kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await anyio.sleep(0.01)


async def fails(consumer: Consumer) -> CommitFailedError:
    with pytest.raises(CommitFailedError) as caught:
        await consumer.commit()
    return caught.value


# ---------------------------------------------------------------- lost deliveries

Take = Callable[[Consumer], Awaitable[object]]

TAKES: dict[str, Take] = {
    "getone": lambda c: c.getone(),
    "iteration": lambda c: anext(aiter(c)),
    "batches": lambda c: anext(c.batches()),
    "arrow": lambda c: anext(c.batches(arrow=True)),
    "getmany": lambda c: c.getmany(timeout=9),
}


@each_protocol
@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("auto_commit", [True, False], ids=["auto-commit", "own-commit"])
async def test_a_poll_timeout_is_reported_to_the_application_once(
    network: Any, protocol: str, take: str, auto_commit: bool
) -> None:
    """A job that took longer than `max_poll_interval_ms` each time never learned that its commits
    were dropped: all records were redelivered."""
    if take == "arrow":
        pytest.importorskip("pyarrow")
    async with cluster(network) as kafka:
        member = Member(protocol, max_poll_interval_ms=3_000, enable_auto_commit=auto_commit)
        async with member.consumer as consumer:
            taken = await TAKES[take](consumer)
            assert taken
            lost = await member_partitions(taken)
            await anyio.sleep(10)
            assert member.calls_of("lost") == [(T0, T1)]
            error = await fails(consumer)
            assert set(error.partitions) == lost
            assert str(error) == (
                f"commit of {', '.join(map(str, sorted(lost)))} failed: lost before the"
                " delivered records were committed (the application stopped polling); the new owner"
                " continues from the last committed offset"
            )
            await consumer.commit()
            assert kafka.committed("g", "t") == {}
            await consumer.getone()
            await consumer.commit()
            assert 1 in kafka.committed("g", "t").values()


async def member_partitions(taken: Any) -> set[TopicPartition]:
    """Return the partitions in the result of one of the `TAKES`."""
    if isinstance(taken, dict):
        return set(taken)
    if isinstance(taken, Batch) or hasattr(taken, "partition"):
        return {TopicPartition(taken.topic, taken.partition)}
    about = taken.schema.metadata
    return {TopicPartition(about[b"topic"].decode(), int(about[b"partition"]))}


@each_protocol
async def test_callbacks_run_before_the_error_is_raised(network: Any, protocol: str) -> None:
    """A commit that is called before the callback for the loss has returned waits for it."""

    async def slow(partitions: object) -> None:
        await anyio.sleep(5)
        member.story.append(("lost", (T0, T1)))

    async with cluster(network) as kafka:
        member = Member(protocol, on_partitions_lost=slow)
        async with member.consumer as consumer:
            await member.take_all()
            expel(kafka)
            await until(lambda: not consumer.assignment())
            assert member.calls_of("lost") == []
            error = await fails(consumer)
            assert member.calls_of("lost") == [(T0, T1)]
            assert error.partitions == (T0, T1)
            await consumer.commit()


@each_protocol
async def test_a_commit_error_response_is_raised_as_the_loss_after_the_callbacks(
    network: Any, protocol: str
) -> None:
    """The error response was raised before the callbacks, and the loss was raised again later."""
    async with cluster(network) as kafka:
        member = Member(protocol)
        async with member.consumer as consumer:
            await member.take_all()
            kafka.fail(OffsetCommitRequest, ErrorCode.UNKNOWN_MEMBER_ID)
            expel(kafka)
            error = await fails(consumer)
            assert (error.partitions, member.calls_of("lost")) == ((T0, T1), [(T0, T1)])
            await consumer.commit()


async def test_a_commit_error_without_lost_partitions_is_raised_unchanged(network: Any) -> None:
    async with cluster(network) as kafka:
        member = Member("eager")
        async with member.consumer as consumer:
            await member.take_all()
            kafka.fail(OffsetCommitRequest, ErrorCode.ILLEGAL_GENERATION)
            before = anyio.current_time()
            error = await fails(consumer)
            assert "ILLEGAL_GENERATION" in str(error)
            assert error.partitions == ()
            assert 0.9 < anyio.current_time() - before < 1.1  # two heartbeats
            await consumer.commit()
            assert kafka.committed("g", "t") == {0: 9, 1: 9}


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
async def test_owned_partitions_are_committed_before_the_error(network: Any, protocol: str) -> None:
    """A rebalance took one of two partitions, as the application did not poll in time."""
    options = {"rebalance_timeout_ms": 4_000, "session_timeout_ms": 6_000}
    async with cluster(network) as kafka:
        first, second = Member(protocol, **options), Member(protocol, **options)
        async with first.consumer as consumer:
            await first.take_all()
            async with second.consumer as other:
                await until(lambda: other.assignment())
                (lost,) = other.assignment()
                (kept,) = {T0, T1} - {lost}
                await until(lambda: consumer.assignment() == {kept})
                assert first.calls_of("revoked") == [(lost,)]
                error = await fails(consumer)
                assert error.partitions == (lost,)
                assert str(error) == (
                    f"commit of {lost} failed: lost before the delivered records were committed"
                    " (a rebalance revoked it); the new owner continues from the last committed"
                    " offset"
                )
                assert kafka.committed("g", "t") == {kept.partition: 9}
                await consumer.commit()


async def test_records_in_flight_are_lost_in_an_eager_rebalance_that_did_not_wait(
    network: Any,
) -> None:
    """The partition comes back to the same member: the records in flight are lost all the same."""
    async with cluster(network) as kafka:
        member = Member("eager", rebalance_timeout_ms=4_000, session_timeout_ms=6_000)
        async with member.consumer as consumer:
            await member.take_all()
            kafka.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
            await until(lambda: member.calls_of("revoked"))
            await until(consumer.assignment)
            error = await fails(consumer)
            assert error.partitions == (T0, T1)
            await consumer.commit()
            # It comes again, and is committed then.
            assert await member.take_all() == [T0, T1]
            await consumer.commit()
            assert kafka.committed("g", "t") == {0: 9, 1: 9}


async def test_records_processed_and_not_committed_are_lost_too(network: Any) -> None:
    """With a commit every few records, the caller assumes that they cover all records so far."""
    async with cluster(network) as kafka:
        member = Member("consumer")
        async with member.consumer as consumer:
            for _ in range(18):  # all records there are; the last one is in flight
                last = await consumer.getone()
            kafka.produce("t", ["more"], partition=last.partition)
            expel(kafka)
            await until(lambda: member.calls_of("lost"))
            error = await fails(consumer)
            assert error.partitions == (T0, T1)


@pytest.mark.parametrize("waiting", [False, True], ids=["in hand", "passed over"])
async def test_losses_of_processed_records_are_not_reported_with_auto_commit(
    network: Any, waiting: bool
) -> None:
    """A commit by the application an hour later raises no error about records that the auto-commit
    was to cover."""
    async with cluster(network) as kafka:
        member = Member("consumer", enable_auto_commit=True, auto_commit_interval_ms=10**6)
        async with member.consumer as consumer:
            for _ in range(18):
                await consumer.getone()
            if waiting:
                with anyio.move_on_after(1):
                    await consumer.getone()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(consumer.getone)
                    await anyio.sleep(1)
                    expel(kafka)
            else:
                expel(kafka)
                await until(lambda: member.calls_of("lost"))
                await consumer.getone()
            assert member.calls_of("lost") == [(T0, T1)]
            await consumer.commit()
            assert sorted(kafka.committed("g", "t").values()) in ([1], [0, 1])


async def test_with_auto_commit_only_records_in_flight_are_reported(network: Any) -> None:
    async with cluster(network) as kafka:
        member = Member("consumer", enable_auto_commit=True, auto_commit_interval_ms=10**6)
        async with member.consumer as consumer:
            for _ in range(18):
                last = await consumer.getone()
            expel(kafka)
            await until(lambda: member.calls_of("lost"))
            assert (await fails(consumer)).partitions == (TopicPartition("t", last.partition),)


async def test_records_redelivered_and_committed_are_not_lost(network: Any) -> None:
    async with cluster(network, records=1) as kafka:
        member = Member("consumer")
        async with member.consumer as consumer:
            await member.take_all()
            expel(kafka)
            await until(lambda: member.calls_of("lost"))
            await member.take_all()
            await consumer.commit()
            assert kafka.committed("g", "t") == {0: 1, 1: 1}


async def test_a_loss_waits_for_a_commit_that_succeeds(network: Any) -> None:
    """The loss is raised after the owned partitions are committed, and not if that has failed."""
    options = {"rebalance_timeout_ms": 4_000, "session_timeout_ms": 6_000}
    async with cluster(network) as kafka:
        first, second = (Member("cooperative", request_timeout_ms=3_000, **options) for _ in "12")
        async with first.consumer as consumer:
            await first.take_all()
            async with second.consumer as other:
                await until(lambda: other.assignment())
                await until(lambda: len(consumer.assignment()) == 1)
                dead = kafka.fail(OffsetCommitRequest, Swallow(), times=None)
                with pytest.raises(TransportError):
                    await consumer.commit()
                dead.stop()
                assert (await fails(consumer)).partitions == tuple(other.assignment())
                await consumer.commit()


async def test_an_uncommitted_seek_is_lost_like_a_record(network: Any) -> None:
    async with cluster(network) as kafka:
        member = Member("consumer")
        async with member.consumer as consumer:
            await consumer.wait_assignment()
            for tp in (T0, T1):
                assert await consumer.position(tp) == 0
            consumer.seek(T1, 7)
            expel(kafka)
            await until(lambda: member.calls_of("lost"))
            assert (await fails(consumer)).partitions == (T1,)


# ---------------------------------------------------------------- deliveries that are not lost


@each_protocol
async def test_records_committed_before_the_revocation_are_not_lost(
    network: Any, protocol: str
) -> None:
    """They are processed and committed during the drain, by the loop or by the callback."""
    async with cluster(network) as kafka:
        first, second = Member(protocol), Member(protocol)
        async with first.consumer as consumer:
            await first.take_all()
            async with second.consumer as other, anyio.create_task_group() as tasks:
                tasks.start_soon(other.wait_assignment)
                await anyio.sleep(5)
                await consumer.commit()
                await until(lambda: len(consumer.assignment()) == len(other.assignment()) == 1)
                await consumer.commit()
                tasks.cancel_scope.cancel()
            assert kafka.committed("g", "t") == {0: 9, 1: 9}


@pytest.mark.parametrize("late", [False, True], ids=["revoked", "lost"])
async def test_a_partition_without_delivered_records_is_not_lost(network: Any, late: bool) -> None:
    """The position of the reset policy would be committed, but no record was delivered."""
    async with cluster(network) as kafka:
        member = Member("eager")
        async with member.consumer as consumer:
            await consumer.wait_assignment()
            assert await consumer.position(T0) == 0
            if late:
                expel(kafka)
                await until(lambda: member.calls_of("lost"))
            else:
                kafka.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
                await until(lambda: member.calls_of("revoked"))
            await until(consumer.assignment)
            await consumer.commit()


async def unsubscribes(consumer: Consumer) -> None:
    await consumer.unsubscribe()


async def assigns(consumer: Consumer) -> None:
    await consumer.unsubscribe()
    await consumer.assign([TopicPartition("u", 0)])


async def subscribes(consumer: Consumer) -> None:
    await consumer.subscribe("u")
    while consumer.assignment() != {TopicPartition("u", 0)}:
        await anyio.sleep(0.1)


@each_protocol
@pytest.mark.parametrize("change", [unsubscribes, assigns, subscribes])
async def test_partitions_that_the_application_releases_are_not_lost(
    network: Any, protocol: str, change: Callable[[Consumer], Awaitable[None]]
) -> None:
    async with cluster(network):
        member = Member(protocol, rebalance_timeout_ms=4_000, session_timeout_ms=6_000)
        async with member.consumer as consumer:
            await member.take_all()
            await change(consumer)
            await consumer.commit()
            assert member.calls_of("lost") == []


async def test_manually_assigned_partitions_are_never_lost(network: Any) -> None:
    async with cluster(network):
        member = Member("eager", "t")
        async with member.consumer as consumer:
            await consumer.unsubscribe()
            await consumer.assign([T0, T1])
            await member.take_all()
            await consumer.assign([T1])
            await consumer.commit()


async def test_losses_are_reported_with_a_pattern_matched_by_the_coordinator(network: Any) -> None:
    """The client has no list of topics then, and has not unsubscribed."""
    async with cluster(network) as kafka:
        member = Member("consumer")
        member.consumer._subscription = frozenset()
        async with member.consumer as consumer:
            await consumer.subscribe(pattern="t.*")
            await member.take_all()
            expel(kafka)
            await until(lambda: member.calls_of("lost"))
            assert (await fails(consumer)).partitions == (T0, T1)
            await member.take_all()
            await consumer.unsubscribe()
            await consumer.commit()


async def test_a_commit_in_flight_during_the_revocation_may_succeed(
    network: Any,
) -> None:
    """The coordinator stores the commit, and responds after the member has revoked the
    partition."""
    async with cluster(network) as kafka:
        member = Member("cooperative", rebalance_timeout_ms=4_000, session_timeout_ms=6_000)
        async with member.consumer as consumer:
            await member.take_all()
            kafka.fail(OffsetCommitRequest, Delay(10))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.commit)
                await anyio.sleep(0.1)
                expel(kafka)
                await until(lambda: member.calls_of("lost"))
            assert kafka.committed("g", "t") == {0: 9, 1: 9}
            await consumer.commit()


async def test_auto_commit_and_close_do_not_raise_the_loss(network: Any) -> None:
    async with cluster(network) as kafka:
        member = Member(
            "consumer",
            enable_auto_commit=True,
            auto_commit_interval_ms=1_000,
            max_poll_interval_ms=5_000,
        )
        async with member.consumer as consumer:
            await consumer.getone()
            await anyio.sleep(10)
            assert member.calls_of("lost") == [(T0, T1)]
            await consumer.getone()
            await anyio.sleep(2)
            expel(kafka)
            await anyio.sleep(2)
        assert len(member.calls_of("lost")) == 2


async def test_a_commit_in_a_callback_raises_no_loss(
    network: Any,
) -> None:
    """The callback reports the loss as it happened, without waiting for the batch in flight."""
    outcomes: list[str] = []

    async def lost(partitions: object) -> None:
        await member.consumer.commit()
        outcomes.append("returned")

    async with cluster(network) as kafka:
        member = Member("consumer", on_partitions_lost=lost)
        async with member.consumer as consumer:
            await member.take_all()
            expel(kafka)
            await until(lambda: outcomes)
            assert (await fails(consumer)).partitions == (T0, T1)
            await consumer.commit()


async def test_a_commit_of_given_offsets_of_unowned_partitions_is_an_error(network: Any) -> None:
    async with cluster(network) as kafka:
        member = Member("consumer", max_poll_interval_ms=3_000)
        async with member.consumer as consumer:
            await member.take_all()
            await anyio.sleep(10)
            with pytest.raises(
                CommitFailedError, match="not assigned to this consumer: t/0, t/1"
            ) as caught:
                await consumer.commit({T1: 1, T0: 1})
            assert caught.value.partitions == (T0, T1)
            assert (await fails(consumer)).partitions == (T0, T1)
            assert kafka.committed("g", "t") == {}

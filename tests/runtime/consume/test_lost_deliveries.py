"""`commit()` after deliveries were lost: on an embedded broker, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from rebalance_kinds import KINDS

from kafkagroup import Batch, CommitFailedError, Consumer, TopicPartition
from kafkagroup.errors import ErrorCode, TransportError
from kafkagroup.runtime.consume import subscriber
from kafkagroup.testing.embedded import BrokerSettings, Delay, EmbeddedKafka, Swallow
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest

pytestmark = pytest.mark.anyio

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

each_protocol = pytest.mark.parametrize("protocol", KINDS)


class Member:
    """A consumer, and the arguments of its callbacks."""

    def __init__(self, protocol: str, *, topics: tuple[str, ...] = ("t",), **options: Any) -> None:
        self.calls: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.consumer = Consumer(
            *topics,
            bootstrap_servers="kafka-1",
            group_id="g",
            on_partitions_assigned=lambda tps: self.calls.append(("assigned", tuple(tps))),
            on_partitions_revoked=lambda tps: self.calls.append(("revoked", tuple(tps))),
            **{
                "on_partitions_lost": lambda tps: self.calls.append(("lost", tuple(tps))),
                "enable_auto_commit": False,
                "heartbeat_interval_ms": 500,
                **KINDS[protocol],
                **options,
            },
        )

    def calls_of(self, what: str) -> list[tuple[TopicPartition, ...]]:
        """Return the partitions of each call of a callback, without calls for none."""
        return [tps for name, tps in self.calls if name == what and tps]

    async def poll_both(self) -> list[TopicPartition]:
        """Poll until one `getmany` returns records of both partitions; return these."""
        polled: dict[TopicPartition, object] = {}
        while len(polled) < 2:
            polled = await self.consumer.getmany(timeout=1)
        return sorted(polled)


@asynccontextmanager
async def cluster(
    network: Any, records: int = 9, settings: BrokerSettings | None = None
) -> AsyncIterator[EmbeddedKafka]:
    async with (
        network,
        EmbeddedKafka({"t": 2, "u": 1}, listen=False, settings=settings) as kafka,
    ):
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


async def failed_commit(consumer: Consumer) -> CommitFailedError:
    """Call `commit()`, which must fail, and return its error."""
    with pytest.raises(CommitFailedError) as caught:
        await consumer.commit()
    return caught.value


# ---------------------------------------------------------------- lost deliveries

Poll = Callable[[Consumer], Awaitable[object]]

POLLS: dict[str, Poll] = {
    "getone": lambda c: c.getone(),
    "iteration": lambda c: anext(aiter(c)),
    "batches": lambda c: anext(c.batches()),
    "arrow": lambda c: anext(c.batches(arrow=True)),
    "getmany": lambda c: c.getmany(timeout=9),
}


@each_protocol
@pytest.mark.parametrize("poll", POLLS)
@pytest.mark.parametrize("auto_commit", [True, False], ids=["auto-commit", "manual-commit"])
async def test_a_poll_timeout_is_reported_to_the_application_once(
    network: Any, protocol: str, poll: str, auto_commit: bool
) -> None:
    """Without the error, a job that always exceeds `max_poll_interval_ms` would not notice that all
    its records are redelivered."""
    if poll == "arrow":
        pytest.importorskip("pyarrow")
    async with cluster(network) as kafka:
        member = Member(protocol, max_poll_interval_ms=3_000, enable_auto_commit=auto_commit)
        async with member.consumer as consumer:
            polled = await POLLS[poll](consumer)
            assert polled
            lost = partitions_of(polled)
            await anyio.sleep(10)
            assert member.calls_of("lost") == [(T0, T1)]
            error = await failed_commit(consumer)
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


def partitions_of(polled: Any) -> set[TopicPartition]:
    """Return the partitions of what one of the `POLLS` has returned."""
    if isinstance(polled, dict):
        return set(polled)
    if isinstance(polled, Batch) or hasattr(polled, "partition"):
        return {TopicPartition(polled.topic, polled.partition)}
    about = polled.schema.metadata
    return {TopicPartition(about[b"topic"].decode(), int(about[b"partition"]))}


@each_protocol
async def test_callbacks_run_before_the_error_is_raised(network: Any, protocol: str) -> None:
    """A commit that is called before the callback for the loss has returned waits for it."""

    async def slow(partitions: object) -> None:
        await anyio.sleep(5)
        member.calls.append(("lost", (T0, T1)))

    async with cluster(network) as kafka:
        member = Member(protocol, on_partitions_lost=slow)
        async with member.consumer as consumer:
            await member.poll_both()
            expel(kafka)
            await until(lambda: not consumer.assignment())
            assert member.calls_of("lost") == []
            error = await failed_commit(consumer)
            assert member.calls_of("lost") == [(T0, T1)]
            assert error.partitions == (T0, T1)
            await consumer.commit()


@each_protocol
async def test_a_commit_error_response_is_raised_as_the_loss_after_the_callbacks(
    network: Any, protocol: str
) -> None:
    """The coordinator refuses the commit before the member learns of its removal: the error
    response is not raised, and the loss is raised once."""
    async with cluster(network) as kafka:
        member = Member(protocol)
        async with member.consumer as consumer:
            await member.poll_both()
            kafka.fail(OffsetCommitRequest, ErrorCode.UNKNOWN_MEMBER_ID)
            expel(kafka)
            error = await failed_commit(consumer)
            assert (error.partitions, member.calls_of("lost")) == ((T0, T1), [(T0, T1)])
            await consumer.commit()


async def test_a_loss_is_waited_for_as_long_as_the_brokers_heartbeat_interval(
    network: Any,
) -> None:
    """KIP-848: a member follows a broker that requests heartbeats less often than by default."""
    settings = BrokerSettings(group_consumer_heartbeat_interval=8.0)
    async with cluster(network, settings=settings) as kafka:
        member = Member("consumer")
        async with member.consumer as consumer:
            await member.poll_both()
            await anyio.sleep(60)
            kafka.fail(OffsetCommitRequest, ErrorCode.UNKNOWN_MEMBER_ID)
            expel(kafka)
            error = await failed_commit(consumer)
            assert (error.partitions, member.calls_of("lost")) == ((T0, T1), [(T0, T1)])
            await consumer.commit()


async def test_a_commit_error_without_lost_partitions_is_raised_unchanged(network: Any) -> None:
    async with cluster(network) as kafka:
        member = Member("eager")
        async with member.consumer as consumer:
            await member.poll_both()
            kafka.fail(OffsetCommitRequest, ErrorCode.ILLEGAL_GENERATION)
            before = anyio.current_time()
            error = await failed_commit(consumer)
            assert "ILLEGAL_GENERATION" in str(error)
            assert error.partitions == ()
            # Two heartbeat intervals, to learn whether the coordinator has removed the member.
            assert 0.9 < anyio.current_time() - before < 1.1
            await consumer.commit()
            assert kafka.committed("g", "t") == {0: 9, 1: 9}


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
async def test_owned_partitions_are_committed_before_the_error(network: Any, protocol: str) -> None:
    """A rebalance took one of two partitions, as the application did not poll in time."""
    options = {"rebalance_timeout_ms": 4_000, "session_timeout_ms": 6_000}
    async with cluster(network) as kafka:
        first, second = Member(protocol, **options), Member(protocol, **options)
        async with first.consumer as consumer:
            await first.poll_both()
            async with second.consumer as other:
                await until(lambda: other.assignment())
                (lost,) = other.assignment()
                (kept,) = {T0, T1} - {lost}
                await until(lambda: consumer.assignment() == {kept})
                assert first.calls_of("revoked") == [(lost,)]
                error = await failed_commit(consumer)
                assert error.partitions == (lost,)
                assert str(error) == (
                    f"commit of {lost} failed: lost before the delivered records were committed"
                    " (a rebalance revoked it); the new owner continues from the last committed"
                    " offset"
                )
                assert kafka.committed("g", "t") == {kept.partition: 9}
                await consumer.commit()


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
async def test_the_time_to_decode_an_assignment_counts_for_its_revocation(
    network: Any, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """A busy machine took seconds to start the thread, and a revocation with a record in flight
    took longer than the rebalance timeout."""
    options = {"rebalance_timeout_ms": 4_000, "session_timeout_ms": 6_000}
    began: list[float] = []

    async def decode_slowly(_: object, job: Callable[[], Any], __: int) -> Any:
        began.append(anyio.current_time())
        await anyio.sleep(2.5)
        return job()

    async with cluster(network):
        first, second = Member(protocol, **options), Member(protocol, **options)
        async with first.consumer:
            await first.poll_both()
            monkeypatch.setattr(subscriber, "run_job", decode_slowly)
            async with second.consumer:
                await until(lambda: first.calls_of("revoked"))
                assert 2.9 < anyio.current_time() - began[0] < 3.2


async def test_records_in_flight_at_the_deadline_of_an_eager_revocation_are_lost(
    network: Any,
) -> None:
    """Although the same member gets the partitions again."""
    async with cluster(network) as kafka:
        member = Member("eager", rebalance_timeout_ms=4_000, session_timeout_ms=6_000)
        async with member.consumer as consumer:
            await member.poll_both()
            kafka.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
            await until(lambda: member.calls_of("revoked"))
            await until(consumer.assignment)
            error = await failed_commit(consumer)
            assert error.partitions == (T0, T1)
            await consumer.commit()
            # The records are delivered again, and committed.
            assert await member.poll_both() == [T0, T1]
            await consumer.commit()
            assert kafka.committed("g", "t") == {0: 9, 1: 9}


async def test_records_processed_and_not_committed_are_lost_too(network: Any) -> None:
    """An application that commits after every few records assumes that each commit covers all
    earlier records."""
    async with cluster(network) as kafka:
        member = Member("consumer")
        async with member.consumer as consumer:
            for _ in range(18):  # all records there are; the last one is in flight
                await consumer.getone()
            expel(kafka)
            await until(lambda: member.calls_of("lost"))
            error = await failed_commit(consumer)
            assert error.partitions == (T0, T1)


@pytest.mark.parametrize("is_polling", [False, True], ids=["in-flight", "polling"])
async def test_losses_of_processed_records_are_not_reported_with_auto_commit(
    network: Any, is_polling: bool
) -> None:
    """A commit by the application an hour later raises no error about records that the auto-commit
    was to cover."""
    async with cluster(network) as kafka:
        member = Member("consumer", enable_auto_commit=True, auto_commit_interval_ms=10**6)
        async with member.consumer as consumer:
            for _ in range(18):
                await consumer.getone()
            if is_polling:
                with anyio.move_on_after(1):  # this poll marks the last record as processed
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
            assert (await failed_commit(consumer)).partitions == (
                TopicPartition("t", last.partition),
            )


async def test_records_redelivered_and_committed_are_not_lost(network: Any) -> None:
    async with cluster(network, records=1) as kafka:
        member = Member("consumer")
        async with member.consumer as consumer:
            await member.poll_both()
            expel(kafka)
            await until(lambda: member.calls_of("lost"))
            await member.poll_both()
            await consumer.commit()
            assert kafka.committed("g", "t") == {0: 1, 1: 1}


async def test_a_loss_waits_for_a_commit_that_succeeds(network: Any) -> None:
    """`commit()` first commits the owned partitions. If this fails, it raises that error, and the
    next call raises the loss."""
    options = {"rebalance_timeout_ms": 4_000, "session_timeout_ms": 6_000}
    async with cluster(network) as kafka:
        first, second = (
            Member("cooperative", request_timeout_ms=3_000, **options) for _ in range(2)
        )
        async with first.consumer as consumer:
            await first.poll_both()
            async with second.consumer as other:
                await until(lambda: other.assignment())
                await until(lambda: len(consumer.assignment()) == 1)
                unanswered = kafka.fail(OffsetCommitRequest, Swallow(), times=None)
                with pytest.raises(TransportError):
                    await consumer.commit()
                unanswered.stop()
                assert (await failed_commit(consumer)).partitions == tuple(other.assignment())
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
            assert (await failed_commit(consumer)).partitions == (T1,)


# ---------------------------------------------------------------- deliveries that are not lost


@each_protocol
async def test_records_committed_before_the_revocation_are_not_lost(
    network: Any, protocol: str
) -> None:
    """The application commits the records while the revocation waits for them."""
    async with cluster(network) as kafka:
        first, second = Member(protocol), Member(protocol)
        async with first.consumer as consumer:
            await first.poll_both()
            async with second.consumer as other, anyio.create_task_group() as tasks:
                tasks.start_soon(other.wait_assignment)
                await anyio.sleep(5)
                await consumer.commit()
                await until(lambda: len(consumer.assignment()) == len(other.assignment()) == 1)
                await consumer.commit()
                tasks.cancel_scope.cancel()
            assert kafka.committed("g", "t") == {0: 9, 1: 9}


@pytest.mark.parametrize("is_lost", [False, True], ids=["revoked", "lost"])
async def test_a_partition_without_delivered_records_is_not_lost(
    network: Any, is_lost: bool
) -> None:
    """Only a position from the reset policy is not committed."""
    async with cluster(network) as kafka:
        member = Member("eager")
        async with member.consumer as consumer:
            await consumer.wait_assignment()
            assert await consumer.position(T0) == 0
            if is_lost:
                expel(kafka)
                await until(lambda: member.calls_of("lost"))
            else:
                kafka.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
                await until(lambda: member.calls_of("revoked"))
            await until(consumer.assignment)
            await consumer.commit()


async def unsubscribe(consumer: Consumer) -> None:
    await consumer.unsubscribe()


async def assign_manually(consumer: Consumer) -> None:
    await consumer.unsubscribe()
    await consumer.assign([TopicPartition("u", 0)])


async def subscribe_elsewhere(consumer: Consumer) -> None:
    await consumer.subscribe("u")
    while consumer.assignment() != {TopicPartition("u", 0)}:
        await anyio.sleep(0.1)


@each_protocol
@pytest.mark.parametrize("change", [unsubscribe, assign_manually, subscribe_elsewhere])
async def test_partitions_that_the_application_releases_are_not_lost(
    network: Any, protocol: str, change: Callable[[Consumer], Awaitable[None]]
) -> None:
    async with cluster(network):
        member = Member(protocol, rebalance_timeout_ms=4_000, session_timeout_ms=6_000)
        async with member.consumer as consumer:
            await member.poll_both()
            await change(consumer)
            await consumer.commit()
            assert member.calls_of("lost") == []


async def test_manually_assigned_partitions_are_never_lost(network: Any) -> None:
    async with cluster(network):
        member = Member("eager")
        async with member.consumer as consumer:
            await consumer.unsubscribe()
            await consumer.assign([T0, T1])
            await member.poll_both()
            await consumer.assign([T1])
            await consumer.commit()


async def test_losses_are_reported_with_a_pattern_matched_by_the_coordinator(network: Any) -> None:
    """The client has no topic names then to compare partitions with."""
    async with cluster(network) as kafka:
        member = Member("consumer", topics=())
        async with member.consumer as consumer:
            await consumer.subscribe(pattern="t.*")
            await member.poll_both()
            expel(kafka)
            await until(lambda: member.calls_of("lost"))
            assert (await failed_commit(consumer)).partitions == (T0, T1)
            await member.poll_both()
            await consumer.unsubscribe()
            await consumer.commit()


async def test_a_commit_in_flight_when_partitions_are_lost_may_succeed(network: Any) -> None:
    """The coordinator stores the commit, and responds after the member has lost the partitions."""
    async with cluster(network) as kafka:
        member = Member("cooperative", rebalance_timeout_ms=4_000, session_timeout_ms=6_000)
        async with member.consumer as consumer:
            await member.poll_both()
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
    """A commit in `on_partitions_lost` raises nothing; the application's next commit raises the
    loss."""
    outcomes: list[str] = []

    async def lost(partitions: object) -> None:
        await member.consumer.commit()
        outcomes.append("returned")

    async with cluster(network) as kafka:
        member = Member("consumer", on_partitions_lost=lost)
        async with member.consumer as consumer:
            await member.poll_both()
            expel(kafka)
            await until(lambda: outcomes)
            assert (await failed_commit(consumer)).partitions == (T0, T1)
            await consumer.commit()


async def test_a_commit_of_given_offsets_of_unowned_partitions_is_an_error(network: Any) -> None:
    async with cluster(network) as kafka:
        member = Member("consumer", max_poll_interval_ms=3_000)
        async with member.consumer as consumer:
            await member.poll_both()
            await anyio.sleep(10)
            with pytest.raises(
                CommitFailedError, match="not assigned to this consumer: t/0, t/1"
            ) as caught:
                await consumer.commit({T1: 1, T0: 1})
            assert caught.value.partitions == (T0, T1)
            assert (await failed_commit(consumer)).partitions == (T0, T1)
            assert kafka.committed("g", "t") == {}

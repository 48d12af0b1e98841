"""`async with producer.transaction()`: all of it is visible, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable

import anyio
import pytest
from conftest import VirtualLoop
from memory_network import Network
from runtime.produce.logs import SERVERS, cluster, values

from kafkagroup import Consumer, Producer
from kafkagroup.errors import (
    BrokerError,
    ClosedError,
    CommitFailedError,
    ConfigurationError,
    ErrorCode,
    IllegalStateError,
    NotWrittenError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
)
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings, Close, Delay, Late, Swallow
from kafkagroup.transaction import Transaction
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.metadata import ApiVersionsRequest
from kafkagroup.wire.messages.produce import ProduceRequest
from kafkagroup.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)
TRANSACTIONAL = SERVERS | {"transactional_id": "tx"}


@pytest.fixture(params=[0, 1, 2], ids="TV{}".format)
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


async def visible(kafka: EmbeddedKafka, topic: str = "t") -> list[bytes | None]:
    """Return what a read_committed consumer sees, by partition and offset."""
    found: list[bytes | None] = []
    async with Consumer(
        **SERVERS, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        for partition in range(kafka.partitions(topic)):
            tp = TopicPartition(topic, partition)
            await consumer.assign([tp])
            while await consumer.position(tp) < kafka.stable_end(topic, partition):
                for records in (await consumer.getmany(timeout=0.1)).values():
                    found += [record.value for record in records]
    return found


async def test_a_block_commits_at_its_end(version: int) -> None:
    async with cluster(topics={"t": 2}) as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL) as producer:
            for n in range(3):
                async with producer.transaction() as tx:
                    await tx.send("t", b"a%d" % n, partition=0)
                    tx.send_nowait("t", b"b%d" % n, partition=1)
                    assert len(await visible(kafka)) == 2 * n
            async with producer.transaction():
                pass
        assert await visible(kafka) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]
        assert kafka.stable_end("t", 0) == kafka.log_end("t", 0)


async def test_one_other_epoch_is_enough_for_a_partition_that_gets_no_more_records(
    version: int,
) -> None:
    async with cluster(topics={"t": 2}) as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL) as producer:
            async with producer.transaction() as tx:
                await tx.send("t", b"first", partition=0)
            kafka.fail(
                ProduceRequest,
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                partition=TopicPartition("t", 0),
            )
            with pytest.raises(NotWrittenError):
                async with producer.transaction() as tx:
                    await tx.send("t", b"refused", partition=0)
            before = len(kafka.requests(InitProducerIdRequest))
            for _ in range(3):
                async with producer.transaction() as tx:
                    await tx.send("t", b"other", partition=1)
            assert len(kafka.requests(InitProducerIdRequest)) - before == (version < 2)


async def test_a_block_that_raises_aborts(version: int) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL) as producer:
            for n in range(6):
                try:
                    async with producer.transaction() as tx:
                        await tx.send("t", b"%d" % n)
                        tx.send_nowait("t", b"unread")
                        if n % 2:
                            raise LookupError
                except LookupError:
                    assert n % 2
        assert await visible(kafka) == [b"0", b"unread", b"2", b"unread", b"4", b"unread"]
        assert kafka.stable_end("t", 0) == kafka.log_end("t", 0)


async def test_a_cancelled_block_aborts(version: int) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL) as producer:
            with anyio.move_on_after(1) as scope:
                async with producer.transaction() as tx:
                    await tx.send("t", b"cancelled")
                    await anyio.sleep_forever()
            assert scope.cancelled_caught
            async with producer.transaction() as tx:
                await tx.send("t", b"next")
        assert await visible(kafka) == [b"next"]


async def test_a_failed_record_that_nobody_awaits_aborts(version: int) -> None:
    """librdkafka#3325."""
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL, batch_size=1) as producer:
            async with producer.transaction() as tx:
                await tx.send("t", b"first")
            kafka.fail(ProduceRequest, ErrorCode.INVALID_RECORD, partition=TP)
            with pytest.raises(TransactionAbortedError, match="INVALID_RECORD"):
                async with producer.transaction() as tx:
                    for n in range(10):
                        tx.send_nowait("t", b"%d" % n)
            async with producer.transaction() as tx:
                await tx.send("t", b"last")
        assert await visible(kafka) == [b"first", b"last"]


async def test_going_on_after_a_failure_does_not_commit(version: int) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL) as producer:
            kafka.fail(ProduceRequest, ErrorCode.INVALID_RECORD, partition=TP)
            with pytest.raises(TransactionAbortedError):
                async with producer.transaction() as tx:
                    with pytest.raises(NotWrittenError):
                        await tx.send("t", b"refused")
                    with pytest.raises(TransactionAbortedError):
                        await tx.send("t", b"later")
        assert await visible(kafka) == []
        assert kafka.transaction_state("tx") in ("CompleteAbort", "Empty")


async def test_a_refused_record_needs_no_other_epoch() -> None:
    """Brokers before 2.5 give none to a producer that is running (KIP-360)."""
    async with cluster(topics={"t": 2}) as kafka:
        kafka.set_transaction_version(0)
        async with Producer(**TRANSACTIONAL, batch_size=1) as producer:
            async with producer.transaction() as tx:
                await tx.send("t", b"first", partition=0)
            for n in range(3):
                kafka.fail(ProduceRequest, ErrorCode.INVALID_RECORD, partition=TP)
                with pytest.raises(TransactionAbortedError, match="INVALID_RECORD"):
                    async with producer.transaction() as tx:
                        for partition in (1, 0, 0, 0):
                            tx.send_nowait("t", b"aborted", partition=partition)
                async with producer.transaction() as tx:
                    tx.send_nowait("t", b"%d" % n, partition=0)
                    tx.send_nowait("t", b"%d" % n, partition=1)
        assert len(kafka.requests(InitProducerIdRequest)) == 1
        assert await visible(kafka) == [b"first", b"0", b"1", b"2", b"0", b"1", b"2"]


@pytest.mark.parametrize("age", [1_000, 300_000], ids=["noticed", "unnoticed"])
async def test_a_topic_that_is_created_again_is_written_to(version: int, age: int) -> None:
    """Its log begins without numbers."""
    async with cluster(topics={"t": 1, "other": 1}) as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL, metadata_max_age_ms=age) as producer:
            for n in range(6):
                async with producer.transaction() as tx:
                    await tx.send("other", b"%d" % n)
                    if n == 4 and age == 1_000:
                        await tx.send("t", b"deleted")
                    if n % 2 == 0:
                        kafka.delete_topic("t")
                        kafka.create_topic("t", 1)
                        await anyio.sleep(5)
                    await tx.send("t", b"%d" % n)
        assert await visible(kafka) == [b"4", b"5"]
        assert await visible(kafka, "other") == [b"%d" % n for n in range(6)]


async def test_a_log_that_does_not_know_the_producer_is_written_to() -> None:
    """Brokers before 2.5 refuse a first number other than 0. Topics have no ids before 2.8."""
    async with cluster() as kafka:
        kafka.set_transaction_version(0)
        async with Producer(**TRANSACTIONAL) as producer:
            async with producer.transaction() as tx:
                await tx.send("t", b"deleted")
            kafka.delete_topic("t")
            kafka.create_topic("t", 1)
            kafka.fail(ProduceRequest, ErrorCode.UNKNOWN_PRODUCER_ID, partition=TP)
            async with producer.transaction() as tx:
                await tx.send("t", b"0")
                await tx.send("t", b"1")
        (state,) = kafka.producers("t", 0)
        assert state.last_sequence == 1
        assert len(kafka.requests(InitProducerIdRequest)) == 1
        assert await visible(kafka) == [b"0", b"1"]


async def test_an_expired_record_aborts_and_the_next_transaction_works(version: int) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(
            **TRANSACTIONAL, delivery_timeout_ms=2_000, request_timeout_ms=1_000
        ) as producer:
            async with producer.transaction() as tx:
                await tx.send("t", b"first")
            lost = kafka.fail(ProduceRequest, Close(), times=None)
            with pytest.raises(TransactionAbortedError, match="within"):
                async with producer.transaction() as tx:
                    tx.send_nowait("t", b"expired")
            lost.stop()
            for n in range(3):
                async with producer.transaction() as tx:
                    await tx.send("t", b"%d" % n)
        assert await visible(kafka) == [b"first", b"0", b"1", b"2"]


async def test_what_is_not_acknowledged_in_time_is_aborted_before_the_coordinator_does(
    version: int,
) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL) as producer:
            away = kafka.fail(ProduceRequest, ErrorCode.NOT_ENOUGH_REPLICAS, times=None)
            began = anyio.current_time()
            with pytest.raises(TransactionAbortedError, match="not acknowledged within 48 s"):
                async with producer.transaction() as tx:
                    tx.send_nowait("t", b"aborted")
            assert 48 <= anyio.current_time() - began < 50
            away.stop()
            async with producer.transaction() as tx:
                await tx.send("t", b"written")
        assert await visible(kafka) == [b"written"]


async def test_an_awaited_record_fails_before_the_coordinator_aborts(version: int) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL) as producer:
            for n, action in enumerate((ErrorCode.NOT_ENOUGH_REPLICAS, Swallow())):
                async with producer.transaction() as tx:
                    await tx.send("t", b"%d" % n)
                away = kafka.fail(ProduceRequest, action, times=None)
                began = anyio.current_time()
                with pytest.raises(NotWrittenError, match="not acknowledged within 48 s"):
                    async with producer.transaction() as tx:
                        await tx.send("t", b"aborted")
                assert 48 <= anyio.current_time() - began < 55
                away.stop()
        assert await visible(kafka) == [b"0", b"1"]


async def test_a_block_that_is_late_waits_for_no_record(version: int) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL, transaction_timeout_ms=10_000) as producer:
            async with producer.transaction() as tx:
                await anyio.sleep(8.1)
                await tx.send("t", b"in time")
            began = anyio.current_time()
            with pytest.raises(NotWrittenError, match="within 8 s"):
                async with producer.transaction() as tx:
                    await anyio.sleep(8.1)
                    kafka.fail(ProduceRequest, Swallow())
                    await tx.send("t", b"aborted")
            assert anyio.current_time() - began < 10
            async with producer.transaction() as tx:
                await tx.send("t", b"next")
        assert await visible(kafka) == [b"in time", b"next"]


async def test_a_leader_that_does_not_respond_does_not_delay_the_abort(version: int) -> None:
    async with cluster(2) as kafka:
        kafka.set_transaction_version(version)
        kafka.move_leader("t", 0, 2)
        kafka.move_coordinator("tx", 1)
        async with Producer(**TRANSACTIONAL, transaction_timeout_ms=10_000) as producer:
            kafka.fail(ProduceRequest, Swallow())
            with pytest.raises(TransactionAbortedError, match="not acknowledged within 8 s"):
                async with producer.transaction() as tx:
                    tx.send_nowait("t", b"aborted")
            assert anyio.current_time() < 9.5
            assert kafka.transaction_state("tx") == "CompleteAbort"
            async with producer.transaction() as tx:
                await tx.send("t", b"next")
            expected = 2 if version < 2 else 1
            assert len(kafka.requests(InitProducerIdRequest)) == expected
        assert await visible(kafka) == [b"next"]
        assert kafka.stable_end("t", 0) == kafka.log_end("t", 0)


async def test_a_record_that_waits_for_room_fails_with_its_transaction(version: int) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        options = TRANSACTIONAL | {"transaction_timeout_ms": 10_000, "buffer_memory": 2_000}
        async with Producer(**options) as producer:  # type: ignore[arg-type]
            kafka.fail(ProduceRequest, Swallow())
            with pytest.raises(TransactionAbortedError, match="not acknowledged within 8 s"):
                async with producer.transaction() as tx:
                    for _ in range(2):
                        future = tx.send_nowait("t", bytes(700))
                        await anyio.sleep(0.1)
                    await tx.send("t", bytes(1_000))
            assert future.done()
            assert anyio.current_time() < 10


async def test_a_record_that_is_serialized_too_slowly_is_in_no_other_transaction(
    version: int,
) -> None:
    async def encode(value: bytes) -> bytes:
        await anyio.sleep(1.0 if value == b"slow" else 0.0)
        return value

    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with (
            Producer(**TRANSACTIONAL, value_serializer=encode) as producer,
            anyio.create_task_group() as tasks,
        ):

            async def send_late(records: Transaction[bytes, bytes]) -> None:
                with pytest.raises(IllegalStateError, match="has ended"):
                    await records.send("t", b"slow")

            with pytest.raises(LookupError):
                async with producer.transaction() as tx:
                    tasks.start_soon(send_late, tx)
                    await tx.send("t", b"aborted")
                    raise LookupError
            async with producer.transaction() as tx:
                await tx.send("t", b"second")
                await anyio.sleep(2)
        assert await visible(kafka) == [b"second"]


async def test_what_an_abort_leaves_in_flight_is_not_written_in_the_next(version: int) -> None:
    network = Network()
    async with cluster(2, network=network) as kafka:
        kafka.set_transaction_version(version)
        kafka.move_coordinator("tx", 1)
        kafka.move_leader("t", 0, 2)
        async with Producer(**TRANSACTIONAL, request_timeout_ms=2_000) as producer:
            # A connection that is being opened takes as long as a request, and the request follows.
            leader = network.handlers["kafka-2", 9092]
            network.handlers["kafka-2", 9092] = None
            with pytest.raises(LookupError):
                async with producer.transaction() as tx:
                    tx.send_nowait("t", b"aborted")
                    await anyio.sleep(1)
                    network.handlers["kafka-2", 9092] = leader
                    kafka.fail(ProduceRequest, Delay(1.9))
                    raise LookupError
            for n in range(3):
                async with producer.transaction() as tx:
                    await tx.send("t", b"%d" % n)
        assert await visible(kafka) == [b"0", b"1", b"2"]


async def test_a_lost_response_to_the_end_is_repeated(version: int) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL, request_timeout_ms=3_000) as producer:
            for action in (Close(), Close(before=True), Late(0.5)):
                kafka.fail(EndTxnRequest, action)
                async with producer.transaction() as tx:
                    await tx.send("t", b"committed")
                with pytest.raises(LookupError):
                    async with producer.transaction() as tx:
                        await tx.send("t", b"aborted")
                        await anyio.sleep(1)
                        raise LookupError
        assert await visible(kafka) == [b"committed"] * 3


async def test_an_unknown_outcome_is_said_and_does_not_mix(version: int) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(
            **TRANSACTIONAL, delivery_timeout_ms=2_000, request_timeout_ms=1_000
        ) as producer:
            lost = kafka.fail(EndTxnRequest, Swallow(), times=None)
            with pytest.raises(TransactionOutcomeUnknownError):
                async with producer.transaction() as tx:
                    await tx.send("t", b"unknown")
            lost.stop()
            with pytest.raises(LookupError):
                async with producer.transaction() as tx:
                    await tx.send("t", b"aborted")
                    raise LookupError
        assert await visible(kafka) == [b"unknown"]


async def test_a_later_producer_fences_the_earlier_one(version: int) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL) as first, Producer(**TRANSACTIONAL) as second:
            with pytest.raises((ProducerFencedError, TransactionAbortedError)):
                async with first.transaction() as tx:
                    tx.send_nowait("t", b"zombie")
            async with second.transaction() as tx:
                await tx.send("t", b"owner")
        assert await visible(kafka) == [b"owner"]


async def test_a_fenced_producer_is_not_healthy(version: int) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL) as first, Producer(**TRANSACTIONAL):
            assert first.health()
            with pytest.raises((ProducerFencedError, TransactionAbortedError)):
                async with first.transaction() as tx:
                    tx.send_nowait("t", b"zombie")
            with pytest.raises(ProducerFencedError) as fenced:
                async with first.transaction():
                    pass
            assert str(first.health()).startswith(f"failed: {fenced.value}")


@pytest.mark.parametrize("code", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS])
async def test_a_record_waits_only_briefly_for_the_markers_of_the_last_transaction(
    code: ErrorCode,
) -> None:
    async with cluster() as kafka, Producer(**TRANSACTIONAL) as producer:
        kafka.fail(ProduceRequest, code, partition=TP)
        began = anyio.current_time()
        async with producer.transaction() as tx:
            await tx.send("t", b"")
        assert anyio.current_time() - began < 0.05  # the usual back-off begins with 0.1 s


async def test_a_refused_partition_aborts_what_was_added() -> None:
    """franz-go#1348."""
    async with cluster(topics={"t": 2}) as kafka:
        kafka.set_transaction_version(1)
        async with Producer(**TRANSACTIONAL) as producer:
            with pytest.raises(NotWrittenError, match="not allowed"):
                async with producer.transaction() as tx:
                    await tx.send("t", b"a", partition=0)
                    kafka.fail(AddPartitionsToTxnRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                    await tx.send("t", b"b", partition=1)
        assert kafka.transaction_state("tx") in ("CompleteAbort", "Empty")
        assert kafka.stable_end("t", 0) == kafka.log_end("t", 0)


async def test_offsets_stand_and_fall_with_the_records(version: int, protocol: str) -> None:
    async with cluster(topics={"t": 1, "in": 1}) as kafka:
        kafka.set_transaction_version(version)
        kafka.produce("in", [b"%d" % n for n in range(6)])
        async with (
            Consumer(
                "in",
                **SERVERS,
                group_id="g",
                group_protocol=protocol,  # type: ignore[arg-type]
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
            ) as consumer,
            Producer(**TRANSACTIONAL) as producer,
        ):
            for n in range(4):
                record = await consumer.getone()
                try:
                    async with producer.transaction() as tx:
                        tx.send_nowait("t", record.value)
                        await tx.send_offsets(consumer)
                        if n == 3:
                            raise LookupError
                except LookupError:
                    pass
            assert kafka.committed("g", "in") == {0: 3}
        assert await visible(kafka) == [b"0", b"1", b"2"]


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_member_that_was_fenced_cannot_commit(version: int, protocol: str) -> None:
    async with cluster(topics={"t": 1, "in": 1}) as kafka:
        kafka.set_transaction_version(version)
        kafka.produce("in", [b"0"])
        async with (
            Consumer(
                "in",
                **SERVERS,
                group_id="g",
                group_protocol=protocol,  # type: ignore[arg-type]
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer,
            Producer(**TRANSACTIONAL) as producer,
        ):
            await consumer.getone()
            known = consumer.group_metadata
            consumer.group_metadata = lambda: _evolved(known())  # type: ignore[method-assign]
            with pytest.raises(CommitFailedError):
                async with producer.transaction() as tx:
                    tx.send_nowait("t", b"zombie")
                    await tx.send_offsets(consumer)
            assert kafka.committed("g", "in") in ({}, {0: -1})
        assert await visible(kafka) == []


def _evolved(found):  # type: ignore[no-untyped-def]
    import attrs

    return attrs.evolve(found, generation_id=found.generation_id + 5)


async def test_wrong_use_is_named() -> None:
    async with cluster(topics={"t": 1, "in": 1}) as kafka:
        kafka.produce("in", [b"0"])
        with pytest.raises(ConfigurationError, match="enable_idempotence"):
            Producer(**TRANSACTIONAL, enable_idempotence=False)
        async with Producer(**SERVERS) as plain:
            with pytest.raises(ConfigurationError, match="transactional_id"):
                plain.transaction()
        async with Producer(**TRANSACTIONAL) as producer:
            with pytest.raises(IllegalStateError, match="writes in transactions"):
                await producer.send("t", b"")
            with pytest.raises(IllegalStateError, match="writes in transactions"):
                producer.send_nowait("t", b"")
            async with producer.transaction() as tx:
                with pytest.raises(IllegalStateError, match="is open"):
                    async with producer.transaction():
                        pass
                await tx.send("t", b"")
                with pytest.raises(ConfigurationError, match=r"type dict; expected .*Consumer"):
                    await tx.send_offsets({TopicPartition("in", 0): 1})  # type: ignore[arg-type]
            with pytest.raises(IllegalStateError, match="not open"):
                await tx.send("t", b"")
            async with Consumer("in", **SERVERS, group_id="g", auto_offset_reset="earliest") as c:
                await c.getone()
                with pytest.raises(ConfigurationError, match="enable_auto_commit"):
                    async with producer.transaction() as tx:
                        await tx.send_offsets(c)
        assert len(await visible(kafka)) == 1


# ---------------------------------------------------------------- stops and cancellations


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("slow", [ProduceRequest, EndTxnRequest], ids=["records", "end"])
async def test_stop_waits_for_a_commit_that_is_running(
    version: int, slow: type, warnings: Callable[[], list[str]]
) -> None:
    async with cluster() as kafka, anyio.create_task_group() as tasks:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL) as producer:

            async def write() -> None:
                async with producer.transaction() as tx:
                    await tx.send("t", b"first")
                    kafka.fail(slow, Delay(2.0))
                    tx.send_nowait("t", b"second")

            tasks.start_soon(write)
            await anyio.sleep(0.5)
        assert await visible(kafka) == [b"first", b"second"]
        assert kafka.transaction_state("tx") == "CompleteCommit"
    assert warnings() == []


async def test_stop_leaves_the_outcome_of_a_commit_unknown_after_the_close_timeout(
    version: int,
) -> None:
    async with cluster() as kafka, anyio.create_task_group() as tasks:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL, close_timeout=5.0) as producer:

            async def write() -> None:
                with pytest.raises(TransactionOutcomeUnknownError, match="was closed"):
                    async with producer.transaction() as tx:
                        await tx.send("t", b"first")
                        kafka.fail(EndTxnRequest, Delay(20.0))

            tasks.start_soon(write)
            await anyio.sleep(0.5)
        assert anyio.current_time() < 6


@pytest.mark.parametrize("is_open", [True, False])
async def test_stop_aborts_what_is_not_acknowledged_within_the_close_timeout(
    version: int, is_open: bool, warnings: Callable[[], list[str]]
) -> None:
    async with cluster(2) as kafka, anyio.create_task_group() as tasks:
        kafka.set_transaction_version(version)
        kafka.move_leader("t", 0, 2)
        kafka.move_coordinator("tx", 1)

        async def write(producer: Producer) -> None:
            with pytest.raises((ClosedError, TransactionAbortedError), match="closed"):
                async with producer.transaction() as tx:
                    await tx.send("t", b"first")
                    kafka.fail(ProduceRequest, Swallow(), times=None)
                    tx.send_nowait("t", b"lost")
                    if is_open:
                        await anyio.sleep(20)

        with contextlib.suppress(NotWrittenError):
            async with Producer(**TRANSACTIONAL, close_timeout=5.0) as producer:
                tasks.start_soon(write, producer)
                await anyio.sleep(0.5)
        assert anyio.current_time() < 6
        assert kafka.transaction_state("tx") == "CompleteAbort"
    assert "failed" not in " ".join(warnings())


async def test_stop_while_a_transaction_begins(
    version: int, warnings: Callable[[], list[str]]
) -> None:
    async with cluster() as kafka, anyio.create_task_group() as tasks:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL) as producer:

            async def write() -> None:
                async with producer.transaction() as tx:
                    await tx.send("t", b"first")
                kafka.fail(ApiVersionsRequest, Delay(0.8), times=None)
                with pytest.raises(ClosedError):
                    async with producer.transaction() as tx:
                        raise AssertionError

            tasks.start_soon(write)
            await anyio.sleep(0.5)
    assert warnings() == []


async def test_stop_of_a_fenced_producer_in_a_block(
    version: int, warnings: Callable[[], list[str]]
) -> None:
    async with cluster() as kafka:
        kafka.set_transaction_version(version)
        async with Producer(**TRANSACTIONAL) as producer:
            transaction = producer.transaction()
            await transaction.__aenter__()
            await transaction.send("t", b"")
            async with Producer(**TRANSACTIONAL):
                pass
        (warning,) = warnings()
        assert "a transaction is not aborted: " in warning


@pytest.mark.parametrize("raised", [None, LookupError])
async def test_a_block_that_ends_after_a_failed_producer_was_stopped(
    raised: type[Exception] | None,
) -> None:
    async with cluster(), Producer(**TRANSACTIONAL) as producer:
        with pytest.raises(raised or ClosedError):
            async with producer.transaction():
                producer._crashed(RuntimeError("as a background task that fails"))
                await producer.stop()
                if raised is not None:
                    raise raised


@pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"loop_factory": VirtualLoop})], ids=["asyncio"]
)
async def test_a_cancellation_during_a_commit_that_fails_is_not_lost(version: int) -> None:
    async with (
        cluster() as kafka,
        Producer(**TRANSACTIONAL, transaction_timeout_ms=5_000) as producer,
    ):
        kafka.set_transaction_version(version)
        kafka.fail(ProduceRequest, ErrorCode.NOT_ENOUGH_REPLICAS, times=None)

        async def write() -> None:
            async with producer.transaction() as tx:
                tx.send_nowait("t", b"never written")

        task = asyncio.create_task(write())
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        assert isinstance(raised.value.__cause__, TransactionAbortedError)


@pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"loop_factory": VirtualLoop})], ids=["asyncio"]
)
@pytest.mark.filterwarnings("ignore:coroutine 'Service._guarded' was never awaited:RuntimeWarning")
@pytest.mark.parametrize("ends", ["commits", "aborts"])
async def test_a_block_ends_whose_commit_is_cancelled_before_its_first_step(ends: str) -> None:
    """It waited without end for a task that never ran, and so did the end of `asyncio.run`, which
    cancels all tasks."""

    def cancel_all() -> None:
        for task in asyncio.all_tasks():
            if task.get_name().startswith("kafkagroup "):
                task.cancel()

    async with cluster() as kafka:
        producer = Producer(**TRANSACTIONAL, close_timeout=1.0)
        await producer.start()
        with anyio.fail_after(30), pytest.raises(ClosedError if ends == "commits" else LookupError):
            async with producer.transaction() as tx:
                await tx.send("t", b"not committed")
                asyncio.get_running_loop().call_soon(cancel_all)
                if ends == "aborts":
                    raise LookupError
        await producer.stop()
        assert await values(kafka, "t") == [b"not committed"]
    gc.collect()  # the coroutine of that task, within this filter


@pytest.mark.parametrize("cause", ["lost", "stopped"])
async def test_offsets_that_cannot_be_sent_abort_a_block_that_goes_on(cause: str) -> None:
    """Otherwise its records would be committed without the offsets, and come again."""
    async with (
        cluster(topics={"in": 1, "t": 1}) as kafka,
        Producer(**TRANSACTIONAL) as producer,
        Consumer(
            "in",
            **SERVERS,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=500,
        ) as reader,
    ):
        kafka.produce("in", [b"one"])
        await reader.getone()
        error = CommitFailedError if cause == "lost" else ClosedError
        with pytest.raises(TransactionAbortedError) as caught:
            async with producer.transaction() as tx:
                await tx.send("t", b"one")
                if cause == "lost":
                    kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
                    await anyio.sleep(5)
                else:
                    await reader.stop()
                with pytest.raises(error):
                    await tx.send_offsets(reader)
        assert isinstance(caught.value.why, error)
        assert await visible(kafka) == []


async def test_a_wrong_consumer_does_not_abort_the_block() -> None:
    async with (
        cluster(topics={"in": 1, "t": 1}) as kafka,
        Producer(**TRANSACTIONAL) as producer,
        Consumer("in", **SERVERS) as reader,
    ):
        async with producer.transaction() as tx:
            await tx.send("t", b"one")
            with pytest.raises(ConfigurationError):
                await tx.send_offsets(reader)
        assert await visible(kafka) == [b"one"]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("is_expired", [False, True], ids=["fenced", "expired"])
async def test_a_block_that_awaits_its_record_says_why_the_producer_has_ended(
    version: int, is_expired: bool
) -> None:
    """It raised the record's error, which has only a code."""
    settings = BrokerSettings(transaction_version=version, transactional_id_expiration=100.0)
    async with (
        cluster(settings=settings) as kafka,
        Producer(**SERVERS, transactional_id="tx") as producer,
    ):
        if is_expired:
            await anyio.sleep(101)
        else:
            async with Producer(**SERVERS, transactional_id="tx"):
                pass
        expected = "it was idle for" if is_expired else "another producer has begun"
        with pytest.raises((BrokerError, ProducerFencedError), match=expected):
            async with producer.transaction() as tx:
                await tx.send("t", b"")
        assert await values(kafka, "t") == []

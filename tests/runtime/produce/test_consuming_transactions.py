"""`producer.transactions(consumer)`: each record once, whatever is aborted, lost or rebalanced."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest
from runtime.produce.logs import SERVERS, cluster
from runtime.produce.test_transaction_blocks import TRANSACTIONAL, visible

from kafkagroup import Consumer, Producer
from kafkagroup.admin import Admin
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.errors import (
    AuthorizationError,
    ClosedError,
    ConfigurationError,
    CorruptRecordError,
    DeserializationError,
    ErrorCode,
    IllegalStateError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
)
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings, Change, Close, Delay
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.fetch import FetchRequest, FetchResponse
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.produce import ProduceRequest, ProduceResponse
from kafkagroup.wire.messages.transactions import EndTxnRequest, TxnOffsetCommitRequest

pytestmark = pytest.mark.anyio

READER: dict[str, Any] = SERVERS | {
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
}


def consumer(protocol: str = "classic", **options: Any) -> Consumer:
    return Consumer("in", **READER | {"group_protocol": protocol} | options)


@asynccontextmanager
async def pipeline(
    protocol: str = "classic", **options: Any
) -> AsyncGenerator[tuple[EmbeddedKafka, Consumer, Producer]]:
    """Start what most tests need: a broker with the topics "in" and "t", a reader and a writer.
    `options`: of the writer."""
    async with (
        cluster(topics={"in": 1, "t": 1}) as kafka,
        consumer(protocol) as reader,
        Producer(**TRANSACTIONAL | options) as producer,
    ):
        yield kafka, reader, producer


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


async def forward(
    kafka: EmbeddedKafka, transactions: AsyncIterable[Any], until: int
) -> list[list[bytes | None]]:
    """Write the records of "in" to "t" until the group has committed so many; return the values of
    each transaction."""
    values = []
    async for tx in transactions:
        async with tx as records:
            values.append([record.value for record in records])
            for record in records:
                tx.send_nowait("t", record.value)
        if kafka.committed("g", "in") == {0: until}:
            break
    return values


async def test_the_five_lines(protocol: str) -> None:
    async with (
        cluster(topics={"in": 2, "t": 3}) as kafka,
        consumer(protocol) as reader,
        Producer(**TRANSACTIONAL) as producer,
    ):
        kafka.produce("in", numbers(100))
        done = 0
        async for tx in producer.transactions(reader, max_records=30):
            async with tx as records:
                assert len(records) <= 30
                for record in records:
                    tx.send_nowait("t", record.value)
                done += len(records)
            if done == 100:
                break
        assert sum(kafka.committed("g", "in").values()) == 100
        assert sorted(await visible(kafka), key=int) == numbers(100)


async def test_an_abort_returns_to_where_the_transaction_began(protocol: str) -> None:
    """franz-go#1222: records that were fetched before the abort came after it."""
    async with pipeline(protocol) as (kafka, reader, producer):
        kafka.produce("in", numbers(100))
        kafka.fail(FetchRequest, Delay(0.3), times=None)
        begins: list[bytes] = []
        while len(await visible(kafka)) < 100:
            try:
                async for tx in producer.transactions(reader, max_records=10):
                    async with tx as records:
                        begins.append(records[0].value or b"")
                        for record in records:
                            tx.send_nowait("t", record.value)
                        if len(begins) in (2, 5):
                            raise LookupError
                    if begins[-1] == b"90":
                        break
            except LookupError:
                continue
        assert begins == [b"%d" % n for n in (0, 10, 10, 20, 30, 30, 40, 50, 60, 70, 80, 90)]
        assert await visible(kafka) == numbers(100)


async def test_a_rebalance_aborts_and_the_iteration_goes_on(protocol: str) -> None:
    async with cluster(topics={"in": 4, "t": 1}) as kafka:
        kafka.produce("in", numbers(400))
        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:

            async def work(name: str, delay: float) -> None:
                await anyio.sleep(delay)
                async with (
                    consumer(protocol, session_timeout_ms=6_000) as reader,
                    Producer(**SERVERS, transactional_id=name) as producer,
                ):
                    async for tx in producer.transactions(reader, max_records=7):
                        async with tx as records:
                            for record in records:
                                tx.send_nowait("t", record.value)
                            await anyio.sleep(0.2)

            for n in range(3):
                tasks.start_soon(work, f"tx-{n}", 1.5 * n)
            with anyio.fail_after(300):
                while sum(kafka.committed("g", "in").values()) < 400:
                    await anyio.sleep(1)
            tasks.cancel_scope.cancel()
            del stack
        assert sorted(await visible(kafka), key=lambda v: int(v or b"")) == numbers(400)


async def test_lost_responses_and_refusals_lose_and_double_nothing(protocol: str) -> None:
    async with cluster(topics={"in": 2, "t": 2}) as kafka:
        kafka.produce("in", numbers(200))
        async with (
            consumer(protocol) as reader,
            Producer(**TRANSACTIONAL, request_timeout_ms=2_000) as producer,
        ):
            count = 0
            while sum(kafka.committed("g", "in").values()) < 200:
                count += 1
                if count % 3 == 1:
                    kafka.fail(ProduceRequest, Close())
                if count % 4 == 1:
                    kafka.fail(EndTxnRequest, Close())
                if count % 5 == 1:
                    kafka.fail(TxnOffsetCommitRequest, Close())
                if count % 6 == 1:
                    kafka.fail(
                        ProduceRequest, ErrorCode.INVALID_RECORD, partition=TopicPartition("t", 0)
                    )
                try:
                    async for tx in producer.transactions(reader, max_records=20):
                        async with tx as records:
                            for record in records:
                                tx.send_nowait("t", record.value)
                        break
                except TransactionAbortedError:
                    continue
        assert sorted(await visible(kafka), key=lambda v: int(v or b"")) == numbers(200)


async def test_a_block_that_takes_too_long_is_aborted_here() -> None:
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(1))
        with pytest.raises(TransactionAbortedError, match="took longer than 8 s"):
            async for tx in producer.transactions(reader):
                async with tx as records:
                    tx.send_nowait("t", records[0].value)
                    await anyio.sleep(60)
        async for tx in producer.transactions(reader):
            async with tx as records:
                tx.send_nowait("t", records[0].value)
            break
        assert await visible(kafka) == numbers(1)


async def test_its_transactions_time_out_earlier_unless_a_timeout_is_given() -> None:
    async def timeouts(**options: Any) -> list[int]:
        found: list[int] = []
        async with (
            cluster(topics={"in": 1, "t": 1}) as kafka,
            consumer() as reader,
            Producer(**TRANSACTIONAL | options) as producer,
            Admin(**SERVERS) as admin,
        ):

            async def note() -> None:
                found.append(round((await admin.describe_transactions(["tx"]))["tx"].timeout))

            await note()
            kafka.produce("in", numbers(1))
            async for tx in producer.transactions(reader):
                async with tx as records:
                    await tx.send("t", records[0].value)
                    await note()
                break
            async with producer.transaction() as tx_:
                await tx_.send("t", b"plain")
                await note()
        return found

    assert await timeouts() == [60, 10, 60]
    assert await timeouts(transaction_timeout_ms=20_000) == [20, 20, 20]


@pytest.mark.parametrize("is_awaited", [False, True], ids=["at the end", "in the block"])
@pytest.mark.parametrize("version", [0, 1, 2], ids="TV{}".format)
async def test_a_leader_that_is_away_for_longer_than_a_transaction(
    version: int, is_awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator would abort it, and fence the producer."""
    async with pipeline() as (kafka, reader, producer):
        kafka.set_transaction_version(version)
        kafka.produce("in", numbers(10))
        away = kafka.fail(ProduceRequest, ErrorCode.NOT_ENOUGH_REPLICAS, times=None)

        async def heal() -> None:
            await anyio.sleep(35)
            away.stop()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(heal)
            attempts = 0
            async for tx in producer.transactions(reader):
                async with tx as records:
                    attempts += 1
                    assert [record.value for record in records] == numbers(10)
                    for record in records:
                        future = tx.send_nowait("t", record.value)
                    if is_awaited:
                        await future
                if kafka.committed("g", "in") == {0: 10}:
                    break
        assert attempts in (5, 6)
        assert "records were not acknowledged within 8 s, 0.8 of transaction_timeout_ms=10000" in (
            caplog.text
        )
        assert await visible(kafka) == numbers(10)


async def test_an_acknowledgement_at_the_deadline_is_not_blamed_on_the_block(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(10))
        sender, attempts = producer._sender, 0
        assert sender is not None
        wait_all = sender.wait_all

        async def wait_and_resume_late() -> None:
            await wait_all()
            if attempts == 1:
                await anyio.sleep(10)

        monkeypatch.setattr(sender, "wait_all", wait_and_resume_late)
        async for tx in producer.transactions(reader):
            async with tx as records:
                attempts += 1
                assert [record.value for record in records] == numbers(10)
                for record in records:
                    tx.send_nowait("t", record.value)
            if kafka.committed("g", "in") == {0: 10}:
                break
        assert attempts == 2
        assert "records were not acknowledged within 8 s" in caplog.text
        assert await visible(kafka) == numbers(10)


async def test_what_the_coordinator_has_aborted_comes_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its node was away for longer than a transaction may be open; or this process stood still."""
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(10))
        away = kafka.fail(EndTxnRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)

        async def heal() -> None:
            await anyio.sleep(15)
            away.stop()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(heal)
            attempts = await forward(kafka, producer.transactions(reader), until=10)
        assert attempts == [numbers(10)] * 2
        assert "the coordinator has aborted the transaction" in caplog.text
        assert await visible(kafka) == numbers(10)


async def test_a_partition_that_is_lost_and_comes_back_while_records_are_collected(
    protocol: str,
) -> None:
    async with cluster(topics={"in": 1, "t": 1}) as kafka:
        kafka.produce("in", numbers(5))
        async with (
            consumer(protocol, session_timeout_ms=6_000, heartbeat_interval_ms=500) as reader,
            Producer(**TRANSACTIONAL) as producer,
            anyio.create_task_group() as tasks,
        ):

            async def lose() -> None:
                await anyio.sleep(2)
                kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
                kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
                await anyio.sleep(20)
                kafka.produce("in", numbers(5, start=5))

            tasks.start_soon(lose)
            await forward(kafka, producer.transactions(reader, max_interval=15), until=10)
        assert await visible(kafka) == numbers(10)


async def test_a_transaction_that_was_not_entered_comes_again(protocol: str) -> None:
    async with pipeline(protocol) as (kafka, reader, producer):
        kafka.produce("in", numbers(5))
        async for _ in producer.transactions(reader, max_records=3):
            break
        await forward(kafka, producer.transactions(reader, max_records=3), until=5)
        assert await visible(kafka) == numbers(5)


async def test_a_seek_after_a_transaction_that_was_not_entered_counts() -> None:
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(20))
        transactions = producer.transactions(reader, max_records=5)
        await anext(transactions)
        reader.seek(("in", 0), 10)
        async with await anext(transactions) as records:
            assert [record.value for record in records] == numbers(5, 10)


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "aborted"])
@pytest.mark.parametrize("version", [0, 1, 2], ids="TV{}".format)
async def test_after_an_unknown_outcome_the_records_come_again_unless_it_was_committed(
    version: int, is_committed: bool
) -> None:
    options = {"delivery_timeout_ms": 2_000, "request_timeout_ms": 1_000}
    async with cluster(topics={"in": 1, "t": 1}) as kafka, consumer() as reader:
        kafka.set_transaction_version(version)
        kafka.produce("in", numbers(5))
        lost = kafka.fail(EndTxnRequest, Close(before=not is_committed), times=None)
        async with Producer(**TRANSACTIONAL | options) as producer:
            with pytest.raises(TransactionOutcomeUnknownError):
                async for tx in producer.transactions(reader):
                    async with tx as records:
                        for record in records:
                            tx.send_nowait("t", record.value)
        lost.stop()
        async with Producer(**TRANSACTIONAL | options) as producer:
            kafka.produce("in", numbers(5, start=5))
            await forward(kafka, producer.transactions(reader), until=10)
        assert await visible(kafka) == numbers(10)


async def test_an_older_commit_of_a_higher_offset_does_not_settle_an_unknown_outcome() -> None:
    """The application has sought back, to process records again."""
    options = TRANSACTIONAL | {"delivery_timeout_ms": 2_000, "request_timeout_ms": 1_000}
    async with cluster(topics={"in": 1, "t": 1}) as kafka, consumer() as reader:
        kafka.produce("in", numbers(10))
        async with Producer(**options) as producer:
            await forward(kafka, producer.transactions(reader), until=10)
        reader.seek(("in", 0), 0)
        lost = kafka.fail(EndTxnRequest, Close(before=True), times=None)
        async with Producer(**options) as producer:
            with pytest.raises(TransactionOutcomeUnknownError):
                async with await anext(producer.transactions(reader, max_records=5)) as records:
                    assert len(records) == 5
        lost.stop()
        async with Producer(**options) as producer:
            async with await anext(producer.transactions(reader)) as records:
                assert [record.value for record in records] == numbers(10)


async def take_five(transactions: Any, *, aborts: bool) -> None:
    """Commit a transaction with the first five records, which with `aborts` is the second one."""
    if aborts:
        with pytest.raises(LookupError):
            async with await anext(transactions):
                raise LookupError
    async with await anext(transactions) as records:
        assert [record.value for record in records] == numbers(5)


@pytest.mark.parametrize("aborts", [False, True])
async def test_a_topic_that_is_recreated_meanwhile_is_read_from_its_start(aborts: bool) -> None:
    """The offsets of the transaction mean nothing in it."""
    async with (
        cluster(topics={"in": 1, "t": 1}) as kafka,
        consumer(metadata_max_age_ms=1_000) as reader,
        Producer(**TRANSACTIONAL) as producer,
    ):
        kafka.produce("in", numbers(10))
        transactions = producer.transactions(reader)
        await forward(kafka, transactions, until=10)
        kafka.produce("in", numbers(10, 10))
        with contextlib.suppress(LookupError):
            async with await anext(transactions):
                kafka.delete_topic("in")
                kafka.create_topic("in", 1)
                kafka.produce("in", [b"new %d" % n for n in range(30)])
                await anyio.sleep(5)
                if aborts:
                    raise LookupError
        assert kafka.committed("g", "in") == {}
        assert await forward(kafka, transactions, until=30) == [[b"new %d" % n for n in range(30)]]


async def test_commits_of_the_next_owner_do_not_settle_an_unknown_outcome(protocol: str) -> None:
    """The transaction was aborted, so the records of the partition that has stayed come again."""
    options = {"delivery_timeout_ms": 2_000, "request_timeout_ms": 1_000}
    cooperative: dict[str, Any] = (
        {"assignors": [cooperative_sticky_assignor]} if protocol == "classic" else {}
    )
    async with (
        cluster(topics={"in": 2, "t": 1}) as kafka,
        consumer(protocol, **cooperative) as reader,
    ):
        for partition in (0, 1):
            kafka.produce("in", numbers(5, 5 * partition), partition=partition)
        lost = kafka.fail(EndTxnRequest, Close(before=True), times=None)
        async with Producer(**TRANSACTIONAL | options) as producer:
            with pytest.raises(TransactionOutcomeUnknownError):
                async for tx in producer.transactions(reader):
                    async with tx as records:
                        assert len(records) == 10
        lost.stop()
        async with (
            Producer(**TRANSACTIONAL | options) as producer,
            consumer(protocol, **cooperative) as other,
        ):
            while not other.assignment():
                await anyio.sleep(0.1)
            (moved,) = other.assignment()
            await other.commit({moved: 5})
            with anyio.fail_after(60):
                async for tx in producer.transactions(reader):
                    async with tx as records:
                        again = [record.value for record in records]
                    break
            assert again == numbers(5, 5 * (1 - moved.partition))


async def test_a_transaction_that_has_ended_is_not_begun_again() -> None:
    """It was begun again before the error was raised, and stayed open."""
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(5))
        async for tx in producer.transactions(reader):
            async with tx as records:
                for record in records:
                    tx.send_nowait("t", record.value)
            with pytest.raises(IllegalStateError, match="has ended; take the next one"):
                async with tx:
                    raise AssertionError
            break
        async with producer.transaction() as other:
            await other.send("t", b"other")
        assert await visible(kafka) == [*numbers(5), b"other"]
        assert kafka.committed("g", "in") == {0: 5}


async def test_a_transaction_whose_records_came_again_is_not_begun() -> None:
    """Its records were in the next transaction, too, and both wrote them."""
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(5))
        transactions = producer.transactions(reader)
        first, second = await anext(transactions), await anext(transactions)
        with pytest.raises(IllegalStateError, match="has ended; take the next one"):
            async with first:
                raise AssertionError
        async with second as records:
            for record in records:
                second.send_nowait("t", record.value)
        assert await visible(kafka) == numbers(5)
        assert kafka.committed("g", "in") == {0: 5}


def corrupted(response: FetchResponse) -> FetchResponse:
    """Return the response with other bytes in the record "corrupt"."""

    def with_other_bytes(part: Any) -> Any:
        records = bytes(part.records or b"").replace(b"corrupt", b"CORRUPT")
        return attrs.evolve(part, records=records)

    return attrs.evolve(
        response,
        responses=tuple(
            attrs.evolve(topic, partitions=tuple(map(with_other_bytes, topic.partitions)))
            for topic in response.responses
        ),
    )


def no_five(data: bytes) -> bytes:
    if data == b"5":
        raise ValueError(data)
    return data


@pytest.mark.parametrize("aborts", [False, True])
async def test_an_error_comes_after_the_records_before_it(aborts: bool) -> None:
    """An application seeks past the bad record: those before it must have come."""
    async with (
        cluster(topics={"in": 1, "t": 1}) as kafka,
        consumer(value_deserializer=no_five) as reader,
        Producer(**TRANSACTIONAL) as producer,
    ):
        kafka.produce("in", numbers(10))
        transactions = producer.transactions(reader)
        await take_five(transactions, aborts=aborts)
        for _ in range(2):
            with pytest.raises(DeserializationError) as caught:
                await anext(transactions)
        assert kafka.committed("g", "in") == {0: 5}
        reader.seek(("in", 0), caught.value.record.offset + 1)
        async with await anext(transactions) as records:
            assert [record.value for record in records] == numbers(4, 6)


@pytest.mark.parametrize("aborts", [False, True])
async def test_an_error_that_is_raised_once_comes_after_the_records_before_it(aborts: bool) -> None:
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(5))
        kafka.produce("in", [b"corrupt"])
        kafka.fail(FetchRequest, Change(corrupted), times=None)
        transactions = producer.transactions(reader)
        await take_five(transactions, aborts=aborts)
        with pytest.raises(CorruptRecordError):
            await anext(transactions)
        kafka.produce("in", numbers(2, 6))
        reader.seek(("in", 0), 6)
        async with await anext(transactions) as records:
            assert [record.value for record in records] == numbers(2, 6)


@pytest.mark.parametrize("aborts", [False, True])
async def test_a_refusal_comes_after_the_records_before_it(aborts: bool) -> None:
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(5))
        transactions = producer.transactions(reader, max_interval=1.0)

        async def refuse() -> None:
            await anyio.sleep(0.5)
            reader._session.errors.report(AuthorizationError(ErrorCode.GROUP_AUTHORIZATION_FAILED))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refuse)
            tx = await anext(transactions)
        if aborts:
            with pytest.raises(LookupError):
                async with tx:
                    raise LookupError
        else:
            async with tx as records:
                assert [record.value for record in records] == numbers(5)
        with pytest.raises(AuthorizationError):
            await anext(transactions)
        if aborts:
            async with await anext(transactions) as records:
                assert [record.value for record in records] == numbers(5)


@pytest.mark.parametrize("by", ["iterator", "producer"])
async def test_a_consumer_has_one_open_transaction(by: str) -> None:
    """A second one would count the records of the first as processed, even if that aborts."""
    async with (
        pipeline() as (kafka, reader, producer),
        Producer(**TRANSACTIONAL | {"transactional_id": "tx-2"}) as other,
    ):
        kafka.produce("in", numbers(20))
        transactions = producer.transactions(reader, max_records=10)
        second = transactions if by == "iterator" else other.transactions(reader)
        with pytest.raises(LookupError):
            async with await anext(transactions) as records:
                assert len(records) == 10
                with pytest.raises(IllegalStateError, match="is open; end it first"):
                    await anext(second)
                raise LookupError
        assert await forward(kafka, transactions, until=20) == [numbers(10), numbers(10, 10)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_block_that_another_task_ends_is_aborted() -> None:
    """asyncio closes an async generator that was left open in a task of its own."""
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(20))
        tx = await anext(producer.transactions(reader, max_records=5))
        refused: list[RuntimeError] = []

        async def end() -> None:
            with pytest.raises(RuntimeError) as caught:
                await tx.__aexit__(None, None, None)
            refused.append(caught.value)

        async def begin() -> None:
            for record in await tx.__aenter__():
                await tx.send("t", record.value)
            await asyncio.create_task(end())

        await asyncio.create_task(begin())
        assert refused
        await forward(kafka, producer.transactions(reader), until=20)
        assert await visible(kafka) == numbers(20)


async def test_a_late_block_that_raises_a_group_is_aborted() -> None:
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(5))
        with pytest.RaisesGroup(LookupError):
            async with await anext(producer.transactions(reader)):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(raise_when_cancelled)
                    await anyio.sleep_forever()
        await forward(kafka, producer.transactions(reader), until=5)
        assert await visible(kafka) == numbers(5)


async def raise_when_cancelled() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        raise LookupError


async def test_an_abort_returns_to_the_records_that_its_block_has_polled() -> None:
    async with (
        cluster(topics={"in": 2, "t": 1}) as kafka,
        consumer() as reader,
        Producer(**TRANSACTIONAL) as producer,
    ):
        for partition in (0, 1):
            kafka.produce("in", numbers(5, 5 * partition), partition=partition)
        transactions = producer.transactions(reader, max_records=5)
        with pytest.raises(LookupError):
            async with await anext(transactions):
                for _ in range(5):
                    await reader.getone()
                raise LookupError
        found: list[bytes] = []
        for _ in range(2):
            async with await anext(transactions) as records:
                found += [record.value or b"" for record in records]
        assert sorted(found) == numbers(10)


@pytest.mark.parametrize("outcome", ["committed", "aborted"])
async def test_records_that_a_block_has_polled_belong_to_its_transaction(outcome: str) -> None:
    """Their offsets were not committed with what the block had written: another consumer of the
    group wrote it again. After an unknown outcome they were skipped."""
    options = TRANSACTIONAL | {"delivery_timeout_ms": 2_000, "request_timeout_ms": 1_000}
    async with cluster(topics={"in": 2, "t": 1}) as kafka:
        for partition in (0, 1):
            kafka.produce("in", numbers(5, 5 * partition), partition=partition)
        async with consumer() as reader, Producer(**options) as producer:
            fault = None
            async with contextlib.AsyncExitStack() as stack:
                if outcome == "aborted":
                    stack.enter_context(pytest.raises(TransactionOutcomeUnknownError))
                    fault = kafka.fail(
                        EndTxnRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=None
                    )
                tx = await anext(producer.transactions(reader, max_records=3))
                records = await stack.enter_async_context(tx)
                polled = [await reader.getone() for _ in range(4)]
                assert len({record.partition for record in polled}) == 2
                for record in [*records, *polled]:
                    tx.send_nowait("t", record.value)
            if fault is not None:
                await anyio.sleep(12)  # the coordinator aborts it
                fault.stop()
                with anyio.move_on_after(5):
                    await forward(kafka, producer.transactions(reader), until=-1)
        async with consumer() as reader, Producer(**options) as producer:
            with anyio.move_on_after(5):
                await forward(kafka, producer.transactions(reader), until=-1)
        assert sorted(await visible(kafka), key=int) == numbers(10)
        assert kafka.committed("g", "in") == {0: 5, 1: 5}


async def test_a_block_polls_a_partition_again_that_it_has_lost() -> None:
    """The records of the second assignment were skipped: the abort did not return to them."""
    async with pipeline("consumer") as (kafka, reader, producer):
        kafka.produce("in", numbers(5))
        transactions = producer.transactions(reader, max_records=3)
        async with await anext(transactions) as records:
            kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.FENCED_MEMBER_EPOCH)
            for record in [*records, *(await reader.getmany(4, timeout=60)).popitem()[1]]:
                producer.send_nowait("t", record.value)
            again = [await reader.getone() for _ in range(3)]
            assert [record.value for record in again] == numbers(3)
        await forward(kafka, transactions, until=5)
        assert await visible(kafka) == numbers(5)


async def test_the_offsets_include_a_marker_at_the_end() -> None:
    """KAFKA-6607: the lag of transactional input never reached zero."""
    async with pipeline() as (kafka, reader, producer):
        async with producer.transaction() as tx:
            await tx.send_many("in", numbers(5))
        async with await anext(producer.transactions(reader)) as records:
            assert len(records) == 5
        assert kafka.committed("g", "in") == {0: kafka.log_end("in", 0)} == {0: 6}


async def test_invalid_limits_raise() -> None:
    """A comparison inside raised a TypeError instead."""
    reader, producer = consumer(), Producer(**TRANSACTIONAL)
    wrong: Any
    for wrong in ("3", None, True, 0, 2.5):
        message = re.escape(f"max_records={wrong!r}; expected a whole number from 1")
        with pytest.raises(ConfigurationError, match=message):
            producer.transactions(reader, max_records=wrong)
    for wrong in ("3", None, True, -1, math.inf, math.nan):
        message = (
            f"max_interval={wrong!r}; expected a number of seconds, at least 0 and not infinite"
        )
        with pytest.raises(ConfigurationError, match=message):
            producer.transactions(reader, max_interval=wrong)


async def test_it_raises_when_its_producer_is_closed_meanwhile() -> None:
    async with cluster(topics={"in": 1, "t": 1}) as kafka, consumer() as reader:
        async with anyio.create_task_group() as tasks:

            async def write() -> None:
                with pytest.raises(ClosedError, match="Producer"):
                    async for _ in producer.transactions(reader, max_interval=5):
                        pass

            async with Producer(**TRANSACTIONAL) as producer:
                tasks.start_soon(write)
                await anyio.sleep(1)
                kafka.produce("in", numbers(5))
                await anyio.sleep(1)
        async with Producer(**TRANSACTIONAL) as producer:
            async for tx in producer.transactions(reader):
                async with tx as records:
                    for record in records:
                        tx.send_nowait("t", record.value)
                break
        assert await visible(kafka) == numbers(5)


async def test_it_ends_when_the_consumer_was_stopped_after_a_transaction() -> None:
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(5))
        async for tx in producer.transactions(reader):
            async with tx as records:
                for record in records:
                    tx.send_nowait("t", record.value)
            await reader.stop()
        assert kafka.committed("g", "in") == {0: 5}


async def test_it_ends_when_the_consumer_is_stopped() -> None:
    async with cluster(topics={"in": 1, "t": 1}), Producer(**TRANSACTIONAL) as producer:
        async with consumer() as reader, anyio.create_task_group() as tasks:

            async def stop() -> None:
                await anyio.sleep(1)
                await reader.stop()

            tasks.start_soon(stop)
            async for _ in producer.transactions(reader):
                pass


async def test_a_stop_in_the_block_ends_the_iteration_after_its_commit(protocol: str) -> None:
    async with cluster(topics={"in": 1, "t": 1}) as kafka, Producer(**TRANSACTIONAL) as producer:
        kafka.produce("in", numbers(30))
        async with consumer(protocol) as reader, anyio.create_task_group() as tasks:
            async for tx in producer.transactions(reader, max_records=10):
                async with tx as records:
                    tasks.start_soon(reader.stop)
                    for record in records:
                        tx.send_nowait("t", record.value)
                    await anyio.sleep(1)
        assert await visible(kafka) == numbers(10)
        assert sum(kafka.committed("g", "in").values()) == 10


async def test_a_block_that_fails_while_the_consumer_stops_raises_its_own_error(
    protocol: str,
) -> None:
    async with cluster(topics={"in": 1, "t": 1}) as kafka, Producer(**TRANSACTIONAL) as producer:
        kafka.produce("in", numbers(30))
        async with consumer(protocol) as reader:
            with pytest.RaisesGroup(LookupError):
                async with anyio.create_task_group() as tasks:
                    async for tx in producer.transactions(reader, max_records=10):
                        async with tx as records:
                            tasks.start_soon(reader.stop)
                            tx.send_nowait("t", records[0].value)
                            await anyio.sleep(1)
                            raise LookupError
        assert await visible(kafka) == []
        assert kafka.committed("g", "in") == {}


async def test_a_block_that_fails_during_a_revocation_releases_its_partitions_at_once(
    protocol: str,
) -> None:
    async with (
        cluster(topics={"in": 2, "t": 1}) as kafka,
        consumer(protocol) as reader,
        Producer(**TRANSACTIONAL) as producer,
        anyio.create_task_group() as tasks,
    ):
        for partition in (0, 1):
            kafka.produce("in", numbers(20, 20 * partition), partition=partition)
        owned_at: list[float] = []

        async def join() -> None:
            async with consumer(protocol) as other:
                await other.wait_assignment()
                while not other.assignment():
                    await anyio.sleep(0.1)
                owned_at.append(anyio.current_time())
                await anyio.sleep_forever()

        with pytest.raises(LookupError):
            async for tx in producer.transactions(reader):
                async with tx as records:
                    assert len(records) == 40
                    tasks.start_soon(join)
                    await anyio.sleep(7)
                    failed_at = anyio.current_time()
                    assert not owned_at
                    raise LookupError
        await anyio.sleep(4)
        assert owned_at[0] < failed_at + 2
        tasks.cancel_scope.cancel()


async def test_wrong_consumers_are_named() -> None:
    async with cluster(topics={"in": 1}), Producer(**TRANSACTIONAL) as producer:
        async with Consumer("in", **READER | {"isolation_level": "read_uncommitted"}) as reader:
            with pytest.raises(ConfigurationError, match="read_committed"):
                producer.transactions(reader)
        async with Consumer("in", **READER | {"enable_auto_commit": True}) as reader:
            with pytest.raises(ConfigurationError, match="enable_auto_commit"):
                await anext(producer.transactions(reader))
        topic: Any = "in"
        with pytest.raises(ConfigurationError, match=r"type str; expected .*Consumer"):
            producer.transactions(topic)


async def test_a_refused_consumer_keeps_its_record_in_flight() -> None:
    """It counts as processed at the next poll, as without the mistake."""
    async with cluster(topics={"in": 1}) as kafka, Producer(**TRANSACTIONAL) as producer:
        kafka.produce("in", [b"one", b"two"])
        async with Consumer("in", **READER | {"enable_auto_commit": True}) as reader:
            await reader.getone()
            with pytest.raises(ConfigurationError):
                await anext(producer.transactions(reader))
            await reader.getone()
            assert [at.offset for at in reader.processed().values()] == [1]


async def test_a_kafka_that_restarts() -> None:
    kafka: EmbeddedKafka
    async with cluster(3, topics={"in": 3, "t": 3}) as kafka:
        kafka.produce("in", numbers(300))
        async with consumer() as reader, Producer(**TRANSACTIONAL) as producer:
            node = 0
            while sum(kafka.committed("g", "in").values()) < 300:
                node = node % 3 + 1
                kafka.kill(node)
                try:
                    async for tx in producer.transactions(reader, max_records=40):
                        async with tx as records:
                            for record in records:
                                tx.send_nowait("t", record.value)
                        break
                except TransactionAbortedError:
                    pass
                finally:
                    kafka.restart(node)
        assert sorted(await visible(kafka), key=lambda v: int(v or b"")) == numbers(300)


async def test_a_record_that_fails_while_offsets_are_sent_aborts() -> None:
    def refused(response: ProduceResponse) -> ProduceResponse:
        (topic,) = response.responses
        (part,) = topic.partition_responses
        part = attrs.evolve(part, error_code=ErrorCode.INVALID_RECORD, base_offset=-1)
        return attrs.evolve(response, responses=(attrs.evolve(topic, partition_responses=(part,)),))

    async with (
        cluster(2, topics={"in": 1, "t": 1}) as kafka,
        consumer() as reader,
        Producer(**TRANSACTIONAL) as producer,
    ):
        kafka.move_leader("t", 0, 2)
        for key in ("g", "tx"):
            kafka.move_coordinator(key, 1)
        kafka.produce("in", numbers(2))
        with pytest.raises(TransactionAbortedError, match="INVALID_RECORD"):
            async for tx in producer.transactions(reader):
                async with tx:
                    await tx.send("t", b"written")
                    kafka.fail(TxnOffsetCommitRequest, Delay(0.5))
                    kafka.fail(
                        ProduceRequest,
                        ErrorCode.NOT_ENOUGH_REPLICAS,
                        partition=TopicPartition("t", 0),
                    )
                    kafka.fail(ProduceRequest, Change(refused))
                    tx.send_nowait("t", b"refused")


async def test_offsets_that_are_sent_again_after_the_member_has_rejoined_abort() -> None:
    """Under KIP-848 it rejoins with the same member id, and may get the same epoch."""
    async with (
        cluster(
            topics={"in": 1, "t": 1},
            settings=BrokerSettings(
                group_consumer_session_timeout=6.0, group_consumer_heartbeat_interval=0.5
            ),
        ) as kafka,
        consumer("consumer", request_timeout_ms=30_000) as reader,
        Producer(**TRANSACTIONAL, transaction_timeout_ms=60_000) as producer,
        anyio.create_task_group() as tasks,
    ):
        kafka.produce("in", numbers(5))
        refused = kafka.fail(
            TxnOffsetCommitRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None
        )

        async def lose() -> None:
            await anyio.sleep(2)
            kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
            await anyio.sleep(8)
            refused.stop()
            await anyio.sleep(10)
            kafka.produce("in", numbers(1, 5))

        tasks.start_soon(lose)
        with anyio.fail_after(120):
            await forward(kafka, producer.transactions(reader), until=6)
        assert await visible(kafka) == numbers(6)


async def test_a_stop_during_the_commit_repeats_no_record() -> None:
    """The consumer continues with another producer."""
    async with cluster(topics={"in": 1, "t": 1}) as kafka, consumer() as reader:
        kafka.produce("in", numbers(5))

        async def work(producer: Producer) -> None:
            with pytest.raises(ClosedError):
                async for tx in producer.transactions(reader):
                    async with tx as records:
                        for record in records:
                            tx.send_nowait("t", record.value)

        kafka.fail(EndTxnRequest, Delay(2.0))
        for _ in range(2):
            async with anyio.create_task_group() as tasks, Producer(**TRANSACTIONAL) as producer:
                tasks.start_soon(work, producer)
                await anyio.sleep(1)
        assert await visible(kafka) == numbers(5)


@pytest.mark.parametrize("cause", ["open", "begin"])
async def test_a_transaction_is_entered_once(cause: str) -> None:
    """Otherwise the consumer returned to the records of a transaction that then committed."""
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(20))
        tx = await anext(producer.transactions(reader, max_records=10))
        if cause == "open":
            async with tx as records:
                with pytest.raises(IllegalStateError, match="begun already; enter each one once"):
                    await tx.__aenter__()
                for record in records:
                    tx.send_nowait("t", record.value)
        else:
            async with producer.transaction():
                with pytest.raises(IllegalStateError, match="of this producer is open"):
                    await tx.__aenter__()
            with pytest.raises(IllegalStateError, match="has ended; take the next one"):
                await tx.__aenter__()
        await forward(kafka, producer.transactions(reader), until=20)
        assert await visible(kafka) == numbers(20)


async def test_a_consumer_has_one_open_transaction_after_a_pause() -> None:
    """While one iteration paused after its abort, another one took the records and began: the first
    went on behind them, and its commit skipped them if the other's aborted."""
    async with (
        pipeline() as (kafka, reader, producer),
        Producer(**TRANSACTIONAL | {"transactional_id": "tx-2"}) as other,
        anyio.create_task_group() as tasks,
    ):
        kafka.produce("in", numbers(20))
        kafka.fail(TxnOffsetCommitRequest, ErrorCode.ILLEGAL_GENERATION)
        transactions = other.transactions(reader, max_records=5)
        async with await anext(transactions) as records:
            assert len(records) == 5

        async def continue_after_pause() -> None:
            with pytest.raises(IllegalStateError, match="is open; end it first"):
                await anext(transactions)
            ended.set()

        ended = anyio.Event()
        tasks.start_soon(continue_after_pause)
        with pytest.raises(LookupError):
            async with await anext(producer.transactions(reader, max_records=5)) as records:
                assert [record.value for record in records] == numbers(5)
                await ended.wait()
                raise LookupError
        await forward(kafka, transactions, until=20)
        assert await visible(kafka) == numbers(20)

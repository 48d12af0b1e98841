"""`Producer.transactions`: unknown outcomes after a seek, rebalances while records are collected,
and offsets that are refused again and again."""

from __future__ import annotations

import anyio
import pytest
from runtime.produce.logs import cluster
from runtime.produce.test_consuming_transactions import consumer, forward, numbers, pipeline
from runtime.produce.test_transaction_blocks import TRANSACTIONAL, visible

from kafkagroup import Consumer, Producer
from kafkagroup.errors import ErrorCode, TransactionOutcomeUnknownError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Close, Fault
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.transactions import EndTxnRequest, TxnOffsetCommitRequest

pytestmark = pytest.mark.anyio

SHORT = TRANSACTIONAL | {"delivery_timeout_ms": 2_000, "request_timeout_ms": 1_000}
IN = TopicPartition("in", 0)


async def write_again(
    producer: Producer[bytes, bytes], reader: Consumer[bytes, bytes], most: int = 1_000
) -> None:
    async for tx in producer.transactions(reader, max_records=most):
        async with tx as records:
            for record in records:
                tx.send_nowait("t", b"again " + (record.value or b""))


async def write_without_response(
    kafka: EmbeddedKafka, producer: Producer[bytes, bytes], reader: Consumer[bytes, bytes]
) -> Fault:
    """Write what the reader has, in a transaction whose commit is executed, without a response to
    EndTxn; return the fault, which is still active."""
    fault = kafka.fail(EndTxnRequest, Close(), times=None)
    with pytest.raises(TransactionOutcomeUnknownError):
        await write_again(producer, reader)
    return fault


async def test_what_was_aborted_comes_again_after_a_replay() -> None:
    """The group's earlier offset, which was never read, was taken for that of the transaction."""
    async with cluster(topics={"in": 1, "t": 1}) as kafka:
        kafka.produce("in", numbers(100))
        async with consumer() as reader, Producer(**TRANSACTIONAL) as producer:
            await forward(kafka, producer.transactions(reader), until=100)
        started: list[Consumer[bytes, bytes]] = []

        async def replay(_: object) -> None:
            started[0].seek(IN, 0)

        started.append(consumer(on_partitions_assigned=replay))
        async with started[0] as reader, Producer(**SHORT) as producer:
            fault = kafka.fail(EndTxnRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=None)
            with pytest.raises(TransactionOutcomeUnknownError):
                await write_again(producer, reader, 10)
            await anyio.sleep(12)  # the coordinator aborts it
            fault.stop()
            with anyio.move_on_after(5):
                await write_again(producer, reader, 10)
        again = [value for value in await visible(kafka) if value.startswith(b"again")]
        assert again == [b"again %d" % n for n in range(100)]


async def test_what_was_committed_does_not_come_again_after_a_seek_back() -> None:
    """Its last offset is the one that the group had before."""
    async with pipeline(**SHORT) as (kafka, reader, producer):
        kafka.produce("in", numbers(10))
        await forward(kafka, producer.transactions(reader), until=10)
        reader.seek(IN, 5)
        fault = await write_without_response(kafka, producer, reader)
        fault.stop()
        with anyio.move_on_after(5):
            await write_again(producer, reader)
        again = [value for value in await visible(kafka) if value.startswith(b"again")]
        assert again == [b"again %d" % n for n in range(5, 10)]


async def test_a_commit_of_unknown_outcome_does_not_settle_that_of_a_later_replay() -> None:
    """The group's offset before it was taken for that before the replay."""
    async with pipeline(**SHORT) as (kafka, reader, producer):
        kafka.produce("in", numbers(10))
        await forward(kafka, producer.transactions(reader, max_records=5), until=5)
        fault = await write_without_response(kafka, producer, reader)
        fault.stop()
        reader.seek(IN, 5)
        with pytest.raises(TransactionOutcomeUnknownError):
            async for tx in producer.transactions(reader, max_records=3):
                async with tx as records:
                    fault = kafka.fail(
                        EndTxnRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=None
                    )
                    tx.send_nowait("t", records[0].value)
        await anyio.sleep(12)  # the coordinator aborts it
        fault.stop()
        with anyio.move_on_after(5):
            await write_again(producer, reader)
        again = [value for value in await visible(kafka) if value.startswith(b"again")]
        assert again == [b"again %d" % n for n in range(5, 10)] * 2


async def test_a_plain_commit_does_not_replace_one_of_unknown_outcome() -> None:
    async with pipeline(**SHORT) as (kafka, reader, producer):
        kafka.produce("in", numbers(5))
        await forward(kafka, producer.transactions(reader), until=5)

        async def produce_later() -> None:
            await anyio.sleep(0.05)  # for a second poll in the same transaction
            kafka.produce("in", numbers(5))

        kafka.produce("in", numbers(5))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(produce_later)
            fault = await write_without_response(kafka, producer, reader)
        await reader.commit()
        assert kafka.committed("g", "in") == {0: 15}
        fault.stop()
        with anyio.move_on_after(5):
            await write_again(producer, reader)  # finds out that it was committed
        await reader.commit()
        assert kafka.committed("g", "in") == {0: 15}


async def test_a_seek_back_is_committed_after_an_unknown_outcome() -> None:
    """The group's offset before the transaction counted as the present one."""
    async with pipeline(**SHORT) as (kafka, reader, producer):
        kafka.produce("in", numbers(10))
        await reader.getmany(5, timeout=5)
        await reader.commit()
        await reader.getmany(5, timeout=5)
        kafka.fail(EndTxnRequest, Close(), times=None)  # executed, without a response
        with pytest.raises(TransactionOutcomeUnknownError):
            async with producer.transaction() as tx:
                await tx.send_offsets(reader)
        assert kafka.committed("g", "in") == {0: 10}
        reader.seek(IN, 5)
        await reader.commit()
        assert kafka.committed("g", "in") == {0: 5}


async def test_only_offsets_that_do_not_tell_name_their_transaction() -> None:
    async with pipeline() as (kafka, reader, producer):
        kafka.produce("in", numbers(5))
        await forward(kafka, producer.transactions(reader), until=5)
        (first,) = kafka.committed_offsets("g").values()
        assert first.metadata.startswith("transaction ")  # the group had none
        kafka.produce("in", numbers(5))
        await forward(kafka, producer.transactions(reader), until=10)
        assert kafka.committed_offsets("g") == {IN: OffsetAndMetadata(10, leader_epoch=0)}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_rebalance_does_not_wait_for_more_records(protocol: str) -> None:
    async with cluster(topics={"in": 2, "t": 1}) as kafka:
        kafka.produce("in", numbers(10))
        async with (
            consumer(protocol, heartbeat_interval_ms=500, session_timeout_ms=6_000) as one,
            Producer(**TRANSACTIONAL) as producer,
            anyio.create_task_group() as tasks,
        ):

            async def work() -> None:
                async for tx in producer.transactions(one, max_interval=60):
                    async with tx as records:
                        for record in records:
                            tx.send_nowait("t", record.value)

            tasks.start_soon(work)
            await anyio.sleep(3)
            with anyio.fail_after(10):
                async with consumer(protocol) as other:
                    while not other.assignment():
                        await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_refused_offsets_are_tried_again_after_pauses(protocol: str) -> None:
    """Thousands of aborted transactions a second were written, with all their records."""
    async with pipeline(protocol) as (kafka, reader, producer):
        kafka.produce("in", numbers(10))
        fault = kafka.fail(TxnOffsetCommitRequest, ErrorCode.ILLEGAL_GENERATION, times=None)
        with anyio.move_on_after(5):
            await write_again(producer, reader, 5)
        assert 3 <= fault.hits <= 20
        fault.stop()
        with anyio.move_on_after(5):
            await write_again(producer, reader, 5)
        assert await visible(kafka) == [b"again %d" % n for n in range(10)]

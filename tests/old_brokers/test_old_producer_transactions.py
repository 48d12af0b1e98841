"""Transactions of this library's producers at old brokers, which all have transaction version 0.
Brokers before 2.5 give no next epoch to the owner of one (KIP-360), and do not fence the members of
a group (KIP-447)."""

import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync
from brokers import FAST, append, numbered
from old_brokers.test_old_producers import create, delete_records, values

from kafkagroup import Admin, Consumer, Producer, TopicPartition
from kafkagroup.broker import Broker
from kafkagroup.errors import (
    CommitFailedError,
    ConnectionLostError,
    ErrorCode,
    ProducerFencedError,
    TransactionAbortedError,
    UnsupportedVersionError,
)
from kafkagroup.produce.transaction_requests import add_partitions_codes
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.wire.messages.transactions import AddPartitionsToTxnRequest

pytestmark = [pytest.mark.anyio, pytest.mark.brokers]


def has_group_fencing(old: Any) -> bool:
    return bool(old.version != "2.4.1")


def producer_of(old: Any, name: str, **options: Any) -> Producer[Any, Any]:
    return Producer(
        bootstrap_servers=old.bootstrap_servers, transactional_id=f"{name}-tx", **options
    )


def reader_of(old: Any, name: str) -> Consumer[Any, Any]:
    return Consumer(
        name,
        bootstrap_servers=old.bootstrap_servers,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        **FAST,
    )


async def visible(old: Any, topic: str, partition: int = 0) -> list[bytes | None]:
    return await values(old, topic, partition, "read_committed")


async def fill(old: Any, topic: str, count: int, partitions: int = 1) -> None:
    await create(old, topic, partitions=partitions)
    host, port = old.address(1).split(":")
    async with Broker.open(host, int(port)) as broker:
        for partition in range(partitions):
            await append(broker, TopicPartition(topic, partition), numbered(partition, count))


# ---------------------------------------------------------------- commits and aborts


async def test_a_transaction_is_visible_once_it_is_committed(old, name):
    await create(old, name, partitions=2)
    async with producer_of(old, name) as producer:
        for number in range(9):
            with suppress(InterruptedError):
                async with producer.transaction() as tx:
                    for partition in range(2):
                        tx.send_nowait(name, b"%d" % number, partition=partition)
                        await tx.send(name, b"%d again" % number, partition=partition)
                    if number % 3 == 1:
                        raise InterruptedError
        async with producer.transaction():
            pass
    wanted = [value for n in (0, 2, 3, 5, 6, 8) for value in (b"%d" % n, b"%d again" % n)]
    for partition in range(2):
        assert await visible(old, name, partition) == wanted


async def test_a_transaction_survives_a_restart_of_the_broker(old, name):
    await create(old, name, partitions=2)
    async with producer_of(old, name) as producer:
        async with producer.transaction() as tx:
            await tx.send(name, b"before", partition=0)
            await run_sync(old.restart, 1)
            await tx.send(name, b"after", partition=1)
        async with producer.transaction() as tx:
            await tx.send(name, b"later", partition=0)
    assert await visible(old, name, 0) == [b"before", b"later"]
    assert await visible(old, name, 1) == [b"after"]


async def test_a_batch_that_is_too_large_is_split(old, name):
    await create(old, name, max_message_bytes="2048")
    data = [b"%3d" % n + bytes(497) for n in range(50)]
    async with producer_of(old, name, batch_size=16_384, linger_ms=50) as producer:
        for start in (0, 25):
            async with producer.transaction() as tx:
                for value in data[start : start + 25]:
                    tx.send_nowait(name, value)
    assert await visible(old, name) == data


async def test_all_records_of_the_producer_are_deleted(old, name):
    """KAFKA-7190: brokers before 2.4 forget a producer with its last record."""
    await create(old, name)
    async with producer_of(old, name) as producer:
        for n in range(4):
            async with producer.transaction() as tx:
                await tx.send(name, b"%d" % n)
            if n < 3:
                await delete_records(old, name, 2 * n + 2)
    assert await visible(old, name) == [b"3"]


async def test_a_topic_that_is_created_again_is_written_to(old, name):
    """Its log begins without numbers. Brokers before 2.5 refuse others than 0 there."""
    other = f"{name}-other"
    await create(old, name, other)
    async with producer_of(old, name, delivery_timeout_ms=15_000) as producer:
        for n in range(3):
            async with producer.transaction() as tx:
                await tx.send(name, b"%d" % n)
                await tx.send(other, b"%d" % n)
        async with Admin(bootstrap_servers=old.bootstrap_servers) as admin:
            await admin.delete_topics([name])
        await create(old, name)
        for n in range(3, 6):
            async with producer.transaction() as tx:
                await tx.send(name, b"%d" % n)
                await tx.send(other, b"%d" % n)
    assert await visible(old, name) == [b"3", b"4", b"5"]
    assert await visible(old, other) == [b"%d" % n for n in range(6)]


# ---------------------------------------------------------------- failures


async def test_a_refused_record_aborts_the_transaction_alone(old, name):
    await create(old, name, partitions=2, max_message_bytes="2048")
    async with producer_of(old, name) as producer:
        for number in range(3):
            with pytest.raises(TransactionAbortedError, match="MESSAGE_TOO_LARGE"):
                async with producer.transaction() as tx:
                    await tx.send(name, b"aborted", partition=0)
                    tx.send_nowait(name, bytes(4_000), partition=number % 2)
            async with producer.transaction() as tx:
                for partition in range(2):
                    await tx.send(name, b"%d" % number, partition=partition)
    for partition in range(2):
        assert await visible(old, name, partition) == [b"0", b"1", b"2"]


async def test_a_later_process_fences_the_earlier_one(old, name):
    await create(old, name)
    async with producer_of(old, name) as first:
        with pytest.raises(ProducerFencedError, match="another producer has begun"):
            async with first.transaction() as tx:
                await tx.send(name, b"zombie")
                async with producer_of(old, name) as second:
                    async with second.transaction() as other:
                        await other.send(name, b"owner")
        with pytest.raises(ProducerFencedError):
            async with first.transaction():
                pass
    assert await visible(old, name) == [b"owner"]


PROGRAM = """
import sys
import anyio
from kafkagroup import Producer

async def main(servers, topic, transactional_id):
    async with Producer(
        bootstrap_servers=servers, transactional_id=transactional_id, transaction_timeout_ms=2_000
    ) as producer:
        async with producer.transaction() as tx:
            await tx.send(topic, b"of a process that died")
            print("open", flush=True)
            await anyio.sleep_forever()

anyio.run(main, *sys.argv[1:])
"""


def abandon(old: Any, name: str) -> None:
    """Let another process open a transaction, and kill it."""
    command = [sys.executable, "-c", PROGRAM, old.bootstrap_servers, name, f"{name}-tx"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        process.send_signal(signal.SIGKILL)


async def test_the_coordinator_aborts_an_abandoned_transaction_at_its_timeout(old, name):
    await create(old, name)
    await run_sync(abandon, old, name)
    async with Producer(bootstrap_servers=old.bootstrap_servers) as plain:
        await plain.send(name, b"plain")
    tp = TopicPartition(name, 0)
    async with Consumer(
        bootstrap_servers=old.bootstrap_servers, isolation_level="read_committed"
    ) as consumer:
        await consumer.assign([tp])
        assert await consumer.end_offsets([tp]) == {tp: 0}
        with anyio.fail_after(20):
            assert (await consumer.getone()).value == b"plain"


async def test_the_next_process_aborts_an_abandoned_transaction_at_once(old, name):
    await create(old, name)
    await run_sync(abandon, old, name)
    async with producer_of(old, name) as producer:
        async with producer.transaction() as tx:
            await tx.send(name, b"next")
    assert await visible(old, name) == [b"next"]
    assert await values(old, name) == [b"of a process that died", b"next"]


async def test_the_error_of_a_transaction_that_timed_out_says_so(old, name):
    await create(old, name)
    async with producer_of(old, name, transaction_timeout_ms=1_000) as producer:
        with pytest.raises(ProducerFencedError, match="transaction_timeout_ms is 1000"):
            async with producer.transaction() as tx:
                await tx.send(name, b"late")
                await anyio.sleep(2.5)
    assert await visible(old, name) == []


# ---------------------------------------------------------------- offsets


async def test_offsets_stand_and_fall_with_the_records(old, name):
    out = f"{name}-out"
    await create(old, out)
    await fill(old, name, 6)
    async with reader_of(old, name) as reader, producer_of(old, name) as producer:
        for number in range(4):
            record = await reader.getone()
            if not has_group_fencing(old):
                with pytest.raises(UnsupportedVersionError, match=r"2\.5"):
                    async with producer.transaction() as tx:
                        await tx.send(out, record.value)
                        await tx.send_offsets(reader)
                async with producer.transaction() as tx:
                    await tx.send(out, record.value)
                continue
            with suppress(InterruptedError):
                async with producer.transaction() as tx:
                    tx.send_nowait(out, record.value)
                    await tx.send_offsets(reader)
                    if number == 3:
                        raise InterruptedError
        (found,) = (await reader.committed()).values()
    if has_group_fencing(old):
        assert found is not None
        assert found.offset == 3
        assert await visible(old, out) == [b"0/0", b"0/1", b"0/2"]
    else:
        assert found is None
        assert await visible(old, out) == [b"0/0", b"0/1", b"0/2", b"0/3"]


async def test_a_member_of_an_earlier_generation_cannot_commit(old, name):
    if not has_group_fencing(old):
        pytest.skip("brokers before 2.5 do not compare generations")
    out = f"{name}-out"
    await create(old, out)
    await fill(old, name, 2)
    async with reader_of(old, name) as reader, producer_of(old, name) as producer:
        await reader.getone()
        known = reader.group_metadata
        import attrs

        reader.group_metadata = lambda: attrs.evolve(  # type: ignore[method-assign]
            known(), generation_id=known().generation_id - 1
        )
        with pytest.raises(CommitFailedError, match="ILLEGAL_GENERATION"):
            async with producer.transaction() as tx:
                await tx.send(out, b"zombie")
                await tx.send_offsets(reader)
        del reader.group_metadata
        async with producer.transaction() as tx:
            await tx.send(out, b"owner")
            await tx.send_offsets(reader)
    assert await visible(old, out) == [b"owner"]


async def test_consume_transform_and_produce(old, name):
    out = f"{name}-out"
    await create(old, out, partitions=3)
    await fill(old, name, 100, partitions=2)
    done = rounds = 0
    async with reader_of(old, name) as reader, producer_of(old, name, linger_ms=5) as producer:
        if not has_group_fencing(old):
            for _ in range(2):
                with pytest.raises(UnsupportedVersionError, match=r"2\.5"):
                    async for tx in producer.transactions(reader, max_records=25):
                        async with tx as records:
                            assert {record.offset for record in records} >= {0}
                            tx.send_nowait(out, records[0].value)
            return
        with anyio.fail_after(60):
            while done < 200:
                with suppress(InterruptedError):
                    async for tx in producer.transactions(reader, max_records=25):
                        rounds += 1
                        if rounds == 7:
                            await run_sync(old.restart, 1)
                        async with tx as records:
                            for record in records:
                                tx.send_nowait(out, record.value, key=record.value)
                            if rounds % 3 == 0:
                                await producer.flush()
                                raise InterruptedError
                        done += len(records)
                        if done >= 200:
                            break
        committed = await reader.committed()
    assert {tp.partition: found and found.offset for tp, found in committed.items()} == {
        0: 100,
        1: 100,
    }
    written = [value for partition in range(3) for value in await visible(old, out, partition)]
    assert sorted(value or b"" for value in written) == sorted(
        b"%d/%d" % (partition, n) for partition in range(2) for n in range(100)
    )


async def test_a_late_addition_does_not_end_the_producer(old, name, monkeypatch):
    """It begins a transaction that this producer does not know of."""
    await create(old, name)
    late: list[Any] = []
    attempt = BrokerClient.attempt

    async def losing(self: BrokerClient, request: Any, **options: Any) -> Any:
        if isinstance(request, AddPartitionsToTxnRequest) and not late:
            late.append(request)
            raise ConnectionLostError("the connection was lost")
        return await attempt(self, request, **options)

    monkeypatch.setattr(BrokerClient, "attempt", losing)
    async with producer_of(old, name) as producer:
        async with producer.transaction() as tx:
            await tx.send(name, b"first")
        host, port = old.address(1).split(":")
        async with Broker.open(host, int(port)) as broker:
            code = ErrorCode.CONCURRENT_TRANSACTIONS  # until the markers are written
            while code == ErrorCode.CONCURRENT_TRANSACTIONS:
                response = await broker.attempt(late[0], highest=3)
                ((_, code),) = add_partitions_codes(response)
            assert code == ErrorCode.NONE
        if not has_group_fencing(old):
            with pytest.raises(UnsupportedVersionError, match="create a new producer"):
                async with producer.transaction():
                    pass
            return
        async with producer.transaction() as tx:
            await tx.send(name, b"second")
    assert await visible(old, name) == [b"first", b"second"]

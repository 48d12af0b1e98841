"""Transactions of this library's producers on real Kafka, in the version that it has finalized."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from brokers import is_embedded
from runtime.produce.transaction_writer import TransactionWriter

from kafkagroup.errors import (
    CommitFailedError,
    ErrorCode,
    ProducerFencedError,
    TransactionAbortedError,
)
from kafkagroup.produce.transaction_vocabulary import GroupIdentity
from kafkagroup.runtime.produce.transactions import TransactionManager
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.coordinators import CoordinatorType
from kafkagroup.transport.options import ClientOptions
from kafkagroup.wire.messages.transactions import EndTxnRequest, InitProducerIdRequest

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    """Return one backend; tests/runtime has the same responses on both."""
    return "asyncio"


@pytest.fixture
def bootstrap(kafka):
    """Only of real brokers: tests/runtime has the embedded one."""
    return kafka


@pytest.fixture
async def writer(bootstrap, name, fill) -> AsyncIterator[TransactionWriter]:
    if await is_embedded(bootstrap):
        pytest.skip("no real Kafka here")
    await fill(2)
    servers = tuple(
        (host, int(port)) for host, port in (a.split(":") for a in bootstrap.split(","))
    )
    async with anyio.create_task_group() as tasks:
        cluster = Cluster(servers, ClientOptions(), tasks)
        with cluster.topics.during({name}):
            await cluster.refresh()
        manager = TransactionManager(cluster, tasks, name, timeout_ms=60_000)
        await manager.initialize(anyio.current_time() + 30)
        yield TransactionWriter(cluster, tasks, manager, bootstrap, name, name)
        manager.close()
        await cluster.aclose()
        tasks.cancel_scope.cancel()


async def sent(writer: TransactionWriter, request: Any, highest: int) -> ErrorCode:
    """Send a request to the coordinator; return the error code."""
    key = writer.manager.transactional_id
    async with writer.cluster.coordinator(key, CoordinatorType.TRANSACTION) as broker:
        response = await broker.request(request, highest=highest, connection_id="another")
    return ErrorCode(response.error_code)


async def test_a_transaction_is_visible_once_it_is_committed(writer):
    for number, commit in enumerate((True, False, True)):
        await writer.begin()
        await writer.written(f"a{number}")
        await writer.written(f"b{number}", 1)
        await writer.send_offsets(100 + number)
        await (writer.commit() if commit else writer.abort())
    assert sorted(await writer.visible()) == ["a0", "a2", "b0", "b2"]


async def test_a_late_request_does_not_end_the_next_transaction(writer):
    await writer.begin()
    await writer.written("one")
    producer_id, epoch = writer.manager.identity
    await writer.commit()
    await writer.begin()
    await writer.written("two")
    late = EndTxnRequest(
        transactional_id=writer.manager.transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        committed=True,
    )
    assert await sent(writer, late, 5) == ErrorCode.PRODUCER_FENCED
    await writer.abort()
    assert await writer.visible() == ["one"]


async def test_another_producer_fences_this_one(writer):
    await writer.begin()
    await writer.written("a")
    other = await writer.another()
    with pytest.raises(ProducerFencedError, match="another producer has begun"):
        await writer.commit()
    await other.begin()
    await other.written("b")
    await other.commit()
    assert await other.visible() == ["b"]


async def test_a_fenced_producer_would_abort_its_successor(writer):
    """Why a fenced producer never asks for an epoch, and none asks for one while the end of its own
    transaction is unknown: in an open transaction the coordinator compares only the producer id."""
    producer_id, epoch = writer.manager.identity
    other = await writer.another()
    await other.begin()
    await other.written("a")
    zombie = InitProducerIdRequest(
        transactional_id=writer.manager.transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=producer_id,
        producer_epoch=epoch,
    )
    assert await sent(writer, zombie, 5) == ErrorCode.CONCURRENT_TRANSACTIONS
    with anyio.fail_after(20):
        while (code := await sent(writer, zombie, 5)) == ErrorCode.CONCURRENT_TRANSACTIONS:
            await anyio.sleep(0.1)
    assert code == ErrorCode.PRODUCER_FENCED
    # Below transaction version 2 the successor is fenced; from there on it can begin another one.
    with pytest.raises((ProducerFencedError, TransactionAbortedError)):
        await other.commit()
    assert await other.visible() == []


async def test_a_member_that_left_cannot_commit(writer):
    await writer.begin()
    with pytest.raises(CommitFailedError):
        await writer.send_offsets(group=GroupIdentity(writer.group_id, 3, "nobody"))
    await writer.abort()
    await writer.begin()
    await writer.send_offsets()
    await writer.commit()

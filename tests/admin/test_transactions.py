"""`Admin` on transactions: what it asks for, and in which order."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import anyio
import pytest
from attrs import evolve
from memory_network import network

from kafkagroup import Admin, Producer, TopicPartition
from kafkagroup.admin import (
    OpenTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionList,
    TransactionState,
    transactions,
)
from kafkagroup.errors import ConfigurationError, IllegalStateError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.transport.metadata import Node
from kafkagroup.wire.messages.transaction_admin import WriteTxnMarkersRequest

__all__ = ["network"]

pytestmark = pytest.mark.anyio

SERVERS = "kafka-1:9092"


async def test_a_transaction_that_ends_between_the_requests_does_not_hang(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was open in its partition, and its coordinator has none that is open."""
    kafka = EmbeddedKafka({"t": 1}, listen=False)
    tp = TopicPartition("t", 0)
    list_transactions = transactions.list_transactions
    async with network, kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(10_000):
            async with (
                Admin(bootstrap_servers=SERVERS) as admin,
                Producer(bootstrap_servers=SERVERS, transactional_id="tx") as producer,
                AsyncExitStack() as stack,
            ):

                async def listed_after_commit(*args: Any, **filters: Any) -> TransactionList:
                    await stack.aclose()
                    await anyio.sleep(10)
                    return await list_transactions(*args, **filters)

                async def begin() -> None:
                    await stack.enter_async_context(producer.transaction())
                    await producer.send("t", value=b"value")

                monkeypatch.setattr(transactions, "list_transactions", listed_after_commit)
                await begin()
                assert await admin.open_transactions(tp) == {tp: ()}
                await begin()
                with pytest.raises(IllegalStateError) as caught:
                    await admin.abort_transaction(tp, 2)
    assert str(caught.value) == (
        "t/0 has no transaction that begins at 2; it has no open transaction"
    )
    assert kafka.requests(WriteTxnMarkersRequest) == []


@pytest.mark.parametrize("state", TransactionState)
def test_a_transaction_that_its_coordinator_ends_does_not_hang(state: TransactionState) -> None:
    """Also one whose producer it is about to fence. Of a state that is unknown here nothing is
    known: its transaction is not aborted without `force`."""
    tp, ended = TopicPartition("t", 0), {"Empty", "CompleteCommit", "CompleteAbort", "Dead"}
    producer = ProducerDescription(
        producer_id=7,
        producer_epoch=0,
        last_sequence=1,
        last_written_at=None,
        coordinator_epoch=-1,
        transaction_start_offset=2,
    )
    known = TransactionDescription(
        transactional_id="tx",
        state=state,
        producer_id=7,
        producer_epoch=0,
        timeout=60.0,
        started_at=None,
        partitions=(tp,),
        coordinator=Node(1, "kafka-1", 9092),
    )
    opened = OpenTransaction(partition=tp, producer=producer, start_offset=2, transaction=known)
    elsewhere = evolve(opened, transaction=evolve(known, partitions=()))
    unlisted = evolve(opened, transaction=None)
    assert opened.is_hanging == (state in ended)
    assert elsewhere.is_hanging
    assert unlisted.is_hanging


@pytest.mark.parametrize(
    ("states", "listed"),
    [
        ((), ["open"]),
        ((TransactionState.ONGOING, TransactionState.EMPTY), ["open"]),
        ((TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT), []),
    ],
)
async def test_an_id_without_an_open_transaction_has_none_that_is_open_for_long(
    network: Any, states: tuple[TransactionState, ...], listed: list[str]
) -> None:
    """Brokers compare the start alone, and select ids without a transaction."""
    kafka = EmbeddedKafka({"t": 1}, listen=False)
    async with network, kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(10_000):
            async with (
                Admin(bootstrap_servers=SERVERS) as admin,
                Producer(bootstrap_servers=SERVERS, transactional_id="empty"),
                Producer(bootstrap_servers=SERVERS, transactional_id="ended") as ended,
                Producer(bootstrap_servers=SERVERS, transactional_id="open") as producer,
            ):
                async with ended.transaction() as tx:
                    await tx.send("t", b"value")
                async with producer.transaction() as tx:
                    await tx.send("t", b"value")
                    await anyio.sleep(20)
                    found = await admin.list_transactions(
                        states=states, open_longer_than=timedelta(seconds=10)
                    )
    assert [one.transactional_id for one in found.transactions] == listed
    assert found.errors == {}


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"pattern": re.compile("tx.*")}, r"^pattern=re.compile\('tx.*'\); expected a string$"),
        ({"producer_ids": ["7"]}, r"^producer_ids=\('7',\); expected whole numbers$"),
        ({"open_longer_than": 5}, r"^open_longer_than=5; expected a datetime.timedelta$"),
    ],
)
async def test_a_filter_of_a_wrong_type_is_not_said_to_need_a_newer_broker(
    network: Any, filters: Any, message: str
) -> None:
    kafka = EmbeddedKafka({"t": 1}, listen=False)
    async with network, kafka:
        network.serve_embedded(kafka)
        async with Admin(bootstrap_servers=SERVERS) as admin:
            with pytest.raises(ConfigurationError, match=message):
                await admin.list_transactions(**filters)
            number: Any = 7
            with pytest.raises(
                ConfigurationError, match=r"^transactional_id=7; expected a string$"
            ):
                await admin.describe_transaction(number)

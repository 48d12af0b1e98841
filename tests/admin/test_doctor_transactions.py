"""`doctor` on transactions that keep consumers with `read_committed` from records."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from memory_network import network

from kafkagroup.admin.doctor import Finding, Status
from kafkagroup.admin.doctor.transactions import examine_transactions
from kafkagroup.broker import Broker
from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings
from kafkagroup.transport.options import ClientOptions
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.offsets import ListOffsetsRequest
from kafkagroup.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkagroup.wire.messages.transaction_list import ListTransactionsRequest
from kafkagroup.wire.messages.transactions import InitProducerIdRequest

__all__ = ["network"]

pytestmark = pytest.mark.anyio

CHECK = "last stable offset"
TIMEOUT = 30
"""Seconds of the transactions."""
HUNG = 4000
"""The producer id of transactions that hang."""


@asynccontextmanager
async def cluster(network: Any, **settings: Any) -> AsyncIterator[EmbeddedKafka]:
    kafka = EmbeddedKafka({"t": 8}, listen=False, settings=BrokerSettings(**settings))
    async with network, kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(10_000):
            yield kafka


async def examine(partitions: int = 2) -> list[Finding]:
    options = ClientOptions(request_timeout=10.0)
    return await examine_transactions([("kafka-1", 9092)], options, "t", range(partitions))


def hang(kafka: EmbeddedKafka, partition: int, age: float) -> None:
    """Append a transaction that no coordinator knows."""
    batch = encode_batch(
        [NewRecord(None, b"hung", int((time.time() - age) * 1000))] * 2,
        producer_id=HUNG,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    kafka.append("t", partition, batch)


async def begin(transactional_id: str = "tx", partition: int = 0) -> int:
    """Begin a transaction with one record; return its producer id."""
    async with Broker.open("kafka-1", 9092) as broker:
        given = await broker.request(
            InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT * 1000
            )
        )
        batch = encode_batch(
            [NewRecord(None, b"value", int(time.time() * 1000))],
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        data = PartitionProduceData(index=partition, records=batch)
        response = await broker.request(
            ProduceRequest(
                transactional_id=transactional_id,
                acks=-1,
                timeout_ms=1000,
                topic_data=(TopicProduceData(name="t", partition_data=(data,)),),
            ),
            highest=12,
        )
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    return int(given.producer_id)


def good(text: str) -> list[Finding]:
    return [Finding(check=CHECK, subject="t", status=Status.OK, text=text)]


async def test_without_open_transactions_nothing_is_found(network: Any) -> None:
    async with cluster(network) as kafka:
        kafka.produce("t", ["value"])
        assert await examine() == good("no open transaction")
        assert kafka.requests(ListTransactionsRequest) == []


async def test_a_transaction_within_its_timeout_is_no_problem(network: Any) -> None:
    async with cluster(network):
        await begin()
        await anyio.sleep(10)
        text = "1 open transaction, the oldest for 10 s; none for longer than its timeout"
        assert await examine() == good(text)


async def test_a_transaction_that_hangs(network: Any) -> None:
    async with cluster(network) as kafka:
        kafka.produce("t", ["value"], partition=1)
        hang(kafka, 1, age=3 * 3600)
        assert await examine() == [
            Finding(
                check=CHECK,
                subject="t/1",
                status=Status.FAILED,
                text=(
                    "consumers with read_committed get nothing from offset 1 on, of 3: the"
                    " transaction of producer id 4000 hangs: it was last written to 3 h ago, and no"
                    " coordinator has it"
                ),
                advice=(
                    "see that the producer has ended, and abort the transaction:"
                    " Admin.abort_transaction(('t', 1), 1). Without the right to describe its"
                    " transactional id it only seems to hang"
                ),
            )
        ]


async def test_what_hangs_for_less_than_the_longest_timeout_may_still_end(network: Any) -> None:
    """Its transactional id may be one that the client may not describe."""
    async with cluster(network) as kafka:
        hang(kafka, 0, age=10 * 60)
        text = "1 open transaction, the oldest for 10 min; none for longer than its timeout"
        assert await examine() == good(text)


async def test_a_transaction_that_its_coordinator_has_not_ended_in_time(network: Any) -> None:
    """Its markers cannot be written."""
    async with cluster(network, transaction_marker_delay=5_000.0):
        producer_id = await begin()
        await anyio.sleep(TIMEOUT + 50)
        (finding,) = await examine()
        assert finding.status is Status.OK
        await anyio.sleep(120)
        assert await examine() == [
            Finding(
                check=CHECK,
                subject="t/0",
                status=Status.FAILED,
                text=(
                    "consumers with read_committed get nothing from offset 0 on, of 1: the"
                    f" transaction of producer id {producer_id} (transactional id 'tx') is open for"
                    " 3 min, beyond its timeout of 30 s, in state PrepareAbort"
                ),
                advice=(
                    "look into the log of its coordinator, broker 1 at kafka-1:9092, which should"
                    " have ended it; a producer that starts with transactional id 'tx' aborts it"
                ),
            )
        ]


async def test_of_many_partitions_a_few_are_named(network: Any) -> None:
    async with cluster(network) as kafka:
        for partition in range(8):
            hang(kafka, partition, age=3600)
        findings = await examine(8)
        assert [one.subject for one in findings] == [f"t/{n}" for n in range(5)] + ["t"]
        assert (findings[-1].status, findings[-1].text, findings[-1].advice) == (
            Status.FAILED,
            "3 more partitions like these",
            "",
        )


async def test_what_cannot_be_asked_for_is_not_checked(network: Any) -> None:
    async with cluster(network) as kafka:
        kafka.fail(ListOffsetsRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED, times=1)
        (finding,) = await examine()
        assert finding.status is Status.NOT_CHECKED
        hang(kafka, 0, age=3600)
        kafka.fail(ListTransactionsRequest, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, times=1)
        (finding,) = await examine()
        assert finding.status is Status.NOT_CHECKED

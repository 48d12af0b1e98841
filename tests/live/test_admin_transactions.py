"""Transactions listed, described and aborted by `Admin`; producers by partition."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import attrs
import pytest
from anyio.to_thread import run_sync
from confluent_kafka import Producer

from kafkagroup import ConfigurationError, Consumer, TopicPartition
from kafkagroup.admin import (
    Admin,
    NewTopic,
    OpenTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from kafkagroup.admin.doctor import Status, examine
from kafkagroup.broker import Broker
from kafkagroup.errors import AuthorizationError, BrokerError, ErrorCode, IllegalStateError
from kafkagroup.testing import EmbeddedKafka, LocalKafka
from kafkagroup.testing.local import LocalKafkaUnavailable
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest
from kafkagroup.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkagroup.wire.messages.transaction_admin import (
    DescribeTransactionsRequest,
    WriteTxnMarkersRequest,
)
from kafkagroup.wire.messages.transactions import InitProducerIdRequest

pytestmark = pytest.mark.anyio

AN_HOUR_AGO = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)


@pytest.fixture
def anyio_backend() -> str:
    """Return one backend: what differs between them is below the requests."""
    return "asyncio"


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=bootstrap) as client:
        yield client


@pytest.fixture
def producer_of(bootstrap: str, name: str) -> Callable[[str], Awaitable[Producer]]:
    async def made(transactional_id: str) -> Producer:
        options = {
            "bootstrap.servers": bootstrap,
            "linger.ms": 0,
            "transactional.id": f"{name}-{transactional_id}",
            "transaction.timeout.ms": 50_000,
        }
        producer = Producer(options)
        await run_sync(producer.init_transactions, 20)
        return producer

    return made


async def write(producer: Producer, name: str, *partitions: int) -> None:
    for partition in partitions:
        producer.produce(name, "value", partition=partition)
    assert await run_sync(producer.flush, 20) == 0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """The coordinator writes markers after it has answered."""
    with anyio.fail_after(20):
        while not await condition():
            await anyio.sleep(0.02)


async def test_transactions_are_listed_and_described(
    admin: Admin, name: str, fill: Any, producer_of: Any
) -> None:
    await fill(3)
    began = datetime.now(UTC) - timedelta(seconds=5)
    red, blue = await producer_of("red"), await producer_of("blue")
    red.begin_transaction()
    await write(red, name, 0, 2)
    described = await admin.describe_transaction(f"{name}-red")
    assert described.started_at is not None
    assert began < described.started_at < datetime.now(UTC) + timedelta(seconds=5)
    coordinator = described.coordinator
    assert described == TransactionDescription(
        transactional_id=f"{name}-red",
        state=TransactionState.ONGOING,
        producer_id=described.producer_id,
        producer_epoch=described.producer_epoch,
        timeout=50.0,
        started_at=described.started_at,
        partitions=(TopicPartition(name, 0), TopicPartition(name, 2)),
        coordinator=coordinator,
    )
    listed = await admin.list_transactions(states=[TransactionState.ONGOING])
    assert not listed.errors
    red_one = TransactionListing(
        transactional_id=f"{name}-red",
        producer_id=described.producer_id,
        state=TransactionState.ONGOING,
        coordinator=coordinator,
    )
    assert red_one in listed.transactions

    async def names(**filters: Any) -> list[str]:
        found = await admin.list_transactions(**filters)
        assert not found.errors
        ids = [one.transactional_id for one in found.transactions]
        return [one.removeprefix(f"{name}-") for one in ids if one.startswith(name)]

    assert await names() == ["blue", "red"]
    assert await names(pattern=f"{name}-b.*") == ["blue"]
    assert await names(pattern="b.*") == []  # as a whole
    assert await names(states=[TransactionState.EMPTY]) == ["blue"]
    assert await names(producer_ids=[described.producer_id]) == ["red"]
    assert await names(open_longer_than=timedelta(0)) == ["red"]
    assert await names(open_longer_than=timedelta(hours=1)) == []

    async def is_committed() -> bool:
        one = await admin.describe_transaction(f"{name}-red")
        return one.state is TransactionState.COMPLETE_COMMIT

    await run_sync(red.commit_transaction, 20)
    await until(is_committed)
    after = await admin.describe_transaction(f"{name}-red")
    assert (after.started_at, after.partitions) == (None, ())
    assert await names(open_longer_than=timedelta(0)) == []
    blue.begin_transaction()
    await run_sync(blue.abort_transaction, 20)

    results = await admin.describe_transactions([f"{name}-blue", f"{name}-none"])
    blue_one, missing = results.values()
    assert isinstance(blue_one, TransactionDescription)
    assert blue_one.started_at is None
    assert isinstance(missing, BrokerError)
    assert missing.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert f"describing transactional id '{name}-none'" in str(missing)


async def test_producers_of_a_partition_and_their_open_transactions(
    admin: Admin, name: str, fill: Any, producer_of: Any
) -> None:
    await fill(2)
    one, other, missing = (TopicPartition(name, number) for number in (0, 1, 2))
    red = await producer_of("red")
    red.begin_transaction()
    await write(red, name, 0, 0)
    found = await admin.describe_producers([one, other, missing])
    (producer,) = found[one]
    assert producer.last_written_at > datetime.now(UTC) - timedelta(minutes=1)
    described = await admin.describe_transaction(f"{name}-red")
    assert producer == ProducerDescription(
        producer_id=described.producer_id,
        producer_epoch=described.producer_epoch,
        last_sequence=1,
        last_written_at=producer.last_written_at,
        coordinator_epoch=-1,
        transaction_start_offset=0,
    )
    assert found[other] == ()
    assert found[missing].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    opened = await admin.open_transactions([one, other])
    assert opened == {
        one: (
            OpenTransaction(
                partition=one, producer=producer, start_offset=0, transaction=described
            ),
        ),
        other: (),
    }
    assert not opened[one][0].is_hanging
    with pytest.raises(IllegalStateError, match=f"Ongoing under transactional id '{name}-red'"):
        await admin.abort_transaction(one, 0)
    await run_sync(red.commit_transaction, 20)

    async def is_over() -> bool:
        return (await admin.open_transactions([one]))[one] == ()

    await until(is_over)
    (after,) = (await admin.describe_producers([one]))[one]
    assert (after.transaction_start_offset, after.coordinator_epoch) == (None, 0)
    assert after.producer_id == producer.producer_id
    with pytest.raises(IllegalStateError, match=r"begins at 0; it has no open transaction"):
        await admin.abort_transaction(one, 0)


async def test_a_transaction_is_aborted_by_force(
    admin: Admin, bootstrap: str, name: str, fill: Any, producer_of: Any
) -> None:
    await fill(1)
    tp = TopicPartition(name, 0)
    red, blue = await producer_of("red"), await producer_of("blue")
    red.begin_transaction()
    blue.begin_transaction()
    await write(red, name, 0)
    await write(blue, name, 0)
    await run_sync(blue.commit_transaction, 20)
    with pytest.raises(IllegalStateError, match=r"begins at 1; the open ones begin at 0"):
        await admin.abort_transaction(tp, 1)
    await admin.abort_transaction(tp, 0, force=True)
    assert (await admin.open_transactions([tp]))[tp] == ()
    async with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        await consumer.assign([tp])
        with anyio.fail_after(20):
            assert (await consumer.getone()).offset == 1


async def test_arguments_are_checked(admin: Admin) -> None:
    with pytest.raises(ConfigurationError, match="several transactional ids, not 'tx' alone"):
        await admin.describe_transactions("tx")
    with pytest.raises(ConfigurationError, match="transactional_id is empty"):
        await admin.describe_transaction("")
    with pytest.raises(ConfigurationError, match="'Bogus' is none of CompleteAbort"):
        await admin.list_transactions(states=["Bogus"])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="the offset for t/0 is -1"):
        await admin.abort_transaction(("t", 0), -1)
    invalid = await admin.list_transactions(pattern="(")
    assert {error.code for error in invalid.errors.values()} == {  # type: ignore[attr-defined]
        ErrorCode.INVALID_REGULAR_EXPRESSION
    }


# ---------------------------------------------------------------- transactions that hang


@attrs.frozen
class Hanging:
    """A broker whose partition `t-0` has transactions that no coordinator knows."""

    servers: str
    embedded: EmbeddedKafka | None


@pytest.fixture(scope="module", params=["embedded", pytest.param("kafka", marks=pytest.mark.slow)])
def hanging(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Hanging]:
    if request.param == "embedded":
        with EmbeddedKafka() as embedded:
            yield Hanging(embedded.bootstrap_servers, embedded)
        return
    # Since KIP-890 a broker asks the coordinator before the first record of a transaction.
    unverified = {"transaction.partition.verification.enable": "false"}
    kafka = LocalKafka(config=unverified, directory=tmp_path_factory.mktemp("kafka"))
    try:
        kafka.start()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"hanging transactions are NOT TESTED on real Kafka: {error}")
    yield Hanging(kafka.bootstrap_servers, None)
    kafka.stop()


async def written(broker: Broker, produce: ProduceRequest) -> None:
    while True:
        response = await broker.request(produce, highest=9)
        (result,) = response.responses[0].partition_responses
        if not result.error_code:
            return
        # The leader of a topic just made is not up yet.
        assert result.error_code in (3, 5, 6)
        await anyio.sleep(0.02)


@asynccontextmanager
async def with_hanging(hanging: Hanging, name: str) -> AsyncIterator[tuple[Admin, TopicPartition]]:
    """Yield a partition with two records of a transaction that hangs, and one record after it."""
    tp = TopicPartition(name, 0)
    host, port = hanging.servers.split(":")
    async with Admin(bootstrap_servers=hanging.servers) as admin:
        await admin.create_topics(
            [NewTopic(name=name, partitions=1, configs={"retention.ms": "-1"})]
        )
        async with Broker.open(host, int(port)) as broker:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
            while (given := await broker.request(request)).error_code:
                await anyio.sleep(0.02)  # the broker has just started
            stamp = int(AN_HOUR_AGO.timestamp() * 1000)
            hung = encode_batch(
                [NewRecord(None, b"hung", stamp)] * 2,
                producer_id=given.producer_id,
                producer_epoch=given.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
            plain = encode_batch([NewRecord(None, b"plain", stamp)])
            for batch, transactional_id in ((hung, "unknown"), (plain, None)):
                if hanging.embedded is not None:
                    hanging.embedded.append(name, 0, batch)
                    continue
                data = PartitionProduceData(index=0, records=batch)
                produce = ProduceRequest(
                    transactional_id=transactional_id,
                    acks=-1,
                    timeout_ms=1_000,
                    topic_data=(TopicProduceData(name=name, partition_data=(data,)),),
                )
                await written(broker, produce)
        yield admin, tp


async def test_a_transaction_that_hangs_is_found_and_aborted(hanging: Hanging, name: str) -> None:
    async with with_hanging(hanging, name) as (admin, tp):
        (found,) = (await admin.open_transactions(tp))[tp]
        assert found == OpenTransaction(
            partition=tp,
            start_offset=0,
            transaction=None,
            producer=ProducerDescription(
                producer_id=found.producer.producer_id,
                producer_epoch=0,
                last_sequence=1,
                last_written_at=AN_HOUR_AGO,
                coordinator_epoch=-1,
                transaction_start_offset=0,
            ),
        )
        assert found.is_hanging
        options = {"bootstrap_servers": hanging.servers, "isolation_level": "read_committed"}
        async with Consumer(**options) as consumer:
            await consumer.assign([tp])
            assert await consumer.end_offsets([tp]) == {tp: 0}
            findings = [one async for one in examine(hanging.servers, topics=[name])]
            (stuck,) = (one for one in findings if one.check == "last stable offset")
            assert (stuck.status, stuck.subject) == (Status.FAILED, f"{tp}")
            assert f"Admin.abort_transaction(('{name}', 0), 0)" in stuck.advice
            await admin.abort_transaction(tp, found.start_offset)
            with anyio.fail_after(20):
                assert (await consumer.getone()).offset == 2
        assert (await admin.open_transactions(tp))[tp] == ()


async def test_a_lost_response_to_an_abort_is_no_error(name: str) -> None:
    with EmbeddedKafka() as embedded:
        hanging = Hanging(embedded.bootstrap_servers, embedded)
        async with with_hanging(hanging, name) as (admin, tp):
            error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            embedded.fail(WriteTxnMarkersRequest, error, partition=tp, executed=True)
            await admin.abort_transaction(tp, 0)
            assert (await admin.open_transactions(tp))[tp] == ()
            assert len(embedded.requests(WriteTxnMarkersRequest)) == 2


@pytest.mark.parametrize("api", [FindCoordinatorRequest, DescribeTransactionsRequest])
async def test_a_denied_transactional_id_is_named(api: Any, name: str) -> None:
    with EmbeddedKafka() as embedded:
        embedded.fail(api, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        async with Admin(bootstrap_servers=embedded.bootstrap_servers) as admin:
            with pytest.raises(AuthorizationError) as caught:
                await admin.describe_transaction(name)
    assert (caught.value.operation, caught.value.resource) == (
        "DESCRIBE",
        f"transactional id '{name}'",
    )

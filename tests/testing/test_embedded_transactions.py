"""Producers and transactions of the embedded broker: what `tests/verification/model` does not
compare with Kafka, which are its faults, its settings, and what survives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest
from testing.peers import LOOPS, VIRTUAL, Peer, connected, in_memory

from kafkagroup import Consumer
from kafkagroup.errors import ConfigurationError, ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings, Late, ProducerState
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.group import DeleteGroupsRequest
from kafkagroup.wire.messages.metadata import ApiVersionsRequest
from kafkagroup.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kafkagroup.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kafkagroup.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkagroup.wire.messages.transaction_admin import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kafkagroup.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

pytestmark = pytest.mark.anyio
NONE = ErrorCode.NONE
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@attrs.define
class Writer:
    """A producer that is transactional under "tx", or only idempotent."""

    peer: Peer
    transactional: bool = True
    producer_id: int = -1
    epoch: int = -1

    async def begin(self) -> int:
        request = InitProducerIdRequest(
            transactional_id="tx" if self.transactional else None, transaction_timeout_ms=10_000
        )
        response = await self.peer.ask(request, 5)
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return int(response.error_code)

    async def begin_again(self, version: int = 5) -> int:
        """Ask for the next epoch."""
        request = InitProducerIdRequest(
            transactional_id="tx" if self.transactional else None,
            transaction_timeout_ms=10_000,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )
        response = await self.peer.ask(request, version)
        if response.error_code == NONE:
            self.epoch = response.producer_epoch
        return int(response.error_code)

    async def add(self, partition: TopicPartition) -> list[int]:
        """Add a partition as below transaction version 2; return its error code."""
        topic = AddPartitionsToTxnTopic(name=partition.topic, partitions=(partition.partition,))
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=(topic,),
        )
        response = await self.peer.ask(request, 3)
        results = response.results_by_topic_v3_and_below[0].results_by_partition
        return [p.partition_error_code for p in results]

    def writing(self, value: str, sequence: int, partitions: int = 1) -> ProduceRequest:
        batch = encode_batch(
            [NewRecord(None, value.encode())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=self.transactional,
        )
        data = tuple(PartitionProduceData(index=n, records=batch) for n in range(partitions))
        return ProduceRequest(
            transactional_id="tx" if self.transactional else None,
            acks=-1,
            timeout_ms=1000,
            topic_data=(TopicProduceData(name="t", partition_data=data),),
        )

    async def write(self, value: str, sequence: int = 0, partitions: int = 1) -> list[int]:
        """Return the error code of each partition."""
        response = await self.peer.ask(self.writing(value, sequence, partitions), 12)
        return [p.error_code for p in response.responses[0].partition_responses]

    def committing(
        self, offsets: Mapping[TopicPartition, int], *, group: str, metadata: str, **fields: Any
    ) -> TxnOffsetCommitRequest:
        topics = (
            TxnOffsetCommitRequestTopic(
                name=tp.topic,
                partitions=(
                    TxnOffsetCommitRequestPartition(
                        partition_index=tp.partition,
                        committed_offset=offset,
                        committed_metadata=metadata,
                    ),
                ),
            )
            for tp, offset in offsets.items()
        )
        return TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=tuple(topics),
            **fields,
        )

    async def commit_offsets(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        group: str = "g",
        metadata: str = "",
        **fields: Any,
    ) -> list[int]:
        """Return the error code of each topic's partition."""
        request = self.committing(offsets, group=group, metadata=metadata, **fields)
        response = await self.peer.ask(request, 5)
        return [topic.partitions[0].error_code for topic in response.topics]

    def ending(self, *, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id="tx",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    async def end(self, *, commit: bool = True) -> int:
        response = await self.peer.ask(self.ending(commit=commit), 5)
        if response.error_code == NONE:
            self.epoch = response.producer_epoch
        return int(response.error_code)


@asynccontextmanager
async def writer(
    settings: BrokerSettings | None = None, *, transactional: bool = True
) -> AsyncIterator[tuple[EmbeddedKafka, Writer]]:
    kafka = EmbeddedKafka({"t": 2}, listen=False, settings=settings)
    async with in_memory(kafka) as (peer,):
        made = Writer(peer, transactional)
        assert await made.begin() == NONE
        yield kafka, made


# ---------------------------------------------------------------- faults


@VIRTUAL
async def test_one_partition_of_a_produce_is_refused() -> None:
    async with writer(transactional=False) as (kafka, producer):
        kafka.fail(ProduceRequest, ErrorCode.NOT_ENOUGH_REPLICAS, partition=T1)
        refused = [NONE, ErrorCode.NOT_ENOUGH_REPLICAS]
        assert await producer.write("a", partitions=2) == refused
        assert (kafka.log_end("t", 0), kafka.log_end("t", 1)) == (1, 0)


@VIRTUAL
async def test_a_refused_partition_may_have_been_written() -> None:
    async with writer(transactional=False) as (kafka, producer):
        error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        kafka.fail(ProduceRequest, error, partition=T0, executed=True)
        assert await producer.write("a") == [error]
        assert kafka.log_end("t", 0) == 1
        assert await producer.write("a") == [NONE]  # the same batch
        assert kafka.log_end("t", 0) == 1


@LOOPS
async def test_a_request_is_executed_after_its_connection_has_ended() -> None:
    async with EmbeddedKafka({"t": 1}) as kafka:
        fault = kafka.fail(ProduceRequest, Late(0.05))
        async with connected(kafka) as peer:
            producer = Writer(peer, transactional=False)
            await producer.begin()
            with pytest.raises(anyio.IncompleteRead):
                await producer.write("a")
        assert (fault.hits, kafka.log_end("t", 0)) == (1, 0)
        with anyio.fail_after(10):
            while not kafka.log_end("t", 0):
                await anyio.sleep(0.01)


# ---------------------------------------------------------------- settings


@VIRTUAL
async def test_a_transaction_cannot_follow_before_the_markers_are_written() -> None:
    settings = BrokerSettings(transaction_marker_delay=2.0)
    async with writer(settings) as (kafka, producer):
        assert await producer.write("a") == [NONE]
        assert kafka.transaction_state("tx") == "Ongoing"
        assert await producer.end() == NONE
        assert (kafka.transaction_state("tx"), kafka.stable_end("t", 0)) == ("PrepareCommit", 0)
        assert await producer.write("b") == [ErrorCode.CONCURRENT_TRANSACTIONS]
        for commits in (True, False):
            assert await producer.end(commit=commits) == ErrorCode.CONCURRENT_TRANSACTIONS
        assert await producer.begin() == ErrorCode.CONCURRENT_TRANSACTIONS
        await anyio.sleep(2.1)
        assert (kafka.transaction_state("tx"), kafka.stable_end("t", 0)) == ("CompleteCommit", 2)


@VIRTUAL
async def test_a_transaction_ends_at_its_timeout() -> None:
    async with writer() as (kafka, producer):
        assert await producer.write("a") == [NONE]
        await anyio.sleep(9.0)
        assert kafka.transaction_state("tx") == "Ongoing"
        await anyio.sleep(1.1)
        assert kafka.transaction_state("tx") == "CompleteAbort"
        assert await producer.write("b", 1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert await producer.end() == ErrorCode.INVALID_TXN_STATE


@VIRTUAL
@pytest.mark.parametrize(
    ("transaction_version", "version", "error"),
    [
        (0, 4, ErrorCode.PRODUCER_FENCED),
        (1, 4, ErrorCode.PRODUCER_FENCED),
        (1, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 4, NONE),
    ],
)
async def test_a_producer_may_go_on_after_its_timeout_in_transaction_version_2(
    transaction_version: int, version: int, error: ErrorCode
) -> None:
    settings = BrokerSettings(transaction_version=transaction_version)
    async with writer(settings) as (kafka, producer):
        assert await producer.add(T0) == [NONE]
        await anyio.sleep(10.1)
        assert kafka.transaction_state("tx") == "CompleteAbort"
        assert await producer.begin_again(version) == error
        if not error:
            assert producer.epoch == 1


@VIRTUAL
async def test_a_transaction_keeps_the_epoch_before_its_own() -> None:
    async with writer(BrokerSettings(transaction_version=1)) as (_, producer):
        assert (await producer.begin_again(), producer.epoch) == (NONE, 1)
        assert await producer.add(T0) == [NONE]
        response = await producer.peer.ask(producer.ending(commit=True), 4)
        assert response.error_code == NONE
        producer.epoch = 0  # of the InitProducerId above, whose response is lost
        assert (await producer.begin_again(), producer.epoch) == (NONE, 1)


@VIRTUAL
async def test_an_unused_transactional_id_is_forgotten() -> None:
    async with writer(BrokerSettings(transactional_id_expiration=60.0)) as (kafka, producer):
        assert await producer.write("a") == [NONE]
        assert await producer.end() == NONE
        await anyio.sleep(59.0)
        assert await producer.write("b") == [NONE]
        assert await producer.end() == NONE
        await anyio.sleep(61.0)
        assert kafka.transaction_state("tx") == "Dead"
        assert await producer.write("c") == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


@VIRTUAL
async def test_a_partition_forgets_a_producer_that_does_not_write() -> None:
    settings = BrokerSettings(producer_id_expiration=60.0, any_first_sequence=False)
    async with writer(settings, transactional=False) as (_, producer):
        assert await producer.write("a", 1) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        assert await producer.write("a", 0) == [NONE]
        await anyio.sleep(50.0)
        assert await producer.write("b", 1) == [NONE]
        await anyio.sleep(50.0)
        assert await producer.write("c", 2) == [NONE]
        await anyio.sleep(61.0)
        assert await producer.write("d", 3) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        assert await producer.write("d", 0) == [NONE]


@VIRTUAL
async def test_the_last_epoch_is_followed_by_another_producer_id() -> None:
    async with writer() as (kafka, producer):
        found = kafka._cluster.transaction_coordinator.transactions["tx"]
        found.identity = attrs.evolve(found.identity, epoch=32766)
        producer.epoch, first = 32766, producer.producer_id
        assert await producer.write("a") == [NONE]
        response = await producer.peer.ask(producer.ending(commit=True), 5)
        assert (response.producer_id > first, response.producer_epoch) == (True, 0)
        # The response was lost.
        assert await producer.peer.ask(producer.ending(commit=True), 5) == response
        assert await producer.add(T0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        # The marker has the epoch after the last one.
        assert await producer.write("b", 1) == [ErrorCode.INVALID_PRODUCER_EPOCH]


@VIRTUAL
@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize(("producer_id", "epoch"), [(0, -1), (-1, 0)])
async def test_half_an_identity_is_refused(
    producer_id: int, epoch: int, transactional: bool
) -> None:
    async with writer(transactional=transactional) as (_, producer):
        producer.producer_id, producer.epoch = producer_id, epoch
        assert await producer.begin_again() == ErrorCode.INVALID_REQUEST


@VIRTUAL
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_clients_see_the_transaction_version(version: int) -> None:
    async with writer(BrokerSettings(transaction_version=version)) as (kafka, producer):

        async def finalized() -> tuple[int, dict[str, int]]:
            response = await producer.peer.ask(ApiVersionsRequest(**SOFTWARE), 4)
            levels = {f.name: f.max_version_level for f in response.finalized_features}
            return response.finalized_features_epoch, levels

        expected = {"group.version": 1, "transaction.version": version}
        assert await finalized() == (0, {name: at for name, at in expected.items() if at})
        kafka.set_transaction_version(1)
        assert await finalized() == (1, {"group.version": 1, "transaction.version": 1})
        with pytest.raises(ConfigurationError, match="0, 1 or 2, not 3"):
            kafka.set_transaction_version(3)


SOFTWARE: dict[str, Any] = {"client_software_name": "test", "client_software_version": "1"}


@VIRTUAL
async def test_a_batch_of_an_open_transaction_needs_the_transactional_id() -> None:
    async with writer() as (kafka, producer):
        assert await producer.write("a") == [NONE]
        request = attrs.evolve(producer.writing("b", 1), transactional_id=None)
        response = await producer.peer.ask(request, 12)
        error = response.responses[0].partition_responses[0].error_code
        assert error == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert kafka.log_end("t", 0) == 1


@VIRTUAL
async def test_a_batch_of_an_epoch_before_the_partitions_begins_no_transaction() -> None:
    """A marker counts as a use of its producer, which was forgotten on a clock above a day."""
    for _ in range(2):
        await anyio.sleep(50_000)
    async with writer() as (kafka, producer):
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch + 1,
            transaction_result=False,
            topics=(WritableTxnMarkerTopic(name="t", partition_indexes=(0,)),),
            coordinator_epoch=0,
        )
        await producer.peer.ask(WriteTxnMarkersRequest(markers=(marker,)), 1)
        assert await producer.write("a") == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert kafka.transaction_state("tx") == "Empty"


@VIRTUAL
async def test_the_last_of_two_batches_for_a_partition_is_written() -> None:
    async with writer(transactional=False) as (kafka, producer):
        first, second = producer.writing("a", 0), producer.writing("b", 1)
        (topic,), (other,) = first.topic_data, second.topic_data
        data = topic.partition_data + other.partition_data
        request = attrs.evolve(first, topic_data=(attrs.evolve(topic, partition_data=data), other))
        response = await producer.peer.ask(request, 12)
        assert len(response.responses) == len(response.responses[0].partition_responses) == 1
        assert kafka.log_end("t", 0) == 1
        assert kafka.producers("t", 0)[0].last_sequence == 1


# ---------------------------------------------------------------- what survives


@VIRTUAL
async def test_a_truncated_log_forgets_what_is_gone() -> None:
    async with writer() as (kafka, producer):
        kafka.produce("t", ["before"], partition=0)
        assert await producer.write("a") == [NONE]
        assert (kafka.stable_end("t", 0), kafka.log_end("t", 0)) == (1, 2)
        kafka.truncate("t", 0, 1)
        assert (kafka.stable_end("t", 0), kafka.log_end("t", 0)) == (1, 1)
        assert await producer.write("a") == [NONE]
        assert (kafka.stable_end("t", 0), kafka.log_end("t", 0)) == (1, 2)


@VIRTUAL
async def test_a_truncated_log_knows_the_producers_of_the_batches_that_remain() -> None:
    settings = BrokerSettings(producer_id_expiration=60.0, any_first_sequence=False)
    async with writer(settings, transactional=False) as (kafka, producer):
        await anyio.sleep(100.0)
        assert await producer.write("a", 0) == [NONE]
        assert await producer.write("b", 1) == [NONE]
        kafka.truncate("t", 0, 1)
        assert await producer.write("b", 1) == [NONE]


@VIRTUAL
async def test_deleted_records_of_an_open_transaction_end_below_the_last_stable_offset() -> None:
    async with writer() as (kafka, producer):
        assert await producer.write("a") == [NONE]
        assert await producer.write("b", 1) == [NONE]
        kafka.produce("t", ["c", "d", "e"], partition=0)
        # The batch of "c" is at the offsets 2 to 4.
        for log_start, stable_end in ((1, 1), (2, 2), (4, 2), (5, 5)):
            kafka.delete_records("t", 0, log_start)
            assert kafka.stable_end("t", 0) == stable_end
        assert await producer.end() == NONE
        assert kafka.stable_end("t", 0) == 6


@LOOPS
async def test_another_node_continues_a_transaction() -> None:
    async with EmbeddedKafka({"t": 1}, nodes=2) as kafka:
        kafka.move_coordinator("tx", 1)
        kafka.move_leader("t", 0, 1)
        async with connected(kafka, 1) as first, connected(kafka, 2) as second:
            other = Writer(second)
            assert await other.begin() == ErrorCode.NOT_COORDINATOR
            producer = Writer(first)
            assert await producer.begin() == NONE
            assert await producer.write("a") == [NONE]
            kafka.kill(1)
            producer.peer = second
            assert await producer.write("b", 1) == [NONE]
            assert await producer.end() == NONE
        assert (kafka.stable_end("t", 0), kafka.transaction_state("tx")) == (3, "CompleteCommit")


@LOOPS
async def test_a_consumer_reads_a_transaction_when_it_is_committed() -> None:
    async with EmbeddedKafka({"t": 1}) as kafka, connected(kafka) as peer:
        producer = Writer(peer)
        await producer.begin()
        for value, commit in (("aborted", False), ("committed", True)):
            assert await producer.write(value) == [NONE]
            assert await producer.end(commit=commit) == NONE
        assert await producer.write("open") == [NONE]
        async with Consumer(
            "t",
            bootstrap_servers=kafka.bootstrap_servers,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            assert (await consumer.getone()).value == b"committed"
            with anyio.move_on_after(0.2) as waited:
                await consumer.getone()
            assert waited.cancelled_caught
            assert await producer.end() == NONE
            assert (await consumer.getone()).value == b"open"


@LOOPS
async def test_the_producers_of_a_partition_can_be_read() -> None:
    async with writer() as (kafka, tx):
        first_epoch = tx.epoch
        assert kafka.producers("t", 0) == ()
        kafka.produce("t", ["no producer id"], partition=0)
        assert await tx.write("a") == await tx.write("b", sequence=1) == [NONE]
        assert kafka.producers("t", 0) == (ProducerState(tx.producer_id, first_epoch, 1, 1),)
        assert kafka.producers("t", 1) == ()
        assert await tx.end() == NONE
        # The marker of version 2 begins the next epoch.
        assert tx.epoch == first_epoch + 1
        assert kafka.producers("t", 0) == (ProducerState(tx.producer_id, tx.epoch, -1, None),)


# ---------------------------------------------------------------- offsets


DELETIONS = (
    DeleteGroupsRequest(groups_names=("g",)),
    OffsetDeleteRequest(
        group_id="g",
        topics=(
            OffsetDeleteRequestTopic(
                name="t", partitions=(OffsetDeleteRequestPartition(partition_index=0),)
            ),
        ),
    ),
)


@VIRTUAL
@pytest.mark.parametrize("deletion", DELETIONS, ids=lambda one: type(one).__name__)
async def test_deleted_offsets_of_a_transaction_are_not_committed(deletion: Any) -> None:
    async with writer() as (kafka, producer):
        assert await producer.commit_offsets({T0: 3, T1: 4}) == [NONE, NONE]
        assert await is_unstable(producer.peer, T0)
        await producer.peer.ask(deletion, 0)
        assert not await is_unstable(producer.peer, T0)
        assert await producer.end() == NONE
        assert 0 not in kafka.committed("g", "t")


@VIRTUAL
async def test_a_commit_checks_the_transaction_before_the_member() -> None:
    member = {"generation_id": 7, "member_id": "m"}
    async with writer() as (kafka, producer):
        assert await producer.commit_offsets({T0: 1}, **member) == [ErrorCode.ILLEGAL_GENERATION]
        # As in Kafka, the refused commit has begun the transaction.
        assert kafka.transaction_state("tx") == "Ongoing"
        producer.epoch += 1
        too_long = "m" * 5_000
        for fields in ({}, member, {"metadata": too_long}):
            answered = await producer.commit_offsets({T0: 1}, **fields)
            assert answered == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert kafka.group_state("g") == "Dead"
        assert await producer.commit_offsets({T0: 1}, group="") == [ErrorCode.INVALID_GROUP_ID]


@VIRTUAL
async def test_a_commit_of_unknown_partitions_begins_no_transaction() -> None:
    async with writer() as (kafka, producer):
        unknown = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await producer.commit_offsets({}) == []
        assert await producer.commit_offsets({TopicPartition("unknown", 0): 1}) == unknown
        assert kafka.transaction_state("tx") == "Empty"
        assert await producer.commit_offsets({TopicPartition("u", 0): 1, T0: 1}) == [*unknown, NONE]
        assert kafka.transaction_state("tx") == "Ongoing"


async def is_unstable(peer: Peer, partition: TopicPartition) -> bool:
    topic = OffsetFetchRequestTopics(name=partition.topic, partition_indexes=(partition.partition,))
    group = OffsetFetchRequestGroup(group_id="g", topics=(topic,))
    response = await peer.ask(OffsetFetchRequest(groups=(group,), require_stable=True), 8)
    error = response.groups[0].topics[0].partitions[0].error_code
    return bool(error == ErrorCode.UNSTABLE_OFFSET_COMMIT)


# ---------------------------------------------------------------- administrators


@VIRTUAL
async def test_a_marker_with_an_old_epoch_is_refused() -> None:
    """KIP-1228: in transaction version 2 a marker's epoch is above that of the records."""
    async with writer() as (kafka, producer):
        assert await producer.write("a") == [NONE]

        async def mark(epoch: int, version: int, coordinator_epoch: int = 0) -> int:
            marker = WritableTxnMarker(
                producer_id=producer.producer_id,
                producer_epoch=epoch,
                transaction_result=False,
                topics=(WritableTxnMarkerTopic(name="t", partition_indexes=(0,)),),
                coordinator_epoch=coordinator_epoch,
                transaction_version=version,
            )
            response = await producer.peer.ask(WriteTxnMarkersRequest(markers=(marker,)), 2)
            return int(response.markers[0].topics[0].partitions[0].error_code)

        assert await mark(producer.epoch, 2) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert kafka.stable_end("t", 0) == 0
        assert await mark(producer.epoch, 1, coordinator_epoch=3) == NONE
        assert kafka.stable_end("t", 0) == 2
        assert await mark(producer.epoch, 1) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await mark(producer.epoch + 1, 2, coordinator_epoch=3) == NONE
        assert await mark(producer.epoch, 1, coordinator_epoch=3) == (
            ErrorCode.INVALID_PRODUCER_EPOCH
        )


@VIRTUAL
@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (1000, -1), (-1, -1)])
async def test_a_marker_without_a_producer_is_refused(producer_id: int, epoch: int) -> None:
    async with writer() as (kafka, producer):
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=False,
            topics=(WritableTxnMarkerTopic(name="t", partition_indexes=(0,)),),
            coordinator_epoch=0,
        )
        response = await producer.peer.ask(WriteTxnMarkersRequest(markers=(marker,)), 1)
        result = response.markers[0].topics[0].partitions[0]
        assert result.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert kafka.log_end("t", 0) == 0
        assert await producer.write("a") == [NONE]

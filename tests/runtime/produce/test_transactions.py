"""The transactions of a producer with the embedded broker: lost, late and refused requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import attrs
import pytest
from runtime.produce.transaction_writer import TransactionWriter

from kafkagroup.errors import (
    AuthorizationError,
    BrokerError,
    ClosedError,
    CommitFailedError,
    ErrorCode,
    IllegalStateError,
    KafkaGroupError,
    NotWrittenError,
    ProducerFencedError,
    RequestTimeoutError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    UnsupportedVersionError,
)
from kafkagroup.produce.transaction_vocabulary import GroupIdentity
from kafkagroup.runtime.produce.transactions import TransactionManager
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings, Change, Close, Late, Swallow, Throttle
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import ClientOptions
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.metadata import (
    ApiVersionsRequest,
    FinalizedFeatureKey,
    FindCoordinatorRequest,
)
from kafkagroup.wire.messages.produce import (
    ProduceRequest,
)
from kafkagroup.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

pytestmark = pytest.mark.anyio

E = ErrorCode
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OPTIONS = ClientOptions(request_timeout=3.0)
VERSIONS = pytest.mark.parametrize("version", [0, 1, 2])
BELOW_2 = pytest.mark.parametrize("version", [0, 1])


@attrs.define
class Writer(TransactionWriter):
    """With the broker."""

    kafka: EmbeddedKafka = attrs.field(kw_only=True)

    @property
    def requests(self) -> list[str]:
        """The kinds of requests about transactions so far."""
        return [
            seen.api.__name__.removesuffix("Request")
            for seen in self.kafka.requests()
            if seen.api in KINDS
        ]

    def count(self, api: Any) -> int:
        return len(self.kafka.requests(api))

    @property
    def state(self) -> str:
        return self.kafka.transaction_state("tx")


KINDS = (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)


@asynccontextmanager
async def writing(
    network: Any, version: int = 2, nodes: int = 1, timeout_ms: int = 60_000, **settings: Any
) -> AsyncIterator[Writer]:
    made = BrokerSettings(transaction_version=version, **settings)
    kafka = EmbeddedKafka({"t": 2}, listen=False, nodes=nodes, settings=made)
    async with network, kafka:
        network.serve_embedded(kafka, nodes)
        async with anyio.create_task_group() as tasks:
            servers = tuple((f"kafka-{n}", 9092) for n in range(1, nodes + 1))
            cluster = Cluster(servers, OPTIONS, tasks)
            manager = TransactionManager(cluster, tasks, "tx", timeout_ms=timeout_ms)
            with cluster.topics.during({"t"}):
                await cluster.refresh()
            await manager.initialize(anyio.current_time() + 10)
            yield Writer(cluster, tasks, manager, "kafka-1:9092", kafka=kafka)
            manager.close()
            await cluster.aclose()
            tasks.cancel_scope.cancel()


# ---------------------------------------------------------------- what a transaction is


@VERSIONS
async def test_a_transaction_is_visible_once_it_is_committed(network: Any, version: int) -> None:
    async with writing(network, version) as writer:
        first = writer.manager.identity
        for number, commit in enumerate((True, False, True)):
            await writer.begin()
            assert writer.manager.is_open
            assert await writer.write(f"a{number}") == 0
            assert await writer.write(f"b{number}", 1) == 0
            assert writer.state == "Ongoing"
            await (writer.commit() if commit else writer.abort())
            assert writer.state == ("CompleteCommit" if commit else "CompleteAbort")
        assert sorted(await writer.visible()) == ["a0", "a2", "b0", "b2"]
        assert (writer.manager.identity == first) == (version < 2)
        ends = writer.kafka.requests(EndTxnRequest)
        assert [seen.version for seen in ends] == [5 if version == 2 else 4] * 3
        writes = writer.kafka.requests(ProduceRequest)
        assert {seen.version for seen in writes} == {12 if version == 2 else 11}
        adds = writer.kafka.requests(AddPartitionsToTxnRequest)
        assert [seen.version for seen in adds] == ([] if version == 2 else [3] * 6)
        assert writer.count(InitProducerIdRequest) == 1


@VERSIONS
async def test_offsets_are_committed_with_the_records(network: Any, version: int) -> None:
    async with writing(network, version) as writer:
        await writer.begin()
        await writer.write("a")
        await writer.send_offsets()
        await writer.send_offsets(8)
        assert writer.kafka.committed("g", "t") == {}
        await writer.commit()
        assert writer.kafka.committed("g", "t") == {0: 8}
        await writer.begin()
        await writer.send_offsets(9)
        await writer.abort()
        assert writer.kafka.committed("g", "t") == {0: 8}
        sent = writer.kafka.requests(TxnOffsetCommitRequest)
        assert {seen.version for seen in sent} == {5 if version == 2 else 4}
        assert writer.count(AddOffsetsToTxnRequest) == (0 if version == 2 else 2)


@VERSIONS
async def test_an_empty_transaction_sends_nothing(network: Any, version: int) -> None:
    async with writing(network, version) as writer:
        for end in (writer.commit, writer.abort):
            await writer.begin()
            await end()
        assert writer.requests == ["InitProducerId"]


async def test_concurrent_calls_add_partitions_by_one_request(network: Any) -> None:
    async with writing(network, 1) as writer:
        await writer.begin()
        async with anyio.create_task_group() as tasks:
            for tp in (T0, T1, T0):
                tasks.start_soon(writer.manager.add_partitions, [tp])
        assert writer.requests == ["InitProducerId", "AddPartitionsToTxn"]
        assert T1 in writer.manager._state.added
        await writer.manager.add_partitions([T0, T1])
        assert writer.count(AddPartitionsToTxnRequest) == 1


async def test_the_version_is_read_again_before_each_transaction(network: Any) -> None:
    """KAFKA-18227: the first transaction of version 2 begins another epoch."""
    async with writing(network, 1) as writer:
        producer_id, epoch = writer.manager.identity
        values = []
        for version in (1, 2, 1, 0, 2):
            writer.kafka.set_transaction_version(version)
            await writer.begin()
            highest = writer.manager.produce_highest_version()
            assert highest == (None if version == 2 else 11)
            values.append(f"v{version}")
            assert await writer.write(values[-1]) == 0
            await writer.commit()
        assert await writer.visible() == values
        assert writer.count(InitProducerIdRequest) == 3
        assert writer.manager.identity == (producer_id, epoch + 4)


async def test_the_highest_epoch_of_the_features_counts(network: Any) -> None:
    async with writing(network, 1) as writer:
        writer.kafka.set_transaction_version(2)
        await writer.begin()
        assert writer.manager.produce_highest_version() is None
        await writer.commit()
        level = FinalizedFeatureKey(name="transaction.version", max_version_level=1)
        lagging = {"finalized_features": (level,), "finalized_features_epoch": 0}
        fault = writer.kafka.fail(ApiVersionsRequest, Change(lambda r: evolve(r, **lagging)))
        await writer.begin()
        assert (fault.hits, writer.manager.produce_highest_version()) == (1, None)
        await writer.commit()
        fault = writer.kafka.fail(ApiVersionsRequest, Swallow())
        started_at = anyio.current_time()
        await writer.begin()
        assert fault.hits == 1
        assert anyio.current_time() - started_at == pytest.approx(1.0, abs=0.1)
        assert writer.manager.produce_highest_version() is None  # the last known version
        await writer.commit()


async def test_a_begin_that_is_cancelled_leaves_nothing_open(
    network: Any, monkeypatch: pytest.MonkeyPatch, anyio_backend_name: str
) -> None:
    """Also when the epoch has just arrived, so that the transaction has begun."""
    if anyio_backend_name == "trio":
        pytest.skip("a task of trio that was woken by a result is not cancelled before it has it")
    async with writing(network, 1) as writer:
        writer.manager.note_epoch_needed()
        begin = asyncio.create_task(writer.begin())
        notify = writer.manager._changed.notify

        def cancel() -> None:
            if writer.manager.is_open:
                begin.cancel()
            notify()

        with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
            patch.setattr(writer.manager, "_changed", SimpleNamespace(notify=cancel))
            await begin
        assert not writer.manager.is_open
        await writer.begin()
        assert await writer.write("a") == 0
        await writer.commit()
        assert writer.count(EndTxnRequest) == 1


@VERSIONS
async def test_the_next_transaction_waits_for_the_markers(network: Any, version: int) -> None:
    async with writing(network, version, transaction_marker_delay=0.5) as writer:
        await writer.begin()
        await writer.write("a")
        await writer.commit()
        await writer.begin()
        if version < 2:
            await writer.manager.add_partitions([T0])
            assert writer.count(AddPartitionsToTxnRequest) > 3
        else:
            await writer.send_offsets()
            assert writer.count(TxnOffsetCommitRequest) > 3
        await writer.commit()


@VERSIONS
async def test_an_abort_waits_for_the_markers_of_the_last_transaction(
    network: Any, version: int
) -> None:
    """KAFKA-18464: without the wait, the coordinator takes the producer for a fenced one."""
    async with writing(network, version, transaction_marker_delay=0.5) as writer:
        await writer.begin()
        await writer.write("a")
        await writer.commit()
        await writer.begin()
        with anyio.move_on_after(0.1):
            await writer.write("b")
        await writer.abort()
        await anyio.sleep(1)
        await writer.begin()
        await writer.write("c")
        await writer.commit()
        await anyio.sleep(1)
        assert await writer.visible() == ["a", "c"]


@VERSIONS
async def test_the_first_retry_comes_soon_after_the_markers(network: Any, version: int) -> None:
    """The usual back-off takes longer than the markers of most transactions."""
    async with writing(network, version, transaction_marker_delay=0.015) as writer:
        await writer.begin()
        await writer.send_offsets()
        await writer.commit()
        await writer.begin()
        started_at = anyio.current_time()
        await writer.send_offsets()
        assert 0.015 < anyio.current_time() - started_at < 0.05
        await writer.commit()


async def test_a_request_that_waits_for_the_throttle_is_dropped(network: Any) -> None:
    """It would begin a transaction after the abort."""
    async with writing(network, 1) as writer:
        writer.kafka.fail(ApiVersionsRequest, Throttle(2))
        await writer.begin()
        async with anyio.create_task_group() as tasks:

            async def add() -> None:
                with pytest.raises(IllegalStateError, match="no transaction is open"):
                    await writer.manager.add_partitions([T0])

            tasks.start_soon(add)
            await anyio.sleep(0.1)
            await writer.abort()
        await anyio.sleep(3)
        assert (writer.count(AddPartitionsToTxnRequest), writer.state) == (0, "Empty")


# ---------------------------------------------------------------- requests that are repeated

CODES = (E.COORDINATOR_LOAD_IN_PROGRESS, E.CONCURRENT_TRANSACTIONS, E.NOT_COORDINATOR)


@VERSIONS
@pytest.mark.parametrize("action", [*CODES, E.COORDINATOR_NOT_AVAILABLE, Close(), Swallow()])
async def test_every_request_is_repeated(network: Any, version: int, action: Any) -> None:
    async with writing(network, version) as writer:
        for api in KINDS[1:]:
            writer.kafka.fail(api, action)
        await writer.begin()
        await writer.write("a")
        await writer.send_offsets()
        await writer.commit()
        assert writer.kafka.committed("g", "t") == {0: 7}
        await writer.begin()
        await writer.write("b")
        await writer.commit()
        assert await writer.visible() == ["a", "b"]


async def test_a_moved_coordinator_is_looked_up(network: Any) -> None:
    async with writing(network, 1, nodes=2) as writer:
        await writer.begin()
        await writer.write("a")
        writer.kafka.move_coordinator("tx", 3 - writer.kafka.coordinator("tx"))
        looked_up = writer.count(FindCoordinatorRequest)
        await writer.commit()
        assert writer.count(FindCoordinatorRequest) == looked_up + 1
        assert writer.state == "CompleteCommit"


async def test_a_start_ends_at_its_deadline(network: Any) -> None:
    async with writing(network, 1) as writer:
        fault = writer.kafka.fail(InitProducerIdRequest, E.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        other = TransactionManager(writer.cluster, writer.tasks, "other", timeout_ms=60_000)
        with pytest.raises(
            RequestTimeoutError,
            match=r"the start of transactional id 'other' was given up: it took longer than 5"
            r" s; the last failure was: COORDINATOR_LOAD_IN_PROGRESS \(14\)",
        ):
            await other.initialize(anyio.current_time() + 5)
        fault.stop()
        await other.initialize(anyio.current_time() + 5)
        assert other.identity[0] >= 0


async def test_a_timeout_that_the_broker_refuses(network: Any) -> None:
    async with writing(network, 1) as writer:
        other = TransactionManager(writer.cluster, writer.tasks, "other", timeout_ms=901_000)
        with pytest.raises(BrokerError, match="transaction_timeout_ms=901000 exceeds the broker's"):
            await other.initialize(anyio.current_time() + 5)
        assert other.has_ended


# ---------------------------------------------------------------- the commit says what happened


@VERSIONS
async def test_a_failed_record_aborts_the_transaction(network: Any, version: int) -> None:
    """librdkafka 3325: the commit succeeded without the failed record."""
    async with writing(network, version) as writer:
        await writer.begin()
        await writer.write("a")
        error = BrokerError(E.MESSAGE_TOO_LARGE)
        writer.manager.record_failed(error)
        assert (writer.manager.error, writer.manager.must_abort) == (error, True)
        with pytest.raises(TransactionAbortedError, match="MESSAGE_TOO_LARGE") as raised:
            await writer.commit()
        assert raised.value.why is error
        with pytest.raises(TransactionAbortedError):
            await writer.manager.add_partitions([T1])
        with pytest.raises(TransactionAbortedError):
            await writer.send_offsets()
        assert writer.count(EndTxnRequest) == 0
        await writer.abort()
        assert (writer.count(EndTxnRequest), writer.state) == (1, "CompleteAbort")
        await writer.begin()
        await writer.write("b")
        await writer.commit()
        assert await writer.visible() == ["b"]


async def test_a_refused_partition_does_not_hide_the_added_one(network: Any) -> None:
    """franz-go 1348: the transaction with p0 was left open."""
    async with writing(network, 1) as writer:
        await writer.begin()
        await writer.write("a")
        writer.kafka.fail(AddPartitionsToTxnRequest, E.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(TransactionAbortedError) as raised:
            await writer.manager.add_partitions([T1])
        assert isinstance(raised.value.why, AuthorizationError)
        await writer.abort()
        assert (writer.state, writer.kafka.stable_end("t", 0)) == ("CompleteAbort", 2)


async def test_a_failed_attempt_is_ended_in_version_2(network: Any) -> None:
    """franz-go 1348: a refused record had added its partition."""
    async with writing(network, 2) as writer:
        writer.kafka.fail(ProduceRequest, E.MESSAGE_TOO_LARGE, partition=T0)
        await writer.begin()
        assert await writer.write("a") == E.MESSAGE_TOO_LARGE
        writer.manager.record_failed(BrokerError(E.MESSAGE_TOO_LARGE))
        await writer.abort()
        assert writer.count(EndTxnRequest) == 1
        await writer.begin()
        assert await writer.write("b") == 0
        await writer.commit()
        assert await writer.visible() == ["b"]


@VERSIONS
async def test_a_member_that_left_cannot_commit(network: Any, version: int) -> None:
    """KAFKA-20444: the producer goes on."""
    async with writing(network, version) as writer:
        await writer.begin()
        await writer.write("a")
        stale = GroupIdentity("g", 3, "member")
        with pytest.raises(CommitFailedError, match="committing the offset of t/0 of group 'g'"):
            await writer.send_offsets(group=stale)
        with pytest.raises(TransactionAbortedError):
            await writer.commit()
        await writer.abort()
        await writer.begin()
        await writer.send_offsets()
        await writer.commit()
        assert writer.kafka.committed("g", "t") == {0: 7}


@VERSIONS
async def test_cancelled_offsets_abort_the_transaction(network: Any, version: int) -> None:
    async with writing(network, version) as writer:
        writer.kafka.fail(TxnOffsetCommitRequest, Swallow())
        await writer.begin()
        await writer.write("a")
        with anyio.move_on_after(0.5) as waited:
            await writer.send_offsets()
        assert waited.cancelled_caught
        with pytest.raises(TransactionAbortedError, match="given up: it was cancelled"):
            await writer.commit()
        await writer.abort()
        assert writer.kafka.committed("g", "t") == {}


# ---------------------------------------------------------------- messages from the past


@BELOW_2
async def test_a_late_commit_does_not_end_the_next_transaction(network: Any, version: int) -> None:
    """KAFKA-17754: it made half of an aborted transaction visible."""
    async with writing(network, version) as writer:
        await writer.begin()
        await writer.write("one")
        await writer.write("one", 1)
        fault = writer.kafka.fail(EndTxnRequest, Late(0.5))
        await writer.commit()
        await writer.begin()
        assert await writer.write("two") == 0
        await anyio.sleep(1)
        assert fault.hits == 1
        writer.manager.record_failed(RequestTimeoutError("expired"))
        await writer.abort()
        assert await writer.visible() == ["one", "one"]
        assert writer.requests[-4:] == [
            "EndTxn",  # repeated
            "InitProducerId",
            "AddPartitionsToTxn",
            "EndTxn",
        ]


async def test_version_2_needs_no_epoch_for_that(network: Any) -> None:
    async with writing(network, 2) as writer:
        await writer.begin()
        await writer.write("one")
        writer.kafka.fail(EndTxnRequest, Late(0.5))
        await writer.commit()
        await writer.begin()
        assert await writer.write("two") == 0
        await anyio.sleep(1)
        await writer.abort()
        assert await writer.visible() == ["one"]
        assert writer.count(InitProducerIdRequest) == 1


@BELOW_2
async def test_late_offsets_are_not_committed_by_the_next_transaction(
    network: Any, version: int
) -> None:
    async with writing(network, version) as writer:
        await writer.begin()
        writer.kafka.fail(TxnOffsetCommitRequest, Late(0.5))
        with anyio.move_on_after(0.01):
            await writer.send_offsets(100)
        await writer.abort()
        await writer.begin()
        await writer.send_offsets(50)
        await anyio.sleep(1)
        await writer.commit()
        assert writer.kafka.committed("g", "t") == {0: 50}


@BELOW_2
async def test_a_late_partition_begins_no_lasting_transaction(network: Any, version: int) -> None:
    """It would hold up the readers of that partition until its timeout. Below version 2 the
    coordinator would fence the producer if the next InitProducerId aborted that transaction."""
    async with writing(network, version) as writer:
        await writer.begin()
        writer.kafka.fail(AddPartitionsToTxnRequest, Late(0.5))
        await writer.write("a")
        await writer.commit()
        await anyio.sleep(1)
        assert writer.state == "Ongoing"  # by the late request
        await writer.begin()
        assert (writer.state, await writer.visible()) == ("Empty", ["a"])
        assert writer.requests[-3:] == ["EndTxn", "EndTxn", "InitProducerId"]
        await writer.write("b")
        await writer.commit()
        assert await writer.visible() == ["a", "b"]


@BELOW_2
async def test_a_batch_given_up_begins_another_epoch(network: Any, version: int) -> None:
    async with writing(network, version) as writer:
        first = writer.manager.identity
        await writer.begin()
        await writer.write("a")
        writer.manager.note_epoch_needed()
        writer.manager.record_failed(RequestTimeoutError("expired"))
        await writer.abort()
        assert writer.manager.identity == first
        await writer.begin()
        assert writer.manager.identity == (first[0], first[1] + 1)


async def test_version_2_ends_the_epoch_of_a_batch_given_up(network: Any) -> None:
    async with writing(network, 2) as writer:
        first = writer.manager.identity
        await writer.begin()
        await writer.write("a")
        writer.manager.note_epoch_needed()
        writer.manager.record_failed(RequestTimeoutError("expired"))
        await writer.abort()
        assert writer.manager.identity == (first[0], first[1] + 1)
        await writer.begin()
        assert writer.count(InitProducerIdRequest) == 1


# ---------------------------------------------------------------- an unknown outcome


@VERSIONS
async def test_the_outcome_is_unknown_until_there_is_a_response(network: Any, version: int) -> None:
    async with writing(network, version) as writer:
        await writer.begin()
        await writer.write("a")
        fault = writer.kafka.fail(EndTxnRequest, Close(), times=None)
        with pytest.raises(TransactionOutcomeUnknownError, match="may or may not be committed"):
            await writer.commit(2)
        with pytest.raises(IllegalStateError, match="may have been executed"):
            await writer.abort()
        with pytest.raises(TransactionOutcomeUnknownError):
            await writer.commit(2)
        with pytest.raises(TransactionOutcomeUnknownError):
            await writer.manager.begin(anyio.current_time() + 2)
        assert writer.count(InitProducerIdRequest) == 1  # it would abort the transaction
        fault.stop()
        await writer.commit(5)
        await writer.begin()
        await writer.write("b")
        await writer.commit()
        assert await writer.visible() == ["a", "b"]
        assert writer.count(InitProducerIdRequest) == (1 if version == 2 else 2)


@VERSIONS
async def test_a_commit_that_could_not_be_sent_is_aborted(network: Any, version: int) -> None:
    async with writing(network, version) as writer:
        await writer.begin()
        await writer.write("a")
        fault = writer.kafka.fail(EndTxnRequest, E.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        with pytest.raises(TransactionAbortedError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await writer.commit(2)
        fault.stop()
        await writer.abort()
        assert await writer.visible() == []


@VERSIONS
@pytest.mark.parametrize(
    "code",
    [E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR, E.REQUEST_TIMED_OUT, E.UNKNOWN_SERVER_ERROR],
    ids=lambda code: code.name,
)
async def test_a_commit_that_was_appended_before_it_failed_is_not_aborted(
    network: Any, version: int, code: int
) -> None:
    """KAFKA-9666: it may become committed when the next coordinator reads the log."""
    async with writing(network, version) as writer:
        await writer.begin()
        await writer.write("a")
        failed = Change(lambda response: evolve(response, error_code=code))
        fault = writer.kafka.fail(EndTxnRequest, failed, times=None)
        with pytest.raises(TransactionOutcomeUnknownError, match="may or may not be committed"):
            await writer.commit(2)
        with pytest.raises(IllegalStateError, match="may have been executed"):
            await writer.abort()
        fault.stop()
        await writer.commit(5)
        assert await writer.visible() == ["a"]
        await writer.begin()
        await writer.write("b")
        await writer.commit()
        assert await writer.visible() == ["a", "b"]


@VERSIONS
async def test_an_unknown_error_of_a_commit_does_not_tell_the_outcome(
    network: Any, version: int
) -> None:
    async with writing(network, version) as writer:
        await writer.begin()
        await writer.write("a")
        failed = Change(lambda response: evolve(response, error_code=9_999))
        writer.kafka.fail(EndTxnRequest, failed)
        with pytest.raises(TransactionOutcomeUnknownError, match="UNKNOWN_CODE_9999"):
            await writer.commit()
        assert writer.manager.has_ended
        assert await writer.visible() == ["a"]


@VERSIONS
async def test_an_abort_goes_on_in_the_background(network: Any, version: int) -> None:
    async with writing(network, version) as writer:
        await writer.begin()
        await writer.write("a")
        fault = writer.kafka.fail(EndTxnRequest, E.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        with pytest.raises(RequestTimeoutError, match="the abort of transactional id 'tx'"):
            await writer.abort(2)
        fault.stop()
        await anyio.sleep(2)
        assert writer.state == "CompleteAbort"
        await writer.begin()


@VERSIONS
async def test_the_coordinator_aborts_at_the_timeout(network: Any, version: int) -> None:
    async with writing(network, version, timeout_ms=10_000) as writer:
        await writer.begin()
        await writer.write("a")
        await anyio.sleep(11)
        assert await writer.write("b") == E.INVALID_PRODUCER_EPOCH
        writer.manager.record_failed(BrokerError(E.INVALID_PRODUCER_EPOCH))
        assert writer.manager.must_abort
        if version == 2:
            await writer.abort()
            await writer.begin()
            assert await writer.write("c") == 0
            await writer.commit()
            assert await writer.visible() == ["c"]
        else:
            words = "was open for 11 s; transaction_timeout_ms is 10000; or another producer"
            with pytest.raises(ProducerFencedError, match=words):
                await writer.abort()
            assert await writer.visible() == []


async def test_version_2_tells_a_commit_that_it_is_too_late(network: Any) -> None:
    async with writing(network, 2, timeout_ms=10_000) as writer:
        await writer.begin()
        await writer.write("a")
        await anyio.sleep(11)
        with pytest.raises(TransactionAbortedError, match="has aborted the transaction, which was"):
            await writer.commit()
        await writer.abort()
        await writer.begin()
        assert await writer.write("b") == 0
        await writer.commit()
        assert await writer.visible() == ["b"]


# ---------------------------------------------------------------- the end of a producer


@VERSIONS
async def test_another_producer_fences_this_one(network: Any, version: int) -> None:
    async with writing(network, version) as writer:
        await writer.begin()
        await writer.write("a")
        other = await writer.another()
        with pytest.raises(ProducerFencedError, match="another producer has begun") as raised:
            await writer.commit()
        assert writer.manager.has_ended
        assert writer.manager.error is raised.value
        for call in (writer.begin, writer.commit, writer.abort, writer.send_offsets):
            with pytest.raises(ProducerFencedError):
                await call()
        with pytest.raises(ProducerFencedError):
            await writer.manager.add_partitions([T0])
        await other.begin()
        await other.write("b")
        await other.commit()
        assert await other.visible() == ["b"]


@VERSIONS
async def test_a_forgotten_id_ends_the_producer(network: Any, version: int) -> None:
    """KAFKA-18019: a zombie went on, as nothing was known of the producer that had fenced it."""
    async with writing(network, version, transactional_id_expiration=3.0) as writer:
        await (await writer.another()).another()
        await anyio.sleep(6)
        assert writer.state == "Dead"
        await writer.begin()
        if version == 2:
            assert await writer.write("a") == E.INVALID_PRODUCER_ID_MAPPING
            error = NotWrittenError(0, BrokerError(E.INVALID_PRODUCER_ID_MAPPING))  # type: ignore[arg-type, unused-ignore]
            writer.manager.record_failed(error)
        words = "was idle for transactional.id.expiration.ms .* or another producer has taken it"
        with pytest.raises(BrokerError, match=words):
            await (writer.commit() if version == 2 else writer.write("a"))
        assert writer.manager.has_ended
        assert writer.count(InitProducerIdRequest) == 3


async def test_an_old_broker_does_not_fence_members(network: Any) -> None:
    async with writing(network, 1) as writer:
        await writer.begin()
        await writer.send_offsets()

        async def too_old(*_: Any, **__: Any) -> None:
            raise UnsupportedVersionError("no version of TxnOffsetCommit from 3 on")

        writer.cluster.broker(next(iter(writer.cluster.metadata.nodes.values()))).attempt = too_old  # type: ignore[method-assign]
        with pytest.raises(UnsupportedVersionError):
            await writer.send_offsets(9)
        assert writer.manager.must_abort


async def test_the_close_ends_what_waits(network: Any) -> None:
    async with writing(network, 1) as writer:
        writer.kafka.fail(AddPartitionsToTxnRequest, Swallow())
        await writer.begin()
        errors: list[KafkaGroupError] = []

        async def expect(call: Any, *arguments: Any) -> None:
            with pytest.raises(ClosedError) as raised:
                await call(*arguments)
            errors.append(raised.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect, writer.manager.add_partitions, [T0])
            tasks.start_soon(expect, writer.send_offsets)
            await anyio.sleep(0.1)
            writer.manager.close()
        await expect(writer.begin)
        await expect(writer.manager.add_partitions, [T0])
        writer.manager.record_failed(BrokerError(E.MESSAGE_TOO_LARGE))
        assert len(errors) == 4


async def test_lasting_trouble_is_reported(network: Any) -> None:
    async with writing(network, 1) as writer:
        await writer.begin()
        await writer.write("a")
        writer.kafka.fail(EndTxnRequest, E.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        with pytest.raises(TransactionAbortedError):
            await writer.commit(60)
        ((problem, _),) = writer.cluster.troubles.lasting(anyio.current_time())
        assert str(problem) == ("EndTxn of transactional id tx: COORDINATOR_LOAD_IN_PROGRESS (14)")

"""Each accepted record ends once, whatever dies, splits, is cancelled or closed."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import anyio
import attrs
import numpy
import pytest
from runtime.produce.logs import SERVERS, cluster, values

from kafkagroup import Consumer, Producer
from kafkagroup._backend import asyncio_loop
from kafkagroup.errors import (
    BrokerError,
    BufferFullError,
    ClosedError,
    ConfigurationError,
    ErrorCode,
    IllegalStateError,
    KafkaGroupError,
    NotStartedError,
    NotWrittenError,
    RequestTimeoutError,
)
from kafkagroup.events import TroubleEnded, TroubleReported
from kafkagroup.produce.accumulator import Accumulator
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.runtime.produce.record_future import RecordFuture
from kafkagroup.runtime.produce.record_outcomes import RecordOutcomes
from kafkagroup.testing.embedded import BrokerSettings, Change, Delay, Swallow, Throttle
from kafkagroup.transport import origin
from kafkagroup.transport.channel import Channel
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.metadata import MetadataRequest, MetadataResponse
from kafkagroup.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)


async def test_flush_waits_for_halves_of_halves() -> None:
    """KAFKA-19479."""
    async with cluster(topics={}) as kafka, Producer(**SERVERS, batch_size=16_384) as producer:
        kafka.create_topic("t", configs={"max.message.bytes": "2048"})
        kafka.fail(ProduceRequest, Delay(0.3), times=None)
        data = [b"%2d" % n + bytes(498) for n in range(30)]
        futures = [producer.send_nowait("t", one) for one in data]
        await producer.flush()
        assert [(await future).offset for future in futures] == list(range(30))
        assert await values(kafka, "t") == data


async def test_flush_raises_what_nobody_has_read_once() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, ErrorCode.INVALID_RECORD, partition=TP)
        futures = [producer.send_nowait("t", b"") for _ in range(3)]
        with pytest.raises(NotWrittenError, match="INVALID_RECORD"):
            await futures[1]
        with pytest.raises(NotWrittenError, match="2 records were not written") as raised:
            await producer.flush()
        assert raised.value.count == 2
        await producer.flush()


async def test_a_single_record_that_is_too_large_fails_alone() -> None:
    async with cluster(topics={}) as kafka, Producer(**SERVERS) as producer:
        kafka.create_topic("t", configs={"max.message.bytes": "1000"})
        futures = [producer.send_nowait("t", bytes(size)) for size in (10, 2000, 20)]
        with pytest.raises(
            NotWrittenError, match=r"MESSAGE_TOO_LARGE.*topic's max\.message\.bytes"
        ):
            await futures[1]
        assert (await futures[0]).offset == 0
        assert (await futures[2]).offset == 1
        assert [len(one or b"") for one in await values(kafka, "t")] == [10, 20]


async def test_a_record_that_is_larger_than_a_segment_fails() -> None:
    """emqx/emqx#15906."""
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        kafka.fail(ProduceRequest, ErrorCode.RECORD_LIST_TOO_LARGE, partition=TP)
        with pytest.raises(NotWrittenError, match=r"RECORD_LIST_TOO_LARGE.*topic's segment\.bytes"):
            await producer.send("t", b"")
        assert (await producer.send("t", b"")).offset == 0


async def test_the_close_raises_what_nobody_has_read() -> None:
    with pytest.raises(NotWrittenError, match="INVALID_RECORD"):
        async with cluster() as kafka, Producer(**SERVERS) as producer:
            await producer.send("t", b"first")
            kafka.fail(ProduceRequest, ErrorCode.INVALID_RECORD, partition=TP)
            producer.send_nowait("t", b"")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_stop_raises_what_nobody_has_read_once() -> None:
    async with cluster() as kafka:
        producer = Producer(**SERVERS)
        await producer.start()
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, ErrorCode.INVALID_RECORD, partition=TP)
        producer.send_nowait("t", b"")
        with pytest.raises(NotWrittenError, match="INVALID_RECORD"):
            await producer.stop()
        await producer.stop()


async def test_failures_that_are_not_kept_are_raised() -> None:
    """Only the first 1,000 batches are kept until they are read."""
    ends = RecordOutcomes(cast(Accumulator, SimpleNamespace(release=lambda batch: None)))
    batches = [ProduceBatch(TP, 0.0, 1.0, 1) for _ in range(1_001)]
    for batch in batches:
        batch.append(None, b"", 1, (), 50)
        batch.fail(RequestTimeoutError("late"))
        ends.note_end(batch)
    for batch in batches[1:]:
        batch.read_count = 1
    with pytest.raises(NotWrittenError) as raised:
        ends.raise_unread()
    assert raised.value.count == 1
    ends.raise_unread()


async def test_an_error_of_the_block_is_not_replaced(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(LookupError):
        async with cluster() as kafka, Producer(**SERVERS) as producer:
            await producer.send("t", b"first")
            kafka.fail(ProduceRequest, ErrorCode.INVALID_RECORD, partition=TP)
            producer.send_nowait("t", b"")
            raise LookupError
    assert "INVALID_RECORD" in caplog.text


async def test_the_close_waits_for_what_was_accepted() -> None:
    async with cluster() as kafka:
        async with Producer(**SERVERS, linger_ms=60_000) as producer:
            for n in range(10):
                producer.send_nowait("t", b"%d" % n)
        assert kafka.log_end("t", 0) == 10


@pytest.mark.parametrize("topic", ["t", "not known yet"])
async def test_a_record_that_is_serialized_during_the_close_is_refused(topic: str) -> None:
    async def encode(value: bytes) -> bytes:
        await anyio.sleep(1.0)
        return value

    async with cluster(), anyio.create_task_group() as tasks:
        async with Producer(**SERVERS, value_serializer=encode) as producer:

            async def send() -> None:
                with pytest.raises(ClosedError):
                    await producer.send(topic, b"")

            async def send_many() -> None:
                with pytest.raises(ClosedError):
                    await producer.send_many(topic, [b"", b""])

            tasks.start_soon(send)
            tasks.start_soon(send_many)
            await anyio.sleep(0.5)


async def test_the_close_is_bounded_and_says_what_is_not_written() -> None:
    async with cluster() as kafka:
        began = 0.0
        with pytest.raises(NotWrittenError, match="10 records may have been written") as raised:
            async with Producer(**SERVERS, close_timeout=5.0) as producer:
                await producer.send("t", b"first")
                kafka.fail(ProduceRequest, Swallow(), times=None)
                began = anyio.current_time()
                for _ in range(10):
                    producer.send_nowait("t", b"")
        assert raised.value.count == 10
        assert anyio.current_time() - began <= 5.1


async def test_dead_brokers_end_with_the_delivery_timeout() -> None:
    """aiokafka#1101."""
    async with cluster() as kafka:
        producer = Producer(**SERVERS, delivery_timeout_ms=1_000, close_timeout=2.0)
        async with producer:
            await producer.send("t", b"first")
            kafka.kill(1)
            began = anyio.current_time()
            with pytest.raises(NotWrittenError, match="delivery_timeout_ms=1000"):
                await producer.send("t", b"")
            assert anyio.current_time() - began == pytest.approx(1.0, abs=0.1)
        assert producer.metrics().buffered_bytes == 0


async def test_the_close_says_why_a_record_is_late() -> None:
    late = r"within 1.8 s: .*UNKNOWN_TOPIC_OR_PARTITION"
    async with cluster():
        with pytest.raises(NotWrittenError, match=late):
            async with Producer(**SERVERS, close_timeout=2.0) as producer:
                producer.send_nowait("missing", b"")


async def test_what_expires_before_it_is_sent_is_not_sent() -> None:
    """It was taken already, and waits for the broker's throttle."""
    async with (
        cluster() as kafka,
        Producer(**SERVERS, delivery_timeout_ms=2_000, request_timeout_ms=1_000) as producer,
    ):
        kafka.fail(ProduceRequest, Throttle(3.0))
        await producer.send("t", b"first")
        throttles = "broker 1 throttles this client for another 1 s"
        with pytest.raises(NotWrittenError, match=throttles) as raised:
            await producer.send("t", b"expired")
        assert not raised.value.is_maybe_written
        await anyio.sleep(3)
        await producer.send("t", b"last")
        assert await values(kafka, "t") == [b"first", b"last"]
        assert producer.metrics().buffered_bytes == 0


async def test_no_batch_is_sent_without_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a request expires while another one is compressed."""
    async with (
        cluster(topics={"t": 2}) as kafka,
        Producer(
            **SERVERS, compression_type="gzip", delivery_timeout_ms=2_000, request_timeout_ms=1_000
        ) as producer,
    ):
        for partition in (0, 1):
            await producer.send("t", b"first", partition=partition)
        assert producer._cluster is not None

        async def run_slowly(work: Callable[[], bytes]) -> bytes:
            await anyio.sleep(1.8)
            return work()

        options = attrs.evolve(producer._cluster.options, run_in_thread=run_slowly)
        monkeypatch.setattr(producer._cluster, "options", options)
        kafka.fail(ProduceRequest, Throttle(1.5))
        await producer.send("t", b"second", partition=0)
        futures = [producer.send_nowait("t", b"second", partition=1)]  # waits for the throttle
        await anyio.sleep(0.9)
        futures.append(producer.send_nowait("t", os.urandom(90_000), partition=0))
        futures.append(producer.send_nowait("t", b"third", partition=1))
        assert (await futures[0]).offset == 1
        for future in futures[1:]:
            with pytest.raises(NotWrittenError) as raised:
                await future
            assert not raised.value.is_maybe_written
        await anyio.sleep(5)
        assert (kafka.log_end("t", 0), kafka.log_end("t", 1)) == (2, 2)


async def test_an_odd_response_is_survived() -> None:
    """aiokafka#1098."""

    def edited(response: ProduceResponse) -> ProduceResponse:
        (topic,) = response.responses
        unasked = TopicProduceResponse(
            name="other",
            partition_responses=(PartitionProduceResponse(index=5, error_code=0, base_offset=1),),
        )
        twice = attrs.evolve(topic, partition_responses=topic.partition_responses * 2)
        return attrs.evolve(response, responses=(unasked, twice))

    def empty(response: ProduceResponse) -> ProduceResponse:
        return attrs.evolve(response, responses=())

    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, Change(edited))
        assert (await producer.send("t", b"second")).offset == 1
        kafka.fail(ProduceRequest, Change(empty))
        assert (await producer.send("t", b"third")).offset == 2
        assert await values(kafka, "t") == [b"first", b"second", b"third"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_tasks_cancelled_from_outside_are_noticed() -> None:
    """aiokafka#1039."""
    async with cluster() as kafka:
        producer = Producer(**SERVERS, close_timeout=1.0)
        await producer.start()
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, Swallow(), times=None)
        future = producer.send_nowait("t", b"")
        await anyio.sleep(0.1)
        own = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not own and task.get_name().startswith("kafkagroup "):
                task.cancel()
        with pytest.raises(NotWrittenError):
            await future
        with pytest.raises(ClosedError):
            await producer.send("t", b"")
        assert not producer.health()
        await producer.stop()


async def test_a_cancelled_send_withdraws_nothing() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, Delay(1.0))
        with anyio.move_on_after(0.5) as scope:
            await producer.send("t", b"second")
        assert scope.cancelled_caught
        await producer.flush()
        assert await values(kafka, "t") == [b"first", b"second"]


async def flushed(producer: Producer, outcomes: list[KafkaGroupError | None]) -> None:
    """Flush a record, and note how that ended."""
    producer.send_nowait("t", b"")
    try:
        await producer.flush()
    except KafkaGroupError as error:
        outcomes.append(error)
    else:
        outcomes.append(None)


async def test_each_flush_raises_the_failures_that_it_has_waited_for() -> None:
    """The task whose flush returned would count its record as written."""
    outcomes: list[KafkaGroupError | None] = []
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.send("t", b"")
        kafka.fail(ProduceRequest, ErrorCode.INVALID_RECORD, partition=TP)
        kafka.fail(ProduceRequest, Delay(1.0))
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(flushed, producer, outcomes)
        assert [type(one) for one in outcomes] == [NotWrittenError] * 2
        await producer.flush()


async def test_a_flush_raises_what_fails_as_the_producer_closes() -> None:
    outcomes: list[KafkaGroupError | None] = []
    async with cluster() as kafka:
        producer = Producer(**SERVERS, close_timeout=2.0)
        async with anyio.create_task_group() as tasks:
            await tasks.start(producer.run)
            await producer.send("t", b"")
            kafka.fail(ProduceRequest, Swallow(), times=None)
            tasks.start_soon(flushed, producer, outcomes)
            await anyio.sleep(0.5)
            with pytest.raises(NotWrittenError):
                await producer.stop()
            tasks.cancel_scope.cancel()
    assert [type(one) for one in outcomes] == [NotWrittenError]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_record_is_awaited_in_the_loop_of_its_producer_only() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, Delay(0.5))
        future = producer.send_nowait("t", b"second")

        async def wait() -> None:
            await future

        with pytest.raises(RuntimeError, match="different loop"):
            await asyncio.to_thread(asyncio.run, wait())
        assert (await future).offset == 1


async def test_a_cancelled_wait_is_not_counted_for_a_later_batch() -> None:
    """The failure of the later batch would then count as read."""
    first, later = (ProduceBatch(TP, 0.0, 9.0, 1) for _ in range(2))
    for batch in (first, later):
        batch.append(None, b"", 1, (), 50)
    future = RecordFuture(first, asyncio_loop())

    async def wait() -> None:
        await future

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert first.read_count == 1
        first.moved = [(later, 0)]
        assert not future.done()
        tasks.cancel_scope.cancel()
    assert (first.read_count, later.read_count) == (0, 0)


def full_batch() -> tuple[ProduceBatch, RecordFuture]:
    """Return a batch of two records, and the future of the first."""
    batch = ProduceBatch(TP, 0.0, 9.0, 1)
    batch.append(None, b"", 1, (), 50)
    future = RecordFuture(batch, asyncio_loop())
    batch.append(None, b"", 1, (), 50)
    return batch, future


async def read(future: RecordFuture) -> None:
    with suppress(NotWrittenError):
        await future


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_cancelled_wait_does_not_withdraw_that_of_another_task(cancelled: int) -> None:
    """`flush()` would raise an error that the other task receives."""
    batch, future = full_batch()
    scopes = [anyio.CancelScope() for _ in range(2)]

    async def wait(scope: anyio.CancelScope) -> None:
        with scope:
            await read(future)

    async with anyio.create_task_group() as tasks:
        for scope in scopes:
            tasks.start_soon(wait, scope)
            await anyio.wait_all_tasks_blocked()
        assert batch.read_count == 1
        scopes[cancelled].cancel()
        await anyio.wait_all_tasks_blocked()
        assert batch.read_count == 1
        batch.fail(ClosedError("test"))
    assert batch.read_count == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_wait_cancelled_while_its_record_moves_leaves_the_count_of_the_new_batch(
    cancelled: int,
) -> None:
    """The failure of another record of that batch would then be silent."""
    (first, future), (later, _) = full_batch(), full_batch()
    readers = [asyncio.create_task(read(future)) for _ in range(2)]
    await anyio.wait_all_tasks_blocked()
    first.move([(later, 0), (later, 1)])
    readers[cancelled].cancel()
    await anyio.wait_all_tasks_blocked()
    assert later.read_count == 1
    readers.append(asyncio.create_task(read(future)))
    await anyio.wait_all_tasks_blocked()
    assert later.read_count == 1
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    assert (first.read_count, later.read_count) == (0, 0)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_wait_cancelled_at_the_end_does_not_withdraw_what_another_task_has_read() -> None:
    batch, future = full_batch()
    reader = asyncio.create_task(read(future))
    await anyio.wait_all_tasks_blocked()
    batch.fail(ClosedError("test"))
    await read(future)
    reader.cancel()
    await asyncio.wait([reader])
    assert reader.cancelled()
    assert batch.read_count == 1


async def test_a_forked_process_accepts_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the parent's thread number, and nothing there sends them."""
    async with cluster(), Producer(**SERVERS) as producer:
        await producer.send("t", b"")
        accepting = producer._accepting_thread
        monkeypatch.setattr(origin, "_forks", 1 + origin._forks)
        producer._on_fork()
        with pytest.raises(IllegalStateError, match="forked"):
            producer.send_nowait("t", b"")
        with pytest.raises(IllegalStateError, match="forked"):
            await producer.send("t", b"")
        monkeypatch.undo()
        producer._accepting_thread = accepting


async def test_memory_counts_until_the_end() -> None:
    """sarama#3026."""
    async with cluster() as kafka, Producer(**SERVERS, buffer_memory=100_000) as producer:
        await producer.send("t", b"first")
        swallowed = kafka.fail(ProduceRequest, Swallow(), times=None)
        accepted = 0
        with pytest.raises(BufferFullError, match="buffer_memory=100000"):
            while True:
                producer.send_nowait("t", bytes(1_000))
                accepted += 1
        assert 90 < accepted < 100
        await anyio.sleep(50)
        with pytest.raises(BufferFullError):
            producer.send_nowait("t", bytes(1_000))
        swallowed.stop()
        await producer.ready()
        await producer.flush()
        assert producer.metrics().buffered_bytes == 0
        assert kafka.log_end("t", 0) == accepted + 1


async def test_records_that_fail_for_want_of_a_topic_take_no_memory() -> None:
    """Their futures, and the failures that `flush()` raises, are kept."""
    async with (
        cluster(),
        Producer(**SERVERS, buffer_memory=100_000, delivery_timeout_ms=1_000) as producer,
    ):
        data = bytes(90_000)
        references = sys.getrefcount(data)
        future = producer.send_nowait("missing", data)
        assert sys.getrefcount(data) > references
        await producer.ready()
        assert sys.getrefcount(data) == references
        with pytest.raises(NotWrittenError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await future


async def test_the_close_releases_the_memory_of_a_batch_that_expired_in_flight() -> None:
    async with cluster() as kafka:
        async with Producer(**SERVERS, delivery_timeout_ms=1_000) as producer:
            kafka.fail(ProduceRequest, Swallow(), times=None)
            with pytest.raises(NotWrittenError):
                await producer.send("t", bytes(1_000))
            assert producer.metrics().buffered_bytes > 1_000  # the request still has it
        assert producer.metrics().buffered_bytes == 0
        assert producer.metrics().failed_records == 1


async def test_send_waits_for_room() -> None:
    async with cluster() as kafka, Producer(**SERVERS, buffer_memory=10_000) as producer:
        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(producer.send, "t", bytes(1_000))
        await producer.send_many("t", [bytes(1_000)] * 100)
        assert kafka.log_end("t", 0) == 200


async def test_calls_get_room_in_the_order_in_which_they_began_to_wait() -> None:
    async with cluster() as kafka, Producer(**SERVERS, buffer_memory=2_000) as producer:
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, Delay(0.1), times=None)
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                size = 1_900 if number == 5 else 900
                tasks.start_soon(producer.send, "t", bytes([number]) * size)
                await anyio.sleep(0.01)
        assert [(value or b"")[0] for value in (await values(kafka, "t"))[1:]] == list(range(20))


async def test_no_call_is_left_without_room_while_others_get_it() -> None:
    """A large record waited until its deadline, as new small ones took the room."""
    async with (
        cluster() as kafka,
        Producer(
            **SERVERS, buffer_memory=20_000, batch_size=2_000, delivery_timeout_ms=20_000
        ) as producer,
        anyio.create_task_group() as tasks,
    ):
        kafka.fail(ProduceRequest, Delay(0.02), times=None)

        async def send_small() -> None:
            while True:
                await producer.send("t", bytes(1_000))

        for _ in range(40):
            tasks.start_soon(send_small)
        await anyio.sleep(1)
        with anyio.fail_after(2):
            await producer.send("t", bytes(15_000))
        tasks.cancel_scope.cancel()


async def test_a_cancelled_call_passes_its_turn_on() -> None:
    async with cluster() as kafka, Producer(**SERVERS, buffer_memory=2_000) as producer:
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, Delay(1.0))
        producer.send_nowait("t", bytes(1_000))
        async with anyio.create_task_group() as others, anyio.create_task_group() as tasks:
            tasks.start_soon(producer.send, "t", bytes(1_900))
            await anyio.sleep(0.1)
            others.start_soon(producer.send, "t", bytes(500))
            await anyio.sleep(0.1)
            assert producer.metrics().buffered_bytes < 1_100
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.1)
            assert producer.metrics().buffered_bytes > 1_500


async def test_without_room_send_fails_after_the_delivery_timeout() -> None:
    async with cluster() as kafka:
        kafka.fail(ProduceRequest, Swallow(), times=None)
        with pytest.raises(NotWrittenError):
            async with Producer(
                **SERVERS, buffer_memory=2_000, delivery_timeout_ms=50_000, close_timeout=1.0
            ) as producer:
                producer.send_nowait("t", bytes(1_500))
                await anyio.sleep(1)
                with pytest.raises(BufferFullError):
                    with anyio.fail_after(60):
                        await producer.send("t", bytes(1_900))


async def test_flush_does_not_raise_what_send_has_raised_after_a_wait_for_room() -> None:
    async with cluster() as kafka:
        async with Producer(**SERVERS, buffer_memory=2_000, delivery_timeout_ms=50_000) as producer:
            kafka.fail(ProduceRequest, Swallow(), times=None)
            first = producer.send_nowait("t", bytes(1_500), partition=0)
            await anyio.sleep(20)
            async with anyio.create_task_group() as tasks:

                async def send() -> None:
                    with pytest.raises(NotWrittenError, match="no room for the record"):
                        await producer.send("t", bytes(1_500), partition=0)

                tasks.start_soon(send)
                with pytest.raises(NotWrittenError):
                    await first
            await producer.flush()
        assert producer.metrics().failed_records == 2


async def test_records_wait_for_their_topic_in_order() -> None:
    async with cluster(topics={}) as kafka, Producer(**SERVERS) as producer:
        futures = [producer.send_nowait("late", b"%d" % n, partition=0) for n in range(5)]
        with pytest.raises(BrokerError):
            await producer.partition_count("late")
        await anyio.sleep(3)
        assert not any(future.done() for future in futures)
        kafka.create_topic("late", 1)
        assert [(await future).offset for future in futures] == list(range(5))
        assert await values(kafka, "late") == [b"%d" % n for n in range(5)]


async def test_an_unknown_topic_is_named_at_the_end() -> None:
    async with cluster(topics={}), Producer(**SERVERS, delivery_timeout_ms=2_000) as producer:
        with pytest.raises(NotWrittenError, match=r"topic nope: .*UNKNOWN_TOPIC_OR_PARTITION"):
            await producer.send("nope", b"")


def denied(response: MetadataResponse) -> MetadataResponse:
    refused = [
        attrs.evolve(topic, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, partitions=())
        for topic in response.topics
    ]
    return attrs.evolve(response, topics=tuple(refused))


async def test_a_topic_may_be_written_to_once_its_acl_is_granted() -> None:
    """Each record failed by the metadata that the producer had, for up to five minutes. While the
    ACL is missing, a record in a loop requests metadata once a second."""
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        refused = kafka.fail(MetadataRequest, Change(denied), times=None)
        began = anyio.current_time()
        before = len(kafka.requests(MetadataRequest))
        while anyio.current_time() - began < 10:
            with pytest.raises(NotWrittenError, match="not allowed"):
                await producer.send("t", b"")
            await anyio.sleep(0.01)
        assert 8 <= len(kafka.requests(MetadataRequest)) - before <= 14
        refused.stop()
        await anyio.sleep(1)
        assert (await producer.send("t", b"")).offset == 0


async def test_an_old_refusal_fails_no_record_while_no_broker_responds() -> None:
    """The ACL was granted meanwhile: the record waits for metadata that says so."""
    async with cluster() as kafka, Producer(**SERVERS, request_timeout_ms=2_000) as producer:
        refused = kafka.fail(MetadataRequest, Change(denied), times=None)
        with pytest.raises(NotWrittenError, match="not allowed"):
            await producer.send("t", b"")
        refused.stop()
        silent = kafka.fail(MetadataRequest, Swallow(), times=None)
        await anyio.sleep(5)
        future = producer.send_nowait("t", b"")
        await anyio.sleep(5)
        assert not future.done()
        silent.stop()
        assert (await future).offset == 0


async def test_the_trouble_of_a_missing_topic_ends_when_it_is_created() -> None:
    settings = BrokerSettings(auto_create_topics=False)
    async with cluster(settings=settings) as kafka, Producer(**SERVERS) as producer:
        events = producer.events()
        future = producer.send_nowait("late", b"")
        await anyio.sleep(20)
        kafka.create_topic("late", 1)
        assert (await future).offset == 0
        assert [type(await anext(events)) for _ in range(2)] == [TroubleReported, TroubleEnded]
        assert producer._cluster.troubles.ongoing == {}


async def test_a_topic_that_may_not_be_described_fails_at_once() -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        kafka.fail(MetadataRequest, Change(denied), times=None)
        began = anyio.current_time()
        with pytest.raises(NotWrittenError, match="DESCRIBE on topic 't' is not allowed"):
            await producer.send("t", b"")
        producer.send_nowait("t", b"")
        with pytest.raises(NotWrittenError, match="not allowed"):
            await producer.flush()
        assert anyio.current_time() - began < 2
        assert producer.metrics().buffered_bytes == 0


async def test_a_partition_that_does_not_exist_is_refused() -> None:
    async with cluster(topics={"t": 2}), Producer(**SERVERS) as producer:
        with pytest.raises(NotWrittenError, match="partitions 0 to 1"):
            await producer.send("t", b"", partition=2)  # the topic was not known yet
        with pytest.raises(ConfigurationError, match="partitions 0 to 1"):
            await producer.send("t", b"", partition=2)
        with pytest.raises(ConfigurationError, match="partition=-1"):
            producer.send_nowait("t", b"", partition=-1)


async def test_a_deleted_topic_is_not_brought_back() -> None:
    """KAFKA-5789."""
    async with (
        cluster() as kafka,
        Producer(**SERVERS, metadata_max_age_ms=500, delivery_timeout_ms=3_000) as producer,
    ):
        await producer.send("t", b"")
        kafka.delete_topic("t")
        seen: list[MetadataRequest] = []
        kafka.fail(MetadataRequest, Swallow(), when=lambda request: bool(seen.append(request)))
        with pytest.raises(NotWrittenError):
            await producer.send("t", b"")
        assert not any(request.allow_auto_topic_creation for request in seen)


async def _asynchronous() -> AsyncIterator[bytes]:
    yield b""


async def test_wrong_input_is_named() -> None:
    async with cluster(), Producer(**SERVERS, max_request_size=1_000) as producer:
        text: object = "text"
        with pytest.raises(ConfigurationError, match=r"the value is of type str.*value_serializer"):
            await producer.send("t", text)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="the key is of type int"):
            producer.send_nowait("t", b"", key=5)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="max_request_size=1000"):
            await producer.send("t", bytes(1_000))
        with pytest.raises(ConfigurationError, match="headers"):
            await producer.send("t", b"", headers=[("a", 5)])  # type: ignore[list-item]
        with pytest.raises(ConfigurationError, match="timestamp"):
            await producer.send("t", b"", timestamp=-5)
        with pytest.raises(ConfigurationError, match="topic"):
            await producer.send("", b"")
        with pytest.raises(ConfigurationError, match="no topic can have the name"):
            await producer.send("not a topic", b"")
        for topic in ([], {}, None):
            with pytest.raises(ConfigurationError, match="expected the name of a topic"):
                await producer.send(topic, b"")  # type: ignore[arg-type]
        for many in (None, 5, _asynchronous()):
            with pytest.raises(ConfigurationError, match=r"the values are of type .*an iterable"):
                await producer.send_many("t", many)  # type: ignore[arg-type]
    with pytest.raises(ClosedError):
        await producer.send("t", b"")
    with pytest.raises(ClosedError):
        producer.send_nowait("t", b"")
    with pytest.raises(NotStartedError):
        Producer(**SERVERS).send_nowait("t", b"")


@pytest.mark.parametrize(
    "data",
    [
        numpy.int64(5),
        numpy.uint8(5),
        numpy.float64(1.5),
        numpy.bool_(True),
        numpy.datetime64("2020-01-01"),
        numpy.str_("a"),
        numpy.array(["a"]),
        numpy.array([object()]),
    ],
)
async def test_a_buffer_that_is_no_encoding_is_refused(data: Any) -> None:
    """Its memory was written: of objects the pointers."""
    async with cluster(), Producer(**SERVERS) as producer:
        with pytest.raises(ConfigurationError, match=r"the value is of type.*encode it"):
            await producer.send("t", data)
        with pytest.raises(ConfigurationError, match=r"the key is of type.*key_serializer"):
            await producer.send("t", b"", key=data)
        with pytest.raises(ConfigurationError, match="headers are not valid"):
            await producer.send("t", b"", headers=(("a", data),))


@pytest.mark.parametrize("argument", ["headers", "partition", "timestamp"])
async def test_an_array_is_refused_as(argument: str) -> None:
    """NumPy raised "The truth value of an array is ambiguous", which names no argument."""
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.send("t", b"first")
        given: Any = {argument: numpy.zeros((2, 2), int)}
        with pytest.raises(ConfigurationError, match=argument):
            await producer.send("t", b"v", **given)
        with pytest.raises(ConfigurationError, match=argument):
            producer.send_nowait("t", b"v", **given)
        assert await values(kafka, "t") == [b"first"]


async def test_no_headers_are_given_as_none() -> None:
    """As to aiokafka's and kafka-python's producers."""
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        given: Any = {"headers": None}
        await producer.send("t", b"a", **given)
        await producer.send_nowait("t", b"b", **given)
        await producer.send_many("t", [b"c"], **given)
        assert await values(kafka, "t") == [b"a", b"b", b"c"]


async def test_the_error_says_what_the_partitioner_has_returned() -> None:
    async def waits(*_: object) -> int:
        return 0

    with pytest.raises(ConfigurationError, match="is not a coroutine function"):
        Producer(**SERVERS, partitioner=cast(Any, waits))
    async with cluster(), Producer(**SERVERS, partitioner=lambda *_: 99) as producer:
        with pytest.raises(NotWrittenError, match="the partitioner returned 99; topic 't' has"):
            await producer.send("t", b"unplaced")
        with pytest.raises(ConfigurationError, match="the partitioner returned 99; topic 't' has"):
            await producer.send("t", b"placed")


async def test_the_error_says_what_a_serializer_must_return() -> None:
    async with cluster(), Producer(**SERVERS, value_serializer=cast(Any, str)) as producer:
        with pytest.raises(ConfigurationError, match="a value_serializer that returns bytes"):
            await producer.send("t", 5)


@pytest.mark.parametrize(
    "data",
    [
        bytearray(b"ab"),
        memoryview(b"ab"),
        numpy.bytes_(b"ab"),
        numpy.frombuffer(b"ab", "u1"),
        array("b", b"ab"),
        (ctypes.c_char * 2)(*b"ab"),
        numpy.frombuffer(b"ab", "u2"),
        array("h", b"ab"),
    ],
)
async def test_a_buffer_is_written(data: Any) -> None:
    async with cluster() as kafka, Producer(**SERVERS) as producer:
        await producer.send("t", data, key=data, headers=(("a", data),))
        assert await values(kafka, "t") == [b"ab"]


async def test_headers_that_can_be_read_only_once_are_written_with_each_record() -> None:
    """They were lost if the record had to wait for room, and from all but the first record of
    `send_many`."""
    headers = [("trace", b"1")]
    async with cluster() as kafka, Producer(**SERVERS, buffer_memory=2_000) as producer:
        producer.send_nowait("t", bytes(1_500))
        given: Any = iter(headers)
        await producer.send("t", bytes(1_500), headers=given)
        given = (pair for pair in headers)
        await producer.send_many("t", [b"", b""], headers=given)
        async with Consumer(**SERVERS, auto_offset_reset="earliest") as consumer:
            await consumer.assign([TP])
            found = [(await consumer.getone()).headers for _ in range(kafka.log_end("t", 0))]
    assert found == [(), *[(("trace", b"1"),)] * 3]


async def test_serializers_plain_and_async() -> None:
    async def encode(value: str) -> bytes:
        await anyio.sleep(0.01)
        return value.encode()

    async with cluster() as kafka:
        async with Producer(**SERVERS, value_serializer=encode, key_serializer=str.encode) as p:
            await p.send("t", "a", key="k")
            with pytest.raises(ConfigurationError, match="value_serializer is a coroutine"):
                p.send_nowait("t", "b")
        async with Producer(**SERVERS, value_serializer=str.encode) as q:
            await q.send_nowait("t", "c")
            null: Any = None  # the serializer is not called
            await q.send_nowait("t", null)
            await q.send("t", null)
        assert await values(kafka, "t") == [b"a", b"c", None, None]
    gc.collect()


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_without_idempotence(acks: object, codec: str) -> None:
    async with cluster(topics={"t": 3}) as kafka:
        async with Producer(
            **SERVERS,
            acks=acks,  # type: ignore[arg-type]
            enable_idempotence=False,
            compression_type=codec,  # type: ignore[arg-type]
            batch_size=2_000,
        ) as producer:
            futures = [
                producer.send_nowait("t", b"%d" % n, partition=1, headers=(("h", b"v"),))
                for n in range(100)
            ]
            offsets = [(await future).offset for future in futures]
        await anyio.sleep(1)
        assert offsets == ([-1] * 100 if acks == 0 else list(range(100)))
        assert await values(kafka, "t", 1) == [b"%d" % n for n in range(100)]


async def test_the_close_waits_for_writes_that_nothing_acknowledges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `acks=0` they were lost, although they counted as written."""
    send = Channel.send

    async def send_late(self: Channel, data: bytes) -> None:
        await anyio.sleep(2)
        await send(self, data)

    async with cluster() as kafka:
        async with Producer(**SERVERS, acks=0, enable_idempotence=False) as producer:
            await producer.send("t", b"first")
            monkeypatch.setattr(Channel, "send", send_late)
            await producer.send("t", b"second")
        await anyio.sleep(1)
        assert await values(kafka, "t") == [b"first", b"second"]

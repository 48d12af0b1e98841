"""When batches are sent that may take further records."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from runtime.produce.logs import SERVERS, cluster

from kafkagroup import BufferFullError, Producer
from kafkagroup.testing.embedded import BrokerSettings, Delay
from kafkagroup.wire.messages.produce import ProduceRequest

pytestmark = pytest.mark.anyio


async def test_the_batch_that_a_full_one_opens_is_sent_after_the_linger() -> None:
    """It was sent when the next record arrived, or failed at its deadline."""
    async with cluster(), Producer(**SERVERS, linger_ms=1_000, batch_size=200) as producer:
        await producer.send("t", b"first")
        producer.send_nowait("t", bytes(120))
        await anyio.sleep(0.5)
        began = anyio.current_time()
        await producer.send("t", bytes(120))
        assert anyio.current_time() - began == pytest.approx(1.0, abs=0.1)


async def test_a_batch_is_no_larger_than_a_request() -> None:
    """A broker that accepts no larger request closed the connection for each attempt."""
    settings = BrokerSettings(max_request_bytes=600_000)
    async with (
        cluster(settings=settings) as kafka,
        Producer(**SERVERS, max_request_size=500_000, delivery_timeout_ms=10_000) as producer,
    ):
        requests: list[ProduceRequest] = []
        kafka.fail(ProduceRequest, Delay(0), when=lambda request: bool(requests.append(request)))
        await producer.send("t", b"first")
        await producer.send_many("t", [bytes(10_000)] * 90)
        sizes = [
            len(part.records or b"")
            for request in requests
            for topic in request.topic_data
            for part in topic.partition_data
        ]
        assert len(sizes) == 3
        assert max(sizes) <= 500_000


async def test_flush_and_the_close_send_all_partitions_at_once() -> None:
    async with cluster(topics={"t": 10}) as kafka:
        async with Producer(**SERVERS, linger_ms=60_000) as producer:
            await producer.partition_count("t")
            producer.send_nowait("t", b"first", partition=0)
            await producer.flush()
            kafka.fail(ProduceRequest, Delay(0.5), times=None)
            for partition in range(10):
                producer.send_nowait("t", b"flushed", partition=partition)
            began = anyio.current_time()
            await producer.flush()
            assert anyio.current_time() - began < 2
            for partition in range(10):
                producer.send_nowait("t", b"closed", partition=partition)
            began = anyio.current_time()
        assert anyio.current_time() - began < 2
        assert sum(kafka.log_end("t", partition) for partition in range(10)) == 21


async def test_a_full_buffer_does_not_wait_for_the_linger() -> None:
    async with cluster() as kafka:
        async with Producer(**SERVERS, linger_ms=30_000, buffer_memory=10_000) as producer:
            await producer.partition_count("t")
            began = anyio.current_time()
            sent = 0
            while sent < 30:
                try:
                    producer.send_nowait("t", bytes(1_000))
                    sent += 1
                except BufferFullError:
                    await producer.ready()
            assert anyio.current_time() - began < 1
            with anyio.move_on_after(1):  # the last ones linger
                await producer.send_many("t", [bytes(1_000)] * 12)
            assert kafka.log_end("t", 0) >= 30


async def test_records_that_waited_for_their_topic_do_not_linger_in_a_full_buffer() -> None:
    """The buffer was full before their partitions were known."""
    async with (
        cluster(topics={"t": 5}) as kafka,
        Producer(**SERVERS, linger_ms=60_000, buffer_memory=10_000) as producer,
    ):
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(partial(producer.send, "t", bytes(1_500), key=b"%d" % n))
            await anyio.sleep(1)
            assert sum(kafka.log_end("t", partition) for partition in range(5)) >= 6
            await producer.flush()
        assert anyio.current_time() - began < 2

"""Batches that the broker finds too large are split, and each record is in the log once and in
order."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from runtime.produce.logs import SERVERS, cluster, values

from kafkagroup import Producer
from kafkagroup.errors import NotWrittenError
from kafkagroup.testing.embedded import BrokerSettings, Close, Delay, Throttle
from kafkagroup.wire.messages.produce import ProduceRequest

pytestmark = pytest.mark.anyio

OPTIONS: dict[str, Any] = {**SERVERS, "batch_size": 16_384}
SMALL = {"max.message.bytes": "2048"}


def records(count: int) -> list[bytes]:
    return [b"%2d" % n + bytes(498) for n in range(count)]


async def test_halves_of_halves_keep_the_order_without_idempotence() -> None:
    async with (
        cluster(topics={}) as kafka,
        Producer(**OPTIONS, enable_idempotence=False) as producer,
    ):
        kafka.create_topic("t", configs=SMALL)
        for one in records(30):
            producer.send_nowait("t", one)
        await producer.flush()
        assert await values(kafka, "t") == records(30)


async def test_a_half_sent_again_keeps_the_order_without_idempotence() -> None:
    async with (
        cluster(topics={}) as kafka,
        Producer(**OPTIONS, enable_idempotence=False) as producer,
    ):
        kafka.create_topic("t", configs=SMALL)
        await producer.send("t", b"first")
        for one in records(6):
            producer.send_nowait("t", one)
        requests: list[object] = []

        def is_second(request: object) -> bool:
            requests.append(request)
            return len(requests) == 2

        kafka.fail(ProduceRequest, Close(before=True), when=is_second)
        await producer.flush()
        assert await values(kafka, "t") == [b"first", *records(6)]


@pytest.mark.parametrize("any_first_sequence", [True, False])
async def test_a_half_that_could_not_be_sent_keeps_its_place(any_first_sequence: bool) -> None:
    settings = BrokerSettings(any_first_sequence=any_first_sequence)
    async with cluster(topics={}, settings=settings) as kafka, Producer(**OPTIONS) as producer:
        kafka.create_topic("t", configs=SMALL)
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, Throttle(1.0))
        for one in records(6):
            producer.send_nowait("t", one)
        await anyio.sleep(0.5)
        kafka.kill(1)
        await anyio.sleep(2)
        kafka.restart(1)
        await producer.flush()
        assert await values(kafka, "t") == [b"first", *records(6)]


async def test_a_half_that_could_not_be_sent_costs_no_later_record() -> None:
    """A later batch got the number of the half, and was acknowledged instead of it."""
    async with cluster(topics={}) as kafka, Producer(**OPTIONS) as producer:
        kafka.create_topic("t", configs=SMALL)
        await producer.partition_count("t")
        kafka.fail(ProduceRequest, Throttle(1.0))
        data = records(9)
        for one in data[:6]:
            producer.send_nowait("t", one)
        await anyio.sleep(0.5)
        for one in data[6:]:
            producer.send_nowait("t", one)
        kafka.kill(1)
        await anyio.sleep(0.53)
        kafka.fail(ProduceRequest, Delay(0.2), times=None)
        kafka.restart(1)
        await producer.flush()
        assert await values(kafka, "t") == data


async def test_a_batch_that_may_be_written_is_not_split() -> None:
    async with cluster(topics={}) as kafka, Producer(**OPTIONS) as producer:
        kafka.create_topic("t")
        await producer.send("t", b"first")
        kafka.fail(ProduceRequest, Close())
        for one in records(6):
            producer.send_nowait("t", one)
        await anyio.sleep(0.05)
        kafka.set_topic_configs("t", SMALL)
        with pytest.raises(NotWrittenError, match="MESSAGE_TOO_LARGE") as raised:
            await producer.flush()
        assert raised.value.is_maybe_written
        assert await values(kafka, "t") == [b"first", *records(6)]

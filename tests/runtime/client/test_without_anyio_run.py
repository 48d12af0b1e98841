"""Applications run by `asyncio.run` with sniffio installed.

anyio then finds the loop through the running task, and there is none in a callback of the loop that
reads a socket.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

import pytest

from kafkagroup import Consumer, TopicPartition
from kafkagroup.errors import ErrorCode, OffsetOutOfRangeError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Fault
from kafkagroup.wire.messages.fetch import FetchRequest

T0 = TopicPartition("t", 0)
BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run it as an application does; pytest's anyio plugin tells sniffio the current loop."""
    contextvars.Context().run(asyncio.run, asyncio.wait_for(story, 30))


def consumer(kafka: EmbeddedKafka, **options: Any) -> Consumer:
    given = {"group_id": "g", "auto_offset_reset": "earliest", **options}
    return Consumer("t", bootstrap_servers=kafka.bootstrap_servers, **given)


@BOTH
@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_a_position_out_of_range_is_reset_or_raised(protocol: str, reset: str) -> None:
    """A fetch response that started a task ended the consumer with a NoEventLoopError."""

    async def story() -> None:
        async with consumer(kafka, group_protocol=protocol, auto_offset_reset=reset) as one:
            await one.wait_assignment()
            one.seek(T0, 1_000_000)
            if reset == "none":
                with pytest.raises(OffsetOutOfRangeError):
                    await one.getone()
                one.seek(T0, 0)
            assert (await one.getone()).offset == 0

    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.produce("t", ["0"])
        run(story())


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ],
)
def test_a_failed_fetch_is_retried(code: ErrorCode) -> None:
    async def story() -> None:
        async with consumer(kafka) as one:
            assert (await one.getone()).offset == 0
            fault = kafka.fail(FetchRequest, code, times=2)
            await refused(fault)
            kafka.produce("t", ["1"])
            while (await one.getone()).offset < 1:
                pass

    async def refused(fault: Fault) -> None:
        while fault.hits < 2:
            kafka.produce("t", ["more"])
            await asyncio.sleep(0.01)

    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.produce("t", ["0"])
        run(story())

"""Assignments that are applied after their generation has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup.errors import ErrorCode
from kafkagroup.runtime.consume import subscriber
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.wire.messages.group import HeartbeatRequest

pytestmark = pytest.mark.anyio


async def test_nothing_of_it_is_delivered_while_it_is_revoked(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member may own the partitions before the listener returns."""
    story: list[str] = []
    decoding = anyio.Event()

    async def decode_slowly(_: object, job: Callable[[], Any], __: int) -> Any:
        decoding.set()
        await anyio.sleep(2)
        return job()

    async def revoked(_: object) -> None:
        story.append("revoked")
        await anyio.sleep(5)
        story.append("released")

    consumer = Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        heartbeat_interval_ms=50,
        auto_offset_reset="earliest",
        on_partitions_assigned=lambda _: story.append("assigned"),
        on_partitions_revoked=revoked,
    )

    async def read() -> None:
        story.append((await consumer.getone()).value.decode())

    monkeypatch.setattr(subscriber, "run_job", decode_slowly)
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["a record"], partition=0)
        with anyio.fail_after(60):
            async with consumer, anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await decoding.wait()
                kafka.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
                await anyio.sleep(20)
                assert story == ["assigned", "revoked", "released", "assigned", "a record"]

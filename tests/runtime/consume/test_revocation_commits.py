"""Commits that a rebalance listener begins, and does not wait for."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.offsets import OffsetCommitRequest

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)


async def test_a_revocation_waits_for_the_commit(network: Any, kind: dict[str, Any]) -> None:
    """The coordinator refuses the first attempt, and would refuse the second one in the next
    generation."""
    committed: list[TopicPartition] = []

    async def commit() -> None:
        await consumer.commit({TP: 5})
        committed.append(TP)

    async def revoked(partitions: list[TopicPartition]) -> None:
        if TP in partitions:
            tasks.start_soon(commit)
            await anyio.sleep(0.01)  # it begins

    consumer = Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        enable_auto_commit=False,
        on_partitions_revoked=revoked,
        **kind,
    )
    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks, consumer:
                await consumer.wait_assignment()
                kafka.fail(OffsetCommitRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                await consumer.subscribe("u")
                await consumer.wait_assignment()
                assert (committed, kafka.committed("g", "t")) == ([TP], {0: 5})
                await consumer.stop()

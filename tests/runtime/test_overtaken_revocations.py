"""A revocation that waits for the end of another callback, while the partitions are lost."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from rebalance_kinds import KINDS

from kafkagroup import Consumer
from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)


@pytest.mark.parametrize("name", ["eager", "cooperative"])
async def test_nothing_is_awaited_and_nothing_is_committed(network: Any, name: str) -> None:
    """The commit would be refused, or overwrite that of the new owner; and the member could not
    rejoin before the application has processed its record."""
    story: list[tuple[str, float]] = []

    def note(what: str) -> None:
        story.append((what, anyio.current_time()))

    async def assigned(_: object) -> None:
        note("assigned")
        if len(story) == 1:
            consumer.seek(TP, 0)
            await anyio.sleep(5)
            note("returned")

    consumer = Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        heartbeat_interval_ms=50,
        auto_commit_interval_ms=600_000,
        on_partitions_assigned=assigned,
        on_partitions_revoked=lambda _: note("revoked"),
        on_partitions_lost=lambda _: note("lost"),
        **KINDS[name],
    )

    async def process_slowly() -> None:
        await consumer.getone()
        await consumer.getone()
        await anyio.sleep(30)

    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["x", "y"], partition=0)
        with anyio.fail_after(60):
            async with consumer, anyio.create_task_group() as tasks:
                tasks.start_soon(process_slowly)
                await anyio.sleep(1)
                await consumer.subscribe("u")  # revokes t
                await anyio.sleep(1)
                kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
                await anyio.sleep(10)
                assert [what for what, _ in story] == ["assigned", "returned", "lost"]
                assert story[2][1] - story[1][1] < 0.2
                assert kafka.requests(OffsetCommitRequest) == []
                tasks.cancel_scope.cancel()

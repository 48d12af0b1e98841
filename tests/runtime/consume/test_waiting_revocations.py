"""A revocation that begins while another callback runs, and waits for its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from rebalance_kinds import KINDS

from kafkagroup import Consumer, NotAssignedError
from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded import EmbeddedKafka, Swallow
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)

Opened = Callable[[], Any]


class Listening:
    """A consumer whose first callback takes five seconds, and the times of its callbacks."""

    def __init__(self, kafka: EmbeddedKafka, kind: dict[str, Any]) -> None:
        self.kafka = kafka
        self.story: list[tuple[str, float]] = []
        self.starts_at: int | None = None
        self.consumer = Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            heartbeat_interval_ms=50,
            auto_commit_interval_ms=600_000,
            on_partitions_assigned=self._on_assigned,
            on_partitions_revoked=lambda _: self._note("revoked"),
            on_partitions_lost=lambda _: self._note("lost"),
            **kind,
        )

    def _note(self, what: str) -> None:
        self.story.append((what, anyio.current_time()))

    async def _on_assigned(self, _: object) -> None:
        self._note("assigned")
        if len(self.story) == 1:
            if self.starts_at is not None:
                self.consumer.seek(TP, self.starts_at)
            await anyio.sleep(5)
            self._note("returned")


@pytest.fixture(params=["eager", "cooperative"])
def listening(network: Any, request: pytest.FixtureRequest) -> Opened:
    """Provide a consumer of t/0, which has two records."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Listening]:
        async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
            network.serve_embedded(kafka)
            kafka.produce("t", ["x", "y"], partition=0)
            with anyio.fail_after(60):
                yield Listening(kafka, KINDS[request.param])

    return opened


async def test_after_a_loss_it_neither_waits_for_records_nor_commits(listening: Opened) -> None:
    """The commit would be refused, or overwrite that of the new owner; and the member could not
    rejoin before the application has processed its record."""

    async def process_slowly() -> None:
        await consumer.getone()
        await consumer.getone()
        await anyio.sleep(30)

    async with listening() as listener, listener.consumer as consumer:
        listener.starts_at = 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process_slowly)
            await anyio.sleep(1)
            await consumer.subscribe("u")
            await anyio.sleep(1)
            listener.kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
            await anyio.sleep(10)
            assert [what for what, _ in listener.story] == ["assigned", "returned", "lost"]
            assert listener.story[2][1] - listener.story[1][1] < 0.2
            assert listener.kafka.requests(OffsetCommitRequest) == []
            tasks.cancel_scope.cancel()


async def test_a_position_that_was_not_found_yet_is_refused_at_once(listening: Opened) -> None:
    """No look-up would find it any more."""
    async with listening() as listener, listener.consumer as consumer:
        listener.kafka.fail(OffsetFetchRequest, Swallow(), times=None)
        await anyio.sleep(1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.subscribe, "u")
            with pytest.raises(NotAssignedError, match=r"^t/0 is being revoked, and its position"):
                await consumer.position(TP)
        assert [what for what, _ in listener.story] == ["assigned"]

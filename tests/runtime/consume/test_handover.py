"""What two members deliver and commit while partitions move from one to the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup.testing.embedded import BrokerSettings, Delay, EmbeddedKafka
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.offsets import OffsetCommitRequest

pytestmark = pytest.mark.anyio

COUNT = 150
SETTINGS = BrokerSettings(group_consumer_heartbeat_interval=0.2)


class Worker:
    """A consumer that takes 0.1 s for each record; what it delivered, and its callbacks."""

    def __init__(self, name: str, kind: dict[str, Any], revoking: float = 0.0, **more: Any) -> None:
        self.delivered: list[tuple[float, int, int]] = []
        """Time, partition and offset of each record."""
        self.revoked: list[tuple[float, list[int]]] = []
        self.revoking = revoking
        """The seconds that the callback of a revocation takes."""
        self.consumer = Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            client_id=name,
            heartbeat_interval_ms=200,
            on_partitions_revoked=self.on_revoked,
            **{**kind, **more},
        )

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.revoked.append((anyio.current_time(), sorted(tp.partition for tp in partitions)))
        await anyio.sleep(self.revoking)

    async def run(self) -> None:
        async with self.consumer:
            async for record in self.consumer:
                self.delivered.append((anyio.current_time(), record.partition, record.offset))
                await anyio.sleep(0.1)

    def offsets(self, partition: int) -> list[int]:
        return [offset for _, number, offset in self.delivered if number == partition]


@asynccontextmanager
async def broker(network: Any) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": 2}, listen=False, settings=SETTINGS) as kafka:
        network.serve_embedded(kafka)
        for partition in range(2):
            for number in range(COUNT):
                kafka.produce("t", [f"{number}"], partition=partition)
        with anyio.fail_after(200):
            yield kafka


async def test_a_partition_revoked_during_a_slow_auto_commit_continues_where_it_ended(
    network: Any, kind: dict[str, Any]
) -> None:
    """The automatic commit in flight has older offsets than the last commit: the next owner would
    repeat records if the last commit were left out, or if that one overtook it."""
    first = Worker("a", kind, auto_commit_interval_ms=1_000)
    second = Worker("b", kind, auto_commit_interval_ms=1_000)
    async with broker(network) as kafka, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        while len(first.delivered) < 5:
            await anyio.sleep(0.01)
        slow = kafka.fail(OffsetCommitRequest, Delay(3), times=None)
        while not slow.hits:
            await anyio.sleep(0.01)
        tasks.start_soon(second.run)
        while len(second.delivered) < 30:
            await anyio.sleep(0.01)
        slow.stop()
        assert len(first.revoked) == 1
        tasks.cancel_scope.cancel()
    (moved,) = {partition for _, partition, _ in second.delivered}
    before, after = first.offsets(moved), second.offsets(moved)
    assert len(before) > 5
    assert before + after == list(range(len(before) + len(after)))
    kept = first.offsets(1 - moved)
    assert kept == list(range(len(kept)))


async def test_records_of_kept_partitions_are_delivered_during_a_cooperative_revocation(
    network: Any, kind: dict[str, Any]
) -> None:
    """Only what moves is revoked, and it is revoked at once: no record of it follows, here nor
    twice at the next owner. An eager member revokes everything, and delivers nothing meanwhile."""
    first, second = Worker("a", kind, revoking=3.0), Worker("b", kind)
    async with broker(network), anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        while len(first.delivered) < 5:
            await anyio.sleep(0.01)
        tasks.start_soon(second.run)
        while len(second.delivered) < 30:
            await anyio.sleep(0.01)
        ((began, revoked),) = first.revoked
        tasks.cancel_scope.cancel()
    (moved,) = {partition for _, partition, _ in second.delivered}
    is_eager = kind == {}
    assert revoked == ([0, 1] if is_eager else [moved])
    during = [n for at, n, _ in first.delivered if began < at < began + 2.9]
    assert set(during) == (set() if is_eager else {1 - moved})
    assert is_eager or len(during) > 25
    before, after = first.offsets(moved), second.offsets(moved)
    assert before + after == list(range(len(before) + len(after)))
    kept = first.offsets(1 - moved)
    assert kept == list(range(len(kept)))

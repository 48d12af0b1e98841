"""The offsets that a rebalance listener returns: where its partitions start, and which are
refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from rebalance_kinds import KINDS

from kafkagroup import Consumer, NotAssignedError, OffsetAndMetadata
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.types import TopicPartition

pytestmark = pytest.mark.anyio

A, B, U = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)

Returned = dict[TopicPartition, Any] | None


@asynccontextmanager
async def consuming(
    network: Any, kind: dict[str, Any], assigned: Callable[[Any], Returned | Awaitable[Returned]]
) -> AsyncIterator[Consumer]:
    """Provide a consumer with this listener, and ten records in each partition of t."""
    async with network, EmbeddedKafka({"t": 2, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        for tp in (A, B):
            kafka.produce(tp.topic, ["x"] * 10, partition=tp.partition)
        consumer = Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            heartbeat_interval_ms=50,
            auto_offset_reset="earliest",
            on_partitions_assigned=assigned,
            **kind,
        )
        with anyio.fail_after(60):
            async with consumer:
                yield consumer


async def firsts(consumer: Consumer) -> dict[TopicPartition, int]:
    """Return the offset of the next record of each partition of t."""
    found: dict[TopicPartition, int] = {}
    while len(found) < 2:
        record = await consumer.getone()
        found.setdefault(TopicPartition(record.topic, record.partition), record.offset)
    return found


async def test_a_partition_without_an_offset_starts_where_it_would(
    network: Any, kind: dict[str, Any]
) -> None:
    returned = {A: None, B: OffsetAndMetadata(7)}
    async with consuming(network, kind, lambda _: returned) as consumer:
        assert await firsts(consumer) == {A: 0, B: 7}


async def test_an_offset_of_a_partition_that_is_not_assigned_is_an_error(
    network: Any, kind: dict[str, Any]
) -> None:
    """The others start where the listener says."""
    async with consuming(network, kind, lambda _: {A: 3, U: 5, B: 7}) as consumer:
        with pytest.raises(NotAssignedError, match=r"^u/0 is not assigned to this consumer"):
            await consumer.getone()
        assert await firsts(consumer) == {A: 3, B: 7}


@pytest.mark.parametrize("name", ["eager", "cooperative"])
async def test_an_offset_of_a_partition_that_was_revoked_meanwhile_does_not_count(
    network: Any, name: str
) -> None:
    """The listener cannot know: the next assignment starts at the committed offset, without an
    error."""
    calls: list[list[TopicPartition]] = []

    async def assigned(partitions: list[TopicPartition]) -> Returned:
        calls.append(partitions)
        if len(calls) > 1:
            return None
        await anyio.sleep(5)
        return {A: 3, B: 7}

    async with consuming(network, KINDS[name], assigned) as consumer:
        while not calls:
            await anyio.sleep(0.1)
        await consumer.subscribe("u")
        await consumer.wait_assignment()
        assert consumer.assignment() == {U}
        await consumer.subscribe("t")
        assert await firsts(consumer) == {A: 0, B: 0}
        assert calls == [[A, B], [U], [A, B]]

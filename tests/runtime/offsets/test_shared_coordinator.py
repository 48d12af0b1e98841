"""A member and the commits of its consumer share what they know of the coordinator. On an embedded
broker in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest

pytestmark = pytest.mark.anyio

KINDS = {"classic": HeartbeatRequest, "consumer": ConsumerGroupHeartbeatRequest}
"""Both protocols, with their heartbeats."""


@asynccontextmanager
async def consuming(network: Any, kind: Any) -> AsyncIterator[tuple[EmbeddedKafka, Consumer]]:
    """A consumer that has joined, and whose commits are explicit."""
    consumer = Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        group_protocol=kind,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=10_000,
        session_timeout_ms=45_000,
    )
    async with network, EmbeddedKafka({"t": 1}, nodes=2, listen=False) as kafka:
        network.serve_embedded(kafka, 2)
        kafka.produce("t", ["0", "1", "2"])
        kafka.move_coordinator("g", 1)
        with anyio.fail_after(300):
            async with consumer:
                await consumer.getone()
                await anyio.sleep(1)
                yield kafka, consumer


def nodes(kafka: EmbeddedKafka, api: type[Any]) -> list[int]:
    """Return the nodes that have received these requests."""
    return [seen.node_id for seen in kafka.requests(api)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_starting_consumer_looks_its_coordinator_up_once(network: Any, kind: str) -> None:
    """The member and the connection for offsets each sent a request."""
    async with consuming(network, kind) as (kafka, consumer):
        await consumer.commit()
        assert len(kafka.requests(FindCoordinatorRequest)) == 1


async def test_a_member_follows_the_coordinator_that_a_commit_has_found(network: Any) -> None:
    """It learned at its next heartbeat, here after ten seconds, that the coordinator had moved."""
    async with consuming(network, "classic") as (kafka, consumer):
        heartbeats = nodes(kafka, HeartbeatRequest)
        kafka.move_coordinator("g", 2)
        await consumer.commit()
        await anyio.sleep(0.1)
        assert nodes(kafka, HeartbeatRequest) == [*heartbeats, 2]
        assert nodes(kafka, OffsetCommitRequest) == [1, 2]
        assert len(kafka.requests(FindCoordinatorRequest)) == 2
        assert consumer.coordinator is not None
        assert consumer.coordinator.node_id == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_commit_uses_the_coordinator_that_the_member_has_found(
    network: Any, kind: str
) -> None:
    """It was sent to the former coordinator, which refused it."""
    async with consuming(network, kind) as (kafka, consumer):
        kafka.move_coordinator("g", 2)
        while 2 not in nodes(kafka, KINDS[kind]):
            await anyio.sleep(1)
        await consumer.commit()
        assert nodes(kafka, OffsetCommitRequest) == [2]
        assert len(kafka.requests(FindCoordinatorRequest)) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_forgotten_coordinator_is_looked_up_once(network: Any, kind: str) -> None:
    async with consuming(network, kind) as (kafka, consumer):
        consumer.forget_coordinator()
        await consumer.commit()
        await anyio.sleep(5)
        assert len(kafka.requests(FindCoordinatorRequest)) == 2

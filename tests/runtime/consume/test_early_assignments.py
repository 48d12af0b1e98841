"""`assign` and `unsubscribe` before the consumer is started: the last call decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer, TopicPartition
from kafkagroup.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.anyio

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.fixture
def cluster(network: Any) -> Any:
    @asynccontextmanager
    async def opened() -> AsyncIterator[EmbeddedKafka]:
        async with network, EmbeddedKafka({"t": 2, "u": 1}, listen=False) as kafka:
            network.serve_embedded(kafka)
            with anyio.fail_after(1_000):
                yield kafka

    return opened


def consumer() -> Consumer:
    return Consumer(bootstrap_servers="kafka-1", group_id="g", enable_auto_commit=False)


async def test_the_last_assignment_before_the_start_replaces_the_earlier_ones(
    cluster: Any,
) -> None:
    async with cluster() as kafka:
        for partition in (T0, T1):
            kafka.produce("t", [str(n) for n in range(3)], partition=partition.partition)
        one = consumer()
        await one.assign([T0, U0])
        await one.assign([T0])
        one.seek(T0, 2)
        await one.assign([T1, T0])
        async with one:
            assert one.assignment() == {T0, T1}
            found = {(r.partition, r.offset) for r in [await one.getone() for _ in range(4)]}
        assert found == {(0, 2), (1, 0), (1, 1), (1, 2)}


async def test_unsubscribing_before_the_start_drops_the_assignment(cluster: Any) -> None:
    async with cluster():
        one = consumer()
        await one.assign([T0, T1])
        await one.unsubscribe()
        assert one.assignment() == frozenset()
        await one.subscribe("u")
        async with one:
            assert await one.wait_assignment() == {U0}
            await anyio.sleep(30.0)
            assert (one.assignment(), one.group_metadata().generation_id) == ({U0}, 1)

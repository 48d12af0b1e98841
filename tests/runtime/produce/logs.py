"""A cluster of embedded brokers in virtual time, and what stands in its logs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
import pytest
from memory_network import Network

from kafkagroup import Consumer
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings
from kafkagroup.types import TopicPartition

__all__ = ["SERVERS", "cluster", "values"]

_TIMEOUT = 600.0
"""Virtual seconds."""

SERVERS = {"bootstrap_servers": "kafka-1:9092"}


@asynccontextmanager
async def cluster(
    nodes: int = 1,
    *,
    topics: Mapping[str, int] | None = None,
    settings: BrokerSettings | None = None,
    network: Network | None = None,
) -> AsyncIterator[EmbeddedKafka]:
    """A cluster at `SERVERS`, with one topic "t" of one partition unless others are given."""
    network = network or Network()
    kafka = EmbeddedKafka(
        {"t": 1} if topics is None else topics, nodes=nodes, listen=False, settings=settings
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anyio, "connect_tcp", network.connect_tcp)
        async with network, kafka:
            network.serve_embedded(kafka, nodes)
            with anyio.fail_after(_TIMEOUT):
                yield kafka


async def values(kafka: EmbeddedKafka, topic: str, partition: int = 0) -> list[bytes | None]:
    """Return the values of all records of a partition, in the order of the log."""
    tp = TopicPartition(topic, partition)
    found: list[bytes | None] = []
    async with Consumer(
        bootstrap_servers="kafka-1:9092", auto_offset_reset="earliest", client_id="reader"
    ) as consumer:
        await consumer.assign([tp])
        while await consumer.position(tp) < kafka.log_end(topic, partition):
            for records in (await consumer.getmany(timeout=0.1)).values():
                found += [record.value for record in records]
    return found

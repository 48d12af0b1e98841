"""The broker of a benchmark run, shared by all clients, and its topics.

Real Apache Kafka: one node on loopback with both JVM compilers, or a given address.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import anyio

from kafkagroup import TopicPartition
from kafkagroup.broker import Broker
from kafkagroup.testing import LocalKafka
from kafkagroup.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

__all__ = ["connected", "kafka", "produce", "topic"]

_SETTLING = frozenset((3, 5, 6))
"""Error codes of a topic that was just made: its leader is not up yet."""


@contextmanager
def kafka(bootstrap: str | None) -> Iterator[str]:
    """Provide the address of a broker: the given one, or one that runs meanwhile."""
    if bootstrap is not None:
        yield bootstrap
        return
    # The logs of a deleted topic are deleted at once, not after a minute: otherwise the broker
    # deletes gigabytes while a client is measured, and writes to memory that was never used before,
    # which takes a virtual machine three times as long as memory that was.
    config = {"log.segment.delete.delay.ms": "0"}
    with LocalKafka(config=config, jvm_options=("-Xmx1g", "-XX:+UseSerialGC")) as local:
        yield local.bootstrap_servers


@contextmanager
def topic(bootstrap: str, partitions: int, name: str | None = None) -> Iterator[str]:
    """Provide the name of a topic that exists meanwhile; a new one by default."""
    name = name or f"bench-{uuid.uuid4().hex[:8]}"
    anyio.run(_create, bootstrap, name, partitions)
    try:
        yield name
    finally:
        anyio.run(_delete, bootstrap, name)


@asynccontextmanager
async def connected(bootstrap: str) -> AsyncIterator[Broker]:
    """Connect to the first of the brokers."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    async with Broker.open(host, int(port)) as broker:
        yield broker


async def _create(bootstrap: str, name: str, partitions: int) -> None:
    new = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=-1,
        assignments=(),
        # Our records are stamped with a time long ago: the broker would delete them in a long run.
        configs=(CreatableTopicConfig(name="retention.ms", value="-1"),),
    )
    async with connected(bootstrap) as broker:
        await broker.request(CreateTopicsRequest(topics=(new,)))


async def _delete(bootstrap: str, name: str) -> None:
    state = DeleteTopicState(name=name, topic_id=uuid.UUID(int=0))
    async with connected(bootstrap) as broker:
        await broker.request(DeleteTopicsRequest(topics=(state,), timeout_ms=10_000))


async def produce(broker: Broker, batches: Mapping[TopicPartition, bytes]) -> None:
    """Append one encoded batch to each partition. Raises: SystemExit for permanent errors."""
    while batches:
        response = await broker.produce_messages(batches)
        assert response is not None
        codes = {
            TopicPartition(of.name, one.index): one.error_code
            for of in response.responses
            for one in of.partition_responses
        }
        if wrong := {tp: code for tp, code in codes.items() if code and code not in _SETTLING}:
            raise SystemExit(f"produce failed: {wrong}")
        batches = {tp: batch for tp, batch in batches.items() if codes[tp]}
        if batches:
            await anyio.sleep(0.1)

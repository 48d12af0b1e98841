"""Responses that carry more than was asked for: what a broker adds is neither used nor kept."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer, Producer, TopicPartition
from kafkagroup._values import evolve
from kafkagroup.consume.fetch_session import FetchSession
from kafkagroup.testing.embedded import Change, EmbeddedKafka
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.metadata import (
    Coordinator,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataResponseTopic,
)
from kafkagroup.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponseGroup,
)
from kafkagroup.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceResponse,
)

pytestmark = pytest.mark.anyio

T0 = TopicPartition("t", 0)


@pytest.fixture
def cluster(network: Any) -> Any:
    @asynccontextmanager
    async def opened() -> AsyncIterator[EmbeddedKafka]:
        async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
            network.serve_embedded(kafka)
            with anyio.fail_after(1_000):
                yield kafka

    return opened


def first(field: str, *added: Any) -> Callable[[Any], Any]:
    """Return a change that puts these before what a field of a response has."""
    return lambda response: evolve(response, **{field: (*added, *getattr(response, field))})


def consumer(**options: Any) -> Consumer:
    return Consumer("t", bootstrap_servers="kafka-1", auto_offset_reset="earliest", **options)


@pytest.mark.parametrize("options", [{"group_id": "g"}, {"group_id": None}], ids=["group", "alone"])
async def test_topics_that_were_not_requested_are_not_kept(cluster: Any, options: Any) -> None:
    """A million of them once took 441 MiB in 41 seconds."""
    number = 0

    def change(response: Any) -> Any:
        nonlocal number
        number += 1
        unasked = (
            MetadataResponseTopic(error_code=0, name=f"unasked-{number}-{n}", partitions=())
            for n in range(100)
        )
        return first("topics", *unasked)(response)

    async with cluster() as kafka:
        kafka.fail(MetadataRequest, Change(change), times=None)
        async with consumer(metadata_max_age_ms=1_000, **options) as one:
            await anyio.sleep(20.0)
            assert number > 10
            assert list(one._engine._cluster.metadata.topics) == ["t"]  # type: ignore[union-attr]


ADDED = {
    "coordinators": (
        FindCoordinatorRequest,
        first("coordinators", Coordinator(key="other", node_id=9, host="nowhere", port=1)),
    ),
    "groups": (
        OffsetFetchRequest,
        first("groups", OffsetFetchResponseGroup(group_id="other", topics=(), error_code=30)),
    ),
    "commits": (
        OffsetCommitRequest,
        first(
            "topics",
            OffsetCommitResponseTopic(
                name="other",
                partitions=(OffsetCommitResponsePartition(partition_index=0, error_code=29),),
            ),
        ),
    ),
}


@pytest.mark.parametrize("kind", ADDED)
async def test_results_of_other_groups_and_partitions_are_not_used(cluster: Any, kind: str) -> None:
    request, change = ADDED[kind]
    async with cluster() as kafka:
        kafka.produce("t", ["a", "b"], partition=0)
        kafka.fail(request, Change(change), times=None)
        for expected in ("a", "b"):
            async with consumer(group_id="g", enable_auto_commit=False) as one:
                assert (await one.getone()).value == expected.encode()
                await one.commit()
        assert kafka.committed("g", "t") == {0: 2}


async def test_partitions_that_were_not_fetched_are_not_kept(cluster: Any) -> None:
    number = 0

    def change(response: Any) -> Any:
        nonlocal number
        number += 1
        topics = response.responses
        if not topics:
            return response
        unasked = evolve(topics[0].partitions[0], partition_index=number)
        return evolve(
            response, responses=(evolve(topics[0], partitions=(*topics[0].partitions, unasked)),)
        )

    async with cluster() as kafka:
        kafka.fail(FetchRequest, Change(change), times=None)
        async with consumer(group_id="g") as one:
            for n in range(5):
                kafka.produce("t", [str(n)], partition=0)
                assert (await one.getone()).value == str(n).encode()
            ends = [s.log_ends for s in gc.get_objects() if isinstance(s, FetchSession)]
            assert {T0: 5} in ends, "no other partition is kept"


async def test_the_refusal_of_another_partition_is_not_the_one_of_a_write(cluster: Any) -> None:
    refused = PartitionProduceResponse(index=7, error_code=29, base_offset=-1)
    change = first("responses", TopicProduceResponse(name="t", partition_responses=(refused,)))
    async with cluster() as kafka, Producer(bootstrap_servers="kafka-1") as producer:
        kafka.fail(ProduceRequest, Change(change), times=None)
        await producer.send("t", b"v", key=b"k")
        assert kafka.log_end("t", 0) == 1

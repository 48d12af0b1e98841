"""Every method of a consumer accepts topics and partitions in the same forms."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kafkagroup import Consumer, OffsetAndMetadata, TopicPartition
from kafkagroup.errors import ConfigurationError
from kafkagroup.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.anyio

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
SHAPES: Any = [A, ("t", 0), [A], (A,), {A}, ["t", 0], [("t", 0)]]


@asynccontextmanager
async def consuming(network: Any) -> AsyncIterator[Consumer]:
    """A consumer of t/0 and t/1 with the group g, ten records in t/0."""
    async with network, EmbeddedKafka({"t": 2}, listen=False) as kafka:
        network.serve_embedded(kafka, 1)
        kafka.produce("t", [b"%d" % n for n in range(10)], partition=0)
        async with Consumer(bootstrap_servers="kafka-1", group_id="g") as consumer:
            await consumer.assign([A, B])
            yield consumer


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
async def test_partitions(network: Any, shape: Any) -> None:
    async with consuming(network) as consumer:
        consumer.pause(shape)
        assert consumer.paused() == {A}
        consumer.resume(shape)
        assert consumer.paused() == set()
        assert await consumer.beginning_offsets(shape) == {A: 0}
        assert await consumer.end_offsets(shape) == {A: 10}
        await consumer.seek_to_end(shape)
        assert await consumer.position(A) == 10
        await consumer.seek_to_beginning(shape)
        assert await consumer.position(A) == 0
        assert await consumer.committed(shape) == {A: None}
        await consumer.assign(shape)
        assert consumer.assignment() == {A}


@pytest.mark.parametrize("shape", [A, ("t", 0)], ids=repr)
async def test_one_partition(network: Any, shape: Any) -> None:
    async with consuming(network) as consumer:
        consumer.seek(shape, 5)
        assert await consumer.position(shape) == 5
        await consumer.commit({shape: 7})
        assert await consumer.committed(shape) == {A: OffsetAndMetadata(7)}
        found = await consumer.offsets_for_times({shape: 0})
        assert found.keys() == {A}


async def test_a_seek_takes_a_partition_as_all_calls_do(network: Any) -> None:
    """`seek("t", 0, 6)` was a third shape, which no other call had."""
    seek: Any
    async with consuming(network) as consumer:
        seek = consumer.seek
        with pytest.raises(TypeError, match="takes 3 positional arguments but 4 were given"):
            seek("t", 0, 6)


async def test_invalid_partitions_raise(network: Any) -> None:
    """The call raises, and its error shows the right argument."""
    wrong: Any = "t"
    async with consuming(network) as consumer:
        expected = re.escape("'t' is no partition; expected TopicPartition('topic', 0)")
        for call in (consumer.pause, consumer.resume):
            with pytest.raises(ConfigurationError, match=expected):
                call(wrong)
        with pytest.raises(ConfigurationError, match=expected):
            consumer.seek(wrong, 0)
        for ask in (
            consumer.assign,
            consumer.committed,
            consumer.position,
            consumer.beginning_offsets,
            consumer.end_offsets,
            consumer.seek_to_beginning,
            consumer.seek_to_end,
        ):
            with pytest.raises(ConfigurationError, match=expected):
                await ask(wrong)
        for give in (consumer.commit, consumer.offsets_for_times):
            with pytest.raises(ConfigurationError, match=expected):
                await give({wrong: 0})
            with pytest.raises(ConfigurationError, match="is no mapping"):
                await give([A])  # type: ignore[arg-type]
        for offset in ("5", -1, None):
            with pytest.raises(ConfigurationError, match=f"the offset for t/0 is {offset!r}"):
                consumer.seek(A, offset)  # type: ignore[call-overload]
        assert consumer.assignment() == {A, B}


async def test_invalid_limits_raise(network: Any) -> None:
    """An addition or comparison inside raised a TypeError instead."""
    async with consuming(network) as consumer:
        for wrong in (A, "3", 0, None, True, 2.5):
            expected = re.escape(f"max_records={wrong!r}; expected a whole number from 1")
            with pytest.raises(ConfigurationError, match=expected):
                await consumer.getmany(wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match=expected):
                consumer.batches(wrong)  # type: ignore[call-overload]
        for wrong in ("3", None, True, float("nan")):
            expected = f"timeout={wrong!r}; expected a number of seconds"
            with pytest.raises(ConfigurationError, match=expected):
                await consumer.getmany(timeout=wrong)  # type: ignore[arg-type]
        assert consumer.assignment() == {A, B}


@pytest.mark.parametrize(
    "topics",
    [("t", "u"), (["t", "u"],), (("t", "u"),), ({"t", "u"},), (["t"], "u")],
    # Not the repr: the order of a set differs between the workers of pytest-xdist.
    ids=["names", "list", "tuple", "set", "list and name"],
)
async def test_topics(network: Any, topics: Any) -> None:
    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka, 1)
        both = {TopicPartition("t", 0), TopicPartition("u", 0)}
        async with Consumer(*topics, bootstrap_servers="kafka-1", group_id="g") as consumer:
            assert await consumer.wait_assignment() == both
        async with Consumer(bootstrap_servers="kafka-1", group_id="g") as consumer:
            await consumer.subscribe(*topics)
            assert await consumer.wait_assignment() == both


@pytest.mark.parametrize("wrong", [5, "", b"t", None, [5], re.compile("t.*"), {"t": 1}], ids=repr)
async def test_invalid_topics_raise(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no topic name; expected a string"):
        await Consumer().subscribe(wrong)
    if not isinstance(wrong, dict):  # which could be options
        with pytest.raises(ConfigurationError, match="is no topic name; expected a string"):
            Consumer(wrong)

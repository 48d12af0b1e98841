"""Numbers that the protocol's fields cannot carry, from the application and from brokers.

A request with one cannot be encoded. Sent from a background task, it ended the consumer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup._values import evolve
from kafkagroup.errors import ConfigurationError, OffsetOutOfRangeError
from kafkagroup.testing.embedded import Change, EmbeddedKafka
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.offsets import ListOffsetsRequest

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)
MOST = 2**63 - 1


@pytest.fixture
async def kafka(network: Any) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0", "1"], partition=0)
        yield kafka


def consumer(*topics: str, **options: Any) -> Consumer:
    return Consumer(*topics, bootstrap_servers="kafka-1", group_id="g", **options)


CALLS: dict[str, Callable[[Consumer], Any]] = {
    "seek beyond": lambda c: c.seek(TP, MOST + 1),
    "seek below": lambda c: c.seek(TP, -1),
    "seek in no partition": lambda c: c.seek(("t", 2**31), 0),
    "commit beyond": lambda c: c.commit({TP: MOST + 1}),
    "commit of an epoch": lambda c: c.commit({TP: OffsetAndMetadata(1, "", 2**31)}),
    "commit in no partition": lambda c: c.commit({("t", -1): 1}),
    "committed": lambda c: c.committed(("t", 2**31)),
    "times beyond": lambda c: c.offsets_for_times({TP: MOST + 1}),
    "times below": lambda c: c.offsets_for_times({TP: -1}),
    "ends": lambda c: c.end_offsets(("t", 2**31)),
    "position": lambda c: c.position(("t", -1)),
    "pause": lambda c: c.pause(("t", 2**31)),
    "getmany": lambda c: c.getmany(2**63),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_number_out_of_range_is_refused_and_the_consumer_continues(
    kafka: EmbeddedKafka, call: str
) -> None:
    async with consumer() as ours:
        await ours.assign(TP)
        assert (await ours.getone()).offset == 0
        with pytest.raises(ConfigurationError, match=r"expected (a number|a whole number|millis)"):
            result = CALLS[call](ours)
            if result is not None:
                await result
        with anyio.fail_after(60):
            assert (await ours.getone()).offset == 1


async def test_partitions_out_of_range_are_not_assigned(kafka: EmbeddedKafka) -> None:
    async with consumer() as ours:
        with pytest.raises(ConfigurationError, match="'t' has no partition 2147483648"):
            await ours.assign([TP, ("t", 2**31)])
        assert ours.assignment() == frozenset()


@pytest.mark.parametrize("offsets", [{TP: MOST + 1}, {TP: -2}, {TP: "5"}, {("t", 2**31): 0}])
async def test_a_start_out_of_range_from_the_listener_is_raised_once(
    kafka: EmbeddedKafka, offsets: Any
) -> None:
    async with consumer("t", on_partitions_assigned=lambda _: offsets) as ours:
        with anyio.fail_after(60):
            with pytest.raises(ConfigurationError, match="expected a"):
                await ours.getone()
            assert (await ours.getone()).offset == 0


@pytest.mark.parametrize("result", [[(TP, 1)], 1, "1", False])
async def test_a_result_of_the_listener_that_is_no_mapping_is_raised_once(
    kafka: EmbeddedKafka, result: Any
) -> None:
    """It was ignored: a list of pairs in place of a mapping started at the committed offsets."""
    async with consumer("t", on_partitions_assigned=lambda _: result) as ours:
        with anyio.fail_after(60):
            with pytest.raises(ConfigurationError) as caught:
                await ours.getone()
            assert (await ours.getone()).offset == 0
    assert str(caught.value) == (
        f"on_partitions_assigned returned a {type(result).__name__}; expected None, or the offsets"
        " at which to start: {TopicPartition('topic', 0): 5}"
    )


async def test_the_greatest_offset_is_out_of_the_log_but_valid(kafka: EmbeddedKafka) -> None:
    async with consumer(auto_offset_reset="none") as ours:
        await ours.assign(TP)
        ours.seek(TP, MOST)
        with anyio.fail_after(120), pytest.raises(OffsetOutOfRangeError):
            await ours.getone()
        ours.seek(TP, 1)
        with anyio.fail_after(60):
            assert (await ours.getone()).offset == 1


@pytest.mark.parametrize("offset", [-1, -5])
async def test_a_log_end_that_is_no_offset_is_requested_again(
    kafka: EmbeddedKafka, offset: int
) -> None:
    """The application once got -1, or another negative number, as the end of a log."""
    wrong = kafka.fail(ListOffsetsRequest, Change(partial(with_offset, offset)), times=3)
    async with consumer() as ours:
        with anyio.fail_after(60):
            assert await ours.end_offsets(TP) == {TP: 2}
        assert wrong.hits == 3


async def test_a_time_without_an_offset_is_none(kafka: EmbeddedKafka) -> None:
    kafka.fail(ListOffsetsRequest, Change(partial(with_offset, -5)))
    async with consumer() as ours:
        assert await ours.offsets_for_times({TP: 0}) == {TP: None}


def with_offset(offset: int, response: Any) -> Any:
    (topic,) = response.topics
    (partition,) = topic.partitions
    partition = evolve(partition, offset=offset)
    return evolve(response, topics=(evolve(topic, partitions=(partition,)),))

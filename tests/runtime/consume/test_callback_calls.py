"""Every call of a consumer in every rebalance callback: each ends, and the rebalance goes on."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup import ClosedError, Consumer, NotAssignedError, OffsetAndMetadata
from kafkagroup.errors import ErrorCode, IllegalStateError, KafkaGroupError, NoOffsetError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.offsets import OffsetFetchRequest

pytestmark = pytest.mark.anyio

T, U = TopicPartition("t", 0), TopicPartition("u", 0)

CALLS: dict[str, Callable[[Consumer], Any]] = {
    "getone": lambda c: c.getone(),
    "iterate": lambda c: anext(c),
    "batches": lambda c: anext(c.batches()),
    "getmany": lambda c: c.getmany(timeout=1.0),
    "wait_assignment": lambda c: c.wait_assignment(),
    "subscribe": lambda c: c.subscribe("t"),
    "unsubscribe": lambda c: c.unsubscribe(),
    "position": lambda c: c.position(T),
    "commit": lambda c: c.commit(),
    "commit given": lambda c: c.commit({T: 2}),
    "committed": lambda c: c.committed([T]),
    "beginning_offsets": lambda c: c.beginning_offsets([T]),
    "end_offsets": lambda c: c.end_offsets([T]),
    "offsets_for_times": lambda c: c.offsets_for_times({T: 0}),
    "lag": lambda c: c.lag(),
    "seek": lambda c: c.seek(T, 2),
    "seek_to_beginning": lambda c: c.seek_to_beginning(T),
    "seek_to_end": lambda c: c.seek_to_end(T),
    "pause": lambda c: c.pause(T),
    "resume": lambda c: c.resume(T),
    "assignment": lambda c: c.assignment(),
    "rejoin": lambda c: c.rejoin(),
    "forget_coordinator": lambda c: c.forget_coordinator(),
    "health": lambda c: c.health(),
    "stop": lambda c: c.stop(),
}


def make(**options: Any) -> Consumer:
    options = {"heartbeat_interval_ms": 500, "auto_commit_interval_ms": 600_000, **options}
    return Consumer("t", bootstrap_servers="kafka-1:9092", group_id="g", **options)


@asynccontextmanager
async def broker(network: Any) -> AsyncIterator[EmbeddedKafka]:
    """Provide a broker with 10 records in t and none in u, and an offset of the group in t."""
    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", [b"%d" % n for n in range(10)], partition=0)
        with anyio.fail_after(600):
            yield kafka


async def commit(offset: int) -> None:
    async with Consumer(bootstrap_servers="kafka-1:9092", group_id="g") as consumer:
        await consumer.assign([T])
        await consumer.commit({T: offset})


def end_membership(kafka: EmbeddedKafka) -> None:
    for request in (HeartbeatRequest, ConsumerGroupHeartbeatRequest):
        kafka.fail(request, ErrorCode.UNKNOWN_MEMBER_ID)


class Listener:
    """Makes a call in one callback, once, and records what it returned or raised."""

    def __init__(self, callback: str, call: Callable[[Consumer], Any], **options: Any) -> None:
        self.callback, self.call = callback, call
        self.found: object = None
        self.took = -1.0
        self.consumer = make(
            on_partitions_assigned=lambda tps: self.on("assigned", tps),
            on_partitions_revoked=lambda tps: self.on("revoked", tps),
            on_partitions_lost=lambda tps: self.on("lost", tps),
            **options,
        )

    async def on(self, callback: str, partitions: list[TopicPartition]) -> None:
        if callback != self.callback or self.took >= 0.0 or partitions != [T]:
            return
        start = anyio.current_time()
        try:
            result = self.call(self.consumer)
            self.found = await result if inspect.isawaitable(result) else result
        except KafkaGroupError as error:
            self.found = type(error)
        self.took = anyio.current_time() - start


async def cause(callback: str, consumer: Consumer, kafka: EmbeddedKafka) -> None:
    """Have a consumer that has an assignment call this callback."""
    if callback == "revoked":
        await consumer.subscribe("u")
    elif callback == "lost":
        end_membership(kafka)


@pytest.mark.parametrize("kind", ["eager", "consumer"], indirect=True)
@pytest.mark.parametrize("callback", ["assigned", "revoked", "lost"])
@pytest.mark.parametrize("call", CALLS)
async def test_every_call_answers_in_every_callback(
    network: Any, kind: dict[str, Any], callback: str, call: str
) -> None:
    """`position()` in `on_partitions_assigned` never returned, as the position was looked up after
    the callback only: the member stayed in the group, healthy, and read nothing."""
    listener = Listener(callback, CALLS[call], **kind)
    async with broker(network) as kafka:
        await commit(1)
        async with listener.consumer as consumer:
            await anyio.sleep(1)
            await cause(callback, consumer, kafka)
            await anyio.sleep(8)
            assert 0.0 <= listener.took < 5.0
            if call == "stop":
                with pytest.raises(ClosedError):
                    await consumer.getone()
                return
            if call in ("unsubscribe", "subscribe") or callback == "revoked":
                await consumer.subscribe("t")
            assert await consumer.wait_assignment() == {T}
            with anyio.fail_after(10):
                if call in ("pause", "seek_to_end"):
                    await consumer.seek_to_beginning(T)
                    consumer.resume(T)
                assert (await consumer.getone()).partition == 0


ANSWERS: dict[str, dict[str, object]] = {
    "assigned": {
        "position": 1,
        "lag": {T: 9},
        "committed": {T: OffsetAndMetadata(1)},
        "wait_assignment": IllegalStateError,
        "getone": IllegalStateError,
        "iterate": IllegalStateError,
        "batches": IllegalStateError,
        "getmany": IllegalStateError,
        "seek_to_end": None,
        "unsubscribe": None,
    },
    "revoked": {
        "position": 1,
        "lag": {},
        "committed": {T: OffsetAndMetadata(1)},
        "wait_assignment": IllegalStateError,
        "getone": IllegalStateError,
        "pause": NotAssignedError,
        "unsubscribe": None,
    },
    "lost": {
        "position": NotAssignedError,
        "lag": {},
        "committed": {T: OffsetAndMetadata(1)},
        "wait_assignment": IllegalStateError,
        "getone": IllegalStateError,
        "unsubscribe": None,
    },
}


@pytest.mark.parametrize("kind", ["cooperative", "consumer"], indirect=True)
@pytest.mark.parametrize(
    ("callback", "call"), [(callback, call) for callback in ANSWERS for call in ANSWERS[callback]]
)
async def test_what_calls_answer_in_a_callback(
    network: Any, kind: dict[str, Any], callback: str, call: str
) -> None:
    listener = Listener(callback, CALLS[call], **kind)
    async with broker(network) as kafka:
        await commit(1)
        async with listener.consumer as consumer:
            await anyio.sleep(1)
            await cause(callback, consumer, kafka)
            await anyio.sleep(5)
        assert listener.found == ANSWERS[callback][call]


async def test_the_position_without_a_commit_is_that_of_the_reset_policy(
    network: Any, kind: dict[str, Any]
) -> None:
    listener = Listener("assigned", lambda c: c.position(T), auto_offset_reset="latest", **kind)
    async with broker(network), listener.consumer:
        await anyio.sleep(10)
        assert listener.found == 10


async def test_a_position_that_was_not_found_raises_in_the_callback(
    network: Any, kind: dict[str, Any]
) -> None:
    """The listener then seeks, and no other call raises the error."""

    async def seek(consumer: Consumer) -> None:
        with pytest.raises(NoOffsetError):
            await consumer.position(T)
        consumer.seek(T, 7)

    listener = Listener("assigned", seek, auto_offset_reset="none", **kind)
    async with broker(network), listener.consumer as consumer:
        assert (await consumer.getone()).offset == 7


async def test_nothing_is_read_before_the_callback_has_returned(
    network: Any, kind: dict[str, Any]
) -> None:
    """The listener compares the position with its own offset, and starts there: no record before
    that offset is delivered meanwhile."""

    async def assigned(_: list[TopicPartition]) -> dict[TopicPartition, int]:
        before = await consumer.position(T)
        await anyio.sleep(5)
        return {T: before + 3}

    consumer = make(on_partitions_assigned=assigned, **kind)
    async with broker(network):
        await commit(1)
        async with consumer:
            assert (await consumer.getone()).offset == 4


async def test_a_partition_that_is_sought_is_read_during_the_callback(
    network: Any, kind: dict[str, Any]
) -> None:
    async def assigned(_: list[TopicPartition]) -> None:
        consumer.seek(T, await consumer.position(T))
        await anyio.sleep(50)

    consumer = make(on_partitions_assigned=assigned, **kind)
    async with broker(network), consumer:
        start = anyio.current_time()
        assert (await consumer.getone()).offset == 0
        assert anyio.current_time() - start < 5


@pytest.mark.parametrize("then", ["subscribe", "assign"])
async def test_what_follows_unsubscribe_in_a_callback_is_refused(
    network: Any, kind: dict[str, Any], then: str
) -> None:
    """Both would wait until the member has left, which waits for the callback."""

    async def call(consumer: Consumer) -> None:
        await consumer.unsubscribe()
        with pytest.raises(IllegalStateError, match=rf"{then}\(\) after unsubscribe\(\) in a reb"):
            await (consumer.subscribe("u") if then == "subscribe" else consumer.assign([U]))

    listener = Listener("assigned", call, **kind)
    async with broker(network), listener.consumer as consumer:
        await anyio.sleep(10)
        assert (listener.took, consumer.assignment()) == (0.0, set())
        await (consumer.subscribe("t") if then == "subscribe" else consumer.assign([T]))
        assert (await consumer.getone()).offset == 0


async def test_a_partition_revoked_without_a_position_has_none(
    network: Any, kind: dict[str, Any]
) -> None:
    """Its look-up ends with the revocation, so a callback that waited for it never returned."""
    listener = Listener("revoked", CALLS["position"], **kind)
    async with broker(network) as kafka:
        kafka.fail(OffsetFetchRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=None)
        async with listener.consumer as consumer:
            assert await consumer.wait_assignment() == {T}
            await consumer.subscribe("u")
            with anyio.fail_after(5):
                assert await consumer.wait_assignment() == {U}
            assert listener.found is NotAssignedError

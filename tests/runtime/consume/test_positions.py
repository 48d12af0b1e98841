"""The starting position of each partition when responses of the coordinator differ."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup.errors import BrokerError, ErrorCode, broker_error
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.testing.embedded.broker import read_request
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

pytestmark = pytest.mark.anyio

E = ErrorCode
A, B, C = (TopicPartition("t", p) for p in range(3))
RECORDS = 10


class Scripted:
    """An embedded broker, except that a script answers OffsetFetch for each partition. A script is
    a list of offsets and errors; the last one repeats."""

    def __init__(self, network: Any, kafka: EmbeddedKafka) -> None:
        network.serve_embedded(kafka)
        self.kafka = kafka
        self.scripts: dict[int, list[int]] = {}
        self.asked: list[tuple[int, ...]] = []
        """The partitions that each OffsetFetch asked for."""
        self.stable: list[bool] = []
        """Whether each would wait for transactions."""
        self._network = network
        self._embedded = network.handlers["kafka-1", 9092]
        network.handlers["kafka-1", 9092] = self._relay

    async def _relay(self, peer: Any) -> None:
        near, far = type(peer.stream).pair()
        self._network.tasks.start_soon(self._network._serve, self._embedded, far)
        behind = type(peer)(near)
        try:
            while True:
                frame = await _frame(peer)
                incoming = read_request(frame)
                if type(incoming.request) is OffsetFetchRequest:
                    await peer.respond(incoming, self._answer(incoming.request))
                    continue
                await near.send(len(frame).to_bytes(4, "big") + frame)
                frame = await _frame(behind)
                await peer.stream.send(len(frame).to_bytes(4, "big") + frame)
        finally:
            with anyio.CancelScope(shield=True):
                await near.aclose()

    def _answer(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        (group,) = request.groups
        (topic,) = group.topics or ()
        self.asked.append(tuple(sorted(topic.partition_indexes)))
        self.stable.append(request.require_stable)
        parts = tuple(self._partition(p) for p in topic.partition_indexes)
        topics = (
            OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=parts),
        )
        found = OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)
        return OffsetFetchResponse(groups=(found,))

    def _partition(self, partition: int) -> OffsetFetchResponsePartitions:
        script = self.scripts[partition]
        response = script.pop(0) if len(script) > 1 else script[0]
        failed = isinstance(response, ErrorCode)
        return OffsetFetchResponsePartitions(
            partition_index=partition,
            committed_offset=-1 if failed else response,
            committed_leader_epoch=-1,
            metadata="",
            error_code=response if failed else E.NONE,
        )

    @property
    def resets(self) -> int:
        return len(self.kafka.requests(ListOffsetsRequest))


async def _frame(peer: Any) -> bytes:
    size = int.from_bytes(await peer._reader.receive_exactly(4), "big")
    return bytes(await peer._reader.receive_exactly(size))


Opened = Callable[..., Any]


@pytest.fixture
def scripted(network: Any) -> Opened:
    """Provide ten records in each of t/0, t/1 and t/2, and a consumer of group g that is assigned
    them."""

    @asynccontextmanager
    async def opened(
        *scripts: list[int], policy: str = "none", **options: Any
    ) -> AsyncIterator[tuple[Scripted, Consumer]]:
        async with network, EmbeddedKafka({"t": 3}, listen=False) as kafka:
            for p in range(3):
                kafka.produce("t", [f"{n}" for n in range(RECORDS)], partition=p)
            broker = Scripted(network, kafka)
            broker.scripts = dict(enumerate(scripts))
            consumer = Consumer(
                bootstrap_servers="kafka-1",
                group_id="g",
                auto_offset_reset=policy,  # type: ignore[arg-type]
                enable_auto_commit=False,
                **options,
            )
            with anyio.fail_after(500):
                async with consumer:
                    yield broker, consumer

    return opened


async def rest(consumer: Consumer, count: int) -> dict[int, list[int]]:
    """Return the offsets of the next `count` records, by partition."""
    found: dict[int, list[int]] = {}
    for _ in range(count):
        record = await consumer.getone()
        found.setdefault(record.partition, []).append(record.offset)
    return found


async def idle(consumer: Consumer, seconds: float = 60.0) -> bool:
    """Whether no record and no error arrives for that time."""
    with anyio.move_on_after(seconds) as scope:
        await consumer.getone()
    return scope.cancelled_caught


# ---------------------------------------------------------------- unstable offsets


async def test_only_unstable_offsets_are_awaited_and_fetched_again(
    scripted: Opened,
) -> None:
    """The reset policy would raise; a transaction open for minutes delays only its own
    partition."""
    async with scripted([8], [E.UNSTABLE_OFFSET_COMMIT], [9]) as (broker, c):
        await c.assign([A, B, C])
        start = anyio.current_time()
        assert await rest(c, 3) == {0: [8, 9], 2: [9]}
        assert anyio.current_time() - start < 0.1
        assert await idle(c, 300)
        assert (broker.asked[0], set(broker.asked[1:])) == ((0, 1, 2), {(1,)})
        assert 250 < len(broker.asked) < 600
        broker.scripts[1] = [7]
        assert await rest(c, 3) == {1: [7, 8, 9]}
        assert broker.resets == 0


async def test_an_offset_error_is_raised_and_the_others_continue(
    scripted: Opened,
) -> None:
    """Like a refused fetch: the partition is asked for again, and is not reset."""
    refused = E.TOPIC_AUTHORIZATION_FAILED
    async with scripted([8], [refused], [9], policy="earliest") as (broker, c):
        await c.assign([A, B, C])
        with pytest.raises(BrokerError) as caught:
            await c.getone()
        assert caught.value == broker_error(
            refused,
            "reading the offset of t/1 of group 'g'",
            operation="DESCRIBE",
            topic="t",
            group="g",
        )
        assert await rest(c, 3) == {0: [8, 9], 2: [9]}
        assert await idle(c, 20)
        assert (broker.asked[0], set(broker.asked[1:])) == ((0, 1, 2), {(1,)})
        assert 10 < len(broker.asked) < 40
        broker.scripts[1] = [7]
        assert await rest(c, 3) == {1: [7, 8, 9]}
        assert broker.resets == 0


@pytest.mark.parametrize("code", [E.UNKNOWN_TOPIC_ID, E.UNKNOWN_TOPIC_OR_PARTITION])
async def test_offsets_of_an_unknown_topic_are_retried_a_few_times(
    scripted: Opened, code: ErrorCode
) -> None:
    """Not all brokers know a new topic at once; one that stays unknown is reported once."""
    async with scripted([8], [code], [9], policy="earliest") as (broker, c):
        await c.assign([A, B, C])
        assert await rest(c, 3) == {0: [8, 9], 2: [9]}
        with anyio.fail_after(10), pytest.raises(BrokerError) as caught:
            await c.getone()
        assert caught.value == broker_error(
            code,
            "reading the offset of t/1 of group 'g'",
            operation="DESCRIBE",
            topic="t",
            group="g",
        )
        assert broker.asked == [(0, 1, 2), *[(1,)] * 4]
        assert await idle(c, 20)
        broker.scripts[1] = [7]
        assert await rest(c, 3) == {1: [7, 8, 9]}
        assert broker.resets == 0


async def test_offsets_are_fetched_once_an_unknown_topic_is_known(scripted: Opened) -> None:
    unknown = [E.UNKNOWN_TOPIC_ID] * 4
    script = [*unknown, E.UNSTABLE_OFFSET_COMMIT, *unknown, 6]
    async with scripted([8], script, [9]) as (broker, c):
        await c.assign([B])
        assert await rest(c, 4) == {1: [6, 7, 8, 9]}
        assert broker.asked == [(1,)] * 10


async def test_committed_waits_for_unstable_offsets(scripted: Opened) -> None:
    unstable = [E.UNSTABLE_OFFSET_COMMIT] * 3
    async with scripted([8], [*unstable, 7], [-1]) as (broker, c):
        assert await c.committed([A, B, C]) == {
            A: OffsetAndMetadata(8),
            B: OffsetAndMetadata(7),
            C: None,
        }
        assert broker.asked == [(0, 1, 2), (1,), (1,), (1,)]


async def test_an_offset_fetch_requires_stable_offsets(
    scripted: Opened,
) -> None:
    """KIP-447: otherwise a broker returns the offset before the transaction, and never
    "unstable"."""
    async with scripted([8]) as (broker, c):
        await c.assign([A])
        await c.getone()
        await c.committed()
        assert broker.stable == [True, True]


@pytest.mark.parametrize(
    ("code", "times"), [(E.TOPIC_AUTHORIZATION_FAILED, 1), (E.UNKNOWN_TOPIC_ID, 5)]
)
async def test_an_error_names_the_partition_whose_offset_cannot_be_read(
    scripted: Opened, code: ErrorCode, times: int
) -> None:
    async with scripted([8], [code], [9]) as (broker, c):
        with pytest.raises(BrokerError) as caught:
            await c.committed([A, B, C])
        assert caught.value == broker_error(
            code,
            "reading the offset of t/1 of group 'g'",
            operation="DESCRIBE",
            topic="t",
            group="g",
        )
        assert broker.asked == [(0, 1, 2), *[(1,)] * (times - 1)]
        assert await c.committed([A, C]) == {A: OffsetAndMetadata(8), C: OffsetAndMetadata(9)}


# ---------------------------------------------------------------- beside each other


async def test_partitions_without_an_offset_are_reset_while_others_are_unstable(
    scripted: Opened,
) -> None:
    async with scripted([-1], [E.UNSTABLE_OFFSET_COMMIT], [9], policy="earliest") as (broker, c):
        await c.assign([A, B, C])
        start = anyio.current_time()
        assert await rest(c, RECORDS + 1) == {0: list(range(RECORDS)), 2: [9]}
        assert anyio.current_time() - start < 0.1
        assert await idle(c)
        assert broker.resets == 1


async def test_a_position_out_of_range_is_reset_while_the_coordinator_is_away(
    scripted: Opened,
) -> None:
    """The leaders do not depend on the coordinator."""
    async with scripted([E.NOT_COORDINATOR], [8], policy="earliest") as (_, c):
        await c.assign([A, B])
        assert await rest(c, 2) == {1: [8, 9]}
        c.seek(B, 99)
        assert await rest(c, 2) == {1: [0, 1]}


async def test_a_partition_refused_for_long_does_not_delay_another_refusal(
    scripted: Opened,
) -> None:
    """Each waits for itself."""
    refused = E.TOPIC_AUTHORIZATION_FAILED
    options = {"retry_backoff_ms": 100, "retry_backoff_max_ms": 100_000}
    async with scripted([refused], [refused, 7], **options) as (_, c):
        await c.assign([A])
        with suppress(BrokerError):
            await c.getone()
        assert await idle(c)
        await c.assign([A, B])
        begun_at = anyio.current_time()
        with suppress(BrokerError):
            await c.getone()
        assert await rest(c, 3) == {1: [7, 8, 9]}
        assert anyio.current_time() - begun_at < 1

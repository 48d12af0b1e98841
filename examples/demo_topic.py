"""The demo's topic: created, produced to and deleted with single requests to the brokers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import attrs

from kafkagroup import BrokerError, TopicPartition
from kafkagroup.broker import Broker
from kafkagroup.errors import ErrorCode
from kafkagroup.transport.options import parse_servers
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

__all__ = ["Topic", "temporary_topic"]

_CREATION_TIMEOUT = 10.0
_DELETION_TIMEOUT = 5.0
_POLL_SECONDS = 0.1
_NOT_THE_LEADER = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""After these errors nothing was appended, so that a retry cannot append twice. Brokers also return
them for a new topic."""


@attrs.define(eq=False)
class Topic:
    """A topic and the brokers that lead its partitions."""

    name: str
    partitions: int
    brokers: Mapping[int, Broker]
    _leaders: dict[int, int] = attrs.field(factory=dict)
    """Partition -> id of its leader."""

    async def produce(self, values: Mapping[int, Sequence[bytes]]) -> None:
        """Append values, by partition; return when all are acknowledged.

        Raises: BrokerError, TransportError; the log may then have some of the values.
        """
        now_ms = int(time.time() * 1000)
        left = {
            partition: encode_batch([NewRecord(None, value, now_ms) for value in batch])
            for partition, batch in values.items()
        }
        while left:
            left = await self._append(left)
            if left:
                await anyio.sleep(_POLL_SECONDS)
                await self.find_leaders()

    async def _append(self, batches: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send the batches to their leaders; return those that must be sent to another broker, or
        later."""
        by_leader: dict[int, dict[TopicPartition, bytes]] = {}
        for partition, batch in batches.items():
            of_leader = by_leader.setdefault(self._leaders[partition], {})
            of_leader[TopicPartition(self.name, partition)] = batch
        refused: dict[int, bytes] = {}
        for leader, encoded in by_leader.items():
            answer = await self.brokers[leader].produce_messages(encoded)
            assert answer is not None
            for topic in answer.responses:
                for p in topic.partition_responses:
                    if p.error_code in _NOT_THE_LEADER:
                        refused[p.index] = batches[p.index]
                    else:
                        _check(p.error_code, p.error_message)
        return refused

    async def find_leaders(self) -> None:
        """Refresh the metadata until each partition has a leader."""
        broker = next(iter(self.brokers.values()))
        while True:
            (topic,) = (await broker.request_metadata([self.name])).topics
            self._leaders = {p.partition_index: p.leader_id for p in topic.partitions}
            if len(self._leaders) == self.partitions and min(self._leaders.values()) >= 0:
                return
            await anyio.sleep(_POLL_SECONDS)


@asynccontextmanager
async def temporary_topic(bootstrap: str, name: str, partitions: int) -> AsyncIterator[Topic]:
    """Create a topic, and delete it at the end of the `with` block.

    Raises: BrokerError, TransportError; TimeoutError when its partitions get no leaders.
    """
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Broker.open(*parse_servers(bootstrap)[0]))
        metadata = await first.request_metadata([])
        brokers = {
            node.node_id: await stack.enter_async_context(Broker.open(node.host, node.port))
            for node in metadata.brokers
        }
        # With ZooKeeper only the controller creates topics; with KRaft any broker passes it on.
        controller = brokers.get(metadata.controller_id, first)
        await _create(controller, name, partitions)
        try:
            topic = Topic(name, partitions, brokers)
            with anyio.fail_after(_CREATION_TIMEOUT):
                await topic.find_leaders()
            yield topic
        finally:
            with anyio.move_on_after(_DELETION_TIMEOUT, shield=True):
                await _delete(controller, name)


async def _create(controller: Broker, name: str, partitions: int) -> None:
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=-1, assignments=(), configs=()
    )
    answer = await controller.request(CreateTopicsRequest(topics=(topic,)))
    for result in answer.topics:
        _check(result.error_code, result.error_message)


async def _delete(controller: Broker, name: str) -> None:
    request = DeleteTopicsRequest(
        topics=(DeleteTopicState(name=name),), topic_names=(name,), timeout_ms=5_000
    )
    for result in (await controller.request(request)).responses:
        _check(result.error_code, result.error_message)


def _check(error_code: int, message: str | None) -> None:
    if error_code:
        raise BrokerError(error_code, message)

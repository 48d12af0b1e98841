"""The soak's own requests to the brokers: its topic and records, the group's coordinator, and the
final commits."""

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from verification.sim.events import Appended

from kafkagroup import TopicPartition
from kafkagroup.broker import Broker
from kafkagroup.errors import TransportError
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest

VALUE_BYTES = 100
BATCH = 1_000
_PAUSE = 0.05


@asynccontextmanager
async def any_broker(bootstrap: str) -> AsyncIterator[Broker]:
    """Connect to the first reachable broker of the list."""
    async with AsyncExitStack() as stack:
        broker = None
        for server in bootstrap.split(","):
            host, _, port = server.rpartition(":")
            try:
                broker = await stack.enter_async_context(Broker.open(host, int(port)))
                break
            except TransportError:
                continue  # the killed broker
        if broker is None:
            raise SystemExit(f"none of {bootstrap} can be reached")
        yield broker


def written(topic: str, partitions: int, records: int) -> Iterator[Appended]:
    """Return the records of `prepare`, in the order of their sequence numbers."""
    ends = [0] * partitions
    for sequence in range(records):
        number = sequence // BATCH % partitions
        tp = TopicPartition(topic, number)
        yield Appended(time=0.0, partition=tp, offset=ends[number], sequence=sequence)
        ends[number] += 1


async def prepare(bootstrap: str, topic: str, partitions: int, records: int) -> None:
    """Create the topic, with three replicas if there are three brokers, and fill it with sequence
    numbers."""
    async with any_broker(bootstrap) as broker, AsyncExitStack() as stack:
        nodes = {
            node.node_id: await stack.enter_async_context(Broker.open(node.host, node.port))
            for node in (await broker.request_metadata([])).brokers
        }
        new = CreatableTopic(
            name=topic,
            num_partitions=partitions,
            replication_factor=min(3, len(nodes)),
            assignments=(),
            # One broker may be down; the others have all acknowledged records.
            configs=(CreatableTopicConfig(name="min.insync.replicas", value="1"),),
        )
        await broker.request(CreateTopicsRequest(topics=(new,)))
        leaders = await _leaders(broker, topic, partitions)
        padding = bytes(VALUE_BYTES - 8)
        # Records of the year 1970 would be past their retention when the broker first looks, after
        # half a minute.
        now = round(time.time() * 1000)
        for start in range(0, records, BATCH):
            values = range(start, min(start + BATCH, records))
            batch = encode_batch(
                [NewRecord(None, n.to_bytes(8, "big") + padding, now) for n in values]
            )
            partition = start // BATCH % partitions
            await _produce(nodes[leaders[partition]], TopicPartition(topic, partition), batch)


async def _leaders(broker: Broker, topic: str, partitions: int) -> dict[int, int]:
    """Return partition -> node id, once every partition of the topic has a leader."""
    while True:
        (response,) = (await broker.request_metadata([topic])).topics
        leaders = {p.partition_index: p.leader_id for p in response.partitions if p.leader_id >= 0}
        if len(leaders) == partitions:
            return leaders
        await anyio.sleep(_PAUSE)


async def _produce(broker: Broker, tp: TopicPartition, batch: bytes) -> None:
    while True:
        response = await broker.produce_messages({tp: batch})
        assert response is not None
        code = response.responses[0].partition_responses[0].error_code
        if code == 0:
            return
        # The leader of a topic just made does not know that it is one yet.
        if code not in (3, 5, 6):
            raise SystemExit(f"produce to {tp}: error {code}")
        await anyio.sleep(_PAUSE)


async def coordinator(bootstrap: str, group: str, but: int | None = None) -> int:
    """Return the node id of the group's coordinator; wait until there is one other than `but`."""
    async with any_broker(bootstrap) as broker:
        while True:
            response = await broker.request(FindCoordinatorRequest(coordinator_keys=(group,)))
            (found,) = response.coordinators
            if found.error_code == 0 and found.node_id != but:
                return found.node_id
            await anyio.sleep(_PAUSE)


async def committed(bootstrap: str, group: str) -> dict[int, int]:
    """Return partition -> the offset that the group has committed."""
    async with any_broker(bootstrap) as broker:
        response = await broker.request(FindCoordinatorRequest(coordinator_keys=(group,)))
        (found,) = response.coordinators
        async with Broker.open(found.host, found.port) as its_coordinator:
            offsets = await its_coordinator.fetch_consumer_group_offsets(group)
    (answered,) = offsets.groups
    assert answered.error_code == 0, f"offsets of {group}: error {answered.error_code}"
    return {
        p.partition_index: p.committed_offset for topic in answered.topics for p in topic.partitions
    }


async def ends(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    """Return partition -> the offset of its next record."""
    async with any_broker(bootstrap) as broker, AsyncExitStack() as stack:
        leaders = await _leaders(broker, topic, partitions)
        found: dict[int, int] = {}
        for node in (await broker.request_metadata([])).brokers:
            led = [TopicPartition(topic, p) for p, at in leaders.items() if at == node.node_id]
            if led:
                leader = await stack.enter_async_context(Broker.open(node.host, node.port))
                response = await leader.request_offset_limits(dict.fromkeys(led, -1))
                found |= {p.partition_index: p.offset for p in response.topics[0].partitions}
    return found


async def clean_up(bootstrap: str, topic: str) -> None:
    """Delete the topic."""
    async with any_broker(bootstrap) as broker:
        state = DeleteTopicState(name=topic, topic_id=uuid.UUID(int=0))
        await broker.request(DeleteTopicsRequest(topics=(state,), timeout_ms=10_000))

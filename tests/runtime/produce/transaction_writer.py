"""A producer of transactions without its sender: each record is a batch, and a request."""

from __future__ import annotations

from typing import Any

import anyio
import attrs
from anyio.abc import TaskGroup

from kafkagroup import Consumer
from kafkagroup.errors import ErrorCode
from kafkagroup.produce.transaction_vocabulary import GroupIdentity
from kafkagroup.runtime.produce.transactions import TransactionManager
from kafkagroup.transport.cluster import Cluster
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

__all__ = ["TransactionWriter"]

_FOR_A_WHILE = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_ENOUGH_REPLICAS,  # the leader has not added the partition in time
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


@attrs.define
class TransactionWriter:
    """Writes to one topic."""

    cluster: Cluster
    tasks: TaskGroup
    manager: TransactionManager
    bootstrap: str
    topic: str = "t"
    group_id: str = "g"
    sequences: dict[tuple[tuple[int, int], TopicPartition], int] = attrs.field(factory=dict)

    async def begin(self) -> None:
        await self.manager.begin(anyio.current_time() + 10)

    async def commit(self, timeout: float = 10.0) -> None:
        await self.manager.commit(anyio.current_time() + timeout)

    async def abort(self, timeout: float = 10.0) -> None:
        await self.manager.abort(anyio.current_time() + timeout)

    async def send_offsets(
        self, offset: int = 7, group: GroupIdentity | None = None, timeout: float = 10.0
    ) -> None:
        """Commit an offset of partition 0."""
        offsets = {TopicPartition(self.topic, 0): OffsetAndMetadata(offset)}
        group = group or GroupIdentity(self.group_id)
        await self.manager.send_offsets(group, offsets, anyio.current_time() + timeout)

    async def write(self, value: str, partition: int = 0) -> int:
        """Write a record; return the error code."""
        tp, manager = TopicPartition(self.topic, partition), self.manager
        if tp not in manager._state.added:
            await manager.add_partitions([tp])
        producer_id, epoch = manager.identity
        key = manager.identity, tp
        batch = encode_batch(
            [NewRecord(None, value.encode())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self.sequences.get(key, 0),
            transactional=True,
        )
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=manager.transactional_id,
            acks=-1,
            timeout_ms=1000,
            topic_data=(TopicProduceData(name=self.topic, partition_data=(data,)),),
        )
        highest = manager.produce_highest_version()
        response = await self.cluster.leader(tp).request(
            request, highest=12 if highest is None else highest, connection_id="produce"
        )
        code = int(response.responses[0].partition_responses[0].error_code)
        if not code:
            self.sequences[key] = self.sequences.get(key, 0) + 1
        return code

    async def written(self, value: str, partition: int = 0) -> None:
        """Write a record, once the markers of the last transaction are written, and the leader of a
        topic just made is up."""
        while code := await self.write(value, partition):
            assert code in _FOR_A_WHILE
            await anyio.sleep(0.02)

    async def another(self) -> TransactionWriter:
        """Another producer with the same transactional id."""
        name = self.manager.transactional_id
        manager = TransactionManager(self.cluster, self.tasks, name, timeout_ms=60_000)
        await manager.initialize(anyio.current_time() + 10)
        return attrs.evolve(self, manager=manager, sequences={})

    async def visible(self) -> list[str]:
        """What a consumer reads of committed transactions."""
        options: dict[str, Any] = {
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
        }
        found: list[Any] = []
        async with Consumer(self.topic, bootstrap_servers=self.bootstrap, **options) as consumer:
            with anyio.move_on_after(2):
                while True:
                    found.append((await consumer.getone()).value)
        return [value.decode() for value in found]

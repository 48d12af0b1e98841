"""The ends that logs had when reading began, and whether a consumer has reached them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import anyio

from kafkagroup import Admin, Consumer, KafkaGroupError, Node, Record
from kafkagroup.broker import Broker, ClientOptions
from kafkagroup.cli._connection import Connection
from kafkagroup.errors import NotAssignedError
from kafkagroup.types import TopicPartition

__all__ = ["LogEnds"]

_STALL_TIMEOUT = 1.0
"""Seconds without a record after which the brokers are asked whether there is any record below the
ends."""


class LogEnds:
    """The end of each partition's log at the time when it was assigned."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ends: dict[TopicPartition, int] = {}
        self._without_batch: set[TopicPartition] = set()
        """Partitions without a batch from the consumer's position to the end."""
        self._next_check_at = -1.0
        """When the brokers may next be asked which partitions those are, on the loop's clock. It is
        set with each new end, so the first value is never compared."""

    async def cut(
        self, consumer: Consumer, found: Mapping[TopicPartition, list[Record]]
    ) -> list[Record]:
        """Return those records of `found` that are below the ends. Where `found` reaches a
        partition's end, seek to the end, and pause the partition."""
        await self._add_new_partitions(consumer)
        kept: list[Record] = []
        for tp, records in found.items():
            end = self._ends.get(tp)
            # None: the partition was revoked before its end was looked up.
            if end is None or records[-1].offset < end - 1:
                kept += records
                continue
            kept += [record for record in records if record.offset < end]
            if tp in consumer.assignment():  # a rebalance may have revoked it meanwhile
                consumer.pause(tp)
                consumer.seek(tp, end)
        self._next_check_at = anyio.current_time() + _STALL_TIMEOUT
        return kept

    async def are_reached(self, consumer: Consumer) -> bool:
        """Whether the consumer has read all records below the ends."""
        await self._add_new_partitions(consumer)
        try:
            unread = {
                tp: position
                for tp in consumer.assignment() - self._without_batch
                if (position := await consumer.position(tp)) < self._ends[tp]
            }
        except NotAssignedError:
            return False  # a rebalance revoked a partition in the meantime
        if unread and anyio.current_time() >= self._next_check_at:
            self._without_batch |= await self._partitions_without_batch(unread)
            self._next_check_at = anyio.current_time() + _STALL_TIMEOUT
        return not unread.keys() - self._without_batch

    async def _add_new_partitions(self, consumer: Consumer) -> None:
        # A loop: a rebalance may assign more partitions while these ends are looked up.
        while new := consumer.assignment() - self._ends.keys():
            self._ends |= await consumer.end_offsets(new)
            self._next_check_at = anyio.current_time() + _STALL_TIMEOUT

    async def _partitions_without_batch(
        self, positions: Mapping[TopicPartition, int]
    ) -> set[TopicPartition]:
        """Return the partitions whose leader has no batch from the position to the end. Compaction
        may leave such a log, and then no fetch response moves the position."""
        empty: set[TopicPartition] = set()
        options = ClientOptions(security=self._connection.options()["security"])
        try:
            async with Admin(**self._connection.options(Admin)) as admin:
                leaders = await _by_leader(admin, positions)
            for leader, partitions in leaders.items():
                async with Broker.open(leader.host, leader.port, options=options) as broker:
                    # One request for each partition: a response for several may have records of
                    # the first one only.
                    for tp in partitions:
                        if await self._is_empty(broker, tp, positions[tp]):
                            empty.add(tp)
        except KafkaGroupError:
            pass  # the brokers are asked again after _STALL_TIMEOUT
        return empty

    async def _is_empty(self, broker: Broker, tp: TopicPartition, position: int) -> bool:
        """Return whether the leader has no batch from the position to the end."""
        response = await broker.fetch_messages({tp: position}, max_wait=0, partition_max_bytes=1)
        (data,) = response.responses[0].partitions
        if data.error_code:
            return False
        # A broker returns the first batch even if it is larger than the limit of one byte. The
        # first eight bytes of a batch are its base offset.
        first = bytes((data.records or b"")[:8])
        return not first or int.from_bytes(first) >= self._ends[tp]


async def _by_leader(
    admin: Admin, partitions: Collection[TopicPartition]
) -> dict[Node, list[TopicPartition]]:
    """Return the partitions by their leaders, without those that have none."""
    leaders: dict[Node, list[TopicPartition]] = {}
    topics = await admin.describe_topics({tp.topic for tp in partitions})
    for topic in topics.values():
        if isinstance(topic, KafkaGroupError):
            continue
        for one in topic.partitions:
            tp = TopicPartition(topic.name, one.partition)
            if tp in partitions and one.leader is not None:
                leaders.setdefault(one.leader, []).append(tp)
    return leaders

"""Offsets of logs: start, end, and by time, from the partitions' leaders."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping

import anyio

from kafkagroup._values import define, field
from kafkagroup.consume.plan import ErrorAction, action_for
from kafkagroup.errors import (
    BrokerError,
    ErrorCode,
    RemoteProtocolError,
    TransportError,
    broker_error,
    escaped,
)
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import Pauses
from kafkagroup.transport.trouble import Problem
from kafkagroup.transport.unusable_topics import partition_error
from kafkagroup.types import OffsetAndTimestamp, TopicPartition
from kafkagroup.wire.messages.offsets import ListOffsetsResponse

__all__ = ["EARLIEST", "LATEST", "READ_UNCOMMITTED", "Found", "LogOffsets"]

logger = logging.getLogger(__name__)

EARLIEST = -2
"""The timestamp that asks for the log's start."""
_MAX_UNKNOWN = 5
"""How often in a row a partition may be unknown before that is an error."""
LATEST = -1
"""The timestamp that asks for the log's end; under read_committed, the last stable offset."""
READ_UNCOMMITTED = 0
"""The isolation level for which a log ends with its last record, whatever becomes of that."""


@define
class Found:
    """The result of one round of ListOffsets requests."""

    offsets: dict[TopicPartition, OffsetAndTimestamp] = field(factory=dict)
    """Offset -1 where no record is that young."""
    errors: dict[TopicPartition, BrokerError] = field(factory=dict)
    """Errors that no retry mends."""


class LogOffsets:
    """Requests offsets from each partition's leader."""

    def __init__(self, cluster: Cluster, isolation_level: int) -> None:
        self._cluster = cluster
        self._isolation_level = isolation_level

    async def at(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the first offset at or after each timestamp; retry until all leaders answer.

        Raises: BrokerError when one cannot, as for a topic that must not be read.
        """
        found = await self._ask(timestamps, to_the_end=False)
        for error in found.errors.values():
            raise error
        return found.offsets

    async def each(self, timestamps: Mapping[TopicPartition, int]) -> Found:
        """As `at`, with the error of each partition instead of an exception."""
        return await self._ask(timestamps, to_the_end=True)

    async def _ask(self, timestamps: Mapping[TopicPartition, int], *, to_the_end: bool) -> Found:
        self._cluster.topics.update(tp.topic for tp in timestamps)
        pauses = Pauses(self._cluster.options)
        found = Found()
        unknown: Counter[TopicPartition] = Counter()
        while missing := {
            tp: at
            for tp, at in timestamps.items()
            if tp not in found.offsets and tp not in found.errors
        }:
            try:
                once = await self.once(missing)
            except (TransportError, RemoteProtocolError) as error:
                logger.info("offsets: %s", error)
            else:
                once.errors.update(self._unusable(missing.keys() - once.offsets.keys(), unknown))
                found.offsets.update(once.offsets)
                found.errors.update(once.errors)
                if once.errors and not to_the_end:
                    break
            if len(found.offsets) + len(found.errors) < len(timestamps):
                await pauses.wait()
        return found

    def _unusable(
        self, partitions: Collection[TopicPartition], unknown: Counter[TopicPartition]
    ) -> dict[TopicPartition, BrokerError]:
        """Errors of those that no broker has. A topic that was just made is not known everywhere at
        once: `unknown` counts how often each was missing."""
        errors = {}
        for tp in partitions:
            error = partition_error(self._cluster.metadata, tp, f"offsets of {tp}")
            unknown[tp] += 1
            if error is not None and (not error.retriable or unknown[tp] > _MAX_UNKNOWN):
                errors[tp] = error
        return errors

    async def once(self, timestamps: Mapping[TopicPartition, int]) -> Found:
        """Send one round of requests; refresh the metadata when a leader has moved.

        Raises: NoBrokersAvailableError.
        """
        found = Found()
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for tp, timestamp in timestamps.items():
            leader = self._cluster.metadata.leader(tp)
            by_leader.setdefault(-1 if leader is None else leader.leader, {})[tp] = timestamp
        stale = False
        for node_id, asked in by_leader.items():
            node = self._cluster.metadata.nodes.get(node_id)
            if node is None:
                stale = True
                continue
            try:
                answer = await self._cluster.broker(node).request_offset_limits(
                    asked, isolation_level=self._isolation_level
                )
            except (TransportError, RemoteProtocolError) as error:
                logger.info("offsets of broker %d: %s", node_id, error)
                stale = True
                continue
            stale |= self._sort(answer, asked, found)
        if stale:
            await self._cluster.refresh()
        return found

    def _sort(
        self, answer: ListOffsetsResponse, asked: Mapping[TopicPartition, int], found: Found
    ) -> bool:
        """Sort a response into `found`; return whether metadata is stale."""
        stale, troubles = False, self._cluster.troubles
        for topic in answer.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                if tp not in asked:
                    continue
                if p.error_code == ErrorCode.NONE:
                    found.offsets[tp] = OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch)
                    if troubles.open:
                        troubles.succeeded(("log offsets", tp), anyio.current_time())
                    continue
                action = action_for(p.error_code)
                stale |= action is ErrorAction.REFRESH
                if action in (ErrorAction.RAISE, ErrorAction.RESET):
                    found.errors[tp] = broker_error(
                        p.error_code, f"offsets of {tp}", operation="DESCRIBE", topic=tp.topic
                    )
                    continue
                problem = Problem(
                    subject=f"looking up where topic {escaped(tp.topic)} starts and ends",
                    cause=str(BrokerError(p.error_code)),
                    advice="check that the topic exists, and who leads it",
                )
                troubles.failed(("log offsets", tp), anyio.current_time(), problem)
        return stale

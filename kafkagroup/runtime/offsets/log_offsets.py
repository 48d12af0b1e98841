"""Offsets of logs: start, end, and by time, from the partitions' leaders."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping

import anyio

from kafkagroup._text import escaped
from kafkagroup._values import define, field
from kafkagroup.errors import RETRIED_ERRORS, BrokerError, ErrorCode, broker_error
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.trouble import Problem
from kafkagroup.transport.unusable_topics import partition_error
from kafkagroup.types import OffsetAndTimestamp, TopicPartition
from kafkagroup.wire.error_codes import FetchAction, fetch_action
from kafkagroup.wire.messages.offsets import ListOffsetsResponse

__all__ = ["ListedOffsets", "LogOffsets"]

logger = logging.getLogger(__name__)

_MAX_UNKNOWN = 5
"""How many times a partition may be unknown before that is an error."""


@define
class ListedOffsets:
    """What requests for offsets have found: those of one round, or of all rounds together."""

    offsets: dict[TopicPartition, OffsetAndTimestamp] = field(factory=dict)
    """Offset -1 if the log has no record at or after the timestamp."""
    errors: dict[TopicPartition, BrokerError] = field(factory=dict)
    """Refusals, which a retry changes only if their cause is removed, and the errors of partitions
    that stayed unknown."""


class LogOffsets:
    """Requests offsets from each partition's leader."""

    def __init__(self, cluster: Cluster, isolation_level: int) -> None:
        """`isolation_level`: READ_COMMITTED or READ_UNCOMMITTED of `values`."""
        self._cluster = cluster
        self._isolation_level = isolation_level

    async def at(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the first offset at or after each timestamp, in milliseconds since the epoch, or
        where the log starts or ends for EARLIEST or LATEST; retry until all leaders respond.

        Raises: BrokerError for an error that a retry would not change, such as a denied topic, or
        for a partition that is still unknown after some retries; AuthenticationError while no login
        is tried, because all brokers refuse the credentials.
        """
        found = await self._request_all(timestamps, collect_errors=False)
        for error in found.errors.values():
            raise error  # the first one
        return found.offsets

    async def each(self, timestamps: Mapping[TopicPartition, int]) -> ListedOffsets:
        """Do as `at`, but return the errors of partitions instead of raising the first one."""
        return await self._request_all(timestamps, collect_errors=True)

    async def _request_all(
        self, timestamps: Mapping[TopicPartition, int], *, collect_errors: bool
    ) -> ListedOffsets:
        with self._cluster.topics.during(tp.topic for tp in timestamps):
            return await self._request_until_found(timestamps, collect_errors=collect_errors)

    async def _request_until_found(
        self, timestamps: Mapping[TopicPartition, int], *, collect_errors: bool
    ) -> ListedOffsets:
        pauses = RetryBackoff(self._cluster.options)
        found = ListedOffsets()
        unknown: Counter[TopicPartition] = Counter()
        while missing := {
            tp: at
            for tp, at in timestamps.items()
            if tp not in found.offsets and tp not in found.errors
        }:
            try:
                result = await self.request_once(missing)
            except RETRIED_ERRORS as error:
                self._cluster.logins.raise_suspended()
                logger.info("offsets: %s", error)
            else:
                result.errors.update(
                    self._errors_of_unusable(missing.keys() - result.offsets.keys(), unknown)
                )
                found.offsets.update(result.offsets)
                found.errors.update(result.errors)
                if result.errors and not collect_errors:
                    break
            if len(found.offsets) + len(found.errors) < len(timestamps):
                await pauses.wait()
        return found

    def _errors_of_unusable(
        self, partitions: Collection[TopicPartition], unknown: Counter[TopicPartition]
    ) -> dict[TopicPartition, BrokerError]:
        """Return the errors of those `partitions` that cannot be used. A new topic is not known to
        every broker immediately: `unknown` counts how often the metadata had an error for each."""
        errors = {}
        for tp in partitions:
            error = partition_error(self._cluster.metadata, tp, f"offsets of {tp}")
            if error is None:
                continue
            unknown[tp] += 1
            if not error.retriable or unknown[tp] > _MAX_UNKNOWN:
                errors[tp] = error
        return errors

    async def request_once(self, timestamps: Mapping[TopicPartition, int]) -> ListedOffsets:
        """Send one round of requests; refresh the metadata when a leader has moved.

        Raises: what `Cluster.refresh` raises.
        """
        found = ListedOffsets()
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for tp, timestamp in timestamps.items():
            known = self._cluster.metadata.leader(tp)
            # Without a leader: -1, which is the id of no node.
            by_leader.setdefault(-1 if known is None else known.leader, {})[tp] = timestamp
        is_stale = False
        for node_id, requested in by_leader.items():
            node = self._cluster.metadata.nodes.get(node_id)
            if node is None:
                is_stale = True
                continue
            before = {tp: self._cluster.metadata.leader(tp) for tp in requested}
            epochs = {tp: one.leader_epoch for tp, one in before.items() if one is not None}
            try:
                response = await self._cluster.broker(node).request_offset_limits(
                    requested, isolation_level=self._isolation_level, leader_epochs=epochs
                )
            except RETRIED_ERRORS as error:
                logger.info("offsets of broker %d: %s", node_id, error)
                is_stale = True
                continue
            # Drop the offsets of partitions whose metadata changed meanwhile: the log of another
            # leader may start and end elsewhere.
            requested = {
                tp: timestamp
                for tp, timestamp in requested.items()
                if self._cluster.metadata.leader(tp) == before[tp]
            }
            is_stale |= self._parse(response, requested, found)
        if is_stale:
            await self._cluster.refresh()
        return found

    def _parse(
        self,
        response: ListOffsetsResponse,
        requested: Mapping[TopicPartition, int],
        found: ListedOffsets,
    ) -> bool:
        """Sort a response into `found`, without the partitions to retry; return whether metadata is
        stale."""
        is_stale, troubles = False, self._cluster.troubles
        for topic in response.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                if tp not in requested:
                    continue
                # A log always has a start and an end; only a time may have no offset, which is -1.
                is_missing = not p.error_code and p.offset < 0 and requested[tp] < 0
                if p.error_code == ErrorCode.NONE and not is_missing:
                    offset = max(p.offset, -1)
                    found.offsets[tp] = OffsetAndTimestamp(offset, p.timestamp, p.leader_epoch)
                    if troubles.ongoing:  # else no failure to end
                        troubles.succeeded(("log offsets", tp), anyio.current_time())
                    continue
                action = FetchAction.REFRESH if is_missing else fetch_action(p.error_code)
                is_stale |= action is FetchAction.REFRESH
                if action in (FetchAction.RAISE, FetchAction.RESET):
                    found.errors[tp] = broker_error(
                        p.error_code, f"offsets of {tp}", operation="DESCRIBE", topic=tp.topic
                    )
                    continue
                problem = Problem(
                    subject=f"looking up where topic {escaped(tp.topic)} starts and ends",
                    cause=f"the broker answered with the offset {p.offset}"
                    if is_missing
                    else str(BrokerError(p.error_code)),
                    advice="check that the topic exists and has leaders",
                )
                troubles.failed(("log offsets", tp), anyio.current_time(), problem)
        return is_stale

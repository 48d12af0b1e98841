"""Validates positions: each must be in the leader's log (KIP-320), and of the same topic.

After an unclean election, or when a topic was deleted and recreated, the position may point to
other records: reading on would skip some without an error. Such a position needs validation:
nothing is fetched from it until its leader has reported the end offset of the epoch of the last
record read. A position in a deleted topic is reset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import anyio

from kafkagroup._values import frozen
from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
from kafkagroup.consume.plan import ErrorAction, action_for
from kafkagroup.errors import (
    BrokerError,
    OffsetOutOfRangeError,
    RemoteProtocolError,
    TransportError,
    UnsupportedVersionError,
    broker_error,
)
from kafkagroup.options import OffsetReset
from kafkagroup.runtime.coalescing_task import CoalescingTask, Spawn
from kafkagroup.runtime.refusals import Refusals
from kafkagroup.runtime.slices import are_many, process_in_slices, slices
from kafkagroup.transport.clock import loop_clock
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import ClusterMetadata
from kafkagroup.transport.one_shot_event import OneShotEvent
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

__all__ = ["Validation", "needs_validation"]

logger = logging.getLogger(__name__)

_CONSUMER = -1
"""The replica id of a client that is not a replica."""

_MAX_ATTEMPTS = 5
"""How often metadata is requested while its leader epoch is older than the position's. After that,
the position is validated with the leader that the metadata has."""


def needs_validation(metadata: ClusterMetadata, owned: OwnedPartition) -> bool:
    """Whether the position must be validated before anything is fetched from it."""
    if owned.fetch_offset == UNKNOWN or owned.revoked or owned.failed or owned.reset:
        return False
    topic = metadata.topics.get(owned.tp.topic)
    if topic is None:
        return False
    leader = topic.partitions.get(owned.tp.partition)
    return owned.is_recreated(topic.topic_id) or (
        leader is not None and owned.is_unchecked(leader.leader_epoch)
    )


@frozen
class _EpochRequest:
    """The position of one partition, as requested from its leader."""

    owned: OwnedPartition
    offset: int
    epoch: int
    leader_epoch: int

    @property
    def is_current(self) -> bool:
        """Whether the response still counts: not if the position has changed since, by a fetch or a
        seek, nor if the partition was revoked, has failed or will be reset."""
        owned = self.owned
        same = (owned.fetch_offset, owned.fetch_epoch) == (self.offset, self.epoch)
        return same and not (owned.revoked or owned.failed or owned.reset)


class Validation:
    """Validates positions in a background task, while any needs it."""

    def __init__(
        self,
        cluster: Cluster,
        delivery: Delivery,
        policy: OffsetReset,
        refusals: Refusals,
        *,
        spawn: Spawn,
        on_validated: Callable[[], None],
        reset: Callable[[], None],
        failed: Callable[[OwnedPartition, Exception], None],
    ) -> None:
        self._cluster = cluster
        self._delivery = delivery
        self._policy = policy
        self._refusals = refusals
        self._on_validated = on_validated
        self._reset = reset
        self._failed = failed
        self._validating = CoalescingTask(spawn, self._validate_all, "validation")
        self._is_woken = False
        """Whether positions may need validation that the task has not seen."""
        self._woken = OneShotEvent()
        self._clock = loop_clock()

    def wake(self) -> None:
        """Validate again: there may be new positions, or a new leader."""
        owned = self._delivery.owned.values()
        if are_many(owned) or self._unvalidated(owned):
            self._is_woken = True
            self._validating.ensure_running()
            self._woken.set()
            self._woken = OneShotEvent()

    async def _validate_all(self) -> None:
        pauses = RetryBackoff(self._cluster.options)
        while self._is_woken:
            self._is_woken = False
            unvalidated = await process_in_slices(self._unvalidated, self._delivery.owned.values())
            for some in slices(self._due(unvalidated)):
                await self._validate(some)
            if not unvalidated:
                continue
            rest = await process_in_slices(self._unvalidated, self._delivery.owned.values())
            if self._due(rest):
                self._is_woken = True
                await pauses.wait()
            elif rest:
                self._is_woken = True
                await self._woken.wait(min(o.look_up_at for o in rest))

    def _due(self, unvalidated: Iterable[OwnedPartition]) -> list[OwnedPartition]:
        """Return those that are not refused, or were refused long enough ago."""
        now = self._clock()
        return [o for o in unvalidated if o.look_up_at <= now]

    def _unvalidated(self, owned: Iterable[OwnedPartition]) -> list[OwnedPartition]:
        metadata = self._cluster.metadata
        return [o for o in owned if needs_validation(metadata, o)]

    async def _validate(self, found: Sequence[OwnedPartition]) -> None:
        metadata = self._cluster.metadata
        # If there are many, other tasks ran since these were found.
        unvalidated = self._unvalidated(found)
        by_leader: dict[int, dict[TopicPartition, _EpochRequest]] = {}
        stale = False
        for owned in unvalidated:
            tp = owned.tp
            if owned.is_recreated(metadata.topics[tp.topic].topic_id):
                logger.warning(
                    "topic %s was recreated: position %d is of the deleted topic, and is reset",
                    tp.topic,
                    owned.position,
                )
                self._request_reset(owned)
                continue
            leader = metadata.topics[tp.topic].partitions[tp.partition]
            if leader.leader_epoch < owned.fetch_epoch and owned.attempts < _MAX_ATTEMPTS:
                # The last record read was written under a later leader than the metadata has.
                owned.count_failure()
                stale = True
                continue
            by_leader.setdefault(leader.leader, {})[tp] = _EpochRequest(
                owned, owned.fetch_offset, owned.fetch_epoch, leader.leader_epoch
            )
        async with anyio.create_task_group() as tasks:
            if stale:
                tasks.start_soon(self._refresh)
            for node_id, requests in by_leader.items():
                tasks.start_soon(self._request_epochs, node_id, requests)

    async def _refresh(self) -> None:
        try:
            await self._cluster.refresh()
        except (TransportError, RemoteProtocolError) as error:
            logger.info("metadata: %s", error)

    async def _request_epochs(
        self, node_id: int, requests: dict[TopicPartition, _EpochRequest]
    ) -> None:
        node = self._cluster.metadata.nodes.get(node_id)
        if node is None:
            await self._refresh()
            return
        try:
            response = await self._cluster.broker(node).request(_request(requests))
        except (TransportError, RemoteProtocolError) as error:
            logger.info("epochs of broker %d: %s", node_id, error)
            await self._refresh()
            return
        except UnsupportedVersionError:
            # A broker before 2.0 does not report this: the positions count as valid.
            for request in requests.values():
                request.owned.note_leader(request.leader_epoch)
            self._on_validated()
            return
        stale = False
        for topic in response.topics:
            for end in topic.partitions:
                sent = requests.get(TopicPartition(topic.topic, end.partition))
                if sent is not None and sent.is_current:
                    stale |= self._apply(sent, end)
        self._on_validated()
        if stale:
            await self._refresh()

    def _apply(self, request: _EpochRequest, end: EpochEndOffset) -> bool:
        """Apply the response for one partition; return whether the metadata is stale."""
        owned = request.owned
        if end.error_code:
            error = broker_error(
                end.error_code,
                f"validating {owned.tp} at {request.offset}",
                operation="DESCRIBE",
                topic=owned.tp.topic,
            )
            logger.info("%s", error)
            action = action_for(end.error_code)
            if action in (ErrorAction.RAISE, ErrorAction.RESET):
                self._refusals.refuse_look_up(owned, error)
            else:
                problem = Problem(
                    subject=f"validating positions in topic {owned.tp.topic}",
                    cause=str(BrokerError(end.error_code)),
                    advice="check that the brokers agree on its leader",
                )
                key = "validation", owned.tp
                self._cluster.troubles.failed(key, anyio.current_time(), problem)
            return action is ErrorAction.REFRESH
        if (troubles := self._cluster.troubles).open:
            troubles.succeeded(("validation", owned.tp), anyio.current_time())
        if owned.refusal is not None:
            self._refusals.end(owned)
        if end.leader_epoch < 0 or end.end_offset < 0:
            logger.warning(
                "%s: the log was truncated: its leader has no records of leader epoch %d, to which"
                " the records before position %d belong",
                owned.tp,
                request.epoch,
                owned.position,
            )
            self._request_reset(owned)
        elif end.end_offset >= request.offset:
            owned.note_leader(request.leader_epoch)
        elif end.end_offset >= owned.position:
            logger.info(
                "%s: the log was truncated at %d, above the position", owned.tp, end.end_offset
            )
            # A log is truncated between batches: an open batch is valid to its end.
            owned.drop_buffer()
        else:
            self._follow_truncation(owned, end, request.leader_epoch)
        return False

    def _request_reset(self, owned: OwnedPartition) -> None:
        owned.request_reset()
        self._reset()

    def _follow_truncation(
        self, owned: OwnedPartition, end: EpochEndOffset, leader_epoch: int
    ) -> None:
        logger.warning(
            "%s: the log was truncated: position %d, but it diverges at %d",
            owned.tp,
            owned.position,
            end.end_offset,
        )
        if self._policy == "none":
            self._failed(owned, OffsetOutOfRangeError({owned.tp: owned.position}))
            return
        topic_id = owned.topic_id
        self._delivery.relocate(owned.tp, end.end_offset)
        owned.follow_truncation(end.leader_epoch, leader_epoch)
        # The request names no topic id: the shorter log may be that of a recreated topic. With the
        # id of the old one the next fetch fails, and the position is reset.
        owned.note_topic(topic_id)


def _request(requests: dict[TopicPartition, _EpochRequest]) -> OffsetForLeaderEpochRequest:
    by_topic: dict[str, list[OffsetForLeaderPartition]] = {}
    for tp, request in requests.items():
        by_topic.setdefault(tp.topic, []).append(
            OffsetForLeaderPartition(
                partition=tp.partition,
                current_leader_epoch=request.leader_epoch,
                leader_epoch=request.epoch,
            )
        )
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=tuple(
            OffsetForLeaderTopic(topic=topic, partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
        ),
    )

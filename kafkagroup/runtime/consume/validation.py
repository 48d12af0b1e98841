"""Validates positions: each must be in the leader's log (KIP-320), and of the same topic.

After an unclean election the position may point to other records: reading on would skip some
without an error. Such a position needs validation: nothing is fetched from it until its leader has
reported the end offset of the epoch of the record before it.

Only the partition's leader can tell that a position is not valid. Where the metadata contradicts a
position, by another topic id or by an earlier leader epoch than that of a record that was read, the
metadata may be old: it is requested again until both agree.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import anyio

from kafkagroup._values import frozen
from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.concurrency.coalescing_task import CoalescingTask, Spawn
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.concurrency.slices import are_many, process_in_slices, slices
from kafkagroup.consume.owned import UNKNOWN, OwnedPartition, TopicEvidence
from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    ErrorCode,
    OffsetOutOfRangeError,
    UnsupportedVersionError,
    broker_error,
)
from kafkagroup.runtime.consume.interfaces import FetchControl
from kafkagroup.runtime.consume.refusals import Refusals
from kafkagroup.runtime.consume.session import Session
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import ClusterMetadata
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import TopicPartition
from kafkagroup.wire.error_codes import FetchAction, fetch_action
from kafkagroup.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kafkagroup.wire.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

__all__ = ["Validation", "needs_validation"]

logger = logging.getLogger(__name__)

_CONSUMER_REPLICA_ID = -1
"""The replica id in the requests of a client, which is no replica."""

_CONTRADICTION = "metadata contradicts positions"
"""The key of all contradictions in `Troubles`."""

_MAX_ATTEMPTS = 5
"""How often metadata is requested while its leader epoch is older than the position's. After that,
the position is validated with the leader that the metadata has."""


def needs_validation(metadata: ClusterMetadata, owned: OwnedPartition) -> bool:
    """Whether the position must be validated before anything is fetched from it."""
    if owned.fetch_offset == UNKNOWN or owned.revoked or owned.failed or owned.needs_reset:
        return False
    topic = metadata.topics.get(owned.tp.topic)
    if topic is None:
        return False
    if owned.is_of_other_topic(topic.topic_id):
        # If the leader serves the topic id of the position, the metadata is old: keep fetching.
        return owned.topic_evidence is not TopicEvidence.READ_BY_ID
    leader = topic.partitions.get(owned.tp.partition)
    return leader is not None and (
        owned.is_ahead_of(topic.topic_id, leader.leader_epoch)
        or owned.is_unchecked(leader.leader_epoch)
    )


def _is_contradicted(metadata: ClusterMetadata, owned: OwnedPartition) -> bool:
    """Whether the metadata has another topic under this name than the one that the leader
    serves."""
    topic = metadata.topics.get(owned.tp.topic)
    return (
        topic is not None
        and owned.is_of_other_topic(topic.topic_id)
        and owned.topic_evidence is TopicEvidence.READ_BY_ID
        and not (owned.revoked or owned.failed)
    )


@frozen
class _EpochRequest:
    """A request for the end offset of an epoch, for the position of one partition."""

    owned: OwnedPartition
    offset: int
    """The position when the request was made."""
    epoch: int
    """Leader epoch of the record before `offset`."""
    leader_epoch: int
    """The epoch of the leader that is asked."""

    def is_current(self, metadata: ClusterMetadata) -> bool:
        """Whether the response still counts: not if the position has changed since, by a fetch or a
        seek, nor if there is another leader, nor if the partition was revoked, has failed or will
        be reset."""
        owned, leader = self.owned, metadata.leader(self.owned.tp)
        is_same = (owned.fetch_offset, owned.fetch_epoch) == (self.offset, self.epoch)
        is_same = is_same and leader is not None and leader.leader_epoch == self.leader_epoch
        return is_same and not (owned.revoked or owned.failed or owned.needs_reset)


class Validation:
    """Validates positions in a background task, while any needs it."""

    def __init__(
        self,
        session: Session,
        cluster: Cluster,
        refusals: Refusals,
        engine: FetchControl,
        spawn: Spawn,
    ) -> None:
        self._cluster = cluster
        self._delivery = session.delivery
        self._policy = session.options.auto_offset_reset
        self._refusals = refusals
        self._engine = engine
        self._validating = CoalescingTask(spawn, self._validate_all, "validation")
        self._is_woken = False
        """Whether positions may need validation that the task has not seen."""
        self._woken = OneShotEvent()
        self._clock = loop_clock()
        self._has_contradiction = False
        """Whether the metadata contradicted a position in the last round."""
        self._is_supported = True
        """Whether the brokers report the ends of epochs; false once one broker does not."""

    def can_validate(self, owned: OwnedPartition) -> bool:
        """Return whether the leader can tell if the log was truncated below the position: it
        reports the ends of epochs, and the epoch of the record before the position is known."""
        leader = self._cluster.metadata.leader(owned.tp)
        is_known = owned.fetch_epoch >= 0 and leader is not None and leader.leader_epoch >= 0
        return is_known and self._is_supported

    def wake(self) -> None:
        """Validate again: there may be new positions, or a new leader."""
        owned = self._delivery.owned.values()
        # Many partitions are looked at by the task, in slices: here they would block the loop.
        if are_many(owned) or self._unvalidated(owned):
            self._is_woken = True
            self._validating.ensure_running()
            self._woken.set()
            self._woken = OneShotEvent()

    async def _validate_all(self) -> None:
        pauses = RetryBackoff(self._cluster.options)
        while self._is_woken:
            self._is_woken = self._has_contradiction = False
            unvalidated = await process_in_slices(self._unvalidated, self._delivery.owned.values())
            for some in slices(self._due(unvalidated)):
                await self._validate(some)
            if not self._has_contradiction:
                self._cluster.troubles.succeeded(_CONTRADICTION, self._clock())
            if not unvalidated:
                continue
            rest = await process_in_slices(self._unvalidated, self._delivery.owned.values())
            if self._due(rest):
                self._is_woken = True
                await pauses.wait()
            elif rest:
                self._is_woken = True
                await self._woken.wait(min(o.look_up_at for o in rest))
        # The last round may have found contradictions that have ended since.
        self._cluster.troubles.succeeded(_CONTRADICTION, self._clock())

    def _due(self, unvalidated: Iterable[OwnedPartition]) -> list[OwnedPartition]:
        """Return the partitions whose last request was not refused, or may be repeated by now."""
        now = self._clock()
        return [o for o in unvalidated if o.look_up_at <= now]

    def _unvalidated(self, owned: Iterable[OwnedPartition]) -> list[OwnedPartition]:
        """Return the partitions that need validation, or that the metadata contradicts."""
        metadata = self._cluster.metadata
        return [o for o in owned if needs_validation(metadata, o) or _is_contradicted(metadata, o)]

    async def _validate(self, found: Sequence[OwnedPartition]) -> None:
        """Request what is missing to validate these positions: the metadata, the ids of topics, and
        the end offsets of epochs."""
        metadata = self._cluster.metadata
        # Find them again: if there are many, other tasks ran since these were found.
        unvalidated = self._unvalidated(found)
        by_leader: dict[int, dict[TopicPartition, _EpochRequest]] = {}
        by_name: list[OwnedPartition] = []
        is_stale = False
        for owned in unvalidated:
            tp = owned.tp
            topic = metadata.topics[tp.topic]
            if owned.is_of_other_topic(topic.topic_id):
                if owned.topic_evidence is TopicEvidence.READ_BY_NAME:
                    by_name.append(owned)
                self._report_contradiction(
                    owned, "the metadata has another topic id than the one that was read"
                )
                is_stale = True
                continue
            leader = topic.partitions[tp.partition]
            if owned.is_ahead_of(topic.topic_id, leader.leader_epoch):
                self._report_contradiction(
                    owned,
                    f"records of leader epoch {owned.proven_epoch} were read, but the metadata has"
                    f" broker {leader.leader} as the leader, of epoch {leader.leader_epoch}",
                )
                is_stale = True
                continue
            if leader.leader_epoch < owned.fetch_epoch and owned.failure_count < _MAX_ATTEMPTS:
                # The record before the position was written under a later leader than the metadata
                # has.
                owned.count_failure()
                is_stale = True
                continue
            by_leader.setdefault(leader.leader, {})[tp] = _EpochRequest(
                owned, owned.fetch_offset, owned.fetch_epoch, leader.leader_epoch
            )
        async with anyio.create_task_group() as tasks:
            if is_stale:
                tasks.start_soon(self._refresh)
            for owned in by_name:
                tasks.start_soon(self._request_topic_id, owned)
            for node_id, requests in by_leader.items():
                tasks.start_soon(self._request_epochs, node_id, requests)

    def _report_contradiction(self, owned: OwnedPartition, cause: str) -> None:
        problem = Problem(
            subject=f"fetching {owned.tp}",
            cause=cause,
            advice="check that the brokers agree on its id and its leaders",
        )
        self._has_contradiction = True
        self._cluster.troubles.failed(_CONTRADICTION, self._clock(), problem)

    async def _request_topic_id(self, owned: OwnedPartition) -> None:
        """Ask the leader itself for the id of the topic. A broker before 3.1 is fetched from by
        topic name, so it would serve the records of a recreated topic at the position."""
        name, topic_id = owned.tp.topic, owned.topic_id
        request = MetadataRequest(
            topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=False
        )
        try:
            response = await self._cluster.leader(owned.tp).request(request)
        except (*RETRIED_ERRORS, BrokerError) as error:
            logger.info("id of topic %s: %s", name, error)
            return
        ids = {t.topic_id for t in response.topics if t.name == name and not t.error_code}
        if ids and topic_id not in ids:
            owned.note_refused(topic_id)
            self._engine.look_up_positions()

    async def _refresh(self) -> None:
        try:
            await self._cluster.refresh()
        except RETRIED_ERRORS as error:
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
        except RETRIED_ERRORS as error:
            logger.info("epochs of broker %d: %s", node_id, error)
            await self._refresh()
            return
        except UnsupportedVersionError:
            # A broker before 2.0 does not report the ends of epochs: the positions count as valid.
            self._is_supported = False
            for request in requests.values():
                request.owned.checked_epoch = request.leader_epoch
            self._engine.wake()
            return
        is_stale = False
        for topic in response.topics:
            for end in topic.partitions:
                sent = requests.get(TopicPartition(topic.topic, end.partition))
                if sent is not None and sent.is_current(self._cluster.metadata):
                    is_stale |= self._apply(sent, end)
        self._engine.wake()
        if is_stale:
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
            if end.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH:
                # The metadata may have an epoch that is too high. When it falls, this position has
                # not been checked at the leader of the lower epoch.
                owned.checked_epoch = -1
            action = fetch_action(end.error_code)
            if action in (FetchAction.RAISE, FetchAction.RESET):
                self._refusals.refuse_look_up(owned, error)
            else:
                problem = Problem(
                    subject=f"validating positions in topic {owned.tp.topic}",
                    cause=str(BrokerError(end.error_code)),
                    advice="check that the brokers agree on its leader",
                )
                key = "validation", owned.tp
                self._cluster.troubles.failed(key, self._clock(), problem)
            return action is FetchAction.REFRESH
        if (troubles := self._cluster.troubles).ongoing:  # else no failure to end
            troubles.succeeded(("validation", owned.tp), self._clock())
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
            owned.checked_epoch = request.leader_epoch
        elif end.end_offset >= owned.position:
            logger.info(
                "%s: the log was truncated at %d, above the position", owned.tp, end.end_offset
            )
            # Drop what was fetched, but not the batch of which records were delivered: a log is
            # truncated between batches, so that one is valid to its end.
            owned.drop_buffer()
        else:
            self._follow_truncation(owned, end, request.leader_epoch)
        return False

    def _request_reset(self, owned: OwnedPartition) -> None:
        owned.request_reset()
        self._engine.look_up_positions()

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
            self._engine.fail_partition(owned, OffsetOutOfRangeError({owned.tp: owned.position}))
            return
        # The request names no topic id: the shorter log may be that of a recreated topic. Then the
        # next fetch fails, as the position keeps the id of the old one, and the position is reset.
        self._delivery.relocate(owned.tp, end.end_offset)
        owned.follow_truncation(end.leader_epoch, leader_epoch)


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
        replica_id=_CONSUMER_REPLICA_ID,
        topics=tuple(
            OffsetForLeaderTopic(topic=topic, partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
        ),
    )

"""Looks up where to start each partition: at its committed offset, else by the reset policy.

After records were read, a position moves only when its leader confirms that it must: the log was
truncated (`validation`), the offset is out of range (`range_check`), or the leader refuses the id
of the position's topic and the metadata has another one.

A failed look-up must not count as "no offset": it is repeated, and a refusal is raised to the
application too. A response is dropped if the application has sought, or released the partition,
since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from operator import not_
from uuid import UUID

import anyio

from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.concurrency.coalescing_task import CoalescingTask, Spawn
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.concurrency.slices import apply_in_slices, process_in_slices, slices
from kafkagroup.consume.owned import UNKNOWN, OwnedPartition, TopicEvidence
from kafkagroup.errors import RETRIED_ERRORS, ErrorCode
from kafkagroup.options import OffsetReset
from kafkagroup.runtime.consume.error_channel import no_position
from kafkagroup.runtime.consume.interfaces import FetchControl
from kafkagroup.runtime.consume.new_partitions import NewPartitionWatch, StartCommits
from kafkagroup.runtime.consume.range_check import RangeCheck
from kafkagroup.runtime.consume.refusals import Refusals
from kafkagroup.runtime.consume.session import Session
from kafkagroup.runtime.consume.validation import Validation
from kafkagroup.runtime.member.membership_log import counted, first_few
from kafkagroup.runtime.offsets.group_offsets import GroupOffsets
from kafkagroup.runtime.offsets.log_offsets import ListedOffsets, LogOffsets
from kafkagroup.runtime.offsets.values import EARLIEST, LATEST
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.types import OffsetAndMetadata, TopicPartition

__all__ = ["Positions"]

logger = logging.getLogger(__name__)


class Positions:
    """Looks up the position of each partition that has none, or that needs a reset."""

    def __init__(
        self,
        session: Session,
        cluster: Cluster,
        log_offsets: LogOffsets,
        new_partitions: NewPartitionWatch,
        refusals: Refusals,
        engine: FetchControl,
        spawn: Spawn,
    ) -> None:
        self._cluster = cluster
        self._delivery = session.delivery
        self._member = session.member
        self._group_offsets = session.committer.group_offsets
        self._log_offsets = log_offsets
        self._policy = session.options.auto_offset_reset
        self._new_partitions = new_partitions
        self._start_commits = StartCommits(session, engine, spawn)
        self._refusals = refusals
        self._engine = engine
        self._validation = Validation(session, cluster, refusals, engine, spawn)
        self._range_check = RangeCheck(session, cluster, self._validation, refusals, engine, spawn)
        self._looking_up = CoalescingTask(spawn, self._look_up_all, "positions")
        self._woken = OneShotEvent()
        self._clock = loop_clock()
        self._unknown: dict[TopicPartition, int] = {}
        """Partition -> how often in a row the coordinator did not know its topic."""

    def look_up(self) -> None:
        """Start looking up missing positions, and validating those that need it."""
        if any(map(self._needs_position, self._delivery.owned.values())):
            self._looking_up.ensure_running()
            self._woken.set()
            self._woken = OneShotEvent()
        self._range_check.wake()
        self._validation.wake()

    async def _look_up_all(self) -> None:
        """Look up positions until no partition needs one."""
        offsets = self._group_offsets
        pauses = RetryBackoff(self._cluster.options) if offsets is None else offsets.pauses()
        owned = self._delivery.owned
        while pending := await process_in_slices(self._needing_position, owned.values()):
            now = self._clock()
            # Refused look-ups are repeated when their own back-off ends, so that one denied topic
            # does not delay the others.
            due = [o for o in pending if o.look_up_at <= now]
            if not due:
                await self._woken.wait(min(o.look_up_at for o in pending))
                continue
            try:
                await self._look_up(due)
            except RETRIED_ERRORS as error:
                logger.info("positions: %s", error)
            # Where a position was neither found nor refused, the request failed or must be retried.
            left = await process_in_slices(self._needing_position, due)
            if any(o.look_up_at <= now for o in left):
                await pauses.wait()
            else:
                pauses.reset()

    async def _look_up(self, pending: list[OwnedPartition]) -> None:
        """Look up positions; refresh the metadata first for topics that it does not have as they
        were assigned."""
        if others := await self._look_up_known(pending):
            await self._cluster.refresh()
            await self._look_up_known(others)

    async def _look_up_known(self, pending: list[OwnedPartition]) -> list[OwnedPartition]:
        """Look up positions in topics that the metadata has as they were assigned.

        Returns the other partitions. If a topic was recreated after the assignment, the coordinator
        may assign the new topic to another member, and this member only waits until the old one is
        revoked. While the metadata has no topic of that name, an offset that is found may be that
        of a topic created meanwhile under the same name, and the client could not notice that.
        """
        # Read before the request: the topic may be recreated before the response arrives.
        topic_ids = self._topic_ids(pending)
        are_known = await process_in_slices(partial(_are_known, topic_ids=topic_ids), pending)
        if any(are_known):
            await self._look_up_in(topic_ids, list(compress(pending, are_known)))
        return list(compress(pending, map(not_, are_known)))

    async def _look_up_in(
        self, topic_ids: Mapping[str, UUID], pending: list[OwnedPartition]
    ) -> None:
        """Look up the positions of partitions whose topics have these ids: the committed offsets
        first, then what the reset policy says where nothing is committed."""
        await apply_in_slices(partial(self._check_topics, topic_ids), pending)
        unplaced = [o for o in pending if o.position == UNKNOWN and not o.needs_reset]
        if unplaced and self._group_offsets is not None:
            for some in slices(unplaced):
                if not await self._read_committed(self._group_offsets, some, topic_ids):
                    break  # the coordinator would not report the others either; pause first
            # The log may have been truncated since the commit.
            self._validation.wake()
            self._engine.wake()
        else:
            for owned in unplaced:
                owned.request_reset()
        to_reset = [o for o in pending if o.needs_reset and self._needs_position(o)]
        if self._policy == "none":
            for owned in to_reset:
                if not self._starts_new(owned):
                    self._engine.fail_partition(owned, no_position([owned]))
            to_reset = [o for o in to_reset if not o.failed]
        for some in slices(to_reset):
            await self._reset(some, topic_ids)
        if to_reset:
            self._engine.wake()

    def _check_topics(
        self, topic_ids: Mapping[str, UUID], pending: Iterable[OwnedPartition]
    ) -> None:
        for owned in pending:
            if not owned.revoked:  # the last commit of a revoked one needs its present position
                self._check_topic(owned, topic_ids[owned.tp.topic])

    def _check_topic(self, owned: OwnedPartition, topic_id: UUID) -> None:
        """Note whether the position is of a deleted topic; `topic_id`: the topic's present id."""
        if owned.is_of_deleted_topic and not owned.is_of_other_topic(topic_id):
            owned.note_topic_is_back()
            self._engine.wake()
        if not owned.is_of_other_topic(topic_id):
            return
        if owned.topic_evidence is TopicEvidence.NONE:
            # Nothing was read at this position: look it up in the present topic.
            owned.forget_position()
            return
        if owned.is_recreated(topic_id) and not owned.is_of_deleted_topic:
            logger.warning(
                "topic %s was recreated: position %d is of the deleted topic, and is reset",
                owned.tp.topic,
                owned.position,
            )
            owned.request_reset()
        if owned.needs_reset:
            owned.is_of_deleted_topic = True

    async def _read_committed(
        self,
        offsets: GroupOffsets,
        unplaced: Sequence[OwnedPartition],
        topic_ids: Mapping[str, UUID],
    ) -> bool:
        """Start partitions without a position at their committed offsets. Return whether the
        coordinator would report the offsets of other partitions now."""
        identity = self._member.reads_offsets_as
        found = await offsets.fetch_once([o.tp for o in unplaced], self._unknown, identity)
        for owned in unplaced:
            if not self._needs_position(owned):
                continue
            if (error := found.errors.get(owned.tp)) is not None:
                about = "group" if found.is_refused_as_whole else None
                self._refusals.refuse_look_up(owned, error, about)
            elif owned.tp in found.offsets:
                self._start_at_committed(owned, found.offsets[owned.tp], topic_ids)
        return bool(found.offsets or (found.errors and not found.is_refused_as_whole))

    def _start_at_committed(
        self,
        owned: OwnedPartition,
        committed: OffsetAndMetadata | None,
        topic_ids: Mapping[str, UUID],
    ) -> None:
        self._refusals.end(owned)
        if committed is None:
            owned.request_reset()
            return
        owned.start_at(committed.offset, leader_epoch=committed.leader_epoch)
        owned.note_committed(committed, anyio.current_time())
        owned.note_topic(topic_ids[owned.tp.topic])

    async def _reset(
        self, pending: Sequence[OwnedPartition], topic_ids: Mapping[str, UUID]
    ) -> None:
        """Start new partitions at their beginning, and others where the reset policy says."""
        timestamp = _timestamp(self._policy)
        found = await self._log_offsets.request_once(
            {o.tp: EARLIEST if self._starts_new(o) else timestamp for o in pending}
        )
        if timestamp >= 0:  # a time; EARLIEST and LATEST are negative
            # The log has no record since that time: start at its end, where the next one will be.
            without_record = [tp for tp, at in found.offsets.items() if at.offset == UNKNOWN]
            ends = await self._log_offsets.request_once(dict.fromkeys(without_record, LATEST))
            found = ListedOffsets(found.offsets | ends.offsets, found.errors | ends.errors)
        started: dict[str, list[OwnedPartition]] = {}
        for owned in pending:
            if self._is_back(owned) or not self._needs_position(owned):
                continue
            if (error := found.errors.get(owned.tp)) is not None:
                self._refusals.refuse_look_up(owned, error)
            elif (at := found.offsets.get(owned.tp)) is not None and at.offset >= 0:
                reason = "new partition" if self._starts_new(owned) else "auto_offset_reset"
                self._start(owned, at.offset, topic_ids)
                started.setdefault(reason, []).append(owned)
        if logger.isEnabledFor(logging.INFO):
            self._log_starts(started)

    def _log_starts(self, started: Mapping[str, list[OwnedPartition]]) -> None:
        for reason, some in started.items():
            starts = first_few((f"{o.tp} at {o.position}" for o in some), len(some))
            name, count = self._cluster.options.name, counted(len(some), "partition")
            logger.info("%s: start of %s (%s): %s", name, count, reason, starts)

    def _start(self, owned: OwnedPartition, offset: int, topic_ids: Mapping[str, UUID]) -> None:
        """Start at an offset that the leader has reported. `topic_ids`: the ids in the metadata
        before the request."""
        is_new = self._starts_new(owned)
        self._refusals.end(owned)
        backoff = owned.failure_count, owned.retry_at
        # Without this, a batch that is still being read would set the position to its end.
        self._delivery.relocate(owned.tp, offset)
        topic_id = topic_ids[owned.tp.topic]
        if self._policy == "latest" and topic_id != owned.topic_id:
            # ListOffsets names topics, so the end that the leader reported is of the topic that it
            # serves. The metadata may have an older id. If that were noted with the position, it
            # would cause a second look-up, which would skip the records written in between.
            topic_id = owned.assigned_topic_id
        owned.note_topic(topic_id)
        # Keep the back-off: a reset to an offset that is not in the log would loop without pauses.
        owned.restore_backoff(*backoff)
        if is_new:
            self._start_commits.request(owned)

    def _starts_new(self, owned: OwnedPartition) -> bool:
        """Return whether to read a partition from its beginning: it was created during the
        subscription, and has no position in its present topic."""
        has_none = owned.position == UNKNOWN or owned.is_of_deleted_topic
        return has_none and self._new_partitions.is_new(owned.tp)

    def _needing_position(self, partitions: Iterable[OwnedPartition]) -> list[OwnedPartition]:
        return [owned for owned in partitions if self._needs_position(owned)]

    def _needs_position(self, owned: OwnedPartition) -> bool:
        if owned.revoked or owned.failed:
            return False
        if owned.position == UNKNOWN or owned.needs_reset:
            return True
        topic = self._cluster.metadata.topics.get(owned.tp.topic)
        return topic is not None and owned.is_recreated(topic.topic_id)

    def _is_back(self, owned: OwnedPartition) -> bool:
        """Return whether the topic of the position counted as deleted, and the metadata has its id
        again."""
        topic = self._cluster.metadata.topics.get(owned.tp.topic)
        if topic is None or not owned.is_of_deleted_topic:
            return False
        return not owned.is_of_other_topic(topic.topic_id)

    def _topic_ids(self, partitions: Iterable[OwnedPartition]) -> dict[str, UUID]:
        """Return the ids of the partitions' topics, by name, for the topics that exist."""
        known = self._cluster.metadata.topics
        names = {o.tp.topic for o in partitions}
        return {
            name: topic.topic_id
            for name in names
            if (topic := known.get(name)) is not None
            and topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }


def _are_known(partitions: Iterable[OwnedPartition], topic_ids: Mapping[str, UUID]) -> list[bool]:
    """Return for each partition whether its topic is the one that was assigned."""
    return [
        (topic_id := topic_ids.get(owned.tp.topic)) is not None and owned.is_assigned_in(topic_id)
        for owned in partitions
    ]


def _timestamp(policy: OffsetReset) -> int:
    """Return the timestamp for ListOffsets: for a duration, the time so long ago, in ms; else
    EARLIEST or LATEST. With the policy "none" the result is not used: only new partitions start."""
    if not isinstance(policy, str):
        return max(0, round((time.time() - policy.total_seconds()) * 1000))
    return EARLIEST if policy == "earliest" else LATEST

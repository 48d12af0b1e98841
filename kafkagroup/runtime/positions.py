"""Looks up where to start each partition: at its committed offset, else by the reset policy.

A failed look-up must not count as "no offset": that partition fails, and the error is raised to the
application. A response is dropped if the application has sought, or released the partition, since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from uuid import UUID

from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
from kafkagroup.errors import (
    NoOffsetError,
    OffsetOutOfRangeError,
    RemoteProtocolError,
    TransportError,
)
from kafkagroup.options import OffsetReset
from kafkagroup.runtime.coalescing_task import CoalescingTask, Spawn
from kafkagroup.runtime.log_offsets import EARLIEST, LATEST, Found, LogOffsets
from kafkagroup.runtime.offsets import GroupOffsets, Identity
from kafkagroup.runtime.slices import slices
from kafkagroup.runtime.validation import Validation
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import Pauses
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.schema import NO_ID

__all__ = ["Positions"]

logger = logging.getLogger(__name__)


class Positions:
    """Looks up the position of each partition that has none, or that needs a reset."""

    def __init__(
        self,
        cluster: Cluster,
        delivery: Delivery,
        offsets: GroupOffsets | None,
        log_offsets: LogOffsets,
        policy: OffsetReset,
        *,
        member: Callable[[], Identity | None] = lambda: None,
        spawn: Spawn,
        found: Callable[[], None],
        failed: Callable[[OwnedPartition, Exception], None],
    ) -> None:
        self._cluster = cluster
        self._delivery = delivery
        self._offsets = offsets
        self._log_offsets = log_offsets
        self._policy = policy
        self._member = member
        self._found = found
        self._failed = failed
        self._validation = Validation(
            cluster,
            delivery,
            policy,
            spawn=spawn,
            on_validated=found,
            reset=self.look_up,
            failed=failed,
        )
        self._looking_up = CoalescingTask(spawn, self._look_up_all, "positions")
        self._unknown: dict[TopicPartition, int] = {}
        """How often in a row the coordinator reported the topic as unknown."""

    def look_up(self) -> None:
        """Start looking up missing positions, and validating those that need it."""
        if any(_needs_position(o) for o in self._delivery.owned.values()):
            self._looking_up.ensure_running()
        self._validation.wake()

    async def _look_up_all(self) -> None:
        offsets = self._offsets
        pauses = Pauses(self._cluster.options) if offsets is None else offsets.pauses()
        while pending := [o for o in self._delivery.owned.values() if _needs_position(o)]:
            try:
                await self._look_up(pending)
            except (TransportError, RemoteProtocolError) as error:
                logger.info("positions: %s", error)
            if any(_needs_position(o) for o in pending):
                await pauses.wait()
            else:
                pauses.reset()

    async def _look_up(self, pending: list[OwnedPartition]) -> None:
        # Read before the request: the topic may be recreated before the response arrives.
        topic_ids = self._topic_ids(pending)
        # The topic was recreated after the assignment, or the metadata is older than that. In the
        # first case the coordinator may assign the new topic to another member, and this one only
        # waits until the old one is revoked.
        has_topic = [o.is_assigned_in(topic_ids.get(o.tp.topic, NO_ID)) for o in pending]
        await self._look_up_known(list(compress(pending, has_topic)), topic_ids)
        if not all(has_topic):
            await self._cluster.refresh()

    async def _look_up_known(
        self, pending: list[OwnedPartition], topic_ids: Mapping[str, UUID]
    ) -> None:
        """Look up positions in topics that the metadata has as they were assigned."""
        new = [o for o in pending if not o.reset]
        if new and self._offsets is not None:
            for some in slices(new):
                if not await self._read_committed(self._offsets, some, topic_ids):
                    break  # the coordinator would not report the others either; pause first
            # The log may have been truncated since the commit.
            self._validation.wake()
            self._found()
        else:
            for owned in new:
                owned.request_reset()
        to_reset = [o for o in pending if _needs_position(o) and o.reset]
        for owned in to_reset:
            if owned.is_recreated(topic_ids.get(owned.tp.topic, NO_ID)):
                owned.note_deleted_topic()
        if self._policy == "none":
            for owned in to_reset:
                self._failed(owned, _no_policy(owned))
            return
        for some in slices(to_reset):
            await self._reset(some)
        if to_reset:
            self._found()

    async def _read_committed(
        self,
        offsets: GroupOffsets,
        new: Sequence[OwnedPartition],
        topic_ids: Mapping[str, UUID],
    ) -> bool:
        """Start at the committed offsets; return whether the coordinator has reported any."""
        found = await offsets.fetch_once([o.tp for o in new], self._unknown, self._member())
        for owned in new:
            if not _needs_position(owned):
                continue
            if (error := found.errors.get(owned.tp)) is not None:
                self._failed(owned, error)
            elif owned.tp in found.offsets:
                self._start_at_committed(owned, found.offsets[owned.tp], topic_ids)
        return bool(found.offsets or found.errors)

    def _start_at_committed(
        self,
        owned: OwnedPartition,
        committed: OffsetAndMetadata | None,
        topic_ids: Mapping[str, UUID],
    ) -> None:
        if committed is None:
            owned.request_reset()
            return
        owned.start_at(committed.offset, leader_epoch=committed.leader_epoch)
        owned.note_committed(committed.offset)
        owned.note_topic(topic_ids.get(owned.tp.topic, NO_ID))

    async def _reset(self, pending: Sequence[OwnedPartition]) -> None:
        timestamp = _timestamp(self._policy)
        topic_ids = self._topic_ids(pending)
        found = await self._log_offsets.request_once({o.tp: timestamp for o in pending})
        if timestamp >= 0:
            # No record is that recent: start at the end, where the next one will be.
            without_record = [tp for tp, at in found.offsets.items() if at.offset == UNKNOWN]
            ends = await self._log_offsets.request_once(dict.fromkeys(without_record, LATEST))
            found = Found(found.offsets | ends.offsets, found.errors | ends.errors)
        for owned in pending:
            if not _needs_position(owned):
                continue
            if (error := found.errors.get(owned.tp)) is not None:
                self._failed(owned, error)
            elif (at := found.offsets.get(owned.tp)) is not None and at.offset >= 0:
                self._start(owned, at.offset, topic_ids)

    def _start(self, owned: OwnedPartition, offset: int, topic_ids: Mapping[str, UUID]) -> None:
        logger.info("%s starts at %d (auto_offset_reset)", owned.tp, offset)
        failures = owned.attempts, owned.retry_at
        # Without this, a batch that is still being read would set the position to its end.
        self._delivery.relocate(owned.tp, offset)
        owned.note_topic(topic_ids.get(owned.tp.topic, NO_ID))
        # Keep the back-off: a reset to an offset that is not in the log would loop without pauses.
        owned.restore_backoff(*failures)

    def _topic_ids(self, partitions: Iterable[OwnedPartition]) -> dict[str, UUID]:
        """Return the ids of the partitions' topics, by name, where metadata has them."""
        known = self._cluster.metadata.topics
        return {o.tp.topic: known[o.tp.topic].topic_id for o in partitions if o.tp.topic in known}


def _needs_position(owned: OwnedPartition) -> bool:
    return (owned.position == UNKNOWN or owned.reset) and not (owned.revoked or owned.failed)


def _no_policy(owned: OwnedPartition) -> Exception:
    if owned.position == UNKNOWN:
        return NoOffsetError((owned.tp,))
    return OffsetOutOfRangeError({owned.tp: owned.position})


def _timestamp(policy: OffsetReset) -> int:
    if not isinstance(policy, str):
        return max(0, round((time.time() - policy.total_seconds()) * 1000))
    return EARLIEST if policy == "earliest" else LATEST

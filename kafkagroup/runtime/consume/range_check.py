"""Checks positions that a leader has refused as out of range.

A broker that has just become the leader, or is about to stop, may refuse an offset that is in the
log. So the position stays until the leader has reported where its log starts and ends, and moves
only if it is outside: below the start its records were deleted, above the end the log was
truncated. A look-up that fails moves nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kafkagroup._text import escaped
from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.concurrency.coalescing_task import CoalescingTask, Spawn
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import RETRIED_ERRORS
from kafkagroup.runtime.consume.interfaces import FetchControl
from kafkagroup.runtime.consume.refusals import Refusals
from kafkagroup.runtime.consume.session import Session
from kafkagroup.runtime.consume.validation import Validation
from kafkagroup.runtime.offsets.log_offsets import LogOffsets
from kafkagroup.runtime.offsets.values import EARLIEST, LATEST, READ_UNCOMMITTED
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import OffsetAndTimestamp, TopicPartition

__all__ = ["RangeCheck"]

logger = logging.getLogger(__name__)


class RangeCheck:
    """Asks the leaders for the start and end of logs, in a task, while a position is in doubt: a
    leader has refused it as out of range."""

    def __init__(
        self,
        session: Session,
        cluster: Cluster,
        validation: Validation,
        refusals: Refusals,
        engine: FetchControl,
        spawn: Spawn,
    ) -> None:
        self._cluster = cluster
        self._delivery = session.delivery
        self._validation = validation
        self._refusals = refusals
        self._engine = engine
        # Not the consumer's isolation level: a position above the last stable offset, and not above
        # the log's end, is in the log.
        self._log_offsets = LogOffsets(cluster, READ_UNCOMMITTED)
        self._clock = loop_clock()
        self._checking = CoalescingTask(spawn, self._check_all, "positions out of range")

    def wake(self) -> None:
        """Check the positions that are in doubt, if there are any."""
        if any(map(_is_doubted, self._delivery.owned.values())):
            self._checking.ensure_running()

    def _doubted(self) -> dict[TopicPartition, OwnedPartition]:
        return {tp: o for tp, o in self._delivery.owned.items() if _is_doubted(o)}

    async def _check_all(self) -> None:
        pauses = RetryBackoff(self._cluster.options)
        while doubted := self._doubted():
            try:
                await self._check(doubted)
            except RETRIED_ERRORS as error:
                logger.info("positions out of range: %s", error)
            if any(map(_is_doubted, doubted.values())):
                await pauses.wait()

    async def _check(self, doubted: Mapping[TopicPartition, OwnedPartition]) -> None:
        before = {tp: owned.fetch_offset for tp, owned in doubted.items()}
        starts = await self._log_offsets.request_once(dict.fromkeys(doubted, EARLIEST))
        ends = await self._log_offsets.request_once(dict.fromkeys(doubted, LATEST))
        for tp, owned in doubted.items():
            # The application may have called `seek` meanwhile.
            if not _is_doubted(owned) or owned.fetch_offset != before[tp]:
                continue
            start, end = starts.offsets.get(tp), ends.offsets.get(tp)
            if start is not None and end is not None:
                self._refusals.end(owned)
                self._apply(owned, start, end)
            elif (error := starts.errors.get(tp) or ends.errors.get(tp)) is not None:
                self._refusals.refuse(owned, error)
        self._engine.wake()

    def _apply(
        self, owned: OwnedPartition, start: OffsetAndTimestamp, end: OffsetAndTimestamp
    ) -> None:
        """Apply the start and end of the log that the leader of one partition has reported."""
        tp, offset = owned.tp, owned.fetch_offset
        log = f"{start.offset} to {end.offset}"
        if offset < start.offset:
            logger.warning(
                "%s: position %d is below the start of the log, %d: its records were deleted;"
                " auto_offset_reset applies",
                tp,
                offset,
                start.offset,
            )
            self._request_reset(owned)
        elif offset <= end.offset:
            if owned.failure_count == 1:  # not again for each repeated fetch
                logger.info("%s: position %d is in the log, %s, and stays", tp, offset, log)
            self._report(owned, f"its leader refuses offset {offset}, and reports its log as {log}")
            owned.is_out_of_range = False
        elif self._validation.can_validate(owned):
            self._report(owned, f"its leader has no offset {offset}: its log is {log}")
            owned.require_validation()
            self._validation.wake()
        else:
            logger.warning(
                "%s: position %d is above the end of the log, %d; auto_offset_reset applies",
                tp,
                offset,
                end.offset,
            )
            self._request_reset(owned)

    def _request_reset(self, owned: OwnedPartition) -> None:
        owned.request_reset()
        self._engine.look_up_positions()

    def _report(self, owned: OwnedPartition, cause: str) -> None:
        """Report a check after which the position has not moved. The next successful fetch reports
        the end of the trouble."""
        problem = Problem(
            subject=f"fetching {escaped(owned.tp.topic)}/{owned.tp.partition}",
            cause=f"{cause} (OFFSET_OUT_OF_RANGE, {owned.failure_count} times in a row)",
            advice="check the log of that broker, and that the brokers agree on its leader",
        )
        self._cluster.troubles.failed(("fetch", owned.tp), self._clock(), problem)


def _is_doubted(owned: OwnedPartition) -> bool:
    return owned.is_out_of_range and not (owned.revoked or owned.failed)

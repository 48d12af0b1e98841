"""When records fail because they were not acknowledged in time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from kafkagroup.errors import KafkaGroupError, TransactionAbortedError
from kafkagroup.produce.accumulator import Accumulator
from kafkagroup.produce.partition_queue import PartitionQueue
from kafkagroup.produce.topic_queues import TopicQueues
from kafkagroup.runtime.produce.alarms import Alarms
from kafkagroup.runtime.produce.record_outcomes import RecordOutcomes
from kafkagroup.runtime.produce.transactions import TransactionManager
from kafkagroup.types import TopicPartition

__all__ = ["Deadlines"]

_LATE_PAUSE = 1.0
"""Seconds between two checks of a transaction that is open after its deadline."""


class Deadlines:
    """Fails the records of each queue, and of the open transaction, at their deadlines."""

    def __init__(
        self,
        accumulator: Accumulator,
        outcomes: RecordOutcomes,
        alarms: Alarms,
        transactions: TransactionManager | None,
        clock: Callable[[], float],
        error: Callable[[TopicPartition], KafkaGroupError],
        dispatch: Callable[[PartitionQueue], None],
    ) -> None:
        """`clock`: returns the loop's time. `error`: returns the error of a partition's records
        that are late. `dispatch` is called with each queue of which records have failed."""
        self._accumulator = accumulator
        self._outcomes = outcomes
        self._alarms = alarms
        self._transactions = transactions
        self._clock = clock
        self._error = error
        self._dispatch = dispatch
        self._expiring: set[PartitionQueue | TopicQueues] = set()
        """The queues and topics for whose earliest deadline an alarm is set."""
        self._transaction_alarm_at = math.inf
        """The time of the alarm for the deadline of a transaction; infinity without one."""

    def arm(self, of: PartitionQueue | TopicQueues) -> None:
        """Set an alarm for the earliest deadline in a queue, or for that of the records that wait
        for a topic's partitions, unless one is set."""
        if of in self._expiring:
            return
        unplaced = of.unplaced if isinstance(of, TopicQueues) else None
        if isinstance(of, PartitionQueue) and not of.is_idle:
            at = of.next_deadline()
        elif unplaced is not None:
            at = unplaced.deadline
        else:
            return
        if at < math.inf:
            self._expiring.add(of)
            self._alarms.set(at, partial(self._expire, of))

    def _expire(self, of: PartitionQueue | TopicQueues) -> None:
        """Fail the records whose deadline has passed, and set the next alarm."""
        self._expiring.discard(of)
        now = self._clock()
        if isinstance(of, PartitionQueue):
            for batch in of.expire(now, self._error(of.tp)):
                if batch in of.in_flight:  # its memory is still in use
                    self._outcomes.note_failure(batch)
                else:
                    self._outcomes.note_end(batch)
            self._outcomes.fail_not_in_flight_if_aborted()
            self._dispatch(of)
        elif (unplaced := of.unplaced) is not None and unplaced.deadline <= now:
            of.unplaced = None
            unplaced.fail(self._error(unplaced.tp))
            self._outcomes.note_end(unplaced)
        self.arm(of)

    def expire_transaction_at(self, at: float, why: Callable[[], KafkaGroupError]) -> None:
        """At `at`, fail the records of the open transaction that are not acknowledged, if its
        deadline has passed by then. `why` returns the error."""
        if at < self._transaction_alarm_at:  # else the earlier alarm sets one for this deadline
            self._transaction_alarm_at = at
            self._alarms.set(at, partial(self._expire_transaction, why))

    def _expire_transaction(self, why: Callable[[], KafkaGroupError]) -> None:
        manager, now = self._transactions, self._clock()
        if now >= self._transaction_alarm_at:
            self._transaction_alarm_at = math.inf
        if manager is None or not (manager.is_open or manager.must_abort):
            return
        if now < manager.abort_at:
            self.expire_transaction_at(manager.abort_at, why)
            return
        if manager.must_abort and manager.error is not None:
            error: KafkaGroupError = TransactionAbortedError(manager.error)
        else:
            error = why()
        for queue in self._accumulator.queues():
            for batch in queue.in_flight:
                if not batch.has_ended:
                    batch.is_maybe_written = batch.is_maybe_written or batch.attempts > 0
                    batch.fail(error)
                    self._outcomes.note_failure(batch)  # its memory is still in use
        self._outcomes.fail_not_in_flight(error)
        # If no record has failed, the transaction is still open, and its block may write more.
        self.expire_transaction_at(now + _LATE_PAUSE, why)

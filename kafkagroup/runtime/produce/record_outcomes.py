"""Acts on the outcomes of records: releases their memory, reports a failure to the transaction, and
keeps failures that the application does not await for `flush()` and the close."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from kafkagroup.errors import KafkaGroupError, NotWrittenError, TransactionAbortedError
from kafkagroup.produce.accumulator import Accumulator
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.produce.partition_queue import PartitionQueue
from kafkagroup.runtime.produce.transactions import TransactionManager
from kafkagroup.types import TopicPartition

__all__ = ["RecordOutcomes"]

_MAX_UNREAD = 1_000
"""The most failed batches that are kept until `flush()`. Of older ones with unread records, only
the first batch, the number of unread records, and whether any may be written are kept."""


class RecordOutcomes:
    """The outcomes of all records of one producer: acknowledged, or failed."""

    def __init__(
        self, accumulator: Accumulator, transactions: TransactionManager | None = None
    ) -> None:
        self.on_room: Callable[[], None] = lambda: None
        """Called when memory was released."""
        self.failed_records = 0
        """The number of records that failed since the start."""
        self._accumulator = accumulator
        self._transactions = transactions
        self._unread: deque[ProduceBatch] = deque()
        """Failed batches, oldest first. The application may have awaited some of their records, or
        all."""
        self._unread_count = 0
        """The number of unread records in older failed batches, which are not kept."""
        self._first_unread: ProduceBatch | None = None
        """The first batch with such records; None if there is none."""
        self._is_maybe_written = False
        """Whether such a record may be written."""

    # ------------------------------------------------------------ one batch

    def note_end(self, batch: ProduceBatch) -> None:
        """Release the memory of a batch that has ended, and that no request has any more; note its
        failure, if it failed. If its records have moved, do nothing: the batches to which they
        moved have the memory, and the outcome."""
        if batch.moved is None:
            self.note_failure(batch)
            self._accumulator.release(batch)
            self.on_room()

    def note_failure(self, batch: ProduceBatch) -> None:
        """Keep the failure of a batch, if it has failed, until the application has read it."""
        if batch.error is None or batch.is_failure_noted:
            return
        batch.is_failure_noted = True
        self.failed_records += batch.count
        if self._transactions is not None:
            self._transactions.record_failed(batch.error)
            if batch.is_maybe_written:
                self._transactions.note_epoch_needed()
        if len(self._unread) >= _MAX_UNREAD:
            oldest = self._unread.popleft()
            if oldest.read_count < oldest.count:
                self._unread_count += oldest.count - oldest.read_count
                self._first_unread = self._first_unread or oldest
                self._is_maybe_written = self._is_maybe_written or oldest.is_maybe_written
        self._unread.append(batch)

    # ------------------------------------------------------------ many

    def fail_all(self, error_of: Callable[[TopicPartition], KafkaGroupError]) -> None:
        """Fail all records that have not ended, with the error of their partition."""
        for batch in self._accumulator.unfinished():
            batch.is_maybe_written = batch.is_maybe_written or batch.attempts > 0
            self._fail(batch, error_of(batch.tp))
        for queue in self._accumulator.queues():
            for batch in queue.in_flight:
                # It may have expired before, and the close cancels the request that would release
                # its memory. A second `note_end` releases nothing.
                self.note_end(batch)
        self._accumulator.forget_ended()

    def fail_not_in_flight(self, error: KafkaGroupError) -> None:
        """Fail the batches that no request has."""
        for batch in self._accumulator.not_in_flight():
            self._fail(batch, error)
        self._accumulator.forget_ended()

    def fail_waiting(self, queue: PartitionQueue, error: KafkaGroupError) -> None:
        """Fail the batches of a queue that no request has."""
        for batch in [b for b in queue.batches() if b not in queue.in_flight and not b.has_ended]:
            self._fail(batch, error)
        queue.forget_ended()
        self.fail_not_in_flight_if_aborted()

    def fail_not_in_flight_if_aborted(self) -> None:
        """Fail the batches that no request has if the transaction cannot commit any more."""
        manager = self._transactions
        if manager is not None and manager.must_abort and manager.error is not None:
            self.fail_not_in_flight(TransactionAbortedError(manager.error))

    def _fail(self, batch: ProduceBatch, error: KafkaGroupError) -> None:
        batch.fail(error)
        self.note_end(batch)

    # ------------------------------------------------------------ unread failures

    def forget_unread(self) -> None:
        """Forget the unread failures: the transaction has reported them."""
        self._unread.clear()
        self._unread_count, self._first_unread, self._is_maybe_written = 0, None, False

    def raise_unread(self, waited: Iterable[ProduceBatch] = ()) -> None:
        """Raises: NotWrittenError for the unread failures, once; for those of `waited`, which the
        caller has waited for, even if they were raised before."""
        batches = dict.fromkeys((*self._unread, *waited))
        unread = [b for b in batches if b.error is not None and b.read_count < b.count]
        count = sum(batch.count - batch.read_count for batch in unread) + self._unread_count
        first = self._first_unread or (unread[0] if unread else None)
        is_maybe_written = self._is_maybe_written or any(b.is_maybe_written for b in unread)
        self.forget_unread()
        if first is None:
            return
        assert first.error is not None
        raise NotWrittenError(
            first.tp, first.error, is_maybe_written=is_maybe_written, count=count
        ) from first.error

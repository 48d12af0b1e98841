"""Consume, transform, produce: each record exactly once, from a group to topics.

A transaction has the records of several polls, and commits the offsets after them. The records
count as processed only when it is committed. If it is aborted, the consumer returns to the first
record of each partition, whose offset the transaction has kept. The committed offsets would not do:
they are older as long as the previous transaction has not ended at its coordinator. The private
methods of consumer and producer that are called here are not for applications.
"""

from __future__ import annotations

import logging
import math
import random
from functools import partial
from typing import TYPE_CHECKING, Generic

import anyio

from kafkagroup._backoff import backoff
from kafkagroup._generic import K_co, K_contra, V_co, V_contra
from kafkagroup._public import public
from kafkagroup._values import evolve
from kafkagroup.consume.commits import Commit
from kafkagroup.consume.partitions import check_interval, check_record_limit
from kafkagroup.consume.progress import UNKNOWN
from kafkagroup.errors import (
    BrokerError,
    ClosedError,
    CommitFailedError,
    ConfigurationError,
    ErrorCode,
    IllegalStateError,
    KafkaGroupError,
    NotStartedError,
    RequestTimeoutError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
)
from kafkagroup.transaction import Transaction, TransactionalProducer, check_consumer
from kafkagroup.types import OffsetAndMetadata, Record, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from uuid import UUID

    from kafkagroup.consume.owned import OwnedPartition
    from kafkagroup.consumer import Consumer
    from kafkagroup.options import ProducerOptions

__all__ = ["ConsumingTransaction", "ConsumingTransactions"]

logger = logging.getLogger(__name__)

_MAX_POLL = 0.2
"""Seconds that a poll for more records may take: while it lasts, a rebalance or the close waits for
the records that were taken."""


class ConsumingTransactions(Generic[K_co, V_co, K_contra, V_contra]):
    """The async iterator of `Producer.transactions()`."""

    def __init__(
        self,
        producer: TransactionalProducer[K_contra, V_contra],
        consumer: Consumer[K_co, V_co],
        max_records: int,
        max_interval: float,
    ) -> None:
        check_record_limit(max_records)
        check_interval("max_interval", max_interval)
        check_consumer(consumer)
        if not consumer._reads_committed:
            raise ConfigurationError(
                "the consumer reads records of transactions that may be aborted; give it"
                ' isolation_level="read_committed"'
            )
        self._producer = producer
        self._consumer = consumer
        self._max_records = max_records
        self._max_interval = max_interval
        self._aborts = Aborts()

    def __aiter__(self) -> ConsumingTransactions[K_co, V_co, K_contra, V_contra]:
        return self

    async def __anext__(self) -> ConsumingTransaction[K_co, V_co, K_contra, V_contra]:
        """Return the next transaction, which is not begun yet, with its records. The iteration ends
        when the consumer is stopped. Raises: ClosedError when the producer is stopped;
        IllegalStateError while a transaction with records of the consumer is open; as
        `Consumer.getmany` and `Consumer.committed`."""
        consumer = self._consumer
        self._check_none_is_open()
        transaction = ConsumingTransaction(self._producer, consumer, self._aborts)
        try:
            consumer._check_transactional()
            with self._producer._until_stopped():
                await self._aborts.pause(self._producer._options)
            if consumer._unsettled_transaction is not None:
                await consumer._unsettled_transaction._settle()
            self._check_none_is_open()  # by another task, meanwhile
            with self._producer._until_stopped():
                await self._collect(transaction)
            transaction._pass_markers()
        except NotStartedError:  # a ClosedError that must not end the iteration
            raise
        except ClosedError:
            if consumer.closed:
                raise StopAsyncIteration from None  # it was stopped in the last transaction
            transaction._rewind()
            raise
        except BaseException:
            transaction._rewind()
            raise
        if not transaction._records:
            raise StopAsyncIteration  # the consumer is stopped
        consumer._unsettled_transaction = transaction  # until it is entered
        return transaction

    async def _collect(
        self, transaction: ConsumingTransaction[K_co, V_co, K_contra, V_contra]
    ) -> None:
        """Take up to `max_records` records, until `max_interval` seconds after the first ones, or
        until a rebalance or the close waits for them, or an error follows them, which the next poll
        raises."""
        consumer, acknowledgement = self._consumer, self._consumer._delivery.acknowledgement
        transaction._take(await consumer.getmany(self._max_records, math.inf))
        # The records taken stay in flight during the polls that follow.
        acknowledgement.is_held = True
        try:
            deadline = anyio.current_time() + self._max_interval
            while transaction._records and (left := self._max_records - len(transaction._records)):
                timeout = deadline - anyio.current_time()
                if timeout <= 0 or consumer.closed or consumer._session.is_draining:
                    return
                transaction._take(await consumer.getmany(left, min(timeout, _MAX_POLL)))
        except IllegalStateError:  # the consumer is used wrongly: nothing to raise again
            raise
        except Exception as error:
            # The transaction has only the records before it. If they came again instead, an
            # application that seeks past the error's record would skip them.
            consumer._session.raise_again(error)
        finally:
            acknowledgement.is_held = False

    def _check_none_is_open(self) -> None:
        """Raises: IllegalStateError while a transaction with records of the consumer is open: the
        records would count as processed, although it may still abort."""
        if self._consumer._delivery.acknowledgement.is_held:
            raise IllegalStateError(
                "a transaction with records of this consumer is open; end it first"
            )


class Aborts:
    """How many transactions of an iteration in a row were aborted so that it continued."""

    def __init__(self) -> None:
        self.count = 0

    async def pause(self, options: ProducerOptions) -> None:
        """Wait, longer after each abort: as long as the member does not know of a rebalance, the
        next transaction may be refused as well."""
        if self.count:
            first, most = options.retry_backoff, options.retry_backoff_max
            await anyio.sleep(backoff(self.count, first, most, random.random()))


@public
class ConsumingTransaction(
    Transaction[K_contra, V_contra], Generic[K_co, V_co, K_contra, V_contra]
):
    """A transaction with records of a consumer, from `Producer.transactions()`.

    `async with tx as records` begins it, and has its records in the order of each partition; the
    block can `tx.send`, `tx.send_nowait` and `tx.send_many`. Its end commits the records written
    and the offsets, also those after records that the block itself has polled. A block that takes
    longer than 0.8 of `transaction_timeout_ms`, here 10,000 by default, is cancelled, and its
    transaction aborted.

    The transaction is also aborted if the group takes partitions away meanwhile, if the brokers
    have not acknowledged all in that time, or if the coordinator has aborted it. Then a warning is
    logged, and the iteration continues: this member or the next owner gets the records again. Every
    other failure is raised, as `Transaction` says, after the consumer has returned to where the
    transaction began.
    """

    _default_timeout = 10.0
    """The transaction timeout in seconds, if `transaction_timeout_ms` is not given."""

    def __init__(
        self,
        producer: TransactionalProducer[K_contra, V_contra],
        consumer: Consumer[K_co, V_co],
        aborts: Aborts,
    ) -> None:
        super().__init__(producer)
        self._consumer = consumer
        self._aborts = aborts
        self._records: list[Record[K_co, V_co]] = []
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        """The partitions of the records, in the assignment in which they were delivered."""
        self._starts: dict[TopicPartition, int] = {}
        """The offset of each partition's first record."""
        self._topic_ids: dict[TopicPartition, UUID] = {}
        """The topics of these offsets; NO_ID if the id was not known."""
        self._ends: dict[TopicPartition, OffsetAndMetadata] = {}
        """The offsets after the last records, to commit."""
        self._committed_before: dict[TopicPartition, int] = {}
        """The committed offset of each partition when its first record was taken; UNKNOWN if there
        was none, or it was not known."""
        self._seek_counts: dict[TopicPartition, int] = {}
        """How often the application had sought each partition then."""
        self._scope = anyio.CancelScope()
        """Cancels the block at the transaction's deadline."""
        self._is_entered = False
        """Whether the block has begun, or could not begin."""
        self._is_outcome_unknown = False

    def _take(self, found: dict[TopicPartition, list[Record[K_co, V_co]]]) -> None:
        """Add the records of a poll."""
        for tp, records in found.items():
            owned = self._consumer._delivery.owned.get(tp)
            if owned is None:
                continue  # revoked since: its next owner has them
            if self._owned.get(tp, owned) is not owned:
                # The partition was released and assigned again: drop its records that were taken
                # before, as they are delivered again.
                self._records = [one for one in self._records if (one.topic, one.partition) != tp]
                del self._owned[tp]
            # Also begin anew in a topic that was recreated. The records of the deleted one stay,
            # as they do not come again.
            if tp not in self._owned or owned.is_of_other_topic(self._topic_ids[tp]):
                self._add(owned, records[0].offset)
            last = records[-1]
            self._ends[tp] = OffsetAndMetadata(last.offset + 1, leader_epoch=last.leader_epoch)
            self._records += records

    def _add(self, owned: OwnedPartition, start: int) -> None:
        """Add a partition, whose first record has the offset `start`."""
        tp = owned.tp
        self._owned[tp], self._starts[tp] = owned, start
        self._topic_ids[tp] = owned.topic_id
        self._committed_before[tp] = owned.committed
        self._seek_counts[tp] = owned.seek_count

    def _take_polled(self) -> None:
        """Add the records that the block itself has polled."""
        delivery = self._consumer._delivery
        for tp in delivery.acknowledgement.in_flight_among(delivery.owned):
            owned = delivery.owned[tp]
            if owned.oldest == 0:
                continue  # dropped, because its topic was recreated
            if self._owned.get(tp) is not owned:
                self._add(owned, owned.processed)
            elif owned.position <= self._ends[tp].offset or self._is_of_other_topic(tp):
                continue
            self._ends[tp] = OffsetAndMetadata(owned.position, leader_epoch=owned.leader_epoch)

    def _pass_markers(self) -> None:
        """Commit also the offsets after the last records that have none, such as transaction
        markers: otherwise the lag would never reach zero. All records delivered were taken."""
        for tp, end in self._ends.items():
            owned = self._owned[tp]
            if self._is_kept(tp) and owned.position > end.offset and not self._is_sought(tp):
                self._ends[tp] = OffsetAndMetadata(owned.position, leader_epoch=owned.leader_epoch)

    async def __aenter__(self) -> list[Record[K_co, V_co]]:  # type: ignore[override]
        """Begin, and return the records. `Transaction` returns itself: hence `ignore[override]`."""
        if self._ended_at < math.inf:
            raise IllegalStateError("the transaction has ended; take the next one")
        if self._is_entered:
            raise IllegalStateError("the transaction has begun already; enter each one once")
        self._is_entered = True
        self._consumer._unsettled_transaction = None
        acknowledgement = self._consumer._delivery.acknowledgement
        acknowledgement.is_held = True  # so that a poll in the block does not complete the records
        try:
            await super().__aenter__()
        except BaseException:
            self._ended_at = anyio.current_time()  # the next one has its records again
            self._rewind()
            raise
        self._scope.deadline = self._transactions.deadline
        self._scope.__enter__()
        return self._records

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._ended_at = anyio.current_time()
        try:
            self._scope.__exit__(exc_type, exc_value, traceback)
        except BaseException as error:
            # Of the block, with the cancellation in a group; or a RuntimeError because another task
            # ends the block, as asyncio does for an async generator that is not closed.
            self._scope.deadline = math.inf  # or it would cancel the task that began the block
            await self._transactions.run_shielded(partial(self._end, error))
            raise
        late = None
        if self._scope.cancelled_caught:
            late = TransactionAbortedError(self._transactions.late_error())
        try:
            await self._transactions.run_shielded(partial(self._end, late or exc_value))
            if late is not None:
                raise late
        except BaseException as error:
            if not _continues_after(error):
                raise
            self._aborts.count += 1
            logger.warning("a transaction is aborted, and its records come again: %s", error)
        return late is not None  # suppress the cancellation by `_scope`, and nothing else

    async def _end(self, cause: BaseException | None) -> None:
        """If `cause` is None, commit, after which the records count as processed; otherwise abort,
        and return to the first records. Raises: as `Transaction`, but not `cause`; the error
        because of which the offsets were not sent."""
        failure = None
        try:
            if cause is None:
                failure = cause = await self._send_all_offsets()
            if cause is not None:
                self._take_polled()
            await super().__aexit__(None if cause is None else type(cause), cause, None)
        except TransactionOutcomeUnknownError:
            self._is_outcome_unknown = True
            self._consumer._unsettled_transaction = self
            self._release()
            raise
        except BaseException:
            self._rewind()
            raise
        if cause is None:
            self._aborts.count = 0
            self._consumer._delivery.acknowledgement.is_held = False
            self._consumer._session.complete_in_flight()
        else:
            self._rewind()
        if failure is not None:
            raise failure

    async def _settle(self) -> None:
        """Return to the first records if the transaction was not entered, or turns out to be
        aborted; but leave a partition where the application has sought since. Raises: as
        `Consumer.committed`."""
        if self._is_outcome_unknown and await self._has_committed():
            commits = self._commits()
            for commit in commits:
                if not self._is_sought(commit.tp):
                    # Its records were dropped, and the next commit would return to the first one.
                    commit.owned.complete(commit.owned.oldest)
            self._consumer._session.committer.note_transaction(commits, is_certain=True)
        else:
            # This transaction cannot be entered any more: the next one has its records again.
            self._ended_at = min(self._ended_at, anyio.current_time())
            self._rewind(self._unsought())
        self._consumer._unsettled_transaction = None

    def _unsought(self) -> dict[TopicPartition, int]:
        """Return those of `_starts` where the application has not sought since."""
        return {tp: start for tp, start in self._starts.items() if not self._is_sought(tp)}

    def _is_sought(self, tp: TopicPartition) -> bool:
        """Return whether the application has sought the partition since its first record."""
        return self._owned[tp].seek_count != self._seek_counts[tp]

    async def _has_committed(self) -> bool:
        """Wait until the transaction has ended at its coordinator; return whether the group has its
        offsets."""
        committed = await self._consumer.committed(list(self._ends))
        # A transaction commits all of its offsets or none, so one is proof; but not that of a
        # partition that has moved: after an abort, its next owner may have committed the same.
        return any(
            found is not None and self._is_kept(tp) and self._is_of_this(self._ends[tp], found)
            for tp, found in committed.items()
        )

    def _is_of_this(self, end: OffsetAndMetadata, found: OffsetAndMetadata) -> bool:
        """Return whether a committed offset is that of this transaction."""
        return found.metadata == end.metadata if end.metadata else found.offset >= end.offset

    def _sign_ends(self) -> None:
        """Name the transaction in the metadata of each offset that does not tell by itself whether
        the transaction has committed: the group may have had the same or a higher one before, if
        the application has sought back."""
        for tp, end in self._ends.items():
            before = self._committed_before[tp]
            if before == UNKNOWN or before >= end.offset:
                self._ends[tp] = evolve(end, metadata=self._transactions.manager.transaction_name)

    def _is_kept(self, tp: TopicPartition) -> bool:
        """Return whether the partition is in the assignment in which its records were delivered."""
        one = self._owned[tp]
        return self._consumer._delivery.owned.get(tp) is one and not one.revoked

    async def _send_all_offsets(self) -> BaseException | None:
        """Send the offsets; return the error that aborts the transaction."""
        try:
            # First, as records that the block has polled in a later assignment replace these.
            self._consumer._session.committer.check(self._commits())
            self._take_polled()
            self._sign_ends()
            await self._send_commits(self._consumer, self._commits())
        except KafkaGroupError as error:
            return error
        return None

    def _commits(self) -> list[Commit]:
        """Return the offsets to commit, with the assignment and topic of each."""
        return [Commit(self._owned[tp], end, self._topic_ids[tp]) for tp, end in self._ends.items()]

    def _release(self) -> None:
        """Drop the records in flight. A revocation may be waiting for them; the next owner of their
        partitions delivers them again."""
        self._consumer._delivery.acknowledgement.is_held = False
        self._consumer._session.drop_in_flight()

    def _rewind(self, starts: Mapping[TopicPartition, int] | None = None) -> None:
        """Return to the first record of each partition that is still assigned, so that all records
        are delivered again; but not in a topic that was recreated since. `starts`: the offsets of
        these records, if not those of `_starts`."""
        if not self._starts:
            return  # it has no records: those in flight were polled before it
        self._release()
        for tp, start in (self._starts if starts is None else starts).items():
            is_same = self._is_kept(tp) and not self._is_of_other_topic(tp)
            if is_same and not self._consumer.closed:
                self._consumer.seek(tp, start)

    def _is_of_other_topic(self, tp: TopicPartition) -> bool:
        """Return whether the topic was recreated since the partition's first record."""
        return self._owned[tp].is_of_other_topic(self._topic_ids[tp])


def _continues_after(error: BaseException) -> bool:
    """Return whether the iteration continues after this error: the member has lost partitions, or
    its generation; brokers have not answered in time; or the coordinator has aborted the
    transaction at its timeout."""
    if isinstance(error, TransactionAbortedError):
        error = error.why
    if isinstance(error, BrokerError):
        return error.code == ErrorCode.INVALID_TXN_STATE
    return isinstance(error, CommitFailedError | RequestTimeoutError)

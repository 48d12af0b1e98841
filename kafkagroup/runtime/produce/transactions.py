"""Runs the transactions of one producer: performs the effects of `produce.transaction_step`, which
makes all decisions, and has the callers wait for the outcome.

The caller flushes its records before it commits, shields commits and aborts from cancellation, and
gives each call a deadline on the loop's clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

import anyio

from kafkagroup._backoff import backoff
from kafkagroup._values import define, field
from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    ClosedError,
    IllegalStateError,
    KafkaGroupError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    UnsupportedVersionError,
)
from kafkagroup.produce.transaction_state import ENDED, Phase, Transactions
from kafkagroup.produce.transaction_step import step
from kafkagroup.produce.transaction_vocabulary import (
    AbortRequested,
    BeginRequested,
    CallAbandoned,
    CommitRequested,
    Complete,
    Destination,
    EpochNeeded,
    Event,
    GroupIdentity,
    InitializeRequested,
    OffsetsRequested,
    PartitionsRequested,
    RecordFailed,
    Refused,
    Replied,
    Send,
    SendFailed,
    Sent,
)
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.coordinators import CoordinatorType
from kafkagroup.transport.features import request_features
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ["MARKER_PAUSE", "TransactionManager"]

_FEATURE = "transaction.version"
_FEATURES_TIMEOUT = 1.0
"""Seconds to wait for the finalized features. Without a response the last known ones count: brokers
accept requests of an earlier version."""

_ABORT_PART = 0.8
"""The part of a transaction's timeout after which the client aborts it, before the coordinator
would."""

_RECORD_WAIT_PART = 0.9
"""The part of a transaction's timeout after which its abort waits for no record in flight any more.
The rest is for EndTxn."""

MARKER_PAUSE = 0.001
"""Seconds before the first retry while the markers of the last transaction are being written: that
takes a few milliseconds."""

_COORDINATOR_TYPES: Mapping[Destination, CoordinatorType] = {
    Destination.TRANSACTION: CoordinatorType.TRANSACTION,
    Destination.GROUP: CoordinatorType.GROUP,
}


@define(eq=False)
class _Call:
    """A call that waits."""

    ended: OneShotEvent = field(factory=OneShotEvent)
    error: KafkaGroupError | None = None


class TransactionManager:
    """The transactions of one producer. One task at a time may begin and end them. After `close`,
    each coroutine raises ClosedError."""

    def __init__(
        self, cluster: Cluster, tasks: TaskGroup, transactional_id: str, *, timeout_ms: int
    ) -> None:
        """Requests run in `tasks`. `timeout_ms`: how long a transaction may be open before the
        coordinator aborts it."""
        self.on_failed: Callable[[], None] = lambda: None
        """Called when `error` gets a value."""
        self._cluster = cluster
        self._tasks = tasks
        self._clock = loop_clock()
        self._state = Transactions(transactional_id=transactional_id, timeout_ms=timeout_ms)
        self._changed = ChangeSignal()
        self._calls: dict[int, _Call] = {}
        """The calls that wait, by number."""
        self._last_call = 0
        """The number of the last call."""
        self._nodes: dict[Destination, Node | None] = {}
        """The coordinators that were last asked."""
        self._features_epoch = -1
        """The highest epoch of the finalized features in any response; -1 before the first."""
        self._version = 0
        """The finalized `transaction.version` of that epoch; 0 before the first response."""
        self._to_add: set[TopicPartition] = set()
        """Partitions to add, by a task that was started and has not run yet."""
        self._closed: ClosedError | None = None
        """The error of all calls after `close`; None before."""

    # ------------------------------------------------------------ state

    @property
    def transactional_id(self) -> str:
        """The transactional id, which Produce requests name."""
        return self._state.transactional_id

    @property
    def identity(self) -> tuple[int, int]:
        """The producer id and epoch of the open transaction, or of the next; -1 and -1 before
        `initialize`. They change in `begin`, `commit` and `abort` only."""
        return self._state.producer_id, self._state.epoch

    @property
    def transaction_name(self) -> str:
        """A text that only the open transaction has: its producer id, epoch and number."""
        state = self._state
        return f"transaction {state.producer_id}/{state.epoch}/{state.number}"

    @property
    def abort_at(self) -> float:
        """When the client aborts the open transaction: the sender fails the records that are not
        acknowledged, and a commit that waits for records raises. Later the coordinator would abort
        the transaction, and fence the producer."""
        return self._state.begun_at + _ABORT_PART * self._state.timeout_ms / 1000

    @property
    def record_wait_ends_at(self) -> float:
        """When the abort of the open transaction stops waiting for the records in flight, and sends
        EndTxn all the same. The next transaction then begins in another epoch."""
        return self._state.begun_at + _RECORD_WAIT_PART * self._state.timeout_ms / 1000

    @property
    def abort_timeout_text(self) -> str:
        """The time from the beginning to `abort_at`, for an error's text."""
        ms = self._state.timeout_ms
        return f"{ms * _ABORT_PART / 1000:g} s, {_ABORT_PART} of transaction_timeout_ms={ms}"

    @property
    def is_open(self) -> bool:
        """Whether records may be added: a transaction has begun, and nothing has failed."""
        return self._state.is_open

    @property
    def must_abort(self) -> bool:
        """Whether the open transaction has failed, so that it can only be aborted."""
        return self._state.phase is Phase.ABORTABLE_ERROR

    @property
    def error(self) -> KafkaGroupError | None:
        """The first failure of the open transaction, or what has ended the producer."""
        return self._state.error

    @property
    def has_ended(self) -> bool:
        """Whether the producer can begin no more transactions: `error` has the reason."""
        return self._state.phase in ENDED

    def produce_highest_version(self) -> int | None:
        """Return the highest version of Produce for the open transaction; None for the highest that
        the broker has."""
        return self._state.produce_highest_version

    # ------------------------------------------------------------ calls

    async def initialize(self, deadline: float) -> None:
        """Get the producer id and epoch; fence the earlier producers of the transactional id.

        Raises: AuthorizationError, BrokerError, ProducerFencedError; RequestTimeoutError at the
        deadline, after which the call may be repeated; UnsupportedVersionError.
        """
        await self._call(InitializeRequested, deadline)

    async def begin(self, deadline: float, *, timeout_ms: int | None = None) -> None:
        """Begin a transaction, as soon as the last one has certainly ended. It begins in another
        epoch if requests of an earlier transaction may still be executed, or if its timeout is
        another one. `timeout_ms`: after how long the coordinator aborts it; None: as for the last.

        Raises: what has ended the producer; RequestTimeoutError at the deadline, or
        TransactionOutcomeUnknownError while the last commit has no response: after either, the call
        may be repeated. IllegalStateError while a transaction is open.
        """
        version = self._version
        if self._state.phase in (Phase.READY, Phase.UNRESOLVED):
            version = await self._transaction_version(deadline)
        number = self._state.number
        try:
            await self._call(BeginRequested, deadline, version=version, timeout_ms=timeout_ms)
        except BaseException:
            # Abort a transaction that had begun when the call was cancelled, before this task
            # resumed: its caller will not end the transaction.
            if self._state.is_open and self._state.number != number:
                self._last_call += 1
                self._take(partial(AbortRequested, call=self._last_call))
            raise

    async def add_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until the partitions are added to the open transaction, without a deadline. From
        transaction version 2 on, do not wait: only note that records for them are sent.

        Raises: TransactionAbortedError when the transaction has failed meanwhile; what has ended
        the producer; IllegalStateError without an open transaction.
        """
        number, wanted = self._state.number, frozenset(partitions)
        self._raise_unless_open(number)
        if self._state.ends_epoch:
            self._take(partial(PartitionsRequested, number=number, partitions=wanted))
            return
        if not self._to_add and not wanted <= self._state.added:
            self._tasks.start_soon(self._add_collected, number)
        self._to_add |= wanted - self._state.added
        while not wanted <= self._state.added:
            await self._changed.wait()
            self._raise_unless_open(number)

    async def _add_collected(self, number: int) -> None:
        """Send one request to add the partitions of all calls since this task was started."""
        partitions = frozenset(self._to_add)
        self._to_add.clear()
        self._take(partial(PartitionsRequested, number=number, partitions=partitions))

    def _raise_unless_open(self, number: int) -> None:
        state = self._state
        if self._closed is not None:
            raise self._closed
        if state.phase in ENDED and state.error is not None:
            raise state.error
        if state.phase is Phase.ABORTABLE_ERROR and state.error is not None:
            raise TransactionAbortedError(state.error)
        if not state.is_open or state.number != number:
            raise IllegalStateError("no transaction is open")

    def record_failed(self, error: KafkaGroupError) -> None:
        """Note that a record was not acknowledged, or that the offsets of a consumer cannot be
        sent: the open transaction cannot commit."""
        self._take(partial(RecordFailed, error=error))

    def note_epoch_needed(self) -> None:
        """Note that a batch has failed that may still be written: the next transaction must begin
        in another epoch."""
        self._take(EpochNeeded)

    async def send_offsets(
        self,
        group: GroupIdentity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: float,
    ) -> None:
        """Commit offsets of a group with the open transaction. One task at a time may do so. When
        this raises, or is cancelled, the transaction cannot commit.

        Raises: CommitFailedError for a member that the group does not count any more, or in another
        generation; FencedError, AuthorizationError, BrokerError; RequestTimeoutError at the
        deadline, or if an earlier request with another offset of a partition may still be executed;
        TransactionAbortedError when the transaction has failed before;
        UnsupportedVersionError from brokers before 2.5, which do not fence members; what has ended
        the producer; IllegalStateError without an open transaction.
        """
        number = self._state.number
        await self._call(OffsetsRequested, deadline, number=number, group=group, offsets=offsets)

    async def commit(self, deadline: float) -> None:
        """Commit the open transaction, of which all records have ended. After a commit whose
        outcome is unknown, wait for its response again.

        Raises: TransactionAbortedError when the transaction cannot commit: `abort` it;
        TransactionOutcomeUnknownError at the deadline, if the coordinator may have executed the
        request; ProducerFencedError, BrokerError: not committed, and the producer has ended;
        IllegalStateError without an open transaction.
        """
        await self._call(CommitRequested, deadline)

    async def abort(self, deadline: float) -> None:
        """Abort the open transaction. After the deadline the abort continues in the background, and
        `begin` waits for it.

        Raises: RequestTimeoutError at the deadline; ProducerFencedError, BrokerError: the producer
        has ended; IllegalStateError without an open transaction, or after a commit whose outcome is
        unknown.
        """
        await self._call(AbortRequested, deadline)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed is not None

    def close(self) -> None:
        """Fail the calls that wait, and later ones, with ClosedError; but fail a commit that the
        coordinator may have executed with TransactionOutcomeUnknownError. Send nothing."""
        closed = ClosedError("the producer is closed")
        for number, call in self._calls.items():
            if call.ended.is_set():
                continue  # its task is about to run
            self._take(partial(CallAbandoned, call=number, reason="the producer was closed"))
            if not isinstance(call.error, TransactionOutcomeUnknownError):
                call.error = closed
            call.ended.set()
        self._closed = closed
        self._changed.notify()

    async def _call(self, kind: Callable[..., Event], deadline: float, **fields: object) -> None:
        if self._closed is not None:
            raise self._closed
        self._last_call += 1
        number, called_at = self._last_call, self._clock()
        call = self._calls[number] = _Call()
        abandon = partial(CallAbandoned, call=number)
        try:
            self._take(partial(kind, call=number, **fields))
            if not call.ended.is_set() and not await call.ended.wait(deadline):
                allowed = deadline - called_at
                # Negative if the process has stalled, and called this after the deadline.
                reason = f"it took longer than {max(0.0, allowed):.4g} s"
                self._take(partial(abandon, reason=reason))
        except BaseException:
            self._take(partial(abandon, reason="it was cancelled"))
            raise
        finally:
            del self._calls[number]
        if call.error is not None:
            raise call.error

    # ------------------------------------------------------------ effects

    def _take(self, event: Callable[..., Event]) -> None:
        """Step, and perform the effects. `event` creates the event, with the time as `now`. Does
        nothing after `close`. Raises: IllegalStateError, and changes nothing, if the application
        may not make the call now."""
        if self._closed is not None:
            return
        before = self._state
        self._state, effects = step(before, event(now=self._clock()))
        if before.error is None and self._state.error is not None:
            self.on_failed()
        for effect in effects:
            match effect:
                case Send():
                    self._tasks.start_soon(self._send, effect)
                case Complete(call=number, error=error):
                    if (call := self._calls.get(number)) is not None and not call.ended.is_set():
                        call.error = error
                        call.ended.set()
        if self._state is not before:
            self._changed.notify()

    async def _send(self, send: Send) -> None:
        """Send a request after its backoff, unless the state does not await its response any more
        by then."""
        if send.attempts:
            self._report(send)
            await anyio.sleep(self._pause(send))
        kind = _COORDINATOR_TYPES[send.to]
        if not self._state.awaits(send.token):
            return
        if send.needs_look_up:
            # Invalidate only the node that was asked: another request may have found the next
            # coordinator meanwhile.
            self._cluster.coordinators.invalidate(send.key, kind, node=self._nodes.get(send.to))
        try:
            async with self._cluster.coordinator(send.key, kind) as broker:
                self._nodes[send.to] = self._cluster.coordinators.known(send.key, kind)
                await broker.ready()
                if not self._state.awaits(send.token):
                    return
                self._take(partial(Sent, token=send.token))
                response = await broker.attempt(
                    send.request, lowest=send.lowest, highest=send.highest
                )
        except UnsupportedVersionError as error:
            self._take(partial(Refused, token=send.token, error=error))
        except BrokerError as error:  # only the look-up of the coordinator raises it
            outcome = SendFailed if error.retriable else Refused
            self._take(partial(outcome, token=send.token, error=error))
        except RETRIED_ERRORS as error:
            self._take(partial(SendFailed, token=send.token, error=error))
        else:
            self._take(partial(Replied, token=send.token, response=response))
            # `ongoing`: empty while nothing fails, so that there is nothing to end.
            if not self._state.trouble and self._cluster.troubles.ongoing:
                self._cluster.troubles.succeeded(self._trouble_key, self._clock())

    def _pause(self, send: Send) -> float:
        """Return the seconds before a retry."""
        options = self._cluster.options
        first = (
            min(options.retry_backoff, MARKER_PAUSE)
            if send.awaits_markers
            else options.retry_backoff
        )
        return backoff(send.attempts, first, options.retry_backoff_max, random.random())

    @property
    def _trouble_key(self) -> tuple[str, str]:
        return "transactions", self._state.transactional_id

    def _report(self, send: Send) -> None:
        """Report a request that is repeated."""
        name = type(send.request).__name__.removesuffix("Request")
        problem = Problem(
            subject=f"{name} of transactional id {self._state.transactional_id}",
            cause=self._state.trouble,
            advice="check the coordinator's broker, and __transaction_state with its leaders",
        )
        self._cluster.troubles.failed(self._trouble_key, self._clock(), problem)

    # ------------------------------------------------------------ features

    async def _transaction_version(self, deadline: float) -> int:
        """Return the finalized `transaction.version`, read again from the coordinator. Of all
        responses that of the highest epoch counts: a broker may lag behind."""
        key = self._state.transactional_id
        until = min(deadline, self._clock() + _FEATURES_TIMEOUT)
        with anyio.CancelScope(deadline=until):
            try:
                async with self._cluster.coordinator(key, CoordinatorType.TRANSACTION) as broker:
                    found = await request_features(broker)
            except KafkaGroupError:
                return self._version  # the next request to the coordinator reports what is wrong
            if found.epoch > self._features_epoch:
                self._features_epoch = found.epoch
                self._version = found.levels.get(_FEATURE, 0)
        return self._version

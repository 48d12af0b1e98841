"""The transactions of a producer together with their records: a commit waits until all records have
ended, an abort for those in flight."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Protocol

import anyio

from kafkagroup._values import define, field
from kafkagroup.concurrency.coalescing_task import Spawn
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.errors import (
    ClosedError,
    IllegalStateError,
    KafkaGroupError,
    RequestTimeoutError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
)
from kafkagroup.produce.accumulator import Accumulator
from kafkagroup.produce.identity import Identities, ProducerIdentity
from kafkagroup.produce.transaction_vocabulary import GroupIdentity
from kafkagroup.runtime.produce.sender import Sender
from kafkagroup.runtime.produce.transactions import TransactionManager
from kafkagroup.types import OffsetAndMetadata, TopicPartition

__all__ = ["ProducerTransactions", "TransactionBlock"]

logger = logging.getLogger(__name__)

_NOT_DRAINED = "requests of the last transaction, which was aborted, have not ended yet"


class TransactionBlock(Protocol):
    """The block of a transaction."""

    _is_open: bool
    """Whether it runs."""
    _ended_at: float
    """When it ended, on the loop's clock; infinity before."""


@define(eq=False)
class _End:
    """A commit or abort, which runs in a task of its own."""

    work: Callable[[], Awaitable[None]]
    has_begun: bool = False
    ended: OneShotEvent = field(factory=OneShotEvent)
    failure: Exception | None = field(
        factory=lambda: ClosedError("the producer was closed before the end")
    )
    """What `work` has raised; before its end, and if its task is cancelled, a ClosedError."""


class ProducerTransactions:
    """Begins, commits and aborts the transactions of one producer, one at a time."""

    def __init__(
        self,
        manager: TransactionManager,
        sender: Sender,
        accumulator: Accumulator,
        identities: Identities,
        spawn: Spawn,
        *,
        delivery_timeout: float,
        request_timeout: float,
        check_open: Callable[[], None],
        until_stopped: Callable[[], AbstractContextManager[None]],
        set_accepting: Callable[[bool], None],
    ) -> None:
        """`spawn` runs a task of the producer. Timeouts are in seconds. `check_open` raises if the
        producer does not run; `until_stopped` returns the context of a call that the close of the
        producer ends; `set_accepting` notes whether the producer accepts records."""
        self.manager = manager
        self.open: TransactionBlock | None = None
        """The block of the transaction that is open, begins or ends."""
        self.on_commit: list[Callable[[bool], None]] = []
        """Functions to call when the open transaction is committed, with True; or when that is not
        known, with False. They note the group's committed offsets."""
        self._sender = sender
        self._accumulator = accumulator
        self._identities = identities
        self._spawn = spawn
        self._delivery_timeout = delivery_timeout
        self._request_timeout = request_timeout
        self._check_open = check_open
        self._until_stopped = until_stopped
        self._set_accepting = set_accepting
        self._is_closing = False
        self._pending_ends: set[_End] = set()
        """The commits and aborts that are running, or about to run."""
        self._record_wait: anyio.CancelScope | None = None
        """The scope in which the latest commit or abort waits, or has waited, for records."""
        self._record_wait_deadline = math.inf
        """When commits and aborts stop waiting for records, on the loop's clock. Infinity until the
        producer closes: then the rest of the time is for the abort."""
        manager.on_failed = lambda: set_accepting(False)

    # ------------------------------------------------------------ state

    @property
    def deadline(self) -> float:
        """When the client aborts the open transaction, on the loop's clock."""
        return self.manager.abort_at

    @property
    def ending_error(self) -> KafkaGroupError | None:
        """Why the producer can begin no more transactions; None if it can."""
        return self.manager.error if self.manager.has_ended else None

    def late_error(self) -> KafkaGroupError:
        """Return why the open transaction is aborted at its deadline."""
        manager, block = self.manager, self.open
        if manager.must_abort and manager.error is not None:
            return manager.error
        within = manager.abort_timeout_text
        # If the block ended in time, records were late, even if all are acknowledged by now.
        ended_in_time = block is not None and block._ended_at < manager.abort_at
        if self._accumulator.used or ended_in_time:
            return RequestTimeoutError(f"records were not acknowledged within {within}")
        return KafkaGroupError(f"the block took longer than {within}")

    def raise_if_failed(self) -> None:
        """Raises: TransactionAbortedError if the open transaction cannot commit; the error that has
        ended the producer; as `check_open`."""
        self._check_open()
        manager = self.manager
        if manager.error is not None and manager.must_abort:
            raise TransactionAbortedError(manager.error)
        if manager.error is not None and manager.has_ended:
            raise manager.error

    # ------------------------------------------------------------ one transaction

    async def begin(self, block: TransactionBlock, timeout: float) -> None:
        """Begin a transaction, which the coordinator aborts if it is open for `timeout` seconds.
        Raises: as `Transaction`."""
        manager, sender = self.manager, self._sender
        if self.open is not None:
            raise IllegalStateError("a transaction of this producer is open; end it first")
        self.open = block
        deadline = anyio.current_time() + self._delivery_timeout
        try:
            with self._until_stopped():
                # What an abort has left in flight must not be sent again in this transaction.
                with anyio.move_on_at(deadline) as scope:
                    await sender.abandon(KafkaGroupError("its transaction was aborted"))
                if scope.cancelled_caught:
                    raise RequestTimeoutError(_NOT_DRAINED)
                sender.outcomes.forget_unread()
                if sender.needs_epoch():
                    manager.note_epoch_needed()
                await manager.begin(deadline, timeout_ms=round(1000 * timeout))
            self._check_open()  # a closed producer must not accept records again
        except BaseException:
            self.open = None
            raise
        self.on_commit.clear()
        self._identities.current = ProducerIdentity(*manager.identity)
        sender.deadlines.expire_transaction_at(manager.abort_at, self.late_error)
        self._set_accepting(True)

    async def send_offsets(
        self, group: GroupIdentity, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Commit offsets of a group with the open transaction. Raises: as
        `Transaction.send_offsets`."""
        deadline = anyio.current_time() + self._delivery_timeout
        await self.manager.send_offsets(group, offsets, min(deadline, self.manager.abort_at))

    async def commit(self) -> None:
        """Wait until all records have ended, then commit the open transaction. Raises: as
        `Transaction`."""
        manager, sender = self.manager, self._sender
        self._set_accepting(False)
        try:
            with self._waiting_for_records(manager.abort_at) as scope:
                await sender.wait_all()
            if scope.cancelled_caught:
                raise TransactionAbortedError(
                    _closed_error() if self._is_closing else self.late_error()
                )
            await manager.commit(anyio.current_time() + self._delivery_timeout)
            self._report_commit(is_certain=True)
        except TransactionAbortedError as error:
            await self.abort(error)
            raise
        except TransactionOutcomeUnknownError:
            self._report_commit(is_certain=False)
            raise
        finally:
            self.open = None
            sender.outcomes.forget_unread()

    def _report_commit(self, *, is_certain: bool) -> None:
        for on_commit in self.on_commit:
            on_commit(is_certain)

    async def abort(self, why: KafkaGroupError) -> None:
        """Abort the open transaction. If the coordinator does not respond in time, the abort
        continues in the background, and the next transaction waits for it."""
        manager, sender = self.manager, self._sender
        self._set_accepting(False)
        deadline = anyio.current_time() + self._request_timeout
        try:
            with self._waiting_for_records(min(deadline, manager.record_wait_ends_at)) as scope:
                await sender.abandon(why)
            if scope.cancelled_caught:  # records may be written after the abort
                manager.note_epoch_needed()
            if not manager.has_ended:
                # The request gets a second even if the wait for records has used up the time.
                await manager.abort(max(deadline, anyio.current_time() + 1.0))
        except RequestTimeoutError as error:
            name = manager.transactional_id
            logger.warning("transactional id %r: a transaction is not aborted yet: %s", name, error)
        finally:
            self.open = None
            sender.outcomes.forget_unread()

    @contextmanager
    def _waiting_for_records(self, deadline: float) -> Iterator[anyio.CancelScope]:
        """A context in which the end of a transaction waits for its records, until the deadline."""
        with anyio.CancelScope(deadline=min(deadline, self._record_wait_deadline)) as scope:
            self._record_wait = scope
            yield scope

    async def run_shielded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`, which ends a transaction, in a task of the producer's own. No cancellation of
        the caller reaches it, not even by asyncio's `Task.cancel`, from which no scope shields.
        Such a cancellation is raised afterwards, with the error of `work` as its cause.

        Raises: what `work` raises; ClosedError if the producer ends before `work` does.
        """
        if self.manager.is_closed:  # there are no tasks any more, and nothing to wait for
            await work()
            return
        end = _End(work)
        self._pending_ends.add(end)
        self._spawn(partial(self._run, end), "transaction")
        cancelled: BaseException | None = None
        with anyio.CancelScope(shield=True):
            while not end.ended.is_set():
                try:
                    await end.ended.wait()
                except anyio.get_cancelled_exc_class() as error:
                    cancelled = error
        if cancelled is not None:
            raise cancelled from end.failure
        if end.failure is not None:
            raise end.failure

    async def _run(self, end: _End) -> None:
        if end.ended.is_set():
            return  # `close` has ended it
        end.has_begun = True
        try:
            await end.work()
            end.failure = None
        except Exception as error:
            end.failure = error
        finally:
            self._pending_ends.discard(end)
            end.ended.set()

    # ------------------------------------------------------------ the close

    async def end(self, timeout: float) -> None:
        """Wait for the commit or abort that is running, or abort the transaction of an open block.
        Either waits for records during half of `timeout` seconds at most."""
        self._is_closing = True
        self._record_wait_deadline = anyio.current_time() + timeout / 2
        if (wait := self._record_wait) is not None:
            wait.deadline = min(wait.deadline, self._record_wait_deadline)
        while self._pending_ends:
            await next(iter(self._pending_ends)).ended.wait()
        block, self.open = self.open, None
        if block is None or not block._is_open:
            return  # if one is just beginning, `begin` finds the producer closed, and raises
        try:
            await self.abort(_closed_error())
        except KafkaGroupError as error:
            name = self.manager.transactional_id
            logger.warning("transactional id %r: a transaction is not aborted: %s", name, error)

    def close(self) -> None:
        """Send nothing any more, and fail the calls that wait."""
        self.open = None
        self.manager.close()
        for end in tuple(self._pending_ends):
            if not end.has_begun:  # what cancels all tasks may cancel it before its first step
                self._pending_ends.discard(end)
                end.ended.set()


def _closed_error() -> ClosedError:
    return ClosedError("the producer was closed")

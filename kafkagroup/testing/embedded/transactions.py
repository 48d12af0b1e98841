"""The transaction coordinator: requests and time go in, errors, epochs and markers come out.

It has the states of Apache Kafka 4.3, in transaction versions 0 and 1 (an epoch lasts until the
next InitProducerId) and 2 (each transaction ends an epoch). It serves all nodes: for a client's
request, the caller checks first that its node coordinates the transactional id. No I/O and no
clock.
Sources: KIP-98, 360, 447, 890.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum

import attrs

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.testing.embedded.timers import Timers
from kafkagroup.types import TopicPartition

__all__ = ["NO_IDENTITY", "Identity", "Transaction", "TransactionCoordinator", "TransactionState"]

_LAST_EPOCH = 2**15 - 2
"""The last epoch of a producer id that a client gets; the one after it is for the marker."""


@attrs.frozen
class Identity:
    """A producer id and its epoch."""

    producer_id: int = -1
    epoch: int = -1

    @property
    def is_exhausted(self) -> bool:
        """Whether the next epoch belongs to another producer id."""
        return self.epoch >= _LAST_EPOCH


NO_IDENTITY = Identity()


class TransactionState(Enum):
    """The state of a transactional id, with the name that Kafka describes it by."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_COMPLETED = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


@attrs.define(eq=False)
class Transaction:
    """A transactional id, and its last transaction."""

    transactional_id: str
    identity: Identity
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    last_epoch: int = -1
    """The previous epoch, if a client that has it may still get the present one; else -1."""
    previous_producer_id: int = -1
    """The previous producer id, whose epochs are used up; -1 without one."""
    partitions: set[TopicPartition] = attrs.field(factory=set)
    """The partitions of the open transaction."""
    groups: set[str] = attrs.field(factory=set)
    """The groups whose offsets the open transaction commits."""
    started_at: float = -1.0
    """When the last transaction began, in seconds on the clock of the callers; -1 if there was
    none."""


WriteMarkers = Callable[[Transaction, Identity, bool, float], None]
"""Writes the markers of a transaction, with this identity; the bool is whether the transaction
commits, the number the time on the clock of `timers`."""


class TransactionCoordinator:
    """All transactional ids of the cluster, and the producer ids that it has given."""

    def __init__(
        self,
        timers: Timers,
        settings: BrokerSettings,
        write_markers: WriteMarkers,
        transaction_version: Callable[[], int],
    ):
        """`transaction_version` returns the finalized feature `transaction.version`."""
        self._timers = timers
        self._transaction_version = transaction_version
        self._settings = settings
        self._write_markers = write_markers
        self._next_producer_id = 0
        self.transactions: dict[str, Transaction] = {}
        """By transactional id."""

    def new_producer_id(self) -> int:
        """Return a producer id that no producer has had."""
        self._next_producer_id += 1
        return self._next_producer_id - 1

    # ------------------------------------------------------------ identities

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: Identity, now: float
    ) -> tuple[ErrorCode, Identity]:
        """Fence the earlier producers of a transactional id, and return the identity of the next
        one; or an error and `NO_IDENTITY`.

        `expected`: the identity that the client believes to have; `NO_IDENTITY` of a new client.
        """
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout * 1000:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT, NO_IDENTITY
        found = self.transactions.get(transactional_id)
        if found is None:
            found = Transaction(transactional_id, Identity(self.new_producer_id()), timeout_ms)
            self.transactions[transactional_id] = found
        if expected != NO_IDENTITY and not _is_plausible(found, expected):
            return ErrorCode.PRODUCER_FENCED, NO_IDENTITY
        if found.state in _PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS, NO_IDENTITY
        if found.state is TransactionState.ONGOING:
            self._fence(found, now)
            return ErrorCode.CONCURRENT_TRANSACTIONS, NO_IDENTITY
        error = self._bump(found, expected)
        if error:
            return error, NO_IDENTITY
        found.timeout_ms = timeout_ms
        found.state = TransactionState.EMPTY
        self._expire_later(found, now)
        return ErrorCode.NONE, found.identity

    def _bump(self, found: Transaction, expected: Identity) -> ErrorCode:
        """Give a transactional id its next identity, if the client is new or has the present one.
        If the client has the identity before, keep the present one. Otherwise return
        PRODUCER_FENCED."""
        identity, is_new = found.identity, expected == NO_IDENTITY
        if identity.is_exhausted and (is_new or expected.epoch == identity.epoch):
            found.previous_producer_id = identity.producer_id
            found.last_epoch = -1 if is_new else identity.epoch
            found.identity = Identity(self.new_producer_id(), 0)
        elif is_new or identity.epoch < 0 or expected.epoch == identity.epoch:
            found.last_epoch = -1 if is_new else identity.epoch
            found.identity = attrs.evolve(identity, epoch=identity.epoch + 1)
        elif expected.epoch != found.last_epoch:  # else the response to the same request was lost
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.NONE

    # ------------------------------------------------------------ a transaction

    def add(
        self,
        transactional_id: str,
        identity: Identity,
        now: float,
        *,
        partitions: Collection[TopicPartition] = (),
        groups: Collection[str] = (),
    ) -> ErrorCode:
        """Add partitions, or groups whose offsets are committed, to the transaction. The first
        addition begins the transaction."""
        found, error = self._find(transactional_id, identity)
        if error:
            return error
        if found.state in _PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if found.state is not TransactionState.ONGOING:
            found.state, found.started_at = TransactionState.ONGOING, now
            self._timers.schedule(
                ("transaction", transactional_id),
                now + found.timeout_ms / 1000,
                lambda at: self._fence(found, at),
            )
        found.partitions.update(partitions)
        found.groups.update(groups)
        return ErrorCode.NONE

    def verify(
        self,
        transactional_id: str,
        identity: Identity,
        *,
        partition: TopicPartition | None = None,
        group: str | None = None,
    ) -> ErrorCode:
        """Return the error for writing to a partition or group that must have been added."""
        found, error = self._find(transactional_id, identity)
        if error:
            return error
        if found.state in _PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        is_added = partition in found.partitions or group in found.groups
        if found.state is not TransactionState.ONGOING or not is_added:
            return ErrorCode.TRANSACTION_ABORTABLE
        return ErrorCode.NONE

    def _find(self, transactional_id: str, identity: Identity) -> tuple[Transaction, ErrorCode]:
        """Return the transactional id with this identity, and NONE; else `_NO_TRANSACTION` and the
        error."""
        found = self.transactions.get(transactional_id)
        if not transactional_id:
            error = ErrorCode.INVALID_REQUEST
        elif found is None or found.identity.producer_id != identity.producer_id:
            error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        elif found.identity.epoch != identity.epoch:
            error = ErrorCode.PRODUCER_FENCED
        else:
            return found, ErrorCode.NONE
        return _NO_TRANSACTION, error

    # ------------------------------------------------------------ the end

    def end(
        self,
        transactional_id: str,
        identity: Identity,
        now: float,
        *,
        commits: bool,
        ends_epoch: bool,
    ) -> tuple[ErrorCode, Identity]:
        """Commit or abort; return the error, or NONE and the identity of the next transaction.

        `ends_epoch`: whether the transaction ends its epoch, as with EndTxn from version 5 on.
        """
        found = self.transactions.get(transactional_id)
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST, NO_IDENTITY
        if found is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, NO_IDENTITY
        is_retry = ends_epoch and _is_retry(found, identity)
        if found.identity.producer_id != identity.producer_id and not is_retry:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, NO_IDENTITY
        is_prepared = found.state in _PREPARED
        if is_prepared and ends_epoch:  # before the epoch is looked at (KAFKA-18464)
            return ErrorCode.CONCURRENT_TRANSACTIONS, NO_IDENTITY
        if not _has_valid_epoch(found, identity, is_retry=is_retry, ends_epoch=ends_epoch):
            return ErrorCode.PRODUCER_FENCED, NO_IDENTITY
        if is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS, NO_IDENTITY
        error = _end_error(found.state, commits=commits, is_retry=is_retry, ends_epoch=ends_epoch)
        if error is None:
            self._end(found, now, commits=commits, ends_epoch=ends_epoch)
            error = ErrorCode.NONE
        return error, NO_IDENTITY if error else found.identity

    def _fence(self, found: Transaction, now: float) -> None:
        """Abort an open transaction, and fence its producer. From transaction version 2 on, that
        producer may still get the new epoch by InitProducerId, unless another producer gets it
        before (KIP-588)."""
        epoch = found.identity.epoch
        found.last_epoch = epoch if self._transaction_version() >= 2 else -1
        found.identity = attrs.evolve(found.identity, epoch=epoch + 1)
        self._end(found, now, commits=False, ends_epoch=False)

    def _end(self, found: Transaction, now: float, *, commits: bool, ends_epoch: bool) -> None:
        """Prepare the end, and write the markers at once or after `transaction_marker_delay`."""
        self._timers.cancel(("transaction", found.transactional_id))
        marker, following = found.identity, found.identity
        if ends_epoch:
            marker = following = attrs.evolve(marker, epoch=marker.epoch + 1)
            found.last_epoch = found.identity.epoch
            if found.identity.is_exhausted:
                found.previous_producer_id = marker.producer_id
                following = Identity(self.new_producer_id(), 0)
        prepared = TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT
        found.identity, found.state = following, prepared

        def complete(at: float) -> None:
            self._write_markers(found, marker, commits, at)
            found.partitions.clear()
            found.groups.clear()
            found.state = (
                TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT
            )
            self._expire_later(found, at)

        delay = self._settings.transaction_marker_delay
        if delay:
            self._timers.schedule(("markers", found.transactional_id), now + delay, complete)
        else:
            complete(now)

    def _expire_later(self, found: Transaction, now: float) -> None:
        """Forget the transactional id, unless it is used again in time."""
        transactional_id = found.transactional_id

        def expire(_: float) -> None:
            if found.state in (TransactionState.EMPTY, *_COMPLETED):
                del self.transactions[transactional_id]

        expires_at = now + self._settings.transactional_id_expiration
        self._timers.schedule(("transactional id", transactional_id), expires_at, expire)


_NO_TRANSACTION = Transaction("", NO_IDENTITY, 0)
"""Returned with an error, so that callers need not check for None."""


def _is_plausible(found: Transaction, expected: Identity) -> bool:
    """Whether a client may believe to have this identity: its producer id is the present one or was
    replaced when its epochs were used up, or the transactional id is new."""
    return (
        found.identity.epoch < 0
        or expected.producer_id == found.identity.producer_id
        or (expected.producer_id == found.previous_producer_id and expected.is_exhausted)
    )


def _is_retry(found: Transaction, identity: Identity) -> bool:
    """Whether an EndTxn repeats one whose response was lost: it has the identity before the present
    one."""
    present = found.identity
    if identity.producer_id != present.producer_id:
        is_exhausted = identity == Identity(found.previous_producer_id, _LAST_EPOCH)
        return is_exhausted and present.epoch == 0
    return identity.epoch + 1 == present.epoch


def _has_valid_epoch(
    found: Transaction, identity: Identity, *, is_retry: bool, ends_epoch: bool
) -> bool:
    is_present = identity.epoch == found.identity.epoch
    if not ends_epoch:
        return is_present
    if found.state in _COMPLETED:
        return is_retry or is_present
    return is_present


def _end_error(
    state: TransactionState, *, commits: bool, is_retry: bool, ends_epoch: bool
) -> ErrorCode | None:
    """Return the error code for an EndTxn that is not executed, or None if it must be executed.

    `ErrorCode.NONE` is for an EndTxn that was executed before.
    """
    invalid = ErrorCode.INVALID_TXN_STATE
    if state is TransactionState.ONGOING:
        return None
    if state is TransactionState.EMPTY:
        # From transaction version 2 on the first record begins a transaction, and may have failed:
        # the client aborts what did not begin here.
        return None if ends_epoch and not commits else invalid
    committed = state is TransactionState.COMPLETE_COMMIT
    if not ends_epoch or is_retry:
        return ErrorCode.NONE if commits == committed else invalid
    return invalid if commits else None  # as for EMPTY

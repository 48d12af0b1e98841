"""What the log of one partition knows of its producers: the last batches of each, its epoch, and
its open transaction.

Only batches with a producer id count. The state is rebuilt from the remaining batches after a
truncation, except for the coordinator epochs of markers, which are lost.
Source: the checks that Apache Kafka 4.3 makes before it appends (KIP-98, 360, 890).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import attrs

from kafkagroup.errors import ErrorCode
from kafkagroup.wire.messages import transaction_admin
from kafkagroup.wire.messages.fetch import AbortedTransaction
from kafkagroup.wire.records import ControlType, RecordBatch

__all__ = ["Check", "ProducerState", "ProducerStates"]

_KEPT_BATCHES = 5
"""How many batches of a producer are kept, to recognise a repeated one: as many as may be in
flight."""
_MAX_SEQUENCE = 2**31 - 1


@attrs.frozen
class Check:
    """Whether to append a batch: not with an `error`, nor with a `duplicate`."""

    error: ErrorCode = ErrorCode.NONE
    duplicate: AppendedBatch | None = None
    """The same batch, if it was appended before."""


@attrs.frozen
class AppendedBatch:
    """What is kept of an appended batch."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    max_timestamp: int
    """In milliseconds."""


@attrs.frozen
class ProducerState:
    """What a partition knows of a producer."""

    producer_id: int
    epoch: int
    last_sequence: int
    """The sequence number of the producer's last record in this epoch; -1 without one."""
    open_from: int | None
    """The first offset of the producer's open transaction; None without one."""


@attrs.define
class _Producer:
    """The state of a producer. The epoch -1 is that of a producer that has not written."""

    epoch: int = -1
    batches: deque[AppendedBatch] = attrs.field(factory=lambda: deque(maxlen=_KEPT_BATCHES))
    """The last batches of the producer in this epoch, without markers."""
    open_from: int | None = None
    """The first offset of the open transaction; None without one."""
    last_timestamp: int = -1
    """The largest timestamp in the last batch or marker, in milliseconds."""
    coordinator_epoch: int = -1
    """The coordinator epoch of the last marker; -1 without one."""
    seen_at: float = 0.0
    """When its last batch or marker was written, in seconds on the clock of the callers."""


class ProducerStates:
    """The producers of one partition, by producer id."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._aborted: list[tuple[AbortedTransaction, int]] = []
        """The aborted transactions, each with the offset of its marker."""
        self._verified: dict[int, tuple[int, int]] = {}
        """Producer id -> the epoch, and the lowest sequence number, of the batches that would have
        begun its transaction here since its last transactional batch or marker."""

    def rebuild(self, batches: Iterable[RecordBatch]) -> None:
        """Forget everything but what these batches tell, and the times at which their producers
        last wrote."""
        seen_at = {producer_id: known.seen_at for producer_id, known in self._producers.items()}
        self._producers.clear()
        self._aborted.clear()
        for batch in batches:
            self.on_append(batch)
        for producer_id, known in self._producers.items():
            # Else they would have expired, and the next batch of each would be out of order.
            known.seen_at = seen_at.get(producer_id, known.seen_at)

    # ------------------------------------------------------------ checks before an append

    def check(self, batch: RecordBatch, *, any_first_sequence: bool, begins_at_zero: bool) -> Check:
        """Return whether a client may append this batch.

        `any_first_sequence`: whether a producer without state may begin at any sequence number, as
        in brokers from 2.5 to 4.4 (KAFKA-15591). `begins_at_zero`: whether it must begin at 0 all
        the same, as in transactions of version 2.
        """
        known = self._producers.get(batch.producer_id, _Producer())
        first, last = batch.base_sequence, _last_sequence(batch)
        if batch.producer_epoch == known.epoch:
            for kept in known.batches:
                if (first, last) == (kept.first_sequence, kept.last_sequence):
                    return Check(duplicate=kept)
        if batch.producer_epoch < known.epoch:
            return Check(ErrorCode.INVALID_PRODUCER_EPOCH)
        must_begin = known.epoch != batch.producer_epoch or not known.batches
        expected = 0 if must_begin else _after(known.batches[-1].last_sequence)
        may_begin_anywhere = known.epoch < 0 and any_first_sequence and not begins_at_zero
        # What was refused before, with a lower number, is repeated, and must come first.
        _, lowest = self._verified.get(batch.producer_id, (-1, first))
        if first > lowest or (first != expected and not may_begin_anywhere):
            return Check(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        if known.open_from is not None and not batch.is_transactional:
            return Check(ErrorCode.INVALID_TXN_STATE)
        return Check()

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, ends_epoch: bool
    ) -> ErrorCode:
        """Return the error for a marker of this producer. `ends_epoch`: whether the marker is of
        transaction version 2: then its epoch must be above that of the open transaction's records
        (KIP-1228). Without an open transaction a marker of the same epoch is a repeated one, and
        accepted. As in Kafka, a marker cannot be encoded without a producer id and an epoch."""
        if -1 in (producer_id, epoch):
            return ErrorCode.UNKNOWN_SERVER_ERROR
        known = self._producers.get(producer_id, _Producer())
        is_open = known.open_from is not None
        if epoch < known.epoch or (ends_epoch and is_open and epoch == known.epoch):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if coordinator_epoch < known.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return ErrorCode.NONE

    # ------------------------------------------------------------ changes

    def note_verification(self, batch: RecordBatch) -> None:
        """Note that a batch must begin the producer's transaction here. Called before the
        transaction coordinator is asked."""
        new = batch.producer_epoch, batch.base_sequence
        old = self._verified.setdefault(batch.producer_id, new)
        if new[0] > old[0] or (new[0] == old[0] and new[1] < old[1]):
            self._verified[batch.producer_id] = new

    def note_marker(self, producer_id: int, coordinator_epoch: int, now: float) -> None:
        """Note the coordinator epoch of the producer's last marker, and when it was written. Called
        after `on_append`, which does not read the epoch from the marker, and knows no time."""
        known = self._producers[producer_id]
        known.coordinator_epoch, known.seen_at = coordinator_epoch, now

    def note_use(self, producer_id: int, now: float) -> None:
        """Note that a producer wrote now. Called after `on_append`, which knows no time."""
        self._producers[producer_id].seen_at = now

    def expire(self, before: float) -> None:
        """Forget producers that have not written since `before`, a time as of `note_use`, and have
        no open transaction."""
        for producer_id, known in tuple(self._producers.items()):
            if known.seen_at < before and known.open_from is None:
                del self._producers[producer_id]

    def on_append(self, batch: RecordBatch) -> None:
        """Note an appended batch."""
        if batch.producer_id < 0:
            return
        if batch.is_transactional:
            self._verified.pop(batch.producer_id, None)
        known = self._producers.setdefault(batch.producer_id, _Producer())
        if batch.producer_epoch != known.epoch:
            known.epoch = batch.producer_epoch
            known.batches.clear()
        known.last_timestamp = batch.max_timestamp
        if not batch.is_control:
            known.batches.append(
                AppendedBatch(
                    batch.base_sequence,
                    _last_sequence(batch),
                    batch.base_offset,
                    batch.max_timestamp,
                )
            )
            if batch.is_transactional and known.open_from is None:
                known.open_from = batch.base_offset
            return
        if known.open_from is not None and batch.control_type() is ControlType.ABORT:
            aborted = AbortedTransaction(
                producer_id=batch.producer_id, first_offset=known.open_from
            )
            self._aborted.append((aborted, batch.last_offset))
        known.open_from = None

    # ------------------------------------------------------------ reading

    def states(self) -> tuple[ProducerState, ...]:
        """Return the known producers, sorted by their id."""
        return tuple(
            ProducerState(
                producer_id,
                known.epoch,
                known.batches[-1].last_sequence if known.batches else -1,
                known.open_from,
            )
            for producer_id, known in sorted(self._producers.items())
        )

    def described(self) -> tuple[transaction_admin.ProducerState, ...]:
        """Return the known producers as DescribeProducers has them."""
        return tuple(
            transaction_admin.ProducerState(
                producer_id=state.producer_id,
                producer_epoch=state.epoch,
                last_sequence=state.last_sequence,
                last_timestamp=self._producers[state.producer_id].last_timestamp,
                coordinator_epoch=self._producers[state.producer_id].coordinator_epoch,
                current_txn_start_offset=-1 if state.open_from is None else state.open_from,
            )
            for state in self.states()
        )

    @property
    def open_from(self) -> int | None:
        """The first offset of the oldest open transaction; None without one."""
        opened = [p.open_from for p in self._producers.values() if p.open_from is not None]
        return min(opened, default=None)

    def has_newer_epoch(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer, or a marker of it, has written in a later epoch."""
        known = self._producers.get(producer_id)
        return known is not None and known.epoch > epoch

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer has an open transaction here, in this epoch."""
        known = self._producers.get(producer_id)
        return known is not None and known.open_from is not None and known.epoch == epoch

    def aborted(self, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions whose offsets, from the first record to the marker,
        overlap `[start, end)`."""
        return tuple(
            aborted
            for aborted, marker in self._aborted
            if marker >= start and aborted.first_offset < end
        )


def _last_sequence(batch: RecordBatch) -> int:
    last = batch.base_sequence + batch.last_offset - batch.base_offset
    return last if last <= _MAX_SEQUENCE else last - _MAX_SEQUENCE - 1


def _after(sequence: int) -> int:
    return 0 if sequence == _MAX_SEQUENCE else sequence + 1

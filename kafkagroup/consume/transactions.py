"""read_committed: which batches belong to aborted transactions. Pure.

The broker returns nothing above the last stable offset, so every transaction in a fetch response is
decided. The response lists the aborted ones, by producer id and first offset. Source: KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkagroup.errors import DecodeError
from kafkagroup.wire.messages.fetch import AbortedTransaction
from kafkagroup.wire.records import ControlType, RecordBatch

__all__ = ["AbortedTransactions", "mark_aborted"]


class AbortedTransactions:
    """The aborted transactions in one partition's fetch response, tracked from batch to batch."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._pending = sorted(aborted, key=lambda transaction: -transaction.first_offset)
        """The transactions that `mark` has not reached yet; the last element is the next one."""
        self._aborting: set[int] = set()
        """Ids of producers with an aborted transaction, from its first batch to its marker."""

    def mark(self, batch: RecordBatch) -> None:
        """Hide a batch that belongs to an aborted transaction. Call it for each batch, in order.

        A producer's batches are aborted from the first offset of its aborted transaction up to its
        abort marker.
        """
        pending, aborting = self._pending, self._aborting
        while pending and pending[-1].first_offset <= batch.last_offset:
            aborting.add(pending.pop().producer_id)
        if batch.is_control:
            if _ends_aborted(batch):
                aborting.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in aborting:
            batch.hide()


def mark_aborted(batches: Iterable[RecordBatch], aborted: Iterable[AbortedTransaction]) -> None:
    """Hide the batches that belong to aborted transactions. `batches`: those of one partition in a
    fetch response, in order.

    O(batches + aborted log aborted).
    """
    transactions = AbortedTransactions(aborted)
    for batch in batches:
        transactions.mark(batch)


def _ends_aborted(batch: RecordBatch) -> bool:
    try:
        return batch.control_type() is ControlType.ABORT
    except DecodeError:
        # A marker of a future type ends no transaction that is known here.
        return False

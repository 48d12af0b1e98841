"""read_committed: which batches belong to aborted transactions. Pure.

The broker hands out nothing above the last stable offset, so every transaction in an answer is
decided; it says which ones were aborted, by producer and first offset. Source: KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkagroup.errors import DecodeError
from kafkagroup.wire.messages.fetch import AbortedTransaction
from kafkagroup.wire.records import ControlType, RecordBatch

__all__ = ["AbortedTransactions", "mark_aborted"]


class AbortedTransactions:
    """The aborted transactions of one partition's answer, while its batches are gone over."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._pending = sorted(aborted, key=lambda transaction: -transaction.first_offset)
        self._aborting: set[int] = set()
        """Producers whose transaction is aborted, and whose abort marker has not come yet."""

    def mark(self, batch: RecordBatch) -> None:
        """Mark the next batch, in order, if no application may see it.

        A producer's batches are aborted from the first offset of its aborted transaction on, until
        its abort marker.
        """
        pending, aborting = self._pending, self._aborting
        while pending and pending[-1].first_offset <= batch.last_offset:
            aborting.add(pending.pop().producer_id)
        if batch.is_control:
            if _ends_aborted(batch):
                aborting.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in aborting:
            batch.hidden = True


def mark_aborted(batches: Iterable[RecordBatch], aborted: Iterable[AbortedTransaction]) -> None:
    """Mark the batches of one answer, in order, that no application may see.

    O(batches + aborted log aborted).
    """
    transactions = AbortedTransactions(aborted)
    for batch in batches:
        transactions.mark(batch)


def _ends_aborted(batch: RecordBatch) -> bool:
    try:
        return batch.control_type() is ControlType.ABORT
    except DecodeError:
        # A marker of a kind to come: it ends nothing that is known here.
        return False

"""The batches that read_committed hides."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest

from kafkagroup.consume.transactions import mark_aborted
from kafkagroup.wire.batch_writing import NewRecord, encode_batch, with_base_offset
from kafkagroup.wire.messages.fetch import AbortedTransaction
from kafkagroup.wire.records import RecordBatch, read_batches

ABORT, COMMIT, UNKNOWN = 0, 1, 7
RED, BLUE = 1, 2


def marker(producer_id: int, kind: int) -> bytes:
    record = NewRecord(struct.pack(">hh", 0, kind), b"")
    return encode_batch([record], producer_id=producer_id, transactional=True, control=True)


def damaged_marker(producer_id: int) -> bytes:
    record = NewRecord(b"\0", b"")
    return encode_batch([record], producer_id=producer_id, transactional=True, control=True)


def data(producer_id: int, count: int = 1, *, transactional: bool = True) -> bytes:
    records = [NewRecord(None, b"v")] * count
    return encode_batch(records, producer_id=producer_id, transactional=transactional)


def log(*batches: bytes, start: int = 0) -> list[RecordBatch]:
    """Return the batches in sequence, from offset `start` on."""
    made: list[RecordBatch] = []
    for raw in batches:
        base_offset = made[-1].next_offset if made else start
        moved = with_base_offset(raw, base_offset, leader_epoch=-1)
        (batch,) = read_batches(moved, topic="t", partition=0)
        made.append(batch)
    return made


def hidden(batches: list[RecordBatch], *aborted: tuple[int, int]) -> list[int]:
    """Return the base offsets of hidden batches; aborted transactions are (producer, first
    offset)."""
    mark_aborted(batches, transactions(aborted))
    return [batch.base_offset for batch in batches if batch.is_hidden]


def transactions(aborted: Iterable[tuple[int, int]]) -> list[AbortedTransaction]:
    return [AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted]


def test_nothing_was_aborted() -> None:
    assert hidden(log(data(RED), marker(RED, COMMIT), data(BLUE))) == []


def test_an_aborted_transaction_is_hidden_up_to_its_marker() -> None:
    batches = log(data(RED, 3), data(RED, 2), marker(RED, ABORT), data(RED), marker(RED, COMMIT))
    assert hidden(batches, (RED, 0)) == [0, 3]


def test_batches_before_the_first_aborted_offset_are_visible() -> None:
    batches = log(data(RED), marker(RED, COMMIT), data(RED), marker(RED, ABORT))
    assert hidden(batches, (RED, 2)) == [2]


def test_interleaved_producers_are_distinguished() -> None:
    batches = log(
        data(RED),  # 0, aborted
        data(BLUE),  # 1, committed
        data(-1, transactional=False),  # 2
        data(RED),  # 3, aborted
        marker(BLUE, COMMIT),  # 4
        data(BLUE),  # 5, aborted
        marker(RED, ABORT),  # 6
        data(RED),  # 7, committed
        data(BLUE),  # 8, aborted
        marker(BLUE, ABORT),  # 9
        marker(RED, COMMIT),  # 10
    )
    assert hidden(batches, (RED, 0), (BLUE, 5)) == [0, 3, 5, 8]


def test_the_order_of_aborted_transactions_does_not_matter() -> None:
    """Brokers sort by the end of the transactions, not by their start."""
    made = (data(RED), data(BLUE), marker(BLUE, ABORT), data(RED), marker(RED, ABORT))
    assert hidden(log(*made), (RED, 0), (BLUE, 1)) == [0, 1, 3]
    assert hidden(log(*made), (BLUE, 1), (RED, 0)) == [0, 1, 3]


def test_two_aborted_transactions_of_one_producer() -> None:
    batches = log(
        data(RED), marker(RED, ABORT), data(RED), marker(RED, COMMIT), data(RED), marker(RED, ABORT)
    )
    assert hidden(batches, (RED, 4), (RED, 0)) == [0, 4]


def test_a_transaction_that_began_before_the_response_is_hidden() -> None:
    batches = log(data(BLUE), data(RED), marker(RED, ABORT), start=100)
    assert hidden(batches, (RED, 3)) == [101]


def test_a_first_offset_inside_a_batch_hides_it() -> None:
    """A fetch from the middle of a batch returns the whole batch."""
    assert hidden(log(data(RED, 5), marker(RED, ABORT)), (RED, 2)) == [0]


def test_non_transactional_records_are_never_hidden() -> None:
    """An idempotent producer may reuse an id."""
    assert hidden(log(data(RED, transactional=False), marker(RED, ABORT)), (RED, 0)) == []


@pytest.mark.parametrize("raw", [marker(RED, UNKNOWN), damaged_marker(RED)])
def test_an_unknown_control_record_ends_no_transaction(raw: bytes) -> None:
    assert hidden(log(data(RED), raw, data(RED), marker(RED, ABORT), data(RED)), (RED, 0)) == [0, 2]


def test_control_batches_are_not_marked_as_hidden() -> None:
    batches = log(data(RED), marker(RED, ABORT))
    mark_aborted(batches, transactions([(RED, 0)]))
    assert [(b.is_hidden, b.is_control) for b in batches] == [(True, False), (False, True)]

"""The lag of a position, in offsets and in seconds."""

from __future__ import annotations

import pytest

from kafkagroup.consume.lag import age_of, first_timestamp, lag_of
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch, with_base_offset

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(("position", "end", "lag"), [(3, 5, 2), (5, 5, 0), (6, 5, 0), (0, 0, 0)])
def test_a_position_is_behind_the_end_or_at_it(position: int, end: int, lag: int) -> None:
    assert lag_of(position, end) == lag


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (1_000, 2.5),
        (1, 3.499),
        (0, 3.5),
        (9_000, 0.0),  # by a clock that is ahead of ours
        (-1, "the record at the committed offset has no timestamp"),
        (None, "no record was found at the committed offset"),
    ],
)
def test_the_age_of_a_record(timestamp: int | None, expected: float | str) -> None:
    assert age_of(timestamp, 3.5) == expected


@pytest.mark.parametrize(
    ("offset", "timestamp"), [(0, 1_000), (1, 2_000), (2, 4_000), (3, 4_000), (4, None)]
)
def test_the_first_record_at_or_after_an_offset(offset: int, timestamp: int | None) -> None:
    """A transaction marker is no record."""
    marker = encode_batch(
        [NewRecord(b"\0\0\0\1", b"", 3_000)], producer_id=7, transactional=True, control=True
    )
    batches = (
        encode_batch([NewRecord(None, b"x", 1_000), NewRecord(None, b"y", 2_000)])
        + with_base_offset(marker, 2, 0)
        + with_base_offset(encode_batch([NewRecord(None, b"z", 4_000)]), 3, 0)
    )
    assert first_timestamp(batches, TP, offset) == timestamp

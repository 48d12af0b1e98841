"""The partition log: offsets, slices, lookups, leader epochs."""

import pytest
from old_messages import message, stored

from kafkagroup.errors import CorruptRecordError
from kafkagroup.testing.embedded.log import PartitionLog, TimedOffset
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.records import read_batches


def batch(*timestamps: int) -> bytes:
    return encode_batch([NewRecord(None, b"v%d" % ts, ts) for ts in timestamps])


def values(data: bytes) -> list[tuple[int, object]]:
    found = read_batches(data, topic="t", partition=0)
    return [(r.offset, r.value) for b in found for r in b.records()]


@pytest.fixture
def log() -> PartitionLog:
    """Provide offsets 0-2 in one batch, 3 in another, 4-5 in a third; of leader epochs 0, 0 and
    2."""
    made = PartitionLog()
    made.append(batch(10, 30, 20))
    made.append(batch(40))
    made.begin_epoch(2)
    made.append(batch(50, 50))
    return made


def test_append_assigns_offsets_and_the_leader_epoch(log: PartitionLog) -> None:
    found = read_batches(log.read(0, 10**6), topic="t", partition=0)
    assert [(b.base_offset, b.last_offset, b.leader_epoch) for b in found] == [
        (0, 2, 0),
        (3, 3, 0),
        (4, 5, 2),
    ]
    assert (log.start, log.end) == (0, 6)


def test_append_accepts_exactly_one_valid_batch() -> None:
    log = PartitionLog()
    with pytest.raises(ValueError, match="expected one whole batch"):
        log.append(batch(1) + batch(2))
    for size in (0, 8, 16):
        with pytest.raises(ValueError, match=f"expected one whole batch, not 0 in {size} bytes"):
            log.append(batch(1)[:size])
    with pytest.raises(ValueError, match="expected one whole batch"):
        log.append(batch(1)[:-1])
    with pytest.raises(CorruptRecordError):
        log.append(batch(1)[:-1] + b"\xff")
    assert (log.end, log.read(0, 100)) == (0, b"")


def test_messages_of_old_formats_keep_their_offsets() -> None:
    log = PartitionLog()
    data = [stored(0, Codec.GZIP, 5, [b"a", b"b"]), stored(1, Codec.NONE, 9, [b"c", b"d"])]
    assert [log.append(piece) for piece in data] == [0, 7]
    assert (log.end, log.read(0, 10**6)) == (11, b"".join(data))
    assert log.append(batch(1)) == 11
    assert values(log.read(9, 10**6)) == [(9, b"c"), (10, b"d"), (11, b"v1")]
    assert log.at_time(1010) == TimedOffset(10, 1010, -1)
    for wrong in (message(1, 11), message(1, 12)[:-1], message(1, 12) + b"\0"):
        with pytest.raises(ValueError, match="expected whole messages from offset 12 on"):
            log.append(wrong)
    with pytest.raises(CorruptRecordError):
        log.append(message(1, 12)[:-1] + b"\xff")


def test_read_starts_at_the_batch_that_contains_the_offset(log: PartitionLog) -> None:
    assert values(log.read(1, 10**6))[0] == (0, b"v10")
    assert values(log.read(4, 10**6)) == [(4, b"v50"), (5, b"v50")]
    assert log.read(6, 10**6) == b""


def test_read_truncates_at_the_limit_but_returns_the_first_batch_whole(log: PartitionLog) -> None:
    whole = log.read(0, 10**6)
    first = len(batch(10, 30, 20))
    assert log.read(0, first + 7) == whole[: first + 7]
    assert log.read(0, 1) == whole[:first]
    assert log.read(0, 1, at_least_one=False) == b""


def test_offset_lookups_by_position_and_time(log: PartitionLog) -> None:
    assert log.earliest() == TimedOffset(0, -1, 0)
    assert log.latest() == TimedOffset(6, -1, 2)
    assert log.at_max_timestamp() == TimedOffset(4, 50, 2)
    assert log.at_time(0) == TimedOffset(0, 10, 0)
    assert log.at_time(15) == TimedOffset(1, 30, 0)
    assert log.at_time(31) == TimedOffset(3, 40, 0)
    assert log.at_time(51) == TimedOffset()
    assert PartitionLog().at_max_timestamp() == TimedOffset()


def test_a_deleted_record_does_not_have_the_largest_timestamp() -> None:
    """It was the largest of its batch, whose other records are still there."""
    log = PartitionLog()
    log.append(batch(50, 30, 40))
    log.append(batch(10))
    log.delete_before(1)
    assert log.at_max_timestamp() == TimedOffset(2, 40, 0)


def test_ends_of_leader_epochs(log: PartitionLog) -> None:
    assert [log.end_of_epoch(epoch) for epoch in (-1, 0, 1, 2, 3)] == [
        (-1, -1),
        (0, 4),
        (0, 4),
        (2, 6),
        (-1, -1),
    ]


def test_an_epoch_without_records_leaves_no_trace(log: PartitionLog) -> None:
    log.begin_epoch(3)
    log.begin_epoch(4)
    assert [log.end_of_epoch(epoch) for epoch in (2, 3, 4)] == [(2, 6), (2, 6), (4, 6)]


def test_records_below_a_deletion_stay_in_a_batch_that_is_still_needed(log: PartitionLog) -> None:
    log.delete_before(1)
    assert (log.start, log.at_time(0)) == (1, TimedOffset(1, 30, 0))
    assert values(log.read(1, 10**6))[0] == (0, b"v10")
    log.delete_before(4)
    assert (log.start, log.end, log.earliest()) == (4, 6, TimedOffset(4, -1, 2))
    with pytest.raises(ValueError, match="the log ends at 6"):
        log.delete_before(7)


def test_a_truncation_removes_whole_batches(log: PartitionLog) -> None:
    log.truncate(5)
    log.begin_epoch(3)
    assert (log.end, log.end_of_epoch(0), log.end_of_epoch(2)) == (4, (0, 4), (0, 4))
    log.append(batch(60))
    assert values(log.read(4, 10**6)) == [(4, b"v60")]
    log.delete_before(5)
    log.truncate(0)
    assert (log.start, log.end) == (5, 5)

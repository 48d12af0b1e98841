"""What is delivered, and the state of each record: delivered, in flight, processed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from struct import pack, pack_into
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.consume.commits import of_processed
from kafkagroup.consume.conversion import Conversion, Outcome
from kafkagroup.consume.delivery import Batch, Delivery
from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
from kafkagroup.errors import CorruptRecordError, DeserializationError, NoOffsetError
from kafkagroup.types import OffsetAndMetadata, Record, TimestampType, TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch, with_base_offset
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.records import RecordBatch, read_batches

T0, T1, T2 = (TopicPartition("t", p) for p in range(3))


def batch(base: int, *values: str, tp: TopicPartition = T0) -> RecordBatch:
    """Return a batch of records at consecutive offsets with epoch 7."""
    records = [NewRecord(None, value.encode()) for value in values]
    data = encode_batch(records, base_offset=base, leader_epoch=7)
    (made,) = read_batches(data, topic=tp.topic, partition=tp.partition)
    return made


def marker(base: int, tp: TopicPartition = T0) -> RecordBatch:
    """Return the control record of a committed transaction."""
    data = encode_batch([NewRecord(pack(">hh", 0, 1), b"")], control=True, transactional=True)
    (made,) = read_batches(with_base_offset(data, base, 7), topic=tp.topic, partition=tp.partition)
    return made


def compacted(base: int, last: int, *kept: str) -> RecordBatch:
    """Return a batch from `base` to `last` whose first records were removed by compaction."""
    data = bytearray(encode_batch([NewRecord(None, v.encode()) for v in kept or ("x",)]))
    if not kept:
        del data[61:]
        pack_into(">i", data, 8, 61 - 12)
        pack_into(">i", data, 57, 0)
    pack_into(">i", data, 23, last - base)
    pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    (made,) = read_batches(with_base_offset(bytes(data), base, 7), topic="t", partition=0)
    return made


def damaged(base: int, *values: str) -> RecordBatch:
    """Return a batch whose last record has a wrong length, under a valid CRC."""
    data = bytearray(encode_batch([NewRecord(None, v.encode()) for v in values]))
    data[-(len(values[-1]) + 2 + 5)] += 2
    pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    (made,) = read_batches(with_base_offset(bytes(data), base, 7), topic="t", partition=0)
    return made


def record(offset: int, value: object, tp: TopicPartition = T0) -> Record:
    if isinstance(value, str):
        value = value.encode()
    return Record(*tp, offset, -1, TimestampType.CREATE_TIME, None, value, (), 7)


class Took:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def owning(
    *partitions: TopicPartition, start: int = 0, delivery: Delivery | None = None
) -> Delivery:
    delivery = delivery or Delivery()
    for owned in delivery.own(partitions):
        owned.start_at(start)
        owned.acknowledged = OffsetAndMetadata(start)
    return delivery


def state(delivery: Delivery, tp: TopicPartition = T0) -> tuple[int, int, int]:
    """Return the position, the processed offset and the fetch offset."""
    owned = delivery.owned[tp]
    return owned.position, owned.processed, owned.fetch_offset


def to_commit(
    delivery: Delivery, among: Iterable[OwnedPartition] | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    partitions = delivery.owned.values() if among is None else among
    return {c.tp: c.offset for c in of_processed(delivery.owned, partitions)}


def is_in_flight(delivery: Delivery) -> bool:
    """Return whether a record of T0 is in flight."""
    return T0 in delivery.acknowledgement.in_flight_among([T0])


def ask(delivery: Delivery) -> Record | None:
    """Take a record as the consumer does: count the previous one as processed first."""
    delivery.acknowledgement.complete()
    return delivery.next_record()


def ask_batch(delivery: Delivery, most: int) -> Batch | None:
    delivery.acknowledgement.complete()
    return delivery.next_batch(most)


# ---------------------------------------------------------------- records


@pytest.mark.parametrize("end", ["pause", "seek", "revoke"])
def test_a_large_batch_is_not_inflated_after_its_partition_was_left(end: str) -> None:
    data = encode_batch([NewRecord(None, Random(1).randbytes(140_000))], codec=Codec.GZIP)
    delivery = owning(T0)
    delivery.add(delivery.owned[T0], [*read_batches(data, topic="t", partition=0)])
    assert ask(delivery) is None
    assert delivery.unprepared is not None
    match end:
        case "pause":
            delivery.pause(T0)
        case "seek":
            delivery.seek(T0, 0)
        case _:
            delivery.revoke([T0])
    assert delivery.unprepared is None


def test_a_record_counts_as_processed_when_the_next_is_requested() -> None:
    delivery = owning(T0)
    delivery.add(delivery.owned[T0], [batch(0, "a", "b")])
    assert state(delivery) == (0, 0, 2)
    assert ask(delivery) == record(0, "a")
    assert (state(delivery), is_in_flight(delivery), to_commit(delivery)) == (
        (1, 0, 2),
        True,
        {},
    )
    assert ask(delivery) == record(1, "b")
    assert (state(delivery), is_in_flight(delivery)) == ((2, 1, 2), True)
    assert to_commit(delivery) == {T0: OffsetAndMetadata(1, leader_epoch=7)}
    assert ask(delivery) is None
    assert (state(delivery), is_in_flight(delivery)) == ((2, 2, 2), False)
    assert to_commit(delivery) == {T0: OffsetAndMetadata(2, leader_epoch=7)}


def test_committed_offsets_are_not_committed_again() -> None:
    delivery = owning(T0, T1, start=5)
    assert to_commit(delivery) == {}
    delivery.owned[T1].processed = 6
    assert to_commit(delivery) == {T1: OffsetAndMetadata(6)}
    delivery.owned[T1].acknowledged = OffsetAndMetadata(6)
    assert to_commit(delivery) == {}


def test_a_commit_has_the_leader_epoch_of_the_last_processed_record() -> None:
    """It had that of the record in flight."""
    delivery = owning(T0)
    owned = delivery.owned[T0]
    later = encode_batch([NewRecord(None, b"b")], base_offset=1, leader_epoch=8)
    delivery.add(owned, [batch(0, "a"), *read_batches(later, topic="t", partition=0)])
    ask(delivery)
    ask(delivery)
    processed = {T0: OffsetAndMetadata(1, leader_epoch=7)}
    assert (to_commit(delivery), delivery.processed()) == (processed, processed)
    delivery.acknowledgement.complete()
    assert to_commit(delivery) == {T0: OffsetAndMetadata(2, leader_epoch=8)}


def test_an_unknown_position_is_not_committed() -> None:
    delivery = Delivery()
    delivery.own([T0])
    assert state(delivery) == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert to_commit(delivery) == {}
    assert OwnedPartition(T0, acknowledged=OffsetAndMetadata(5)).to_commit() is None


def test_an_offset_found_by_the_reset_policy_is_committed() -> None:
    """A group that has read nothing keeps its position when records expire."""
    delivery = Delivery()
    (owned,) = delivery.own([T0])
    owned.start_at(40)
    assert to_commit(delivery) == {T0: OffsetAndMetadata(40)}


def test_records_below_the_position_are_skipped() -> None:
    """A fetch into the middle of a batch returns the whole batch."""
    delivery = owning(T0, start=2)
    delivery.add(delivery.owned[T0], [batch(0, "a", "b", "c")])
    assert [ask(delivery), ask(delivery)] == [record(2, "c"), None]


def test_batches_fetched_twice_are_queued_once() -> None:
    delivery = owning(T0)
    first = batch(0, "a", "b")
    delivery.add(delivery.owned[T0], [first])
    second = batch(2, "c")
    delivery.add(delivery.owned[T0], [first, second])
    assert delivery.buffered_bytes == first.size + second.size
    assert [ask(delivery) for _ in range(4)] == [
        record(0, "a"),
        record(1, "b"),
        record(2, "c"),
        None,
    ]


def test_partitions_take_turns_by_batches() -> None:
    """No partition starves behind another that always has records."""
    took = Took()
    delivery = owning(T0, T1)
    delivery.on_room = took
    delivery.add(delivery.owned[T0], [batch(0, "a", "b"), batch(2, "c")])
    delivery.add(delivery.owned[T1], [batch(0, "x", tp=T1), batch(1, "y", tp=T1)])
    assert took.times == 0
    assert ask(delivery) == record(0, "a")
    assert took.times == 1
    delivery.add(delivery.owned[T0], [batch(3, "d")])
    assert [ask(delivery) for _ in range(6)] == [
        record(1, "b"),
        record(0, "x", T1),
        record(2, "c"),
        record(1, "y", T1),
        record(3, "d"),
        None,
    ]
    assert took.times == 5


def test_buffered_bytes_count_undelivered_records() -> None:
    delivery = owning(T0, T1)
    first, second = batch(0, "a"), batch(0, "long" * 9, tp=T1)
    delivery.add(delivery.owned[T0], [first])
    delivery.add(delivery.owned[T1], [second])
    assert delivery.buffered_bytes == first.size + second.size
    ask(delivery)
    assert delivery.buffered_bytes == second.size
    delivery.revoke([T1])
    assert delivery.buffered_bytes == 0


@pytest.mark.parametrize(
    "shrink",
    [
        lambda delivery: delivery.revoke([T0]),
        lambda delivery: delivery.release([T0]),
        lambda delivery: delivery.seek(T0, 5),
        lambda delivery: delivery.pause(T0),
        lambda delivery: delivery.next_record(),
    ],
    ids=["revoke", "release", "seek", "pause", "next_record"],
)
def test_on_room_is_called_when_the_buffers_shrink(shrink: Callable[[Delivery], object]) -> None:
    """Otherwise the fetcher would not notice the free space."""
    took = Took()
    delivery = owning(T0, T1)
    delivery.on_room = took
    delivery.add(delivery.owned[T0], [batch(0, "a")])
    assert delivery.unread_bytes > 0
    shrink(delivery)
    assert (delivery.unread_bytes, took.times) == (0, 1)


# ---------------------------------------------------------------- gaps


def test_s8_control_records_and_compaction_advance_position_and_commit() -> None:
    """Otherwise a group that has read everything would always show a lag of one."""
    delivery = owning(T0)
    delivery.add(
        delivery.owned[T0],
        [batch(0, "a"), marker(1), compacted(2, 5), compacted(6, 9, "b"), marker(10)],
    )
    assert ask(delivery) == record(0, "a")
    assert ask(delivery) == record(6, "b")
    assert state(delivery) == (7, 6, 11)
    assert ask(delivery) is None
    assert state(delivery) == (11, 11, 11)
    assert to_commit(delivery) == {T0: OffsetAndMetadata(11, leader_epoch=7)}


def test_a_batch_of_control_records_alone_advances_the_position() -> None:
    delivery = owning(T0, start=4)
    delivery.add(delivery.owned[T0], [marker(4)])
    assert ask(delivery) is None
    assert state(delivery) == (5, 5, 5)


def test_a_gap_does_not_mark_the_record_in_flight_as_processed() -> None:
    """`getmany` requests more while the application has no records yet."""
    delivery = owning(T0)
    delivery.add(delivery.owned[T0], [batch(0, "a"), marker(1)])
    assert delivery.next_record() == record(0, "a")
    assert delivery.next_batch(10) is None
    assert state(delivery) == (2, 0, 2)
    delivery.acknowledgement.complete()
    assert state(delivery) == (2, 2, 2)


# ---------------------------------------------------------------- batches


def test_a_batch_is_processed_as_a_whole() -> None:
    delivery = owning(T0)
    delivery.add(delivery.owned[T0], [batch(0, "a", "b", "c")])
    first = ask_batch(delivery, 2)
    assert first == Batch("t", 0, (record(0, "a"), record(1, "b")))
    assert (len(first), list(first)) == (2, [record(0, "a"), record(1, "b")])
    assert state(delivery) == (2, 0, 3)
    assert ask_batch(delivery, 2) == Batch("t", 0, (record(2, "c"),))
    assert state(delivery) == (3, 2, 3)
    assert ask_batch(delivery, 2) is None
    assert state(delivery) == (3, 3, 3)


@pytest.mark.parametrize("undecoded", [False, True])
def test_a_batch_has_its_records_however_late_they_are_decoded(undecoded: bool) -> None:
    """Compiled, all batches without deserializers are decoded during iteration."""
    delivery = owning(T0)
    delivery.add(delivery.owned[T0], [batch(0, "a", "b", "c")])
    first = delivery.next_batch(2, undecoded=undecoded)
    assert first is not None
    assert (first.topic, first.partition, len(first)) == ("t", 0, 2)
    columns = first.to_arrow().to_pydict()
    assert (columns["offset"], columns["value"]) == ([0, 1], [b"a", b"b"])
    records = [record(0, "a"), record(1, "b")]
    assert (list(first), list(first), first.records) == (records, records, tuple(records))
    delivery.acknowledgement.complete()
    assert state(delivery) == (2, 2, 3)
    rest = delivery.next_batch(2, undecoded=undecoded)
    assert rest == Batch("t", 0, (record(2, "c"),))
    assert delivery.next_batch(2, undecoded=undecoded) is None
    assert state(delivery) == (3, 2, 3)


def test_a_deserializer_is_called_for_a_batch_that_may_be_decoded_late() -> None:
    delivery = owning(T0, delivery=Delivery(picky()))
    delivery.add(delivery.owned[T0], [batch(0, "a")])
    assert delivery.next_batch(9, undecoded=True) == Batch("t", 0, (converted(0, "a"),))


def test_a_corrupt_batch_that_is_decoded_late_is_raised_once() -> None:
    """Its length is checked before it is delivered."""
    delivery = owning(T0)
    delivery.add(delivery.owned[T0], [damaged(0, "a")])
    with pytest.raises(CorruptRecordError):
        delivery.next_batch(9, undecoded=True)
    ((owned, error),) = delivery.awaiting_seek()
    assert (owned.tp, type(error), state(delivery)) == (T0, CorruptRecordError, (0, 0, 0))
    assert delivery.next_batch(9, undecoded=True) is None


def test_one_call_delivers_no_more_records_than_it_may() -> None:
    delivery = owning(T0, T1)
    delivery.add(delivery.owned[T0], [batch(0, "a", "b")])
    delivery.add(delivery.owned[T1], [batch(0, "x", tp=T1)])
    assert [len(part) for part in delivery.next_batches(2)] == [2]
    assert [len(part) for part in delivery.next_batches(2)] == [1]
    assert delivery.next_batches(2) == []


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_large_batch_is_delivered_once_it_is_prepared(one_by_one: bool) -> None:
    value = Random(1).randbytes(140_000)
    data = encode_batch([NewRecord(None, value)], codec=Codec.GZIP, leader_epoch=7)
    delivery = owning(T0)
    delivery.add(delivery.owned[T0], [*read_batches(data, topic="t", partition=0)])

    def take() -> object:
        return delivery.next_record() if one_by_one else delivery.next_batch(9)

    assert take() is None
    heavy = delivery.unprepared
    assert heavy is not None
    heavy.prepare()
    (other,) = read_batches(data, topic="t", partition=0)
    delivery.note_prepared(other.records(0))  # of a batch that was left meanwhile
    assert delivery.unprepared is heavy
    delivery.note_prepared(heavy)
    expected = Record(*T0, 0, -1, TimestampType.CREATE_TIME, None, value, (), 7)
    assert take() == (expected if one_by_one else Batch("t", 0, (expected,)))


def test_several_batches_in_flight_add_up() -> None:
    delivery = owning(T0, T1)
    delivery.add(delivery.owned[T0], [batch(0, "a")])
    delivery.add(delivery.owned[T1], [batch(0, "x", tp=T1)])
    assert delivery.next_batch(9) == Batch("t", 0, (record(0, "a"),))
    assert delivery.next_batch(9) == Batch("t", 1, (record(0, "x", T1),))
    assert to_commit(delivery) == {}
    delivery.acknowledgement.complete()
    assert to_commit(delivery) == {
        T0: OffsetAndMetadata(1, leader_epoch=7),
        T1: OffsetAndMetadata(1, leader_epoch=7),
    }


# ---------------------------------------------------------------- ownership


def test_partitions_are_created_in_the_topics_that_the_coordinator_assigned() -> None:
    delivery = owning(T0)
    ids = {"t": UUID(int=1)}
    (created,) = delivery.create([T0, T1], ids)
    assert (created.tp, created.topic_id, created.assigned_topic_id) == (T1, ids["t"], ids["t"])
    assert list(delivery.owned) == [T0]


def test_offsets_to_commit_are_of_present_assignments_among_those_asked_for() -> None:
    delivery = owning(T0, T1)
    for tp in (T0, T1):
        delivery.add(delivery.owned[tp], [batch(0, "a", tp=tp)])
    before = delivery.owned[T0]
    delivery.next_batches(9)
    delivery.acknowledgement.complete()
    assert to_commit(delivery, [delivery.owned[T1]]).keys() == {T1}
    delivery.release([T0])
    owning(T0, delivery=delivery)
    assert to_commit(delivery, [before]) == {}
    assert to_commit(delivery).keys() == {T1}


def test_own_creates_only_partitions_that_are_not_owned() -> None:
    delivery = owning(T0)
    before = delivery.owned[T0]
    fresh = delivery.own([T0, T1])
    assert [owned.tp for owned in fresh] == [T1]
    assert delivery.owned == {T0: before, T1: fresh[0]}


def test_s9_nothing_is_delivered_from_a_revoked_partition() -> None:
    """Neither the rest of the current batch nor fetched records are delivered."""
    delivery = owning(T0, T1)
    delivery.add(delivery.owned[T0], [batch(0, "a", "b"), batch(2, "c")])
    delivery.add(delivery.owned[T1], [batch(0, "x", tp=T1)])
    assert ask(delivery) == record(0, "a")
    delivery.revoke([T0, T2])
    assert state(delivery) == (1, 0, 1)
    delivery.add(delivery.owned[T0], [batch(1, "b")])
    assert [ask(delivery), ask(delivery)] == [record(0, "x", T1), None]
    # The record in flight was finished, and is part of the last commit.
    assert state(delivery) == (1, 1, 1)
    assert to_commit(delivery)[T0] == OffsetAndMetadata(1, leader_epoch=7)


def test_released_records_are_not_in_flight() -> None:
    delivery = owning(T0)
    delivery.add(delivery.owned[T0], [batch(0, "a", "b")])
    owned = delivery.owned[T0]
    ask(delivery)
    delivery.release([T0, T1])
    assert (delivery.owned, is_in_flight(delivery), to_commit(delivery)) == ({}, False, {})
    assert ask(delivery) is None
    assert (owned.revoked, owned.processed) == (True, 0)


def test_a_late_fetch_of_a_previous_assignment_is_dropped() -> None:
    """The response belongs to the old assignment: its offsets may be below the new position."""
    delivery = owning(T0)
    old = delivery.owned[T0]
    delivery.revoke([T0])
    delivery.release([T0])
    owning(T0, start=5, delivery=delivery)
    delivery.add(old, [batch(0, "a")])
    assert ask(delivery) is None
    assert (state(delivery), delivery.buffered_bytes) == ((5, 5, 5), 0)


def test_seek_drops_fetched_records_and_those_in_flight() -> None:
    delivery = owning(T0)
    delivery.add(delivery.owned[T0], [batch(0, "a", "b"), batch(2, "c")])
    assert ask(delivery) == record(0, "a")
    delivery.seek(T0, 0)
    assert (state(delivery), is_in_flight(delivery)) == ((0, 0, 0), False)
    assert ask(delivery) is None
    delivery.add(delivery.owned[T0], [batch(0, "a", "b")])
    assert ask(delivery) == record(0, "a")


@pytest.mark.parametrize(
    ("offset", "at_once", "later"), [(1, (1, 0, 1), 1), (9, (9, 0, 9), 9), (0, (0, 0, 0), 0)]
)
def test_relocating_keeps_records_in_flight_unprocessed(
    offset: int, at_once: tuple[int, int, int], later: int
) -> None:
    """They were committed as processed: a crash then lost them."""
    delivery = owning(T0)
    delivery.add(delivery.owned[T0], [batch(0, "a", "b", "c")])
    assert ask_batch(delivery, 2) == Batch("t", 0, (record(0, "a"), record(1, "b")))
    delivery.relocate(T0, offset)
    assert (state(delivery), is_in_flight(delivery)) == (at_once, True)
    assert ask(delivery) is None
    delivery.acknowledgement.complete()
    assert delivery.owned[T0].processed == later


def test_relocating_with_nothing_in_flight_moves_the_processed_offset() -> None:
    delivery = owning(T0)
    delivery.add(delivery.owned[T0], [batch(0, "a", "b", "c")])
    assert ask(delivery) == record(0, "a")
    delivery.acknowledgement.complete()
    delivery.relocate(T0, 9)
    assert (state(delivery), is_in_flight(delivery)) == ((9, 9, 9), False)


def test_seek_keeps_records_of_other_partitions_in_flight() -> None:
    delivery = owning(T0, T1)
    delivery.add(delivery.owned[T1], [batch(0, "x", "y", tp=T1)])
    assert ask(delivery) == record(0, "x", T1)
    delivery.seek(T0, 9)
    assert delivery.acknowledgement.in_flight_among([T0, T1]) == [T1]
    assert not is_in_flight(delivery)
    assert ask(delivery) == record(1, "y", T1)
    assert state(delivery, T1) == (2, 1, 2)


def test_a_seek_clears_the_error_of_its_partition() -> None:
    owned = OwnedPartition(
        T0, failure=NoOffsetError((T0,)), needs_reset=True, failure_count=3, retry_at=9.0
    )
    owned.leader_epoch = 4
    owned.start_at(7, leader_epoch=5)
    assert (
        owned.position,
        owned.processed,
        owned.fetch_offset,
        owned.failed,
        owned.needs_reset,
        owned.failure_count,
        owned.retry_at,
        owned.leader_epoch,
    ) == (7, 7, 7, False, False, 0, 0.0, 5)


# ---------------------------------------------------------------- what a commit would be of


def test_delivered_records_are_uncommitted_in_flight_and_processed() -> None:
    delivery = owning(T0)
    owned = delivery.owned[T0]
    delivery.add(owned, [batch(0, "a", "b")])
    assert not owned.is_uncommitted
    ask(delivery)
    assert owned.is_uncommitted
    owned.acknowledge(OffsetAndMetadata(0), 0.0)
    assert owned.is_uncommitted
    owned.acknowledge(OffsetAndMetadata(1), 0.0)
    assert not owned.is_uncommitted
    ask(delivery)
    delivery.acknowledgement.complete()
    assert owned.is_uncommitted


def test_a_starting_position_needs_no_commit_and_a_seek_does() -> None:
    delivery = Delivery()
    (owned,) = delivery.own([T0])
    assert not owned.is_uncommitted
    delivery.seek(T0, 3)
    assert not owned.is_uncommitted
    delivery.relocate(T0, 5)
    assert not owned.is_uncommitted
    delivery.seek(T0, 7)
    assert owned.is_uncommitted
    delivery.relocate(T0, 9)
    assert owned.is_uncommitted
    delivery.seek(T0, 5)
    assert not owned.is_uncommitted


def test_a_seek_past_a_bad_record_leaves_the_records_before_it_uncommitted() -> None:
    delivery = owning(T0)
    owned = delivery.owned[T0]
    delivery.add(owned, [batch(0, "a", "b")])
    ask(delivery)
    delivery.seek(T0, 2)
    assert owned.is_uncommitted
    owned.acknowledge(OffsetAndMetadata(2), 0.0)
    assert not owned.is_uncommitted


def test_control_records_and_compaction_need_no_commit_by_the_application() -> None:
    """If lost after a commit of all delivered records, they would be reported needlessly."""
    delivery = owning(T0)
    owned = delivery.owned[T0]
    delivery.add(owned, [batch(0, "a"), marker(1), compacted(2, 5), batch(6, "b"), marker(7)])
    ask(delivery)
    delivery.acknowledgement.complete()
    owned.acknowledge(OffsetAndMetadata(1), 0.0)
    assert not owned.is_uncommitted
    assert ask(delivery) == record(6, "b")
    assert ask(delivery) is None
    assert (owned.position, owned.is_uncommitted) == (8, True)
    owned.acknowledge(OffsetAndMetadata(8), 0.0)
    delivery.add(owned, [marker(8)])
    assert ask(delivery) is None
    assert (owned.position, owned.is_uncommitted) == (9, False)


# ---------------------------------------------------------------- errors


def test_a_corrupt_batch_raises_once_and_skips_nothing() -> None:
    delivery = owning(T0, T1)
    delivery.add(delivery.owned[T0], [damaged(0, "a", "b"), batch(2, "c")])
    delivery.add(delivery.owned[T1], [batch(0, "x", tp=T1)])
    assert ask(delivery) == record(0, "a")
    with pytest.raises(CorruptRecordError, match=r"^t/0 at offset 0: "):
        ask(delivery)
    # It is not fetched again until the application seeks; the other partition is still read.
    assert state(delivery) == (1, 1, 1)
    assert delivery.owned[T0].failed
    assert [ask(delivery), ask(delivery)] == [record(0, "x", T1), None]
    assert state(delivery) == (1, 1, 1)
    delivery.seek(T0, 2)
    assert not delivery.owned[T0].failed
    delivery.add(delivery.owned[T0], [batch(2, "c")])
    assert ask(delivery) == record(2, "c")


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_corrupt_record_is_raised_after_the_records_before_it(one_by_one: bool) -> None:
    delivery = owning(T0)
    delivery.add(delivery.owned[T0], [damaged(0, "a", "b")])
    assert ask_batch(delivery, 10) == Batch("t", 0, (record(0, "a"),))
    with pytest.raises(CorruptRecordError):
        ask(delivery) if one_by_one else ask_batch(delivery, 10)
    assert state(delivery) == (1, 1, 1)
    assert ask_batch(delivery, 10) is None


def picky(on_error: Any = "raise") -> Conversion:
    """A deserializer that fails on "bad"."""

    def decode(value: bytes) -> str:
        if value == b"bad":
            raise ValueError("bad")
        return value.decode()

    return Conversion(None, decode, on_error)


def converted(offset: int, value: str) -> Record:
    return record(offset, b"")._replace(value=value)


def test_a_failing_deserializer_is_raised_until_the_application_seeks() -> None:
    delivery = owning(T0, delivery=Delivery(picky()))
    delivery.add(delivery.owned[T0], [batch(0, "a", "bad", "c")])
    assert ask(delivery) == converted(0, "a")
    for _ in range(3):
        with pytest.raises(DeserializationError) as caught:
            ask(delivery)
        assert caught.value.record == record(1, "bad")
        assert state(delivery) == (1, 1, 3)
    delivery.seek(T0, 2)
    delivery.add(delivery.owned[T0], [batch(0, "a", "bad", "c")])
    assert ask(delivery) == converted(2, "c")


def test_a_batch_ends_before_a_record_whose_deserializer_fails() -> None:
    delivery = owning(T0, delivery=Delivery(picky()))
    delivery.add(delivery.owned[T0], [batch(0, "a", "b", "bad", "c")])
    assert ask_batch(delivery, 10) == Batch("t", 0, (converted(0, "a"), converted(1, "b")))
    for _ in range(3):
        with pytest.raises(DeserializationError) as caught:
            ask_batch(delivery, 10)
        assert caught.value.record.offset == 2
        assert state(delivery) == (2, 2, 4)


@pytest.mark.parametrize("bad", [damaged(0, "a", "b"), batch(0, "a", "bad")], ids=["torn", "bad"])
def test_an_error_after_a_batch_is_dropped_with_its_partition(bad: RecordBatch) -> None:
    """It was raised after a seek away from it, or for a revoked partition."""
    for let_go in (
        lambda d: d.seek(T0, 5),
        lambda d: d.revoke([T0]),
        lambda d: d.release([T0]),
    ):
        delivery = owning(T0, T1, delivery=Delivery(picky()))
        delivery.add(delivery.owned[T0], [bad])
        assert ask_batch(delivery, 10) == Batch("t", 0, (converted(0, "a"),))
        let_go(delivery)
        assert ask_batch(delivery, 10) is None
    # The error of another partition is not this one's.
    delivery = owning(T0, T1, delivery=Delivery(picky()))
    delivery.add(delivery.owned[T0], [bad])
    ask_batch(delivery, 10)
    delivery.revoke([T1])
    with pytest.raises((CorruptRecordError, DeserializationError)):
        ask_batch(delivery, 10)


# ---------------------------------------------------------------- coroutine deserializers


async def decode(value: bytes) -> str:
    return value.decode()


def suspending(*batches: RecordBatch) -> Delivery:
    """Provide a coroutine deserializer, and the fetched records of t/0."""
    delivery = owning(T0, delivery=Delivery(Conversion(None, decode)))
    delivery.add(delivery.owned[T0], list(batches))
    return delivery


def awaited(delivery: Delivery) -> Record:
    """Convert the next record to await, as the reader does."""
    raw = delivery.unconverted
    assert raw is not None
    assert isinstance(raw.value, bytes)
    delivery.on_converted(raw, raw._replace(value=raw.value.decode()))
    return raw


def test_a_record_is_delivered_after_its_conversion() -> None:
    delivery = suspending(batch(0, "a", "b"))
    assert ask(delivery) is None
    assert state(delivery) == (0, 0, 2)
    assert not is_in_flight(delivery)
    awaited(delivery)
    assert state(delivery) == (0, 0, 2)
    assert ask(delivery) == converted(0, "a")
    assert (state(delivery), is_in_flight(delivery)) == ((1, 0, 2), True)
    assert ask(delivery) is None
    assert state(delivery) == (1, 1, 2)


def test_a_cancelled_conversion_is_awaited_again() -> None:
    delivery = suspending(batch(0, "a"))
    for _ in range(3):
        assert ask(delivery) is None
        assert delivery.unconverted == record(0, "a")
    awaited(delivery)
    assert [ask(delivery), ask(delivery)] == [converted(0, "a"), None]
    assert delivery.unconverted is None


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.revoke([T0]),
        lambda d: d.release([T0]),
        lambda d: d.seek(T0, 0),
        lambda d: d.relocate(T0, 0),
        lambda d: d.pause(T0),
    ],
    ids=["revoke", "release", "seek", "relocate", "pause"],
)
@pytest.mark.parametrize("fails", [False, True], ids=["converted", "refused"])
@pytest.mark.parametrize("batches", [False, True], ids=["records", "batches"])
def test_records_converted_after_a_loss_are_dropped(
    change: Callable[[Delivery], None], fails: bool, batches: bool
) -> None:
    """They belong to a partition that was revoked, paused or sought."""
    delivery = suspending(batch(0, "a", "b"))
    take = (lambda: ask_batch(delivery, 10)) if batches else (lambda: ask(delivery))
    assert take() is None
    if batches:
        awaited(delivery)
        assert take() is None
    raw = delivery.unconverted
    assert raw is not None
    change(delivery)
    assert delivery.unconverted is None
    if fails:
        delivery.on_conversion_failed(raw, DeserializationError(raw, "value"))
    else:
        delivery.on_converted(raw, raw)
    assert take() is None
    assert delivery.unconverted is None


def test_a_record_being_converted_is_repeated_after_a_pause() -> None:
    delivery = suspending(batch(0, "a", "b"))
    ask(delivery)
    awaited(delivery)
    delivery.pause(T0)
    assert ask(delivery) is None
    delivery.resume(T0)
    assert ask(delivery) is None
    assert delivery.unconverted == record(0, "a")


def test_a_batch_waits_for_all_of_its_records_in_order() -> None:
    delivery = suspending(batch(0, "a", "b", "c"), batch(3, "d"))
    for offset, value in enumerate("ab"):
        assert ask_batch(delivery, 2) is None
        assert awaited(delivery) == record(offset, value)
        assert state(delivery) == (0, 0, 4)
    assert ask_batch(delivery, 2) == Batch("t", 0, (converted(0, "a"), converted(1, "b")))
    assert state(delivery) == (2, 0, 4)
    # No longer than the broker's batch.
    assert ask_batch(delivery, 2) is None
    awaited(delivery)
    assert ask_batch(delivery, 2) == Batch("t", 0, (converted(2, "c"),))
    assert state(delivery) == (3, 2, 4)


def test_records_converted_for_a_batch_can_be_delivered_one_by_one() -> None:
    delivery = suspending(batch(0, "a", "b", "c"))
    for _ in range(2):
        ask_batch(delivery, 3)
        awaited(delivery)
    assert [ask(delivery), ask(delivery), ask(delivery)] == [
        converted(0, "a"),
        converted(1, "b"),
        None,
    ]
    assert delivery.unconverted == record(2, "c")


def test_a_batch_ends_before_a_record_whose_awaited_deserializer_fails() -> None:
    delivery = suspending(batch(0, "a", "b"))
    ask_batch(delivery, 10)
    awaited(delivery)
    for n in range(3):
        assert ask_batch(delivery, 10) is None
        raw = delivery.unconverted
        assert raw == record(1, "b")
        delivery.on_conversion_failed(raw, DeserializationError(raw, "value"))
        if n == 0:
            assert ask_batch(delivery, 10) == Batch("t", 0, (converted(0, "a"),))
        with pytest.raises(DeserializationError):
            ask_batch(delivery, 10)
        assert state(delivery) == (1, 1, 2)


def test_a_failed_partition_is_stopped_until_the_application_seeks() -> None:
    """Its error was raised for the next partition."""
    rested: list[None] = []
    conversion = Conversion(None, decode)
    delivery = owning(T0, T1, delivery=Delivery(conversion))
    delivery.on_awaiting_seek = lambda: rested.append(None)
    for tp in (T0, T1):
        delivery.add(delivery.owned[tp], [batch(0, "a")])
    assert delivery.awaiting_seek() == []
    for _ in range(2):
        assert ask(delivery) is None
        raw = delivery.unconverted
        assert raw is not None
        error = DeserializationError(raw, "value")
        delivery.on_conversion_failed(raw, error)
        with pytest.raises(DeserializationError):
            ask(delivery)
        assert delivery.awaiting_seek() == [(delivery.owned[T0], error)]
    assert len(rested) == 1
    delivery.seek(T0, 5)
    assert ask(delivery) is None
    assert delivery.unconverted is not None
    assert delivery.awaiting_seek() == []


def test_a_batch_ends_before_a_damaged_record() -> None:
    delivery = suspending(damaged(0, "a", "b"), batch(2, "c"))
    assert ask_batch(delivery, 10) is None
    awaited(delivery)
    assert ask_batch(delivery, 10) == Batch("t", 0, (converted(0, "a"),))
    with pytest.raises(CorruptRecordError):
        ask_batch(delivery, 10)
    assert state(delivery) == (1, 1, 1)
    assert delivery.owned[T0].failed
    assert ask_batch(delivery, 10) is None


# ---------------------------------------------------------------- records that are skipped


def skipping(*batches: RecordBatch) -> Delivery:
    delivery = owning(T0, delivery=Delivery(picky("skip")))
    delivery.add(delivery.owned[T0], list(batches))
    return delivery


def test_a_skipped_record_advances_position_and_commit() -> None:
    """Otherwise the lag would stay above zero if the last record is bad."""
    delivery = skipping(batch(0, "a", "bad", "c", "bad"))
    assert [ask(delivery), ask(delivery)] == [converted(0, "a"), converted(2, "c")]
    assert state(delivery) == (3, 2, 4)
    assert ask(delivery) is None
    assert state(delivery) == (4, 4, 4)


def test_a_skipped_record_does_not_mark_the_records_before_it_as_processed() -> None:
    """S4: the records before it are still in flight."""
    delivery = skipping(batch(0, "a", "bad", "bad"))
    assert ask_batch(delivery, 10) == Batch("t", 0, (converted(0, "a"),))
    assert state(delivery) == (3, 0, 3)
    assert ask_batch(delivery, 10) is None
    assert state(delivery) == (3, 3, 3)


def test_a_batch_with_all_records_skipped_is_not_delivered() -> None:
    delivery = skipping(batch(0, "bad", "bad"), batch(2, "c"))
    assert ask_batch(delivery, 10) == Batch("t", 0, (converted(2, "c"),))
    assert state(delivery) == (3, 2, 3)


def test_records_skipped_by_a_coroutine_deserializer_are_not_delivered() -> None:
    delivery = suspending(batch(0, "a", "b", "c"))
    for n in range(3):
        assert ask_batch(delivery, 3) is None
        raw = delivery.unconverted
        assert raw is not None
        delivery.on_converted(raw, Outcome.SKIPPED if n < 2 else raw)
    assert ask_batch(delivery, 3) == Batch("t", 0, (record(2, "c"),))
    assert state(delivery) == (3, 2, 3)


def test_the_position_follows_the_original_record_and_not_its_replacement() -> None:
    delivery = owning(T0, delivery=Delivery(picky(lambda raw, _: raw._replace(offset=99))))
    delivery.add(delivery.owned[T0], [batch(0, "bad", "b")])
    replaced = ask(delivery)
    assert replaced is not None
    assert replaced.offset == 99
    assert state(delivery) == (1, 0, 2)
    assert ask(delivery) == converted(1, "b")


# ---------------------------------------------------------------- several batches at once


@pytest.mark.parametrize("bad", [damaged(3, "d", "e"), batch(3, "d", "bad")], ids=["torn", "bad"])
def test_an_error_does_not_drop_the_batches_before_it(bad: RecordBatch) -> None:
    """`getmany` lost the batches before an error: they were in flight, so the next call counted
    them as processed."""
    delivery = owning(T0, T1, delivery=Delivery(picky()))
    delivery.add(delivery.owned[T0], [batch(0, "a", "b", "c"), bad])
    delivery.add(delivery.owned[T1], [batch(0, "x", tp=T1)])
    delivery.acknowledgement.complete()
    found = delivery.next_batches(100)
    assert [r.value for b in found for r in b if b.partition == 0] == ["a", "b", "c", "d"]
    assert delivery.owned[T0].processed == 0
    with pytest.raises((CorruptRecordError, DeserializationError)):
        for _ in range(2):
            delivery.acknowledgement.complete()
            delivery.next_batches(100)
    assert delivery.owned[T0].processed == 4


@pytest.mark.parametrize("bad", [batch(1, "bad"), damaged(1, "b")], ids=["bad", "torn"])
def test_an_error_in_the_record_after_a_batch_is_raised_after_the_batch(bad: RecordBatch) -> None:
    delivery = owning(T0, delivery=Delivery(picky()))
    delivery.add(delivery.owned[T0], [batch(0, "a"), bad])
    assert [b.records for b in delivery.next_batches(100)] == [(converted(0, "a"),)]
    delivery.acknowledgement.complete()
    with pytest.raises((CorruptRecordError, DeserializationError)):
        delivery.next_batches(100)
    assert state(delivery)[:2] == (1, 1)


@pytest.mark.parametrize("bad", [damaged(3, "d", "e"), batch(3, "d", "bad")], ids=["torn", "bad"])
def test_a_pause_does_not_drop_the_error_of_its_partition(bad: RecordBatch) -> None:
    """A partition with a corrupt batch would deliver nothing, and say nothing, after a resume."""
    delivery = owning(T0, delivery=Delivery(picky()))
    delivery.add(delivery.owned[T0], [batch(0, "a", "b", "c"), bad])
    assert sum(map(len, delivery.next_batches(100))) == 4
    delivery.pause(T0)
    delivery.resume(T0)
    with pytest.raises((CorruptRecordError, DeserializationError)):
        delivery.next_batches(100)


# ---------------------------------------------------------------- in any order


@settings(max_examples=150)
@given(
    moves=st.lists(
        st.sampled_from(["fetch", "fetch", "ask", "ask", "ask", "batch", "regrant", "commit"]),
        max_size=60,
    ),
    data=st.data(),
)
def test_s4_s6_s8_records_are_delivered_once_in_order_and_commits_cover_processed_ones(
    moves: list[str], data: st.DataObject
) -> None:
    """One partition, whose log has a control record at each multiple of seven."""
    delivery = owning(T0)
    log_end = committed = expected = 0
    held: list[int] = []
    done: set[int] = set()
    for move in moves:
        owned = delivery.owned[T0]
        if move == "fetch":
            base = owned.fetch_offset
            size = data.draw(st.integers(1, 4))
            if base % 7 == 0:
                fetched = [marker(base)]
            else:
                size = min(size, 7 - base % 7)
                fetched = [batch(base, *map(str, range(base, base + size)))]
            delivery.add(owned, fetched)
            log_end = max(log_end, owned.fetch_offset)
        elif move in ("ask", "batch"):
            done.update(held)
            delivery.acknowledgement.complete()
            if move == "ask":
                one = delivery.next_record()
                taken = () if one is None else (one,)
            else:
                taken = delivery.next_batch(data.draw(st.integers(1, 3))) or ()
            held = [r.offset for r in taken]
            for offset in held:
                expected += expected % 7 == 0
                assert offset == expected
                expected += 1
        elif move == "regrant":
            # As in a revocation: the record in flight is finished, then comes the commit.
            delivery.revoke([T0])
            done.update(held)
            delivery.acknowledgement.complete()
            committed = to_commit(delivery).get(T0, OffsetAndMetadata(committed)).offset
            delivery.release([T0])
            held = []
            owning(T0, start=committed, delivery=delivery)
        else:
            pending = to_commit(delivery).get(T0)
            if pending is not None:
                assert pending.offset > committed
                owned.acknowledged, committed = pending, pending.offset
        assert {o for o in range(committed) if o % 7} <= done
    assert delivery.owned[T0].position <= log_end

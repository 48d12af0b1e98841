"""The identity of the log that a position belongs to."""

from __future__ import annotations

import math
from uuid import UUID

import pytest

from kafkagroup.consume.owned import OwnedPartition, TopicEvidence
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.records import read_batches
from kafkagroup.wire.schema import NO_ID

TP = TopicPartition("t", 0)
OLD, NEW = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("fetched", "checked", "leader", "unchecked"),
    [
        (3, 3, 4, True),
        (3, -1, 3, True),
        (3, 4, 4, False),
        (-1, -1, 4, False),  # nothing to compare with
        (3, 3, -1, False),  # a broker without epochs
    ],
)
def test_is_unchecked(fetched: int, checked: int, leader: int, unchecked: bool) -> None:
    owned = OwnedPartition(TP, fetch_epoch=fetched, checked_epoch=checked)
    assert owned.is_unchecked(leader) is unchecked


def test_an_empty_buffer_is_no_object() -> None:
    """A deque for each of 90,000 partitions took 56 MB, and each full garbage collection longer."""
    owned = OwnedPartition(TP)
    assert owned.buffered is None
    owned.start_at(0)
    data = memoryview(encode_batch([NewRecord(None, b"v")]))
    (batch,) = read_batches(data, topic="t", partition=0)
    owned.add([batch])
    assert owned.buffered is not None
    assert owned.take_batch() is batch
    assert (owned.buffered, owned.buffered_bytes) == (None, 0)
    owned.put_back(batch)
    assert owned.buffered is not None
    owned.drop_buffer()
    assert owned.buffered is None


@pytest.mark.parametrize(
    ("before", "now", "anew"),
    [(OLD, NEW, True), (OLD, OLD, False), (OLD, NO_ID, False), (NO_ID, NEW, False)],
)
def test_a_recreated_topic_is_a_new_assignment(before: UUID, now: UUID, anew: bool) -> None:
    assert OwnedPartition(TP, topic_id=before).is_recreated(now) is anew


def test_a_topic_is_recreated_only_if_the_leader_does_not_serve_its_id() -> None:
    owned = OwnedPartition(TP, topic_id=OLD)
    owned.note_refused(OLD)
    assert owned.topic_evidence is TopicEvidence.NONE  # nothing was read under this id
    for evidence in (TopicEvidence.READ_BY_NAME, TopicEvidence.READ_BY_ID):
        owned.note_served(OLD, evidence)
        assert (owned.is_of_other_topic(NEW), owned.is_recreated(NEW)) == (True, False)
    owned.note_refused(NEW)
    assert not owned.is_recreated(NEW)
    owned.note_refused(OLD)
    assert (owned.is_recreated(NEW), owned.is_recreated(OLD)) == (True, False)
    owned.note_served(OLD, TopicEvidence.READ_BY_ID)
    assert not owned.is_recreated(NEW)


@pytest.mark.parametrize(
    ("position", "current", "requested"),
    [(OLD, NEW, OLD), (OLD, NO_ID, OLD), (NO_ID, NEW, NEW), (NO_ID, NO_ID, NO_ID)],
)
def test_a_position_is_fetched_by_its_own_topic_id(
    position: UUID, current: UUID, requested: UUID
) -> None:
    assert OwnedPartition(TP, topic_id=position).requested_id(current) == requested


def test_the_metadata_s_object_replaces_an_equal_topic_id() -> None:
    owned, current = OwnedPartition(TP, topic_id=OLD), UUID(int=OLD.int)
    assert owned.requested_id(current) is current
    assert owned.topic_id is current


def test_a_record_proves_the_epoch_of_its_leader_until_the_topic_changes() -> None:
    owned = OwnedPartition(TP)
    owned.start_at(0)
    owned.note_served(OLD, TopicEvidence.READ_BY_ID)
    raw = encode_batch([NewRecord(None, b"")], base_offset=0, leader_epoch=3)
    owned.add(list(read_batches(raw, topic="t", partition=0)))
    owned.seek(0)  # the record was read, wherever the position is
    assert [owned.is_ahead_of(OLD, epoch) for epoch in (-1, 2, 3, 4)] == [False, True, False, False]
    assert not owned.is_ahead_of(NEW, 2)
    owned.note_served(NEW, TopicEvidence.READ_BY_ID)
    assert not owned.is_ahead_of(NEW, 2)


def test_without_topic_ids_no_record_proves_an_epoch() -> None:
    """The topic may have been recreated, and begins at epoch 0 again."""
    owned = OwnedPartition(TP, proven_epoch=3)
    assert not owned.is_ahead_of(NO_ID, 2)


def test_a_truncation_stays_in_the_topic_that_was_read() -> None:
    owned = OwnedPartition(TP)
    owned.start_at(9)
    owned.note_served(OLD, TopicEvidence.READ_BY_ID)
    owned.relocate(5)
    assert (owned.topic_id, owned.topic_evidence) == (OLD, TopicEvidence.READ_BY_ID)


def test_a_new_starting_position_resets_validation_and_topic_id() -> None:
    owned = OwnedPartition(TP, fetch_epoch=3, checked_epoch=4, topic_id=OLD)
    owned.start_at(7, leader_epoch=2)
    assert (owned.fetch_epoch, owned.checked_epoch, owned.topic_id) == (2, -1, NO_ID)


@pytest.mark.parametrize(
    ("assigned", "now", "same"),
    [(OLD, OLD, True), (OLD, NEW, False), (OLD, NO_ID, False), (NO_ID, NEW, True)],
)
def test_an_assignment_is_of_one_topic(assigned: UUID, now: UUID, same: bool) -> None:
    assert OwnedPartition(TP, assigned_topic_id=assigned).is_assigned_in(now) is same


def test_a_new_position_stays_in_the_assigned_topic() -> None:
    owned = OwnedPartition(TP, assigned_topic_id=OLD, topic_id=OLD)
    owned.start_at(7)
    assert owned.topic_id == OLD
    assert owned.is_recreated(NEW)


def test_the_leader_epoch_belongs_to_the_fetch_offset() -> None:
    owned = OwnedPartition(TP)
    owned.start_at(0)
    for offset, epoch in ((0, 3), (1, 5)):
        raw = encode_batch([NewRecord(None, b"")], base_offset=offset, leader_epoch=epoch)
        owned.add(list(read_batches(raw, topic="t", partition=0)))
    assert (owned.fetch_offset, owned.fetch_epoch) == (2, 5)
    owned.position, owned.leader_epoch = 1, 3
    owned.drop_buffer()
    assert (owned.fetch_offset, owned.fetch_epoch) == (1, 3)


def test_an_offset_is_committed_again_after_a_commit_of_another_one_had_no_response() -> None:
    owned = OwnedPartition(TP)
    owned.start_at(0)
    owned.position = owned.processed = 3
    owned.acknowledge(OffsetAndMetadata(3), 0.0)
    assert (owned.to_commit(), owned.is_uncommitted) == (None, False)
    owned.seek(1)
    owned.begin_commit(1)
    owned.position = owned.processed = 3
    assert (owned.to_commit(), owned.is_uncommitted) == (OffsetAndMetadata(3), True)
    owned.begin_commit(3)
    owned.acknowledge(OffsetAndMetadata(3), 0.0)
    assert (owned.to_commit(), owned.is_uncommitted) == (None, False)
    owned.begin_commit(3)
    assert (owned.to_commit(), owned.is_uncommitted) == (None, False)


def test_an_acknowledged_offset_needs_renewal_when_it_is_old_and_when_it_is_revoked() -> None:
    """Acknowledged once, it was trusted for ever: brokers delete the offsets of idle groups."""
    owned = OwnedPartition(TP)
    owned.start_at(3)
    assert not owned.needs_renewal(99.0)  # nothing is committed
    owned.note_committed(OffsetAndMetadata(3, "mine", 1), 10.0)
    assert [owned.needs_renewal(last) for last in (9.0, 10.0)] == [False, True]
    owned.note_renewal(20.0)
    assert not owned.needs_renewal(19.0)
    owned.revoke()
    assert owned.needs_renewal(-math.inf)
    owned.acknowledge(OffsetAndMetadata(3), 30.0)
    assert not owned.needs_renewal(-math.inf)
    owned.revoke()
    assert owned.needs_renewal(-math.inf)


def test_an_offset_that_was_just_reported_needs_no_renewal() -> None:
    """In a series of quick rebalances each would commit what it has just looked up."""
    owned = OwnedPartition(TP)
    owned.start_at(3)
    owned.note_committed(OffsetAndMetadata(3), 10.0)
    owned.revoke()
    assert [owned.needs_renewal(-math.inf, by) for by in (9.9, 10.0)] == [False, True]


def test_an_offset_above_the_position_is_not_renewed() -> None:
    """The application has sought back: its next commit replaces the offset."""
    owned = OwnedPartition(TP)
    owned.start_at(3)
    owned.acknowledge(OffsetAndMetadata(3), 10.0)
    owned.seek(2)
    assert not owned.needs_renewal(99.0)


def test_an_offset_that_another_client_has_moved_is_news_once() -> None:
    owned = OwnedPartition(TP)
    owned.start_at(3)
    owned.acknowledge(OffsetAndMetadata(3), 10.0)
    assert [owned.note_stored(offset) for offset in (3, 5, 5, 4, 3, 4)] == [
        *(False, True, False, True, False, True)
    ]

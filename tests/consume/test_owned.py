"""The state of one owned partition; above all, the log that its position belongs to."""

from __future__ import annotations

import math
from uuid import UUID

import pytest

from kafkagroup.consume.owned import UNKNOWN, OwnedPartition, TopicEvidence
from kafkagroup.errors import BrokerError, NoOffsetError, OffsetOutOfRangeError
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


def test_equal_topic_ids_are_of_one_topic() -> None:
    """Of two responses each has an object of its own."""
    owned = OwnedPartition(TP, topic_id=UUID(int=1))
    assert not owned.is_of_other_topic(UUID(int=1))
    assert owned.is_of_other_topic(UUID(int=2))


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
    owned.renewed_at = 20.0
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


# ---------------------------------------------------------------- positions


@pytest.mark.parametrize(("offset", "processed"), [(5, 5), (8, 8), (9, 8), (20, 8)])
def test_a_truncation_leaves_what_is_in_flight_unprocessed(offset: int, processed: int) -> None:
    """And what is above the new position: a commit of it would be beyond the end of the log."""
    owned = OwnedPartition(TP)
    owned.start_at(0)
    owned.advance(8, 1)
    owned.begin()
    owned.advance(10, 1)
    owned.relocate(offset)
    assert (owned.position, owned.processed) == (offset, processed)


def test_a_position_that_is_forgotten_leaves_nothing_behind() -> None:
    owned = OwnedPartition(TP, topic_id=OLD)
    owned.start_at(7, leader_epoch=3)
    owned.acknowledge(OffsetAndMetadata(7), 1.0)
    owned.forget_position()
    assert (owned.position, owned.processed, owned.fetch_offset, owned.floor) == (UNKNOWN,) * 4
    assert (owned.leader_epoch, owned.fetch_epoch, owned.acknowledged) == (-1, -1, None)
    assert owned.to_commit() is None


def test_a_partition_that_is_revoked_before_it_has_a_position_has_no_epoch() -> None:
    owned = OwnedPartition(TP)
    owned.drop_buffer()
    assert (owned.fetch_offset, owned.fetch_epoch, owned.leader_epoch) == (UNKNOWN, -1, -1)


def test_a_position_is_in_doubt_until_the_leader_has_validated_it() -> None:
    """The first epoch of a leader is 0."""
    owned = OwnedPartition(TP, fetch_epoch=0, checked_epoch=0)
    owned.is_out_of_range = True
    owned.require_validation()
    assert (owned.is_unchecked(0), owned.is_out_of_range) == (True, False)
    owned.checked_epoch = 0
    assert not owned.is_unchecked(0)


def test_a_seek_does_not_wait_for_the_listener() -> None:
    owned = OwnedPartition(TP)
    owned.awaits_listener = True
    owned.awaits_start_commit = True
    owned.look_up_at = 9.0
    state = (owned.awaits_listener, owned.awaits_start_commit, owned.look_up_at)
    assert state == (True, True, 9.0)
    owned.seek(3)
    assert owned.look_up_at == 0.0
    assert (owned.awaits_listener, owned.awaits_start_commit, owned.seek_count) == (False, False, 1)


def test_the_lag_is_unknown_without_a_position_or_an_end() -> None:
    owned = OwnedPartition(TP)
    lags = [owned.lag]
    owned.end = 9
    lags.append(owned.lag)
    owned.start_at(7)
    lags.append(owned.lag)
    owned.advance(12, 0)  # past an end that was fetched before
    lags.append(owned.lag)
    assert lags == [None, None, 2, 0]


# ---------------------------------------------------------------- the buffer


def test_what_is_buffered_is_counted() -> None:
    encoded = memoryview(encode_batch([NewRecord(None, b"x")] * 3))
    (batch,) = read_batches(encoded, topic="t", partition=0)
    owned = OwnedPartition(TP)
    owned.start_at(0)
    empty = (0, 0)
    counts = [(owned.buffered_bytes, owned.buffered_records)]
    owned.add([batch, batch])  # the second one is not needed
    counts.append((owned.buffered_bytes, owned.buffered_records))
    owned.put_back(owned.take_batch())
    counts.append((owned.buffered_bytes, owned.buffered_records))
    assert owned.fetch_offset == 3
    owned.take_batch()
    counts.append((owned.buffered_bytes, owned.buffered_records))
    assert counts == [empty, (batch.size, 3), (batch.size, 3), empty]


# ---------------------------------------------------------------- who serves it


def test_replicas_are_counted_out_and_left_for_the_leader() -> None:
    """A broker may have the id 0."""
    owned = OwnedPartition(TP)
    assert owned.replica is None
    replica = owned.replica_choice()
    replica.read_from(0, 9.0)
    assert [owned.replica_choice().count_refusal() for _ in range(3)] == [1, 2, 3]
    replica.refusal_count = 0
    assert replica.count_refusal() == 1
    assert owned.replica is replica
    assert (replica.node_id, replica.expires_at) == (0, 9.0)


REFUSED = BrokerError(29)


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({}, True),
        ({"refusal": None}, False),
        ({"revoked": True}, False),
        ({"failure": NoOffsetError(())}, False),
        ({"paused": True}, False),
        # Paused, but the position is looked up all the same.
        ({"paused": True, "needs_reset": True}, True),
        ({"paused": True, "position": UNKNOWN}, True),
        ({"position": UNKNOWN}, True),
    ],
)
def test_a_refusal_counts_while_the_request_is_repeated(
    changes: dict[str, object], is_refused: bool
) -> None:
    owned = OwnedPartition(TP)
    owned.start_at(0)
    for name, value in ({"refusal": REFUSED} | changes).items():
        setattr(owned, name, value)
    assert owned.is_refused is is_refused


def test_a_success_ends_the_refusal_and_counts_failures_anew() -> None:
    owned = OwnedPartition(TP)
    owned.start_at(0)
    owned.refusal = REFUSED
    assert [owned.count_failure() for _ in range(2)] == [1, 2]
    owned.end_backoff()
    assert (owned.is_refused, owned.count_failure()) == (False, 1)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(NoOffsetError(()), True), (OffsetOutOfRangeError({}), True), (REFUSED, False), (None, False)],
)
def test_only_the_application_can_set_a_position_that_the_log_does_not_have(
    failure: Exception | None, expected: bool
) -> None:
    assert OwnedPartition(TP, failure=failure).is_without_position is expected

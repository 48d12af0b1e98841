"""Commits and the assignments that they belong to."""

from __future__ import annotations

from uuid import UUID

import pytest

from kafkagroup.consume.commits import (
    Commit,
    by_topic_id,
    check_assigned,
    check_floors,
    of_assignment,
    topic_ids,
)
from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
from kafkagroup.errors import CommitFailedError
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.schema import NO_ID

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OLD, NEW = UUID(int=1), UUID(int=2)


def owning(*partitions: OwnedPartition) -> dict[TopicPartition, OwnedPartition]:
    return {owned.tp: owned for owned in partitions}


def test_a_commit_belongs_to_the_assignment_in_which_it_was_requested() -> None:
    """A commit that had waited was sent for the next assignment of its partition, and undid the
    commit of the member that had owned it in between."""
    before = owning(OwnedPartition(T0), OwnedPartition(T1))
    commits = of_assignment(before, {T0: OffsetAndMetadata(7), T1: OffsetAndMetadata(8)})
    check_assigned(commits, before)
    for released in (owning(before[T0]), owning(before[T0], OwnedPartition(T1))):
        with pytest.raises(CommitFailedError) as caught:
            check_assigned(commits, released)
        assert caught.value.partitions == (T1,)
        assert str(caught.value) == (
            "commit of t/1 failed: since it was requested, this consumer has released the"
            " partition, or its topic was recreated; the next owner continues from the last commit"
            " that succeeded"
        )


@pytest.mark.parametrize(
    ("requested", "now", "refused"),
    [(OLD, NEW, True), (OLD, OLD, False), (NO_ID, NEW, False), (OLD, NO_ID, False)],
)
def test_a_commit_belongs_to_the_topic_for_which_it_was_requested(
    requested: UUID, now: UUID, refused: bool
) -> None:
    owned = OwnedPartition(T0, topic_id=requested)
    commits = of_assignment({T0: owned}, {T0: OffsetAndMetadata(7)})
    owned.note_topic(now)
    assert commits[0].is_assigned({T0: owned}) is not refused


def test_an_offset_below_the_floor_is_refused_with_both_numbers() -> None:
    owned = OwnedPartition(T0)
    below = [Commit(owned, OffsetAndMetadata(100), NO_ID)]
    check_floors(below)  # the position is not known yet
    owned.start_at(200)
    with pytest.raises(CommitFailedError) as caught:
        check_floors(below)
    assert caught.value.partitions == (T0,)
    assert str(caught.value) == (
        "commit of t/0 failed: 100 is below 200, where this assignment began, so the offset is of"
        " an earlier one, and other members may have committed since. Drop it; to rewind the group,"
        " seek() to it, then commit"
    )
    check_floors([Commit(owned, OffsetAndMetadata(200), NO_ID)])


def test_the_floor_follows_the_position_down_and_not_up() -> None:
    owned = OwnedPartition(T0)
    assert owned.floor == UNKNOWN
    owned.start_at(200)
    owned.advance(300, 0)
    assert owned.floor == 200
    owned.seek(250)
    assert owned.floor == 200
    owned.seek(100)
    assert owned.floor == 100
    owned.relocate(50)  # a truncation, or a reset
    assert owned.floor == 50
    owned.seek(400)
    assert owned.floor == 50


@pytest.mark.parametrize("start", [0, 500])
def test_the_floor_begins_anew_in_a_recreated_topic(start: int) -> None:
    """Offsets of the deleted topic mean nothing in its successor, nor does its record in flight."""
    owned = OwnedPartition(T0, topic_id=OLD)
    owned.start_at(200)
    owned.acknowledge(OffsetAndMetadata(200), 1.0)
    owned.advance(210, 0)  # in flight
    owned.is_of_deleted_topic = True
    owned.relocate(start)
    assert (owned.floor, owned.processed, owned.acknowledged) == (start, start, None)


@pytest.mark.parametrize(
    ("is_automatic", "processed", "newest"),
    [
        (True, 9, OffsetAndMetadata(9, "note", 4)),
        (True, 7, OffsetAndMetadata(7, "note", 2)),
        (True, 5, OffsetAndMetadata(7, "note", 2)),  # never less than the call that failed
        (True, UNKNOWN, OffsetAndMetadata(7, "note", 2)),
        (False, 9, OffsetAndMetadata(7, "note", 2)),  # the application chose the offset
    ],
)
def test_a_repeated_automatic_commit_commits_what_is_processed_by_then(
    is_automatic: bool, processed: int, newest: OffsetAndMetadata
) -> None:
    owned = OwnedPartition(T0)
    commit = Commit(owned, OffsetAndMetadata(7, "note", 2), NO_ID, is_automatic)
    owned.advance(processed, 4)
    assert commit.newest == newest


def test_parts_have_one_topic_id_for_each_topic() -> None:
    old, new, unknown = (
        Commit(
            OwnedPartition(TopicPartition("t", n), topic_id=topic_id),
            OffsetAndMetadata(n),
            topic_id,
        )
        for n, topic_id in enumerate((OLD, NEW, NO_ID))
    )
    other = Commit(OwnedPartition(TopicPartition("u", 0)), OffsetAndMetadata(0), NEW)
    assert by_topic_id([old, new, unknown, other]) == [[old, other], [new], [unknown]]
    assert topic_ids([old, other]) == {"t": OLD, "u": NEW}
    assert topic_ids([unknown]) == {}
    unknown.owned.note_topic(OLD)  # a fetch response has had the id since
    assert by_topic_id([old, unknown]) == [[old, unknown]]

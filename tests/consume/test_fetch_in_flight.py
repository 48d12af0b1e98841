"""The responses that count, and when empty partitions are fetched again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from uuid import UUID

import pytest

from kafkagroup.consume.fetch_in_flight import FetchInFlight, ImmediateFetchSchedule
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.types import TopicPartition


def owned(partition: int = 0, offset: int = 5) -> OwnedPartition:
    made = OwnedPartition(TopicPartition("t", partition))
    made.start_at(offset)
    made.checked_epoch = 1
    return made


def test_a_response_counts_for_the_requested_position() -> None:
    one, other = owned(0), owned(1)
    fetch = FetchInFlight(1, [one])
    assert (fetch.find(one.tp), fetch.find(other.tp)) == (one, None)
    assert (fetch.covers(one), fetch.covers(other)) == (True, False)


def test_of_two_responses_for_a_position_the_first_counts() -> None:
    one = owned()
    fetches = [FetchInFlight(1, [one]), FetchInFlight(2, [one])]
    assert [f.find(one.tp) for f in fetches] == [one, one]
    assert [f.is_latest(one) for f in fetches] == [False, True]
    one.fetch_offset = 8  # its records were buffered
    assert [f.find(one.tp) for f in fetches] == [None, None]


def test_a_request_from_before_a_seek_does_not_count_beside_one_from_after_it() -> None:
    one = owned()
    before = FetchInFlight(1, [one])
    _sought_and_back(one)
    after = FetchInFlight(2, [one])
    assert (before.find(one.tp), after.find(one.tp)) == (None, one)


def _sought(one: OwnedPartition) -> None:
    one.start_at(9)


def _sought_and_back(one: OwnedPartition) -> None:
    one.start_at(9)
    one.start_at(5)
    one.checked_epoch = 1


def _checked(one: OwnedPartition) -> None:
    one.checked_epoch = 2


def _revoked(one: OwnedPartition) -> None:
    one.revoked = True


@pytest.mark.parametrize("change", [_sought, _sought_and_back, _checked, _revoked])
def test_a_response_for_another_position_does_not_count(
    change: Callable[[OwnedPartition], None],
) -> None:
    one = owned()
    fetch = FetchInFlight(1, [one])
    change(one)
    assert fetch.find(one.tp) is None


def test_a_reassigned_partition_is_a_new_assignment() -> None:
    fetch = FetchInFlight(1, [owned()])
    assert not fetch.covers(owned())


TOPIC, OTHER = UUID(int=1), UUID(int=2)


def _in_flight() -> tuple[OwnedPartition, FetchInFlight]:
    """Return a fetch in flight of a revoked partition."""
    before = owned()
    fetch = FetchInFlight(1, [before])
    fetch.topic_ids[before.tp.topic] = TOPIC
    before.revoked = True
    return before, fetch


def test_a_partition_reassigned_at_the_same_position_adopts_its_long_poll() -> None:
    before, fetch = _in_flight()
    now = owned()
    assert fetch.adopt(now, 1, TOPIC)
    assert (fetch.find(now.tp), fetch.covers(before)) == (now, False)
    assert (now.checked_epoch, fetch.partitions) == (1, [now])
    now.start_at(5)
    assert fetch.find(now.tp) is None


def test_a_fetch_of_a_partition_still_owned_is_not_adopted() -> None:
    before, fetch = _in_flight()
    before.revoked = False
    assert not fetch.adopt(owned(), 1, TOPIC)
    assert not fetch.adopt(owned(1), 1, TOPIC)
    before.start_at(5)
    assert not fetch.adopt(before, 1, TOPIC)


@pytest.mark.parametrize(
    ("offset", "leader_epoch", "topic_id"), [(6, 1, TOPIC), (5, 2, TOPIC), (5, 1, OTHER)]
)
def test_a_long_poll_for_another_log_or_position_is_not_adopted(
    offset: int, leader_epoch: int, topic_id: UUID
) -> None:
    _, fetch = _in_flight()
    now = owned(0, offset)
    assert not fetch.adopt(now, leader_epoch, topic_id)
    assert fetch.find(now.tp) is None


def test_a_later_fetch_that_covers_the_partition_prevents_adoption() -> None:
    _, fetch = _in_flight()
    now = owned()
    later = FetchInFlight(2, [now])
    assert not fetch.adopt(now, 1, TOPIC)
    assert later.covers(now)


def test_polls_of_an_empty_partition_back_off() -> None:
    one, schedule, now, asked = owned(), ImmediateFetchSchedule(), 0.0, []
    for fetch_id in range(1, 8):
        assert schedule.is_due([one], now)
        asked.append(now)
        schedule.on_response(FetchInFlight(fetch_id, [one]), [one], now, is_empty=True)
        assert not schedule.is_due([one], now)
        now = schedule.due_at
    pauses = [after - before for before, after in pairwise(asked)]
    assert pauses == pytest.approx([0.015, 0.045, 0.135, 0.25, 0.25, 0.25])


def test_a_new_position_is_due_at_once() -> None:
    one, other, schedule = owned(0), owned(1), ImmediateFetchSchedule()
    schedule.on_response(FetchInFlight(1, [one]), [one], 0.0, is_empty=True)
    assert schedule.is_due([one, other], 0.0)
    one.start_at(5)
    assert schedule.is_due([one], 0.0)


def test_partitions_with_records_are_due_at_once_and_others_after_a_pause() -> None:
    one, other, schedule = owned(0), owned(1), ImmediateFetchSchedule()
    fetch = FetchInFlight(1, [one, other])
    one.fetch_offset = 7
    schedule.on_response(fetch, [one, other], 0.0, is_empty=False)
    assert (schedule.is_due([one], 0.0), schedule.is_due([other], 0.0)) == (True, False)
    assert schedule.due_at == 0.005

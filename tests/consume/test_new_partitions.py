"""Which partitions metadata responses prove to be new."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from kafkagroup.consume.new_partitions import Described, NewPartitions
from kafkagroup.types import TopicPartition
from kafkagroup.wire.schema import NO_ID

ONE, TWO = UUID(int=1), UUID(int=2)
ALL = re.compile(".*")


def subscribed(*topics: str, pattern: re.Pattern[str] | None = None) -> NewPartitions:
    partitions = NewPartitions()
    partitions.subscribe(frozenset(topics), pattern)
    return partitions


def new(partitions: NewPartitions, count: int, topic: str = "t") -> list[int]:
    """Return which of the first `count` partitions of a topic are new."""
    return [p for p in range(count) if partitions.is_new(TopicPartition(topic, p))]


def note(partitions: NewPartitions, *responses: Described | None, topic: str = "t") -> None:
    """Note responses that were requested for one topic; None: the topic is absent."""
    for found in responses:
        if found is None:
            partitions.note_response({}, [topic])
        else:
            partitions.note_response({topic: found})


def note_lists(partitions: NewPartitions, *lists: dict[str, Described]) -> None:
    for found in lists:
        partitions.note_response(found, is_complete=True)


# ---------------------------------------------------------------- topics by name


def test_partitions_above_the_first_count_are_new() -> None:
    """An assignment may name them before this client's metadata does."""
    partitions = subscribed("t")
    note(partitions, Described(ONE, 2))
    assert new(partitions, 4) == [2, 3]


def test_partitions_stay_new_when_a_later_response_has_them() -> None:
    """They may be assigned to this member long after they were added."""
    partitions = subscribed("t")
    note(partitions, Described(ONE, 2), Described(ONE, 4), Described(ONE, 3))
    assert new(partitions, 5) == [2, 3, 4]


def test_nothing_is_proven_before_the_first_response() -> None:
    partitions = subscribed("t")
    assert (new(partitions, 4), partitions.needs_response) == ([], True)


@pytest.mark.parametrize(("absences", "expected"), [(0, []), (1, []), (2, [0, 1]), (3, [0, 1])])
def test_a_topic_is_new_after_two_responses_without_it(absences: int, expected: list[int]) -> None:
    """The broker of one response may lag behind."""
    partitions = subscribed("t")
    note(partitions, *[None] * absences)
    assert partitions.needs_response == (absences < 2)
    note(partitions, Described(ONE, 2))
    assert (new(partitions, 2), partitions.needs_response) == (expected, False)


def test_a_denied_topic_is_not_new() -> None:
    partitions = subscribed("t")
    for _ in range(2):
        partitions.note_response({}, denied=["t"])
        assert not partitions.needs_response
    note(partitions, Described(ONE, 2))
    assert new(partitions, 2) == []


def test_a_recreated_topic_is_new() -> None:
    partitions = subscribed("t")
    note(partitions, Described(ONE, 2), Described(TWO, 2))
    assert new(partitions, 2) == [0, 1]


def test_a_topic_that_was_absent_and_has_the_same_id_is_not_new() -> None:
    partitions = subscribed("t")
    note(partitions, Described(ONE, 2), None, Described(ONE, 3))
    assert new(partitions, 3) == [2]


@pytest.mark.parametrize("ids", [(NO_ID, NO_ID), (NO_ID, ONE), (ONE, NO_ID)])
def test_without_ids_a_topic_is_new_after_its_absence(ids: tuple[UUID, UUID]) -> None:
    """The metadata of a described topic reports it as absent only after two responses."""
    before, after = ids
    partitions = subscribed("t")
    note(partitions, Described(before, 2), Described(after, 2))
    assert new(partitions, 3) == [2]
    note(partitions, None, Described(after, 3))
    assert new(partitions, 3) == [0, 1, 2]


def test_a_topic_that_the_application_adds_is_not_new() -> None:
    """What was known of it before the subscription does not count."""
    partitions = subscribed("t")
    note(partitions, Described(ONE, 2))
    note(partitions, None, None, topic="u")
    partitions.subscribe(frozenset("tu"), None)
    assert partitions.needs_response
    note(partitions, Described(TWO, 3), topic="u")
    assert (new(partitions, 4, "t"), new(partitions, 4, "u")) == ([2, 3], [3])


def test_a_topic_that_the_application_removes_and_adds_again_is_not_new() -> None:
    partitions = subscribed("t")
    note(partitions, None, None, Described(ONE, 2))
    partitions.subscribe(frozenset(), None)
    assert new(partitions, 2) == []
    partitions.subscribe(frozenset("t"), None)
    note(partitions, Described(ONE, 2))
    assert new(partitions, 2) == []


@pytest.mark.parametrize(
    ("topics", "pattern", "has_added"),
    [
        ("t", None, False),
        ("tu", None, True),
        ("u", None, True),
        ("", None, False),
        ("t", ALL, True),
        ("tu", ALL, True),
    ],
)
def test_responses_may_be_missing_for_what_the_application_adds(
    topics: str, pattern: re.Pattern[str] | None, has_added: bool
) -> None:
    assert subscribed("t").subscribe(frozenset(topics), pattern) is has_added


def test_a_pattern_that_stays_adds_nothing() -> None:
    """Whatever topics it matches by now."""
    partitions = subscribed("t", pattern=ALL)
    assert not partitions.subscribe(frozenset("tu"), ALL)
    assert partitions.subscribe(frozenset("tu"), re.compile("[tu]"))
    assert partitions.subscribe(frozenset("tu"), None)


def test_the_absences_of_a_topic_that_the_application_removes_are_forgotten() -> None:
    partitions = subscribed("t")
    note(partitions, None, None)
    partitions.subscribe(frozenset("u"), None)
    partitions.subscribe(frozenset("t"), None)
    assert partitions.needs_response
    note(partitions, Described(ONE, 2))
    assert new(partitions, 2) == []


def test_two_lists_are_missing_again_once_all_are_forgotten() -> None:
    """They may be of another cluster."""
    partitions = subscribed(pattern=ALL)
    note_lists(partitions, {}, {})
    assert not partitions.needs_complete_response
    partitions.forget()
    note_lists(partitions, {})
    assert partitions.needs_complete_response
    note_lists(partitions, {})
    assert not partitions.needs_complete_response


def test_topics_that_are_not_subscribed_to_are_not_followed() -> None:
    """The leader of a group requests the topics of all members."""
    partitions = subscribed("t")
    note(partitions, None, None, Described(ONE, 2), topic="u")
    assert new(partitions, 3, "u") == []


# ---------------------------------------------------------------- topics by pattern


@pytest.mark.parametrize(("lists", "expected"), [(0, []), (1, []), (2, [0, 1]), (3, [0, 1])])
def test_a_topic_is_new_after_two_lists_without_it(lists: int, expected: list[int]) -> None:
    partitions = subscribed(pattern=ALL)
    note_lists(partitions, *[{"u": Described(TWO, 1)}] * lists)
    assert partitions.needs_complete_response == partitions.needs_response == (lists < 2)
    note_lists(partitions, {"t": Described(ONE, 2)})
    assert (new(partitions, 2), new(partitions, 1, "u")) == (expected, [])


def test_a_topic_that_only_one_list_has_is_not_new() -> None:
    """It once disappeared from the list because one broker lagged behind."""
    partitions = subscribed(pattern=ALL)
    note_lists(partitions, {"t": Described(ONE, 2)}, {}, {"t": Described(ONE, 2)})
    assert new(partitions, 3) == [2]


def test_a_topic_is_new_if_a_request_by_name_describes_it_after_the_lists() -> None:
    """As where the coordinator matches the pattern, and assigns what it finds."""
    partitions = subscribed(pattern=ALL)
    note_lists(partitions, {"u": Described(TWO, 1)}, {"u": Described(TWO, 1)})
    note(partitions, Described(ONE, 2))
    note(partitions, Described(TWO, 3), topic="u")
    assert (new(partitions, 2), new(partitions, 3, "u")) == ([0, 1], [1, 2])


def test_another_pattern_needs_complete_responses_of_its_own() -> None:
    partitions = subscribed(pattern=re.compile("a.*"))
    note_lists(partitions, {}, {}, {"b": Described(ONE, 1), "ab": Described(TWO, 1)})
    partitions.subscribe(frozenset(), re.compile(".*b"))
    assert partitions.needs_complete_response
    note_lists(partitions, {"b": Described(ONE, 1), "ab": Described(TWO, 1)})
    assert (new(partitions, 1, "b"), new(partitions, 1, "ab")) == ([], [0])


def test_the_topics_that_a_pattern_matches_do_not_restart_it() -> None:
    partitions = subscribed(pattern=ALL)
    note_lists(partitions, {}, {})
    partitions.subscribe(frozenset("t"), ALL)
    note_lists(partitions, {"t": Described(ONE, 1)})
    assert (new(partitions, 1), partitions.needs_response) == ([0], False)


def test_without_ids_a_topic_is_new_after_a_list_without_it() -> None:
    """The metadata drops a described topic only after two lists without it."""
    partitions = subscribed(pattern=ALL)
    note_lists(partitions, {"t": Described(NO_ID, 2)}, {}, {"t": Described(NO_ID, 2)})
    assert new(partitions, 2) == [0, 1]


def test_topics_that_matched_and_are_gone_are_forgotten() -> None:
    """The topics of a pattern may come and go for months."""
    partitions = subscribed(pattern=ALL)
    for n in range(5):
        note_lists(partitions, {f"t{n}": Described(UUID(int=n + 1), 1)})
    assert (partitions._old, partitions._absences) == ({"t4": Described(UUID(int=5), 0)}, {})
    note_lists(partitions, {}, {"t0": Described(ONE, 1)})
    assert new(partitions, 1, "t0") == [0]

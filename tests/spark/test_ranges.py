"""Positions stored by Spark, tasks, and the division of a batch; without Spark."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkagroup import ConfigurationError, TopicPartition
from kafkagroup.spark.ranges import Positions, Range, capped, split

partitions = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 12))
logs = st.dictionaries(partitions, st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8)


def test_positions_name_their_cluster_and_those_of_earlier_releases_none() -> None:
    """Spark compares texts: those of a cluster without an id are as they were."""
    positions = Positions({TopicPartition("t", 0): 1}, {"t": "id"}, "g")
    text = {"kafkagroup": 1, "group": "g", "topics": {"t": {"id": "id", "offsets": {"0": 1}}}}
    named = attrs.evolve(positions, cluster_id="c")
    assert (positions.to_json(), named.to_json()) == (text, {"cluster": "c", **text})
    assert (Positions.from_json(text), Positions.from_json({"cluster": "c", **text})) == (
        positions,
        named,
    )


def test_the_text_of_positions_does_not_depend_on_their_order() -> None:
    ids = {"a": "1", "b": "2"}
    offsets = {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3}
    one = Positions(offsets, ids, "g")
    other = Positions(dict(reversed(offsets.items())), dict(reversed(ids.items())), "g")
    text = json.dumps(one.to_json())
    assert text == json.dumps(other.to_json())
    assert text == (
        '{"kafkagroup": 1, "group": "g", "topics": {'
        '"a": {"id": "1", "offsets": {"0": 3}}, "b": {"id": "2", "offsets": {"9": 2, "10": 1}}}}'
    )
    assert Positions.from_json(json.loads(text)) == one


@pytest.mark.parametrize(
    "given",
    [
        {"logOffset": 3},
        {"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": 5},
        {"orders": {"0": -1}},
        {"orders": {"x": 1}},
        {"orders": {"0": "1.5"}},
        {"kafkagroup": 2, "topics": {}},
        17,
        ["a", 3],
    ],
)
def test_offsets_of_another_source_are_an_error(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="not the offsets of a kafkagroup source"):
        Positions.from_json(given)


def test_offsets_of_sparks_own_connector_have_no_topic_ids() -> None:
    """They were an error: a query of `format("kafka")` could not move with its checkpoint."""
    given = {"orders": {"0": 17, "10": 2}, "audit": {"3": 0}}
    positions = Positions.from_json(given)
    assert positions == Positions(
        {
            TopicPartition("orders", 0): 17,
            TopicPartition("orders", 10): 2,
            TopicPartition("audit", 3): 0,
        },
        {"orders": "", "audit": ""},
    )
    assert positions.by_topic() == given
    assert Positions.from_json({}) == Positions({}, {})


@given(logs, st.integers(1, 60))
def test_every_partition_with_records_gets_a_part_of_the_limit(
    logs: dict[TopicPartition, tuple[int, int]], most: int
) -> None:
    start = {tp: at for tp, (at, _) in logs.items()}
    end = {tp: at + count for tp, (at, count) in logs.items()}
    given_out = {tp: at - start[tp] for tp, at in capped(start, end, most).items()}
    assert given_out.keys() == logs.keys()
    waiting = sum(1 for _, count in logs.values() if count)
    assert sum(given_out.values()) <= max(most, waiting)
    for tp, (_, count) in logs.items():
        assert min(1, count) <= given_out[tp] <= count


def test_the_limit_is_divided_by_backlog() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    assert capped({a: 100, b: 0}, {a: 400, b: 100}, 40) == {a: 129, b: 10}
    assert capped({a: 100, b: 0}, {a: 400, b: 100}, 400) == {a: 400, b: 100}


@given(logs, st.integers(1, 40))
def test_tasks_cover_every_offset_once(
    logs: dict[TopicPartition, tuple[int, int]], least: int
) -> None:
    whole = [Range(tp, "id", at, at + count) for tp, (at, count) in logs.items()]
    tasks = split(whole, least)
    assert sorted((t.tp, n) for t in tasks for n in range(t.start, t.end)) == sorted(
        (r.tp, n) for r in whole for n in range(r.start, r.end)
    )
    assert all(t.start < t.end for t in tasks)


def test_the_largest_ranges_are_split() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    ranges = [Range(a, "i", 0, 90), Range(b, "i", 5, 15)]
    assert split(ranges, 2) == ranges
    assert split(ranges, 4) == [
        Range(a, "i", 0, 22),
        Range(a, "i", 22, 45),
        Range(a, "i", 45, 67),
        Range(a, "i", 67, 90),
        Range(b, "i", 5, 15),
    ]


def test_no_task_reads_more_offsets_than_the_limit() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    ranges = [Range(a, "i", 0, 25), Range(b, "i", 5, 15)]
    parts = [
        Range(a, "i", 0, 8),
        Range(a, "i", 8, 16),
        Range(a, "i", 16, 25),
        Range(b, "i", 5, 15),
    ]
    assert split(ranges, 1, 10) == parts
    assert split(ranges, 1, 25) == ranges
    sizes = [r.end - r.start for r in split(ranges, 7, 10)]
    assert sizes == [4, 4, 4, 4, 4, 5, 5, 5]

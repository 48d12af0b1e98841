"""Histories replayed with assignors: the moves of each, and its violations."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup.assign import (
    GroupSpec,
    cooperative_sticky_assignor,
    range_assignor,
    sticky_assignor,
)
from kafkagroup.spark.replay import replay_one
from kafkagroup.types import Assignment, TopicPartition

TWO = {"a": ["t"], "b": ["t"]}
THREE = {**TWO, "c": ["t"]}
STORY = [(1, TWO), (2, THREE), (3, {"b": ["t"], "c": ["t"]})]


HISTORY = (
    "group_id string, topics map<string, int>,"
    " memberships array<struct<generation: int, members: map<string, array<string>>>>"
)


def churning(group: str) -> tuple[Any, ...]:
    """Return a group of 1000 members, of which 100 are replaced in each of three generations."""
    chance = random.Random(group)
    members, memberships = [f"m{n:05}" for n in range(1000)], []
    for generation in (1, 2, 3):
        memberships.append((generation, {member: ["topic"] for member in members}))
        for fresh in range(100):
            members[chance.randrange(1000)] = f"m{generation}{fresh:05}"
    return group, {"topic": 3000}, memberships


def generations(assignor: Any) -> list[tuple[int, ...]]:
    return [
        (s.members, s.rounds, s.moved, s.revoked, s.least, s.most, s.violations)
        for s in replay_one(STORY, {"t": 6}, assignor)
    ]


def test_a_recorded_group_is_replayed_with_three_assignors() -> None:
    """Sticky moves as few as cooperative-sticky, but revokes everything; range moves more."""
    assert generations(cooperative_sticky_assignor) == [
        (2, 1, 0, 0, 3, 3, 0),
        (3, 2, 2, 2, 2, 2, 0),
        (2, 1, 2, 0, 3, 3, 0),  # a has left: its partitions move, and no member revokes any
    ]
    assert generations(sticky_assignor) == [
        (2, 1, 0, 0, 3, 3, 0),
        (3, 1, 2, 6, 2, 2, 0),
        (2, 1, 2, 4, 3, 3, 0),
    ]
    assert generations(range_assignor) == [
        (2, 1, 0, 0, 3, 3, 0),
        (3, 1, 3, 6, 2, 2, 0),
        (2, 1, 3, 4, 3, 3, 0),
    ]


def test_rounds_end_at_a_limit() -> None:
    """An assignor that never becomes stable was reported with one round less."""
    rounds = count()

    def restless(spec: GroupSpec) -> Assignment:
        owner = sorted(spec.members)[next(rounds) % len(spec.members)]
        return {m: (TopicPartition("t", 0),) if m == owner else () for m in spec.members}

    restless.cooperative = True  # type: ignore[attr-defined]
    assert [(s.rounds, s.revoked) for s in replay_one(STORY[:1], {"t": 1}, restless)] == [(10, 0)]


def test_violations_are_counted() -> None:
    def forgetful(spec: GroupSpec) -> Assignment:
        return dict.fromkeys(spec.members, ())

    first, *_ = replay_one(STORY, {"t": 2}, forgetful)
    assert (first.violations, first.partitions) == (2, 0)
    assert first.violation == "incomplete: t/0 is assigned to no member that may have it"


def test_recorded_groups_in_parallel(spark: Any) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    from kafkagroup.spark import history, replay
    from kafkagroup.spark.events import schema

    def generation(group: str, number: int, offset: int, *members: str) -> dict[str, Any]:
        each = len(members) and 6 // len(members)
        return {
            "log_offset": offset,
            "record": "GroupMetadata",
            "kind": "classic",
            "group_id": group,
            "removed": False,
            "generation": {"number": number, "protocol_type": "consumer"},
            "members": [
                {
                    "member_id": m,
                    "topics": ["t"],
                    "assigned": [{"topic": "t", "partition": each * n + p} for p in range(each)],
                }
                for n, m in enumerate(members)
            ],
        }

    rows = [
        generation(group, *record)
        for group in ("g", "h")
        for record in (
            (1, 10, "a", "b"),
            (2, 11, "a"),
            (2, 12, "a", "b", "c"),
            (3, 13),
            (4, 14, "b", "c"),
        )
    ]
    names = schema().names
    events = spark.createDataFrame(
        [tuple(row.get(name) for name in names) for row in rows], from_arrow_schema(schema())
    )
    found = replay.replay(
        replay.histories(events), [cooperative_sticky_assignor, range_assignor]
    ).collect()
    assert {(r.group_id, r.assignor) for r in found} == {
        (group, name) for group in ("g", "h") for name in ("cooperative-sticky", "range")
    }
    for group in ("g", "h"):
        mine = sorted((r for r in found if r.group_id == group), key=lambda r: r.generation)
        assert [(r.generation, r.moved) for r in mine if r.assignor == "range"] == [
            (1, 0),
            (2, 3),
            (4, 3),
        ]
    assert history.undecoded(events).count() == 0
    planned = replay.replay(
        spark.createDataFrame([churning("group-0"), churning("group-1")], HISTORY),
        [cooperative_sticky_assignor],
    ).collect()
    assert len(planned) == 6
    assert {(r.members, r.least, r.most, r.violations) for r in planned} == {(1000, 3, 3, 0)}
    assert all(0 < r.moved <= 300 for r in planned if r.generation > 1)

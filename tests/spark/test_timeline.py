"""Group histories, record by record: their folded state, without Spark or Kafka."""

from __future__ import annotations

from typing import Any

import attrs

from kafkagroup.spark.timeline import Timeline, timeline_of

UNKNOWN_MEMBER: dict[str, Any] = dict.fromkeys(
    ("instance_id", "client_id", "client_host", "epoch", "state", "assigned")
)


def record(of: str, time: int, removed: bool = False, **more: Any) -> dict[str, Any]:
    kind = "classic" if of == "GroupMetadata" else "consumer"
    empty = {"generation": None, "state_time": None, "members": None}
    return {"record": of, "kind": kind, "removed": removed, "time": time, **empty, **more}


def member(name: str, *partitions: int, **more: Any) -> dict[str, Any]:
    assigned = [{"topic": "t", "topic_id": None, "partition": p} for p in partitions]
    return {
        **UNKNOWN_MEMBER,
        "member_id": name,
        "client_id": f"c-{name}",
        "assigned": assigned,
        **more,
    }


def classic(number: int, time: int, *members: dict[str, Any], took: int = 0) -> dict[str, Any]:
    return record(
        "GroupMetadata", time, generation=number, state_time=time - took, members=list(members)
    )


def rebalances(timeline: Timeline) -> list[tuple[Any, ...]]:
    return [
        (r.generation, r.cause, r.started, r.ended, r.members, r.moved) for r in timeline.rebalances
    ]


def ownership(timeline: Timeline) -> list[tuple[Any, ...]]:
    found = [
        (t.member_id, t.partition, t.generation, t.started, t.ended) for t in timeline.ownership
    ]
    return sorted(found, key=lambda t: (t[3], t[0], t[1]))


def test_rebalances_of_a_classic_group() -> None:
    timeline = timeline_of(
        [
            classic(1, 10, member("a", 0, 1), took=3),
            classic(2, 20, member("a", 0), member("b", 1), took=5),
            # The same generation again: a static member that came back. No rebalance.
            classic(2, 25, member("a", 0), member("b", 1)),
            classic(3, 30, member("a", 0), member("b", 1)),
            classic(4, 40, member("b", 0, 1)),
            classic(5, 50),
        ]
    )
    assert rebalances(timeline) == [
        (1, "first seen", 7, 10, 1, 0),
        (2, "1 joined", 15, 20, 2, 1),
        (3, "members joined again", 30, 30, 2, 0),
        (4, "1 left", 40, 40, 1, 1),
        (5, "all left", 50, 50, 0, 0),
    ]
    assert ownership(timeline) == [
        ("a", 0, 1, 10, 20),
        ("a", 1, 1, 10, 20),
        ("a", 0, 2, 20, 30),
        ("b", 1, 2, 20, 30),
        ("a", 0, 3, 30, 40),
        ("b", 1, 3, 30, 40),
        ("b", 0, 4, 40, 50),
        ("b", 1, 4, 40, 50),
    ]
    assert timeline.members == {}


def joined(name: str, time: int) -> dict[str, Any]:
    return record("ConsumerGroupMemberMetadata", time, members=[member(name)])


def epoch(number: int, time: int) -> dict[str, Any]:
    return record("ConsumerGroupMetadata", time, generation=number)


def current(name: str, number: int, state: int, time: int, *partitions: int) -> dict[str, Any]:
    of = member(name, *partitions, epoch=number, state=state)
    return record("ConsumerGroupCurrentMemberAssignment", time, members=[of])


def test_a_consumer_protocol_group_is_unstable_until_all_members_have_their_target() -> None:
    """b waits until a has revoked: meanwhile the partition has no owner."""
    timeline = timeline_of(
        [
            joined("a", 10),
            epoch(1, 10),
            current("a", 1, 0, 11, 0, 1),
            joined("b", 20),
            epoch(2, 20),
            current("b", 2, 2, 21),
            current("a", 1, 1, 22, 0),
            current("a", 2, 0, 24, 0),
            current("b", 2, 0, 27, 1),
        ]
    )
    assert rebalances(timeline) == [(1, "1 joined", 10, 11, 1, 0), (2, "1 joined", 20, 27, 2, 1)]
    assert [t for t in ownership(timeline) if t[1] == 1] == [
        ("a", 1, 1, 11, 22),
        ("b", 1, 2, 27, None),
    ]
    assert {m: (of.partitions, of.epoch, of.client_id) for m, of in timeline.members.items()} == {
        "a": (1, 2, "c-a"),
        "b": (1, 2, "c-b"),
    }


def test_a_consumer_protocol_member_leaves() -> None:
    gone = [member("a")]
    timeline = timeline_of(
        [
            joined("a", 10),
            joined("b", 10),
            epoch(1, 10),
            current("a", 1, 0, 11, 0),
            current("b", 1, 0, 12, 1),
            record("ConsumerGroupCurrentMemberAssignment", 20, removed=True, members=gone),
            record("ConsumerGroupMemberMetadata", 20, removed=True, members=gone),
            epoch(2, 20),
            current("b", 2, 0, 23, 0, 1),
            epoch(3, 30),
        ]
    )
    assert rebalances(timeline) == [
        (1, "2 joined", 10, 12, 2, 0),
        (2, "1 left", 20, 23, 1, 1),
        # It has not ended: no commit reports that.
        (3, "topics or assignor changed", 30, None, 1, 0),
    ]
    assert [t for t in ownership(timeline) if t[0] == "a"] == [("a", 0, 1, 11, 20)]


def test_a_static_member_that_restarts_is_the_same_owner() -> None:
    """Its member id is another one: in a classic group in the same generation, in a group of
    KIP-848 in the same epoch."""
    first, again = (member(name, 0, 1, instance_id="i") for name in ("i-1", "i-2"))
    timeline = timeline_of(
        [classic(1, 10, first), classic(1, 25, again), classic(2, 30, again, member("b"))]
    )
    assert rebalances(timeline) == [(1, "first seen", 10, 10, 1, 0), (2, "1 joined", 30, 30, 2, 0)]
    assert {(t.member_id, t.instance_id) for t in timeline.ownership} == {
        ("i-1", "i"),
        ("i-2", "i"),
    }

    def events(of: str, *members: dict[str, Any], **more: Any) -> dict[str, Any]:
        return record(f"ConsumerGroup{of}", members=list(members), **more)

    who = {"instance_id": "i", "epoch": 1, "state": 0}
    timeline = timeline_of(
        [
            events("MemberMetadata", member("m-1", instance_id="i"), time=10),
            epoch(1, 10),
            events("CurrentMemberAssignment", member("m-1", 0, 1, **who), time=11),
            # It leaves for now, and returns.
            events("CurrentMemberAssignment", member("m-1", 0, 1, **who | {"epoch": -2}), time=20),
            events("CurrentMemberAssignment", member("m-1"), time=25, removed=True),
            events("MemberMetadata", member("m-1"), time=25, removed=True),
            events("MemberMetadata", member("m-2", instance_id="i"), time=25),
            events("CurrentMemberAssignment", member("m-2", 0, 1, **who), time=25),
            joined("b", 30),
            epoch(2, 30),
        ]
    )
    assert rebalances(timeline) == [(1, "1 joined", 10, 11, 1, 0), (2, "1 joined", 30, None, 2, 0)]


def test_a_deleted_group_starts_again() -> None:
    timeline = timeline_of(
        [
            classic(7, 10, member("a", 0)),
            record("GroupMetadata", 20, removed=True),
            joined("a", 30),
            epoch(1, 30),
        ]
    )
    assert [(r.generation, r.kind) for r in timeline.rebalances] == [
        (7, "classic"),
        (1, "consumer"),
    ]
    assert ownership(timeline) == [("a", 0, 7, 10, 20)]
    assert list(timeline.members) == ["a"]


def history() -> list[dict[str, Any]]:
    """Return the records of a classic group that becomes one of the consumer protocol, with a
    static member that restarts in each."""
    static = {"instance_id": "i"}
    who = {**static, "epoch": 1, "state": 0}

    def events(of: str, *members: dict[str, Any], **more: Any) -> dict[str, Any]:
        return record(f"ConsumerGroup{of}", members=list(members), **more)

    return [
        classic(1, 10, member("a", 0, 1), took=3),
        classic(2, 20, member("a", 0), member("i-1", 1, **static), took=5),
        classic(2, 25, member("a", 0), member("i-2", 1, **static)),
        classic(3, 30, member("a", 0, 1)),
        record("GroupMetadata", 40, removed=True),
        joined("a", 50),
        events("MemberMetadata", member("m-1", **static), time=50),
        epoch(1, 50),
        current("a", 1, 0, 51, 0, 2),
        events("CurrentMemberAssignment", member("m-1", 1, **who), time=52),
        events("CurrentMemberAssignment", member("m-1"), time=60, removed=True),
        events("MemberMetadata", member("m-1"), time=60, removed=True),
        events("MemberMetadata", member("m-2", **static), time=60),
        events("CurrentMemberAssignment", member("m-2", 1, **who), time=60),
        joined("b", 70),
        epoch(2, 70),
        current("a", 1, 1, 71, 0),
        current("a", 2, 0, 72, 0),
        current("b", 2, 0, 73, 2),
        events("CurrentMemberAssignment", member("m-2", 1, **who | {"epoch": 2}), time=74),
    ]


def test_a_timeline_in_two_parts_is_that_of_all_records() -> None:
    records = history()
    whole = timeline_of(records)
    assert [r.moved for r in whole.rebalances] == [0, 1, 1, 1, 1]
    for n in range(len(records) + 1):
        first = timeline_of(records[:n])
        closed = list(map(attrs.asdict, first.rebalances[:-1]))
        ended = [attrs.asdict(span) for span in first.ownership if span.ended is not None]
        second = timeline_of(records[n:], first.state)
        assert closed + list(map(attrs.asdict, second.rebalances)) == list(
            map(attrs.asdict, whole.rebalances)
        )
        spans = ended + list(map(attrs.asdict, second.ownership))
        assert sorted(spans, key=str) == sorted(map(attrs.asdict, whole.ownership), key=str)
        assert {**attrs.asdict(second.state), "ownership": None} == {
            **attrs.asdict(whole.state),
            "ownership": None,
        }

"""The views of groups, from values alone."""

from __future__ import annotations

import io

import attrs
from rich.console import Console

from kafkagroup import Node, TopicPartition
from kafkagroup.admin import (
    GroupDescription,
    GroupState,
    GroupType,
    MemberDescription,
    PartitionLag,
)
from kafkagroup.cli._changes import changes_between, with_known_assignments
from kafkagroup.cli._describe_view import print_description
from kafkagroup.cli._lag_view import lag_line, lag_value, live_table, sparkline
from kafkagroup.wire import Subscription

ZERO, ONE, TWO = (TopicPartition("orders", p) for p in range(3))


def member(name: str, *partitions: TopicPartition, **options: object) -> MemberDescription:
    return MemberDescription(
        **{
            "member_id": name,
            "client_id": "me",
            "host": f"/{name}",
            "subscription": Subscription(topics=("orders",)),
            "partitions": partitions,
            **options,
        }
    )


def group(*members: MemberDescription, **options: object) -> GroupDescription:
    return GroupDescription(
        **{
            "group_id": "billing",
            "state": GroupState.STABLE,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "members": members,
            "coordinator": Node(1, "::1", 9092),
            **options,
        }
    )


def printed(what: object, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    if isinstance(what, GroupDescription):
        print_description(console, what, {})
    else:
        console.print(what)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


# ---------------------------------------------------------------- lag


def test_sparklines() -> None:
    assert sparkline([0, 1, 4, 7]) == "▁▂▅█"
    assert sparkline([None, 700, None]) == " █ "
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def test_a_live_table_has_the_largest_lags_that_fit() -> None:
    lags = {
        TopicPartition("orders", p): PartitionLag(committed=0, end=p, lag=p, seconds=p / 4)
        for p in range(1000)
    }
    lags[ZERO] = PartitionLag(committed=0, reason="there is no such partition")
    history = [dict.fromkeys(lags, 7), {tp: one.lag for tp, one in lags.items()}]
    rows = [line for line in printed(live_table("billing", lags, history, 2)) if line]
    assert rows[3:] == [
        "orders/999 0 999 999 249.750 ▁█",
        "orders/998 0 998 998 249.500 ▁█",
        "998 others",
        "total 499500 249.750 ▁█",
    ]


def test_lag_is_printed_in_a_line() -> None:
    lags = {
        ZERO: PartitionLag(committed=1, start=0, end=3, lag=2, seconds=1.25),
        ONE: PartitionLag(committed=3, start=0, end=3, lag=0, seconds=0.0),
    }
    assert lag_line("billing", lags) == "billing: lag 2 in 1 of 2 partitions, 1.250 s"
    lags[TWO] = PartitionLag(committed=9, start=0, end=3, reason="lost")
    assert lag_line("billing", lags).endswith(" 1 of 3 partitions, 1.250 s; 1 unknown")
    assert lag_line("g", {}) == "g: lag 0 in 0 of 0 partitions"
    assert lag_value("g", {}) == {"group_id": "g", "lag": 0, "seconds": None, "partitions": []}


# ---------------------------------------------------------------- descriptions


def test_a_rebalancing_group_is_shown_as_such() -> None:
    """KIP-848: the current partitions of each member, and its target."""
    found = printed(
        group(
            member("a", ZERO, ONE, target=(ZERO,), member_epoch=4),
            member("b", target=(ONE,), member_epoch=5),
            type=GroupType.CONSUMER,
            state=GroupState.RECONCILING,
            group_epoch=5,
            assignment_epoch=5,
        )
    )
    assert "coordinator [::1]:9092 (id 1)" in found
    assert "epoch 5, assignment of epoch 5" in found
    assert "a me /a 4 2 orders 0-1 -> orders 0" in found
    assert "b me /b 5 0 nothing -> orders 1" in found


def test_a_rebalancing_classic_group_is_shown_without_assignments() -> None:
    busy = group(member("a", partitions=None), state=GroupState.PREPARING_REBALANCE)
    assert "a me /a ?" in printed(busy)


# ---------------------------------------------------------------- changes


def test_no_change_prints_nothing() -> None:
    one = group(member("a", ZERO))
    assert not changes_between(one, one)
    assert changes_between(one, one).as_line() == "Stable; 1 member"
    assert not changes_between(None, None)
    assert changes_between(None, None).as_line() == "absent; 0 members"


def test_the_steps_of_a_rebalance_are_shown() -> None:
    """A classic group has no assignments while it rebalances: the last known ones are used."""
    before = group(member("a", ZERO, ONE), member("b", TWO))
    busy = group(
        member("a", partitions=None, subscription=None),
        member("c", partitions=None, subscription=None, instance_id="node-3"),
        state=GroupState.PREPARING_REBALANCE,
    )
    after = group(member("a", ZERO, TWO), member("c", ONE, instance_id="node-3"))

    change = changes_between(before, busy)
    assert change.cause == "1 joined, 1 left or timed out"
    assert change.as_line() == (
        "Stable -> PreparingRebalance; joined: node-3 (/c); left or timed out: b (/b);"
        " b no longer has orders 2"
    )
    change = changes_between(with_known_assignments(before, busy), after)
    assert change.cause is None
    assert change.as_line() == (
        "PreparingRebalance -> Stable; a no longer has orders 1; a gets orders 2;"
        " node-3 gets orders 1"
    )
    assert change.value() == {
        "state": "Stable",
        "state_before": "PreparingRebalance",
        "epoch": None,
        "member_count": 2,
        "cause": None,
        "joined": [],
        "gone": [],
        "came_again": [],
        "subscribed_anew": [],
        "gained": {"a": {"orders": [2]}, "node-3": {"orders": [1]}},
        "lost": {"a": {"orders": [1]}},
    }


def test_a_restarted_static_member_is_one_line() -> None:
    first, second = (member(name, ZERO, instance_id="node-1") for name in ("a", "b"))
    change = changes_between(group(first), group(second))
    assert change.as_line() == "Stable; rejoined: node-1 (/b)"
    assert change.cause == "1 rejoined"


def test_a_rebalance_without_a_visible_cause_is_shown() -> None:
    busy = group(member("a", partitions=None), state=GroupState.PREPARING_REBALANCE)
    cause = "the members are the same: they rejoined, or one joined and left"
    assert changes_between(group(member("a", ZERO)), busy).cause == cause


def test_a_new_epoch_of_a_single_member_is_shown() -> None:
    one = group(member("a", ZERO), type=GroupType.CONSUMER, group_epoch=4, assignment_epoch=4)
    change = changes_between(one, attrs.evolve(one, group_epoch=5))
    assert change.as_line() == (
        "Stable; epoch 5; the members are the same: topics or assignor changed, or one joined"
        " and left"
    )


def test_a_changed_subscription_is_shown() -> None:
    other = member("a", ZERO, subscription=Subscription(topics=("orders", "audit")))
    change = changes_between(group(member("a", ZERO)), group(other))
    assert (change.cause, bool(change)) == ("1 changed subscription", True)
    assert changes_between(group(member("a")), group(member("a", topic_pattern="x.*"))).cause


def test_a_group_already_rebalancing_is_shown() -> None:
    busy = group(member("a", partitions=None), state=GroupState.PREPARING_REBALANCE)
    after = group(member("a", ZERO))
    assert changes_between(with_known_assignments(None, busy), after).gained == {"a": (ZERO,)}
    # The first look of all: it may have had that for long.
    assert changes_between(busy, after).gained == {}


def test_a_group_that_is_created_and_removed_is_shown() -> None:
    one = group(member("a", ZERO))
    assert (
        changes_between(None, one).as_line() == "absent -> Stable; joined: a (/a); a gets orders 0"
    )
    assert changes_between(one, None).as_line() == (
        "Stable -> absent; left or timed out: a (/a); a no longer has orders 0"
    )

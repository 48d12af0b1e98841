"""Plans: the moves, when and why, and that every reason is correct."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import pytest
from assign.fuzz import random_group
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.assign import (
    Assignor,
    GroupSpec,
    MemberSpec,
    cooperative_sticky_assignor,
    range_assignor,
    roundrobin_assignor,
    weighted_sticky,
)
from kafkagroup.assign.plan import (
    MAX_ROUNDS,
    Change,
    MemberPlan,
    Move,
    Plan,
    Reason,
    Round,
    Spread,
    VoidClaim,
    plan,
    with_newcomers,
    without,
)
from kafkagroup.assign.spec import named
from kafkagroup.cli._assignors import ASSIGNORS
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import Assignment, TopicPartition


def tps(text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions from "a0 a1 b0"."""
    return tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())


def member(topics: str, owned: str = "", generation: int = 7, **more: Any) -> MemberSpec:
    return MemberSpec(topics=frozenset(topics), owned=tps(owned), generation=generation, **more)


def group(partitions: dict[str, int], **members: MemberSpec) -> GroupSpec:
    return GroupSpec(members=members, partitions=partitions)


def fixed(name: str = "fixed", *, cooperative: bool = False, **held: str) -> Assignor:
    """Return an assignor with a constant result."""

    @named(name, cooperative=cooperative)
    def assignor(spec: GroupSpec) -> Assignment:
        return {m: tps(text) for m, text in held.items()}

    return assignor


def reasons(found: Plan) -> dict[str, tuple[Reason, str]]:
    return {f"{m.partition.topic}{m.partition.partition}": (m.why, m.text) for m in found.moves}


# ---------------------------------------------------------------- whole plans


def test_the_plan_of_a_member_joining_a_cooperative_group() -> None:
    x, y = member("a", "a0 a1 a2"), member("a", rack="r1")
    assert plan(group({"a": 3}, x=x, y=y), cooperative_sticky_assignor) == Plan(
        assignor="cooperative-sticky",
        cooperative=True,
        members=(
            MemberPlan(
                member_id="x",
                before=tps("a0 a1 a2"),
                after=tps("a0 a1"),
                load_before=3.0,
                load_after=2.0,
            ),
            MemberPlan(member_id="y", before=(), after=tps("a2"), load_before=0.0, load_after=1.0),
        ),
        moves=(
            Move(
                partition=TopicPartition("a", 2),
                before="x",
                after="y",
                round=2,
                why=Reason.BALANCE,
                text="balance: x 3 -> 2, y 0 -> 1",
            ),
        ),
        void_claims=(),
        rounds=(
            Round(revoked={"x": tps("a2")}, assigned={}),
            Round(revoked={}, assigned={"y": tps("a2")}),
        ),
        settled=True,
        kept=2,
        paused=tps("a2"),
        unassigned=(),
    )


def test_an_eager_group_revokes_everything() -> None:
    x, y = member("a", "a0 a1 a2"), member("a")
    found = plan(group({"a": 3}, x=x, y=y), range_assignor)
    assert (found.cooperative, found.rounds, found.paused) == (
        False,
        (
            Round(
                revoked={"x": tps("a0 a1 a2")},
                assigned={"x": tps("a0 a1"), "y": tps("a2")},
            ),
        ),
        tps("a0 a1 a2"),
    )
    assert [(m.partition.partition, m.before, m.after, m.round) for m in found.moves] == [
        (2, "x", "y", 1)
    ]


def test_the_plan_of_a_leaving_member() -> None:
    was = group({"a": 4}, x=member("a", "a0 a1"), y=member("a", "a2 a3", instance_id="node-1"))
    found = plan(without(was, "node-1"), cooperative_sticky_assignor, was=was)
    assert reasons(found) == {
        "a2": (Reason.OWNER_LEFT, "node-1 left"),
        "a3": (Reason.OWNER_LEFT, "node-1 left"),
    }
    assert [(m.member_id, m.change, m.before, m.after) for m in found.members] == [
        ("x", Change.STAYS, tps("a0 a1"), tps("a0 a1 a2 a3")),
        ("y", Change.LEAVES, tps("a2 a3"), ()),
    ]
    assert found.rounds == (Round(revoked={}, assigned={"x": tps("a2 a3")}),)
    assert (found.kept, found.moved, found.given, found.dropped) == (2, 2, 0, 0)
    assert (found.spread_before, found.spread_after) == (Spread(2, 2), Spread(4, 4))
    assert found.paused == tps("a2 a3")


def test_the_plan_of_joining_members() -> None:
    was = group({"a": 4}, **{"x": member("a", "a0 a1 a2 a3"), "new-1": member("a")})
    then = with_newcomers(was, 2)
    assert set(then.members) == {"x", "new-1", "new-2", "new-3"}
    found = plan(then, cooperative_sticky_assignor, was=was)
    assert {m.member_id: (m.change, len(m.after)) for m in found.members} == {
        "x": (Change.STAYS, 1),
        "new-1": (Change.STAYS, 1),
        "new-2": (Change.JOINS, 1),
        "new-3": (Change.JOINS, 1),
    }
    assert (found.spread_before, found.spread_after) == (Spread(0, 4), Spread(1, 1))


def test_new_members_subscribe_to_all_topics_of_the_group() -> None:
    was = group({"a": 1}, x=member("a"), y=member("bc"))
    assert with_newcomers(was, 1).members["new-1"] == MemberSpec(topics=frozenset("abc"))
    assert with_newcomers(was, 0) == was


def test_an_unknown_member_cannot_leave() -> None:
    members = {f"m{n}": member("a") for n in range(6)}
    with pytest.raises(ConfigurationError) as caught:
        without(group({"a": 1}, **members), "mm")
    assert str(caught.value) == "'mm' is not in the group; its members: m0, m1, m2, m3, m4, ..."


def test_a_member_id_goes_before_another_members_instance_id() -> None:
    was = group({"a": 1}, x=member("a"), y=member("a", instance_id="x"))
    assert list(without(was, "x").members) == ["y"]


def test_the_plan_of_a_group_without_members_is_empty() -> None:
    found = plan(group({"a": 2}), range_assignor)
    assert (found.members, found.moves, found.unassigned) == ((), (), ())
    assert (found.spread_before, found.spread_after) == (Spread(0, 0), Spread(0, 0))


# ---------------------------------------------------------------- partitions without an owner


def test_partitions_without_an_owner_have_that_reason() -> None:
    """The spec does not say whether it is new or its owner left: the plan does not guess."""
    x, y = member("ab", "a0"), member("ab", "a1")
    fresh = plan(group({"a": 1}, x=member("a")), range_assignor)
    assert reasons(fresh) == {"a0": (Reason.UNOWNED, "no member owned any partition")}
    found = plan(group({"a": 3, "b": 1}, x=x, y=y), cooperative_sticky_assignor)
    assert reasons(found) == {
        "a2": (Reason.UNOWNED, "no member owned it"),
        "b0": (Reason.UNOWNED, "no member owned a partition of b"),
    }


def test_new_topics_and_new_partitions_are_distinguished_by_the_old_counts() -> None:
    x = member("ab", "a0")
    was, now = group({"a": 1}, x=x), group({"a": 2, "b": 1}, x=x)
    assert reasons(plan(now, range_assignor, was=was)) == {
        "a1": (Reason.PARTITION_NEW, "a grew from 1 to 2 partitions"),
        "b0": (Reason.TOPIC_NEW, "topic b is new"),
    }


def test_equally_claimed_partitions_have_no_owner() -> None:
    """Line 25: both must revoke it before any member gets it."""
    x, y = member("a", "a0 a1"), member("a", "a1")
    found = plan(group({"a": 2}, x=x, y=y), cooperative_sticky_assignor)
    text = "x and y claim it with the same generation, 7"
    assert [(m.before, m.after, m.round, m.why, m.text) for m in found.moves] == [
        (None, "y", 2, Reason.CLAIM_DOUBLED, text)
    ]
    assert found.void_claims == tuple(
        VoidClaim(member_id=m, partition=tps("a1")[0], why=Reason.CLAIM_DOUBLED, text=text)
        for m in "xy"
    )
    assert found.paused == tps("a1")


# ---------------------------------------------------------------- claims that do not count


def test_ignored_claims_are_a_reason() -> None:
    spec = group(
        {"a": 1, "b": 1, "d": 1},
        x=member("a", "a0 b0", instance_id="node-1"),
        y=member("abd", "a0 b0 c0 d1 d0 d0", 6),
    )
    found = plan(spec, cooperative_sticky_assignor)
    assert [(c.member_id, str(c.partition), c.why, c.text) for c in found.void_claims] == [
        ("y", "a/0", Reason.CLAIM_STALE, "node-1 claimed it later, in generation 7"),
        ("y", "b/0", Reason.CLAIM_STALE, "node-1 claimed it later, in generation 7"),
        ("y", "c/0", Reason.GONE, "topic c does not exist"),
        ("y", "d/1", Reason.GONE, "d has 1 partitions"),
    ]
    assert {m.member_id: m.before for m in found.members} == {"x": tps("a0 b0"), "y": tps("d0")}


def test_releasing_a_stale_claim_interrupts_no_member() -> None:
    x, y = member("a", "a0"), member("a", "a0", 6)
    found = plan(group({"a": 1}, x=x, y=y), cooperative_sticky_assignor)
    assert (found.moves, found.paused, len(found.rounds)) == ((), (), 2)
    assert found.rounds[0].revoked == {"y": tps("a0")}


# ---------------------------------------------------------------- reasons about owned partitions


def test_an_owner_that_no_longer_subscribes_is_a_reason() -> None:
    """It still reports a/0 as owned, so y gets it in a second rebalance."""
    x, y = member("b", "a0"), member("a")
    found = plan(group({"a": 1}, x=x, y=y), cooperative_sticky_assignor)
    assert reasons(found) == {
        "a0": (Reason.OWNER_UNSUBSCRIBED, "x no longer subscribes to a"),
    }
    assert found.rounds == (
        Round(revoked={"x": tps("a0")}, assigned={}),
        Round(revoked={}, assigned={"y": tps("a0")}),
    )


def test_unassigned_partitions_are_listed() -> None:
    was = group({"a": 2, "b": 1, "c": 1, "d": 1}, x=member("abcd", "a0 a1 b0 c0 d0"))
    now = group({"a": 1, "c": 1, "d": 1}, x=member("ad", "a0 d0"))
    found = plan(now, fixed(x="a0"), was=was)
    assert reasons(found) == {
        "a1": (Reason.GONE, "a has 1 partitions"),
        "b0": (Reason.GONE, "topic b does not exist"),
        "c0": (Reason.NO_SUBSCRIBER, "no member subscribes to c"),
        "d0": (Reason.LEFT_OUT, "fixed assigns it to no member"),
    }
    assert (found.kept, found.dropped, found.unassigned) == (1, 4, tps("d0"))


def test_moves_for_balance_and_needless_moves_are_distinguished() -> None:
    """z joins; range moves a2 to y, which needs none: y gives two to z."""
    x, y = member("a", "a0 a1 a2"), member("a", "a3 a4 a5")
    found = plan(group({"a": 6}, x=x, y=y, z=member("a")), range_assignor)
    assert reasons(found) == {
        "a2": (Reason.NOT_STICKY, "range ignores who owned it"),
        "a4": (Reason.NOT_STICKY, "range ignores who owned it"),
        "a5": (Reason.BALANCE, "balance: y 3 -> 2, z 0 -> 2"),
    }


def test_of_several_equivalent_moves_all_but_one_are_needless() -> None:
    """Two of the three moves would have made 3 and 3 of 5 and 1; now it is 4 and 2, the other
    way."""
    spec = group({"a": 6}, x=member("a", "a0 a1 a2 a3 a4"), y=member("a", "a5"))
    assert reasons(plan(spec, fixed(x="a3 a4", y="a0 a1 a2 a5"))) == {
        "a0": (Reason.NOT_STICKY, "fixed ignores who owned it"),
        "a1": (Reason.BALANCE, "balance: x 5 -> 2, y 1 -> 4"),
        "a2": (Reason.BALANCE, "balance: x 5 -> 2, y 1 -> 4"),
    }


def test_circular_moves_are_needless() -> None:
    """x passes to y, y to z, z to x: without the moves the counts would be the same."""
    spec = group({"a": 3}, x=member("a", "a0"), y=member("a", "a1"), z=member("a", "a2"))
    found = plan(spec, fixed(x="a2", y="a0", z="a1"))
    assert {m.why for m in found.moves} == {Reason.NOT_STICKY}


def test_a_swap_needs_both_subscriptions() -> None:
    """w passes a to y and gets b, to which y does not subscribe: a chain, and necessary."""
    spec = group(
        {"a": 1, "b": 2},
        w=member("ab", "a0"),
        x=member("b", "b0 b1"),
        y=member("a"),
    )
    assert reasons(plan(spec, fixed(w="b0", x="b1", y="a0"))) == {
        "a0": (Reason.BALANCE, "balance: without it w would have 2, y 0"),
        "b0": (Reason.BALANCE, "balance: without it x would have 2, w 0"),
    }


def test_a_swap_is_a_needless_move() -> None:
    @named("swap")
    def swap(spec: GroupSpec) -> Assignment:
        x, y = spec.members.values()
        return {"x": y.owned, "y": x.owned}

    spec = group({"a": 2}, x=member("a", "a0"), y=member("a", "a1"))
    assert reasons(plan(spec, swap)) == {
        "a0": (Reason.FREE_CHOICE, "swap moves it without need"),
        "a1": (Reason.FREE_CHOICE, "swap moves it without need"),
    }


def test_a_move_that_reduces_balance_is_not_for_balance() -> None:
    spec = group({"a": 2}, x=member("a", "a0"), y=member("a", "a1"))
    assert reasons(plan(spec, fixed(y="a0 a1"))) == {
        "a0": (Reason.NOT_STICKY, "fixed ignores who owned it"),
    }


def nearest(spec: GroupSpec) -> Assignment:
    """Assign each partition to the first member in a rack of its replicas, otherwise to the
    first."""
    held: dict[str, list[TopicPartition]] = {m: [] for m in spec.order()}
    for topic in spec.topics():
        for p in range(spec.partitions[topic]):
            here = spec.racks[topic][p] if topic in spec.racks else frozenset()
            near = [m for m in held if spec.members[m].rack in here] or list(held)
            held[near[0]].append(TopicPartition(topic, p))
    return {m: tuple(partitions) for m, partitions in held.items()}


def test_a_move_to_the_rack_of_a_replica_has_that_reason() -> None:
    spec = attrs.evolve(
        group(
            {"a": 3},
            x=member("a", "a0 a1", rack="r1"),
            y=member("a", "a2", rack="r2"),
        ),
        racks={"a": (frozenset({"r1"}), frozenset({"r2"}), frozenset())},
    )
    assert reasons(plan(spec, nearest)) == {
        "a1": (Reason.RACK, "a replica is in y's rack r2, none in x's"),
        "a2": (Reason.NOT_STICKY, "nearest ignores who owned it"),
    }


def test_a_rack_is_no_reason_if_the_owner_is_in_a_replicas_rack() -> None:
    """Without racks `nearest` would leave a0 with w, the first member; it moves nevertheless."""
    spec = attrs.evolve(
        group(
            {"a": 1},
            w=member("a"),
            x=member("a", rack="r1"),
            y=member("a", "a0", rack="r2"),
        ),
        racks={"a": (frozenset({"r1", "r2"}),)},
    )
    assert reasons(plan(spec, nearest)) == {
        "a0": (Reason.NOT_STICKY, "nearest ignores who owned it"),
    }


def test_a_rack_is_no_reason_for_an_assignor_that_ignores_racks() -> None:
    spec = attrs.evolve(
        group({"a": 2}, x=member("a", "a0 a1", rack="r1"), y=member("a", rack="r2")),
        racks={"a": (frozenset({"r2"}), frozenset({"r2"}))},
    )
    assert reasons(plan(spec, fixed(x="a0", y="a1"))) == {
        "a1": (Reason.BALANCE, "balance: x 2 -> 1, y 0 -> 1")
    }


def greedy(spec: GroupSpec) -> Assignment:
    """Assign the heaviest partition first, to the member that it fills least."""
    held: dict[str, list[TopicPartition]] = {m: [] for m in spec.order()}
    full = dict.fromkeys(held, 0.0)
    there = [TopicPartition(t, p) for t in spec.topics() for p in range(spec.partitions[t])]
    for tp in sorted(there, key=lambda tp: (-spec.loads.get(tp, 1.0), tp)):
        least = min(held, key=lambda m: full[m])
        full[least] += spec.loads.get(tp, 1.0) / spec.members[least].capacity
        held[least].append(tp)
    return {m: tuple(sorted(partitions)) for m, partitions in held.items()}


def test_a_partition_that_moves_for_its_load() -> None:
    """By counts alone a1 would have stayed: 2 and 2."""
    spec = attrs.evolve(
        group({"a": 4}, x=member("a", "a0 a2"), y=member("a", "a1 a3")),
        loads={TopicPartition("a", 0): 9.0, TopicPartition("a", 2): 0.5},
    )
    found = plan(spec, greedy)
    assert reasons(found) == {"a2": (Reason.LOAD, "load: x 9.5 -> 9, y 2 -> 2.5")}
    assert [(m.member_id, m.load_before, m.load_after) for m in found.members] == [
        ("x", 9.5, 9.0),
        ("y", 2.0, 2.5),
    ]


def test_loads_are_weighed_by_capacities() -> None:
    """y carries three times as much as x, of four times the capacity."""
    spec = group({"a": 4}, x=member("a", "a0 a2"), y=member("a", "a1 a3", capacity=4.0))
    assert reasons(plan(spec, greedy)) == {"a2": (Reason.LOAD, "load: x 2 -> 1, y 2 -> 3")}


def test_the_load_of_a_member_that_joins_is_a_reason() -> None:
    """It once raised a KeyError: the member had no load before."""
    spec = attrs.evolve(
        group({"a": 3}, x=member("a", "a0 a1 a2")),
        loads={TopicPartition("a", p): load for p, load in enumerate((1e7 + 2, 1e7, 1.0))},
    )
    found = plan(with_newcomers(spec, 1), weighted_sticky(), was=spec)
    assert reasons(found) == {
        "a0": (Reason.LOAD, "load: x 20000003 -> 10000001, new-1 0 -> 10000002")
    }


def test_a_load_is_no_reason_for_an_assignor_that_ignores_loads() -> None:
    spec = attrs.evolve(
        group({"a": 2}, x=member("a", "a0 a1"), y=member("a", capacity=3.0)),
        loads={TopicPartition("a", 0): 9.0},
    )
    assert reasons(plan(spec, fixed(x="a0", y="a1"))) == {
        "a1": (Reason.BALANCE, "balance: x 2 -> 1, y 0 -> 1")
    }


# ---------------------------------------------------------------- assignors of any kind


def test_each_planned_rebalance_starts_with_the_current_owners() -> None:
    passed = []

    @named("watched", cooperative=True)
    def watched(spec: GroupSpec) -> Assignment:
        passed.append({m: (of.owned, of.generation) for m, of in spec.members.items()})
        return {
            "x": tps("a0"),
            "y": tps("a1") if tps("a1")[0] not in spec.members["x"].owned else (),
        }

    plan(group({"a": 2}, x=member("a", "a0 a1", 7), y=member("a", "", 5)), watched)
    assert passed[:2] == [
        {"x": (tps("a0 a1"), 7), "y": ((), 5)},
        {"x": (tps("a0"), 8), "y": ((), 8)},
    ]


def test_a_cooperative_assignor_that_never_converges_is_planned_for_some_rounds() -> None:
    @named("restless", cooperative=True)
    def restless(spec: GroupSpec) -> Assignment:
        x_has_it = bool(spec.members["x"].owned)
        return {"y" if x_has_it else "x": tps("a0")}

    found = plan(group({"a": 1}, x=member("a", "a0"), y=member("a")), restless)
    assert (found.settled, len(found.rounds)) == (False, MAX_ROUNDS)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"z": "a0"}, "assignor 'fixed' assigns to 'z', which is not a member"),
        ({"x": "a0", "y": "a0"}, "assignor 'fixed' assigns a/0 to 'x' and to 'y'"),
        ({"x": "a0 a0"}, "assignor 'fixed' assigns a/0 to 'x' and to 'x'"),
    ],
)
def test_an_invalid_assignment_is_an_error(held: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan(group({"a": 1}, x=member("a"), y=member("a")), fixed(**held))
    assert str(caught.value) == message


# ---------------------------------------------------------------- any group


@st.composite
def specs(draw: st.DrawFn) -> GroupSpec:
    partitions = draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, 5), max_size=3))
    claims = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), max_size=8)
    return GroupSpec(
        members={
            m: MemberSpec(
                topics=draw(st.frozensets(st.sampled_from("abcd"))),
                owned=tuple(sorted({TopicPartition(*tp) for tp in draw(claims)})),
                generation=draw(st.integers(5, 7)),
            )
            for m in draw(st.sets(st.sampled_from("uvwxyz"), min_size=1))
        },
        partitions=partitions,
    )


@pytest.mark.slow
@settings(max_examples=300)
@given(specs(), st.sampled_from((range_assignor, roundrobin_assignor, cooperative_sticky_assignor)))
def test_counts_and_reasons_are_consistent(spec: GroupSpec, assignor: Assignor) -> None:
    found = plan(spec, assignor)
    assert found == plan(spec, assignor)
    assert found.settled
    assert found.unassigned == ()
    before = {tp: m.member_id for m in found.members for tp in m.before}
    after = {tp: m.member_id for m in found.members for tp in m.after}
    assert len(before) == found.kept + found.moved + found.dropped
    assert len(after) == found.kept + found.moved + found.given
    assert {m.partition: (m.before, m.after) for m in found.moves} == {
        tp: (before.get(tp), after.get(tp))
        for tp in before.keys() | after.keys()
        if before.get(tp) != after.get(tp)
    }
    for move in found.moves:
        if move.why is Reason.BALANCE:
            assert _balances(found.moves, move, after), move
        else:
            assert CHECKS[move.why](spec, move), move


def changing_groups(seeds: Iterable[int]) -> Iterator[tuple[GroupSpec, GroupSpec]]:
    """Generate groups before and after members join or leave; some have loads and capacities."""
    for seed in seeds:
        chance = random.Random(seed)
        was = random_group(chance)
        # Without a load of its own, what a member carries shows no reason.
        was = attrs.evolve(was, loads={tp: load or 1.0 for tp, load in was.loads.items()})
        spec = with_newcomers(was, chance.choice((0, 0, 1, 2)))
        if chance.random() < 0.4:
            spec = without(spec, chance.choice(sorted(spec.members)))
        yield was, spec


IGNORING = {"naive", "range", "roundrobin"}
"""The assignors that ignore who owned a partition."""

DIFFERENCES = (
    re.compile(r"(?P<giver>\S+) (\S+) -> (\S+), (?P<taker>\S+) (\S+) -> (\S+)"),
    re.compile(r"without it (?P<giver>\S+) would have (\S+), (?P<taker>\S+) (\S+)"),
)


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)
def test_every_reason_is_true(assignor: Assignor) -> None:
    for was, spec in changing_groups(range(400)):
        _assert_reasons(assignor, was, spec)


def _assert_reasons(assignor: Assignor, was: GroupSpec, spec: GroupSpec) -> None:
    found = plan(spec, assignor, was=was)
    members = {m.member_id: m for m in found.members}
    for move in found.moves:
        match move.why:
            case Reason.BALANCE:
                totals = {m: (len(of.before), len(of.after)) for m, of in members.items()}
                _assert_difference(members, move, "balance: ", totals, 1, dict.fromkeys(totals, 1))
            case Reason.LOAD:
                totals = {m: (of.load_before, of.load_after) for m, of in members.items()}
                capacities = {m: of.capacity for m, of in members.items()}
                load = spec.loads.get(move.partition, 1.0)
                _assert_difference(members, move, "load: ", totals, load, capacities)
            case Reason.NOT_STICKY:
                assert found.assignor in IGNORING
            case Reason.FREE_CHOICE:
                assert found.assignor not in IGNORING
            case Reason.OWNER_LEFT:
                assert move.before not in spec.members
            case Reason.RACK:
                racks = spec.racks[move.partition.topic][move.partition.partition]
                assert spec.members[str(move.after)].rack in racks
                assert spec.members[str(move.before)].rack not in racks
            case Reason.OWNER_UNSUBSCRIBED | Reason.NO_SUBSCRIBER:
                assert CHECKS[move.why](spec, move), move
            case _:
                assert CHECKS[move.why](was, move), move


def _assert_difference(
    members: Mapping[str, MemberPlan],
    move: Move,
    start: str,
    totals: Mapping[str, tuple[float, float]],
    moved: float,
    capacities: Mapping[str, float],
) -> None:
    """Check that the text has the totals of both members, and that they show a need."""
    assert move.text.startswith(start)
    match = next(filter(None, (d.fullmatch(move.text, len(start)) for d in DIFFERENCES)))
    for role, member in (("giver", move.before), ("taker", move.after)):
        assert match[role] == (members[str(member)].instance_id or member)
    numbers = [float(n) for n in match.groups() if n not in (match["giver"], match["taker"])]
    giver, taker = totals[str(move.before)], totals[str(move.after)]
    if len(numbers) == 4:
        assert numbers == pytest.approx([*giver, *taker])
        assert giver[0] > giver[1], move
        assert taker[0] < taker[1], move
    else:
        assert numbers == pytest.approx([giver[1] + moved, taker[1] - moved])
        assert not (giver[0] > giver[1] and taker[0] < taker[1])
        capacity = [capacities[str(m)] for m in (move.before, move.after)]
        # Without the move the larger of the two would be larger still.
        assert max(numbers[0] / capacity[0], numbers[1] / capacity[1]) > max(
            giver[1] / capacity[0], taker[1] / capacity[1]
        )


Owners = dict[TopicPartition, str]


def _balances(moves: tuple[Move, ...], move: Move, after: Owners) -> bool:
    """Whether the move is still needed without the needless ones."""
    unneeded = [m for m in moves if m.why in (Reason.NOT_STICKY, Reason.FREE_CHOICE)]
    counts = Counter(after.values())
    giver = counts[str(move.before)] + sum(m.before == move.before for m in unneeded)
    taker = counts[str(move.after)] - sum(m.after == move.after for m in unneeded)
    return giver >= taker


def _claimants(spec: GroupSpec, tp: TopicPartition) -> list[str]:
    """Return the members with equal claims."""
    claims = [m for m, of in spec.members.items() if tp in of.owned]
    newest = max((spec.members[m].generation for m in claims), default=None)
    return [m for m in claims if spec.members[m].generation == newest]


CHECKS: dict[Reason, Callable[[GroupSpec, Move], bool]] = {
    Reason.OWNER_UNSUBSCRIBED: lambda spec, move: (
        move.partition.topic not in spec.members[str(move.before)].topics
    ),
    Reason.NO_SUBSCRIBER: lambda spec, move: (
        not any(move.partition.topic in m.topics for m in spec.members.values())
    ),
    Reason.CLAIM_DOUBLED: lambda spec, move: len(_claimants(spec, move.partition)) > 1,
    Reason.UNOWNED: lambda spec, move: _claimants(spec, move.partition) == [],
    Reason.NOT_STICKY: lambda spec, move: True,
    Reason.FREE_CHOICE: lambda spec, move: False,
}
"""Reason -> whether it is true of a move. The assignors here choose nothing freely."""

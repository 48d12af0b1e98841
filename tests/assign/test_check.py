"""The check of assignments: it finds each kind of violation, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.assign import GroupSpec, MemberSpec
from kafkagroup.assign.check import (
    COOPERATIVE,
    EVEN,
    RULES,
    STICKY,
    VALID,
    Kind,
    Violation,
    newest_claims,
    violations,
)
from kafkagroup.types import Assignment, TopicPartition

ALL = frozenset(Kind)


def tps(text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions from "a0 a1 b0"."""
    return tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())


def member(topics: str, owned: str = "", generation: int = 7) -> MemberSpec:
    return MemberSpec(topics=frozenset(topics), owned=tps(owned), generation=generation)


def spec(partitions: dict[str, int], **members: MemberSpec) -> GroupSpec:
    return GroupSpec(members=members, partitions=partitions)


def assigned(**members: str) -> Assignment:
    return {m: tps(text) for m, text in members.items()}


# ---------------------------------------------------------------- planted, one of each kind


def test_a_correct_assignment_has_no_violation() -> None:
    group = spec({"a": 5, "b": 1}, x=member("a", "a0 a1"), y=member("a"), z=member("b"))
    assert violations(group, assigned(x="a0 a1 a4", y="a2 a3", z="b0"), ALL) == ()


def test_an_unknown_member_is_a_violation() -> None:
    """Its partitions are also unassigned, unless a member gets them, too."""
    group = spec({"a": 2}, x=member("a"))
    assert violations(group, assigned(x="a0", ghost="a1")) == (
        Violation(Kind.NOT_A_MEMBER, ("ghost",), tps("a1"), "ghost is not a member and gets a/1"),
        Violation(Kind.INCOMPLETE, (), tps("a1"), "a/1 is assigned to no member that may have it"),
    )
    assert violations(group, assigned(x="a0 a1", ghost="")) == ()


def test_an_assigned_missing_partition_is_a_violation() -> None:
    group = spec({"a": 1}, x=member("ab"))
    assert violations(group, {"x": (TopicPartition("a", -1), *tps("a0 a1 b0"))}) == (
        Violation(
            Kind.NO_SUCH_PARTITION,
            ("x",),
            (TopicPartition("a", -1),),
            "x gets a/-1, which does not exist",
        ),
        Violation(Kind.NO_SUCH_PARTITION, ("x",), tps("a1"), "x gets a/1, which does not exist"),
        Violation(Kind.NO_SUCH_PARTITION, ("x",), tps("b0"), "x gets b/0, which does not exist"),
    )


def test_an_unsubscribed_topic_is_a_violation() -> None:
    group = spec({"a": 1, "b": 1}, x=member("a"))
    assert violations(group, assigned(x="a0 b0")) == (
        Violation(Kind.NOT_SUBSCRIBED, ("x",), tps("b0"), "x gets b/0 and does not subscribe to b"),
    )


def test_a_partition_with_two_owners_is_a_violation() -> None:
    group = spec({"a": 2}, x=member("a"), y=member("a"))
    assert violations(group, assigned(y="a0 a1 a1", x="a0")) == (
        Violation(Kind.DOUBLED, ("x", "y"), tps("a0"), "a/0 is assigned to x and y"),
        Violation(Kind.DOUBLED, ("y", "y"), tps("a1"), "a/1 is assigned to y and y"),
    )


def test_an_unassigned_partition_is_a_violation() -> None:
    group = spec({"a": 3, "unwanted": 1}, x=member("a"), y=member("a"))
    assert violations(group, assigned(x="a1")) == (
        Violation(Kind.INCOMPLETE, (), tps("a0"), "a/0 is assigned to no member that may have it"),
        Violation(Kind.INCOMPLETE, (), tps("a2"), "a/2 is assigned to no member that may have it"),
    )


def test_a_cooperative_rebalance_may_withhold_partitions_that_another_owns() -> None:
    group = spec({"a": 3}, x=member("a", "a0 a1"), y=member("a"))
    assert violations(group, assigned(x="a0", y="a2"), COOPERATIVE) == ()
    assert violations(group, assigned(x="a0 a1"), COOPERATIVE) == (
        Violation(Kind.INCOMPLETE, (), tps("a2"), "a/2 is assigned to no member that may have it"),
    )


def test_a_cooperative_rebalance_may_not_withhold_partitions_only_the_owner_can_get() -> None:
    group = spec({"a": 1}, x=member("a", "a0"), y=member("b"))
    left_out = Violation(
        Kind.INCOMPLETE, (), tps("a0"), "a/0 is assigned to no member that may have it"
    )
    assert violations(group, assigned(), COOPERATIVE) == (left_out,)


def test_a_cooperative_rebalance_may_withhold_partitions_claimed_twice() -> None:
    """Behaviour 25: equal claims invalidate each other, so both members revoke first."""
    group = spec({"a": 1}, x=member("a", "a0"), y=member("a", "a0"))
    assert violations(group, assigned(), COOPERATIVE) == ()


def test_a_partition_moved_while_it_is_owned_is_a_violation() -> None:
    """Behaviour 26. After the owner has revoked it, the assignment is valid."""
    group = spec({"a": 2}, x=member("a", "a0 a1"), y=member("a"))
    assert violations(group, assigned(x="a0", y="a1"), COOPERATIVE) == (
        Violation(
            Kind.HANDED_OVER, ("y", "x"), tps("a1"), "y gets a/1 while x may still process it"
        ),
    )
    after = spec({"a": 2}, x=member("a", "a0"), y=member("a"))
    assert violations(after, assigned(x="a0", y="a1"), COOPERATIVE) == ()


def test_equal_claims_block_each_other() -> None:
    group = spec({"a": 1}, x=member("a", "a0"), y=member("a", "a0"), z=member("a"))
    assert violations(group, assigned(x="a0"), COOPERATIVE) == (
        Violation(
            Kind.HANDED_OVER, ("x", "y"), tps("a0"), "x gets a/0 while y may still process it"
        ),
    )
    assert violations(group, assigned(z="a0"), COOPERATIVE) == (
        Violation(
            Kind.HANDED_OVER,
            ("z", "x", "y"),
            tps("a0"),
            "z gets a/0 while x and y may still process it",
        ),
    )


def test_a_stale_claim_neither_blocks_nor_hides_a_move() -> None:
    """Behaviour 26: z may have it once y has revoked it, despite the stale claim of x."""
    stale, newest = member("a", "a0", 5), member("a", "a0", 8)
    group = spec({"a": 1}, x=stale, y=newest, z=member("a"))
    assert violations(group, assigned(y="a0"), COOPERATIVE) == ()
    assert violations(group, assigned(x="a0"), COOPERATIVE) == (
        Violation(
            Kind.HANDED_OVER, ("x", "y"), tps("a0"), "x gets a/0 while y may still process it"
        ),
    )


def test_a_claim_to_a_missing_partition_is_ignored() -> None:
    group = spec({"a": 1, "b": 1}, x=member("a", "a5"), y=member("ab"))
    left_out = Violation(
        Kind.INCOMPLETE, (), tps("a0"), "a/0 is assigned to no member that may have it"
    )
    assert violations(group, assigned(y="b0"), COOPERATIVE) == (left_out,)


def test_a_claim_is_valid_without_a_subscription() -> None:
    """KIP-429: x must revoke a/0 before y may get it, although only y subscribes to it."""
    group = spec({"a": 1, "b": 1}, x=member("b", "a0"), y=member("ab"))
    assert violations(group, assigned(x="b0"), COOPERATIVE) == ()
    assert violations(group, assigned(x="b0", y="a0"), COOPERATIVE) == (
        Violation(
            Kind.HANDED_OVER, ("y", "x"), tps("a0"), "y gets a/0 while x may still process it"
        ),
    )


def test_nothing_is_moved_from_an_owner_that_no_longer_subscribes() -> None:
    group = spec({"a": 1, "b": 1}, x=member("b", "a0"), y=member("ab"))
    assert violations(group, assigned(x="b0", y="a0"), STICKY) == ()


def test_counts_that_one_move_would_balance_are_a_violation() -> None:
    group = spec({"a": 3}, x=member("a"), y=member("a"))
    assert violations(group, assigned(x="a0 a1 a2"), EVEN) == (
        Violation(Kind.UNBALANCED, ("x", "y"), tps("a2"), "x has 3, y 0; evened out by a/2 to y"),
    )
    assert violations(group, assigned(x="a0 a1", y="a2"), EVEN) == ()


def test_counts_that_a_chain_of_moves_would_balance_are_a_violation() -> None:
    """z can pass nothing to x, but to y, which can pass on to x."""
    group = spec({"a": 1, "b": 2}, x=member("a"), y=member("ab"), z=member("b"))
    assert violations(group, assigned(y="a0", z="b0 b1"), EVEN) == (
        Violation(
            Kind.UNBALANCED,
            ("z", "y", "x"),
            tps("b1 a0"),
            "z has 2, x 0; evened out by b/1 to y, a/0 to x",
        ),
    )


def test_the_largest_imbalance_is_reported() -> None:
    group = spec({"a": 2, "b": 4}, u=member("a"), v=member("a"), x=member("b"), y=member("b"))
    assert violations(group, assigned(u="a0 a1", x="b0 b1 b2 b3"), EVEN) == (
        Violation(Kind.UNBALANCED, ("x", "y"), tps("b3"), "x has 4, y 0; evened out by b/3 to y"),
    )


def test_of_equally_wide_gaps_the_shortest_chain_is_reported() -> None:
    """The chains from f to x and y, and from f to y only, have equal gaps."""
    group = spec({"a": 1, "b": 3}, x=member("a"), y=member("b"), m=member("ab"), f=member("b"))
    assert violations(group, assigned(m="a0", f="b0 b1 b2"), EVEN) == (
        Violation(Kind.UNBALANCED, ("f", "y"), tps("b2"), "f has 3, y 0; evened out by b/2 to y"),
    )


def test_a_shorter_chain_to_a_fuller_member_is_reported_if_its_gap_is_as_wide() -> None:
    group = spec(
        {"a": 1, "b": 2, "c": 4},
        x=member("a"),
        m=member("ab"),
        g=member("b"),
        y=member("c"),
        z=member("c"),
    )
    assert violations(group, assigned(m="a0", g="b0 b1", y="c0", z="c1 c2 c3"), EVEN) == (
        Violation(Kind.UNBALANCED, ("z", "y"), tps("c3"), "z has 3, y 1; evened out by c/3 to y"),
    )


def test_unequal_counts_forced_by_subscriptions_are_no_violation() -> None:
    group = spec({"a": 1, "b": 5}, x=member("a"), y=member("b"))
    assert violations(group, assigned(x="a0", y="b0 b1 b2 b3 b4"), ALL) == ()


def test_a_partition_that_its_owner_could_keep_is_a_violation() -> None:
    group = spec({"a": 3}, x=member("a", "a0 a1"), y=member("a", "a2"))
    assert violations(group, assigned(x="a0", y="a1 a2"), STICKY) == (
        Violation(
            Kind.MOVED_WITHOUT_NEED,
            ("x", "y"),
            tps("a1"),
            "y has a/1, which x owned and could get back: x has 1, y 2",
        ),
    )


def test_a_partition_that_its_owner_could_keep_by_an_exchange_is_a_violation() -> None:
    group = spec({"a": 4}, x=member("a", "a0 a1"), y=member("a", "a2"))
    assert violations(group, assigned(x="a0 a3", y="a1 a2"), STICKY) == (
        Violation(
            Kind.MOVED_WITHOUT_NEED,
            ("x", "y"),
            tps("a1 a3"),
            "y has a/1, which x owned and could get back in exchange for a/3",
        ),
    )


def test_an_exchange_needs_both_subscriptions() -> None:
    """x had to pass something to y for balance, and y cannot take b0 instead."""
    group = spec({"a": 3, "b": 1}, x=member("ab", "a0 a1 a2"), y=member("a"))
    assert violations(group, assigned(x="a0 b0", y="a1 a2"), STICKY) == ()


def test_moves_for_balance_or_from_innewest_claims_are_no_violation() -> None:
    group = spec(
        {"a": 5},
        x=member("a", "a0 a1 a2", 8),
        y=member("a", "a3"),
        z=member("a", "a3"),
        w=member("a", "a0", 5),
    )
    assert violations(group, assigned(x="a0 a1", y="a2", z="a4", w="a3"), STICKY) == ()


def test_balance_and_needless_moves_are_checked_only_for_complete_assignments() -> None:
    group = spec({"a": 4}, x=member("a", "a0 a1 a2"), y=member("a", "a3"))
    assert violations(group, assigned(y="a0 a1 a3"), STICKY) == (
        Violation(Kind.INCOMPLETE, (), tps("a2"), "a/2 is assigned to no member that may have it"),
    )
    assert violations(group, assigned(y="a0 a1 a3"), STICKY - {Kind.INCOMPLETE}) == ()
    # y gets two in the next round.
    group = spec({"a": 4}, x=member("a", "a0 a1 a2 a3"), y=member("a"))
    assert violations(group, assigned(x="a0 a1"), COOPERATIVE) == ()


def test_only_the_requested_rules_are_checked() -> None:
    group = spec({"a": 3}, x=member("a", "a0 a1 a2"), y=member("a"))
    wrong = assigned(y="a0 a1 a2")
    kinds = {name: [v.kind for v in violations(group, wrong, RULES[name])] for name in RULES}
    assert kinds == {
        "range": [],
        "roundrobin": [],
        "naive": [],
        "sticky": [Kind.UNBALANCED, *[Kind.MOVED_WITHOUT_NEED] * 3],
        "cooperative-sticky": [*[Kind.HANDED_OVER] * 3, Kind.UNBALANCED],
        "weighted-sticky": [Kind.HANDED_OVER] * 3,
    }


def test_a_violation_reads_as_a_sentence() -> None:
    (violation,) = violations(spec({"a": 1}, x=member("a")), assigned())
    assert str(violation) == "incomplete: a/0 is assigned to no member that may have it"


def test_long_lists_are_shortened() -> None:
    group = spec({"a": 0}, x=member("a"))
    (violation,) = violations(group, assigned(ghost="a0 a1 a2 a3 a4 a5"))
    assert violation.text == "ghost is not a member and gets a/0, a/1, a/2, a/3 and 2 more"


def test_only_the_latest_unique_claims_are_valid() -> None:
    group = spec(
        {"a": 3, "b": 1},
        x=member("a", "a0 a1 a2 a9 b0", 8),
        y=member("a", "a1 a1 a2", 8),
        z=member("a", "a0 a2", 5),
    )
    assert newest_claims(group) == {
        TopicPartition("a", 0): ["x"],
        TopicPartition("a", 1): ["x", "y"],
        TopicPartition("a", 2): ["x", "y"],
        TopicPartition("b", 0): ["x"],
    }


# ---------------------------------------------------------------- against brute force


@st.composite
def judged(draw: st.DrawFn) -> tuple[GroupSpec, Assignment]:
    """Generate a small group, and any complete assignment to it."""
    partitions = draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), min_size=1))
    there = [TopicPartition(t, p) for t, n in sorted(partitions.items()) for p in range(n)]
    members = {}
    for name in "wxyz"[: draw(st.integers(1, 4))]:
        members[name] = MemberSpec(
            topics=draw(st.frozensets(st.sampled_from("abc"), min_size=1)),
            owned=tuple(sorted(draw(st.sets(st.sampled_from(there))))) if there else (),
            generation=draw(st.sampled_from([7, 7, 6])),
        )
    group = GroupSpec(members=members, partitions=partitions)
    owners = {
        tp: draw(st.sampled_from(takers))
        for tp in there
        if (takers := group.subscribers().get(tp.topic, []))
    }
    return group, by_member(group, owners)


def by_member(group: GroupSpec, owners: Mapping[TopicPartition, str]) -> Assignment:
    return {m: tuple(tp for tp in sorted(owners) if owners[tp] == m) for m in group.members}


def everything(group: GroupSpec) -> Iterator[Assignment]:
    """Generate every complete assignment."""
    there = [TopicPartition(t, p) for t in group.topics() for p in range(group.partitions[t])]
    for takers in product(*(group.subscribers().get(tp.topic, []) for tp in there)):
        yield by_member(group, dict(zip(there, takers, strict=True)))


def unevenness(assignment: Assignment) -> int:
    return sum(len(held) ** 2 for held in assignment.values())


def owner_of(group: GroupSpec, tp: TopicPartition) -> str | None:
    claims = {m: of.generation for m, of in group.members.items() if tp in of.owned}
    newest = [m for m, g in claims.items() if g == max(claims.values())]
    if len(newest) != 1 or tp.topic not in group.members[newest[0]].topics:
        return None
    return newest[0]


def kept(group: GroupSpec, assignment: Assignment) -> int:
    return sum(owner_of(group, tp) == m for m, held in assignment.items() for tp in held)


repeatable = settings(max_examples=120)


@repeatable
@given(judged())
def test_unbalanced_means_that_a_more_even_assignment_exists(
    case: tuple[GroupSpec, Assignment],
) -> None:
    group, assignment = case
    best = min(map(unevenness, everything(group)))
    found = violations(group, assignment, EVEN)
    assert [v.kind for v in found] == [Kind.UNBALANCED] * (unevenness(assignment) > best)
    for violation in found:
        owners = {tp: m for m, held in assignment.items() for tp in held}
        givers, takers = violation.members, violation.members[1:]
        for tp, giver, taker in zip(violation.partitions, givers, takers, strict=False):
            assert owners[tp] == giver
            owners[tp] = taker
        evened = by_member(group, owners)
        assert violations(group, evened, VALID) == ()
        assert unevenness(evened) < unevenness(assignment)


@repeatable
@given(judged())
def test_a_needless_move_is_one_that_a_return_or_an_exchange_undoes_for_free(
    case: tuple[GroupSpec, Assignment],
) -> None:
    """For every moved partition: does a return, alone or for a partition that its owner got, stay
    valid, no less balanced and stickier?"""
    group, assignment = case
    owners = {tp: m for m, held in assignment.items() for tp in held}
    expected = set()
    for tp, taker in owners.items():
        home = owner_of(group, tp)
        if home is None or home == taker:
            continue
        for other in (None, *assignment[home]):
            changed = owners | {tp: home} | ({} if other is None else {other: taker})
            returned = by_member(group, changed)
            if (
                not violations(group, returned, VALID)
                and unevenness(returned) <= unevenness(assignment)
                and kept(group, returned) > kept(group, assignment)
            ):
                expected.add(tp)
    found = violations(group, assignment, STICKY - EVEN)
    assert {v.partitions[0] for v in found} == expected
    for violation in found:
        home, taker = violation.members
        changed = dict(zip(violation.partitions, (home, taker), strict=False))
        returned = by_member(group, owners | changed)
        assert violations(group, returned, VALID) == ()
        assert unevenness(returned) <= unevenness(assignment)
        assert kept(group, returned) > kept(group, assignment)


@repeatable
@given(judged())
def test_the_most_balanced_and_stickiest_assignment_has_no_violation(
    case: tuple[GroupSpec, Assignment],
) -> None:
    group, _ = case
    best = min(everything(group), key=lambda a: (unevenness(a), -kept(group, a)))
    assert violations(group, best, STICKY) == ()


@repeatable
@given(judged())
def test_every_planted_violation_is_found(
    case: tuple[GroupSpec, Assignment],
) -> None:
    group, assignment = case
    assert violations(group, assignment) == ()
    for m, held in assignment.items():
        for tp in held:
            less = {**assignment, m: tuple(other for other in held if other != tp)}
            assert [v.partitions for v in violations(group, less)] == [(tp,)]
            assert violations(group, {**less, "ghost": (tp,)})[0].kind is Kind.NOT_A_MEMBER
            for other in group.members:
                more = {**assignment, other: (*assignment[other], tp)}
                expected = (
                    Kind.DOUBLED if tp.topic in group.members[other].topics else Kind.NOT_SUBSCRIBED
                )
                assert [v.kind for v in violations(group, more)] == [expected]


@repeatable
@given(judged())
def test_retained_partitions_are_never_transferred(case: tuple[GroupSpec, Assignment]) -> None:
    """Nor is a partition claimed by another as recently: by the definition, claim by claim."""
    group, assignment = case
    expected = []
    for m, held in assignment.items():
        for tp in held:
            claims = [
                (of.generation, other) for other, of in group.members.items() if tp in of.owned
            ]
            newest = max(claims, default=(0, ""))[0]
            if any(g == newest and other != m for g, other in claims):
                expected.append(tp)
    rules = frozenset((Kind.HANDED_OVER,))
    assert [v.partitions[0] for v in violations(group, assignment, rules)] == sorted(expected)


def test_a_chain_through_a_hundred_members_is_found() -> None:
    """m000 has one fewer than the others, m100 one more, and each shares a topic with the next."""
    shared = [f"t{i:03}" for i in range(100)]
    members = {
        f"m{i:03}": MemberSpec(topics=frozenset((*shared[max(0, i - 1) : i + 1], f"o{i}")))
        for i in range(101)
    }
    partitions = dict.fromkeys(shared, 20) | {"t099": 21, "o0": 19}
    assignment = {
        f"m{i:03}": tuple(TopicPartition(name, p) for p in range(partitions[name]))
        for i, name in enumerate(("o0", *shared))
    }
    (violation,) = violations(GroupSpec(members=members, partitions=partitions), assignment, EVEN)
    assert violation.members == tuple(f"m{i:03}" for i in range(100, -1, -1))
    assert violation.partitions == tuple(
        TopicPartition(name, partitions[name] - 1) for name in reversed(shared)
    )

"""Cooperative sticky: the kept and the withheld partitions, and convergence."""

from __future__ import annotations

import attrs
import pytest
from assign.groups import groups
from hypothesis import given, settings

from kafkagroup.assign import GroupSpec, MemberSpec, cooperative_sticky_assignor
from kafkagroup.assign.cooperative_sticky import generation_in
from kafkagroup.assign.spec import is_cooperative, protocol_name, user_data
from kafkagroup.assign.sticky import sticky_assignor
from kafkagroup.assign.sticky_user_data import encode_user_data
from kafkagroup.types import Assignment, TopicPartition


def tps(text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions from "a0 a1 b0"."""
    return tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())


def member(topics: str, owned: str = "", generation: int = -1) -> MemberSpec:
    return MemberSpec(topics=frozenset(topics), owned=tps(owned), generation=generation)


def assigned(partitions: dict[str, int], **members: MemberSpec) -> dict[str, str]:
    """Return the assignment as text: member -> "a0 a1"."""
    response = cooperative_sticky_assignor(GroupSpec(members=members, partitions=partitions))
    return {m: " ".join(f"{t}{p}" for t, p in held) for m, held in response.items()}


def next_round(spec: GroupSpec, assignment: Assignment, generation: int) -> GroupSpec:
    """Return the group after all members have revoked and rejoined."""
    return attrs.evolve(
        spec,
        members={
            m: attrs.evolve(of, owned=assignment[m], generation=generation)
            for m, of in spec.members.items()
        },
    )


def test_a_new_group_is_balanced_at_once() -> None:
    assert assigned({"a": 5}, x=member("a"), y=member("a")) == {"x": "a0 a2 a4", "y": "a1 a3"}


def test_owned_partitions_are_kept() -> None:
    x, y = member("a", "a3 a4", 7), member("a", "a0 a1 a2", 7)
    assert assigned({"a": 5}, x=x, y=y) == {"x": "a3 a4", "y": "a0 a1 a2"}


def test_a_partition_is_not_assigned_in_the_rebalance_that_revokes_it() -> None:
    x = member("a", "a0 a1 a2 a3", 7)
    assert assigned({"a": 4}, x=x, y=member("a")) == {"x": "a0 a1", "y": ""}
    x = member("a", "a0 a1", 8)
    assert assigned({"a": 4}, x=x, y=member("a", "", 8)) == {"x": "a0 a1", "y": "a2 a3"}


def test_the_claim_of_the_higher_generation_wins() -> None:
    """y missed a generation: the partitions that it claims were assigned to x meanwhile."""
    x, y = member("a", "a0 a1", 8), member("a", "a0 a1", 7)
    assert assigned({"a": 4}, x=x, y=y) == {"x": "a0 a1", "y": "a2 a3"}


def test_equal_claims_are_both_void_and_the_partition_is_assigned_later() -> None:
    """Both may be processing it, so both revoke it; then one of them gets it."""
    x, y = member("a", "a0 a1", 7), member("a", "a0", 7)
    spec = GroupSpec(members={"x": x, "y": y}, partitions={"a": 2})
    first = cooperative_sticky_assignor(spec)
    assert first == {"x": tps("a1"), "y": ()}
    second = cooperative_sticky_assignor(next_round(spec, first, 8))
    assert second == {"x": tps("a1"), "y": tps("a0")}


def test_a_stale_claim_does_not_hide_a_move() -> None:
    """y once had a1. Balance assigns it to y again, but its owner x must revoke it first."""
    x = member("a", "a0 a1 a2 a3", 8)
    y = member("a", "a2 a3", 5)
    assert assigned({"a": 4}, x=x, y=y) == {"x": "a0 a1", "y": ""}


def test_a_stale_claim_beside_a_newer_one_leaves_no_partition_unassigned() -> None:
    x, y = member("a", "a0", 8), member("a", "a0 a1", 5)
    assert assigned({"a": 2}, x=x, y=y) == {"x": "a0", "y": "a1"}


def test_a_partition_that_its_owner_no_longer_subscribes_to_is_withheld() -> None:
    """x still reports a/0 as owned: y gets it in the next rebalance, after x has revoked it."""
    x = MemberSpec(topics=frozenset("b"), owned=tps("a0 b0"), generation=7)
    spec = GroupSpec(members={"x": x, "y": member("a")}, partitions={"a": 1, "b": 1})
    first = cooperative_sticky_assignor(spec)
    assert first == {"x": tps("b0"), "y": ()}
    second = cooperative_sticky_assignor(next_round(spec, first, 8))
    assert second == {"x": tps("b0"), "y": tps("a0")}


def test_a_newer_claim_without_a_subscription_overrides_an_older_one() -> None:
    """x had a/0 last, and may be processing it. y had it before, and must not continue."""
    x, y = member("b", "a0", 8), member("a", "a0", 7)
    assert assigned({"a": 1, "b": 1}, x=x, y=y) == {"x": "b0", "y": ""}


def test_a_newer_claim_overrides_an_older_one_without_a_subscription() -> None:
    x, y = member("b", "a0", 7), member("a", "a0", 8)
    assert assigned({"a": 1, "b": 1}, x=x, y=y) == {"x": "b0", "y": "a0"}


def test_claims_to_missing_partitions_are_ignored() -> None:
    assert assigned({"a": 1}, x=member("a", "a0 a9", 7)) == {"x": "a0"}


def test_mixed_subscriptions_are_balanced_through_intermediate_members() -> None:
    """z can pass nothing to x, but to y, which can pass on to x."""
    x, y = member("a"), member("ab", "a0 a1 a2", 7)
    z = member("b", "b0 b1 b2", 7)
    spec = GroupSpec(members={"x": x, "y": y, "z": z}, partitions={"a": 3, "b": 3})
    first = cooperative_sticky_assignor(spec)
    assert first == {"x": (), "y": tps("a0"), "z": tps("b0 b1")}
    second = cooperative_sticky_assignor(next_round(spec, first, 8))
    assert second == {"x": tps("a1 a2"), "y": tps("a0 b2"), "z": tps("b0 b1")}


def test_new_partitions_are_assigned_at_once_and_others_when_released() -> None:
    """x must revoke a2; y gets a3 without waiting for it."""
    x = member("a", "a0 a1 a2", 7)
    spec = GroupSpec(members={"x": x, "y": member("a")}, partitions={"a": 4})
    first = cooperative_sticky_assignor(spec)
    assert first == {"x": tps("a0 a1"), "y": tps("a3")}
    second = cooperative_sticky_assignor(next_round(spec, first, 8))
    assert second == {"x": tps("a0 a1"), "y": tps("a2 a3")}


# ---------------------------------------------------------------- any group

repeatable = settings(max_examples=200)


def claimants(spec: GroupSpec) -> dict[TopicPartition, dict[str, int]]:
    """Return partition -> member -> the generation of its claim; void claims are omitted."""
    claims: dict[TopicPartition, dict[str, int]] = {}
    for name, of in spec.members.items():
        for tp in of.owned:
            if 0 <= tp.partition < spec.partitions.get(tp.topic, 0):
                claims.setdefault(tp, {})[name] = of.generation
    return claims


@pytest.mark.slow
@repeatable
@given(groups())
def test_no_member_gets_a_partition_that_another_may_still_process(spec: GroupSpec) -> None:
    claims = claimants(spec)
    for name, held in cooperative_sticky_assignor(spec).items():
        for tp in held:
            others = dict(claims.get(tp, {}))
            own = others.pop(name, None)
            assert not others or (own is not None and own > max(others.values()))


@repeatable
@given(groups())
def test_it_differs_from_sticky_only_in_partitions_that_others_own(
    spec: GroupSpec,
) -> None:
    claims = claimants(spec)
    eager, cooperative = sticky_assignor(spec), cooperative_sticky_assignor(spec)
    assert cooperative.keys() == eager.keys()
    for name, held in eager.items():
        withheld = sorted(set(held) - set(cooperative[name]))
        assert sorted((*cooperative[name], *withheld)) == list(held)
        assert all(claims[tp].keys() - {name} for tp in withheld)


@pytest.mark.slow
@repeatable
@given(groups())
def test_any_group_is_stable_after_two_rounds_and_as_balanced_as_sticky(spec: GroupSpec) -> None:
    first = cooperative_sticky_assignor(spec)
    following = next_round(spec, first, 100)
    second = cooperative_sticky_assignor(following)
    assert all(set(held) <= set(second[name]) for name, held in first.items())
    there = [TopicPartition(t, p) for t in spec.topics() for p in range(spec.partitions[t])]
    assert sorted(tp for held in second.values() for tp in held) == there
    eager = sticky_assignor(spec)
    assert sorted(map(len, second.values())) == sorted(map(len, eager.values()))
    assert cooperative_sticky_assignor(next_round(following, second, 101)) == second


@pytest.mark.slow
@repeatable
@given(groups(), groups())
def test_no_partition_is_added_and_revoked_in_one_rebalance(
    before: GroupSpec, after: GroupSpec
) -> None:
    """Kafka's testReassignmentWithRandomSubscriptionsAndChanges: members keep their partitions, and
    change their subscriptions. Its rule is about the raw assignments: what a member gets beyond its
    reported partitions is reported by no other member."""
    owned = {m: of.owned for m, of in before.members.items()}
    for topics in (before, after):
        members = {
            m: attrs.evolve(of, owned=owned.get(m, ()), generation=7)
            for m, of in topics.members.items()
        }
        spec = attrs.evolve(topics, members=members)
        for generation in range(8, 13):
            assignment = cooperative_sticky_assignor(spec)
            added = {
                tp for m, held in assignment.items() for tp in {*held} - {*spec.members[m].owned}
            }
            revoked = {
                tp for m, of in spec.members.items() for tp in {*of.owned} - {*assignment[m]}
            }
            assert not added & revoked
            if not revoked:
                break
            spec = next_round(spec, assignment, generation)
        assert not revoked, "Java's test allows four rounds more"
        owned = {m: tuple(held) for m, held in assignment.items()}


# ---------------------------------------------------------------- on the wire


def test_the_name_and_user_data_of_the_assignor() -> None:
    assert protocol_name(cooperative_sticky_assignor) == "cooperative-sticky"
    assert is_cooperative(cooperative_sticky_assignor)
    assert user_data(cooperative_sticky_assignor, (), 7) == b"\0\0\0\7"


@pytest.mark.parametrize(
    ("data", "generation"),
    [
        (None, -1),
        (b"", -1),
        (b"\0\0\0", -1),
        (b"\0\0\0\7", 7),
        (b"\xff\xff\xff\xfe", -1),
        (b"\0\0\0\1\0", -1),
        # librdkafka's, of its last assignment.
        (encode_user_data(tps("a0 a1 b0"), 7), 7),
    ],
)
def test_generation_in_user_data(data: bytes | None, generation: int) -> None:
    assert generation_in(data) == generation

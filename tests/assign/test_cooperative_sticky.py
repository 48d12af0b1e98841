"""Cooperative sticky: what is kept, what is withheld, and that it settles."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.assign import GroupSpec, MemberSpec, cooperative_sticky_assignor
from kafkagroup.assign.cooperative_sticky import generation_in
from kafkagroup.assign.spec import is_cooperative, protocol_name, user_data
from kafkagroup.types import Assignment, TopicPartition


def tps(text: str) -> tuple[TopicPartition, ...]:
    """Partitions from "a0 a1 b0"."""
    return tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())


def member(topics: str, owned: str = "", generation: int = -1) -> MemberSpec:
    return MemberSpec(topics=frozenset(topics), owned=tps(owned), generation=generation)


def assigned(partitions: dict[str, int], **members: MemberSpec) -> dict[str, str]:
    """The assignment as text: member -> "a0 a1"."""
    answer = cooperative_sticky_assignor(GroupSpec(members=members, partitions=partitions))
    return {m: " ".join(f"{t}{p}" for t, p in held) for m, held in answer.items()}


def next_round(spec: GroupSpec, assignment: Assignment, generation: int) -> GroupSpec:
    """The group once everybody has let go of what was not assigned to it, and rejoined."""
    return GroupSpec(
        members={
            m: attrs.evolve(of, owned=assignment[m], generation=generation)
            for m, of in spec.members.items()
        },
        partitions=spec.partitions,
    )


def test_a_fresh_group_is_even_at_once() -> None:
    assert assigned({"a": 5}, x=member("a"), y=member("a")) == {"x": "a0 a2 a4", "y": "a1 a3"}


def test_what_is_owned_stays() -> None:
    x, y = member("a", "a3 a4", 7), member("a", "a0 a1 a2", 7)
    assert assigned({"a": 5}, x=x, y=y) == {"x": "a3 a4", "y": "a0 a1 a2"}


def test_line_26_nothing_is_handed_over_in_the_round_in_which_it_is_revoked() -> None:
    x = member("a", "a0 a1 a2 a3", 7)
    assert assigned({"a": 4}, x=x, y=member("a")) == {"x": "a0 a1", "y": ""}
    x = member("a", "a0 a1", 8)
    assert assigned({"a": 4}, x=x, y=member("a", "", 8)) == {"x": "a0 a1", "y": "a2 a3"}


def test_line_25_the_claim_of_the_higher_generation_wins() -> None:
    """y slept through a generation: what it says it owns was given away meanwhile."""
    x, y = member("a", "a0 a1", 8), member("a", "a0 a1", 7)
    assert assigned({"a": 4}, x=x, y=y) == {"x": "a0 a1", "y": "a2 a3"}


def test_line_25_equal_claims_invalidate_both_and_strand_nothing() -> None:
    """Both may be at work on it, so both let go; then it goes to one."""
    x, y = member("a", "a0 a1", 7), member("a", "a0", 7)
    spec = GroupSpec(members={"x": x, "y": y}, partitions={"a": 2})
    first = cooperative_sticky_assignor(spec)
    assert first == {"x": tps("a1"), "y": ()}
    second = cooperative_sticky_assignor(next_round(spec, first, 8))
    assert second == {"x": tps("a1"), "y": tps("a0")}


def test_line_26_a_stale_claim_does_not_hide_the_transfer() -> None:
    """y once had a1. The balance gives it back, but x has it now, and must let go first."""
    x = member("a", "a0 a1 a2 a3", 8)
    y = member("a", "a2 a3", 5)
    assert assigned({"a": 4}, x=x, y=y) == {"x": "a0 a1", "y": ""}


def test_line_26_a_stale_claim_beside_a_newer_one_strands_nothing() -> None:
    x, y = member("a", "a0", 8), member("a", "a0 a1", 5)
    assert assigned({"a": 2}, x=x, y=y) == {"x": "a0", "y": "a1"}


def test_a_topic_that_is_not_subscribed_to_any_more_goes_to_others() -> None:
    """Its old owner lets go before it joins."""
    x = MemberSpec(topics=frozenset("b"), owned=tps("a0 b0"), generation=7)
    assert assigned({"a": 1, "b": 1}, x=x, y=member("a")) == {"x": "b0", "y": "a0"}


def test_partitions_that_are_gone_are_no_claim() -> None:
    assert assigned({"a": 1}, x=member("a", "a0 a9", 7)) == {"x": "a0"}


def test_mixed_subscriptions_are_balanced_through_members_in_between() -> None:
    """z can give nothing to x, but to y, which can give to x."""
    x, y = member("a"), member("ab", "a0 a1 a2", 7)
    z = member("b", "b0 b1 b2", 7)
    spec = GroupSpec(members={"x": x, "y": y, "z": z}, partitions={"a": 3, "b": 3})
    counts = settled(spec)
    assert sorted(counts.values()) == [2, 2, 2]


def settled(spec: GroupSpec) -> dict[str, int]:
    """Rounds until nothing changes; each round is checked; member -> count."""
    for generation in range(100, 110):
        assignment = cooperative_sticky_assignor(spec)
        flat = [tp for held in assignment.values() for tp in held]
        assert len(set(flat)) == len(flat), "one partition, two members"
        for m, held in assignment.items():
            assert all(tp.topic in spec.members[m].topics for tp in held)
            for other, of in spec.members.items():
                if other != m and of.generation == max(s.generation for s in spec.members.values()):
                    kept = set(of.owned) - set(spec.members[m].owned)
                    subscribed = {tp for tp in kept if tp.topic in of.topics}
                    assert not subscribed & set(held), "handed over while it is owned"
        following = next_round(spec, assignment, generation)
        if {m: of.owned for m, of in following.members.items()} == {
            m: of.owned for m, of in spec.members.items()
        }:
            everything = {
                TopicPartition(t, p) for t in spec.topics() for p in range(spec.partitions[t])
            }
            assert set(flat) == everything, "incomplete"
            return {m: len(held) for m, held in assignment.items()}
        spec = following
    raise AssertionError("does not settle")


@st.composite
def groups(draw: st.DrawFn) -> GroupSpec:
    partitions = draw(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 6), min_size=1))
    everything = [TopicPartition(t, p) for t, n in sorted(partitions.items()) for p in range(n + 1)]
    members = {}
    for index in range(draw(st.integers(1, 5))):
        topics = draw(st.sets(st.sampled_from("abcde"), min_size=1))
        owned = draw(st.sets(st.sampled_from(everything)))
        members[f"m{index}"] = MemberSpec(
            topics=frozenset(topics),
            owned=tuple(sorted(owned)),
            generation=draw(st.sampled_from([-1, 5, 6])),
        )
    return GroupSpec(members=members, partitions=partitions)


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(groups())
def test_any_group_settles_complete_and_cannot_be_evened_out_further(spec: GroupSpec) -> None:
    counts = settled(spec)
    if len({of.topics for of in spec.members.values()}) == 1:
        assert max(counts.values()) - min(counts.values()) <= 1


def test_its_name_and_user_data() -> None:
    assert protocol_name(cooperative_sticky_assignor) == "cooperative-sticky"
    assert is_cooperative(cooperative_sticky_assignor)
    assert user_data(cooperative_sticky_assignor, 7) == b"\0\0\0\7"


@pytest.mark.parametrize(
    ("data", "generation"),
    [(None, -1), (b"", -1), (b"\0\0\0", -1), (b"\0\0\0\7", 7), (b"\0\0\0\1\0", -1)],
)
def test_line_25_generation_in_user_data(data: bytes | None, generation: int) -> None:
    assert generation_in(data) == generation

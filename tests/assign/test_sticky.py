"""Sticky: kept partitions, optimal balance and stickiness, and its user data."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping

import attrs
import pytest
from assign.groups import groups
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.assign import GroupSpec, MemberSpec
from kafkagroup.assign.cooperative_sticky import cooperative_sticky_assignor
from kafkagroup.assign.spec import is_cooperative, protocol_name
from kafkagroup.assign.sticky import sticky_assignor
from kafkagroup.assign.sticky_user_data import MAX_PARTITIONS, decode_user_data, encode_user_data
from kafkagroup.types import Assignment, TopicPartition

repeatable = settings(max_examples=200)


def tps(text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions from "a0 a1 b0"."""
    return tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())


def member(
    topics: str, owned: str = "", generation: int = 7, rack: str | None = None
) -> MemberSpec:
    return MemberSpec(topics=frozenset(topics), owned=tps(owned), generation=generation, rack=rack)


def assigned(
    partitions: dict[str, int],
    racks: Mapping[str, str] | None = None,
    **members: MemberSpec,
) -> dict[str, str]:
    """Return the assignment as text: member -> "a0 a1". Racks as topic -> "p pq q"."""
    spec = GroupSpec(
        members=members,
        partitions=partitions,
        racks={t: [frozenset(rack) for rack in text.split()] for t, text in (racks or {}).items()},
    )
    return {m: " ".join(f"{t}{p}" for t, p in held) for m, held in sticky_assignor(spec).items()}


def rejoined(spec: GroupSpec, assignment: Assignment, generation: int = 9) -> GroupSpec:
    """Return the group after all have rejoined with their assignments."""
    return attrs.evolve(
        spec,
        members={
            m: attrs.evolve(of, owned=assignment[m], generation=generation)
            for m, of in spec.members.items()
        },
    )


# ---------------------------------------------------------------- balance and stickiness


def test_a_new_group_is_balanced_with_consecutive_partitions_spread() -> None:
    assert assigned({"a": 3, "b": 2}, x=member("ab"), y=member("ab")) == {
        "x": "a0 a2 b1",
        "y": "a1 b0",
    }


def test_when_a_member_leaves_only_its_partitions_move() -> None:
    x, y = member("a", "a0 a3 a6"), member("a", "a1 a4 a7")
    assert assigned({"a": 9}, x=x, y=y) == {"x": "a0 a2 a3 a6 a8", "y": "a1 a4 a5 a7"}


def test_a_new_member_gets_its_quota_of_the_highest_numbered_partitions() -> None:
    x, y = member("ab", "a0 a1 a2 b0 b1 b2"), member("ab", "a3 a4 a5 b3 b4 b5")
    assert assigned({"a": 6, "b": 6}, x=x, y=y, z=member("ab")) == {
        "x": "a0 a1 b0 b1",
        "y": "a3 a4 b3 b4",
        "z": "a2 a5 b2 b5",
    }


def test_a_member_with_one_extra_partition_keeps_it() -> None:
    x, y, z = member("a", "a0"), member("a", "a1 a2"), member("a", "a3")
    assert assigned({"a": 5}, x=x, y=y, z=z) == {"x": "a0 a4", "y": "a1 a2", "z": "a3"}


def test_new_partitions_go_to_the_members_with_the_fewest() -> None:
    x, y, z = member("a", "a0 a1"), member("a", "a2"), member("a")
    assert assigned({"a": 9}, x=x, y=y, z=z) == {
        "x": "a0 a1 a3",
        "y": "a2 a4 a6",
        "z": "a5 a7 a8",
    }


def test_surplus_members_get_no_partitions() -> None:
    x, y, z = member("a"), member("a", "a0"), member("a", "a1")
    assert assigned({"a": 2}, x=x, y=y, z=z) == {"x": "", "y": "a0", "z": "a1"}


def test_kip_54_different_subscriptions_are_balanced() -> None:
    """Example 2 of Kafka's StickyAssignor: round robin gives one member four."""
    partitions = {"a": 1, "b": 2, "c": 3}
    x, y, z = member("a"), member("ab"), member("abc")
    assert assigned(partitions, x=x, y=y, z=z) == {"x": "a0", "y": "b0 b1", "z": "c0 c1 c2"}
    y, z = member("ab", "b0 b1"), member("abc", "c0 c1 c2")
    assert assigned(partitions, y=y, z=z) == {"y": "a0 b0 b1", "z": "c0 c1 c2"}


def test_a_partition_is_passed_on_through_an_intermediate_member() -> None:
    """z can pass nothing to x, but to y, which can pass on to x."""
    x, y, z = member("a"), member("ab", "a0 a1 a2"), member("b", "b0 b1 b2")
    assert assigned({"a": 3, "b": 3}, x=x, y=y, z=z) == {"x": "a1 a2", "y": "a0 b2", "z": "b0 b1"}


def test_the_member_with_one_extra_partition_is_chosen_for_the_fewest_moves() -> None:
    """z needs one from y. It is equally balanced whether x or y keeps two, but y would have to get
    one of x's for it."""
    x, y, z = member("a", "a0 a1"), member("ab", "b0 b1"), member("b")
    assert assigned({"a": 2, "b": 2}, x=x, y=y, z=z) == {"x": "a0 a1", "y": "b0", "z": "b1"}


def test_an_intermediate_member_keeps_as_many_partitions() -> None:
    """x passes b to z and gets a from y: of its own partitions it loses only b."""
    w, x = member("ab", "a2 a8"), member("ab", "a5 a6 b0 b1 b2")
    y, z = member("a", "a0 a1 a3 a4 a7"), member("b")
    assert assigned({"a": 9, "b": 3}, w=w, x=x, y=y, z=z) == {
        "w": "a2 a4 a8",
        "x": "a5 a6 a7",
        "y": "a0 a1 a3",
        "z": "b0 b1 b2",
    }


def test_members_without_common_topics_balance_among_themselves() -> None:
    x, y, z = member("a", "a0 a1 a2 a3 a4 a5 a6 a7 a8 a9"), member("a"), member("b")
    assert assigned({"a": 10, "b": 1}, x=x, y=y, z=z) == {
        "x": "a0 a1 a2 a3 a4",
        "y": "a5 a6 a7 a8 a9",
        "z": "b0",
    }


def test_members_with_few_partitions_balance_among_themselves() -> None:
    x, y, z = member("a", "a0 a1"), member("a"), member("b")
    assert assigned({"a": 2, "b": 9}, x=x, y=y, z=z) == {
        "x": "a0",
        "y": "a1",
        "z": "b0 b1 b2 b3 b4 b5 b6 b7 b8",
    }


def test_a_received_partition_is_passed_on_first() -> None:
    x = member("abcd", "a0 a1 a2 a3 a4 a5 a6 d0 d1 d2 d3")
    y, z = member("abcd", "b0 b1 b2 b3 b4 b5 b6 b7 b8"), member("a")
    spec = GroupSpec(members={"x": x, "y": y, "z": z}, partitions={"a": 7, "b": 9, "c": 1, "d": 4})
    assignment = sticky_assignor(spec)
    assert {name: len(held) for name, held in assignment.items()} == {"x": 7, "y": 7, "z": 7}
    assert cost(spec, assignment) == least_cost(spec)


def test_no_members_and_no_partitions() -> None:
    assert assigned({"a": 1}) == {}
    assert assigned({"a": 0}, x=member("a"), y=member("")) == {"x": "", "y": ""}
    assert assigned({"a": 1, "b": 3}, x=member("a nowhere")) == {"x": "a0"}


# ---------------------------------------------------------------- claims


def test_the_claim_of_the_higher_generation_is_valid() -> None:
    """y missed a generation: the partitions that it claims were assigned to x meanwhile."""
    y, x = member("a", "a0 a1", 7), member("a", "a0 a1", 8)
    assert assigned({"a": 4}, x=x, y=y) == {"x": "a0 a1", "y": "a2 a3"}
    assert assigned({"a": 4}, b=x, a=y) == {"b": "a0 a1", "a": "a2 a3"}


def test_equal_claims_invalidate_each_other() -> None:
    x, y, z = member("a", "a0 a1"), member("a", "a0"), member("a", "a2")
    assert assigned({"a": 3}, x=x, y=y, z=z) == {"x": "a1", "y": "a0", "z": "a2"}


def test_a_newer_claim_is_valid_beside_two_equal_older_ones() -> None:
    x, y, z = member("a", "a0", 5), member("a", "a0", 5), member("a", "a0", 6)
    for order in ("xyz", "zxy", "xzy"):
        members = dict(zip("klm", ({"x": x, "y": y, "z": z}[name] for name in order), strict=True))
        newest = "klm"[order.index("z")]
        assert assigned({"a": 1}, **members)[newest] == "a0"


def test_an_older_claim_is_invalid_beside_two_equal_newer_ones() -> None:
    members = {"v": member("a", "a0", 5), "w": member("a", "a0", 5), "x": member("a", "a0", 4)}
    none = {"y": member("a", "", -1), "z": member("a", "", -1)}
    assert assigned({"a": 1}, **members, **none)["v"] == "a0"


def test_the_only_claim_is_valid_in_an_older_generation() -> None:
    x, y = member("a", "a0", 8), member("a", "a1", 5)
    assert assigned({"a": 2}, y=x, x=y) == {"y": "a0", "x": "a1"}


def test_a_partition_returns_to_its_former_owner() -> None:
    """Kafka's testAssignmentWithMultipleGenerations2: y was the only member for one generation."""
    x, y, z = member("a", "a0 a3", 1), member("a", "a0 a1 a2 a3 a4 a5", 2), member("a", "a2 a5", 1)
    assert assigned({"a": 6}, x=x, y=y, z=z) == {"x": "a0 a3", "y": "a1 a4", "z": "a2 a5"}


def test_of_several_former_owners_the_latest_gets_a_partition_back() -> None:
    x, y, z = member("a", "a1", 5), member("a", "a0 a1 a2", 7), member("a", "a1", 6)
    assert assigned({"a": 3}, x=x, y=y, z=z) == {"x": "a2", "y": "a0", "z": "a1"}


def test_a_former_owner_gets_back_at_most_its_quota() -> None:
    x, y = member("a", "a0 a1 a2", 1), member("a", "a0 a1 a2 a3", 2)
    assert assigned({"a": 4}, x=x, y=y) == {"x": "a1 a2", "y": "a0 a3"}


def test_the_former_owner_takes_precedence_over_the_rack() -> None:
    x, y, z = member("a", "a0", 1, "p"), member("a", "a0 a1 a2", 2), member("a", "a2", 1, "q")
    found = assigned({"a": 3}, {"a": "q q p"}, x=x, y=y, z=z)
    assert found == {"x": "a0", "y": "a1", "z": "a2"}


def test_claims_to_missing_or_unsubscribed_partitions_are_ignored() -> None:
    x, y = member("a", "a0 a9 b0 c0"), member("ab", "a1 a1 a1")
    assert assigned({"a": 2, "b": 1}, x=x, y=y) == {"x": "a0", "y": "a1 b0"}
    x = attrs.evolve(x, owned=(TopicPartition("a", -1), TopicPartition("a", 1)))
    assert assigned({"a": 2}, x=x, y=member("a")) == {"x": "a1", "y": "a0"}


# ---------------------------------------------------------------- racks


def test_partitions_without_an_owner_go_to_the_rack_of_a_replica() -> None:
    x, y = member("a", rack="p"), member("a", rack="q")
    assert assigned({"a": 6}, {"a": "q q q p p p"}, x=x, y=y) == {"x": "a3 a4 a5", "y": "a0 a1 a2"}


def test_partitions_with_the_fewest_matching_racks_are_assigned_first() -> None:
    x, y = member("a", rack="p"), member("a", rack="q")
    assert assigned({"a": 4}, {"a": "pq pq q q"}, x=x, y=y) == {"x": "a0 a1", "y": "a2 a3"}


def test_balance_and_stickiness_take_precedence_over_racks() -> None:
    x, y = member("a", "a0 a1", rack="p"), member("a", rack="q")
    assert assigned({"a": 4}, {"a": "q q q q"}, x=x, y=y) == {"x": "a0 a1", "y": "a2 a3"}
    x, y = member("a", rack="p"), member("a", rack="q")
    assert assigned({"a": 4}, {"a": "q q q p"}, x=x, y=y) == {"x": "a2 a3", "y": "a0 a1"}


def test_partitions_in_other_racks_are_moved_first() -> None:
    x, y = member("a", "a0 a1 a2 a3", rack="p"), member("a", rack="q")
    assert assigned({"a": 4}, {"a": "q p q p"}, x=x, y=y) == {"x": "a1 a3", "y": "a0 a2"}


def test_racks_may_be_missing_for_some_members_and_partitions() -> None:
    x, y, z = member("a", rack="p"), member("a", rack=""), member("a")
    assert assigned({"a": 3}, {"a": "q p"}, x=x, y=y, z=z) == {"x": "a1", "y": "a0", "z": "a2"}


def test_an_empty_rack_is_no_rack() -> None:
    """Some clients and brokers send an empty string instead of none."""
    x, y = member("a", rack=""), member("a")
    spec = GroupSpec(
        members={"x": x, "y": y},
        partitions={"a": 2},
        racks={"a": [frozenset("q"), frozenset([""])]},
    )
    assert sticky_assignor(spec) == {"x": tps("a0"), "y": tps("a1")}


# ---------------------------------------------------------------- any group


def owners(spec: GroupSpec) -> dict[TopicPartition, str]:
    """Return partition -> the member with the valid claim that may keep it."""
    claims: dict[TopicPartition, list[tuple[int, str]]] = {}
    for name, of in spec.members.items():
        for tp in set(of.owned):
            if 0 <= tp.partition < spec.partitions.get(tp.topic, 0):
                claims.setdefault(tp, []).append((of.generation, name))
    found = {}
    for tp, made in claims.items():
        generation, name = max(made)
        alone = [other for other, _ in made].count(generation) == 1
        if alone and tp.topic in spec.members[name].topics:
            found[tp] = name
    return found


def cost(spec: GroupSpec, assignment: Assignment) -> tuple[int, int]:
    """Return the imbalance (the sum of squares), and the number of partitions that leave their
    owners."""
    moved = sum(tp not in assignment[name] for tp, name in owners(spec).items())
    return sum(len(held) ** 2 for held in assignment.values()), moved


def least_cost(spec: GroupSpec) -> tuple[int, int]:
    """Compute it over all assignments: the moves to each vector of counts, one partition at a
    time."""
    names = sorted(spec.members)
    whose = owners(spec)
    moves = {(0,) * len(names): 0}
    for topic in spec.topics():
        takers = [i for i, name in enumerate(names) if topic in spec.members[name].topics]
        for partition in range(spec.partitions[topic]):
            owner = whose.get(TopicPartition(topic, partition))
            after: dict[tuple[int, ...], int] = {}
            for counts, moved in moves.items():
                for i in takers:
                    more = (*counts[:i], counts[i] + 1, *counts[i + 1 :])
                    total = moved + (owner is not None and names[i] != owner)
                    after[more] = min(total, after.get(more, total))
            moves = after
    return min((sum(c * c for c in counts), moved) for counts, moved in moves.items())


def flaw(spec: GroupSpec, assignment: Assignment) -> str | None:
    """Return a chain of members, each passing one partition to the next, that would improve it.

    In groups of any size: without such a chain, no assignment is better.
    """
    names = list(assignment)
    whose = owners(spec)
    far = 1000
    length = {(a, b): 0 if a == b else far for a in names for b in names}
    for giver, held in assignment.items():
        for tp in held:
            for taker in names:
                if taker != giver and tp.topic in spec.members[taker].topics:
                    step = (whose.get(tp) == giver) - (whose.get(tp) == taker)
                    length[giver, taker] = min(length[giver, taker], step)
    for via in names:
        for a in names:
            for b in names:
                length[a, b] = min(length[a, b], length[a, via] + length[via, b])
    for (a, b), moves in length.items():
        more = len(assignment[a]) - len(assignment[b])
        if moves < far / 2 and more >= 2:
            return f"{a} has {more} more than {b}"
        if moves < 0 and (more == 1 or a == b):
            return f"{a} and {b} could save {-moves} moves"
    return None


def check_sound(spec: GroupSpec, assignment: Assignment) -> None:
    """Check that it is complete, disjoint, subscribed and sorted, and has an entry for every
    member."""
    assert sorted(assignment) == sorted(spec.members)
    given = Counter(tp for held in assignment.values() for tp in held)
    there = [TopicPartition(t, p) for t in spec.topics() for p in range(spec.partitions[t])]
    assert given == Counter(there)
    for name, held in assignment.items():
        assert held == tuple(sorted(held))
        assert all(type(tp) is TopicPartition for tp in held)
        assert {tp.topic for tp in held} <= spec.members[name].topics


@st.composite
def small_groups(draw: st.DrawFn) -> GroupSpec:
    """Generate groups of at most four members and twelve partitions, with few overlapping
    claims."""
    partitions = draw(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3), min_size=1))
    there = [TopicPartition(t, p) for t, n in sorted(partitions.items()) for p in range(n)]
    number = draw(st.integers(1, 4))
    held = [draw(st.integers(-1, number - 1)) for _ in there]
    members = {}
    for index in range(number):
        owned = {tp for tp, owner in zip(there, held, strict=True) if owner == index}
        if draw(st.integers(0, 3)) == 0:
            owned |= draw(st.sets(st.sampled_from(there)))
        members[f"m{index}"] = MemberSpec(
            topics=draw(st.frozensets(st.sampled_from("abcd"))),
            owned=tuple(owned),
            generation=draw(st.sampled_from([7, 7, 6, -1])),
        )
    return GroupSpec(members=members, partitions=partitions)


@settings(repeatable, max_examples=400)
@given(small_groups())
def test_no_assignment_is_more_balanced_or_moves_less(spec: GroupSpec) -> None:
    assignment = sticky_assignor(spec)
    check_sound(spec, assignment)
    assert cost(spec, assignment) == least_cost(spec)


@repeatable
@given(groups())
def test_no_chain_of_moves_improves_an_assignment(spec: GroupSpec) -> None:
    assignment = sticky_assignor(spec)
    check_sound(spec, assignment)
    assert flaw(spec, assignment) is None


@repeatable
@given(groups())
def test_a_balanced_group_stays_as_it_is(spec: GroupSpec) -> None:
    assignment = sticky_assignor(spec)
    assert sticky_assignor(rejoined(spec, assignment)) == assignment


@pytest.mark.slow
@repeatable
@given(groups(), st.randoms(use_true_random=False))
def test_the_order_of_dicts_does_not_matter(spec: GroupSpec, shuffler: random.Random) -> None:
    def shuffled(mapping: Mapping[str, object]) -> dict[str, object]:
        items = list(mapping.items())
        shuffler.shuffle(items)
        return dict(items)

    members = {
        m: attrs.evolve(of, owned=tuple(shuffler.sample(of.owned, len(of.owned))))
        for m, of in spec.members.items()
    }
    other = attrs.evolve(
        spec,
        members=shuffled(members),
        partitions=shuffled(spec.partitions),
        racks=shuffled(spec.racks),
    )
    assert sticky_assignor(other) == sticky_assignor(spec)


HASH_SEED_PROGRAM = """
import random
from kafkagroup.assign import GroupSpec, MemberSpec
from kafkagroup.assign.cooperative_sticky import cooperative_sticky_assignor
from kafkagroup.assign.sticky import sticky_assignor
from kafkagroup.types import TopicPartition

chance = random.Random(4)
topics = [f"topic-{n}" for n in range(8)]
there = [TopicPartition(t, p) for t in topics for p in range(9)]
for _ in range(20):
    spec = GroupSpec(
        members={
            f"member-{n}": MemberSpec(
                topics=frozenset(chance.sample(topics, 4)),
                rack=chance.choice("pqr"),
                owned=tuple(chance.sample(there, 9)),
                generation=chance.choice([5, 6]),
            )
            for n in range(9)
        },
        partitions=dict.fromkeys(topics, 9),
        racks={t: [frozenset(chance.sample("pqr", 2)) for _ in range(9)] for t in topics},
    )
    print(sticky_assignor(spec), cooperative_sticky_assignor(spec))
"""


def test_the_hash_seed_does_not_matter() -> None:
    """Strings hash differently in every process, which changes the order of sets."""
    responses = {
        subprocess.run(
            [sys.executable, "-c", HASH_SEED_PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(responses) == 1
    assert responses.pop().count(b"member-8") == 40


# ---------------------------------------------------------------- on the wire


def test_the_name_of_the_assignor() -> None:
    assert protocol_name(sticky_assignor) == "sticky"
    assert not is_cooperative(sticky_assignor)
    assert is_cooperative(cooperative_sticky_assignor)


OWNED = (TopicPartition("orders", 0), TopicPartition("orders", 2), TopicPartition("été", 1))
WITHOUT_GENERATION = bytes.fromhex(
    "000000020006 6f7264657273 00000002 00000000 000000020005 c3a974c3a9 00000001 00000001"
)
"""What Java's StickyAssignor wrote before KIP-341."""

FROM_JAVA = WITHOUT_GENERATION + b"\0\0\0\7"
"""What it writes since (4.3.1), for OWNED in generation 7; kafka-python and librdkafka too."""


def test_user_data_as_java_writes_it() -> None:
    assert encode_user_data(reversed(OWNED), 7) == FROM_JAVA
    assert encode_user_data((), 8) == bytes.fromhex("00000000 00000008")


@pytest.mark.parametrize(
    ("data", "owned", "generation"),
    [
        (FROM_JAVA, OWNED, 7),
        (WITHOUT_GENERATION, OWNED, -1),
        (WITHOUT_GENERATION + b"\0\0", OWNED, -1),
        (FROM_JAVA + b"of a later version", OWNED, 7),
        (bytes.fromhex("00000000 00000008"), (), 8),
        (bytes.fromhex("00000000 fffffffe"), (), -1),
        (None, (), -1),
        (b"", (), -1),
    ],
)
def test_user_data_is_read_as_java_reads_it(
    data: bytes | None, owned: tuple[TopicPartition, ...], generation: int
) -> None:
    assert decode_user_data(data) == (owned, generation)


@pytest.mark.parametrize(
    "text",
    [
        "00",
        "ffffffff 00000007",
        "7fffffff 00000007",
        "00000001 ffff 00000000 00000007",
        "00000001 fffa 0000 00000007",
        "00000001 7fff 61 00000000 00000007",
        "00000001 0001 ff 00000000 00000007",
        "00000001 0001 61 ffffffff 00000007",
        "00000001 0001 61 7fffffff 00000007",
        "00000001 0001 61 00000002 00000007",
        "00000001 0001",
        "00000002 0001 61 00000000",
    ],
)
def test_undecodable_user_data_is_no_claim(text: str) -> None:
    assert decode_user_data(bytes.fromhex(text)) == ((), -1)


def test_user_data_beyond_the_limit_is_no_claim() -> None:
    most = [TopicPartition("a", n) for n in range(MAX_PARTITIONS)]
    assert decode_user_data(encode_user_data(most, 7)) == (tuple(most), 7)
    more = [*most, TopicPartition("b", 0)]
    assert decode_user_data(encode_user_data(more, 7)) == ((), -1)


@repeatable
@given(st.binary(max_size=60))
def test_any_bytes_are_user_data_or_none(data: bytes) -> None:
    owned, generation = decode_user_data(data)
    assert generation >= -1
    assert len(owned) * 4 <= len(data)


@repeatable
@given(
    st.sets(st.tuples(st.text("aé-", min_size=1, max_size=5), st.integers(0, 2**31 - 1))),
    st.integers(-1, 2**31 - 1),
)
def test_user_data_round_trips(owned: set[tuple[str, int]], generation: int) -> None:
    partitions = tuple(sorted(TopicPartition(*tp) for tp in owned))
    assert decode_user_data(encode_user_data(partitions, generation)) == (partitions, generation)

"""The range and round robin assignors: whole assignments, and their definitions."""

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

from kafkagroup.assign import (
    Assignor,
    GroupSpec,
    MemberSpec,
    protocol_name,
    range_assignor,
    roundrobin_assignor,
)
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import Assignment, TopicPartition

BOTH = pytest.mark.parametrize(
    "assignor", [range_assignor, roundrobin_assignor], ids=["range", "roundrobin"]
)
repeatable = settings(max_examples=120)


def spec(partitions: Mapping[str, int], **members: str) -> GroupSpec:
    """Return a group: members by id; topics as words, an instance id as a word that starts with
    "="."""
    made = {}
    for member, text in members.items():
        words = text.split()
        instance = next((word[1:] for word in words if word[0] == "="), None)
        topics = frozenset(word for word in words if word[0] != "=")
        made[member] = MemberSpec(topics=topics, instance_id=instance)
    return GroupSpec(members=made, partitions=partitions)


def assigned(**members: str) -> Assignment:
    """Return member -> partitions, written "t0 t1 u0"."""
    return {
        member: tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())
        for member, text in members.items()
    }


# ---------------------------------------------------------------- range


def test_range_assigns_consecutive_partitions_and_the_first_members_one_more() -> None:
    assert range_assignor(spec({"t": 7}, b="t", a="t", c="t")) == assigned(
        a="t0 t1 t2", b="t3 t4", c="t5 t6"
    )


def test_range_co_partitions_topics_with_equal_partition_counts() -> None:
    """So that a join of two topics finds both sides of a key in one member."""
    assert range_assignor(spec({"t": 3, "u": 3}, a="t u", b="t u")) == assigned(
        a="t0 t1 u0 u1", b="t2 u2"
    )


def test_range_leaves_surplus_members_without_partitions() -> None:
    assert range_assignor(spec({"t": 2}, a="t", b="t", c="t")) == assigned(a="t0", b="t1", c="")


def test_range_divides_each_topic_among_its_own_subscribers() -> None:
    assert range_assignor(spec({"t": 3, "u": 2, "v": 1}, a="t", b="t u", c="u v")) == assigned(
        a="t0 t1", b="t2 u0", c="u1 v0"
    )


def racked(topics: Mapping[str, str], **members: str) -> GroupSpec:
    """Return a group: topics as the racks of each partition, "r s rs -"; members as "rack topic
    topic", or with "-" for no rack."""
    made = {m: text.split() for m, text in members.items()}
    return GroupSpec(
        members={
            m: MemberSpec(topics=frozenset(words[1:]), rack=None if words[0] == "-" else words[0])
            for m, words in made.items()
        },
        partitions={topic: len(text.split()) for topic, text in topics.items()},
        racks={
            topic: [frozenset(word.strip("-")) for word in text.split()]
            for topic, text in topics.items()
        },
    )


def test_range_assigns_partitions_with_a_replica_in_the_members_rack() -> None:
    assert range_assignor(racked({"t": "r s r s"}, a="s t", b="r t")) == assigned(
        a="t1 t3", b="t0 t2"
    )


def test_range_completes_a_members_quota_with_partitions_of_other_racks() -> None:
    assert range_assignor(racked({"t": "r r r s r r"}, a="s t", b="r t", c="q t")) == assigned(
        a="t2 t3", b="t0 t1", c="t4 t5"
    )


def test_range_gives_members_without_a_rack_the_first_remaining_partitions() -> None:
    assert range_assignor(racked({"t": "r s rs s"}, a="- t", b="r t")) == assigned(
        a="t0 t1", b="t2 t3"
    )


def test_range_co_partitions_topics_by_rack_only_if_both_have_replicas_there() -> None:
    """Partition 0 of one topic is in r, but not that of the other: neither is assigned by rack."""
    assert range_assignor(
        racked({"t": "r s r s", "u": "s s r s"}, a="s t u", b="r t u")
    ) == assigned(a="t1 t3 u1 u3", b="t0 t2 u0 u2")


def test_range_co_partitions_by_rack_at_the_first_member_of_that_rack() -> None:
    assert range_assignor(racked({"t": "rs s", "u": "rs r"}, a="r t u", b="s t u")) == assigned(
        a="t0 u0", b="t1 u1"
    )


def test_range_uses_racks_for_all_co_partitioned_topics_if_they_matter_for_one() -> None:
    """t and u are in all racks; v, with another partition count, is not."""
    everywhere = {"t": "s s s s", "u": "s s s s"}
    members = {"a": "r t u v", "b": "s t u v"}
    assert range_assignor(racked(everywhere, **members)) == assigned(
        a="t0 t1 u0 u1", b="t2 t3 u2 u3"
    )
    assert range_assignor(racked({**everywhere, "v": "s r"}, **members)) == assigned(
        a="t2 t3 u2 u3 v1", b="t0 t1 u0 u1 v0"
    )


def test_range_uses_racks_for_a_single_topic_only_if_they_matter_there() -> None:
    group = racked({"t": "s s s s", "v": "s r"}, a="r t v", b="s t v")
    assert range_assignor(group) == assigned(a="t0 t1 v1", b="t2 t3 v0")


def test_range_ignores_racks_that_members_and_replicas_do_not_share() -> None:
    assert range_assignor(racked({"t": "p q"}, a="r t", b="- t")) == assigned(a="t0", b="t1")


@pytest.mark.parametrize("racks", ["rs rs rs", "q q q", "- - -"])
def test_range_ignores_racks_that_distinguish_nothing(racks: str) -> None:
    assert range_assignor(racked({"t": racks}, a="s t", b="r t")) == assigned(a="t0 t1", b="t2")


def test_range_treats_an_empty_rack_as_no_rack() -> None:
    group = racked({"t": "s r r s"}, a="- t", b="s t")
    emptied = attrs.evolve(group.members["a"], rack="")
    group = attrs.evolve(group, members={**group.members, "a": emptied})
    assert range_assignor(group) == assigned(a="t0 t1", b="t2 t3")
    short = attrs.evolve(group, racks={"t": [frozenset(), frozenset("s")]})
    assert range_assignor(short) == assigned(a="t0 t1", b="t2 t3")


def test_range_ignores_racks_of_missing_partitions() -> None:
    group = racked({"t": "q s r", "u": "q s r"}, a="r t u", b="s t u")
    group = attrs.evolve(group, partitions={"t": 2, "u": 2})
    assert range_assignor(group) == assigned(a="t0 u0", b="t1 u1")


# ---------------------------------------------------------------- round robin


def test_roundrobin_distributes_all_partitions_of_all_topics() -> None:
    assert roundrobin_assignor(spec({"t": 3, "u": 2}, b="t u", a="t u")) == assigned(
        a="t0 t2 u1", b="t1 u0"
    )


def test_roundrobin_skips_members_that_do_not_subscribe() -> None:
    assert roundrobin_assignor(spec({"t": 1, "u": 2, "v": 3}, a="t", b="t u", c="t u v")) == (
        assigned(a="t0", b="u0", c="u1 v0 v1 v2")
    )


def test_roundrobin_leaves_surplus_members_without_partitions() -> None:
    assert roundrobin_assignor(spec({"t": 2}, a="t", b="t", c="t")) == assigned(
        a="t0", b="t1", c=""
    )


# ---------------------------------------------------------------- both


@BOTH
def test_missing_topics_are_ignored(assignor: Assignor) -> None:
    assert assignor(spec({"t": 1, "empty": 0}, a="t nowhere empty", b="nowhere")) == assigned(
        a="t0", b=""
    )


@BOTH
def test_topics_without_subscribers_are_not_assigned(assignor: Assignor) -> None:
    assert assignor(spec({"t": 1, "u": 5}, a="t")) == assigned(a="t0")


@BOTH
def test_empty_groups_and_members_without_topics_are_accepted(assignor: Assignor) -> None:
    assert assignor(spec({"t": 1})) == {}
    assert assignor(spec({"t": 1}, a="", b="")) == assigned(a="", b="")


@BOTH
def test_static_members_are_sorted_first_by_instance_id(assignor: Assignor) -> None:
    """As Java's MemberInfo sorts: a new member id of the same instance moves nothing."""
    assert assignor(spec({"t": 4}, a="t", b="t =y", c="t", d="t =x")) == assigned(
        d="t0", b="t1", a="t2", c="t3"
    )
    assert assignor(spec({"t": 4}, a="t", z="t =y", c="t", d="t =x")) == assigned(
        d="t0", z="t1", a="t2", c="t3"
    )


def test_the_protocol_names_of_the_assignors() -> None:
    def plain(spec: GroupSpec) -> Assignment:
        return {}

    assert [protocol_name(a) for a in (range_assignor, roundrobin_assignor, plain)] == [
        "range",
        "roundrobin",
        "plain",
    ]


def test_an_assignor_without_a_name_is_an_error() -> None:
    nameless: Assignor = lambda spec: {}  # noqa: E731 - a lambda has no name of its own
    with pytest.raises(
        ConfigurationError, match=r"^assignor <function .*<lambda>.* needs an attribute protocol"
    ):
        protocol_name(nameless)
    vars(nameless)["protocol_name"] = "mine"
    assert protocol_name(nameless) == "mine"
    vars(nameless)["protocol_name"] = ""
    with pytest.raises(ConfigurationError):
        protocol_name(nameless)


# ---------------------------------------------------------------- by definition


def wanted(group: GroupSpec) -> set[TopicPartition]:
    subscribed = {topic for member in group.members.values() for topic in member.topics}
    return {
        TopicPartition(topic, p)
        for topic, count in group.partitions.items()
        if topic in subscribed
        for p in range(count)
    }


@BOTH
@repeatable
@given(group=groups())
def test_s14_an_assignment_is_complete_disjoint_and_of_subscribed_topics(
    assignor: Assignor, group: GroupSpec
) -> None:
    assignment = assignor(group)
    assert assignment.keys() == group.members.keys()
    dealt = [tp for partitions in assignment.values() for tp in partitions]
    assert len(dealt) == len(set(dealt))
    assert set(dealt) == wanted(group)
    for member, partitions in assignment.items():
        assert {tp.topic for tp in partitions} <= group.members[member].topics
        assert list(partitions) == sorted(partitions)


@repeatable
@given(group=groups())
def test_s14_range_counts_of_a_topic_differ_by_at_most_one(group: GroupSpec) -> None:
    """With racks, too; without racks, they are consecutive and the first ones are larger."""
    for spec in (group, attrs.evolve(group, racks={})):
        assignment = range_assignor(spec)
        for topic in spec.topics():
            runs = [[p for t, p in assignment[m] if t == topic] for m in spec.subscribers()[topic]]
            lengths = [len(run) for run in runs]
            assert max(lengths) - min(lengths) <= 1
            if not spec.racks:
                assert lengths == sorted(lengths, reverse=True)
                assert [p for run in runs for p in run] == list(range(spec.partitions[topic]))


@repeatable
@given(group=groups(same=True))
def test_s14_range_co_partitions_topics_with_equal_partition_counts(group: GroupSpec) -> None:
    for held in range_assignor(group).values():
        numbers = {topic: [p for t, p in held if t == topic] for topic in group.topics()}
        for topic, here in numbers.items():
            for other, there in numbers.items():
                if group.partitions[topic] == group.partitions[other]:
                    assert here == there


@repeatable
@given(group=groups(same=True))
def test_s14_roundrobin_counts_differ_by_at_most_one(group: GroupSpec) -> None:
    counts = Counter({m: len(partitions) for m, partitions in roundrobin_assignor(group).items()})
    assert max(counts.values()) - min(counts.values()) <= 1


@BOTH
@repeatable
@given(group=groups(), seed=st.integers(0, 1000))
def test_s14_the_order_of_the_given_members_does_not_matter(
    assignor: Assignor, group: GroupSpec, seed: int
) -> None:
    ids = list(group.members)
    random.Random(seed).shuffle(ids)
    shuffled = attrs.evolve(
        group,
        members={m: group.members[m] for m in ids},
        partitions=dict(reversed(group.partitions.items())),
    )
    assert assignor(shuffled) == assignor(group)


def test_s14_every_process_computes_the_same_assignment() -> None:
    """Sets of strings have another order in each process; the leader may be any of them."""
    program = (
        "from kafkagroup.assign import *\n"
        "topics = frozenset('stuvw')\n"
        "members = {m: MemberSpec(topics=topics - {m}) for m in {'s', 'b', 'u', 'd', 'w'}}\n"
        "spec = GroupSpec(members=members, partitions=dict.fromkeys(topics, 3))\n"
        "for assign in (range_assignor, roundrobin_assignor):\n"
        "    print(sorted(assign(spec).items()))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert outputs.pop().count("TopicPartition") == 30

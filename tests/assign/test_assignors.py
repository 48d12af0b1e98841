"""The range and round robin assignors: whole assignments, their definitions, and Java's own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
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
from kafkagroup.testing._jars import LocalKafkaUnavailable, find_java, resolve_jars
from kafkagroup.types import Assignment, TopicPartition

BOTH = pytest.mark.parametrize(
    "assignor", [range_assignor, roundrobin_assignor], ids=["range", "roundrobin"]
)
repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=120)


def spec(partitions: Mapping[str, int], **members: str) -> GroupSpec:
    """Members by id; topics as words, an instance id as a word that begins with "="."""
    made = {}
    for member, text in members.items():
        words = text.split()
        instance = next((word[1:] for word in words if word[0] == "="), None)
        topics = frozenset(word for word in words if word[0] != "=")
        made[member] = MemberSpec(topics=topics, instance_id=instance)
    return GroupSpec(members=made, partitions=partitions)


def assigned(**members: str) -> Assignment:
    """Member -> partitions, written "t0 t1 u0"."""
    return {
        member: tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())
        for member, text in members.items()
    }


# ---------------------------------------------------------------- range


def test_range_gives_runs_and_the_first_members_one_more() -> None:
    assert range_assignor(spec({"t": 7}, b="t", a="t", c="t")) == assigned(
        a="t0 t1 t2", b="t3 t4", c="t5 t6"
    )


def test_range_lines_up_topics_with_the_same_number_of_partitions() -> None:
    """So that a join of two topics finds both sides of a key in one member."""
    assert range_assignor(spec({"t": 3, "u": 3}, a="t u", b="t u")) == assigned(
        a="t0 t1 u0 u1", b="t2 u2"
    )


def test_range_leaves_members_beyond_the_partitions_empty() -> None:
    assert range_assignor(spec({"t": 2}, a="t", b="t", c="t")) == assigned(a="t0", b="t1", c="")


def test_range_counts_the_subscribers_of_each_topic_alone() -> None:
    assert range_assignor(spec({"t": 3, "u": 2, "v": 1}, a="t", b="t u", c="u v")) == assigned(
        a="t0 t1", b="t2 u0", c="u1 v0"
    )


# ---------------------------------------------------------------- round robin


def test_roundrobin_deals_all_partitions_of_all_topics() -> None:
    assert roundrobin_assignor(spec({"t": 3, "u": 2}, b="t u", a="t u")) == assigned(
        a="t0 t2 u1", b="t1 u0"
    )


def test_roundrobin_passes_over_members_that_do_not_subscribe() -> None:
    assert roundrobin_assignor(spec({"t": 1, "u": 2, "v": 3}, a="t", b="t u", c="t u v")) == (
        assigned(a="t0", b="u0", c="u1 v0 v1 v2")
    )


def test_roundrobin_leaves_members_beyond_the_partitions_empty() -> None:
    assert roundrobin_assignor(spec({"t": 2}, a="t", b="t", c="t")) == assigned(
        a="t0", b="t1", c=""
    )


# ---------------------------------------------------------------- both


@BOTH
def test_topics_that_do_not_exist_do_no_harm(assignor: Assignor) -> None:
    assert assignor(spec({"t": 1, "empty": 0}, a="t nowhere empty", b="nowhere")) == assigned(
        a="t0", b=""
    )


@BOTH
def test_topics_that_nobody_wants_stay_where_they_are(assignor: Assignor) -> None:
    assert assignor(spec({"t": 1, "u": 5}, a="t")) == assigned(a="t0")


@BOTH
def test_a_group_of_nobody_and_members_of_nothing(assignor: Assignor) -> None:
    assert assignor(spec({"t": 1})) == {}
    assert assignor(spec({"t": 1}, a="", b="")) == assigned(a="", b="")


@BOTH
def test_static_members_come_first_by_instance_id(assignor: Assignor) -> None:
    """As Java's MemberInfo sorts: a new member id of the same instance moves nothing."""
    assert assignor(spec({"t": 4}, a="t", b="t =y", c="t", d="t =x")) == assigned(
        d="t0", b="t1", a="t2", c="t3"
    )
    assert assignor(spec({"t": 4}, a="t", z="t =y", c="t", d="t =x")) == assigned(
        d="t0", z="t1", a="t2", c="t3"
    )


def test_the_names_on_the_wire() -> None:
    def plain(spec: GroupSpec) -> Assignment:
        return {}

    assert [protocol_name(a) for a in (range_assignor, roundrobin_assignor, plain)] == [
        "range",
        "roundrobin",
        "plain",
    ]


def test_an_assignor_without_a_name_is_refused() -> None:
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


TOPICS = "stuvw"


@st.composite
def groups(draw: st.DrawFn, *, same: bool = False) -> GroupSpec:
    """Up to eight members, of which some are static, and up to five topics."""
    partitions = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), max_size=5))
    ids = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1))
    shared = draw(st.frozensets(st.sampled_from(TOPICS)))
    members = {}
    for index, member in enumerate(ids):
        topics = shared if same else draw(st.frozensets(st.sampled_from(TOPICS)))
        # Instance ids sort the other way round than member ids do.
        static = draw(st.booleans())
        instance = f"i{9 - index}" if static else None
        members[member] = MemberSpec(topics=topics, instance_id=instance)
    return GroupSpec(members=members, partitions=partitions)


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
def test_s14_complete_disjoint_and_only_what_is_subscribed_to(
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
def test_s14_range_runs_of_a_topic_differ_by_at_most_one_and_have_no_gaps(
    group: GroupSpec,
) -> None:
    assignment = range_assignor(group)
    for topic, count in group.partitions.items():
        subscribers = [m for m in group.order() if topic in group.members[m].topics]
        runs = [[p for t, p in assignment[m] if t == topic] for m in subscribers]
        if subscribers:
            assert [p for run in runs for p in run] == list(range(count))
            lengths = [len(run) for run in runs]
            assert lengths == sorted(lengths, reverse=True)
            assert lengths[0] - lengths[-1] <= 1


@repeatable
@given(group=groups(same=True))
def test_s14_roundrobin_counts_differ_by_at_most_one(group: GroupSpec) -> None:
    counts = Counter({m: len(partitions) for m, partitions in roundrobin_assignor(group).items()})
    assert max(counts.values()) - min(counts.values()) <= 1


@BOTH
@repeatable
@given(group=groups(), seed=st.integers(0, 1000))
def test_s14_the_order_of_the_members_given_changes_nothing(
    assignor: Assignor, group: GroupSpec, seed: int
) -> None:
    ids = list(group.members)
    random.Random(seed).shuffle(ids)
    shuffled = GroupSpec(
        members={m: group.members[m] for m in ids},
        partitions=dict(reversed(group.partitions.items())),
    )
    assert assignor(shuffled) == assignor(group)


def test_s14_every_process_computes_the_same() -> None:
    """Sets of strings come in another order in each process; the leader may be any of them."""
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


# ---------------------------------------------------------------- Java's own


JAVA = """
import java.nio.ByteBuffer;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.common.*;

public class Assign {
    public static void main(String[] args) throws Exception {
        Node node = new Node(0, "h", 1);
        Node[] nodes = {node};
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] halves = line.split("\\\\|", -1);
            List<PartitionInfo> partitions = new ArrayList<>();
            for (String topic : halves[0].trim().split(" "))
                if (!topic.isEmpty())
                    for (int p = 0; p < Integer.parseInt(topic.substring(1)); p++)
                        partitions.add(
                            new PartitionInfo(topic.substring(0, 1), p, node, nodes, nodes));
            Cluster cluster = new Cluster("c", List.of(node), partitions, Set.of(), Set.of());
            Map<String, Subscription> members = new HashMap<>();
            for (String member : halves[1].trim().split(" ")) {
                String[] parts = member.split(":", -1);
                List<String> topics = new ArrayList<>();
                for (char topic : parts[2].toCharArray()) topics.add(String.valueOf(topic));
                Subscription subscription = new Subscription(topics);
                if (!parts[1].isEmpty()) subscription.setGroupInstanceId(Optional.of(parts[1]));
                members.put(parts[0], subscription);
            }
            GroupSubscription group = new GroupSubscription(members);
            StringBuilder out = new StringBuilder();
            for (ConsumerPartitionAssignor assignor :
                    List.of(new RangeAssignor(), new RoundRobinAssignor())) {
                Map<String, Assignment> all =
                    new TreeMap<>(assignor.assign(cluster, group).groupAssignment());
                all.forEach((member, assignment) -> {
                    out.append(member).append('=');
                    List<TopicPartition> given = new ArrayList<>(assignment.partitions());
                    given.sort(Comparator.comparing(TopicPartition::topic)
                        .thenComparing(TopicPartition::partition));
                    given.forEach(tp -> out.append(tp.topic()).append(tp.partition()).append(','));
                    out.append(' ');
                });
                out.append("| ");
            }
            System.out.println(out);
        }
    }
}
"""


def random_group(seed: int) -> GroupSpec:
    rng = random.Random(seed)
    partitions = {t: rng.randrange(0, 12) for t in TOPICS if rng.random() < 0.8}
    members = {}
    for index, member in enumerate(rng.sample("abcdefgh", rng.randrange(1, 8))):
        instance = f"i{9 - index}" if rng.random() < 0.4 else None
        topics = frozenset(t for t in TOPICS if rng.random() < 0.7)
        members[member] = MemberSpec(topics=topics, instance_id=instance)
    return GroupSpec(members=members, partitions=partitions)


def for_java(group: GroupSpec) -> str:
    topics = " ".join(f"{t}{n}" for t, n in group.partitions.items() if n)
    members = " ".join(
        f"{m}:{s.instance_id or ''}:{''.join(sorted(s.topics))}" for m, s in group.members.items()
    )
    return f"{topics} | {members}"


def as_java(group: GroupSpec) -> str:
    out = ""
    for assignor in (range_assignor, roundrobin_assignor):
        for member, partitions in sorted(assignor(group).items()):
            out += f"{member}={''.join(f'{t}{p},' for t, p in partitions)} "
        out += "| "
    return out


def test_the_same_as_java(tmp_path: Path) -> None:
    try:
        java = find_java()
        jars = resolve_jars("4.3.1", java, timeout=0)
    except LocalKafkaUnavailable as error:
        pytest.skip(f"the assignors are NOT COMPARED with Java's: {error}")
    cases = [random_group(seed) for seed in range(300)]
    (tmp_path / "cases").write_text("\n".join(map(for_java, cases)))
    (tmp_path / "Assign.java").write_text(JAVA)
    done = subprocess.run(
        [
            java,
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{jars}/*",
            str(tmp_path / "Assign.java"),
            str(tmp_path / "cases"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    theirs = done.stdout.splitlines()
    assert theirs == [as_java(case) for case in cases]

"""How metadata responses change the metadata of the cluster: what counts at once, and what only
when a second response repeats it."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import pytest

from kafkagroup.errors import ErrorCode
from kafkagroup.transport.merging import NOTHING_UNCONFIRMED, merge
from kafkagroup.transport.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafkagroup.wire.schema import NO_ID

E = ErrorCode
ONE, TWO = UUID(int=1), UUID(int=2)
NODE = Node(1, "a", 9092)


def partition(index: int, leader: int, epoch: int) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=0,
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=(1, 2),
        isr_nodes=(1,),
    )


def topic(
    *leaders: tuple[int, int], topic_id: UUID = ONE, error_code: int = 0, name: str | None = "t"
) -> MetadataResponseTopic:
    """Return a topic of a response, with these leaders and epochs."""
    partitions = tuple(partition(i, leader, epoch) for i, (leader, epoch) in enumerate(leaders))
    return MetadataResponseTopic(
        error_code=error_code, name=name, topic_id=topic_id, partitions=partitions
    )


def response(*topics: MetadataResponseTopic, nodes: Iterable[Node] = (NODE,)) -> MetadataResponse:
    brokers = tuple(
        MetadataResponseBroker(node_id=n.node_id, host=n.host, port=n.port, rack=n.rack)
        for n in nodes
    )
    return MetadataResponse(brokers=brokers, topics=topics, cluster_id="c")


def described(
    *leaders: tuple[int, int], topic_id: UUID = ONE, error_code: int = 0
) -> MetadataResponse:
    return response(topic(*leaders, topic_id=topic_id, error_code=error_code))


ABSENT = described(topic_id=NO_ID, error_code=E.UNKNOWN_TOPIC_OR_PARTITION)


def known(one: TopicMetadata, *nodes: Node) -> ClusterMetadata:
    return ClusterMetadata("c", {n.node_id: n for n in nodes or (NODE,)}, {"t": one})


def led(
    *leaders: tuple[int, int],
    topic_id: UUID = ONE,
    error_code: int = 0,
    is_absent: bool = False,
) -> TopicMetadata:
    """Return a known topic with these leaders and epochs."""
    partitions = {i: PartitionMetadata(n, e, (1, 2)) for i, (n, e) in enumerate(leaders)}
    return TopicMetadata(topic_id, partitions, error_code, is_absent=is_absent)


def after(
    before: ClusterMetadata,
    *responses: MetadataResponse,
    requested: tuple[str, ...] | None = ("t",),
) -> tuple[ClusterMetadata, bool]:
    """Return the metadata after these responses, and whether the last one must be confirmed."""
    metadata, unconfirmed = before, NOTHING_UNCONFIRMED
    for one in responses:
        metadata, unconfirmed = merge(metadata, one, unconfirmed, requested=requested)
    return metadata, bool(unconfirmed)


# ---------------------------------------------------------------- what counts at once


def test_the_first_metadata_response_is_used_as_it_is() -> None:
    found, is_unconfirmed = after(
        ClusterMetadata(),
        response(
            MetadataResponseTopic(
                error_code=0,
                name="t",
                topic_id=ONE,
                partitions=(partition(1, 2, 7), partition(0, 1, 5)),
            )
        ),
    )
    assert (found, is_unconfirmed) == (known(led((1, 5), (2, 7))), False)
    assert list(found.topics["t"].partitions) == [0, 1]


@pytest.mark.parametrize(("epoch", "expected"), [(5, (2, 5)), (6, (2, 6)), (-1, (2, -1))])
def test_a_leader_of_the_same_or_a_newer_epoch_counts(
    epoch: int, expected: tuple[int, int]
) -> None:
    """-1 means a broker without epochs."""
    assert after(known(led((1, 5))), described((2, epoch))) == (known(led(expected)), False)


def test_added_partitions_count() -> None:
    grown = led((1, 5), (2, 0), (1, 0))
    assert after(known(led((1, 5))), described((1, 5), (2, 0), (1, 0))) == (known(grown), False)


def test_an_added_broker_counts() -> None:
    two = Node(2, "b", 9092)
    found = after(known(led((1, 5))), response(topic((1, 5)), nodes=(NODE, two)))
    assert found == (known(led((1, 5)), NODE, two), False)


def test_known_topics_that_were_not_requested_stay_only_while_they_are_in_use() -> None:
    before = ClusterMetadata("old", {1: NODE}, {"other": led((9, 1)), "used": led((9, 2))})
    found, _ = merge(before, described((1, 0)), requested=("t",), in_use=("used",))
    topics = {"used": led((9, 2)), "t": led((1, 0))}
    assert found == ClusterMetadata("c", {1: NODE}, topics)
    assert after(before, described((1, 0))) == (known(led((1, 0))), False)


def test_topics_that_no_request_named_are_not_kept() -> None:
    """A broker that named 250,000 new topics in each response once filled the memory."""
    unasked = [topic((1, 5), name=f"unasked-{n}") for n in range(3)]
    before = known(led((1, 5)))
    assert after(before, response(topic((1, 5)), *unasked)) == (before, False)
    assert after(ClusterMetadata(), response(*unasked), requested=())[0].topics == {}
    listed = after(ClusterMetadata(), response(*unasked), requested=None)[0].topics
    assert list(listed) == ["unasked-0", "unasked-1", "unasked-2"]


def test_listed_topics_without_partitions_are_kept_only_if_they_are_known_or_in_use() -> None:
    listed = response(topic(name="new"), topic(name="t", error_code=5), topic(name="used"))
    found, _ = merge(known(led((1, 5))), listed, requested=None, in_use=("used",))
    assert found == ClusterMetadata("c", {1: NODE}, {"t": led((1, 5), error_code=5), "used": led()})


def test_the_racks_of_a_thousand_offline_nodes_are_kept() -> None:
    """A broker that named other nodes in each response once filled the memory."""

    def nodes(first: int) -> list[Node]:
        return [Node(n, "h", 1, rack=f"r{n}") for n in range(first, first + 700)]

    metadata, _ = after(ClusterMetadata(), *(response(nodes=nodes(n)) for n in (0, 1000, 2000)))
    assert metadata.racks == {
        n: f"r{n}" for n in (*range(400, 700), *range(1000, 1700), *range(2000, 2700))
    }


def test_partitions_stay_known_during_a_leader_election() -> None:
    electing = described(error_code=E.LEADER_NOT_AVAILABLE)
    assert after(known(led((1, 5))), electing) == (known(led((1, 5), error_code=5)), False)
    assert after(known(led((1, 5))), electing, described((2, 6))) == (known(led((2, 6))), False)


@pytest.mark.parametrize("code", [E.UNKNOWN_SERVER_ERROR, E.KAFKA_STORAGE_ERROR, 999])
def test_an_error_that_does_not_deny_the_topic_takes_nothing_away(code: int) -> None:
    failing = described(error_code=code)
    expected = known(led((1, 5), error_code=code)), False
    assert after(known(led((1, 5))), failing) == expected
    assert after(known(led((1, 5))), failing, failing, failing) == expected


def test_a_topic_without_a_name_is_ignored() -> None:
    found = after(ClusterMetadata(), response(topic((1, 0), name=None)))
    assert found == (ClusterMetadata("c", {1: NODE}, {}), False)


def test_an_empty_rack_is_none() -> None:
    brokers = tuple(
        MetadataResponseBroker(node_id=n, host="h", port=1, rack=rack)
        for n, rack in enumerate((None, "", "r"))
    )
    found, _ = merge(ClusterMetadata(), MetadataResponse(brokers=brokers, topics=()), requested=())
    assert [node.rack for node in found.nodes.values()] == [None, None, "r"]


def test_a_broker_that_does_not_see_the_leader_takes_it_from_no_one() -> None:
    """A broker names no leader if it has no address of it. An election without a result begins a
    new epoch."""
    blind = described((-1, 5))
    assert after(known(led((1, 5))), blind, blind) == (known(led((1, 5))), False)
    assert after(known(led((1, 5))), described((-1, 6))) == (known(led((-1, 6))), False)


# ---------------------------------------------------------------- what a second response confirms


def test_a_topic_is_gone_once_a_second_response_does_not_know_it() -> None:
    """One broker that lagged behind once made all members of a group lose all partitions."""
    before = known(led((1, 5)))
    assert after(before, ABSENT) == (before, True)
    assert after(before, ABSENT, described((1, 5))) == (before, False)
    assert after(before, ABSENT, described((1, 5)), ABSENT) == (before, True)
    gone = known(led(topic_id=NO_ID, error_code=3, is_absent=True))
    assert after(before, ABSENT, ABSENT) == (gone, False)
    assert after(before, ABSENT, ABSENT, ABSENT) == (gone, False)
    assert (gone.partition_counts(["t"]), gone.leader(TopicPartition("t", 0))) == ({}, None)
    assert after(before, ABSENT, ABSENT, described((1, 5))) == (before, False)


def test_a_topic_that_a_response_leaves_out_is_one_that_it_does_not_know() -> None:
    before = known(led((1, 5)))
    assert after(before, response()) == (before, True)
    assert after(before, response(), ABSENT)[0].topics["t"].is_absent
    assert after(before, response(), response()) == (ClusterMetadata("c", {1: NODE}, {}), False)
    dropped = ClusterMetadata("c", {1: NODE}, {}), False
    assert after(before, response(), requested=()) == dropped


def test_a_list_of_all_topics_removes_a_topic_only_once_it_is_repeated() -> None:
    """Subscribers by pattern once rebalanced twice for one list that lacked a topic."""
    before = known(led((1, 5)))
    assert after(before, response(), requested=None) == (before, True)
    assert after(before, response(), described((1, 5)), requested=None) == (before, False)
    gone = ClusterMetadata("c", {1: NODE}, {}), False
    assert after(before, response(), response(), requested=None) == gone


def test_a_topic_that_no_response_has_described_is_absent_after_two() -> None:
    unknown = led(topic_id=NO_ID, error_code=3)
    assert after(ClusterMetadata(), ABSENT) == (known(unknown), True)
    assert after(ClusterMetadata(), ABSENT, ABSENT)[0].topics["t"].is_absent
    metadata, unconfirmed = merge(ClusterMetadata(), ABSENT, requested=("t",))
    assert not unconfirmed.contradicts(metadata)


@pytest.mark.parametrize("code", [E.TOPIC_AUTHORIZATION_FAILED, E.INVALID_TOPIC_EXCEPTION])
def test_a_denied_topic_has_its_error_at_once_and_its_partitions_until_that_is_repeated(
    code: int,
) -> None:
    before, denied = known(led((1, 5))), described(topic_id=NO_ID, error_code=code)
    assert after(before, denied) == (known(led((1, 5), error_code=code)), True)
    assert after(before, denied, described((1, 5))) == (before, False)
    assert after(before, denied, denied) == (known(led(topic_id=NO_ID, error_code=code)), False)
    assert after(before, denied, ABSENT) == (known(led((1, 5), error_code=code)), True)


def test_a_topic_never_has_fewer_partitions_under_the_same_id() -> None:
    before, fewer = known(led((1, 5), (1, 5), (1, 5))), described((1, 5), (2, 6))
    expected = known(led((1, 5), (2, 6), (1, 5))), False
    assert after(before, fewer) == expected
    assert after(before, fewer, fewer, fewer) == expected


def test_without_topic_ids_fewer_partitions_count_once_repeated() -> None:
    """Brokers before 2.8 have no ids, so a topic recreated with fewer partitions looks the same."""
    before = known(led((1, 5), (1, 5), (1, 5), topic_id=NO_ID))
    fewer = described((1, 5), (1, 5), topic_id=NO_ID)
    assert after(before, fewer) == (before, True)
    assert after(before, fewer, described((1, 5), topic_id=NO_ID)) == (before, True)
    expected = known(led((1, 5), (1, 5), topic_id=NO_ID)), False
    assert after(before, fewer, fewer) == expected


def test_a_broker_without_topic_ids_does_not_take_the_id_away() -> None:
    """While a cluster is upgraded from 2.7, some brokers report ids and others do not."""
    before = known(led((1, 5)))
    assert after(before, described((2, 6), topic_id=NO_ID)) == (known(led((2, 6))), False)
    old = known(led((1, 5), topic_id=NO_ID))
    assert after(old, described((2, 6))) == (known(led((2, 6))), False)


def test_another_topic_id_counts_once_repeated() -> None:
    """After a recreation one late response with the old id once gave 51 records twice."""
    before, other = known(led((1, 5))), described((2, 0), (2, 0), topic_id=TWO)
    recreated = known(led((2, 0), (2, 0), topic_id=TWO))
    assert after(before, other) == (before, True)
    assert after(before, other, described((1, 5))) == (before, False)
    assert after(before, other, ABSENT) == (before, True)
    assert after(before, other, other) == (recreated, False)
    assert after(before, other, other, described((1, 5))) == (recreated, True)
    assert after(before, other, other, described((1, 5)), other) == (recreated, False)


def test_a_recreated_topic_keeps_what_the_first_response_under_its_id_has() -> None:
    """The response that repeated the id once counted alone: if it lagged behind, the topic lost
    partitions of that id, and its leaders went back."""
    before = known(led((1, 5)))
    whole, partly = (
        described((2, 1), (2, 0), topic_id=TWO),
        described((1, 0), topic_id=TWO),
    )
    recreated = known(led((2, 1), (2, 0), topic_id=TWO))
    assert after(before, whole, partly) == (recreated, True)
    assert after(before, partly, whole) == (recreated, False)


def test_an_older_leader_epoch_counts_once_repeated() -> None:
    """KIP-320: a lagging broker must not set the leader back. But one broker that reported an
    epoch too high once stopped a partition for ever."""
    before, older = known(led((1, 5), (1, 5))), described((2, 4), (1, 5))
    assert after(before, older) == (before, True)
    assert after(before, older, described((3, 3), (1, 5))) == (before, True)
    assert after(before, older, described((1, 5), (1, 5))) == (before, False)
    assert after(before, older, older) == (known(led((2, 4), (1, 5))), False)


def test_without_topic_ids_a_recreated_topic_begins_at_epoch_0_again() -> None:
    before, again = known(led((1, 5), topic_id=NO_ID)), described((2, 0), topic_id=NO_ID)
    assert after(before, again, again) == (known(led((2, 0), topic_id=NO_ID)), False)


def test_a_broker_leaves_once_a_second_response_does_not_list_it() -> None:
    two = Node(2, "b", 9092)
    before, without = known(led((1, 5)), NODE, two), described((1, 5))
    both = response(topic((1, 5)), nodes=(NODE, two))
    assert after(before, without) == (before, True)
    assert after(before, without, both, without) == (before, True)
    assert after(before, without, without) == (known(led((1, 5))), False)


def test_a_broker_moves_once_a_second_response_has_its_new_address() -> None:
    moved, elsewhere = Node(1, "b", 9092), Node(1, "c", 9092)
    before = known(led((1, 5)))
    there = response(topic((1, 5)), nodes=(moved,))
    assert after(before, there) == (before, True)
    assert after(before, there, response(topic((1, 5)), nodes=(elsewhere,))) == (before, True)
    assert after(before, there, there) == (known(led((1, 5)), moved), False)


def test_a_changed_rack_counts_at_once() -> None:
    racked = Node(1, "a", 9092, "r")
    found, _ = after(known(led((1, 5))), response(topic((1, 5)), nodes=(racked,)))
    assert found.nodes == {1: racked}


# ---------------------------------------------------------------- memory


def test_equal_partitions_are_one_object() -> None:
    """A cluster of 200,000 partitions would give the garbage collector as many objects to
    traverse."""
    found, _ = after(ClusterMetadata(), described((1, 5), (1, 5), (1, 5)))
    partitions = found.topics["t"].partitions
    assert partitions[0] == PartitionMetadata(1, 5, (1, 2))
    assert partitions[0] is partitions[1] is partitions[2]


def test_an_unchanged_partition_is_the_same_object() -> None:
    """Comparing two states of the cluster then ends at the identity."""
    before, _ = after(ClusterMetadata(), described((1, 5), (2, 5)))
    found, _ = after(before, described((1, 5), (2, 6)))
    assert found.topics["t"].partitions[0] is before.topics["t"].partitions[0]
    assert found == known(led((1, 5), (2, 6)))

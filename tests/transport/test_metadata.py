"""How one response changes the metadata of the cluster."""

from __future__ import annotations

from uuid import UUID

import pytest

from kafkagroup.errors import BrokerError, ErrorCode
from kafkagroup.transport.cluster import coordinator_in
from kafkagroup.transport.metadata import (
    ClusterMetadata,
    Node,
    PartitionMetadata,
    TopicMetadata,
    merge,
)
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.metadata import (
    Coordinator,
    FindCoordinatorResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

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


def answer(
    *partitions: MetadataResponsePartition,
    topic_id: UUID = ONE,
    error_code: int = 0,
    name: str | None = "t",
) -> MetadataResponse:
    topic = MetadataResponseTopic(
        error_code=error_code, name=name, topic_id=topic_id, partitions=partitions
    )
    broker = MetadataResponseBroker(node_id=1, host="a", port=9092)
    return MetadataResponse(brokers=(broker,), topics=(topic,), cluster_id="c")


def known(topic: TopicMetadata) -> ClusterMetadata:
    return ClusterMetadata(cluster_id="c", nodes={1: NODE}, topics={"t": topic})


def led(*leaders: tuple[int, int], topic_id: UUID = ONE, error_code: int = 0) -> TopicMetadata:
    """Return a topic with these leaders and epochs."""
    partitions = {i: PartitionMetadata(n, e, (1, 2)) for i, (n, e) in enumerate(leaders)}
    return TopicMetadata(topic_id, partitions, error_code)


def test_the_first_metadata_response_is_used_as_it_is() -> None:
    found = merge(ClusterMetadata(), answer(partition(1, 2, 7), partition(0, 1, 5)))
    assert found == known(led((1, 5), (2, 7)))
    assert list(found.topics["t"].partitions) == [0, 1]


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(4, (1, 5)), (0, (1, 5)), (5, (2, 5)), (6, (2, 6)), (-1, (2, -1))],
)
def test_an_older_leader_epoch_of_the_same_topic_is_ignored(
    epoch: int, expected: tuple[int, int]
) -> None:
    """KIP-320: a lagging broker must not revert the leader. -1 means a broker without epochs."""
    found = merge(known(led((1, 5))), answer(partition(0, 2, epoch)))
    assert found == known(led(expected))


def test_a_recreated_topic_replaces_metadata_whatever_its_epochs() -> None:
    found = merge(known(led((1, 5))), answer(partition(0, 2, 0), topic_id=TWO))
    assert found == known(led((2, 0), topic_id=TWO))


def test_partitions_stay_known_during_a_leader_election() -> None:
    found = merge(known(led((1, 5))), answer(error_code=ErrorCode.LEADER_NOT_AVAILABLE))
    assert found == known(led((1, 5), error_code=5))
    assert merge(found, answer(partition(0, 2, 6))) == known(led((2, 6)))


def test_a_deleted_topic_is_removed() -> None:
    gone = answer(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic_id=UUID(int=0))
    found = merge(known(led((1, 5))), gone)
    assert found == known(led(topic_id=UUID(int=0), error_code=3))
    assert (found.partition_counts(["t"]), found.leader(TopicPartition("t", 0))) == ({}, None)


def test_brokers_are_replaced_and_topics_not_requested_stay() -> None:
    before = ClusterMetadata("old", {9: Node(9, "z", 1)}, {"other": led((9, 1))})
    assert merge(before, answer(partition(0, 1, 0))) == ClusterMetadata(
        "c", {1: NODE}, {"other": led((9, 1)), "t": led((1, 0))}
    )


def test_a_topic_without_a_name_is_ignored() -> None:
    assert merge(ClusterMetadata(), answer(name=None)) == ClusterMetadata("c", {1: NODE}, {})


def test_an_empty_rack_is_none() -> None:
    brokers = tuple(
        MetadataResponseBroker(node_id=n, host="h", port=1, rack=rack)
        for n, rack in enumerate((None, "", "r"))
    )
    found = merge(ClusterMetadata(), MetadataResponse(brokers=brokers, topics=()))
    assert [node.rack for node in found.nodes.values()] == [None, None, "r"]


def test_counts_and_leaders() -> None:
    found = known(led((1, 0), (-1, 0)))
    assert found.partition_counts(["t", "unknown"]) == {"t": 2}
    assert found.leader(TopicPartition("t", 1)) == PartitionMetadata(-1, 0, (1, 2))
    assert found.leader(TopicPartition("t", 2)) is None
    assert found.leader(TopicPartition("unknown", 0)) is None


def test_a_coordinator_response_names_the_coordinator() -> None:
    found = Coordinator(key="g", node_id=3, host="h", port=9)
    assert coordinator_in(FindCoordinatorResponse(coordinators=(found,))) == Node(3, "h", 9)


def test_a_coordinator_response_with_an_error_raises_it() -> None:
    refusal = Coordinator(
        key="g", node_id=-1, host="", port=-1, error_code=15, error_message="later"
    )
    with pytest.raises(BrokerError) as caught:
        coordinator_in(FindCoordinatorResponse(coordinators=(refusal,)))
    assert (caught.value, caught.value.retriable) == (BrokerError(15, "later"), True)


def test_a_coordinator_response_without_a_coordinator_is_an_error() -> None:
    with pytest.raises(BrokerError, match="the answer names no coordinator") as caught:
        coordinator_in(FindCoordinatorResponse())
    assert caught.value.retriable


def test_equal_partitions_are_one_object() -> None:
    """A cluster of 200,000 partitions would give the garbage collector as many objects to
    traverse."""
    found = merge(ClusterMetadata(), answer(*(partition(i, 1, 5) for i in range(3))))
    partitions = found.topics["t"].partitions
    assert partitions[0] == PartitionMetadata(1, 5, (1, 2))
    assert partitions[0] is partitions[1] is partitions[2]


def test_an_unchanged_partition_is_the_same_object() -> None:
    """Comparing two states of the cluster then ends at the identity."""
    before = merge(ClusterMetadata(), answer(partition(0, 1, 5), partition(1, 2, 5)))
    after = merge(before, answer(partition(0, 1, 5), partition(1, 2, 6)))
    assert after.topics["t"].partitions[0] is before.topics["t"].partitions[0]
    assert after == known(led((1, 5), (2, 6)))

"""The known metadata of a cluster, and the coordinator that a response names."""

from __future__ import annotations

from uuid import UUID

import pytest

from kafkagroup._values import evolve
from kafkagroup.errors import BrokerError
from kafkagroup.transport.cluster import coordinator_in
from kafkagroup.transport.metadata import (
    ClusterMetadata,
    Node,
    PartitionMetadata,
    TopicMetadata,
    with_leader,
)
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import LeaderIdAndEpoch, NodeEndpoint
from kafkagroup.wire.messages.metadata import (
    Coordinator,
    FindCoordinatorResponse,
)

ONE, TWO = UUID(int=1), UUID(int=2)
NODE = Node(1, "a", 9092)


def known(topic: TopicMetadata) -> ClusterMetadata:
    return ClusterMetadata(cluster_id="c", nodes={1: NODE}, topics={"t": topic})


def led(*leaders: tuple[int, int], topic_id: UUID = ONE, error_code: int = 0) -> TopicMetadata:
    """Return a topic with these leaders and epochs."""
    partitions = {i: PartitionMetadata(n, e, (1, 2)) for i, (n, e) in enumerate(leaders)}
    return TopicMetadata(topic_id, partitions, error_code)


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


def moved_to(known: ClusterMetadata, node_id: int, *endpoints: int) -> ClusterMetadata | None:
    """Return the metadata after a fetch response that names a new leader, and these endpoints."""
    epoch = known.topics["t"].partitions[0].leader_epoch + 1
    return with_leader(
        known,
        TopicPartition("t", 0),
        LeaderIdAndEpoch(leader_id=node_id, leader_epoch=epoch),
        [NodeEndpoint(node_id=n, host="h", port=n, rack=None) for n in endpoints],
    )


def test_a_fetch_response_adds_the_leader_that_it_names_and_no_other_node() -> None:
    found = moved_to(known(led((1, 0))), 2, 2, 3, 4)
    assert found is not None
    assert (found.nodes, found.topics["t"]) == ({1: NODE, 2: Node(2, "h", 2)}, led((2, 1)))


def test_fetch_responses_add_ten_thousand_nodes_at_most() -> None:
    """Each response may name another leader, and metadata is requested every five minutes."""
    full = evolve(known(led((1, 0))), nodes=dict.fromkeys(range(10000), NODE))
    assert moved_to(full, 10_000, 10_000) is None
    again = moved_to(full, 2, 2)
    assert again is not None
    assert (len(again.nodes), again.nodes[2]) == (10_000, Node(2, "h", 2))

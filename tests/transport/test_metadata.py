"""The known metadata of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from kafkagroup._values import evolve
from kafkagroup.transport.metadata import (
    ClusterMetadata,
    NamedLeaders,
    Node,
    PartitionMetadata,
    TopicMetadata,
)
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import LeaderIdAndEpoch, NodeEndpoint

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


def named_at(*endpoints: int) -> NamedLeaders:
    return NamedLeaders(NodeEndpoint(node_id=n, host="h", port=n, rack=None) for n in endpoints)


def moved_to(known: ClusterMetadata, node_id: int, *endpoints: int) -> ClusterMetadata | None:
    """Return the metadata after a fetch response that names a new leader, and these endpoints."""
    epoch = known.topics["t"].partitions[0].leader_epoch + 1
    named = named_at(*endpoints)
    leader = LeaderIdAndEpoch(leader_id=node_id, leader_epoch=epoch)
    return named.applied_to(known) if named.add(known, TopicPartition("t", 0), leader) else None


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


class Copied(Mapping[int, PartitionMetadata]):
    """The partitions of a topic; counts how often it is copied."""

    def __init__(self, partitions: Mapping[int, PartitionMetadata]) -> None:
        self.partitions = partitions
        self.copies = 0

    def __getitem__(self, number: int) -> PartitionMetadata:
        return self.partitions[number]

    def __iter__(self) -> Iterator[int]:
        self.copies += 1
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)


def test_a_response_that_names_many_leaders_copies_their_topic_once() -> None:
    """Each of 10,000 partitions copied all of them: a broker's restart blocked the loop for
    seconds."""
    before = Copied({n: PartitionMetadata(1, 0, (1, 2)) for n in range(100)})
    metadata, named = known(TopicMetadata(ONE, before)), named_at(2)
    leader = LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
    assert all(named.add(metadata, TopicPartition("t", n), leader) for n in range(100))
    found = named.applied_to(metadata)
    assert found is not None
    assert found.topics["t"] == led(*[(2, 1)] * 100)
    assert before.copies == 1


def test_named_leaders_that_are_no_longer_newer_are_not_applied() -> None:
    """Metadata may arrive while a response is processed."""
    named, leader = named_at(2), LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
    before = known(led((1, 0), (1, 0)))
    for number in range(2):
        assert named.add(before, TopicPartition("t", number), leader)
    found = named.applied_to(known(led((1, 3), (1, 0))))
    assert found is not None
    assert found.topics["t"] == led((1, 3), (2, 1))
    assert named.applied_to(known(led((1, 3)))) is None
    assert named.applied_to(ClusterMetadata()) is None


def test_partitions_without_a_leader() -> None:
    found = known(led((1, 0), (-1, 0), (7, 0)))
    partitions = [TopicPartition("t", n) for n in range(4)]
    assert [tp.partition for tp in found.without_leader(partitions)] == [1, 2, 3]

"""Cluster metadata: a frozen value. `merging` says how a response changes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

from kafkagroup._public import public
from kafkagroup._values import evolve, field, frozen
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import LeaderIdAndEpoch, NodeEndpoint
from kafkagroup.wire.messages.metadata import MetadataResponse

__all__ = [
    "ClusterMetadata",
    "Node",
    "PartitionMetadata",
    "Racks",
    "TopicMetadata",
    "nodes_of",
    "with_leader",
]


_MAX_NODES = 10_000
"""The limit of nodes that fetch responses add between two metadata responses."""

Racks = Mapping[str, tuple[frozenset[str], ...]]
"""Topic -> the racks of each partition's replicas, by partition number."""


@public
@frozen
class Node:
    """One broker's address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@frozen
class PartitionMetadata:
    """The leader and replicas of a partition."""

    leader: int
    """Node id; -1 without a leader."""
    leader_epoch: int
    """-1 from brokers before 2.1."""
    replicas: tuple[int, ...]


@frozen
class TopicMetadata:
    """One topic: its partitions, or an error code."""

    topic_id: UUID
    """`NO_ID` from brokers before 2.8."""
    partitions: Mapping[int, PartitionMetadata]
    error_code: int = 0
    internal: bool = False
    is_absent: bool = False
    """Whether two responses in a row have reported that the topic does not exist."""


@frozen
class ClusterMetadata:
    """The brokers, and the requested topics."""

    cluster_id: str | None = None
    nodes: Mapping[int, Node] = field(factory=dict)
    topics: Mapping[str, TopicMetadata] = field(factory=dict)
    racks: Mapping[int, str] = field(factory=dict)
    """Node id -> rack, also of nodes that were listed earlier: an offline node keeps its rack."""

    def leader(self, tp: TopicPartition) -> PartitionMetadata | None:
        """Return a partition's leader; None if the partition is unknown."""
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def without_leader(self, partitions: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
        """Yield the partitions whose leader is unknown, or is no known broker."""
        for tp in partitions:
            partition = self.leader(tp)
            if partition is None or partition.leader not in self.nodes:
                yield tp

    def replica_racks(self, topics: Iterable[str]) -> Racks:
        """Return the racks of each partition's replicas, of the topics that exist."""
        return {
            name: tuple(
                frozenset(self.racks[n] for n in topic.partitions[p].replicas if n in self.racks)
                for p in sorted(topic.partitions)
            )
            for name in topics
            if (topic := self.topics.get(name)) is not None and topic.partitions
        }

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions by topic, of the topics that exist."""
        return {
            name: len(topic.partitions)
            for name in topics
            if (topic := self.topics.get(name)) is not None and topic.partitions
        }


def nodes_of(response: MetadataResponse) -> dict[int, Node]:
    """Return the brokers of a metadata response by node id."""
    return {b.node_id: Node(b.node_id, b.host, b.port, b.rack or None) for b in response.brokers}


def with_leader(
    known: ClusterMetadata,
    tp: TopicPartition,
    leader: LeaderIdAndEpoch,
    endpoints: Iterable[NodeEndpoint],
) -> ClusterMetadata | None:
    """Replace a partition's leader; return None if the leader epoch is not newer, or the leader's
    address is unknown."""
    before = known.leader(tp)
    if before is None or leader.leader_epoch <= before.leader_epoch:
        return None
    nodes = dict(known.nodes)
    for e in endpoints:
        # Other nodes would be kept although nothing needs them.
        if e.node_id == leader.leader_id and (e.node_id in nodes or len(nodes) < _MAX_NODES):
            nodes[e.node_id] = Node(e.node_id, e.host, e.port, e.rack or None)
    if leader.leader_id not in nodes:
        return None
    topic = known.topics[tp.topic]
    moved = evolve(before, leader=leader.leader_id, leader_epoch=leader.leader_epoch)
    partitions = {**topic.partitions, tp.partition: moved}
    topics = {**known.topics, tp.topic: evolve(topic, partitions=partitions)}
    return evolve(known, nodes=nodes, topics=topics)

"""Cluster metadata: a frozen value, to which the module `merging` applies responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from kafkagroup._public import public
from kafkagroup._values import evolve, field, frozen
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import LeaderIdAndEpoch, NodeEndpoint
from kafkagroup.wire.messages.metadata import MetadataResponse

if TYPE_CHECKING:
    from kafkagroup.wire.messages import produce

__all__ = [
    "ClusterMetadata",
    "NamedLeaders",
    "Node",
    "PartitionMetadata",
    "Racks",
    "TopicMetadata",
    "nodes_of",
]

_MAX_NODES = 10_000
"""Fetch and produce responses add nodes only while fewer than this many are known: they could name
any number between two metadata responses."""

Racks = Mapping[str, tuple[frozenset[str], ...]]
"""Topic -> the racks of each partition's replicas, in the order of the partitions' numbers."""


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
    """Node ids."""


@frozen
class TopicMetadata:
    """One topic: its partitions, or an error code."""

    topic_id: UUID
    """`NO_ID` from brokers before 2.8."""
    partitions: Mapping[int, PartitionMetadata]
    error_code: int = 0
    """0 if there was no error."""
    internal: bool = False
    """Whether it is one of Kafka's own topics, such as `__consumer_offsets`."""
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
        """Return the leader, epoch and replicas of a partition; None if the partition is
        unknown."""
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def leader_node(self, tp: TopicPartition) -> Node | None:
        """Return the broker that leads a partition; None if the partition, its leader or the
        leader's address is unknown."""
        partition = self.leader(tp)
        return None if partition is None else self.nodes.get(partition.leader)

    def without_leader(self, partitions: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
        """Return the partitions for which `leader_node` returns None."""
        return (tp for tp in partitions if self.leader_node(tp) is None)

    def replica_racks(self, topics: Iterable[str]) -> Racks:
        """Return the racks of the replicas of those `topics` that exist. Replicas whose rack is
        unknown are left out."""
        return {
            name: tuple(
                frozenset(self.racks[n] for n in topic.partitions[p].replicas if n in self.racks)
                for p in sorted(topic.partitions)
            )
            for name in topics
            if (topic := self.topics.get(name)) is not None and topic.partitions
        }

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each of those `topics` that exist."""
        return {
            name: len(topic.partitions)
            for name in topics
            if (topic := self.topics.get(name)) is not None and topic.partitions
        }


def nodes_of(response: MetadataResponse) -> dict[int, Node]:
    """Return the brokers of a metadata response by node id."""
    return {b.node_id: Node(b.node_id, b.host, b.port, b.rack or None) for b in response.brokers}


class NamedLeaders:
    """The new leaders that a fetch or produce response names, with their addresses (KIP-951). All
    are applied at once, because each change of the metadata copies whole topics."""

    def __init__(self, endpoints: Iterable[NodeEndpoint | produce.NodeEndpoint]) -> None:
        self._endpoints = {e.node_id: e for e in endpoints}
        self._nodes: dict[int, Node] = {}
        """The endpoints that lead one of `_partitions`: the others are not added to the
        metadata."""
        self._partitions: dict[str, dict[int, PartitionMetadata]] = {}

    def add(
        self,
        known: ClusterMetadata,
        tp: TopicPartition,
        leader: LeaderIdAndEpoch | produce.LeaderIdAndEpoch,
    ) -> bool:
        """Note the leader of a partition. Return False, and note nothing, if the partition or the
        leader's address is unknown, or if the leader epoch is not newer than the known one."""
        before, node_id, epoch = known.leader(tp), leader.leader_id, leader.leader_epoch
        if before is None or epoch <= before.leader_epoch:
            return False
        if not self._note_node(known.nodes, node_id):
            return False
        moved = PartitionMetadata(node_id, epoch, before.replicas)
        self._partitions.setdefault(tp.topic, {})[tp.partition] = moved
        return True

    def _note_node(self, known: Mapping[int, Node], node_id: int) -> bool:
        """Note the address of a leader, if the response has one; return whether an address is
        known now."""
        found = self._endpoints.get(node_id)
        has_room = node_id in known or len(known) + len(self._nodes) < _MAX_NODES
        if found is not None and has_room:
            self._nodes[node_id] = Node(node_id, found.host, found.port, found.rack or None)
        return node_id in known or node_id in self._nodes

    def applied_to(self, known: ClusterMetadata) -> ClusterMetadata | None:
        """Return `known` with the noted leaders that are still newer; None if there are none."""
        nodes = {**known.nodes, **self._nodes}
        topics: dict[str, TopicMetadata] = {}
        for name, partitions in self._partitions.items():
            topic = known.topics.get(name)
            before = {} if topic is None else topic.partitions
            newer = {
                number: moved
                for number, moved in partitions.items()
                if number in before
                and moved.leader_epoch > before[number].leader_epoch
                and moved.leader in nodes
            }
            if topic is not None and newer:
                topics[name] = evolve(topic, partitions={**before, **newer})
        if not topics:
            return None
        return evolve(known, nodes=nodes, topics={**known.topics, **topics})

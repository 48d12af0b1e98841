"""What is known of the cluster: a frozen value, replaced as a whole by each answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from uuid import UUID

from kafkagroup._public import public
from kafkagroup._values import evolve, field, frozen
from kafkagroup.errors import ErrorCode
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import LeaderIdAndEpoch, NodeEndpoint
from kafkagroup.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

__all__ = [
    "ClusterMetadata",
    "Node",
    "PartitionMetadata",
    "Racks",
    "TopicMetadata",
    "is_legal_name",
    "merge",
    "with_leader",
]


_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Of a topic. Brokers let no other be made; whoever names one wants to forge lines of a log."""


def is_legal_name(topic: str) -> bool:
    """Whether a topic may have this name."""
    return topic not in (".", "..") and _LEGAL_NAME.fullmatch(topic) is not None


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
    """Who leads a partition."""

    leader: int
    """Node id; -1 while there is none."""
    leader_epoch: int
    """-1 from brokers before 2.1."""
    replicas: tuple[int, ...]


@frozen
class TopicMetadata:
    """One topic, or why nothing is known of it."""

    topic_id: UUID
    """`NO_ID` from brokers before 2.8."""
    partitions: Mapping[int, PartitionMetadata]
    error_code: int = 0
    internal: bool = False


@frozen
class ClusterMetadata:
    """Brokers and the topics that were asked for."""

    cluster_id: str | None = None
    nodes: Mapping[int, Node] = field(factory=dict)
    topics: Mapping[str, TopicMetadata] = field(factory=dict)
    racks: Mapping[int, str] = field(factory=dict)
    """Node id -> rack, of every node ever seen: one that is merely offline keeps its rack."""

    def leader(self, tp: TopicPartition) -> PartitionMetadata | None:
        """Who leads a partition; None when the partition is unknown."""
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def replica_racks(self, topics: Iterable[str]) -> Racks:
        """Topic -> the racks that each partition has replicas in, for those that exist."""
        return {
            name: tuple(
                frozenset(self.racks[n] for n in topic.partitions[p].replicas if n in self.racks)
                for p in sorted(topic.partitions)
            )
            for name in topics
            if (topic := self.topics.get(name)) is not None and topic.partitions
        }

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Topic -> number of partitions, for those that exist."""
        return {
            name: len(topic.partitions)
            for name in topics
            if (topic := self.topics.get(name)) is not None and topic.partitions
        }


def merge(
    known: ClusterMetadata, answer: MetadataResponse, *, complete: bool = False
) -> ClusterMetadata:
    """What is known after an answer: all its brokers, and its topics over the known ones; nothing
    but its topics when it is `complete`."""
    topics = {} if complete else dict(known.topics)
    # Most partitions have the leader, epoch and replicas of many others: one value serves them all,
    # and the collector has a hundred objects to look through instead of 200,000.
    equal: dict[PartitionMetadata, PartitionMetadata] = {}
    for topic in answer.topics:
        if topic.name is not None and is_legal_name(topic.name):
            topics[topic.name] = _topic(known.topics.get(topic.name), topic, equal)
    return ClusterMetadata(
        cluster_id=answer.cluster_id,
        nodes={b.node_id: _node(b) for b in answer.brokers},
        topics=topics,
        racks={**known.racks, **{b.node_id: b.rack for b in answer.brokers if b.rack}},
    )


def _node(broker: MetadataResponseBroker) -> Node:
    return Node(broker.node_id, broker.host, broker.port, broker.rack or None)


def _topic(
    known: TopicMetadata | None,
    answer: MetadataResponseTopic,
    equal: dict[PartitionMetadata, PartitionMetadata],
) -> TopicMetadata:
    if known is not None and answer.error_code == ErrorCode.LEADER_NOT_AVAILABLE:
        # An election is on: that is no reason to forget the partitions.
        return evolve(known, error_code=answer.error_code)
    # A topic made anew starts at epoch 0 again: only the same topic's epochs can be compared.
    same = known is not None and known.topic_id == answer.topic_id
    before = known.partitions if known is not None and same else {}
    return TopicMetadata(
        topic_id=answer.topic_id,
        partitions={
            p.partition_index: _partition(before.get(p.partition_index), p, equal)
            for p in sorted(answer.partitions, key=lambda p: p.partition_index)
        },
        error_code=answer.error_code,
        internal=answer.is_internal,
    )


def _partition(
    known: PartitionMetadata | None,
    answer: MetadataResponsePartition,
    equal: dict[PartitionMetadata, PartitionMetadata],
) -> PartitionMetadata:
    # KIP-320: a broker that lags behind must not send us back to an older leader.
    if known is not None and 0 <= answer.leader_epoch < known.leader_epoch:
        return known
    if known is not None and (known.leader, known.leader_epoch, known.replicas) == (
        answer.leader_id,
        answer.leader_epoch,
        answer.replica_nodes,
    ):
        return known
    made = PartitionMetadata(answer.leader_id, answer.leader_epoch, answer.replica_nodes)
    return equal.setdefault(made, made)


def with_leader(
    known: ClusterMetadata,
    tp: TopicPartition,
    leader: LeaderIdAndEpoch,
    endpoints: Iterable[NodeEndpoint],
) -> ClusterMetadata | None:
    """What is known once a partition's new leader has been named; None when it is no news, or
    nobody says where that leader is."""
    before = known.leader(tp)
    nodes = {e.node_id: Node(e.node_id, e.host, e.port, e.rack or None) for e in endpoints}
    nodes = {**known.nodes, **nodes}
    if (
        before is None
        or leader.leader_epoch <= before.leader_epoch
        or leader.leader_id not in nodes
    ):
        return None
    topic = known.topics[tp.topic]
    moved = evolve(before, leader=leader.leader_id, leader_epoch=leader.leader_epoch)
    partitions = {**topic.partitions, tp.partition: moved}
    topics = {**known.topics, tp.topic: evolve(topic, partitions=partitions)}
    return evolve(known, nodes=nodes, topics=topics)

"""Kafka's own topics, which brokers create when a client first looks for a coordinator.

Here they are empty: what they would hold is in `Cluster`. Clients see them in metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import NAMESPACE_DNS, uuid5

from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.java_hash import java_hash
from kafkagroup.types import TopicPartition

__all__ = ["COORDINATOR_TOPICS", "create_internal_topic", "is_internal", "partition_of_group"]

_GROUP, _TRANSACTION = range(2)
"""Types of coordinators, as FindCoordinator numbers them."""

COORDINATOR_TOPICS: Mapping[int, str] = {
    _GROUP: "__consumer_offsets",
    _TRANSACTION: "__transaction_state",
}
"""Type of coordinator -> its topic."""

_PARTITIONS = 50
"""How many partitions each of them has: Kafka's default."""
_CONFIGS: Mapping[int, Mapping[str, str]] = {
    _GROUP: {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    },
    _TRANSACTION: {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    },
}
"""Type of coordinator -> the options of its topic, as Kafka sets them."""


def is_internal(topic: str) -> bool:
    """Whether a topic is one of Kafka's own."""
    return topic in (*COORDINATOR_TOPICS.values(), "__share_group_state")


def partition_of_group(group_id: str) -> TopicPartition:
    """Return the partition that would hold a group's offsets."""
    value = java_hash(group_id)
    # As in Java, where the hash is signed.
    distance = min(value, 2**32 - value)
    return TopicPartition(COORDINATOR_TOPICS[_GROUP], distance % 2**31 % _PARTITIONS)


def create_internal_topic(cluster: Cluster, coordinator_type: int) -> None:
    """Create the topic of a type of coordinator, unless it exists, no node is alive, or
    `BrokerSettings.internal_topics` is False."""
    name = COORDINATOR_TOPICS[coordinator_type]
    if name in cluster.topics or not cluster.live_ids or not cluster.settings.internal_topics:
        return
    # Not `new_id`: that would change the ids that a seed gives to topics and members.
    topic = cluster.add_topic(name, uuid5(NAMESPACE_DNS, name))
    topic.configs.set(_CONFIGS[coordinator_type])
    cluster.add_partitions(name, _PARTITIONS)

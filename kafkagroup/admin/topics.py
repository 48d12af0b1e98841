"""Lists, describes, creates and deletes topics, and adds partitions to them.

Changes go to the controller, as brokers in ZooKeeper mode (before Kafka 4.0) forward none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from kafkagroup.admin.values import NewTopic, PartitionDescription, TopicDescription
from kafkagroup.errors import (
    BrokerError,
    ErrorCode,
    RemoteProtocolError,
    broker_error,
    escaped,
)
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node, nodes_of
from kafkagroup.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

__all__ = ["FINAL", "add_partitions", "create", "delete", "describe", "list_all"]

FINAL = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
"""Codes that are not retried. Consumers wait for a topic to be created; a caller that names a topic
wants to know that it does not exist."""

_DEFAULT = -1
"""KIP-464: use the default of the cluster's configuration."""


async def list_all(cluster: Cluster) -> list[TopicDescription]:
    """Return every topic that the principal may describe, sorted by name."""
    response = await _metadata(cluster, None)
    nodes = nodes_of(response)
    topics = [_description(topic, nodes) for topic in response.topics if not topic.error_code]
    return sorted(topics, key=lambda topic: topic.name)


async def describe(cluster: Cluster, name: str) -> TopicDescription:
    """Return the description of one topic. Raises: BrokerError."""
    response = await _metadata(cluster, [name])
    for topic in response.topics:
        if topic.name == name:
            _raise(topic.error_code, None, f"describing topic {name!r}", "DESCRIBE", name)
            return _description(topic, nodes_of(response))
    raise RemoteProtocolError(f"the broker did not answer for topic {name!r}")


async def create(cluster: Cluster, topic: NewTopic, *, validate_only: bool) -> None:
    """Create a topic. Raises: BrokerError."""
    request = CreateTopicsRequest(
        topics=(
            CreatableTopic(
                name=topic.name,
                num_partitions=_DEFAULT if topic.partitions is None else topic.partitions,
                replication_factor=(
                    _DEFAULT if topic.replication_factor is None else topic.replication_factor
                ),
                assignments=(),
                configs=tuple(
                    CreatableTopicConfig(name=name, value=value)
                    for name, value in topic.configs.items()
                ),
            ),
        ),
        timeout_ms=_timeout_ms(cluster),
        validate_only=validate_only,
    )
    response = await (await _controller(cluster)).request(request)
    _check(response.topics, topic.name, "creating topic", "CREATE")


async def delete(cluster: Cluster, name: str) -> None:
    """Delete a topic. Raises: BrokerError."""
    request = DeleteTopicsRequest(topic_names=(name,), timeout_ms=_timeout_ms(cluster))
    # Version 6 only adds topic ids, in a layout that brokers before 2.8 do not know; all releases
    # up to 4.3 support version 5 or an earlier one.
    response = await (await _controller(cluster)).request(request, highest=5)
    _check(response.responses, name, "deleting topic", "DELETE")


async def add_partitions(cluster: Cluster, name: str, count: int, *, validate_only: bool) -> None:
    """Increase a topic's partitions to a total of `count`. Raises: BrokerError."""
    request = CreatePartitionsRequest(
        topics=(CreatePartitionsTopic(name=name, count=count, assignments=None),),
        timeout_ms=_timeout_ms(cluster),
        validate_only=validate_only,
    )
    response = await (await _controller(cluster)).request(request)
    _check(response.results, name, "adding partitions to topic", "ALTER")


class _Result(Protocol):
    """The controller's result for one topic."""

    @property
    def name(self) -> str | None: ...
    @property
    def error_code(self) -> int: ...
    @property
    def error_message(self) -> str | None: ...


def _check(results: Iterable[_Result], topic: str, doing: str, operation: str) -> None:
    """Raise the error of the topic's result, if it has one."""
    for result in results:
        if result.name == topic:
            what = f"{doing} {topic!r}"
            _raise(result.error_code, result.error_message, what, operation, topic)
            return
    raise RemoteProtocolError(f"the controller did not answer for topic {topic!r}")


def _timeout_ms(cluster: Cluster) -> int:
    """Return how long the controller may wait until every broker knows the change."""
    return round(cluster.options.request_timeout * 1000)


async def _controller(cluster: Cluster) -> BrokerClient:
    """Look up the controller. Not cached: after NOT_CONTROLLER another broker is the controller.

    Raises: BrokerError while there is none."""
    response = await _metadata(cluster, [])
    node = nodes_of(response).get(response.controller_id)
    if node is None:
        raise BrokerError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller at the moment")
    return cluster.broker(node)


async def _metadata(cluster: Cluster, names: Sequence[str] | None) -> MetadataResponse:
    """Request the metadata of these topics; None: of all."""
    topics = None if names is None else tuple(MetadataRequestTopic(name=name) for name in names)
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    return await cluster.describe_topics(request)


def _description(topic: MetadataResponseTopic, nodes: dict[int, Node]) -> TopicDescription:
    return TopicDescription(
        name=topic.name or "",
        topic_id=topic.topic_id,
        internal=topic.is_internal,
        partitions=tuple(
            PartitionDescription(
                partition=one.partition_index,
                leader=nodes.get(one.leader_id),
                leader_epoch=one.leader_epoch,
                replicas=one.replica_nodes,
                in_sync_replicas=one.isr_nodes,
                offline_replicas=one.offline_replicas,
            )
            for one in sorted(topic.partitions, key=lambda one: one.partition_index)
        ),
    )


def _raise(code: int, why: str | None, what: str, operation: str, topic: str) -> None:
    if code:
        message = f"{what}: {escaped(why)}" if why else what
        raise broker_error(code, message, operation=operation, topic=topic)

"""Metadata and FindCoordinator, and the creation and deletion of topics by request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.cluster import Cluster, Partition, Topic
from kafkagroup.testing.embedded.config_requests import created_configs
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.internal_topics import (
    COORDINATOR_TOPICS,
    create_internal_topic,
    is_internal,
)
from kafkagroup.testing.embedded.topic_configs import TopicConfigs, problem_of
from kafkagroup.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from kafkagroup.wire.messages.metadata import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafkagroup.wire.schema import NO_ID

__all__ = [
    "CLUSTER_ID",
    "add_partitions",
    "create",
    "delete",
    "find_coordinator",
    "metadata",
]

CLUSTER_ID = "kafkagroup-embedded-01"
"""The cluster id in Metadata responses, unless `EmbeddedKafka` is given another one."""

_MAX_NEW_PARTITIONS = 10_000
"""The most partitions that one request creates, as in Kafka."""

_GROUP, _TRANSACTION, _SHARE = range(3)
"""Types of coordinators, as FindCoordinator numbers them."""

_Topic = TypeVar("_Topic", bound=CreatableTopic | CreatePartitionsTopic)
_Result = TypeVar("_Result")


def metadata(cluster: Cluster, request: MetadataRequest, caller: Caller) -> MetadataResponse:
    """Return the live nodes, and the requested topics or all topics."""
    requested = request.topics
    # Version 0 has no null: its empty list is for all topics.
    if requested is None or (caller.version == 0 and not requested):
        topics = [_described_topic(cluster, topic) for topic in cluster.topics.values()]
    else:
        if any(topic.topic_id != NO_ID for topic in requested):
            # As in Kafka: if the request has topic ids, entries with only a name are ignored.
            requested = tuple(topic for topic in requested if topic.topic_id != NO_ID)
        create_unknown = request.allow_auto_topic_creation and cluster.settings.auto_create_topics
        topics = [_requested_topic(cluster, topic, create_unknown) for topic in requested]
    live = cluster.live_ids
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=n.node_id, host=n.host, port=n.port)
            for n in cluster.nodes.values()
            if n.is_alive
        ),
        cluster_id=cluster.cluster_id or CLUSTER_ID,
        controller_id=live[0] if live else -1,
        topics=tuple(topics),
    )


def _requested_topic(
    cluster: Cluster, requested: MetadataRequestTopic, create_unknown: bool
) -> MetadataResponseTopic:
    has_id = requested.topic_id != NO_ID  # then, as in Kafka, a name beside it is ignored
    if has_id:
        found = cluster.topic_by_id(requested.topic_id)
    else:
        found = cluster.topics.get(requested.name or "")
    if found is not None:
        return _described_topic(cluster, found)
    error = ErrorCode.UNKNOWN_TOPIC_ID
    if requested.name is not None and not has_id:
        error = cluster.check_topic(requested.name)
        if not error:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if create_unknown:
                # Like a real broker, report the topic as unknown while it is being created.
                cluster.create_topic(requested.name, cluster.settings.default_partitions)
    return MetadataResponseTopic(
        error_code=error, name=requested.name, topic_id=requested.topic_id, partitions=()
    )


def _described_topic(cluster: Cluster, topic: Topic) -> MetadataResponseTopic:
    nodes = tuple(cluster.nodes)
    live = tuple(cluster.live_ids)

    def describe_one(index: int, partition: Partition) -> MetadataResponsePartition:
        is_leaderless = partition.leader < 0
        return MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if is_leaderless else ErrorCode.NONE,
            partition_index=index,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=nodes,
            isr_nodes=live,
            offline_replicas=tuple(node for node in nodes if node not in live),
        )

    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=tuple(describe_one(i, p) for i, p in enumerate(topic.partitions)),
    )


def find_coordinator(
    cluster: Cluster, request: FindCoordinatorRequest, caller: Caller
) -> FindCoordinatorResponse:
    """Return the coordinators of groups or transactional ids. Share groups have none."""

    def find_one(key: str) -> Coordinator:
        node = cluster.nodes.get(cluster.coordinator_of(key))
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if request.key_type not in (_GROUP, _TRANSACTION, _SHARE):
            error = ErrorCode.INVALID_REQUEST
        if request.key_type not in (_GROUP, _TRANSACTION) or node is None:
            return Coordinator(
                key=key, node_id=-1, port=-1, error_code=error, error_message=error.name
            )
        return Coordinator(key=key, node_id=node.node_id, host=node.host, port=node.port)

    if request.key_type in COORDINATOR_TOPICS:
        create_internal_topic(cluster, request.key_type)
    if caller.version >= 4:
        keys = request.coordinator_keys
        return FindCoordinatorResponse(coordinators=tuple(find_one(key) for key in keys))
    found = find_one(request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message or "NONE",  # as in Kafka
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def create(cluster: Cluster, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics, each with its own error; none if they have too many partitions in all."""

    def partition_count(requested: CreatableTopic) -> int:
        count = len(requested.assignments) or requested.num_partitions
        return cluster.settings.default_partitions if count == -1 else count

    if sum(map(partition_count, request.topics)) > _MAX_NEW_PARTITIONS:
        refused = tuple(
            CreatableTopicResult(
                name=topic.name,
                error_code=ErrorCode.POLICY_VIOLATION,
                error_message="Excessively large number of partitions per request.",
            )
            for topic in request.topics
        )
        return CreateTopicsResponse(topics=refused)

    def create_one(requested: CreatableTopic) -> CreatableTopicResult:
        count = partition_count(requested)
        error = cluster.check_topic(requested.name)
        message = _error_message(error, requested.name)
        configs = {config.name: config.value for config in requested.configs}
        problem = problem_of(configs)
        if not error and problem is not None:
            error, message = ErrorCode.INVALID_CONFIG, problem
        if not error and count < 1:
            error, message = ErrorCode.INVALID_PARTITIONS, f"{count} partitions are less than 1"
        replicas = (
            len(cluster.live_ids)
            if requested.replication_factor == -1
            else requested.replication_factor
        )
        if not error and not requested.assignments and not 0 < replicas <= len(cluster.live_ids):
            error = ErrorCode.INVALID_REPLICATION_FACTOR
            message = f"{replicas} replicas cannot be placed on {len(cluster.live_ids)} brokers"
        if error:
            return CreatableTopicResult(
                name=requested.name, error_code=error, error_message=message
            )
        topic_configs = TopicConfigs(cluster.settings)
        topic_configs.set(configs)
        if request.validate_only:
            topic_id = cluster.new_id()  # as in Kafka, an id that no topic gets
        else:
            topic_id = cluster.create_topic(requested.name, count, configs).topic_id
        return CreatableTopicResult(
            name=requested.name,
            topic_id=topic_id,
            error_code=ErrorCode.NONE,
            error_message=None,
            num_partitions=count,
            replication_factor=replicas,
            configs=created_configs(topic_configs),
        )

    results = _each_once(request.topics, create_one, CreatableTopicResult)
    return CreateTopicsResponse(topics=results)


def _each_once(
    topics: Sequence[_Topic], change: Callable[[_Topic], _Result], refused: Callable[..., _Result]
) -> tuple[_Result, ...]:
    """Return the result of `change` for each topic. Topics that the request names more than once
    are refused: for them, return one result of the type `refused`."""
    counts = Counter(topic.name for topic in topics)
    duplicated = (
        refused(
            name=name,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="Duplicate topic name.",
        )
        for name, count in counts.items()
        if count > 1
    )
    return (*duplicated, *(change(topic) for topic in topics if counts[topic.name] == 1))


def _error_message(error: ErrorCode, name: str) -> str:
    if error is ErrorCode.TOPIC_ALREADY_EXISTS:
        return f"Topic '{name}' already exists."
    return error.name


def delete(cluster: Cluster, request: DeleteTopicsRequest, caller: Caller) -> DeleteTopicsResponse:
    """Delete topics by name, from v6 also by id."""
    requested = request.topics
    if caller.version < 6:
        requested = tuple(DeleteTopicState(name=name) for name in request.topic_names)

    def delete_one(topic: DeleteTopicState) -> DeletableTopicResult:
        if topic.name is None:
            found = cluster.topic_by_id(topic.topic_id)
            error = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            found = cluster.topics.get(topic.name)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if found is None:
            return DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=error, error_message=error.name
            )
        cluster.delete_topic(found.name)
        return DeletableTopicResult(
            name=found.name, topic_id=found.topic_id, error_code=ErrorCode.NONE
        )

    return DeleteTopicsResponse(responses=tuple(delete_one(topic) for topic in requested))


def add_partitions(cluster: Cluster, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Add partitions to topics, each with its own error."""

    def grow_one(requested: CreatePartitionsTopic) -> CreatePartitionsTopicResult:
        topic = cluster.topics.get(requested.name)
        current_count = 0 if topic is None else len(topic.partitions)
        error, message = ErrorCode.NONE, None
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif requested.count == current_count:
            error, message = (
                ErrorCode.INVALID_PARTITIONS,
                f"Topic already has {current_count} partition(s).",
            )
        elif requested.count < current_count:
            error = ErrorCode.INVALID_PARTITIONS
            message = (
                f"The topic {requested.name} currently has {current_count} partition(s);"
                f" {requested.count} would not be an increase."
            )
        elif requested.count - current_count > _MAX_NEW_PARTITIONS:
            error = ErrorCode.UNKNOWN_SERVER_ERROR  # of Kafka's log, which takes no more at once
        elif not request.validate_only:
            cluster.add_partitions(requested.name, requested.count)
        return CreatePartitionsTopicResult(
            name=requested.name, error_code=error, error_message=message
        )

    results = _each_once(request.topics, grow_one, CreatePartitionsTopicResult)
    return CreatePartitionsResponse(throttle_time_ms=0, results=results)

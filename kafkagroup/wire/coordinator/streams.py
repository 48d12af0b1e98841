"""Streams groups (KIP-1071): topologies, members, and tasks in place of partitions.

The names and fields are those of Apache Kafka 4.3's schemas; a test compares them. The number of
each message is the record type. Timeouts are in milliseconds, timestamps in milliseconds since the
epoch.
"""

from kafkagroup.wire.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    array,
    field,
    message,
    struct,
)


@message(17, "0")
class StreamsGroupMetadataKey:
    group_id: str = field(STRING)


@struct
class LastAssignmentConfig:
    key: str = field(STRING)
    value: str = field(STRING)


@message(17, "0", flexible="0+")
class StreamsGroupMetadataValue:
    epoch: int = field(INT32)
    metadata_hash: int = field(INT64)
    validated_topology_epoch: int = field(INT32, default=-1, tag=0, tagged="0+")
    last_assignment_configs: tuple[LastAssignmentConfig, ...] | None = field(
        array(LastAssignmentConfig), default=None, nullable="0+", tag=1, tagged="0+"
    )


@message(19, "0")
class StreamsGroupMemberMetadataKey:
    group_id: str = field(STRING)
    member_id: str = field(STRING)


@struct
class Endpoint:
    host: str = field(STRING)
    port: int = field(UINT16)


@struct
class KeyValue:
    key: str = field(STRING)
    value: str = field(STRING)


@message(19, "0", flexible="0+")
class StreamsGroupMemberMetadataValue:
    instance_id: str | None = field(STRING, nullable="0+")
    rack_id: str | None = field(STRING, nullable="0+")
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    topology_epoch: int = field(INT32)
    process_id: str = field(STRING)
    user_endpoint: Endpoint | None = field(Endpoint, default=None, nullable="0+")
    client_tags: tuple[KeyValue, ...] = field(array(KeyValue))


@message(20, "0")
class StreamsGroupTargetAssignmentMetadataKey:
    group_id: str = field(STRING)


@message(20, "0", flexible="0+")
class StreamsGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = field(INT32)
    assignment_timestamp: int = field(INT64, default=0, tag=0, tagged="0+", ignorable=True)


@message(21, "0")
class StreamsGroupTargetAssignmentMemberKey:
    group_id: str = field(STRING)
    member_id: str = field(STRING)


@message(21, "0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue:
    @struct
    class TaskIds:
        """Without the epochs of the module's `TaskIds`; Kafka gives both the same name."""

        subtopology_id: str = field(STRING)
        partitions: tuple[int, ...] = field(array(INT32))

    active_tasks: tuple[TaskIds, ...] = field(array(TaskIds))
    standby_tasks: tuple[TaskIds, ...] = field(array(TaskIds))
    warmup_tasks: tuple[TaskIds, ...] = field(array(TaskIds))


@message(22, "0")
class StreamsGroupCurrentMemberAssignmentKey:
    group_id: str = field(STRING)
    member_id: str = field(STRING)


@struct
class TaskIds:
    subtopology_id: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))
    assignment_epochs: tuple[int, ...] | None = field(
        array(INT32), default=None, nullable="0+", tag=0, tagged="0+"
    )


@message(22, "0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue:
    member_epoch: int = field(INT32)
    previous_member_epoch: int = field(INT32)
    state: int = field(INT8)
    """1 stable, 2 unrevoked tasks, 3 unreleased tasks, 127 unknown."""
    active_tasks: tuple[TaskIds, ...] = field(array(TaskIds))
    standby_tasks: tuple[TaskIds, ...] = field(array(TaskIds))
    warmup_tasks: tuple[TaskIds, ...] = field(array(TaskIds))
    active_tasks_pending_revocation: tuple[TaskIds, ...] = field(array(TaskIds))
    standby_tasks_pending_revocation: tuple[TaskIds, ...] = field(array(TaskIds))
    warmup_tasks_pending_revocation: tuple[TaskIds, ...] = field(array(TaskIds))


@message(23, "0")
class StreamsGroupTopologyKey:
    group_id: str = field(STRING)


@struct
class TopicConfig:
    key: str = field(STRING)
    value: str = field(STRING)


@struct
class TopicInfo:
    name: str = field(STRING)
    partitions: int = field(INT32)
    """0 if no number is required."""
    replication_factor: int = field(INT16)
    """0 for the default."""
    topic_configs: tuple[TopicConfig, ...] = field(array(TopicConfig))


@struct
class CopartitionGroup:
    """Topics with the same partitioning: their places in the fields of the same names of the
    `Subtopology`."""

    source_topics: tuple[int, ...] = field(array(INT16))
    source_topic_regex: tuple[int, ...] = field(array(INT16))
    repartition_source_topics: tuple[int, ...] = field(array(INT16))


@struct
class Subtopology:
    subtopology_id: str = field(STRING)
    source_topics: tuple[str, ...] = field(array(STRING))
    source_topic_regex: tuple[str, ...] = field(array(STRING))
    state_changelog_topics: tuple[TopicInfo, ...] = field(array(TopicInfo))
    repartition_sink_topics: tuple[str, ...] = field(array(STRING))
    repartition_source_topics: tuple[TopicInfo, ...] = field(array(TopicInfo))
    copartition_groups: tuple[CopartitionGroup, ...] = field(array(CopartitionGroup))


@message(23, "0", flexible="0+")
class StreamsGroupTopologyValue:
    epoch: int = field(INT32)
    subtopologies: tuple[Subtopology, ...] = field(array(Subtopology))

"""Committed offsets: OffsetCommit, OffsetFetch and OffsetDelete in all their versions.

The coordinator decides whether a member may commit; this module stores and returns the offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import cast
from uuid import UUID

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.testing.embedded.refusals import refuse
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kafkagroup.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kafkagroup.wire.messages.transactions import TxnOffsetCommitRequest

__all__ = ["check_commit_in_transaction", "commit", "delete", "fetch"]

_FIRST_VERSION_WITH_EPOCHS = 9
"""The first version of OffsetCommit that members under KIP-848 may send."""


def commit(
    cluster: Cluster, node_id: int, request: OffsetCommitRequest, caller: Caller
) -> OffsetCommitResponse:
    """Store the valid offsets, unless the commit is refused as a whole. The response has an error
    for each partition."""
    by_id = caller.version >= 10
    results: list[OffsetCommitResponseTopic] = []
    known_topics: list[tuple[str, OffsetCommitRequestTopic]] = []
    for topic in request.topics:
        found = cluster.topic_by_id(topic.topic_id) if by_id else cluster.topics.get(topic.name)
        count = 0 if found is None else len(found.partitions)
        unknown = [
            p.partition_index for p in topic.partitions if not 0 <= p.partition_index < count
        ]
        if unknown:
            is_unknown_id = by_id and found is None
            error = (
                ErrorCode.UNKNOWN_TOPIC_ID
                if is_unknown_id
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            results.append(_commit_result(topic, [(index, error) for index in unknown]))
        existing = tuple(p for p in topic.partitions if p.partition_index not in unknown)
        if existing and found is not None:
            known_topics.append((found.name, evolve(topic, partitions=existing)))
    if not known_topics:  # as in Kafka, before the coordinator is checked
        return OffsetCommitResponse(topics=_merge_topics(results))
    error = ErrorCode.NOT_COORDINATOR
    may_commit: Callable[[UUID, int], bool] = _any_partition
    if cluster.coordinator_of(request.group_id) == node_id:
        error, may_commit = _check_commit(cluster, request, caller)
    limit = cluster.settings.offset_metadata_max_bytes
    committed: dict[TopicPartition, OffsetAndMetadata] = {}
    errors: dict[TopicPartition, ErrorCode] = {}
    for name, topic in known_topics:
        for p in topic.partitions:
            partition = TopicPartition(name, p.partition_index)
            metadata = p.committed_metadata or ""
            # Kafka compares the number of characters, not of bytes, with this limit.
            if len(metadata) > limit:
                errors[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif not may_commit(cluster.topics[name].topic_id, p.partition_index):
                # One partition that the member does not own makes the whole commit fail.
                error = error or ErrorCode.STALE_MEMBER_EPOCH
            else:
                errors[partition] = ErrorCode.NONE
                committed[partition] = OffsetAndMetadata(
                    p.committed_offset, metadata, p.committed_leader_epoch
                )
    if not error:
        cluster.commit(request.group_id, committed)
    for name, topic in known_topics:
        indexes = [p.partition_index for p in topic.partitions]
        places = ((index, TopicPartition(name, index)) for index in indexes)
        results.append(_commit_result(topic, [(i, error or errors[p]) for i, p in places]))
    return OffsetCommitResponse(topics=_merge_topics(results))


def _check_commit(
    cluster: Cluster, request: OffsetCommitRequest, caller: Caller
) -> tuple[ErrorCode, Callable[[UUID, int], bool]]:
    """Return the error for the commit as a whole, or NONE; and a function of a topic id and a
    partition number that returns whether the commit may include the partition."""
    if request.group_id in cluster.consumer_coordinator.groups:
        return cluster.consumer_coordinator.check_commit(
            request.group_id,
            request.member_id,
            request.generation_id_or_member_epoch,
            caller.version,
        )
    error = cluster.classic_coordinator.check_commit(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        caller,
    )
    return error, _any_partition


def check_commit_in_transaction(
    cluster: Cluster, request: TxnOffsetCommitRequest, caller: Caller
) -> ErrorCode:
    """Return the error for a commit in a transaction, or NONE."""
    group_id, generation = request.group_id, request.generation_id
    if group_id in cluster.consumer_coordinator.groups:
        # Not `caller.version`: that is a version of TxnOffsetCommit.
        error, _ = cluster.consumer_coordinator.check_commit(
            group_id, request.member_id, generation, _FIRST_VERSION_WITH_EPOCHS
        )
        # In a transaction the epoch must be the present one, unlike in OffsetCommit (KIP-1251); and
        # TxnOffsetCommit has no error code for a stale one. A negative epoch is no member's.
        is_stale = generation >= 0 and (
            cluster.consumer_coordinator.check_fetch(group_id, request.member_id, generation)
            == ErrorCode.STALE_MEMBER_EPOCH
        )
        return ErrorCode.ILLEGAL_GENERATION if is_stale else error
    return cluster.classic_coordinator.check_commit(
        group_id,
        generation,
        request.member_id,
        request.group_instance_id,
        caller,
        transactional=True,
    )


def _any_partition(_: UUID, __: int) -> bool:
    return True


def _commit_result(
    topic: OffsetCommitRequestTopic, errors: Iterable[tuple[int, ErrorCode]]
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            OffsetCommitResponsePartition(partition_index=index, error_code=error)
            for index, error in errors
        ),
    )


def _merge_topics(
    topics: Iterable[OffsetCommitResponseTopic],
) -> tuple[OffsetCommitResponseTopic, ...]:
    """Merge the entries of each topic into one."""
    merged: dict[object, OffsetCommitResponseTopic] = {}
    for topic in topics:
        key = (topic.name, topic.topic_id)
        known = merged.get(key)
        partitions = topic.partitions if known is None else known.partitions + topic.partitions
        merged[key] = evolve(topic, partitions=partitions)
    return tuple(merged.values())


def delete(
    cluster: Cluster, node_id: int, request: OffsetDeleteRequest, caller: Caller
) -> OffsetDeleteResponse:
    """Delete committed offsets, of topics that no member subscribes to."""
    group_id = request.group_id
    is_consumer_group = group_id in cluster.consumer_coordinator.groups
    if cluster.coordinator_of(group_id) != node_id:
        error = ErrorCode.NOT_COORDINATOR
    else:
        error = (
            ErrorCode.NONE
            if is_consumer_group
            else cluster.classic_coordinator.check_offset_delete(group_id)
        )
    if error:
        return cast(OffsetDeleteResponse, refuse(request, error, caller.version))
    coordinator = cluster.consumer_coordinator if is_consumer_group else cluster.classic_coordinator
    topics = []
    for topic in request.topics:
        subscribed = coordinator.subscribes(group_id, topic.name)
        responses = []
        for p in topic.partitions:
            code = ErrorCode.NONE
            if cluster.partition(topic.name, p.partition_index) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif subscribed:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                cluster.delete_offset(group_id, TopicPartition(topic.name, p.partition_index))
            responses.append(
                OffsetDeleteResponsePartition(partition_index=p.partition_index, error_code=code)
            )
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=tuple(responses)))
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, throttle_time_ms=0, topics=tuple(topics))


def fetch(
    cluster: Cluster, node_id: int, request: OffsetFetchRequest, caller: Caller
) -> OffsetFetchResponse:
    """Return committed offsets: up to v7 for one group, from v8 for several."""
    if caller.version >= 8:
        groups = (
            _fetch_group(cluster, node_id, group, caller, require_stable=request.require_stable)
            for group in request.groups
        )
        return OffsetFetchResponse(groups=tuple(groups))
    if cluster.coordinator_of(request.group_id) != node_id:
        return cast(OffsetFetchResponse, refuse(request, ErrorCode.NOT_COORDINATOR, caller.version))
    topics = request.topics
    requested = OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else tuple(
            OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes)
            for t in topics
        ),
    )
    require_stable = request.require_stable
    group = _fetch_group(cluster, node_id, requested, caller, require_stable=require_stable)
    return OffsetFetchResponse(
        topics=tuple(
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=tuple(_partition_before_v8(p) for p in topic.partitions),
            )
            for topic in group.topics
        ),
    )


def _partition_before_v8(partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=partition.error_code,
    )


def _fetch_group(
    cluster: Cluster,
    node_id: int,
    requested: OffsetFetchRequestGroup,
    caller: Caller,
    *,
    require_stable: bool,
) -> OffsetFetchResponseGroup:
    if cluster.coordinator_of(requested.group_id) != node_id:
        return OffsetFetchResponseGroup(
            group_id=requested.group_id, error_code=ErrorCode.NOT_COORDINATOR
        )
    if requested.group_id in cluster.consumer_coordinator.groups:
        error = cluster.consumer_coordinator.check_fetch(
            requested.group_id, requested.member_id, requested.member_epoch
        )
        if error:
            return OffsetFetchResponseGroup(group_id=requested.group_id, error_code=error)
    committed = cluster.offsets.get(requested.group_id, {})
    unstable = cluster.unstable_partitions(requested.group_id) if require_stable else frozenset()
    by_id = caller.version >= 10

    def refusals(name: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return partition number -> error code; an injected error replaces any other."""
        return _refused_as_unstable(name, partitions, unstable) | {
            index: code
            for index in partitions
            if (
                code := cluster.injected_error(
                    node_id, OffsetFetchRequest, TopicPartition(name, index)
                )
            )
        }

    if requested.topics is None:
        names = dict.fromkeys(tp.topic for tp in committed)
        wanted = [
            (
                name,
                cluster.topics[name].topic_id,
                [tp.partition for tp in committed if tp.topic == name],
            )
            for name in names
        ]
        topics = [
            _fetched_topic(name, topic_id, parts, committed, refusals(name, parts))
            for name, topic_id, parts in wanted
        ]
        return OffsetFetchResponseGroup(group_id=requested.group_id, topics=tuple(topics))
    topics = []
    for topic in requested.topics:
        found = cluster.topic_by_id(topic.topic_id) if by_id else None
        if by_id and found is None:
            partitions = tuple(
                _no_offset(index, ErrorCode.UNKNOWN_TOPIC_ID) for index in topic.partition_indexes
            )
            topics.append(OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=partitions))
        else:
            name = topic.name if found is None else found.name
            indexes = topic.partition_indexes
            topics.append(
                _fetched_topic(name, topic.topic_id, indexes, committed, refusals(name, indexes))
            )
    return OffsetFetchResponseGroup(group_id=requested.group_id, topics=tuple(topics))


def _refused_as_unstable(
    name: str, partitions: Iterable[int], unstable: Collection[TopicPartition]
) -> dict[int, int]:
    """Return partition number -> error code, for partitions with offsets of an open
    transaction."""
    return {
        index: ErrorCode.UNSTABLE_OFFSET_COMMIT
        for index in partitions
        if TopicPartition(name, index) in unstable
    }


def _fetched_topic(
    name: str,
    topic_id: UUID,
    partitions: Iterable[int],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    refusals: Mapping[int, int],
) -> OffsetFetchResponseTopics:
    """Return the entry of a topic. `refusals`: partition number -> error code."""
    found = ((index, committed.get(TopicPartition(name, index))) for index in partitions)
    return OffsetFetchResponseTopics(
        name=name,
        topic_id=topic_id,
        partitions=tuple(
            _no_offset(index, refusals.get(index, 0))
            if offset is None or refusals.get(index)
            else OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
            )
            for index, offset in found
        ),
    )


def _no_offset(index: int, error: int) -> OffsetFetchResponsePartitions:
    """Return the entry of a partition without a committed offset, or with an error."""
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=-1, error_code=error
    )

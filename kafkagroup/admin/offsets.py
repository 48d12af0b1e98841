"""Reads, alters and deletes a group's committed offsets, at its coordinator.

Only the offsets of a group without members can be altered: a member continues from its own
position, and its next commit would undo the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import anyio

from kafkagroup.admin.spec import topics_metadata
from kafkagroup.errors import (
    BrokerError,
    CommitFailedError,
    ErrorCode,
    RemoteProtocolError,
    broker_error,
)
from kafkagroup.runtime.client.calls import ChangeAttempts, RetriedCalls
from kafkagroup.runtime.offsets.group_offsets import (
    GroupOffsets,
    answered_partitions,
    committed_offset,
)
from kafkagroup.runtime.offsets.offset_requests import fetch_offsets
from kafkagroup.runtime.offsets.values import NO_MEMBER, GroupCommit
from kafkagroup.transport.cluster import Cluster
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

__all__ = ["alter", "committed", "delete", "partitions", "require_partitions"]


async def committed(cluster: Cluster, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return a group's committed offsets by partition. Raises: BrokerError; TransportError."""
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    async with cluster.coordinator(group_id) as broker:
        # KIP-447: with require_stable, a partition with a pending transactional commit has a
        # retriable error, and not its previous offset.
        response = await fetch_offsets(broker, group_id, require_stable=True)
        for group in response.groups:
            what = f"reading the offsets of group {group_id!r}"
            _raise_if_error(group.error_code, what, group_id, "DESCRIBE")
        for tp, data in sorted(answered_partitions(response), key=lambda each: each[0]):
            what = f"reading the offset of {tp} of group {group_id!r}"
            _raise_if_error(data.error_code, what, group_id, "DESCRIBE", tp.topic)
            if (offset := committed_offset(data)) is not None:
                offsets[tp] = offset
    return offsets


async def alter(
    calls: RetriedCalls, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    """Implement `Admin.alter_offsets`."""
    if not offsets:
        return
    # The commit retries unknown topics until the timeout, as a new topic is not known to every
    # broker at once. Check for missing ones first.
    await require_partitions(calls, offsets)
    try:
        await GroupOffsets(calls.opened(), group_id).commit(
            GroupCommit(identity=NO_MEMBER, offsets=offsets), anyio.current_time() + calls.timeout
        )
    except CommitFailedError as error:
        raise BrokerError(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {group_id!r} has members; stop them, or wait until their sessions have timed"
            " out, before its offsets are changed",
        ) from error


async def require_partitions(calls: RetriedCalls, partitions: Iterable[TopicPartition]) -> None:
    """Check that the partitions exist. Raises: BrokerError UNKNOWN_TOPIC_OR_PARTITION, which names
    the missing ones."""
    wanted = sorted(partitions)
    topics = sorted({tp.topic for tp in wanted})
    metadata = await calls.one(lambda cluster: topics_metadata(cluster, topics))
    counts = metadata.partition_counts(topics)
    missing = [tp for tp in wanted if not 0 <= tp.partition < counts.get(tp.topic, 0)]
    if missing:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no partition {', '.join(map(str, missing))}",
        )


async def partitions(calls: RetriedCalls, topics: Sequence[str]) -> tuple[TopicPartition, ...]:
    """Implement `Admin.partitions`; `topics` are sorted."""
    counts = (await calls.one(lambda cluster: topics_metadata(cluster, topics))).partition_counts(
        topics
    )
    if missing := [topic for topic in topics if topic not in counts]:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {', '.join(missing)}"
        )
    return tuple(TopicPartition(topic, n) for topic in topics for n in range(counts[topic]))


async def delete(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition],
    attempts: ChangeAttempts,
) -> dict[TopicPartition, BrokerError | None]:
    """Delete committed offsets. Return each partition's error, or None if its offset was deleted.

    Raises: BrokerError for an error of the whole group; RemoteProtocolError; TransportError.
    """
    wanted = sorted(set(partitions))
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=tuple(
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=tuple(
                    OffsetDeleteRequestPartition(partition_index=tp.partition)
                    for tp in wanted
                    if tp.topic == topic
                ),
            )
            for topic in dict.fromkeys(tp.topic for tp in wanted)
        ),
    )
    async with cluster.coordinator(group_id) as broker:
        response = await attempts.send(broker, request)
        if attempts.is_lost and response.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            # An earlier attempt deleted the group's last offset, and so the coordinator the group.
            return dict.fromkeys(wanted)
        what = f"deleting offsets of group {group_id!r}"
        if response.error_code == ErrorCode.NON_EMPTY_GROUP:
            what += ": it has members, and is no group of consumers; stop its members first"
        _raise_if_error(response.error_code, what, group_id, "DELETE")
    codes = {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }
    if missing := [tp for tp in wanted if tp not in codes]:
        raise RemoteProtocolError(f"the coordinator did not answer for {missing[0]}")
    return {tp: _delete_error(codes[tp], group_id, tp) for tp in wanted}


def _delete_error(code: int, group_id: str, tp: TopicPartition) -> BrokerError | None:
    if code == ErrorCode.NONE:
        return None
    what = f"deleting the offset of {tp} of group {group_id!r}"
    if code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        what += f": members subscribe to {tp.topic}; stop its members first"
    return broker_error(code, what, operation="READ", topic=tp.topic, group=group_id)


def _raise_if_error(
    code: int, what: str, group_id: str, operation: str, topic: str | None = None
) -> None:
    if code:
        raise broker_error(code, what, operation=operation, topic=topic, group=group_id)

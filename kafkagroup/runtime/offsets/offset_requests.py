"""OffsetCommit and OffsetFetch, by topic name or by topic id. Responses always have names.

With `topic_ids`, which must have the ids of all topics, a request to a broker of 4.1 or later names
topics by id. The broker then refuses the offsets of a topic that was deleted and recreated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from kafkagroup.transport.broker import MAIN, BrokerClient
from kafkagroup.types import OffsetAndMetadata, TopicPartition, by_topic
from kafkagroup.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopics,
)
from kafkagroup.wire.schema import NO_ID

__all__ = ["commit_offsets", "fetch_offsets"]

_HIGHEST_BY_NAME = 9
"""The highest version of both requests that names topics by name; from version 10 on they have
ids."""


async def commit_offsets(
    broker: BrokerClient,
    group_id: str,
    generation: int,
    member_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    group_instance_id: str | None = None,
    topic_ids: Mapping[str, UUID] | None = None,
    connection_id: str = MAIN,
    timeout: float | None = None,
) -> OffsetCommitResponse:
    """Commit offsets; generation -1 and member id "" for a caller that is not a member. `timeout`:
    seconds; None: the request timeout of the client."""
    ids = topic_ids or {}
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=group_instance_id,
        topics=tuple(
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=ids.get(topic, NO_ID),
                partitions=tuple(
                    _commit_partition(partition, offsets[TopicPartition(topic, partition)])
                    for partition in partitions
                ),
            )
            for topic, partitions in by_topic(offsets).items()
        ),
    )
    response = await broker.request(
        request,
        connection_id=connection_id,
        timeout=timeout,
        highest=None if ids else _HIGHEST_BY_NAME,
    )
    names = {topic_id: name for name, topic_id in ids.items()}
    return OffsetCommitResponse(
        throttle_time_ms=response.throttle_time_ms,
        topics=tuple(
            OffsetCommitResponseTopic(
                name=t.name or names.get(t.topic_id, ""),
                topic_id=t.topic_id,
                partitions=t.partitions,
            )
            for t in response.topics
        ),
    )


async def fetch_offsets(
    broker: BrokerClient,
    group_id: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    member: tuple[str, int] | None = None,
    topic_ids: Mapping[str, UUID] | None = None,
    connection_id: str = MAIN,
    timeout: float | None = None,
) -> OffsetFetchResponse:
    """Return a group's committed offsets, of some partitions or (None) of all.

    `member`: the id and epoch of a member under KIP-848. A broker of 4.0 or later refuses the
    request unless the group has that member with that epoch. `timeout`: as for `commit_offsets`."""
    ids = topic_ids or {}
    topics = None
    if partitions is not None:
        topics = tuple(
            OffsetFetchRequestTopics(
                name=topic, topic_id=ids.get(topic, NO_ID), partition_indexes=tuple(numbers)
            )
            for topic, numbers in by_topic(partitions).items()
        )
    member_id, member_epoch = member or (None, -1)
    group = OffsetFetchRequestGroup(
        group_id=group_id, member_id=member_id, member_epoch=member_epoch, topics=topics
    )
    response = await broker.request(
        OffsetFetchRequest(groups=(group,), require_stable=require_stable),
        connection_id=connection_id,
        timeout=timeout,
        highest=None if ids else _HIGHEST_BY_NAME,
    )
    names = {topic_id: name for name, topic_id in ids.items()}
    return OffsetFetchResponse(
        throttle_time_ms=response.throttle_time_ms,
        groups=tuple(_with_names(g, names) for g in response.groups if g.group_id == group_id),
    )


def _with_names(
    group: OffsetFetchResponseGroup, names: Mapping[UUID, str]
) -> OffsetFetchResponseGroup:
    topics = (
        OffsetFetchResponseTopics(
            name=t.name or names.get(t.topic_id, ""), topic_id=t.topic_id, partitions=t.partitions
        )
        for t in group.topics
    )
    return OffsetFetchResponseGroup(
        group_id=group.group_id, topics=tuple(topics), error_code=group.error_code
    )


def _commit_partition(partition: int, offset: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )

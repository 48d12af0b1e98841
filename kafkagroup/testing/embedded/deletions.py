"""DeleteRecords: the start of a partition's log moves up."""

from __future__ import annotations

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.internal_topics import is_internal
from kafkagroup.testing.embedded.reads import check_leader
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

__all__ = ["delete_records"]

_TO_THE_END = -1
"""The offset in a request that deletes all records up to the high watermark."""


def delete_records(
    cluster: Cluster, node_id: int, request: DeleteRecordsRequest, caller: Caller
) -> DeleteRecordsResponse:
    """Delete the records below an offset, in each partition."""

    def delete(tp: TopicPartition, offset: int) -> DeleteRecordsPartitionResult:
        # -1: the request has no leader epoch.
        partition, error = check_leader(cluster, node_id, tp.topic, tp.partition, -1)
        if partition is not None and not error:
            log, configs = partition.log, cluster.topics[tp.topic].configs
            offset = log.end if offset == _TO_THE_END else offset
            if is_internal(tp.topic):
                error = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif not configs.may_delete_records:
                error = ErrorCode.POLICY_VIOLATION
            elif not 0 <= offset <= log.end:
                error = ErrorCode.OFFSET_OUT_OF_RANGE
            else:
                log.delete_before(offset)
                cluster.wake_fetches()
                return DeleteRecordsPartitionResult(
                    partition_index=tp.partition,
                    low_watermark=log.start,
                    error_code=ErrorCode.NONE,
                )
        return DeleteRecordsPartitionResult(
            partition_index=tp.partition, low_watermark=-1, error_code=error
        )

    return DeleteRecordsResponse(
        throttle_time_ms=0,
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    delete(TopicPartition(topic.name, p.partition_index), p.offset)
                    for p in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )

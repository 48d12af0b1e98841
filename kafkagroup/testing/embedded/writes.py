"""Produce, with the checks that a broker makes before it appends a batch."""

from __future__ import annotations

from kafkagroup.errors import CorruptRecordError, ErrorCode
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.testing.embedded.reads import check_leader
from kafkagroup.wire.batch_format import PREFIX
from kafkagroup.wire.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kafkagroup.wire.records import RecordBatch, read_batches

__all__ = ["produce"]

_MAGIC = 2
"""The only format version of a batch that brokers take."""


def produce(
    cluster: Cluster, node_id: int, request: ProduceRequest, caller: Caller
) -> ProduceResponse | None:
    """Append one batch per partition. Return None for acks=0, which has no response.

    Producer ids are ignored: duplicates are appended too.
    """
    new_leaders: set[int] = set()

    def append(
        topic: TopicProduceData, requested: PartitionProduceData
    ) -> PartitionProduceResponse:
        name: str | None = topic.name
        if caller.version >= 13:
            found = cluster.topic_by_id(topic.topic_id)
            name = None if found is None else found.name
        if name is None:
            return _refused(requested.index, ErrorCode.UNKNOWN_TOPIC_ID)
        partition, error = check_leader(cluster, node_id, name, requested.index, -1)
        if request.acks not in (-1, 0, 1):
            error = ErrorCode.INVALID_REQUIRED_ACKS
        records = b"" if requested.records is None else requested.records
        error = error or _batch_error(records, cluster.settings.max_message_bytes)
        if partition is None or error:
            refused = _refused(requested.index, error)
            is_moved = error == ErrorCode.NOT_LEADER_OR_FOLLOWER
            if partition is None or caller.version < 10 or not is_moved:
                return refused
            new_leaders.add(partition.leader)
            leader = LeaderIdAndEpoch(
                leader_id=partition.leader, leader_epoch=partition.leader_epoch
            )
            return evolve(refused, current_leader=leader)
        return PartitionProduceResponse(
            index=requested.index,
            error_code=ErrorCode.NONE,
            base_offset=cluster.append(partition, records),
            log_start_offset=partition.log.start,
        )

    topics = tuple(
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=tuple(append(topic, p) for p in topic.partition_data),
        )
        for topic in request.topic_data
    )
    if request.acks == 0:
        return None
    nodes = (cluster.nodes[node] for node in sorted(new_leaders) if node in cluster.nodes)
    endpoints = tuple(NodeEndpoint(node_id=n.node_id, host=n.host, port=n.port) for n in nodes)
    return ProduceResponse(responses=topics, node_endpoints=endpoints)


def _batch_error(records: bytes | memoryview, max_bytes: int) -> ErrorCode:
    if len(records) < PREFIX.size or PREFIX.unpack_from(records)[2] != _MAGIC:
        return ErrorCode.INVALID_RECORD
    if len(records) > max_bytes:
        return ErrorCode.MESSAGE_TOO_LARGE
    try:
        batches: tuple[RecordBatch, ...] = tuple(read_batches(records, topic="", partition=-1))
    except CorruptRecordError:
        return ErrorCode.CORRUPT_MESSAGE
    if len(batches) != 1 or batches[0].size != len(records):
        return ErrorCode.INVALID_RECORD
    consecutive = batches[0].count == batches[0].last_offset - batches[0].base_offset + 1
    return ErrorCode.NONE if consecutive else ErrorCode.INVALID_RECORD


def _refused(index: int, error: ErrorCode) -> PartitionProduceResponse:
    return PartitionProduceResponse(index=index, error_code=error, base_offset=-1)

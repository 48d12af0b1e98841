"""Produce, with the checks that a broker makes before it appends a batch."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from kafkagroup.errors import CorruptRecordError, ErrorCode
from kafkagroup.testing.embedded.cluster import Cluster, Partition
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.internal_topics import is_internal
from kafkagroup.testing.embedded.producer_states import Check
from kafkagroup.testing.embedded.reads import check_leader
from kafkagroup.testing.embedded.record_checks import (
    check_records,
    has_valid_crc,
    with_append_time,
)
from kafkagroup.testing.embedded.topic_configs import TopicConfigs
from kafkagroup.testing.embedded.transactions import Identity
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_format import PREFIX
from kafkagroup.wire.compression import Codec
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

__all__ = ["has_errors", "produce"]

_HAS_ZSTD = 7
"""The first version of Produce whose batches may be compressed by zstd (KIP-110)."""
_HAS_ABORTABLE = 11
"""The first version of Produce that has TRANSACTION_ABORTABLE."""
_ADDS_PARTITIONS = 12
"""The first version of Produce in which a partition's first batch adds the partition to the
transaction, and begins the transaction if needed (KIP-890)."""
_MAGIC = 2
"""The only format version of a batch that brokers accept."""


def produce(
    cluster: Cluster, node_id: int, request: ProduceRequest, caller: Caller
) -> ProduceResponse:
    """Append one batch per partition. With acks=0 the caller does not send the response: see
    `has_errors`."""
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
        tp = TopicPartition(name, requested.index)
        if is_internal(name):
            return _refused(tp.partition, ErrorCode.INVALID_TOPIC_EXCEPTION)
        # -1: the request has no leader epoch.
        partition, error = check_leader(cluster, node_id, name, requested.index, -1)
        if partition is None:
            return _refused(tp.partition, error)
        if error == ErrorCode.NOT_LEADER_OR_FOLLOWER and caller.version >= 10:
            new_leaders.add(partition.leader)
            leader = LeaderIdAndEpoch(
                leader_id=partition.leader, leader_epoch=partition.leader_epoch
            )
            return _refused(tp.partition, error, current_leader=leader)
        records = b"" if requested.records is None else requested.records
        batch, batch_error = _batch_of(records, caller.version)
        code = error or cluster.injected_error(node_id, ProduceRequest, tp) or batch_error
        if batch is None or code:
            return _refused(tp.partition, code)
        response = _write(cluster, request, tp, partition, batch, caller)
        injected = cluster.injected_error_after(node_id, ProduceRequest, tp)
        return (
            _refused(tp.partition, injected) if injected and not response.error_code else response
        )

    # As in Kafka, the last of several batches for a partition counts, and is answered once.
    named = {(topic.name, topic.topic_id): topic for topic in request.topic_data}
    batches: dict[tuple[str, UUID], dict[int, PartitionProduceData]] = {key: {} for key in named}
    for topic in request.topic_data:
        batches[topic.name, topic.topic_id].update({p.index: p for p in topic.partition_data})
    topics = tuple(
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=tuple(append(topic, p) for p in batches[key].values()),
        )
        for key, topic in named.items()
    )
    nodes = (cluster.nodes[node] for node in sorted(new_leaders) if node in cluster.nodes)
    endpoints = tuple(NodeEndpoint(node_id=n.node_id, host=n.host, port=n.port) for n in nodes)
    return ProduceResponse(responses=topics, node_endpoints=endpoints)


def has_errors(response: ProduceResponse) -> bool:
    """Whether a batch was refused. With acks=0 the broker then closes the connection, as the client
    waits for no response."""
    return any(p.error_code for t in response.responses for p in t.partition_responses)


def _write(
    cluster: Cluster,
    request: ProduceRequest,
    tp: TopicPartition,
    partition: Partition,
    batch: RecordBatch,
    caller: Caller,
) -> PartitionProduceResponse:
    """Append a whole batch, unless a check fails or it was appended before."""
    configs = cluster.topics[tp.topic].configs
    if batch.producer_id >= 0:
        expired_before = caller.now - cluster.settings.producer_id_expiration
        partition.log.producers.expire(expired_before)
    error = _ensure_in_transaction(cluster, request, tp, partition, batch, caller)
    error = error or _check_limits(cluster, request, configs, batch)
    if not error and not has_valid_crc(batch):
        error = ErrorCode.CORRUPT_MESSAGE
    if error:
        return _refused(tp.partition, error)
    refused = partial(_refused, tp.partition, log_start_offset=partition.log.start)
    now_ms = int(cluster.wall() * 1000)
    errors = check_records(batch, configs, tp, now_ms)
    if errors.code:
        return refused(errors.code, record_errors=errors.records, error_message=errors.message)
    check = _check_producer(cluster, partition, batch, caller)
    if check.error:
        return refused(check.error)
    append_time, kept = -1, check.duplicate
    if kept is not None:
        # Kafka reports a repeated batch's time, whatever `message.timestamp.type` is.
        base, append_time = kept.base_offset, kept.max_timestamp
    elif configs.has_append_time:
        base, append_time = cluster.append(partition, with_append_time(batch.raw, now_ms)), now_ms
    else:
        base = cluster.append(partition, batch.raw)
    if batch.producer_id >= 0:
        partition.log.producers.note_use(batch.producer_id, caller.now)
    return PartitionProduceResponse(
        index=tp.partition,
        error_code=ErrorCode.NONE,
        base_offset=base,
        log_append_time_ms=append_time,
        log_start_offset=partition.log.start,
    )


def _batch_of(records: bytes | memoryview, version: int) -> tuple[RecordBatch | None, ErrorCode]:
    """Return the one batch in these bytes, or the error for anything else. `version`: of the
    request. The CRC is checked later: see `_write`."""
    if len(records) < PREFIX.size or PREFIX.unpack_from(records)[2] != _MAGIC:
        return None, ErrorCode.INVALID_RECORD
    try:
        batches = tuple(read_batches(records, topic="", partition=-1, check_crcs=False))
    except CorruptRecordError:
        return None, ErrorCode.CORRUPT_MESSAGE
    if len(batches) != 1 or batches[0].size != len(records):
        return None, ErrorCode.INVALID_RECORD
    if batches[0].codec is Codec.ZSTD and version < _HAS_ZSTD:
        return None, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return batches[0], ErrorCode.NONE


def _ensure_in_transaction(
    cluster: Cluster,
    request: ProduceRequest,
    tp: TopicPartition,
    partition: Partition,
    batch: RecordBatch,
    caller: Caller,
) -> ErrorCode:
    """Add the partition to its transaction, if the batch is the transaction's first one in it.

    This comes before all checks of the batch, except of its epoch: a transaction may consist of
    records that were refused.
    """
    if not batch.is_transactional:
        return ErrorCode.NONE
    if request.transactional_id is None:  # the error of Kafka, which authorizes the id first
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    producers = partition.log.producers
    if producers.has_newer_epoch(batch.producer_id, batch.producer_epoch):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if producers.has_open_transaction(batch.producer_id, batch.producer_epoch):
        return ErrorCode.NONE
    producers.note_verification(batch)
    return _join_transaction(cluster, request.transactional_id, tp, batch, caller)


def _check_limits(
    cluster: Cluster, request: ProduceRequest, configs: TopicConfigs, batch: RecordBatch
) -> ErrorCode:
    """Check `acks`, and the topic's `min.insync.replicas` and `max.message.bytes`."""
    if request.acks not in (-1, 0, 1):
        return ErrorCode.INVALID_REQUIRED_ACKS
    # As in Kafka, no more replicas are required than there are: one on each node.
    required = min(configs.min_insync_replicas, len(cluster.nodes))
    if request.acks == -1 and len(cluster.live_ids) < required:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if batch.size > configs.max_message_bytes:
        return ErrorCode.MESSAGE_TOO_LARGE
    return ErrorCode.NONE


def _check_producer(
    cluster: Cluster, partition: Partition, batch: RecordBatch, caller: Caller
) -> Check:
    """Check the epoch and sequence number of a batch with a producer id."""
    if batch.producer_id < 0:
        return Check()
    return partition.log.producers.check(
        batch,
        any_first_sequence=cluster.settings.any_first_sequence,
        begins_at_zero=batch.is_transactional and caller.version >= _ADDS_PARTITIONS,
    )


def _join_transaction(
    cluster: Cluster,
    transactional_id: str,
    tp: TopicPartition,
    batch: RecordBatch,
    caller: Caller,
) -> ErrorCode:
    """Add the partition to the transaction, or, below transaction version 2, check that it was
    added (KIP-890)."""
    identity = Identity(batch.producer_id, batch.producer_epoch)
    transactions = cluster.transaction_coordinator
    if caller.version >= _ADDS_PARTITIONS:
        error = transactions.add(transactional_id, identity, caller.now, partitions=[tp])
    else:
        error = transactions.verify(transactional_id, identity, partition=tp)
        if error == ErrorCode.TRANSACTION_ABORTABLE and caller.version < _HAS_ABORTABLE:
            return ErrorCode.INVALID_TXN_STATE
        if error == ErrorCode.CONCURRENT_TRANSACTIONS:
            # As in Kafka: producers retry this code in every version of Produce.
            return ErrorCode.NOT_ENOUGH_REPLICAS
    # Produce has no PRODUCER_FENCED.
    return ErrorCode.INVALID_PRODUCER_EPOCH if error == ErrorCode.PRODUCER_FENCED else error


def _refused(index: int, error: int, **details: Any) -> PartitionProduceResponse:
    return PartitionProduceResponse(index=index, error_code=error, base_offset=-1, **details)

"""The requests of idempotent and transactional producers, except Produce (`writes`)."""

from __future__ import annotations

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.offsets import check_commit_in_transaction
from kafkagroup.testing.embedded.transactions import NO_IDENTITY, Identity
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

__all__ = ["add_offsets", "add_partitions", "commit_offsets", "end", "init_producer_id"]

_ENDS_EPOCH = 5
"""The first version of EndTxn and TxnOffsetCommit in which each transaction ends an epoch."""


def init_producer_id(
    cluster: Cluster, node_id: int, request: InitProducerIdRequest, caller: Caller
) -> InitProducerIdResponse:
    """Return a producer id and epoch, and fence earlier producers of the transactional id, if the
    request has one."""
    error, identity = _init_producer_id(cluster, node_id, request, caller.now)
    # Version 4 of InitProducerId introduced PRODUCER_FENCED.
    if error == ErrorCode.PRODUCER_FENCED and caller.version < 4:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(
        throttle_time_ms=0,
        error_code=error,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
    )


def _init_producer_id(
    cluster: Cluster, node_id: int, request: InitProducerIdRequest, now: float
) -> tuple[ErrorCode, Identity]:
    transactional_id = request.transactional_id
    expected = Identity(request.producer_id, request.producer_epoch)
    is_incomplete = (expected.producer_id == -1) != (expected.epoch == -1)
    if transactional_id == "" or is_incomplete:
        return ErrorCode.INVALID_REQUEST, NO_IDENTITY
    if transactional_id is None:
        return ErrorCode.NONE, Identity(cluster.transaction_coordinator.new_producer_id(), 0)
    if cluster.coordinator_of(transactional_id) != node_id:
        return ErrorCode.NOT_COORDINATOR, NO_IDENTITY
    return cluster.transaction_coordinator.init_producer_id(
        transactional_id, request.transaction_timeout_ms, expected, now
    )


# ------------------------------------------------------------ the contents of a transaction


def add_partitions(
    cluster: Cluster, node_id: int, request: AddPartitionsToTxnRequest, caller: Caller
) -> AddPartitionsToTxnResponse:
    """Add partitions to a transaction. Versions from 4 on are for brokers: they add partitions to
    several transactions, or verify that partitions were added."""
    if caller.version < 4:
        results = _add_to_one(
            cluster,
            node_id,
            request.v3_and_below_transactional_id,
            Identity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            request.v3_and_below_topics,
            caller,
        )
        return AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=results)
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        results_by_transaction=tuple(
            AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=_add_to_one(
                    cluster,
                    node_id,
                    one.transactional_id,
                    Identity(one.producer_id, one.producer_epoch),
                    one.topics,
                    caller,
                    verify_only=one.verify_only,
                ),
            )
            for one in request.transactions
        ),
    )


def _add_to_one(
    cluster: Cluster,
    node_id: int,
    transactional_id: str,
    identity: Identity,
    topics: tuple[AddPartitionsToTxnTopic, ...],
    caller: Caller,
    *,
    verify_only: bool = False,
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    named = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
    unknown = {tp for tp in named if cluster.partition(*tp) is None}
    errors: dict[TopicPartition, ErrorCode] = {}
    if cluster.coordinator_of(transactional_id) != node_id:
        errors = dict.fromkeys(named, ErrorCode.NOT_COORDINATOR)
    elif unknown:
        # All partitions or none are added.
        errors = dict.fromkeys(named, ErrorCode.OPERATION_NOT_ATTEMPTED)
        errors |= dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    elif verify_only:
        errors = {
            tp: cluster.transaction_coordinator.verify(transactional_id, identity, partition=tp)
            for tp in named
        }
    else:
        error = cluster.transaction_coordinator.add(
            transactional_id, identity, caller.now, partitions=named
        )
        errors = dict.fromkeys(named, _in_version(error, caller.version))
    return tuple(
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=errors[TopicPartition(topic.name, index)],
                )
                for index in topic.partitions
            ),
        )
        for topic in topics
    )


def add_offsets(
    cluster: Cluster, node_id: int, request: AddOffsetsToTxnRequest, caller: Caller
) -> AddOffsetsToTxnResponse:
    """Add a group whose offsets the transaction commits."""
    error = ErrorCode.NOT_COORDINATOR
    if cluster.coordinator_of(request.transactional_id) == node_id:
        error = cluster.transaction_coordinator.add(
            request.transactional_id,
            Identity(request.producer_id, request.producer_epoch),
            caller.now,
            groups=[request.group_id],
        )
    return AddOffsetsToTxnResponse(
        throttle_time_ms=0, error_code=_in_version(error, caller.version)
    )


def commit_offsets(
    cluster: Cluster, node_id: int, request: TxnOffsetCommitRequest, caller: Caller
) -> TxnOffsetCommitResponse:
    """Store offsets, which count only when the transaction commits."""
    # As in Kafka, a commit of unknown partitions only does not reach the coordinator: it begins no
    # transaction.
    is_any_known = any(
        cluster.partition(topic.name, p.partition_index) is not None
        for topic in request.topics
        for p in topic.partitions
    )
    error = ErrorCode.NONE
    if is_any_known:
        error = _commit_error(cluster, node_id, request, caller)
    limit = cluster.settings.offset_metadata_max_bytes
    pending: dict[TopicPartition, OffsetAndMetadata] = {}
    topics = []
    for topic in request.topics:
        results = []
        for p in topic.partitions:
            tp, metadata = TopicPartition(topic.name, p.partition_index), p.committed_metadata or ""
            code = error
            if cluster.partition(*tp) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not error and len(metadata) > limit:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if not code:
                pending[tp] = OffsetAndMetadata(
                    p.committed_offset, metadata, p.committed_leader_epoch
                )
            results.append(
                TxnOffsetCommitResponsePartition(partition_index=tp.partition, error_code=code)
            )
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=tuple(results)))
    if pending:
        cluster.commit_pending(request.group_id, request.producer_id, pending)
    return TxnOffsetCommitResponse(throttle_time_ms=0, topics=tuple(topics))


def _commit_error(
    cluster: Cluster, node_id: int, request: TxnOffsetCommitRequest, caller: Caller
) -> ErrorCode:
    identity = Identity(request.producer_id, request.producer_epoch)
    transactional_id, group_id = request.transactional_id, request.group_id
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    if cluster.coordinator_of(group_id) != node_id:
        return ErrorCode.NOT_COORDINATOR
    if caller.version >= _ENDS_EPOCH:
        error = cluster.transaction_coordinator.add(
            transactional_id, identity, caller.now, groups=[group_id]
        )
    else:
        error = cluster.transaction_coordinator.verify(transactional_id, identity, group=group_id)
        # Version 4 of TxnOffsetCommit introduced TRANSACTION_ABORTABLE.
        if error == ErrorCode.TRANSACTION_ABORTABLE and caller.version < 4:
            return ErrorCode.INVALID_TXN_STATE
    if error == ErrorCode.PRODUCER_FENCED:  # TxnOffsetCommit does not have it
        return ErrorCode.INVALID_PRODUCER_EPOCH
    # After the transaction, as in Kafka: a valid commit of a new group creates the group.
    return error or check_commit_in_transaction(cluster, request, caller)


# ------------------------------------------------------------ the end


def end(cluster: Cluster, node_id: int, request: EndTxnRequest, caller: Caller) -> EndTxnResponse:
    """Commit or abort a transaction."""
    error, identity = ErrorCode.NOT_COORDINATOR, NO_IDENTITY
    ends_epoch = caller.version >= _ENDS_EPOCH
    if cluster.coordinator_of(request.transactional_id) == node_id:
        error, identity = cluster.transaction_coordinator.end(
            request.transactional_id,
            Identity(request.producer_id, request.producer_epoch),
            caller.now,
            commits=request.committed,
            ends_epoch=ends_epoch,
        )
    return EndTxnResponse(
        throttle_time_ms=0,
        error_code=_in_version(error, caller.version),
        producer_id=identity.producer_id if ends_epoch else -1,
        producer_epoch=identity.epoch if ends_epoch else -1,
    )


def _in_version(error: ErrorCode, version: int) -> ErrorCode:
    """Return the error as a version of AddPartitionsToTxn, AddOffsetsToTxn or EndTxn has it:
    versions below 2 have no PRODUCER_FENCED."""
    if error == ErrorCode.PRODUCER_FENCED and version < 2:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error

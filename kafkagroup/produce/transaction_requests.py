"""The requests of a transaction to its coordinator, and to the coordinator of a group."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from kafkagroup.produce.transaction_state import Transactions
from kafkagroup.produce.transaction_vocabulary import GroupIdentity
from kafkagroup.types import OffsetAndMetadata, TopicPartition, by_topic
from kafkagroup.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

__all__ = [
    "add_offsets_request",
    "add_partitions_codes",
    "add_partitions_request",
    "end_request",
    "init_request",
    "offset_commit_codes",
    "offsets_request",
]


def init_request(state: Transactions) -> InitProducerIdRequest:
    """Return the request for the first epoch; or, if the producer has one, for the next, as the
    owner of the present epoch (KIP-360)."""
    return InitProducerIdRequest(
        transactional_id=state.transactional_id,
        transaction_timeout_ms=state.timeout_ms,
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
    )


def add_partitions_request(
    state: Transactions, partitions: Collection[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """Return the request to add partitions, with the fields of the versions for clients."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=state.transactional_id,
        v3_and_below_producer_id=state.producer_id,
        v3_and_below_producer_epoch=state.epoch,
        v3_and_below_topics=tuple(
            AddPartitionsToTxnTopic(name=topic, partitions=tuple(numbers))
            for topic, numbers in by_topic(partitions).items()
        ),
    )


def add_offsets_request(state: Transactions, group_id: str) -> AddOffsetsToTxnRequest:
    """Return the request to add the offsets of a group."""
    return AddOffsetsToTxnRequest(
        transactional_id=state.transactional_id,
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        group_id=group_id,
    )


def offsets_request(
    state: Transactions,
    group: GroupIdentity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> TxnOffsetCommitRequest:
    """Return the request to commit the offsets of a group with the transaction."""
    return TxnOffsetCommitRequest(
        transactional_id=state.transactional_id,
        group_id=group.group_id,
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=tuple(
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=tuple(
                    _offset(partition, offsets[TopicPartition(topic, partition)])
                    for partition in partitions
                ),
            )
            for topic, partitions in by_topic(offsets).items()
        ),
    )


def _offset(partition: int, offset: OffsetAndMetadata) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def end_request(state: Transactions) -> EndTxnRequest:
    """Return the request to commit the transaction, or to abort it."""
    return EndTxnRequest(
        transactional_id=state.transactional_id,
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        committed=state.commits,
    )


def add_partitions_codes(
    response: AddPartitionsToTxnResponse,
) -> Iterator[tuple[TopicPartition, int]]:
    """Yield each partition of a response with its error code."""
    for topic in response.results_by_topic_v3_and_below:
        for result in topic.results_by_partition:
            yield TopicPartition(topic.name, result.partition_index), result.partition_error_code


def offset_commit_codes(response: TxnOffsetCommitResponse) -> Iterator[tuple[TopicPartition, int]]:
    """Yield each partition of a response with its error code."""
    for topic in response.topics:
        for result in topic.partitions:
            yield TopicPartition(topic.name, result.partition_index), result.error_code

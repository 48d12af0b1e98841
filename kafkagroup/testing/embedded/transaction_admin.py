"""The requests of administrators about transactions and producers (KIP-664, 994, 1152)."""

from __future__ import annotations

import re

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.internal_topics import partition_of_group
from kafkagroup.testing.embedded.reads import check_leader
from kafkagroup.testing.embedded.transactions import Identity, Transaction, TransactionState
from kafkagroup.types import TopicPartition, by_topic
from kafkagroup.wire.messages import transaction_admin, transaction_list
from kafkagroup.wire.messages.transaction_admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    PartitionResponse,
    TopicData,
    TopicResponse,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafkagroup.wire.messages.transaction_list import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)

__all__ = ["describe_producers", "describe_transactions", "list_transactions", "write_markers"]

_STATES = frozenset(state.value for state in TransactionState)
_OTHER_STATES = ("Dead", "PrepareEpochFence")
"""Kafka's states that no transaction has here; filters may name them."""

_TV_2 = 2
"""The first transaction version in which each transaction ends an epoch: Kafka's TV_2."""


def list_transactions(
    cluster: Cluster, node_id: int, request: ListTransactionsRequest, caller: Caller
) -> ListTransactionsResponse:
    """List the transactional ids that this node coordinates and the request's filters select."""
    unknown = sorted({*request.state_filters} - {*_STATES, *_OTHER_STATES})
    try:
        pattern = re.compile(request.transactional_id_pattern or ".*", re.DOTALL)
    except re.error:
        return ListTransactionsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.INVALID_REGULAR_EXPRESSION,
            unknown_state_filters=(),
            transaction_states=(),
        )
    found = [
        one
        for one in cluster.transaction_coordinator.transactions.values()
        if cluster.coordinator_of(one.transactional_id) == node_id
        and (not request.state_filters or one.state.value in request.state_filters)
        and (
            not request.producer_id_filters
            or one.identity.producer_id in request.producer_id_filters
        )
        and _began_before(one, request.duration_filter, caller.now)
        and pattern.fullmatch(one.transactional_id)
    ]
    return ListTransactionsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        unknown_state_filters=tuple(unknown),
        transaction_states=tuple(
            transaction_list.TransactionState(
                transactional_id=one.transactional_id,
                producer_id=one.identity.producer_id,
                transaction_state=one.state.value,
            )
            for one in found
        ),
    )


def _began_before(one: Transaction, duration_ms: int, now: float) -> bool:
    """Whether the last transaction of an id began more than `duration_ms` ago; a negative value
    selects all. As in Kafka, the transaction may have ended, and an id without a transaction since
    its last InitProducerId is always selected."""
    if duration_ms < 0 or one.state is TransactionState.EMPTY:
        return True
    return (now - one.started_at) * 1000 > duration_ms


def describe_transactions(
    cluster: Cluster, node_id: int, request: DescribeTransactionsRequest, caller: Caller
) -> DescribeTransactionsResponse:
    """Describe transactional ids, each with its last transaction."""
    return DescribeTransactionsResponse(
        throttle_time_ms=0,
        transaction_states=tuple(
            _described(cluster, node_id, one, caller.now) for one in request.transactional_ids
        ),
    )


def _described(
    cluster: Cluster, node_id: int, transactional_id: str, now: float
) -> transaction_admin.TransactionState:
    error, state, started_ms = ErrorCode.NONE, "", -1
    found = cluster.transaction_coordinator.transactions.get(transactional_id)
    if not transactional_id:
        error = ErrorCode.INVALID_REQUEST
    elif cluster.coordinator_of(transactional_id) != node_id:
        error = ErrorCode.NOT_COORDINATOR
    elif found is None:
        error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if error or found is None:
        # As in Kafka, the fields of an entry with an error are 0.
        found, started_ms = Transaction(transactional_id, Identity(0, 0), 0), 0
    else:
        state = found.state.value
        if found.state is not TransactionState.EMPTY:
            # `started_at` is on the clock of `now`; the response has wall-clock time.
            started_ms = int((cluster.wall() - now + found.started_at) * 1000)
    return transaction_admin.TransactionState(
        error_code=error,
        transactional_id=transactional_id,
        transaction_state=state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=started_ms,
        producer_id=found.identity.producer_id,
        producer_epoch=found.identity.epoch,
        topics=tuple(
            TopicData(topic=topic, partitions=tuple(partitions))
            for topic, partitions in by_topic(sorted(_partitions_of(cluster, found))).items()
        ),
    )


def _partitions_of(cluster: Cluster, found: Transaction) -> set[TopicPartition]:
    """Return the partitions of an open transaction, with those of the groups whose offsets it
    commits."""
    of_groups = found.groups if cluster.settings.internal_topics else ()
    return {*found.partitions, *map(partition_of_group, of_groups)}


def describe_producers(
    cluster: Cluster, node_id: int, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Describe the producers that a partition knows. Every replica may be asked."""

    def answer_one(topic: str, index: int) -> PartitionResponse:
        # -1: the request has no leader epoch.
        partition, error = check_leader(cluster, node_id, topic, index, -1, allow_followers=True)
        tp = TopicPartition(topic, index)
        code = cluster.injected_error(node_id, DescribeProducersRequest, tp) or error
        producers = () if partition is None or code else partition.log.producers.described()
        return PartitionResponse(partition_index=index, error_code=code, active_producers=producers)

    return DescribeProducersResponse(
        throttle_time_ms=0,
        topics=tuple(
            TopicResponse(
                name=topic.name,
                partitions=tuple(
                    answer_one(topic.name, index) for index in topic.partition_indexes
                ),
            )
            for topic in request.topics
        ),
    )


def write_markers(
    cluster: Cluster, node_id: int, request: WriteTxnMarkersRequest, now: float
) -> WriteTxnMarkersResponse:
    """Write markers to the partitions that this node leads. The transaction coordinator is not
    asked, and does not learn of them. `now` is on the clock of `cluster.timers`."""

    def answer_one(
        marker: WritableTxnMarker, topic: str, index: int
    ) -> WritableTxnMarkerPartitionResult:
        # -1: the request has no leader epoch.
        partition, error = check_leader(cluster, node_id, topic, index, -1)
        tp = TopicPartition(topic, index)
        code = cluster.injected_error(node_id, WriteTxnMarkersRequest, tp) or int(error)
        if partition is not None and not code:
            code = partition.log.producers.check_marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                ends_epoch=marker.transaction_version >= _TV_2,
            )
        if partition is not None and not code:
            identity = Identity(marker.producer_id, marker.producer_epoch)
            cluster.write_marker(
                partition,
                identity,
                now,
                commits=marker.transaction_result,
                coordinator_epoch=marker.coordinator_epoch,
            )
            code = cluster.injected_error_after(node_id, WriteTxnMarkersRequest, tp)
        return WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)

    response = WriteTxnMarkersResponse(
        markers=tuple(
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=tuple(
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            answer_one(marker, topic.name, index)
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )
    cluster.wake_fetches()
    return response

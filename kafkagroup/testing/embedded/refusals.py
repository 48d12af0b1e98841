"""Error responses: one error code, in the field where each API carries it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafkagroup.errors import ErrorCode
from kafkagroup.wire.messages import (
    acls,
    admin,
    alter_configs,
    configs,
    consumer_describe,
    consumer_heartbeat,
    delete_records,
    fetch,
    group,
    incremental_alter_configs,
    metadata,
    offset_delete,
    offsets,
    produce,
    sasl,
    transaction_admin,
    transaction_list,
    transactions,
)
from kafkagroup.wire.schema import Request

__all__ = ["describe_with_error", "refuse"]


def refuse(request: Request[Any], error: int, version: int) -> Any:
    """Return the response to `request` in this version, with `error` for everything it asks for.

    Raises: KeyError for an API that the broker does not support.
    """
    return _REFUSALS[type(request)](request, error, version)


def _api_versions(_: metadata.ApiVersionsRequest, error: int, __: int) -> object:
    return metadata.ApiVersionsResponse(error_code=error, api_keys=())


def _metadata(request: metadata.MetadataRequest, error: int, _: int) -> object:
    return metadata.MetadataResponse(
        brokers=(),
        error_code=error,
        topics=tuple(
            metadata.MetadataResponseTopic(
                error_code=error, name=t.name, topic_id=t.topic_id, partitions=()
            )
            for t in request.topics or ()
        ),
    )


def _find_coordinator(request: metadata.FindCoordinatorRequest, error: int, version: int) -> object:
    if version < 4:
        return metadata.FindCoordinatorResponse(error_code=error, node_id=-1, port=-1)
    return metadata.FindCoordinatorResponse(
        coordinators=tuple(
            metadata.Coordinator(key=key, node_id=-1, port=-1, error_code=error)
            for key in request.coordinator_keys
        )
    )


def _join(_: group.JoinGroupRequest, error: int, __: int) -> object:
    return group.JoinGroupResponse(
        error_code=error, protocol_name=None, leader="", member_id="", members=()
    )


def _sync(_: group.SyncGroupRequest, error: int, __: int) -> object:
    return group.SyncGroupResponse(error_code=error, assignment=b"")


def _heartbeat(_: group.HeartbeatRequest, error: int, __: int) -> object:
    return group.HeartbeatResponse(error_code=error)


def _leave(_: group.LeaveGroupRequest, error: int, __: int) -> object:
    return group.LeaveGroupResponse(error_code=error)


def _list_groups(_: group.ListGroupsRequest, error: int, __: int) -> object:
    return group.ListGroupsResponse(error_code=error, groups=())


def _describe_groups(request: group.DescribeGroupsRequest, error: int, _: int) -> object:
    return group.DescribeGroupsResponse(
        groups=tuple(
            group.DescribedGroup(
                error_code=error,
                group_id=group_id,
                group_state="",
                protocol_type="",
                protocol_data="",
                members=(),
            )
            for group_id in request.groups
        )
    )


def _consumer_heartbeat(
    _: consumer_heartbeat.ConsumerGroupHeartbeatRequest, error: int, __: int
) -> object:
    return consumer_heartbeat.ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0, error_code=error, member_epoch=0, heartbeat_interval_ms=0
    )


def _describe_consumer_groups(
    request: consumer_describe.ConsumerGroupDescribeRequest, error: int, _: int
) -> object:
    return consumer_describe.ConsumerGroupDescribeResponse(
        throttle_time_ms=0,
        groups=tuple(describe_with_error(group_id, error) for group_id in request.group_ids),
    )


def describe_with_error(
    group_id: str, error: int, message: str | None = None
) -> consumer_describe.DescribedGroup:
    """Return the entry of a consumer group in a description: only its id and an error."""
    return consumer_describe.DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )


def _delete_groups(request: group.DeleteGroupsRequest, error: int, _: int) -> object:
    return group.DeleteGroupsResponse(
        throttle_time_ms=0,
        results=tuple(
            group.DeletableGroupResult(group_id=group_id, error_code=error)
            for group_id in request.groups_names
        ),
    )


def _commit(request: offsets.OffsetCommitRequest, error: int, _: int) -> object:
    return offsets.OffsetCommitResponse(
        topics=tuple(
            offsets.OffsetCommitResponseTopic(
                name=t.name,
                topic_id=t.topic_id,
                partitions=tuple(
                    offsets.OffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=error
                    )
                    for p in t.partitions
                ),
            )
            for t in request.topics
        )
    )


def _offset_delete(_: offset_delete.OffsetDeleteRequest, error: int, __: int) -> object:
    return offset_delete.OffsetDeleteResponse(error_code=error, throttle_time_ms=0, topics=())


def _offset_fetch(request: offsets.OffsetFetchRequest, error: int, version: int) -> object:
    if version >= 8:
        return offsets.OffsetFetchResponse(
            groups=tuple(
                offsets.OffsetFetchResponseGroup(group_id=g.group_id, error_code=error)
                for g in request.groups
            )
        )
    if version >= 2:
        return offsets.OffsetFetchResponse(error_code=error)
    # v1 has no top-level error: each partition carries it.
    return offsets.OffsetFetchResponse(
        topics=tuple(
            offsets.OffsetFetchResponseTopic(
                name=t.name,
                partitions=tuple(
                    offsets.OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=-1, error_code=error
                    )
                    for index in t.partition_indexes
                ),
            )
            for t in request.topics or ()
        )
    )


def _list_offsets(request: offsets.ListOffsetsRequest, error: int, _: int) -> object:
    return offsets.ListOffsetsResponse(
        topics=tuple(
            offsets.ListOffsetsTopicResponse(
                name=t.name,
                partitions=tuple(
                    offsets.ListOffsetsPartitionResponse(
                        partition_index=p.partition_index, error_code=error
                    )
                    for p in t.partitions
                ),
            )
            for t in request.topics
        )
    )


def _epochs(request: offsets.OffsetForLeaderEpochRequest, error: int, _: int) -> object:
    return offsets.OffsetForLeaderEpochResponse(
        topics=tuple(
            offsets.OffsetForLeaderTopicResult(
                topic=t.topic,
                partitions=tuple(
                    offsets.EpochEndOffset(error_code=error, partition=p.partition)
                    for p in t.partitions
                ),
            )
            for t in request.topics
        )
    )


def _fetch(request: fetch.FetchRequest, error: int, _: int) -> object:
    if error in _SESSION_ERRORS:
        return fetch.FetchResponse(error_code=error, responses=())
    return fetch.FetchResponse(
        responses=tuple(
            fetch.FetchableTopicResponse(
                topic=t.topic,
                topic_id=t.topic_id,
                partitions=tuple(
                    fetch.PartitionData(
                        partition_index=p.partition,
                        error_code=error,
                        high_watermark=-1,
                        records=b"",
                    )
                    for p in t.partitions
                ),
            )
            for t in request.topics
        )
    )


def _produce(request: produce.ProduceRequest, error: int, _: int) -> object:
    return produce.ProduceResponse(
        responses=tuple(
            produce.TopicProduceResponse(
                name=t.name,
                topic_id=t.topic_id,
                partition_responses=tuple(
                    produce.PartitionProduceResponse(
                        index=p.index, error_code=error, base_offset=-1
                    )
                    for p in t.partition_data
                ),
            )
            for t in request.topic_data
        )
    )


def _init_producer_id(_: transactions.InitProducerIdRequest, error: int, __: int) -> object:
    return transactions.InitProducerIdResponse(
        throttle_time_ms=0, error_code=error, producer_epoch=-1
    )


def _add_partitions(
    request: transactions.AddPartitionsToTxnRequest, error: int, version: int
) -> object:
    def results(
        topics: tuple[transactions.AddPartitionsToTxnTopic, ...],
    ) -> tuple[transactions.AddPartitionsToTxnTopicResult, ...]:
        return tuple(
            transactions.AddPartitionsToTxnTopicResult(
                name=t.name,
                results_by_partition=tuple(
                    transactions.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=error
                    )
                    for index in t.partitions
                ),
            )
            for t in topics
        )

    if version < 4:
        return transactions.AddPartitionsToTxnResponse(
            throttle_time_ms=0,
            results_by_topic_v3_and_below=results(request.v3_and_below_topics),
        )
    return transactions.AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        results_by_transaction=tuple(
            transactions.AddPartitionsToTxnResult(
                transactional_id=one.transactional_id, topic_results=results(one.topics)
            )
            for one in request.transactions
        ),
    )


def _add_offsets(_: transactions.AddOffsetsToTxnRequest, error: int, __: int) -> object:
    return transactions.AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=error)


def _end_transaction(_: transactions.EndTxnRequest, error: int, __: int) -> object:
    return transactions.EndTxnResponse(throttle_time_ms=0, error_code=error)


def _commit_in_transaction(
    request: transactions.TxnOffsetCommitRequest, error: int, _: int
) -> object:
    return transactions.TxnOffsetCommitResponse(
        throttle_time_ms=0,
        topics=tuple(
            transactions.TxnOffsetCommitResponseTopic(
                name=t.name,
                partitions=tuple(
                    transactions.TxnOffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=error
                    )
                    for p in t.partitions
                ),
            )
            for t in request.topics
        ),
    )


def _create_topics(request: admin.CreateTopicsRequest, error: int, _: int) -> object:
    return admin.CreateTopicsResponse(
        topics=tuple(
            admin.CreatableTopicResult(name=t.name, error_code=error) for t in request.topics
        )
    )


def _delete_topics(request: admin.DeleteTopicsRequest, error: int, _: int) -> object:
    # Versions below 6 have `topic_names` instead of `topics`.
    names = (admin.DeleteTopicState(name=name) for name in request.topic_names)
    return admin.DeleteTopicsResponse(
        responses=tuple(
            admin.DeletableTopicResult(name=t.name, topic_id=t.topic_id, error_code=error)
            for t in request.topics or names
        )
    )


def _create_partitions(request: admin.CreatePartitionsRequest, error: int, _: int) -> object:
    return admin.CreatePartitionsResponse(
        throttle_time_ms=0,
        results=tuple(
            admin.CreatePartitionsTopicResult(name=t.name, error_code=error) for t in request.topics
        ),
    )


def _describe_configs(request: configs.DescribeConfigsRequest, error: int, _: int) -> object:
    return configs.DescribeConfigsResponse(
        throttle_time_ms=0,
        results=tuple(
            configs.DescribeConfigsResult(
                error_code=error,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=(),
            )
            for resource in request.resources
        ),
    )


def _describe_acls(_: acls.DescribeAclsRequest, error: int, __: int) -> object:
    return acls.DescribeAclsResponse(
        throttle_time_ms=0, error_code=error, error_message=None, resources=()
    )


def _delete_records(request: delete_records.DeleteRecordsRequest, error: int, _: int) -> object:
    return delete_records.DeleteRecordsResponse(
        throttle_time_ms=0,
        topics=tuple(
            delete_records.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    delete_records.DeleteRecordsPartitionResult(
                        partition_index=p.partition_index, low_watermark=-1, error_code=error
                    )
                    for p in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _alter_configs(request: alter_configs.AlterConfigsRequest, error: int, _: int) -> object:
    return alter_configs.AlterConfigsResponse(
        throttle_time_ms=0,
        responses=tuple(
            alter_configs.AlterConfigsResourceResponse(
                error_code=error,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ),
    )


def _alter_incrementally(
    request: incremental_alter_configs.IncrementalAlterConfigsRequest, error: int, _: int
) -> object:
    return incremental_alter_configs.IncrementalAlterConfigsResponse(
        throttle_time_ms=0,
        responses=tuple(
            incremental_alter_configs.AlterConfigsResourceResponse(
                error_code=error,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ),
    )


def _list_transactions(_: transaction_list.ListTransactionsRequest, error: int, __: int) -> object:
    return transaction_list.ListTransactionsResponse(
        throttle_time_ms=0, error_code=error, unknown_state_filters=(), transaction_states=()
    )


def _describe_transactions(
    request: transaction_admin.DescribeTransactionsRequest, error: int, _: int
) -> object:
    return transaction_admin.DescribeTransactionsResponse(
        throttle_time_ms=0,
        transaction_states=tuple(
            transaction_admin.TransactionState(
                error_code=error,
                transactional_id=transactional_id,
                transaction_state="",
                transaction_timeout_ms=0,
                transaction_start_time_ms=0,
                producer_id=0,
                producer_epoch=0,
                topics=(),
            )
            for transactional_id in request.transactional_ids
        ),
    )


def _describe_producers(
    request: transaction_admin.DescribeProducersRequest, error: int, _: int
) -> object:
    return transaction_admin.DescribeProducersResponse(
        throttle_time_ms=0,
        topics=tuple(
            transaction_admin.TopicResponse(
                name=topic.name,
                partitions=tuple(
                    transaction_admin.PartitionResponse(
                        partition_index=index, error_code=error, active_producers=()
                    )
                    for index in topic.partition_indexes
                ),
            )
            for topic in request.topics
        ),
    )


def _write_markers(request: transaction_admin.WriteTxnMarkersRequest, error: int, _: int) -> object:
    return transaction_admin.WriteTxnMarkersResponse(
        markers=tuple(
            transaction_admin.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=tuple(
                    transaction_admin.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            transaction_admin.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=error
                            )
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )


def _handshake(_: sasl.SaslHandshakeRequest, error: int, __: int) -> object:
    return sasl.SaslHandshakeResponse(error_code=error, mechanisms=())


def _authenticate(_: sasl.SaslAuthenticateRequest, error: int, __: int) -> object:
    return sasl.SaslAuthenticateResponse(error_code=error, error_message=None, auth_bytes=b"")


_SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""Top-level errors of a fetch; all others belong to its partitions."""

_REFUSALS: dict[type, Callable[[Any, int, int], Any]] = {
    acls.DescribeAclsRequest: _describe_acls,
    admin.CreatePartitionsRequest: _create_partitions,
    admin.CreateTopicsRequest: _create_topics,
    admin.DeleteTopicsRequest: _delete_topics,
    alter_configs.AlterConfigsRequest: _alter_configs,
    configs.DescribeConfigsRequest: _describe_configs,
    consumer_describe.ConsumerGroupDescribeRequest: _describe_consumer_groups,
    consumer_heartbeat.ConsumerGroupHeartbeatRequest: _consumer_heartbeat,
    delete_records.DeleteRecordsRequest: _delete_records,
    fetch.FetchRequest: _fetch,
    group.DeleteGroupsRequest: _delete_groups,
    group.DescribeGroupsRequest: _describe_groups,
    group.HeartbeatRequest: _heartbeat,
    group.JoinGroupRequest: _join,
    group.LeaveGroupRequest: _leave,
    group.ListGroupsRequest: _list_groups,
    group.SyncGroupRequest: _sync,
    incremental_alter_configs.IncrementalAlterConfigsRequest: _alter_incrementally,
    metadata.ApiVersionsRequest: _api_versions,
    metadata.FindCoordinatorRequest: _find_coordinator,
    metadata.MetadataRequest: _metadata,
    offset_delete.OffsetDeleteRequest: _offset_delete,
    offsets.ListOffsetsRequest: _list_offsets,
    offsets.OffsetCommitRequest: _commit,
    offsets.OffsetFetchRequest: _offset_fetch,
    offsets.OffsetForLeaderEpochRequest: _epochs,
    produce.ProduceRequest: _produce,
    sasl.SaslAuthenticateRequest: _authenticate,
    sasl.SaslHandshakeRequest: _handshake,
    transaction_admin.DescribeProducersRequest: _describe_producers,
    transaction_admin.DescribeTransactionsRequest: _describe_transactions,
    transaction_admin.WriteTxnMarkersRequest: _write_markers,
    transaction_list.ListTransactionsRequest: _list_transactions,
    transactions.AddOffsetsToTxnRequest: _add_offsets,
    transactions.AddPartitionsToTxnRequest: _add_partitions,
    transactions.EndTxnRequest: _end_transaction,
    transactions.InitProducerIdRequest: _init_producer_id,
    transactions.TxnOffsetCommitRequest: _commit_in_transaction,
}
"""Request class -> function of a request, an error code and a version, which returns the
response."""

"""The requests of groups, of both protocols: each goes to the coordinator that knows the group.

A group id belongs to one node, which coordinates the group, and to one of the two coordinators: the
classic one or that of consumer groups (KIP-848). Other nodes reject its requests. How a coordinator
then responds is not decided here. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.refusals import describe_with_error, refuse
from kafkagroup.wire.messages import consumer_describe
from kafkagroup.wire.messages.consumer_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)

__all__ = [
    "consumer_heartbeat",
    "delete_groups",
    "describe_consumer_groups",
    "describe_groups",
    "heartbeat",
    "join",
    "leave",
    "list_groups",
    "sync",
]


def join(
    cluster: Cluster,
    node_id: int,
    request: JoinGroupRequest,
    caller: Caller,
    reply: Callable[[Any], None],
) -> None:
    """Join a classic group. `reply` is called now, or when the rebalance completes or fails."""
    # An invalid request gets to `ClassicCoordinator.join`, which rejects it, on any node.
    is_valid = not cluster.classic_coordinator.check_join(request)
    consumer_group = cluster.consumer_coordinator.groups.get(request.group_id)
    if is_valid and not _coordinates(cluster, node_id, request.group_id):
        reply(refuse(request, ErrorCode.NOT_COORDINATOR, caller.version))
    elif is_valid and consumer_group is not None and consumer_group.members:
        # Kafka supports members of both protocols in one group; this broker does not.
        reply(refuse(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, caller.version))
    else:
        if is_valid:
            # A group without members may change its type.
            cluster.consumer_coordinator.groups.pop(request.group_id, None)
        cluster.classic_coordinator.join(request, caller, reply)


def sync(
    cluster: Cluster,
    node_id: int,
    request: SyncGroupRequest,
    caller: Caller,
    reply: Callable[[Any], None],
) -> None:
    """Sync a classic group. `reply` is called now, when the leader has sent the assignments, or
    when the next rebalance begins."""
    # An invalid request gets to `ClassicCoordinator.sync`, as in `join`.
    is_valid = not cluster.classic_coordinator.check_sync(request, caller)
    if is_valid and not _coordinates(cluster, node_id, request.group_id):
        reply(refuse(request, ErrorCode.NOT_COORDINATOR, caller.version))
    elif is_valid and request.group_id in cluster.consumer_coordinator.groups:
        reply(_refuse_classic_member(cluster, request, caller))
    else:
        cluster.classic_coordinator.sync(request, caller, reply)


def heartbeat(cluster: Cluster, node_id: int, request: HeartbeatRequest, caller: Caller) -> object:
    """Respond to the heartbeat of a member of a classic group."""
    if not _coordinates(cluster, node_id, request.group_id):
        return refuse(request, ErrorCode.NOT_COORDINATOR, caller.version)
    if request.group_id in cluster.consumer_coordinator.groups:
        return _refuse_classic_member(cluster, request, caller)
    return cluster.classic_coordinator.heartbeat(request, caller)


def leave(cluster: Cluster, node_id: int, request: LeaveGroupRequest, caller: Caller) -> object:
    """Remove members from a group of either protocol."""
    if not _coordinates(cluster, node_id, request.group_id):
        return refuse(request, ErrorCode.NOT_COORDINATOR, caller.version)
    if request.group_id in cluster.consumer_coordinator.groups:
        return cluster.consumer_coordinator.remove_members(request)
    return cluster.classic_coordinator.leave(request, caller)


def consumer_heartbeat(
    cluster: Cluster, node_id: int, request: ConsumerGroupHeartbeatRequest, caller: Caller
) -> object:
    """Respond to the heartbeat of a member of a consumer group (KIP-848)."""
    if not cluster.settings.consumer_groups:
        return refuse(request, ErrorCode.UNSUPPORTED_VERSION, caller.version)
    if not _coordinates(cluster, node_id, request.group_id):
        return refuse(request, ErrorCode.NOT_COORDINATOR, caller.version)
    classic_group = cluster.classic_coordinator.groups.get(request.group_id)
    if classic_group is not None and classic_group.members:
        return refuse(request, ErrorCode.GROUP_ID_NOT_FOUND, caller.version)
    response = cluster.consumer_coordinator.heartbeat(request, caller)
    if request.group_id in cluster.consumer_coordinator.groups:
        # The heartbeat was accepted, and the classic group, if any, had no members.
        cluster.classic_coordinator.groups.pop(request.group_id, None)
    return response


def list_groups(
    cluster: Cluster, node_id: int, request: ListGroupsRequest, caller: Caller
) -> ListGroupsResponse:
    """List the groups that this node coordinates. An empty filter means all."""
    states = {state.lower() for state in request.states_filter}
    types = {group_type.lower() for group_type in request.types_filter}
    groups = tuple(
        group
        for group in chain(
            cluster.classic_coordinator.list_groups(), cluster.consumer_coordinator.list_groups()
        )
        if cluster.coordinator_of(group.group_id) == node_id
        and (not states or group.group_state.lower() in states)
        and (not types or group.group_type in types)
    )
    return ListGroupsResponse(error_code=ErrorCode.NONE, groups=groups)


def describe_groups(
    cluster: Cluster, node_id: int, request: DescribeGroupsRequest, caller: Caller
) -> DescribeGroupsResponse:
    """Describe classic groups, each with its own error."""

    def describe_one(group_id: str) -> DescribedGroup:
        if cluster.coordinator_of(group_id) == node_id:
            return cluster.classic_coordinator.describe(group_id, caller.version)
        return DescribedGroup(
            error_code=ErrorCode.NOT_COORDINATOR,
            group_id=group_id,
            group_state="",
            protocol_type="",
            protocol_data="",
            members=(),
        )

    groups = tuple(describe_one(group_id) for group_id in request.groups)
    return DescribeGroupsResponse(groups=groups)


def describe_consumer_groups(
    cluster: Cluster, node_id: int, request: ConsumerGroupDescribeRequest, caller: Caller
) -> ConsumerGroupDescribeResponse:
    """Describe consumer groups (KIP-848), each with its own error."""
    is_enabled = cluster.settings.consumer_groups

    def describe_one(group_id: str) -> consumer_describe.DescribedGroup:
        if not is_enabled:
            return describe_with_error(group_id, ErrorCode.UNSUPPORTED_VERSION)
        if cluster.coordinator_of(group_id) == node_id:
            return cluster.consumer_coordinator.describe(group_id)
        return describe_with_error(group_id, ErrorCode.NOT_COORDINATOR)

    groups = tuple(describe_one(group_id) for group_id in request.group_ids)
    return ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=groups)


def delete_groups(
    cluster: Cluster, node_id: int, request: DeleteGroupsRequest, caller: Caller
) -> DeleteGroupsResponse:
    """Delete groups of either protocol with their offsets, each with its own error."""

    def delete_one(group_id: str) -> DeletableGroupResult:
        if cluster.coordinator_of(group_id) != node_id:
            return DeletableGroupResult(group_id=group_id, error_code=ErrorCode.NOT_COORDINATOR)
        is_consumer_group = group_id in cluster.consumer_coordinator.groups
        coordinator = (
            cluster.consumer_coordinator if is_consumer_group else cluster.classic_coordinator
        )
        result = coordinator.delete(group_id)
        if not result.error_code:
            cluster.delete_offsets(group_id)
        return result

    results = tuple(delete_one(group_id) for group_id in request.groups_names)
    return DeleteGroupsResponse(throttle_time_ms=0, results=results)


def _coordinates(cluster: Cluster, node_id: int, group_id: str) -> bool:
    """Whether this node handles the group's requests. An empty group id has no coordinator: every
    node handles its requests, and rejects them. Not used where a group with the empty id may be
    described or deleted."""
    return not group_id or cluster.coordinator_of(group_id) == node_id


def _refuse_classic_member(
    cluster: Cluster, request: SyncGroupRequest | HeartbeatRequest, caller: Caller
) -> object:
    """Return the response to a request of the classic protocol for a consumer group."""
    error = cluster.consumer_coordinator.check_classic(
        request.group_id, request.member_id, request.group_instance_id
    )
    return refuse(request, error, caller.version)

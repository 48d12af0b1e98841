"""The old forms of three requests, which could name only one group (OffsetFetch), one coordinator
key (FindCoordinator) or one member (LeaveGroup).

The rest of the library uses the newest form only. `fold` converts a request to the form of an old
version, and `unfold` converts the response back. A request that an old version cannot express is an
error.
"""

from __future__ import annotations

from typing import TypeVar, cast

from kafkagroup.errors import LocalProtocolError
from kafkagroup.wire.messages.group import LeaveGroupRequest
from kafkagroup.wire.messages.metadata import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafkagroup.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kafkagroup.wire.schema import Request

__all__ = ["fold", "unfold"]

R = TypeVar("R")
T = TypeVar("T")


def fold(request: Request[R], version: int) -> Request[R]:
    """Return the request in the form of `version`. Raises: LocalProtocolError."""
    if isinstance(request, FindCoordinatorRequest) and version < 4:
        return cast("Request[R]", _fold_find_coordinator(request))
    if isinstance(request, LeaveGroupRequest) and version < 3:
        return cast("Request[R]", _fold_leave_group(request))
    if isinstance(request, OffsetFetchRequest) and version < 8:
        return cast("Request[R]", _fold_offset_fetch(request, version))
    return request


def unfold(request: Request[R], response: R, version: int) -> R:
    """Return the response in its newest form; `request` is in its newest form, too. A response to
    LeaveGroup stays as it is: its own error code is that of the only member."""
    if isinstance(response, FindCoordinatorResponse) and version < 4:
        original = cast(FindCoordinatorRequest, request)
        return cast(R, _unfold_find_coordinator(original, response))
    if isinstance(response, OffsetFetchResponse) and version < 8:
        return cast(R, _unfold_offset_fetch(cast(OffsetFetchRequest, request), response))
    return response


def _only(items: tuple[T, ...], what: str, version: str) -> T:
    """Return the only item. `version`: the first one that allows several. Raises:
    LocalProtocolError."""
    if len(items) != 1:
        raise LocalProtocolError(f"{what} before version {version} takes one, not {len(items)}")
    return items[0]


def _fold_find_coordinator(request: FindCoordinatorRequest) -> FindCoordinatorRequest:
    key = _only(request.coordinator_keys, "FindCoordinatorRequest.coordinator_keys", "4")
    return FindCoordinatorRequest(key=key, key_type=request.key_type)


def _unfold_find_coordinator(
    request: FindCoordinatorRequest, response: FindCoordinatorResponse
) -> FindCoordinatorResponse:
    found = Coordinator(
        key=request.coordinator_keys[0],
        node_id=response.node_id,
        host=response.host,
        port=response.port,
        error_code=response.error_code,
        error_message=response.error_message,
    )
    return FindCoordinatorResponse(
        throttle_time_ms=response.throttle_time_ms, coordinators=(found,)
    )


def _fold_leave_group(request: LeaveGroupRequest) -> LeaveGroupRequest:
    member = _only(request.members, "LeaveGroupRequest.members", "3")
    if member.group_instance_id is not None:
        # Without the instance id, the request would name another member, or none.
        raise LocalProtocolError("LeaveGroupRequest before version 3 has no group_instance_id")
    return LeaveGroupRequest(group_id=request.group_id, member_id=member.member_id)


def _fold_offset_fetch(request: OffsetFetchRequest, version: int) -> OffsetFetchRequest:
    group = _only(request.groups, "OffsetFetchRequest.groups", "8")
    topics = None
    if group.topics is not None:
        topics = tuple(
            OffsetFetchRequestTopic(name=t.name, partition_indexes=t.partition_indexes)
            for t in group.topics
        )
    return OffsetFetchRequest(
        group_id=group.group_id,
        topics=topics,
        # KIP-447: brokers without version 7 return the last committed offset also while a
        # transaction has a later one pending. As in the Java client, that is accepted.
        require_stable=request.require_stable and version >= 7,
    )


def _unfold_offset_fetch(
    request: OffsetFetchRequest, response: OffsetFetchResponse
) -> OffsetFetchResponse:
    topics = tuple(
        OffsetFetchResponseTopics(
            name=t.name,
            partitions=tuple(
                OffsetFetchResponsePartitions(
                    partition_index=p.partition_index,
                    committed_offset=p.committed_offset,
                    committed_leader_epoch=p.committed_leader_epoch,
                    metadata=p.metadata,
                    error_code=p.error_code,
                )
                for p in t.partitions
            ),
        )
        for t in response.topics
    )
    group = OffsetFetchResponseGroup(
        group_id=request.groups[0].group_id, topics=topics, error_code=response.error_code
    )
    return OffsetFetchResponse(throttle_time_ms=response.throttle_time_ms, groups=(group,))

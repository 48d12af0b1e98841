"""Request bytes -> handler -> response bytes, for one node of the cluster.

Only this module defines the supported APIs and versions. A handler responds through a callable: at
once, later, or with None for a Produce with acks=0. No I/O and no clock.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from itertools import chain
from typing import Any

import attrs

from kafkagroup.errors import DecodeError, ErrorCode, UnsupportedVersionError
from kafkagroup.testing.embedded import offsets, reads, topics, writes
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.testing.embedded.refusals import refuse
from kafkagroup.wire.codec import decode_prefix, encode
from kafkagroup.wire.messages import consumer_describe
from kafkagroup.wire.messages.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kafkagroup.wire.messages.consumer_describe import ConsumerGroupDescribeRequest
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    MetadataRequest,
)
from kafkagroup.wire.messages.offset_delete import OffsetDeleteRequest
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafkagroup.wire.messages.produce import ProduceRequest
from kafkagroup.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafkagroup.wire.primitives import read_uvarint
from kafkagroup.wire.schema import Request

__all__ = ["Incoming", "handle", "read_request", "write_response"]

Reply = Callable[[Any], None]

_HEADER = struct.Struct(">hhih")
_LENGTH_AND_ID = struct.Struct(">ii")
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@attrs.frozen
class Incoming:
    """A received request."""

    request: Request[Any]
    version: int
    correlation_id: int
    client_id: str


def read_request(frame: bytes) -> Incoming:
    """Decode one request, without its length prefix.

    Raises: DecodeError; UnsupportedVersionError for an API or version that is not supported. Kafka
    closes the connection after either.
    """
    try:
        api_key, version, correlation_id, id_length = _HEADER.unpack_from(frame)
    except struct.error as error:
        raise DecodeError(f"request header: {error}") from None
    cls = _REQUESTS_BY_KEY.get(api_key)
    if cls is ApiVersionsRequest and version not in cls.versions:
        # KIP-511: a client that sends an unknown ApiVersions version gets the supported versions.
        return Incoming(ApiVersionsRequest(), version, correlation_id, "")
    if cls is None or version not in cls.versions:
        raise UnsupportedVersionError(f"api {api_key} v{version}")
    body = _HEADER.size + max(id_length, 0)
    try:
        client_id = frame[_HEADER.size : body].decode()
        if version in cls.flexible:
            body = _skip_tags(frame, body)
    except (UnicodeDecodeError, IndexError) as error:
        raise DecodeError(f"request header: {error}") from None
    # Trailing bytes are ignored, as in Kafka: librdkafka 2.x sends some after a Metadata request
    # for all topics, which would otherwise fail.
    request, _ = decode_prefix(cls, version, frame, body)
    return Incoming(request, version, correlation_id, client_id)


def _skip_tags(frame: bytes, pos: int) -> int:
    count, pos = read_uvarint(frame, pos)
    for _ in range(min(count, len(frame))):
        _, pos = read_uvarint(frame, pos)
        size, pos = read_uvarint(frame, pos)
        pos += size
    return pos


def write_response(incoming: Incoming, response: object) -> bytes:
    """Encode one response, with its length prefix."""
    version = incoming.version
    cls = type(incoming.request)
    is_api_versions = cls is ApiVersionsRequest
    if is_api_versions and version not in cls.versions:
        version = 0
    if isinstance(response, JoinGroupResponse) and version < 7 and response.protocol_name is None:
        response = evolve(response, protocol_name="")
    body = encode(response, version)
    # An ApiVersions response has no tagged fields in its header: no version is agreed on yet.
    tags = b"\0" if version in cls.flexible and not is_api_versions else b""
    size = 4 + len(tags) + len(body)
    return _LENGTH_AND_ID.pack(size, incoming.correlation_id) + tags + body


def handle(
    cluster: Cluster, node_id: int, incoming: Incoming, now: float, host: str, reply: Reply
) -> None:
    """Handle a request as node `node_id`; `reply` is called once, now or later."""
    request = incoming.request
    caller = Caller(version=incoming.version, now=now, client_id=incoming.client_id, host=host)
    _HANDLERS[type(request)](cluster, node_id, request, caller, reply)


# ---------------------------------------------------------------- handlers


def _api_versions(
    cluster: Cluster, __: int, request: ApiVersionsRequest, caller: Caller, reply: Reply
) -> None:
    if caller.version not in ApiVersionsRequest.versions:
        requested = tuple(key for key in _SUPPORTED if key.api_key == ApiVersionsRequest.api_key)
        reply(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=requested))
        return
    software = (request.client_software_name, request.client_software_version)
    if caller.version >= 3 and not all(_SOFTWARE.fullmatch(name) for name in software):
        reply(ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=()))
        return
    keys = _SUPPORTED if cluster.settings.consumer_groups else _SUPPORTED_WITHOUT_CONSUMER_GROUPS
    reply(ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=keys))


def _join(
    cluster: Cluster, node_id: int, request: JoinGroupRequest, caller: Caller, reply: Reply
) -> None:
    error = cluster.coordinator.check_join(request)
    if error or _coordinates(cluster, node_id, request, request.group_id, caller, reply):
        other_group = cluster.consumer_groups.groups.get(request.group_id)
        if other_group is not None and other_group.members:
            # Kafka supports members of both protocols in one group; this broker does not.
            reply(refuse(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, caller.version))
            return
        cluster.consumer_groups.groups.pop(request.group_id, None)
        cluster.coordinator.join(request, caller, reply)


def _consumer_heartbeat(
    cluster: Cluster,
    node_id: int,
    request: ConsumerGroupHeartbeatRequest,
    caller: Caller,
    reply: Reply,
) -> None:
    if not cluster.settings.consumer_groups:
        reply(refuse(request, ErrorCode.UNSUPPORTED_VERSION, caller.version))
    elif _coordinates(cluster, node_id, request, request.group_id, caller, reply):
        other_group = cluster.coordinator.groups.get(request.group_id)
        if other_group is not None and other_group.members:
            reply(refuse(request, ErrorCode.GROUP_ID_NOT_FOUND, caller.version))
            return
        response = cluster.consumer_groups.heartbeat(request, caller)
        if request.group_id in cluster.consumer_groups.groups:
            cluster.coordinator.groups.pop(request.group_id, None)
        reply(response)


def _sync(
    cluster: Cluster, node_id: int, request: SyncGroupRequest, caller: Caller, reply: Reply
) -> None:
    error = cluster.coordinator.check_sync(request, caller)
    if error or _coordinates(cluster, node_id, request, request.group_id, caller, reply):
        if not error and request.group_id in cluster.consumer_groups.groups:
            reply(refuse(request, _check_classic(cluster, request), caller.version))
        else:
            cluster.coordinator.sync(request, caller, reply)


def _check_classic(cluster: Cluster, request: SyncGroupRequest | HeartbeatRequest) -> ErrorCode:
    return cluster.consumer_groups.check_classic(
        request.group_id, request.member_id, request.group_instance_id
    )


def _heartbeat(
    cluster: Cluster, node_id: int, request: HeartbeatRequest, caller: Caller, reply: Reply
) -> None:
    if _coordinates(cluster, node_id, request, request.group_id, caller, reply):
        if request.group_id in cluster.consumer_groups.groups:
            reply(refuse(request, _check_classic(cluster, request), caller.version))
        else:
            reply(cluster.coordinator.heartbeat(request, caller))


def _leave(
    cluster: Cluster, node_id: int, request: LeaveGroupRequest, caller: Caller, reply: Reply
) -> None:
    if _coordinates(cluster, node_id, request, request.group_id, caller, reply):
        if request.group_id in cluster.consumer_groups.groups:
            reply(cluster.consumer_groups.remove(request))
        else:
            reply(cluster.coordinator.leave(request, caller))


def _coordinates(
    cluster: Cluster,
    node_id: int,
    request: Request[Any],
    group_id: str,
    caller: Caller,
    reply: Reply,
) -> bool:
    """Whether this node coordinates the group; if not, it has replied NOT_COORDINATOR."""
    # An empty group id has no coordinator: every node rejects it.
    if not group_id or cluster.coordinator_of(group_id) == node_id:
        return True
    reply(refuse(request, ErrorCode.NOT_COORDINATOR, caller.version))
    return False


def _list_groups(
    cluster: Cluster, node_id: int, request: ListGroupsRequest, _: Caller, reply: Reply
) -> None:
    # An empty filter means all.
    states = {state.lower() for state in request.states_filter}
    types = {group_type.lower() for group_type in request.types_filter}
    groups = tuple(
        group
        for group in chain(cluster.coordinator.list_groups(), cluster.consumer_groups.list_groups())
        if cluster.coordinator_of(group.group_id) == node_id
        and (not states or group.group_state.lower() in states)
        and (not types or group.group_type in types)
    )
    reply(ListGroupsResponse(error_code=ErrorCode.NONE, groups=groups))


def _describe_groups(
    cluster: Cluster, node_id: int, request: DescribeGroupsRequest, caller: Caller, reply: Reply
) -> None:
    def described(group_id: str) -> DescribedGroup:
        group = cluster.coordinator.describe(group_id, caller.version)
        if cluster.coordinator_of(group_id) == node_id:
            return group
        return DescribedGroup(
            error_code=ErrorCode.NOT_COORDINATOR,
            group_id=group_id,
            group_state="",
            protocol_type="",
            protocol_data="",
            members=(),
        )

    reply(DescribeGroupsResponse(groups=tuple(described(group) for group in request.groups)))


def _describe_consumer_groups(
    cluster: Cluster, node_id: int, request: ConsumerGroupDescribeRequest, _: Caller, reply: Reply
) -> None:
    def described(group_id: str) -> consumer_describe.DescribedGroup:
        group = cluster.consumer_groups.describe(group_id)
        if cluster.coordinator_of(group_id) == node_id:
            return group
        return evolve(group, error_code=ErrorCode.NOT_COORDINATOR, members=())

    groups = tuple(described(group_id) for group_id in request.group_ids)
    reply(consumer_describe.ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=groups))


def _delete_groups(
    cluster: Cluster, node_id: int, request: DeleteGroupsRequest, _: Caller, reply: Reply
) -> None:
    def deleted(group_id: str) -> DeletableGroupResult:
        if cluster.coordinator_of(group_id) != node_id:
            return DeletableGroupResult(group_id=group_id, error_code=ErrorCode.NOT_COORDINATOR)
        coordinator = (
            cluster.consumer_groups
            if group_id in cluster.consumer_groups.groups
            else cluster.coordinator
        )
        result = coordinator.delete(group_id)
        if not result.error_code:
            cluster.offsets.pop(group_id, None)
        return result

    results = tuple(deleted(group_id) for group_id in request.groups_names)
    reply(DeleteGroupsResponse(throttle_time_ms=0, results=results))


def _sasl_handshake(
    _: Cluster, __: int, request: SaslHandshakeRequest, ___: Caller, reply: Reply
) -> None:
    # The connection's `SaslAuthenticator` handles this request unless SASL is off.
    reply(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=()))


def _sasl_authenticate(
    _: Cluster, __: int, request: SaslAuthenticateRequest, ___: Caller, reply: Reply
) -> None:
    reply(
        SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication",
            auth_bytes=b"",
        )
    )


def _immediate(answer: Callable[[Cluster, int, Any, Caller], object]) -> Callable[..., None]:
    """Make a handler of a function that always returns the response at once."""

    def handler(cluster: Cluster, node_id: int, request: Any, caller: Caller, reply: Reply) -> None:
        reply(answer(cluster, node_id, request, caller))

    return handler


_HANDLERS: dict[type[Request[Any]], Callable[..., None]] = {
    ApiVersionsRequest: _api_versions,
    ConsumerGroupDescribeRequest: _describe_consumer_groups,
    ConsumerGroupHeartbeatRequest: _consumer_heartbeat,
    CreatePartitionsRequest: _immediate(
        lambda c, _, request, __: topics.add_partitions(c, request)
    ),
    CreateTopicsRequest: _immediate(lambda c, _, request, __: topics.create(c, request)),
    DeleteGroupsRequest: _delete_groups,
    DeleteTopicsRequest: _immediate(
        lambda c, _, request, caller: topics.delete(c, request, caller)
    ),
    DescribeGroupsRequest: _describe_groups,
    FetchRequest: reads.fetch,
    FindCoordinatorRequest: _immediate(
        lambda c, _, request, caller: topics.find_coordinator(c, request, caller)
    ),
    HeartbeatRequest: _heartbeat,
    JoinGroupRequest: _join,
    LeaveGroupRequest: _leave,
    ListGroupsRequest: _list_groups,
    ListOffsetsRequest: _immediate(reads.list_offsets),
    MetadataRequest: _immediate(lambda c, _, request, caller: topics.metadata(c, request, caller)),
    OffsetCommitRequest: _immediate(offsets.commit),
    OffsetDeleteRequest: _immediate(offsets.delete),
    OffsetFetchRequest: _immediate(offsets.fetch),
    OffsetForLeaderEpochRequest: _immediate(
        lambda c, node, request, _: reads.ends_of_epochs(c, node, request)
    ),
    ProduceRequest: _immediate(writes.produce),
    SaslAuthenticateRequest: _sasl_authenticate,
    SaslHandshakeRequest: _sasl_handshake,
    SyncGroupRequest: _sync,
}

_REQUESTS_BY_KEY = {cls.api_key: cls for cls in _HANDLERS}

_LOWEST: dict[type[Request[Any]], int] = {
    # Like Kafka 4, advertise Produce from version 0 on, though only 3 and later are accepted:
    # librdkafka before 2.8 would otherwise find no version that supports its compression.
    ProduceRequest: 0,
    # After SaslHandshake v0, tokens come without headers. Kafka still supports that.
    SaslHandshakeRequest: 1,
}
"""Lowest advertised versions, where they differ from the versions that can be decoded."""

_SUPPORTED = tuple(
    ApiVersion(
        api_key=cls.api_key,
        min_version=_LOWEST.get(cls, cls.versions.low),
        max_version=cls.versions.high,
    )
    for cls in sorted(_HANDLERS, key=lambda cls: cls.api_key)
)

_CONSUMER_GROUP_KEYS = (ConsumerGroupHeartbeatRequest.api_key, ConsumerGroupDescribeRequest.api_key)
_SUPPORTED_WITHOUT_CONSUMER_GROUPS = tuple(
    api for api in _SUPPORTED if api.api_key not in _CONSUMER_GROUP_KEYS
)
"""The APIs of a broker without consumer groups (KIP-848)."""

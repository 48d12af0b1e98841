"""Request bytes -> handler -> response bytes, for one node of the cluster.

Only this module defines the supported APIs and versions; most handlers are in the modules of their
kind of request. A handler responds through a callable, at once or later. No I/O and no clock.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import attrs

from kafkagroup.errors import DecodeError, ErrorCode, UnsupportedVersionError
from kafkagroup.testing.embedded import (
    config_requests,
    deletions,
    group_requests,
    offsets,
    reads,
    topics,
    transaction_admin,
    transaction_requests,
    writes,
)
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.wire.codec import decode_prefix, encode
from kafkagroup.wire.messages.acls import DescribeAclsRequest, DescribeAclsResponse
from kafkagroup.wire.messages.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kafkagroup.wire.messages.alter_configs import AlterConfigsRequest
from kafkagroup.wire.messages.configs import DescribeConfigsRequest
from kafkagroup.wire.messages.consumer_describe import ConsumerGroupDescribeRequest
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.delete_records import DeleteRecordsRequest
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kafkagroup.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    FindCoordinatorRequest,
    MetadataRequest,
    SupportedFeatureKey,
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
from kafkagroup.wire.messages.transaction_admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    WriteTxnMarkersRequest,
)
from kafkagroup.wire.messages.transaction_list import ListTransactionsRequest
from kafkagroup.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from kafkagroup.wire.primitives import read_uvarint
from kafkagroup.wire.schema import Request

__all__ = ["Incoming", "handle", "read_request", "write_response"]

Reply = Callable[[Any], None]

_HEADER = struct.Struct(">hhih")
"""API key, version, correlation id, and the length of the client id; -1 for none."""
_LENGTH_AND_ID = struct.Struct(">ii")
"""The length of a response, and its correlation id."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""A valid name or version of a client's software (KIP-511)."""


@attrs.frozen
class Incoming:
    """A received request."""

    request: Request[Any]
    version: int
    correlation_id: int
    client_id: str


def read_request(frame: bytes) -> Incoming:
    """Decode one request from its bytes after the length prefix.

    Raises: DecodeError; UnsupportedVersionError for an API or version that is not supported. Kafka
    closes the connection after either.
    """
    try:
        api_key, version, correlation_id, id_length = _HEADER.unpack_from(frame)
    except struct.error as error:
        raise DecodeError(f"request header: {error}") from None
    cls = _REQUESTS_BY_KEY.get(api_key)
    if cls is ApiVersionsRequest and version not in cls.versions:
        # KIP-511: a client that sends an unknown version of ApiVersions gets the supported ones.
        return Incoming(ApiVersionsRequest(), version, correlation_id, "")
    if cls is None or version not in cls.versions:
        raise UnsupportedVersionError(f"api {api_key} v{version}")
    body = _HEADER.size + max(id_length, 0)
    try:
        client_id = frame[_HEADER.size : body].decode()
        if version in cls.flexible:
            body = _skip_tags(frame, body)
    except UnicodeDecodeError as error:
        raise DecodeError(f"request header: {error}") from None
    # Trailing bytes are ignored, as in Kafka: librdkafka 2.x sends some after a Metadata request
    # for all topics, which would otherwise fail.
    request, _ = decode_prefix(cls, version, frame, body)
    return Incoming(request, version, correlation_id, client_id)


def _skip_tags(frame: bytes, pos: int) -> int:
    count, pos = read_uvarint(frame, pos)
    for _ in range(count):
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
        # KIP-511: version 0 of the response is the one that every client can read.
        version = 0
    if isinstance(response, JoinGroupResponse) and version < 7 and response.protocol_name is None:
        # The field is nullable only since version 7.
        response = evolve(response, protocol_name="")
    body = encode(response, version)
    # An ApiVersions response has no tagged fields in its header: no version is agreed on yet.
    tags = b"\0" if version in cls.flexible and not is_api_versions else b""
    size = 4 + len(tags) + len(body)
    return _LENGTH_AND_ID.pack(size, incoming.correlation_id) + tags + body


def handle(
    cluster: Cluster, node_id: int, incoming: Incoming, now: float, host: str, reply: Reply
) -> None:
    """Handle a request as node `node_id`. `reply` is called at most once, now or later. As in
    Kafka, a pending JoinGroup or SyncGroup gets no response if its member sends another one, nor
    does a pending SyncGroup whose member leaves."""
    request = incoming.request
    caller = Caller(version=incoming.version, now=now, client_id=incoming.client_id, host=host)
    _HANDLERS[type(request)](cluster, node_id, request, caller, reply)


# ---------------------------------------------------------------- handlers


def _api_versions(
    cluster: Cluster, node_id: int, request: ApiVersionsRequest, caller: Caller
) -> ApiVersionsResponse:
    if caller.version not in ApiVersionsRequest.versions:
        own = tuple(api for api in _SUPPORTED if api.api_key == ApiVersionsRequest.api_key)
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)
    software = (request.client_software_name, request.client_software_version)
    if caller.version >= 3 and not all(_SOFTWARE.fullmatch(name) for name in software):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
    keys = _SUPPORTED if cluster.settings.consumer_groups else _SUPPORTED_WITHOUT_CONSUMER_GROUPS
    # Name -> the highest supported level, and the finalized one.
    features = {
        "group.version": (1, int(cluster.settings.consumer_groups)),
        "transaction.version": (2, cluster.transaction_version),
    }
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=keys,
        supported_features=tuple(
            SupportedFeatureKey(name=name, min_version=0, max_version=highest)
            for name, (highest, _) in features.items()
            # Clients that send an earlier version cannot handle a lowest level of 0.
            if caller.version >= 4
        ),
        # Only this feature changes while the cluster runs.
        finalized_features_epoch=cluster.transaction_version_changes,
        # A feature of level 0 is not listed.
        finalized_features=tuple(
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, (_, level) in features.items()
            if level
        ),
    )


# These two requests get here only if SASL is off, or the client is authenticated and does not renew
# its session: otherwise the connection's `SaslAuthenticator` responds to them.


def _sasl_handshake(
    cluster: Cluster, node_id: int, request: SaslHandshakeRequest, caller: Caller
) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=())


def _sasl_authenticate(
    cluster: Cluster, node_id: int, request: SaslAuthenticateRequest, caller: Caller
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )


def _describe_acls(
    cluster: Cluster, node_id: int, request: DescribeAclsRequest, caller: Caller
) -> DescribeAclsResponse:
    """Return no ACLs, like a broker whose authorizer has none and allows everything."""
    return DescribeAclsResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None, resources=()
    )


def _immediate(respond: Callable[[Cluster, int, Any, Caller], object]) -> Callable[..., None]:
    """Make a handler of a function that returns the response."""

    def handler(cluster: Cluster, node_id: int, request: Any, caller: Caller, reply: Reply) -> None:
        reply(respond(cluster, node_id, request, caller))

    return handler


_HANDLERS: dict[type[Request[Any]], Callable[..., None]] = {
    AddOffsetsToTxnRequest: _immediate(transaction_requests.add_offsets),
    AddPartitionsToTxnRequest: _immediate(transaction_requests.add_partitions),
    AlterConfigsRequest: _immediate(config_requests.alter),
    ApiVersionsRequest: _immediate(_api_versions),
    ConsumerGroupDescribeRequest: _immediate(group_requests.describe_consumer_groups),
    ConsumerGroupHeartbeatRequest: _immediate(group_requests.consumer_heartbeat),
    CreatePartitionsRequest: _immediate(
        lambda cluster, node_id, request, caller: topics.add_partitions(cluster, request)
    ),
    CreateTopicsRequest: _immediate(
        lambda cluster, node_id, request, caller: topics.create(cluster, request)
    ),
    DeleteGroupsRequest: _immediate(group_requests.delete_groups),
    DeleteRecordsRequest: _immediate(deletions.delete_records),
    DeleteTopicsRequest: _immediate(
        lambda cluster, node_id, request, caller: topics.delete(cluster, request, caller)
    ),
    DescribeAclsRequest: _immediate(_describe_acls),
    DescribeConfigsRequest: _immediate(config_requests.describe),
    DescribeGroupsRequest: _immediate(group_requests.describe_groups),
    DescribeProducersRequest: _immediate(
        lambda cluster, node_id, request, caller: transaction_admin.describe_producers(
            cluster, node_id, request
        )
    ),
    DescribeTransactionsRequest: _immediate(transaction_admin.describe_transactions),
    EndTxnRequest: _immediate(transaction_requests.end),
    FetchRequest: reads.fetch,
    FindCoordinatorRequest: _immediate(
        lambda cluster, node_id, request, caller: topics.find_coordinator(cluster, request, caller)
    ),
    HeartbeatRequest: _immediate(group_requests.heartbeat),
    IncrementalAlterConfigsRequest: _immediate(config_requests.alter_incrementally),
    InitProducerIdRequest: _immediate(transaction_requests.init_producer_id),
    JoinGroupRequest: group_requests.join,
    LeaveGroupRequest: _immediate(group_requests.leave),
    ListGroupsRequest: _immediate(group_requests.list_groups),
    ListOffsetsRequest: _immediate(reads.list_offsets),
    ListTransactionsRequest: _immediate(transaction_admin.list_transactions),
    MetadataRequest: _immediate(
        lambda cluster, node_id, request, caller: topics.metadata(cluster, request, caller)
    ),
    OffsetCommitRequest: _immediate(offsets.commit),
    OffsetDeleteRequest: _immediate(offsets.delete),
    OffsetFetchRequest: _immediate(offsets.fetch),
    OffsetForLeaderEpochRequest: _immediate(
        lambda cluster, node_id, request, caller: reads.ends_of_epochs(cluster, node_id, request)
    ),
    ProduceRequest: _immediate(writes.produce),
    SaslAuthenticateRequest: _immediate(_sasl_authenticate),
    SaslHandshakeRequest: _immediate(_sasl_handshake),
    SyncGroupRequest: group_requests.sync,
    TxnOffsetCommitRequest: _immediate(transaction_requests.commit_offsets),
    WriteTxnMarkersRequest: _immediate(
        lambda cluster, node_id, request, caller: transaction_admin.write_markers(
            cluster, node_id, request, caller.now
        )
    ),
}

_REQUESTS_BY_KEY = {cls.api_key: cls for cls in _HANDLERS}

_LOWEST: dict[type[Request[Any]], int] = {
    # Like Kafka 4, advertise Produce from version 0 on, though only 3 and later are accepted:
    # librdkafka before 2.8 would otherwise find no version that supports its compression.
    ProduceRequest: 0,
    # After SaslHandshake v0, tokens come without request headers. Kafka supports that, this broker
    # does not.
    SaslHandshakeRequest: 1,
}
"""Lowest advertised versions, where they differ from the versions that can be decoded."""

_HIGHEST: dict[type[Request[Any]], int] = {
    # Version 6 is not stable in Kafka 4.3: it belongs to two-phase commits.
    InitProducerIdRequest: 5,
}
"""Highest advertised versions, where they differ from the versions that can be decoded."""

_SUPPORTED = tuple(
    ApiVersion(
        api_key=cls.api_key,
        min_version=_LOWEST.get(cls, cls.versions.low),
        max_version=_HIGHEST.get(cls, cls.versions.high),
    )
    for cls in sorted(_HANDLERS, key=lambda cls: cls.api_key)
)

_CONSUMER_GROUP_KEYS = (ConsumerGroupHeartbeatRequest.api_key, ConsumerGroupDescribeRequest.api_key)
_SUPPORTED_WITHOUT_CONSUMER_GROUPS = tuple(
    api for api in _SUPPORTED if api.api_key not in _CONSUMER_GROUP_KEYS
)
"""The APIs of a broker without consumer groups (KIP-848)."""

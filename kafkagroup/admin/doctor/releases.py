"""Estimates a broker's release from its ApiVersions response. Pure.

Brokers do not report their release, only the versions of the requests that they support.
"""

from __future__ import annotations

from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.metadata import (
    ApiVersionsResponse,
    FindCoordinatorRequest,
    MetadataRequest,
)
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kafkagroup.wire.messages.produce import ProduceRequest

__all__ = ["lacking", "release"]

_NEEDED = (
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    JoinGroupRequest,
    SyncGroupRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    ProduceRequest,
)
"""The requests that consumers, producers and the administration of groups need."""

_RELEASES = (
    (18, "Kafka 4.1 or later"),
    (17, "Kafka 3.9 or 4.0"),
    (16, "Kafka 3.7 or 3.8"),
    (14, "Kafka 3.5 or 3.6"),
    (13, "Kafka 3.1 to 3.4"),
    (12, "Kafka 2.7 to 3.0"),
    (11, "Kafka 2.3 to 2.6"),
    (0, "Kafka 2.2 or older"),
)
"""A version of Fetch, and the releases whose highest version of Fetch is this or a later one, but
below that of the line above: the newest releases come first."""


def lacking(response: ApiVersionsResponse) -> list[str]:
    """Return the requests for which the broker and this library have no version in common."""
    ranges = {one.api_key: one for one in response.api_keys}
    return [
        request.__name__.removesuffix("Request")
        for request in _NEEDED
        if (one := ranges.get(request.api_key)) is None
        or one.max_version < request.versions.low
        or one.min_version > request.versions.high
    ]


def release(response: ApiVersionsResponse) -> str:
    """Describe the approximate release with these versions, and whether it has KIP-848 groups."""
    highest = {one.api_key: one.max_version for one in response.api_keys}
    fetch = highest.get(FetchRequest.api_key, -1)
    name = next((name for least, name in _RELEASES if fetch >= least), "an unknown release")
    has = "with" if ConsumerGroupHeartbeatRequest.api_key in highest else "without"
    return f"as of {name}, {has} groups of KIP-848"

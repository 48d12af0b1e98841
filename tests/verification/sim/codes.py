"""The errors that brokers return in the simulation, by request."""

from __future__ import annotations

__all__ = ["CODES", "CONSUMER_CODES", "HEARTBEATS", "LEGAL", "LEGAL_OF_CONSUMERS", "legal_codes"]

_MOVED = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")

CODES: dict[str, tuple[str, ...]] = {
    "ApiVersions": ("UNSUPPORTED_VERSION", "UNKNOWN_SERVER_ERROR"),
    "Metadata": ("LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PARTITION", "REQUEST_TIMED_OUT"),
    "FindCoordinator": ("COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"),
    "JoinGroup": (
        *_MOVED,
        "UNKNOWN_MEMBER_ID",
        "REBALANCE_IN_PROGRESS",
        "GROUP_MAX_SIZE_REACHED",
        "INCONSISTENT_GROUP_PROTOCOL",
        "UNKNOWN_SERVER_ERROR",
    ),
    "SyncGroup": (
        *_MOVED,
        "UNKNOWN_MEMBER_ID",
        "ILLEGAL_GENERATION",
        "REBALANCE_IN_PROGRESS",
        "UNKNOWN_SERVER_ERROR",
    ),
    "Heartbeat": (*_MOVED, "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"),
    "LeaveGroup": (*_MOVED, "UNKNOWN_MEMBER_ID"),
    "OffsetCommit": (
        *_MOVED,
        "UNKNOWN_MEMBER_ID",
        "ILLEGAL_GENERATION",
        "REBALANCE_IN_PROGRESS",
        "REQUEST_TIMED_OUT",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "OFFSET_METADATA_TOO_LARGE",
        "INVALID_COMMIT_OFFSET_SIZE",
        "UNKNOWN_SERVER_ERROR",
    ),
    "OffsetFetch": (*_MOVED, "UNSTABLE_OFFSET_COMMIT", "UNKNOWN_SERVER_ERROR"),
    "ListOffsets": (
        "NOT_LEADER_OR_FOLLOWER",
        "LEADER_NOT_AVAILABLE",
        "OFFSET_NOT_AVAILABLE",
        "UNKNOWN_LEADER_EPOCH",
        "FENCED_LEADER_EPOCH",
        "KAFKA_STORAGE_ERROR",
    ),
    "OffsetForLeaderEpoch": (
        "NOT_LEADER_OR_FOLLOWER",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
    ),
    "Fetch": (
        "NOT_LEADER_OR_FOLLOWER",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "OFFSET_NOT_AVAILABLE",
        "KAFKA_STORAGE_ERROR",
        "REPLICA_NOT_AVAILABLE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_ID",
        "INCONSISTENT_TOPIC_ID",
        "FETCH_SESSION_ID_NOT_FOUND",
        "INVALID_FETCH_SESSION_EPOCH",
        "UNKNOWN_SERVER_ERROR",
    ),
}
"""Errors that a broker with problems, or one that is about to reject the client, may return.

They come several times in a row. `LEGAL` has all others, each of which comes once.
"""

HEARTBEATS = "ConsumerGroupHeartbeat"
CONSUMER_CODES: dict[str, tuple[str, ...]] = {
    HEARTBEATS: (
        *_MOVED,
        "UNKNOWN_MEMBER_ID",
        "FENCED_MEMBER_EPOCH",
        "FENCED_MEMBER_EPOCH",
        "REQUEST_TIMED_OUT",
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_MAX_SIZE_REACHED",
        "UNKNOWN_SERVER_ERROR",
    ),
    "OffsetCommit": (
        *_MOVED,
        "UNKNOWN_MEMBER_ID",
        "STALE_MEMBER_EPOCH",
        "STALE_MEMBER_EPOCH",
        "GROUP_ID_NOT_FOUND",
        "REQUEST_TIMED_OUT",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "OFFSET_METADATA_TOO_LARGE",
        "INVALID_COMMIT_OFFSET_SIZE",
        "UNKNOWN_SERVER_ERROR",
    ),
}
"""Errors that a KIP-848 member may get, in addition to or instead of those in `CODES`."""


_COORDINATORS = (*_MOVED, "GROUP_AUTHORIZATION_FAILED", "INVALID_GROUP_ID", "UNKNOWN_SERVER_ERROR")

_OF_A_LEADER = (
    "TOPIC_AUTHORIZATION_FAILED",
    "REPLICA_NOT_AVAILABLE",
    "NOT_LEADER_OR_FOLLOWER",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "KAFKA_STORAGE_ERROR",
    "LEADER_NOT_AVAILABLE",
    "OFFSET_NOT_AVAILABLE",
)

LEGAL: dict[str, tuple[str, ...]] = {
    "Metadata": (
        "UNKNOWN_TOPIC_OR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "REPLICA_NOT_AVAILABLE",
        "INVALID_TOPIC_EXCEPTION",
        "TOPIC_AUTHORIZATION_FAILED",
        "UNKNOWN_TOPIC_ID",
        "LISTENER_NOT_FOUND",
        "REQUEST_TIMED_OUT",
        "UNKNOWN_SERVER_ERROR",
        "REBOOTSTRAP_REQUIRED",
    ),
    "FindCoordinator": (
        "COORDINATOR_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "GROUP_AUTHORIZATION_FAILED",
        "INVALID_GROUP_ID",
        "INVALID_REQUEST",
        "UNKNOWN_SERVER_ERROR",
    ),
    "JoinGroup": (
        *_COORDINATORS,
        "UNKNOWN_MEMBER_ID",
        "REBALANCE_IN_PROGRESS",
        "INCONSISTENT_GROUP_PROTOCOL",
        "INVALID_SESSION_TIMEOUT",
        "GROUP_MAX_SIZE_REACHED",
        "FENCED_INSTANCE_ID",
        "UNSUPPORTED_VERSION",
    ),
    "SyncGroup": (
        *_COORDINATORS,
        "UNKNOWN_MEMBER_ID",
        "ILLEGAL_GENERATION",
        "REBALANCE_IN_PROGRESS",
        "INCONSISTENT_GROUP_PROTOCOL",
        "FENCED_INSTANCE_ID",
    ),
    "Heartbeat": (
        *_COORDINATORS,
        "UNKNOWN_MEMBER_ID",
        "ILLEGAL_GENERATION",
        "REBALANCE_IN_PROGRESS",
        "FENCED_INSTANCE_ID",
    ),
    "LeaveGroup": (*_COORDINATORS, "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"),
    "OffsetCommit": (
        *_COORDINATORS,
        "UNKNOWN_TOPIC_OR_PARTITION",
        "TOPIC_AUTHORIZATION_FAILED",
        "OFFSET_METADATA_TOO_LARGE",
        "INVALID_COMMIT_OFFSET_SIZE",
        "ILLEGAL_GENERATION",
        "UNKNOWN_MEMBER_ID",
        "REBALANCE_IN_PROGRESS",
        "FENCED_INSTANCE_ID",
        "REQUEST_TIMED_OUT",
        "UNKNOWN_TOPIC_ID",
    ),
    "OffsetFetch": (
        *_COORDINATORS,
        "UNKNOWN_TOPIC_OR_PARTITION",
        "TOPIC_AUTHORIZATION_FAILED",
        "UNSTABLE_OFFSET_COMMIT",
        "UNKNOWN_TOPIC_ID",
    ),
    "ListOffsets": (
        *_OF_A_LEADER,
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "REQUEST_TIMED_OUT",
        "UNKNOWN_SERVER_ERROR",
    ),
    "OffsetForLeaderEpoch": (
        *_OF_A_LEADER,
        "UNKNOWN_SERVER_ERROR",
    ),
    "Fetch": (
        "OFFSET_OUT_OF_RANGE",
        "TOPIC_AUTHORIZATION_FAILED",
        "REPLICA_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "KAFKA_STORAGE_ERROR",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "CORRUPT_MESSAGE",
        "UNKNOWN_TOPIC_ID",
        "INCONSISTENT_TOPIC_ID",
        "FETCH_SESSION_ID_NOT_FOUND",
        "INVALID_FETCH_SESSION_EPOCH",
        "FETCH_SESSION_TOPIC_ID_ERROR",
        "OFFSET_NOT_AVAILABLE",
        "OFFSET_MOVED_TO_TIERED_STORAGE",
        "REQUEST_TIMED_OUT",
        "UNKNOWN_SERVER_ERROR",
    ),
}
"""Every error that Kafka's brokers may return to a client whose requests are correct, whether or
not it is true now. MEMBER_ID_REQUIRED is missing: the embedded broker returns it, with the id."""

LEGAL_OF_CONSUMERS: dict[str, tuple[str, ...]] = {
    **{
        api: codes
        for api, codes in LEGAL.items()
        if api not in ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup")
    },
    HEARTBEATS: (
        *_COORDINATORS,
        "INVALID_REQUEST",
        "UNKNOWN_MEMBER_ID",
        "FENCED_MEMBER_EPOCH",
        "UNSUPPORTED_ASSIGNOR",
        "UNRELEASED_INSTANCE_ID",
        "FENCED_INSTANCE_ID",
        "GROUP_MAX_SIZE_REACHED",
        "INVALID_REGULAR_EXPRESSION",
        "TOPIC_AUTHORIZATION_FAILED",
        "REQUEST_TIMED_OUT",
        "UNSUPPORTED_VERSION",
    ),
    "OffsetCommit": (*LEGAL["OffsetCommit"], "STALE_MEMBER_EPOCH", "GROUP_ID_NOT_FOUND"),
    "OffsetFetch": (*LEGAL["OffsetFetch"], "STALE_MEMBER_EPOCH", "GROUP_ID_NOT_FOUND"),
}
"""The same for KIP-848 members."""


def legal_codes(protocol: str) -> tuple[tuple[str, str], ...]:
    """Return each request and error that members of this protocol may meet."""
    table = LEGAL_OF_CONSUMERS if protocol == "consumer" else LEGAL
    return tuple((api, code) for api, codes in table.items() for code in codes)

"""What a client does when a broker responds with an error: tables of error codes by request.

`BrokerError.retriable` in `errors` tells whether a code is retriable in general. The tables here
are for the requests that treat some codes otherwise.
"""

from __future__ import annotations

from enum import Enum

from kafkagroup.errors import ErrorCode

__all__ = [
    "ABSENT",
    "ADD_OFFSETS_ACTIONS",
    "ADD_PARTITIONS_ACTIONS",
    "BEING_CREATED",
    "COORDINATOR_AWAITS_MARKERS",
    "COORDINATOR_MOVED",
    "ENDED_FETCH_SESSION",
    "END_TXN_ACTIONS",
    "FAILED_RECORD_ACTIONS",
    "FENCED",
    "FENCED_COMMITS",
    "FETCH_ACTIONS",
    "FINAL",
    "FINAL_IN_TOPIC_ADMIN",
    "INIT_PRODUCER_ID_ACTIONS",
    "MAY_HAVE_JOINED",
    "MEMBERSHIP_LOST",
    "NOT_A_MEMBER",
    "NO_SUCH_GROUP",
    "PRODUCE_ACTIONS",
    "PRODUCE_AWAITS_MARKERS",
    "PROTOCOL_UNAVAILABLE",
    "REFUSED_TOPIC",
    "REFUSED_TOPIC_ID",
    "RETRIED_COMMITS",
    "RETRIED_LOOK_UPS",
    "TXN_OFFSET_COMMIT_ACTIONS",
    "UNKNOWN_MEMBER",
    "FetchAction",
    "ProduceAction",
    "TransactionAction",
    "fetch_action",
    "is_unknown",
    "produce_action",
]

Codes = frozenset[int]

# ------------------------------------------------------------ Metadata

ABSENT: Codes = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID))
"""The broker does not know the topic."""

FINAL_IN_TOPIC_ADMIN: Codes = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
"""Not retried in requests of an administrator, who wants to know that the topic does not exist. A
consumer waits for the topic to be created."""

BEING_CREATED: Codes = frozenset(
    (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
)
"""The codes of a topic in the response to a Metadata request that creates the topic: the response
may report that it does not exist yet."""

REFUSED_TOPIC: Codes = frozenset(
    (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION)
)
"""The broker refuses to describe the topic. The error is applied to the metadata at once; the known
partitions stay until the next response confirms the error."""

# ------------------------------------------------------------ Fetch, ListOffsets,
#                                                              OffsetForLeaderEpoch


class FetchAction(Enum):
    """The reaction to a partition's error in a response to Fetch, ListOffsets or
    OffsetForLeaderEpoch."""

    RETRY = "retry"
    """Ask the same broker again, after a backoff."""
    REFRESH = "refresh"
    """Metadata is stale: refresh it, then ask the leader that it names."""
    RESET = "reset"
    """This broker reports that the position is not in the log: ask the leader where the log starts
    and ends, and apply `auto_offset_reset` if the position is outside."""
    RAISE = "raise"
    """The broker refuses: raise the error to the application, and ask again after a backoff. The
    cause may end without a change in the application, so the error never ends the fetching."""


FETCH_ACTIONS: dict[int, FetchAction] = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: FetchAction.REFRESH,
    ErrorCode.REPLICA_NOT_AVAILABLE: FetchAction.REFRESH,
    ErrorCode.KAFKA_STORAGE_ERROR: FetchAction.REFRESH,
    ErrorCode.FENCED_LEADER_EPOCH: FetchAction.REFRESH,
    ErrorCode.UNKNOWN_LEADER_EPOCH: FetchAction.REFRESH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: FetchAction.REFRESH,
    ErrorCode.UNKNOWN_TOPIC_ID: FetchAction.REFRESH,
    ErrorCode.INCONSISTENT_TOPIC_ID: FetchAction.REFRESH,
    ErrorCode.LEADER_NOT_AVAILABLE: FetchAction.REFRESH,
    ErrorCode.OFFSET_NOT_AVAILABLE: FetchAction.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: FetchAction.RETRY,
    ErrorCode.UNKNOWN_SERVER_ERROR: FetchAction.RETRY,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: FetchAction.RETRY,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: FetchAction.RETRY,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: FetchAction.RETRY,
    ErrorCode.OFFSET_OUT_OF_RANGE: FetchAction.RESET,
    ErrorCode.CORRUPT_MESSAGE: FetchAction.RAISE,
    ErrorCode.INVALID_FETCH_SIZE: FetchAction.RAISE,
    ErrorCode.MESSAGE_TOO_LARGE: FetchAction.RAISE,
    ErrorCode.INVALID_TOPIC_EXCEPTION: FetchAction.RAISE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: FetchAction.RAISE,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: FetchAction.RAISE,
    ErrorCode.UNSUPPORTED_VERSION: FetchAction.RAISE,
    ErrorCode.INVALID_REQUEST: FetchAction.RAISE,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: FetchAction.RAISE,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: FetchAction.RAISE,
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: FetchAction.RAISE,
}
"""The codes that a broker may legally send for a partition in a response to Fetch, ListOffsets or
OffsetForLeaderEpoch, or for a Fetch as a whole."""


def fetch_action(code: int) -> FetchAction:
    """Return the action for an error code; RAISE for a code that is not in the table, such as one
    of a newer broker."""
    return FETCH_ACTIONS.get(code, FetchAction.RAISE)


REFUSED_TOPIC_ID: Codes = frozenset((ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID))
"""If a leader that has served this topic id responds to a Fetch with one of these, the topic was
deleted, or recreated."""

ENDED_FETCH_SESSION: Codes = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)
"""Codes of a Fetch response as a whole: the next Fetch begins a new session (KIP-227)."""

# ------------------------------------------------------------ every request that changes something

_KNOWN_CODES: Codes = frozenset(ErrorCode)


def is_unknown(code: int) -> bool:
    """Return whether the code is that of a broker that is newer than this library: the request may
    have been executed all the same."""
    return code not in _KNOWN_CODES


# ------------------------------------------------------------ Produce


class ProduceAction(Enum):
    """The reaction to a partition's error in a response to Produce. For OUT_OF_ORDER, DUPLICATE,
    NEW_EPOCH and NEW_ID the reaction depends on the batch: see `Attempts._on_refused`."""

    REFRESH = "refresh"
    """Retry, with new metadata. The records may be in the log: a leader that loses its role while
    it waits for its followers responds with the same code."""
    RETRY_UNKNOWN = "retry unknown"
    """Retry. The records may be in the log."""
    RETRY = "retry"
    """Retry. This attempt has not written the records."""
    OUT_OF_ORDER = "out of order"
    """The leader expected another sequence number."""
    DUPLICATE = "duplicate"
    """The leader has the records already. Older brokers do not say at which offset."""
    NEW_EPOCH = "new epoch"
    """The leader accepts no more sequence numbers of this epoch; the records were not written."""
    NEW_ID = "new id"
    """The leader accepts no sequence numbers of this producer id; the records were not written."""
    SPLIT = "split"
    """The batch is too large."""
    FAIL = "fail"
    """The leader refuses the batch, and a retry would not help; the records were not written."""
    FAIL_UNKNOWN = "fail unknown"
    """The code is that of a newer broker: whether a retry would help is not known, and the records
    may be in the log."""


PRODUCE_ACTIONS: dict[int, ProduceAction] = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ProduceAction.REFRESH,
    ErrorCode.LEADER_NOT_AVAILABLE: ProduceAction.REFRESH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ProduceAction.REFRESH,
    ErrorCode.UNKNOWN_TOPIC_ID: ProduceAction.REFRESH,
    ErrorCode.INCONSISTENT_TOPIC_ID: ProduceAction.REFRESH,
    ErrorCode.REPLICA_NOT_AVAILABLE: ProduceAction.REFRESH,
    ErrorCode.FENCED_LEADER_EPOCH: ProduceAction.REFRESH,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ProduceAction.REFRESH,
    ErrorCode.KAFKA_STORAGE_ERROR: ProduceAction.REFRESH,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ProduceAction.RETRY_UNKNOWN,
    ErrorCode.REQUEST_TIMED_OUT: ProduceAction.RETRY_UNKNOWN,
    ErrorCode.UNKNOWN_SERVER_ERROR: ProduceAction.RETRY_UNKNOWN,
    ErrorCode.NETWORK_EXCEPTION: ProduceAction.RETRY_UNKNOWN,
    ErrorCode.NOT_ENOUGH_REPLICAS: ProduceAction.RETRY,
    ErrorCode.CORRUPT_MESSAGE: ProduceAction.RETRY,  # damaged on the way: it was valid here
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: ProduceAction.RETRY,
    ErrorCode.CONCURRENT_TRANSACTIONS: ProduceAction.RETRY,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ProduceAction.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ProduceAction.RETRY,
    ErrorCode.NOT_COORDINATOR: ProduceAction.RETRY,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: ProduceAction.OUT_OF_ORDER,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: ProduceAction.DUPLICATE,
    ErrorCode.UNKNOWN_PRODUCER_ID: ProduceAction.NEW_EPOCH,
    ErrorCode.INVALID_PRODUCER_EPOCH: ProduceAction.NEW_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ProduceAction.NEW_ID,
    ErrorCode.MESSAGE_TOO_LARGE: ProduceAction.SPLIT,
    ErrorCode.RECORD_LIST_TOO_LARGE: ProduceAction.SPLIT,
}
"""Every known code that is not here is FAIL. `FAILED_RECORD_ACTIONS` says what a failed record
means for a transaction."""


def produce_action(code: int) -> ProduceAction:
    """Return the action for an error code."""
    if (action := PRODUCE_ACTIONS.get(code)) is not None:
        return action
    return ProduceAction.FAIL_UNKNOWN if is_unknown(code) else ProduceAction.FAIL


# ------------------------------------------------------------ every request to a coordinator

COORDINATOR_MOVED: Codes = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)
"""The broker is not the coordinator, or does not respond as one: the client looks the coordinator
up again."""

NO_SUCH_GROUP: Codes = frozenset((ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION))
"""In the response to a request that describes one type of group: the group is of another type, or
the coordinator does not know the type."""

# ------------------------------------------------------------ JoinGroup, SyncGroup, Heartbeat,
#                                                              LeaveGroup, ConsumerGroupHeartbeat

FINAL: Codes = frozenset(
    (
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
    )
)
"""End a membership without another attempt to join, except where PROTOCOL_UNAVAILABLE applies: the
cause is a value that the application gave, or another member, and would be the same at the next
attempt."""

UNKNOWN_MEMBER: Codes = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND))
"""The coordinator does not know the member, or its group."""

MEMBERSHIP_LOST: Codes = UNKNOWN_MEMBER | {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
}
"""In the response to a ConsumerGroupHeartbeat: the membership has ended. The coordinator has
removed the member, or has never known it, or has it in another epoch. (STALE_MEMBER_EPOCH in the
response to a commit or a look-up does not end it: the next heartbeat returns the new epoch.)"""

FENCED: Codes = MEMBERSHIP_LOST | {ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID}
"""The codes of both group protocols by which the coordinator reports that the member is no longer
in the group, or not in this generation or epoch."""

NOT_A_MEMBER: Codes = UNKNOWN_MEMBER | {ErrorCode.NONE, ErrorCode.FENCED_INSTANCE_ID}
"""In the response to a request to leave: the member has left, was removed before, or was replaced
by another process with the same `group_instance_id`."""

MAY_HAVE_JOINED: Codes = frozenset(
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT)
)
"""In the response to a join of KIP-848: the join may succeed nevertheless, because the coordinator
may still be waiting for the replication of its record."""

PROTOCOL_UNAVAILABLE: Codes = frozenset(
    (
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
    )
)
"""In the response to a join of KIP-848: the broker has disabled this protocol, cannot upgrade the
classic group, or cannot match the pattern, which Python can. The member falls back to the classic
protocol when the next join repeats such a code. If a member fell back at once, and the others did
not, it could turn an empty group into a classic one, which locks the others out."""

# ------------------------------------------------------------ OffsetCommit, OffsetFetch

RETRIED_COMMITS: Codes = COORDINATOR_MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,  # OffsetFetch only, for RETRIED_LOOK_UPS
    ErrorCode.STALE_MEMBER_EPOCH,  # the next heartbeat returns the new epoch
}
"""With these codes a commit is retried until the caller's timeout. For an unknown topic it is
retried a few times only."""

RETRIED_LOOK_UPS: Codes = RETRIED_COMMITS | UNKNOWN_MEMBER | {ErrorCode.FENCED_MEMBER_EPOCH}
"""With these codes an OffsetFetch is retried; for an unknown topic a few times only. The codes
about the member are among them because a heartbeat will return the new epoch, or report that the
member lost its partitions."""

FENCED_COMMITS: Codes = UNKNOWN_MEMBER | {
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_MEMBER_EPOCH,
}
"""In the response to a commit: the commit fails, as the partitions may have another owner.
GROUP_ID_NOT_FOUND, from version 9 on, means that the member's group no longer exists."""

# ------------------------------------------------------------ InitProducerId, AddPartitionsToTxn,
#                                                              AddOffsetsToTxn, TxnOffsetCommit,
#                                                              EndTxn; Produce in a transaction


class TransactionAction(Enum):
    """The reaction of a transactional producer to an error."""

    RETRY = "retry"
    """Send the same request again, after a backoff."""
    LOOK_UP = "look up"
    """Look the coordinator up again, then retry. The request may have been executed: a coordinator
    that has appended it to its log, and cannot replicate it or moves, responds so; the next one
    executes what it finds there."""
    ABORT = "abort"
    """The transaction cannot commit. The producer can begin another one."""
    FENCED = "fenced"
    """Another producer has the transactional id, or the coordinator has aborted the transaction at
    its timeout. The producer cannot continue."""
    FATAL = "fatal"
    """The producer cannot continue, for another reason."""


_COORDINATOR_ACTIONS: dict[int, TransactionAction] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: TransactionAction.RETRY,
    ErrorCode.CONCURRENT_TRANSACTIONS: TransactionAction.RETRY,
    ErrorCode.NOT_COORDINATOR: TransactionAction.LOOK_UP,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: TransactionAction.LOOK_UP,
    ErrorCode.REQUEST_TIMED_OUT: TransactionAction.LOOK_UP,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionAction.ABORT,
    ErrorCode.PRODUCER_FENCED: TransactionAction.FENCED,
    # What older brokers return for PRODUCER_FENCED.
    ErrorCode.INVALID_PRODUCER_EPOCH: TransactionAction.FENCED,
    # KAFKA-18019: with a new producer id, a producer that was fenced could continue.
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: TransactionAction.FATAL,
    ErrorCode.UNKNOWN_PRODUCER_ID: TransactionAction.FATAL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: TransactionAction.FATAL,
    ErrorCode.INVALID_TXN_STATE: TransactionAction.FATAL,
}
"""For every request to a transaction coordinator."""

COORDINATOR_AWAITS_MARKERS: Codes = frozenset(
    (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
)
"""From a coordinator: the markers of the last transaction may not be written yet, for some
milliseconds. Kafka 4's group coordinators report that as COORDINATOR_LOAD_IN_PROGRESS."""

PRODUCE_AWAITS_MARKERS: Codes = frozenset(
    (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS)
)
"""In the response to a Produce in a transaction: the markers of the last transaction may not be
written yet. A leader of Kafka 4 reports NOT_ENOUGH_REPLICAS when it has not added the partition to
the transaction in time."""

INIT_PRODUCER_ID_ACTIONS: dict[int, TransactionAction] = {
    **_COORDINATOR_ACTIONS,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionAction.RETRY,  # no transaction is open
}
"""A code that is not here is FATAL."""

_CHANGE_ACTIONS: dict[int, TransactionAction] = {
    **_COORDINATOR_ACTIONS,
    ErrorCode.UNKNOWN_SERVER_ERROR: TransactionAction.LOOK_UP,  # to learn the outcome
}
"""For the requests after which the coordinator has an open transaction, or has it no more."""

ADD_PARTITIONS_ACTIONS: dict[int, TransactionAction] = {
    **_CHANGE_ACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: TransactionAction.RETRY,
    ErrorCode.OPERATION_NOT_ATTEMPTED: TransactionAction.RETRY,  # as another partition was refused
}
"""For the code of each partition; the gravest action decides. A code that is not here is ABORT,
such as TOPIC_AUTHORIZATION_FAILED."""

ADD_OFFSETS_ACTIONS: dict[int, TransactionAction] = _CHANGE_ACTIONS
"""A code that is not here is ABORT, such as GROUP_AUTHORIZATION_FAILED."""

TXN_OFFSET_COMMIT_ACTIONS: dict[int, TransactionAction] = {
    **_COORDINATOR_ACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: TransactionAction.RETRY,
    # From older brokers: the transaction is not open, or not any more.
    ErrorCode.INVALID_TXN_STATE: TransactionAction.ABORT,
}
"""For the code of each partition, from the group coordinator. A code that is not here is ABORT. So
are the codes about a member that was removed: the producer can continue when the member has joined
again."""

END_TXN_ACTIONS: dict[int, TransactionAction] = _CHANGE_ACTIONS
"""A code that is not here is FATAL, and does not tell the outcome either."""

FAILED_RECORD_ACTIONS: dict[int, TransactionAction] = {
    ErrorCode.PRODUCER_FENCED: TransactionAction.FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: TransactionAction.FATAL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: TransactionAction.FATAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: TransactionAction.FATAL,
}
"""For the code of a record that has failed in a transaction. A code that is not here is ABORT.
INVALID_PRODUCER_EPOCH is not here, because the coordinator's response to the abort tells whether
the producer is fenced."""

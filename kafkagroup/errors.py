"""The exceptions of the library, and the broker's error codes.

```
KafkaGroupError
├── ConfigurationError (also ValueError)    an option or argument is wrong
├── IllegalStateError                       the call is not allowed in the current state
│   ├── ClosedError                         the client was closed
│   │   └── NotStartedError                 it was never started
│   └── NotAssignedError                    the partition is not (or no longer) assigned here
├── LocalProtocolError                      the request would break the protocol; not sent
├── RemoteProtocolError                     a broker or another member broke the protocol
│   └── DecodeError                         malformed bytes from a broker or another member
│       ├── LimitExceededError              a size or count exceeds a limit; the limit is named
│       └── CorruptRecordError              a damaged record batch: topic, partition, offset
├── UnsupportedVersionError                 no version of a request that both sides support
├── AuthenticationError                     client or broker failed to authenticate
│   └── TlsError                            the TLS handshake failed: certificates, names, versions
├── TransportError                          a network failure; retriable
│   ├── ConnectionLostError                 the connection broke, or could not be made
│   ├── RequestTimeoutError                 no response within the timeout
│   ├── NoBrokersAvailableError             no bootstrap address answered
│   └── ClusterChangedError                 the bootstrap addresses lead to another cluster
├── BrokerError                             an error code in a response: code, name, retriable
│   ├── AuthorizationError                  not allowed: resource, operation
│   └── RecordRefusedError                  the broker rejected a batch because of one record
├── FencedError                             another member took this member's identity; fatal
├── JoinFailedError                         the group cannot be joined; fatal
├── CommitFailedError                       the member no longer owns the committed partitions
├── ChangesRefusedError (also a group)      some changes of an Admin call were not made: which ones
├── NotWrittenError                         a record was not written, or may have been, and why
├── BufferFullError                         the producer has no room for another record
├── ProducerFencedError                     another producer took this transactional id; fatal
├── TransactionAbortedError                 the transaction cannot commit, and why
├── TransactionOutcomeUnknownError          the transaction may or may not be committed
├── OffsetOutOfRangeError                   the position is not in the log, and no reset policy
├── NoOffsetError                           no committed offset, and auto_offset_reset is "none"
└── DeserializationError                    your deserializer failed; carries the raw record
```

A few are elsewhere: `ConsumerBusyError`, an IllegalStateError, needs anyio, and some modules of
`compat`, `spark` and `testing` have errors of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Self

from kafkagroup._public import late_names, public
from kafkagroup._text import escaped

if TYPE_CHECKING:
    from kafkagroup.types import Record, TopicPartition

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "BrokerError",
    "BufferFullError",
    "ChangesRefusedError",
    "ClosedError",
    "ClusterChangedError",
    "CommitFailedError",
    "ConfigurationError",
    "ConnectionLostError",
    "CorruptRecordError",
    "DecodeError",
    "DeserializationError",
    "ErrorCode",
    "FencedError",
    "IllegalStateError",
    "InsecureConnectionWarning",
    "JoinFailedError",
    "KafkaGroupError",
    "LimitExceededError",
    "LocalProtocolError",
    "NoBrokersAvailableError",
    "NoOffsetError",
    "NotAssignedError",
    "NotStartedError",
    "NotWrittenError",
    "OffsetOutOfRangeError",
    "ProducerFencedError",
    "RecordRefusedError",
    "RemoteProtocolError",
    "RequestTimeoutError",
    "TlsError",
    "TransactionAbortedError",
    "TransactionOutcomeUnknownError",
    "TransportError",
    "UnsupportedVersionError",
]


@public
class KafkaGroupError(Exception):
    """The base class of every error of this library."""


@public
class ConfigurationError(KafkaGroupError, ValueError):
    """An option or argument is wrong. The message names it and what is accepted."""


class IllegalStateError(KafkaGroupError):
    """The call is not allowed in the current state, such as `seek` on a partition that is not
    assigned; or not in this process or event loop, as the client was started in another one."""


@public
class ClosedError(IllegalStateError):
    """The client was closed, or never started."""


class NotStartedError(ClosedError):
    """The client was never started. Iterating over such a client raises this error; iterating over
    a closed one ends the loop."""


@public
class NotAssignedError(IllegalStateError):
    """The partition is not assigned to this consumer."""


class LocalProtocolError(KafkaGroupError):
    """The request would break the protocol, so it was not sent. A bug in the library or the
    caller."""


class RemoteProtocolError(KafkaGroupError):
    """A broker or another member of the group broke the protocol. If a response is malformed, its
    connection is closed, and the requests in flight on it fail."""


class DecodeError(RemoteProtocolError):
    """Bytes of a broker, or of another member of the group, cannot be decoded."""


class LimitExceededError(DecodeError):
    """A size or count in a response exceeds a limit. The message names the limit, and its option if
    it has one."""


class CorruptRecordError(DecodeError):
    """A record batch is damaged: its length, count or checksum is wrong. Where the topic is
    unknown, it is "?"; an unknown number is -1."""

    def __init__(
        self,
        reason: str,
        *,
        topic: str = "?",
        partition: int = -1,
        offset: int = -1,
        next_offset: int = -1,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset
        """The offset after the batch, as its header has it, which may be damaged, too: `seek` there
        to skip the batch. -1 if the header has none that is possible."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} at offset {self.offset}: {self.reason}"


class UnsupportedVersionError(KafkaGroupError):
    """The broker and this library have no version of a request in common."""


@public
class AuthenticationError(KafkaGroupError):
    """The broker rejected the credentials, or this client could not authenticate: its source of
    credentials failed, or it does not trust the broker.

    Ends the start of a client. A client that has started tries again: after a rejection, which
    might lock the account, only when the application uses the client again.
    """

    def __init__(
        self, message: str, *, is_refusal: bool = False, is_of_source: bool = False
    ) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal
        """Whether the broker rejected the credentials."""
        self.is_of_source = is_of_source
        """Whether this client's source of credentials failed."""

    def __reduce__(self) -> tuple[object, ...]:
        # `partial`: pickle gives a constructor no keyword arguments.
        kinds = {"is_refusal": self.is_refusal, "is_of_source": self.is_of_source}
        return partial(type(self), str(self), **kinds), ()


class TlsError(AuthenticationError):
    """The TLS handshake failed. The message says which side rejected what. A connection that broke
    during the handshake is a ConnectionLostError."""


class InsecureConnectionWarning(UserWarning):
    """A verification is off without which another server can impersonate the broker."""


@public
class TransportError(KafkaGroupError):
    """A network failure. Retriable. The broker may or may not have processed the request."""


class ConnectionLostError(TransportError):
    """The connection broke or could not be made."""


class RequestTimeoutError(TransportError):
    """A request got no response within its timeout, or a call took longer than its own. After the
    timeout of a request its connection is closed: the broker answers the requests of one connection
    in order, so later ones would wait, too."""


class NoBrokersAvailableError(TransportError):
    """None of the bootstrap addresses answered."""


class ClusterChangedError(TransportError):
    """The bootstrap addresses lead to another cluster, and no broker of the client's own answers.
    Or a plan, exported offsets or a checkpoint belongs to another cluster.

    Nothing is read from the other cluster, and nothing is written or committed to it. A client
    continues if its cluster answers again.
    """

    def __init__(
        self, message: str, *, expected: str = "", found: str = "", address: str = ""
    ) -> None:
        super().__init__(message)
        self.expected = expected
        """The id of the cluster that this client, plan or checkpoint belongs to."""
        self.found = found
        """The id of the cluster that was found instead."""
        self.address = address
        """An address that leads there, as host:port."""

    def __reduce__(self) -> tuple[object, ...]:
        ids = {"expected": self.expected, "found": self.found, "address": self.address}
        return partial(type(self), str(self), **ids), ()


@public
class ErrorCode(IntEnum):
    """The error codes of the protocol, up to Apache Kafka 4.3."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


RETRIED_ERRORS = (TransportError, RemoteProtocolError, AuthenticationError)
"""The errors of a request that got no valid response. A client that has started repeats it."""

_RETRIABLE = frozenset(
    (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    )
)
"""The codes of errors after which the same request may succeed later."""

_STALE_METADATA = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)
"""The codes of errors that a refresh of the metadata may resolve."""


@public
class BrokerError(KafkaGroupError):
    """A broker returned an error code.

    The name of a code that this library does not know is `UNKNOWN_CODE_<n>`.
    """

    def __init__(self, code: int, message: str | None = None) -> None:
        self.code = code
        """The number, as on the wire."""
        self.name = error_name(code)
        """The name in Kafka's own table."""
        self.retriable = code in _RETRIABLE
        """Whether the same request may succeed later."""
        self.stale_metadata = code in _STALE_METADATA
        """Whether the client must refresh its metadata before a retry."""
        super().__init__(f"{self.name} ({code})" + (f": {escaped(message)}" if message else ""))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BrokerError) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)

    def __reduce__(self) -> tuple[object, ...]:
        prefix = f"{self.name} ({self.code})"
        message = str(self).removeprefix(prefix).removeprefix(": ")
        return type(self), (self.code, message or None)


@public
class AuthorizationError(BrokerError):
    """The cluster denied the operation: an ACL is missing."""

    def __init__(
        self, code: int, message: str | None = None, resource: str = "", operation: str = ""
    ) -> None:
        denied = ""
        if operation or resource:
            what = " on ".join(filter(None, (operation or "access", resource)))
            denied = f"{what} is not allowed"
        super().__init__(code, ": ".join(filter(None, (denied, message))))
        self.resource = escaped(resource)
        """What the ACL is about, such as "topic 'orders'"; "" when the broker does not say."""
        self.operation = operation
        """Kafka's name of the operation that the ACL must allow, such as "READ"."""
        self._arguments = (code, message, resource, operation)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._arguments


class RecordRefusedError(BrokerError):
    """The broker rejected a batch because of one record in it (KIP-467)."""

    def __init__(self, code: int, message: str | None, index: int) -> None:
        super().__init__(code, message)
        self.index = index
        """The record's index in the batch, from 0."""
        self._arguments = (code, message, index)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._arguments


def broker_error(
    code: int,
    message: str | None = None,
    *,
    operation: str = "",
    topic: str | None = None,
    group: str | None = None,
    transactional_id: str | None = None,
) -> BrokerError:
    """Return the error of a code: an AuthorizationError if a topic, a group, a transactional id or
    the cluster is denied. That error names the resource and the `operation` that an ACL must allow;
    for the cluster no operation, because it depends on the request."""
    match code:
        case ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            resource = "" if topic is None else f"topic {topic!r}"
        case ErrorCode.GROUP_AUTHORIZATION_FAILED:
            resource = "" if group is None else f"group {group!r}"
        case ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            named = transactional_id is not None
            resource = f"transactional id {transactional_id!r}" if named else ""
        case ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            resource, operation = "the cluster", ""
        case _:
            return BrokerError(code, message)
    return AuthorizationError(code, message, resource, operation)


def error_name(code: int) -> str:
    """Return the name of an error code; `UNKNOWN_CODE_<n>` for an unknown one."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"UNKNOWN_CODE_{code}"


@public
class FencedError(KafkaGroupError):
    """Another member joined with this member's `group_instance_id`. Fatal: the two would fence each
    other in turn."""


class JoinFailedError(KafkaGroupError):
    """The member cannot join its group in ZooKeeper, as the group has members of another library.
    Fatal.

    In `kafkagroup.compat` also raised if a start got no assignment in time, and if joining, or
    claiming in ZooKeeper, failed more often in a row than allowed. The message has the last
    failure.
    """


@public
class CommitFailedError(KafkaGroupError):
    """Offsets were not committed: the member no longer owns the partitions, the offsets are of an
    earlier assignment, or the group is rebalancing.

    Their owner starts at the last committed offset, so no record is lost, but records after it are
    delivered again. The consumer can continue.
    """

    def __init__(self, message: str, partitions: tuple[TopicPartition, ...] = ()) -> None:
        super().__init__(message)
        self.partitions = partitions
        """The partitions that this member does not own, or whose offsets are of an earlier
        assignment, sorted; empty when the whole commit was rejected, as in a rebalance."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.partitions)


_MAX_LISTED = 5
"""The most errors that the message of a ChangesRefusedError names."""


@public
class ChangesRefusedError(KafkaGroupError, ExceptionGroup[KafkaGroupError]):
    """Some of the changes that a call of `Admin` requested were not made; the others were.

    An ExceptionGroup of the errors, for `except*`, and a KafkaGroupError, for `except`.
    """

    def __new__(
        cls,
        doing: str,
        errors: Mapping[Hashable, KafkaGroupError],
        done: tuple[Hashable, ...] = (),
    ) -> Self:
        shown = [f"{name}: {error}" for name, error in islice(errors.items(), _MAX_LISTED)]
        if (left := len(errors) - len(shown)) > 0:
            shown.append(f"and {left} more")
        count = len(errors) + len(done)
        message = f"{doing} failed for {len(errors)} of {count}: {'; '.join(shown)}"
        return super().__new__(cls, message, tuple(errors.values()))

    def __init__(
        self,
        doing: str,
        errors: Mapping[Hashable, KafkaGroupError],
        done: tuple[Hashable, ...] = (),
    ) -> None:
        self.doing = doing
        """What the call does, such as "creating topics"."""
        self.errors = errors
        """Topic, group or partition -> why its change was not made."""
        self.done = done
        """The topics, groups or partitions whose change was made, in the order of the call."""

    def __str__(self) -> str:
        return self.message

    def derive(self, errors: Sequence[KafkaGroupError], /) -> ChangesRefusedError:  # type: ignore[override]
        """Return the group of some of the errors, as `except*` and `split` need it."""
        # The base class declares it for errors of any type: hence `ignore[override]`.
        some = {name: error for name, error in self.errors.items() if error in errors}
        return ChangesRefusedError(self.doing, some, self.done)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.doing, self.errors, self.done)


@public
class OffsetOutOfRangeError(KafkaGroupError):
    """Positions are outside of the partitions' logs, and `auto_offset_reset` is "none"."""

    def __init__(self, offsets: Mapping[TopicPartition, int]) -> None:
        super().__init__(offsets)
        self.offsets = offsets
        """Partition -> the position that is not in its log."""

    def __str__(self) -> str:
        return f"no such offset in the log: {_places(self.offsets)}; seek, or set auto_offset_reset"


@public
class NoOffsetError(KafkaGroupError):
    """The group has no committed offset for partitions, and `auto_offset_reset` is "none"."""

    def __init__(
        self,
        partitions: tuple[TopicPartition, ...],
        out_of_range: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        super().__init__(partitions, out_of_range)
        self.partitions = partitions
        """All partitions without a position."""
        self.out_of_range = out_of_range or {}
        """The partitions among them whose position is not in the log: partition -> position, as in
        OffsetOutOfRangeError."""

    def __str__(self) -> str:
        missing = ", ".join(
            str(tp) for tp in sorted(self.partitions) if tp not in self.out_of_range
        )
        text = f"no committed offset for {missing}"
        if self.out_of_range:
            text += f"; no such offset in the log: {_places(self.out_of_range)}"
        return f"{text}; seek, or set auto_offset_reset"


def _places(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{tp} at {offset}" for tp, offset in sorted(offsets.items()))


@public
class NotWrittenError(KafkaGroupError):
    """A record was refused, or not acknowledged in time. In the second case it may be in the
    log: `is_maybe_written`."""

    def __init__(
        self,
        tp: TopicPartition,
        why: KafkaGroupError,
        *,
        is_maybe_written: bool = False,
        is_of_another_record: bool = False,
        count: int = 1,
    ) -> None:
        super().__init__(tp, why)
        self.tp = tp
        """The partition; its number is -1 if it was not known."""
        self.why = why
        """The broker's error, or why there was no acknowledgement."""
        self.is_maybe_written = is_maybe_written
        """Whether the record may be in the log: it was sent, and there was no definite response."""
        self.is_of_another_record = is_of_another_record
        """Whether the broker refused the batch because of another record in it."""
        self.count = count
        """The number of records that this error is about; more than 1 in `flush()` and at the
        close."""

    def __str__(self) -> str:
        what = "the record" if self.count == 1 else f"{self.count} records"
        verb = "may have been" if self.is_maybe_written else "was" if self.count == 1 else "were"
        denial = "" if self.is_maybe_written else " not"
        place = str(self.tp) if self.tp.partition >= 0 else f"topic {self.tp.topic}"
        why = f"another record of its batch was refused: {self.why}"
        first = "" if self.count == 1 else "; the first"
        reason = why if self.is_of_another_record else str(self.why)
        return f"{what} {verb}{denial} written{first} to {place}: {reason}"

    def __reduce__(self) -> tuple[object, ...]:
        # By a function: pickle gives a constructor no keyword arguments.
        flags = self.is_maybe_written, self.is_of_another_record, self.count
        return _not_written_error, (self.tp, self.why, *flags)


def _not_written_error(
    tp: TopicPartition, why: KafkaGroupError, maybe: bool, other: bool, count: int
) -> NotWrittenError:
    return NotWrittenError(tp, why, is_maybe_written=maybe, is_of_another_record=other, count=count)


@public
class BufferFullError(KafkaGroupError):
    """The records that were not acknowledged yet use up the producer's `buffer_memory`. Wait for
    room with `await producer.ready()`, or use `await producer.send()`, which does."""


@public
class ProducerFencedError(KafkaGroupError):
    """Another producer has begun with this producer's `transactional_id`, or the coordinator has
    aborted a transaction that was open for longer than its timeout. Fatal for this producer.

    Nothing of its open transaction is committed. The message says which of the two it was, if the
    client can tell them apart.
    """


@public
class TransactionAbortedError(KafkaGroupError):
    """The transaction cannot commit, as a record or an offset of it has failed, or the coordinator
    has aborted it. Nothing of it is visible to `read_committed` consumers.

    The producer can begin another transaction.
    """

    def __init__(self, why: KafkaGroupError) -> None:
        super().__init__(why)
        self.why = why
        """The first failure in the transaction."""
        self.__cause__ = why

    def __str__(self) -> str:
        return f"the transaction cannot commit: {self.why}"


@public
class TransactionOutcomeUnknownError(KafkaGroupError):
    """The coordinator has not answered whether the transaction is committed. All of it is, or
    nothing.

    To find out, read the offsets that the transaction has committed, with a consumer of the same
    group: that waits until the outcome is known. This producer first repeats the same request when
    its next transaction begins.
    """


@public
class DeserializationError(KafkaGroupError):
    """A deserializer raised. The position stays before the record until you seek past it."""

    def __init__(self, record: Record, part: str) -> None:
        super().__init__(record, part)
        self.record = record
        """The record, with key and value as the broker sent them."""
        self.part = part
        """Which deserializer: "key" or "value"."""
        self.add_note(
            "Each call for records raises this until the application seeks past the record;"
            " on_deserialization_error can skip or replace it."
        )

    def __str__(self) -> str:
        record, cause = self.record, self.__cause__
        return (
            f"{self.part}_deserializer failed on {record.topic}/{record.partition}"
            f" at offset {record.offset}" + ("" if cause is None else f": {cause!r}")
        )


if not TYPE_CHECKING:  # a type checker would accept every name
    # Explains names that are not here; there are none to import late.
    __getattr__ = late_names(__name__, {})

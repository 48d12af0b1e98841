"""The state of a producer's transactions: its phases, the legal moves, its fields."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from kafkagroup._values import field, frozen
from kafkagroup.errors import KafkaGroupError
from kafkagroup.produce.transaction_vocabulary import GroupIdentity, Send
from kafkagroup.types import OffsetAndMetadata, TopicPartition

__all__ = [
    "ENDED",
    "ENDS_EPOCH",
    "MOVES",
    "Attempt",
    "Call",
    "CallKind",
    "OffsetCommit",
    "Phase",
    "Transactions",
]

ENDS_EPOCH = 2
"""The first `transaction.version` in which each transaction ends an epoch (KIP-890)."""


class Phase(Enum):
    """The phases of a transactional producer: those of Java's `TransactionManager`, with UNRESOLVED
    and FENCED in addition."""

    UNINITIALIZED = "uninitialized"
    """Without producer id and epoch."""
    INITIALIZING = "initializing"
    """InitProducerId is in flight, for the first epoch or the next one."""
    READY = "ready"
    """No transaction is open."""
    IN_TRANSACTION = "in transaction"
    """Records and offsets may be added."""
    ABORTABLE_ERROR = "abortable error"
    """Something of the transaction has failed: it can only be aborted."""
    COMMITTING = "committing"
    """The request to commit is in flight, or waits for its retry."""
    ABORTING = "aborting"
    """The request to abort is in flight, or waits for its retry, or for the responses to requests
    that add to the transaction."""
    UNRESOLVED = "unresolved"
    """The call that ended the transaction was given up. The same request is repeated until it is
    answered; the next transaction waits for that."""
    FENCED = "fenced"
    """Another producer has the transactional id, or the coordinator has aborted the transaction at
    its timeout."""
    FATAL = "fatal"
    """An error that no retry can fix has ended the producer."""


_TO_ENDED: Mapping[Phase, str] = {
    Phase.FENCED: "Replied, or RecordFailed: fenced",
    Phase.FATAL: "Replied, Refused or RecordFailed with an error that no retry can fix",
}
"""The moves by which the producer ends. They are possible from each phase in which requests or
records are in flight."""

MOVES: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.UNINITIALIZED: {
        Phase.INITIALIZING: "InitializeRequested",
    },
    Phase.INITIALIZING: {
        **_TO_ENDED,
        Phase.READY: "Replied with an epoch; CallAbandoned, if there is an earlier one; or Refused,"
        " if it was requested only for another timeout",
        Phase.UNINITIALIZED: "CallAbandoned, before there was an epoch",
    },
    Phase.READY: {
        Phase.IN_TRANSACTION: "BeginRequested; or, if its call waited, the event that led to READY",
        Phase.INITIALIZING: "likewise, where the transaction needs a new epoch",
        Phase.ABORTING: "likewise, where a late request may have begun a transaction",
    },
    Phase.IN_TRANSACTION: {
        **_TO_ENDED,
        Phase.ABORTABLE_ERROR: "RecordFailed; Replied with an error; Refused; CallAbandoned with"
        " offsets; OffsetsRequested after other offsets of the same partition got no response;"
        " CommitRequested while something is not answered",
        Phase.COMMITTING: "CommitRequested",
        Phase.ABORTING: "AbortRequested",
    },
    Phase.ABORTABLE_ERROR: {
        **_TO_ENDED,
        Phase.ABORTING: "AbortRequested",
    },
    Phase.COMMITTING: {
        **_TO_ENDED,
        Phase.READY: "Replied; or CommitRequested, where nothing was added",
        Phase.ABORTABLE_ERROR: "Replied: it cannot commit; or CallAbandoned before it was sent",
        Phase.ABORTING: "Replied: it cannot commit, after its own call was given up",
        Phase.UNRESOLVED: "CallAbandoned",
    },
    Phase.ABORTING: {
        **_TO_ENDED,
        Phase.READY: "Replied or Refused; or AbortRequested, where nothing was added",
        Phase.UNRESOLVED: "CallAbandoned",
    },
    Phase.UNRESOLVED: {
        **_TO_ENDED,
        Phase.READY: "Replied",
        Phase.COMMITTING: "CommitRequested or BeginRequested after a commit",
        Phase.ABORTING: "AbortRequested or BeginRequested after an abort",
    },
    Phase.FENCED: {},
    Phase.FATAL: {},
}
"""Phase -> each phase that may follow -> the event that causes the move. Any other move is a bug,
and raises."""

ENDED = frozenset((Phase.FENCED, Phase.FATAL))
"""Phases of a producer that has ended."""


class CallKind(Enum):
    """Which call of the application waits."""

    INITIALIZE = "initialize"
    BEGIN = "begin"
    COMMIT = "commit"
    ABORT = "abort"


@frozen
class Call:
    """A call of the application that waits; one at a time. Those that commit offsets are in
    `OffsetCommit`."""

    number: int
    kind: CallKind
    version: int = 0
    """The `transaction.version` of the transaction to begin."""
    timeout_ms: int | None = None
    """The timeout of the transaction to begin; None: that of the last one."""
    former_timeout_ms: int | None = None
    """The timeout that the coordinator has now, if an epoch is requested only to change it; else
    None."""


@frozen
class Attempt:
    """A request that is repeated until it is answered."""

    send: Send
    """The effect of the last attempt."""
    is_in_flight: bool = False
    """Whether it was sent, and is not answered yet."""
    is_lost: bool = False
    """Whether an attempt got no response, or one that does not tell whether it was executed, and no
    later one was answered."""

    @property
    def is_uncertain(self) -> bool:
        """Whether the coordinator may have executed the request."""
        return self.is_in_flight or self.is_lost


@frozen
class OffsetCommit:
    """Offsets that are being committed with the transaction."""

    call: int | None
    """The number of the call; None once it has failed: only the response to AddOffsetsToTxn is
    awaited then."""
    group: GroupIdentity
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    is_adding: bool
    """Whether the request is AddOffsetsToTxn; then TxnOffsetCommit follows."""
    attempt: Attempt


@frozen(kw_only=True)
class Transactions:
    """The whole state of a transactional producer: the open transaction, and what is left of the
    one before."""

    transactional_id: str
    timeout_ms: int
    """The time after which the coordinator aborts an open transaction. InitProducerId sets it."""
    phase: Phase = Phase.UNINITIALIZED
    producer_id: int = -1
    epoch: int = -1
    version: int = 0
    """The `transaction.version` of the last transaction."""
    number: int = 0
    """The number of the last transaction, from 1; 0 before the first."""
    begun_at: float = 0.0
    """When the last transaction began, on the loop's clock."""
    is_epoch_used: bool = False
    """Whether a transaction has begun in the present epoch."""
    needs_epoch: bool = False
    """Whether the next transaction needs another epoch: a request of an earlier one may still be
    executed, and would then be taken for one of the next."""
    may_be_open: bool = False
    """Whether the coordinator may have an open transaction that the producer does not know of: a
    request that adds something got no response, and may have been executed after the end."""
    call: Call | None = None
    """The call that waits, except one that commits offsets; None if none waits."""
    wanted: frozenset[TopicPartition] = frozenset()
    """Partitions for the next AddPartitionsToTxn: one is in flight at a time."""
    adding: frozenset[TopicPartition] = frozenset()
    """The partitions of the AddPartitionsToTxn in `add_attempt`."""
    add_attempt: Attempt | None = None
    """The attempt at AddPartitionsToTxn; None if all were answered."""
    added: frozenset[TopicPartition] = frozenset()
    """The partitions that the coordinator has added; from version 2 on, those that were attempted,
    as their leaders add them."""
    groups: frozenset[str] = frozenset()
    """The groups whose offsets the coordinator has added; from version 2 on, those that were
    attempted."""
    offset_commit: OffsetCommit | None = None
    doubtful_offsets: Mapping[tuple[str, TopicPartition], OffsetAndMetadata] = field(factory=dict)
    """The offsets, by group and partition, of requests that got no response: such a request may be
    executed after a later one."""
    attempt: Attempt | None = None
    """The attempt at InitProducerId or EndTxn; those at other requests are in `add_attempt` and
    `offset_commit`."""
    commits: bool = False
    """Whether the last transaction is to be committed."""
    is_end_lost: bool = False
    """Whether an attempt to end the transaction got no response, or one that does not tell: it may
    have been executed, also if a later one is refused."""
    error: KafkaGroupError | None = None
    """The first error of the transaction, or what has ended the producer."""
    trouble: str = ""
    """Why the last request is repeated; "" if it is not."""
    last_token: int = 0

    @property
    def ends_epoch(self) -> bool:
        """Whether the end of the last transaction is the end of its epoch."""
        return self.version >= ENDS_EPOCH

    @property
    def has_identity(self) -> bool:
        """Whether the producer has an id and an epoch."""
        return self.producer_id >= 0

    @property
    def is_open(self) -> bool:
        """Whether records may be added."""
        return self.phase is Phase.IN_TRANSACTION

    @property
    def produce_highest_version(self) -> int | None:
        """The highest version of Produce; None for the highest that the broker has. From version 12
        on a record adds its partition to the transaction."""
        return None if self.ends_epoch else 11

    def awaits(self, token: int) -> bool:
        """Return whether the response to the request with this token is awaited."""
        offsets = self.offset_commit
        attempts = (self.attempt, self.add_attempt, None if offsets is None else offsets.attempt)
        return any(a is not None and a.send.token == token for a in attempts)

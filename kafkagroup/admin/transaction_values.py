"""The frozen values about transactions and producers that `Admin` returns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import attrs

from kafkagroup.errors import KafkaGroupError
from kafkagroup.transport.metadata import Node
from kafkagroup.types import TopicPartition

__all__ = [
    "OpenTransaction",
    "ProducerDescription",
    "TransactionDescription",
    "TransactionList",
    "TransactionListing",
    "TransactionState",
]


class TransactionState(StrEnum):
    """The states of a transactional id at its coordinator, by the names that Kafka reports."""

    EMPTY = "Empty"
    """A producer id and epoch were given to a producer, and no transaction has begun since."""
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    """The transaction will be committed: the coordinator writes the markers."""
    PREPARE_ABORT = "PrepareAbort"
    """The transaction will be aborted: the coordinator writes the markers."""
    COMPLETE_COMMIT = "CompleteCommit"
    """The last transaction was committed, and no other has begun."""
    COMPLETE_ABORT = "CompleteAbort"
    """The last transaction was aborted, and no other has begun."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """The transaction will be aborted: the coordinator first raises the epoch, which fences its
    producer."""
    DEAD = "Dead"
    """The transactional id has expired."""
    UNKNOWN = "Unknown"
    """A state that this library does not know."""

    @property
    def is_open(self) -> bool:
        """Whether the transaction has begun, and its markers are not all written."""
        return self in _OPEN

    @classmethod
    def _missing_(cls, value: object) -> TransactionState:
        return cls.UNKNOWN


_OPEN = (
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.PREPARE_EPOCH_FENCE,
)


@attrs.frozen(kw_only=True)
class TransactionListing:
    """A transactional id in a list."""

    transactional_id: str
    producer_id: int
    state: TransactionState
    coordinator: Node
    """The broker that listed it."""


@attrs.frozen(kw_only=True)
class TransactionList:
    """The transactional ids of a cluster, and the brokers that did not list theirs."""

    transactions: tuple[TransactionListing, ...]
    """By transactional id."""
    errors: Mapping[Node, KafkaGroupError] = attrs.field(factory=dict)
    """Broker -> its error: the ids that it coordinates are missing. Empty when `transactions` is
    complete."""


@attrs.frozen(kw_only=True)
class TransactionDescription:
    """A transactional id with its last transaction, as its coordinator describes it."""

    transactional_id: str
    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout: float
    """Seconds after which the coordinator aborts a transaction."""
    started_at: datetime | None
    """When the transaction began, by the coordinator's clock; None if no transaction is open."""
    partitions: tuple[TopicPartition, ...]
    """The partitions to which the transaction writes, sorted, without those that have their
    marker."""
    coordinator: Node
    """The broker that described it."""


@attrs.frozen(kw_only=True)
class ProducerDescription:
    """An idempotent or transactional producer, as a partition knows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """The sequence number of its last record; -1 without one in this epoch."""
    last_written_at: datetime | None
    """The timestamp of its last record or marker; None without one."""
    coordinator_epoch: int
    """The epoch of the coordinator that wrote its last marker; -1 before the first."""
    transaction_start_offset: int | None
    """Where its open transaction begins; None without one."""


@attrs.frozen(kw_only=True)
class OpenTransaction:
    """An open transaction in one partition, and what its coordinator knows of it. Consumers with
    `read_committed` get nothing beyond its start."""

    partition: TopicPartition
    producer: ProducerDescription
    start_offset: int
    """Where the transaction begins in the partition."""
    transaction: TransactionDescription | None
    """The transactional id with this producer id; None if no coordinator lists one. A coordinator
    lists only the ids that this principal may describe."""

    @property
    def is_hanging(self) -> bool:
        """Whether it seems that no coordinator will end it: none reports an open transaction of
        this producer id that includes the partition. Without the right to describe the
        transactional id this is always so."""
        known = self.transaction
        if known is None or self.partition not in known.partitions:
            return True
        # The coordinator may still end a transaction in a state that is unknown here.
        return not known.state.is_open and known.state is not TransactionState.UNKNOWN

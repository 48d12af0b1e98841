"""`Transaction`: records and offsets that are visible together, or not at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio

from kafkagroup._explained import Explained
from kafkagroup._generic import K_contra, KeyValueSink, V_contra
from kafkagroup._public import public
from kafkagroup.errors import (
    ClosedError,
    CommitFailedError,
    ConfigurationError,
    IllegalStateError,
    KafkaGroupError,
    NotWrittenError,
)
from kafkagroup.produce.transaction_vocabulary import GroupIdentity
from kafkagroup.types import Headers, RecordMetadata

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from kafkagroup.consume.commits import Commit
    from kafkagroup.consumer import Consumer
    from kafkagroup.options import ProducerOptions
    from kafkagroup.runtime.produce.producer_transactions import ProducerTransactions
    from kafkagroup.runtime.produce.record_future import RecordFuture

__all__ = ["Transaction", "TransactionalProducer", "check_consumer"]


class TransactionalProducer(Protocol[K_contra, V_contra]):
    """What a transaction, or a subclass, needs of its producer."""

    @property
    def _options(self) -> ProducerOptions: ...

    def _until_stopped(self) -> AbstractContextManager[None]: ...

    def _started_transactions(self) -> ProducerTransactions: ...

    async def send(
        self,
        topic: str,
        value: V_contra,
        *,
        key: K_contra | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> RecordMetadata: ...

    def send_nowait(
        self,
        topic: str,
        value: V_contra,
        *,
        key: K_contra | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> RecordFuture: ...

    async def send_many(
        self,
        topic: str,
        values: Iterable[V_contra],
        *,
        partition: int | None = None,
        headers: Headers = (),
    ) -> list[RecordMetadata]: ...


@public
class Transaction(KeyValueSink[K_contra, V_contra], Explained):
    """A transaction of a producer, from `Producer.transaction()`.

    The block commits at its end, and aborts if it raises or is cancelled before. Both are shielded
    from cancellation. A record that was not written aborts, even if its result was not awaited: the
    block then raises TransactionAbortedError, whose `why` is the record's error, or a
    RequestTimeoutError if records or offsets are not acknowledged when 0.8 of
    `transaction_timeout_ms` have passed since the beginning.

    The block also raises TransactionOutcomeUnknownError, if no response of the coordinator tells
    whether it has committed, within `delivery_timeout_ms` and before the close of the producer
    ended; ClosedError if the producer was closed in the block; ProducerFencedError, when another
    producer has begun with this `transactional_id`; AuthorizationError; BrokerError. At its
    beginning it raises RequestTimeoutError if the transaction cannot begin within
    `delivery_timeout_ms`, and IllegalStateError while another one of the producer is open.
    """

    _hot_methods = frozenset(("send_nowait",))  # `Explained` adds nothing to its calls
    _default_timeout = 60.0
    """The timeout in seconds if the producer has no `transaction_timeout_ms`."""

    def __init__(self, producer: TransactionalProducer[K_contra, V_contra]) -> None:
        self._producer = producer
        self._transactions: ProducerTransactions
        """Those of the producer, once this one begins."""
        self._is_open = False
        self._ended_at = math.inf
        """When the block ended, on the loop's clock; infinity before."""

    async def __aenter__(self) -> Self:
        """Begin. Waits until the last transaction has ended for certain, for at most
        `delivery_timeout_ms`."""
        timeout = self._producer._options.transaction_timeout or self._default_timeout
        self._transactions = self._producer._started_transactions()
        await self._transactions.begin(self, timeout)
        self._is_open = True
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self._is_open = False
        # A subclass may have set it already.
        self._ended_at = min(self._ended_at, anyio.current_time())
        transactions = self._transactions
        if transactions.open is not self:  # the close of the producer has aborted it
            if exc_value is None:
                raise ClosedError(
                    "the producer was closed in the transaction, which is not committed"
                )
            return None
        if exc_value is None:
            await transactions.run_shielded(transactions.commit)
            return None
        try:
            await transactions.run_shielded(partial(transactions.abort, _abort_error(exc_value)))
        except KafkaGroupError as error:  # the block's error must not be replaced
            exc_value.add_note(f"the transaction was not aborted: {error}")
        ending = transactions.ending_error
        if ending is not None and isinstance(exc_value, NotWrittenError):
            # The record's error has only the code by which the broker refused it.
            raise ending from exc_value
        return None

    async def send(
        self,
        topic: str,
        value: V_contra,
        *,
        key: K_contra | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """As `Producer.send`, in the transaction. Raises: also TransactionAbortedError when the
        transaction has failed, and IllegalStateError outside of the block."""
        self._check_is_open()
        return await self._producer.send(
            topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp
        )

    def send_nowait(
        self,
        topic: str,
        value: V_contra,
        *,
        key: K_contra | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> RecordFuture:
        """As `Producer.send_nowait`, in the transaction. Raises: as `send`."""
        self._check_is_open()
        return self._producer.send_nowait(
            topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp
        )

    async def send_many(
        self,
        topic: str,
        values: Iterable[V_contra],
        *,
        partition: int | None = None,
        headers: Headers = (),
    ) -> list[RecordMetadata]:
        """As `Producer.send_many`, in the transaction. Raises: as `send`."""
        self._check_is_open()
        return await self._producer.send_many(topic, values, partition=partition, headers=headers)

    async def send_offsets(self, consumer: Consumer[Any, Any]) -> None:
        """Commit with the transaction what `consumer.commit()` would commit: the offsets after the
        delivered records, the record or batch in flight included. The group's coordinator compares
        the consumer's generation, so a member that was fenced cannot commit.

        Raises: TransactionAbortedError and IllegalStateError as `send`; CommitFailedError if the
        consumer no longer owns a partition, or the group rebalances: the block then aborts;
        ClosedError for a consumer that is stopped, after which the block aborts, too;
        ConfigurationError for a consumer with `enable_auto_commit`, or without `group_id`, and for
        what is no consumer; UnsupportedVersionError from brokers before 2.5, which do not compare
        the generation; AuthorizationError; RequestTimeoutError.
        """
        self._check_is_open()
        check_consumer(consumer)
        self._transactions.raise_if_failed()
        try:
            consumer._check_transactional()
            consumer._session.complete_in_flight()
            await self._send_commits(consumer, consumer._session.committer.prepare_processed())
        except (CommitFailedError, ClosedError) as error:
            # If the block catches it, its records must not be committed without the offsets.
            self._transactions.manager.record_failed(error)
            raise

    async def _send_commits(self, consumer: Consumer[Any, Any], commits: Sequence[Commit]) -> None:
        """Commit offsets of a consumer with the transaction. Raises: as `send_offsets`."""
        self._producer._started_transactions()
        if not commits:
            return
        committer = consumer._session.committer
        committer.check_transaction(commits)
        found = consumer.group_metadata()
        group = GroupIdentity(
            found.group_id, found.generation_id, found.member_id, found.group_instance_id
        )
        offsets = {commit.tp: commit.offset for commit in commits}
        await self._transactions.send_offsets(group, offsets)
        # The request may have been repeated. A member that was lost meanwhile, and has rejoined
        # with the same id and epoch, would commit the offsets of partitions that others had.
        committer.check_transaction(commits)
        self._transactions.on_commit.append(partial(committer.note_transaction, commits))

    def _check_is_open(self) -> None:
        if not self._is_open:
            raise IllegalStateError("the transaction is not open: use it in its `async with` block")

    def __repr__(self) -> str:
        return f"Transaction({self._producer!r})"


def check_consumer(consumer: object) -> None:
    """Raises: ConfigurationError for what is no `Consumer`, such as offsets, which the method of
    other clients takes."""
    from kafkagroup.consumer import Consumer

    if not isinstance(consumer, Consumer):
        raise ConfigurationError(
            f"the consumer is of type {type(consumer).__name__}; expected a kafkagroup.Consumer,"
            " which has its offsets and its group"
        )


def _abort_error(cause: BaseException) -> KafkaGroupError:
    """Return the error of the records that are not acknowledged when a block raises `cause`."""
    error = KafkaGroupError(f"the transaction was aborted: {cause!r}")
    error.__cause__ = cause
    return error

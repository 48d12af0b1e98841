"""`Transaction`: records and offsets that are visible together, or not at all."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio

from kafkagroup._explained import Explained
from kafkagroup._generic import K_contra, KeyValueSink, V_contra
from kafkagroup._public import public
from kafkagroup.errors import ClosedError, IllegalStateError, KafkaGroupError, NotWrittenError
from kafkagroup.types import Headers, RecordMetadata

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from kafkagroup.consume.commits import Commit
    from kafkagroup.consumer import Consumer
    from kafkagroup.options import ProducerOptions
    from kafkagroup.runtime.produce.record_future import RecordFuture

__all__ = ["Transaction", "TransactionalProducer"]


class TransactionalProducer(Protocol[K_contra, V_contra]):
    """What a transaction, or a subclass, needs of its producer."""

    @property
    def _options(self) -> ProducerOptions: ...

    @property
    def _transaction_deadline(self) -> float: ...

    def _late_error(self) -> KafkaGroupError: ...

    @property
    def _ending_error(self) -> KafkaGroupError | None: ...

    @property
    def _transaction_name(self) -> str: ...

    @property
    def _open_transaction(self) -> object: ...

    def _until_stopped(self) -> AbstractContextManager[None]: ...

    async def _run_shielded(self, work: Callable[[], Awaitable[None]]) -> None: ...

    async def _begin(self, transaction: Any, timeout: float) -> None: ...

    async def _commit(self) -> None: ...

    async def _abort(self, why: KafkaGroupError) -> None: ...

    def _raise_if_failed(self) -> None: ...

    async def _send_offsets(self, consumer: Consumer[Any, Any]) -> None: ...

    async def _send_commits(
        self, consumer: Consumer[Any, Any], commits: Sequence[Commit]
    ) -> None: ...

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
        self._is_open = False
        self._ended_at = math.inf
        """When the block ended, on the loop's clock; infinity before."""

    async def __aenter__(self) -> Self:
        """Begin. Waits until the last transaction has ended for certain, for at most
        `delivery_timeout_ms`."""
        timeout = self._producer._options.transaction_timeout or self._default_timeout
        await self._producer._begin(self, timeout)
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
        if self._producer._open_transaction is not self:  # the close of the producer has aborted it
            if exc_value is None:
                raise ClosedError(
                    "the producer was closed in the transaction, which is not committed"
                )
            return None
        if exc_value is None:
            await self._producer._run_shielded(self._producer._commit)
            return None
        try:
            await self._producer._run_shielded(
                partial(self._producer._abort, _abort_error(exc_value))
            )
        except KafkaGroupError as error:  # the block's error must not be replaced
            exc_value.add_note(f"the transaction was not aborted: {error}")
        ending = self._producer._ending_error
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
        ConfigurationError for a consumer with `enable_auto_commit`, or without `group_id`;
        UnsupportedVersionError from brokers before 2.5, which do not compare the generation;
        AuthorizationError; RequestTimeoutError.
        """
        self._check_is_open()
        self._producer._raise_if_failed()
        await self._producer._send_offsets(consumer)

    def _check_is_open(self) -> None:
        if not self._is_open:
            raise IllegalStateError("the transaction is not open: use it in its `async with` block")

    def __repr__(self) -> str:
        return f"Transaction({self._producer!r})"


def _abort_error(cause: BaseException) -> KafkaGroupError:
    """Return the error of the records that are not acknowledged when a block raises `cause`."""
    error = KafkaGroupError(f"the transaction was aborted: {cause!r}")
    error.__cause__ = cause
    return error

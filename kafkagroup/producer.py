"""`Producer`: writes records to topics, each once and in order."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from threading import get_ident
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar

import anyio

from kafkagroup._backend import asyncio_loop
from kafkagroup._client_name import client_name
from kafkagroup._explained import keyword_error
from kafkagroup._generic import K_co, K_contra, KeyValueSink, V_co, V_contra
from kafkagroup._option_kinds import takes_options
from kafkagroup._public import public
from kafkagroup.consuming_transactions import ConsumingTransactions
from kafkagroup.errors import (
    BufferFullError,
    ClosedError,
    ClusterChangedError,
    ConfigurationError,
    ErrorCode,
    IllegalStateError,
    KafkaGroupError,
    NotStartedError,
    NotWrittenError,
    RequestTimeoutError,
    broker_error,
)
from kafkagroup.options import ProducerOptions
from kafkagroup.produce.accumulator import Accumulator, check_topic, read_headers
from kafkagroup.produce.identity import Identities
from kafkagroup.produce.partition_queue import MAX_IN_FLIGHT
from kafkagroup.runtime.client.connection_options import connection_options
from kafkagroup.runtime.client.late_modules import PRODUCE, LateModules
from kafkagroup.runtime.client.service import Service
from kafkagroup.runtime.consume.health import Health, HealthProblem, check_troubles, not_well
from kafkagroup.runtime.member.event_feed import EventFeed, GroupEvents
from kafkagroup.runtime.produce.metrics import ProducerMetrics
from kafkagroup.runtime.produce.producer_transactions import ProducerTransactions
from kafkagroup.runtime.produce.record_future import RecordFuture
from kafkagroup.runtime.produce.room import Room
from kafkagroup.runtime.produce.sender import Sender
from kafkagroup.runtime.produce.serializing import Serializing
from kafkagroup.runtime.produce.transactions import TransactionManager
from kafkagroup.transaction import Transaction
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import parse_servers
from kafkagroup.transport.security import Security
from kafkagroup.transport.trouble import Troubles
from kafkagroup.types import Headers, RecordMetadata, TopicPartition

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

    from anyio.abc import TaskGroup

    from kafkagroup.callbacks import Partitioner, Serializer
    from kafkagroup.consumer import Consumer
    from kafkagroup.wire.batch_writing import EncodedRecords

__all__ = ["Producer"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@public
class Producer(KeyValueSink[K_contra, V_contra], Service):
    """Writes records to topics: each once and in order, also if responses are lost and requests are
    repeated.

    ```python
    async with Producer(bootstrap_servers="localhost:9092") as producer:
        await producer.send("orders", b"3 apples", key=b"ann")
    ```

    On asyncio, `await start()` and `await stop()` work as well; on trio,
    `nursery.start(producer.run)`.
    """

    # `Explained` does not wrap it, as that would cost time for each record.
    _hot_methods = frozenset(("send_nowait",))

    @takes_options(ProducerOptions)
    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "kafkagroup",
        security: Security | None = None,
        key_serializer: Serializer[K_contra] | None = None,
        value_serializer: Serializer[V_contra] | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int | None = None,
        enable_idempotence: bool = True,
        acks: Literal["all", 0, 1, -1] = "all",
        compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
        compression_level: int | None = None,
        linger_ms: int = 0,
        batch_size: int = 1_000_000,
        buffer_memory: int = 33_554_432,
        partitioner: Partitioner | None = None,
        max_request_size: int = 1_048_576,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        metadata_recovery_rebootstrap_trigger_ms: int = 300_000,
        connections_max_idle_ms: int = 540_000,
        on_cluster_change: Literal["raise", "adopt"] = "raise",
        close_timeout: float = 10.0,
    ) -> None:
        """Raises: ConfigurationError.

        Args:
            bootstrap_servers: `host:port`, comma-separated or a sequence: the addresses of some
                brokers, through which the client finds the others. Default `'localhost:9092'`;
                Kafka's `bootstrap.servers`.
            client_id: The client's name in the brokers' logs and quotas. Default `'kafkagroup'`;
                Kafka's `client.id`.
            security: A `Security`: TLS, SASL or both; `None` is plain TCP.
            key_serializer: A function or coroutine function from a key to its bytes, not called for
                a null key; keys are bytes without one. Default `None`; Kafka's `key.serializer`.
            value_serializer: A function or coroutine function from a value to its bytes, not called
                for a null value, which stays null; values are bytes without one. Default `None`;
                Kafka's `value.serializer`.
            transactional_id: Makes the producer transactional: records are written in a
                `transaction()`. The id is that of one writer over its restarts: a producer that
                starts with it fences the ones before. Default `None`.
            transaction_timeout_ms: How long a transaction may be open before the coordinator aborts
                it, such as one of a producer that died; until then `read_committed` readers of its
                partitions wait. After 0.8 of that the client aborts it if records are not
                acknowledged, or if it is one of `transactions()`. `None`: 60,000, and 10,000 in
                `transactions()`. In milliseconds.
            enable_idempotence: Whether brokers refuse what is sent twice, and what is out of order;
                needs `acks='all'`. Without it a retry may write a record twice, and one batch of a
                partition is in flight. Default `True`; Kafka's `enable.idempotence`.
            acks: Which replicas must have a record: `"all"` that are in sync, `1`, the leader, or
                `0`, none, when the broker sends no response. Default `'all'`; Kafka's `acks`.
            compression_type: How batches are compressed. Default `'none'`; Kafka's
                `compression.type`.
            compression_level: How much work compression is: gzip 1 to 9, lz4 1 to 17, zstd -131072
                to 22; `None`: the default of the codec.
            linger_ms: How long a batch waits for further records before it is sent. With 0 it is
                sent as soon as the requests before it allow, with what has arrived until then. Less
                than `delivery_timeout_ms`. In milliseconds; default 0; Kafka's `linger.ms`.
            batch_size: The limit of a batch in bytes, before compression; a larger record has a
                batch of its own. Default 1,000,000; Kafka's `batch.size`.
            buffer_memory: The limit of the bytes of records that are accepted and not acknowledged;
                beyond it `send` waits and `send_nowait` raises `BufferFullError`. Default
                33,554,432; Kafka's `buffer.memory`.
            partitioner: A function (topic, key, number of partitions) that returns the number of a
                partition, or `None` for one that the producer chooses; without a function, as
                Java's producer: by the murmur2 hash of the key, and records without a key to one
                partition after the other, some kilobytes to each. Kafka's `partitioner.class`.
            max_request_size: The limit of a request, and so of a batch or record, in bytes, before
                compression. Default 1,048,576; Kafka's `max.request.size`.
            delivery_timeout_ms: How long an accepted record may take until it is acknowledged, with
                all that it waits for. In milliseconds; default 120,000; Kafka's
                `delivery.timeout.ms`.
            request_timeout_ms: How long a response may take. In milliseconds; default 30,000;
                Kafka's `request.timeout.ms`.
            retry_backoff_ms: Backoff before the first retry; it doubles, with jitter. In
                milliseconds; default 100; Kafka's `retry.backoff.ms`.
            retry_backoff_max_ms: Upper limit of that backoff, before its jitter of a fifth. In
                milliseconds; default 1,000; Kafka's `retry.backoff.max.ms`.
            metadata_max_age_ms: How old metadata may get. In milliseconds; default 300,000; Kafka's
                `metadata.max.age.ms`.
            metadata_recovery_rebootstrap_trigger_ms: How long all known brokers may fail before the
                client forgets their addresses and asks only the bootstrap addresses, whose names it
                resolves again (KIP-1102). It also asks those whenever no known broker responds. In
                milliseconds; default 300,000; Kafka's `metadata.recovery.rebootstrap.trigger.ms`.
            connections_max_idle_ms: Close a connection after this time without a request, before a
                load balancer or firewall forgets it; the next request opens another one. In
                milliseconds; default 540,000; Kafka's `connections.max.idle.ms`.
            on_cluster_change: What to do when no broker of the client's cluster responds and the
                bootstrap addresses lead to another cluster: `"raise"`: records wait for
                `delivery_timeout_ms`, until the cluster responds again; or, for a failover behind
                one name, `"adopt"` the other cluster and forget what was known of the earlier one:
                another producer id is requested. Not with a `transactional_id`. Default `'raise'`.
            close_timeout: Seconds that closing may take, with all that it waits for. Default
                `10.0`.
        """

    def _set_up(self, options: ProducerOptions) -> None:
        """Called by the constructor, with the checked options (`takes_options`)."""
        super().__init__(
            options.close_timeout,
            f"client_id={options.client_id!r}",
            LateModules(PRODUCE, secured=options.security is not None),
        )
        self._options = options
        self._servers = parse_servers(options.bootstrap_servers)
        self._client_options = connection_options(
            options, client_name("producer", options.client_id)
        )
        self._keys = Serializing("key", options.key_serializer)
        self._values = Serializing("value", options.value_serializer)
        self._identities: Identities | None = None
        if options.enable_idempotence:
            self._identities = Identities(is_coordinated=options.transactional_id is not None)
        self._transactions: ProducerTransactions | None = None
        """The transactions of a producer that has a `transactional_id`; None before its start."""
        self._feed = EventFeed()
        self._troubles = Troubles(self._feed.publish)
        self._tasks: TaskGroup | None = None
        self._cluster: Cluster | None = None
        self._sender: Sender | None = None
        self._error: Exception | None = None
        """The error with which the producer has failed; None if it has not."""
        self._unread: NotWrittenError | None = None
        """Set by the close: the error for the failed records whose results were not awaited."""
        self._has_serializers = bool(options.key_serializer or options.value_serializer)
        self._accepting_thread: int | None = None
        """The thread of the loop, while the producer accepts records; else None."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop of asyncio in which the producer runs; None on trio."""
        self._accumulator = Accumulator(
            batch_size=options.batch_size,
            max_request_size=options.max_request_size,
            buffer_memory=options.buffer_memory,
            delivery_timeout=options.delivery_timeout,
            max_in_flight=MAX_IN_FLIGHT,
            identities=self._identities,
            partitioner=options.partitioner,
            clock=anyio.current_time,
            wall_clock_ns=time_ns,
            random=random.random,
        )
        self._room = Room(self._accumulator)
        self._room_waiters = self._room.waiters

    def _on_fork(self) -> None:
        super()._on_fork()
        self._accepting_thread = None  # so that `send` and `send_nowait` call `_check_accepts`

    async def _open(self, tasks: TaskGroup) -> None:
        options = self._options
        self._tasks, self._loop = tasks, asyncio_loop()
        cluster = Cluster(self._servers, self._client_options, tasks, self._troubles)
        self._cluster = cluster
        await cluster.refresh()
        # `on_changed` does nothing: the error of a late record names the change as its cause.
        cluster.watch_identity(on_changed=lambda _: None, on_adopted=self._on_cluster_adopted)
        manager: TransactionManager | None = None
        if options.transactional_id is not None:
            timeout = options.transaction_timeout or Transaction._default_timeout
            manager = TransactionManager(
                cluster, tasks, options.transactional_id, timeout_ms=round(1000 * timeout)
            )
            await manager.initialize(anyio.current_time() + options.delivery_timeout)
        spawn = partial(self._spawn, tasks)
        self._sender = Sender(
            cluster,
            self._accumulator,
            self._identities,
            spawn,
            acks=options.acks,
            codec=options.compression_type,
            level=options.compression_level,
            linger=options.linger,
            delivery_timeout=options.delivery_timeout,
            max_request_size=options.max_request_size,
            metadata_max_age=options.metadata_max_age,
            transactions=manager,
        )
        self._sender.outcomes.on_room = self._room.notify
        self._sender.start()
        assert self._origin is not None
        self._accumulator.on_begin = self._origin.check_running
        if manager is None:
            self._set_accepting(True)
            return
        assert self._identities is not None  # a transactional producer is idempotent
        self._transactions = ProducerTransactions(
            manager,
            self._sender,
            self._accumulator,
            self._identities,
            spawn,
            delivery_timeout=options.delivery_timeout,
            request_timeout=options.request_timeout,
            check_open=self._check_open,
            until_stopped=self._until_stopped,
            set_accepting=self._set_accepting,
        )

    def _set_accepting(self, accepts: bool) -> None:
        self._accepting_thread = get_ident() if accepts else None

    def _on_cluster_adopted(self, _: ClusterChangedError) -> None:
        """Request an id of the adopted cluster: there the present one may be that of another
        producer. A transactional producer adopts none."""
        if self._sender is not None:
            self._sender.leave_cluster()

    # ------------------------------------------------------------ records

    async def send(
        self,
        topic: str,
        value: V_contra,
        *,
        key: K_contra | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        **unknown: Never,
    ) -> RecordMetadata:
        """Write a record; return where it is when it is acknowledged. Waits for room while
        `buffer_memory` is used up; calls get room in the order in which they began to wait.

        The record goes to `partition`. With None the `partitioner` of the producer decides; without
        one the key determines the partition, as in Java's producer, and a record without a key goes
        to any. `timestamp` in milliseconds since 1970; None: now. When the call is cancelled, an
        accepted record is written nevertheless.

        Raises: NotWrittenError, whose `is_maybe_written` says whether the record may be in the log
        all the same; ConfigurationError for what cannot be a record, one larger than
        `max_request_size`, and a partition that does not exist; what a serializer or the
        partitioner raises; BufferFullError if there is no room within `delivery_timeout_ms`;
        ClosedError. With a `transactional_id` also IllegalStateError outside of a transaction, and
        TransactionAbortedError in one that has failed.
        """
        # `Explained` would wrap a method without `unknown`, in a second coroutine for each record.
        if unknown:
            raise keyword_error(Producer.send, unknown)
        # Nearly always the producer runs on asyncio and accepts records, and this is its loop.
        loop = self._loop
        if self._accepting_thread is None or loop is None or asyncio_loop() is not loop:
            self._check_accepts()
        encoded_key: Any = key
        encoded_value: Any = value
        if self._has_serializers:
            transaction = self._open_transaction
            encoded_key = await self._keys.encoded(key)
            encoded_value = await self._values.encoded(value)
            self._check_still_accepts(transaction)
        if type(headers) is not tuple and headers is not None:
            headers = read_headers(headers)  # the record may be added twice, an iterator read once
        if not self._room_waiters:  # else they would wait longer for this record
            try:
                # As `_add`, without the call.
                batch = self._accumulator.add(
                    topic, partition, encoded_key, encoded_value, headers, timestamp
                )
            except BufferFullError:
                deadline = self._deadline()
            except ConfigurationError:
                deadline = self._deadline()
                if not await self._finds_partition(topic, partition, deadline):
                    raise
            else:
                return await RecordFuture(batch, loop)
        else:
            deadline = self._deadline()
        record = (topic, partition, encoded_key, encoded_value, headers, timestamp)
        future = await self._with_room(deadline, self._add, *record)
        with anyio.move_on_at(deadline):
            return await future
        # A task awaits the record, so that `flush` and the close do not raise its failure, too.
        assert self._tasks is not None
        self._spawn(self._tasks, partial(_await_end, future), "a late record")
        error = RequestTimeoutError(
            "no acknowledgement within"
            f" delivery_timeout_ms={self._options.delivery_timeout * 1000:g}, in part of which"
            " there was no room for the record, or its partition was looked up"
        )
        tp = TopicPartition(topic, -1 if partition is None else partition)
        raise NotWrittenError(tp, error, is_maybe_written=True) from error

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
        """Accept a record, which is then written in the background; arguments as of `send`. The
        result can be awaited, or not: `flush()` and the close raise failures that were not.

        Raises: BufferFullError while `buffer_memory` is used up, when headers that are an iterator
        have been read: give them anew with the next call; ConfigurationError for a coroutine
        function as serializer, and for a partition that is not known, which is then looked up, so
        that a later call finds one that was added; otherwise as `send`, but NotWrittenError only
        from the result.
        """
        if self._accepting_thread != get_ident():
            self._check_accepts()
        try:
            if self._has_serializers:
                encoded_key = self._keys.encoded_now(key)
                encoded_value = self._values.encoded_now(value)
                return self._add(topic, partition, encoded_key, encoded_value, headers, timestamp)
            # As `_add`, without the call.
            batch = self._accumulator.add(topic, partition, key, value, headers, timestamp)
        except ConfigurationError:
            if self._sender is not None:
                self._sender.find_partition_soon(topic, partition)
            raise
        return RecordFuture(batch, self._loop)

    async def send_many(
        self,
        topic: str,
        values: Iterable[V_contra],
        *,
        partition: int | None = None,
        headers: Headers = (),
    ) -> list[RecordMetadata]:
        """Write a record for each value, without keys; return where they are, in the order of
        `values`. Waits for room as `send` does.

        Raises: NotWrittenError for the first record that was not written, when all have ended; what
        else `send` raises at once, although the records before are accepted.
        """
        self._check_accepts()
        if not isinstance(values, Iterable):
            raise ConfigurationError(
                f"the values are of type {type(values).__name__}; expected an iterable, such as a"
                " list"
            )
        if type(headers) is not tuple and headers is not None:
            headers = read_headers(headers)  # an iterator can be read only once
        futures = []
        transaction = self._open_transaction
        for value in values:
            encoded = await self._values.encoded(value)
            self._check_still_accepts(transaction)
            futures.append(
                await self._with_room(
                    self._deadline(), self._add, topic, partition, None, encoded, headers, None
                )
            )
        return await _await_all(futures)

    def _accept_encoded(self, topic: str, partition: int, encoded: EncodedRecords) -> None:
        """Accept records that are encoded already, as one batch: those of Spark's sink. With -1 for
        `partition` the producer chooses one. The number of partitions must be known, from
        `_count_partitions`.

        Raises: NotWrittenError for earlier records that failed, as `flush` does; otherwise as
        `send_nowait`.
        """
        self._check_accepts()
        assert self._sender is not None
        self._sender.outcomes.raise_unread()
        self._accumulator.add_encoded(topic, partition, encoded)

    async def _accept_encoded_with_room(
        self, topic: str, partition: int, encoded: EncodedRecords
    ) -> None:
        """As `_accept_encoded`, but wait for room. Raises: BufferFullError if there is no room
        within `delivery_timeout_ms`; otherwise as `_accept_encoded`."""
        await self._with_room(self._deadline(), self._accept_encoded, topic, partition, encoded)

    async def _count_partitions(self, topic: str, known: int, timeout: float) -> int:
        """Return the number of a topic's partitions, looked up anew if it is not more than `known`.
        A missing topic is created where the brokers do so, and awaited for `timeout` seconds.

        Raises: BrokerError UNKNOWN_TOPIC_OR_PARTITION; AuthorizationError; TransportError; as
        `_check_accepts`.
        """
        self._check_accepts()
        assert self._cluster is not None
        assert self._sender is not None
        with self._until_stopped():
            with anyio.move_on_after(timeout):
                count = await self._sender.partition_count(topic)
                if count <= known:
                    await self._cluster.refresh()
                    count = await self._sender.partition_count(topic)
                return count
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise self._sender.cause(topic) or broker_error(code, f"there is no topic {topic}")

    def _deadline(self) -> float:
        """Return until when a record that is given now may wait, on the loop's clock."""
        return anyio.current_time() + self._options.delivery_timeout

    async def _with_room(self, deadline: float, accept: Callable[..., T], *record: Any) -> T:
        """Return `accept(*record)`, as soon as there is room, after the calls that wait already.
        `record`: the topic, the partition, and what else `accept` takes. Raises: BufferFullError if
        there is no room by the deadline; as `_accept` and `_check_still_accepts`."""
        waiters = self._room_waiters
        if not waiters:
            with suppress(BufferFullError):
                return await self._accept(deadline, accept, *record)
        transaction = self._open_transaction
        with self._room.waiting() as waiter:
            while True:
                is_late = anyio.current_time() >= deadline
                if waiter is waiters[0] or is_late:
                    try:
                        return await self._accept(deadline, accept, *record)
                    except BufferFullError:
                        if is_late:
                            raise
                await waiter.wait(deadline)
                self._check_still_accepts(transaction)

    async def _accept(self, deadline: float, accept: Callable[..., T], *record: Any) -> T:
        """Return `accept(*record)`, after a look-up if its partition is not known. Raises: as
        `accept` and `_finds_partition`."""
        try:
            return accept(*record)
        except ConfigurationError:
            topic, partition, *_ = record
            if not await self._finds_partition(topic, partition, deadline):
                raise
        return accept(*record)

    async def _finds_partition(self, topic: str, partition: int | None, deadline: float) -> bool:
        """Look up the partition of a record that was not accepted: it may have been added. Return
        whether it was found; False if it was known before. Raises: NotWrittenError if the look-up
        fails, or has no result at the deadline; as `_check_still_accepts`."""
        assert self._sender is not None
        transaction = self._open_transaction
        is_found = False
        with self._until_stopped(), anyio.move_on_at(deadline) as scope:
            try:
                is_found = await self._sender.finds_partition(topic, partition)
            except KafkaGroupError as failure:
                assert partition is not None  # else there is no look-up
                raise NotWrittenError(TopicPartition(topic, partition), failure) from failure
        if scope.cancelled_caught:
            assert partition is not None
            error = RequestTimeoutError(
                "no response to the look-up of the partition within"
                f" delivery_timeout_ms={self._options.delivery_timeout * 1000:g}"
            )
            raise NotWrittenError(TopicPartition(topic, partition), error)
        self._check_still_accepts(transaction)
        return is_found

    def _add(
        self,
        topic: str,
        partition: int | None,
        key: Any,
        value: Any,
        headers: Headers,
        timestamp: int | None,
    ) -> RecordFuture:
        batch = self._accumulator.add(topic, partition, key, value, headers, timestamp)
        return RecordFuture(batch, self._loop)

    # ------------------------------------------------------------ transactions

    def transaction(self) -> Transaction[K_contra, V_contra]:
        """Return a transaction, for `async with`: it begins there, is committed at the end of the
        block, and aborted if the block raises or is cancelled. Consumers with
        `isolation_level="read_committed"` see all of its records, or none.

        ```python
        async with producer.transaction() as tx:
            await tx.send("orders", b"3 apples")
            await tx.send_offsets(consumer)
        ```

        Raises: ConfigurationError without a `transactional_id`. The block raises what `Transaction`
        says.
        """
        self._require_id()
        return Transaction(self)

    def transactions(
        self, consumer: Consumer[K_co, V_co], *, max_records: int = 1_000, max_interval: float = 0.1
    ) -> ConsumingTransactions[K_co, V_co, K_contra, V_contra]:
        """Return an async iterator of transactions, each with the next records of a consumer: what
        the transaction writes, and the offsets after its records, are visible together.

        ```python
        async for tx in producer.transactions(consumer):
            async with tx as records:
                for record in records:
                    tx.send_nowait("out", record.value.upper(), key=record.key)
        ```

        A transaction begins with the first record, and takes what arrives within `max_interval`
        seconds, up to `max_records`. If it is aborted, the consumer returns to the positions where
        it began. A rebalance in which the consumer loses partitions aborts it, and the iteration
        continues. The iteration ends when the consumer is stopped. An error of the consumer, such
        as a DeserializationError, is raised after a transaction with the records before it.

        Raises: ConfigurationError without a `transactional_id`, or for a consumer without group,
        with `enable_auto_commit`, or without `isolation_level="read_committed"`.
        """
        self._require_id()
        return ConsumingTransactions(self, consumer, max_records, max_interval)

    def _require_id(self) -> None:
        if self._options.transactional_id is None:
            raise ConfigurationError("transactions need a producer with a transactional_id")

    def _started_transactions(self) -> ProducerTransactions:
        """Return the transactions of a producer with a `transactional_id`. Raises: as
        `_check_open`."""
        self._check_open()
        assert self._transactions is not None
        return self._transactions

    @property
    def _open_transaction(self) -> object:
        """The transaction that is open; None without one."""
        return None if self._transactions is None else self._transactions.open

    # ------------------------------------------------------------ waiting

    async def ready(self) -> None:
        """Wait until there is room for the record that was last refused with BufferFullError, and
        `max_request_size` bytes or half of `buffer_memory` are free. Raises: ClosedError."""
        self._check_open()
        with self._until_stopped():
            await self._room.wait_any()

    async def flush(self) -> None:
        """Wait until every record that was accepted so far is written, or has failed: at most
        `delivery_timeout_ms`. What lingers is sent at once.

        Raises: NotWrittenError, for all failures that were not awaited before, with their number;
        the next call does not raise it again.
        """
        self._check_open()
        assert self._sender is not None
        await self._sender.flush()

    async def partition_count(self, topic: str) -> int:
        """Return the number of a topic's partitions, by metadata that may be `metadata_max_age_ms`
        old. Never creates the topic.

        Raises: BrokerError, such as UNKNOWN_TOPIC_OR_PARTITION; AuthorizationError;
        AuthenticationError; TransportError; ConfigurationError for what is no topic's name;
        ClosedError.
        """
        self._check_open()
        cluster = self._cluster
        assert cluster is not None
        with self._until_stopped():
            check_topic(topic)
            found = cluster.metadata.topics.get(topic)
            # Without partitions the topic was absent or refused, which may have changed.
            if found is None or not found.partitions:
                with cluster.topics.during((topic,)):
                    await cluster.refresh()
                found = cluster.metadata.topics.get(topic)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error_code
        if found is None or (code and not found.partitions):
            message = f"topic {topic}"
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                message = f"there is no {message}"
            raise broker_error(code, message, operation="DESCRIBE", topic=topic)
        return len(found.partitions)

    # ------------------------------------------------------------ observing

    def metrics(self) -> ProducerMetrics:
        """Return what the producer has written since the start, and what it has not yet."""
        return ProducerMetrics() if self._sender is None else self._sender.metrics()

    def health(self) -> Health:
        """Return whether the producer works: true, or false with the reasons. Never raises. May be
        called from any thread."""
        if fork := self._fork_message:
            return not_well(HealthProblem.NOT_RUNNING, fork)
        error = self._error
        if error is None and self._transactions is not None:
            error = self._transactions.ending_error
        if error is not None:
            return not_well(HealthProblem.FAILED, _text_of(error))
        if self._sender is None or self.closed:
            return not_well(HealthProblem.NOT_RUNNING, "not started, or closed")
        return Health(tuple(check_troubles(self._sender.time, self._troubles)))

    def events(self, buffer: int = 256) -> GroupEvents:
        """Return an async iterator over the producer's events from now on: trouble that lasts, and
        its end. It ends after `stop`. A reader that is more than `buffer` events behind loses the
        oldest, and receives `EventsMissed`."""
        return self._feed.open(buffer, self._check_origin)

    # ------------------------------------------------------------ ends

    def _check_accepts(self) -> None:
        """Raises: as `_check_open`; IllegalStateError outside of a transaction, and as
        `_raise_if_failed` in one that has failed."""
        self._check_open()
        if self._transactions is not None and self._accepting_thread is None:
            self._transactions.raise_if_failed()
            raise IllegalStateError(
                "a producer with a transactional_id writes in transactions: `async with"
                " producer.transaction() as tx: await tx.send(...)`"
            )

    def _check_still_accepts(self, transaction: object) -> None:
        """Check again after a wait. `transaction`: the one that was open before it. Raises: as
        `_check_accepts`; IllegalStateError if that transaction has ended; TransactionAbortedError
        if it has failed."""
        self._check_accepts()
        if self._open_transaction is not transaction:
            raise IllegalStateError("the transaction of this record has ended; await its `send`")
        if self._transactions is not None:
            self._transactions.raise_if_failed()

    def _check_open(self) -> None:
        self._check_origin()
        if self._error is not None:
            text = _text_of(self._error)
            raise ClosedError(f"the producer has failed: {text}") from self._error
        if self.closed:
            raise ClosedError("the producer is closed; make a new one")
        if self._sender is None:
            raise NotStartedError("the producer is not started; use `async with` or start()")

    async def stop(self) -> None:
        """Wait for what was accepted, within the close timeout, and close. A transaction whose
        block is still running is aborted. A second call does nothing, and so does a call in a
        process that was forked from the one that started it.

        Raises: NotWrittenError for records that failed, or were not acknowledged in time, and whose
        results were not awaited.
        """
        await super().stop()
        self._raise_unread()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await super().__aexit__(exc_type, exc_value, traceback)
        if exc_value is None:  # otherwise that is raised, and unread failures are only logged
            self._raise_unread()

    def _raise_unread(self) -> None:
        failure, self._unread = self._unread, None
        if failure is not None:
            raise failure

    async def _close(self) -> None:
        self._accepting_thread = None
        self._room.notify_all()  # calls that wait for room raise ClosedError
        try:
            if (sender := self._sender) is not None:
                await self._finish(sender)
        finally:
            self._feed.close()
            self._cancel_requests()
            if self._cluster is not None:
                await self._cluster.aclose()

    async def _finish(self, sender: Sender) -> None:
        """Wait for what was accepted, with a part of the close timeout; fail the rest."""
        timeout = self._close_timeout * _FLUSH_FRACTION
        try:
            if self._error is None:
                with anyio.move_on_after(timeout):
                    if self._transactions is not None:
                        await self._transactions.end(timeout)
                    await sender.wait_all()
        finally:
            if self._transactions is not None:
                self._transactions.close()
            sender.fail_late(timeout)
            try:
                sender.outcomes.raise_unread()
            except NotWrittenError as error:
                self._unread = error
                logger.error("%r was closed: %s", self, error)

    def _crashed(self, error: Exception) -> None:
        """Fail the producer, because a background task has failed: nothing would be sent any
        more."""
        if self._error is not None or self.closed:
            return
        self._error, self._accepting_thread = error, None
        if self._sender is not None:
            self._sender.fail_all(_as_kafka_group_error(error))
        self._room.notify_all()


_FLUSH_FRACTION = 0.9
"""The part of the close timeout for the records; the rest is for the connections."""


def _as_kafka_group_error(error: Exception) -> KafkaGroupError:
    if isinstance(error, KafkaGroupError):
        return error
    return KafkaGroupError(f"the producer has failed: {error!r}")


def _text_of(error: Exception) -> str:
    """Return what an error says; its name if it says nothing, as MemoryError does."""
    return str(error) or repr(error)


async def _await_end(future: RecordFuture) -> None:
    with suppress(NotWrittenError):  # `send` has raised an error already
        await future


async def _await_all(futures: Sequence[RecordFuture]) -> list[RecordMetadata]:
    """Return the results in order. Raises: the failure of the first record that failed, when all
    have ended."""
    found: list[RecordMetadata] = []
    failure: KafkaGroupError | None = None
    for future in futures:
        try:
            found.append(await future)
        except KafkaGroupError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return found

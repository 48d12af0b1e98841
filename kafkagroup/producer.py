"""`Producer`: appends records to topics, partitioned as Kafka's own producers do.

For tools. A call returns when all its records are in their logs, at least once. There are no
transactions and no producer id: if a response is lost, its batch may be in the log twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import anyio

from kafkagroup._foreign_options import explains_unknown_options
from kafkagroup._new_records import check_new_record
from kafkagroup._option_kinds import takes_options
from kafkagroup._public import public
from kafkagroup._timestamps import check_timestamp
from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    ConfigurationError,
    ErrorCode,
    KafkaGroupError,
    NotWrittenError,
    RecordRefusedError,
    broker_error,
)
from kafkagroup.options import ProducerOptions
from kafkagroup.runtime.client.calls import CallingService
from kafkagroup.runtime.client.late_modules import PRODUCE
from kafkagroup.runtime.produce.appending import append
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.security import Security
from kafkagroup.types import NO_TIMESTAMP, TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.murmur2 import partition_of

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ["Producer"]

_BATCH_BYTES = 512 << 10
"""The limit of keys, values and headers in one batch, before compression. Brokers accept 1 MB."""

_TOPIC_MAX_IDLE = 300.0
"""Seconds after the last write to a topic for which its metadata is refreshed with others'."""

_RECORD_BYTES = 32
"""The size of a record without key, value and headers, approximately."""


class _Indexed(NamedTuple):
    """A record, and its index in the call."""

    index_in_call: int
    record: NewRecord

    @property
    def size(self) -> int:
        _, (key, value, _, headers) = self
        header_bytes = sum(len(name) + len(content or b"") for name, content in headers)
        return _RECORD_BYTES + len(key or b"") + len(value or b"") + header_bytes


@public
class Producer(CallingService):
    """Writes records to topics.

    ```python
    async with Producer(bootstrap_servers="localhost:9092") as producer:
        await producer.write("orders", [NewRecord(b"ann", b"3 apples")])
    ```

    Also `await start()` and `await stop()` on asyncio, and `nursery.start(producer.run)` on trio.
    """

    @explains_unknown_options
    @takes_options(ProducerOptions)
    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "kafkagroup",
        security: Security | None = None,
        compression: Codec = Codec.NONE,
        request_timeout_ms: int = 30_000,
        delivery_timeout_ms: int = 120_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        metadata_recovery_rebootstrap_trigger_ms: int = 300_000,
        connections_max_idle_ms: int = 540_000,
        on_cluster_change: Literal["raise", "adopt"] = "raise",
        close_timeout: float = 10.0,
    ) -> None:
        """`delivery_timeout_ms` bounds each batch with all its retries.

        Raises: ConfigurationError.

        Args:
            bootstrap_servers: `host:port`, comma-separated or a sequence: the addresses of some
                brokers, through which the client finds the others. Default `'localhost:9092'`;
                Kafka's `bootstrap.servers`.
            client_id: The client's name in the brokers' logs and quotas. Default `'kafkagroup'`;
                Kafka's `client.id`.
            security: A `Security`: TLS, SASL or both; `None` is plain TCP.
            compression: How batches are compressed. Default `Codec.NONE`; Kafka's
                `compression.type`.
            request_timeout_ms: How long a response may take. In milliseconds; default 30,000;
                Kafka's `request.timeout.ms`.
            delivery_timeout_ms: How long writing a batch may take, including its retries. In
                milliseconds; default 120,000; Kafka's `delivery.timeout.ms`.
            retry_backoff_ms: Backoff before the first retry; it doubles, with jitter. In
                milliseconds; default 100; Kafka's `retry.backoff.ms`.
            retry_backoff_max_ms: Upper limit of that backoff. In milliseconds; default 1,000;
                Kafka's `retry.backoff.max.ms`.
            metadata_recovery_rebootstrap_trigger_ms: How long all known brokers may fail before the
                client forgets their addresses and asks only the bootstrap addresses, whose names it
                resolves again (KIP-1102). It also asks those whenever no known broker responds. In
                milliseconds; default 300,000; Kafka's `metadata.recovery.rebootstrap.trigger.ms`.
            connections_max_idle_ms: Close a connection after this time without a request, before a
                load balancer or firewall forgets it; the next request opens another one. In
                milliseconds; default 540,000; Kafka's `connections.max.idle.ms`.
            on_cluster_change: What to do when no broker of the client's cluster responds and the
                bootstrap addresses lead to another cluster: `"raise"` `ClusterChangedError` once a
                minute, until the cluster responds again; or, for a failover behind one name,
                `"adopt"` the other cluster and forget what was known of the earlier one: a member
                rejoins, and positions are looked up anew. Default `'raise'`.
            close_timeout: Seconds that closing may take, including the record in flight, the commit
                and leaving. Default `10.0`.
        """

    def _set_up(self, options: ProducerOptions) -> None:
        super().__init__(options, options.delivery_timeout, PRODUCE)
        self._codec = options.compression
        self._write_count = 0
        """The number of `write` calls. Modulo the partition count, it is the partition for records
        without a key."""
        self._used_at: dict[str, float] = {}
        """Topic -> when it was last written to."""

    async def _open(self, tasks: TaskGroup) -> None:
        await super()._open(tasks)
        self._calls.opened().topics.follow(self._topics_in_use)

    def _topics_in_use(self) -> Iterable[str]:
        least = anyio.current_time() - _TOPIC_MAX_IDLE
        self._used_at = {topic: at for topic, at in self._used_at.items() if at >= least}
        return self._used_at

    async def partition_count(self, topic: str) -> int:
        """Return the number of a topic's partitions. Never creates the topic.

        Raises: BrokerError UNKNOWN_TOPIC_OR_PARTITION; AuthorizationError; TransportError.
        """
        self._check_origin()
        cluster = self._calls.opened()
        self._used_at[topic] = anyio.current_time()
        if topic not in cluster.metadata.topics:
            await self._calls.once(lambda cluster: cluster.refresh())
        found = cluster.metadata.topics.get(topic)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error_code
        if found is None or (code and not found.partitions):
            self._used_at.pop(topic, None)
            message = f"topic {topic}"
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                message = f"there is no {message}"
            raise broker_error(code, message, operation="DESCRIBE", topic=topic)
        return len(found.partitions)

    async def write(
        self, topic: str, records: Iterable[NewRecord], *, partition: int | None = None
    ) -> None:
        """Append records; return when all in-sync replicas have them. The records of one partition
        keep their order, if calls do not overlap.

        All records go to `partition`. With None, the key determines a record's partition, and the
        records without a key go to one partition together. A record without a timestamp gets the
        current time.

        Raises: ConfigurationError for a partition that does not exist, a timestamp below -1, and
        what is not a NewRecord of bytes; what `partition_count` raises; NotWrittenError, after
        which other records of the call may have been written. When the call is cancelled, requests
        in flight may still be appended.
        """
        count = await self.partition_count(topic)
        if partition is not None and not 0 <= partition < count:
            raise ConfigurationError(f"topic {topic!r} has partitions 0 to {count - 1}")
        logs: dict[TopicPartition, list[_Indexed]] = {}
        now = time.time_ns() // 1_000_000
        for index, record in enumerate(records):
            check_new_record(record, index)
            check_timestamp(record.timestamp)
            if record.timestamp == NO_TIMESTAMP:
                record = record._replace(timestamp=now)
            if partition is not None:
                number = partition
            elif record.key is None:
                number = self._write_count % count
            else:
                number = partition_of(record.key, count)
            logs.setdefault(TopicPartition(topic, number), []).append(_Indexed(index, record))
        self._write_count += 1
        await self._late_modules.import_others()
        await self._write(logs)

    async def _write(self, logs: Mapping[TopicPartition, Sequence[_Indexed]]) -> None:
        failures: list[NotWrittenError] = []

        async def write(tp: TopicPartition, records: Sequence[_Indexed]) -> None:
            # One batch at a time keeps their order.
            for batch in _batches(records):
                try:
                    await self._append(tp, batch)
                except NotWrittenError as error:
                    failures.append(error)
                    return

        async with anyio.create_task_group() as tasks:
            for tp, records in logs.items():
                tasks.start_soon(write, tp, records)
        if failures:
            raise min(failures, key=lambda error: error.index)

    async def _append(self, tp: TopicPartition, batch: Sequence[_Indexed]) -> None:
        """Raises: NotWrittenError."""
        data = encode_batch([record for _, record in batch], codec=self._codec)

        async def append_batch(cluster: Cluster) -> None:
            self._used_at[tp.topic] = anyio.current_time()
            try:
                await append(cluster, tp, data)
            except (BrokerError, *RETRIED_ERRORS) as error:
                if not isinstance(error, BrokerError) or error.stale_metadata:
                    await cluster.refresh()  # the leader may have changed
                raise

        try:
            await self._calls.once(append_batch)
        except BrokerError as error:
            if error.code == ErrorCode.MESSAGE_TOO_LARGE and len(batch) > 1:
                # The topic has a lower limit: send two smaller batches.
                half = len(batch) // 2
                await self._append(tp, batch[:half])
                await self._append(tp, batch[half:])
                return
            at = error.index if isinstance(error, RecordRefusedError) else 0
            raise NotWrittenError(batch[min(at, len(batch) - 1)].index_in_call, error) from error
        except KafkaGroupError as error:
            raise NotWrittenError(batch[0].index_in_call, error) from error


def _batches(records: Sequence[_Indexed]) -> Iterable[Sequence[_Indexed]]:
    """Split records into batches that brokers accept. A larger record has a batch of its own."""
    start = size = 0
    for n, record in enumerate(records):
        more = record.size
        if size and size + more > _BATCH_BYTES:
            yield records[start:n]
            start = n
            size = 0
        size += more
    yield records[start:]

"""`Consumer`: an async iterator over the records of the partitions assigned to it.

The public interface is here; the tasks are in `runtime`. A record counts as processed when the next
one is requested, so an auto-commit never runs ahead of the application; a call of `commit()` also
counts the record in flight as processed. A cancelled await loses nothing: the record is taken
synchronously, after the last point where the call can be cancelled.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import anyio

from kafkagroup._generic import K_co, KeyValueGeneric, V_co
from kafkagroup._option_kinds import takes_options
from kafkagroup._public import public
from kafkagroup._values import evolve
from kafkagroup.assign import Assignor
from kafkagroup.callbacks import (
    AssignedCallback,
    DeserializationErrorPolicy,
    Deserializer,
    PartitionLoads,
    PartitionsCallback,
)
from kafkagroup.consume.conversion import Conversion
from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.lag import lag_of
from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
from kafkagroup.consume.partitions import (
    ByPartition,
    Partition,
    Partitions,
    check_record_limit,
    check_text,
    offsets_of,
    partition_of,
    partitions_of,
    seconds_of,
    times_of,
)
from kafkagroup.consume.subscription import Topics, checked_pattern, checked_topics
from kafkagroup.errors import (
    ClosedError,
    ConfigurationError,
    IllegalStateError,
    NotAssignedError,
    NotStartedError,
    RequestTimeoutError,
)
from kafkagroup.options import ConsumerOptions, OffsetReset
from kafkagroup.runtime.client.connection_options import connection_options
from kafkagroup.runtime.client.late_modules import late_modules_of_consumer
from kafkagroup.runtime.client.service import Service
from kafkagroup.runtime.consume.batches import ArrowBatches, Batches
from kafkagroup.runtime.consume.reader import NothingArrived, Reader, Records
from kafkagroup.runtime.consume.session import Session
from kafkagroup.runtime.member.event_feed import GroupEvents
from kafkagroup.runtime.member.metrics import GroupMetrics
from kafkagroup.runtime.offsets.values import EARLIEST, LATEST, READ_COMMITTED
from kafkagroup.transport.options import parse_servers
from kafkagroup.transport.origin import Origin
from kafkagroup.types import (
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Record,
    TopicPartition,
)
from kafkagroup.wire.arrow import schema

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from kafkagroup.concurrency.coalescing_task import Spawn
    from kafkagroup.runtime.consume.engine import Engine
    from kafkagroup.runtime.consume.health import Checkup, Health
    from kafkagroup.runtime.member.interfaces import MemberFactory
    from kafkagroup.transport.cluster import Cluster
    from kafkagroup.transport.metadata import Node
    from kafkagroup.transport.security import Security

__all__ = ["Consumer"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@public
class Consumer(Service, KeyValueGeneric[K_co, V_co]):
    """Consumes topics, alone or as a member of a group.

    ```python
    async with Consumer("orders", bootstrap_servers="localhost:9092", group_id="billing") as c:
        async for record in c:
            await bill(record.value)
    ```

    On asyncio, `await start()` and `await stop()` work as well, from any task; on trio,
    `nursery.start(consumer.run)`. One task iterates at a time.

    Calls take topics by name, several as arguments or in a list. They take a partition as
    `TopicPartition("orders", 0)` or `("orders", 0)`, and several in an iterable; `pause`, `resume`
    and `seek_to_beginning` or `seek_to_end` take several arguments, too.
    """

    _hot_methods = frozenset(("getone",))  # `Explained` adds nothing to its calls

    @takes_options(ConsumerOptions)
    def __init__(
        self,
        *topics: Topics,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        group_id: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        group_instance_id: str | None = None,
        client_id: str = "kafkagroup",
        assignors: Sequence[Assignor] | None = None,
        partition_loads: PartitionLoads | None = None,
        auto_offset_reset: OffsetReset = "earliest",
        auto_offset_reset_new_partitions: Literal["earliest", "policy"] = "earliest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        committed_offsets_max_age_ms: int = 60_000,
        group_protocol: Literal["classic", "consumer", "auto"] = "classic",
        group_remote_assignor: str | None = None,
        security: Security | None = None,
        leave_group_on_close: bool | None = None,
        session_timeout_ms: int | None = None,
        heartbeat_interval_ms: int | None = None,
        heartbeat_thread: bool = False,
        membership: MemberFactory | None = None,
        rebalance_timeout_ms: int | None = None,
        max_poll_interval_ms: int = 300_000,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 52_428_800,
        max_partition_fetch_bytes: int = 1_048_576,
        fetch_max_wait_ms: int = 500,
        isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        check_crcs: bool = True,
        max_batch_bytes: int = 134_217_728,
        max_frame_bytes: int = 104_857_600,
        client_rack: str | None = None,
        metadata_max_age_ms: int = 300_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        request_timeout_ms: int = 30_000,
        metadata_recovery_rebootstrap_trigger_ms: int = 300_000,
        connections_max_idle_ms: int = 540_000,
        on_cluster_change: Literal["raise", "adopt"] = "raise",
        close_timeout: float = 10.0,
        exclude_internal_topics: bool = True,
        on_partitions_assigned: AssignedCallback | None = None,
        on_partitions_revoked: PartitionsCallback | None = None,
        on_partitions_lost: PartitionsCallback | None = None,
        views: bool = False,
        key_deserializer: Deserializer[K_co] | None = None,
        value_deserializer: Deserializer[V_co] | None = None,
        on_deserialization_error: DeserializationErrorPolicy = "raise",
    ) -> None:
        """The defaults lose nothing: a group without a committed offset starts at the beginning,
        and only what was processed is committed.

        Raises: ConfigurationError.

        Args:
            topics: Names of topics, several as arguments or in a list. Without any, give a
                `pattern`, or call `subscribe` or `assign`.
            bootstrap_servers: `host:port`, comma-separated or a sequence: the addresses of some
                brokers, through which the client finds the others. Default `'localhost:9092'`;
                Kafka's `bootstrap.servers`.
            group_id: The group; without one, the consumer reads all partitions of the topics and
                commits nothing. Default `None`; Kafka's `group.id`.
            pattern: Instead of topics: a regular expression that whole topic names must match; a
                metadata refresh finds new topics. Default `None`.
            group_instance_id: Static membership: a name that this member keeps across restarts, so
                that a restart within the session timeout causes no rebalance. Default `None`;
                Kafka's `group.instance.id`.
            client_id: The client's name in the brokers' logs and quotas. Default `'kafkagroup'`;
                Kafka's `client.id`.
            assignors: The assignors that this member supports, from `kafkagroup.assign`; `None`:
                range, cooperative-sticky, round-robin, so that it shares one with every common
                client. Kafka's `partition.assignment.strategy`.
            partition_loads: For `weighted_sticky`: a function or coroutine function that the leader
                calls for partition -> load; `LoadsFile` is one. Default `None`.
            auto_offset_reset: Where to start without a committed offset: `"earliest"`, `"latest"`,
                `"none"` (an error), or a `timedelta` back from now. Default `'earliest'`; Kafka's
                `auto.offset.reset`.
            auto_offset_reset_new_partitions: Where to start a partition without a committed offset
                that was created while this consumer was subscribed to its topic: `"earliest"`, at
                its beginning, or `"policy"`, where `auto_offset_reset` says. Default `'earliest'`.
            enable_auto_commit: Commit processed records periodically, before a revocation and on
                close. Default `True`; Kafka's `enable.auto.commit`.
            auto_commit_interval_ms: Time between these commits. In milliseconds; default 5,000;
                Kafka's `auto.commit.interval.ms`.
            committed_offsets_max_age_ms: Without a membership: how old the acknowledgement of a
                committed offset may get before an auto-commit, or a `commit()`, looks the offset
                up, and sends it again if the broker has deleted it. In milliseconds; default
                60,000.
            group_protocol: Who assigns partitions: `"classic"`, one of the members; `"consumer"`,
                the coordinator (KIP-848; brokers 4.0 and later); `"auto"`, the coordinator if it
                supports KIP-848, can upgrade the group and accepts the pattern, else a member;
                always a member with `assignors`, which `"consumer"` does not accept. With
                `"consumer"` the broker matches a `pattern` (RE2J), and looks for new topics at most
                every 10 s. Default `'classic'`; Kafka's `group.protocol`.
            group_remote_assignor: With `"consumer"` and `"auto"`: the coordinator's assignor,
                `'uniform'` or `'range'`; `None`: the broker's default. Kafka's
                `group.remote.assignor`.
            security: A `Security`: TLS, SASL or both; `None` is plain TCP.
            leave_group_on_close: Leave the group on close, so that it does not wait for the session
                timeout; `None`: static members stay, the others leave. `True` removes a static
                member, too (KIP-1092).
            session_timeout_ms: How long the coordinator waits for a heartbeat before it removes the
                member; `None`: 45,000. If the coordinator assigns (KIP-848), it waits for its own
                `group.consumer.session.timeout.ms`, and this is how long the member keeps its
                partitions without a response. In milliseconds; Kafka's `session.timeout.ms`.
            heartbeat_interval_ms: Time between two heartbeats; less than the session timeout;
                `None`: 1,000. If the coordinator assigns (KIP-848), an interval of the broker above
                5 s takes precedence. In milliseconds; Kafka's `heartbeat.interval.ms`.
            heartbeat_thread: Run the membership in a thread with its own event loop, so that
                heartbeats continue while the application blocks its loop; records, commits and
                callbacks stay in the application's loop. Code that holds the interpreter lock stops
                the thread too; a token callback of `security` is called in both threads. Default
                `False`.
            membership: The group coordination, if not Kafka's: a `ZooKeeperMembership`. Default
                `None`.
            rebalance_timeout_ms: How long members may take to finish their work and rejoin in a
                rebalance; `None`: `max_poll_interval_ms`. In milliseconds.
            max_poll_interval_ms: Longest time between two calls for records while the consumer owns
                partitions. If it is exceeded, the member leaves the group, and rejoins at the next
                call. In milliseconds; default 300,000; Kafka's `max.poll.interval.ms`.
            fetch_min_bytes: Minimum bytes of a fetch response; the broker waits for them at most
                `fetch_max_wait_ms`. With more than 1, the first fetch after a seek, a resume or a
                new partition waits too, unless another fetch is pending at the broker: then this
                first fetch returns at once. Default 1; Kafka's `fetch.min.bytes`.
            fetch_max_bytes: Limit of one fetch response. In bytes; default 52,428,800; Kafka's
                `fetch.max.bytes`.
            max_partition_fetch_bytes: Limit of one partition in a fetch response. In bytes; default
                1,048,576; Kafka's `max.partition.fetch.bytes`.
            fetch_max_wait_ms: How long the broker may wait for `fetch_min_bytes`. With
                `fetch_min_bytes` of at most 1 and a value of at least 500, the wait grows up to
                5,000 while no records arrive. A seek, a resume or a new partition does not wait for
                a pending fetch. In milliseconds; default 500; Kafka's `fetch.max.wait.ms`.
            isolation_level: `"read_committed"`: deliver no records of open or aborted transactions.
                Default `'read_uncommitted'`; Kafka's `isolation.level`.
            check_crcs: Check each batch's CRC-32C before its records are delivered. Default `True`;
                Kafka's `check.crcs`.
            max_batch_bytes: Limit of one batch, decompressed; a larger one is an error. In bytes;
                default 134,217,728.
            max_frame_bytes: Limit of one response of a broker; a larger one closes the connection.
                In bytes; default 104,857,600.
            client_rack: The rack of this client: brokers may name a nearby replica to fetch from
                (KIP-392). Default `None`; Kafka's `client.rack`.
            metadata_max_age_ms: How old metadata may get. In milliseconds; default 300,000; Kafka's
                `metadata.max.age.ms`.
            retry_backoff_ms: Backoff before the first retry; it doubles, with jitter. In
                milliseconds; default 100; Kafka's `retry.backoff.ms`.
            retry_backoff_max_ms: Upper limit of that backoff, before its jitter of a fifth. In
                milliseconds; default 1,000; Kafka's `retry.backoff.max.ms`.
            request_timeout_ms: How long a response may take. In milliseconds; default 30,000;
                Kafka's `request.timeout.ms`.
            metadata_recovery_rebootstrap_trigger_ms: How long all known brokers may fail before the
                client forgets their addresses and asks only the bootstrap addresses, whose names it
                resolves again (KIP-1102). It also asks those whenever no known broker responds. In
                milliseconds; default 300,000; Kafka's `metadata.recovery.rebootstrap.trigger.ms`.
            connections_max_idle_ms: Close a connection after this time without a request, before a
                load balancer or firewall forgets it; the next request opens another one. In
                milliseconds; default 540,000; Kafka's `connections.max.idle.ms`.
            on_cluster_change: What to do when no broker of the client's cluster responds and the
                bootstrap addresses lead to another cluster: `"raise"`: raise `ClusterChangedError`
                once a minute, until the cluster responds again; or, for a failover behind one name,
                `"adopt"` the other cluster and forget what was known of the earlier one: a member
                rejoins, and positions are looked up anew. Default `'raise'`.
            close_timeout: Seconds that closing may take, with all that it waits for. Default
                `10.0`.
            exclude_internal_topics: Whether a pattern ignores internal topics; one that the broker
                matches (KIP-848) may have them all the same. Default `True`; Kafka's
                `exclude.internal.topics`.
            on_partitions_assigned: A function or coroutine function, called with the partitions,
                sorted. It may return a mapping of partitions to the offsets where they start.
                Default `None`.
            on_partitions_revoked: Called with the partitions that are revoked, after the
                auto-commit and before they are released. Default `None`.
            on_partitions_lost: Called with the partitions that the member has lost: another member
                may own them already, and their offsets cannot be committed. Default `None`.
            views: Keys and values are read-only memoryviews of the fetched batch instead of bytes.
                This saves copies, which pays for values of several KB; a record then keeps its
                whole batch in memory, and cannot be hashed or pickled. Default `False`.
            key_deserializer: A function or coroutine function, called with the bytes of each key
                that is not null; with `views`, with a memoryview. Default `None`; Kafka's
                `key.deserializer`.
            value_deserializer: A function or coroutine function, called with the bytes of each
                value that is not null; with `views`, with a memoryview. Default `None`; Kafka's
                `value.deserializer`.
            on_deserialization_error: How to handle a record whose deserializer fails: `"raise"` the
                error at each call until the application seeks past the record; `"skip"` it, with a
                warning, and count it in `metrics()`; or a function or coroutine function, called
                with the record and the error, that returns the record to deliver instead, or `None`
                to skip it. Default `'raise'`.
        """

    def _set_up(self, options: ConsumerOptions, *topics: Topics) -> None:
        """Called by the constructor, with the checked options (`takes_options`)."""
        super().__init__(
            options.close_timeout,
            f"group_id={options.group_id!r}, client_id={options.client_id!r}",
            late_modules_of_consumer(options),
        )
        self._options = options
        self._servers = parse_servers(options.bootstrap_servers)
        self._subscription = checked_topics(topics)
        self._pattern = checked_pattern(options.pattern, topics)
        self._delivery = Delivery(
            Conversion.of(
                options.key_deserializer,
                options.value_deserializer,
                options.on_deserialization_error,
            ),
            views=options.views,
        )
        self._session = Session(options, self._delivery)
        self._client_options = connection_options(
            options, self._session.log.name, options.max_frame_bytes
        )
        self._is_assigned_manually = False
        """Whether `assign` chose the partitions, so that there is no membership."""
        self._is_changing = False
        """Whether `unsubscribe` or `assign` is under way."""
        self._engine: Engine | None = None
        self._reader = Reader(self._session, self._rejoin)
        self._unsettled_transaction: Any = None
        """The last ConsumingTransaction, if its records may have to be delivered again: it was not
        entered, or its outcome is not known. Else None."""
        self._checkup: Checkup | None = None
        """Set by the first call of `health`."""

    # ------------------------------------------------------------ iteration

    def __aiter__(self) -> AsyncIterator[Record[K_co, V_co]]:
        self._check_origin()
        return Records(self._reader, self.getone)

    async def __anext__(self) -> Record[K_co, V_co]:
        """Return the next record; the one before it now counts as processed.

        Raises: OffsetOutOfRangeError, NoOffsetError, CorruptRecordError, DeserializationError,
        BrokerError, FencedError, what a callback raised; ConsumerBusyError (also anyio's
        BusyResourceError) while another task waits for records; ConfigurationError without any
        subscription or assignment; NotStartedError. Iteration ends after `stop`.
        """
        try:
            return await self.getone()
        except NotStartedError:  # a ClosedError that must not end the iteration
            raise
        except ClosedError:
            raise StopAsyncIteration from None

    @overload
    def batches(
        self, max_records: int = 1_000, *, arrow: Literal[False] = False
    ) -> Batches[K_co, V_co]: ...

    @overload
    def batches(self, max_records: int = 1_000, *, arrow: Literal[True]) -> ArrowBatches: ...

    def batches(
        self, max_records: int = 1_000, *, arrow: bool = False
    ) -> Batches[K_co, V_co] | ArrowBatches:
        """Iterate over batches. A batch has records of one partition, and counts as processed when
        the next batch is requested.

        With `arrow` batches are pyarrow.RecordBatches, built without an object for each record; the
        schema's metadata names topic and partition. Needs the extra `arrow`, and no deserializers.
        """
        check_record_limit(max_records)
        if not arrow:
            return Batches(lambda: self._next(lambda: self._delivery.next_batch(max_records)))
        if self._delivery.conversion is not None:
            raise ConfigurationError("Arrow has columns of bytes; leave out the deserializers")
        # Imports pyarrow now. An ImportError with the first batch would lose that batch: the next
        # call would count it as processed. The import also blocks the loop for tenths of a second.
        schema("", 0)
        delivery = self._delivery
        return ArrowBatches(
            lambda: self._next(lambda: delivery.next_batch(max_records, undecoded=True))
        )

    async def getone(self) -> Record[K_co, V_co]:
        """Return the next record, as iteration does; raise ClosedError after `stop`."""
        record: Record[K_co, V_co] | None = self._reader.ready_here()
        if record is not None:
            return record
        return await self._next(self._delivery.next_record)

    async def getmany(
        self, max_records: int = 500, timeout: float = 0.0
    ) -> dict[TopicPartition, list[Record[K_co, V_co]]]:
        """Return up to `max_records` records that have arrived, by partition.

        Waits up to `timeout` seconds (`math.inf`: without a limit) for the first record, also while
        a thread decompresses it. The records of the previous call now count as processed. Without
        any subscription or assignment the result is empty, and after 10 s of such calls a warning
        is logged; with `math.inf` such a call raises ConfigurationError.

        If the consumer is closed meanwhile, the result is empty: a loop `while not consumer.closed`
        ends. A call after that raises ClosedError.
        """
        check_record_limit(max_records)
        self._check_origin()
        found: dict[TopicPartition, list[Record[K_co, V_co]]] = {}
        seconds, was_closed = seconds_of(timeout), self.closed
        try:
            batches = await self._next(
                lambda: self._delivery.next_batches(max_records) or None,
                anyio.current_time() + seconds,
            )
        except NothingArrived:
            return found
        except ClosedError:
            if was_closed or not self._was_started:
                raise
            return found
        for batch in batches:
            tp = TopicPartition(batch.topic, batch.partition)
            found.setdefault(tp, []).extend(batch.records)
        return found

    async def _next(self, take: Callable[[], T | None], until: float = math.inf) -> T:
        """Poll with `take`, as `Reader.next` does, until a time on the loop's clock."""
        # Do not check for closing here: this call must still count the last record as processed.
        self._raise_if_not_started()
        self._check_origin()
        # A poll in a callback would count the record as processed that another task has in flight.
        self._session.refuse_in_callback("taking records")
        if until == math.inf:
            self._raise_if_nothing_to_consume()
        elif self._has_nothing_to_consume and self._engine is not None:
            self._engine.topic_watch.report_nothing_to_consume()
        return await self._reader.next(take, until)

    def _rejoin(self) -> None:
        """Become a member again: the application polls after its member was expelled."""
        if self._engine is not None:
            self._engine.join()

    def _raise_if_not_started(self) -> None:
        if not self._was_started:
            raise NotStartedError("the consumer is not started; use `async with` or start()")

    @property
    def _has_nothing_to_consume(self) -> bool:
        if self._subscription or self._pattern is not None or self._delivery.owned:
            return False
        # Another task may assign or subscribe next.
        return not self._is_changing

    def _raise_if_nothing_to_consume(self) -> None:
        """Raise where a caller would wait forever; not where the close or a reported error ends its
        wait."""
        session = self._session
        if not self._has_nothing_to_consume:
            return
        if not (session.closing.has_begun or session.errors.has_reports):
            raise ConfigurationError(
                "nothing is subscribed to and nothing is assigned: name topics or a pattern in"
                " Consumer(...), or call subscribe() or assign() first"
            )

    def _raise_if_closed(self) -> None:
        """Raise unless the consumer runs, in this process and event loop. While it closes, it still
        runs: callbacks may commit."""
        self._raise_if_not_started()
        self._check_origin()
        self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        """Raise if the consumer has stopped or failed; otherwise allow logins again."""
        if self._stopped.is_set():
            raise self._session.closing.error()
        self._session.errors.raise_failure()
        # If a refused login was raised, and the application continues, log in again.
        self._session.resume_logins()

    # ------------------------------------------------------------ subscription and assignment

    async def subscribe(
        self, *topics: Topics, pattern: str | re.Pattern[str] | None = None
    ) -> None:
        """Replace the subscription by these topics, or by those whose whole name matches a pattern.

        A pattern is matched again at each refresh of metadata (`metadata_max_age_ms`). In a group,
        another subscription causes a rebalance.
        Raises: IllegalStateError after `assign`, and after `unsubscribe` in the same rebalance
        callback; ConfigurationError without topics and pattern; ClosedError.
        """
        self._check_origin()
        self._refuse_while_leaving("subscribe()")
        if self._is_assigned_manually:
            raise IllegalStateError("assign() was called; call unsubscribe() first")
        self._raise_if_stopped()
        subscription, matcher = checked_topics(topics), checked_pattern(pattern, topics)
        if not subscription and matcher is None:
            raise ConfigurationError("subscribe() needs topics or a pattern; see unsubscribe()")
        self._subscription, self._pattern = subscription, matcher
        with self._until_stopped(), self._session.caller_waits():
            await self._apply_subscription()

    async def _apply_subscription(self) -> None:
        if self._engine is None:
            return
        if self._pattern is not None:
            await self._engine.subscribe_by_pattern(self._pattern)
        elif self._subscription:
            await self._engine.subscribe(self._subscription)

    async def unsubscribe(self) -> None:
        """Leave the group and consume nothing, until `subscribe` or `assign`. Called in a rebalance
        callback, it requests that and returns; the member leaves after the callback."""
        self._check_origin()
        self._subscription, self._pattern = frozenset(), None
        self._is_assigned_manually = False
        if self._engine is None:
            self._delivery.release(self._delivery.owned)
        else:
            with self._changing(), self._session.caller_waits():
                await self._engine.unsubscribe("the consumer unsubscribed")

    async def assign(self, partitions: Partitions) -> None:
        """Consume exactly these partitions, without membership. With a `group_id`, offsets are
        read from it and committed to it.

        Raises: IllegalStateError while topics are subscribed to, and after `unsubscribe` in the
        same rebalance callback; ConfigurationError for what cannot be a partition; ClosedError.
        """
        self._check_origin()
        self._refuse_while_leaving("assign()")
        if self._subscription or self._pattern is not None:
            raise IllegalStateError("topics are subscribed to; call unsubscribe() first")
        self._raise_if_stopped()
        wanted = set(partitions_of(partitions))
        checked_topics({tp.topic for tp in wanted})  # raises for a name that no topic can have
        self._is_assigned_manually = True
        if self._engine is None:
            self._delivery.release(self._delivery.owned.keys() - wanted)
            self._delivery.own(sorted(wanted))
        else:
            with self._changing(), self._until_stopped(), self._session.caller_waits():
                await self._engine.assign(wanted)

    def _refuse_while_leaving(self, call: str) -> None:
        if self._engine is not None and self._engine.is_leaving:
            self._session.refuse_in_callback(f"{call} after unsubscribe()")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._is_changing = True
        try:
            yield
        finally:
            self._is_changing = False

    def rejoin(self, reason: str = "the application asked for it") -> None:
        """Request a rebalance, as Java's `enforceRebalance` does. For operators, and for assignors
        whose input no broker knows. Returns at once; `events()` report the rebalance.

        With the classic protocol all members rejoin and the leader computes a new assignment. If a
        rebalance is under way that this member has already joined, another one follows. With
        KIP-848 only the coordinator starts a rebalance: the member sends a full heartbeat at once,
        and the response has its full assignment. If the member's assignment differs from that, it
        is repaired; otherwise no partition moves, and other members do not notice.

        Raises: ClosedError, IllegalStateError for a consumer that is in no group.
        """
        check_text("reason", reason)
        self._check_origin()
        self._raise_if_stopped()
        if self._engine is None:
            raise NotStartedError("the consumer is not started; use `async with` or start()")
        if self._session.member.driver is None:
            raise IllegalStateError(
                "in no group: there is no group_id, or nothing is subscribed to"
            )
        self._engine.rejoin(reason)

    def _drop_in_flight_of_caller(self) -> None:
        """Drop the record in flight if the calling task took it: waiting for that task to finish it
        would be a deadlock. The record does not count as processed."""
        if self._session.processing.is_by_caller:
            self._session.drop_in_flight()

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer owns now."""
        return frozenset(tp for tp, owned in self._delivery.owned.items() if not owned.revoked)

    @property
    def loop_delay(self) -> float:
        """The longest delay of the event loop during the last minute, in seconds, measured at each
        heartbeat; 0.0 without a group.

        More than a few tenths of a second mean that some code blocks the loop. May be read from
        any thread.
        """
        return self._session.loop_delay.longest

    async def wait_assignment(self) -> frozenset[TopicPartition]:
        """Wait until the group has assigned partitions to this consumer, possibly none; return
        them. After `subscribe`, they are those of the new subscription. With KIP-848 the first
        assignment may be empty, and partitions follow within seconds. A record that the calling
        task has in flight does not hold up the group meanwhile: another member may process it, too.

        Without membership this returns at once. Raises: the error that ended the membership;
        ClosedError; ConfigurationError when nothing is subscribed to; IllegalStateError in a
        rebalance callback: the group itself waits for that callback.
        """
        is_waiting = False
        while True:
            self._raise_if_closed()
            if self._options.group_id is None or self._is_assigned_manually:
                return self.assignment()
            if self._engine is not None and self._engine.is_assigned:
                return self.assignment()
            self._session.refuse_in_callback("wait_assignment()")
            if not is_waiting:  # a caller that already waits continues with the next subscription
                self._raise_if_nothing_to_consume()
            is_waiting = True
            with self._until_stopped(), self._session.caller_waits():
                await self._session.changed.wait()

    # ------------------------------------------------------------ positions and commits

    async def position(self, partition: Partition) -> int:
        """Return the offset of the partition's next record; wait while it is looked up, in
        `on_partitions_assigned`, too.

        Raises: NotAssignedError, also while a partition is revoked before its position was found;
        NoOffsetError or OffsetOutOfRangeError until the application seeks; BrokerError while a
        broker refuses the look-up, which is repeated; ClosedError.
        """
        tp = partition_of(partition)
        awaited: OwnedPartition | None = None
        while True:
            self._raise_if_closed()
            owned = self._delivery.owned.get(tp)
            if owned is None:
                raise self._session.not_assigned(tp)
            self._session.errors.raise_without_position(owned)
            if owned.position != UNKNOWN:
                return owned.position
            if owned.revoked:
                raise NotAssignedError(
                    f"{tp} is being revoked, and its position was not looked up before"
                )
            if awaited is not owned and self._engine is not None:  # once for each assignment
                self._engine.look_up_positions()
            awaited = owned
            with self._until_stopped():
                await self._session.changed.wait()

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue with the record at `offset`: `seek(("orders", 0), 5)`. A record of the partition
        in flight does not count as processed.

        All records below `offset` now count as processed, delivered or not, as with Kafka's own
        client: the next commit, automatic or explicit, commits `offset`, even if a higher offset
        was committed before.
        Raises: NotAssignedError.
        """
        self._check_origin()
        tp = partition_of(partition)
        self._session.seek(tp, offset)
        if self._engine is not None:
            self._engine.wake()

    async def commit(
        self,
        offsets: ByPartition[int | OffsetAndMetadata] | None = None,
        *,
        note: str = "",
    ) -> None:
        """Commit the offsets after the delivered records, the record or batch in flight included,
        and the offsets of seeks; or the given offsets, each that of the next record to read.
        Without arguments, this does not send offsets that the group has acknowledged less than
        `committed_offsets_max_age_ms` ago, unless their partitions are being revoked; given offsets
        are sent again.

        Given offsets belong to the assignment in which this is called: they are refused if their
        partition is released before they are sent, and, in a member, if they are below the lowest
        position of the assignment (as those of a worker that began in an earlier one are). To
        rewind the group, `seek`, then commit.

        `note` is stored as the metadata of offsets that have none of their own, for people who look
        at the group. A note that is too long for the broker is left out, and the offsets are
        committed without it.

        Without arguments, a CommitFailedError reports the delivered records of partitions that were
        lost before they were committed: once, with `partitions`, after the other partitions are
        committed and your callback was called. A partition is lost if a rebalance or the end of the
        session took it, not if you unsubscribe from it. With `enable_auto_commit` only the record
        or batch in flight is reported; the auto-commit covers the others.

        Raises: CommitFailedError, also for given offsets of partitions that this consumer does not
        own, or of an earlier assignment; ConfigurationError without a `group_id`; FencedError;
        ClosedError, also if the consumer is closed before the commit is answered;
        BrokerError or TransportError after retries for `request_timeout_ms`; after a second or two,
        BrokerError UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION for a topic that was deleted or
        recreated.
        Partitions are committed 1,000 at a time: when the call raises, some of more than 1,000 may
        be committed; the next commit covers the others.
        """
        self._raise_if_closed()
        self._session.committer.require_group()
        check_text("note", note)
        deadline = self._session.clock() + self._options.request_timeout
        with self._until_stopped():
            if offsets is None:
                self._session.complete_in_flight()
                await self._session.committer.commit_delivered(deadline, note)
            elif given := offsets_of(offsets):
                await self._session.committer.commit(given, deadline, note)

    @property
    def _reads_committed(self) -> bool:
        return self._options.isolation_level == READ_COMMITTED

    def _check_transactional(self) -> None:
        """Raises: ConfigurationError for a consumer that also commits outside of transactions, or
        has no group."""
        self._raise_if_closed()
        self._session.committer.require_group()
        if self._session.committer.is_automatic:
            raise ConfigurationError(
                "enable_auto_commit=True would commit offsets outside of the transaction; set it to"
                " False"
            )

    def _prepare_commit(
        self, offsets: ByPartition[int | OffsetAndMetadata]
    ) -> Callable[[], Awaitable[None]]:
        """Return a function that commits `offsets` for the present assignment, whenever it is
        called. Raises: as `commit` does for what can be refused at once."""
        self._raise_if_closed()
        committer = self._session.committer
        commits = committer.prepare(offsets_of(offsets))

        async def commit() -> None:
            with self._until_stopped():
                await committer.send(commits, self._session.clock() + self._options.request_timeout)

        return commit

    def processed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that an auto-commit would commit now, by assigned partition, already
        committed or not. For offsets stored elsewhere, such as in a database transaction. A
        partition whose position is still being looked up is missing."""
        return self._delivery.processed()

    async def committed(
        self, partitions: Partitions | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets, of these partitions or of the assigned ones; None
        for a partition without one.

        Raises: BrokerError, which names the partition that failed; ConfigurationError without a
        `group_id`; ClosedError.
        """
        self._raise_if_closed()
        offsets = self._session.committer.group_offsets
        if offsets is None:
            raise ConfigurationError("a consumer without group_id has no committed offsets")
        wanted = self.assignment() if partitions is None else partitions
        with self._until_stopped():
            return await offsets.committed(partitions_of(wanted))

    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's identity in its group, for a transactional producer (KIP-447).
        Raises: ConfigurationError without a `group_id`."""
        session = self._session
        if self._options.group_id is None:
            raise ConfigurationError("a consumer without group_id is not a member of any group")
        return GroupMetadata(
            self._options.group_id,
            session.member.generation_id,
            session.member.identity.member_id,
            self._options.group_instance_id,
        )

    @property
    def coordinator(self) -> Node | None:
        """The broker that coordinates the group; None while it is not known."""
        driver, offsets = self._session.member.driver, self._session.committer.group_offsets
        if driver is not None and (found := driver.coordinator) is not None:
            return found
        return None if offsets is None else offsets.coordinator

    def forget_coordinator(self, reason: str = "the application asked for it") -> None:
        """Invalidate the coordinator: look it up again. The membership continues. Raises:
        ClosedError."""
        self._raise_if_closed()
        if self._session.member.driver is not None:
            self._session.member.driver.invalidate_coordinator(reason)
        if self._session.committer.group_offsets is not None:
            self._session.committer.group_offsets.invalidate_coordinator()

    def metrics(self) -> GroupMetrics:
        """Return the heartbeats, joins, syncs, commits and rebalances of the last minute, the
        partitions and buffers of now, and the lag as of the last fetch. Sends no request. May be
        called from any thread.

        Raises: NotStartedError before the consumer is started, and in a process that was forked
        from the one that started it.
        """
        session, engine = self._session, self._engine
        if fork := self._fork_message:
            raise NotStartedError(fork)
        if engine is None:
            raise NotStartedError("the consumer is not started; use `async with` or start()")
        conversion = self._delivery.conversion
        # A copy, as the loop may change it. Only `copy` is atomic without a GIL.
        owned = tuple(self._delivery.owned.copy().values())
        return evolve(
            session.history.metrics(session.clock(), session.member.driver, self.loop_delay),
            assigned_partitions=sum(not one.revoked for one in owned),
            lag={one.tp: lag for one in owned if not one.revoked and (lag := one.lag) is not None},
            skipped_records=0 if conversion is None else conversion.skipped_count,
            buffered_bytes=sum(one.buffered_bytes for one in owned),
            fetching_bytes=engine.fetching_bytes,
        )

    def health(
        self,
        *,
        joining_after: float | None = None,
        stalled_after: float | None = None,
        loop_delay_above: float | None = None,
    ) -> Health:
        """Return whether the consumer works: true, or false with the reasons.

        A member without partitions is healthy. So is a rebalance of up to `joining_after` seconds
        (None: `rebalance_timeout_ms`). A partition is stalled when its position has not moved and
        its lag has grown for `stalled_after` seconds (None: `max_poll_interval_ms`). The event loop
        is blocked when it is late by more than `loop_delay_above` seconds (None: the limit of the
        logged warning). Positions are compared between calls: call this every few seconds, as
        health endpoints do. Sends no request; never raises. May be called from any thread; in a
        process that was forked from the one that started the consumer, the consumer does not run.
        """
        # Imported here: many applications never call this.
        from kafkagroup.runtime.consume.health import (
            Checkup,
            HealthProblem,
            health_of_consumer,
            not_well,
        )

        if fork := self._fork_message:
            return not_well(HealthProblem.NOT_RUNNING, fork)
        if (failure := self._session.closing.failure) is not None:
            return not_well(HealthProblem.FAILED, str(failure))
        if not self._was_started or self._session.closing.has_begun:
            return not_well(HealthProblem.NOT_RUNNING, "not started, or closed")
        if self._checkup is None:
            self._checkup = Checkup(self._session.loop_delay)
        return health_of_consumer(
            self._checkup,
            self._session,
            self._session.clock(),
            joining_after=joining_after,
            stalled_after=stalled_after,
            loop_delay_above=loop_delay_above,
        )

    def events(self, buffer: int = 256) -> GroupEvents:
        """Return an async iterator over the membership's events from now on: rebalances with their
        causes and phases, losses, coordinators, lasting trouble. It ends after `stop`. A reader
        that is more than `buffer` events behind loses the oldest, and receives `EventsMissed`.

        ```python
        async for event in consumer.events():
            log.info("%s", event)
        ```

        Iterate in a task of its own, beside the one that takes records. Without a group there are
        only `TroubleReported` and `TroubleEnded`.
        Raises: ConfigurationError with `membership=`, where Kafka does not coordinate the group.
        """
        if self._options.membership is not None:
            raise ConfigurationError("events() need a group that Kafka coordinates: no membership=")
        return self._session.history.feed.open(buffer, self._check_origin)

    # ------------------------------------------------------------ pausing

    def pause(self, *partitions: Partitions) -> None:
        """Stop delivering and fetching these partitions; they stay assigned.

        A pause lasts as long as the partition stays assigned: after a rebalance that revoked it,
        the partition is not paused any more.
        Raises: NotAssignedError.
        """
        for tp in self._require_assigned(partitions):
            self._delivery.pause(tp)

    def resume(self, *partitions: Partitions) -> None:
        """Resume paused partitions. Raises: NotAssignedError."""
        for tp in self._require_assigned(partitions):
            self._delivery.resume(tp)
        if self._engine is not None:
            self._engine.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions that are paused."""
        return frozenset(tp for tp in self.assignment() if self._delivery.owned[tp].paused)

    def _require_assigned(self, partitions: Sequence[Partitions]) -> list[TopicPartition]:
        """Return the partitions in these arguments. Raises: NotAssignedError."""
        self._check_origin()
        assigned = self.assignment()
        wanted = partitions_of(*partitions)
        for tp in wanted:
            if tp not in assigned:
                raise self._session.not_assigned(tp)
        return wanted

    # ------------------------------------------------------------ the logs

    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the first offset in each log, of any partitions. Waits for their leaders, up to
        `request_timeout_ms`.

        Raises: BrokerError, which names a partition that does not exist; RequestTimeoutError;
        ClosedError.
        """
        found = await self._log_offsets(dict.fromkeys(partitions_of(partitions), EARLIEST))
        return {tp: at.offset for tp, at in found.items()}

    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the offset of the next record of each log; under read_committed, the last stable
        offset. Waits and raises as `beginning_offsets`."""
        found = await self._log_offsets(dict.fromkeys(partitions_of(partitions), LATEST))
        return {tp: at.offset for tp, at in found.items()}

    async def offsets_for_times(
        self, times: ByPartition[int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offset in each log at or after a time (milliseconds since the epoch);
        None without such a record. Waits and raises as `beginning_offsets`."""
        found = await self._log_offsets(times_of(times))
        return {tp: at if at.offset >= 0 else None for tp, at in found.items()}

    async def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets between position and log end, by assigned partition.

        Requests the log ends now. Gaps left by compaction and transaction markers count. Never
        negative. Waits for positions that are being looked up; leaves out partitions that are
        released meanwhile. Raises as `end_offsets` and `position`.
        """
        assigned = self.assignment()
        ends = await self.end_offsets(assigned)
        positions: dict[TopicPartition, int] = {}
        for tp in sorted(assigned & self.assignment()):
            with suppress(NotAssignedError):  # a rebalance may take it meanwhile
                positions[tp] = await self.position(tp)
        return {tp: lag_of(position, ends[tp]) for tp, position in positions.items()}

    async def seek_to_beginning(self, *partitions: Partitions) -> None:
        """Seek to the logs' starts, of these partitions or of all assigned ones. Raises:
        NotAssignedError, also if one is released meanwhile, even if it is assigned again."""
        await self._seek_to(self.beginning_offsets, partitions)

    async def seek_to_end(self, *partitions: Partitions) -> None:
        """Seek to the logs' ends, as `seek_to_beginning` does."""
        await self._seek_to(self.end_offsets, partitions)

    async def _seek_to(
        self,
        look_up: Callable[[Partitions], Awaitable[dict[TopicPartition, int]]],
        partitions: Sequence[Partitions],
    ) -> None:
        self._raise_if_closed()
        chosen = self._require_assigned(partitions or sorted(self.assignment()))
        owned = {tp: self._delivery.owned[tp] for tp in chosen}
        for tp, offset in (await look_up(chosen)).items():
            # Another member may have committed since. A seek in the new assignment would rewind the
            # group.
            if self._delivery.owned.get(tp) is not owned[tp]:
                raise NotAssignedError(
                    f"{tp} was released while its offset was looked up; seek again if it is yours"
                )
            self.seek(tp, offset)

    async def _log_offsets(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._raise_if_closed()
        if self._engine is None:
            raise NotStartedError("the consumer is not started; use `async with` or start()")
        timeout = self._options.request_timeout
        try:
            with self._until_stopped(), anyio.fail_after(timeout):
                return await self._engine.log_offsets.at(wanted)
        except TimeoutError:
            raise RequestTimeoutError(
                f"the leaders of {', '.join(map(str, sorted(wanted)))} did not return offsets"
                f" within {timeout:g} s"
            ) from None

    # ------------------------------------------------------------ opening and closing

    @property
    def closed(self) -> bool:
        """Whether the consumer is closed, or closes now and waits for no record of the application.

        False before the start, and while the records of the last call are in flight: a loop `while
        not consumer.closed` then calls `getmany` once more, which counts them as processed.
        """
        return super().closed and (
            self._stopped.is_set()
            or not self._delivery.acknowledgement.in_flight_among(self._delivery.owned)
        )

    async def stop(self, *, commit: bool = True, leave_group: bool | None = None) -> None:
        """Close: wait for the record in flight, commit, and leave the group, all within
        `close_timeout`.

        With `commit=False` nothing more is committed. `leave_group` overrides
        `leave_group_on_close`: with True a static member leaves too (KIP-1092); with False a
        dynamic member stays in the group until its session times out. Called by the task that
        iterates, this does not wait for that task's own record. Called in a callback, or in a task
        that it started, it requests the close and returns. In a process that was forked from the
        one that started the consumer, it does nothing.

        Raises: IllegalStateError in another event loop.
        """
        if self._fork_message:
            return
        self._check_origin()
        if not commit:
            self._session.committer.is_automatic = False
        if leave_group is not None:
            self._session.closing.leave_group = leave_group
        self._drop_in_flight_of_caller()
        if self._session.is_in_callback:
            self._request_stop()
            return
        await super().stop()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The body of `async with` has ended: its record in flight will not be processed.
        self._session.drop_in_flight()
        await super().__aexit__(exc_type, exc_value, traceback)

    def _bind(self, origin: Origin) -> None:
        super()._bind(origin)
        self._session.bind_clock()
        self._reader.bind(origin)

    async def _open(self, tasks: TaskGroup) -> None:
        from kafkagroup.transport.cluster import Cluster  # see `late_modules`

        cluster = Cluster(self._servers, self._client_options, tasks, self._session.troubles)

        def spawn(function: Callable[[], Awaitable[None]], name: str) -> None:
            self._spawn(tasks, function, name)

        engine = self._create_engine(cluster, spawn)
        # Before the first metadata response, which shows the partitions that are not new.
        engine.new_partitions.subscribe(self._subscription)
        with cluster.topics.during(self._subscription):
            await cluster.refresh()
        self._engine = engine
        engine.start()
        await self._apply_subscription()
        if self._delivery.owned:
            await engine.assign(self._delivery.owned)

    def _create_engine(self, cluster: Cluster, spawn: Spawn) -> Engine:
        from kafkagroup.runtime.consume.engine import Engine  # see `late_modules`

        return Engine(self._session, cluster, spawn, self._options.membership)

    async def _close(self) -> None:
        # Needed without an engine, too: a caller that waits for records would never return.
        self._session.begin_close()
        try:
            if self._engine is not None:
                await self._engine.leave()
                self._cancel_requests()
                await self._engine.disconnect()
        finally:
            self._session.history.feed.close()
            self._log_unraised()

    def _log_unraised(self) -> None:
        """Log the errors that no call raises any more, such as one of `on_partitions_revoked` while
        the consumer leaves its group."""
        name = self._session.log.name
        for error in self._session.errors.take_reported():
            logger.error("%s: closed before a call raised %r", name, error, exc_info=error)

    def _on_fork(self) -> None:
        super()._on_fork()
        # Not all deliveries are checked for a fork: without this, the child could deliver records
        # that the parent has buffered.
        self._session.permit.end()

    def _crashed(self, error: Exception) -> None:
        self._session.errors.fail(error)

    def _ended_unrequested(self) -> Exception:
        error = super()._ended_unrequested()
        self._session.closing.failure = error
        return error

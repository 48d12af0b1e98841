"""pykafka's `ManagedBalancedConsumer` and `BalancedConsumer`: a `kafkagroup.Consumer` by pykafka's
names. Kafka keeps the members of the one, ZooKeeper those of the other.

Offsets are pykafka's: `held_offsets`, and what `post_rebalance_callback` is given and answers, are
those of the last message consumed, so reading goes on behind them; what is committed is the next
offset to read.

Each rebalance commits what was consumed, whatever `auto_commit_enable` says, as in pykafka: the
next owner, and this consumer itself, would else begin again at the commit before.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from kafkagroup import ConfigurationError, Consumer, Record, TopicPartition
from kafkagroup.compat._host import Guest
from kafkagroup.compat._names import renamed
from kafkagroup.compat.pykafka.membership import (
    GroupMembershipProtocol,
    RangeProtocol,
    assignor_of,
)
from kafkagroup.compat.pykafka.protocol import Cluster, Message, OffsetType, text
from kafkagroup.errors import ConsumerClosedError

if TYPE_CHECKING:
    from kafkagroup import ZooKeeperMembership

__all__ = ["BalancedConsumer", "ManagedBalancedConsumer"]

Offsets = dict[int, int]
"""Partition id -> offset of the last message consumed; -2 where reading begins at offset 0."""

PostRebalanceCallback = Callable[
    [Any, Offsets, Offsets], Awaitable[Mapping[int, int] | None] | Mapping[int, int] | None
]
"""Called with the consumer, of whichever kind, and what it owned and owns."""

_FOREVER = 2**31 - 1
"""Milliseconds. pykafka sets no limit to how long an application may stay away."""

_NAMES = {
    "enable_auto_commit": "auto_commit_enable",
    "fetch_max_wait_ms": "fetch_wait_max_ms",
    "max_partition_fetch_bytes": "fetch_message_max_bytes",
    "queued_max_records": "queued_max_messages",
}
"""The main API's name of an option -> pykafka's, where they differ."""


class _Balanced(Guest):
    """What both kinds do. Inside `async with` on asyncio and trio; on asyncio also by `start()` and
    `stop()`."""

    def __init__(
        self,
        topic: Any,
        cluster: Cluster | str | Sequence[str],
        consumer_group: str | bytes,
        *,
        fetch_message_max_bytes: int,
        num_consumer_fetchers: int,
        auto_commit_enable: bool,
        auto_commit_interval_ms: int,
        queued_max_messages: int,
        fetch_min_bytes: int,
        fetch_wait_max_ms: int,
        offsets_channel_backoff_ms: int,
        offsets_commit_max_retries: int,
        auto_offset_reset: int,
        consumer_timeout_ms: int,
        rebalance_max_retries: int,
        rebalance_backoff_ms: int,
        auto_start: bool,
        reset_offset_on_start: bool,
        post_rebalance_callback: PostRebalanceCallback | None,
        use_rdkafka: bool,
        membership_protocol: GroupMembershipProtocol,
        **kept: Any,
    ) -> None:
        """`kept`: the main API's options for who keeps the members. Raises: ConfigurationError."""
        if use_rdkafka:
            raise ConfigurationError("use_rdkafka=True is not available; there is no librdkafka")
        if auto_offset_reset not in (OffsetType.EARLIEST, OffsetType.LATEST):
            raise ConfigurationError(
                f"auto_offset_reset={auto_offset_reset!r}; expected OffsetType.EARLIEST or LATEST"
            )
        where = cluster if isinstance(cluster, Cluster) else Cluster(cluster)
        self._topic = text(getattr(topic, "name", topic))
        self._reset = OffsetType(auto_offset_reset)
        self._resets_on_start = reset_offset_on_start
        self._timeout = None if consumer_timeout_ms < 0 else consumer_timeout_ms / 1000
        self._auto_start = auto_start
        self._auto_commits = auto_commit_enable
        self._callback = post_rebalance_callback
        self._held: Offsets = {}
        self._started = False
        super().__init__()
        with renamed(_NAMES):
            self._consumer = Consumer(
                self._topic,
                bootstrap_servers=where.hosts,
                security=where.security,
                group_id=text(consumer_group),
                assignors=[assignor_of(membership_protocol)],
                max_partition_fetch_bytes=fetch_message_max_bytes,
                num_consumer_fetchers=num_consumer_fetchers,
                # Always on, for the commit of each rebalance; `stop` and the interval go by
                # `auto_commit_enable`. Anything but a boolean is the main API's to refuse.
                enable_auto_commit=auto_commit_enable is False or auto_commit_enable,
                auto_commit_interval_ms=(
                    _FOREVER if auto_commit_enable is False else auto_commit_interval_ms
                ),
                queued_max_records=queued_max_messages,
                fetch_min_bytes=fetch_min_bytes,
                fetch_max_wait_ms=fetch_wait_max_ms,
                offsets_channel_backoff_ms=offsets_channel_backoff_ms,
                offsets_commit_max_retries=offsets_commit_max_retries,
                auto_offset_reset="earliest" if self._reset == OffsetType.EARLIEST else "latest",
                rebalance_max_retries=rebalance_max_retries,
                rebalance_backoff_ms=rebalance_backoff_ms,
                max_poll_interval_ms=_FOREVER,
                on_partitions_assigned=self._assigned,
                **kept,
            )

    # ------------------------------------------------------------ starting and stopping

    async def _entered(self) -> None:
        if self._auto_start:
            await self.start()

    async def _leaving(self) -> None:
        await self.stop()

    async def start(self) -> None:
        """Join the group. With `auto_start` the first call that needs it does that."""
        if not self._started:
            self._started = True
            await self._host.start(self._consumer)

    async def stop(self) -> None:
        """Commit, if `auto_commit_enable`, and leave the group."""
        if self._started:
            await self._consumer.stop(commit=self._auto_commits)

    async def _ready(self) -> Consumer:
        if not self._started:
            if not self._auto_start:
                raise ConsumerClosedError("the consumer is not started; auto_start is False")
            await self.start()
        return self._consumer

    # ------------------------------------------------------------ messages

    async def consume(self, block: bool = True) -> Message | None:
        """The next message; None when there is none within `consumer_timeout_ms`, or at once if
        not to `block`. The message before it counts as consumed from here on."""
        consumer = await self._ready()
        timeout = self._timeout if block else 0.0
        if timeout is None:
            return self._take(await consumer.getone())
        found = await consumer.getmany(1, timeout=timeout)
        return next((self._take(record) for (record,) in found.values()), None)

    def _take(self, record: Record) -> Message:
        self._held[record.partition] = record.offset
        return Message.of(record)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message; the end when there is none within `consumer_timeout_ms`."""
        try:
            message = await self.consume()
        except ConsumerClosedError:
            raise StopAsyncIteration from None
        if message is None:
            raise StopAsyncIteration
        return message

    # ------------------------------------------------------------ partitions and offsets

    @property
    def topic(self) -> str:
        """The topic that is consumed."""
        return self._topic

    @property
    def partitions(self) -> dict[int, TopicPartition]:
        """The partitions that are this consumer's now, by their ids."""
        return {tp.partition: tp for tp in sorted(self._consumer.assignment())}

    @property
    def held_offsets(self) -> Offsets:
        """Partition id -> offset of the last message consumed, or behind which reading begins; -2
        where that is offset 0."""
        return dict(self._held)

    async def commit_offsets(
        self, partition_offsets: Iterable[tuple[Any, int]] | None = None
    ) -> None:
        """Commit what was consumed, the last message included; or pairs of a partition, or its id,
        and the next offset to read."""
        consumer = await self._ready()
        if partition_offsets is None:
            await consumer.commit()
        else:
            await consumer.commit({self._tp(p): offset for p, offset in partition_offsets})

    async def reset_offsets(
        self, partition_offsets: Iterable[tuple[Any, int | datetime]] | None = None
    ) -> None:
        """Go on behind these offsets, and commit that: pairs of a partition, or its id, and an
        offset, an OffsetType or a time; without any, all partitions by `auto_offset_reset`."""
        consumer = await self._ready()
        if partition_offsets is None:
            partition_offsets = [(tp, self._reset) for tp in consumer.assignment()]
        starts = await self._starts({self._tp(p): at for p, at in partition_offsets})
        for tp, offset in starts.items():
            consumer.seek(tp, offset)
        self._held |= _held(starts)
        await consumer.commit(starts)

    def _tp(self, partition: Any) -> TopicPartition:
        if isinstance(partition, TopicPartition):
            return partition
        return TopicPartition(self._topic, getattr(partition, "id", partition))

    async def _starts(
        self, places: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, int]:
        """The next offset to read of each place."""
        ask = self._consumer
        earliest = [tp for tp, at in places.items() if at == OffsetType.EARLIEST]
        latest = [tp for tp, at in places.items() if at == OffsetType.LATEST]
        times = {tp: _ms(at) for tp, at in places.items() if isinstance(at, datetime)}
        starts = {tp: at + 1 for tp, at in places.items() if isinstance(at, int) and at >= 0}
        if earliest:
            starts |= await ask.beginning_offsets(earliest)
        if times:
            found = await ask.offsets_for_times(times)
            starts |= {tp: at.offset for tp, at in found.items() if at is not None}
            latest += [tp for tp, at in found.items() if at is None]
        if latest:
            starts |= await ask.end_offsets(latest)
        return starts

    async def _assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Called by the consumer in each rebalance with the new partitions. Return where reading
        starts in those that have no commit, and in those that the callback moved."""
        committed: dict[TopicPartition, int] = {}
        if not self._resets_on_start:
            found = await self._consumer.committed(partitions)
            committed = {tp: at.offset for tp, at in found.items() if at is not None}
        # Looked up here, not left to the consumer: a callback that answers with what it was given
        # would else go back to the log's start where reading was to begin at its end.
        reset = [tp for tp in partitions if tp not in committed]
        starts = await self._starts(dict.fromkeys(reset, self._reset))
        if self._resets_on_start and partitions:
            self._resets_on_start = False
            await self._consumer.commit(starts)
        before, kept = self._held, self.partitions
        self._held = {p: offset for p, offset in before.items() if p in kept}
        self._held |= _held(committed | starts)
        if self._callback is not None:
            answer = self._callback(self, before, dict(self._held))
            given = await answer if inspect.isawaitable(answer) else answer
            if given:
                moved = await self._starts({self._tp(p): at for p, at in given.items()})
                self._held |= _held(moved)
                starts |= moved
        return starts


class BalancedConsumer(_Balanced):
    """A consumer that shares the partitions of a topic with the other members of its group, which
    ZooKeeper keeps; offsets are in Kafka. Needs `kafkagroup[zookeeper]`.

    ```python
    async with BalancedConsumer(
        "orders", "localhost:9092", b"billing", zookeeper_connect="localhost:2181"
    ) as consumer: ...
    ```
    """

    def __init__(
        self,
        topic: Any,
        cluster: Cluster | str | Sequence[str],
        consumer_group: str | bytes,
        fetch_message_max_bytes: int = 1024 * 1024,
        num_consumer_fetchers: int = 1,
        auto_commit_enable: bool = False,
        auto_commit_interval_ms: int = 60 * 1000,
        queued_max_messages: int = 2000,
        fetch_min_bytes: int = 1,
        fetch_error_backoff_ms: int = 500,
        fetch_wait_max_ms: int = 100,
        offsets_channel_backoff_ms: int = 1000,
        offsets_commit_max_retries: int = 5,
        auto_offset_reset: int = OffsetType.EARLIEST,
        consumer_timeout_ms: int = -1,
        rebalance_max_retries: int = 5,
        rebalance_backoff_ms: int = 2 * 1000,
        zookeeper_connection_timeout_ms: int = 6 * 1000,
        zookeeper_connect: str = "127.0.0.1:2181",
        zookeeper: Any = None,
        auto_start: bool = True,
        reset_offset_on_start: bool = False,
        post_rebalance_callback: PostRebalanceCallback | None = None,
        use_rdkafka: bool = False,
        compacted_topic: bool = False,
        *,
        membership_protocol: GroupMembershipProtocol = RangeProtocol,
    ) -> None:
        """As ManagedBalancedConsumer. `zookeeper_connection_timeout_ms` is how long the session
        outlives a connection, which is what pykafka makes of it too.

        `zookeeper` may be a `kafkagroup.ZooKeeperMembership`, for TLS and credentials, instead of
        `zookeeper_connect`; or a KazooClient, whose addresses are taken, and nothing else.
        """
        super().__init__(
            topic,
            cluster,
            consumer_group,
            fetch_message_max_bytes=fetch_message_max_bytes,
            num_consumer_fetchers=num_consumer_fetchers,
            auto_commit_enable=auto_commit_enable,
            auto_commit_interval_ms=auto_commit_interval_ms,
            queued_max_messages=queued_max_messages,
            fetch_min_bytes=fetch_min_bytes,
            fetch_wait_max_ms=fetch_wait_max_ms,
            offsets_channel_backoff_ms=offsets_channel_backoff_ms,
            offsets_commit_max_retries=offsets_commit_max_retries,
            auto_offset_reset=auto_offset_reset,
            consumer_timeout_ms=consumer_timeout_ms,
            rebalance_max_retries=rebalance_max_retries,
            rebalance_backoff_ms=rebalance_backoff_ms,
            auto_start=auto_start,
            reset_offset_on_start=reset_offset_on_start,
            post_rebalance_callback=post_rebalance_callback,
            use_rdkafka=use_rdkafka,
            membership_protocol=membership_protocol,
            membership=_membership(zookeeper, zookeeper_connect, zookeeper_connection_timeout_ms),
        )


class ManagedBalancedConsumer(BalancedConsumer):
    """A consumer that shares the partitions of a topic with the other members of its group, which
    Kafka keeps.

    ```python
    async with ManagedBalancedConsumer("orders", "localhost:9092", b"billing") as consumer:
        async for message in consumer:
            print(message.offset, message.value)
    ```
    """

    def __init__(
        self,
        topic: Any,
        cluster: Cluster | str | Sequence[str],
        consumer_group: str | bytes,
        fetch_message_max_bytes: int = 1024 * 1024,
        num_consumer_fetchers: int = 1,
        auto_commit_enable: bool = False,
        auto_commit_interval_ms: int = 60 * 1000,
        queued_max_messages: int = 2000,
        fetch_min_bytes: int = 1,
        fetch_error_backoff_ms: int = 500,
        fetch_wait_max_ms: int = 100,
        offsets_channel_backoff_ms: int = 1000,
        offsets_commit_max_retries: int = 5,
        auto_offset_reset: int = OffsetType.EARLIEST,
        consumer_timeout_ms: int = -1,
        rebalance_max_retries: int = 5,
        rebalance_backoff_ms: int = 2 * 1000,
        auto_start: bool = True,
        reset_offset_on_start: bool = False,
        post_rebalance_callback: PostRebalanceCallback | None = None,
        use_rdkafka: bool = False,
        compacted_topic: bool = True,
        heartbeat_interval_ms: int = 3000,
        *,
        membership_protocol: GroupMembershipProtocol = RangeProtocol,
        session_timeout_ms: int = 30_000,
        heartbeat_thread: bool = True,
    ) -> None:
        """`topic` is a name, or has one as its `name`; `cluster` may be addresses alone.

        Heartbeats come from a thread, as pykafka's do: an application that blocks its loop keeps
        its partitions. One that never blocks it may do without: `heartbeat_thread=False`.
        `fetch_error_backoff_ms` and `compacted_topic` change nothing: the one is of no use in
        pykafka either, and gaps between offsets are no trouble here. Raises: ConfigurationError.
        """
        # Not BalancedConsumer's, which is about ZooKeeper: pykafka's passes it over too.
        _Balanced.__init__(
            self,
            topic,
            cluster,
            consumer_group,
            fetch_message_max_bytes=fetch_message_max_bytes,
            num_consumer_fetchers=num_consumer_fetchers,
            auto_commit_enable=auto_commit_enable,
            auto_commit_interval_ms=auto_commit_interval_ms,
            queued_max_messages=queued_max_messages,
            fetch_min_bytes=fetch_min_bytes,
            fetch_wait_max_ms=fetch_wait_max_ms,
            offsets_channel_backoff_ms=offsets_channel_backoff_ms,
            offsets_commit_max_retries=offsets_commit_max_retries,
            auto_offset_reset=auto_offset_reset,
            consumer_timeout_ms=consumer_timeout_ms,
            rebalance_max_retries=rebalance_max_retries,
            rebalance_backoff_ms=rebalance_backoff_ms,
            auto_start=auto_start,
            reset_offset_on_start=reset_offset_on_start,
            post_rebalance_callback=post_rebalance_callback,
            use_rdkafka=use_rdkafka,
            membership_protocol=membership_protocol,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            heartbeat_thread=heartbeat_thread,
        )


def _membership(zookeeper: Any, connect: str, session_ms: int) -> ZooKeeperMembership:
    from kafkagroup import ZooKeeperMembership  # needs kazoo, which Kafka's own groups do without

    if isinstance(zookeeper, ZooKeeperMembership):
        return zookeeper
    if zookeeper is not None:
        addresses = ",".join(f"{host}:{port}" for host, port in zookeeper.hosts)
        connect = f"{addresses}{zookeeper.chroot}"
    with renamed({"session_timeout_ms": "zookeeper_connection_timeout_ms"}):
        return ZooKeeperMembership(connect, session_timeout_ms=session_ms, root="/pykafka")


def _ms(time: datetime) -> int:
    """A time without a zone is UTC, as in pykafka."""
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _held(starts: Mapping[TopicPartition, int]) -> Offsets:
    """What is held of partitions whose next offsets to read are these."""
    return {
        tp.partition: start - 1 if start else int(OffsetType.EARLIEST)
        for tp, start in starts.items()
    }

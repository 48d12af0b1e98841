"""pykafka's `ManagedBalancedConsumer` and `BalancedConsumer`, over a `kafkagroup.Consumer`.

Kafka coordinates the group of a `ManagedBalancedConsumer`, ZooKeeper that of a `BalancedConsumer`.

Offsets in this API are pykafka's: `held_offsets`, and the arguments and result of
`post_rebalance_callback`, are offsets of the last message consumed, so consumption continues after
them. A commit stores the next offset to read.

As in pykafka, each rebalance commits the consumed messages, also with `auto_commit_enable=False`:
otherwise the new owner, and this consumer itself, would start at the previous commit.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import anyio
import attrs

from kafkagroup import ConfigurationError, Consumer, Record, TopicPartition
from kafkagroup._extended_consumer import TunedConsumer
from kafkagroup._user_code import USER_ERRORS, user_error
from kafkagroup.compat._joining import wait_for_assignment
from kafkagroup.compat._names import renamed
from kafkagroup.compat._tasks import TaskOwner
from kafkagroup.compat.pykafka.membership import (
    GroupMembershipProtocol,
    RangeProtocol,
    assignor_of,
)
from kafkagroup.compat.pykafka.protocol import Cluster, Message, OffsetType, text
from kafkagroup.errors import ClosedError, NotStartedError

if TYPE_CHECKING:
    from kafkagroup import ZooKeeperMembership

__all__ = ["BalancedConsumer", "ManagedBalancedConsumer"]

Offsets = dict[int, int]
"""Partition id -> offset of the last message consumed; -2 if consumption starts at offset 0."""

PostRebalanceCallback = Callable[
    [Any, Offsets, Offsets], Awaitable[Mapping[int, int] | None] | Mapping[int, int] | None
]
"""Called with the consumer, and its held offsets before and after the rebalance. Returns those to
change, by partition id: consumption continues after them. None changes none."""

_NEVER_MS = 2**31 - 1
"""The longest interval, in milliseconds. In effect: no periodic commit and, as in pykafka, no limit
for the time between two calls of the application."""

_START_TIMEOUT_MS = 60_000
"""Milliseconds: longer than a rebalance with the session timeout of pykafka."""

_NAMES = {
    "enable_auto_commit": "auto_commit_enable",
    "fetch_max_wait_ms": "fetch_wait_max_ms",
    "max_partition_fetch_bytes": "fetch_message_max_bytes",
    "queued_max_records": "queued_max_messages",
}
"""The main API's name of an option -> pykafka's, where they differ."""

_FORWARDED = ("max_partition_fetch_bytes", "fetch_min_bytes", "fetch_max_wait_ms")
"""The main API's options whose values are passed on unchanged."""

_PRIVATE = (
    "num_consumer_fetchers",
    "queued_max_records",
    "offsets_channel_backoff_ms",
    "offsets_commit_max_retries",
    "rebalance_max_retries",
    "rebalance_backoff_ms",
)
"""Options that the constructor of `Consumer` does not have; their values are passed to
`TunedConsumer` unchanged."""


class _Balanced(TaskOwner):
    """What both consumers share. Use them in `async with` on asyncio and trio, or, on asyncio, with
    `start()` and `stop()`."""

    def __init__(self, given: Mapping[str, Any], **options: Any) -> None:
        """`given`: the arguments of the public constructor by name, as `locals()` has them there.
        `options`: further options of the main API. Raises: ConfigurationError."""
        if given["use_rdkafka"]:
            raise ConfigurationError("use_rdkafka=True is not available; there is no librdkafka")
        reset = given["auto_offset_reset"]
        if reset not in (OffsetType.EARLIEST, OffsetType.LATEST):
            raise ConfigurationError(
                f"auto_offset_reset={reset!r}; expected OffsetType.EARLIEST or LATEST"
            )
        topic, cluster = given["topic"], given["cluster"]
        cluster = cluster if isinstance(cluster, Cluster) else Cluster(cluster)
        timeout_ms, auto_commits = given["consumer_timeout_ms"], given["auto_commit_enable"]
        self._topic = _name(topic)
        self._reset = OffsetType(reset)
        self._resets_on_start: bool = given["reset_offset_on_start"]
        self._timeout = None if timeout_ms < 0 else timeout_ms / 1000
        self._auto_start: bool = given["auto_start"]
        self._auto_commits: bool = auto_commits
        self._callback: PostRebalanceCallback | None = given["post_rebalance_callback"]
        self._callback_error: Exception | None = None
        """The error of a callback. Each call raises it: the offsets to read from are not known."""
        self._held_offsets: Offsets = {}
        self._start_timeout_ms: int = given["start_timeout_ms"]
        self._is_started = False
        self._starting = anyio.Lock()
        self._is_assigned = False
        """Whether the group has assigned partitions to this consumer, possibly none."""
        super().__init__()
        with renamed(_NAMES):
            self._consumer: Consumer = TunedConsumer(
                {name: given[_NAMES.get(name, name)] for name in _PRIVATE},
                self._topic,
                bootstrap_servers=cluster.hosts,
                security=cluster.security,
                group_id=text(given["consumer_group"]),
                assignors=[assignor_of(given["membership_protocol"])],
                # Always on, so that each rebalance commits; `auto_commit_enable` decides about the
                # interval and `stop`. A value that is not a boolean is left for Consumer to reject.
                enable_auto_commit=auto_commits is False or auto_commits,
                auto_commit_interval_ms=(
                    _NEVER_MS if auto_commits is False else given["auto_commit_interval_ms"]
                ),
                auto_offset_reset="earliest" if self._reset == OffsetType.EARLIEST else "latest",
                # As in pykafka.
                auto_offset_reset_new_partitions="policy",
                max_poll_interval_ms=_NEVER_MS,
                on_partitions_assigned=self._assigned,
                **{name: given[_NAMES.get(name, name)] for name in _FORWARDED},
                **options,
            )

    # ------------------------------------------------------------ starting and stopping

    async def _start_tasks(self) -> None:
        if self._auto_start:
            await self.start()

    async def _stop_tasks(self) -> None:
        await self.stop()

    async def start(self) -> None:
        """Join the group, and wait for the first assignment. With `auto_start`, the first call that
        needs the group does this.

        Raises: JoinFailedError if no assignment comes within `start_timeout_ms`, or joining fails
        more often than `rebalance_max_retries` allows; other errors that end the membership. The
        consumer is then stopped.
        """
        if self._is_assigned:
            return
        async with self._starting:
            if not self._is_started:
                self._is_started = True
                await self._tasks.start(self._consumer)
        timeout_ms = self._start_timeout_ms
        await wait_for_assignment(
            self._consumer, timeout_ms / 1000, f"start_timeout_ms={timeout_ms}"
        )
        self._is_assigned = True

    async def stop(self) -> None:
        """Commit, if `auto_commit_enable` is on, and leave the group."""
        if self._is_started:
            await self._consumer.stop(commit=self._auto_commits)

    async def _ready(self) -> Consumer:
        if not self._is_started and not self._auto_start:
            raise NotStartedError("the consumer is not started; auto_start is False")
        await self.start()
        if self._callback_error is not None:
            raise self._callback_error
        return self._consumer

    # ------------------------------------------------------------ messages

    async def consume(self, block: bool = True) -> Message | None:
        """Return the next message, or None: after `consumer_timeout_ms` without one, or at once if
        `block` is False. The previous message counts as consumed from now on."""
        consumer = await self._ready()
        timeout = self._timeout if block else 0.0
        if timeout is None:
            return self._note_consumed(await consumer.getone())
        found = await consumer.getmany(1, timeout=timeout)
        return next((self._note_consumed(record) for (record,) in found.values()), None)

    def _note_consumed(self, record: Record) -> Message:
        self._held_offsets[record.partition] = record.offset
        return Message.of(record)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message. Iteration ends after `consumer_timeout_ms` without one, and when
        the consumer is stopped."""
        try:
            message = await self.consume()
        except ClosedError:
            raise StopAsyncIteration from None
        if message is None:
            raise StopAsyncIteration
        return message

    # ------------------------------------------------------------ partitions and offsets

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._topic

    @property
    def partitions(self) -> dict[int, TopicPartition]:
        """The partitions that are assigned to this consumer now, by id."""
        return {tp.partition: tp for tp in sorted(self._consumer.assignment())}

    @property
    def held_offsets(self) -> Offsets:
        """Partition id -> offset of the last message consumed, or, before the first one, the offset
        before the start position; -2 if that position is 0."""
        return dict(self._held_offsets)

    async def commit_offsets(
        self, partition_offsets: Iterable[tuple[Any, int]] | None = None
    ) -> None:
        """Commit all consumed messages, including the last one returned; or these pairs of a
        partition (or its id) and the next offset to read."""
        consumer = await self._ready()
        if partition_offsets is None:
            await consumer.commit()
        else:
            await consumer.commit({self._tp(p): offset for p, offset in partition_offsets})

    async def reset_offsets(
        self, partition_offsets: Iterable[tuple[Any, int | datetime]] | None = None
    ) -> None:
        """Seek, and commit the new positions. The pairs are a partition (or its id) and the offset
        of the last message consumed, an OffsetType or a time. Default: `auto_offset_reset` for all
        partitions."""
        consumer = await self._ready()
        if partition_offsets is None:
            partition_offsets = [(tp, self._reset) for tp in consumer.assignment()]
        starts = await self._starts({self._tp(p): at for p, at in partition_offsets})
        for tp, offset in starts.items():
            consumer.seek(tp, offset)
        self._held_offsets |= _held_offsets(starts)
        await consumer.commit(starts)

    def _tp(self, partition: Any) -> TopicPartition:
        if isinstance(partition, TopicPartition):
            return partition
        # pykafka's partitions have an `id`; other values are ids.
        return TopicPartition(self._topic, getattr(partition, "id", partition))

    async def _starts(
        self, requested: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, int]:
        """Return the next offset to read for each offset of a consumed message, OffsetType or time.
        Leave out other negative numbers."""
        consumer = self._consumer
        earliest = [tp for tp, at in requested.items() if at == OffsetType.EARLIEST]
        latest = [tp for tp, at in requested.items() if at == OffsetType.LATEST]
        times = {tp: _ms(at) for tp, at in requested.items() if isinstance(at, datetime)}
        starts = {tp: at + 1 for tp, at in requested.items() if isinstance(at, int) and at >= 0}
        if earliest:
            starts |= await consumer.beginning_offsets(earliest)
        if times:
            found = await consumer.offsets_for_times(times)
            starts |= {tp: at.offset for tp, at in found.items() if at is not None}
            latest += [tp for tp, at in found.items() if at is None]
        if latest:
            starts |= await consumer.end_offsets(latest)
        return starts

    async def _assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Called by the consumer in each rebalance with the newly assigned partitions. Return the
        start offsets of those without a commit, and of those that the callback has moved."""
        committed: dict[TopicPartition, int] = {}
        if not self._resets_on_start:
            found = await self._consumer.committed(partitions)
            committed = {tp: at.offset for tp, at in found.items() if at is not None}
        # Resolved here, not by the consumer: a callback that returns its argument unchanged would
        # otherwise move a partition that starts at the log's end back to the log's start.
        reset = [tp for tp in partitions if tp not in committed]
        starts = await self._starts(dict.fromkeys(reset, self._reset))
        if self._resets_on_start and partitions:
            self._resets_on_start = False
            await self._consumer.commit(starts)
        before, assigned = self._held_offsets, self.partitions
        self._held_offsets = {p: offset for p, offset in before.items() if p in assigned}
        self._held_offsets |= _held_offsets(committed | starts)
        self._is_assigned = True  # the callback may call methods that wait for an assignment
        if self._callback is not None:
            given = await self._call_callback(self._callback, before)
            if given:
                moved = await self._starts({self._tp(p): at for p, at in given.items()})
                self._held_offsets |= _held_offsets(moved)
                starts |= moved
        return starts

    async def _call_callback(
        self, callback: PostRebalanceCallback, before: Offsets
    ) -> Mapping[int, int] | None:
        try:
            result = callback(self, before, dict(self._held_offsets))
            return await result if inspect.isawaitable(result) else result
        except USER_ERRORS as error:
            self._callback_error = user_error(error, "post_rebalance_callback")
            raise


class BalancedConsumer(_Balanced):
    """A consumer that shares the partitions of a topic with the other members of its group. The
    membership is kept in ZooKeeper, the offsets in Kafka. Needs `kafkagroup[zookeeper]`.

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
        start_timeout_ms: int = _START_TIMEOUT_MS,
    ) -> None:
        """See ManagedBalancedConsumer. As in pykafka, `zookeeper_connection_timeout_ms` is the
        session timeout: how long a session outlives its connection.

        Instead of `zookeeper_connect`, `zookeeper` may be a `kafkagroup.ZooKeeperMembership`, for
        TLS and credentials, or a KazooClient, of which only the addresses and the chroot are used.

        This consumer cannot share partitions with pykafka's own BalancedConsumer, nor with Kafka's
        former consumer over ZooKeeper: it refuses to start while they own partitions of the topic.
        """
        super().__init__(
            locals(),
            membership=_zookeeper(
                zookeeper,
                zookeeper_connect,
                zookeeper_connection_timeout_ms,
                _foreign_claims(text(consumer_group), _name(topic)),
            ),
        )


class ManagedBalancedConsumer(BalancedConsumer):
    """A consumer that shares the partitions of a topic with the other members of its group, which
    Kafka coordinates.

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
        start_timeout_ms: int = _START_TIMEOUT_MS,
    ) -> None:
        """`topic` is a name, or an object with a `name`; `cluster` may be a string of addresses.

        As in pykafka, a thread sends the heartbeats, so an application that blocks its event loop
        keeps its partitions. One that never blocks it can set `heartbeat_thread=False`.
        `fetch_error_backoff_ms` and `compacted_topic` have no effect: pykafka does not use the
        former either, and gaps between offsets are always skipped. Raises: ConfigurationError.
        """
        # Skips BalancedConsumer.__init__, which is for ZooKeeper; pykafka does the same.
        _Balanced.__init__(
            self,
            locals(),
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            heartbeat_thread=heartbeat_thread,
        )


def _name(topic: Any) -> str:
    return text(getattr(topic, "name", topic))


def _foreign_claims(group: str, topic: str) -> tuple[str, ...]:
    """Return the nodes below which Kafka's former consumer over ZooKeeper, and pykafka, claim
    partitions. On Python 3 pykafka names its node by the `repr` of bytes."""
    owners = f"/consumers/{group}/owners"
    return f"{owners}/{topic}", f"{owners}/{topic.encode()!r}"


def _zookeeper(
    zookeeper: Any, connect: str, session_ms: int, foreign_claims: tuple[str, ...]
) -> ZooKeeperMembership:
    from kafkagroup import ZooKeeperMembership  # needs kazoo, which groups in Kafka do not

    if isinstance(zookeeper, ZooKeeperMembership):
        foreign = (*zookeeper.foreign_members, *foreign_claims)
        given: Any = zookeeper  # mypy does not see that `public` leaves it a class of attrs
        changed: ZooKeeperMembership = attrs.evolve(given, foreign_members=foreign)
        return changed
    if zookeeper is not None:
        addresses = ",".join(f"{host}:{port}" for host, port in zookeeper.hosts)
        connect = f"{addresses}{zookeeper.chroot}"
    with renamed({"session_timeout_ms": "zookeeper_connection_timeout_ms"}):
        return ZooKeeperMembership(
            connect,
            session_timeout_ms=session_ms,
            root="/pykafka",
            foreign_members=foreign_claims,
        )


def _ms(time: datetime) -> int:
    """Return milliseconds since the epoch. A time without a zone is UTC, as in pykafka."""
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _held_offsets(starts: Mapping[TopicPartition, int]) -> Offsets:
    """Return the held offsets for these start positions."""
    return {
        tp.partition: start - 1 if start else int(OffsetType.EARLIEST)
        for tp, start in starts.items()
    }

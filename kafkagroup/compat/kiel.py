"""Classes with the names and methods of kiel: a grouped consumer, and its partition allocator.

```python
from kafkagroup.compat.kiel import GroupedConsumer

consumer = GroupedConsumer(["localhost:9092"], group="billing", zk_hosts=["localhost:2181"])
await consumer.connect()
while True:
    for value in await consumer.consume("orders"):
        await bill(value)
```

Membership is kept in ZooKeeper, as in kiel; with an empty `zk_hosts`, Kafka coordinates the group.
"""

from __future__ import annotations

import json
import logging
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from kafkagroup import (
    Admin,
    BrokerError,
    CommitFailedError,
    Consumer,
    KafkaGroupError,
    Node,
    OffsetAndMetadata,
    Record,
    Security,
    TopicPartition,
    TransportError,
)
from kafkagroup._user_code import USER_ERRORS
from kafkagroup.assign import (
    Assignor,
    GroupSpec,
    allocating,
    naive_allocator,
    naive_assignor,
)
from kafkagroup.assign.spec import named
from kafkagroup.compat._joining import wait_for_assignment
from kafkagroup.compat._names import renamed
from kafkagroup.compat._tasks import TaskOwner
from kafkagroup.types import Assignment, by_topic

if TYPE_CHECKING:
    from kafkagroup import ZooKeeperMembership

__all__ = ["GroupedConsumer", "NoOffsetsError", "PartitionAllocator", "naive_allocator"]

logger = logging.getLogger(__name__)

PartitionAllocator = Callable[[list[str], list[str]], Mapping[str, Mapping[str, Iterable[int]]]]
"""Called with the members (their `consumer.name`s) and the partitions (written "topic:number"),
both sorted. Returns member -> topic -> partition ids."""

_NO_POLL_LIMIT_MS = 2**31 - 1
"""Milliseconds: kiel does not limit the time between two calls of the application."""

_CONNECT_TIMEOUT_MS = 300_000
"""Milliseconds for which `connect` waits by default: as long as the main API's rebalance timeout,
in which the other members may process what they have before they release partitions."""

_RETRY_PAUSE = 0.1
"""Seconds before a request is repeated because a handler of a subclass has asked for it."""

_MAX_MESSAGES = 100_000
"""The most messages that one call returns; in practice `max_bytes` is the limit."""


_NAMES = {
    "enable_auto_commit": "autocommit",
    "fetch_max_bytes": "max_bytes",
    "fetch_max_wait_ms": "max_wait_time",
    "fetch_min_bytes": "min_bytes",
    "max_partition_fetch_bytes": "max_bytes",
}
"""The main API's name of an option -> kiel's, where they differ."""


class NoOffsetsError(KafkaGroupError):
    """The group's committed offsets could not be read."""


class GroupedConsumer(TaskOwner):
    """A consumer that shares the partitions of all topics with the other members of its group.

    Use it in `async with` on asyncio and trio, or, on asyncio, with `connect()` and `close()`.
    """

    def __init__(
        self,
        brokers: str | Sequence[str],
        group: str,
        zk_hosts: str | Sequence[str],
        deserializer: Callable[[Any], object] | None = None,
        partition_allocator: PartitionAllocator | None = None,
        autocommit: bool = True,
        max_wait_time: int = 1000,
        min_bytes: int = 1,
        max_bytes: int = 1024 * 1024,
        *,
        topics: str | Sequence[str] = (),
        security: Security | None = None,
        connect_timeout_ms: int = _CONNECT_TIMEOUT_MS,
    ) -> None:
        """`max_wait_time` is in milliseconds. All members share the partitions of `topics`, or of
        all topics if `topics` is empty. Without a deserializer, messages are parsed as JSON.
        `connect_timeout_ms` limits the wait of `connect` for an allocation.
        """
        self.group_name = group
        self.name = f"{socket.gethostname()}:{id(self)}"
        self.autocommit = autocommit
        self.offsets: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        """Topic -> partition id -> offset of the next message. Calls of `consume` advance it, and
        begin where it says: the application may change it between them."""
        self.topics_to_commit: set[str] = set()
        """The topics that were consumed since their last commit."""
        self.synced_offsets: set[str] = set()
        """The topics whose `offsets` were determined since the last rebalance; for any other topic,
        `consume` determines them first."""
        self.coordinator_id: int | None = None
        self.closing = False
        """Whether `close` was called: `consume` then returns no messages."""
        self._deserializer: Callable[[Any], object] = deserializer or json.loads
        self._poll_timeout = max_wait_time / 1000
        self._brokers, self._security = brokers, security
        self._connect_timeout_ms = connect_timeout_ms
        self._current_topic = ""
        self._owned: set[TopicPartition] = set()
        """The partitions that this member may commit: `allocation`, and those being revoked."""
        self._positions: dict[TopicPartition, OffsetAndMetadata] = {}
        """Where the consumer reads next: at the last seek to `offsets`, or after the last message
        since then."""
        self._rebalance_count = 0
        super().__init__()
        with renamed(_NAMES):
            self._consumer = Consumer(
                *([topics] if isinstance(topics, str) and topics else topics),
                membership=_zookeeper(zk_hosts, group),
                pattern=None if topics else ".*",
                bootstrap_servers=brokers,
                security=security,
                group_id=group,
                assignors=[_assignor(partition_allocator, self.name)],
                # Its auto-commit would commit the start of each allocated partition, too. A value
                # that is not a boolean is left for Consumer to reject.
                enable_auto_commit=False if autocommit is True else autocommit,
                max_poll_interval_ms=_NO_POLL_LIMIT_MS,
                fetch_max_wait_ms=max_wait_time,
                fetch_min_bytes=min_bytes,
                fetch_max_bytes=max_bytes,
                max_partition_fetch_bytes=max_bytes,
                on_partitions_assigned=self._on_assigned,
                on_partitions_revoked=self._on_released,
                on_partitions_lost=self._on_released,
            )

    async def _start_tasks(self) -> None:
        await self.connect()

    async def _stop_tasks(self) -> None:
        await self.close()

    async def connect(self) -> None:
        """Join the group, wait for the first allocation, and find the coordinator.

        Raises: JoinFailedError if no allocation comes within `connect_timeout_ms`, for example
        because ZooKeeper cannot be reached; errors that end the membership; what
        `determine_coordinator` raises.
        """
        await self._tasks.start(self._consumer)
        timeout_ms = self._connect_timeout_ms
        await wait_for_assignment(
            self._consumer, timeout_ms / 1000, f"connect_timeout_ms={timeout_ms}"
        )
        await self.determine_coordinator()

    async def close(self) -> None:
        """Leave the group. The messages that the last call returned are not committed."""
        self.closing = True
        await self.wind_down()

    async def wind_down(self) -> None:
        """Leave the group; the other members take over this member's partitions."""
        await self._consumer.stop()

    @property
    def allocation(self) -> dict[str, list[int]]:
        """Topic -> ids of the partitions that are assigned to this member."""
        return by_topic(self._consumer.assignment())

    # ------------------------------------------------------------ messages

    async def consume(self, topic: str, start: object = None) -> list[object]:
        """Return the values of a topic's messages; wait up to `max_wait_time` for the first one.

        With `autocommit`, the messages that the previous call returned are committed first: by
        calling again, the application declares them processed. A message that the deserializer
        rejects is logged and skipped. If a broker rejects the request, the error is logged, the
        result is empty, and the next call retries. `start` is ignored: consumption starts at the
        group's committed offsets. Raises: what `commit_offsets` raises, except CommitFailedError;
        the error that ended the membership.
        """
        if self.closing:
            return []
        if self.autocommit:
            with suppress(CommitFailedError):  # the new owner redelivers these messages
                await self.commit_offsets()
        self._deliver_only(topic)
        try:
            await self._sync_offsets(topic)
            found = await self._consumer.getmany(_MAX_MESSAGES, timeout=self._poll_timeout)
        except (BrokerError, NoOffsetsError) as error:
            await self._consumer.commit({})  # raises the same error if the membership has ended
            logger.error("group %s: reading topic %s failed: %s", self.group_name, topic, error)
            self.synced_offsets.discard(topic)
            return []
        self.topics_to_commit.add(topic)
        for tp, records in found.items():
            last = records[-1]
            self._positions[tp] = OffsetAndMetadata(last.offset + 1, "", last.leader_epoch)
            self.offsets[topic][tp.partition] = last.offset + 1
        return [value for records in found.values() for value in self._values(records)]

    async def _sync_offsets(self, topic: str) -> None:
        """Have the consumer read at `offsets`; determine them first if none were determined since
        the last rebalance."""
        if topic not in self.synced_offsets:
            rebalance_count = self._rebalance_count
            await self.determine_offsets(topic)
            if rebalance_count == self._rebalance_count:
                self.synced_offsets.add(topic)
        self._seek_to_offsets(topic)

    def _seek_to_offsets(self, topic: str) -> None:
        for tp in self._partitions_of(topic):
            if tp.partition in self.offsets[topic]:
                wanted = self._offset(tp)
                # `_offset` returns the position itself if the application has not moved it.
                if self._positions.get(tp) is not wanted:
                    self._consumer.seek(tp, wanted.offset)
                    self._positions[tp] = wanted

    def _offset(self, tp: TopicPartition) -> OffsetAndMetadata:
        """Return a partition's entry in `offsets`; if the consumer has read up to that offset, with
        the leader epoch of the last message."""
        offset, position = self.offsets[tp.topic][tp.partition], self._positions.get(tp)
        if position is not None and position.offset == offset:
            return position
        return OffsetAndMetadata(offset)

    def _values(self, records: Iterable[Record]) -> Iterable[object]:
        for record in records:
            try:
                yield self._deserializer(record.value)
            except USER_ERRORS:
                where = TopicPartition(record.topic, record.partition)
                logger.exception(
                    "skipped %s at offset %d: its deserializer failed", where, record.offset
                )

    def _deliver_only(self, topic: str) -> None:
        """Deliver this topic's messages only: pause the other topics."""
        self._current_topic = topic
        self._pause_other_topics(tuple(self._consumer.assignment()))

    def _pause_other_topics(self, partitions: Sequence[TopicPartition]) -> None:
        """Pause the partitions of other topics and resume those of the current one."""
        mine = [tp for tp in partitions if tp.topic == self._current_topic]
        self._consumer.pause(*(tp for tp in partitions if tp.topic != self._current_topic))
        self._consumer.resume(*mine)

    # ------------------------------------------------------------ rebalances

    def _on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Called with the new partitions of each assignment."""
        self._rebalance_count += 1
        self._owned.update(partitions)
        self._positions.clear()
        self.synced_offsets.clear()
        self._pause_other_topics(partitions)

    def _on_released(self, partitions: Sequence[TopicPartition]) -> None:
        """Called before partitions are released, and after they were lost."""
        self._owned.difference_update(partitions)

    # ------------------------------------------------------------ offsets

    async def determine_offsets(self, topic: str, start: object = None) -> None:
        """Read the group's committed offsets of a topic into `offsets`, where the next `consume`
        reads; without a commit, the start of the log. `start` is ignored. Raises: NoOffsetsError.
        """
        retry = True
        while retry:
            committed, starts = await self._fetch_offsets(topic)
            self.offsets.pop(topic, None)
            for tp, offset in starts.items():
                self.offsets[topic][tp.partition] = offset
            retry = self.handle_offset_fetch_response(committed)
            if retry:
                await anyio.sleep(_RETRY_PAUSE)

    async def _fetch_offsets(
        self, topic: str
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata | None], dict[TopicPartition, int]]:
        """Return the committed offsets of a topic, and the starts of the logs without one."""
        try:
            committed = await self._consumer.committed(self._partitions_of(topic))
            missing = [tp for tp, offset in committed.items() if offset is None]
            starts = await self._consumer.beginning_offsets(missing) if missing else {}
        except (BrokerError, TransportError) as error:
            raise NoOffsetsError(str(error)) from error
        return committed, starts

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        return [tp for tp in self._consumer.assignment() if tp.topic == topic]

    def handle_offset_fetch_response(
        self, response: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> bool:
        """Called with the committed offsets. Returns whether to fetch them again: here False, as
        the main API has already retried."""
        for tp, committed in response.items():
            if committed is not None:
                self.offsets[tp.topic][tp.partition] = committed.offset
        return False

    async def commit_offsets(self, metadata: str | None = None) -> None:
        """Commit `offsets` of the topics that were consumed since their last commit, with a note as
        metadata: the given one, or this member's name. A note that is too long is dropped. A commit
        that fails with a permanent error is logged; the next one covers its offsets.

        Raises: CommitFailedError when partitions are no longer this member's; a retriable
        BrokerError or a TransportError after the retries with backoff have failed.
        """
        note = f"committed by {self.name}" if metadata is None else metadata
        retry = True
        while retry:
            failure = await self._commit_topics(note)
            retry, is_note_blanked = self.handle_offset_commit_response(failure)
            if retry:
                note = "" if is_note_blanked else note
                await anyio.sleep(_RETRY_PAUSE)
        # A permanent error of a broker is not raised: it was logged.
        if failure is not None and not (isinstance(failure, BrokerError) and not failure.retriable):
            raise failure

    async def _commit_topics(self, note: str) -> KafkaGroupError | None:
        """Commit, and return the error if that fails."""
        topics, self.topics_to_commit = self.topics_to_commit, set()
        try:
            for topic in topics & self.synced_offsets:
                # Without a seek, a commit below the start of the assignment would be refused.
                self._seek_to_offsets(topic)
            offsets = {
                tp: self._offset(tp)
                for tp in self._owned
                if tp.topic in topics and tp.partition in self.offsets[tp.topic]
            }
            await self._consumer.commit(offsets, note=note)
        except KafkaGroupError as error:
            self.topics_to_commit |= topics
            return error
        return None

    def handle_offset_commit_response(self, response: KafkaGroupError | None) -> tuple[bool, bool]:
        """Called with the result of a commit: None, or its error. Returns whether to retry, and
        whether with a blank note: here neither, as the main API has already done both."""
        if response is not None:
            logger.error("group %s: %s", self.group_name, response)
        return (False, False)

    # ------------------------------------------------------------ coordinator

    async def determine_coordinator(self) -> None:
        """Find the coordinator; retry until a broker answers. Raises: what `Admin` raises."""
        async with Admin(bootstrap_servers=self._brokers, security=self._security) as admin:
            is_determined = False
            while not is_determined:
                found = await admin.find_coordinator(self.group_name)
                is_determined = self.handle_group_coordinator_response(found)
                if not is_determined:
                    await anyio.sleep(_RETRY_PAUSE)

    def handle_group_coordinator_response(self, response: Node) -> bool:
        """Called with the coordinator. Returns whether to accept it; if not, it is looked up
        again."""
        self.coordinator_id = response.node_id
        return True


def _zookeeper(zk_hosts: str | Sequence[str], group: str) -> ZooKeeperMembership | None:
    """Return the membership, which refuses to start beside kiel's own members; None without
    hosts."""
    hosts = zk_hosts if isinstance(zk_hosts, str) else ",".join(zk_hosts)
    if not hosts:
        return None
    from kafkagroup import ZooKeeperMembership  # needs kazoo, which groups in Kafka do not

    members_of_kiel = f"/kiel/groups/{group}/members"
    return ZooKeeperMembership(hosts, root="/kiel", foreign_members=[members_of_kiel])


def _assignor(allocator: PartitionAllocator | None, own_name: str) -> Assignor:
    """Return the allocator as an assignor. Members send their names as user data, because their
    member ids are assigned by the coordinator."""
    if allocator is None:
        return naive_assignor
    protocol = getattr(allocator, "__name__", "allocator")  # an object with `__call__` has no name

    @named(protocol, user_data=lambda _owned, _generation: own_name.encode())
    def assignor(spec: GroupSpec) -> Assignment:
        name_by_id = {member: _name(member, m.user_data) for member, m in spec.members.items()}
        id_by_name = {name: member for member, name in name_by_id.items()}

        def allocate(
            members: list[str], partitions: list[TopicPartition]
        ) -> Mapping[str, Mapping[str, Iterable[int]]]:
            written = sorted(f"{topic}:{number}" for topic, number in partitions)
            allocation = allocator(sorted(name_by_id[member] for member in members), written)
            # `allocating` rejects a name that no member has.
            return {id_by_name.get(name, name): topics for name, topics in allocation.items()}

        return allocating(protocol, allocate)(spec)

    return assignor


def _name(member_id: str, user_data: bytes | None) -> str:
    return user_data.decode(errors="replace") if user_data else member_id

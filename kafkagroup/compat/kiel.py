"""kiel's names: a grouped consumer of any topics, and its allocator.

```python
from kafkagroup.compat.kiel import GroupedConsumer

consumer = GroupedConsumer(["localhost:9092"], group="billing", zk_hosts=["localhost:2181"])
await consumer.connect()
while True:
    for value in await consumer.consume("orders"):
        await bill(value)
```

Members know of each other through ZooKeeper, as there; where `zk_hosts` is empty, through Kafka.
"""

from __future__ import annotations

import json
import logging
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
)
from kafkagroup.assign import (
    Assignor,
    GroupSpec,
    allocating,
    naive_allocator,
    naive_assignor,
)
from kafkagroup.assign.spec import named
from kafkagroup.compat._host import Guest
from kafkagroup.compat._names import renamed
from kafkagroup.types import Assignment

if TYPE_CHECKING:
    from kafkagroup import ZooKeeperMembership

__all__ = ["GroupedConsumer", "NoOffsetsError", "PartitionAllocator", "naive_allocator"]

logger = logging.getLogger(__name__)

PartitionAllocator = Callable[[list[str], list[str]], Mapping[str, Mapping[str, Iterable[int]]]]
"""Members, which are `consumer.name`s, and partitions, written "topic:number", both sorted, in;
member -> topic -> ids out."""

_FOREVER = 2**31 - 1
"""Milliseconds. kiel sets no limit to how long an application may stay away."""

_MOST = 100_000
"""Messages that one call hands out at most; `max_bytes` is the limit that counts."""


_NAMES = {
    "enable_auto_commit": "autocommit",
    "fetch_max_bytes": "max_bytes",
    "fetch_max_wait_ms": "max_wait_time",
    "fetch_min_bytes": "min_bytes",
    "max_partition_fetch_bytes": "max_bytes",
}
"""The main API's name of an option -> kiel's, where they differ."""


class NoOffsetsError(KafkaGroupError):
    """The group's offsets cannot be read, and no retry would change that."""


class GroupedConsumer(Guest):
    """A consumer that shares the partitions of all topics with the other members of its group.

    Inside `async with` on asyncio and trio; on asyncio also by `connect()` and `close()`.
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
        topics: Sequence[str] = (),
        security: Security | None = None,
    ) -> None:
        """`max_wait_time` is in milliseconds. All members share the partitions of `topics`; of all
        topics there are, if none are named. Messages are JSON unless a deserializer says otherwise.
        """
        self.group_name = group
        self.name = f"{socket.gethostname()}:{id(self)}"
        self.autocommit = autocommit
        self.offsets: dict[str, dict[int, int]] = defaultdict(dict)
        """Topic -> partition id -> offset of the next message, as it was last asked for."""
        self.coordinator_id: int | None = None
        self.closing = False
        self._deserializer: Callable[[Any], object] = deserializer or json.loads
        self._wait = max_wait_time / 1000
        self._brokers, self._security = brokers, security
        self._current = ""
        self._unplaced: set[str] = set()
        """Topics whose offsets could not be read."""
        super().__init__()
        with renamed(_NAMES):
            self._consumer = Consumer(
                *topics,
                membership=_membership(zk_hosts),
                pattern=None if topics else ".*",
                bootstrap_servers=brokers,
                security=security,
                group_id=group,
                assignors=[_assignor(partition_allocator, self.name)],
                enable_auto_commit=autocommit,
                max_poll_interval_ms=_FOREVER,
                fetch_max_wait_ms=max_wait_time,
                fetch_min_bytes=min_bytes,
                fetch_max_bytes=max_bytes,
                max_partition_fetch_bytes=max_bytes,
                on_partitions_assigned=self._assigned,
            )

    async def _entered(self) -> None:
        await self.connect()

    async def _leaving(self) -> None:
        await self.close()

    async def connect(self) -> None:
        """Join the group, and find its coordinator."""
        await self._host.start(self._consumer)
        await self.determine_coordinator()

    async def close(self) -> None:
        """Commit what was consumed, if `autocommit`, and leave."""
        self.closing = True
        await self.wind_down()

    async def wind_down(self) -> None:
        """Leave the group, so that the others share what this member had."""
        await self._consumer.stop()

    @property
    def allocation(self) -> dict[str, list[int]]:
        """Topic -> partition ids, of what is this member's now."""
        found: dict[str, list[int]] = {}
        for topic, partition in sorted(self._consumer.assignment()):
            found.setdefault(topic, []).append(partition)
        return found

    # ------------------------------------------------------------ messages

    async def consume(self, topic: str, start: object = None) -> list[object]:
        """The values of messages of a topic that have come, waiting `max_wait_time` for the first.

        With `autocommit`, what the call before handed out is committed first: coming back says that
        it is done. A message that the deserializer refuses is logged and passed over. So is what a
        broker refuses: the answer is empty, and the next call asks again. `start` is not looked at:
        reading goes on where the group has committed. Raises: what has ended the membership.
        """
        if self.closing:
            return []
        if self.autocommit:
            with suppress(CommitFailedError):  # the next owner hands out the same again
                await self.commit_offsets()
        self._turn_to(topic)
        try:
            if topic in self._unplaced:
                await self._place(topic)
            found = await self._consumer.getmany(_MOST, timeout=self._wait)
        except (BrokerError, NoOffsetsError) as error:
            await self._consumer.commit({})  # raises the same where the membership has ended
            logger.error("group %s: nothing of %s is read: %s", self.group_name, topic, error)
            self._unplaced.add(topic)
            return []
        return [value for records in found.values() for value in self._values(records)]

    async def _place(self, topic: str) -> None:
        """Begin where the group has committed, in partitions whose offset the consumer could not
        read: it asks only once."""
        await self.determine_offsets(topic)
        for tp in self._mine(topic):
            try:
                await self._consumer.position(tp)
            except BrokerError:
                if (offset := self.offsets[topic].get(tp.partition)) is None:
                    await self._consumer.seek_to_beginning(tp)
                else:
                    self._consumer.seek(tp, offset)
        self._unplaced.discard(topic)

    def _values(self, records: Iterable[Record]) -> Iterable[object]:
        for record in records:
            try:
                yield self._deserializer(record.value)
            except Exception:
                where = TopicPartition(record.topic, record.partition)
                logger.exception("passed over: %s at offset %d", where, record.offset)

    def _turn_to(self, topic: str) -> None:
        """Let only this topic's messages come."""
        self._current = topic
        self._assigned(tuple(self._consumer.assignment()))

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        mine = [tp for tp in partitions if tp.topic == self._current]
        self._consumer.pause(*(tp for tp in partitions if tp.topic != self._current))
        self._consumer.resume(*mine)

    # ------------------------------------------------------------ offsets

    async def determine_offsets(self, topic: str, start: object = None) -> None:
        """Ask for the group's offsets of a topic, into `offsets`. Raises: NoOffsetsError."""
        try:
            found = await self._consumer.committed(self._mine(topic))
        except BrokerError as error:
            raise NoOffsetsError(str(error)) from error
        self.handle_offset_fetch_response(found)

    def _mine(self, topic: str) -> list[TopicPartition]:
        return [tp for tp in self._consumer.assignment() if tp.topic == topic]

    def handle_offset_fetch_response(
        self, response: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> bool:
        """Called with the committed offsets. Answers whether to ask again: retries are over by
        then."""
        for tp, committed in response.items():
            if committed is not None:
                self.offsets[tp.topic][tp.partition] = committed.offset
        return False

    async def commit_offsets(self, metadata: str | None = None) -> None:
        """Commit what was handed out, with a note beside it: left out if it is too long. A commit
        that is refused for good is logged; the next one covers it.

        Raises: CommitFailedError when partitions are no longer this member's; BrokerError and
        TransportError after trying for a while, with pauses.
        """
        failure: KafkaGroupError | None = None
        try:
            await self._consumer.commit(note=metadata or f"committed by {self.name}")
        except KafkaGroupError as error:
            failure = error
        self.handle_offset_commit_response(failure)
        if failure is not None and not (isinstance(failure, BrokerError) and not failure.retriable):
            raise failure

    def handle_offset_commit_response(self, response: KafkaGroupError | None) -> tuple[bool, bool]:
        """Called with what came of a commit: None, or its error. Answers whether to try again, and
        whether with a blank note: both were done by then."""
        if response is not None:
            logger.error("group %s: %s", self.group_name, response)
        return (False, False)

    # ------------------------------------------------------------ coordinator

    async def determine_coordinator(self) -> None:
        """Ask which broker coordinates the group, until one answers. Raises: what `Admin` does."""
        async with Admin(bootstrap_servers=self._brokers, security=self._security) as admin:
            self.handle_group_coordinator_response(await admin.find_coordinator(self.group_name))

    def handle_group_coordinator_response(self, response: Node) -> bool:
        """Called with the coordinator. Answers whether it is determined."""
        self.coordinator_id = response.node_id
        return True


def _membership(zk_hosts: str | Sequence[str]) -> ZooKeeperMembership | None:
    hosts = zk_hosts if isinstance(zk_hosts, str) else ",".join(zk_hosts)
    if not hosts:
        return None
    from kafkagroup import ZooKeeperMembership  # needs kazoo, which Kafka's own groups do without

    return ZooKeeperMembership(hosts, root="/kiel")


def _assignor(allocator: PartitionAllocator | None, name: str) -> Assignor:
    """The allocator as an assignor. Members tell each other their names in user data: their ids
    are the coordinator's."""
    if allocator is None:
        return naive_assignor
    protocol = getattr(allocator, "__name__", "allocator")

    @named(protocol, user_data=lambda _had, _generation: name.encode())
    def assignor(spec: GroupSpec) -> Assignment:
        names = {member: _name(member, said.user_data) for member, said in spec.members.items()}
        ids = {name: member for member, name in names.items()}

        def allocate(
            members: list[str], partitions: list[TopicPartition]
        ) -> Mapping[str, Mapping[str, Iterable[int]]]:
            written = sorted(f"{topic}:{number}" for topic, number in partitions)
            given = allocator(sorted(names[member] for member in members), written)
            return {ids.get(name, name): topics for name, topics in given.items()}

        return allocating(protocol, allocate)(spec)

    return assignor


def _name(member_id: str, user_data: bytes | None) -> str:
    return user_data.decode(errors="replace") if user_data else member_id

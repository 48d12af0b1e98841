"""The state that the nodes share: live nodes, topics and their leaders, groups and offsets.

All state that outlives a node is here; a node itself has only its fetch sessions. Only this module
changes leaders and coordinators. No I/O.
"""

from __future__ import annotations

import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from random import Random
from struct import Struct
from typing import Any
from uuid import UUID
from zlib import crc32

import attrs

from kafkagroup.errors import BrokerError, ErrorCode
from kafkagroup.testing.embedded.consumer_coordinator import ConsumerCoordinator
from kafkagroup.testing.embedded.coordinator import ClassicCoordinator
from kafkagroup.testing.embedded.fetch_sessions import FetchSessions
from kafkagroup.testing.embedded.log import PartitionLog
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.testing.embedded.timers import Timers
from kafkagroup.testing.embedded.topic_configs import TopicConfigs, problem_of
from kafkagroup.testing.embedded.transactions import (
    Identity,
    Transaction,
    TransactionCoordinator,
)
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.schema import Request

__all__ = ["Cluster", "Node", "Partition", "Topic"]

_MARKER_KEY = Struct(">hh")
"""The key of a control record: its version, and 1 to commit or 0 to abort."""
_MARKER_VALUE = Struct(">hi")
"""The value of a control record: its version, and the epoch of the coordinator."""
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


_Pending = tuple[int, OffsetAndMetadata]
"""An offset of an open transaction, after a number that grows from one commit to the next."""


@attrs.define(eq=False)
class Node:
    """One broker: its id, the address that is advertised to clients, and its fetch sessions."""

    node_id: int
    host: str
    port: int
    """0 until the node listens, if the system chooses the port; -1 without an `EmbeddedKafka`."""
    fetch_sessions: FetchSessions
    is_alive: bool = True


@attrs.define(eq=False)
class Partition:
    """One partition: its log and its leader."""

    log: PartitionLog
    leader: int
    """-1 while no node is alive."""
    leader_epoch: int = 0

    def lead(self, node_id: int) -> None:
        """Elect a leader, in a new leader epoch."""
        self.leader = node_id
        self.leader_epoch += 1
        self.log.begin_epoch(self.leader_epoch)


@attrs.define(eq=False)
class Topic:
    """A topic; recreated under the same name, it has a new id."""

    name: str
    topic_id: UUID
    partitions: list[Partition]
    configs: TopicConfigs


class Cluster:
    """The state that all nodes share."""

    def __init__(
        self,
        node_ids: range,
        settings: BrokerSettings,
        seed: int,
        cluster_id: str | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        """The id in Metadata responses; None for `topics.CLUSTER_ID`."""
        self._random = Random(seed)
        self.settings = settings
        self.timers = Timers()
        slots = settings.max_incremental_fetch_session_cache_slots
        self.nodes = {
            node_id: Node(node_id, "", -1, FetchSessions(self._new_session_id, slots))
            for node_id in node_ids
        }
        self.topics: dict[str, Topic] = {}
        self.topic_creations = 0
        """How many topics have been created, also those that were deleted since."""
        self.classic_coordinator = ClassicCoordinator(
            self.timers, lambda: str(self.new_id()), settings
        )
        self.consumer_coordinator = ConsumerCoordinator(
            self.timers,
            settings,
            counts=lambda: {name: len(topic.partitions) for name, topic in self.topics.items()},
            ids=lambda: {name: topic.topic_id for name, topic in self.topics.items()},
            topic_creations=lambda: self.topic_creations,
            new_id=self._new_short_id,
        )
        self.offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        """Group -> its committed offsets."""
        self._pending_offsets: dict[str, dict[int, dict[TopicPartition, _Pending | None]]] = {}
        """Group -> producer id -> the offsets that its open transaction commits; None for one that
        a later commit has replaced."""
        self._pending_count = 0
        """How often pending offsets were stored."""
        self.transaction_coordinator = TransactionCoordinator(
            self.timers, settings, self._write_markers, lambda: self.transaction_version
        )
        self.transaction_version = settings.transaction_version
        """The finalized feature `transaction.version`."""
        self.transaction_version_changes = 0
        """How often it was changed: the epoch of the finalized features."""
        self.wall: Callable[[], float] = time.time
        """Returns the time for the timestamps of records, in seconds since the epoch."""
        self.fetch_callbacks: dict[object, Callable[[], None]] = {}
        """Callbacks for when there may be more to fetch, keyed by the waiting fetch."""
        self.injected_error: Callable[[int, type[Request[Any]], TopicPartition], int] = (
            _no_injected_error
        )
        """Returns the injected error code of a partition's entry in a response, 0 for none; from
        the id of the node that responds, the type of the request, and the partition."""
        self.injected_error_after: Callable[[int, type[Request[Any]], TopicPartition], int] = (
            _no_injected_error
        )
        """Returns, from the same arguments, the error code that an entry gets after the request was
        executed for its partition; 0 for none."""
        self._chosen_coordinators: dict[str, int] = {}
        """Group or transactional id -> the node that `move_coordinator` chose."""

    def new_id(self) -> UUID:
        """Return a random id for a topic or a member."""
        return UUID(int=self._random.getrandbits(128), version=4)

    def _new_short_id(self) -> str:
        """Return a random id in Base64, as Kafka writes its ids: without a leading hyphen."""
        while True:
            text = urlsafe_b64encode(self.new_id().bytes).decode().rstrip("=")
            if not text.startswith("-"):
                return text

    def _new_session_id(self) -> int:
        return self._random.randrange(1, 2**31)

    @property
    def live_ids(self) -> list[int]:
        """The ids of the nodes that are alive, sorted."""
        return [node.node_id for node in self.nodes.values() if node.is_alive]

    # ------------------------------------------------------------ topics

    def check_topic(self, name: str) -> ErrorCode:
        """Return the error for creating a topic with this name, or NONE."""
        if name in (".", "..") or not _TOPIC_NAME.fullmatch(name):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return ErrorCode.TOPIC_ALREADY_EXISTS if name in self.topics else ErrorCode.NONE

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str | None] | None = None
    ) -> Topic:
        """Create a topic with these options, and with its leaders spread over the nodes.

        Raises: BrokerError if the name exists or is invalid, for fewer than one partition, and for
        an option that does not exist or has an invalid value.
        """
        error, problem = self.check_topic(name), problem_of(configs or {})
        if partitions < 1:
            error = error or ErrorCode.INVALID_PARTITIONS
        if error:
            raise BrokerError(error, name)
        if problem is not None:
            raise BrokerError(ErrorCode.INVALID_CONFIG, problem)
        topic = self.add_topic(name, self.new_id())
        topic.configs.set(configs or {})
        self.add_partitions(name, partitions)
        return topic

    def add_topic(self, name: str, topic_id: UUID) -> Topic:
        """Add a topic that has no partitions yet."""
        topic = self.topics[name] = Topic(name, topic_id, [], TopicConfigs(self.settings))
        self.topic_creations += 1
        return topic

    def add_partitions(self, name: str, count: int) -> None:
        """Grow the topic to `count` partitions. Raises: ValueError if it has more."""
        topic = self.topics[name]
        if count < len(topic.partitions):
            raise ValueError(f"{name} has {len(topic.partitions)} partitions; they never get fewer")
        live = self.live_ids
        for index in range(len(topic.partitions), count):
            leader = live[index % len(live)] if live else -1
            topic.partitions.append(Partition(PartitionLog(), leader))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and its committed and pending offsets in all groups."""
        del self.topics[name]
        for offsets in self.offsets.values():
            for partition in [tp for tp in offsets if tp.topic == name]:
                del offsets[partition]
        for pending in (
            found for group in self._pending_offsets.values() for found in group.values()
        ):
            for partition in [tp for tp in pending if tp.topic == name]:
                del pending[partition]
        self.wake_fetches()

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic with this id, if it exists."""
        return next((t for t in self.topics.values() if t.topic_id == topic_id), None)

    def partition(self, topic: str, index: int) -> Partition | None:
        """Return the partition, if it exists."""
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def append(self, partition: Partition, batch: bytes | memoryview) -> int:
        """Append a whole batch, wake the waiting fetches, and return the first offset."""
        base = partition.log.append(batch)
        self.wake_fetches()
        return base

    def wake_fetches(self) -> None:
        """Let every pending fetch check again."""
        for callback in tuple(self.fetch_callbacks.values()):
            callback()

    # ------------------------------------------------------------ offsets and transactions

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store committed offsets. Pending offsets of open transactions for the same partitions are
        dropped, so that they do not overwrite these later."""
        self.offsets.setdefault(group_id, {}).update(offsets)
        for pending in self._pending_offsets.get(group_id, {}).values():
            pending.update(dict.fromkeys(pending.keys() & offsets.keys()))

    def commit_pending(
        self, group_id: str, producer_id: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Store offsets that count once the producer's transaction commits."""
        self._pending_count += 1
        pending = self._pending_offsets.setdefault(group_id, {}).setdefault(producer_id, {})
        pending.update({tp: (self._pending_count, offset) for tp, offset in offsets.items()})

    def _end_pending(self, group_id: str, producer_id: int, *, commits: bool) -> None:
        """Commit or drop a producer's pending offsets. As in Kafka, of several commits of a
        partition the one that was sent last counts, not the one whose transaction ends last."""
        ended = self._pending_offsets.get(group_id, {}).pop(producer_id, {})
        committed = {tp: one for tp, one in ended.items() if one is not None and commits}
        if not committed:
            return
        offsets = {tp: offset for tp, (_, offset) in committed.items()}
        self.offsets.setdefault(group_id, {}).update(offsets)
        for pending in self._pending_offsets[group_id].values():
            for tp in pending.keys() & committed.keys():
                if (other := pending[tp]) is not None and other[0] < committed[tp][0]:
                    pending[tp] = None

    def delete_offset(self, group_id: str, partition: TopicPartition) -> None:
        """Delete the group's committed and pending offsets of one partition."""
        self.offsets.get(group_id, {}).pop(partition, None)
        for pending in self._pending_offsets.get(group_id, {}).values():
            pending.pop(partition, None)

    def delete_offsets(self, group_id: str) -> None:
        """Delete all committed and pending offsets of the group."""
        self.offsets.pop(group_id, None)
        self._pending_offsets.pop(group_id, None)

    def set_transaction_version(self, version: int) -> None:
        """Change the finalized feature `transaction.version`."""
        self.transaction_version = version
        self.transaction_version_changes += 1

    def unstable_partitions(self, group_id: str) -> frozenset[TopicPartition]:
        """Return the partitions for which open transactions have pending offsets of the group."""
        pending = self._pending_offsets.get(group_id, {})
        return frozenset(tp for offsets in pending.values() for tp in offsets)

    def _write_markers(
        self, transaction: Transaction, identity: Identity, commits: bool, now: float
    ) -> None:
        """End a transaction in its partitions, and commit or drop its offsets."""
        for tp in sorted(transaction.partitions):
            if (partition := self.partition(*tp)) is not None:
                self.write_marker(partition, identity, now, commits=commits)
        for group_id in transaction.groups:
            self._end_pending(group_id, identity.producer_id, commits=commits)
        self.wake_fetches()

    def write_marker(
        self,
        partition: Partition,
        identity: Identity,
        now: float,
        *,
        commits: bool,
        coordinator_epoch: int = 0,
    ) -> None:
        """Append a marker, which ends the producer's transaction in this partition. `now` is on the
        clock of `timers`."""
        value = _MARKER_VALUE.pack(0, coordinator_epoch)
        marker = encode_batch(
            [NewRecord(_MARKER_KEY.pack(0, commits), value, int(self.wall() * 1000))],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            transactional=True,
            control=True,
        )
        partition.log.append(marker)
        partition.log.producers.note_marker(identity.producer_id, coordinator_epoch, now)

    # ------------------------------------------------------------ nodes

    def coordinator_of(self, key: str) -> int:
        """Return the coordinator of a group or transactional id; -1 while no node is alive."""
        live = self.live_ids
        chosen = self._chosen_coordinators.get(key)
        if chosen in live:
            return chosen
        # Not `hash`: its values for strings differ from run to run.
        return live[crc32(key.encode()) % len(live)] if live else -1

    def kill(self, node_id: int, now: float) -> None:
        """Stop a node: other nodes lead its partitions and coordinate its groups. Unlike in Kafka,
        groups of other nodes may move, too. `now`, here and below, is on the clock of `timers`."""
        self._set_alive(node_id, is_alive=False, now=now)

    def restart(self, node_id: int, now: float) -> None:
        """Start a node. It leads the leaderless partitions, and coordinates the groups that hash to
        it, and those that `move_coordinator` gave to it."""
        self._set_alive(node_id, is_alive=True, now=now)

    def _set_alive(self, node_id: int, *, is_alive: bool, now: float) -> None:
        groups = (*self.classic_coordinator.groups, *self.consumer_coordinator.groups)
        before = {group_id: self.coordinator_of(group_id) for group_id in groups}
        self.nodes[node_id].is_alive = is_alive
        self.nodes[node_id].fetch_sessions.clear()
        live = self.live_ids
        for topic in self.topics.values():
            for index, partition in enumerate(topic.partitions):
                if partition.leader not in live:
                    partition.lead(live[index % len(live)] if live else -1)
        self._load_moved_groups(before, now)
        self.wake_fetches()

    def move_leader(self, topic: str, index: int, node_id: int) -> None:
        """Make another node the leader of the partition. Raises: ValueError if it is not alive."""
        self._check_alive(node_id)
        self.topics[topic].partitions[index].lead(node_id)
        self.wake_fetches()

    def move_coordinator(self, key: str, node_id: int, now: float) -> None:
        """Make another node the coordinator of a group or a transactional id.

        Raises: ValueError if it is not alive.
        """
        self._check_alive(node_id)
        before = {key: self.coordinator_of(key)}
        self._chosen_coordinators[key] = node_id
        self._load_moved_groups(before, now)

    def _check_alive(self, node_id: int) -> None:
        if node_id not in self.live_ids:
            raise ValueError(f"node {node_id} is not alive; the live nodes are {self.live_ids}")

    def _load_moved_groups(self, before: dict[str, int], now: float) -> None:
        for group_id, node_id in before.items():
            after = self.coordinator_of(group_id)
            # While no node is alive, the group stays; the first node that is back loads it.
            if after not in (node_id, -1):
                for coordinator in (self.classic_coordinator, self.consumer_coordinator):
                    if group_id in coordinator.groups:
                        coordinator.move(group_id, now)


def _no_injected_error(_: int, __: type[Request[Any]], ___: TopicPartition) -> int:
    return 0

"""Finds the partitions and leaders of the topics that a producer writes to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral

import anyio

from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.concurrency.coalescing_task import CoalescingTask, Spawn
from kafkagroup.errors import (
    BrokerError,
    ErrorCode,
    KafkaGroupError,
    RemoteProtocolError,
    broker_error,
)
from kafkagroup.produce.accumulator import Accumulator
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.produce.partition_queue import PartitionQueue
from kafkagroup.produce.topic_queues import TopicQueues
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import PartitionMetadata
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import TopicPartition
from kafkagroup.wire.error_codes import BEING_CREATED, REFUSED_TOPIC
from kafkagroup.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

__all__ = ["MetadataWatch"]

_REFUSAL_AGE = 1.0
"""Seconds after a refresh for which a refusal in the metadata is current: records for the topic
fail at once. For a later record the metadata is requested again: an ACL may have been granted."""

_LOOK_UP_INTERVAL = 1.0
"""Seconds between two refreshes for records to a partition that a topic does not have."""

_CREATION_INTERVAL = 5.0
"""Seconds after which the creation of a topic is requested again. Brokers with KRaft respond before
they request it of the controller: a failure, such as while too few brokers run, is only logged."""

_TOPIC_MAX_IDLE = 300.0
"""Seconds since the last record for a topic, after which its metadata is no longer refreshed."""


class MetadataWatch:
    """Refreshes the metadata while it is stale or records wait for it, and every `max_age`
    seconds."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        spawn: Spawn,
        on_leader: Callable[[PartitionQueue], None],
        on_placed: Callable[[TopicQueues, ProduceBatch], None],
        on_followed: Callable[[], None],
        max_age: float,
    ) -> None:
        """`on_leader` is called with each queue of `find_leader` as soon as its leader is known,
        and with the queues of partitions that a recreated topic does not have; `on_placed` with a
        topic, and the records that have waited for its partitions, as soon as these are known or
        refused; `on_followed` after that, with each change of the metadata."""
        self._cluster = cluster
        self._accumulator = accumulator
        self._spawn = spawn
        self._max_age = max_age
        self._on_leader = on_leader
        self._on_placed = on_placed
        self._on_followed = on_followed
        self._task = CoalescingTask(spawn, self._find, "metadata")
        self._leaderless: set[PartitionQueue] = set()
        """The queues of `find_leader` whose leader is not known yet."""
        self._is_stale = False
        """Whether the metadata must be refreshed even if nothing waits for it."""
        self._existing: set[str] = set()
        """The topics that have existed. No request may create them: it would bring a deleted topic
        back (KAFKA-5789)."""
        self._creations: dict[str, float] = {}
        """Topic that has not existed yet -> when a broker last accepted to create it, on the loop's
        clock."""
        self._refused_creations: dict[str, KafkaGroupError] = {}
        """Topic -> why the brokers do not create it for this client, by their last response."""
        self._followed = ChangeSignal()
        """Notified when new metadata was applied."""
        self._causes: dict[TopicPartition, KafkaGroupError] = {}
        """Why the last attempt for a partition failed; for partition -1, why the partitions of the
        topic are not known."""
        self._refreshed_at = -math.inf
        """When a refresh has succeeded last, on the loop's clock."""
        self._last_error: KafkaGroupError | None = None
        """Why the metadata must be refreshed, or the last refresh failed; None after a success."""

    def start(self) -> None:
        """Follow the metadata."""
        self._cluster.topics.follow(self.topics_in_use)
        self._cluster.on_change = self._follow
        self._spawn(self._refresh_regularly, "metadata refresh")

    def topics_in_use(self) -> Iterable[str]:
        """Return the topics that were written to lately, or have something to send."""
        least = anyio.current_time() - _TOPIC_MAX_IDLE
        return [
            name
            for name, topic in self._accumulator.topics.items()
            if topic.used_at >= least
            or topic.is_awaited
            or not all(queue.is_idle for queue in topic.queues)
        ]

    def find(self, topic: TopicQueues) -> None:
        """Find the partitions of a topic for which records wait."""
        topic.used_at = anyio.current_time()
        self._refused_creations.pop(topic.name, None)  # the creation may be allowed by now
        self._follow_topic(topic)
        if topic.is_awaited:
            self._task.ensure_running()

    async def partition_count(self, topic: TopicQueues) -> int:
        """Return the number of a topic's partitions, as soon as it is known. Raises: BrokerError if
        the topic may not be described, or not be created."""
        topic.awaiting_count += 1
        try:
            self.find(topic)
            while not topic.queues:
                if (refusal := self._current_refusal(topic)) is not None:
                    raise refusal
                await self._followed.wait()
        finally:
            topic.awaiting_count -= 1
        return topic.count

    async def finds_partition(self, name: str, number: int | None) -> bool:
        """Look up a partition that a topic does not have by the metadata: it may have been added.
        Return whether it has been; False without a look-up if there was one in the last
        `_LOOK_UP_INTERVAL`, and for a partition that is known. Raises: as `Cluster.refresh`."""
        topic = self._topic_without(name, number)
        if topic is None or number is None:
            return False
        await self._cluster.refresh()
        topic.looked_up_at = anyio.current_time()
        return number < topic.count

    def find_partition_soon(self, name: str, number: int | None) -> None:
        """As `finds_partition`, in the background."""
        if (topic := self._topic_without(name, number)) is not None:
            topic.looked_up_at = anyio.current_time()
            self._is_stale = True
            self._task.ensure_running()

    def _topic_without(self, name: str, number: int | None) -> TopicQueues | None:
        """Return the topic if it is to be looked up whether it has a partition by now; else None.
        The arguments are the application's, and may be of any type."""
        topic = self._accumulator.topics.get(name) if isinstance(name, str) else None
        if topic is None or not isinstance(number, Integral) or not 0 < topic.count <= number:
            return None
        now = anyio.current_time()
        topic.used_at = now  # so that a refresh includes the topic
        return topic if now >= topic.looked_up_at + _LOOK_UP_INTERVAL else None

    def find_leader(self, queue: PartitionQueue) -> None:
        """Find the leader of a partition that has records to send."""
        self._leaderless.add(queue)
        self._task.ensure_running()

    def refresh(self, error: KafkaGroupError) -> None:
        """Refresh the metadata: a leader did not respond, or is none any more."""
        self._last_error = error
        self._is_stale = True
        self._task.ensure_running()

    async def refreshed(self, error: KafkaGroupError) -> None:
        """As `refresh`, and wait until the metadata was refreshed."""
        self.refresh(error)
        while self._is_stale:
            await self._followed.wait()

    # ------------------------------------------------------------ causes

    def note(self, tp: TopicPartition, error: KafkaGroupError) -> None:
        """Note why an attempt for a partition failed."""
        self._causes[tp] = error

    def forget(self, tp: TopicPartition) -> None:
        """Forget why the last attempt for a partition failed: one has succeeded."""
        self._causes.pop(tp, None)

    def cause(self, tp: TopicPartition) -> KafkaGroupError | None:
        """Return why the records of a partition were not acknowledged, or those of a topic (with
        the partition -1), if known."""
        metadata = self._cluster.metadata
        leader = metadata.leader(tp)
        if leader is not None and leader.leader not in metadata.nodes:
            return _no_leader(tp, leader.leader)
        if (cause := self._causes.get(tp)) is not None:
            return cause
        topic = metadata.topics.get(tp.topic)
        if topic is not None and topic.error_code:
            return broker_error(topic.error_code, topic=tp.topic, operation="WRITE")
        if topic is not None and tp.partition < 0:
            missing = _missing_partition(topic.partitions)
            if missing is not None:
                return RemoteProtocolError(
                    f"the metadata of topic {tp.topic!r} has partition {max(topic.partitions)},"
                    f" but not partition {missing}"
                )
        return self._last_error

    # ------------------------------------------------------------ the task

    async def _refresh_regularly(self) -> None:
        while True:
            await anyio.sleep(self._max_age)
            self._is_stale = True
            self._task.ensure_running()

    async def _find(self) -> None:
        """Refresh the metadata until nothing waits for it."""
        pauses = RetryBackoff(self._cluster.options)
        while True:
            self._is_stale = False
            try:
                await self._cluster.refresh()
                if await self._request_missing():
                    await self._cluster.refresh()
                self._refreshed_at = anyio.current_time()
                self._last_error = None
            except KafkaGroupError as error:
                self._last_error = error
                self._is_stale = True
            self._follow()
            if not self._is_needed:
                return
            self._report()
            await pauses.wait()

    @property
    def _is_needed(self) -> bool:
        return (
            self._is_stale
            or bool(self._leaderless)
            or any(topic.is_awaited for topic in self._accumulator.topics.values())
        )

    async def _request_missing(self) -> bool:
        """Request the topics that have never existed, which creates them if the broker does so;
        each at most every `_CREATION_INTERVAL`. Return whether some were requested."""
        known = self._cluster.metadata.topics
        latest = anyio.current_time() - _CREATION_INTERVAL
        missing = [
            name
            for name, topic in self._accumulator.topics.items()
            if topic.is_awaited
            and name not in self._existing
            and self._creations.get(name, -math.inf) <= latest
            and (
                name not in known or known[name].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        ]
        if not missing:
            return False
        request = MetadataRequest(
            topics=tuple(MetadataRequestTopic(name=name) for name in missing),
            allow_auto_topic_creation=True,
        )
        response = await self._cluster.request_any(request)
        self._creations.update(dict.fromkeys(missing, anyio.current_time()))
        for found in response.topics:
            name, code = found.name, found.error_code
            if name is None or code in BEING_CREATED:  # or created by now: NONE is among them
                continue
            self._creations.pop(name, None)
            what = f"topic {name!r} does not exist, and cannot be created"
            error = broker_error(code, what, operation="CREATE", topic=name)
            if code in REFUSED_TOPIC:
                self._refused_creations[name] = error
            self.note(TopicPartition(name, -1), error)
        return True

    def _follow(self) -> None:
        """Apply the metadata: place records, and report the leaders that are known by now."""
        for topic in tuple(self._accumulator.topics.values()):
            self._follow_topic(topic)
        metadata = self._cluster.metadata
        for queue in tuple(self._leaderless):
            if queue.is_idle:
                self._leaderless.discard(queue)
            elif metadata.leader_node(queue.tp) is not None:
                self._leaderless.discard(queue)
                self._on_leader(queue)
        self._on_followed()
        self._followed.notify()

    def _follow_topic(self, topic: TopicQueues) -> None:
        metadata = self._cluster.metadata
        found = metadata.topics.get(topic.name)
        if found is None:
            return
        tp, troubles = TopicPartition(topic.name, -1), self._cluster.troubles
        if found.partitions:
            self._existing.add(topic.name)
            self._creations.pop(topic.name, None)
            self.forget(tp)
        # With a partition missing, the number of partitions may be any: keys would go wrong.
        if found.partitions and _missing_partition(found.partitions) is None:
            if troubles.ongoing:
                troubles.succeeded(tp, anyio.current_time())
            nodes = metadata.nodes
            available = [
                number for number, one in sorted(found.partitions.items()) if one.leader in nodes
            ]
            topic.follow(found.topic_id, len(found.partitions), available)
            for queue in topic.vanished:
                self._leaderless.discard(queue)
                self._on_leader(queue)
        unplaced = topic.unplaced
        if unplaced is None:
            return
        if topic.queues:
            self._accumulator.place(topic)
        elif (refusal := self._current_refusal(topic)) is not None:
            topic.unplaced = None
            unplaced.fail(refusal)
            troubles.forget(tp)
        else:
            return
        self._on_placed(topic, unplaced)

    def _current_refusal(self, topic: TopicQueues) -> KafkaGroupError | None:
        """Return why the partitions of a topic will not be known, as the brokers have just said;
        None if they have not, or longer than `_REFUSAL_AGE` ago."""
        if anyio.current_time() >= self._refreshed_at + _REFUSAL_AGE:
            return None
        name = topic.name
        found = self._cluster.metadata.topics.get(name)
        if found is not None and found.error_code in REFUSED_TOPIC:
            return broker_error(
                found.error_code, f"topic {name!r}", operation="DESCRIBE", topic=name
            )
        return self._refused_creations.get(name)

    def _report(self) -> None:
        now = anyio.current_time()
        # Copies: a handler of the log may write the warning with this producer.
        for name, topic in tuple(self._accumulator.topics.items()):
            if topic.unplaced is not None:
                self._report_one(name, TopicPartition(name, -1), now)
        for queue in tuple(self._leaderless):
            self._report_one(str(queue.tp), queue.tp, now)

    def _report_one(self, name: str, tp: TopicPartition, now: float) -> None:
        cause = self.cause(tp)
        if cause is None:
            cause = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{name} has no leader")
        problem = Problem(
            subject=f"writing to {name}",
            cause=str(cause),
            advice="check that the topic exists, that its partitions have leaders, and what this"
            " client may write",
            topic=tp.topic,
        )
        self._cluster.troubles.failed(tp, now, problem)


def _no_leader(tp: TopicPartition, node_id: int) -> KafkaGroupError:
    """Return the error for a partition whose leader, by its node id or -1, cannot be reached."""
    what = f"{tp} has no leader"
    if node_id >= 0:
        what = f"the leader of {tp}, broker {node_id}, is not among the brokers of the cluster"
    return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, what)


def _missing_partition(partitions: Mapping[int, PartitionMetadata]) -> int | None:
    """Return the first number that is missing among those of a topic's partitions; None if they are
    0, 1, 2 and so on."""
    return next((n for n in range(len(partitions)) if n not in partitions), None)

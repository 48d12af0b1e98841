"""New partitions: follows the metadata to find them, and commits where they start."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

import anyio

from kafkagroup.concurrency.coalescing_task import CoalescingTask, Spawn
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.consume.new_partitions import Described, NewPartitions
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import BrokerError, KafkaGroupError
from kafkagroup.options import ConsumerOptions
from kafkagroup.runtime.consume.interfaces import FetchControl
from kafkagroup.runtime.consume.session import Session
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.error_codes import ABSENT
from kafkagroup.wire.messages.metadata import MetadataRequest

__all__ = ["NewPartitionWatch", "StartCommits"]

logger = logging.getLogger(__name__)

_MAX_WAIT = 1.0
"""Seconds that a subscription waits for responses at most: the brokers may be down."""

_ALL_TOPICS = MetadataRequest(topics=None, allow_auto_topic_creation=False)


class NewPartitionWatch:
    """Follows the metadata of one consumer's subscription to find new partitions. Does nothing if
    the reset policy applies to new partitions, too, or reads all partitions from their beginning
    anyway."""

    def __init__(self, cluster: Cluster, options: ConsumerOptions) -> None:
        self._cluster = cluster
        self._is_enabled = (
            options.auto_offset_reset_new_partitions == "earliest"
            and options.auto_offset_reset != "earliest"
        )
        self._partitions = NewPartitions()
        self._pauses = RetryBackoff(cluster.options)
        self._pause = 0.0
        """Seconds before the next request, while responses are missing."""
        self._responded = OneShotEvent()
        """Set by the next response."""
        if self._is_enabled:
            cluster.on_metadata = self._note_response

    def subscribe(self, topics: frozenset[str], pattern: re.Pattern[str] | None = None) -> None:
        """Follow the topics of a new subscription."""
        if self._is_enabled and self._partitions.subscribe(topics, pattern):
            self._pauses.reset()
            self._pause = 0.0

    def forget_cluster(self) -> None:
        """Forget the topics of the earlier cluster: another one is adopted, where no topic counts
        as new yet."""
        self._partitions.forget()

    async def wait_for_proof(self) -> None:
        """Wait for the metadata responses that are needed to prove that a partition created from
        now on is new, such as a second response if the first does not have the topic. Waits a
        second at most."""
        until = anyio.current_time() + _MAX_WAIT
        while self._partitions.needs_response and await self._responded.wait(until):
            pass

    def is_new(self, tp: TopicPartition) -> bool:
        """Return whether a partition was created during the subscription."""
        return self._partitions.is_new(tp)

    def pause_before_refresh(self, most: float) -> float:
        """Return how many seconds after one metadata request the next one is due, `most` at most:
        soon, while responses are missing that would prove partitions to be new."""
        return min(self._pause, most) if self._partitions.needs_response else most

    async def refresh(self, *, coordinator_matches: bool) -> None:
        """Refresh the metadata. `coordinator_matches`: the coordinator matches the pattern, so that
        the metadata has assigned topics only. Raises: what `Cluster.refresh` raises."""
        self._pause = self._pauses.next()
        await self._cluster.refresh()
        if coordinator_matches and self._partitions.needs_complete_response:
            # Not merged into the metadata, which need not hold all partitions of the cluster.
            response = await self._cluster.describe_topics(_ALL_TOPICS)
            if response.brokers:  # a broker that is still starting lists none
                listed = {
                    t.name: Described(t.topic_id, len(t.partitions))
                    for t in response.topics
                    if t.name is not None and t.partitions
                }
                self._partitions.note_response(listed, is_complete=True)
                self._notify()

    def _note_response(self, requested: Collection[str] | None) -> None:
        """Note a metadata response, which is merged already. `requested`: the topics of the
        request; None for all."""
        known = self._cluster.metadata.topics
        topics = known if requested is None else {t: known[t] for t in requested if t in known}
        described = {
            name: Described(topic.topic_id, len(topic.partitions))
            for name, topic in topics.items()
            if topic.partitions
        }
        absent = [name for name, topic in topics.items() if topic.error_code in ABSENT]
        # Topics with another error, which does not show whether they exist.
        denied = () if requested is None else {*requested} - described.keys() - {*absent}
        self._partitions.note_response(described, absent, denied, is_complete=requested is None)
        self._notify()

    def _notify(self) -> None:
        # `_pause` is still 0 if another part of the client has requested this response. Without a
        # pause, `run` of the `TopicWatch` would request the next response at once.
        self._pause = self._pause or self._pauses.next()
        self._responded.set()
        self._responded = OneShotEvent()


class StartCommits:
    """Commits where new partitions start, before the first of their records is delivered.

    Otherwise a member that joins later, and gets such a partition before its first commit, would
    apply the reset policy: the partition is not new to that member.
    """

    def __init__(self, session: Session, engine: FetchControl, spawn: Spawn) -> None:
        self._committer = session.committer
        self._delivery = session.delivery
        self._timeout = session.options.request_timeout
        self._engine = engine
        self._committing = CoalescingTask(spawn, self._commit_all, "starts of new partitions")

    def request(self, owned: OwnedPartition) -> None:
        """Have a partition fetched only after its position is committed, or the broker has refused
        the commit for a reason that lasts. Without a group, have it fetched at once."""
        if self._committer.group_offsets is not None:
            owned.awaits_start_commit = True
            self._committing.ensure_running()

    def _waiting(self) -> list[OwnedPartition]:
        return [o for o in self._delivery.owned.values() if o.awaits_start_commit]

    async def _commit_all(self) -> None:
        group_offsets = self._committer.group_offsets
        assert group_offsets is not None  # or `request` would not have started this task
        pauses = group_offsets.pauses()
        while waiting := self._waiting():
            starts = {o.tp: OffsetAndMetadata(o.position) for o in waiting}
            try:
                await self._committer.commit(starts, anyio.current_time() + self._timeout)
            except BrokerError as error:
                if error.retriable:
                    await pauses.wait()
                    continue
                logger.warning(
                    "committing where new partitions start failed: %s; until the first commit,"
                    " another owner of them applies auto_offset_reset",
                    error,
                )
            except KafkaGroupError as error:
                # A rebalance, or the coordinator does not respond: the member will lose the
                # partitions, or the next attempt succeeds.
                logger.info("committing where new partitions start: %s", error)
                await pauses.wait()
                continue
            for owned in waiting:
                owned.awaits_start_commit = False
            self._engine.wake()

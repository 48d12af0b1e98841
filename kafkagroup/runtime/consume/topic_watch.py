"""Follows the topics that a consumer requests: keeps their metadata current, finds those that match
a pattern, and reports those that cannot be consumed. The engine acts on the changes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable

from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.concurrency.coalescing_task import CoalescingTask, Spawn
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.errors import RETRIED_ERRORS, ErrorCode, broker_error
from kafkagroup.runtime.consume.large_jobs import run_job
from kafkagroup.runtime.consume.new_partitions import NewPartitionWatch
from kafkagroup.runtime.consume.session import Session
from kafkagroup.runtime.consume.subscriber import Subscriber
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.trouble import Problem
from kafkagroup.transport.unusable_topics import topic_problem

__all__ = ["TopicWatch"]

logger = logging.getLogger(__name__)

_INCOMPLETE_METADATA_PAUSE = 1.0
"""Seconds between metadata requests while a subscribed topic does not exist, or while brokers
contradict each other."""

_UNUSABLE_TOPIC_WARN_AFTER = 1.5
"""Seconds that a topic may be missing or denied before a warning. Metadata is then requested every
second, so the warning is logged within three."""

_UNUSABLE_TOPIC_INTERVAL = 300.0
"""Seconds between two of these warnings."""

_MATCH_COST = 16
"""What one topic adds to the size of a job of `run_job`: matching its name takes as long as
processing this number of bytes of subscriptions."""

_NOTHING_TO_CONSUME = Problem(
    subject="waiting for records",
    cause="nothing is subscribed to and nothing is assigned",
    advice="name topics or a pattern in Consumer(...), or call subscribe() or assign()",
)


class TopicWatch:
    """The topics of one consumer's subscription, and of the partitions that it owns."""

    def __init__(
        self,
        session: Session,
        cluster: Cluster,
        subscriber: Subscriber,
        new_partitions: NewPartitionWatch,
        spawn: Spawn,
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        """`on_change` is called in a task after changes of the metadata, one call at a time."""
        self.pattern: re.Pattern[str] | None = None
        """The pattern to subscribe by; None for none. The subscriber gets it after the topics were
        listed."""
        self._session = session
        self._cluster = cluster
        self._subscriber = subscriber
        self._new_partitions = new_partitions
        self._on_change = on_change
        self._clock = loop_clock()
        self._unusable: set[str] = set()
        """Requested topics that cannot be consumed."""
        self._denied: frozenset[str] = frozenset()
        """Topics whose denied authorization was reported."""
        self._changed = OneShotEvent()
        """Set when the requested topics or their metadata change; `run` then replaces it."""
        self._is_metadata_new = False
        """Whether the metadata has changed since `_follow` last checked it."""
        self._following = CoalescingTask(spawn, self._follow, "metadata watch")
        cluster.topics.follow(self._in_use)

    # ------------------------------------------------------------ the subscription

    def subscribe(self, topics: frozenset[str], pattern: re.Pattern[str] | None = None) -> None:
        """Follow these topics instead of the earlier ones. `pattern`: the pattern that they match;
        None if the application has named them."""
        self.pattern = pattern
        if pattern is None:
            self._cluster.requests_all_topics = False
        self._new_partitions.subscribe(topics, pattern)
        self._subscriber.subscribe_to(topics, pattern)

    async def list_matching(self, pattern: re.Pattern[str]) -> frozenset[str]:
        """Set `pattern`, request all topics, and return those that match: the caller then
        subscribes to them. Raises: what `refresh` raises."""
        self.pattern = pattern
        # Before the request, so that its response counts. A topic is taken for new, and read from
        # its start, only if two responses since the subscription lack it.
        self._new_partitions.subscribe(frozenset(), pattern)
        self._cluster.requests_all_topics = True
        await self.refresh()
        return await self._matching(pattern)

    async def refresh(self) -> None:
        """Refresh the metadata. If no broker responds, refresh it in the background as soon as one
        does, and follow the change then.

        Raises: before the first metadata what `Cluster.refresh` raises; AuthenticationError after a
        refusal.
        """
        try:
            await self._cluster.refresh()
        except RETRIED_ERRORS as error:
            if self._cluster.logins.is_final(error) or not self._cluster.metadata.nodes:
                raise
            logger.info("metadata: %s", error)
            self._cluster.refresh_soon()

    async def changed_match(self) -> frozenset[str] | None:
        """Return the topics that match the pattern now, if they are not those of the subscription;
        else None. None too without a pattern, or if the coordinator matches it."""
        pattern = self.pattern
        if pattern is None or self._session.member.protocol.coordinator_assigns:
            return None
        matching = await self._matching(pattern)
        # If a thread has matched many topics, other tasks ran meanwhile.
        is_changed = pattern is self.pattern and matching != self._subscriber.topics
        return matching if is_changed else None

    async def _matching(self, pattern: re.Pattern[str]) -> frozenset[str]:
        topics = self._cluster.metadata.topics
        exclude_internal = self._session.options.exclude_internal_topics

        def match() -> frozenset[str]:
            return frozenset(
                name
                for name, topic in topics.items()
                if pattern.fullmatch(name)
                and topic.partitions
                and not (topic.internal and exclude_internal)
            )

        return await run_job(self._cluster, match, _MATCH_COST * len(topics))

    def _requested(self) -> frozenset[str]:
        """Return the topics of the subscription and of the owned partitions."""
        return self._subscriber.topics | {tp.topic for tp in self._session.delivery.owned}

    def _in_use(self) -> frozenset[str]:
        """Return the topics whose metadata the consumer needs at all times: those requested, those
        that the coordinator assigned last, and in a leader those of all members."""
        return self._requested() | self._subscriber.topics_in_use

    # ------------------------------------------------------------ the metadata

    async def run(self) -> None:
        """Refresh the metadata whenever it is due, and report requested topics that cannot be
        consumed."""
        max_pause = self._session.options.metadata_max_age
        requested_at = self._clock()
        while True:
            self._report_unusable()
            topics = self._in_use()
            unknown = topics - set(self._cluster.metadata.partition_counts(topics))
            is_incomplete = unknown or self._cluster.has_unconfirmed_metadata
            pause = min(_INCOMPLETE_METADATA_PAUSE, max_pause) if is_incomplete else max_pause
            pause = self._new_partitions.pause_before_refresh(pause)
            if await self._changed.wait(requested_at + pause):
                self._changed = OneShotEvent()
                continue
            requested_at = self._clock()
            try:
                # Refreshes the metadata, and notes which topics its response lacks.
                await self._new_partitions.refresh(
                    coordinator_matches=self._session.member.protocol.coordinator_assigns
                )
            except RETRIED_ERRORS as error:
                logger.info("metadata: %s", error)

    def on_metadata(self) -> None:
        """Note that the metadata has changed."""
        self._is_metadata_new = True
        self._following.ensure_running()

    async def _follow(self) -> None:
        while self._is_metadata_new:
            self._is_metadata_new = False
            self.check()
            await self._on_change()

    # ------------------------------------------------------------ reports

    def check(self) -> None:
        """Report the requested topics that this client may not describe, and wake `run`: it reports
        those that cannot be consumed, and requests missing metadata. Called when the application
        has requested other topics, or metadata has changed."""
        self._report_denied()
        self._changed.set()

    def _report_denied(self) -> None:
        """Let the application's next call raise an error for each requested topic whose
        authorization is denied, once per refusal: otherwise it would wait for records without
        knowing why none arrive."""
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topics = self._cluster.metadata.topics
        denied = frozenset(
            t for t in self._requested() if t in topics and topics[t].error_code == code
        )
        for topic in sorted(denied - self._denied):
            error = broker_error(code, operation="DESCRIBE", topic=topic)
            self._session.errors.report_refusal(error, ("describe", topic))
        self._denied = denied

    def _report_unusable(self) -> None:
        """Warn of the requested topics that cannot be consumed, also of denied ones."""
        troubles, metadata, now = self._cluster.troubles, self._cluster.metadata, self._clock()
        requested = self._requested()
        for name in self._unusable - requested:
            troubles.forget(("topic", name))
        self._unusable &= requested
        for name in sorted(requested):
            problem = topic_problem(metadata, name)
            if problem is not None:
                self._unusable.add(name)
                troubles.failed(
                    ("topic", name),
                    now,
                    problem,
                    warn_after=_UNUSABLE_TOPIC_WARN_AFTER,
                    warn_interval=_UNUSABLE_TOPIC_INTERVAL,
                )
            # Of a topic that the metadata lacks, no problem is known either: it stays unusable.
            elif name in self._unusable and name in metadata.topics:
                self._unusable.remove(name)
                troubles.succeeded(("topic", name), now)

    def report_nothing_to_consume(self) -> None:
        """Report a poll with a time limit while nothing is subscribed to or assigned. A poll
        without a limit raises an error instead."""
        self._cluster.troubles.failed("nothing to consume", self._clock(), _NOTHING_TO_CONSUME)

    def end_nothing_to_consume(self) -> None:
        """Note that something is subscribed to or assigned."""
        self._cluster.troubles.succeeded("nothing to consume", self._clock())

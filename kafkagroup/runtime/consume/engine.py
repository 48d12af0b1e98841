"""The tasks of a running consumer, and how it gets and releases partitions.

A consumer owns the partitions that its group assigns, all partitions of its topics, or those that
the application assigns. Only this module knows which.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import anyio

from kafkagroup.concurrency.coalescing_task import CoalescingTask, Spawn
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.consume.released import ReleasedPartitions
from kafkagroup.consume.subscription import server_pattern
from kafkagroup.errors import (
    RETRIED_ERRORS,
    ClusterChangedError,
    ErrorCode,
    KafkaGroupError,
    broker_error,
)
from kafkagroup.events import RebalanceCause
from kafkagroup.member.classic_state import Config, Member
from kafkagroup.options import ConsumerProtocol
from kafkagroup.runtime.consume.fetcher import Fetcher
from kafkagroup.runtime.consume.interfaces import FetchControl
from kafkagroup.runtime.consume.large_jobs import run_job
from kafkagroup.runtime.consume.new_partitions import NewPartitionWatch
from kafkagroup.runtime.consume.positions import Positions
from kafkagroup.runtime.consume.refusals import Refusals
from kafkagroup.runtime.consume.session import Session
from kafkagroup.runtime.consume.subscriber import Callbacks, Subscriber
from kafkagroup.runtime.member.driver import Driver
from kafkagroup.runtime.member.interfaces import Membership, Running
from kafkagroup.runtime.offsets.group_offsets import GroupOffsets
from kafkagroup.runtime.offsets.log_offsets import LogOffsets
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.trouble import Problem
from kafkagroup.transport.unusable_topics import topic_problem
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    from kafkagroup.member.consumer_state import Member as ConsumerMember

__all__ = ["Engine"]

logger = logging.getLogger(__name__)

_INCOMPLETE_METADATA_PAUSE = 1.0
"""Seconds between metadata requests while a subscribed topic does not exist, or while brokers
contradict each other."""

_UNUSABLE_TOPIC_WARN_AFTER = 1.5
"""Seconds that a topic may be missing or denied before a warning. Metadata is requested every
second, so the warning is logged within three."""

_UNUSABLE_TOPIC_INTERVAL = 300.0
"""Seconds between two of these warnings."""

_AWAITING_SEEK_INTERVAL = 5.0
"""Seconds between two reports of partitions that are not read."""

_NAME_BYTES = 16
"""The bytes of subscriptions that take as long to process as matching one topic."""

_NOTHING_TO_CONSUME = Problem(
    subject="waiting for records",
    cause="nothing is subscribed to and nothing is assigned",
    advice="name topics or a pattern in Consumer(...), or call subscribe() or assign()",
)


class Engine(FetchControl):
    """A running consumer."""

    def __init__(
        self,
        session: Session,
        cluster: Cluster,
        callbacks: Callbacks,
        spawn: Spawn,
        membership: Membership | None = None,
        subscriber: Callable[..., Subscriber] = Subscriber,
    ) -> None:
        """`subscriber` creates the consumer's part in its group."""
        self._session = session
        self._membership = membership
        """Creates the members where Kafka does not coordinate the group; None where it does."""
        self._options = session.options
        self._delivery: Delivery = session.delivery
        self._cluster = cluster
        self._spawn = spawn
        self._subscription: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._exclude_internal = True
        self._released = ReleasedPartitions()
        """Without a group: partitions whose topic is absent."""
        self._leaving: Running | None = None
        """The member that is leaving. The call that made it leave may have been cancelled."""
        self._denied_topics: frozenset[str] = frozenset()
        """Topics whose denied authorization was reported."""
        group_id = self._options.group_id
        if group_id is not None:
            offsets = GroupOffsets(
                cluster,
                group_id,
                max_retries=self._options.offsets_commit_max_retries,
                backoff=self._options.offsets_channel_backoff,
            )
            session.committer.bind(offsets)
        refusals = Refusals(session.errors, cluster.troubles, cluster.options)
        self.log_offsets = LogOffsets(cluster, self._options.isolation_level)
        """Requests offsets of logs from the partitions' leaders."""
        self.new_partitions = NewPartitionWatch(cluster, self._options)
        """Follows the metadata for partitions that are created during the subscription."""
        self._positions = Positions(
            session, cluster, self.log_offsets, self.new_partitions, refusals, self, spawn
        )
        self._fetcher = Fetcher(session, cluster, refusals, self, spawn)
        self.subscriber = subscriber(
            session, cluster, callbacks, self, claims=membership is not None
        )
        cluster.topics.follow(self._topics_in_use)
        self._metadata_watch = CoalescingTask(spawn, self._follow_metadata, "metadata watch")
        self._awaiting_seek = CoalescingTask(
            spawn, self._report_awaiting_seek, "partitions awaiting a seek"
        )
        self._metadata_is_new = False
        self._topics_changed = OneShotEvent()
        """Set when the requested topics or their metadata change."""
        self._unusable_topics: set[str] = set()
        """Requested topics that cannot be consumed."""
        if (
            membership is None
            and self._options.group_id is not None
            and self._options.group_protocol is not ConsumerProtocol.CLASSIC
        ):
            session.membership.use_consumer_protocol()
        self._member_id = str(uuid4())
        """The member id under KIP-848: the client generates it, and keeps it for the lifetime of
        this consumer (KIP-1082)."""
        self._may_be_known = False
        """Whether the coordinator may still count this consumer as a member, under that id, after
        the last membership."""
        self._unanswered_id = ""
        """The member id that the coordinator may still count, because leaving the group failed."""
        self._clock = session.bind_clock()

    def start(self) -> None:
        """Start the background tasks."""
        self._spawn(self._refresh_metadata, "metadata")
        self._cluster.set_on_change(self._metadata_changed)
        self._cluster.watch_identity(
            on_rebootstrap=self._invalidate_coordinator,
            on_changed=self._session.errors.report,
            on_adopted=self._on_cluster_adopted,
        )
        self._cluster.logins.watch(self._session.errors.report_refused_login)
        self._session.bind_logins(self._resume_logins)
        if self._options.group_id is not None and self._options.enable_auto_commit:
            session = self._session
            # While an ACL is missing, each auto-commit would raise it.
            report = partial(session.errors.report_refusal, about="auto-commit")
            self._spawn(partial(session.committer.auto_commit, report), "auto-commit")

    async def leave(self) -> None:
        """Leave the group, to close."""
        self._session.begin_close()
        self._cluster.logins.resume()  # what was refused once need not be now
        await self.unsubscribe("the consumer was closed")

    async def disconnect(self) -> None:
        """Close all connections."""
        await self._cluster.aclose()

    def wake(self) -> None:
        """Have the fetcher and the waiting tasks check again: there may be more to fetch."""
        self._fetcher.wake()
        self._session.notify()

    @property
    def fetching_bytes(self) -> int:
        """Bytes that fetch requests in flight may return."""
        return self._fetcher.in_flight_bytes

    def look_up_positions(self) -> None:
        """Look up missing positions, and validate those that need it."""
        self._positions.look_up()

    def made_room(self) -> None:
        """Wake the fetcher: the buffer has room again."""
        self._fetcher.made_room()

    # ------------------------------------------------------------ partitions

    async def subscribe(self, topics: frozenset[str]) -> None:
        """Consume these topics instead of the earlier ones."""
        self._pattern = None
        self._cluster.request_all_topics(False)
        await self._subscribe(topics)
        await self.new_partitions.wait_for_proof()

    async def _subscribe(self, topics: frozenset[str], *, may_join: bool = True) -> None:
        """Consume these topics. `may_join`: whether a member that has failed, or was expelled,
        joins again; at the latest it does when the application polls."""
        self._cluster.troubles.succeeded("nothing to consume", self._clock())
        self._subscription = topics
        self.new_partitions.subscribe(topics, self._pattern)
        self.subscriber.subscribe_to(topics, self._pattern)
        self._report_denied()
        await self._wait_until_left()
        driver = self._session.membership.driver
        if self._options.group_id is None:
            if self._pattern is None:  # with a pattern the metadata has all topics already
                await self._cluster.refresh()
            self._own_all()
        elif driver is None or driver.closed.is_set():
            if may_join or driver is None:
                self.join()
        else:
            reason = "the subscription changed"
            self._session.history.note_rejoin_request(RebalanceCause.SUBSCRIPTION, reason)
            self._session.membership.change_subscription(lambda: driver.follows_subscription)
            if self._session.membership.uses_consumer_protocol and isinstance(driver, Driver):
                driver.subscribe(topics, self._server_pattern)
            else:
                driver.rejoin(reason, self.subscriber.protocols())

    async def subscribe_by_pattern(
        self, pattern: re.Pattern[str], *, exclude_internal: bool
    ) -> None:
        """Consume the topics whose whole name matches, existing and future ones."""
        self._pattern, self._exclude_internal = pattern, exclude_internal
        if self._session.membership.uses_consumer_protocol:
            await self._subscribe(frozenset())  # the coordinator matches, and assigns what matches
            await self.new_partitions.wait_for_proof()
            return
        # Before the list of topics is requested: it counts as the first of two.
        self.new_partitions.subscribe(frozenset(), pattern)
        self._cluster.request_all_topics(True)
        await self._list_topics()
        # Also if nothing matches: the member joins, to be in the group when a topic appears.
        await self._subscribe(await self._matching_topics(pattern))
        await self.new_partitions.wait_for_proof()

    async def _list_topics(self) -> None:
        """Request the list of all topics. If no broker responds now, what matches is subscribed to
        as soon as one does."""
        try:
            await self._cluster.refresh()
        except RETRIED_ERRORS as error:
            if self._cluster.logins.is_final(error) or not self._cluster.metadata.nodes:
                raise
            logger.info("metadata: %s", error)
            self._cluster.refresh_soon()

    @property
    def _server_pattern(self) -> str | None:
        return None if self._pattern is None else server_pattern(self._pattern)

    async def _update_matching_topics(self) -> None:
        """Subscribe to the topics that match now, unless the coordinator matches."""
        if self._pattern is None or self._session.membership.uses_consumer_protocol:
            return
        pattern = self._pattern
        matching = await self._matching_topics(pattern)
        # Others ran if a thread has matched many topics.
        if pattern is self._pattern and matching != self._subscription:
            await self._subscribe(matching, may_join=False)

    async def _matching_topics(self, pattern: re.Pattern[str]) -> frozenset[str]:
        topics, exclude_internal = self._cluster.metadata.topics, self._exclude_internal

        def match() -> frozenset[str]:
            return frozenset(
                name
                for name, topic in topics.items()
                if pattern.fullmatch(name)
                and topic.partitions
                and not (topic.internal and exclude_internal)
            )

        return await run_job(self._cluster, match, _NAME_BYTES * len(topics))

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Own exactly these partitions, without membership."""
        await self._wait_until_left()
        wanted = set(partitions)
        # A cancelled call may have left partitions revoked and not released.
        await self._release_partitions(
            [tp for tp, o in self._delivery.owned.items() if tp not in wanted or o.revoked]
        )
        with self._cluster.topics.during(tp.topic for tp in wanted):
            await self._cluster.refresh()
        self._cluster.troubles.succeeded("nothing to consume", self._clock())
        # After the last await, so that a seek of the caller precedes the look-up of the position.
        self._delivery.own(sorted(wanted))
        self._report_denied()
        self.on_partitions_added()

    async def unsubscribe(self, reason: str) -> None:
        """Finish the records in flight, commit, leave the group, and own nothing."""
        # A cooperative member revokes unsubscribed topics only: without topics, everything.
        self._subscription, self._pattern = frozenset(), None
        self.new_partitions.subscribe(frozenset())
        self.subscriber.subscribe_to(frozenset())
        self._released.forget(self.subscriber.subscribes)
        self._cluster.request_all_topics(False)
        session = self._session
        driver = session.membership.driver
        if driver is None:
            await self._release_partitions(list(self._delivery.owned))
        if self._unanswered_id and (driver is None or driver.closed.is_set()):
            # Again, with a member that only leaves. Else the group would count the earlier one
            # until its session ends, and a new coordinator begins all sessions anew.
            driver = self.join()
        if driver is None:
            return
        closing = session.closing
        closing.begin_leaving(anyio.current_time())
        driver.leave(reason, leave_group=closing.leave_group, deadline=closing.leave_deadline)
        self._leaving = driver
        if not session.is_in_callback:  # the member leaves once the callback has returned
            await self._wait_until_left()

    @property
    def is_leaving(self) -> bool:
        """Whether a member has yet to leave."""
        return self._leaving is not None and not self._leaving.closed.is_set()

    async def _wait_until_left(self) -> None:
        """Wait until the leaving member, if any, has left."""
        driver, session = self._leaving, self._session
        if driver is None:
            return
        await driver.closed.wait()
        if driver is self._leaving:
            self._leaving = None
            session.membership.end()
            session.closing.end_leaving()

    @property
    def is_assigned(self) -> bool:
        """Whether the group has assigned partitions by the present subscription."""
        return self._session.membership.is_stable

    def rejoin(self, reason: str) -> None:
        """Request a new generation; under KIP-848, the full assignment."""
        session = self._session
        if session.membership.driver is None or session.membership.driver.closed.is_set():
            return  # an expelled member joins again at the next poll
        if not session.membership.uses_consumer_protocol:
            session.history.note_rejoin_request(RebalanceCause.REQUESTED, reason)
        session.membership.driver.rejoin(reason)

    def join(self) -> Running:
        """Become a member of the group, for the first time or again; return the member."""
        session = self._session
        driver = self._create_member()
        session.membership.begin(driver)
        self._spawn(partial(self._run_member, driver), "membership")
        if (offsets := session.committer.group_offsets) is not None:
            self._spawn(offsets.connect, "connection for offsets")
        return driver

    def _create_member(self) -> Running:
        """Return a member that does not run yet."""
        options, session = self._options, self._session
        if self._membership is not None:
            return self._membership.begin(
                self.subscriber,
                group_id=options.group_id or "",
                protocol_type=self.subscriber.protocol_type,
                protocols=self.subscriber.protocols(),
                whole=False,
                client_id=options.client_id,
                rebalance_timeout=options.rebalance_timeout,
                retry_backoff=options.rebalance_backoff,
                retry_backoff_max=max(options.retry_backoff_max, options.rebalance_backoff),
                max_retries=options.rebalance_max_retries,
                lag=session.lag,
                log=session.log,
                troubles=session.troubles,
            )
        driver_class = Driver
        if options.heartbeat_thread:
            # Imported here: most members run in the application's loop.
            from kafkagroup.runtime.member.threaded import ThreadedDriver

            driver_class = ThreadedDriver
        watchers = session.lag, session.log, session.history
        if session.membership.uses_consumer_protocol:
            return driver_class(
                self._cluster, self._create_consumer_protocol_member(), self.subscriber, *watchers
            )
        config = Config(
            group_id=options.group_id or "",
            was_member=session.membership.was_member,
            protocol_type=self.subscriber.protocol_type,
            group_instance_id=options.group_instance_id,
            cooperative=self.subscriber.cooperative,
            session_timeout=options.session_timeout,
            rebalance_timeout=options.rebalance_timeout,
            heartbeat_interval=options.heartbeat_interval,
            request_timeout=options.request_timeout,
            retry_backoff=options.rebalance_backoff,
            retry_backoff_max=max(options.retry_backoff_max, options.rebalance_backoff),
            max_retries=options.rebalance_max_retries,
        )
        member = Member(
            config=config, protocols=self.subscriber.protocols(), member_id=self._unanswered_id
        )
        return driver_class(self._cluster, member, self.subscriber, *watchers)

    def _create_consumer_protocol_member(self) -> ConsumerMember:
        """Return a KIP-848 member that has not joined yet."""
        # `consumer_protocol` for the driver: later there may be no descriptor to open its file.
        from kafkagroup.member import consumer_protocol, consumer_state  # noqa: F401

        options = self._options
        config = consumer_state.Config(
            group_id=options.group_id or "",
            was_member=self._session.membership.was_member,
            group_instance_id=options.group_instance_id,
            rack=options.client_rack,
            assignor=options.group_remote_assignor,
            may_fall_back=options.group_protocol is ConsumerProtocol.AUTO,
            session_timeout=options.session_timeout,
            rebalance_timeout=options.rebalance_timeout,
            heartbeat_interval=options.heartbeat_interval,
            request_timeout=options.request_timeout,
            retry_backoff=options.rebalance_backoff,
            retry_backoff_max=max(options.retry_backoff_max, options.rebalance_backoff),
            max_retries=options.rebalance_max_retries,
        )
        return consumer_state.Member(
            config=config,
            member_id=self._member_id,
            topics=tuple(sorted(self._subscription)),
            pattern=self._server_pattern,
            may_be_known=self._may_be_known,
        )

    async def _run_member(self, driver: Running) -> None:
        await driver.run()
        session = self._session
        if isinstance(driver, Driver):
            self._may_be_known = driver.may_be_known
            self._unanswered_id = driver.unanswered_id
        has_ended = driver is self._leaving or session.errors.failure is not None
        if session.membership.is_void and not has_ended:
            self.join()
            return
        if isinstance(driver, Driver) and driver.fell_back and driver is not self._leaving:
            session.membership.fall_back_to_classic()
            if self._pattern is None:
                self.join()
            else:
                await self._join_by_pattern(self._pattern)
            return
        if driver.is_expelled and driver is not self._leaving:
            session.membership.expel()
            session.notify()  # an application that already waits for records must rejoin now

    async def _join_by_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe by a pattern as soon as a broker lists the topics."""
        pauses = RetryBackoff(self._cluster.options)
        while self._pattern is pattern:
            try:
                await self.subscribe_by_pattern(pattern, exclude_internal=self._exclude_internal)
                return
            except RETRIED_ERRORS as error:
                logger.info("metadata: %s", error)
            await pauses.wait()

    def _resume_logins(self) -> None:
        """Log in again, once the application goes on after the refusal was raised."""
        if not self._session.errors.has_refused_login:
            self._cluster.logins.resume()

    def _invalidate_coordinator(self) -> None:
        if (offsets := self._session.committer.group_offsets) is not None:
            offsets.invalidate_coordinator()
        if (driver := self._session.membership.driver) is not None:
            driver.invalidate_coordinator("the client bootstraps again")

    def _on_cluster_adopted(self, change: ClusterChangedError) -> None:
        """Forget the positions in the earlier cluster, at once: rejoin, and look them up anew."""
        session, delivery = self._session, self._delivery
        reason = f"cluster {change.found} was adopted"
        self.new_partitions.forget_cluster()
        if (offsets := session.committer.group_offsets) is not None:
            offsets.forget_cluster()
        driver = session.membership.driver
        if driver is not None and not driver.closed.is_set():
            session.membership.void()
            delivery.revoke(list(delivery.owned))
            # Without a request to leave: the group there does not know this member.
            driver.leave(reason, leave_group=False, lost=True)
        else:
            owned = sorted(delivery.owned.items())
            session.note_lost(delivery.owned, reason)
            delivery.release([tp for tp, _ in owned])
            if not self._subscription:
                delivery.own(tp for tp, _ in owned)
                for tp in [tp for tp, one in owned if one.paused]:
                    delivery.pause(tp)
        session.notify()

    def _own_all(self) -> None:
        """Own all partitions of the topics, without a group."""
        metadata, owned = self._cluster.metadata, self._delivery.owned
        counts = metadata.partition_counts(self._subscription)
        partitions = {TopicPartition(t, p) for t, n in counts.items() for p in range(n)}
        released = [tp for tp in owned if tp not in partitions]
        self._released.keep([owned[tp] for tp in released])
        self._delivery.release(released)
        for added in self._delivery.own(sorted(partitions)):
            self._released.restore(added, metadata.topics[added.tp.topic].topic_id)
        self._released.forget(self.subscriber.subscribes)
        self.on_partitions_added()

    async def _release_partitions(self, partitions: list[TopicPartition]) -> None:
        """Without membership: finish the records in flight, commit, release the partitions."""
        session, timeout = self._session, self._session.closing.drain_timeout
        self._delivery.revoke(partitions)
        await session.drain(partitions, anyio.current_time() + timeout)
        if session.committer.group_offsets is not None and session.committer.is_automatic:
            try:
                await session.committer.commit_processed(timeout)
            except KafkaGroupError as error:
                logger.warning("the last commit failed: %s", error)
        self._delivery.release(partitions)

    def fail_partition(self, owned: OwnedPartition, error: Exception) -> None:
        """Raise `error` to the application, and fetch nothing from the partition until it seeks."""
        self._session.errors.fail_partition(owned, error)
        self.report_awaiting_seek()

    def report_awaiting_seek(self) -> None:
        """Report the partitions that are not read, repeatedly until there are none."""
        self._awaiting_seek.ensure_running()

    async def _report_awaiting_seek(self) -> None:
        """Report the partitions that are not read until the application seeks, as one problem: if
        a group is denied, all its partitions fail."""
        troubles = self._cluster.troubles
        while found := self._delivery.awaiting_seek():
            first, error = min(found, key=lambda item: item[0].tp)
            others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            problem = Problem(
                subject=f"reading {first.tp}{others}",
                cause=str(error),
                advice="remove the cause, then seek() to the offset to continue at",
                has_own_finding=True,
            )
            troubles.failed("awaiting seek", self._clock(), problem)
            await anyio.sleep(_AWAITING_SEEK_INTERVAL)
        troubles.succeeded("awaiting seek", self._clock())

    def on_partitions_added(self) -> None:
        """Look up the positions of new partitions, and fetch those that already have one."""
        self.look_up_positions()
        self.wake()

    # ------------------------------------------------------------ background

    async def _refresh_metadata(self) -> None:
        most = self._options.metadata_max_age
        requested_at = anyio.current_time()
        while True:
            self._report_topics()
            topics = self._topics_in_use()
            unknown = topics - set(self._cluster.metadata.partition_counts(topics))
            is_incomplete = unknown or self._cluster.has_unconfirmed_metadata
            pause = min(_INCOMPLETE_METADATA_PAUSE, most) if is_incomplete else most
            pause = self.new_partitions.pause_before_refresh(pause)
            if await self._topics_changed.wait(requested_at + pause):
                self._topics_changed = OneShotEvent()
                continue
            requested_at = anyio.current_time()
            try:
                await self.new_partitions.refresh(
                    coordinator_matches=self._session.membership.uses_consumer_protocol
                )
            except RETRIED_ERRORS as error:
                logger.info("metadata: %s", error)

    def _report_topics(self) -> None:
        """Report the requested topics that cannot be consumed."""
        troubles, metadata, now = self._cluster.troubles, self._cluster.metadata, self._clock()
        requested = self._requested_topics()
        for name in self._unusable_topics - requested:
            troubles.forget(("topic", name))
        self._unusable_topics &= requested
        for name in sorted(requested):
            problem = topic_problem(metadata, name)
            if problem is not None:
                self._unusable_topics.add(name)
                troubles.failed(
                    ("topic", name),
                    now,
                    problem,
                    warn_after=_UNUSABLE_TOPIC_WARN_AFTER,
                    warn_interval=_UNUSABLE_TOPIC_INTERVAL,
                )
            elif name in self._unusable_topics and name in metadata.topics:
                self._unusable_topics.remove(name)
                troubles.succeeded(("topic", name), now)

    def report_nothing_to_consume(self) -> None:
        """Report a poll with a time limit while nothing is subscribed or assigned."""
        self._cluster.troubles.failed("nothing to consume", self._clock(), _NOTHING_TO_CONSUME)

    def _requested_topics(self) -> frozenset[str]:
        """Return the topics of the subscription and of the owned partitions."""
        return self._subscription | {tp.topic for tp in self._delivery.owned}

    def _topics_in_use(self) -> frozenset[str]:
        """Return the topics whose metadata the consumer needs at all times."""
        return self._requested_topics() | self.subscriber.topics_in_use

    def _metadata_changed(self) -> None:
        self._metadata_is_new = True
        self._metadata_watch.ensure_running()

    async def _follow_metadata(self) -> None:
        while self._metadata_is_new:
            self._metadata_is_new = False
            self._report_denied()
            self.on_partitions_added()
            await self._update_matching_topics()
            if self._options.group_id is None and self._subscription:
                self._own_all()
            await self.subscriber.follow_topics()

    def _report_denied(self) -> None:
        """Report once each requested topic whose authorization is denied: the application would
        otherwise wait for its records in vain."""
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topics = self._cluster.metadata.topics
        requested = self._requested_topics()
        denied = frozenset(t for t in requested if t in topics and topics[t].error_code == code)
        for topic in sorted(denied - self._denied_topics):
            error = broker_error(code, operation="DESCRIBE", topic=topic)
            self._session.errors.report_refusal(error, ("describe", topic))
        self._denied_topics = denied
        self._topics_changed.set()
